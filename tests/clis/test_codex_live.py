"""Live sessions on Codex: what its app server receives, and what its messages mean. The other side is a fake."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from remoteclaw_sync import (
    AgentErrorEvent,
    AgentPermissionEvent,
    AgentSession,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    Allow,
    CodexCliRuntime,
    Deny,
    McpServerConfig,
    PermissionRequest,
    SessionFields,
)
from remoteclaw_sync.types import PromptSyntax
from tests.engine.live import heard_by, starts, steps
from tests.fakes import codes, finished

FAKE = Path(__file__).parents[1] / "live_codex.py"
COMMAND = {"type": "commandExecution", "id": "call_1", "command": "ls", "status": "inProgress"}
ENDED = {**COMMAND, "status": "completed", "aggregatedOutput": "out", "exitCode": 0}
MESSAGE = {"type": "agentMessage", "id": "msg"}
ASK_COMMAND = "item/commandExecution/requestApproval"


@pytest.fixture
def fields(tmp_path: Path) -> SessionFields:
    """The fields of a session in an unused home."""
    home = tmp_path / "home"
    home.mkdir()
    return {"working_directory": tmp_path, "env": {"CODEX_HOME": str(home), "CODEX_API_KEY": ""}}


@pytest.fixture
def runtime(tmp_path: Path) -> CodexCliRuntime:
    return CodexCliRuntime([sys.executable, "-I", "-S", str(FAKE), str(tmp_path)], timeout=60.0)


def opened(runtime: CodexCliRuntime, fields: SessionFields, **more: Any) -> AgentSession:
    given: Any = {**fields, **more}
    return runtime.open_session(**given)


def sent(folder: Path, method: str) -> list[dict[str, Any]]:
    """The params of all requests with this method."""
    return [line.get("params", {}) for line in heard_by(folder) if line.get("method") == method]


def texts(events: list[Any]) -> list[str]:
    return [event.text for event in events if isinstance(event, AgentTextEvent)]


def test_turns_are_served_by_one_process_and_told_piece_by_piece(
    runtime: CodexCliRuntime, fields: SessionFields, tmp_path: Path
) -> None:
    with runtime.open_session(**fields) as session:
        session.warm()
        pid = session.pid
        first = steps(["delta", "Hel"], ["delta", "lo"], ["item", "completed", {**MESSAGE, "text": "Hello!"}])
        events, one = finished(session.execute(first))
        two = session.run("second")
        assert session.pid == pid
    assert (texts(events), one.text, two.text) == (["Hel", "lo", "!"], "Hello!", "re: second")
    assert one.usage is not None
    assert two.usage is not None
    assert (one.usage.input_tokens, two.usage.input_tokens) == (10, 10)
    assert one.session_id == two.session_id == session.session_id
    assert [line["method"] for line in heard_by(tmp_path)][:3] == ["initialize", "initialized", "thread/start"]


def test_what_a_session_is_given_reaches_the_thread_and_not_the_command_line(
    runtime: CodexCliRuntime, fields: SessionFields, tmp_path: Path
) -> None:
    server = McpServerConfig("server", env={"TOKEN": "secret-of-the-server"})
    more: SessionFields = {
        **fields,
        "env": {**fields["env"], "CODEX_API_KEY": "sk-secret-of-the-user"},
        "model": "gpt-x",
        "system_prompt": "secret instructions",
        "permission_mode": "bypass",
        "mcp_servers": {"lab": server, "broken": McpServerConfig("gone")},
    }
    with runtime.open_session(**more) as session:
        events, result = finished(session.execute("hello"))
    assert (result.ok, codes(events)) == (True, ["MCP_SERVER_FAILED"])
    assert sent(tmp_path, "account/login/start") == [{"type": "apiKey", "apiKey": "sk-secret-of-the-user"}]
    thread = sent(tmp_path, "thread/start")[-1]
    assert (thread["cwd"], thread["model"]) == (str(tmp_path), "gpt-x")
    assert (thread["approvalPolicy"], thread["sandbox"]) == ("never", "danger-full-access")
    assert thread["developerInstructions"] == "secret instructions"
    assert list(thread["config"]["mcp_servers"]) == ["lab"]
    assert thread["config"]["mcp_servers"]["lab"]["env"] == {"TOKEN": "secret-of-the-server"}
    (start,) = starts(tmp_path)
    assert '--config=cli_auth_credentials_store="ephemeral"' in start["argv"]
    assert "secret" not in " ".join(start["argv"])


def test_a_name_that_the_users_own_server_has_is_refused(
    runtime: CodexCliRuntime, fields: SessionFields, tmp_path: Path
) -> None:
    (tmp_path / "home" / "config.toml").write_text('[mcp_servers.lab]\ncommand = "mine"\n')
    with opened(runtime, fields, mcp_servers={"lab": McpServerConfig("server")}) as session:
        events, result = finished(session.execute("hello"))
    assert (result.error_subtype, codes(events)) == ("config", ["MCP_CONFIG_ERROR"])


def test_tools_are_told_and_those_without_an_end_are_ended_with_the_turn(
    runtime: CodexCliRuntime, fields: SessionFields
) -> None:
    other = {**COMMAND, "id": "call_2"}
    with runtime.open_session(**fields) as session:
        turn = [["item", "started", COMMAND], ["item", "completed", ENDED], ["item", "started", other]]
        events = list(session.execute(steps(["remember_turn"], *turn)))
        uses = [event.tool_id for event in events if isinstance(event, AgentToolUseEvent)]
        results = [(event.tool_id, event.is_error) for event in events if isinstance(event, AgentToolResultEvent)]
        assert (uses, results) == (["call_1", "call_2"], [("call_1", False), ("call_2", True)])
        late = {**other, "status": "completed", "exitCode": 0}
        events = list(session.execute(steps(["late", late], ["text", "Done."])))
        assert [event.type for event in events] == ["text", "done"]


def test_thoughts_are_told_once(runtime: CodexCliRuntime, fields: SessionFields) -> None:
    thought = {"type": "reasoning", "id": "r1", "summary": ["One", "Two"]}
    deltas = [
        ["tell", "item/reasoning/summaryTextDelta", {"itemId": "r1", "delta": "One"}],
        ["tell", "item/reasoning/summaryPartAdded", {"itemId": "r1"}],
        ["tell", "item/reasoning/summaryTextDelta", {"itemId": "r1", "delta": "Two"}],
        ["item", "completed", thought],
        ["item", "completed", {**thought, "id": "r2"}],
    ]
    with runtime.open_session(**fields) as session:
        events = list(session.execute(steps(*deltas)))
    thoughts = [event.text for event in events if isinstance(event, AgentThinkingEvent)]
    assert thoughts == ["One", "\n\n", "Two", "One\n\nTwo"]


def test_ids_that_a_server_gives_again_in_the_same_turn_hide_nothing(
    runtime: CodexCliRuntime, fields: SessionFields
) -> None:
    thought = [
        ["tell", "item/reasoning/summaryPartAdded", {"itemId": "r1"}],
        ["tell", "item/reasoning/summaryTextDelta", {"itemId": "r1", "delta": "Hm."}],
        ["item", "completed", {"type": "reasoning", "id": "r1", "summary": ["Hm."]}],
    ]
    call = [["item", "started", COMMAND], ["item", "completed", ENDED]]
    with runtime.open_session(**fields) as session:
        events = list(session.execute(steps(*thought, *call, ["text", "One."], *thought, *call, ["text", "Two."])))
    assert [event.type for event in events] == ["thinking", "tool_use", "tool_result", "text"] * 2 + ["done"]


@pytest.mark.parametrize(("syntax", "names"), [("text", ["mine", "skill-creator"]), ("cli", [])])
def test_the_names_of_skills_in_a_prompt_are_claimed_unless_they_are_wanted(
    syntax: PromptSyntax, names: list[str], runtime: CodexCliRuntime, fields: SessionFields, tmp_path: Path
) -> None:
    words = "$mine and ($skill-creator), $mine costs $ 5"
    with runtime.open_session(**fields) as session:
        assert session.run(words, prompt_syntax=syntax).text == f"re: {words}"
    (turn,) = sent(tmp_path, "turn/start")
    skills = [{"type": "skill", "name": name, "path": "/dev/null"} for name in names]
    assert turn["input"] == [{"type": "text", "text": words}, *skills]


@pytest.mark.parametrize("what", ["bubblewrap", "system bubblewrap"])
def test_what_codex_says_about_bubblewrap_is_not_shown_as_the_cause_of_a_crash(
    what: str, runtime: CodexCliRuntime, fields: SessionFields
) -> None:
    hint = f"ERROR codex_app_server: Codex could not find {what} on PATH. Install bubblewrap."
    with runtime.open_session(**fields) as session:
        session.warm()
        result = session.run(steps(["stderr", f"{hint}\nthe real cause\n"], ["delta", "Half"], ["exit"]), check=False)
    assert (result.error_subtype, result.stderr.strip()) == ("crash", "the real cause")


@pytest.mark.parametrize(
    ("second", "told", "warnings"),
    [
        ("Hello you", ["Hello", " you"], []),
        ("Hello", ["Hello"], []),
        ("Hel", ["Hello"], ["CLI_WARNING"]),
        ("Goodbye", ["Hello", "Goodbye"], ["CLI_WARNING"]),
    ],
)
def test_of_a_message_that_is_begun_anew_the_same_words_are_told_once(
    second: str, told: list[str], warnings: list[str], runtime: CodexCliRuntime, fields: SessionFields
) -> None:
    with runtime.open_session(**fields) as session:
        events = list(session.execute(steps(["delta", "Hello", "first"], ["text", second, "second"])))
    assert (texts(events), codes(events)) == (told, warnings)


@pytest.mark.parametrize(
    ("decision", "answer"),
    [
        (True, {"decision": "accept"}),
        (False, {"decision": "decline"}),
        (Deny("why not"), {"decision": "decline"}),
        (Allow({"command": "other"}), {"decision": "decline"}),
        (Allow({"command": "ls"}), {"decision": "accept"}),
        (None, {"decision": "decline"}),
    ],
)
def test_a_decision_becomes_codexs_own_word(
    decision: Any, answer: Any, runtime: CodexCliRuntime, fields: SessionFields, tmp_path: Path
) -> None:
    call = ["ask", 0, ASK_COMMAND, {"itemId": "call_1", "command": "ls", "reason": "because"}]
    with opened(runtime, fields, approve=lambda request: decision) as session:
        events, result = finished(session.execute(steps(["item", "started", COMMAND], call)))
    (asked,) = (event.request for event in events if isinstance(event, AgentPermissionEvent))
    assert (asked.tool_name, asked.tool_id, asked.input) == ("command_execution", "call_1", {"command": "ls"})
    assert (asked.reason, asked.session_id) == ("because", session.session_id)
    assert json.loads(result.text) == answer
    assert len(result.permission_denials) == (answer["decision"] == "decline")
    is_changed = isinstance(decision, Allow) and answer["decision"] == "decline"
    assert codes(events) == (["CLI_WARNING"] if is_changed else [])
    reasons = [params["input"][0]["text"] for params in sent(tmp_path, "turn/steer")]
    assert reasons == (["The call was refused: why not"] if isinstance(decision, Deny) else [])


def test_a_sub_agents_request_names_the_session_and_the_call_that_started_it(
    runtime: CodexCliRuntime, fields: SessionFields
) -> None:
    asked: list[PermissionRequest] = []

    def approve(request: PermissionRequest) -> bool:
        asked.append(request)
        return True

    with opened(runtime, fields, approve=approve) as session:
        session.run(steps(["agent", "call_1", ["ask", 1, ASK_COMMAND, {"itemId": "inner", "command": "ls"}]]))
    (request,) = asked
    assert (request.tool_id, request.parent_tool_use_id) == ("inner", "call_1")
    assert request.session_id == session.session_id


def test_file_changes_mcp_tools_and_questions_are_asked_for(runtime: CodexCliRuntime, fields: SessionFields) -> None:
    change = {"path": "/a", "kind": {"type": "add"}, "diff": "+x"}
    patch = {"type": "fileChange", "id": "call_2", "changes": [change], "status": "inProgress"}
    mcp = {"type": "mcpToolCall", "id": "call_3", "server": "lab", "tool": "echo", "arguments": {"a": 1}}
    meta = {"codex_approval_kind": "mcp_tool_call", "tool_name": "echo", "tool_params": {"a": 1}}
    question = {"id": "q1", "question": "Which?", "options": []}
    asked: list[PermissionRequest] = []

    def approve(request: PermissionRequest) -> Allow:
        asked.append(request)
        return Allow(answers=MappingProxyType({"Which?": "Red"}) if request.questions else None)

    turn = steps(
        ["item", "started", patch],
        ["ask", 1, "item/fileChange/requestApproval", {"itemId": "call_2"}],
        ["item", "started", mcp],
        ["ask", 2, "mcpServer/elicitation/request", {"serverName": "lab", "_meta": meta, "message": "Allow?"}],
        ["ask", 3, "item/tool/requestUserInput", {"itemId": "call_4", "questions": [question]}],
    )
    with opened(runtime, fields, approve=approve) as session:
        events = list(session.execute(turn))
    assert [(request.tool_name, request.tool_id) for request in asked] == [
        ("file_change", "call_2"),
        ("mcp__lab__echo", "call_3"),
        ("request_user_input", "call_4"),
    ]
    told = [event for event in events if getattr(event, "tool_id", None) == "call_4"]
    assert told == [
        AgentToolUseEvent("request_user_input", "call_4", {"questions": [question]}),
        AgentToolResultEvent("call_4", '{"Which?": "Red"}'),
    ]
    assert asked[0].input == {"changes": [{"path": "/a", "kind": "add", "diff": "+x"}]}
    assert [json.loads(words) for words in texts(events)] == [
        {"decision": "accept"},
        {"action": "accept", "content": {}, "_meta": None},
        {"answers": {"q1": {"answers": ["Red"]}}},
    ]


def test_the_model_hears_why_a_question_was_not_answered(
    runtime: CodexCliRuntime, fields: SessionFields, tmp_path: Path
) -> None:
    question = {"id": "q1", "question": "Which?", "options": []}
    turn = steps(["ask", 1, "item/tool/requestUserInput", {"itemId": "call_1", "questions": [question]}], ["take_in"])
    with opened(runtime, fields, approve=lambda request: Deny("You know best.")) as session:
        events, result = finished(session.execute(turn))
    assert texts(events) == ['{"answers": {}}', "took in: The question was not answered: You know best."]
    assert [denial.reason for denial in result.permission_denials] == ["You know best."]


def test_other_requests_are_answered_and_not_with_yes(runtime: CodexCliRuntime, fields: SessionFields) -> None:
    turn = steps(
        ["ask", 1, "account/chatgptAuthTokens/refresh", {}],
        ["ask", 2, "mcpServer/elicitation/request", {"serverName": "lab", "_meta": None, "message": "Name?"}],
    )
    with opened(runtime, fields, approve=lambda request: True) as session:
        events = list(session.execute(turn))
    assert [json.loads(words) for words in texts(events)] == [
        -32601,
        {"action": "decline", "content": None, "_meta": None},
    ]
    assert codes(events) == ["CLI_WARNING"]


def test_an_interrupt_ends_the_commands_too_and_the_process_serves_on(
    runtime: CodexCliRuntime, fields: SessionFields, tmp_path: Path
) -> None:
    with runtime.open_session(**fields) as session:
        with session.start(steps(["text", "working"], ["hang"])) as run:
            for event in run:
                if event.type == "text":
                    run.abort()
        pid = session.pid
        assert run.result is not None
        assert run.result.error_subtype == "aborted"
        assert session.run("next").text == "re: next"
        assert session.pid == pid
    assert sent(tmp_path, "thread/backgroundTerminals/clean")


def test_further_words_are_part_of_the_turn_or_of_another_one_in_the_same_run(
    runtime: CodexCliRuntime, fields: SessionFields
) -> None:
    with runtime.open_session(**fields) as session:
        with session.start(steps(["text", "One."], ["take_in"])) as run:
            for event in run:
                if event.type == "text" and event.text == "One.":
                    run.steer("more")
        assert run.result is not None
        assert (run.result.ok, run.result.text) == (True, "One.took in: more")
        with session.start("first") as run:
            for event in run:
                if event.type == "text" and event.text == "re: first":
                    run.steer("second")  # The turn may be over before this arrives.
        assert run.result is not None
        assert run.result.ok


def test_model_and_mode_change_with_the_next_turn(runtime: CodexCliRuntime, fields: SessionFields) -> None:
    with runtime.open_session(**fields) as session:
        session.warm()
        session.set_model("other")
        session.set_permission_mode("accept-edits")
        settings = json.loads(session.run(steps(["settings"])).text)
        assert (settings["model"], settings["approvalPolicy"]) == ("other", "on-request")
        assert settings["sandboxPolicy"]["type"] == "workspaceWrite"
        session.set_model(None)
        session.set_permission_mode("default")
        settings = json.loads(session.run(steps(["settings"])).text)
        assert (settings["model"], settings["sandboxPolicy"]) == ("fake-default", {"type": "readOnly"})


@pytest.mark.parametrize(
    ("approve", "policy", "sandbox"),
    [(None, "on-request", "readOnly"), (lambda request: True, "untrusted", "workspaceWrite")],
)
def test_in_the_default_mode_an_approver_is_asked_for_everything_and_what_it_allows_may_write(
    approve: Any, policy: str, sandbox: str, runtime: CodexCliRuntime, fields: SessionFields, tmp_path: Path
) -> None:
    with opened(runtime, fields, approve=approve) as session:
        session.run("hello")
        (first,) = sent(tmp_path, "turn/start")
        assert first.get("sandboxPolicy", {"type": "readOnly"})["type"] == sandbox
        session.set_permission_mode("bypass")
        session.set_permission_mode("default")
        settings = json.loads(session.run(steps(["settings"])).text)
        assert (settings["approvalPolicy"], settings["sandboxPolicy"]["type"]) == (policy, sandbox)
    (thread,) = sent(tmp_path, "thread/start")
    assert (thread["approvalPolicy"], "sandbox" in thread) == (policy, False)


def test_empty_folders_of_the_sandbox_are_gone_after_an_interrupt_while_the_process_stays(
    runtime: CodexCliRuntime, fields: SessionFields, tmp_path: Path
) -> None:
    folder = tmp_path / ".codex"
    with opened(runtime, fields) as session:
        run = session.start(steps(["folder", str(folder)], ["text", "x"], ["hang"]))
        for event in run:
            if event.type == "text":
                assert folder.is_dir()
                run.abort()
        assert not folder.exists()
        assert session.pid is not None


def test_empty_folders_of_the_sandbox_are_gone_with_the_process(
    runtime: CodexCliRuntime, fields: SessionFields, tmp_path: Path
) -> None:
    (tmp_path / ".git").mkdir()  # The user's own.
    with runtime.open_session(**fields) as session:
        session.run(steps(["folder", str(tmp_path / ".codex")], ["folder", str(tmp_path / ".aws" / "kept")]))
        assert (tmp_path / ".codex").exists()
    assert not (tmp_path / ".codex").exists()
    assert (tmp_path / ".aws" / "kept").exists()
    assert (tmp_path / ".git").exists()


def test_a_process_that_is_gone_is_replaced_by_one_that_resumes(
    runtime: CodexCliRuntime, fields: SessionFields, tmp_path: Path
) -> None:
    with runtime.open_session(**fields) as session:
        failed = session.run(steps(["exit"]), check=False)
        assert failed.error_subtype == "crash"
        assert session.run("again").text == "re: again"
        assert [params["threadId"] for params in sent(tmp_path, "thread/resume")] == [session.session_id]


def test_a_failure_is_told_once_and_the_session_goes_on(runtime: CodexCliRuntime, fields: SessionFields) -> None:
    with runtime.open_session(**fields) as session:
        events, failed = finished(session.execute(steps(["fail", "unexpected status 401 Unauthorized: no"])))
        assert (failed.error_subtype, len(codes(events))) == ("auth", 1)
        events, refused = finished(session.execute("too long"))
        assert (refused.ok, len(codes(events))) == (False, 1)
        assert session.run("again").text == "re: again"


def test_an_unknown_thread_is_an_error_each_time(runtime: CodexCliRuntime, fields: SessionFields) -> None:
    with opened(runtime, fields, session_id="019a0000-0000-7000-8000-000000000000") as session:
        session.warm()
        for _ in range(2):
            events, result = finished(session.execute("hello"))
            assert (result.error_subtype, codes(events)) == ("session_not_found", ["SESSION_NOT_FOUND"])


@pytest.mark.parametrize("variable", ["FAKE_NO_SERVER", "FAKE_VERSION"])
def test_a_codex_that_is_too_old_is_told_so(variable: str, runtime: CodexCliRuntime, fields: SessionFields) -> None:
    more: SessionFields = {**fields, "env": {**fields["env"], variable: "0.77.0"}}
    with runtime.open_session(**more) as session:
        events, result = finished(session.execute("hello"))
    assert result.error_subtype == "config"
    (error,) = (event for event in events if isinstance(event, AgentErrorEvent))
    assert "0.101.0" in error.message
