"""The picture at the top of README: a real run of `remoteclaw-sync demo` on a pseudo-terminal, drawn as SVG.

python -m tests.readme.terminal_svg
"""

from __future__ import annotations

import os
import pty
import re
import stat
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from fcntl import ioctl
from html import escape
from pathlib import Path

import attrs

PICTURE = Path(__file__).parents[2] / ".github" / "demo.svg"
COLUMNS = 99  # At this width, only the last row, with the session id, breaks a word.
FILES = ("README.md", "app.py", "tests/")  # What the agent finds in its folder.

# The console script of an installed package.
PROGRAM = "#!{python}\nimport sys\nfrom remoteclaw_sync.cli import main\nsys.exit(main())\n"

CELL_WIDTH, LINE_HEIGHT, MARGIN, BAR = 8.0, 19, 18, 30
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
CLASSES = {"1": "bold", "2": "dim", "31": "red", "32": "green", "33": "yellow"}
STYLE = f"""
  text {{ font: 13.3px {FONT}; fill: #d8dee9; white-space: pre; }}
  .bold {{ font-weight: bold; }} .dim {{ fill: #8a94a6; }} .green {{ fill: #a3be8c; }} .red {{ fill: #ff7b85; }}
  .yellow {{ fill: #ebcb8b; }} .prompt {{ fill: #88c0d0; }}
"""


@attrs.frozen
class Cell:
    """A character on the screen, and how it looks."""

    char: str
    look: str = ""


def run_demo(columns: int = COLUMNS, pace: float = 0.01) -> str:
    """What `remoteclaw-sync demo` writes to a terminal of this width. Blocks for about a second."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "remoteclaw-sync")
        program.write_text(PROGRAM.format(python=sys.executable), encoding="utf-8")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        workspace = Path(folder, "project")
        workspace.mkdir()
        for name in FILES:
            path = workspace / name
            path.mkdir() if name.endswith("/") else path.touch()
        return _run_on_terminal([str(program), "demo"], workspace, columns, pace)


def _run_on_terminal(argv: list[str], folder: Path, columns: int, pace: float) -> str:
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYTHONIOENCODING": "utf-8",
        "REMOTECLAW_DEMO_PACE": str(pace),
        "TERM": "xterm-256color",
    }
    env.pop("NO_COLOR", None)
    master, slave = pty.openpty()
    try:
        ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        child = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=env)
        os.close(slave)
        written = b"".join(_chunks(master))
        if child.wait() != 0:
            raise RuntimeError(f"the demo failed: {written!r}")
    finally:
        os.close(master)
    return written.decode()


def _chunks(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(descriptor, 65_536)
        except OSError:  # EIO: nobody has the other end open any more.
            return
        if not chunk:
            return
        yield chunk


def screen(written: str, columns: int = COLUMNS) -> list[list[Cell]]:
    """The rows that are on the terminal in the end. Understands what our command line sends, and nothing else."""
    rows: list[list[Cell]] = [[]]
    row = column = 0
    look = ""
    for code, command, char in re.findall(r"\x1b\[([0-9;]*)([A-Za-z])|(.)", written, re.DOTALL):
        if command == "m":
            look = CLASSES.get(code, "")
        elif command == "A":
            row -= int(code or 1)
        elif command == "J":
            del rows[row][column:]
            del rows[row + 1 :]
        elif command:
            raise ValueError(f"an unexpected control sequence: {code}{command}")
        elif char == "\r":
            column = 0
        elif char == "\n":
            row += 1
        else:
            if column == columns:
                row, column = row + 1, 0
            rows += [[] for _ in range(row - len(rows) + 1)]
            rows[row] += [Cell(" ")] * (column + 1 - len(rows[row]))
            rows[row][column] = Cell(char, look)
            column += 1
        rows += [[] for _ in range(row - len(rows) + 1)]
    while rows and not rows[-1]:
        rows.pop()
    return rows


def svg(rows: list[list[Cell]], columns: int = COLUMNS) -> str:
    """A window with these rows below the command that made them."""
    command = [Cell("$", "prompt"), *map(Cell, " remoteclaw-sync demo")]
    lines = [command, *rows]
    width = round(columns * CELL_WIDTH + 2 * MARGIN)
    height = BAR + len(lines) * LINE_HEIGHT + MARGIN
    buttons = "".join(f'<circle cx="{20 + 18 * n}" cy="15" r="5" fill="#4c566a"/>' for n in range(3))
    texts = "\n".join(_text(cells, BAR + LINE_HEIGHT * (n + 1) - 4) for n, cells in enumerate(lines) if cells)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="A terminal in which remoteclaw-sync demo has run">\n'
        f"<style>{STYLE}</style>\n"
        f'<rect width="{width}" height="{height}" rx="8" fill="#2b303b"/>\n{buttons}\n{texts}\n</svg>\n'
    )


def _text(cells: list[Cell], y: int) -> str:
    """One row: a piece for each change of look, each placed at its column, whatever the font."""
    pieces = []
    start = 0
    for end in range(1, len(cells) + 1):
        if end == len(cells) or cells[end].look != cells[start].look:
            text = "".join(cell.char for cell in cells[start:end])
            look = f' class="{cells[start].look}"' if cells[start].look else ""
            x = MARGIN + start * CELL_WIDTH
            length = len(text) * CELL_WIDTH
            pieces.append(f'<tspan x="{x:g}" textLength="{length:g}"{look}>{escape(text, quote=False)}</tspan>')
            start = end
    return f'<text xml:space="preserve" y="{y}">{"".join(pieces)}</text>'


def main() -> None:
    """Write the picture."""
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(svg(screen(run_demo(pace=0.03))), encoding="utf-8")
    print(f"wrote {PICTURE}")


if __name__ == "__main__":
    main()
