"""What a process has said and its consumer has not taken yet."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from .clocks import Clock

# If a signal (Ctrl-C) comes just before the main thread waits for a lock, CPython handles it only after the wait.
SIGNAL_PATIENCE = 0.1
# And an exception raised in another thread (Dramatiq's time limit) does not arrive while that thread waits for a lock.
EXCEPTION_PATIENCE = 1.0
LONGEST_WORD = 64  # Bytes: a text to look for may be cut by the end of a chunk.


class Inbox:
    """Chunks in the order they came; None is the end. One thread puts them in, another takes them out.

    Not a Queue: an exception in the consumer inside a Queue could leave its lock held, and the other thread would wait
    for it for ever.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.chunks: deque[bytes | None] = deque()
        self._arrived = _locked()  # Released when something has arrived.
        self._bytes_in = 0  # Written by the thread that puts.
        self._bytes_out = 0  # Written by the consumer alone.
        self._bytes_in_time: int | None = None
        self._in_hand = b""

    # --- for the thread that puts -----------------------------------------------------------------------------

    def put(self, chunk: bytes) -> None:
        """The consumer is not woken yet: it could only wait for the interpreter."""
        self._bytes_in += len(chunk)
        self.chunks.append(chunk)

    def end(self) -> None:
        """Nothing more will come."""
        self.chunks.append(None)
        self.wake()

    def wake(self) -> None:
        """Have the consumer look."""
        try:
            self._arrived.release()
        except RuntimeError:
            pass  # It was released before, and the consumer has not been here since.

    # --- for the consumer -------------------------------------------------------------------------------------

    def take(self, timeout: float | None, must_not_wait: Callable[[], bool] | None = None) -> bytes | None:
        """The next chunk; None, again and again, at the end. Blocks.

        Raises TimeoutError if none has come within `timeout` seconds, or `must_not_wait` says so.
        """
        self._in_hand = b""
        if not self.chunks:
            self._wait(timeout, must_not_wait)
        chunk = self.chunks[0]
        if chunk is not None:
            del self.chunks[0]
            self._in_hand = chunk
            self._bytes_out += len(chunk)
        return chunk

    def _wait(self, timeout: float | None, must_not_wait: Callable[[], bool] | None) -> None:
        in_main_thread = threading.get_ident() == threading.main_thread().ident
        patience = SIGNAL_PATIENCE if in_main_thread else EXCEPTION_PATIENCE
        until = None if timeout is None else self._clock() + timeout
        while not self.chunks:
            if must_not_wait is not None and must_not_wait():
                raise TimeoutError
            if until is not None:
                left = until - self._clock()
                if left <= 0:
                    raise TimeoutError
                patience = min(patience, left)
            self._arrived.acquire(timeout=patience)

    @property
    def in_time(self) -> bool:
        """Whether the current chunk came before `mark_the_time`."""
        return self._bytes_in_time is None or self._bytes_out <= self._bytes_in_time

    # --- for anyone -------------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Bytes that the consumer has not taken yet."""
        return self._bytes_in - self._bytes_out

    def mark_the_time(self) -> None:
        """What comes from now on is not `in_time`."""
        self._bytes_in_time = self._bytes_in

    def says(self, may_say: Callable[[bytes], bool]) -> bool:
        """Whether `may_say` finds something in what the consumer has in hand or has not taken yet."""
        before = b""
        for chunk in (self._in_hand, *self.chunks):
            if chunk and may_say(before + chunk):
                return True
            before = chunk[-LONGEST_WORD:] if chunk else b""
        return False

    def forget(self) -> None:
        """In a forked copy of the host, where nobody puts anything in any more."""
        self.chunks, self._arrived = deque([None]), _locked()


def _locked() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock
