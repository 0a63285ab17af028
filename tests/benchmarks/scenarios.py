"""What is measured. Each scenario yields rows of the table."""

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

from remoteclaw_sync import CLIRuntimeBase
from remoteclaw_sync.wire.json_lines import fast_parser

from .fake import fake_runtime
from .measure import Sample, cpu_seconds, memory_bytes, pairs, ratio, sample
from .paced import paced
from .peers import peers, remoteclaw
from .streams import AT_WORK, PROVIDERS, STAMP, write_long_line, write_stream, write_very_long_stream
from .table import Bench, Row, consume, parser, read_by_hand, row, single, speed_row

MEGABYTE = 1024 * 1024


def against_hand(runtime: CLIRuntimeBase, argv: list[str], count: int) -> list[tuple[Sample, Sample]]:
    """Pairs of ours and (a) on the same CLI."""
    return pairs(lambda: consume(runtime), lambda: read_by_hand(argv), count)


def throughput(bench: Bench) -> Iterator[Row]:
    """Lines as fast as the pipe takes them, in each dialect, with the standard parser.

    The floors are for text. Most lines of a working agent are something else, and carry more meaning.
    """
    for stream in (*PROVIDERS, AT_WORK):
        with parser("json"):
            measured = _stream_against_hand(bench, stream, bench.pair_count if stream in PROVIDERS else 3)
        speed = ratio([limit.wall / ours.wall for ours, limit in measured])
        cpu = ratio([ours.cpu / limit.cpu for ours, limit in measured])
        yield speed_row(f"throughput, {stream}", speed, "x (a)", 1.0, 1.3)
        yield row(f"CPU per line, {stream}", cpu, "x (a)", 0.9 if stream in PROVIDERS else None, 0.77)


def throughput_with_orjson(bench: Bench) -> Iterator[Row]:
    """The same with the extra `speed`."""
    if fast_parser() is None:
        print("orjson is not installed: left out", file=sys.stderr)
        return
    for stream in (*PROVIDERS, AT_WORK):
        with parser("orjson"):
            measured = _stream_against_hand(bench, stream, 3)
        speed = ratio([limit.wall / ours.wall for ours, limit in measured])
        yield speed_row(f"throughput with orjson, {stream}", speed, "x (a)", 1.2 if stream in PROVIDERS else None, 1.5)


def _stream_against_hand(bench: Bench, stream: str, count: int) -> list[tuple[Sample, Sample]]:
    argv = [bench.fake_cli, str(bench.stream(stream, bench.lines))]
    return against_hand(fake_runtime(stream.partition(" ")[0], argv), argv, count)


def growth(bench: Bench) -> Iterator[Row]:
    """Cost per line of long streams compared with short ones, and of long lines compared with (a)."""
    short, long = 10_000, bench.lines * 5
    few = fake_runtime("claude", [bench.fake_cli, str(bench.stream("claude", short))])
    path = write_very_long_stream(bench.folder / "very-long.ndjson", long)
    many = fake_runtime("claude", [bench.fake_cli, str(path)])
    with parser("json"):
        measured = [(sample(lambda: consume(many)), _typical(lambda: consume(few), 9)) for _ in range(2)]
    path.unlink()
    grown = ratio([(all_.cpu / long) / (some / short) for all_, some in measured])
    yield row(f"CPU per line, {long // short} times the lines", grown, f"x {short:,} lines", 1.3, 1.0)
    for size, lines in ((10_000, 3000), (MEGABYTE, 60)):
        path = write_stream(bench.folder / f"lines-of-{size}.ndjson", "claude", lines, text="x" * size)
        argv = [bench.fake_cli, str(path)]
        with parser("json"):
            pairs_ = against_hand(fake_runtime("claude", argv), argv, 4)
        time_ratio = ratio([ours.wall / limit.wall for ours, limit in pairs_])
        yield row(f"lines of {size // 1000:,} kB: time", time_ratio, "x (a)", 1.8, 1.0)


def _typical(job: Callable[[], object], count: int) -> float:
    """CPU time: the median, not the minimum, because the other side is measured only once, noise included."""
    return statistics.median([sample(job).cpu for _ in range(count)])


def long_line(bench: Bench) -> Iterator[Row]:
    """One line of 32 MB."""
    path = write_long_line(bench.folder / "long.ndjson", "claude", 32 * MEGABYTE)
    argv = [bench.fake_cli, str(path)]
    with parser("json"):
        measured = against_hand(fake_runtime("claude", argv), argv, 7)
    time_ratio = ratio([ours.wall / limit.wall for ours, limit in measured])
    yield row("one 32 MB line: time", time_ratio, "x (a)", 1.8, 1.0)


def latency(bench: Bench) -> Iterator[Row]:
    """From the CLI's write to the event, with lines 1 ms apart."""
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

    with parser("json"):
        added = ratio([statistics.median(ours()) - statistics.median(by_hand()) for _ in range(3)])
    yield row("added latency per event", added, "µs over (a)", 80, 35)


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
        yield row(f"spawn to {what}", added, "ms over (a)", floor, target)


def many_at_once(bench: Bench) -> Iterator[Row]:
    """Fifty runs in fifty threads."""
    runs = 50
    argv = [bench.fake_cli, str(bench.stream("claude", bench.lines // 40))]
    runtime = fake_runtime("claude", argv)

    def all_at_once(job: Callable[[], object]) -> None:
        with ThreadPoolExecutor(runs) as pool:
            for future in [pool.submit(job) for _ in range(runs)]:
                future.result()

    with parser("json"):
        measured = pairs(
            lambda: all_at_once(lambda: consume(runtime)), lambda: all_at_once(lambda: read_by_hand(argv)), 3
        )
    speed = ratio([limit.wall / ours.wall for ours, limit in measured])
    cpu = ratio([ours.cpu / limit.cpu for ours, limit in measured])
    yield speed_row("50 runs at once: throughput", speed, "x (a)", 0.85, 1.0)
    yield row("50 runs at once: CPU", cpu, "x (a)", 1.15, 1.0)


def slow_consumer(bench: Bench) -> Iterator[Row]:
    """1 ms for each of the first 1,500 events of 100,000: nothing is lost, and memory stays close to what is
    pending."""
    lines = 100_000
    path = bench.stream("claude", lines)
    events = fake_runtime("claude", [bench.fake_cli, str(path)]).execute("go")
    next(events)
    before = most = memory_bytes()
    texts = 1
    for event in events:
        texts += event.type == "text"
        if texts <= 1500:
            time.sleep(0.001)
            most = max(most, memory_bytes())
    if texts != lines:
        raise RuntimeError(f"lost lines: {lines - texts}")
    yield row("slow consumer: memory", single((most - before) / path.stat().st_size), "x bytes pending", 1.5, 1.0)


def abort_and_idle(bench: Bench) -> Iterator[Row]:
    """Fifty idle runs: what they cost, and how soon abort reaches the CLI when nobody iterates."""
    argv = [bench.fake_cli, str(bench.stream("claude", 1)), "-1", "600"]
    runtime = fake_runtime("claude", argv)
    signals = [threading.Event() for _ in range(50)]
    threads_before = threading.active_count()
    idle = [runtime.start("go", abort_signal=signal) for signal in signals]
    consumers = [threading.Thread(target=_consume_all, args=(run,), daemon=True) for run in idle]
    for thread in consumers:
        thread.start()
    time.sleep(2.0)
    threads = (threading.active_count() - threads_before - len(consumers)) / len(idle)
    if any(run.pid is None or run.result is not None for run in idle):
        raise RuntimeError("the runs were not idle")
    before, begin = cpu_seconds(), time.perf_counter()
    time.sleep(4.0)
    cost = (cpu_seconds() - before) / (time.perf_counter() - begin) * 100
    for signal in signals:
        signal.set()
    for thread in consumers:
        thread.join(10)
    yield row("50 idle runs: CPU", single(cost), "% of a core", 1.0, 0.1)
    yield row("50 idle runs: threads of ours a run", single(threads), "threads", 4, 3)
    yield _abort_latency(runtime)


def _consume_all(run: Iterator[object]) -> None:
    for _ in run:
        pass


def _abort_latency(runtime: CLIRuntimeBase) -> Row:
    """The time until the CLI is dead: the fake one dies of SIGTERM at once."""
    delays = []
    for _ in range(15):
        signal = threading.Event()
        run = runtime.start("go", abort_signal=signal)
        # The fake CLI's first line is `init`, which produces no event: the pid shows that it runs.
        thread = threading.Thread(target=_consume_all, args=(run,), daemon=True)
        thread.start()
        while run.pid is None:
            time.sleep(0.001)
        time.sleep(0.05)
        begin = time.perf_counter()
        signal.set()
        while _is_alive(run.pid):
            time.sleep(0.0002)
        delays.append((time.perf_counter() - begin) * 1000)
        thread.join(10)
    return row("abort to the CLI's death", ratio(delays), "ms", 50, 1)


def _is_alive(pid: int | None) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1] not in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def import_time(bench: Bench) -> Iterator[Row]:
    """Compared with attrs and the standard modules that any such library needs."""
    needed = "import attrs, json, queue, subprocess, threading, select, logging, signal"

    def importing(code: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", code], check=True)

    measured = pairs(importing("import remoteclaw_sync"), importing(needed), 12)
    bare = statistics.median([sample(importing("pass")).wall for _ in range(10)])
    grown = ratio([(ours.wall - bare) / max(limit.wall - bare, 1e-6) for ours, limit in measured])
    yield row("import", grown, "x attrs + stdlib", 1.8, 1.0)


SCENARIOS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "paced": paced,
    "throughput": throughput,
    "orjson": throughput_with_orjson,
    "growth": growth,
    "long": long_line,
    "latency": latency,
    "start": start_up,
    "many": many_at_once,
    "slow": slow_consumer,
    "idle": abort_and_idle,
    "import": import_time,
    "peers": peers,
    "remoteclaw": remoteclaw,
}
