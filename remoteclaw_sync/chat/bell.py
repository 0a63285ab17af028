"""Waking one thread that waits."""

from __future__ import annotations

import contextlib
import threading


class Bell:
    """Rung by any thread, heard once by the one that waits for it.

    No Event: an exception that a signal raises inside `Event.wait()` can leave the Event's own lock taken, and the
    next `set()` then blocks for ever. A bare lock has no moment in between.
    """

    __slots__ = ("_silence",)

    def __init__(self) -> None:
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        """Wake who waits, or who waits next. Ringing twice is ringing once."""
        with contextlib.suppress(RuntimeError):
            self._silence.release()

    def wait(self, seconds: float) -> bool:
        """Whether it rang in that time."""
        return self._silence.acquire(timeout=seconds)
