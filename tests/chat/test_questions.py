"""Approvals that are asked for in the chat: who may answer, how, for how long, and what people see."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import (
    AgentDeliveryResult,
    AskInChat,
    ChannelBridge,
    ChannelMessage,
    ChatQuestion,
    CLIRuntimeBase,
    PermissionRequest,
    ReplyPayload,
    UnsupportedOperationError,
)
from remoteclaw_sync.chat.questions import MOST_SHOWN, Questions
from tests.engine.live import heard_by, runtime, steps
from tests.fakes import PATIENCE, FakeRuntime, wait_until

COMMAND = "rm -rf build"
RM = steps(["ask", "t1", "Bash", {"command": COMMAND, "description": "Clean up"}])
QUESTION = {
    "questions": [{"question": "Which colour?", "header": "C", "options": [{"label": "Red"}, {"label": "Blue"}]}]
}


def message(text: str, sender: str = "ann", chat: str = "c1") -> ChannelMessage:
    return ChannelMessage(text, provider="telegram", channel_id=chat, sender=sender)


class Chat:
    """A bridge, and the questions that it has asked."""

    def __init__(self, folder: Path, warm: int, **options: Any) -> None:
        self.asked: list[ChatQuestion] = []
        self.answers: list[str] = []
        self.may_send = threading.Event()
        self.may_send.set()
        how = AskInChat(self.send, **options)
        self.bridge = ChannelBridge(
            runtime(folder), session_map=":memory:", workspace_dir=folder, warm=warm, ask_in_chat=how
        )
        self._threads = ThreadPoolExecutor(4)

    def send(self, question: ChatQuestion) -> None:
        self.asked.append(question)
        self.may_send.wait(PATIENCE)

    @property
    def is_sent(self) -> bool:
        questions = self.bridge._questions
        return questions is not None and any(one.asked_at < math.inf for one in questions._open)

    def say(self, words: str, sender: str = "ann") -> Future[AgentDeliveryResult]:
        return self._threads.submit(self.bridge.handle, message(words, sender))

    def ask(self, prompt: str = RM, number: int = 1) -> tuple[Future[AgentDeliveryResult], ChatQuestion]:
        """Send a message that makes the agent ask; returns once this is the n-th question."""
        result = self.say(prompt)
        assert wait_until(lambda: (len(self.asked) == number and self.is_sent) or result.done())
        assert len(self.asked) == number, result.result()
        return result, self.asked[-1]

    def button(self, label: str) -> str:
        (data,) = [button.data for button in self.asked[-1].payloads[-1].buttons if button.label == label]
        return data

    def close(self) -> None:
        self.bridge.close()
        self._threads.shutdown()


Make = Callable[..., Chat]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    chats: list[Chat] = []

    def make(warm: int = 1, **options: Any) -> Chat:
        chats.append(Chat(tmp_path, warm, **options))
        return chats[-1]

    yield make
    for chat in chats:
        chat.close()


def was_made(result: Future[AgentDeliveryResult]) -> bool:
    return not result.result(30).run.permission_denials


# --- answers --------------------------------------------------------------------------------------------------


def test_the_question_says_what_is_to_be_run_and_a_button_allows_it(make: Make) -> None:
    chat = make()
    result, question = chat.ask()
    (payload,) = question.payloads
    assert payload.text == (
        f"The agent wants to use Bash:\n\ncommand: {COMMAND}\ndescription: Clean up\n\n"
        "Reply yes or no, or always (also for this same command from now on)."
    )
    assert [button.label for button in payload.buttons] == ["Allow", "Deny", "Always allow"]
    assert all(len(button.data.encode()) <= 64 for button in payload.buttons)
    assert (question.message.channel_id, question.request.tool_name) == ("c1", "Bash")
    assert chat.bridge.answer(chat.button("Allow"), "ann") is True
    assert was_made(result)
    assert chat.bridge.answer(chat.button("Allow"), "ann") is False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "is_yes"), [("yes", True), (" Y ", True), ("no", False), ("yes please", False), ("use make clean", False)]
)
def test_the_next_message_of_the_same_person_is_the_answer(words: str, is_yes: bool, make: Make) -> None:
    chat = make()
    result, _ = chat.ask()
    answer = chat.say(words).result(30)
    assert (answer.handled_as, answer.payloads, answer.error) == ("answer", (), None)
    assert was_made(result) is is_yes
    if words == "use make clean":
        assert result.result().run.permission_denials[0].reason == words


@pytest.mark.slow
@pytest.mark.parametrize("warm", [0, 1])
def test_always_holds_for_the_session_and_this_same_command(warm: int, make: Make) -> None:
    chat = make(warm=warm)
    result, _ = chat.ask()
    assert chat.bridge.answer(chat.button("Always allow"), "ann")
    assert was_made(result)
    if warm:
        assert was_made(chat.say(RM))
        assert len(chat.asked) == 1
        result, _ = chat.ask(steps(["ask", "t2", "Bash", {"command": "rm -rf /"}]), 2)
    else:
        result, _ = chat.ask(number=2)
    assert chat.bridge.answer(chat.button("Deny"), "ann")
    assert not was_made(result)


@pytest.mark.slow
def test_only_those_who_are_named_can_answer_by_button_or_by_message(make: Make) -> None:
    chat = make(warm=4, who=["owner"])
    result, _ = chat.ask()
    for stranger in ("ann", "eve", "", "Owner"):
        assert chat.bridge.answer(chat.button("Allow"), stranger) is False
    assert chat.say("yes", "eve").result(30).handled_as == "turn"
    # From the one who asked the agent: a message like any other, which waits for its turn.
    waiting = chat.say("yes")
    assert chat.say("what is going on?", "owner").result(30).handled_as == "turn"
    assert not result.done()
    assert chat.say("Yes", "owner").result(30).handled_as == "answer"
    assert was_made(result)
    assert waiting.result(30).payloads == (ReplyPayload("re: yes"),)


@pytest.mark.slow
def test_who_may_answer_can_be_a_function(make: Make) -> None:
    seen: list[tuple[str, str]] = []

    def who(question: ChatQuestion, sender: str) -> bool:
        seen.append((question.request.tool_name, sender))
        return sender == "owner"

    chat = make(who=who)
    result, _ = chat.ask()
    assert not chat.bridge.answer(chat.button("Deny"), "ann")
    assert chat.bridge.answer(chat.button("Deny"), "owner")
    assert not was_made(result)
    assert seen == [("Bash", "ann"), ("Bash", "owner")]


@pytest.mark.slow
def test_a_question_that_nobody_answers_in_time_is_a_no_and_later_answers_do_nothing(make: Make) -> None:
    chat = make(timeout=0.05)
    result, _ = chat.ask()
    assert not was_made(result)
    assert result.result().run.permission_denials[0].reason == "Nobody answered in time."
    assert chat.bridge.answer(chat.button("Allow"), "ann") is False
    assert chat.say("yes").result(30).payloads == (ReplyPayload("re: yes"),)


def test_a_question_waits_300_seconds_unless_something_else_is_said() -> None:
    assert AskInChat(print).timeout == 300


@pytest.mark.slow
def test_a_question_that_cannot_be_sent_is_a_no(make: Make, tmp_path: Path) -> None:
    def ask(question: ChatQuestion) -> None:
        raise ConnectionError("no network")

    where: dict[str, Any] = {"session_map": ":memory:", "workspace_dir": tmp_path}
    with ChannelBridge(runtime(tmp_path), warm=1, ask_in_chat=ask, **where) as bridge:
        result = bridge.handle(message(RM))
    assert (len(result.run.permission_denials), result.run.aborted) == (1, False)


@pytest.mark.slow
def test_abort_while_a_question_is_open_ends_the_run_without_the_call(make: Make) -> None:
    chat = make()
    result, _ = chat.ask()
    assert chat.bridge.abort(message("")) == 1
    assert result.result(30).run.aborted
    assert chat.bridge.answer(chat.button("Allow"), "ann") is False
    assert chat.say("hello").result(30).error is None


@pytest.mark.slow
def test_a_message_that_arrived_before_the_question_does_not_answer_it(make: Make) -> None:
    chat = make()
    first = chat._threads.submit(chat.bridge.handle, message(RM), turn=chat.bridge.arrive(message(RM)))
    early = chat.bridge.arrive(message("yes"))
    assert wait_until(lambda: len(chat.asked) == 1)
    later = chat._threads.submit(chat.bridge.handle, message("yes"), turn=early)
    conversation = chat.bridge.conversation(message(""))
    assert wait_until(lambda: len(chat.bridge._jobs.of(conversation)) == 2)
    assert not first.done()
    assert chat.bridge.answer(chat.button("Deny"), "ann")
    assert not was_made(first)
    assert later.result(30).payloads == (ReplyPayload("re: yes"),)


def test_a_message_that_comes_while_the_question_is_being_sent_does_not_answer_it(make: Make) -> None:
    chat = make()
    chat.may_send.clear()
    first = chat.say(RM)
    assert wait_until(lambda: len(chat.asked) == 1)
    later = chat.say("yes")
    conversation = chat.bridge.conversation(message(""))
    assert wait_until(lambda: len(chat.bridge._jobs.of(conversation)) == 2)
    chat.may_send.set()
    assert chat.bridge.answer(chat.button("Deny"), "ann")
    assert not was_made(first)
    assert later.result(30).payloads == (ReplyPayload("re: yes"),)


@pytest.mark.slow
def test_what_the_agent_asks_the_user_is_answered_by_a_button_a_number_or_words(make: Make) -> None:
    chat = make()
    prompt = steps(["ask", "t1", "AskUserQuestion", QUESTION])
    for number, (answer, chosen) in enumerate([("Red", "Red"), ("2", "Blue"), ("green", "green")], 1):
        result, question = chat.ask(prompt, number)
        assert question.payloads[-1].text == (
            "Which colour?\n1. Red\n2. Blue\n\nReply with a number, or in your own words."
        )
        if answer == "Red":
            assert chat.bridge.answer(chat.button("Red"), "ann")
        else:
            assert chat.say(answer).result(30).handled_as == "answer"
        assert was_made(result)
        assert any(chosen in json.dumps(line) for line in heard(chat))


def heard(chat: Chat) -> list[dict[str, Any]]:
    return [line for line in heard_by(Path(chat.bridge.workspace_dir)) if line["type"] == "control_response"]


# --- what people see ------------------------------------------------------------------------------------------


class NobodyAnswers:
    """A run that does not wait for an answer."""

    is_over = True

    def wait(self, seconds: float) -> None: ...
    def wake(self) -> None: ...


def shown(request: PermissionRequest, limit: int = 4000) -> tuple[ReplyPayload, ...]:
    asked: list[ChatQuestion] = []
    Questions(AskInChat(asked.append), limit, "characters").approver(message("hi"), NobodyAnswers())(request)
    return asked[0].payloads


def test_a_long_command_comes_in_several_messages_of_which_the_last_has_the_buttons() -> None:
    command = " && ".join(f"echo {number}" for number in range(200))
    payloads = shown(PermissionRequest("1", "Bash", input={"command": command}), limit=300)
    assert len(payloads) > 5
    assert [bool(payload.buttons) for payload in payloads] == [False] * (len(payloads) - 1) + [True]
    assert command.split()[-1] in "".join(payload.text or "" for payload in payloads)


def test_what_is_too_long_to_show_says_so() -> None:
    (*_, last) = shown(PermissionRequest("1", "Write", input={"content": "x" * (MOST_SHOWN + 1000)}))
    assert "more characters, which are not shown" in (last.text or "")


def test_characters_that_hide_what_is_run_are_shown_as_such() -> None:
    (payload,) = shown(PermissionRequest("1", "Bash", input={"command": "ls \u202e\x1b[2Kfr- mr\u200b"}))
    assert "ls \\u202e\\u001b[2Kfr- mr\\u200b" in (payload.text or "")


def test_a_command_that_is_not_text_cannot_be_allowed_for_good() -> None:
    (payload,) = shown(PermissionRequest("1", "shell", input={"command": ["rm", "-rf", "x"]}))
    assert [button.label for button in payload.buttons] == ["Allow", "Deny"]
    assert (payload.text or "").endswith('command: ["rm", "-rf", "x"]\n\nReply yes or no.')


# --- bad arguments --------------------------------------------------------------------------------------------


def test_bad_arguments_raise_when_they_are_given(tmp_path: Path) -> None:
    for bad in ({"ask": "telegram"}, {"ask": print, "who": "ann"}, {"ask": print, "who": [5]}):
        with pytest.raises(TypeError, match=list(bad)[-1]):
            AskInChat(**bad)
    with pytest.raises(ValueError, match="timeout"):
        AskInChat(print, timeout=-1)
    with pytest.raises(UnsupportedOperationError, match="no live sessions"):
        ChannelBridge(silent(), session_map=":memory:", workspace_dir=tmp_path, ask_in_chat=print)


def silent() -> CLIRuntimeBase:
    return FakeRuntime()
