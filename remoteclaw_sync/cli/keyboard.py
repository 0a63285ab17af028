"""Lines that somebody types: while the agent works, when a prompt is wanted, and in answer to a question."""

from __future__ import annotations

import codecs
import contextlib
import enum
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Protocol

from .line_editor import MOST_ROWS, LineEditor, lay_out
from .status_line import Screen
from .terminal_text import is_dumb

try:
    import termios
except ImportError:  # Windows.
    termios = None  # type: ignore[assignment]

READ_SIZE = 65_536
POLL_SECONDS = 0.1  # How often a waiting thread checks that the answer is still wanted.
PASTE_ON, PASTE_OFF = b"\x1b[?2004h", b"\x1b[?2004l"
TYPED_AHEAD = "> "
CAN_ASK = termios is not None


class News(enum.Enum):
    """What `read` may return in place of a line."""

    END = "no more lines will come"
    INTERRUPT = "Ctrl-C"


def never() -> bool:
    """The default for `is_over`: the line is always wanted."""
    return False


class Lines(Protocol):
    """A source of lines. `tell` may be called by a signal handler, everything else by one thread."""

    def read(self, prompt: str, is_over: Callable[[], bool] = never) -> str | News:
        """The next line; if a person types, one that was begun after the call. Also END when it is no longer
        wanted."""

    def tell(self, news: News) -> None:
        """Wake the reading thread."""

    def clear(self) -> bool:
        """Drop what was typed but not entered; False if there was nothing."""


class PipedLines:
    """Lines of a file or a pipe, each read when it is wanted."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._unread = b""
        self._ended = False
        self._news: SimpleQueue[News] = SimpleQueue()

    def read(self, prompt: str, is_over: Callable[[], bool] = never) -> str | News:
        while b"\n" not in self._unread and not self._ended:
            with contextlib.suppress(Empty):
                return self._news.get_nowait()
            if is_over():
                return News.END
            if select.select([self._fd], [], [], POLL_SECONDS)[0]:
                chunk = os.read(self._fd, READ_SIZE)
                self._unread += chunk
                self._ended = not chunk
        if not self._unread:
            return News.END
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode("utf-8", "replace").removesuffix("\r")

    def tell(self, news: News) -> None:
        self._news.put(news)

    def clear(self) -> bool:
        return False


class AskedLines:
    """Lines from a terminal that others use between questions: it is taken for each answer and then given back."""

    def __init__(self, fd: int, screen: Screen) -> None:
        self._fd = fd
        self._screen = screen

    def read(self, prompt: str, is_over: Callable[[], bool] = never) -> str | News:
        with Keyboard(self._fd, self._screen, flush=True) as keyboard:
            return keyboard.read(prompt, is_over)

    def tell(self, news: News) -> None:
        """Do nothing: an answer that is no longer wanted is noticed through `is_over`."""

    def clear(self) -> bool:
        return False


class Keyboard:
    """Lines that are typed on a terminal. A context manager; at the end the terminal is restored.

    A thread reads the keys. A line that nobody waits for is passed to `meanwhile`, which is called in that thread;
    while it is being typed, nothing else is written to the screen. A dumb terminal does its own line editing.

    Args:
        fd: the terminal's descriptor.
        screen: where the line is shown.
        meanwhile: takes the lines that come while nobody waits for one. Without it, they are dropped.
        flush: drop what was typed before the block.
    """

    def __init__(
        self, fd: int, screen: Screen, meanwhile: Callable[[str], None] | None = None, *, flush: bool = False
    ) -> None:
        self._fd = fd
        self._screen = screen
        self._meanwhile = meanwhile
        self._flush = flush
        self._is_dumb = is_dumb()
        self._editor = LineEditor()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._news: SimpleQueue[str | News] = SimpleQueue()  # The only queue that a signal handler may put into.
        self._lock = threading.Lock()  # Protects the editor and the prompt.
        self._prompt: str | None = None  # Set while somebody waits for a line.
        self._is_empty = threading.Event()
        self._is_empty.set()
        self._ended = False
        self._before: list[Any] | None = None
        self._stop_before: Any = None
        self._wake_out, self._wake_in = -1, -1
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Keyboard:
        self._before = termios.tcgetattr(self._fd)
        self._wake_out, self._wake_in = os.pipe()
        if self._flush:
            termios.tcflush(self._fd, termios.TCIFLUSH)
        self._take_terminal()
        if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
            self._stop_before = signal.signal(signal.SIGTSTP, self._on_stop)
        self._thread = threading.Thread(target=self._listen, name="remoteclaw-keyboard", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._stop_before is not None:
                signal.signal(signal.SIGTSTP, self._stop_before)
            os.close(self._wake_in)
            if self._thread is not None:
                self._thread.join()
            os.close(self._wake_out)
        finally:
            self._give_terminal_back()
        with contextlib.suppress(OSError, ValueError):
            self._screen.end_edit()

    # --- the terminal's modes -----------------------------------------------------------------------------------

    def _take_terminal(self) -> None:
        """Read key by key, without echo. Ctrl-C and Ctrl-Z stay signals, and Enter may be either line end."""
        if self._is_dumb or self._before is None:
            return
        mode = [*self._before[:6], list(self._before[6])]
        mode[0] |= termios.ICRNL
        mode[3] &= ~(termios.ICANON | termios.ECHO)
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetattr(self._fd, termios.TCSADRAIN, mode)
            os.write(self._fd, PASTE_ON)

    def _give_terminal_back(self) -> None:
        if self._is_dumb or self._before is None:
            return
        with contextlib.suppress(OSError, termios.error):  # The terminal may be gone.
            os.write(self._fd, PASTE_OFF)
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetattr(self._fd, termios.TCSANOW, self._before)

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        """Handle Ctrl-Z. Takes no lock: the interrupted thread may hold it."""
        self._give_terminal_back()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # Returns when the shell continues us.
        signal.signal(number, self._on_stop)
        self._take_terminal()
        os.write(self._wake_in, b"\0")

    # --- reading a line -----------------------------------------------------------------------------------------

    def read(self, prompt: str, is_over: Callable[[], bool] = never) -> str | News:
        # A line that is already being typed is not an answer to this.
        while is_over is not never and not self._is_empty.wait(POLL_SECONDS):
            if is_over():
                return News.END
        with self._lock:
            self._prompt = prompt
            if not self._ended:
                self._show()
        try:
            return self._wait(is_over)
        finally:
            with self._lock:
                self._prompt = None

    def _wait(self, is_over: Callable[[], bool]) -> str | News:
        while True:
            if self._ended and self._news.empty():
                return News.END
            try:
                return self._news.get(timeout=None if is_over is never else POLL_SECONDS)
            except Empty:
                if is_over():
                    with self._lock:
                        self._prompt = None
                        self._editor.clear()
                        self._show()
                    return News.END

    @property
    def is_typing(self) -> bool:
        """Whether a line was begun."""
        return not self._is_empty.is_set()

    def tell(self, news: News) -> None:
        self._news.put(news)

    def clear(self) -> bool:
        with self._lock:
            was_there = self._editor.clear()
            self._is_empty.set()
            return was_there

    # --- the thread ---------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            while not self._ended:
                ready, _, _ = select.select([self._fd, self._wake_out], [], [])
                if self._wake_out in ready and not os.read(self._wake_out, 1):
                    return
                if self._fd in ready:
                    self._take(os.read(self._fd, READ_SIZE))
                else:
                    with self._lock:
                        self._show()
        except (OSError, ValueError):  # The terminal is gone.
            self._end()

    def _take(self, typed: bytes) -> None:
        if not typed:
            self._end()
            return
        with self._lock:
            entered = self._editor.feed(self._decoder.decode(typed))
            for line in entered:
                if line is None:
                    self._end()
                else:
                    self._enter(line)
            (self._is_empty.clear if self._editor.text else self._is_empty.set)()
            if not self._ended and not (self._is_dumb and entered):
                self._show()

    def _enter(self, line: str) -> None:
        wanted, self._prompt = self._prompt, None
        self._editor.remember(line.strip())
        if self._is_dumb:
            self._screen.line_was_ended()
        elif wanted is not None or line.strip():
            prompt = TYPED_AHEAD if wanted is None else wanted
            rows = lay_out(prompt, line, 0, self._screen.room(), sys.maxsize).rows
            more = (f"{' ' * len(TYPED_AHEAD)}[{len(rows) - MOST_ROWS} more lines]",) if len(rows) > MOST_ROWS else ()
            self._screen.end_edit("\n".join(rows[:MOST_ROWS] + more))
        else:
            self._screen.end_edit()
        if wanted is not None:
            self._news.put(line)
        elif self._meanwhile is not None and line.strip():
            self._meanwhile(line)

    def _end(self) -> None:
        self._ended = True
        self._news.put(News.END)

    def _show(self) -> None:
        editor, prompt = self._editor, self._prompt
        if self._is_dumb:
            if prompt is not None:
                self._screen.aside(prompt)
        elif prompt is None and not editor.text:
            self._screen.end_edit()
        else:
            shown = TYPED_AHEAD if prompt is None else prompt
            screen = self._screen
            rows = lay_out(shown, editor.text, editor.cursor, screen.room(), min(MOST_ROWS, screen.rows()))
            self._screen.edit(rows, hold=prompt is None)
