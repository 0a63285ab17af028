"""What a run needs outside its process, and the waiting for it."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from types import TracebackType

from ..process.ending import EndReason
from ..process.launch import Loan

logger = logging.getLogger(__name__)

# Kept, for the `finally` of a context manager runs when it is collected.
_left_to_the_original: list[contextlib.ExitStack[None]] = []


class GivenUp(Exception):
    """The run is to end before it has begun."""

    def __init__(self, reason: EndReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class RunResources(contextlib.ExitStack[None]):
    """Unwound when the CLI is gone. `borrow` is for what can be returned sooner."""

    def __init__(self, wanted_end: threading.Event, abort_signal: threading.Event | None, due: float | None) -> None:
        super().__init__()
        self._wanted_end = wanted_end
        self._abort_signal = abort_signal
        self._due = due
        self._owner = os.getpid()
        self.loans: list[Loan] = []
        self.failure: str | None = None  # What could not be cleaned up, in words.

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if os.getpid() != self._owner:
            _left_to_the_original.append(self)  # A forked copy of the host: the run and its files are the original's.
            return
        try:
            super().__exit__(kind, error, traceback)
        except Exception as failure:  # noqa: BLE001 - the run has ended, and says so whatever happens here
            logger.error("cleaning up after a run failed: %s", type(failure).__name__)
            self.failure = f"cleaning up after the run failed: {type(failure).__name__}: {failure}"

    def borrow(self, loan: Loan) -> None:
        """Have this returned as soon as the CLI has no more need of it, and in any case at the end."""
        self.loans.append(loan)
        self.callback(loan.give_back)

    def time_left(self) -> float | None:
        """Seconds until the run's deadline; None if it has none."""
        return None if self._due is None else max(self._due - time.monotonic(), 0.001)

    def pause(self, seconds: float) -> None:
        """Sleep for a moment while waiting for something. Raises GivenUp when the run is to end."""
        if self._due is not None and time.monotonic() >= self._due:
            raise GivenUp(EndReason.DEADLINE)
        if self._abort_signal is not None and self._abort_signal.is_set():
            raise GivenUp(EndReason.ABORTED)
        if self._wanted_end.wait(seconds):
            raise GivenUp(EndReason.CLOSED)
