"""Whether output is a sign of life."""

from __future__ import annotations

import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

GROWTH = 65_536  # Bytes by which an unfinished line must have grown to count as a sign of life.


class LifeSigns:
    """Counts lines, not bytes: dots without a newline, or a spinner, may go on for ever without meaning anything.

    A long line (a file that a tool has read) may take a while on a slow machine, so each 64 KiB of it count too, until
    it is longer than `max_line_bytes`: such a line is skipped anyway.

    Args:
        max_line_bytes: up to this length, a growing line is a sign of life; 0: only whole lines are.
        is_life: decides about whole lines (all that came at once); without it, every line counts.
    """

    def __init__(self, max_line_bytes: int, is_life: Callable[[bytes], bool] | None = None) -> None:
        self._max_line_bytes = max_line_bytes
        self._is_life = is_life
        self._unfinished = 0  # Length of the line that is not complete yet.
        self._begun = b""  # Its first bytes, if `is_life` needs them.

    def are_in(self, chunk: bytes) -> bool:
        """Whether this chunk contains a sign of life."""
        end = chunk.rfind(b"\n") + 1
        if end == 0:
            return self._has_grown(chunk)
        self._unfinished = len(chunk) - end
        if self._is_life is None:
            return True
        lines, self._begun = self._begun + chunk[:end], chunk[end:]
        return ask(self._is_life, lines)

    def _has_grown(self, chunk: bytes) -> bool:
        steps = self._unfinished // GROWTH
        self._unfinished += len(chunk)
        if self._is_life is not None:
            self._begun = (self._begun + chunk)[:GROWTH]
        return steps < self._unfinished // GROWTH and self._unfinished <= self._max_line_bytes


def ask(hook: Callable[..., bool] | None, *output: bytes) -> bool:
    """What a hook returns; True if it raises. Its mistake must not end the thread that reads and checks the clocks."""
    try:
        return hook is not None and hook(*output)
    except Exception as error:  # noqa: BLE001 - whatever it is
        logger.warning("%s raised %s", getattr(hook, "__name__", hook), type(error).__name__)
        return True
