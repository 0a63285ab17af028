"""Approvals: the caller decides on tool calls, and anything but a clear yes is a no."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import (
    AgentEvent,
    AgentPermissionEvent,
    AgentRun,
    AgentRunResult,
    AgentToolResultEvent,
    Allow,
    Deny,
    PermissionDenial,
    PermissionRequest,
)
from tests.engine.live import heard_by, open_session, runtime, steps
from tests.fakes import codes, done, finished

ASK = ["ask", "t1", "Bash", {"command": "ls", "description": "look"}]
LS = {"command": "ls", "description": "look"}
Answer = Callable[[PermissionRequest], Any]


class Approver:
    """Keeps what it was asked, and always gives the same answer."""

    def __init__(self, answer: Any = True) -> None:
        self.answer = answer
        self.asked: list[PermissionRequest] = []
        self.threads: set[threading.Thread] = set()

    def __call__(self, request: PermissionRequest) -> Any:
        self.asked.append(request)
        self.threads.add(threading.current_thread())
        return self.answer


def answered(folder: Path, approve: Answer | None) -> tuple[list[AgentEvent], AgentRunResult, AgentToolResultEvent]:
    """A turn with one tool call that is asked about; afterwards the session runs another turn."""
    with open_session(folder, approve=approve) as session:
        events, result = finished(session.execute(steps(ASK, ["text", "so be it"])))
        assert session.run("next").text == "re: next"
    (tool,) = (event for event in events if isinstance(event, AgentToolResultEvent))
    return events, result, tool


@pytest.mark.parametrize("yes", [True, Allow()])
def test_a_yes_lets_the_call_be_made_as_it_is(yes: Any, tmp_path: Path) -> None:
    approve = Approver(yes)
    events, result, tool = answered(tmp_path, approve)
    assert [event.type for event in events] == ["tool_use", "permission", "tool_result", "text"]
    assert (tool.is_error, tool.output) == (False, '{"command": "ls", "description": "look"}')
    assert (result.ok, result.permission_denials) == (True, ())
    (told,) = (event.request for event in events if isinstance(event, AgentPermissionEvent))
    assert approve.asked == [told]
    assert (told.tool_name, told.tool_id, told.input, told.questions) == ("Bash", "t1", LS, ())
    assert told.session_id == result.session_id


def test_changed_input_is_what_runs(tmp_path: Path) -> None:
    _, result, tool = answered(tmp_path, lambda request: Allow({"command": "pwd"}))
    assert (result.ok, tool.output) == (True, '{"command": "pwd"}')


@pytest.mark.parametrize(
    ("approve", "told"),
    [
        (None, "Nobody is there to approve this tool call."),
        (lambda request: False, "The user does not want this tool call."),
        (lambda request: Deny(), "The user does not want this tool call."),
        (lambda request: Deny("Use make."), "Use make."),
        (lambda request: None, "The approval of this tool call failed."),
        (lambda request: "yes", "The approval of this tool call failed."),
        (lambda request: 1, "The approval of this tool call failed."),
        (lambda request: 1 / 0, "The approval of this tool call failed."),
        (lambda: True, "The approval of this tool call failed."),
        (lambda request: Allow({"command": {1, 2}}), "The approval of this tool call failed."),
        (
            lambda request: Allow("ls"),  # type: ignore[arg-type]
            "The approval of this tool call failed.",
        ),
    ],
    ids=["nobody", "False", "Deny", "message", "None", "text", "1", "raises", "arguments", "no JSON", "no object"],
)
def test_everything_else_is_a_no_and_a_denial_in_the_result(approve: Any, told: str, tmp_path: Path) -> None:
    events, result, tool = answered(tmp_path, approve)
    assert (tool.is_error, tool.output) == (True, told)
    assert result.permission_denials == (PermissionDenial("Bash", told, "t1"),)
    assert (result.ok, result.text, codes(events)) == (True, "so be it", [])


def test_deny_and_stop_aborts_the_turn_and_keeps_the_session(tmp_path: Path) -> None:
    with open_session(tmp_path, approve=lambda request: Deny("Enough.", stop=True)) as session:
        events, result = finished(session.execute(steps(ASK, ["text", "never"])))
        pid = session.pid
        assert (codes(events), result.aborted, result.text) == (["ABORTED"], True, "")
        assert result.permission_denials[0].reason == "Enough."
        assert session.run("next").ok
        assert session.pid == pid


def test_what_is_remembered_is_not_asked_again(tmp_path: Path) -> None:
    asked: list[str] = []

    def approve(request: PermissionRequest) -> Allow:
        asked.append(request.tool_id)
        return Allow(remember=True)

    shell = {"command": "make"}
    with open_session(tmp_path, approve=approve) as session:
        for prefix in ("a", "b"):
            calls = [
                ["ask", f"{prefix}1", "Bash", shell],
                ["ask", f"{prefix}2", "Bash", {**shell, "description": "again"}],
                ["ask", f"{prefix}3", "Edit", {"file_path": f"{prefix}x"}],
                ["ask", f"{prefix}4", "Edit", {"file_path": f"{prefix}y"}],
            ]
            events, result = finished(session.execute(steps(*calls)))
            assert not any(event.is_error for event in events if isinstance(event, AgentToolResultEvent))
        session.run(steps(["ask", "c1", "Bash", {"command": "make install"}]))
    assert asked == ["a1", "a3", "c1"]  # Another shell command is asked about again.


def test_a_yes_to_other_arguments_is_not_remembered_for_the_ones_asked_about(tmp_path: Path) -> None:
    approve = Approver(Allow(input={"command": "ls"}, remember=True))
    with open_session(tmp_path, approve=approve) as session:
        for number in (1, 2):
            session.run(steps(["ask", f"a{number}", "Bash", {"command": "rm -rf x"}]))
    assert [request.tool_id for request in approve.asked] == ["a1", "a2"]


def test_a_question_to_the_user_is_answered_and_never_remembered(tmp_path: Path) -> None:
    questions = [{"question": "Which colour?", "options": [{"label": "Blue"}]}]
    approve = Approver(Allow(answers={"Which colour?": "Blue"}, remember=True))
    with open_session(tmp_path, approve=approve) as session:
        for _ in range(2):
            events, _ = finished(session.execute(steps(["ask", "t1", "AskUserQuestion", {"questions": questions}])))
            (tool,) = (event for event in events if isinstance(event, AgentToolResultEvent))
            assert '"answers": {"Which colour?": "Blue"}' in tool.output
    assert [request.questions for request in approve.asked] == [tuple(questions)] * 2


def test_approve_is_called_in_the_thread_that_iterates(tmp_path: Path) -> None:
    approve = Approver()
    answered(tmp_path, approve)
    assert approve.threads == {threading.current_thread()}


def test_an_answer_that_comes_after_the_abort_is_not_given(tmp_path: Path) -> None:
    runs: list[AgentRun] = []

    def approve(request: PermissionRequest) -> bool:
        runs[0].abort()
        return True

    with open_session(tmp_path, approve=approve) as session:
        runs.append(session.start(steps(ASK, ["text", "never"])))
        result = done(runs[0])
        assert (result.aborted, result.permission_denials) == (True, ())
        assert session.run("next").ok
    assert [line for line in heard_by(tmp_path) if line["type"] == "control_response"] == []


def test_the_deadline_holds_while_the_caller_thinks(tmp_path: Path) -> None:
    with open_session(tmp_path, approve=lambda request: threading.Event().wait(0.5)) as session:
        events, result = finished(session.execute(steps(ASK), deadline=0.3))
        assert (codes(events), result.error_subtype) == (["DEADLINE_EXCEEDED"], "timeout")


def test_an_exception_that_is_not_an_error_leaves_the_turn(tmp_path: Path) -> None:
    def approve(request: PermissionRequest) -> bool:
        raise KeyboardInterrupt

    with open_session(tmp_path, approve=approve) as session:
        with pytest.raises(KeyboardInterrupt):
            session.run(steps(ASK))
        assert session.run("next").ok
    assert not [line for line in heard_by(tmp_path) if line["type"] == "control_response"]


def test_a_sub_agents_request_names_the_call_that_started_it(tmp_path: Path) -> None:
    approve = Approver()
    call = ["call", "inner", "Bash", {"command": "ls"}, "outer"]
    with open_session(tmp_path, approve=approve) as session:
        session.run(steps(call, ["ask", "inner", "Bash", {"command": "ls"}]))
    assert approve.asked[0].parent_tool_use_id == "outer"


def test_a_single_run_asks_too(tmp_path: Path) -> None:
    approve = Approver()
    result = runtime(tmp_path).run(steps(ASK, ["text", "done"]), approve=approve, working_directory=tmp_path)
    assert (len(approve.asked), result.text, result.exit_code) == (1, "done", 0)


def test_input_that_cannot_be_sent_back_is_a_refusal_and_not_a_hang(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    _, result, tool = answered(tmp_path, lambda request: Allow({"command": endless}))
    assert (tool.is_error, result.ok) == (True, True)
