"""Messages from OpenCode's server, as of 1.18.33: the text, tools and steps of a session and its sub-agents."""

from __future__ import annotations

import abc

from ... import errors
from ...engine.live_dialect import LiveDialect
from ...types import AgentErrorEvent, AgentEvent
from ...wire.fields import Message, mapping, text
from . import errors as reported
from .dialect import OpenCodeDialect
from .live_asks import Asks
from .live_parts import TurnParts

MOST_CUT_STEPS = 2  # OpenCode would ask again forever, without a pause.
CUT_ONCE = "the model's answer was cut off, and opencode asks for it again: its text may be repeated"
CUT_OFF = "the model's answer was cut off again and again"


class LiveMessages(LiveDialect, OpenCodeDialect, abc.ABC):
    """Reads messages and their parts. The subclass decides what becomes of the turn."""

    def __init__(self) -> None:
        super().__init__()
        self._told: list[AgentEvent] = []  # Events from the line that is being read.
        self._session: str | None = None
        self._parents: dict[str, str] = {}  # Sub-agents' sessions, and the calls that started them.
        self._messages: dict[str, Message] = {}
        self._old: set[str] = set()  # Messages of turns that are over.
        self._parts = TurnParts()
        self._asks = Asks(self._request, self._parents, self._told.append)
        self._failed: Message | None = None  # The error that ended the turn.
        self._cut_steps: dict[str, int] = {}

    def _forget_messages(self) -> None:
        """A new turn begins: messages of earlier turns that still arrive do not belong to it."""
        self._old.update(self._messages)
        self._messages.clear()
        self._messages_with_tools.clear()
        self._parts = TurnParts()
        self._failed = self._doubtful_error = None
        self._cut_steps.clear()

    @abc.abstractmethod
    def _request(self, method: str, then: object = None, body: object = None, limit: float | None = None) -> None:
        """Send this request to the server."""

    @abc.abstractmethod
    def _abort(self) -> None:
        """Have the server end the turn."""

    @abc.abstractmethod
    def _heard_of(self, info: Message) -> None:
        """A message of the session itself has arrived, not of a sub-agent's."""

    # --- messages -------------------------------------------------------------------------------------------

    def _is_root(self, properties: Message) -> bool:
        return self._session is not None and text(properties, "sessionID") == self._session

    def _on_message(self, properties: Message) -> None:
        info = mapping(properties, "info")
        name = text(info, "id")
        if not name or name in self._old:
            return
        self._messages[name] = info
        self._asks.note_agent(text(info, "sessionID"), text(info, "agent") or text(info, "mode"))
        if self._is_root(info):
            self._heard_of(info)

    def _is_answer(self, message: str) -> bool:
        """Whether a message's text is the agent's and for the user: not the prompt, and not OpenCode's own summary."""
        info = self._messages.get(message, {})
        return text(info, "role") == "assistant" and info.get("summary") is not True

    def _on_child(self, properties: Message) -> None:
        """A session was created or updated; it may be a sub-agent's."""
        info = mapping(properties, "info")
        if text(info, "parentID"):
            self._asks.children[text(info, "id")] = text(info, "parentID")

    # --- their parts ----------------------------------------------------------------------------------------

    def _on_delta(self, properties: Message) -> None:
        if not self._is_root(properties) or text(properties, "field") != "text":
            return
        if self._is_answer(text(properties, "messageID")):
            self._tell(self._parts.on_delta(text(properties, "partID"), text(properties, "delta")))

    def _on_part(self, properties: Message) -> None:
        part = mapping(properties, "part")
        kind, message = text(part, "type"), text(part, "messageID")
        if message in self._old:
            return
        if kind in ("text", "reasoning"):
            is_meant = not part.get("synthetic") and not part.get("ignored")
            if is_meant and self._is_root(part) and self._is_answer(message):
                self._tell(self._parts.on_words(part))
        elif kind == "tool":
            self._on_tool(part)
        elif kind == "step-start" and self._is_root(part):
            if self._parts.is_new_step(part):
                self.outcome.requests += 1
                self.outcome.asks_again = False
            self._on_step()
        elif kind == "step-finish" and self._parts.is_new_step(part):
            self._on_step_over(part)

    def _tell(self, event: AgentEvent | None) -> None:
        if event is not None:
            self._told.append(event)

    def _on_tool(self, part: Message) -> None:
        call_id, state = text(part, "callID"), mapping(part, "state")
        metadata = mapping(state, "metadata")
        if child := text(metadata, "sessionId"):
            self._parents[child] = call_id
        self._told += self._parts.on_tool(part, self._parents.get(text(part, "sessionID")))
        self._told += self._asks.on_call(call_id, self._parts.call(call_id))
        self._asks.note_call(text(part, "sessionID"), call_id, text(state, "status"))
        if text(state, "status") == "error" and call_id not in self._asks.refused:
            self._asks.refused.add(call_id)  # It may be reported again.
            self._note_tool(part, state)
        if not metadata.get("interrupted"):
            self._messages_with_tools.add(text(part, "messageID"))

    def _on_step(self) -> None:
        """The turn goes on, so a doubtful error was not fatal."""
        survived, self._doubtful_error = self._doubtful_error, None
        if survived is not None:
            self._tell(AgentErrorEvent(reported.message_of(survived), errors.CLI_WARNING))

    def _on_step_over(self, part: Message) -> None:
        reason, session, turns = text(part, "reason"), text(part, "sessionID"), self.outcome.num_turns
        self._count(part)
        if self._is_root(part):
            self.outcome.stop_reason = reason or None
            self.outcome.asks_again = reason == "tool-calls"
        else:
            self.outcome.num_turns = turns
        if reason != "unknown" or text(part, "messageID") in self._messages_with_tools:
            self._cut_steps.pop(session, None)
            return
        count = self._cut_steps[session] = self._cut_steps.get(session, 0) + 1
        if count < MOST_CUT_STEPS:
            self._tell(AgentErrorEvent(CUT_ONCE, errors.CLI_WARNING))
        elif self._failed is None:
            self._failed = {"name": "APIError", "data": {"message": CUT_OFF}}
            self.outcome.error_subtype = "network"
            self._abort()
