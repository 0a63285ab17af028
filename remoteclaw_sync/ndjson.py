"""From bytes to lines to JSON objects. Fed, never connected: no pipe, no thread, no clock."""

from __future__ import annotations

import codecs
import functools
import json
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

MAX_LINE_BYTES = 64 * 1024 * 1024
NEWLINE, COMMA = "\n", ",\n"


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
        return _lines_of(self.push_block(chunk))

    def flush(self) -> list[str]:
        """What is left when the stream ends without a newline."""
        return _lines_of(self.flush_block())

    def push_block(self, chunk: bytes) -> bytes | None:
        """The lines this chunk completes, in one piece, without the last line's end; None if there is none."""
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
        """What is left when the stream ends without a newline; None if nothing is."""
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


def _lines_of(block: bytes | None) -> list[str]:
    return [] if block is None else decode(block).split("\n")


def decode(data: bytes) -> str:
    """As text, with U+FFFD for what is none."""
    return data.decode(errors="replace")


# Not strict: a raw control character inside a string is no reason to lose the line.
# It raises StopIteration, ValueError (also for an integer of over 4,300 digits) or RecursionError (deep nesting),
# and says where the value ends.
scan_line: Callable[[str, int], tuple[Any, int]]
scan_line = json.JSONDecoder(strict=False).scan_once  # type: ignore[attr-defined]

FastParser = Callable[[bytes], Any]
FAST_INTEGERS_END = 2**63
# A block over this has few and long lines: to join them would copy much and save nothing.
JOINED_BYTES = 262_144


# Lines that are parsed together. Of so many bytes come fewer objects than start the garbage collector (700), which
# would find them all alive: with whole chunks that costs 0.04 (Claude) to 0.2 us (OpenCode) a line.
PIECE_BYTES = 16_384


@functools.cache
def fast_parser() -> FastParser | None:
    """orjson's `loads`, if it is installed (extra `speed`): half the time of a line.

    It refuses what the standard parser takes (NaN, lone surrogates, raw control characters, bad UTF-8), so a line
    that it refuses is not bad yet; and it makes integers of over 64 bits floats. Imported here, when the first run
    begins.
    """
    try:
        import orjson
    except ImportError:
        return None
    return orjson.loads


def pieces_of(block: bytes) -> list[bytes]:
    """The same lines in blocks of a good size for parsing."""
    pieces = []
    start = 0
    while (end := block.find(b"\n", start + PIECE_BYTES)) != -1:
        pieces.append(block[start:end])
        start = end + 1
    pieces.append(block[start:] if start else block)
    return pieces


def parse_block(block: bytes) -> list[Any]:
    """The JSON values on these lines, one for each; for a line that has none, the line itself (bytes).

    All lines are parsed as one array. Line by line takes longer (us a line: Claude 1.67 instead of 1.31, Codex 0.82
    instead of 0.66), because the parser forgets the keys after every call.
    """
    if b"\n" in block and len(block) <= JOINED_BYTES:
        text = decode(block)
        joined = f"[{text.replace(NEWLINE, COMMA)}]"
        try:
            values, end = scan_line(joined, 0)
        except (StopIteration, ValueError, RecursionError):
            pass
        else:
            # As many values as lines: else a line has the half of one, or two. (To count() takes 0.09 us a line.)
            if end == len(joined) and len(values) == len(joined) - len(text) - 1:
                return values  # type: ignore[no-any-return]
    return [value_of(line) for line in block.split(b"\n")]


def value_of(line: bytes) -> Any:
    """The JSON value on this line; the line itself if it is none, or has strange white space around it."""
    text = decode(line)
    try:
        value, end = scan_line(text, 0)
    except (StopIteration, ValueError, RecursionError):
        return line
    return value if end == len(text) or text[end:].isspace() else line


class FastBlocks:
    """parse_block() with a fast parser, and a line's exact value again for those who need it."""

    def __init__(self, parse: FastParser) -> None:
        self._parse = parse
        self._block = b""
        self._values: list[Any] = []  # Those of the block that the fast parser has read.
        self._lines: list[bytes] = []
        self._next = 0  # Where exact() looks on: lines are asked for in their order.

    def parse(self, block: bytes) -> list[Any]:
        """See parse_block(); but integers of over 64 bits are floats."""
        self._block, self._values, self._lines, self._next = block, [], [], 0
        try:
            values = self._parse_whole(block)
        except ValueError:
            values = None
        if values is None:
            return parse_block(block)
        self._values = values
        return values

    def _parse_whole(self, block: bytes) -> list[Any] | None:
        if len(block) > JOINED_BYTES:
            return [self._parse(line) for line in block.split(b"\n")]
        joined = b"[%b]" % block.replace(b"\n", b",\n")
        values: list[Any] = self._parse(joined)
        return values if len(values) == len(joined) - len(block) - 1 else None

    def exact(self, value: Any) -> Any:
        """This value, one of the last block's, as the standard parser reads its line."""
        for number in range(self._next, len(self._values)):
            if self._values[number] is value:
                self._next = number + 1
                self._lines = self._lines or self._block.split(b"\n")
                read = value_of(self._lines[number])
                return value if type(read) is bytes else read
        return value


def may_have_lost_digits(value: Any) -> bool:
    """Whether a float in there may have been an integer that the fast parser had no room for."""
    kind = type(value)
    if kind is float:
        return abs(value) >= FAST_INTEGERS_END  # type: ignore[no-any-return]
    if kind is dict:
        value = value.values()
    elif kind is not list:
        return False
    try:
        for part in value:
            if type(part) is not str and may_have_lost_digits(part):
                return True
    except RecursionError:
        return True
    return False


def parse_line(line: str) -> dict[str, Any] | None:
    """The JSON object on this line; None for a blank line and (with a warning) for anything else."""
    text = line.strip()
    if not text:
        return None
    try:
        # scan_once on the str: json.loads(bytes) costs a fifth more, for guessing the encoding.
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
    """Log that a line held this instead of an object."""
    logger.warning("skipped a malformed line: a %s, not an object", type(value).__name__)


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
