"""Gemini CLI's dialect, without Gemini CLI: its real output (tests/transcripts), and how it is started."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import (
    AgentErrorEvent,
    AgentEvent,
    AgentExecuteParams,
    AgentRunResult,
    AgentTextEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    AgentUsage,
    GeminiCliRuntime,
    McpServerConfig,
    errors,
)
from remoteclaw_sync.clis.gemini import prompt as gemini_prompt
from remoteclaw_sync.clis.gemini import runtime as gemini
from remoteclaw_sync.clis.gemini.failures import failure_of_prompt
from remoteclaw_sync.clis.gemini.prompt import Workspace, escape_at_names, mention, without_command
from remoteclaw_sync.clis.gemini.record import ChatRecord
from tests.engine.live import heard_by
from tests.fakes import fake_command, finished

TRANSCRIPTS = Path(__file__).parents[1] / "transcripts" / "gemini" / "0.61.0"
SESSION = "b24025c6-7d00-41d8-8a43-87bc4fd6f72e"

INIT = {"type": "init", "session_id": SESSION, "model": "auto"}
STATS = {"input_tokens": 5, "output_tokens": 2, "cached": 1, "models": {"a-model": {"input_tokens": 5}}}
SUCCESS = {"type": "result", "status": "success", "stats": STATS}
NOISE = "Warning: 256-color support not detected.\nRipgrep is not available. Falling back to GrepTool.\n"

# Ends like a successful run, and writes down how it was started and which files it was given.
PLAYER = """
import json, os, sys
report, *argv = sys.argv[1:]
paths = [arg.partition("=")[2] for arg in argv if arg.startswith(("--admin-policy=", "--include-directories="))]
files = {}
for path in paths:
    for name in [path] if os.path.isfile(path) else [os.path.join(path, name) for name in os.listdir(path)]:
        files[os.path.basename(name)] = {
            "text": open(name, errors="replace").read(),
            "private": os.stat(os.path.dirname(path)).st_mode & 0o077 == 0,
        }
with open(report, "w") as file:
    stdin = sys.stdin.buffer.read().decode()
    json.dump({"argv": argv, "env": dict(os.environ), "stdin": stdin, "files": files}, file)
print(json.dumps({"type": "result", "status": "success", "stats": {"models": {"a-model": {}}}}))
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without settings."""
    for name in [name for name in os.environ if name.startswith("GEMINI_CLI")]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def transcript_names() -> list[str]:
    return sorted(path.stem for path in TRANSCRIPTS.glob("*.ndjson"))


def replay(name: str, tmp_path: Path, **fields: Any) -> tuple[list[AgentEvent], AgentRunResult]:
    """A run of our runtime with a CLI that prints what the real one printed."""
    end = json.loads((TRANSCRIPTS / f"{name}.end.json").read_text(encoding="utf-8"))
    stdout = (TRANSCRIPTS / f"{name}.ndjson").read_text(encoding="utf-8")
    return played(tmp_path, stdout, end["stderr"], end["exit_code"], **fields)


def played(
    tmp_path: Path, stdout: str, stderr: str = "", exit_code: int = 0, **fields: Any
) -> tuple[list[AgentEvent], AgentRunResult]:
    steps: list[list[Any]] = [
        ["read_stdin"],
        ["raw", as_latin1(stderr), 2],
        ["raw", as_latin1(stdout)],
        ["exit", exit_code],
    ]
    command = fake_command(*steps, script_file=tmp_path / "steps.json")
    return finished(GeminiCliRuntime(command).execute("hi", working_directory=tmp_path, **fields))


def said(*lines: dict[str, Any]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def as_latin1(text: str) -> str:
    return text.encode().decode("latin-1")


def started(tmp_path: Path, prompt: str = "hi", *, runtime: dict[str, Any] | None = None, **fields: Any) -> Any:
    """How the CLI is started for a run."""
    report = tmp_path / "report.json"
    command = [sys.executable, "-I", "-S", "-c", PLAYER, str(report)]
    GeminiCliRuntime(command, **(runtime or {})).run(prompt, **fields)
    return json.loads(report.read_text())


def delivered(prompt: str, workdir: Path, runtime: GeminiCliRuntime | None = None, **fields: Any) -> str:
    """What is written to the CLI's stdin."""
    params = AgentExecuteParams(prompt, working_directory=workdir, **fields)
    return (runtime or GeminiCliRuntime()).stdin_data(params).decode()


def only_error(events: Iterable[AgentEvent]) -> AgentErrorEvent:
    (error,) = [event for event in events if isinstance(event, AgentErrorEvent)]
    return error


# --- what it says ---------------------------------------------------------------------------------------------


def test_text_comes_in_the_pieces_that_the_model_sent_and_the_prompt_is_not_repeated(tmp_path: Path) -> None:
    events, result = replay("plain", tmp_path)
    assert events == [AgentTextEvent("Hel"), AgentTextEvent("lo, "), AgentTextEvent("world")]
    assert result.ok
    assert (result.text, result.exit_code) == ("Hello, world", 0)
    assert result.session_id == json.loads((TRANSCRIPTS / "plain.ndjson").read_text().split("\n")[0])["session_id"]


def test_usage_is_the_runs_and_nothing_else_is_made_of_its_numbers(tmp_path: Path) -> None:
    """`input_tokens` includes what was cached; `duration_ms` is wall time, and `tool_calls` are not turns."""
    _, result = replay("plain", tmp_path)
    assert result.usage == AgentUsage(input_tokens=120, output_tokens=7, cache_read_tokens=20)
    assert (result.num_turns, result.api_duration_ms, result.total_cost_usd) == (None, None, None)


def test_usage_of_a_resumed_run_is_that_run_alone(tmp_path: Path) -> None:
    session = json.loads((TRANSCRIPTS / "resumed.ndjson").read_text().split("\n")[0])["session_id"]
    _, result = replay("resumed", tmp_path, session_id=session)
    assert (result.ok, result.text, result.session_id) == (True, "Second.", session)
    assert result.usage == AgentUsage(input_tokens=10, output_tokens=5)


def test_the_routers_request_is_part_of_the_usage(tmp_path: Path) -> None:
    _, result = replay("routed_model", tmp_path)
    assert result.usage == AgentUsage(input_tokens=110, output_tokens=12)


def test_parallel_calls_have_their_own_ids_and_results(tmp_path: Path) -> None:
    events, result = replay("tools", tmp_path)
    uses = [event for event in events if isinstance(event, AgentToolUseEvent)]
    results = {event.tool_id: event for event in events if isinstance(event, AgentToolResultEvent)}
    assert [use.tool_name for use in uses] == [
        *["run_shell_command"] * 3, "write_file", "list_directory", "read_file", "no_such_tool",
    ]  # fmt: skip
    assert uses[0].input == {"command": "echo out; echo err >&2"}
    worked, spoke, failed, written, listed, missing, unknown = [results[use.tool_id] for use in uses]
    assert (worked.output, worked.is_error) == ("out\nerr", False)
    assert (spoke.output, spoke.is_error) == ("gone", False)  # It exited with 3, which its line does not say.
    assert (failed.output, failed.is_error) == ("Command exited with code: 3", True)
    assert (written.output, written.is_error) == ("", False)
    assert not listed.is_error
    assert missing.is_error
    assert "missing.txt" in missing.output
    assert unknown.is_error
    assert (result.ok, result.text, result.permission_denials) == (True, "Wait.Done.", ())


def test_a_sub_agent_is_one_call_and_its_words_are_not_the_answer(tmp_path: Path) -> None:
    events, result = replay("sub_agent", tmp_path)
    assert [type(event) for event in events] == [AgentToolUseEvent, AgentToolResultEvent, AgentTextEvent]
    assert (result.text, result.usage) == ("Outer answer.", AgentUsage(input_tokens=30, output_tokens=15))


def test_tools_that_nobody_could_approve_are_permission_denials(tmp_path: Path) -> None:
    events, result = replay("denied", tmp_path)
    assert result.ok
    assert [denial.tool for denial in result.permission_denials] == ["run_shell_command", "write_file", "mcp_lab_echo"]
    assert "permission mode" in (result.permission_denials[0].reason or "")
    uses = [event for event in events if isinstance(event, AgentToolUseEvent)]
    assert [denial.tool_id for denial in result.permission_denials] == [use.tool_id for use in uses[:3]]


def test_what_a_policy_denies_is_a_permission_denial_with_its_reason(tmp_path: Path) -> None:
    _, result = replay("denied_by_policy", tmp_path)
    (denial,) = result.permission_denials
    assert denial.tool == "invoke_agent"
    assert "denied by policy" in (denial.reason or "")


def test_a_warning_does_not_fail_the_run(tmp_path: Path) -> None:
    events, result = replay("loop", tmp_path)
    assert result.ok
    error = only_error(events)
    assert (error.message, error.code) == ("Loop detected, stopping execution", errors.CLI_WARNING)
    assert result.usage is None  # The CLI reports 0 here.


@pytest.mark.parametrize(
    ("name", "cause"),
    [("survived_retry", "failed with status 500"), ("survived_rate_limit", "failed: the scripted complaint")],
)
def test_a_retry_that_only_stderr_tells_of_is_a_warning_in_one_sentence(name: str, cause: str, tmp_path: Path) -> None:
    events, result = replay(name, tmp_path)
    assert (result.ok, result.text) == (True, "Fine now.")
    error = only_error(events)
    assert error.code == errors.CLI_WARNING
    assert error.message == f"gemini repeated a request once: Attempt 1 {cause}"


def test_an_answer_that_broke_off_and_was_asked_for_again_is_there_twice(tmp_path: Path) -> None:
    """A known limitation: nothing in the output marks the dead half."""
    _, result = replay("stream_cut", tmp_path)
    assert (result.ok, result.text) == (True, "Half an A whole answer.")


# --- how it fails -----------------------------------------------------------------------------------------------

COMPLAINT = "the scripted complaint"
FAILURES: dict[str, tuple[str, str, str]] = {
    "http_400": (COMPLAINT, "INVALID_ARGUMENT", "config"),
    "http_400_key": ("API key not valid. Please pass a valid API key.", "INVALID_ARGUMENT", "auth"),
    "http_400_too_long": (
        "The input token count (2000000) exceeds the maximum number allowed.",
        "INVALID_ARGUMENT",
        "context_window",
    ),
    "http_401": (COMPLAINT, "UNAUTHENTICATED", "auth"),
    "http_403": (COMPLAINT, "PERMISSION_DENIED", "auth"),
    "http_404": (COMPLAINT, errors.CLI_ERROR, "config"),
    "http_429": (COMPLAINT, errors.CLI_ERROR, "rate_limit"),
    "http_500": (COMPLAINT, "INTERNAL", "overloaded"),
    "http_503": (COMPLAINT, errors.CLI_ERROR, "overloaded"),
    "http_529": (COMPLAINT, errors.CLI_ERROR, "overloaded"),
    "refused_connection": ("exception TypeError: fetch failed sending request", errors.CLI_ERROR, "network"),
    "connection_lost": ("terminated", errors.CLI_ERROR, "network"),
    "second_request_fails": (COMPLAINT, "INVALID_ARGUMENT", "config"),
    "max_turns": ("Reached max session turns for this session.", "FatalTurnLimitedError", "max_turns"),
    "empty_answer": ("The model returned an empty response", errors.CLI_ERROR, "incomplete"),
    "thoughts_only": ("The model returned reasoning thoughts but no final", errors.CLI_ERROR, "incomplete"),
    "command": ("Exiting due to command result that is not supported", "FatalInputError", "config"),
    "unknown_session": ("Error resuming session: ", errors.CLI_EXIT_ERROR, "session_not_found"),
    "unknown_flag": ("Unknown argument", errors.CLI_EXIT_ERROR, "config"),
    "bad_value": ("Invalid values:\n  Argument: approval-mode", errors.CLI_EXIT_ERROR, "config"),
    "untrusted": ("Gemini CLI is not running in a trusted directory.", errors.CLI_EXIT_ERROR, "untrusted_directory"),
    "no_key": ("When using Gemini API, you must specify the GEMINI_API_KEY", errors.CLI_EXIT_ERROR, "auth"),
    "no_auth_method": ("Invalid auth method selected.", errors.CLI_EXIT_ERROR, "auth"),
    "bad_settings": ("Error in /home/user/.gemini/settings.json: ", errors.CLI_EXIT_ERROR, "config"),
}


# Runs whose session can be resumed: what they did before they failed was kept.
RESUMABLE = {"second_request_fails", "max_turns", "connection_lost"}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_told_once_in_the_vendors_words_and_with_its_kind(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    message, code, subtype = FAILURES[name]
    events, result = replay(name, tmp_path)
    assert "malformed" not in caplog.text
    assert (result.session_id is not None) == (name in RESUMABLE)
    error = only_error(events)
    assert error.message.startswith(message)
    assert "\x1b" not in error.message
    assert "    at " not in error.message
    assert "Usage: " not in error.message
    assert (error.code, result.error_subtype, result.ok) == (code, subtype, False)


def test_all_captured_runs_are_looked_at() -> None:
    good = {
        "plain", "routed_model", "tools", "sub_agent", "denied", "denied_by_policy", "loop", "stream_cut",
        "survived_retry", "survived_rate_limit", "resumed",
    }  # fmt: skip
    assert set(transcript_names()) == good | FAILURES.keys()


def test_no_secret_of_the_settings_is_in_the_error(tmp_path: Path) -> None:
    events, result = replay("bad_settings", tmp_path)
    assert "s3cret" not in only_error(events).message + result.stderr


def test_a_resumed_session_survives_a_failure(tmp_path: Path) -> None:
    session = json.loads((TRANSCRIPTS / "http_500.ndjson").read_text().split("\n")[0])["session_id"]
    assert replay("http_500", tmp_path, session_id=session)[1].session_id == session


def test_another_session_than_the_one_asked_for_fails_the_run(tmp_path: Path) -> None:
    answer = {"type": "message", "role": "assistant", "content": "of another talk", "delta": True}
    events, result = played(tmp_path, said(INIT, answer, SUCCESS), session_id="another-id")
    assert only_error(events).code == errors.SESSION_NOT_FOUND
    assert (result.error_subtype, result.session_id) == ("session_not_found", None)


@pytest.mark.parametrize("session_id", ["latest", "1", "42"])
def test_a_place_in_the_list_of_sessions_is_not_taken_for_an_id(session_id: str, tmp_path: Path) -> None:
    runtime = GeminiCliRuntime(fake_command(["line", SUCCESS], ["exit", 0]))
    events, result = finished(runtime.execute("hi", session_id=session_id, working_directory=tmp_path))
    assert only_error(events).code == errors.SESSION_NOT_FOUND
    assert (result.error_subtype, result.exit_code) == ("session_not_found", None)


def test_a_success_for_which_no_model_was_asked_is_none(tmp_path: Path) -> None:
    """Captured with a prompt of 8 MB: the CLI silently drops what does not fit the model."""
    line = {"type": "result", "status": "success", "stats": {"total_tokens": 0, "tool_calls": 0, "models": {}}}
    events, result = played(tmp_path, said(INIT, line))
    assert "too long" in only_error(events).message
    assert (result.ok, result.error_subtype, result.session_id) == (False, "context_window", None)


def test_exit_0_without_a_result_line_is_incomplete(tmp_path: Path) -> None:
    """This is how a CLI ends when somebody else sends it a SIGTERM."""
    answer = {"type": "message", "role": "assistant", "content": "half", "delta": True}
    events, result = played(tmp_path, said(INIT, answer), NOISE)
    error = only_error(events)
    assert (error.code, error.message) == (
        errors.CLI_INCOMPLETE, "gemini ended without saying that it had finished",
    )  # fmt: skip
    assert (result.ok, result.error_subtype, result.text, result.session_id) == (False, "incomplete", "half", SESSION)


def test_a_half_written_last_line_is_incomplete(tmp_path: Path) -> None:
    _, result = played(tmp_path, said(INIT) + '{"type":"result","status":"succ')
    assert result.error_subtype == "incomplete"


def test_a_cli_that_was_killed_says_so(tmp_path: Path) -> None:
    command = fake_command(["read_stdin"], ["line", INIT], ["die", "SIGKILL"])
    events, result = finished(GeminiCliRuntime(command).execute("hi", working_directory=tmp_path))
    assert "SIGKILL" in only_error(events).message
    assert (result.exit_code, result.error_subtype) == (-signal.SIGKILL, "crash")


def test_too_many_turns_are_a_failure_also_when_the_last_line_says_success(tmp_path: Path) -> None:
    """From the source of 0.61.0."""
    line = {"type": "error", "severity": "error", "message": "Maximum session turns exceeded"}
    events, result = played(tmp_path, said(INIT, line, SUCCESS))
    assert only_error(events).message == "Maximum session turns exceeded"
    assert result.error_subtype == "max_turns"


@pytest.mark.parametrize(
    ("exit_code", "subtype"),
    [(41, "auth"), (44, "config"), (52, "config"), (53, "max_turns"), (54, "crash"), (55, "untrusted_directory")],
)
def test_an_exit_code_alone_tells_the_kind_of_failure(exit_code: int, subtype: str, tmp_path: Path) -> None:
    _, result = played(tmp_path, "", NOISE + "It did not work.\n", exit_code)
    assert (result.error_subtype, result.exit_code) == (subtype, exit_code)


def test_an_uncaught_exception_of_the_cli_is_its_message_without_the_stack(tmp_path: Path) -> None:
    stack = "TypeError: x is not a function\n    at main (file:///opt/clis/gemini.js:1:2)\n    at async file:///a.js\n"
    events, result = played(tmp_path, said(INIT), NOISE + stack, 1)
    assert only_error(events).message == "TypeError: x is not a function"
    assert result.error_subtype == "crash"


def test_an_api_error_inside_an_api_error_is_unwrapped(tmp_path: Path) -> None:
    inner = json.dumps({"error": {"code": 429, "message": "Slow down.", "status": "RESOURCE_EXHAUSTED"}})
    outer = json.dumps({"error": {"code": 429, "message": inner, "status": "Too Many Requests"}})
    line = {"type": "result", "status": "error", "error": {"type": "unknown", "message": f"[API Error: {outer}]"}}
    events, result = played(tmp_path, said(INIT, line), exit_code=173)
    assert (only_error(events).message, only_error(events).code) == ("Slow down.", "RESOURCE_EXHAUSTED")
    assert result.error_subtype == "rate_limit"


def test_lines_of_other_shapes_do_no_harm(tmp_path: Path) -> None:
    odd: list[dict[str, Any]] = [
        {"type": "new_kind", "data": 1},
        {"type": "message", "role": "assistant", "content": None},
        {"type": "message", "role": "assistant", "content": "yes", "delta": True},
        {"type": "message", "role": "assistant", "content": "yes", "delta": False},
        {"type": "tool_use", "tool_name": None, "tool_id": 5, "parameters": "x"},
        {"type": "tool_result", "tool_id": None, "status": 1, "output": {"a": 1}, "error": "y"},
    ]
    events, result = played(tmp_path, "no JSON\n" + said(INIT, *odd, SUCCESS))
    assert (result.ok, result.text) == (True, "yes")
    assert not [event for event in events if isinstance(event, AgentErrorEvent)]


# --- what it is started with --------------------------------------------------------------------------------------


def test_values_are_arguments_that_cannot_be_taken_for_flags() -> None:
    params = AgentExecuteParams("x", session_id=SESSION, model="--yolo", extra_args=["--debug"])
    assert GeminiCliRuntime().build_args(params) == [
        "--output-format=stream-json", f"--resume={SESSION}", "--model=--yolo", "--debug",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "flag", "denied"),
    [
        ("default", None, {"enter_plan_mode", "exit_plan_mode"}),
        ("accept-edits", "--approval-mode=auto_edit", {"enter_plan_mode", "exit_plan_mode"}),
        (
            "read-only",
            "--approval-mode=plan",
            {"exit_plan_mode", "run_shell_command", "write_file", "replace"},
        ),
    ],
)
def test_a_permission_mode_has_no_way_out(mode: Any, flag: str | None, denied: set[str], workdir: Path) -> None:
    """In headless mode nobody approves exit_plan_mode, and it leads to yolo mode (real_clis/test_gemini.py)."""
    report = started(workdir.parent, working_directory=workdir, permission_mode=mode, session_id=None)
    assert [arg for arg in report["argv"] if arg.startswith("--approval-mode")] == ([flag] if flag else [])
    policy = report["files"]["policy.toml"]
    assert policy["private"]
    assert '"deny"' in policy["text"]
    assert {tool for tool in denied if f'"{tool}"' in policy["text"]} == denied


def test_bypass_is_yolo_and_only_on_demand(workdir: Path) -> None:
    report = started(workdir.parent, working_directory=workdir, permission_mode="bypass")
    assert report["argv"] == ["--output-format=stream-json", "--approval-mode=yolo"]
    assert not any("yolo" in arg for arg in started(workdir.parent, working_directory=workdir)["argv"])


def test_a_cli_without_admin_policies_is_started_again_without_ours_and_a_warning_says_so(tmp_path: Path) -> None:
    script = tmp_path / "old"
    script.write_text(
        f"#!{sys.executable}\nimport json, sys\n"
        "if any(arg.startswith('--admin-policy') for arg in sys.argv):\n"
        "    sys.exit('Unknown arguments: admin-policy, adminPolicy\\nUsage: gemini [options]')\n"
        f"print({json.dumps(json.dumps(SUCCESS))})\n"
    )
    script.chmod(0o755)
    events, result = finished(GeminiCliRuntime(script).execute("hi", working_directory=tmp_path))
    assert result.ok
    assert only_error(events).code == errors.CLI_WARNING
    assert "plan mode" in only_error(events).message
    events, result = finished(
        GeminiCliRuntime(script).execute("hi", working_directory=tmp_path, permission_mode="read-only")
    )
    assert (result.error_subtype, only_error(events).message) == (
        "config", "Unknown arguments: admin-policy, adminPolicy",
    )  # fmt: skip


def test_a_policy_of_ours_that_the_machine_overrules_is_a_warning(tmp_path: Path) -> None:
    stderr = "Security Warning: Ignoring --admin-policy because system policies are already defined in /etc/x\n"
    events, result = played(tmp_path, said(INIT, SUCCESS), stderr)
    assert result.ok
    assert only_error(events).code == errors.CLI_WARNING
    assert "exit_plan_mode" in only_error(events).message


def test_the_environment_lets_it_run_anywhere_and_inside_another(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMINI_CLI", "1")
    monkeypatch.setenv("GEMINI_CLI_WORKTREE_HANDLED", "1")
    monkeypatch.setenv("GEMINI_API_KEY", "the user's own")
    env = started(workdir.parent, working_directory=workdir)["env"]
    assert (env["GEMINI_CLI_NO_RELAUNCH"], env["GEMINI_CLI_TRUST_WORKSPACE"]) == ("true", "true")
    assert env["GEMINI_API_KEY"] == "the user's own"
    assert not {"GEMINI_CLI", "GEMINI_CLI_WORKTREE_HANDLED"} & env.keys()


def test_trust_can_be_left_to_the_cli(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_CLI_TRUST_WORKSPACE", "true")
    env = started(workdir.parent, working_directory=workdir, runtime={"trust_workspace": False})["env"]
    assert "GEMINI_CLI_TRUST_WORKSPACE" not in env


@pytest.mark.parametrize("options", [{"trust_workspace": "yes"}, {"prompt_syntax": "html"}])
def test_a_wrong_option_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError), match=next(iter(options))):
        GeminiCliRuntime(**options)


def test_a_system_prompt_goes_before_the_prompt_and_both_are_text(workdir: Path) -> None:
    (workdir / "a.txt").write_text("x")
    report = started(workdir.parent, "/quit @a.txt", working_directory=workdir, system_prompt="Be brief, @a.txt.")
    assert report["stdin"] == ("<system_instructions>\nBe brief, \\@a.txt.\n</system_instructions>\n\n /quit \\@a.txt")


def test_images_are_copies_in_a_folder_that_the_cli_may_read(workdir: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a photo, really.PNG", tmp_path / "b.jpg"
    first.write_bytes(b"one")
    second.write_bytes(b"two")
    report = started(tmp_path, "who@home", working_directory=workdir, images=[first, second])
    files = report["files"]
    assert (files["image-1.png"]["text"], files["image-2.jpg"]["text"]) == ("one", "two")
    assert files["image-1.png"]["private"]
    (folder,) = [arg.partition("=")[2] for arg in report["argv"] if arg.startswith("--include-directories=")]
    assert report["stdin"] == f"who\\@home\n\n@{folder}/image-1.png @{folder}/image-2.jpg"


@pytest.mark.parametrize("name", ["missing.png", "text.txt", "huge.png"])
def test_an_image_it_cannot_take_is_refused_by_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("x")
    with open(tmp_path / "huge.png", "wb") as file:
        file.truncate(20 * 1024 * 1024 + 1)
    with pytest.raises(ValueError, match=r"images\[0\]"):
        GeminiCliRuntime().execute("x", images=[tmp_path / name])


def test_a_prompt_longer_than_it_reads_is_refused() -> None:
    GeminiCliRuntime().check_params(AgentExecuteParams("x" * 8 * 1024 * 1024))
    with pytest.raises(ValueError, match="prompt is 8388609 bytes"):
        GeminiCliRuntime().execute("x" * (8 * 1024 * 1024 - 1) + "\xe4")
    with pytest.raises(ValueError, match="prompt"):
        GeminiCliRuntime().execute("x" * 8 * 1024 * 1024, system_prompt="y")


def test_a_prompt_that_grew_too_long_by_escaping_is_an_error(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemini, "MAX_PROMPT_BYTES", 30)
    (workdir / "a").write_text("x")
    events, result = finished(GeminiCliRuntime("true").execute("@a " * 10, working_directory=workdir))
    assert (only_error(events).code, result.error_subtype) == (errors.UNSUPPORTED_OPTION, "config")


# --- a prompt is text ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["/clear", "/quit now", "/ clear", "/", "/x\ny", "/help@me"])
def test_a_prompt_that_would_run_a_command_gets_a_space_before_it(prompt: str, workdir: Path) -> None:
    assert delivered(prompt, workdir) == " " + prompt


@pytest.mark.parametrize(
    "prompt",
    ["/etc/hosts is a file", "// comment", "/* comment */", " /clear", "say /clear", "--help", "-", "\n\nx", "x \n"],
)
def test_any_other_prompt_stays_as_it_is(prompt: str, workdir: Path) -> None:
    assert delivered(prompt, workdir) == prompt


def test_with_the_syntax_of_the_cli_a_prompt_is_not_touched(workdir: Path) -> None:
    (workdir / "a.txt").write_text("x")
    prompt = "/quit @a.txt"
    assert delivered(prompt, workdir, prompt_syntax="cli") == prompt
    assert delivered(prompt, workdir, GeminiCliRuntime(prompt_syntax="cli")) == prompt
    back = delivered(prompt, workdir, GeminiCliRuntime(prompt_syntax="cli"), prompt_syntax="text")
    assert back == " /quit \\@a.txt"


@pytest.fixture
def expands(workdir: Path, home: Path) -> Callable[[str], str]:
    """What becomes of a text in a project with some files, a sub-agent and an extension."""
    for name in ("notes.txt", "my file.md", "src/deep/Module.py", "node_modules/left/pad.js"):
        (workdir / name).parent.mkdir(parents=True, exist_ok=True)
        (workdir / name).write_text("x")
    for folder in (home / ".gemini" / "agents", home / ".gemini" / "extensions" / "e" / "agents"):
        folder.mkdir(parents=True)
    (home / ".gemini" / "agents" / "file.md").write_text("---\nname: my-helper\n---\n")
    (home / ".gemini" / "extensions" / "e" / "agents" / "x.md").write_text('---\nname: "other"\n---\n')
    workspace = Workspace([str(workdir)], str(home))
    return lambda text: escape_at_names(text, workspace.would_expand)


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("@notes.txt", "\\@notes.txt"),
        ("see @notes.txt.", "see \\@notes.txt."),
        ("(@notes.txt)", "(\\@notes.txt)"),
        ("@./notes.txt", "\\@./notes.txt"),
        ("@src @src/deep/", "\\@src \\@src/deep/"),
        ("@my\\ file.md", "\\@my\\ file.md"),
        ("a@otes.tx", "a\\@otes.tx"),  # The CLI's search finds it.
        ("@module", "\\@module"),
        ("@deep/module", "\\@deep/module"),
        ("@s*c/deep/module.py", "\\@s*c/deep/module.py"),
        ("@my-helper @other @generalist", "\\@my-helper \\@other \\@generalist"),
        ("@server:file:///x", "\\@server:file:///x"),
        ("@x@notes.txt", "@x@notes.txt"),  # One name for the CLI, and nothing has that name.
        ("@..", "\\@.."),  # To the CLI, this is "@." and a full stop.
        ("@src/../notes.txt", "\\@src/../notes.txt"),
    ],
)
def test_a_name_that_would_be_expanded_is_escaped(text: str, escaped: str, expands: Callable[[str], str]) -> None:
    assert expands(text) == escaped


@pytest.mark.parametrize(
    "text",
    [
        "mail bob@example.com",
        "git@github.com:org/repo.git",
        "@property\ndef x(self): ...",
        "npm install @scope/pkg",
        "\\@notes.txt",
        "@ notes.txt",
        "@",
        "@/etc/passwd",
        "@pad.js",
        "@nothing.\n",
        "no at at all",
    ],
)
def test_any_other_name_stays_as_it_is(text: str, expands: Callable[[str], str]) -> None:
    assert expands(text) == text


def test_folders_that_are_included_count_too(workdir: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").write_text("x")
    arguments = [f"--include-directories={tmp_path / 'one'}", "--include-directories", "../two"]
    params = AgentExecuteParams("@one.txt @two.txt @three.txt", working_directory=workdir, extra_args=arguments)
    assert GeminiCliRuntime().stdin_data(params) == b"\\@one.txt \\@two.txt @three.txt"


def test_what_is_escaped_leaves_no_other_name_behind() -> None:
    assert escape_at_names("a@b@c \\@d @", lambda name: True) == "a\\@b\\@c \\@d @"


def test_in_a_project_too_large_to_search_every_name_is_escaped(
    workdir: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemini_prompt, "MAX_FILES_SEARCHED", 3)
    for number in range(4):
        (workdir / str(number)).write_text("x")
    assert escape_at_names("bob@example.com", Workspace([str(workdir)], str(home)).would_expand) == "bob\\@example.com"


def test_a_prompt_of_very_many_names_is_not_looked_up_name_by_name(workdir: Path, home: Path) -> None:
    escaped = escape_at_names(" ".join(f"@{n}" for n in range(200)), Workspace([str(workdir)], str(home)).would_expand)
    assert escaped.startswith("@0 @1 ")
    assert escaped.endswith(" \\@198 \\@199")


def test_a_path_is_mentioned_so_that_all_of_it_is_the_path() -> None:
    assert mention("/tmp/a b(1)/\xe4.png") == "@/tmp/a\\ b\\(1\\)/\\\xe4.png"


def test_only_the_first_character_makes_a_command() -> None:
    assert without_command("/a/b") == "/a/b"
    assert without_command("/a /b") == " /a /b"


# --- live sessions ----------------------------------------------------------------------------------------------------


def test_a_model_that_is_not_found_is_a_matter_of_configuration_though_gemini_says_500() -> None:
    words = "models/no-such-model is not found for API version v1beta"
    assert failure_of_prompt(words, 500).subtype == "config"
    assert failure_of_prompt("the backend is not well", 500).subtype == "overloaded"


def test_when_to_come_back_is_told_by_a_live_session_too(tmp_path: Path) -> None:
    agent = Path(__file__).parents[1] / "live_acp.py"
    runtime = GeminiCliRuntime([sys.executable, "-I", "-S", str(agent), str(tmp_path)])
    refusal = json.dumps([["fail", {"code": 429, "message": "Slow down.\nSuggested retry after 7.0s."}]])
    fields: dict[str, Any] = {"working_directory": tmp_path, "env": {"HOME": str(tmp_path)}}
    with runtime.open_session(**fields) as session:
        result = session.run(refusal, check=False)
    assert (result.error_subtype, result.retry_after) == ("rate_limit", 7.0)


@pytest.mark.parametrize(
    "agent",
    [
        {"initialize": {"result": {"protocolVersion": 1, "agentInfo": {"name": "gemini-cli", "version": "0.33.0"}}}},
        {"quirks": ["exits"]},  # It does not know `--acp`.
    ],
)
def test_a_gemini_that_is_too_old_for_live_sessions_is_told_which_one_is_needed(tmp_path: Path, agent: Any) -> None:
    program = Path(__file__).parents[1] / "live_acp.py"
    runtime = GeminiCliRuntime([sys.executable, "-I", "-S", str(program), str(tmp_path)])
    env = {"HOME": str(tmp_path), "FAKE_AGENT": json.dumps(agent)}
    with runtime.open_session(working_directory=tmp_path, env=env) as session:
        for _ in range(2):
            events, result = finished(session.execute("hello"))
            (error,) = (event for event in events if isinstance(event, AgentErrorEvent))
            assert not result.ok
            assert "Gemini CLI 0.35.0 or newer" in error.message


@pytest.mark.parametrize("is_trusted", [False, True])
def test_mcp_servers_that_gemini_leaves_out_of_an_untrusted_folder_are_told(tmp_path: Path, is_trusted: bool) -> None:
    agent = Path(__file__).parents[1] / "live_acp.py"
    runtime = GeminiCliRuntime([sys.executable, "-I", "-S", str(agent), str(tmp_path)], trust_workspace=False)
    settings = tmp_path / ".gemini" / "settings.json"
    settings.parent.mkdir()
    settings.write_text(json.dumps({"security": {"folderTrust": {"enabled": not is_trusted}}}))
    fields: dict[str, Any] = {"working_directory": tmp_path, "env": {"HOME": str(tmp_path)}}
    with runtime.open_session(mcp_servers={"lab": McpServerConfig(command="true")}, **fields) as session:
        events, result = finished(session.execute("hello"))
    assert result.ok
    errors_told = [event for event in events if isinstance(event, AgentErrorEvent)]
    told = [error.message for error in errors_told if error.code == errors.MCP_SERVER_FAILED]
    assert ["trusted" in message and "'lab'" in message for message in told] == ([] if is_trusted else [True])


def test_a_session_belongs_to_the_folder_itself_and_not_to_a_link_to_it(tmp_path: Path) -> None:
    """Like the sessions of one-shot runs: otherwise neither could resume what the other has started."""
    agent = Path(__file__).parents[1] / "live_acp.py"
    folder, link, said = tmp_path / "folder", tmp_path / "link", tmp_path / "said"
    folder.mkdir()
    said.mkdir()
    link.symlink_to(folder)
    runtime = GeminiCliRuntime([sys.executable, "-I", "-S", str(agent), str(said)])
    with runtime.open_session(working_directory=link, env={"HOME": str(tmp_path)}) as session:
        session.run("hello")
    (new,) = (line["params"] for line in heard_by(said) if line.get("method") == "session/new")
    assert new["cwd"] == os.path.realpath(folder)


def test_the_record_of_a_conversation_counts_each_turn_by_itself(tmp_path: Path) -> None:
    chats = tmp_path / ".gemini" / "tmp" / "project" / "chats"
    chats.mkdir(parents=True)
    file = chats / f"session-2026-11-18T10-00-{SESSION[:8]}.jsonl"
    file.write_text(json.dumps({"sessionId": SESSION}) + "\n")
    record = ChatRecord({"HOME": str(tmp_path)}, str(tmp_path))
    counted = []
    for messages in (["a", "a", "b"], ["b", "c"]):  # Each message is recorded again when it changes.
        record.begin(SESSION)
        said = [{"id": name, "type": "gemini", "tokens": {"input": 10, "output": 5}} for name in messages]
        with file.open("a") as lines:
            lines.writelines(json.dumps(one) + "\n" for one in said)
        counted.append((record.used(), record.requests))
    assert counted == [(AgentUsage(20, 10), 2), (AgentUsage(10, 5), 1)]
