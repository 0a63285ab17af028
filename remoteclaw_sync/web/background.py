"""Reads a run's events in a separate thread, so that a consumer can wait for the next one with a time limit.

An iterator blocks in `next()` for as long as the agent is silent, which is exactly when heartbeats are needed.
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
WAITING_EVENTS = 256  # Beyond this, output waits in the engine, which has its own limit.
END_PATIENCE = 5.0  # Seconds for the thread to notice that its run has ended; the engine's own limit is shorter.


@attrs.frozen
class Item:
    """An event on its way to a visitor."""

    number: int
    kind: str
    data: bytes


Next = Item | Literal["silence", "end"]
OnDone = Callable[[AgentRunResult], None]


class Source(Protocol):
    """Where a stream gets its items from."""

    def get(self, timeout: float) -> Next:
        """The next item; "silence" if none came in time, "end" after the last."""

    def close(self) -> None:
        """Stop: no more items are wanted."""


def as_run(events: Iterable[AgentEvent]) -> Iterator[AgentEvent]:
    """The run behind these events, if there is one, because another thread can end it during a wait."""
    # A generator that waits in one thread cannot be closed by another; its run can.
    return run_of(events) or iter(events)


class Overheard(Iterator[AgentEvent]):
    """A run that passes its result to a function before its consumer gets it. Otherwise it behaves like the run."""

    def __init__(self, events: Iterable[AgentEvent], on_done: OnDone) -> None:
        self.run = as_run(events)
        self._on_done = on_done

    def __next__(self) -> AgentEvent:
        event = next(self.run)
        if isinstance(event, AgentDoneEvent):
            try:
                self._on_done(event.result)
            except Exception as error:  # noqa: BLE001 - the site's own function; the visitor still gets the answer
                logger.error("on_done raised %s", type(error).__name__)
        return event

    def __getattr__(self, name: str) -> Any:
        return getattr(self.run, name)


def items(events: Iterable[AgentEvent]) -> Generator[Item, None, None]:
    """Number and encode the events. Always ends with a `done`, even if the iterator raises or leaves it out."""
    number = 0
    finished = False
    try:
        for event in events:
            number += 1
            yield item_of(number, event)
            finished = event.type == "done"
            if finished:
                return
    except Exception as error:  # noqa: BLE001 - a visitor must see an end
        # Without the original message, which may quote a secret.
        logger.error("the events of a stream raised %s", type(error).__name__)
        failure = AgentErrorEvent(f"the events ended with {type(error).__name__}", STREAM_FAILED)
        yield from ending(number, failure)
        return
    if not finished:
        # A run that was closed elsewhere, or a list without a `done`.
        yield from ending(number)


def ending(number: int, *errors: AgentErrorEvent) -> Iterator[Item]:
    """The last events, after that number, for a run that did not send its own `done`."""
    subtype: ErrorSubtype = "crash" if errors else "incomplete"
    last: tuple[AgentEvent, ...] = (*errors, AgentDoneEvent(AgentRunResult(error_subtype=subtype)))
    for event in last:
        number += 1
        yield item_of(number, event)


def item_of(number: int, event: AgentEvent) -> Item:
    """An event with its number."""
    return Item(number, event.type, as_json(event_dict(event)))


class Channel:
    """A bounded queue that either side can close. Waiting does not poll."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._items: deque[Item] = deque()
        self._ended = False
        self._closed = False

    def put(self, item: Item) -> bool:
        """Waits while the queue is full. Returns False if the item is no longer wanted."""
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
    """The events of one visitor's run. Nothing starts before the first `get()`; `close()` ends the run."""

    def __init__(self, events: Iterable[AgentEvent]) -> None:
        self.events = as_run(events)
        self.on_end: Callable[[], None] = (
            _nothing  # Called when nothing of the run is left; must not refer to the stream.
        )
        self._channel = Channel()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._owner = os.getpid()

    def get(self, timeout: float) -> Next:
        if self._owner != os.getpid():
            return "end"
        if self._thread is None and not self._closed:
            # The thread has no reference to this object or the stream, so that dropping them ends the run.
            self._thread = threading.Thread(
                target=_pump, args=(self.events, self._channel, self.on_end), name="remoteclaw-web", daemon=True
            )
            self._thread.start()
        return self._channel.get(timeout)

    def close(self) -> None:
        """End the run and wait, for a limited time, until nothing of it is left. Thread-safe; may be called twice.

        Does nothing in a forked copy: the run is the parent's, and a lock may have been held at the fork.
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
        pass  # A plain generator that another thread is running: that thread closes it afterwards.
    except Exception:
        logger.exception("a run could not be closed")


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
