"""What a run needs outside its process, and waiting for it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from types import TracebackType

from .. import files
from ..process.ending import EndLatch, EndReason
from ..process.launch import Loan

logger = logging.getLogger(__name__)


class GivenUp(Exception):
    """The run was ended before it began."""

    def __init__(self, reason: EndReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class RunResources(contextlib.ExitStack[None]):
    """Filled before the CLI is started and unwound when it is gone, both in the supervisor's thread (see setup.py).
    `borrow` is for things that can be returned sooner."""

    def __init__(self, ending: EndLatch, due: float | None) -> None:
        super().__init__()
        self._ending = ending
        self._due = due
        self.loans: list[Loan] = []
        self.functions: Mapping[str, tuple[str, ...]] = {}  # The caller's functions, by the server that offers them.
        self.after_interrupt: list[Callable[[], None]] = []  # Called when a turn was interrupted and the CLI stays.
        self.failure: str | None = None  # What could not be cleaned up, in words.

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, traceback)
        except BaseException as failure:  # noqa: BLE001 - the run has ended, and says so whatever happens here
            logger.error("cleaning up after a run failed: %s", type(failure).__name__)
            self.failure = f"cleaning up after the run failed: {type(failure).__name__}: {failure}"

    def temporary_file(self, suffix: str, data: bytes) -> str:
        """The path of a private file with this content, which exists until the CLI is gone."""
        path = files.new_file(files.temporary_folder(), suffix, data)
        self.callback(files.remove, path)
        return path

    def temporary_folder(self) -> str:
        """The path of a private folder, which exists with its content until the CLI is gone."""
        path = files.new_folder(files.temporary_folder())
        self.callback(files.remove, path)
        return path

    def borrow(self, loan: Loan) -> None:
        """Have this returned as soon as the CLI no longer needs it, at the latest at the end."""
        self.loans.append(loan)
        self.callback(loan.give_back)

    def time_left(self) -> float | None:
        """Seconds until the run's deadline; None if it has none."""
        return None if self._due is None else max(self._due - time.monotonic(), 0.001)

    def pause(self, seconds: float) -> None:
        """Sleep for a moment while waiting for something. Raises GivenUp if the run has been ended."""
        if self._due is not None and time.monotonic() >= self._due:
            raise GivenUp(EndReason.DEADLINE)
        if self._ending.reason is not None:
            raise GivenUp(self._ending.reason)
        time.sleep(seconds)
