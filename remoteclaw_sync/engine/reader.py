"""From the bytes of a transport to the items that a dialect reads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from .. import errors
from ..types import AgentErrorEvent
from ..wire.json_lines import PIECE_BYTES, LineFramer, pieces_of
from .dialect import Dialect
from .transport import Transport

PREAMBLE_BYTES = 65_536


class Preamble:
    """What a CLI prints on the stream of events before the first of them: some put their help there."""

    def __init__(self) -> None:
        self.is_over = False
        self._words: list[bytes] = []
        self._size = 0

    def push(self, block: bytes) -> None:
        """Take these whole lines, up to the first event."""
        for line in block.split(b"\n"):
            if line.lstrip().startswith(b"{"):
                self.is_over = True
                self._words.clear()
                return
            if self._size < PREAMBLE_BYTES:
                self._words.append(line[:PREAMBLE_BYTES])
                self._size += len(line)

    def text(self) -> str:
        """The words; none once there was an event."""
        return b"\n".join(self._words).decode(errors="replace").strip()


class Reader:
    """Reads one transport, in whole lines."""

    def __init__(self, transport: Transport, dialect: Dialect, max_line_bytes: int) -> None:
        self._transport = transport
        self._parse = dialect.parser()
        self._max_line_bytes = max_line_bytes
        self.framer = LineFramer(max_line_bytes)
        self._lines_skipped = 0
        self._at_end = False
        self.preamble = Preamble()
        # What of the last chunk has not been taken yet: a turn may be left in the middle of it.
        self.rest: Iterator[Any] = iter(())

    def next_items(self, timeout: float | None = None) -> Iterator[Any] | None:
        """What the CLI has written next; None when it is gone or nobody wants to hear more. Blocks.

        Raises TimeoutError if nothing has come within `timeout` seconds.
        """
        ending = self._transport.ending
        if self._at_end or ending.backlog_unwanted:
            return None
        chunk = self._transport.receive(timeout)
        self._at_end = chunk is None
        block = self.framer.flush_block() if chunk is None else self.framer.push_block(chunk)
        if ending.backlog_unwanted:
            return None
        if block is None:
            return iter(())
        if not self.preamble.is_over:
            self.preamble.push(block)
        parse = self._parse
        few = len(block) <= PIECE_BYTES
        self.rest = iter(parse(block)) if few else itertools.chain.from_iterable(map(parse, pieces_of(block)))
        return self.rest

    def skipped(self) -> AgentErrorEvent | None:
        """An error, if lines have been too long since this was last asked."""
        if self.framer.lines_skipped == self._lines_skipped:
            return None
        self._lines_skipped = self.framer.lines_skipped
        message = f"skipped a line of over {self._max_line_bytes} bytes (max_line_bytes)"
        return AgentErrorEvent(message, errors.LINE_TOO_LONG)
