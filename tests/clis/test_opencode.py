"""OpenCode's dialect, without OpenCode: its real output (tests/transcripts), its files, and how it is started."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import (
    AgentErrorEvent,
    AgentEvent,
    AgentExecuteParams,
    AgentPermissionEvent,
    AgentRunResult,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    AgentUsage,
    Allow,
    Deny,
    OpenCodeCliRuntime,
    PermissionRequest,
    ReplayRuntime,
    errors,
)
from remoteclaw_sync.clis.opencode import stderr as opencode_stderr
from remoteclaw_sync.clis.opencode.config import merged, overlaid
from remoteclaw_sync.clis.opencode.http_messages import JSON_TYPE, answer_line, rung_line
from remoteclaw_sync.clis.opencode.live import OpenCodeLiveDialect
from remoteclaw_sync.clis.opencode.live_settings import SessionSettings
from remoteclaw_sync.clis.opencode.store import SessionStore
from remoteclaw_sync.engine.dialect import each_of
from tests.fakes import finished, wait_until

TRANSCRIPTS = Path(__file__).parents[1] / "transcripts" / "opencode" / "1.18.33"
SECRET = "sk-a-secret-in-a-config"  # In the configs of the captured runs.
SESSION = "ses_e14fae195ffeXzp9W5IzXZ1jnA"

# Prints what a captured run printed, and writes down how it was started.
PLAYER = """
import json, os, sys
folder, code = sys.argv[1:3]
prompt = sys.stdin.buffer.read().decode()
with open(folder + "/report.json", "w") as file:
    json.dump({"argv": sys.argv[3:], "env": dict(os.environ), "cwd": os.getcwd(), "stdin": prompt}, file)
for name, stream in ("stdout", sys.stdout.buffer), ("stderr", sys.stderr.buffer):
    with open(f"{folder}/{name}", "rb") as file:
        stream.write(file.read())
    stream.flush()
sys.exit(int(code))
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without sessions or settings."""
    for name in [name for name in os.environ if name.startswith(("OPENCODE", "XDG_"))]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


class Played:
    """A runtime whose CLI prints what it is given."""

    def __init__(self, folder: Path, lines: str, stderr: str = "", exit_code: int = 0, **options: Any) -> None:
        self._report = folder / "report.json"
        (folder / "stdout").write_text(lines, encoding="utf-8")
        (folder / "stderr").write_text(stderr, encoding="utf-8")
        play = [sys.executable, "-I", "-S", "-c", PLAYER, str(folder), str(exit_code)]
        self.runtime = OpenCodeCliRuntime(play, timeout=60.0, **options)

    def run(self, prompt: str = "hi", **fields: Any) -> tuple[list[AgentEvent], AgentRunResult]:
        return finished(self.runtime.execute(prompt, **fields))

    @property
    def started(self) -> Any:
        """How the CLI was started."""
        return json.loads(self._report.read_text())

    @property
    def was_started(self) -> bool:
        return self._report.exists()


def transcript(name: str) -> tuple[str, str, int]:
    """stdout, stderr and exit code of a captured run."""
    end = json.loads((TRANSCRIPTS / f"{name}.end.json").read_text(encoding="utf-8"))
    return (TRANSCRIPTS / f"{name}.ndjson").read_text(encoding="utf-8"), end["stderr"], end["exit_code"]


def replayed(name: str, tmp_path: Path, **fields: Any) -> tuple[list[AgentEvent], AgentRunResult]:
    """What our runtime makes of a captured run."""
    return Played(tmp_path, *transcript(name)).run(**fields)


def error_messages(events: Iterable[AgentEvent]) -> list[tuple[str, str | None]]:
    return [(event.message, event.code) for event in events if isinstance(event, AgentErrorEvent)]


# --- captured runs -------------------------------------------------------------------------------------------------


def test_a_plain_run_gives_thinking_text_usage_and_cost(tmp_path: Path) -> None:
    events, result = replayed("plain", tmp_path)
    assert events == [AgentThinkingEvent("Let me see."), AgentTextEvent("Hello, world")]
    assert result.ok
    assert result.session_id is not None
    assert result.session_id.startswith("ses_")
    assert result.usage == AgentUsage(input_tokens=100, output_tokens=7, cache_read_tokens=20)
    assert result.total_cost_usd == pytest.approx((100 * 1.0 + (7 + 3) * 10.0 + 20 * 0.1) / 1e6)
    assert (result.stop_reason, result.num_turns) == ("stop", 1)


def test_an_empty_answer_that_opencode_calls_finished_is_a_success_without_text(tmp_path: Path) -> None:
    events, result = replayed("empty_answer", tmp_path)
    assert (events, result.text, result.ok) == ([], "", True)


def test_each_tool_line_is_a_call_followed_by_its_result_with_its_own_id(tmp_path: Path) -> None:
    events, result = replayed("tools", tmp_path)
    assert (result.ok, result.text, result.num_turns) == (True, "Wait.Done.", 2)
    uses = [event for event in events if isinstance(event, AgentToolUseEvent)]
    results = {event.tool_id: event for event in events if isinstance(event, AgentToolResultEvent)}
    for use in uses:
        following = events[events.index(use) + 1]
        assert isinstance(following, AgentToolResultEvent)
        assert following.tool_id == use.tool_id
    # In the order in which they ended: the one that works slept for a moment.
    assert [use.tool_id for use in uses][-1] == "call_works"
    assert {use.tool_id: use.tool_name for use in uses} == {
        "call_works": "bash",
        "call_fails": "bash",
        "call_write": "write",
        "call_unknown": "no_such_tool",
        "call_garbled": "bash",
        "call_misfit": "read",
        "call_missing": "read",
    }
    failed = {tool_id for tool_id, outcome in results.items() if outcome.is_error}
    assert failed == {"call_fails", "call_unknown", "call_garbled", "call_misfit", "call_missing"}
    assert results["call_works"].output == "out\nerr\n"
    assert results["call_fails"].output == "gone\n"
    assert "File not found" in results["call_missing"].output
    assert next(use for use in uses if use.tool_id == "call_write").input["content"] == "one\n"


def test_a_command_that_ran_out_of_time_has_failed(tmp_path: Path) -> None:
    events, result = replayed("timed_out_tool", tmp_path)
    (outcome,) = [event for event in events if isinstance(event, AgentToolResultEvent)]
    assert outcome.is_error
    assert "timeout" in outcome.output
    assert result.ok


def test_results_of_mcp_tools_and_their_failures_are_told_apart(tmp_path: Path) -> None:
    events, result = replayed("mcp", tmp_path)
    names = {event.tool_id: event.tool_name for event in events if isinstance(event, AgentToolUseEvent)}
    outcomes = {event.tool_id: event.is_error for event in events if isinstance(event, AgentToolResultEvent)}
    assert names == {"call_echo": "lab_echo", "call_fail": "lab_fail", "call_rpc_fail": "lab_rpc_fail"}
    assert outcomes == {"call_echo": False, "call_fail": True, "call_rpc_fail": True}
    assert result.ok


@pytest.mark.parametrize(
    ("name", "answer", "stop_reason"),
    [
        ("stop_after_tools", "Calling.Called.", "stop"),
        ("stream_cut", "halfwhole", "stop"),
        ("max_output_tokens", "cut off", "length"),
        ("resumed", "Second.", "stop"),
    ],
)
def test_the_last_step_decides_how_the_run_ended(tmp_path: Path, name: str, answer: str, stop_reason: str) -> None:
    events, result = replayed(name, tmp_path)
    assert (result.ok, result.text, result.stop_reason) == (True, answer, stop_reason)
    assert error_messages(events) == []


def test_a_sub_agents_answer_is_the_result_of_its_call_and_not_text(tmp_path: Path) -> None:
    events, result = replayed("sub_agent", tmp_path)
    assert (result.ok, result.text) == (True, "outer answer")
    (use,) = [event for event in events if isinstance(event, AgentToolUseEvent)]
    (outcome,) = [event for event in events if isinstance(event, AgentToolResultEvent)]
    assert use.tool_name == "task"
    assert "inner answer" in outcome.output


def test_a_rejected_permission_is_a_failure_although_opencode_exits_with_0(tmp_path: Path) -> None:
    events, result = replayed("permission_rejected", tmp_path)
    assert (result.exit_code, result.ok, result.error_subtype) == (0, False, "permission")
    (denial,) = result.permission_denials
    assert denial.tool == "read"
    assert denial.tool_id is not None
    ((message, _),) = error_messages(events)
    assert "external_directory (/etc/*)" in message


def test_a_permission_that_a_sub_agent_was_refused_does_not_fail_the_run(tmp_path: Path) -> None:
    _, result = replayed("sub_agent_denied", tmp_path)
    assert (result.ok, result.text) == (True, "outer answer")
    assert [denial.tool for denial in result.permission_denials] == ["task"]


def test_a_call_that_a_rule_forbids_is_a_denial_and_the_run_goes_on(tmp_path: Path) -> None:
    _, result = replayed("permission_ruled_out", tmp_path)
    assert (result.ok, result.text) == (True, "I may not.")
    assert [denial.tool for denial in result.permission_denials] == ["bash"]


@pytest.mark.parametrize(
    ("name", "message", "code", "subtype"),
    [
        ("http_400", "the scripted complaint", "invalid_request_error", "config"),
        ("http_401", "the scripted complaint", "authentication_error", "auth"),
        ("http_403", "the scripted complaint", "permission_error", "auth"),
        ("http_404", "the scripted complaint", "not_found_error", "config"),
        ("http_429", "the scripted complaint", "rate_limit_exceeded", "rate_limit"),
        ("quota", "You exceeded your current quota", "insufficient_quota", "billing"),
        ("http_500", "the scripted complaint", "server_error", "overloaded"),
        ("http_529", "the scripted complaint", "server_error", "overloaded"),
        ("refusal", "The response was blocked by the provider's content filter", "ContentFilterError", "unknown"),
        (
            "context_overflow_without_compaction",
            "maximum context length is 8192 tokens",
            "context_length_exceeded",
            "context_window",
        ),
        ("unknown_model", "Model not found: bench/no-such-model.", "UnknownError", "config"),
        ("unknown_session", "Session not found", errors.CLI_EXIT_ERROR, "session_not_found"),
        ("unknown_flag", opencode_stderr.REFUSED_ARGUMENTS, errors.CLI_EXIT_ERROR, "config"),
    ],
)
def test_a_failure_is_told_once_in_the_vendors_words(
    tmp_path: Path, name: str, message: str, code: str, subtype: str
) -> None:
    events, result = replayed(name, tmp_path)
    ((told, told_code),) = error_messages(events)
    assert message in told
    assert (told_code, result.error_subtype, result.ok) == (code, subtype, False)
    assert "\x1b" not in told
    assert "\n    at " not in told


def test_a_refused_connection_is_a_network_failure(tmp_path: Path) -> None:
    events, result = replayed("refused_connection", tmp_path)
    assert result.error_subtype == "network"
    assert len(error_messages(events)) == 1


@pytest.mark.parametrize("name", ["bad_config", "bad_value"])
def test_a_bad_config_is_reported_without_what_is_in_it(tmp_path: Path, name: str) -> None:
    assert SECRET in transcript(name)[1]
    events, result = replayed(name, tmp_path)
    ((message, _),) = error_messages(events)
    assert "OPENCODE_CONFIG_CONTENT" in message
    assert result.error_subtype == "config"
    assert SECRET not in message
    assert SECRET not in result.stderr
    if name == "bad_config":
        assert "line 1, column" in message


@pytest.mark.parametrize("name", ["compacted", "context_overflow"])
def test_what_opencode_tells_its_model_after_a_compaction_is_not_text(tmp_path: Path, name: str) -> None:
    events, result = replayed(name, tmp_path)
    assert result.ok
    assert result.text.endswith("the rest")
    assert "Continue if you have next steps" not in result.text
    assert all(code == errors.CLI_WARNING for _, code in error_messages(events))


def test_the_summary_of_a_compaction_is_not_text_where_opencodes_store_can_be_read(tmp_path: Path, home: Path) -> None:
    lines = transcript("compacted")[0]
    summary = next(json.loads(line) for line in lines.splitlines() if "THE SUMMARY" in line)
    with store(home) as database:
        database.execute("INSERT INTO message VALUES (?, ?)", (summary["part"]["messageID"], '{"summary": true}'))
    events, result = replayed("compacted", tmp_path)
    assert result.text == "the startthe rest"
    assert not any(isinstance(event, AgentThinkingEvent) for event in events)
    assert result.num_turns == 3


def test_a_recorded_compaction_plays_without_opencodes_store(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = transcript("compacted")[0]
    summary = next(json.loads(line) for line in lines.splitlines() if "THE SUMMARY" in line)
    with store(home) as database:
        database.execute("INSERT INTO message VALUES (?, ?)", (summary["part"]["messageID"], '{"summary": true}'))
    played = Played(tmp_path, *transcript("compacted"), record=tmp_path / "run.jsonl")
    events, result = played.run()
    monkeypatch.setenv("HOME", str(tmp_path / "elsewhere"))
    events_again, result_again = finished(ReplayRuntime(tmp_path / "run.jsonl").execute())
    assert events_again == events
    assert (result_again.text, result_again.num_turns) == ("the startthe rest", result.num_turns)


def test_what_a_slow_consumer_learns_after_the_clis_end_is_in_the_recording(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = transcript("compacted")[0]
    summary = next(json.loads(line) for line in lines.splitlines() if "THE SUMMARY" in line)
    with store(home) as database:
        database.execute("INSERT INTO message VALUES (?, ?)", (summary["part"]["messageID"], '{"summary": true}'))
    runtime = Played(tmp_path, *transcript("compacted"), record=tmp_path / "run.jsonl").runtime
    with runtime.start("hi") as run:
        heard = [next(run)]  # The whole run is one chunk: what follows this event has not been looked at.
        assert wait_until(lambda: not any(thread.name == "remoteclaw-supervisor" for thread in threading.enumerate()))
        heard += run
    monkeypatch.setenv("HOME", str(tmp_path / "elsewhere"))
    again = ReplayRuntime(tmp_path / "run.jsonl").run()
    assert heard[-1].type == "done"
    assert (again.text, run.result and run.result.text) == ("the startthe rest", "the startthe rest")


# --- lines that no captured run has ---------------------------------------------------------------------------------


def line(kind: str, number: int = 1, **part: Any) -> str:
    """A line as OpenCode prints it."""
    body = {"id": f"prt_{number}", "messageID": "msg_1", "sessionID": SESSION, **part}
    return json.dumps({"type": kind, "timestamp": 1, "sessionID": SESSION, "part": body}) + "\n"


def error_line(name: str, message: str, **data: Any) -> str:
    error = {"name": name, "data": {"message": message, **data}}
    return json.dumps({"type": "error", "timestamp": 1, "sessionID": SESSION, "error": error}) + "\n"


def finish(reason: str, number: int = 9) -> str:
    tokens = {"input": 1, "output": 2, "reasoning": 0, "cache": {"read": 3, "write": 4}}
    return line("step_finish", number, reason=reason, tokens=tokens, cost=0.5)


def tool(number: int, **state: Any) -> str:
    return line("tool_use", number, tool="bash", callID=f"call_{number}", state={"status": "completed", **state})


def test_a_part_that_is_printed_again_counts_once(tmp_path: Path) -> None:
    lines = line("text", 1, text="once") + line("text", 1, text="once") + finish("stop") + finish("stop")
    _, result = Played(tmp_path, lines).run()
    assert (result.text, result.num_turns, result.total_cost_usd) == ("once", 1, 0.5)
    assert result.usage == AgentUsage(1, 2, 3, 4)


def test_an_old_tool_result_that_a_compaction_shortens_is_no_new_call(tmp_path: Path) -> None:
    old = tool(1, output="", time={"start": 1, "end": 2, "compacted": 3})
    events, result = Played(tmp_path, old + line("text", 2, text="hi") + finish("stop")).run()
    assert events == [AgentTextEvent("hi")]
    assert result.ok


def test_an_error_that_opencode_gets_over_is_a_warning(tmp_path: Path) -> None:
    lines = error_line("UnknownError", "cannot read a.txt") + line("step_start", 1) + line("text", 2, text="hi")
    events, result = Played(tmp_path, lines + finish("stop"), exit_code=1).run()
    assert error_messages(events) == [("cannot read a.txt", errors.CLI_WARNING)]
    assert (result.ok, result.exit_code) == (True, 1)


def test_the_same_failure_told_twice_is_reported_once(tmp_path: Path) -> None:
    lines = error_line("APIError", "no", statusCode=401) + error_line("APIError", "no", statusCode=401)
    events, result = Played(tmp_path, lines, exit_code=1).run()
    assert error_messages(events) == [("no", "401")]
    assert result.error_subtype == "auth"


def test_an_error_without_name_and_message_is_still_an_error(tmp_path: Path) -> None:
    said = json.dumps({"type": "error", "sessionID": SESSION, "error": {"_tag": "BadRequest"}}) + "\n"
    events, result = Played(tmp_path, said, exit_code=1).run()
    assert error_messages(events) == [("BadRequest", "BadRequest")]
    assert result.error_subtype == "config"


@pytest.mark.parametrize("reason", ["tool-calls", "unknown"])
def test_a_run_that_ends_in_the_middle_is_incomplete(tmp_path: Path, reason: str) -> None:
    events, result = Played(tmp_path, line("text", 1, text="half") + finish(reason)).run()
    assert (result.ok, result.error_subtype, result.text) == (False, "incomplete", "half")
    assert [code for _, code in error_messages(events)] == [errors.CLI_INCOMPLETE]


def test_a_stop_after_a_retry_is_not_the_last_word_if_the_first_try_had_called_a_tool(tmp_path: Path) -> None:
    again = line("step_start", 3) + line("text", 4, text="hi") + finish("stop")
    _, result = Played(tmp_path, line("step_start", 1) + tool(2, output="") + again).run()
    assert result.error_subtype == "incomplete"


def test_a_step_that_stops_after_a_tool_the_provider_ran_is_the_last(tmp_path: Path) -> None:
    state = {"status": "completed", "output": "found"}
    searched = line("tool_use", 1, tool="web_search", callID="c", state=state, metadata={"providerExecuted": True})
    _, result = Played(tmp_path, searched + finish("stop")).run()
    assert result.ok


def test_attachments_of_a_tool_are_named_in_its_output(tmp_path: Path) -> None:
    picture = {"mime": "image/png", "url": "data:image/png;base64,AAAA"}
    events, _ = Played(tmp_path, tool(1, output="Image read", attachments=[picture]) + finish("tool-calls")).run()
    (result,) = [event for event in events if isinstance(event, AgentToolResultEvent)]
    assert result.output == "Image read\n[image/png]"


@pytest.mark.parametrize(
    "said",
    [
        '{"type":"text"}\n',
        '{"type":"text","part":null}\n{"type":"tool_use","part":{"state":[]}}\n',
        '{"type":"step_finish","part":{"reason":5,"tokens":"many","cost":"much"}}\n',
        '{"type":"error","error":"no object"}\n',
        '{"type":"something_new","part":{"text":"x"}}\n',
    ],
)
def test_lines_of_another_shape_do_no_harm(tmp_path: Path, said: str) -> None:
    events, result = Played(tmp_path, said + line("text", 1, text="hi") + line("step_start", 2) + finish("stop")).run()
    assert (result.ok, result.text) == (True, "hi")
    assert all(code == errors.CLI_WARNING for _, code in error_messages(events))


def test_many_threads_can_use_one_instance(tmp_path: Path) -> None:
    runtime = Played(tmp_path, *transcript("tools")).runtime
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(runtime.run("hi").text)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == ["Wait.Done."] * 4


# --- how it is started ----------------------------------------------------------------------------------------------

PLAIN = line("text", 1, text="hi") + finish("stop")


def test_the_prompt_goes_to_stdin_and_no_value_can_become_a_flag(tmp_path: Path) -> None:
    played = Played(tmp_path, PLAIN)
    picture = tmp_path / "-f picture.png"
    picture.write_bytes(b"x")
    fields = {"model": "--auto", "session_id": "ses_--auto", "images": [picture], "working_directory": tmp_path}
    played.run("--help\n", **fields, extra_args=["--variant", "high"])
    assert played.started["stdin"] == "--help\n"
    assert played.started["argv"] == [
        "run",
        f"--file={picture}",
        f"--dir={tmp_path}",
        "--model=--auto",
        "--session=ses_--auto",
        "--thinking",
        "--format=json",
        "--variant",
        "high",
    ]


def test_a_byte_order_mark_at_the_beginning_survives(tmp_path: Path) -> None:
    played = Played(tmp_path, PLAIN)
    played.run("\ufeffhi")
    assert played.started["stdin"] == "\ufeff\ufeffhi"


def test_the_model_is_not_asked_for_the_title_of_a_new_session_unless_the_caller_wants_that() -> None:
    """An empty title counts as a title, so OpenCode does not ask for one (tests/real_clis/test_opencode.py counts
    requests)."""

    def arguments(params: AgentExecuteParams, **options: Any) -> list[str]:
        return OpenCodeCliRuntime(**options).build_args(params)

    new = AgentExecuteParams("hi")
    assert "--title=" in arguments(new)
    assert "--title=" not in arguments(new, generate_title=True)
    assert "--title=" not in arguments(AgentExecuteParams("hi", extra_args=["--title", "mine"]))
    assert "--title=" not in arguments(AgentExecuteParams("hi", session_id=SESSION))


@pytest.mark.parametrize("mode", ["default", "read-only", "accept-edits", "bypass"])
def test_only_bypass_lets_everything_pass(mode: Any) -> None:
    assert ("--auto" in OpenCodeCliRuntime().build_args(AgentExecuteParams("hi", permission_mode=mode))) == (
        mode == "bypass"
    )


def test_the_default_mode_changes_no_setting() -> None:
    env = OpenCodeCliRuntime().build_env(AgentExecuteParams("hi"))
    assert "OPENCODE_CONFIG_CONTENT" not in env
    assert "OPENCODE_PERMISSION" not in env


def test_read_only_is_merged_over_the_settings_of_host_and_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENCODE_PERMISSION", '{"webfetch": "deny", "edit": "allow", "*": "allow"}')
    config = '{"model": "a/b", /* mine */ "agent": {"build": {"permission": {"edit": "allow"}, "steps": 3}},}'
    played = Played(tmp_path, PLAIN)
    played.run(permission_mode="read-only", env={"OPENCODE_CONFIG_CONTENT": config})
    env = played.started["env"]
    rules = json.loads(env["OPENCODE_PERMISSION"])
    # The last matching rule wins, so ours must come after the user's.
    assert list(rules)[:3] == ["webfetch", "edit", "*"]
    assert set(list(rules.items())[3:]) == {("e?it", "deny"), ("bas?", "deny"), ("tas?", "deny")}
    settings = json.loads(env["OPENCODE_CONFIG_CONTENT"])
    assert settings["model"] == "a/b"
    assert settings["agent"]["build"]["steps"] == 3
    assert list(settings["agent"]["build"]["permission"].items())[-1][1] == "deny"
    assert settings["default_agent"] == "build"


@pytest.mark.parametrize("arguments", [["--agent", "mine"], ["--agent=mine"]])
def test_read_only_binds_the_agent_that_the_caller_names(arguments: list[str]) -> None:
    params = AgentExecuteParams("hi", permission_mode="read-only", extra_args=arguments)
    settings = json.loads(OpenCodeCliRuntime().build_env(params)["OPENCODE_CONFIG_CONTENT"] or "")
    assert list(settings["agent"]) == ["mine"]


def test_accept_edits_keeps_what_the_user_denies_by_pattern() -> None:
    params = AgentExecuteParams(
        "hi",
        permission_mode="accept-edits",
        env={"OPENCODE_PERMISSION": '{"edit": {"*": "ask", "secrets/*": "deny"}, "bash": "ask"}'},
    )
    rules = json.loads(OpenCodeCliRuntime().build_env(params)["OPENCODE_PERMISSION"] or "")
    assert rules == {"edit": {"*": "allow", "secrets/*": "deny"}, "bash": "ask"}


@pytest.mark.parametrize("value", ["{broken", "[1]", '"deny"'])
def test_settings_that_cannot_be_merged_stop_a_read_only_run(tmp_path: Path, value: str) -> None:
    played = Played(tmp_path, PLAIN)
    events, result = played.run(permission_mode="read-only", env={"OPENCODE_CONFIG_CONTENT": value})
    ((message, code),) = error_messages(events)
    assert (code, result.error_subtype) == (errors.UNSUPPORTED_OPTION, "config")
    assert "OPENCODE_CONFIG_CONTENT" in message
    assert value not in message
    assert not played.was_started


def test_instructions_are_joined_and_objects_merged_by_key() -> None:
    base: Mapping[str, Any] = {"instructions": ["a.md"], "mcp": {"x": {"enabled": True}}, "model": "a/b"}
    overlay = {"instructions": ["b.md", "a.md"], "mcp": {"y": {}}, "model": "c/d"}
    assert merged(base, overlay) == {
        "instructions": ["a.md", "b.md"],
        "mcp": {"x": {"enabled": True}, "y": {}},
        "model": "c/d",
    }
    once = overlaid("X", json.dumps(base), overlay)
    assert overlaid("X", once, overlay) == once


def test_the_system_prompt_is_a_private_file_that_is_gone_afterwards(tmp_path: Path) -> None:
    runtime = OpenCodeCliRuntime([sys.executable, "-I", "-S", "-c", READS_INSTRUCTIONS], timeout=60.0)
    events, result = finished(runtime.execute("hi", system_prompt="be brief \u2713"))
    path, mode, content = json.loads(result.text)
    assert content == "be brief \u2713"
    assert mode == stat.S_IFREG | 0o600
    assert not os.path.exists(path)
    assert not os.path.exists(os.path.dirname(path))


READS_INSTRUCTIONS = """
import json, os
(path,) = json.loads(os.environ["OPENCODE_CONFIG_CONTENT"])["instructions"]
found = json.dumps([path, os.stat(path).st_mode, open(path, encoding="utf-8").read()])
print(json.dumps({"type": "text", "part": {"id": "1", "text": found}}))
print(json.dumps({"type": "step_finish", "part": {"id": "2", "reason": "stop"}}))
"""


def test_an_image_that_is_no_file_is_refused_when_the_call_is_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"images\[0\]"):
        OpenCodeCliRuntime().execute("hi", images=[tmp_path / "missing.png"])


def test_the_variables_of_an_outer_opencode_are_not_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENCODE", "OPENCODE_PID", "OPENCODE_CLIENT", "OPENCODE_WORKSPACE_ID", "OPENCODE_TERMINAL"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("OPENCODE_API_KEY", "mine")
    played = Played(tmp_path, PLAIN)
    played.run()
    left = {name for name in played.started["env"] if name.startswith("OPENCODE")}
    assert left == {"OPENCODE_API_KEY", "OPENCODE_PRINT_LOGS", "OPENCODE_LOG_LEVEL"}


# --- resuming ---------------------------------------------------------------------------------------------------------


def store(home: Path, path: str = ".local/share/opencode/opencode.db") -> Any:
    """OpenCode's database of sessions, as far as we read it; use it in a `with`."""
    file = home / path
    file.parent.mkdir(parents=True, exist_ok=True)
    return _Store(file)


class _Store:
    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> sqlite3.Connection:
        self._database = sqlite3.connect(self._file)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("CREATE TABLE IF NOT EXISTS session (id TEXT PRIMARY KEY, directory TEXT NOT NULL)")
        self._database.execute("CREATE TABLE IF NOT EXISTS message (id TEXT PRIMARY KEY, data TEXT NOT NULL)")
        self._database.execute("CREATE TABLE IF NOT EXISTS part (id TEXT PRIMARY KEY, message_id TEXT, data TEXT)")
        return self._database

    def __exit__(self, *failure: object) -> None:
        self._database.commit()
        self._database.close()


@pytest.fixture
def begun_in(home: Path, tmp_path: Path) -> Path:
    """The folder in which the session was started."""
    folder = tmp_path / "begun here"
    folder.mkdir()
    with store(home) as database:
        database.execute("INSERT INTO session VALUES (?, ?)", (SESSION, str(folder)))
    return folder


def test_a_session_is_continued_in_its_own_folder(tmp_path: Path, begun_in: Path) -> None:
    played = Played(tmp_path, PLAIN)
    _, result = played.run(session_id=SESSION)
    assert result.ok
    started = played.started
    assert (started["cwd"], started["env"]["PWD"]) == (str(begun_in), str(begun_in))
    assert f"--dir={begun_in}" in started["argv"]


@pytest.mark.parametrize("name", ["other", "begun here/below"])
def test_a_session_of_another_folder_than_the_caller_names_is_an_error_at_once(
    tmp_path: Path, begun_in: Path, name: str
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    played = Played(tmp_path, PLAIN)
    events, result = played.run(session_id=SESSION, working_directory=folder)
    ((message, code),) = error_messages(events)
    assert (code, result.error_subtype) == (errors.SESSION_NOT_FOUND, "session_not_found")
    assert str(begun_in) in message
    assert not played.was_started


def test_another_way_to_the_same_folder_is_the_same_folder(tmp_path: Path, begun_in: Path) -> None:
    (tmp_path / "link").symlink_to(begun_in)
    _, result = Played(tmp_path, PLAIN).run(session_id=SESSION, working_directory=tmp_path / "link")
    assert result.ok


def test_a_session_whose_folder_is_gone_says_so(tmp_path: Path, begun_in: Path) -> None:
    begun_in.rmdir()
    events, result = Played(tmp_path, PLAIN).run(session_id=SESSION)
    ((message, code),) = error_messages(events)
    assert (code, result.error_subtype) == (errors.WORKING_DIRECTORY_NOT_FOUND, "config")
    assert str(begun_in) in message


@pytest.mark.parametrize("content", [b"", b"this is no database" * 100, None])
def test_a_store_that_cannot_be_read_is_no_obstacle(tmp_path: Path, home: Path, content: bytes | None) -> None:
    file = home / ".local/share/opencode/opencode.db"
    file.parent.mkdir(parents=True)
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    played = Played(tmp_path, PLAIN)
    _, result = played.run(session_id=SESSION, working_directory=tmp_path)
    assert result.ok
    assert played.started["cwd"] == str(tmp_path)


@pytest.mark.parametrize(
    ("path", "variables"),
    [
        ("data/opencode/opencode.db", {"XDG_DATA_HOME": "{home}/data"}),
        (".local/share/opencode/mine.db", {"OPENCODE_DB": "mine.db"}),
        ("there.db", {"OPENCODE_DB": "{home}/there.db"}),
        (".local/share/opencode/opencode-dev.db", {}),
        (".local/share/opencode/opencode.db", {"XDG_DATA_HOME": ""}),
    ],
)
def test_the_store_is_where_the_environment_puts_it(home: Path, path: str, variables: dict[str, str]) -> None:
    with store(home, path) as database:
        database.execute("INSERT INTO session VALUES ('ses_1', '/work')")
    env = {"HOME": str(home), **{name: value.format(home=home) for name, value in variables.items()}}
    assert SessionStore(env).directory_of("ses_1") == "/work"
    assert SessionStore(env).directory_of("ses_2") is None
    assert SessionStore({**env, "OPENCODE_DB": ":memory:"}).directory_of("ses_1") is None


def test_looking_into_the_store_leaves_no_file_and_sees_what_a_running_opencode_has_written(home: Path) -> None:
    with store(home) as database:
        database.execute("INSERT INTO session VALUES ('ses_1', '/work')")
        database.commit()  # Still in the log file next to it.
        assert SessionStore(os.environ).directory_of("ses_1") == "/work"
    before = sorted(path.name for path in (home / ".local/share/opencode").iterdir())
    assert SessionStore(os.environ).directory_of("ses_1") == "/work"
    assert sorted(path.name for path in (home / ".local/share/opencode").iterdir()) == before


# --- silence ----------------------------------------------------------------------------------------------------------

SILENT_STEP = """
import json, sys, time
print(json.dumps({"type": "step_start", "part": {"id": "1", "messageID": "msg_1"}}), flush=True)
time.sleep(2.0)
print(json.dumps({"type": "step_finish", "part": {"id": "2", "reason": "stop"}}), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("status", "subtype"), [("running", None), ("completed", "timeout")])
def test_while_a_tool_runs_silence_may_last_longer(home: Path, status: str, subtype: str | None) -> None:
    """OpenCode 1.18.33 prints a tool call only once it has ended; that it is running can be seen only in its store."""
    part = json.dumps({"type": "tool", "tool": "bash", "state": {"status": status}})
    with store(home) as database:
        database.execute("INSERT INTO part VALUES ('prt_1', 'msg_1', ?)", (part,))
    runtime = OpenCodeCliRuntime([sys.executable, "-I", "-S", "-c", SILENT_STEP], timeout=1.0, tool_timeout=60.0)
    _, result = finished(runtime.execute("hi"))
    assert result.error_subtype == subtype


# --- stderr -----------------------------------------------------------------------------------------------------------


def test_a_config_dump_whose_beginning_is_lost_is_left_out_all_the_same() -> None:
    tail = f'"apiKey": "{SECRET}"\n--- Errors ---\nX at line 1, column 2\n   Line 1: {SECRET}\n--- End ---\nafter'
    assert SECRET not in opencode_stderr.without_secrets(tail)
    assert opencode_stderr.without_secrets(tail).endswith("after")


def test_a_config_dump_whose_end_is_missing_is_left_out_all_the_same() -> None:
    head = f"Error: Config file at x is not valid JSON(C): \n--- JSONC Input ---\n{SECRET}"
    assert SECRET not in opencode_stderr.without_secrets(head)
    assert opencode_stderr.failure(head) == "Config file at x is not valid JSON(C)"


def test_an_unexpected_error_keeps_its_cause_and_loses_its_colours() -> None:
    assert (
        opencode_stderr.failure("\x1b[91m\x1b[1mError: \x1b[0mUnexpected error\n\nno space left\n") == "no space left"
    )


def test_a_first_run_that_lost_the_race_for_the_database_is_started_again(tmp_path: Path) -> None:
    """Seen with eight simultaneous first runs in a fresh home (1.18.33)."""
    cli = tmp_path / "opencode"
    lines = (TRANSCRIPTS / "plain.ndjson").read_text()
    cli.write_text(
        f"#!/bin/sh\ncd {tmp_path}\n"
        "if mkdir made 2>/dev/null; then echo 'Error: Failed query: CREATE TABLE `session` (' >&2; exit 1; fi\n"
        f"cat <<'END'\n{lines}END\n"
    )
    cli.chmod(0o755)
    events, result = finished(OpenCodeCliRuntime(str(cli)).execute("hi", working_directory=tmp_path))
    assert result.ok
    warnings = [event for event in events if isinstance(event, AgentErrorEvent)]
    assert [warning.code for warning in warnings] == [errors.CLI_WARNING]


@pytest.mark.parametrize(
    ("notice", "params", "words"),
    [
        ("ready", {"version": "1.2.6"}, "need OpenCode 1.2.11 or newer, and this is 1.2.6"),
        ("failed", {"version": "1.0.185", "reason": "its server lets in anybody"}, "and this is 1.0.185"),
        ("failed", {"version": "2.0.15", "reason": ""}, "OpenCode 2"),
        ("failed", {"version": "1.18.33", "reason": "its server lets in anybody"}, "lets in anybody"),
    ],
)
def test_a_server_that_cannot_serve_a_live_session_is_told_why(notice: str, params: Any, words: str) -> None:
    dialect = OpenCodeLiveDialect()
    dialect.begin_turn(AgentExecuteParams(prompt="hello"))
    (error,) = each_of(dialect.read({"method": notice, "params": params}))
    assert isinstance(error, AgentErrorEvent)
    assert words in error.message
    is_a_matter_of_age = params["version"] != "1.18.33"
    assert (error.code == errors.UNSUPPORTED_OPTION) is is_a_matter_of_age
    assert [json.loads(line)["method"] for line in b"".join(dialect.outbox).splitlines()] == ["END"]


class Server:
    """An OpenCode server whose answers and events arrive when the test says so."""

    def __init__(self) -> None:
        self.dialect = OpenCodeLiveDialect()
        self.dialect.settings = SessionSettings(directory="/project")
        self.asked: list[Any] = []  # Requests that it has received but not answered.
        self.told: list[Any] = []
        self.prompts = 0

    def begin(self) -> None:
        self.prompts += 1
        self._hear(self.dialect.begin_turn(AgentExecuteParams(prompt="hello")))

    def answer(self, method: str, body: Any, status: int = 200) -> Any:
        request = next(request for request in self.asked if request["method"].startswith(method))
        self.asked.remove(request)
        self._say({"id": request["id"], "result": {"status": status, "body": body}})
        return request["params"].get("body")

    def begin_session(self) -> None:
        self.begin()
        self.ready()
        self.answer("GET /session/status", {})
        self.answer("POST /session", {"id": "ses_1"})

    def is_asked(self, method: str) -> bool:
        return any(request["method"].startswith(method) for request in self.asked)

    def call(self, name: str, tool: str, status: str = "running") -> None:
        state = {"status": status, "input": {"for": name}}
        part = {"id": f"prt_{name}", "sessionID": "ses_1", "messageID": "msg_1", "type": "tool", "state": state}
        self.event("message.part.updated", part={**part, "tool": tool, "callID": name})

    def ask_about(self, name: str, permission: str) -> PermissionRequest:
        self.event("permission.asked", id=f"per_{name}", permission=permission, tool={"callID": name})
        assert isinstance(self.told[-1], AgentPermissionEvent)
        return self.told[-1].request

    def decide(self, request: PermissionRequest, decision: Allow | Deny) -> None:
        self._hear(self.dialect.answer(request, decision))

    def event(self, kind: str, **properties: Any) -> None:
        self._say({"payload": {"type": kind, "properties": {"sessionID": "ses_1", **properties}}})

    def ready(self) -> None:
        self._say({"method": "ready", "params": {"version": "1.18.33"}})

    def _say(self, message: Any) -> None:
        self.told += each_of(self.dialect.read({"jsonrpc": "2.0", **message}))
        self._hear(b"".join(self.dialect.outbox))
        self.dialect.outbox.clear()

    def _hear(self, data: bytes | None) -> None:
        self.asked += [json.loads(line) for line in (data or b"").splitlines()]


def test_an_error_whose_event_comes_late_is_waited_for_and_is_not_one_of_the_next_turn() -> None:
    server = Server()
    server.begin_session()
    failure = {"name": "APIError", "data": {"message": "scripted failure", "statusCode": 400}}
    answer = {"id": "msg_1", "sessionID": "ses_1", "role": "assistant", "error": failure}
    server.event("message.updated", info=answer)
    server.answer("POST /session/ses_1/message", {"info": answer})
    server.answer("WAIT", None)
    assert server.dialect.outcome.terminal is None
    server.event("session.error", error=failure)
    server.event("session.idle")
    assert server.dialect.outcome.terminal == "failure"
    assert [event.message for event in server.told] == ["scripted failure"]
    server.begin()
    good = {"id": "msg_2", "sessionID": "ses_1", "role": "assistant"}
    server.event("message.updated", info=good)
    server.answer("POST /session/ses_1/message", {"info": good})
    server.event("session.idle")
    assert server.dialect.outcome.terminal == "success"


ANSWERED_WITH_CALLS = {"id": "msg_1", "sessionID": "ses_1", "role": "assistant", "finish": "tool-calls"}


def asked_about_an_edit_beside_a_shell() -> tuple[Server, PermissionRequest]:
    """The model has called both. The shell takes its time to ask for permission."""
    server = Server()
    server.begin_session()
    server.event("message.updated", info=ANSWERED_WITH_CALLS)
    server.call("edit", "write")
    server.call("shell", "bash")
    return server, server.ask_about("edit", "edit")


def test_a_no_waits_for_the_call_beside_it_to_ask_which_opencode_would_refuse_along_with_it() -> None:
    server, edit = asked_about_an_edit_beside_a_shell()
    server.decide(edit, Deny("No edits."))
    server.answer("WAIT", None)
    assert not server.is_asked("POST /permission")
    server.decide(server.ask_about("shell", "bash"), Allow())
    assert server.answer("POST /permission/per_shell/reply", True) == {"reply": "once"}
    refusal = server.answer("POST /permission/per_edit/reply", True)
    assert refusal == {"reply": "reject", "message": "No edits."}


@pytest.mark.parametrize("by_itself", [False, True])
def test_a_no_does_not_wait_for_a_call_that_ends_without_asking_or_not_at_all(by_itself: bool) -> None:
    server, edit = asked_about_an_edit_beside_a_shell()
    server.decide(edit, Deny("No edits."))
    if by_itself:
        server.call("shell", "bash", "completed")
    else:
        server.answer("WAIT", None)
        server.answer("WAIT", None)  # Now its patience is over.
    assert server.is_asked("POST /permission/per_edit/reply")


@pytest.mark.parametrize(
    ("decision", "reason", "codes"),
    [(Allow(), "Make it again if it is still needed.", ["CLI_WARNING"]), (Deny("No shells."), "No shells.", [])],
)
def test_the_model_is_told_of_a_call_that_was_refused_along_with_another(
    decision: Allow | Deny, reason: str, codes: list[str]
) -> None:
    """In this case OpenCode ends the turn as if all were well."""
    server, edit = asked_about_an_edit_beside_a_shell()
    server.decide(edit, Deny("No edits."))
    server.answer("WAIT", None)
    server.answer("WAIT", None)
    server.decide(server.ask_about("shell", "bash"), decision)
    while server.is_asked("WAIT"):
        server.answer("WAIT", None)
    server.answer("POST /permission/per_shell/reply", {"_tag": "PermissionNotFoundError"}, status=404)
    assert [event.code for event in server.told if isinstance(event, AgentErrorEvent)] == codes
    server.call("edit", "write", "error")
    server.call("shell", "bash", "error")
    server.answer("POST /session/ses_1/message", {"info": ANSWERED_WITH_CALLS})
    server.event("session.idle")
    assert server.dialect.outcome.terminal is None
    (part,) = server.answer("POST /session/ses_1/message", {"info": {**ANSWERED_WITH_CALLS, "finish": "stop"}})["parts"]
    assert part["text"].startswith("These were refused:\n- bash: ")
    assert part["text"].endswith(reason)


def test_our_own_clock_is_no_life_of_the_agents() -> None:
    """A timer left over from the turn before would let a silent model live five seconds longer."""
    dialect = OpenCodeLiveDialect()
    assert dialect.is_life(answer_line(7, 200, JSON_TYPE, b"true"))
    assert not dialect.is_life(rung_line(7))
