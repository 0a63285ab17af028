"""A run's events through a thread of its own, so that whoever waits for the next can wait for a bounded time.

An iterator blocks in `next()` for as long as the agent is silent, and a heartbeat is due just then.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Literal, Protocol

import attrs

from ..engine.agent_run import run_of
from ..types import AgentDoneEvent, AgentErrorEvent, AgentEvent, AgentRunResult, ErrorSubtype
from .sse import as_json, event_dict

logger = logging.getLogger(__name__)

STREAM_FAILED = "STREAM_FAILED"  # Code of the error when the events' own iterator raises.
WAITING_EVENTS = 256  # Beyond it the engine keeps what the agent says, which has a bound of its own.
END_PATIENCE = 5.0  # Seconds for the thread to see that its run has ended; the engine's own bound is below that.


@attrs.frozen
class Item:
    """An event on its way to a visitor."""

    number: int
    kind: str
    data: bytes


Next = Item | Literal["silence", "end"]


class Source(Protocol):
    """Where a stream gets its items from."""

    def get(self, timeout: float) -> Next:
        """The next item; "silence" if none came in time, "end" after the last."""

    def close(self) -> None:
        """Nobody wants more."""


def as_run(events: Iterable[AgentEvent]) -> Iterator[AgentEvent]:
    """The events as something that another thread can end while they are waited for, where that is possible."""
    # A generator that waits in one thread cannot be closed by another; its run can.
    return run_of(events) or iter(events)


def items(events: Iterable[AgentEvent]) -> Generator[Item, None, None]:
    """Number and encode them. Ends with a `done`, also if the iterator raises or forgets it."""
    number = 0
    finished = False
    try:
        for event in events:
            number += 1
            yield Item(number, event.type, as_json(event_dict(event)))
            finished = event.type == "done"
            if finished:
                return
    except Exception as error:  # noqa: BLE001 - a visitor must see an end
        # Not its message: that is for the log of whoever runs the server, and may quote a secret.
        logger.error("the events of a stream raised %s", type(error).__name__)
        failure = AgentErrorEvent(f"the events ended with {type(error).__name__}", STREAM_FAILED)
        yield from _ending(number, failure)
        return
    if not finished:
        # A run that was closed elsewhere, or a list without one.
        yield from _ending(number)


def _ending(number: int, *errors: AgentErrorEvent) -> Iterator[Item]:
    subtype: ErrorSubtype = "crash" if errors else "incomplete"
    ending: tuple[AgentEvent, ...] = (*errors, AgentDoneEvent(AgentRunResult(error_subtype=subtype)))
    for event in ending:
        number += 1
        yield Item(number, event.type, as_json(event_dict(event)))


class Channel:
    """A bounded queue with an end on both sides; waiting costs nothing."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._items: deque[Item] = deque()
        self._ended = False
        self._closed = False

    def put(self, item: Item) -> bool:
        """False if nobody wants it any more. Waits while there are too many."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < WAITING_EVENTS)
            if not self._closed:
                self._items.append(item)
                self._changed.notify_all()
            return not self._closed

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()

    def get(self, timeout: float) -> Next:
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._ended or self._closed, timeout)
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            return "end" if self._ended or self._closed else "silence"


class Pump:
    """The events of one visitor's run. Nothing is started before the first `get()`; `close()` ends the run."""

    def __init__(self, events: Iterable[AgentEvent]) -> None:
        self.events = as_run(events)
        self.on_end: Callable[[], None] = _nothing  # Called once nothing of the run is left; knows not the stream.
        self._channel = Channel()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._owner = os.getpid()

    def get(self, timeout: float) -> Next:
        if self._owner != os.getpid():
            return "end"
        if self._thread is None and not self._closed:
            # The thread knows neither this object nor the stream, so that dropping those ends the run.
            self._thread = threading.Thread(
                target=_pump, args=(self.events, self._channel, self.on_end), name="remoteclaw-web", daemon=True
            )
            self._thread.start()
        return self._channel.get(timeout)

    def close(self) -> None:
        """End the run and wait (bounded) until nothing of it is left. From any thread; again does nothing.

        Nor in a forked copy: the run is the original's, and a lock may have been held while the fork was made.
        """
        self._closed = True
        if self._owner != os.getpid():
            return
        self._channel.close()
        end(self.events)
        if self._thread is None:
            self.on_end()
        elif self._thread is not threading.current_thread():
            self._thread.join(END_PATIENCE)


def _nothing() -> None:
    pass


def end(events: Any) -> None:
    """Close an iterator that may be in use by another thread."""
    close = getattr(events, "close", None)
    if close is None:
        return
    try:
        close()
    except ValueError:
        pass  # A plain generator that another thread is in: that thread closes it when it comes out.


def _pump(events: Iterator[AgentEvent], channel: Channel, on_end: Callable[[], None]) -> None:
    try:
        numbered = items(events)
        for item in numbered:
            if not channel.put(item):
                break
        end(events)
    finally:
        channel.end()
        on_end()
