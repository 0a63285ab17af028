"""The handle of one run."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Generator, Iterator
from types import TracebackType

from ..process.child import ChildProcess
from ..process.ending import EndReason
from ..types import AgentEvent, AgentRunResult


class RunControl:
    """What a run's generator and its handle share. Holds no reference to either, so that dropping them ends the run."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._wanted_end: EndReason | None = None
        self._child: ChildProcess | None = None
        self.result: AgentRunResult | None = None

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def wanted_end(self) -> EndReason | None:
        """What was asked for first, perhaps before there was a child."""
        return self._wanted_end

    def attach(self, child: ChildProcess) -> None:
        """From now on requests go to this child; one that came before is passed on."""
        with self._lock:
            self._child = child
            if self._wanted_end is not None:
                child.request_end(self._wanted_end)

    def request_end(self, reason: EndReason) -> None:
        """Have the run ended, from any thread. Does not block."""
        with self._lock:
            if self._wanted_end is None:
                self._wanted_end = reason
            if self._child is not None:
                self._child.request_end(reason)

    def close(self) -> None:
        """End the run and wait until nothing of it is left."""
        self.request_end(EndReason.CLOSED)
        if self._child is not None:
            self._child.close()


# Of the generators that `execute()` has given out. Weak, because dropping a generator has to end its run.
_controls: weakref.WeakKeyDictionary[object, RunControl] = weakref.WeakKeyDictionary()


def remember(events: Generator[AgentEvent, None, None], control: RunControl) -> None:
    """Have `run_of` know this generator."""
    _controls[events] = control


def run_of(events: object) -> AgentRun | None:
    """The handle of the run that this generator of `execute()` yields; None for any other iterable."""
    if not isinstance(events, Generator):
        return None
    control = _controls.get(events)
    return None if control is None else AgentRun(events, control)


class AgentRun(Iterator[AgentEvent]):
    """One run: iterate it for its events, use it as a context manager to be sure of its end.

    Nothing is started before the first event is asked for. `abort()` and `close()` may be called from any thread.
    """

    def __init__(self, events: Generator[AgentEvent, None, None], control: RunControl) -> None:
        self._events = events
        self._control = control
        # A generator that two threads enter raises ValueError: one waits here for the other. The same thread (a signal
        # handler that interrupts it in there) cannot wait for itself, and does get the ValueError.
        self._inside = threading.RLock()

    def __next__(self) -> AgentEvent:
        with self._inside:
            return next(self._events)

    def __enter__(self) -> AgentRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The CLI's process id; None before it is started."""
        return self._control.pid

    @property
    def result(self) -> AgentRunResult | None:
        """The summary, once the run has ended; None before."""
        return self._control.result

    def abort(self) -> None:
        """End the run: its consumer gets an `error` with code ABORTED, then `done`. Does not block."""
        self._control.request_end(EndReason.ABORTED)

    def close(self) -> None:
        """End the run without another event and wait until its processes are gone (bounded, a second or two)."""
        self._control.close()
        if self._inside.acquire(blocking=False):
            try:
                if not getattr(self._events, "gi_running", False):
                    self._events.close()
            finally:
                self._inside.release()
        # Else somebody (this thread, if a signal handler called) is inside the generator and finds the end there.
