"""Text for a terminal: removing control sequences, measuring width, and the colours and symbols it can show."""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from typing import TextIO

import attrs

# Whole control sequences first (colours, titles, cursor moves, OSC 8 links), then any control character on its own:
# a sequence that was cut in two by the stream loses its ESC and becomes harmless text.
_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI
    r"|\x1b[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # OSC, DCS and the like, up to their end
    r"|\x1b[ -/]*[0-Z\\^_`a-~]"
    r"|\r(?=\n)"
)
_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def clean(text: str) -> str:
    """The text without control characters and sequences; newlines and tabs stay."""
    if text.isprintable():
        return text
    return _SEQUENCES.sub("", text).translate(_CONTROLS)


def one_line(text: str) -> str:
    """The cleaned text on one line, with each run of white space as one space."""
    return " ".join(clean(text).split())


def visible(text: str) -> str:
    """The text for somebody who has to decide about it: what a terminal would hide or obey is spelled out."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else _spelled(char) for char in text)


def _spelled(char: str) -> str:
    return char.encode("unicode_escape").decode()


def width(text: str) -> int:
    """How many columns the text takes. In doubt, this is too high rather than too low."""
    return len(text) if text.isascii() else sum(map(_char_width, text))


def _char_width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def shorten(text: str, columns: int, ellipsis: str = "…") -> str:
    """As much of the line as fits into this many columns."""
    if width(text) <= columns:
        return text
    left = columns - width(ellipsis)
    for index, char in enumerate(text):
        left -= _char_width(char)
        if left < 0:
            return text[:index] + ellipsis
    return text


def is_terminal(stream: TextIO) -> bool:
    """Whether the stream is a terminal."""
    try:
        return stream.isatty()
    except (OSError, ValueError):  # Closed.
        return False


def is_pipe(stream: TextIO) -> bool:
    """Whether the stream is a pipe to another program."""
    try:
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):  # It has no descriptor, like a test's buffer.
        return False


def columns_of(stream: TextIO) -> int:
    """The terminal's current width. Checked every time, so that a resize needs no signal."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def lines_of(stream: TextIO) -> int:
    """The terminal's current height."""
    try:
        return os.get_terminal_size(stream.fileno()).lines or 24
    except (OSError, ValueError):
        return 24


@attrs.frozen
class Style:
    """Colours and symbols that the stream can show."""

    colours: bool
    spinner: str
    call: str
    ok: str
    failed: str
    dot: str
    ellipsis: str

    @classmethod
    def of(cls, stream: TextIO) -> Style:
        """NO_COLOR and TERM=dumb turn colours off; an encoding without the symbols gets ASCII."""
        colours = is_terminal(stream) and not os.environ.get("NO_COLOR") and not is_dumb()
        try:
            "⠋→✓✗·…".encode(stream.encoding or "ascii")
        except (UnicodeError, LookupError):
            return cls(colours, "|/-\\", ">", "ok", "failed:", "-", "...")
        return cls(colours, "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "→", "✓", "✗", "·", "…")

    def dim(self, text: str) -> str:
        """For what is less important."""
        return self._paint("2", text)

    def bold(self, text: str) -> str:
        """For what should stand out."""
        return self._paint("1", text)

    def red(self, text: str) -> str:
        """For errors."""
        return self._paint("31", text)

    def green(self, text: str) -> str:
        """For success."""
        return self._paint("32", text)

    def yellow(self, text: str) -> str:
        """For warnings."""
        return self._paint("33", text)

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colours and text else text


def is_dumb() -> bool:
    """Whether the terminal cannot even move its cursor."""
    return os.environ.get("TERM", "") in ("", "dumb")
