"""Tools with which an agent can contact people itself, and a record of what it did with them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import attrs

from .._values import Value, as_tuple
from ..types import McpMessageTarget, McpSideEffects
from .tools import Tool, tool

MESSAGE_TOOL = "message"
CRON_TOOL = "cron"


@attrs.frozen(kw_only=True)
class OutgoingMessage(Value):
    """A message that the agent wants to send. `to` is None for the conversation it is in."""

    text: str = ""
    media_urls: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    provider: str = ""
    to: str | None = None
    thread_id: str | None = None
    account_id: str | None = None


@attrs.frozen(kw_only=True)
class CronJob(Value):
    """Something that the agent wants done later: a prompt, at times given by a schedule."""

    schedule: str
    prompt: str
    name: str | None = None
    provider: str = ""
    to: str | None = None
    thread_id: str | None = None


class GatewayTools:
    """Gives an agent the tools `message` and `cron`, backed by the caller's functions.

    Each function is called in a thread of the host, perhaps several times at once. Its return value (if not None) is
    passed to the model. If it raises, the tool call fails and nothing is recorded.

    Args:
        send_message: sends an OutgoingMessage. Without it the agent has no `message` tool.
        add_cron: takes a CronJob. Without it the agent has no `cron` tool.
        provider, to, thread_id, account_id: the conversation the agent is in, to which its messages go by default.
    """

    def __init__(
        self,
        send_message: Callable[[OutgoingMessage], Any] | None = None,
        add_cron: Callable[[CronJob], Any] | None = None,
        *,
        provider: str = "",
        to: str | None = None,
        thread_id: str | None = None,
        account_id: str | None = None,
    ) -> None:
        self._send_message = send_message
        self._add_cron = add_cron
        self._provider = provider
        self._to = to
        self._thread_id = thread_id
        self._account_id = account_id
        self._lock = threading.Lock()
        self._sent: list[tuple[OutgoingMessage, bool]] = []  # True if it was sent to this conversation.
        self._cron_adds = 0

    def bind(
        self, *, provider: str = "", to: str | None = None, thread_id: str | None = None, account_id: str | None = None
    ) -> GatewayTools:
        """The same tools for one run in this conversation, with their own record."""
        return type(self)(
            self._send_message,
            self._add_cron,
            provider=provider,
            to=to,
            thread_id=thread_id,
            account_id=account_id if account_id is not None else self._account_id,
        )

    def tools(self) -> Iterable[Tool]:
        """The tools for which there is a function."""
        if self._send_message is not None:
            yield tool(self._message, name=MESSAGE_TOOL)
        if self._add_cron is not None:
            yield tool(self._cron, name=CRON_TOOL)

    def texts_sent_here(self) -> tuple[str, ...]:
        """What was sent to this conversation since the last `drain()`."""
        with self._lock:
            return tuple(message.text for message, here in self._sent if here and message.text)

    def drain(self) -> McpSideEffects:
        """What the tools did since the last `drain()`."""
        with self._lock:
            sent, self._sent = self._sent, []
            cron_adds, self._cron_adds = self._cron_adds, 0
        messages = [message for message, _ in sent]
        return McpSideEffects(
            sent_texts=tuple(message.text for message in messages if message.text),
            sent_media_urls=tuple(url for message in messages for url in message.media_urls),
            sent_targets=tuple(
                McpMessageTarget(MESSAGE_TOOL, message.provider, message.account_id, message.to) for message in messages
            ),
            cron_adds=cron_adds,
        )

    def _message(
        self,
        text: Annotated[str, "What to say."] = "",
        to: Annotated[str | None, "Chat, channel or person to send it to; leave out for this conversation."] = None,
        provider: Annotated[str | None, "Messaging service of `to`, for example telegram; default: this one."] = None,
        media_urls: Annotated[list[str] | None, "URLs of pictures or files to send along."] = None,
    ) -> str:
        """Send a message to a person or a channel, now. Your final answer is delivered anyway: do not send it here."""
        assert self._send_message is not None
        media = tuple(media_urls or ())
        if not text.strip() and not media:
            raise ValueError("nothing to send: give text or media_urls")
        here = provider in (None, "", self._provider) and to in (None, "", self._to)
        message = OutgoingMessage(
            text=text,
            media_urls=media,
            provider=provider or self._provider,
            to=to or self._to,
            thread_id=self._thread_id if here else None,
            account_id=self._account_id,
        )
        answer = self._send_message(message)
        with self._lock:
            self._sent.append((message, here))
        return "sent" if answer is None else answer

    def _cron(
        self,
        schedule: Annotated[str, "When: a cron expression, or a time in ISO 8601 for once."],
        prompt: Annotated[str, "What you want to be asked at that time."],
        name: Annotated[str | None, "A short name for it."] = None,
    ) -> str:
        """Have yourself asked something later, once or regularly; the answer goes to this conversation."""
        assert self._add_cron is not None
        job = CronJob(
            schedule=schedule,
            prompt=prompt,
            name=name,
            provider=self._provider,
            to=self._to,
            thread_id=self._thread_id,
        )
        answer = self._add_cron(job)
        with self._lock:
            self._cron_adds += 1
        return "added" if answer is None else answer
