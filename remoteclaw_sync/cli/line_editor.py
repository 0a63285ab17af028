"""A line while it is being typed. It does no input or output: it is fed characters and asked what to show."""

from __future__ import annotations

import re
from collections.abc import Callable

import attrs

from .terminal_text import clean, width

END = None  # In a list of entered lines: Ctrl-D was pressed on an empty line.
KEY = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO[@-~]|\x1b[^\x1b\[O]|[^\x1b]", re.DOTALL)
PASTE_BEGINS, PASTE_ENDS = "\x1b[200~", "\x1b[201~"
WORD = re.compile(r"\w+\W*|\W+")
MOST_ROWS = 12  # Of a long text, at most this many are shown.
TAB = "    "
JOINER = "\u200d"  # Between the parts of an emoji.
SKIN_TONES = "\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"


@attrs.define
class LineEditor:
    """The usual keys: arrows, Home, End, Ctrl-A/E/K/U/W, history. Pasted text stays one text, line ends included."""

    text: str = ""
    cursor: int = 0
    history: list[str] = attrs.field(factory=list)
    _back: int = 0  # How far back in the history this text is; 0: it is new.
    _new: str = ""  # What was typed before going back.
    _unread: str = ""

    def feed(self, typed: str) -> list[str | None]:
        """Take what was typed; returns the lines that this entered, possibly with `END`."""
        entered: list[str | None] = []
        self._unread += typed
        while self._unread:
            if self._unread.startswith(PASTE_BEGINS):
                pasted, end, rest = self._unread[len(PASTE_BEGINS) :].partition(PASTE_ENDS)
                if not end:
                    break
                self._unread = rest
                self._insert(clean(pasted.replace("\r\n", "\n").replace("\r", "\n")))
                continue
            found = KEY.match(self._unread)
            if found is None:
                break  # Only the beginning of a sequence.
            self._unread = self._unread[found.end() :]
            self._press(found[0], entered)
        return entered

    def clear(self) -> bool:
        """Drop the line; False if there was none."""
        was_there = bool(self.text)
        self._set("")
        return was_there

    def remember(self, text: str) -> None:
        """Add a line to the history for the up key."""
        if text and self.history[-1:] != [text]:
            self.history.append(text)

    def _press(self, key: str, entered: list[str | None]) -> None:
        if key in "\r\n":
            self._enter(entered)
        elif key == "\x04" and not self.text:
            entered.append(END)
        elif key in KEYS:
            KEYS[key](self)
        elif len(key) == 2 and key[0] == "\x1b":
            self._insert(clean(key[1]))
        elif len(key) == 1:
            self._insert(clean(key))

    def _enter(self, entered: list[str | None]) -> None:
        if self.text.endswith("\\") and self.cursor == len(self.text):
            self._backspace()
            self._insert("\n")
            return
        entered.append(self.text)
        self._set("")

    def _insert(self, text: str) -> None:
        self.text = self.text[: self.cursor] + text + self.text[self.cursor :]
        self.cursor += len(text)

    def _set(self, text: str, back: int = 0) -> None:
        self.text, self.cursor, self._back = text, len(text), back

    def _backspace(self) -> None:
        self._kill_before(self._left())

    def _delete(self) -> None:
        self.text = self.text[: self.cursor] + self.text[self._right() :]

    def _left(self) -> int:
        """The start of the character before the cursor, as people count characters."""
        at = max(self.cursor - 1, 0)
        while at and self._goes_with_the_one_before(at):
            at -= 1
        return at

    def _right(self) -> int:
        at = min(self.cursor + 1, len(self.text))
        while at < len(self.text) and self._goes_with_the_one_before(at):
            at += 1
        return at

    def _goes_with_the_one_before(self, at: int) -> bool:
        """True for accents and for the parts of an emoji."""
        char = self.text[at]
        return width(char) == 0 or self.text[at - 1] == JOINER or char in SKIN_TONES

    def _to(self, position: int) -> None:
        self.cursor = min(max(position, 0), len(self.text))

    def _word_left(self) -> int:
        starts = [found.start() for found in WORD.finditer(self.text) if found.start() < self.cursor]
        return starts[-1] if starts else 0

    def _word_right(self) -> int:
        return next((found.end() for found in WORD.finditer(self.text) if found.end() > self.cursor), len(self.text))

    def _kill_before(self, position: int) -> None:
        self.text = self.text[:position] + self.text[self.cursor :]
        self.cursor = position

    def _kill_rest(self) -> None:
        self.text = self.text[: self.cursor]

    def _go_back(self, step: int) -> None:
        back = min(max(self._back + step, 0), len(self.history))
        if self._back == 0:
            self._new = self.text
        if back != self._back:
            self._set(self.history[-back] if back else self._new, back)


KEYS: dict[str, Callable[[LineEditor], None]] = {}


def _keys(do: Callable[[LineEditor], None], *keys: str) -> None:
    KEYS.update(dict.fromkeys(keys, do))


_keys(lambda line: line._backspace(), "\x7f", "\x08")
_keys(lambda line: line._delete(), "\x04", "\x1b[3~")
_keys(lambda line: line._to(line._left()), "\x02", "\x1b[D", "\x1bOD")
_keys(lambda line: line._to(line._right()), "\x06", "\x1b[C", "\x1bOC")
_keys(lambda line: line._to(0), "\x01", "\x1b[H", "\x1bOH", "\x1b[1~", "\x1b[7~")
_keys(lambda line: line._to(len(line.text)), "\x05", "\x1b[F", "\x1bOF", "\x1b[4~", "\x1b[8~")
_keys(lambda line: line._to(line._word_left()), "\x1bb", "\x1b[1;5D", "\x1b[1;3D")
_keys(lambda line: line._to(line._word_right()), "\x1bf", "\x1b[1;5C", "\x1b[1;3C")
_keys(lambda line: line._kill_before(0), "\x15")
_keys(lambda line: line._kill_before(line._word_left()), "\x17", "\x1b\x7f")
_keys(lambda line: line._kill_rest(), "\x0b")
_keys(lambda line: line._go_back(1), "\x10", "\x1b[A", "\x1bOA")
_keys(lambda line: line._go_back(-1), "\x0e", "\x1b[B", "\x1bOB")
_keys(lambda line: line._insert("\n"), "\x1b\r", "\x1b\n")


@attrs.frozen
class Rows:
    """A line as it is shown, with the position of its cursor."""

    rows: tuple[str, ...]
    row: int
    column: int


def lay_out(prompt: str, text: str, cursor: int, columns: int, most_rows: int = MOST_ROWS) -> Rows:
    """Rows of at most this many columns; the terminal needs its last column for the cursor. If there are too many rows,
    returns those around the cursor."""
    rows = _folded(prompt, columns)
    column = width(rows[-1])
    indent = " " * column if column <= columns // 2 else ""  # Otherwise no room would be left.
    at = (len(rows) - 1, column)
    for index, char in enumerate(text):
        if index == cursor:
            at = (len(rows) - 1, column)
        shown = TAB if char == "\t" else char
        size = 0 if char == "\n" else width(shown)
        if char == "\n" or column + size > columns:
            rows.append(indent)
            column = len(indent)
        if char != "\n":
            rows[-1] += shown
            column += size
    if cursor >= len(text):
        at = (len(rows) - 1, column)
    first = max(0, min(at[0] - most_rows // 2, len(rows) - most_rows))
    return Rows(tuple(rows[first : first + most_rows]), at[0] - first, at[1])


def _folded(prompt: str, columns: int) -> list[str]:
    """The prompt in rows: it may be longer than the terminal is wide."""
    if width(prompt) < columns:
        return [prompt]
    return [prompt[start : start + columns] for start in range(0, len(prompt), columns)]
