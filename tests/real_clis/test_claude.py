"""The Claude runtime on the real Claude Code."""

from __future__ import annotations

import base64
import itertools
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import (
    AgentErrorEvent,
    AgentEvent,
    AgentRunResult,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    AgentUsage,
    ClaudeCliRuntime,
    RunFields,
)
from tests.fakes import codes, finished, wait_until
from tests.real_clis.bench import Bench, refused_url
from tests.real_clis.model_server import ModelRequest
from tests.real_clis.scenarios_claude import delegate, delegate_to_background, is_notified, leave_shells, shell
from tests.real_clis.script import Cut, Delay, Hang, Hold, HttpError, ToolCall, Turn, Usage, in_pieces, long_text

FEW_RETRIES = {"CLAUDE_CODE_MAX_RETRIES": "1"}  # The default is ten, which take three minutes.
ALLOW_SHELL = ("--allowedTools=Bash",)
GONE_WITHIN = 3.0  # Seconds within which everything that a run started must be gone.
WARNING = "CLI_WARNING"
# A white square; Claude passes small images on unchanged.
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEElEQVR4nGP4//8/AzYEAKWhD/F2p4mYAAAAAElFTkSuQmCC"
)


@pytest.fixture
def bench(cli_bench: Bench) -> Bench:
    """Where Claude works: not a git repository, and a folder that it has never seen."""
    assert not (cli_bench.workdir / ".git").exists()
    return cli_bench


def run(bench: Bench, prompt: str = "hello", **fields: Any) -> tuple[list[AgentEvent], AgentRunResult]:
    """A complete run in the bench's folder: its events and its result."""
    of_runtime = ("timeout", "tool_timeout", "linger", "prompt_syntax")
    options = {name: fields.pop(name) for name in of_runtime if name in fields}
    return finished(ClaudeCliRuntime(**options).execute(prompt, working_directory=bench.workdir, **fields))


def of(events: list[AgentEvent], kind: type[AgentEvent]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


# --- what the agent says and does ---------------------------------------------------------------------------


def test_an_answer_streams_while_the_model_still_speaks(bench: Bench) -> None:
    hold = Hold()
    bench.server.script([Turn(text=["Hel", "lo, ", hold, "world"], usage=Usage(100, 20, 30, 40))])
    fields: RunFields = {
        "working_directory": bench.workdir,
        "model": "claude-haiku-4-5",
        "system_prompt": "Mind the \u00e9.\n",
    }
    pieces = []
    with ClaudeCliRuntime().start("hello", **fields) as events:
        for event in events:
            assert not isinstance(event, AgentErrorEvent), event
            if isinstance(event, AgentTextEvent):
                pieces.append(event.text)
                if len(pieces) == 2:
                    hold.release.set()  # Only now, which shows that these two were not held back until the end.
    assert pieces == ["Hel", "lo, ", "world"]
    result = events.result
    assert result is not None
    assert (result.ok, result.exit_code, result.text) == (True, 0, "Hello, world")
    assert result.usage == AgentUsage(100, 20, 30, 40)
    assert result.total_cost_usd
    (request,) = bench.server.requests
    assert request.model.startswith("claude-haiku-4-5")
    assert "Mind the \u00e9." in request.system
    assert "Claude" in request.system.replace("Mind the \u00e9.", "")  # Added to Claude's own, not replacing it.


def test_thinking_and_parallel_tools_that_work_and_fail(bench: Bench) -> None:
    calls = [
        shell("echo out", "toolu_good"),
        shell("echo bad >&2; exit 3", "toolu_bad"),
        ToolCall("TaskList", {}, "t3"),
    ]
    bench.server.script([Turn(thinking=["think ", "hard"], text="Wait.", tool_calls=calls), Turn(text="Done.")])
    events, result = run(bench, extra_args=ALLOW_SHELL)
    assert result.ok
    assert result.text == "Wait.Done."
    assert [event.text for event in of(events, AgentThinkingEvent)] == ["think ", "hard"]
    uses = of(events, AgentToolUseEvent)
    assert [(use.tool_name, use.tool_id) for use in uses] == [
        ("Bash", "toolu_good"),
        ("Bash", "toolu_bad"),
        ("TaskList", "t3"),
    ]
    assert uses[0].input["command"] == "echo out"
    results = {event.tool_id: (event.output, event.is_error) for event in of(events, AgentToolResultEvent)}
    assert results["toolu_good"] == ("out", False)
    assert results["toolu_bad"] == ("Exit code 3\nbad", True)
    assert len(results) == 3


def test_the_answer_after_a_cut_stream_reaches_the_consumer(bench: Bench) -> None:
    bench.server.script([Turn(text=["half", Delay(0.5), Cut()]), Turn(text="The real answer.", usage=Usage(33, 11))])
    events, result = run(bench)
    assert result.ok
    assert [event.text for event in of(events, AgentTextEvent)] == ["half", "The real answer."]
    retry, cut_off = of(events, AgentErrorEvent)
    assert (retry.code, cut_off.code) == (WARNING, WARNING)
    assert "the text so far is not part of the answer" in cut_off.message
    assert result.usage == AgentUsage(33 + 10, 11 + 1)  # 2.1.326 also counts the request that was cut off.


def test_an_answer_of_two_megabytes_arrives_whole_at_a_consumer_that_pauses(bench: Bench) -> None:
    answer = long_text(2_000_000)
    bench.server.script([Turn(text=in_pieces(answer, 20_000))])
    events = ClaudeCliRuntime().execute("hello", working_directory=bench.workdir)
    first = next(events)
    # Claude writes everything it has to say, and exits, while nobody reads.
    assert wait_until(lambda: not bench.processes())
    told, result = finished(itertools.chain([first], events))
    assert len(of(told, AgentTextEvent)) >= 100  # In the pieces in which the model produced it.
    assert result.text == answer
    assert result.ok


def test_two_parallel_sub_agents_are_kept_apart(bench: Bench) -> None:
    bench.server.respond(delegate)
    events, result = run(bench, extra_args=ALLOW_SHELL)
    assert result.ok
    assert result.text == "Wait.Delegated."
    assert of(events, AgentThinkingEvent) == []
    parents = {event.tool_id: event.parent_tool_use_id for event in of(events, AgentToolUseEvent)}
    assert parents == {"toolu_A": None, "toolu_B": None, "toolu_inner_A": "toolu_A", "toolu_inner_B": "toolu_B"}
    results = {event.tool_id: event for event in of(events, AgentToolResultEvent)}
    assert {tool_id: event.parent_tool_use_id for tool_id, event in results.items()} == parents
    assert (results["toolu_inner_A"].output, results["toolu_inner_B"].output) == ("A", "B")
    assert "answer of B" in results["toolu_B"].output


def said(events: list[AgentEvent]) -> list[str]:
    """The texts, without the blank lines between turns."""
    return [words for event in of(events, AgentTextEvent) if (words := event.text.strip("\n"))]


def test_turns_that_background_agents_begin_are_part_of_the_run(bench: Bench) -> None:
    bench.server.respond(delegate_to_background)
    events, result = run(bench, extra_args=ALLOW_SHELL)
    assert result.ok
    assert result.text == "Wait.Delegated.\n\nNoted.\n\nNoted."
    assert result.usage == AgentUsage(164, 81)
    assert codes(events) == []


def test_a_sub_agent_that_claude_itself_puts_into_the_background_is_waited_for(bench: Bench) -> None:
    """Since 2.1.252 all sub-agents are started there unless the model says otherwise: the run has two turns and two
    results."""

    def respond(request: ModelRequest) -> Turn:
        if request.prompt == "the inner task":
            # Longer than a CLI may stay after its last word (`linger`).
            call = shell("sleep 3; echo slept", "toolu_inner")
            return Turn(text="inner words") if request.tool_results else Turn(tool_calls=[call])
        if is_notified(request):
            return Turn(text="It is done.", usage=Usage(7, 3))
        if request.tool_results:
            return Turn(text="I have sent one.")
        arguments = {"description": "a task", "prompt": "the inner task", "subagent_type": "general-purpose"}
        return Turn(tool_calls=[ToolCall("Agent", arguments, "toolu_agent")], usage=Usage(100, 50))

    bench.server.respond(respond)
    events, result = run(bench, extra_args=ALLOW_SHELL)
    results = {event.tool_id: event.output for event in of(events, AgentToolResultEvent)}
    assert "launched" in results["toolu_agent"]  # The call did not wait for the agent.
    assert results["toolu_inner"] == "slept"
    assert (result.ok, result.exit_code) == (True, 0)
    assert said(events) == ["I have sent one.", "It is done."]
    assert "inner words" not in result.text
    assert result.usage == AgentUsage(100 + 10 + 10 + 10 + 7, 50 + 5 + 5 + 5 + 3)


def test_the_turn_after_a_background_shell_is_part_of_the_run_and_no_shell_outlives_it(bench: Bench) -> None:
    """2.1.326 would wait for the other shell, and so for ever if that is a server: it is ended 7 s after its last
    word."""
    bench.server.respond(leave_shells)
    events, result = run(bench, extra_args=ALLOW_SHELL)
    assert (result.ok, codes(events)) == (True, [])
    assert result.text == "Wait.Left running.\n\nNoted."
    assert wait_until(lambda: not bench.processes(), GONE_WITHIN)


def test_a_background_shell_is_waited_for_as_long_as_linger_says(bench: Bench) -> None:
    bench.server.respond(leave_shells)
    events, result = run(bench, extra_args=ALLOW_SHELL, linger=60.0)
    assert (result.ok, result.exit_code) == (True, 0)  # It ended by itself; we did not end it.
    assert said(events) == ["Wait.", "Left running.", "Noted.", "Noted."]


# --- sessions -----------------------------------------------------------------------------------------------


def test_a_resumed_session_keeps_its_id_and_the_model_sees_the_earlier_turn(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As inside another Claude, where a child session would not be stored, and could not be resumed.
    for name in ("CLAUDECODE", "CLAUDE_CODE_CHILD_SESSION"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("CLAUDE_CODE_SESSION_ID", "11111111-2222-4333-8444-555555555555")
    bench.server.script([Turn(text="Noted.", usage=Usage(500, 50)), Turn(text="Seven.", usage=Usage(20, 2))])
    first = run(bench, "/seven is my number")[1]
    assert first.ok
    assert first.session_id
    second = run(bench, "what is it?", session_id=first.session_id)[1]
    assert (second.ok, second.session_id, second.text) == (True, first.session_id, "Seven.")
    conversation = bench.server.requests[1].conversation
    assert bench.server.requests[1].occurrences("/seven is my number") == 1
    assert conversation.assistant_texts == ("Noted.",)
    assert conversation.prompt == "what is it?"
    assert second.usage == AgentUsage(20, 2)  # Of this run, not of the conversation.
    assert second.total_cost_usd
    assert first.total_cost_usd
    assert second.total_cost_usd < first.total_cost_usd


@pytest.mark.parametrize("session_id", ["00000000-0000-4000-8000-000000000000", "no such title"])
def test_an_unknown_session_is_an_error_and_not_a_new_session(session_id: str, bench: Bench) -> None:
    events, result = run(bench, session_id=session_id)
    assert (result.error_subtype, result.session_id, len(codes(events))) == ("session_not_found", None, 1)
    assert bench.server.requests == []


# --- failures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "subtype", "retried"),
    [(400, "config", False), (401, "auth", True), (429, "rate_limit", True), (500, "overloaded", True)]
    + [(529, "overloaded", True)],
)
def test_an_api_error_is_told_once_in_the_vendors_words(status: int, subtype: str, retried: bool, bench: Bench) -> None:
    bench.server.script([HttpError(status=status, message="the scripted complaint")])
    events, result = run(bench, env=FEW_RETRIES)
    assert (result.error_subtype, result.exit_code, result.text) == (subtype, 1, "")
    (error,) = [event for event in of(events, AgentErrorEvent) if event.code != WARNING]
    assert "the scripted complaint" in error.message
    assert codes(events).count(WARNING) == (1 if retried else 0)


def test_a_refused_connection_is_a_network_failure(bench: Bench) -> None:
    bench.point_at(refused_url())
    events, result = run(bench, env=FEW_RETRIES)
    assert result.error_subtype == "network"
    assert [code for code in codes(events) if code != WARNING] == ["server_error"]


def test_a_run_that_failed_at_the_api_can_be_gone_on_with(bench: Bench) -> None:
    # After a 400, 2.1.326 asks several times, each time for less.
    bench.server.script([], then=HttpError(status=400))
    failed = run(bench)[1]
    assert failed.session_id
    bench.server.script([Turn(text="Better.")])
    assert run(bench, session_id=failed.session_id)[1].text == "Better."


@pytest.mark.skipif(os.geteuid() != 0, reason="Claude refuses bypass to root only")
def test_bypass_as_root_says_what_to_do(bench: Bench) -> None:
    events, result = run(bench, permission_mode="bypass")
    (error,) = of(events, AgentErrorEvent)
    assert result.error_subtype == "permission"
    assert "cannot be used with root" in error.message
    assert "IS_SANDBOX=1" in error.message


def test_a_flag_that_claude_does_not_know_is_a_config_error(bench: Bench) -> None:
    events, result = run(bench, extra_args=["--no-such-flag"])
    assert (codes(events), result.error_subtype) == (["CLI_EXIT_ERROR"], "config")


# --- the end, from outside ----------------------------------------------------------------------------------

# A child of the shell tool, a child in its own session, and the tool itself.
SLEEPERS = shell("sh -c 'sleep 600 & setsid sleep 601 & sleep 602'", "toolu_sleep")


def hung_model(bench: Bench) -> Callable[[], bool]:
    bench.server.script([Hang()])
    return lambda: len(bench.server.requests) == 1


def running_tool(bench: Bench) -> Callable[[], bool]:
    # At SIGTERM Claude ends its tool, and would ask the model once more if that answered immediately.
    bench.server.script([Turn(tool_calls=[SLEEPERS]), Hang()])
    return lambda: sum("sleep 60" in command for command in bench.processes().values()) >= 3


@pytest.mark.parametrize("stuck", [hung_model, running_tool])
@pytest.mark.parametrize("ending", ["abort", "close"])
def test_an_abort_or_close_ends_claude_its_tools_and_their_children(
    ending: str, stuck: Callable[[Bench], Callable[[], bool]], bench: Bench
) -> None:
    is_stuck = stuck(bench)
    signal = threading.Event()
    fields: RunFields = {"working_directory": bench.workdir, "extra_args": ALLOW_SHELL, "abort_signal": signal}
    events: list[AgentEvent] = []
    handle = ClaudeCliRuntime().start("hello", **fields)
    consumer = threading.Thread(target=lambda: events.extend(handle))
    consumer.start()
    assert wait_until(is_stuck)
    ended_at = time.monotonic()
    if ending == "abort":
        signal.set()
    else:
        handle.close()
    consumer.join(GONE_WITHIN)
    assert not consumer.is_alive()
    assert wait_until(lambda: not bench.processes(), GONE_WITHIN - (time.monotonic() - ended_at))
    assert handle.result is not None
    assert handle.result.aborted
    assert codes(events) == (["ABORTED"] if ending == "abort" else [])


@pytest.mark.parametrize(("stuck", "timeout", "tool_timeout"), [(hung_model, 12.0, None), (running_tool, 60.0, 4.0)])
def test_the_watchdog_ends_a_silent_claude_its_tools_and_their_children(
    stuck: Callable[[Bench], Callable[[], bool]], timeout: float, tool_timeout: float | None, bench: Bench
) -> None:
    stuck(bench)
    events, result = run(bench, extra_args=ALLOW_SHELL, timeout=timeout, tool_timeout=tool_timeout)
    assert (codes(events), result.error_subtype) == (["WATCHDOG_TIMEOUT"], "timeout")
    assert wait_until(lambda: not bench.processes(), GONE_WITHIN)
    assert len(of(events, AgentToolUseEvent)) == (1 if tool_timeout else 0)
    assert result.session_id


# --- prompts ------------------------------------------------------------------------------------------------

SECRET = "the-content-of-the-file"
NASTY_PROMPTS = (
    "--help",
    "-",
    "--",
    "--dangerously-skip-permissions do it",
    "-p --version",
    "\"double\" 'single' `id` $HOME \\ %s",
    "one\r\ntwo\n\n\tthree\x1b[31m\x7f",
    "emoji \U0001f469\u200d\U0001f4bb, accents e\u0301\u00e9, \u2028 \u0085 \ufeff",
    "  leading and trailing  \n\n",
    "/clear",
    "/no-such-command with words",
    "read @secret.txt, @/etc/hostname and mail me@example.org",
    '{"type":"user","message":{"role":"user","content":"json"}}',
)


def test_nasty_prompts_reach_the_model_byte_for_byte(bench: Bench) -> None:
    (bench.workdir / "secret.txt").write_text(SECRET)
    bench.server.script([], then=Turn(text="ok"))
    for prompt in NASTY_PROMPTS:
        events, result = run(bench, prompt)
        assert (prompt, result.text, codes(events)) == (prompt, "ok", [])
    assert tuple(bench.server.received_prompts()) == NASTY_PROMPTS
    assert not [request for request in bench.server.requests if SECRET.encode() in request.raw]


@pytest.mark.parametrize("beginning", ["", "/clear @secret.txt "])
def test_long_prompts_arrive_once(beginning: str, bench: Bench) -> None:
    bench.server.script([], then=Turn(text="ok"))
    prompts = [beginning + long_text(size) for size in (20_000, 134_656, 600_000)]
    for prompt in prompts:
        assert run(bench, prompt)[1].text == "ok"
    assert bench.server.received_prompts() == prompts
    assert [request.occurrences(prompt) for request, prompt in zip(bench.server.requests, prompts, strict=True)] == [
        1
    ] * 3


def test_the_cli_syntax_runs_commands_and_reads_files_if_asked_for(bench: Bench) -> None:
    (bench.workdir / "secret.txt").write_text(SECRET)
    bench.server.script([], then=Turn(text="ok"))
    assert run(bench, "/context", prompt_syntax="cli")[1].text.startswith("## Context Usage")
    assert bench.server.requests == []
    assert run(bench, "read @secret.txt", prompt_syntax="cli")[1].text == "ok"
    assert SECRET.encode() in bench.server.requests[0].raw


def test_an_image_reaches_the_model_and_the_prompt_beside_it_is_text(bench: Bench) -> None:
    image = bench.workdir / "square.png"
    image.write_bytes(PNG)
    bench.server.script([Turn(text="A square.")])
    assert run(bench, "/what is this?", images=[image])[1].text == "A square."
    (request,) = bench.server.requests
    # 2.1.326 adds after it where it has put the image.
    assert [words for words in request.conversation.user_texts if not words.startswith("[Image: source:")][-1] == (
        "/what is this?"
    )
    blocks = [block for message in request.body["messages"] for block in message["content"] if isinstance(block, dict)]
    (shown,) = [block for block in blocks if block["type"] == "image"]
    assert base64.b64decode(shown["source"]["data"]).startswith(b"\x89PNG")


# --- permissions --------------------------------------------------------------------------------------------


def try_to_write(bench: Bench, **fields: Any) -> tuple[set[str], AgentRunResult]:
    """Let the model write with the file tool, the shell and a sub-agent's shell; returns the files it wrote."""
    (bench.workdir / "seen.txt").write_text("seen")
    run_id = len(bench.server.requests)  # Claude drops the results of ids that a session has already used.

    def respond(request: Any) -> Turn:
        if request.prompt == "the inner task":
            call = shell("touch by_agent", f"inner_{run_id}")
            return Turn(text="Tried.") if request.tool_results else Turn(tool_calls=[call])
        if request.tool_results:
            return Turn(text="Tried.")
        calls = [
            bench.claude.write_file_call(bench.workdir / "by_tool", "x", f"write_{run_id}"),
            shell("touch by_shell", f"shell_{run_id}"),
            bench.claude.agent_call("the inner task", f"agent_{run_id}"),
            ToolCall("Read", {"file_path": str(bench.workdir / "seen.txt")}, f"read_{run_id}"),
        ]
        return Turn(tool_calls=calls)

    bench.server.respond(respond)
    events, result = run(bench, **fields)
    assert result.ok, events
    results = {event.tool_id: event for event in of(events, AgentToolResultEvent)}
    assert "seen" in results[f"read_{run_id}"].output
    return {path.name for path in bench.workdir.iterdir()} - {"seen.txt", ".claude"}, result


EVERYTHING = {"by_tool", "by_shell", "by_agent"}


def test_by_default_claude_denies_what_nobody_can_approve(bench: Bench) -> None:
    written, result = try_to_write(bench)
    assert written == set()
    assert {denial.tool for denial in result.permission_denials} == {"Write", "Bash"}
    assert all(denial.reason for denial in result.permission_denials)


def test_read_only_holds_also_against_the_users_own_permissions(bench: Bench) -> None:
    settings = {"permissions": {"allow": ["Bash", "Write"], "defaultMode": "acceptEdits"}}
    (bench.home / ".claude").mkdir()
    (bench.home / ".claude" / "settings.json").write_text(json.dumps(settings))
    assert try_to_write(bench)[0] == EVERYTHING  # "default" is what the user has configured.
    for path in bench.workdir.glob("by_*"):
        path.unlink()
    written, result = try_to_write(bench, permission_mode="read-only")
    assert written == set()
    assert {denial.tool for denial in result.permission_denials} >= {"Write", "Bash"}


def test_accept_edits_and_bypass_write_and_are_not_remembered_by_a_session(bench: Bench) -> None:
    first = try_to_write(bench, permission_mode="accept-edits")
    assert first[0] == EVERYTHING
    for path in bench.workdir.glob("by_*"):
        path.unlink()
    assert try_to_write(bench, session_id=first[1].session_id)[0] == set()
    written, _ = try_to_write(bench, session_id=first[1].session_id, permission_mode="bypass", env={"IS_SANDBOX": "1"})
    assert written == EVERYTHING


def test_the_folder_may_hold_odd_characters(bench: Bench) -> None:
    folder = bench.workdir / "-a b\u00e9'\""
    folder.mkdir()
    bench.server.script([Turn(tool_calls=[shell("pwd", "t_pwd")]), Turn(text="Done.")])
    events, result = finished(
        ClaudeCliRuntime(Path("claude")).execute("hello", working_directory=folder, extra_args=ALLOW_SHELL)
    )
    assert result.ok
    assert [event.output for event in of(events, AgentToolResultEvent)] == [str(folder)]
