"""The receiving half of a transport: output that has arrived and that the consumer has not taken yet."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from .clocks import Clock
from .ending import EndLatch, EndReason
from .life import ask

# If a signal (Ctrl-C) comes just before the main thread waits for a lock, CPython handles it only after the wait.
SIGNAL_PATIENCE = 0.1
# An exception raised into another thread (Dramatiq's time limit) does not arrive while that thread waits for a lock.
EXCEPTION_PATIENCE = 1.0
LONGEST_WORD = 64  # Bytes of overlap: the text that a hook looks for may be cut by the end of a chunk.


class Inbox:
    """Chunks in the order they came; None is the end. One thread puts them in, the consumer takes them out.

    Not a Queue: an exception raised in the consumer inside a Queue could leave the Queue's lock held, and the other
    thread would wait for it for ever.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ending = EndLatch()
        self._chunks: deque[bytes | None] = deque()
        self._arrived = _locked()  # Released when something has arrived.
        self._bytes_in = 0  # Written only by the thread that puts chunks in.
        self._bytes_out = 0  # Written only by the consumer.
        self._bytes_at_end: int | None = None
        self._in_hand = b""
        self._tell_at = -1  # Wake the other side when the consumer has no more than this many bytes left to take.

    # --- for the consumer -------------------------------------------------------------------------------------

    def receive(self, timeout: float | None = None) -> bytes | None:
        """The next bytes of the events stream, or None when the child is gone and everything has been read. Blocks.

        Raises TimeoutError if nothing has come within `timeout` seconds. After None, every further call returns None.
        """
        self._in_hand = b""
        if not self._chunks:
            self._wait_for_chunk(timeout)
        chunk = self._chunks[0]
        if chunk is None:
            self.ending.claim(EndReason.EXITED)
            return None
        del self._chunks[0]
        self._in_hand = chunk
        self._bytes_out += len(chunk)
        if self._tell_at >= 0 and self._pending <= self._tell_at:
            self._wake()
        return chunk

    def _wait_for_chunk(self, timeout: float | None) -> None:
        in_main_thread = threading.get_ident() == threading.main_thread().ident
        patience = SIGNAL_PATIENCE if in_main_thread else EXCEPTION_PATIENCE
        until = None if timeout is None else self._clock() + timeout
        while not self._chunks:
            if self._is_waited_for():
                raise TimeoutError
            if until is not None:
                left = until - self._clock()
                if left <= 0:
                    raise TimeoutError
                patience = min(patience, left)
            self._arrived.acquire(timeout=patience)

    @property
    def heard_in_time(self) -> bool:
        """Whether the current chunk came before we asked the child to end. (A CLI may finish its turn on SIGTERM.)"""
        return self._bytes_at_end is None or self._bytes_out <= self._bytes_at_end

    # --- for the other side -----------------------------------------------------------------------------------

    def _is_waited_for(self) -> bool:
        """Whether the consumer's thread must not wait, because it has other work to do first."""
        return False

    def _wake(self) -> None:
        """Have the other side check what is due."""
        raise NotImplementedError

    def _put(self, chunk: bytes) -> None:
        """Add a chunk. Does not wake the consumer yet: it could only wait for the interpreter."""
        self._bytes_in += len(chunk)
        self._chunks.append(chunk)

    def _put_end(self) -> None:
        """Nothing more will come."""
        self._chunks.append(None)
        self._wake_consumer()

    def _wake_consumer(self) -> None:
        try:
            self._arrived.release()
        except RuntimeError:
            pass  # It was released before, and the consumer has not acquired it since.

    def _claim_end(self, reason: EndReason) -> None:
        if self.ending.reason is None:
            self._bytes_at_end = self._bytes_in
        self.ending.claim(reason)

    @property
    def _pending(self) -> int:
        return self._bytes_in - self._bytes_out

    def _is_unread(self, hook: Callable[[bytes], bool] | None) -> bool:
        """Whether the hook says yes to output that the consumer has not read yet."""
        before = b""
        for chunk in (self._in_hand, *self._chunks):
            if chunk and ask(hook, before + chunk):
                return True
            before = chunk[-LONGEST_WORD:] if chunk else b""
        return False

    def _forget_inbox(self) -> None:
        """In a forked copy of the host, the inbox is over: nothing would ever arrive there."""
        self._chunks, self._arrived = deque([None]), _locked()
        self.ending = EndLatch()
        self.ending.claim(EndReason.CLOSED)


def _locked() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock
