"""The parts of OpenCode's messages in a live turn: text as it is streamed, tool calls from beginning to end."""

from __future__ import annotations

import attrs

from ...types import AgentEvent, AgentTextEvent, AgentThinkingEvent, AgentToolResultEvent, AgentToolUseEvent
from ...wire.fields import Message, integer, mapping, text
from .dialect import INVALID_TOOL, has_failed, output_of

WORDS: dict[str, type[AgentTextEvent | AgentThinkingEvent]] = {"text": AgentTextEvent, "reasoning": AgentThinkingEvent}
NO_RESULT = "(ended without a result)"


@attrs.define
class _Words:
    """A part that consists of text."""

    kind: str
    told: int = 0  # Characters reported so far.
    is_over: bool = False
    is_torn: bool = False  # Some of it was missed: the rest is reported when the part is complete.


@attrs.define
class _Call:
    """A tool call."""

    name: str
    input: Message
    parent: str | None
    is_over: bool = False


class TurnParts:
    """What has been reported of a turn. A part is sent again with every change, and may change before it is sent."""

    def __init__(self) -> None:
        self._words: dict[str, _Words] = {}
        self._calls: dict[str, _Call] = {}
        self._steps: set[str] = set()

    # --- words ----------------------------------------------------------------------------------------------

    def on_delta(self, part_id: str, delta: str) -> AgentEvent | None:
        """More text. That of an unknown part is reported when the part is complete."""
        words = self._words.get(part_id)
        if words is None or words.is_over or words.is_torn or not delta:
            return None
        words.told += len(delta)
        return WORDS[words.kind](delta)

    def on_words(self, part: Message) -> AgentEvent | None:
        """A text part, empty at first; at its end, the text that the deltas have left out."""
        words = self._words.setdefault(text(part, "id"), _Words(text(part, "type")))
        if words.is_over or not integer(mapping(part, "time"), "end"):
            return None
        words.is_over = True
        rest = text(part, "text")[words.told :]
        return WORDS[words.kind](rest) if rest else None

    def tear(self) -> None:
        """Events were missed."""
        for words in self._words.values():
            words.is_torn = True

    # --- tools ----------------------------------------------------------------------------------------------

    def on_tool(self, part: Message, parent: str | None) -> list[AgentEvent]:
        """A tool call, once its arguments are known, and its result."""
        state, call_id = mapping(part, "state"), text(part, "callID")
        status = text(state, "status")
        if status not in ("running", "completed", "error") or not call_id:
            return []
        events: list[AgentEvent] = []
        call = self._calls.get(call_id)
        if call is None:
            arguments, name = mapping(state, "input"), text(part, "tool")
            if name == INVALID_TOOL:
                name = text(arguments, "tool") or name
            call = self._calls[call_id] = _Call(name, arguments, parent)
            events.append(AgentToolUseEvent(name, call_id, arguments, parent))
        if status != "running" and not call.is_over:
            call.is_over = True
            events.append(AgentToolResultEvent(call_id, output_of(state), has_failed(part, state), call.parent))
        return events

    def call(self, call_id: str) -> tuple[str, Message] | None:
        """The name and the arguments of a call that has been reported."""
        call = self._calls.get(call_id)
        return None if call is None else (call.name, call.input)

    def close_calls(self) -> list[AgentEvent]:
        """Results for the calls that have none."""
        left = [(call_id, call) for call_id, call in self._calls.items() if not call.is_over]
        for _, call in left:
            call.is_over = True
        return [AgentToolResultEvent(call_id, NO_RESULT, True, call.parent) for call_id, call in left]

    # --- steps ----------------------------------------------------------------------------------------------

    def is_new_step(self, part: Message) -> bool:
        """Whether this beginning or end of a step has not been seen before."""
        part_id = text(part, "id")
        if part_id in self._steps:
            return False
        self._steps.add(part_id)
        return True
