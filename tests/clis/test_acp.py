"""Agents that speak ACP: what they receive, and what their messages mean. The other side is a fake."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import (
    AcpRuntime,
    AgentErrorEvent,
    AgentPermissionEvent,
    AgentSession,
    AgentTextEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    AgentUsage,
    Allow,
    Budget,
    Deny,
    McpServerConfig,
    PermissionRequest,
    ReplayRuntime,
    UnsupportedOperationError,
    create_cli_runtime,
)
from remoteclaw_sync.clis.acp.profiles import KNOWN, UNKNOWN, profile_of
from remoteclaw_sync.clis.acp.prompt import blocks
from remoteclaw_sync.engine.live_session import INTERRUPT_PATIENCE
from tests.engine.live import heard_by, starts, steps
from tests.fakes import codes, finished, wait_until

FAKE = Path(__file__).parents[1] / "live_acp.py"
CALL = {"toolCallId": "run__run_1794968520227_0", "title": "ls -l", "kind": "execute", "status": "pending"}
KINDS = ["allow_always", "allow_once", "reject_once"]
ASK = ["ask", CALL, KINDS]


def runtime(folder: Path, profile: str | None = None, **options: Any) -> AcpRuntime:
    command = [sys.executable, "-I", "-S", str(FAKE), str(folder)]
    return AcpRuntime(command, **{"timeout": 60.0, "profile": profile, **options})


def opened(folder: Path, profile: str | None = None, agent: Any = None, **fields: Any) -> AgentSession:
    """A session with an agent of this profile, which says this instead of its usual answers."""
    env = {"HOME": str(folder), **({} if agent is None else {"FAKE_AGENT": json.dumps(agent)})}
    return runtime(folder, profile).open_session(working_directory=folder, env=env, **fields)


def sent(folder: Path, method: str) -> list[dict[str, Any]]:
    """The params of all requests with this method."""
    return [line.get("params", {}) for line in heard_by(folder) if line.get("method") == method]


def update(kind: str, /, **fields: Any) -> list[Any]:
    return ["update", kind, fields]


def uses(events: list[Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(one.tool_id, one.tool_name, dict(one.input)) for one in events if isinstance(one, AgentToolUseEvent)]


def results(events: list[Any]) -> list[tuple[str, str, bool]]:
    return [(one.tool_id, one.output, one.is_error) for one in events if isinstance(one, AgentToolResultEvent)]


# --- a session ------------------------------------------------------------------------------------------------------


def test_turns_are_served_by_one_process_and_a_run_is_a_session_of_one_turn(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        events, one = finished(session.execute(steps(["text", "Hel"], ["text", "lo"])))
        pid = session.pid
        two = session.run("second")
        assert session.pid == pid is not None
    assert [event.text for event in events if isinstance(event, AgentTextEvent)] == ["Hel", "lo"]
    assert (one.ok, two.text, one.session_id) == (True, "re: second", session.session_id)
    single = runtime(tmp_path).run("third", working_directory=tmp_path)
    assert (single.text, single.stop_reason) == ("re: third", "end_turn")
    (hello, _) = sent(tmp_path, "initialize")
    assert hello["protocolVersion"] == 1
    assert hello["clientCapabilities"] == {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
    assert sent(tmp_path, "authenticate") == []


def test_a_session_is_given_its_folder_servers_mode_and_model_and_nothing_of_it_in_arguments(tmp_path: Path) -> None:
    servers = {
        "lab": McpServerConfig("server", ("a",), {"TOKEN": "secret"}),
        "web": McpServerConfig(url="http://localhost/mcp"),
    }
    fields: Any = {"mcp_servers": servers, "permission_mode": "bypass", "model": "big", "system_prompt": "be brief"}
    with opened(tmp_path, **fields) as session:
        events, result = finished(session.execute(steps(["settings"])))
        assert json.loads(result.text) == {"mode": "yolo", "model": "big"}
        assert codes(events) == ["MCP_SERVER_FAILED"]  # The agent does not accept URLs.
        assert session.run("again").text == "re: again"
        session.set_model(None)
        session.set_permission_mode("read-only")
        assert json.loads(session.run(steps(["settings"])).text) == {"mode": "plan", "model": "own-model"}
    (new,) = sent(tmp_path, "session/new")
    entry = {"name": "lab", "command": "server", "args": ["a"], "env": [{"name": "TOKEN", "value": "secret"}]}
    assert new == {"cwd": str(tmp_path), "mcpServers": [entry]}
    first, second, _ = sent(tmp_path, "session/prompt")
    assert "be brief" in first["prompt"][0]["text"]
    assert len(second["prompt"]) == 1
    (start,) = starts(tmp_path)
    assert "secret" not in " ".join(start["argv"])


@pytest.mark.parametrize("profile", [None, "gemini"])
def test_a_session_is_taken_up_without_the_history_that_is_told_again(profile: str | None, tmp_path: Path) -> None:
    agent = {"quirks": ["replays late"] if profile else []}
    with opened(tmp_path, profile, agent) as session:
        session.run("first")
    with opened(tmp_path, profile, agent, session_id=session.session_id) as again:
        events, result = finished(again.execute(steps(["text", "new"], ["answer", {"usage": {"inputTokens": 1}}])))
    assert ([event.type for event in events], result.text) == (["text"], "new")
    assert result.session_id == session.session_id
    assert [given["sessionId"] for given in sent(tmp_path, "session/load")] == [session.session_id]


def test_an_unknown_session_and_an_agent_without_memory_are_errors_that_say_so(tmp_path: Path) -> None:
    with opened(tmp_path, session_id="unknown") as session:
        events, result = finished(session.execute("hello"))
        assert (codes(events), result.error_subtype) == (["SESSION_NOT_FOUND"], "session_not_found")
    forgetful = {"initialize": {"result": {"protocolVersion": 1, "agentCapabilities": {}}}}
    with opened(tmp_path, agent=forgetful, session_id="unknown") as session:
        events, result = finished(session.execute("hello"))
        assert (codes(events), result.error_subtype) == (["UNSUPPORTED_OPTION"], "config")


@pytest.mark.parametrize(
    ("agent", "subtype", "words"),
    [
        ({"initialize": {"result": {"protocolVersion": 2}}}, "config", "version 2 of ACP"),
        ({"session/new": {"error": {"code": -32000, "message": "Who are you?"}}}, "auth", "(it knows: A key)"),
        ({"session/new": {"error": {"code": -32603, "message": "boom"}}}, "unknown", "boom"),
        ({"quirks": ["exits"]}, "config", "before it had answered the handshake of ACP"),
    ],
)
def test_an_agent_that_cannot_be_used_says_why(agent: Any, subtype: str, words: str, tmp_path: Path) -> None:
    with opened(tmp_path, agent=agent) as session:
        for _ in range(2):
            events, result = finished(session.execute("hello"))
            (error,) = (event for event in events if isinstance(event, AgentErrorEvent))
            assert (result.error_subtype, words in error.message) == (subtype, True)


def test_settings_are_made_by_config_options_where_an_agent_has_them(tmp_path: Path) -> None:
    mode = {"id": "m1", "category": "mode", "type": "select", "currentValue": "ask", "options": [{"value": "yolo"}]}
    model = {"id": "m2", "category": "model", "type": "select", "currentValue": "own", "options": []}
    agent = {"session/new": {"result": {"sessionId": "s1", "configOptions": [mode, model]}}}
    with opened(tmp_path, agent=agent, permission_mode="bypass", model="big") as session:
        session.warm()
    asked = [(given["configId"], given["value"]) for given in sent(tmp_path, "session/set_config_option")]
    assert asked == [("m1", "yolo"), ("m2", "big")]


def test_an_agent_that_cannot_be_kept_from_writing_is_not_used_for_reading_only(tmp_path: Path) -> None:
    agent = {"session/new": {"result": {"sessionId": "s1"}}}
    with opened(tmp_path, agent=agent, permission_mode="read-only") as session:
        events, result = finished(session.execute("hello"))
        assert (codes(events), result.error_subtype) == (["UNSUPPORTED_OPTION"], "config")


# --- tool calls -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "pieces", "use", "output"),
    [
        (  # No name and no arguments.
            "gemini",
            [("tool_call", {**CALL, "status": "in_progress"}), ("tool_call_update", {"status": "completed"})],
            ("run", {"command": "ls -l"}),
            "",
        ),
        (  # The arguments arrive bit by bit.
            "opencode",
            [
                ("tool_call", {"title": "bash", "status": "pending", "rawInput": {}}),
                ("tool_call_update", {"title": "List", "status": "in_progress", "rawInput": {"command": "ls"}}),
                ("tool_call_update", {"status": "completed", "rawOutput": {"output": "out"}}),
            ],
            ("bash", {"command": "ls"}),
            "out",
        ),
        (
            "claude-agent-acp",
            [
                ("tool_call", {"title": "x", "rawInput": {}, "_meta": {"claudeCode": {"toolName": "Bash"}}}),
                ("tool_call_update", {"rawInput": {"command": "ls"}}),
                ("tool_call_update", {"status": "completed", "rawOutput": "out"}),
            ],
            ("Bash", {"command": "ls"}),
            "out",
        ),
        (
            "codex-acp",
            [
                ("tool_call", {"name": "shell", "status": "in_progress", "rawInput": {"command": "ls"}}),
                ("tool_call_update", {"_meta": {"terminal_output_delta": {"data": "o"}}}),
                ("tool_call_update", {"status": "completed", "_meta": {"terminal_output_delta": {"data": "ut"}}}),
            ],
            ("shell", {"command": "ls"}),
            "out",
        ),
        (
            "vibe-acp",
            [
                ("tool_call", {"status": "in_progress", "rawInput": {"command": "ls"}, "_meta": {"tool_name": "bash"}}),
                ("tool_call_update", {"status": "completed", "rawOutput": {"stdout": "out", "output": "out"}}),
            ],
            ("bash", {"command": "ls"}),
            "out",
        ),
        (  # An edit, reported as a diff.
            None,
            [
                (
                    "tool_call_update",
                    {"kind": "edit", "status": "completed", "content": [{"type": "diff", "path": "/f"}]},
                ),
            ],
            ("edit", {"file_path": "/f", "content": ""}),
            "",
        ),
    ],
)
def test_a_call_is_put_together_from_what_the_agent_says_of_it(
    profile: str | None, pieces: Any, use: Any, output: str, tmp_path: Path
) -> None:
    name = CALL["toolCallId"]
    told = [update(kind, **{"toolCallId": name, **fields}) for kind, fields in pieces]
    with opened(tmp_path, profile) as session:
        events, result = finished(session.execute(steps(*told, ["text", "Done."])))
    assert [event.type for event in events if event.type != "error"] == ["tool_use", "tool_result", "text"]
    assert uses(events) == [(name, *use)]
    assert results(events) == [(name, output, False)]
    assert result.ok


def test_a_call_without_an_end_is_ended_with_the_turn_and_a_late_word_is_nobodys(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        events, _ = finished(session.execute(steps(update("tool_call", toolCallId="a", title="x"), ["text", "."])))
        assert [event.type for event in events] == ["tool_use", "text", "tool_result"]
        assert results(events)[0][2]
        late = update("tool_call_update", toolCallId="a", status="completed")
        events, _ = finished(session.execute(steps(["text", "Next."], ["settings"], late)))
        assert results(events) == [("a", "", False)]  # In this turn it is another call.


# --- permissions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decision", "option", "warnings"),
    [
        (True, "id_of_allow_once", []),
        (Allow(remember=True), "id_of_allow_once", []),
        (False, "id_of_reject_once", []),
        (Deny("why not"), "id_of_reject_once", ["CLI_WARNING"]),
        (Allow({"command": "other"}), "id_of_reject_once", ["CLI_WARNING"]),
        (Allow({"command": "ls -l"}), "id_of_allow_once", []),
        (None, "id_of_reject_once", []),
    ],
)
def test_a_decision_is_told_by_the_kind_of_the_option_and_never_for_good(
    decision: Any, option: str, warnings: list[str], tmp_path: Path
) -> None:
    with opened(tmp_path, "gemini", approve=lambda request: decision) as session:
        events, result = finished(session.execute(steps(ASK, ["answer", {"usage": {"inputTokens": 1}}])))
    (asked,) = (event.request for event in events if isinstance(event, AgentPermissionEvent))
    assert (asked.tool_name, asked.tool_id, asked.input) == ("run", CALL["toolCallId"], {"command": "ls -l"})
    assert json.loads(result.text) == {"outcome": "selected", "optionId": option}
    is_refused = option == "id_of_reject_once"
    assert [denial.tool for denial in result.permission_denials] == ["run"] * is_refused
    assert [error for _, _, error in results(events)] == [is_refused] or not is_refused
    assert codes(events) == warnings


def test_a_call_ends_with_its_refusal_before_the_agent_says_more(tmp_path: Path) -> None:
    with opened(tmp_path, approve=lambda request: Deny("No.")) as session:
        events, result = finished(session.execute(steps(ASK, ["text", "Pity."])))
        types = [event.type for event in events]
        assert types == ["tool_use", "permission", "tool_result", "error", "text", "text"]
        assert (result.ok, len(result.permission_denials)) == (True, 1)


@pytest.mark.slow
def test_an_agent_that_is_silent_after_a_refusal_is_not_given_the_time_of_a_tool(tmp_path: Path) -> None:
    impatient = runtime(tmp_path, timeout=2.0, tool_timeout=60.0)
    env = {"HOME": str(tmp_path), "FAKE_AGENT": json.dumps({"quirks": ["keeps quiet"]})}
    with impatient.open_session(working_directory=tmp_path, env=env, approve=lambda request: False) as session:
        other = {**CALL, "toolCallId": "other"}  # When it is asked about, all earlier requests have been answered.
        events, result = finished(session.execute(steps(ASK, ["ask", other, KINDS], ["hang"])))
    assert (codes(events), result.error_subtype) == (["WATCHDOG_TIMEOUT"], "timeout")
    assert result.duration_ms < 30_000


def test_a_yes_that_an_agent_would_only_take_for_good_is_not_given(tmp_path: Path) -> None:
    with opened(tmp_path, approve=lambda request: True) as session:
        events, result = finished(session.execute(steps(["ask", CALL, ["allow_always"]])))
    assert json.loads(result.text) == {"outcome": "cancelled"}
    assert (codes(events), len(result.permission_denials)) == (["CLI_WARNING"], 1)


def test_what_is_remembered_is_not_asked_again(tmp_path: Path) -> None:
    asked: list[PermissionRequest] = []

    def approve(request: PermissionRequest) -> Allow:
        asked.append(request)
        return Allow(remember=True)

    other = {**CALL, "title": "rm -r", "toolCallId": "other"}
    again = {**CALL, "toolCallId": "again"}
    with opened(tmp_path, approve=approve) as session:
        session.run(steps(ASK, ["ask", again, KINDS]))
        session.run(steps(["ask", other, KINDS], ASK))
    assert [request.input["command"] for request in asked] == ["ls -l", "rm -r"]


@pytest.mark.parametrize(
    ("mode", "call", "option"),
    [
        ("bypass", CALL, "id_of_allow_once"),
        ("read-only", CALL, "id_of_reject_once"),
        ("read-only", {**CALL, "kind": "switch_mode"}, "id_of_reject_once"),
        ("default", {**CALL, "name": "mcp_lab_echo", "kind": "other"}, "id_of_allow_once"),
    ],
)
def test_some_calls_are_decided_without_asking_anybody(mode: Any, call: Any, option: str, tmp_path: Path) -> None:
    def approve(request: PermissionRequest) -> bool:
        raise AssertionError

    servers = {"lab": McpServerConfig("server")}
    with opened(tmp_path, approve=approve, permission_mode=mode, mcp_servers=servers) as session:
        events, result = finished(session.execute(steps(["ask", call, KINDS])))
    assert json.loads(result.text)["optionId"] == option
    assert [event.type for event in events if event.type == "permission"] == []
    assert len(result.permission_denials) == (option == "id_of_reject_once")


@pytest.mark.parametrize(
    ("servers", "call"),
    [
        ({"run": True}, {**CALL, "name": "run_shell_command"}),
        ({"git": True, "git_admin": False}, {**CALL, "name": "mcp_git_admin_wipe", "kind": "other"}),
    ],
)
def test_a_name_that_only_begins_like_a_trusted_servers_is_asked_about(
    servers: dict[str, bool], call: Any, tmp_path: Path
) -> None:
    given = {name: McpServerConfig("server", trust=trust) for name, trust in servers.items()}
    with opened(tmp_path, "gemini", approve=lambda request: False, mcp_servers=given) as session:
        events, result = finished(session.execute(steps(["ask", call, KINDS])))
    assert json.loads(result.text)["optionId"] == "id_of_reject_once"
    assert [event.type for event in events if event.type == "permission"] == ["permission"]


def test_an_unknown_request_gets_an_error(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        assert session.run(steps(["request", "fs/read_text_file", {"path": "/etc/passwd"}])).text == "-32601"


@pytest.mark.parametrize(
    ("call_id", "name"),
    [
        ("run_shell_command__run_shell_command_1794968520227_0", "run_shell_command"),
        ("run_shell_command__call_1", "run_shell_command"),  # The id comes from the model's API.
        ("run_shell_command__toolu_01__x", "run_shell_command"),
        ("run_shell_command__call-1794968520227", "run_shell_command"),
        ("mcp_a__b_echo__call_1", "mcp_a__b_echo"),
        ("mcp_a_echo-1794968520227", "mcp_a_echo"),
        ("read_file-1794968520227", "read_file"),
    ],
)
def test_the_name_of_geminis_tools_is_in_the_ids_of_their_calls(call_id: str, name: str, tmp_path: Path) -> None:
    call = {**CALL, "toolCallId": call_id, "status": "completed"}
    with opened(tmp_path, "gemini") as session:
        events, _ = finished(session.execute(steps(update("tool_call", **call))))
    assert [tool_name for _, tool_name, _ in uses(events)] == [name]


def test_a_call_with_the_id_of_one_that_has_ended_is_another_call(tmp_path: Path) -> None:
    call = {**CALL, "status": "in_progress"}
    ended = update("tool_call_update", toolCallId=CALL["toolCallId"], status="completed")
    asked: list[PermissionRequest] = []

    def approve(request: PermissionRequest) -> bool:
        asked.append(request)
        return True

    with opened(tmp_path, approve=approve) as session:
        script = [update("tool_call", **call), ended, update("tool_call", **call), ended, ASK, ended, ended]
        events, _ = finished(session.execute(steps(*script)))
    assert (len(uses(events)), len(results(events)), len(asked)) == (3, 3, 1)


# --- limits ---------------------------------------------------------------------------------------------------------


def told_call(number: int, nth: int = 0) -> list[Any]:
    """A call that starts and ends, the nth of a message."""
    call = {**CALL, "toolCallId": f"run__run_{1794968520227 + number}_{nth}"}
    return [
        update("tool_call", **{**call, "status": "in_progress"}),
        update("tool_call", **{**call, "status": "completed"}),
    ]


ENDLESS = [*told_call(1), ["text", "two"], *told_call(2), ["text", "three"], *told_call(3), ["hang"]]
SILENT = [*told_call(1), *told_call(2), *told_call(3), ["hang"]]
TOGETHER = [*told_call(1), *told_call(1, 1), *told_call(1, 2), ["text", "done"]]


@pytest.mark.parametrize("profile", [None, "gemini"])
@pytest.mark.parametrize(
    ("script", "limits"), [(ENDLESS, {"max_turns": 2}), (SILENT, {"max_turns": 2}), (ENDLESS, {"max_tool_calls": 2})]
)
def test_a_turn_is_ended_by_its_limits_and_the_next_one_has_its_own(
    profile: str | None, script: list[Any], limits: Any, tmp_path: Path
) -> None:
    with opened(tmp_path, profile) as session:
        events, result = finished(session.execute(steps(*script), **limits))
        assert (codes(events), result.error_subtype) == (["LIMIT_EXCEEDED"], "limit")
        pid = session.pid
        assert session.run("more", max_turns=1, max_tool_calls=1).text == "re: more"
        assert session.pid == pid is not None


def test_calls_that_are_made_one_after_the_other_may_be_of_one_message(tmp_path: Path) -> None:
    with opened(tmp_path, "gemini") as session:
        assert session.run(steps(*TOGETHER), max_turns=2, max_tool_calls=3).text == "done"


def test_a_thought_without_a_subject_is_told_without_the_place_for_it(tmp_path: Path) -> None:
    thought = update("agent_thought_chunk", content={"type": "text", "text": "****\nHm."})
    with opened(tmp_path, "gemini") as session:
        events, _ = finished(session.execute(steps(thought, ["text", "x"])))
    assert [event.text for event in events if event.type == "thinking"] == ["Hm."]


# --- interrupts -----------------------------------------------------------------------------------------------------


def test_an_interrupt_keeps_the_process_and_answers_what_was_asked(tmp_path: Path) -> None:
    aborts: list[Any] = []

    def approve(request: PermissionRequest) -> bool:
        aborts[-1]()
        return True

    agent = {"quirks": ["ends cancelled turns well"]}
    with opened(tmp_path, agent=agent, approve=approve) as session:
        session.warm()
        pid = session.pid
        for prompt in (steps(["text", "x"], ["hang"]), steps(ASK)):
            with session.start(prompt) as run:
                aborts.append(run.abort)
                for event in run:
                    if event.type == "text":
                        run.abort()
                assert run.result is not None
                assert (run.result.aborted, run.result.error_subtype) == (True, "aborted")
        assert session.run("still there?").text == "re: still there?"
        assert session.pid == pid
    (late,) = tmp_path.glob("*.late")
    assert json.loads(late.read_text())["result"] == {"outcome": {"outcome": "cancelled"}}


def test_further_words_need_an_interrupt_and_take_the_forgotten_ones_along(tmp_path: Path) -> None:
    with opened(tmp_path, "gemini") as session:
        with session.start(steps(["text", "One."], ["hang"])) as run:
            for event in run:
                if event.type == "text" and event.text == "One.":
                    with pytest.raises(UnsupportedOperationError):
                        run.steer("more")
                    run.steer("more", interrupt=True)
        assert run.result is not None
        assert run.result.ok
    first, second = sent(tmp_path, "session/prompt")
    assert [block["text"] for block in second["prompt"]] == [first["prompt"][0]["text"], "more"]


@pytest.mark.slow
@pytest.mark.parametrize("profile", [None, "gemini"])  # With its own process, and with a shared one.
@pytest.mark.parametrize("is_steered", [False, True])
def test_a_consumer_who_is_late_to_hear_of_an_obeyed_interrupt_does_not_cost_the_process(
    profile: str | None, is_steered: bool, tmp_path: Path
) -> None:
    with opened(tmp_path, profile) as session:
        session.warm()
        pid = session.pid
        with session.start(steps(["text", "One."], ["hang"])) as run:
            for event in run:
                if event.type == "text" and event.text == "One.":
                    if is_steered:
                        run.steer("more", interrupt=True)
                    else:
                        run.abort()
                    time.sleep(INTERRUPT_PATIENCE + 1.0)
        assert run.result is not None
        assert (run.result.ok, run.result.aborted) == (is_steered, not is_steered)
        assert run.result.text.endswith("more") == is_steered
        assert session.pid == pid


@pytest.mark.slow
def test_an_interrupt_that_is_not_obeyed_ends_the_process_though_nobody_listens(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        with session.start(steps(["deafen"], ["text", "One."], ["hang"])) as run:
            for event in run:
                if event.type == "text":
                    run.abort()
                    assert wait_until(lambda: session.pid is None)
        assert run.result is not None
        assert run.result.aborted


@pytest.mark.parametrize(("profile", "hang"), [("codex-acp", ["hang"]), ("vibe-acp", ["hang", "a"])])
def test_a_shell_that_an_agent_leaves_running_is_ended_with_its_process(
    profile: str, hang: list[Any], tmp_path: Path
) -> None:
    running = update("tool_call", toolCallId="a", kind="execute", status="in_progress")
    with opened(tmp_path, profile) as session:
        with session.start(steps(running, hang)) as run:
            for event in run:
                if event.type == "tool_use":
                    run.abort()
        assert session.pid is None
        assert session.run("next").text == "re: next"


def test_a_shell_whose_turn_is_interrupted_twice_is_ended_with_its_process_too(tmp_path: Path) -> None:
    running = update("tool_call", toolCallId="a", kind="execute", status="in_progress")
    with opened(tmp_path, "vibe-acp") as session:
        with session.start(steps(running, ["hang", "a", True])) as run:
            for event in run:
                if event.type == "tool_use":
                    run.steer("more", interrupt=True)
                elif event.type == "tool_result":
                    run.abort()
        assert session.pid is None


def test_a_process_that_dies_in_a_turn_fails_it_and_the_next_one_takes_up_the_session(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        session.run("first")
        name, first = session.session_id, session.pid
        result = session.run(steps(["text", "x"], ["exit"]), check=False)
        assert (result.ok, result.error_subtype) == (False, "crash")
        assert session.run("third").session_id == name
        assert session.pid != first


def test_a_turn_that_an_agent_has_begun_without_a_word_is_not_begun_again_when_it_dies(tmp_path: Path) -> None:
    prompt = steps(["request", "unknown/method", {}], ["exit"])  # The answer arrives after everything before it.
    with opened(tmp_path) as session:
        session.run("first")
        assert session.run(prompt, check=False).error_subtype == "crash"
        asked = [given["prompt"][-1]["text"] for given in sent(tmp_path, "session/prompt")]
        assert asked == ["first", prompt]
        assert session.run("third").ok


# --- how a turn ends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "answer", "subtype"),
    [
        (None, {"stopReason": "end_turn"}, None),
        (None, {"stopReason": "max_turn_requests"}, "max_turns"),
        (None, {"stopReason": "max_tokens"}, "incomplete"),
        ("gemini", {"stopReason": "max_tokens"}, "context_window"),
        (None, {"stopReason": "cancelled"}, "incomplete"),
        (None, {"stopReason": "refusal"}, "unknown"),
        (None, {"stopReason": "something new"}, "unknown"),
    ],
)
def test_only_an_end_of_turn_is_a_success(profile: str | None, answer: Any, subtype: Any, tmp_path: Path) -> None:
    with opened(tmp_path, profile) as session:
        result = session.run(steps(["text", "x"], ["answer", answer]), check=False)
        assert (result.error_subtype, result.stop_reason) == (subtype, answer["stopReason"])


@pytest.mark.parametrize(
    "said", [update("agent_thought_chunk", content={"type": "text", "text": "hm"}), ["text", "  \n"]]
)
def test_an_end_of_turn_without_a_word_is_none(said: list[Any], tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        result = session.run(steps(said), check=False)
        assert result.error_subtype == "incomplete"


def test_an_answer_without_usage_was_cut_where_usage_is_certain(tmp_path: Path) -> None:
    used = ["answer", {"_meta": {"quota": {"token_count": {"input_tokens": 2, "output_tokens": 3}}}}]
    with opened(tmp_path, "gemini") as session:
        events, first = finished(session.execute("first"))
        assert (first.ok, codes(events)) == (True, ["CLI_WARNING"])  # Perhaps it never reports usage.
        assert session.run(steps(["text", "[MODE_UPDATE] yolo"], ["text", "x"], used)).text == "x"
        assert session.run("third", check=False).error_subtype == "incomplete"


def test_usage_is_found_wherever_it_is_and_costs_are_those_of_the_turn(tmp_path: Path) -> None:
    def cost(amount: float) -> list[Any]:
        return update("usage_update", used=1, size=2, cost={"amount": amount, "currency": "USD"})

    in_result = ["answer", {"usage": {"inputTokens": 5, "outputTokens": 6, "cachedReadTokens": 7}}]
    in_chunk = update("agent_message_chunk", content={"type": "text", "text": ""}, _meta={"usage": {"inputTokens": 8}})
    with opened(tmp_path) as session:
        one = session.run(steps(["text", "x"], cost(0.5), in_result))
        two = session.run(steps(["text", "x"], in_chunk, cost(0.75)))
        three = session.run("x")
    assert (one.usage, two.usage, three.usage) == (AgentUsage(5, 6, 7), AgentUsage(8, 0), None)
    assert (one.total_cost_usd, two.total_cost_usd, three.total_cost_usd) == (0.5, 0.25, None)


def test_usage_is_that_of_the_turn_where_the_agent_counts_for_the_session(tmp_path: Path) -> None:
    def total(tokens: int) -> list[Any]:
        return ["answer", {"usage": {"inputTokens": tokens, "outputTokens": tokens // 2}}]

    with opened(tmp_path, "vibe-acp") as session:
        one = session.run(steps(["text", "x"], total(10)))
        late = update(
            "usage_update", _meta={"promptTokens": 30, "completionTokens": 15}
        )  # This sometimes arrives between two turns.
        two = session.run(steps(late, ["text", "x"], total(30)))
        session.run(steps(["fail", {"code": -32603, "message": "No."}]), check=False)  # It reports no usage.
        three = session.run(steps(["text", "x"], total(40)))
    assert [turn.usage for turn in (one, two, three)] == [AgentUsage(10, 5), AgentUsage(20, 10), AgentUsage(10, 5)]
    told_at_start = {"quirks": ["tells usage"]}
    with opened(tmp_path, "vibe-acp", agent=told_at_start, session_id=session.session_id) as again:
        assert again.run(steps(["text", "x"], total(60))).usage == AgentUsage(20, 10)


def test_a_turn_that_is_aborted_after_further_words_has_the_usage_of_both_parts(tmp_path: Path) -> None:
    used = ["answer", {"usage": {"inputTokens": 10, "outputTokens": 5}}]
    budget = Budget(max_tokens=1000)
    with opened(tmp_path) as session:
        with session.start(steps(used, ["text", "One."], ["hang"]), budget=budget) as run:
            for event in run:
                if event.type == "text" and event.text == "One.":
                    run.steer(steps(used, ["text", "Two."], ["hang"]), interrupt=True)
                elif event.type == "text" and event.text == "Two.":
                    run.abort()
        assert run.result is not None
    assert (run.result.aborted, run.result.usage) == (True, AgentUsage(20, 10))
    assert budget.spent.tokens == 30


def test_an_error_is_told_once_with_its_kind_and_the_session_goes_on(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        events, result = finished(session.execute(steps(["fail", {"code": 429, "message": "Slow down"}])))
        assert (codes(events), result.error_subtype) == (["CLI_ERROR"], "rate_limit")
        assert session.run("next").text == "re: next"


# --- prompts, profiles, processes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "prompt", "said"),
    [
        ("gemini", "/help", ["\u200b", "/help"]),
        ("gemini", " $help me", ["\u200b", " $help me"]),
        ("gemini", "\ufeff/init", ["\u200b", "\ufeff/init"]),
        ("gemini", "/etc/hosts is what?", ["/etc/hosts is what?"]),
        ("gemini", "@file", ["@file"]),
        ("codex-acp", "/help", ["/help"]),
        ("claude-agent-acp", "see @file, a@b.c", ["see @\u200bfile, a@b.c"]),
        ("claude-agent-acp", "/help", ["\u200b/help"]),
        ("opencode", "/etc/passwd is a file", ["\u200b", "/etc/passwd is a file"]),
    ],
)
def test_what_looks_like_syntax_is_guarded_as_the_agent_needs_it(profile: str, prompt: str, said: list[str]) -> None:
    assert [block["text"] for block in blocks(prompt, KNOWN[profile], as_text=True)] == said
    assert [block["text"] for block in blocks(prompt, KNOWN[profile], as_text=False)] == [prompt]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["goose", "acp"], "goose"),
        (["/opt/bin/qwen", "--acp"], "qwen"),
        (["npx", "@agentclientprotocol/codex-acp@2.6.0"], "codex-acp"),
        (["node", "/x/claude-agent-acp.js"], "claude-agent-acp"),
        (["my-agent"], ""),
    ],
)
def test_a_profile_is_found_by_the_name_of_the_program(command: list[str], name: str) -> None:
    assert profile_of(command).name == name
    assert (profile_of(command) is UNKNOWN) == (name == "")


def test_an_agent_is_made_by_command_or_by_name() -> None:
    made = create_cli_runtime("acp", command=["goose", "acp"])
    assert (type(made), made.command, made.program) == (AcpRuntime, ("goose", "acp"), "goose")
    assert create_cli_runtime("Qwen").command == ("qwen", "--acp")
    assert create_cli_runtime("mistral-vibe").command == ("vibe-acp",)
    assert create_cli_runtime("acp", command="mine", profile="goose").program == "goose"
    with pytest.raises(ValueError, match="command is missing"):
        create_cli_runtime("acp")
    with pytest.raises(ValueError, match="profile must be one of"):
        AcpRuntime("x", profile="nobody")
    with pytest.raises(UnsupportedOperationError, match="ACP has no other than live runs"):
        AcpRuntime("x", transport="oneshot")


def test_the_port_that_an_agent_opens_has_a_password_of_its_runtimes_own(tmp_path: Path) -> None:
    ours = runtime(tmp_path, "opencode")
    for made in (ours, ours, runtime(tmp_path, "opencode")):
        with made.open_session(working_directory=tmp_path, extra_args=["--mdns=true"]) as session:
            assert session.run("hello").ok
    begun = starts(tmp_path)
    passwords = [one["env"]["OPENCODE_SERVER_PASSWORD"] for one in begun]
    assert (len(passwords), len(set(passwords)), min(map(len, passwords)) > 30) == (3, 2, True)
    assert [one["argv"] for one in begun] == [["--hostname=127.0.0.1", "--mdns=true"]] * 3


def test_sessions_of_one_folder_share_a_process_and_one_that_leaves_is_cancelled(tmp_path: Path) -> None:
    shared = runtime(tmp_path, "gemini")
    other = tmp_path / "other"
    other.mkdir()
    with shared.open_session(working_directory=tmp_path) as one, shared.open_session(working_directory=tmp_path) as two:
        one.run("first")
        two.run("first")
        assert one.pid == two.pid
        with shared.open_session(working_directory=other) as apart:
            apart.run("first")
            assert apart.pid != one.pid
        started, name = threading.Event(), two.session_id

        def work() -> None:
            for event in two.execute(steps(["text", "x"], ["hang"])):
                if event.type == "text":
                    started.set()

        worker = threading.Thread(target=work)
        worker.start()
        assert started.wait(30)
        two.close()
        worker.join()
        assert one.run("second").text == "re: second"
        assert wait_until(lambda: {given["sessionId"] for given in sent(tmp_path, "session/cancel")} == {name})


def test_a_recorded_session_is_replayed_without_an_agent(tmp_path: Path) -> None:
    record = tmp_path / "session.jsonl"
    prompts = [steps(["text", "Hello"]), "second"]
    with runtime(tmp_path, record=record).open_session(working_directory=tmp_path) as session:
        live = [session.run(prompt).text for prompt in prompts]
    replay = ReplayRuntime(record, runtime=AcpRuntime("nowhere"))
    with replay.open_session() as played:
        assert [played.run(prompt).text for prompt in prompts] == live == ["Hello", "re: second"]
