"""Two streams that may be one terminal: the answer on stdout; notes, a live status and a typed line on stderr.

The status is the last line on the screen. A separate thread draws it while nothing else is being written on that line.
It is erased before anything else is written, and a line that somebody types takes its place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TextIO

import attrs

from . import terminal_text as terminal
from .line_editor import Rows
from .terminal_text import Style

FRAME_SECONDS = 0.1
STATUS_COLUMNS = 72  # Short, so that there is little to wrap if the terminal is made narrower.


@attrs.frozen
class _Shown:
    """What has to be erased: the widths of the rows above the cursor, and the cursor's column."""

    above: tuple[int, ...]
    column: int

    def rows_up(self, columns: int) -> int:
        """How many rows up the drawn text begins: a terminal that was made narrower has wrapped it."""
        return sum(1 + max(one - 1, 0) // columns for one in self.above) + max(self.column - 1, 0) // columns


class Screen:
    """Thread-safe. `close` leaves the terminal clean; `begin` shows a status again."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self.style = Style.of(err)
        self.on_terminal = terminal.is_terminal(err)
        self._out = out
        self._err = err
        self._out_is_terminal = terminal.is_terminal(out)
        # A reader of our pipe may print on the same terminal, and we cannot know where. So we draw no status then.
        self._shares_terminal = terminal.is_pipe(out)
        self._status: Callable[[str], str] | None = None
        self._lock = threading.Lock()
        self._at_line_start = True
        self._out_ended_line = True
        self._drawn: _Shown | None = None  # The part of the status or the typed line that is on the screen now.
        self._line: Rows | None = None  # The line that is being typed.
        self._held: list[Callable[[], None]] | None = None  # Writes that wait until the line has been typed.
        self._frame = 0
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, status: Callable[[str], str]) -> None:
        """Show a status, until `stop` or `close`."""
        self._status = status
        if self.on_terminal and not terminal.is_dumb():
            self._closed = threading.Event()
            self._thread = threading.Thread(
                target=self._animate, args=(self._closed,), name="remoteclaw-status", daemon=True
            )
            self._thread.start()

    def answer(self, text: str) -> None:
        """Write a piece of the answer. A pipe or a file gets it unchanged; a terminal gets no control sequences."""
        if self._out_is_terminal:
            text = terminal.clean(text)
        if text and self._out_is_terminal:
            self._do(lambda: self._write_answer(text))
        elif text:
            with self._lock:
                if self._line is None:
                    self._erase()
                self._write_answer(text)

    def aside(self, text: str) -> None:
        """Write a piece of text that is not part of the answer."""
        text = terminal.clean(text)
        if text:
            self._do(lambda: self._write_aside(text))

    def note(self, line: str) -> None:
        """Write a whole line. The caller has removed control sequences from foreign text."""
        self._do(lambda: self._write_note(line))

    def begin_line(self) -> None:
        """Make sure that the next text starts on a new line."""
        self._do(self._begin_line)

    def edit(self, line: Rows, *, hold: bool) -> None:
        """Show a line while it is typed, below everything else. With `hold`, all other output waits for its end."""
        with self._lock:
            self._erase()
            if not hold:
                self._release()
            elif self._held is None:
                self._held = []
            self._begin_line()
            self._line = line
            self._draw_line(line)

    def end_edit(self, said: str | None = None) -> None:
        """The line was entered or dropped. Erase it; `said`, if given, stays on the screen in its place."""
        with self._lock:
            self._erase()
            self._line = None
            if said is not None:
                self._write_note(said)
            self._release()
            self._err.flush()

    def line_was_ended(self) -> None:
        """The terminal itself has shown the typed line and moved to the next."""
        with self._lock:
            self._at_line_start = True

    def room(self) -> int:
        """How many columns a note may take without wrapping."""
        return terminal.columns_of(self._err) - 1 if self.on_terminal else 200

    def rows(self) -> int:
        """How many rows may be drawn without scrolling: what has scrolled away can never be erased."""
        return max(terminal.lines_of(self._err) - 1, 1)

    def stop(self) -> None:
        """Erase the status for good."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with self._lock:
            self._status = None
            if self._line is None:
                self._erase()

    def close(self) -> None:
        """Erase the status for good and end unfinished lines."""
        self.stop()
        self._do(self._end_lines)

    def _do(self, write: Callable[[], None]) -> None:
        """Write something above the status or the typed line, or hold it back until the line has been typed."""
        with self._lock:
            if self._held is not None:
                self._held.append(write)
                return
            self._erase()
            write()
            if self._line is not None:
                self._begin_line()
                self._draw_line(self._line)

    def _release(self) -> None:
        held, self._held = self._held, None
        for write in held or ():
            write()

    def _write_answer(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
        self._out_ended_line = text.endswith("\n")
        if self._out_is_terminal:
            self._at_line_start = self._out_ended_line
        elif self._shares_terminal:
            self._status = None

    def _write_aside(self, text: str) -> None:
        self._err.write(self.style.dim(text))
        self._err.flush()
        self._at_line_start = text.endswith("\n")

    def _write_note(self, line: str) -> None:
        self._begin_line()
        self._err.write(line + "\n")
        self._err.flush()

    def _end_lines(self) -> None:
        if not self._out_ended_line:
            self._out_ended_line = True
            if not (self._out_is_terminal and self._at_line_start):
                self._out.write("\n")
                self._out.flush()
                self._at_line_start = True
        self._begin_line()
        self._err.flush()

    def _begin_line(self) -> None:
        if not self._at_line_start:
            self._err.write("\n")
            self._err.flush()
            self._at_line_start = True

    def _animate(self, closed: threading.Event) -> None:
        try:
            while not closed.is_set():
                with self._lock:
                    self._draw()
                closed.wait(FRAME_SECONDS)
        except (OSError, ValueError):
            pass  # The terminal is gone; the consumer's thread will notice for itself.

    def _draw(self) -> None:
        if self._status is None or not self._at_line_start or self._closed.is_set() or self._line is not None:
            return
        self._erase()
        spinner = self.style.spinner[self._frame % len(self.style.spinner)]
        self._frame += 1
        room = min(self.room(), STATUS_COLUMNS)
        text = terminal.shorten(f"{spinner} {self._status(self.style.dot)}", room, self.style.ellipsis)
        self._err.write(self.style.dim(text))
        self._err.flush()
        self._drawn = _Shown((), terminal.width(text))

    def _draw_line(self, line: Rows) -> None:
        below = len(line.rows) - 1 - line.row
        up = f"\x1b[{below}A" if below else ""
        self._err.write("\n".join(line.rows) + up + "\r" + (f"\x1b[{line.column}C" if line.column else ""))
        self._err.flush()
        self._drawn = _Shown(tuple(map(terminal.width, line.rows[: line.row])), line.column)

    def _erase(self) -> None:
        if self._drawn is None:
            return
        rows = self._drawn.rows_up(terminal.columns_of(self._err))
        self._drawn = None
        self._err.write("\r" + (f"\x1b[{rows}A" if rows else "") + "\x1b[J")
        self._err.flush()


class Progress:
    """The text of the status: what the agent is doing, for how long, and roughly how much it has said."""

    def __init__(self, hint: str = "") -> None:
        self._hint = hint
        self._started_at = time.monotonic()
        self._characters = 0
        self.doing = "starting"

    def heard(self, text: str) -> None:
        """Count this text."""
        self._characters += len(text)

    def __call__(self, dot: str) -> str:
        seconds = int(time.monotonic() - self._started_at)
        parts = [self.doing, f"{seconds} s" if seconds < 60 else f"{seconds // 60}:{seconds % 60:02}"]
        if self._characters:
            parts.append(f"~{self._characters // 4} tokens")  # Exact numbers come only at the end of the run.
        if self._hint:
            parts.append(self._hint)
        return f" {dot} ".join(parts)
