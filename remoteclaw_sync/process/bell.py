"""A way to wake one waiting thread."""

from __future__ import annotations

import contextlib
import threading


class Bell:
    """Any thread rings it; the thread that waits for it hears it once.

    Not an Event: an exception that a signal handler raises inside `Event.wait()` can leave the Event's own lock held,
    and then the next `set()` blocks for ever. A bare lock does not have this problem.
    """

    __slots__ = ("_silence",)

    def __init__(self) -> None:
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        """Wake the waiting thread, or the next one that waits. Ringing twice is the same as ringing once."""
        with contextlib.suppress(RuntimeError):
            self._silence.release()

    def wait(self, seconds: float) -> bool:
        """Wait up to that long. Returns whether it rang."""
        return self._silence.acquire(timeout=seconds)
