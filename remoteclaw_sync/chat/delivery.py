"""Turns the agent's answer into messages for a channel: splits it, and leaves out what was already sent. Pure.

Cuts are made at a paragraph, else a line, else a word, else anywhere between two characters as people see them. A code
block is cut only if nothing else helps. Then it is closed at the end of one chunk and reopened, with its language
and indentation, at the beginning of the next.
"""

from __future__ import annotations

import bisect
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import attrs

from ..types import ReplyPayload

DEFAULT_CHUNK_LIMIT = 4000
# Shorter texts ("ok", "done") are too common to count as repeating part of something longer.
SHORTEST_REPETITION = 10

# What a channel counts: Telegram counts UTF-16 units, most others characters (code points), a few bytes.
LengthUnit: TypeAlias = Literal["characters", "utf-16", "utf-8"]
WIDEST_CHARACTER: dict[str, int] = {"characters": 1, "utf-16": 2, "utf-8": 4}


@attrs.frozen
class Chunk:
    """A piece of a text as it is sent: `opening` and `closing` are fences that the splitter added to the slice `body`.

    The bodies of a text's chunks, joined, are the text.
    """

    body: str
    opening: str = ""
    closing: str = ""

    @property
    def text(self) -> str:
        return self.opening + self.body + self.closing


def split_text(text: str, limit: int = DEFAULT_CHUNK_LIMIT, unit: LengthUnit = "characters") -> list[str]:
    """The text as messages of at most `limit`: `split_chunks` without blank chunks.

    Channels refuse empty messages, so a text that is only white space gives no message at all.
    """
    return [chunk.text for chunk in split_chunks(text, limit, unit) if chunk.body.strip()]


def split_chunks(text: str, limit: int = DEFAULT_CHUNK_LIMIT, unit: LengthUnit = "characters") -> list[Chunk]:
    """The text in chunks of at most `limit`; their bodies joined are the text.

    The limit must hold the widest character (1 character, 2 UTF-16 units or 4 bytes). Fences are added if they take no
    more than half of it: "```" needs a limit of 16.
    """
    if unit not in WIDEST_CHARACTER:
        raise ValueError(f"unit must be one of {', '.join(WIDEST_CHARACTER)}, not {unit!r}")
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise TypeError(f"limit must be an int, not {type(limit).__name__}")
    if limit < WIDEST_CHARACTER[unit]:
        raise ValueError(f"limit must be at least {WIDEST_CHARACTER[unit]} {unit}, not {limit}")
    return list(_Splitter(text, limit, unit).chunks())


def length_of(text: str, unit: LengthUnit = "characters") -> int:
    """The length of the text for a channel that counts in this unit."""
    if unit == "characters" or text.isascii():
        return len(text)
    if unit == "utf-16":
        return len(text) + sum(character > "\uffff" for character in text)
    return len(text.encode("utf-8", "surrogatepass"))


class BlockStream:
    """Collects pieces of text into messages, and returns them when they are full and at `flush()`."""

    def __init__(self, limit: int = DEFAULT_CHUNK_LIMIT, unit: LengthUnit = "characters") -> None:
        self._limit = limit
        self._unit = unit
        self._parts: list[str] = []
        self._length = 0
        self._cut = False

    def push(self, text: str) -> list[str]:
        """The messages that this piece has completed."""
        self._parts.append(text)
        self._length += length_of(text, self._unit)
        if self._length <= self._limit:
            return []
        *full, rest = split_chunks("".join(self._parts), self._limit, self._unit)
        self._cut = self._cut or bool(full)
        self._parts = [rest.opening + rest.body]
        self._length = length_of(self._parts[0], self._unit)
        return [chunk.text for chunk in full if chunk.body.strip()]

    def flush(self, sent: Iterable[str] = ()) -> list[str]:
        """The rest, or nothing if it is a whole block that was already `sent`. The next piece starts a new message."""
        rest, whole = "".join(self._parts), not self._cut
        self._parts, self._length, self._cut = [], 0, False
        return [] if whole and was_sent(rest, sent) else split_text(rest, self._limit, self._unit)


def payloads_from(
    blocks: Iterable[str], limit: int = DEFAULT_CHUNK_LIMIT, unit: LengthUnit = "characters", sent: Iterable[str] = ()
) -> tuple[ReplyPayload, ...]:
    """The messages to deliver for an answer: none if it is empty, one payload if it fits, else its chunks in order.

    `blocks` are the parts of the answer between tool calls; a block that the agent has already `sent` to this
    conversation through a messaging tool is left out.
    """
    known = tuple(sent)
    text = "".join(block for block in blocks if not was_sent(block, known))
    return tuple(ReplyPayload(chunk) for chunk in split_text(text, limit, unit))


def was_sent(text: str, sent: Iterable[str]) -> bool:
    """Whether this is one of those texts, or a passage of one, ignoring white space."""
    needle = _bare(text)
    if not needle:
        return False
    is_passage = len(needle) >= SHORTEST_REPETITION
    return any(needle == other or (is_passage and needle in other) for other in map(_bare, sent))


def _bare(text: str) -> str:
    return " ".join(text.split())


# --- code blocks ---------------------------------------------------------------------------------------------

# With any indentation: a fence inside a list is indented.
_FENCE_LINE = re.compile(r"^([ \t]*)(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)
_STARTS_FENCE = re.compile(r"[ \t]*(?:```|~~~)")


@attrs.frozen
class _Block:
    """A fenced code block: the positions of its first line, its code and its end, and what reopens and closes it."""

    start: int
    code_start: int
    code_end: int
    end: int  # Before the newline of its closing fence; past the end of the text if there is none.
    opening: str
    closing: str


def _find_blocks(text: str, most: int, measure: _Ruler) -> list[_Block]:
    """The code blocks of a text, without those whose fences would take more than `most` of a chunk."""
    blocks = []
    first: re.Match[str] | None = None
    for line in _FENCE_LINE.finditer(text):
        marker, info = line[2], line[3]
        if first is None:
            # "```x``` and" is inline code, not a block.
            if not (marker[0] == "`" and "`" in info):
                first = line
        elif marker.startswith(first[2]) and not info.strip():
            blocks.append((first, line.start(), line.end()))
            first = None
    if first is not None:
        blocks.append((first, len(text), len(text) + 1))
    return [block for found in blocks if (block := _as_block(*found, most, measure)) is not None]


def _as_block(first: re.Match[str], code_end: int, end: int, most: int, measure: _Ruler) -> _Block | None:
    indent, marker, info = first.groups()
    fence = indent + marker
    words = info.split()
    for opening in (fence + info.rstrip(), fence + words[0] if words else fence, fence):
        if measure.size(f"{opening}\n\n{fence}") <= most:
            return _Block(first.start(), first.end() + 1, code_end, end, f"{opening}\n", fence)
    return None


# --- where to cut --------------------------------------------------------------------------------------------

_PARAGRAPH_END = re.compile(r"\n(?:[ \t\r]*\n)+")
_BLANK_LINES = re.compile(r"(?:[ \t\r]*\n)+")
_VISIBLE = re.compile(r"\S")


class _Splitter:
    def __init__(self, text: str, limit: int, unit: LengthUnit) -> None:
        self._text = text
        self._limit = limit
        self._ruler = _Ruler(text, unit)
        self._blocks = _find_blocks(text, limit // 2, self._ruler)
        self._starts = [block.start for block in self._blocks]

    def chunks(self) -> Iterator[Chunk]:
        position, opening = 0, ""
        while position < len(self._text):
            room = self._limit - self._ruler.size(opening)
            furthest = self._ruler.reach(position, room)
            if furthest == len(self._text):
                yield Chunk(self._text[position:], opening)
                return
            cut = self._cut(position, furthest, room)
            block = self._block_around(cut)
            body = self._text[position:cut]
            closing = "" if block is None else ("" if body.endswith("\n") else "\n") + block.closing
            yield Chunk(body, opening, closing)
            position, opening = cut, "" if block is None else block.opening

    def _block_around(self, position: int) -> _Block | None:
        """The code block that a cut here would fall into."""
        index = bisect.bisect_left(self._starts, position) - 1
        block = self._blocks[index] if index >= 0 else None
        return block if block is not None and position < block.end else None

    def _cut(self, start: int, furthest: int, room: int) -> int:
        """The best place after `start` and not after `furthest`, with room for a closing fence if it needs one."""
        block = self._block_around(furthest)
        if block is None:
            return self._cut_outside(start, furthest)
        if start < block.start:
            # Better than any place inside, and the text before the block ends here.
            return block.start
        return self._cut_inside(start, self._ruler.reach(start, room - self._ruler.size(f"\n{block.closing}")), block)

    def _cut_outside(self, start: int, furthest: int) -> int:
        last = bisect.bisect_left(self._starts, furthest) - 1
        if last >= 0 and self._blocks[last].end > start:
            # The end of a code block is as good as the end of a paragraph.
            block_end = self._after_blank_lines(self._blocks[last].end, furthest)
            return self._paragraph_end(block_end, furthest) or block_end
        return self._paragraph_end(start, furthest) or self._line_word_or_any(start, furthest)

    def _cut_inside(self, start: int, furthest: int, block: _Block) -> int:
        # Not right after the first line: that would leave an empty code block.
        after = max(start, block.code_start) if block.code_start < furthest else start
        furthest = min(furthest, block.code_end) if block.code_end > after else furthest
        return self._paragraph_end(after, furthest) or self._line_word_or_any(after, furthest)

    def _after_blank_lines(self, position: int, furthest: int) -> int:
        found = _BLANK_LINES.match(self._text, position, furthest)
        return position if found is None else found.end()

    def _visible_from(self, start: int, furthest: int) -> int:
        """The position of the first visible character: a cut before it would make a blank chunk."""
        found = _VISIBLE.search(self._text, start, furthest)
        return furthest if found is None else found.start()

    def _paragraph_end(self, start: int, furthest: int) -> int | None:
        start = self._visible_from(start, furthest)
        if start < furthest and _PARAGRAPH_END.match(self._text, furthest):
            return furthest
        end = None
        for found in _PARAGRAPH_END.finditer(self._text, start, furthest):
            end = found.end()
        return end

    def _line_word_or_any(self, start: int, furthest: int) -> int:
        text = self._text
        visible = self._visible_from(start, furthest)
        if visible == furthest or text[furthest] == "\n":
            return furthest
        newline = text.rfind("\n", visible, furthest)
        if newline >= 0:
            return newline + 1
        for position in range(furthest, visible, -1):
            if (text[position - 1].isspace() or text[position].isspace()) and self._may_cut(start, position):
                return position
        for position in range(furthest, start, -1):
            if self._may_cut(start, position):
                return position
        return furthest  # A single "character" as long as a chunk.

    def _may_cut(self, start: int, position: int) -> bool:
        """Whether a cut here, in the middle of a line, neither splits a character nor creates a fence."""
        return not _tears(self._text, start, position) and not _STARTS_FENCE.match(self._text, position)


# --- what people see as one character, and how long a text is ----------------------------------------------------

_ZERO_WIDTH_NON_JOINER, _ZERO_WIDTH_JOINER = "\u200c", "\u200d"


def _tears(text: str, start: int, position: int) -> bool:
    """Whether a cut here would split a character; `start` is known to be a safe place.

    Covers the rules of Unicode's grapheme clusters that matter in chats: accents and variation selectors, skin tones,
    joined emoji, flags, Hangul syllables, CR LF; also surrogate pairs, which a JSON parser may have left.
    """
    before, after = text[position - 1], text[position]
    if after < "\u0300":
        # For most texts this is the only check.
        return (before == "\r" and after == "\n") or (before == after == "`")
    if before == "\n":
        return False
    if before == _ZERO_WIDTH_JOINER or _extends(after):
        return True
    if _is_flag_half(before) and _is_flag_half(after):
        backwards = (text[index] for index in range(position - 1, start - 1, -1))
        return sum(1 for _ in itertools.takewhile(_is_flag_half, backwards)) % 2 == 1
    if "\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff":
        return True
    return "\u1100" <= before <= "\u115f" and ("\u1100" <= after <= "\u115f" or "\uac00" <= after <= "\ud7a3")


def _extends(character: str) -> bool:
    return (
        unicodedata.category(character)[0] == "M"
        or character in (_ZERO_WIDTH_JOINER, _ZERO_WIDTH_NON_JOINER)
        or "\U0001f3fb" <= character <= "\U0001f3ff"  # Skin tones.
        or "\U000e0020" <= character <= "\U000e007f"  # The letters of a region's flag.
        or "\u1160" <= character <= "\u11ff"  # Vowels and final consonants of Hangul.
        or "\ud7b0" <= character <= "\ud7fb"
    )


def _is_flag_half(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


class _Ruler:
    """Lengths in a unit, and how far a length reaches in the text."""

    def __init__(self, text: str, unit: LengthUnit) -> None:
        self._length = len(text)
        self._unit = unit
        self._sums: list[int] | None = None
        if unit != "characters" and not text.isascii():
            self._sums = list(itertools.accumulate(map(self.size, text), initial=0))

    def size(self, text: str) -> int:
        return length_of(text, self._unit)

    def reach(self, start: int, room: int) -> int:
        """The end of the longest slice from `start` that is no longer than `room`."""
        if self._sums is None:
            return min(start + room, self._length)
        return bisect.bisect_right(self._sums, self._sums[start] + room, lo=start) - 1
