"""The built-in agent: a newcomer's first run, and a stand-in for a real CLI."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoteclaw_sync import (
    SUPPORTED_PROVIDERS,
    AgentPermissionEvent,
    AgentSession,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    Allow,
    CLIRuntimeBase,
    Deny,
    PermissionRequest,
    create_cli_runtime,
)
from remoteclaw_sync.types import Decision, PermissionMode
from tests.fakes import codes, done, finished


@pytest.fixture
def demo() -> CLIRuntimeBase:
    return create_cli_runtime("demo", pace=0)


def test_the_demo_is_found_by_its_name_however_it_is_written() -> None:
    assert type(create_cli_runtime(" Demo ")) is type(create_cli_runtime("demo"))


def test_it_thinks_lists_the_folder_by_a_tool_and_answers_word_by_word(demo: CLIRuntimeBase, tmp_path: Path) -> None:
    (tmp_path / "one.txt").touch()
    (tmp_path / "two").mkdir()
    events, result = finished(demo.execute("What is here?", working_directory=tmp_path))
    assert result.ok
    assert result.usage is not None
    assert result.usage.output_tokens > 0
    thought = "".join(event.text for event in events if isinstance(event, AgentThinkingEvent))
    assert thought.startswith("A look at the folder")
    (call,) = (event for event in events if isinstance(event, AgentToolUseEvent))
    (given,) = (event for event in events if isinstance(event, AgentToolResultEvent))
    assert (call.tool_name, call.input, call.tool_id) == ("LS", {"path": "."}, given.tool_id)
    assert given.output == "one.txt\ntwo/"
    assert "“What is here?”" in result.text
    assert len([event for event in events if event.type == "text"]) > 50


def test_a_session_can_be_resumed_and_keeps_its_id(demo: CLIRuntimeBase, tmp_path: Path) -> None:
    first = demo.run("Hi", working_directory=tmp_path)
    assert first.session_id is not None
    second = demo.run("And now?", session_id=first.session_id, working_directory=tmp_path)
    assert second.session_id == first.session_id
    assert second.text.startswith("Welcome back")
    assert demo.run("Hi", working_directory=tmp_path).session_id != first.session_id


def test_a_session_that_is_not_its_own_is_not_found(demo: CLIRuntimeBase) -> None:
    assert demo.run("Hi", session_id="another", check=False).error_subtype == "session_not_found"


@pytest.mark.parametrize("prompt", ["/clear", "@/etc/passwd", "--help", "-", "line\nbreak", "“quotes” \\ 日本 🎉"])
def test_any_prompt_reaches_it_as_text(demo: CLIRuntimeBase, prompt: str, tmp_path: Path) -> None:
    result = demo.run(prompt, working_directory=tmp_path)
    assert f"You asked: “{' '.join(prompt.split())}”" in result.text


@pytest.mark.slow
def test_failures_can_be_asked_for(demo: CLIRuntimeBase) -> None:
    assert demo.run("demo:fail", check=False).error_subtype == "overloaded"
    crashed = demo.run("demo:crash", check=False)
    assert (crashed.error_subtype, crashed.exit_code) == ("crash", 3)
    assert "something broke" in crashed.stderr
    events, result = finished(demo.execute("demo:hang", deadline=0.5))
    assert (codes(events), result.error_subtype) == (["DEADLINE_EXCEEDED"], "timeout")


def test_it_needs_nothing_of_its_surroundings(demo: CLIRuntimeBase, tmp_path: Path) -> None:
    """Modules in the working directory or on PYTHONPATH do not get into it."""
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')")
    env = dict.fromkeys(os.environ) | {"PYTHONPATH": str(tmp_path)}
    assert demo.run("Hi", working_directory=tmp_path, env=env).ok


def test_it_is_no_cli_that_this_package_supports() -> None:
    assert "demo" not in SUPPORTED_PROVIDERS


# --- live -----------------------------------------------------------------------------------------------------------


class Approver:
    """Answers as it is told to, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answer: Decision = True
        self.asked: list[PermissionRequest] = []

    def __call__(self, request: PermissionRequest) -> Decision:
        self.asked.append(request)
        return self.answer


@pytest.fixture
def approver() -> Approver:
    return Approver()


@pytest.fixture
def session(demo: CLIRuntimeBase, approver: Approver, tmp_path: Path) -> Iterator[AgentSession]:
    with demo.open_session(working_directory=tmp_path, approve=approver) as opened:
        yield opened


def test_one_process_serves_the_turns_of_a_session_and_counts_them(session: AgentSession) -> None:
    first = session.run("Hi")
    pid = session.pid
    second = session.run("And now?")
    assert first.text.startswith("Hello! This is the demo agent. You asked: “Hi”")
    assert "you will be asked" in first.text
    assert second.text.startswith("This is turn 2 of our session. You asked: “And now?”")
    assert (session.pid, session.session_id) == (pid, second.session_id)
    assert first.session_id == second.session_id


def test_a_session_and_a_run_of_the_demo_take_up_each_others_conversations(
    demo: CLIRuntimeBase, tmp_path: Path
) -> None:
    first = demo.run("Hi", working_directory=tmp_path)
    with demo.open_session(working_directory=tmp_path, session_id=first.session_id) as session:
        assert session.run("Live").session_id == first.session_id
    assert demo.run("Again", session_id=session.session_id, working_directory=tmp_path).text.startswith("Welcome back")


def test_a_command_is_run_when_it_is_allowed_and_not_when_it_is_refused(
    session: AgentSession, approver: Approver, tmp_path: Path
) -> None:
    events, allowed = finished(session.execute("Please run a command."))
    (asked,) = (event.request for event in events if isinstance(event, AgentPermissionEvent))
    (call,) = (event for event in events if isinstance(event, AgentToolUseEvent))
    assert (asked.tool_name, asked.tool_id, asked.input) == ("Bash", call.tool_id, call.input)
    assert asked.reason
    assert str(tmp_path) in allowed.text
    approver.answer = Allow(input={"command": "echo changed"})
    assert "changed" in session.run("run the command").text
    approver.answer = Deny("Not today.")
    events, refused = finished(session.execute("run a command"))
    (given,) = (event for event in events if isinstance(event, AgentToolResultEvent))
    assert (given.output, given.is_error) == ("Not today.", True)
    assert refused.ok
    assert "“Not today.”" in refused.text
    assert [denial.tool for denial in refused.permission_denials] == ["Bash"]
    approver.answer = Deny(stop=True)
    assert session.run("run a command", check=False).aborted


def test_what_is_remembered_is_not_asked_again(session: AgentSession, approver: Approver) -> None:
    approver.answer = Allow(remember=True)
    for _ in range(2):
        assert "The command was run." in session.run("run a command").text
    assert len(approver.asked) == 1


def test_an_edit_writes_a_note_and_then_changes_it(session: AgentSession, approver: Approver, tmp_path: Path) -> None:
    note = tmp_path / "demo-note.txt"
    approver.answer = False
    session.run("edit something")
    assert not note.exists()
    approver.answer = True
    session.run("edit something")
    session.run("write more")
    assert [request.tool_name for request in approver.asked] == ["Write", "Write", "Edit"]
    assert note.read_text().splitlines()[1:] == ["And here it was again."]


@pytest.mark.parametrize(
    ("mode", "asked"), [("default", 2), ("accept-edits", 1), ("bypass", 0)], ids=["default", "accept-edits", "bypass"]
)
def test_the_permission_mode_says_what_is_asked(
    session: AgentSession, approver: Approver, mode: PermissionMode, asked: int, tmp_path: Path
) -> None:
    session.set_permission_mode(mode)
    assert session.run("run a command").ok
    assert session.run("edit a file").ok
    assert len(approver.asked) == asked
    assert (tmp_path / "demo-note.txt").exists()


def test_read_only_has_no_tools_that_could_be_asked_about(
    session: AgentSession, approver: Approver, tmp_path: Path
) -> None:
    session.set_permission_mode("read-only")
    assert "only tools that read" in session.run("edit a file").text
    assert not approver.asked
    assert not (tmp_path / "demo-note.txt").exists()


def test_a_mode_and_a_model_can_be_changed_while_it_is_warm(session: AgentSession, approver: Approver) -> None:
    session.run("edit a file")
    pid = session.pid
    session.set_permission_mode("accept-edits")
    session.set_model("another")
    events, _ = finished(session.execute("edit a file"))
    assert (session.pid, len(approver.asked), codes(events)) == (pid, 1, [])


def test_a_question_is_asked_and_the_answer_reaches_it(session: AgentSession, approver: Approver) -> None:
    approver.answer = Allow(answers={"Which colour should the button have?": "Orange"})
    assert session.run("ask me something").text == "You answered: Which colour should the button have? Orange\n"
    (question,) = approver.asked[0].questions
    assert [option["label"] for option in question["options"]] == ["Blue", "Orange"]
    approver.answer = Allow()
    assert session.run("ask me something").text == "You did not answer.\n"


def test_an_interrupt_ends_the_turn_and_leaves_the_process(session: AgentSession) -> None:
    session.warm()
    pid = session.pid
    with session.start("demo:hang") as run:
        for event in run:
            if event.type == "tool_result":
                run.abort()
    assert run.result is not None
    assert run.result.aborted
    assert session.run("And now?").ok
    assert session.pid == pid


def test_further_words_are_answered_in_the_same_turn(session: AgentSession) -> None:
    with session.start("demo:wait") as run:
        for event in run:
            if isinstance(event, AgentTextEvent) and event.text.startswith("words."):
                run.steer("Also this.")
    assert run.result is not None
    assert run.result.text.endswith("You added: “Also this.” I have taken it in.\n")
    assert session.run("Next").text.startswith("This is turn 2")


def test_without_anybody_to_ask_it_is_refused(demo: CLIRuntimeBase, tmp_path: Path) -> None:
    result = demo.run("edit a file", working_directory=tmp_path)
    assert "not allowed" in result.text
    assert [denial.tool for denial in result.permission_denials] == ["Write"]
    assert not (tmp_path / "demo-note.txt").exists()
    assert "not allowed" not in demo.run("edit a file", working_directory=tmp_path, approve=lambda request: True).text


def test_a_session_survives_a_crash_that_was_asked_for(session: AgentSession) -> None:
    session.run("Hi")
    assert session.run("demo:crash", check=False).error_subtype == "crash"
    assert session.run("demo:fail", check=False).error_subtype == "overloaded"
    assert done(session.execute("And now?")).session_id == session.session_id


def test_markdown_arrives_as_it_is(session: AgentSession) -> None:
    text = session.run("Show me some markdown").text
    assert "| rows | 2 |" in text
    assert "```python\ndef answer() -> int:\n    return 6 * 7  # * and _ stay as they are\n```" in text
