"""Why a run ended: one value, written once."""

from __future__ import annotations

import enum
import threading


class EndReason(enum.Enum):
    """What ended the child. Error code, `aborted` flag and log line are all derived from it."""

    EXITED = "exited by itself"
    LINGERED = "stayed after its last word"
    ABORTED = "aborted by the caller"
    WATCHDOG = "silent for too long"
    DEADLINE = "ran past its deadline"
    CLOSED = "left by its consumer"


# After these nobody wants the unread output, even if they come second.
BACKLOG_UNWANTED = (EndReason.ABORTED, EndReason.CLOSED)


class EndLatch:
    """Keeps the first reason it is given. Safe from any thread, even when re-entered by a signal handler or the GC."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.reason: EndReason | None = None
        self.backlog_unwanted = False

    def claim(self, reason: EndReason) -> None:
        """Make this the reason, unless there is one already."""
        with self._lock:
            if self.reason is None:
                self.reason = reason
            if reason in BACKLOG_UNWANTED and self.reason is not EndReason.EXITED:
                self.backlog_unwanted = True
