"""GeminiCliRuntime with the real Gemini CLI."""

from __future__ import annotations

import base64
import datetime
import json
import os
import signal
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
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
    GeminiCliRuntime,
    errors,
)
from tests.fakes import finished, wait_until
from tests.real_clis.bench import Bench, refused_url
from tests.real_clis.scenarios_gemini import settings
from tests.real_clis.script import Hang, Hold, HttpError, ToolCall, Turn, Usage, in_pieces, long_text

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
GONE_WITHIN = 3.0  # Seconds within which the CLI, its shell tool and what the tool started must be gone.
CANARY = "the-content-of-the-file"
LEAVE_PLAN_MODE = [
    Turn(tool_calls=[ToolCall("write_file", {"file_path": "plan.md", "content": "# A plan\n"})]),
    Turn(tool_calls=[ToolCall("exit_plan_mode", {"plan_filename": "plan.md"})]),
]


class Lab:
    """The bench with our runtime: `run` scripts these replies and returns events and result."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.cli = bench.gemini
        self.server = bench.server
        self.workdir = bench.workdir
        # On a busy machine a start may find Gemini's own lock (projects.json.lock) left by the last one (0.61.0). It
        # then says nothing for a minute.
        self.runtime = GeminiCliRuntime(timeout=180.0)

    def params(self, **fields: Any) -> dict[str, Any]:
        return {"model": self.cli.model, "working_directory": self.workdir, **fields}

    def run(
        self, prompt: str, *replies: Any, runtime: GeminiCliRuntime | None = None, **fields: Any
    ) -> tuple[list[AgentEvent], AgentRunResult]:
        self.server.script(replies)
        return finished((runtime or self.runtime).execute(prompt, **self.params(**fields)))

    def good(self, prompt: str, *replies: Any, **fields: Any) -> AgentRunResult:
        events, result = self.run(prompt, *replies, **fields)
        assert result.ok, (events, result)
        return result


@pytest.fixture
def lab(cli_bench: Bench) -> Lab:
    return Lab(cli_bench)


def only_error(events: Iterable[AgentEvent]) -> AgentErrorEvent:
    (error,) = [event for event in events if isinstance(event, AgentErrorEvent)]
    return error


# --- answers ------------------------------------------------------------------------------------------------------


def test_an_answer_streams_piece_by_piece_without_the_thoughts(lab: Lab) -> None:
    hold = Hold()
    lab.server.script([Turn(thinking="a secret thought", text=["Hel", hold, "lo"], usage=Usage(100, 7, 20, 0, 3))])
    with lab.runtime.start("hi", **lab.params()) as run:
        assert next(run) == AgentTextEvent("Hel")
        assert hold.reached.is_set()
        assert not hold.release.is_set()  # The first piece has arrived while the model still holds back the second.
        hold.release.set()
        rest = list(run)
    assert rest[:-1] == [AgentTextEvent("lo")]
    assert not any(isinstance(event, AgentThinkingEvent) for event in rest)
    result = run.result
    assert result is not None
    assert (result.ok, result.text, result.exit_code) == (True, "Hello", 0)
    assert result.usage == AgentUsage(input_tokens=120, output_tokens=7, cache_read_tokens=20)
    assert result.session_id


def test_a_long_answer_arrives_whole_at_a_consumer_that_lags(lab: Lab) -> None:
    """The CLI exits without waiting for a full pipe, so a reader that waits for its consumer loses the end."""
    text = long_text(1_500_000)
    lab.server.script([Turn(text=in_pieces(text, 50_000))])
    events = lab.runtime.execute("hi", **lab.params())
    first = next(events)
    assert wait_until(lambda: not lab.bench.processes())  # It has written everything and is gone before we read on.
    _, result = finished([first, *events])
    assert (result.ok, result.text == text) == (True, True)


def test_shell_tools_that_work_and_fail_in_parallel_and_one_after_another(lab: Lab) -> None:
    calls = [lab.cli.shell_call("echo one; echo two >&2"), lab.cli.shell_call("exit 3"), lab.cli.shell_call("echo x")]
    write = lab.cli.write_file_call(lab.workdir / "note.txt", "text\n")
    events, result = lab.run(
        "go",
        Turn(text="Wait.", tool_calls=calls, usage=Usage(100, 10)),
        Turn(tool_calls=[write], usage=Usage(200, 20)),
        Turn(text="Done.", usage=Usage(400, 40)),
        permission_mode="bypass",
    )
    uses = [event for event in events if isinstance(event, AgentToolUseEvent)]
    results = {event.tool_id: event for event in events if isinstance(event, AgentToolResultEvent)}
    assert len({use.tool_id for use in uses}) == 4
    outputs = [(results[use.tool_id].output, results[use.tool_id].is_error) for use in uses]
    assert outputs == [("one\ntwo", False), ("Command exited with code: 3", True), ("x", False), ("", False)]
    assert (lab.workdir / "note.txt").read_text() == "text\n"
    assert (result.ok, result.text, result.usage) == (True, "Wait.Done.", AgentUsage(700, 70))


def test_a_resumed_run_knows_the_earlier_turn_and_keeps_id_and_permissions(lab: Lab) -> None:
    first = lab.good("remember 42", Turn(text="I will.", usage=Usage(100, 7)), permission_mode="accept-edits")
    write = lab.cli.write_file_call(lab.workdir / "a.txt", "x")
    second = lab.good(
        "which?", Turn(tool_calls=[write]), Turn(text="42", usage=Usage(5, 1)), session_id=first.session_id
    )
    assert second.session_id == first.session_id
    conversation = lab.server.requests[-1].conversation
    assert conversation.user_texts[-2:] == ("remember 42", "which?")
    assert "I will." in conversation.assistant_texts
    assert [denial.tool for denial in second.permission_denials] == ["write_file"]  # Not those of the first run.
    assert second.usage == AgentUsage(15, 6)
    third = lab.good(
        "now", Turn(tool_calls=[write]), Turn(text="ok"), session_id=first.session_id, permission_mode="accept-edits"
    )
    assert (third.permission_denials, (lab.workdir / "a.txt").exists()) == ((), True)


def some_minutes_pass(lab: Lab) -> None:
    """Gemini knows the minute of a session from the name of its file."""
    for path in lab.bench.home.glob(".gemini/tmp/*/chats/session-*"):
        minute = datetime.datetime.strptime(path.name[8:24], "%Y-%m-%dT%H-%M") - datetime.timedelta(minutes=5)
        path.rename(path.with_name(f"session-{minute:%Y-%m-%dT%H-%M}{path.name[24:]}"))


def sessions_begun(lab: Lab) -> list[str]:
    return [path.name[25:33] for path in lab.bench.home.glob(".gemini/tmp/*/chats/session-*")]


@pytest.mark.timeout(400)
def test_ten_resumes_over_many_minutes_with_other_runs_between_lose_nothing(lab: Lab) -> None:
    """Each resume with Gemini 0.61.0 leaves a stub behind, because of which the next start deletes the session."""
    session_id = lab.good("turn 0", Turn(text="answer 0")).session_id
    assert session_id is not None
    others = []
    for number in range(1, 11):
        if number != 3:  # Once within a minute of the last turn.
            some_minutes_pass(lab)
        result = lab.good(f"turn {number}", Turn(text=f"answer {number}"), session_id=session_id)
        assert result.session_id == session_id
        conversation = lab.server.requests[-1].conversation
        assert [text for text in conversation.user_texts if text.startswith("turn")] == [
            f"turn {earlier}" for earlier in range(number + 1)
        ]
        assert conversation.assistant_texts == tuple(f"answer {earlier}" for earlier in range(number))
        if number % 2:
            others.append(lab.good("another", Turn(text="yes")).session_id)
    assert sorted(sessions_begun(lab)) == sorted(str(found)[:8] for found in (session_id, *others))
    assert list(lab.bench.home.rglob("remoteclaw*")) == []


@pytest.mark.timeout(400)
def test_eight_sessions_begun_at_once_in_one_folder_can_all_be_resumed(lab: Lab) -> None:
    """Each start of Gemini deletes the sessions whose prompt has not been written down yet."""
    lab.server.script([], then=Turn(text="yes"))

    def begin(number: int) -> str | None:
        return lab.runtime.run(f"I am number {number}.", **lab.params()).session_id

    with ThreadPoolExecutor(8) as pool:
        begun = list(pool.map(begin, range(8)))
    for number, session_id in enumerate(begun):
        result = lab.runtime.run("Which number?", **lab.params(session_id=session_id))
        assert result.session_id == session_id
        assert f"I am number {number}." in lab.server.requests[-1].conversation.user_texts


def test_an_unknown_session_and_one_of_another_folder_are_not_found(lab: Lab, tmp_path: Path) -> None:
    known = lab.good("hi", Turn(text="yes")).session_id
    other = tmp_path / "other"
    other.mkdir()
    for fields in ({"session_id": "no-such-session"}, {"session_id": known, "working_directory": other}):
        events, result = lab.run("hi", **fields)
        assert only_error(events).message.startswith("Error resuming session: ")
        assert "\n" not in only_error(events).message
        assert (result.error_subtype, result.session_id, result.exit_code) == ("session_not_found", None, 42)


# --- failures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "subtype"),
    [(400, "config"), (401, "auth"), (429, "rate_limit"), (500, "overloaded"), (529, "overloaded")],
)
def test_an_api_error_is_told_once_with_its_kind_and_the_apis_words(status: int, subtype: str, lab: Lab) -> None:
    settings(lab.bench, general={"maxAttempts": 1})
    events, result = lab.run("hi", HttpError(status=status, message="the scripted complaint"))
    assert only_error(events).message.startswith("the scripted complaint")
    assert (result.error_subtype, result.exit_code) == (subtype, status & 0xFF)
    assert result.usage is None


def test_a_refused_connection_is_a_network_failure(lab: Lab) -> None:
    lab.bench.point_at(refused_url())
    settings(lab.bench, general={"maxAttempts": 1})
    events, result = lab.run("hi")
    assert "fetch failed" in only_error(events).message
    assert result.error_subtype == "network"


def test_retries_keep_a_run_alive_though_stdout_is_silent(lab: Lab) -> None:
    """The pauses are 5 to 6 and 10 to 12 s long; only stderr mentions them."""
    settings(lab.bench, general={"maxAttempts": 3})
    refusals = [HttpError(status=429, message="the scripted complaint", retry_after=4.0)] * 2
    events, result = lab.run("hi", *refusals, Turn(text="at last"), runtime=GeminiCliRuntime(timeout=14.0))
    assert (result.ok, result.text) == (True, "at last")
    assert only_error(events).code == errors.CLI_WARNING
    assert only_error(events).message.startswith("gemini repeated a request 2 times")


def test_a_prompt_too_long_for_the_model_is_no_silent_success(lab: Lab) -> None:
    """Small enough for stdin, but too large for the model: the CLI does not even ask it."""
    events, result = lab.run(long_text(5_500_000))
    assert lab.server.requests == []
    assert not result.ok  # The kind depends on how much of its output gets through the pipe.
    assert only_error(events).message.startswith("gemini ended without ")


def test_the_session_of_a_run_that_began_with_a_failure_cannot_be_resumed(lab: Lab) -> None:
    """This is why we do not report its id."""
    run = lab.bench.run
    lab.server.script([HttpError(status=400)])
    failed = run(lab.cli, "hi")
    assert run(lab.cli, "again", f"--resume={failed.lines[0]['session_id']}").returncode == 42
    assert lab.run("hi", HttpError(status=400))[1].session_id is None


def test_an_empty_answer_is_no_success_though_the_cli_exits_with_0(lab: Lab) -> None:
    settings(lab.bench, general={"maxAttempts": 1})
    lab.server.script([], then=Turn())
    events, result = finished(lab.runtime.execute("hi", **lab.params()))
    assert (result.exit_code, result.ok, result.error_subtype) == (0, False, "incomplete")
    assert "empty response" in only_error(events).message


def test_a_cli_that_somebody_else_ends_is_incomplete_and_its_session_goes_on(lab: Lab) -> None:
    hold = Hold()
    lab.server.script([Turn(text=["half", hold])])
    with lab.runtime.start("remember 42", **lab.params()) as run:
        assert next(run) == AgentTextEvent("half")
        assert run.pid is not None
        os.kill(run.pid, signal.SIGTERM)
        events, result = finished([AgentTextEvent("half"), *run])
    assert (result.exit_code, result.error_subtype) == (0, "incomplete")
    assert only_error(events).code == errors.CLI_INCOMPLETE
    lab.good("again", Turn(text="yes"), session_id=result.session_id)
    assert "remember 42" in lab.server.requests[-1].conversation.user_texts


# --- endings ------------------------------------------------------------------------------------------------------


def hanging_tool(lab: Lab) -> Turn:
    """A shell command that starts two more processes, one of them in its own session, and never ends."""
    started = lab.workdir / "started"
    return Turn(tool_calls=[lab.cli.shell_call(f"setsid sleep 300 & sleep 300 & touch {started}; wait")])


@pytest.mark.parametrize("how", ["abort", "close"])
def test_nothing_is_left_of_a_run_that_is_ended_during_a_shell_tool(how: str, lab: Lab) -> None:
    lab.server.script([hanging_tool(lab)])
    with lab.runtime.start("hi", **lab.params(permission_mode="bypass")) as run:
        assert isinstance(next(run), AgentToolUseEvent)
        assert wait_until((lab.workdir / "started").exists)
        assert len(lab.bench.processes()) >= 4
        if how == "abort":
            run.abort()
            assert only_error(list(run)).code == errors.ABORTED
            assert run.result is not None
            assert (run.result.aborted, run.result.error_subtype) == (True, "aborted")
        else:
            run.close()
        assert wait_until(lambda: not lab.bench.processes(), GONE_WITHIN)


def test_a_hung_model_is_aborted_at_once(lab: Lab) -> None:
    abort = threading.Event()
    lab.server.script([Hang()])

    def abort_when_asked() -> None:
        lab.server.wait_for_requests(1)
        abort.set()

    aborter = threading.Thread(target=abort_when_asked)
    aborter.start()
    _, result = finished(lab.runtime.execute("hi", **lab.params(abort_signal=abort)))
    aborter.join()
    assert (result.aborted, result.error_subtype) == (True, "aborted")
    assert wait_until(lambda: not lab.bench.processes(), GONE_WITHIN)


def test_a_hung_model_is_given_up_by_the_watchdog(lab: Lab) -> None:
    events, result = lab.run("hi", Hang(after_headers=True), runtime=GeminiCliRuntime(timeout=8.0))
    assert (only_error(events).code, result.error_subtype) == (errors.WATCHDOG_TIMEOUT, "timeout")
    assert len(lab.server.requests) == 1  # The model was silent, not the start.
    assert wait_until(lambda: not lab.bench.processes(), GONE_WITHIN)


# --- permissions --------------------------------------------------------------------------------------------------


def test_by_default_nothing_is_written_or_run_and_the_denials_are_told(lab: Lab) -> None:
    calls = [lab.cli.shell_call("touch ran"), lab.cli.write_file_call(lab.workdir / "a.txt", "x")]
    events, result = lab.run("go", Turn(tool_calls=calls), Turn(text="No."))
    assert [denial.tool for denial in result.permission_denials] == ["run_shell_command", "write_file"]
    assert [event.is_error for event in events if isinstance(event, AgentToolResultEvent)] == [True, True]
    assert list(lab.workdir.iterdir()) == []


def test_accept_edits_writes_and_runs_nothing(lab: Lab) -> None:
    calls = [lab.cli.shell_call("touch ran"), lab.cli.write_file_call(lab.workdir / "a.txt", "x")]
    _, result = lab.run("go", Turn(tool_calls=calls), Turn(text="Yes."), permission_mode="accept-edits")
    assert [denial.tool for denial in result.permission_denials] == ["run_shell_command"]
    assert [path.name for path in lab.workdir.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("mode", ["default", "accept-edits", "read-only"])
def test_a_model_cannot_talk_itself_into_yolo_mode_by_way_of_a_plan(mode: Any, lab: Lab) -> None:
    enter = Turn(tool_calls=[ToolCall("enter_plan_mode", {"reason": "x"})])
    run = Turn(tool_calls=[lab.cli.shell_call("touch ran")])
    _, result = lab.run("go", enter, *LEAVE_PLAN_MODE, run, Turn(text="Well."), permission_mode=mode)
    assert result.ok
    assert {"exit_plan_mode", "run_shell_command"} <= {denial.tool for denial in result.permission_denials}
    assert not (lab.workdir / "ran").exists()


def test_without_our_policy_it_could(lab: Lab) -> None:
    """The reason for our policy: if this test fails, the CLI has been fixed."""
    run = Turn(tool_calls=[lab.cli.shell_call("touch ran")])
    lab.server.script([*LEAVE_PLAN_MODE, run, Turn(text="Well.")])
    argv = ["gemini", "--output-format=stream-json", "--approval-mode=plan", "--skip-trust", "-m", lab.cli.model]
    assert lab.bench.run_argv(argv, "go").returncode == 0
    assert (lab.workdir / "ran").exists()


def test_read_only_reads(lab: Lab) -> None:
    (lab.workdir / "note.txt").write_text(CANARY)
    calls = [ToolCall("read_file", {"file_path": "note.txt"}), lab.cli.write_file_call(lab.workdir / "b.md", "x")]
    _, result = lab.run("go", Turn(tool_calls=calls), Turn(text="Seen."), permission_mode="read-only")
    assert result.ok
    assert CANARY in lab.server.requests[-1].tool_results[0].text
    assert [path.name for path in lab.workdir.iterdir()] == ["note.txt"]


# --- prompts ------------------------------------------------------------------------------------------------------

NASTY_PROMPTS = [
    "--help",
    "-",
    "--",
    "--dangerously-skip-permissions --yolo -y",
    "\"double\" 'single' `id` $(id) $HOME \\ \\\\ %s {{args}} !{id} @{x}",
    "one\n\ntwo\r\nthree\ttab\n\n\n",
    "   leading and trailing   ",
    "emoji \U0001f469\u200d\U0001f4bb \u2028 \u0085 \u202e \x1b[31mred\x07 \x0b\x0c",
    "mail bob@example.com about @property and @/etc/passwd, @nothing",
    "/etc/hosts is a file",
    "// no command",
    "?",
]


def test_nasty_prompts_arrive_byte_for_byte(lab: Lab) -> None:
    for prompt in NASTY_PROMPTS:
        lab.good(prompt, Turn(text="ok"))
    assert lab.server.received_prompts() == NASTY_PROMPTS


def test_what_looks_like_syntax_reaches_the_model_and_does_nothing(lab: Lab) -> None:
    """The space and the backslash are the price: the CLI has no other way to leave a prompt unchanged."""
    (lab.workdir / "notes.txt").write_text(CANARY)
    changed = {
        "/quit": " /quit",
        "/clear": " /clear",
        "read @notes.txt": "read \\@notes.txt",
        "mail a@otes.tx": "mail a\\@otes.tx",
        "@generalist do it": "\\@generalist do it",
    }
    for prompt in changed:
        lab.good(prompt, Turn(text="ok"))
    assert lab.server.received_prompts() == list(changed.values())
    assert not any(CANARY in text for request in lab.server.requests for text in request.conversation.user_texts)
    assert not any("explicitly selected" in json.dumps(request.body) for request in lab.server.requests)


def test_with_the_syntax_of_the_cli_files_are_read_and_commands_run(lab: Lab) -> None:
    (lab.workdir / "notes.txt").write_text(CANARY)
    lab.good("read @notes.txt", Turn(text="ok"), prompt_syntax="cli")
    assert CANARY in lab.server.requests[-1].conversation.user_texts
    _, result = lab.run("/quit", prompt_syntax="cli")
    assert (result.error_subtype, len(lab.server.requests)) == ("config", 1)


@pytest.mark.parametrize("size", [20_000, 131_500, 600_000])
def test_a_long_prompt_arrives_once(size: int, lab: Lab) -> None:
    prompt = long_text(size)
    lab.good(prompt, Turn(text="ok"))
    (request,) = lab.server.requests
    assert request.prompt == prompt
    assert request.occurrences(prompt) == 1


# --- the place and the options --------------------------------------------------------------------------------------


def test_a_folder_nobody_has_trusted_is_refused_where_trust_is_left_to_the_cli(lab: Lab) -> None:
    events, result = lab.run("hi", runtime=GeminiCliRuntime(trust_workspace=False))
    assert only_error(events).message.startswith("Gemini CLI is not running in a trusted directory")
    assert (result.error_subtype, result.exit_code) == ("untrusted_directory", 55)


def test_a_run_inside_another_gemini_works(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is started by the shell tool of another gemini, whose environment it inherits."""
    dump = lab.workdir / "env"
    lab.good("go", Turn(tool_calls=[lab.cli.shell_call(f"env -0 > {dump}")]), Turn(text="ok"), permission_mode="bypass")
    inherited = dict(entry.split("=", 1) for entry in dump.read_text().split("\0") if "=" in entry)
    assert inherited["GEMINI_CLI"] == "1"
    inner = {name: value for name, value in inherited.items() if not name.startswith(("PYTEST", "REMOTECLAW"))}
    for name, value in inner.items():
        monkeypatch.setenv(name, value)
    assert lab.good("go", Turn(text="inner")).text == "inner"


def test_model_system_prompt_and_images_reach_the_model(lab: Lab, tmp_path: Path) -> None:
    image = tmp_path / "outside the project, really.png"
    image.write_bytes(PNG)
    (lab.workdir / ".gitignore").write_text("*.png\n")
    (lab.workdir / "ignored.png").write_bytes(PNG + b"2")
    result = lab.good(
        "what is it, bob@example.com?",
        Turn(text="a dot"),
        model="gemini-2.5-pro",
        system_prompt="Answer in verse.",
        images=[image, lab.workdir / "ignored.png"],
    )
    (request,) = lab.server.requests
    assert (result.text, request.model) == ("a dot", "gemini-2.5-pro")
    parts = [part for content in request.body["contents"] for part in content["parts"]]
    inline = [part["inlineData"] for part in parts if "inlineData" in part]
    assert [(data["mimeType"], base64.b64decode(data["data"])) for data in inline] == [
        ("image/png", PNG),
        ("image/png", PNG + b"2"),
    ]
    (told,) = [part["text"] for part in parts if "what is it" in part.get("text", "")]
    assert "Answer in verse." in told
    assert "what is it, bob\\@example.com?" in told
    assert "You are" in request.system  # The CLI's own instructions are still there.


def test_extra_arguments_are_flags(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "far.txt").write_text(CANARY)
    call = ToolCall("read_file", {"file_path": str(tmp_path / "more" / "far.txt")})
    arguments = ["--include-directories", str(tmp_path / "more")]
    lab.good("read it", Turn(tool_calls=[call]), Turn(text="ok"), extra_args=arguments)
    assert CANARY in lab.server.requests[-1].tool_results[0].text
    events, result = lab.run("hi", extra_args=["--no-such-flag"])
    assert "Unknown argument" in only_error(events).message
    assert result.error_subtype == "config"
