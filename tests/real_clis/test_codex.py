"""The Codex runtime on the real Codex."""

from __future__ import annotations

import base64
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import (
    AgentErrorEvent,
    AgentEvent,
    AgentExecuteParams,
    AgentRun,
    AgentRunResult,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    AgentUsage,
    CodexCliRuntime,
    errors,
)
from tests.fakes import codes, finished, wait_until
from tests.real_clis.bench import Bench, refused_url
from tests.real_clis.scenarios_codex import FEW_RETRIES, mcp_server, shell
from tests.real_clis.script import Cut, Hang, HttpError, ToolCall, Turn, Usage, in_pieces, long_text

GONE_WITHIN = 3.0  # Seconds within which everything that a run started must be gone.
UNKNOWN_THREAD = "01a1eb00-15c6-7ed1-bb4b-e9131945d2e9"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def bench(cli_bench: Bench) -> Bench:
    """Where Codex works: not a git repository, and a folder that it has never seen."""
    assert not (cli_bench.workdir / ".git").exists()
    return cli_bench


def run(bench: Bench, prompt: str = "hello", **fields: Any) -> tuple[list[AgentEvent], AgentRunResult]:
    """A complete run in the bench's folder: its events and its result."""
    options = {name: fields.pop(name) for name in ("timeout", "wait_for_network") if name in fields}
    return finished(CodexCliRuntime(**options).execute(prompt, **{"working_directory": bench.workdir, **fields}))


def after_requests(bench: Bench, count: int, action: Callable[[], None]) -> None:
    """Do this in another thread once the model has been asked this many times."""

    def wait_and_act() -> None:
        bench.server.wait_for_requests(count)
        action()

    threading.Thread(target=wait_and_act).start()


def of(events: list[AgentEvent], kind: type[AgentEvent]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


# --- what the agent says and does -------------------------------------------------------------------------------


def test_a_plain_answer_with_all_that_is_told_about_it(bench: Bench) -> None:
    """Codex prints a message once it is complete, so there is one text event, however the model streams."""
    turn = Turn(thinking="Let me see.", text=["Hel", "lo, ", "world"], usage=Usage(100, 7, 20, 0, 3))
    bench.server.script([turn])
    events, result = run(bench, model="gpt-6-sol", system_prompt='Say "hé" \\ \x7f 👩‍💻\nand no more.')
    assert events == [AgentThinkingEvent("Let me see."), AgentTextEvent("Hello, world")]
    assert result.ok
    assert (result.exit_code, result.stderr, result.usage) == (0, "", AgentUsage(120, 10, 20, 0))
    (request,) = bench.server.requests
    assert request.model == "gpt-6-sol"
    assert 'Say "hé" \\ \x7f 👩‍💻\nand no more.' in request.system
    assert "Codex" in request.system  # Its own instructions are still there.


def test_messages_before_and_after_tools_are_all_in_the_answer(bench: Bench) -> None:
    call = bench.codex.shell_call("echo from-the-tool")
    bench.server.script([Turn(text="I shall look.", tool_calls=[call]), Turn(text="Ok.")])
    events, result = run(bench)
    use, outcome = of(events, AgentToolUseEvent)[0], of(events, AgentToolResultEvent)[0]
    assert events == [AgentTextEvent("I shall look."), use, outcome, AgentTextEvent("Ok.")]
    assert use.tool_name == "command_execution"
    assert "echo from-the-tool" in use.input["command"]
    assert outcome == AgentToolResultEvent(use.tool_id, "from-the-tool\n", False)
    assert result.text == "I shall look.Ok."
    assert "from-the-tool" in bench.server.requests[1].tool_results[0].text


def test_parallel_tools_keep_their_results_apart(bench: Bench) -> None:
    commands = {"echo one; exit 3": ("one\n", True), "echo two": ("two\n", False), "exit 4": ("exit code 4", True)}
    calls = [bench.codex.shell_call(command) for command in commands]
    bench.server.script([Turn(tool_calls=calls), Turn(text="Done.")])
    events, result = run(bench)
    uses = {event.tool_id: event.input["command"] for event in of(events, AgentToolUseEvent)}
    outcomes = {event.tool_id: (event.output, event.is_error) for event in of(events, AgentToolResultEvent)}
    assert result.ok
    assert len(uses) == len(outcomes) == 3
    for tool_id, command in uses.items():
        (expected,) = [outcome for wanted, outcome in commands.items() if wanted in command]
        assert outcomes[tool_id] == expected


def test_a_large_output_and_a_large_answer_arrive_whole(bench: Bench) -> None:
    text = long_text(2_000_000)
    call = bench.codex.shell_call("head -c 900000 /dev/zero | tr '\\0' x")
    bench.server.script([Turn(tool_calls=[call]), Turn(text=in_pieces(text, 100_000))])
    events, result = run(bench)
    assert of(events, AgentToolResultEvent)[0].output == "x" * 900_000
    assert result.text == text


def test_a_command_left_running_is_closed_and_gone(bench: Bench) -> None:
    bench.server.script([Turn(tool_calls=[shell("sleep 600", yield_time_ms=300)]), Turn(text="Still running.")])
    events, result = run(bench, permission_mode="bypass")
    (use,), (outcome,) = of(events, AgentToolUseEvent), of(events, AgentToolResultEvent)
    assert (outcome.tool_id, outcome.is_error) == (use.tool_id, True)
    assert events.index(outcome) == len(events) - 1
    assert result.ok
    assert wait_until(lambda: not bench.processes(), GONE_WITHIN)


def test_an_mcp_tool_that_works_and_one_that_fails(bench: Bench) -> None:
    calls = [bench.codex.mcp_call("lab", "echo", {"text": "hé"}), bench.codex.mcp_call("lab", "fail", {"text": "bad"})]
    bench.server.script([Turn(tool_calls=calls), Turn(text="Done.")])
    events, _ = run(bench, extra_args=[mcp_server(bench, ',default_tools_approval_mode="approve"')])
    assert [(event.tool_name, event.input) for event in of(events, AgentToolUseEvent)] == [
        ("mcp__lab__echo", {"text": "hé"}),
        ("mcp__lab__fail", {"text": "bad"}),
    ]
    outcomes = [(event.output, event.is_error) for event in of(events, AgentToolResultEvent)]
    assert outcomes == [("echo: hé", False), ("bad", True)]


def test_a_cut_stream_is_tried_again_and_its_words_are_not_doubled(bench: Bench) -> None:
    bench.server.script([Turn(text="Hello.", cut=Cut()), Turn(text="Hello. Again.")])
    events, result = run(bench, extra_args=FEW_RETRIES)
    assert codes(events) == [errors.CLI_WARNING]
    assert (result.ok, result.text) == (True, "Hello. Again.")


# --- sessions ---------------------------------------------------------------------------------------------------


def test_a_resumed_run_knows_the_earlier_turns_and_counts_its_own_tokens(bench: Bench) -> None:
    call = bench.codex.shell_call("true")
    bench.server.script(
        [
            Turn(text="I am one.", tool_calls=[call], usage=Usage(100, 10, 5)),
            Turn(text="And done.", usage=Usage(200, 20)),
            HttpError(status=400),
            Turn(text="I am two.", usage=Usage(1000, 3, 7, 0, 4)),
            Turn(text="I am three.", usage=Usage(1, 2)),
        ]
    )
    first = run(bench, "the first prompt", permission_mode="read-only")[1]
    failed = run(bench, "it fails", session_id=first.session_id)[1]
    second = run(bench, "the second prompt", session_id=first.session_id, system_prompt="Be brief.")[1]
    elsewhere = bench.root / "elsewhere"
    elsewhere.mkdir()
    assert first.session_id is not None
    third = run(bench, "third", session_id=first.session_id.upper(), working_directory=elsewhere)[1]
    assert first.session_id == failed.session_id == second.session_id == third.session_id
    assert first.usage == AgentUsage(305, 30, 5)
    assert (failed.error_subtype, failed.usage) == ("config", None)
    assert second.usage == AgentUsage(1007, 7, 7)
    assert third.usage == AgentUsage(1, 2)
    seen = bench.server.requests[-1].conversation
    assert [text for text in seen.user_texts if "prompt" in text] == ["the first prompt", "the second prompt"]
    assert seen.assistant_texts == ("I am one.", "And done.", "I am two.")


def test_a_run_that_was_aborted_can_be_resumed_and_is_not_counted_twice(bench: Bench) -> None:
    bench.server.script([Turn(tool_calls=[bench.codex.shell_call("true")], usage=Usage(100, 10)), Hang()])
    with CodexCliRuntime().start("hello", working_directory=bench.workdir) as events:
        after_requests(bench, 2, events.abort)
        aborted = finished(events)[1]
    assert aborted.aborted
    bench.server.script([Turn(text="Back.", usage=Usage(7, 3))])
    result = run(bench, "go on", session_id=aborted.session_id)[1]
    assert (result.text, result.usage) == ("Back.", AgentUsage(7, 3))


class Stranger(CodexCliRuntime):
    """A Codex that somebody else has started: it does not hold a session the way we do."""

    def session_store(self, params: AgentExecuteParams) -> str | None:
        return None


@pytest.mark.parametrize(
    ("other", "code", "subtype", "words"),
    [
        (CodexCliRuntime, errors.SESSION_BUSY, "session_busy", "a run or a live session of this process holds it"),
        (Stranger, errors.CLI_EXIT_ERROR, "overloaded", "already has an active writer"),
    ],
    ids=["a run of ours", "a stranger"],
)
def test_a_thread_in_which_somebody_is_at_work_is_told_to_be_busy(
    bench: Bench, other: type[CodexCliRuntime], code: str, subtype: str, words: str
) -> None:
    bench.server.script([Turn(text="Yes.")])
    session_id = run(bench)[1].session_id
    bench.server.script([Hang()])
    with other().start("hello", working_directory=bench.workdir, session_id=session_id) as busy:
        waiting = threading.Thread(target=lambda: list(busy))
        waiting.start()
        bench.server.wait_for_requests(2)
        events, result = run(bench, session_id=session_id)
        busy.abort()
        waiting.join()
    assert codes(events) == [code]
    assert words in of(events, AgentErrorEvent)[0].message
    assert result.error_subtype == subtype


def test_a_thread_keeps_the_instructions_it_began_with(bench: Bench) -> None:
    bench.server.script([], then=Turn(text="Yes."))
    first = run(bench, system_prompt="Be a zebra.")[1]
    again, _ = run(bench, session_id=first.session_id, system_prompt="Be a zebra.")
    other, _ = run(bench, session_id=first.session_id, system_prompt="Be a giraffe.")
    assert codes(again) == []
    assert codes(other) == [errors.CLI_WARNING]
    for request in bench.server.requests:
        assert ("zebra" in request.system, "giraffe" in request.system) == (True, False)


@pytest.mark.parametrize(
    ("session_id", "code"), [(UNKNOWN_THREAD, errors.CLI_EXIT_ERROR), ("mine", "SESSION_NOT_FOUND")]
)
def test_an_unknown_session_is_told_and_starts_no_new_one(bench: Bench, session_id: str, code: str) -> None:
    events, result = run(bench, session_id=session_id)
    (error,) = of(events, AgentErrorEvent)
    assert error.code == code
    assert session_id in error.message
    assert (result.error_subtype, result.session_id) == ("session_not_found", None)
    assert bench.server.requests == []
    assert not list(bench.home.rglob("rollout-*"))


def test_the_codex_home_of_the_run_is_used_for_its_usage_too(bench: Bench) -> None:
    home = bench.root / "other-codex-home"
    (bench.home / ".codex").rename(home)
    bench.server.script([], then=Turn(text="Yes.", usage=Usage(10, 1)))
    env = {"CODEX_HOME": str(home)}
    first = run(bench, env=env)[1]
    assert run(bench, session_id=first.session_id, env=env)[1].usage == AgentUsage(10, 1)


# --- prompts ----------------------------------------------------------------------------------------------------

NASTY_PROMPTS = [
    "--help",
    "-",
    "--",
    "--dangerously-bypass-approvals-and-sandbox",
    "resume --last",
    "say \"hi\" to 'them' and `id` and $(id) and $HOME \\ %s {}",
    "two\nlines\r\nand\ta tab\n\n",
    "  leading and trailing spaces  ",
    "emoji \U0001f469\u200d\U0001f4bb, e\u0301, \u2028, \x7f, \x1b[31m",
    "/clear",
    "@/etc/passwd @README.md #1 !ls",
    "\ufeffa byte order mark",
]
SIZES = [20_000, 131_500, 600_000]


def test_prompts_arrive_byte_for_byte_and_once(bench: Bench) -> None:
    bench.server.script([], then=Turn(text="Yes."))
    prompts = [*NASTY_PROMPTS, *map(long_text, SIZES)]
    results = [run(bench, prompt)[1] for prompt in prompts]
    assert [result.text for result in results] == ["Yes."] * len(prompts)
    assert bench.server.received_prompts() == prompts
    for request, prompt in zip(bench.server.requests, prompts, strict=True):
        assert sum(text == prompt for text in request.conversation.user_texts) == 1
        if len(prompt) > 20:
            assert request.occurrences(prompt) == 1


def test_a_nasty_prompt_is_no_less_safe_in_a_resumed_thread(bench: Bench) -> None:
    bench.server.script([], then=Turn(text="Yes."))
    first = run(bench)[1]
    for prompt in ("--last", "-"):
        assert run(bench, prompt, session_id=first.session_id)[1].session_id == first.session_id
    assert bench.server.received_prompts()[1:] == ["--last", "-"]


def test_a_prompt_that_codex_does_not_take_is_a_clear_error(bench: Bench) -> None:
    events, result = run(bench, "x" * 1_048_577)
    (error,) = of(events, AgentErrorEvent)
    assert error.message == "Input exceeds the maximum length of 1048576 characters."
    assert result.error_subtype == "context_window"


def test_a_model_name_that_looks_like_a_flag_is_a_model_name(bench: Bench) -> None:
    bench.server.script([Turn(text="Yes.")])
    run(bench, model="--help")
    assert bench.server.requests[0].model == "--help"


def test_images_are_shown_to_the_model_in_new_and_resumed_threads(bench: Bench) -> None:
    bench.server.script([], then=Turn(text="I see."))
    images = [bench.workdir / "-i.png", bench.workdir / "with, comma.png"]
    for image in images:
        image.write_bytes(PNG)
    first = run(bench, "look", images=images)[1]
    run(bench, "look again", images=images[:1], session_id=first.session_id)
    shown = [_images_in(request.body) for request in bench.server.requests]
    assert shown == [2, 3]  # The second request includes the first one's images.
    assert bench.server.received_prompts() == ["look", "look again"]


def _images_in(body: dict[str, Any]) -> int:
    parts = [part for item in body["input"] for part in item.get("content") or []]
    return sum(part["type"] == "input_image" for part in parts)


# --- permissions ------------------------------------------------------------------------------------------------


@pytest.fixture
def outside_folder() -> Iterator[Path]:
    """A folder that is not a workspace, and is not below /tmp either, where the sandbox allows commands to write."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("resumed", [False, True], ids=["new", "resumed"])
@pytest.mark.parametrize(
    ("mode", "inside", "outside"),
    [("default", False, False), ("read-only", False, False), ("accept-edits", True, False), ("bypass", True, True)],
)
def test_what_a_permission_mode_lets_a_command_do(
    bench: Bench, outside_folder: Path, mode: Any, inside: bool, outside: bool, resumed: bool
) -> None:
    """A thread does not remember its mode: each run gets the mode it asks for."""
    session_id = None
    if resumed:
        bench.server.script([Turn(text="Yes.")])
        session_id = run(bench, permission_mode="read-only" if inside else "bypass")[1].session_id
    mine, foreign = bench.workdir / "mine", outside_folder / "foreign"
    command = f"echo x > {mine}; echo x > {foreign}; true"
    bench.server.script([Turn(tool_calls=[bench.codex.shell_call(command)]), Turn(text="Done.")])
    _, result = run(bench, permission_mode=mode, session_id=session_id)
    assert result.ok
    assert (mine.exists(), foreign.exists()) == (inside, outside)


def test_a_refused_change_is_a_denial_though_the_stream_is_silent_about_it(bench: Bench) -> None:
    change = bench.codex.write_file_call(bench.workdir / "note.txt", "one\n")
    bench.server.script([Turn(tool_calls=[change]), Turn(text="I may not.")])
    events, result = run(bench, permission_mode="read-only")
    assert result.ok
    assert result.text == "I may not."
    (denial,) = result.permission_denials
    assert denial.tool == "file_change"
    assert "read-only sandbox" in (denial.reason or "")
    assert codes(events) == [errors.CLI_WARNING]
    assert not (bench.workdir / "note.txt").exists()


def test_calls_that_codex_does_not_make_are_warnings(bench: Bench) -> None:
    calls = [ToolCall("no_such_tool", {}), ToolCall("exec_command", "{not json")]
    bench.server.script([Turn(tool_calls=calls), Turn(text="Well.")])
    events, result = run(bench)
    assert codes(events) == [errors.CLI_WARNING] * 2
    assert result.ok
    assert result.permission_denials == ()


def test_an_mcp_tool_that_nobody_can_approve_is_a_denial(bench: Bench) -> None:
    bench.server.script([Turn(tool_calls=[bench.codex.mcp_call("lab", "echo", {"text": "x"})]), Turn(text="No.")])
    events, result = run(bench, extra_args=[mcp_server(bench)])
    assert [denial.tool for denial in result.permission_denials] == ["mcp__lab__echo"]
    assert [event.is_error for event in of(events, AgentToolResultEvent)] == [True]


# --- failures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "subtype", "words"),
    [
        (400, "config", "the complaint"),
        (401, "auth", "the complaint"),
        (429, "rate_limit", "429"),
        (500, "overloaded", "high demand"),
        (529, "overloaded", "the complaint"),
    ],
)
def test_an_error_of_the_api_is_told_once_with_its_cause(bench: Bench, status: int, subtype: str, words: str) -> None:
    bench.server.script([HttpError(status=status, message="the complaint")])
    events, result = run(bench, extra_args=FEW_RETRIES)
    fatal = [error for error in of(events, AgentErrorEvent) if error.code != errors.CLI_WARNING]
    assert len(fatal) == 1
    assert words in fatal[0].message
    assert not fatal[0].message.startswith("{")
    assert (result.ok, result.error_subtype, result.exit_code) == (False, subtype, 1)


def test_a_refused_connection_is_a_network_failure_when_nobody_wants_to_wait(bench: Bench) -> None:
    bench.point_at(refused_url())
    events, result = run(bench, wait_for_network=False, extra_args=FEW_RETRIES)
    assert result.error_subtype == "network"
    assert "Connection failed" in of(events, AgentErrorEvent)[-1].message


def test_waiting_for_the_network_ends_with_the_timeout(bench: Bench) -> None:
    """Codex would wait for ever, and reports that at 0, 5 and 15 s."""
    bench.point_at(refused_url())
    events, result = run(bench, timeout=6.0, extra_args=FEW_RETRIES)
    assert codes(events)[-1] == errors.WATCHDOG_TIMEOUT
    assert set(codes(events)[:-1]) == {errors.CLI_WARNING}
    assert result.error_subtype == "timeout"


def test_a_missing_key_is_told(bench: Bench) -> None:
    events, result = run(bench, env={"BENCH_API_KEY": None})
    assert [error.message for error in of(events, AgentErrorEvent)] == [
        "Missing environment variable: `BENCH_API_KEY`."
    ]
    assert result.error_subtype == "auth"


def test_a_warning_does_not_fail_the_run(bench: Bench) -> None:
    bench.server.script([Turn(text="All the same.")])
    events, result = run(bench, model="no-such-model")
    assert codes(events) == [errors.CLI_WARNING]
    assert (result.ok, result.text) == (True, "All the same.")


def test_a_broken_configuration_is_told_without_its_secrets(bench: Bench) -> None:
    config = bench.home / ".codex" / "config.toml"
    config.write_text(config.read_text() + 'experimental_bearer_token = "sk-a-secret" oops\n')
    events, result = run(bench)
    (error,) = of(events, AgentErrorEvent)
    assert f"{config}:11:" in error.message
    assert result.error_subtype == "config"
    assert "sk-a-secret" not in repr((events, result))


def test_an_unknown_flag_is_told(bench: Bench) -> None:
    events, result = run(bench, extra_args=["--no-such-flag"])
    assert [error.message for error in of(events, AgentErrorEvent)] == ["unexpected argument '--no-such-flag' found"]
    assert result.error_subtype == "config"


def test_it_runs_inside_another_codex(bench: Bench) -> None:
    bench.server.script([Turn(tool_calls=[bench.codex.shell_call("env")]), Turn(text="Yes.")])
    outer = {"CODEX_THREAD_ID": UNKNOWN_THREAD, "CODEX_SANDBOX": "seatbelt", "CODEX_SANDBOX_NETWORK_DISABLED": "1"}
    os.environ.update(outer)
    events, result = run(bench, permission_mode="bypass")
    assert result.ok
    seen = of(events, AgentToolResultEvent)[0].output.splitlines()
    assert f"CODEX_THREAD_ID={result.session_id}" in seen
    assert not [line for line in seen if line.startswith("CODEX_SANDBOX")]


# --- ends -------------------------------------------------------------------------------------------------------


def end_by_abort(events: AgentRun) -> None:
    events.abort()


def end_by_close(events: AgentRun) -> None:
    events.close()


@pytest.mark.parametrize("end", [end_by_abort, end_by_close])
def test_the_cli_its_tools_and_their_children_are_gone_when_the_run_is_ended(
    bench: Bench, end: Callable[[AgentRun], None]
) -> None:
    started = bench.workdir / "started"
    command = f"sleep 600 & setsid sleep 600 & (trap '' TERM INT HUP; sleep 600) & touch {started}; sleep 600"
    bench.server.script([Turn(text="Wait.", tool_calls=[bench.codex.shell_call(command)])])
    with CodexCliRuntime().start("go", working_directory=bench.workdir, permission_mode="bypass") as events:
        seen = []
        for event in events:
            seen.append(event)
            if isinstance(event, AgentToolUseEvent):
                break
        assert wait_until(started.exists)
        assert len(bench.processes()) >= 5
        end(events)
        assert wait_until(lambda: not bench.processes(), GONE_WITHIN)
        rest = list(events)
    if end is end_by_abort:
        assert codes(rest) == [errors.ABORTED]
        assert events.result is not None
        assert events.result.aborted
    else:
        assert rest == []


@pytest.mark.parametrize("after_headers", [False, True])
def test_a_model_that_hangs_is_ended_by_the_watchdog(bench: Bench, after_headers: bool) -> None:
    bench.server.script([Hang(after_headers=after_headers)])
    events, result = run(bench, timeout=4.0)
    assert codes(events) == [errors.WATCHDOG_TIMEOUT]
    assert result.error_subtype == "timeout"
    assert result.session_id is not None
    assert wait_until(lambda: not bench.processes(), GONE_WITHIN)


def test_a_hanging_model_can_be_aborted_from_another_thread(bench: Bench) -> None:
    bench.server.script([Hang()])
    signal = threading.Event()
    after_requests(bench, 1, signal.set)
    events, result = run(bench, abort_signal=signal)
    assert codes(events) == [errors.ABORTED]
    assert result.aborted
    assert wait_until(lambda: not bench.processes(), GONE_WITHIN)


def test_a_deadline_ends_a_run(bench: Bench) -> None:
    bench.server.script([Hang()])
    events, result = run(bench, deadline=3.0)
    assert codes(events) == [errors.DEADLINE_EXCEEDED]
    assert result.error_subtype == "timeout"
