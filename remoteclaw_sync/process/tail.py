"""The end of a stream of any length."""

from __future__ import annotations

from collections import deque

import attrs

TAIL_BYTES = 65_536


@attrs.define(eq=False)
class Tail:
    """The last bytes of a stream of any length."""

    _limit: int = TAIL_BYTES
    _chunks: deque[bytes] = attrs.field(init=False, factory=deque)
    size: int = attrs.field(init=False, default=0)  # Bytes kept.
    _cut: bool = attrs.field(init=False, default=False)

    def push(self, chunk: bytes) -> None:
        """Add a chunk."""
        self._chunks.append(chunk)
        self.size += len(chunk)
        while self.size - len(self._chunks[0]) >= self._limit:
            self.size -= len(self._chunks.popleft())
            self._cut = True

    def text(self) -> str:
        """The tail as text, with bad bytes replaced. If it was cut, it starts at the first whole line, if there is one:
        half a line may begin in the middle of a secret, which nothing would recognise."""
        data = b"".join(self._chunks)
        if len(data) > self._limit or self._cut:
            data = data[-self._limit :]
            data = data.partition(b"\n")[2] or data
        return data.decode(errors="replace")
