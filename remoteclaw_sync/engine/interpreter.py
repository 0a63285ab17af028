"""How a run reads what its CLI writes: from blocks of whole lines to events. Fed, never connected."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from .. import errors
from ..types import AgentErrorEvent, AgentEvent

logger = logging.getLogger(__name__)

Extracted = AgentEvent | Iterable[AgentEvent] | None  # What a hook makes of a line.
Handler = Callable[[Any], Extracted]


@attrs.frozen
class Interpreter:
    """The one way from lines to events, for runs and for tests.

    `parse` makes an item of each line and knows nothing of the run. Items are then taken one after the other, each
    when its turn has come: an object by the handler of its `type`, if there is one, everything else by `otherwise`.
    `owner` is whose hooks these are.
    """

    owner: str
    parse: Callable[[bytes], list[Any]]
    otherwise: Handler
    handlers: Mapping[str, Handler] = {}

    def events(self, block: bytes) -> list[AgentEvent]:
        """What these lines mean."""
        return [event for item in self.parse(block) for event in self.events_of(item)]

    def events_of(self, item: Any) -> Sequence[AgentEvent]:
        """What an item means. A hook's mistake is an event too, for the run goes on."""
        handler = self.otherwise
        if type(item) is dict:
            kind = item.get("type")
            if type(kind) is str:
                handler = self.handlers.get(kind, handler)
        try:
            extracted = handler(item)
        except Exception as error:  # noqa: BLE001 - whatever a hook raises
            return (hook_failure(self.owner, error),)
        if extracted is None:
            return ()
        return (extracted,) if isinstance(extracted, AgentEvent) else _each_of(self.owner, extracted)


def _each_of(owner: str, extracted: Iterable[AgentEvent]) -> list[AgentEvent]:
    """One by one: those that come before an exception are kept."""
    events: list[AgentEvent] = []
    try:
        if isinstance(extracted, str | bytes | Mapping):
            raise TypeError(f"a {type(extracted).__name__} is not an event")
        for event in extracted:
            if not isinstance(event, AgentEvent):
                raise TypeError(f"a {type(event).__name__} is not an event")
            events.append(event)
    except Exception as error:  # noqa: BLE001 - whatever a hook's generator raises
        events.append(hook_failure(owner, error))
    return events


def hook_failure(owner: str, error: Exception) -> AgentErrorEvent:
    """The event that tells of a mistake in `extract_event`."""
    logger.warning("extract_event of %s raised %s", owner, type(error).__name__)
    return AgentErrorEvent(f"extract_event raised {type(error).__name__}: {error}", errors.EXTRACT_EVENT_FAILED)
