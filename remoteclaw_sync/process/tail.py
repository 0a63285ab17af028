"""The end of a stream of any length."""

from __future__ import annotations

from collections import deque

TAIL_BYTES = 65_536


class Tail:
    """The last bytes of a stream of any length."""

    def __init__(self, limit: int = TAIL_BYTES) -> None:
        self._limit = limit
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._cut = False

    def push(self, chunk: bytes) -> None:
        """Add what came."""
        self._chunks.append(chunk)
        self._size += len(chunk)
        while self._size - len(self._chunks[0]) >= self._limit:
            self._size -= len(self._chunks.popleft())
            self._cut = True

    def text(self) -> str:
        """The tail as text, with bad bytes replaced. It starts at the first whole line, if there is one: half a line
        may begin in the middle of a secret, which nobody would recognise."""
        data = b"".join(self._chunks)
        if len(data) > self._limit or self._cut:
            data = data[-self._limit :]
            data = data.partition(b"\n")[2] or data
        return data.decode(errors="replace")
