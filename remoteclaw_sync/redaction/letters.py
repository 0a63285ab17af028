"""Reduces a text to its letters and digits, which stay the same however the text is quoted.

JSON escapes it (once, or twice inside a string), a URL or HTML encodes it, a terminal wraps and colours it, one program
writes CRLF and the next LF, one composes its accents and the next does not. All of that changes what is between the
letters, or how a letter is written. So we compare the letters, and remember where each one is in the text.
"""

from __future__ import annotations

import functools
import html
import re
import sys
import unicodedata
from bisect import bisect_right

# A colour, whose escape character may itself be escaped.
_COLOUR = r"(?:\x1b|\\+(?:u001[Bb]|u\{1b\}|x1[Bb]|033|e))(?:\[[0-9;:?]*[A-Za-z]|\([A-Z0-9])"
_CODE = (
    rf"{_COLOUR}"
    r"|(?:\\+u(?!001[Bb])[0-9A-Fa-f]{4})+"
    r"|(?:\\+x[0-9A-Fa-f]{2})+"
    r"|\\+u\{[0-9A-Fa-f]{1,6}\}"
    r"|(?:\\+[0-3][0-7]{2})+"
    r"|\\+[nrtbfv]"
    r"|(?:%(?:25)*[0-9A-Fa-f]{2})+"
    # Go writes "&" as \\u0026, so that JSON can be put inside HTML.
    r"|(?:&(?:amp;)*|\\+u0026)(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});"
    r"|[^\x00-\x7f]"
)
_CODES = re.compile(_CODE)
_COLOURS = re.compile(_COLOUR)
_CODE_BEFORE = re.compile(rf"(?:{_CODE})\Z")
_PIECES = re.compile(f"[A-Za-z0-9]+|{_CODE}")
LONGEST_CODE = 32
_NO_LETTERS = {number: None for number in range(128) if not chr(number).isalnum()}
_CODE_UNIT = re.compile(r"\\+u([0-9A-Fa-f]{4})")
_BYTE = re.compile(r"%(?:25)*([0-9A-Fa-f]{2})")
_BYTE_ESCAPE = re.compile(r"\\+(?:x([0-9A-Fa-f]{2})|([0-3][0-7]{2}))")
_AMPERSAND = re.compile(r"\\+u0026|&(?:amp;)*")


class Letters:
    """The letters of a text, and the way back from them to the text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.letters = letters_of(text)

    def place(self, begin: int, end: int) -> tuple[int, int]:
        """Where the letters from `begin` to `end` (at least one) are in the text."""
        offsets, spans = self._map
        first = bisect_right(offsets, begin) - 1
        last = bisect_right(offsets, end - 1) - 1
        start, stop = spans[first][0], spans[last][1]
        if self._is_verbatim(first):
            start += begin - offsets[first]
        if self._is_verbatim(last):
            stop -= offsets[last + 1] - end
        return start, stop

    @functools.cached_property
    def _map(self) -> tuple[list[int], list[tuple[int, int]]]:
        """For each piece, its offset among the letters and its place in the text. (Ten times as slow as finding the
        letters, and needed only if something is found.)"""
        offsets, spans, size = [], [], 0
        for found in _PIECES.finditer(self._text):
            piece = letters_of(found.group())
            if piece:
                offsets.append(size)
                spans.append(found.span())
                size += len(piece)
        return [*offsets, size], spans

    def _is_verbatim(self, piece: int) -> bool:
        offsets, spans = self._map
        return spans[piece][1] - spans[piece][0] == offsets[piece + 1] - offsets[piece]


def letters_of(text: str) -> str:
    """The letters and digits of a text, with escapes and encodings decoded."""
    if not text.isascii() or any(mark in text for mark in "\\%&\x1b"):  # Searching for codes takes 50 ms per megabyte.
        text = _CODES.sub(_letters_of_code, text)
    return text.translate(_NO_LETTERS)


def begins_word(text: str, at: int) -> bool:
    """Whether a word may begin here. It also may after an escaped newline or an encoded space, which may end with a
    letter or digit."""
    if at == 0 or not (text[at - 1].isascii() and text[at - 1].isalnum()):
        return True
    return _CODE_BEFORE.search(text, max(0, at - LONGEST_CODE), at) is not None


def _letters_of_code(found: re.Match[str]) -> str:
    return _decoded(found.group())


@functools.lru_cache(maxsize=4096)
def _decoded(token: str) -> str:
    """The letters that an escape, an encoded byte, an entity or a character outside ASCII stands for."""
    if _COLOURS.fullmatch(token):
        return ""
    match token[0]:
        case "%":
            text = bytes.fromhex("".join(_BYTE.findall(token))).decode("utf-8", "ignore")
        case "&":
            text = html.unescape(_AMPERSAND.sub("&", token, count=1))
        case "\\" if token.endswith(";"):
            text = html.unescape(_AMPERSAND.sub("&", token, count=1))
        case "\\" if units := _CODE_UNIT.findall(token):
            text = bytes.fromhex("".join(units)).decode("utf-16-be", "ignore")
        case "\\" if token.endswith("}"):
            text = chr(min(int(token.partition("{")[2][:-1], 16), sys.maxunicode))
        case "\\" if numbers := _BYTE_ESCAPE.findall(token):
            text = _text_of(
                bytes(int(hexadecimal or octal, 16 if hexadecimal else 8) for hexadecimal, octal in numbers)
            )
        case "\\":
            return ""
        case _:
            text = token
    # Decompose compatibility forms and accents; the accents themselves are not letters.
    return "".join(character for character in unicodedata.normalize("NFKD", text) if character.isalnum())


def _text_of(data: bytes) -> str:
    """The text of bytes that were escaped one by one: as UTF-8, or as characters with these numbers (JavaScript)."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")
