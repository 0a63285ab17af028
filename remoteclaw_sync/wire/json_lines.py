"""Turns bytes into lines and lines into JSON objects. It is fed, never connected: no pipe, no thread, no clock."""

from __future__ import annotations

import codecs
import functools
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

logger = logging.getLogger(__name__)

MAX_LINE_BYTES = 64 * 1024 * 1024
PREAMBLE_CHARACTERS = 65_536
NEWLINE = "\n"


class LineFramer:
    """Cuts a byte stream into lines.

    Only b"\\n" ends a line (U+2028 and U+0085 are legal inside JSON strings, so `splitlines()` would cut there), and
    bytes are decoded when the line is complete, so that no character is split. A line over the limit is skipped and
    counted in `lines_skipped`.
    """

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._max = max_line_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._skipping = False
        self._at_start = True
        self.lines_skipped = 0

    def push(self, chunk: bytes) -> list[str]:
        """The lines that this chunk completes, without their ends."""
        return _lines_of(self.push_block(chunk))

    def flush(self) -> list[str]:
        """What is left when the stream ends without a newline."""
        return _lines_of(self.flush_block())

    def push_block(self, chunk: bytes) -> bytes | None:
        """The lines that this chunk completes, in one piece, without the last line's end; None if it completes none."""
        head, newline, rest = chunk.rpartition(b"\n")
        if not newline:
            self._keep(rest)
            return None
        if self._skipping:
            # The end of the line that is being skipped comes first; nothing else may follow it.
            self._skipping = False
            _, newline, head = head.partition(b"\n")
            if not newline:
                self._keep(rest)
                return None
        elif self._parts:
            head = b"".join((*self._parts, head))
            self._parts, self._size = [], 0
        if rest:
            self._keep(rest)
        if self._at_start:
            head = self._without_bom(head)
        return head if len(head) <= self._max else self._without_long(head)

    def flush_block(self) -> bytes | None:
        """What is left when the stream ends without a newline; None if nothing is left."""
        rest, self._parts, self._size = b"".join(self._parts), [], 0
        if self._skipping:
            self._skipping = False
            return None
        return self._without_bom(rest) if rest else None

    def _keep(self, rest: bytes) -> None:
        if self._skipping or not rest:
            return
        self._parts.append(rest)
        self._size += len(rest)
        if self._size > self._max:
            self._parts, self._size = [], 0
            self._skipping = True
            self.lines_skipped += 1

    def _without_long(self, head: bytes) -> bytes | None:
        lines = head.split(b"\n")
        short = [line for line in lines if len(line) <= self._max]
        self.lines_skipped += len(lines) - len(short)
        return b"\n".join(short) if short else None

    def _without_bom(self, block: bytes) -> bytes:
        at_start, self._at_start = self._at_start, False
        return block.removeprefix(codecs.BOM_UTF8) if at_start else block


class LineReader(LineFramer):
    """Turns a byte stream into items, chunk by chunk: one for each complete line, by default its JSON value."""

    def __init__(self, parse: Callable[[bytes], list[Any]] | None = None, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        super().__init__(max_line_bytes)
        self._parse = parse or functools.partial(parse_block, fast=fast_parser())
        self.lines_reported = 0  # How many of the skipped lines the consumer has been told about.
        self.has_events = False  # Some CLIs print their help on the events stream, before or instead of events.
        self.preamble = ""  # What was printed there, as long as no event has followed.
        self.rest: Iterator[Any] = iter(())  # The items of the last chunk that have not been taken yet.

    def feed(self, chunk: bytes | None) -> Iterator[Any]:
        """The items that this chunk completes; None is the end of the stream."""
        block = self.flush_block() if chunk is None else self.push_block(chunk)
        if block is None:
            self.rest = iter(())
            return self.rest
        if not self.has_events:
            self._look_for_event(block)
        if len(block) <= PIECE_BYTES:
            self.rest = iter(self._parse(block))
        else:
            self.rest = itertools.chain.from_iterable(map(self._parse, pieces_of(block)))
        return self.rest

    def _look_for_event(self, block: bytes) -> None:
        self.has_events = any(line.lstrip().startswith(b"{") for line in block.split(b"\n"))
        words = "" if self.has_events else f"{self.preamble}\n{decode(block)}".strip()
        self.preamble = words[:PREAMBLE_CHARACTERS]


def lines_of(block: bytes) -> list[bytes]:
    """The lines themselves, unparsed."""
    return block.split(b"\n")


def _lines_of(block: bytes | None) -> list[str]:
    return [] if block is None else decode(block).split("\n")


def decode(data: bytes) -> str:
    """The bytes as text, with U+FFFD for those that are not UTF-8."""
    return data.decode(errors="replace")


# Not strict: one raw control character inside a string should not cost the whole line.
# Raises StopIteration, ValueError (also for an integer of over 4,300 digits) or RecursionError (deep nesting). Returns
# the value and where it ends.
scan_line: Callable[[str, int], tuple[Any, int]]
scan_line = json.JSONDecoder(strict=False).scan_once  # type: ignore[attr-defined]

FastParser = Callable[[bytes], Any]

# Separates lines that are parsed together. No line can contain it, so if all separators are found again between the
# values, each line had exactly one value.
BORDER = os.urandom(12).hex()
JOINT = f',"{BORDER}",'
FAST_JOINT = JOINT.encode()
# Parsing this many bytes makes fewer objects than trigger the garbage collector (700), which would find them all alive.
# In a stream of 200,000 lines, whole chunks take up to a fifth more time per line (OpenCode: 2.6 instead of 2.1 us).
PIECE_BYTES = 16_384
# A block over this size consists of a few long lines: joining them would copy a lot and save nothing.
JOINED_BYTES = 262_144

# For finding numbers that may be too large for orjson: all digits of a block become zeros.
ZEROS = bytes(ord("0") if byte in b"0123456789" else ord(" ") for byte in range(256))
LONG_NUMBER = b"0" * 19


@functools.cache
def fast_parser() -> FastParser | None:
    """orjson's `loads`, if it is installed (extra `speed`). Imported here, when the first run begins."""
    try:
        import orjson
    except ImportError:
        return None
    return orjson.loads


def pieces_of(block: bytes) -> list[bytes]:
    """The same lines, in blocks of a good size for parsing."""
    if len(block) <= PIECE_BYTES:
        return [block]
    pieces = []
    start = 0
    while (end := block.find(b"\n", start + PIECE_BYTES)) != -1:
        pieces.append(block[start:end])
        start = end + 1
    pieces.append(block[start:] if start else block)
    return pieces


def parse_block(block: bytes, fast: FastParser | None = None) -> list[Any]:
    """The JSON values on these lines, one per line; for a line without one, the line itself (bytes).

    Lines are parsed together, because that is faster (measured: tests/benchmarks). The fast parser refuses some lines
    that the standard parser accepts (NaN, lone surrogates, raw control characters, bad UTF-8), and turns integers of
    over 64 bits into floats: both cases are left to the standard parser.
    """
    if fast is None and b"\n" not in block:
        return [value_of(block)]
    if len(block) <= JOINED_BYTES:
        together = None
        if fast is not None and LONG_NUMBER not in block.translate(ZEROS):
            together = _parse_fast(block, fast)
        together = together or _parse_together(decode(block))
        if together is not None:
            return together
    return [value_of(line) for line in block.split(b"\n")]


def _parse_fast(block: bytes, fast: FastParser) -> list[Any] | None:
    joined = b"[%b]" % block.replace(b"\n", FAST_JOINT)
    try:
        values: list[Any] = fast(joined)
    except ValueError:
        return None
    return _without_borders(values, len(joined) - len(block) - 2)


def _parse_together(text: str) -> list[Any] | None:
    joined = f"[{text.replace(NEWLINE, JOINT)}]"
    try:
        values, end = scan_line(joined, 0)
    except (StopIteration, ValueError, RecursionError):
        return None
    return _without_borders(values, len(joined) - len(text) - 2) if end == len(joined) else None


def _without_borders(values: list[Any], added: int) -> list[Any] | None:
    """The values of the lines, if each had one. `added`: how many bytes longer the separators are than the newlines."""
    borders = added // (len(JOINT) - 1)
    if len(values) == 2 * borders + 1 and values[1::2].count(BORDER) == borders:
        return values[::2]
    return None


def value_of(line: bytes) -> Any:
    """The JSON value on this line; the line itself if it is not JSON, or has unusual white space around it."""
    text = decode(line)
    try:
        value, end = scan_line(text, 0)
    except (StopIteration, ValueError, RecursionError):
        return line
    return value if end == len(text) or text[end:].isspace() else line


def parse_line(line: str) -> dict[str, Any] | None:
    """The JSON object on this line; None for a blank line and (with a warning) for anything else."""
    text = line.strip()
    if not text:
        return None
    try:
        # scan_once on the str: json.loads(bytes) takes a fifth longer, because it guesses the encoding.
        value, end = scan_line(text, 0)
    except (StopIteration, ValueError, RecursionError) as error:
        reason = "not JSON" if isinstance(error, StopIteration) else f"{type(error).__name__}"
        _warn(reason, text)
        return None
    if end != len(text):
        _warn("text after the JSON value", text)
        return None
    if type(value) is not dict:
        warn_no_object(value)
        return None
    return value


def warn_no_object(value: object) -> None:
    """Log that a line contained this value instead of an object."""
    logger.warning("skipped a malformed line: a %s, not an object", type(value).__name__)


def is_strict_json(line: str) -> bool:
    """Whether the standard parser accepts this line; if not, it is logged like any malformed line."""
    try:
        json.loads(line)
    except ValueError as error:
        _warn(type(error).__name__, line)
        return False
    return True


def _warn(reason: str, text: str) -> None:
    # The line itself stays out of the log: it may quote a prompt or a secret.
    logger.warning("skipped a malformed line of %d characters: %s", len(text), reason)
