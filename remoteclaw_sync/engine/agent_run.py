"""The handle of one run."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Generator, Iterator

from .._closeable import Closeable
from .._values import check_text
from ..process.ending import EndReason
from ..types import AgentEvent, AgentRunResult, Approve
from .turn import Turn

# The turns of the generators that `execute()` has returned. Weak, because dropping a generator has to end its run.
_turns: weakref.WeakKeyDictionary[object, Turn] = weakref.WeakKeyDictionary()


def remember(events: Generator[AgentEvent, None, None], turn: Turn) -> None:
    """Register this generator for `run_of`."""
    _turns[events] = turn


def run_of(events: object) -> AgentRun | None:
    """The handle of the run whose events this generator of `execute()` yields; None for any other iterable."""
    if not isinstance(events, Generator):
        return None
    turn = _turns.get(events)
    return None if turn is None else AgentRun(events, turn)


class AgentRun(Closeable, Iterator[AgentEvent]):
    """One run: iterate over it for its events, and use it as a context manager to be sure that it ends.

    Nothing is started before the first event is asked for. `abort()`, `steer()` and `close()` may be called from any
    thread.
    """

    def __init__(self, events: Generator[AgentEvent, None, None], turn: Turn) -> None:
        self._events = events
        self._turn = turn
        # A generator raises ValueError if two threads enter it, so the second waits here for the first. The same thread
        # (a signal handler that interrupts it in there) cannot wait for itself, and does get the ValueError.
        self._inside = threading.RLock()

    def __next__(self) -> AgentEvent:
        with self._inside:
            return next(self._events)

    @property
    def pid(self) -> int | None:
        """The CLI's process id; None before the CLI is started."""
        return self._turn.pid

    @property
    def result(self) -> AgentRunResult | None:
        """The summary, once the run has ended; None before."""
        return self._turn.result

    @property
    def approve(self) -> Approve | None:
        """The function that decides on tool calls."""
        return self._turn.approve

    @property
    def is_ending(self) -> bool:
        """Whether somebody, or a clock, has asked for the run to end. For an `approve` that waits."""
        return self._turn.is_ending

    def abort(self) -> None:
        """End the run: its consumer gets an `error` with code ABORTED, then `done`. Does not block.

        A live session stays usable: the CLI is interrupted, and its process is ended only if that takes more than two
        seconds.
        """
        self._turn.request_end(EndReason.ABORTED)

    def steer(self, text: str, interrupt: bool = False) -> None:
        """Add text to a running turn of a live session; the turn goes on until the model has answered it.

        If the CLI cannot take text during a turn, `interrupt=True` interrupts it and asks again with the text, in the
        same run. Does not block. Raises UnsupportedOperationError if no such turn is running, or the CLI cannot do it.
        """
        check_text("text", text)
        self._turn.steer(text, interrupt)

    def close(self) -> None:
        """End the run without further events and wait until its processes are gone (bounded: a second or two)."""
        self._turn.close()
        if self._inside.acquire(blocking=False):
            try:
                if not getattr(self._events, "gi_running", False):
                    self._events.close()
            finally:
                self._inside.release()
        # Otherwise a thread (this one, if a signal handler called us) is inside the generator and ends it there.
