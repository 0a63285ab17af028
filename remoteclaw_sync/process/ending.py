"""Why a run ended: one value, written once."""

from __future__ import annotations

import enum
import threading

import attrs


class EndReason(enum.Enum):
    """What ended the child. Error code, `aborted` flag and log line are all derived from it."""

    EXITED = "exited by itself"
    LINGERED = "stayed after its last word"
    ABORTED = "aborted by the caller"
    WATCHDOG = "silent for too long"
    DEADLINE = "ran past its deadline"
    CLOSED = "left by its consumer"
    LIMIT = "used more than it may"


# After these, nobody wants the unread output, even if another reason came first.
BACKLOG_UNWANTED = (EndReason.ABORTED, EndReason.CLOSED, EndReason.LIMIT)


@attrs.define(eq=False)
class EndLatch:
    """Keeps the first reason it is given. Safe from any thread, even when re-entered by a signal handler or the GC."""

    reason: EndReason | None = None
    backlog_unwanted: bool = False
    _lock: threading.RLock = attrs.field(init=False, factory=threading.RLock)

    def claim(self, reason: EndReason) -> None:
        """Make this the reason, unless there is one already."""
        with self._lock:
            if self.reason is None:
                self.reason = reason
            if reason in BACKLOG_UNWANTED and self.reason is not EndReason.EXITED:
                self.backlog_unwanted = True
