"""The command line as a shell runs it: with pipes, or on a pseudo-terminal with a small emulator behind it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.fakes import PATIENCE

MODULE = (sys.executable, "-m", "remoteclaw_sync")
# Gives the program a controlling terminal, so that ^C means something.
ON_TERMINAL = "import fcntl,os,sys,termios; fcntl.ioctl(2, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
SEQUENCE = re.compile(r"\x1b\[([0-9;]*|\?2004)([A-Za-z])")


def environment(**changes: str | None) -> dict[str, str]:
    """The host's environment, with our package on the path, and these changes (None removes)."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TERM": "xterm-256color"}
    env.pop("NO_COLOR", None)
    defaults = {"REMOTECLAW_DEMO_PACE": "0", "PYTHONIOENCODING": "utf-8"}
    for name, value in {**defaults, **changes}.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


def cli(
    *arguments: str,
    stdin: str | bytes = b"",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    inside: Sequence[str] = (),
) -> subprocess.CompletedProcess[bytes]:
    """Run the program with pipes. `inside`: a command that starts it."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    command = [*inside, *MODULE, *arguments]
    return subprocess.run(command, input=data, cwd=cwd, env=env or environment(), capture_output=True, timeout=PATIENCE)


def start(*arguments: str, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
    """Start the program with pipes."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*MODULE, *arguments], env=env or environment(), **{**pipes, **options})


class Terminal:
    """A program on a pseudo-terminal. With `stdout=PIPE` only stdin and stderr are the terminal."""

    def __init__(
        self,
        *arguments: str,
        columns: int = 80,
        stdout: int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        program: Sequence[str] = MODULE,
    ) -> None:
        self._master, slave = pty.openpty()
        self.columns = columns
        self.resize(columns)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", ON_TERMINAL, *program, *arguments],
            stdin=slave,
            stdout=slave if stdout is None else stdout,
            stderr=slave,
            env=env or environment(),
            cwd=cwd,
            start_new_session=True,
        )
        os.close(slave)
        self.output = ""
        self._bytes = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        if self._master >= 0:
            os.close(self._master)

    def resize(self, columns: int, rows: int = 24) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def hang_up(self) -> None:
        """As when the connection is lost."""
        os.close(self._master)
        self._master = -1

    @property
    def modes(self) -> list[Any]:
        """The terminal's modes, as `stty` shows them."""
        return termios.tcgetattr(self._master)

    def read_until(self, predicate: Callable[[str], Any]) -> str:
        """Read on until the whole output satisfies this; returns it."""
        deadline = time.monotonic() + PATIENCE
        while not predicate(self.output):
            assert self._read(deadline), f"the program ended first: {self.output!r}"
        return self.output

    def finish(self) -> int:
        """Read to the end; returns the exit code."""
        deadline = time.monotonic() + PATIENCE
        while self._read(deadline):
            pass
        return self.process.wait(PATIENCE)

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"nothing more came after {self.output!r}"
        try:
            chunk = os.read(self._master, 65_536)
        except OSError:  # EIO: nobody has the other end open any more.
            return False
        self._bytes += chunk
        self.output = self._bytes.decode(errors="replace")
        return bool(chunk)

    @property
    def screen(self) -> str:
        """What a person sees at the end."""
        return render(self.output, self.columns)


def render(output: str, columns: int) -> str:
    """The text on a terminal of this width after this output. Knows the sequences that we send; any other fails the
    test."""
    rows: list[list[str]] = [[]]
    row = column = position = 0
    while position < len(output):
        found = SEQUENCE.match(output, position)
        if found:
            position = found.end()
            match found[2]:
                case "m" | "h" | "l":
                    pass
                case "A":
                    row = max(0, row - int(found[1] or 1))
                case "C":
                    column += int(found[1] or 1)
                case "J":
                    del rows[row][column:]
                    del rows[row + 1 :]
                case other:
                    raise AssertionError(f"the terminal was sent an unexpected sequence {other!r}")
            continue
        char = output[position]
        position += 1
        if char == "\r":
            column = 0
        elif char == "\n":
            row += 1
            rows += [[] for _ in range(row - len(rows) + 1)]
        else:
            assert char.isprintable() or char == "\t", f"the terminal was sent {char!r}"
            size = display_width(char)
            if column + size > columns:
                row, column = row + 1, 0
                rows += [[] for _ in range(row - len(rows) + 1)]
            line = rows[row]
            line += [" "] * (column + size - len(line))
            line[column : column + size] = [char] + [""] * (size - 1)
            column += size
    return "\n".join("".join(line).rstrip() for line in rows)


def display_width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)
