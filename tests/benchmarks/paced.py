"""Runs as users have them: a line every 20 ms, one run alone and fifty at once."""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from .fake import fake_runtime
from .measure import pairs, ratio
from .streams import STAMP, write_stream
from .table import Bench, Row, consume, parser, read_by_hand, read_in_a_thread, row

PACE_MICROSECONDS = 20_000
RUNS = 50


def paced(bench: Bench) -> Iterator[Row]:
    """CPU of this process per line, against (a) in the same number of threads, and the delay that one run adds to a
    line."""
    # The shorter the run, the more its start counts: threads, the guard process, the sweep.
    for seconds, floor in ((8.0, 2.5), (1.2, 3.5)):
        argv = _agent(bench, seconds)
        ours = partial(consume, fake_runtime("claude", argv))
        by_hand = partial(read_by_hand, argv)
        with parser("json"):
            measured = pairs(partial(_at_once, ours), partial(_at_once, by_hand), 5)
            plain = pairs(partial(_at_once, partial(read_in_a_thread, argv)), partial(_at_once, by_hand), 3)
        cpu = ratio([mine.cpu / limit.cpu for mine, limit in measured])
        yield row(f"50 runs, a line every 20 ms, {seconds:g} s: CPU", cpu, "x (a)", floor, 2.0)
        # The least that a design with reader threads can do: it depends on what a switch of threads costs here.
        bound = ratio([mine.cpu / limit.cpu for mine, limit in plain])
        yield row(f"the same, a plain reader thread, {seconds:g} s: CPU", bound, "x (a)")
    yield from _one_run(bench)


def _one_run(bench: Bench) -> Iterator[Row]:
    argv = _agent(bench, 4.0)
    with parser("json"):
        measured = pairs(lambda: consume(fake_runtime("claude", argv)), lambda: read_by_hand(argv), 5)
        added = ratio([_delay(_events_of(argv)) - _delay(_lines_of(argv)) for _ in range(3)])
    cpu = ratio([ours.cpu / limit.cpu for ours, limit in measured])
    yield row("one run, a line every 20 ms: CPU", cpu, "x (a)", 2.5, 2.0)
    yield row("one run, a line every 20 ms: added delay", added, "µs over (a)", 60, 35)


def _agent(bench: Bench, seconds: float) -> list[str]:
    lines = round(seconds * 1_000_000 / PACE_MICROSECONDS)
    path = write_stream(bench.folder / f"paced-{lines}.ndjson", "claude", lines, text=STAMP)
    return [bench.fake_cli, str(path), str(PACE_MICROSECONDS), str(lines + 10)]


def _at_once(job: Callable[[], object]) -> None:
    with ThreadPoolExecutor(RUNS) as pool:
        for future in [pool.submit(job) for _ in range(RUNS)]:
            future.result()


def _delay(stamps: Iterator[str]) -> float:
    """The median time from a line's stamp until it arrives here, in microseconds."""
    return statistics.median([(time.monotonic_ns() - int(stamp)) / 1000 for stamp in stamps])


def _events_of(argv: list[str]) -> Iterator[str]:
    return (event.text for event in fake_runtime("claude", argv).execute("go") if event.type == "text")


def _lines_of(argv: list[str]) -> Iterator[str]:
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            delta = json.loads(line).get("event", {}).get("delta", {})
            if "text" in delta:
                yield delta["text"]
