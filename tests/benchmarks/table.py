"""The rows of the table, and the tools to measure them."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import attrs

from remoteclaw_sync import AgentDoneEvent, CLIRuntimeBase
from remoteclaw_sync.wire import json_lines as ndjson

from .measure import Ratio
from .streams import write_stream


@attrs.frozen
class Row:
    """One line of the table. `better` is the direction of the floor; a row without a floor is for comparison."""

    what: str
    value: float
    spread: tuple[float, float]
    unit: str
    floor: float | None = None
    target: float | None = None
    better: str = "lower"  # or "higher"

    @property
    def holds(self) -> bool:
        if self.floor is None:
            return True
        return self.value >= self.floor if self.better == "higher" else self.value <= self.floor


def row(what: str, measured: Ratio, unit: str, floor: float | None = None, target: float | None = None) -> Row:
    """Less is better."""
    return Row(what, measured.median, (measured.low, measured.high), unit, floor, target, "lower")


def speed_row(what: str, measured: Ratio, unit: str, floor: float | None = None, target: float | None = None) -> Row:
    """More is better."""
    return Row(what, measured.median, (measured.low, measured.high), unit, floor, target, "higher")


def single(value: float) -> Ratio:
    """A value that was measured only once."""
    return Ratio(value, value, value)


@attrs.frozen
class Bench:
    """Where the scenarios run, and how thoroughly."""

    folder: Path
    fake_cli: str
    lines: int
    pair_count: int

    def stream(self, provider: str, lines: int) -> Path:
        """A prepared stream, which is written only once."""
        path = self.folder / f"{provider}-{lines}.ndjson"
        return path if path.exists() else write_stream(path, provider, lines)


@contextmanager
def parser(name: str) -> Iterator[None]:
    """Make the runtimes parse with "json" (as if nothing else were installed) or "orjson"."""
    found = (lambda: None) if name == "json" else ndjson.fast_parser
    with mock.patch.object(ndjson, "fast_parser", found):
        yield


def read_by_hand(argv: list[str]) -> int:
    """(a): the loop a person would write, with one thread, no watchdog, no abort, no stderr and no events."""
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        count = 0
        for line in process.stdout:
            json.loads(line)
            count += 1
    return count


def read_in_a_thread(argv: list[str]) -> int:
    """(a) with a reader thread and a queue in between, as a person would write it who also wants a deadline."""
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        stream = process.stdout

        def read() -> None:
            for line in stream:
                lines.put(line)
            lines.put(None)

        thread = threading.Thread(target=read)
        thread.start()
        count = 0
        while (line := lines.get()) is not None:
            json.loads(line)
            count += 1
        thread.join()
    return count


def consume(runtime: CLIRuntimeBase) -> int:
    """Ours, checked: runs that did not end successfully do not count."""
    count, last = 0, None
    for event in runtime.execute("go"):
        count += 1
        last = event
    if not isinstance(last, AgentDoneEvent) or not last.result.ok:
        raise RuntimeError(f"the run did not end well: {last}")
    return count
