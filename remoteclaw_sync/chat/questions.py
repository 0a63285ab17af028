"""Approvals that are asked for in the chat. Fail closed: only a clear yes by somebody who may give it is a yes."""

from __future__ import annotations

import contextlib
import hmac
import json
import math
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Protocol, TypeAlias

import attrs

from .._values import check_seconds, check_strings
from ..engine.approval import COMMAND_KEYS
from ..types import Allow, Approve, ChannelMessage, Deny, PermissionRequest, ReplyButton, ReplyPayload
from .delivery import LengthUnit, split_text

DEFAULT_PATIENCE = 300.0  # Seconds for an answer.
LOOK_AGAIN = 1.0  # Seconds between checks that the run still waits.
MOST_SHOWN = 16_000  # Characters of a call that are shown.
NOBODY = "Nobody answered in time."
YES, ALWAYS, NO = frozenset({"y", "yes"}), frozenset({"a", "always"}), frozenset({"n", "no"})

Who: TypeAlias = Callable[["ChatQuestion", str], bool] | Collection[str] | None


@attrs.frozen
class ChatQuestion:
    """A question from the agent to the people in a conversation.

    Args:
        message: the message that the agent is working on.
        request: what the agent asks.
        payloads: the question as messages to send, in order; the last one has the buttons. Where there are no buttons,
            people answer with a message, as the text of the question explains.
    """

    message: ChannelMessage
    request: PermissionRequest
    payloads: tuple[ReplyPayload, ...]


@attrs.frozen
class AskInChat:
    """How a bridge lets people decide on the agent's tool calls.

    Args:
        ask: sends the question to its conversation. Called in the thread of `handle()`; if it raises, the call is
            refused.
        who: whose answers count: ids of senders, or a function of the question and a sender's id. None: only the
            sender of the message that the agent is working on.
        timeout: seconds after which an unanswered question counts as a refusal.
    """

    ask: Callable[[ChatQuestion], object]
    who: Who = None
    timeout: float | None = DEFAULT_PATIENCE

    def __attrs_post_init__(self) -> None:
        if not callable(self.ask):
            raise TypeError(f"ask must be a function of a ChatQuestion, not {type(self.ask).__name__}")
        if isinstance(self.who, str):
            raise TypeError("who must be a collection of senders' ids, not one str")
        if self.who is not None and not callable(self.who):
            check_strings("who", tuple(self.who))
        check_seconds("timeout", self.timeout)

    def may_answer(self, question: ChatQuestion, sender: str) -> bool:
        """Whether this person's answer counts."""
        if self.who is None:
            return sender == question.message.sender
        return self.who(question, sender) is True if callable(self.who) else sender in self.who


class Waiting(Protocol):
    """The run that waits for an answer."""

    @property
    def is_over(self) -> bool: ...
    def wait(self, seconds: float) -> object: ...
    def wake(self) -> None: ...


@attrs.define(eq=False)
class _Open:
    """A question that waits for its answer: the choice of a button, or words."""

    question: ChatQuestion
    token: str
    run: Waiting
    asked_at: float = math.inf  # When it had been sent. An earlier "yes" is about something else.
    answer: str | None = None


class Questions:
    """The open questions of a bridge."""

    def __init__(self, how: AskInChat, limit: int, unit: LengthUnit) -> None:
        self._how = how
        self._limit, self._unit = limit, unit
        self._lock = threading.RLock()
        self._open: list[_Open] = []

    def approver(self, message: ChannelMessage, run: Waiting) -> Approve:
        """A function that asks the people in this message's conversation."""

        def approve(request: PermissionRequest) -> Allow | Deny:
            if request.questions:
                return self._put_questions(message, request, run)
            always = "" if _has_odd_command(request) else _what_always_means(request)
            choices = {"yes": "Allow", "no": "Deny"} | ({"always": "Always allow"} if always else {})
            how = f"Reply yes or no{f', or always ({always})' if always else ''}."
            return _decision(self._ask(message, request, _about(request), how, choices, run))

        return approve

    def _put_questions(self, message: ChannelMessage, request: PermissionRequest, run: Waiting) -> Allow | Deny:
        answers: dict[str, str] = {}
        for question in request.questions:
            labels = _labels(question)
            words = [str(question.get("question")), *(f"{number}. {label}" for number, label in enumerate(labels, 1))]
            how = "Reply with a number, or in your own words." if labels else "Reply in your own words."
            choices = {str(number): label for number, label in enumerate(labels, 1)}
            answer = self._ask(message, request, "\n".join(words), how, choices, run)
            if answer is None:
                return Deny(NOBODY)
            answers[str(question.get("question"))] = choices.get(answer.strip(), answer)
        return Allow(answers=answers)

    def _ask(
        self,
        message: ChannelMessage,
        request: PermissionRequest,
        text: str,
        how: str,
        choices: Mapping[str, str],
        run: Waiting,
    ) -> str | None:
        """The answer: one of the choices, or other words; None if nobody answered in time. Blocks."""
        token = secrets.token_urlsafe(9)
        buttons = tuple(ReplyButton(label, f"{token}:{choice}") for choice, label in choices.items())
        *before, last = split_text(f"{_visible(text)}\n\n{how}", self._limit, self._unit)
        payloads = (*(ReplyPayload(part) for part in before), ReplyPayload(last, buttons=buttons))
        opened = _Open(ChatQuestion(message, request, payloads), token, run)
        with self._lock:
            self._open.append(opened)
        try:
            self._how.ask(opened.question)
            opened.asked_at = time.monotonic()
            due = None if self._how.timeout is None else time.monotonic() + self._how.timeout
            while opened.answer is None and not run.is_over:
                left = LOOK_AGAIN if due is None else min(due - time.monotonic(), LOOK_AGAIN)
                if left <= 0:
                    break
                run.wait(left)
        finally:
            with self._lock:
                self._open = [one for one in self._open if one is not opened]
        return opened.answer

    # --- answers ----------------------------------------------------------------------------------------------

    def press(self, data: str, sender: str) -> bool:
        """Whether pressing the button with this data answered an open question."""
        token, _, choice = data.partition(":")
        with self._lock:
            for opened in self._open:
                same = hmac.compare_digest(opened.token.encode(), token.encode(errors="replace"))
                offered = any(button.data == data for button in opened.question.payloads[-1].buttons)
                if same and offered and self._may_answer(opened, sender):
                    return self._settle(opened, choice)
        return False

    def take(self, message: ChannelMessage, arrived_at: float) -> bool:
        """Whether this message answers an open question. It must have arrived after the question was asked."""
        with self._lock:
            here = [
                opened
                for opened in self._open
                if _place(opened.question.message) == _place(message)
                and opened.asked_at <= arrived_at
                and self._may_answer(opened, message.sender)
            ]
            own = [opened for opened in here if opened.question.message.sender == message.sender]
            if own:
                return self._settle(own[0], message.text)
            # From others, only what cannot mean anything else, and only if it is clear which question it answers.
            is_clear = message.text.strip().lower() in YES | NO | ALWAYS
            return is_clear and len(here) == 1 and self._settle(here[0], message.text)

    def _may_answer(self, opened: _Open, sender: str) -> bool:
        return opened.answer is None and self._how.may_answer(opened.question, sender)

    def _settle(self, opened: _Open, answer: str) -> bool:
        opened.answer = answer
        opened.run.wake()
        return True


def _place(message: ChannelMessage) -> tuple[str, str, str]:
    return message.provider, message.channel_id, message.thread_id or ""


def _decision(answer: str | None) -> Allow | Deny:
    if answer is None:
        return Deny(NOBODY)
    words = answer.strip()
    if words.lower() in YES:
        return Allow()
    if words.lower() in ALWAYS:
        return Allow(remember=True)
    return Deny("" if words.lower() in NO else words)


# --- what people are shown -----------------------------------------------------------------------------------


def _about(request: PermissionRequest) -> str:
    """Who wants to do what: all of it, unless it is very long; then the text says how much is missing."""
    whose = "A sub-agent" if request.parent_tool_use_id else "The agent"
    parts = [f"{whose} wants to use {request.tool_name or 'a tool'}:", "\n".join(_arguments(request.input))]
    if request.reason:
        parts.append(f"Reason: {request.reason}")
    text = "\n\n".join(part for part in parts if part)
    hidden = len(text) - MOST_SHOWN
    return text if hidden <= 0 else f"{text[:MOST_SHOWN]}\n\n... and {hidden} more characters, which are not shown"


def _arguments(arguments: Mapping[str, Any]) -> Iterator[str]:
    # The command first: it is what people decide on.
    for name in sorted(arguments, key=lambda name: name not in COMMAND_KEYS):
        value = arguments[name]
        yield f"{name}: {value if isinstance(value, str) else _as_json(value)}"


def _as_json(value: Any) -> str:
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


def _visible(text: str) -> str:
    """The text with characters that hide or reverse it shown as escapes."""
    return "".join(one if one.isprintable() or one in "\n\t" else f"\\u{ord(one):04x}" for one in text)


def _has_odd_command(request: PermissionRequest) -> bool:
    return any(not isinstance(request.input[key], str) for key in COMMAND_KEYS if key in request.input)


def _what_always_means(request: PermissionRequest) -> str:
    if any(key in request.input for key in COMMAND_KEYS):
        return "also for this same command from now on"
    return f"also for all further calls of {request.tool_name}"


def _labels(question: Mapping[str, Any]) -> list[str]:
    options = question.get("options")
    return [str(option.get("label")) for option in options or () if isinstance(option, Mapping)]
