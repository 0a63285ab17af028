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

# Of the generators that `execute()` has given out. Weak, because dropping a generator has to end its run.
_turns: weakref.WeakKeyDictionary[object, Turn] = weakref.WeakKeyDictionary()


def remember(events: Generator[AgentEvent, None, None], turn: Turn) -> None:
    """Have `run_of` know this generator."""
    _turns[events] = turn


def run_of(events: object) -> AgentRun | None:
    """The handle of the run that this generator of `execute()` yields; None for any other iterable."""
    if not isinstance(events, Generator):
        return None
    turn = _turns.get(events)
    return None if turn is None else AgentRun(events, turn)


class AgentRun(Closeable, Iterator[AgentEvent]):
    """One run: iterate it for its events, use it as a context manager to be sure of its end.

    Nothing is started before the first event is asked for. `abort()`, `steer()` and `close()` may be called from any
    thread.
    """

    def __init__(self, events: Generator[AgentEvent, None, None], turn: Turn) -> None:
        self._events = events
        self._turn = turn
        # A generator that two threads enter raises ValueError: one waits here for the other. The same thread (a signal
        # handler that interrupts it in there) cannot wait for itself, and does get the ValueError.
        self._inside = threading.RLock()

    def __next__(self) -> AgentEvent:
        with self._inside:
            return next(self._events)

    @property
    def pid(self) -> int | None:
        """The CLI's process id; None before it is started."""
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
        """Whether somebody, or a clock, wants the run over. For an `approve` that waits."""
        return self._turn.is_ending

    def abort(self) -> None:
        """End the run: its consumer gets an `error` with code ABORTED, then `done`. Does not block.

        A live session stays usable: the CLI is interrupted, and ended only if that takes more than two seconds.
        """
        self._turn.request_end(EndReason.ABORTED)

    def steer(self, text: str, interrupt: bool = False) -> None:
        """Give a running turn of a live session further words; it goes on until the model has answered them.

        Where the CLI takes no further words, `interrupt=True` interrupts what it does and asks again with them, in the
        same run. Does not block. Raises UnsupportedOperationError if there is no such turn, or no way.
        """
        check_text("text", text)
        self._turn.steer(text, interrupt)

    def close(self) -> None:
        """End the run without another event and wait until its processes are gone (bounded, a second or two)."""
        self._turn.close()
        if self._inside.acquire(blocking=False):
            try:
                if not getattr(self._events, "gi_running", False):
                    self._events.close()
            finally:
                self._inside.release()
        # Else somebody (this thread, if a signal handler called) is inside the generator and finds the end there.
