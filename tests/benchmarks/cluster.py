"""`python -m tests.benchmarks.cluster [--readme]`: what it costs to follow a run through Redis."""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import remoteclaw_sync
from remoteclaw_sync import AgentEvent, AgentTextEvent
from remoteclaw_sync.cluster import Cluster, new_key
from remoteclaw_sync.web import Runs, sse
from remoteclaw_sync.web.handle import Registry
from tests.redis_server import RedisServer

README = Path(remoteclaw_sync.__file__).parent / "cluster" / "README.md"
BEGIN, END = "<!-- cluster:begin -->\n", "<!-- cluster:end -->"
EVENTS = 500
PACE = 0.004  # Seconds between two events, at the pace of a quick model.
FLOOD = 5000
FOLLOWERS = 500


def paced(times: list[float]) -> Iterator[AgentEvent]:
    """Events at this pace; notes when each of them was sent."""
    for number in range(EVENTS):
        time.sleep(PACE)
        times.append(time.perf_counter())
        yield AgentTextEvent(f"{number} ")


def latencies(writer: Registry, reader: Registry) -> list[float]:
    """Milliseconds from the moment an event leaves the agent until a visitor has its bytes."""
    said: list[float] = []
    stream = sse(reader.get(writer.start(paced(said)).run_id))
    heard = [time.perf_counter() for chunk in stream if chunk.startswith(b"id")]
    return [(there - then) * 1000 for then, there in zip(said, heard, strict=False)]


def events_per_second(writer: Registry) -> float:
    begin = time.perf_counter()
    for _ in sse(writer.start([AgentTextEvent("some words of an answer ")] * FLOOD)):
        pass
    return FLOOD / (time.perf_counter() - begin)


def followers_per_core(writer: Registry, reader: Registry) -> float:
    """How many followers of a run with ten events a second keep one core of this process busy."""
    said: list[float] = []
    run_id = writer.start(paced(said)).run_id
    threading.stack_size(256 << 10)
    heard: list[int] = []

    def follow() -> None:
        heard.append(sum(chunk.startswith(b"id") for chunk in sse(reader.get(run_id))))

    threads = [threading.Thread(target=follow) for _ in range(FOLLOWERS)]
    begin = time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    threading.stack_size(0)
    assert heard == [EVENTS + 1] * FOLLOWERS, "a figure counts only if every follower got every event"
    per_event = (time.process_time() - begin) / (FOLLOWERS * EVENTS)
    return 1 / (per_event * 10)


def row(name: str, writer: Registry, reader: Registry) -> str:
    found = sorted(latencies(writer, reader))
    middle, late = statistics.median(found), found[int(len(found) * 0.99)]
    speed, crowd = events_per_second(writer), followers_per_core(writer, reader)
    return f"| {name} | {middle:.2f} ms | {late:.1f} ms | {speed:,.0f} | {crowd:,.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.cluster", description=__doc__)
    parser.add_argument("--readme", action="store_true", help="put the table into the page `cluster`")
    options = parser.parse_args()
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    assert program, "redis-server is not on PATH"
    server = RedisServer(program, durable=True)
    rows = [
        "| events go | latency, median | 99 of 100 | events/s of one run | followers per core |",
        "|---|--:|--:|--:|--:|",
    ]
    try:
        with tempfile.TemporaryDirectory() as folder:
            here = Runs(folder)
            rows.append(row("in one process, `web.runs`", here, here))
            rows.append(row("to another worker of the machine, `web.runs`", here, Runs(folder)))
        for name, key in (("through Redis", None), ("through Redis, sealed", new_key())):
            with Cluster(server.url, key=key) as writer, Cluster(server.url, key=key) as reader:
                rows.append(row(name, writer.runs, reader.runs))
    finally:
        server.close()
    table = "\n".join(rows) + "\n"
    print(table, end="")
    if options.readme:
        head, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
        README.write_text(head + BEGIN + table + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
