"""From the bytes of a transport to the items that a dialect reads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from .. import errors
from ..types import AgentErrorEvent
from ..wire.json_lines import LineFramer, pieces_of
from .dialect import Dialect
from .startup import Preamble
from .transport import Transport


class Reader:
    """Reads one transport, in whole lines."""

    def __init__(self, transport: Transport, dialect: Dialect, max_line_bytes: int) -> None:
        self._transport = transport
        self._parse = dialect.parse
        self._max_line_bytes = max_line_bytes
        self._framer = LineFramer(max_line_bytes)
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
        block = self._framer.flush_block() if chunk is None else self._framer.push_block(chunk)
        if ending.backlog_unwanted:
            return None
        if block is None:
            return iter(())
        if not self.preamble.is_over:
            self.preamble.push(block)
        self.rest = itertools.chain.from_iterable(map(self._parse, pieces_of(block)))
        return self.rest

    def skipped(self) -> AgentErrorEvent | None:
        """An error, if lines have been too long since this was last asked."""
        if self._framer.lines_skipped == self._lines_skipped:
            return None
        self._lines_skipped = self._framer.lines_skipped
        message = f"skipped a line of over {self._max_line_bytes} bytes (max_line_bytes)"
        return AgentErrorEvent(message, errors.LINE_TOO_LONG)
