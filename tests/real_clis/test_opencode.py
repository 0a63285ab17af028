"""OpenCodeCliRuntime with the real OpenCode. A start takes about four seconds, so a run shows several things."""

from __future__ import annotations

import json
import struct
import threading
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import (
    AgentDoneEvent,
    AgentErrorEvent,
    AgentEvent,
    AgentRunResult,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentUsage,
    McpServerConfig,
    OpenCodeCliRuntime,
    errors,
)
from tests.fakes import PassingTime, finished, wait_until
from tests.real_clis.bench import Bench, refused_url
from tests.real_clis.model_server import ModelRequest
from tests.real_clis.scenarios_opencode import AT_ONCE, SMALL_MODEL, delegating, overflowing, read, task
from tests.real_clis.script import (
    Cut,
    Delay,
    Hang,
    HttpError,
    Reply,
    ToolCall,
    Turn,
    Usage,
    in_pieces,
    long_text,
)

A_START = 100.0  # Seconds for a start of OpenCode, which takes 4 s of work, on a very busy machine.
GONE_WITHIN = 3.0  # Seconds after a run's end within which everything that it started must be gone.
SEES_IMAGES = {
    "provider": {"bench": {"models": {"scripted": {"modalities": {"input": ["text", "image"], "output": ["text"]}}}}}
}

NASTY_PROMPTS = [
    "--help",
    "-",
    "--",
    "--dangerously-skip-permissions",
    "--session=ses_1 --auto\n",
    "  leading spaces, trailing newlines\n\n\n",
    "say \"hi\" and 'ho' `id` $HOME \\ \\n {env:HOME} %s",
    "CRLF\r\nand\ttabs, emoji \U0001f469\u200d\U0001f4bb, \u2028, \x0b \x0c \x1b[31m, \ufeff",
    "/init @secret.txt",
    "@secret.txt what is in it? @../work/secret.txt",
    "\ufeff!rm -rf / # 12345",
]


def runtime(**options: Any) -> OpenCodeCliRuntime:
    return OpenCodeCliRuntime(**{"timeout": A_START, **options})


def run(bench: Bench, prompt: str = "do it", **fields: Any) -> tuple[list[AgentEvent], AgentRunResult]:
    """A run in the bench's folder, unless the caller names another (None: no folder is named)."""
    if "working_directory" not in fields:
        fields["working_directory"] = bench.workdir
    return finished(runtime().execute(prompt, **fields))


def told(events: Iterable[AgentEvent]) -> list[tuple[str, str | None]]:
    return [(event.message, event.code) for event in events if isinstance(event, AgentErrorEvent)]


def results(events: Iterable[AgentEvent]) -> dict[str, AgentToolResultEvent]:
    return {event.tool_id: event for event in events if isinstance(event, AgentToolResultEvent)}


# --- answers ----------------------------------------------------------------------------------------------------------


def test_a_plain_answer_in_a_folder_without_git_costs_one_request(cli_bench: Bench) -> None:
    cli_bench.server.script([Turn(thinking=["Let me ", "see."], text=["Hel", "lo"], usage=Usage(100, 7, 20, 0, 3))])
    events, result = run(cli_bench, model="bench/scripted")
    # Whole parts: this CLI prints no deltas.
    assert events == [AgentThinkingEvent("Let me see."), AgentTextEvent("Hello")]
    assert result.ok
    assert result.session_id is not None
    assert result.usage == AgentUsage(100, 7, 20, 0)
    assert result.total_cost_usd == pytest.approx((100 + 10 * 10 + 20 * 0.1) / 1e6)
    assert result.stderr == ""
    (request,) = cli_bench.server.requests
    assert request.model == "scripted"
    # No request for a title: it would not be counted in any usage.
    assert cli_bench.server.side_requests == []


def test_text_arrives_when_its_step_ends_and_not_only_at_the_end(cli_bench: Bench) -> None:
    calls = [cli_bench.opencode.shell_call("true")]
    waiting = threading.Event()

    def respond(request: ModelRequest) -> Reply:
        if not request.tool_results:
            return Turn(text="First.", tool_calls=calls)
        assert waiting.wait(30)
        return Turn(text="Second.")

    cli_bench.server.respond(respond)
    texts = []
    for event in runtime().execute("go", working_directory=cli_bench.workdir):
        if isinstance(event, AgentTextEvent):
            texts.append(event.text)
            waiting.set()
    assert texts == ["First.", "Second."]


def test_tools_that_work_and_tools_that_fail_in_parallel(cli_bench: Bench) -> None:
    cli = cli_bench.opencode
    calls = [
        cli.shell_call("until [ -e failed -a -e note.txt ]; do sleep 0.1; done; echo slow; echo err >&2", "call_slow"),
        cli.shell_call("echo gone; touch failed; exit 3", "call_fails"),
        cli.write_file_call(cli_bench.workdir / "note.txt", "one\n", "call_write"),
        ToolCall("no_such_tool", {}, "call_unknown"),
        ToolCall("bash", "{not json", "call_garbled"),
    ]
    script = [Turn(text="Wait.", tool_calls=calls, usage=Usage(10, 1)), Turn(text="Done.", usage=Usage(20, 2))]
    cli_bench.server.script(script)
    events, result = run(cli_bench)
    assert (result.ok, result.text) == (True, "Wait.Done.")
    outcomes = results(events)
    assert {tool_id for tool_id, outcome in outcomes.items() if outcome.is_error} == {
        "call_fails",
        "call_unknown",
        "call_garbled",
    }
    assert outcomes["call_slow"].output == "slow\nerr\n"
    assert (cli_bench.workdir / "note.txt").read_text() == "one\n"
    assert result.usage == AgentUsage(30, 3)
    assert result.total_cost_usd == pytest.approx((30 + 3 * 10) / 1e6)


def test_a_model_that_stops_after_tool_calls_is_waited_for(cli_bench: Bench) -> None:
    """Longer than a CLI may linger after its last word: this was not its last."""
    calls = [cli_bench.opencode.shell_call("true")]
    cli_bench.server.script(
        [Turn(text="Calling.", tool_calls=calls, stop="end_turn"), Turn(text=[Delay(3.0), "Called."])]
    )
    _, result = run(cli_bench)
    assert (result.ok, result.text) == (True, "Calling.Called.")


def test_a_stream_that_breaks_off_is_taken_up_again(cli_bench: Bench) -> None:
    cli_bench.server.script([Turn(text=["half", Cut(clean=True)]), Turn(text=[Delay(3.0), "whole"])])
    _, result = run(cli_bench)
    assert (result.ok, result.text) == (True, "halfwhole")


def test_an_answer_of_two_megabytes_arrives_whole_although_nobody_reads_it_at_first(cli_bench: Bench) -> None:
    text = long_text(2_000_000)
    calls = [cli_bench.opencode.shell_call("true")]
    cli_bench.server.script([Turn(text="First.", tool_calls=calls), Turn(text=in_pieces(text, 100_000))])
    with runtime().start("go", working_directory=cli_bench.workdir) as agent_run:
        assert next(agent_run) == AgentTextEvent("First.")
        pid = agent_run.pid
        assert pid is not None
        assert wait_until(lambda: not Path(f"/proc/{pid}").exists(), 40)
        rest = list(agent_run)
    assert isinstance(rest[-1], AgentDoneEvent)
    assert rest[-1].result.text == "First." + text


def test_a_sub_agents_words_are_the_result_of_its_call(cli_bench: Bench) -> None:
    cli_bench.server.respond(delegating(Turn(tool_calls=[read("/etc/hostname")]), Turn(text="inner answer")))
    # The sub-agent's request for a permission is granted too: nothing waits for an answer.
    events, result = run(cli_bench, permission_mode="bypass")
    assert (result.ok, result.text) == (True, "outer answer")
    (outcome,) = results(events).values()
    assert "inner answer" in outcome.output


@pytest.mark.parametrize("failing", [False, True])
def test_a_conversation_that_becomes_too_long_is_compacted_without_a_word_in_the_answer(
    cli_bench: Bench, failing: bool
) -> None:
    tool_step = Turn(text="the start", tool_calls=[cli_bench.opencode.shell_call("true")], usage=Usage(60_000, 10))
    too_long = HttpError(status=400, message="maximum context length is 8192", kind="context_length_exceeded")
    answer = overflowing(too_long if failing else tool_step)

    def slowly(request: ModelRequest) -> Reply:
        reply = answer(request)
        return Turn(text=[Delay(3.0), "the rest"]) if isinstance(reply, Turn) and reply.text == "the rest" else reply

    cli_bench.server.respond(slowly)
    events, result = run(cli_bench, env={"OPENCODE_CONFIG_CONTENT": json.dumps(SMALL_MODEL)})
    assert result.ok
    assert result.text == ("the rest" if failing else "the startthe rest")
    assert not any(isinstance(event, AgentThinkingEvent) for event in events)
    assert told(events) == ([("maximum context length is 8192", errors.CLI_WARNING)] if failing else [])


# --- prompts and options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompts", [NASTY_PROMPTS[:6], NASTY_PROMPTS[6:]], ids=["flags", "text"])
def test_nasty_prompts_arrive_byte_for_byte(cli_bench: Bench, prompts: list[str]) -> None:
    (cli_bench.workdir / "secret.txt").write_text("TOP SECRET")
    cli_bench.server.script([], then=Turn(text="ok"))
    for prompt in prompts:
        _, result = run(cli_bench, prompt)
        assert result.ok, (prompt, result)
    assert cli_bench.server.received_prompts() == prompts
    assert not any(b"TOP SECRET" in request.raw for request in cli_bench.server.requests)


@pytest.mark.parametrize("size", [20_000, 131_500, 600_000])
def test_a_long_prompt_arrives_once(cli_bench: Bench, size: int) -> None:
    prompt = long_text(size)
    cli_bench.server.script([Turn(text="ok")])
    _, result = run(cli_bench, prompt)
    assert result.ok
    (request,) = cli_bench.server.requests
    assert request.conversation.user_texts == (prompt,)


def test_system_prompt_images_extra_arguments_and_a_nested_run(
    cli_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside an outer OpenCode whose shell is in another folder, with settings of the caller's own."""
    outer = {"OPENCODE": "1", "OPENCODE_PID": "1", "OPENCODE_CLIENT": "acp", "OPENCODE_WORKSPACE_ID": "wrk_1"}
    for name, value in {**outer, "OPENCODE_SERVER_PASSWORD": "p", "AGENT": "1", "PWD": str(cli_bench.home)}.items():
        monkeypatch.setenv(name, value)
    picture = cli_bench.home / "-a picture, or so?#%41.png"
    picture.write_bytes(png())
    (cli_bench.workdir / "AGENTS.md").write_text("the folder's own instructions")
    (cli_bench.workdir / "mine.md").write_text("the caller's own instructions")
    settings = json.dumps({**SEES_IMAGES, "instructions": ["mine.md"]})
    cli_bench.server.script([Turn(tool_calls=[cli_bench.opencode.shell_call("pwd", "call_pwd")]), Turn(text="seen")])
    events, result = run(
        cli_bench,
        "look",
        system_prompt="Answer in Latin. \u2713",
        images=[picture, picture],
        env={"OPENCODE_CONFIG_CONTENT": f"// mine\n{settings}"},
        extra_args=["--title", "a title of mine"],
    )
    assert (result.ok, result.text) == (True, "seen")
    assert results(events)["call_pwd"].output.strip() == str(cli_bench.workdir)
    first = cli_bench.server.requests[0]
    for words in ("Answer in Latin. \u2713", "the folder's own instructions", "the caller's own instructions"):
        assert words in first.system
    assert first.prompt == "look"
    content = first.body["messages"][-1]["content"]
    assert [block["type"] for block in content].count("image_url") == 2
    assert [path.name for path in cli_bench.tmp.iterdir() if path.name.startswith("remoteclaw")] == []


def test_read_only_cannot_be_undone_by_the_folders_own_settings(cli_bench: Bench) -> None:
    allow = {"edit": "allow", "bash": {"*": "allow"}, "task": "allow", "*": "allow"}
    bold = {"mode": "primary", "permission": allow}
    settings = {"permission": allow, "default_agent": "bold", "agent": {"build": {"permission": allow}, "bold": bold}}
    (cli_bench.workdir / "opencode.json").write_text(json.dumps(settings))
    (cli_bench.workdir / "note.txt").write_text("to be read")
    calls = [
        cli_bench.opencode.shell_call("touch made", "call_shell"),
        cli_bench.opencode.write_file_call(cli_bench.workdir / "made", "x", "call_write"),
        task("make it"),
        ToolCall("read", {"filePath": str(cli_bench.workdir / "note.txt")}, "call_read"),
    ]
    for agent in ([], ["--agent", "bold"]):
        cli_bench.server.script([Turn(tool_calls=calls), Turn(text="done")])
        events, result = run(cli_bench, permission_mode="read-only", extra_args=agent)
        assert (result.ok, result.text) == (True, "done")
        outcomes = results(events)
        assert "to be read" in outcomes["call_read"].output
        assert outcomes["call_shell"].is_error
        assert outcomes["call_write"].is_error
        assert not (cli_bench.workdir / "made").exists()
        assert not {"bash", "edit", "write", "task"} & set(cli_bench.server.requests[-1].tools)


def test_accept_edits_writes_where_the_users_settings_would_ask(cli_bench: Bench) -> None:
    settings = {"permission": {"edit": {"*": "ask", "*.key": "deny"}, "bash": "ask"}}
    (cli_bench.workdir / "opencode.json").write_text(json.dumps(settings))
    made, denied = cli_bench.workdir / "made.txt", cli_bench.workdir / "made.key"
    calls = [
        cli_bench.opencode.write_file_call(made, "x", "call_write"),
        cli_bench.opencode.write_file_call(denied, "x", "call_denied"),
    ]
    cli_bench.server.script([Turn(tool_calls=calls), Turn(text="done")])
    events, result = run(cli_bench, permission_mode="accept-edits")
    assert (result.ok, result.text) == (True, "done")
    assert made.read_text() == "x"
    assert not denied.exists()
    assert [denial.tool_id for denial in result.permission_denials] == ["call_denied"]


def test_a_permission_nobody_can_grant_is_a_failure_and_bypass_grants_it(cli_bench: Bench) -> None:
    turns = [Turn(text="I look.", tool_calls=[read("/etc/hostname")]), Turn(text="Seen.")]
    cli_bench.server.script(turns)
    events, result = run(cli_bench)
    assert (result.ok, result.error_subtype, result.exit_code) == (False, "permission", 0)
    assert [denial.tool for denial in result.permission_denials] == ["read"]
    ((message, _),) = told(events)
    assert "external_directory (/etc/*)" in message
    cli_bench.server.script(turns)
    _, result = run(cli_bench, permission_mode="bypass", session_id=result.session_id)
    assert (result.ok, result.text, result.permission_denials) == (True, "I look.Seen.", ())


# --- MCP servers beyond what test_mcp.py shows on every CLI -----------------------------------------------------------


def server(bench: Bench, trust: bool = True, **env: str) -> McpServerConfig:
    command, *args = bench.mcp_command()
    return McpServerConfig(command, args, env, trust)


def test_trusted_servers_and_no_others_are_callable_where_the_users_settings_ask(cli_bench: Bench) -> None:
    ask = {"*": "ask"}
    settings = {"permission": "ask", "agent": {"build": {"permission": ask}, "mine": {"permission": ask}}}
    (cli_bench.workdir / "opencode.json").write_text(json.dumps(settings))
    servers = {"lab": server(cli_bench), "other": server(cli_bench, trust=False)}
    for agent in ([], ["--agent=mine"]):
        turns = [
            Turn(tool_calls=[cli_bench.opencode.mcp_call("lab", "echo", {"text": "hi"}, "call_lab")]),
            Turn(tool_calls=[cli_bench.opencode.mcp_call("other", "echo", {"text": "hi"}, "call_other")]),
        ]
        cli_bench.server.script(turns)
        events, result = run(cli_bench, mcp_servers=servers, extra_args=agent)
        assert results(events)["call_lab"].output == "echo: hi"
        assert results(events)["call_other"].is_error
        assert result.error_subtype == "permission"
        assert [denial.tool for denial in result.permission_denials] == ["other_echo"]


def test_merge_restore_in_a_folder_without_settings_leaves_not_even_a_folder(cli_bench: Bench) -> None:
    def respond(request: ModelRequest) -> Reply:
        if not request.tool_results:
            return Turn(tool_calls=[cli_bench.opencode.mcp_call("lab", "env", {"name": "TOKEN"})])
        return Turn(text=request.tool_results[-1].text)

    cli_bench.server.respond(respond)
    tokens = [f'{number} "q" \\\n {{env:HOME}} {{file:/etc/hostname}} \\u007b \U0001f389' for number in range(3)]

    def one(token: str) -> AgentRunResult:
        servers = {"lab": server(cli_bench, TOKEN=token)}
        events = runtime(mcp_config="merge-restore").execute(
            "go", working_directory=cli_bench.workdir, mcp_servers=servers
        )
        return finished(events)[1]

    with ThreadPoolExecutor(len(tokens)) as pool:
        outcomes = list(pool.map(one, tokens))
    assert [outcome.text for outcome in outcomes] == tokens
    assert list(cli_bench.workdir.iterdir()) == []


@pytest.mark.slow
def test_merge_restore_gives_back_a_file_that_opencode_would_have_written_to(cli_bench: Bench) -> None:
    """OpenCode adds a `$schema` to every config without one. Once, on a busy machine, it read and wrote the file again
    after it had been restored (1.18.33)."""
    path = cli_bench.workdir / ".opencode" / "opencode.jsonc"
    path.parent.mkdir()
    path.write_text('// mine\n{"username": "me", /* no schema */}\n')
    path.chmod(0o640)
    before = path.read_bytes(), path.stat()
    call = cli_bench.opencode.mcp_call("lab", "echo", {"text": "hi"})
    cli_bench.server.script([Turn(tool_calls=[call]), Turn(text="done")])
    events, result = finished(
        runtime(mcp_config="merge-restore").execute(
            "go", working_directory=cli_bench.workdir, mcp_servers={"lab": server(cli_bench)}
        )
    )
    assert (result.ok, result.text, result.stderr) == (True, "done", "")
    assert [outcome.output for outcome in results(events).values()] == ["echo: hi"]
    after = path.stat()
    assert path.read_bytes() == before[0]
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (
        before[1].st_ino,
        before[1].st_mode,
        before[1].st_mtime_ns,
    )


def test_a_server_that_crashes_in_a_call_is_a_warning(cli_bench: Bench) -> None:
    call = cli_bench.opencode.mcp_call("lab", "crash", {}, "call_crash")
    cli_bench.server.script([Turn(tool_calls=[call]), Turn(text="it is gone")])
    events, result = run(cli_bench, mcp_servers={"lab": server(cli_bench)})
    assert (result.ok, result.text) == (True, "it is gone")
    assert results(events)["call_crash"].is_error
    assert told(events) == [("MCP server 'lab' closed its connection during the run", errors.MCP_SERVER_FAILED)]


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_a_session_is_resumed_in_its_own_folder_with_this_runs_settings_and_usage(
    cli_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli_bench.server.script([Turn(text="Nice.", usage=Usage(1000, 100)), Turn(text="Seven.", usage=Usage(10, 1))])
    _, first = run(cli_bench, "My number is 7.")
    elsewhere = cli_bench.workdir / "below"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    _, second = run(
        cli_bench,
        "Which number?",
        session_id=first.session_id,
        working_directory=None,
        permission_mode="read-only",
        system_prompt="Answer in Latin.",
    )
    assert (second.ok, second.text, second.session_id) == (True, "Seven.", first.session_id)
    assert second.usage == AgentUsage(10, 1)
    request = cli_bench.server.requests[-1]
    assert request.conversation.user_texts == ("My number is 7.", "Which number?")
    assert request.conversation.assistant_texts == ("Nice.",)
    assert "bash" not in request.tools
    assert "Answer in Latin." in request.system

    # In the folder that the caller names, it would hang for ever.
    events, third = run(cli_bench, session_id=first.session_id, working_directory=elsewhere)
    ((message, code),) = told(events)
    assert (code, third.error_subtype) == (errors.SESSION_NOT_FOUND, "session_not_found")
    assert str(cli_bench.workdir) in message
    assert len(cli_bench.server.requests) == 2


@pytest.mark.parametrize("session_id", ["ses_e14fae195ffeXzp9W5IzXZ1jnA", "no such session"])
def test_an_unknown_session_is_an_error_and_no_new_one(cli_bench: Bench, session_id: str) -> None:
    cli_bench.server.script([])
    events, result = run(cli_bench, session_id=session_id)
    assert told(events) == [("Session not found", errors.CLI_EXIT_ERROR)]
    assert result.error_subtype == "session_not_found"


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "subtype"),
    [
        (400, "invalid_request_error", "config"),
        (401, "authentication_error", "auth"),
        (429, "rate_limit_exceeded", "rate_limit"),
        (500, "server_error", "overloaded"),
        (529, "server_error", "overloaded"),
    ],
)
def test_an_api_error_is_told_once_in_its_own_words(cli_bench: Bench, status: int, code: str, subtype: str) -> None:
    cli_bench.server.script([HttpError(status=status, message="the complaint", retry_after=AT_ONCE)])
    events, result = run(cli_bench)
    assert told(events) == [("the complaint", code)]
    assert (result.ok, result.error_subtype) == (False, subtype)
    assert result.session_id is not None
    assert (len(cli_bench.server.requests) > 1) == (status not in (400, 401))


def test_an_api_error_that_a_retry_gets_over_is_none(cli_bench: Bench) -> None:
    cli_bench.server.script([HttpError(status=500, retry_after=AT_ONCE), Turn(text="at last")])
    events, result = run(cli_bench)
    assert (result.ok, result.text, told(events)) == (True, "at last", [])


@pytest.mark.timeout(180)
def test_a_refused_connection_is_told_after_opencodes_own_retries(cli_bench: Bench) -> None:
    """They take about 70 s, and cannot be shortened."""
    cli_bench.point_at(refused_url())
    events, result = finished(runtime(timeout=150.0).execute("go", working_directory=cli_bench.workdir))
    assert result.error_subtype == "network"
    assert len(told(events)) == 1


def test_a_blocked_and_a_cut_off_answer(cli_bench: Bench) -> None:
    cli_bench.server.script([Turn(text="I will", stop="refusal"), Turn(text="cut off", stop="max_tokens")])
    events, blocked = run(cli_bench)
    assert (blocked.ok, blocked.text, blocked.stop_reason) == (False, "I will", "content-filter")
    assert [code for _, code in told(events)] == ["ContentFilterError"]
    _, cut_off = run(cli_bench)
    assert (cut_off.ok, cut_off.text, cut_off.stop_reason) == (True, "cut off", "length")


def test_wrong_settings_are_named_and_their_secrets_are_not(cli_bench: Bench) -> None:
    cli_bench.server.script([])
    secret = "sk-a-secret-of-the-users"
    config = cli_bench.home / ".config" / "opencode" / "opencode.json"
    good = config.read_text()
    config.write_text(good.replace('"apiKey"', f'"apiKey": "{secret}" oops, "x"'))
    events, result = run(cli_bench)
    ((message, _),) = told(events)
    assert "is not valid JSON" in message
    assert result.error_subtype == "config"
    assert secret not in message + result.stderr
    config.write_text(good)
    for fields, words in (
        ({"model": "bench/no-such-model"}, "Model not found: bench/no-such-model"),
        ({"extra_args": ["--no-such-flag"]}, "unknown argument"),
    ):
        events, result = run(cli_bench, **fields)
        ((message, _),) = told(events)
        assert words in message
        assert result.error_subtype == "config"
        assert "\n    at " not in message


# --- ends -------------------------------------------------------------------------------------------------------------


def nothing_is_left(bench: Bench) -> bool:
    return wait_until(lambda: not bench.processes(), GONE_WITHIN)


def test_abort_ends_a_run_whose_model_hangs(cli_bench: Bench) -> None:
    cli_bench.server.script([Hang()])
    signal = threading.Event()

    def abort_when_asked() -> None:
        cli_bench.server.wait_for_requests(1)
        signal.set()

    waiter = threading.Thread(target=abort_when_asked)
    waiter.start()
    events, result = run(cli_bench, abort_signal=signal)
    waiter.join()
    assert nothing_is_left(cli_bench)
    assert (result.aborted, result.error_subtype) == (True, "aborted")
    assert [code for _, code in told(events)] == [errors.ABORTED]


def test_the_watchdog_ends_a_run_whose_model_hangs(cli_bench: Bench) -> None:
    cli_bench.server.script([Turn(tool_calls=[cli_bench.opencode.shell_call("true")]), Hang(after_headers=True)])
    watched = runtime(timeout=600.0)
    clock = PassingTime(watched)
    agent_run = watched.start("go", working_directory=cli_bench.workdir)
    with ThreadPoolExecutor(1) as pool:
        consumer = pool.submit(finished, agent_run)
        wait_until(lambda: len(cli_bench.server.requests) == 2, 2 * A_START)
        # Perhaps more than once: what OpenCode says about the tool may arrive after its request.
        while agent_run.result is None:
            clock.put_forward(600.0)
            wait_until(consumer.done, 0.5)
        events, result = consumer.result()
    assert nothing_is_left(cli_bench)
    assert len(cli_bench.server.requests) == 2
    assert (result.error_subtype, [code for _, code in told(events)]) == ("timeout", [errors.WATCHDOG_TIMEOUT])


def test_a_silent_sub_agent_outlives_the_timeout(cli_bench: Bench) -> None:
    working, may_end = cli_bench.workdir / "working", cli_bench.workdir / "may_end"
    command = f"touch {working}; until [ -e {may_end} ]; do sleep 0.1; done"
    step = Turn(tool_calls=[cli_bench.opencode.shell_call(command)])
    cli_bench.server.respond(delegating(step, Turn(text="slept")))
    watched = runtime(timeout=600.0)
    clock = PassingTime(watched)
    with ThreadPoolExecutor(1) as pool:
        consumer = pool.submit(watched.run, "go", check=False, working_directory=cli_bench.workdir)
        assert wait_until(working.exists, A_START)
        clock.put_forward(1200.0)
        assert not wait_until(consumer.done, 1.0)
        may_end.touch()
        result = consumer.result()
    assert (result.ok, result.text) == (True, "outer answer")


STUBBORN = (
    "setsid sh -c 'trap \"\" TERM HUP INT; sleep 600 & sleep 600' & sh -c 'sleep 600' & touch {started}; sleep 600"
)


@pytest.mark.parametrize("end", ["abort", "close"])
def test_an_early_end_takes_a_running_tool_and_its_children_along(cli_bench: Bench, end: str, tmp_path: Path) -> None:
    started = cli_bench.workdir / "started"
    command = STUBBORN.format(started=started)
    cli_bench.server.script([Turn(tool_calls=[cli_bench.opencode.shell_call(command)])])
    agent_run = runtime().start("go", working_directory=cli_bench.workdir)
    consumer = threading.Thread(target=lambda: list(agent_run))
    consumer.start()
    assert wait_until(started.exists, A_START)
    assert len(cli_bench.processes()) > 3
    ending: Callable[[], None] = getattr(agent_run, end)
    ending()
    assert nothing_is_left(cli_bench)
    consumer.join(GONE_WITHIN)
    assert not consumer.is_alive()
    assert agent_run.result is not None
    assert agent_run.result.aborted


def png() -> bytes:
    """A picture of two by two pixels; OpenCode checks whether it is one."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 2, 2, 8, 2, 0, 0, 0)
    pixels = zlib.compress((b"\0" + b"\xff\0\0" * 2) * 2)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
