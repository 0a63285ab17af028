"""What is measured. Each scenario returns rows: (what, value, unit, floor, target)."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs

from remoteclaw_sync import CLIRuntimeBase

from .fake import fake_runtime
from .measure import cpu_seconds, memory_bytes, pairs, ratio
from .streams import PROVIDERS, STAMP, write_long_line, write_stream


@attrs.frozen
class Row:
    """One line of the table. `better` says in which direction the floor lies."""

    what: str
    value: float
    spread: tuple[float, float]
    unit: str
    floor: float
    target: float | None
    better: str  # "higher" or "lower"

    @property
    def holds(self) -> bool:
        return self.value >= self.floor if self.better == "higher" else self.value <= self.floor


@attrs.frozen
class Bench:
    """Where the scenarios work, and how thoroughly."""

    folder: Path
    fake_cli: str
    lines: int
    pair_count: int

    def stream(self, provider: str, lines: int) -> Path:
        path = self.folder / f"{provider}-{lines}.ndjson"
        return path if path.exists() else write_stream(path, provider, lines)


def read_by_hand(argv: list[str]) -> int:
    """(a): the loop a person would write: one thread, no watchdog, no abort, no stderr, no events."""
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        count = 0
        for line in process.stdout:
            json.loads(line)
            count += 1
    return count


def consume(runtime: CLIRuntimeBase) -> int:
    """Ours, checked: nothing counts that did not end well."""
    count = 0
    for event in runtime.execute("go"):
        count += 1
    if event.type != "done" or not event.result.ok:
        raise RuntimeError(f"the run did not end well: {event}")
    return count


def throughput(bench: Bench) -> Iterator[Row]:
    """Lines as fast as the pipe takes them, each dialect."""
    for provider in PROVIDERS:
        argv = [bench.fake_cli, str(bench.stream(provider, bench.lines))]
        runtime = fake_runtime(provider, argv)
        measured = pairs(lambda: consume(runtime), lambda: read_by_hand(argv), bench.pair_count)
        speed = ratio([limit.wall / ours.wall for ours, limit in measured])
        cpu = ratio([ours.cpu / limit.cpu for ours, limit in measured])
        yield Row(f"throughput, {provider}", speed.median, (speed.low, speed.high), "x (a)", 1.0, 1.3, "higher")
        yield Row(f"CPU per line, {provider}", cpu.median, (cpu.low, cpu.high), "x (a)", 0.9, 0.77, "lower")


def growth(bench: Bench) -> Iterator[Row]:
    """Cost per line of a long stream against a short one."""
    costs = []
    for lines in (bench.lines // 20, bench.lines * 2):
        runtime = fake_runtime("claude", [bench.fake_cli, str(bench.stream("claude", lines))])
        before = cpu_seconds()
        consume(runtime)
        costs.append((cpu_seconds() - before) / lines)
    grown = costs[1] / costs[0]
    yield Row("CPU per line, 40 times the lines", grown, (grown, grown), "x short", 1.3, 1.0, "lower")


def latency(bench: Bench) -> Iterator[Row]:
    """From the CLI's write to the event, lines 1 ms apart."""
    count = 1000
    path = write_stream(bench.folder / "paced.ndjson", "claude", count, text=STAMP)
    argv = [bench.fake_cli, str(path), "1000", str(count + 10)]

    def ours() -> list[float]:
        delays = []
        for event in fake_runtime("claude", argv).execute("go"):
            if event.type == "text":
                delays.append((time.monotonic_ns() - int(event.text)) / 1000)
        return delays

    def by_hand() -> list[float]:
        delays = []
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for line in process.stdout:
                delta = json.loads(line).get("event", {}).get("delta", {})
                if "text" in delta:
                    delays.append((time.monotonic_ns() - int(delta["text"])) / 1000)
        return delays

    added = [statistics.median(ours()) - statistics.median(by_hand()) for _ in range(3)]
    spread = (min(added), max(added))
    yield Row("added latency per event", statistics.median(added), spread, "µs over (a)", 80, 35, "lower")


def start_up(bench: Bench) -> Iterator[Row]:
    """From the call to the first event and to the end, with a CLI that prints one line."""
    argv = [bench.fake_cli, str(bench.stream("claude", 1))]
    runtime = fake_runtime("claude", argv)

    def ours() -> tuple[float, float]:
        begin = time.perf_counter()
        events = runtime.execute("go")
        next(events)
        first = time.perf_counter() - begin
        for _ in events:
            pass
        return first, time.perf_counter() - begin

    def by_hand() -> tuple[float, float]:
        begin = time.perf_counter()
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            json.loads(process.stdout.readline())
            first = time.perf_counter() - begin
            for line in process.stdout:
                json.loads(line)
        return first, time.perf_counter() - begin

    ours(), by_hand()
    samples = [(ours(), by_hand()) for _ in range(60)]
    for index, what, floor, target in ((0, "first event", 0.8, 0.4), (1, "done", 1.0, 0.5)):
        added = ratio([(mine[index] - limit[index]) * 1000 for mine, limit in samples])
        yield Row(f"spawn to {what}", added.median, (added.low, added.high), "ms over (a)", floor, target, "lower")


def many_at_once(bench: Bench) -> Iterator[Row]:
    """Fifty runs in fifty threads."""
    runs = 50
    argv = [bench.fake_cli, str(bench.stream("claude", bench.lines // 50))]
    runtime = fake_runtime("claude", argv)
    most_threads = 0

    def all_at_once(job: Callable[[], object]) -> None:
        nonlocal most_threads
        with ThreadPoolExecutor(runs) as pool:
            futures = [pool.submit(job) for _ in range(runs)]
            while not all(future.done() for future in futures):
                most_threads = max(most_threads, threading.active_count())
                time.sleep(0.01)
            for future in futures:
                future.result()

    measured = pairs(lambda: all_at_once(lambda: consume(runtime)), lambda: all_at_once(lambda: read_by_hand(argv)), 4)
    speed = ratio([limit.wall / ours.wall for ours, limit in measured])
    cpu = ratio([ours.cpu / limit.cpu for ours, limit in measured])
    threads = (most_threads - 1 - runs) / runs
    yield Row("50 runs at once: throughput", speed.median, (speed.low, speed.high), "x (a)", 0.85, 1.0, "higher")
    yield Row("50 runs at once: CPU", cpu.median, (cpu.low, cpu.high), "x (a)", 1.15, 1.0, "lower")
    yield Row("50 runs at once: our threads a run", threads, (threads, threads), "threads", 4, 3, "lower")


def long_line(bench: Bench) -> Iterator[Row]:
    """One line of 32 MB."""
    path = write_long_line(bench.folder / "long.ndjson", "claude", 32 * 1024 * 1024)
    argv = [bench.fake_cli, str(path)]
    runtime = fake_runtime("claude", argv)
    measured = pairs(lambda: consume(runtime), lambda: read_by_hand(argv), 6)
    time_ratio = ratio([ours.wall / limit.wall for ours, limit in measured])
    spread = (time_ratio.low, time_ratio.high)
    yield Row("one 32 MB line: time", time_ratio.median, spread, "x (a)", 1.8, 1.0, "lower")


def slow_consumer(bench: Bench) -> Iterator[Row]:
    """A consumer that does not come back while 100,000 lines arrive: nothing lost, memory near what is pending."""
    lines = 100_000
    path = bench.stream("claude", lines)
    runtime = fake_runtime("claude", [bench.fake_cli, str(path)])
    events = runtime.execute("go")
    next(events)
    before = memory_bytes()
    most = before
    for _ in range(200):
        time.sleep(0.005)
        most = max(most, memory_bytes())
    texts = sum(1 for event in events if event.type == "text")
    if texts != lines - 1:
        raise RuntimeError(f"lost lines: {lines - 1 - texts}")
    grown = (most - before) / path.stat().st_size
    yield Row("slow consumer: memory", grown, (grown, grown), "x bytes pending", 1.5, 1.0, "lower")


def abort_and_idle(bench: Bench) -> Iterator[Row]:
    """Fifty idle runs: what they cost, and how soon abort reaches the CLI with nobody iterating."""
    argv = [bench.fake_cli, str(bench.stream("claude", 1)), "-1", "600"]
    runtime = fake_runtime("claude", argv)
    signals = [threading.Event() for _ in range(50)]
    idle = [runtime.execute("go", abort_signal=signal) for signal in signals]
    runs = [threading.Thread(target=lambda run=run: [None for _ in run], daemon=True) for run in idle]
    for thread in runs:
        thread.start()
    time.sleep(2.0)
    before, begin = cpu_seconds(), time.perf_counter()
    time.sleep(4.0)
    cost = (cpu_seconds() - before) / (time.perf_counter() - begin) * 100
    for signal in signals:
        signal.set()
    for thread in runs:
        thread.join(10)
    yield Row("50 idle runs: CPU", cost, (cost, cost), "% of a core", 1.0, 0.1, "lower")
    yield from _abort_latency(runtime)


def _abort_latency(runtime: CLIRuntimeBase) -> Iterator[Row]:
    delays = []
    for _ in range(10):
        signal = threading.Event()
        run = runtime.start("go", abort_signal=signal)
        # The fake CLI's first line is `init`, which gives no event: the pid tells that it runs.
        thread = threading.Thread(target=lambda run=run: [None for _ in run], daemon=True)
        thread.start()
        while run.pid is None:
            time.sleep(0.001)
        time.sleep(0.05)
        begin = time.perf_counter()
        signal.set()
        while Path(f"/proc/{run.pid}").exists():
            time.sleep(0.0002)
        delays.append((time.perf_counter() - begin) * 1000)
        thread.join(10)
    spread = (min(delays), max(delays))
    yield Row("abort to the CLI's death", statistics.median(delays), spread, "ms", 50, 1, "lower")


def import_time(bench: Bench) -> Iterator[Row]:
    """Against attrs and the standard modules that any such library needs."""
    needed = "import attrs, json, queue, subprocess, threading, select, logging, signal"

    def importing(code: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", code], check=True)

    measured = pairs(importing("import remoteclaw_sync"), importing(needed), 20)
    bare = pairs(importing("pass"), importing("pass"), 10)
    start = statistics.median([first.wall for first, _ in bare])
    grown = ratio([(ours.wall - start) / max(limit.wall - start, 1e-6) for ours, limit in measured])
    yield Row("import", grown.median, (grown.low, grown.high), "x attrs + stdlib", 1.8, 1.0, "lower")


SCENARIOS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "throughput": throughput,
    "growth": growth,
    "latency": latency,
    "start": start_up,
    "many": many_at_once,
    "long": long_line,
    "slow": slow_consumer,
    "idle": abort_and_idle,
    "import": import_time,
}
