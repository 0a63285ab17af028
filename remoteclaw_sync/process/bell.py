"""Waking one thread that waits."""

from __future__ import annotations

import contextlib
import threading


class Bell:
    """Rung by any thread, heard once by the one that waits for it.

    Not an Event: an exception that a signal handler raises inside `Event.wait()` can leave the Event's own lock held,
    and then the next `set()` blocks for ever. A bare lock has no such moment.
    """

    __slots__ = ("_silence",)

    def __init__(self) -> None:
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        """Wake the thread that waits, or the next one that does. Ringing twice is the same as ringing once."""
        with contextlib.suppress(RuntimeError):
            self._silence.release()

    def wait(self, seconds: float) -> bool:
        """Whether it rang in that time."""
        return self._silence.acquire(timeout=seconds)
