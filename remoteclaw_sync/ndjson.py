"""From bytes to lines to JSON objects. Fed, never connected: no pipe, no thread, no clock."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

MAX_LINE_BYTES = 64 * 1024 * 1024
BOM = "\ufeff"


class LineFramer:
    """Cuts a byte stream into lines.

    Only b"\\n" ends a line (U+2028 and U+0085 are legal inside JSON strings, so `splitlines()` would cut there), and
    bytes are decoded when the line is whole, so that no character is torn. A line over the limit is skipped
    and counted in `lines_skipped`.
    """

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._max = max_line_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._skipping = False
        self._at_start = True
        self.lines_skipped = 0

    def push(self, chunk: bytes) -> list[str]:
        """The lines this chunk completes, without their ends."""
        head, newline, rest = chunk.rpartition(b"\n")
        if not newline:
            self._keep(rest)
            return []
        if self._skipping:
            # The end of the line that is being skipped comes first; nothing else may follow it.
            self._skipping = False
            _, newline, head = head.partition(b"\n")
            if not newline:
                self._keep(rest)
                return []
        elif self._parts:
            head = b"".join((*self._parts, head))
            self._parts, self._size = [], 0
        self._keep(rest)
        if len(head) <= self._max:
            return self._decode(head).split("\n")
        return self._split_long(head)

    def flush(self) -> list[str]:
        """What is left when the stream ends without a newline."""
        rest, self._parts, self._size = b"".join(self._parts), [], 0
        if self._skipping:
            self._skipping = False
            return []
        return [self._decode(rest)] if rest else []

    def _keep(self, rest: bytes) -> None:
        if self._skipping or not rest:
            return
        self._parts.append(rest)
        self._size += len(rest)
        if self._size > self._max:
            self._parts, self._size = [], 0
            self._skipping = True
            self.lines_skipped += 1

    def _split_long(self, head: bytes) -> list[str]:
        lines = head.split(b"\n")
        short = [line for line in lines if len(line) <= self._max]
        self.lines_skipped += len(lines) - len(short)
        return [self._decode(line) for line in short]

    def _decode(self, data: bytes) -> str:
        text = data.decode(errors="replace")
        if self._at_start:
            self._at_start = False
            text = text.removeprefix(BOM)
        return text


# Not strict: a raw control character inside a string is no reason to lose the line.
# It raises StopIteration, ValueError or RecursionError, and says where the value ends.
scan_line: Callable[[str, int], tuple[Any, int]]
scan_line = json.JSONDecoder(strict=False).scan_once  # type: ignore[attr-defined]


@functools.cache
def fast_parser() -> Callable[[str], Any] | None:
    """orjson's `loads`, if it is installed (extra `speed`): half the time of a line.

    It refuses what the standard parser takes (NaN, lone surrogates, raw control characters), so a line that it
    refuses is not bad yet; and it makes integers of over 64 bits floats. Imported here, when the first run begins.
    """
    try:
        import orjson
    except ImportError:
        return None
    return orjson.loads


def parse_line(line: str) -> dict[str, Any] | None:
    """The JSON object on this line; None for a blank line and (with a warning) for anything else."""
    text = line.strip()
    if not text:
        return None
    try:
        # scan_once on the str: json.loads(bytes) costs a fifth more, for guessing the encoding.
        value, end = scan_line(text, 0)
    except (StopIteration, ValueError, RecursionError) as error:
        # ValueError also for an integer of over 4,300 digits, RecursionError for deep nesting.
        reason = "not JSON" if isinstance(error, StopIteration) else f"{type(error).__name__}"
        _warn(reason, text)
        return None
    if end != len(text):
        _warn("text after the JSON value", text)
        return None
    if type(value) is not dict:
        _warn(f"a {type(value).__name__}, not an object", text)
        return None
    return value


def is_strict_json(line: str) -> bool:
    """Whether the standard parser takes this line; if not, that is logged as for any malformed line."""
    try:
        json.loads(line)
    except ValueError as error:
        _warn(type(error).__name__, line)
        return False
    return True


def _warn(reason: str, text: str) -> None:
    # The line itself stays out of the log: it may quote a prompt or a secret.
    logger.warning("skipped a malformed line of %d characters: %s", len(text), reason)
