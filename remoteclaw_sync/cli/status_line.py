"""Two streams that may be one terminal: the answer on stdout, notes and a live status on stderr.

The status is the last line on the screen. A separate thread draws it while nothing else is being written on that line,
and it is erased before anything else is written.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TextIO

from . import terminal_text as terminal
from .terminal_text import Style

FRAME_SECONDS = 0.1
STATUS_COLUMNS = 72  # Short, so that there is little to wrap if the terminal is made narrower.


class Screen:
    """May be used from the consumer's thread and its own. `close` leaves the terminal clean."""

    def __init__(self, out: TextIO, err: TextIO, status: Callable[[str], str] | None = None) -> None:
        self.style = Style.of(err)
        self.on_terminal = terminal.is_terminal(err)
        self._out = out
        self._err = err
        self._out_is_terminal = terminal.is_terminal(out)
        # A reader of our pipe may print on the same terminal, and we cannot know where: so we draw no status then.
        self._shares_terminal = terminal.is_pipe(out)
        self._status = status
        self._lock = threading.Lock()
        self._at_line_start = True
        self._out_ended_line = True
        self._drawn = 0  # Columns of the status that is on the screen now.
        self._frame = 0
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        if status is not None and self.on_terminal and not terminal.is_dumb():
            self._thread = threading.Thread(target=self._animate, name="remoteclaw-status", daemon=True)
            self._thread.start()

    def answer(self, text: str) -> None:
        """A piece of the answer. A pipe or a file gets it unchanged; for a terminal, control sequences are removed."""
        if self._out_is_terminal:
            text = terminal.clean(text)
        if not text:
            return
        with self._lock:
            self._erase()
            self._out.write(text)
            self._out.flush()
            self._out_ended_line = text.endswith("\n")
            if self._out_is_terminal:
                self._at_line_start = self._out_ended_line
            elif self._shares_terminal:
                self._status = None

    def aside(self, text: str) -> None:
        """A piece of text that is not part of the answer."""
        text = terminal.clean(text)
        if not text:
            return
        with self._lock:
            self._erase()
            self._err.write(self.style.dim(text))
            self._err.flush()
            self._at_line_start = text.endswith("\n")

    def note(self, line: str) -> None:
        """A whole line. The caller has removed control sequences from foreign text."""
        with self._lock:
            self._erase()
            self._begin_line()
            self._err.write(line + "\n")
            self._err.flush()

    def begin_line(self) -> None:
        """Make sure that the next text starts on a new line."""
        with self._lock:
            self._erase()
            self._begin_line()
            self._err.flush()

    def room(self) -> int:
        """The columns a note may take without wrapping."""
        return terminal.columns_of(self._err) - 1 if self.on_terminal else 200

    def stop(self) -> None:
        """Erase the status for good."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._erase()

    def close(self) -> None:
        """Erase the status for good and end unfinished lines."""
        self.stop()
        with self._lock:
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
            self._at_line_start = True

    def _animate(self) -> None:
        try:
            while not self._closed.is_set():
                with self._lock:
                    self._draw()
                self._closed.wait(FRAME_SECONDS)
        except (OSError, ValueError):
            pass  # The terminal is gone; the consumer's thread will notice by itself.

    def _draw(self) -> None:
        if self._status is None or not self._at_line_start or self._closed.is_set():
            return
        self._erase()
        spinner = self.style.spinner[self._frame % len(self.style.spinner)]
        self._frame += 1
        room = min(self.room(), STATUS_COLUMNS)
        text = terminal.shorten(f"{spinner} {self._status(self.style.dot)}", room, self.style.ellipsis)
        self._err.write(self.style.dim(text))
        self._err.flush()
        self._drawn = terminal.width(text)

    def _erase(self) -> None:
        if not self._drawn:
            return
        # If the terminal was made narrower, it has wrapped the status, which then begins this many rows up.
        rows = (self._drawn - 1) // terminal.columns_of(self._err)
        self._drawn = 0
        self._err.write("\r" + (f"\x1b[{rows}A" if rows else "") + "\x1b[J")
        self._err.flush()


class Progress:
    """What the status says: what the agent is doing, for how long, and roughly how much it has said."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()
        self._characters = 0
        self.doing = "starting"

    def heard(self, text: str) -> None:
        """Count this."""
        self._characters += len(text)

    def __call__(self, dot: str) -> str:
        seconds = int(time.monotonic() - self._started_at)
        parts = [self.doing, f"{seconds} s" if seconds < 60 else f"{seconds // 60}:{seconds % 60:02}"]
        if self._characters:
            parts.append(f"~{self._characters // 4} tokens")  # Exact numbers come only at the end of the run.
        return f" {dot} ".join(parts)
