"""What breaks between machines: Redis dies, the network is cut, many come at once. Nothing is lost or done twice."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import AgentEvent, AgentTextEvent
from remoteclaw_sync.cluster import Cluster
from remoteclaw_sync.cluster.link import CONNECTIONS
from remoteclaw_sync.web import sse
from tests.cluster.proxy import Proxy
from tests.fakes import PATIENCE, FakeRuntime, Gate, alive, start_host, wait_until
from tests.redis_server import RedisServer
from tests.web.streams import Frame, check_whole, frames, text_of

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(300)]

Make = Callable[..., Cluster]
GateMaker = Callable[[], Gate]
CUT = 5.0


class Events:
    """An agent's events, which the test triggers."""

    def __init__(self) -> None:
        self._said: list[str | None] = []
        self._changed = threading.Condition()

    def say(self, *texts: str | None) -> None:
        with self._changed:
            self._said += texts
            self._changed.notify_all()

    def __iter__(self) -> Iterator[AgentEvent]:
        while (text := self._next()) is not None:
            yield AgentTextEvent(text)

    def _next(self) -> str | None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._said, PATIENCE * 4)
            return self._said.pop(0)


class Reader:
    """Follows a run in a thread."""

    def __init__(self, runs: Any, run_id: str) -> None:
        self.chunks: list[bytes] = []
        self._runs, self._run_id = runs, run_id
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        self.chunks.extend(sse(self._runs.get(self._run_id), heartbeat=1.0))

    @property
    def frames(self) -> list[Frame]:
        return frames(list(self.chunks))

    def has(self, count: int) -> bool:
        return wait_until(lambda: len(self.frames) >= count)

    def rest(self) -> list[Frame]:
        self._thread.join(PATIENCE * 2)
        assert not self._thread.is_alive()
        return self.frames


def texts(first: int, last: int) -> list[str]:
    return [f"{number} " for number in range(first, last)]


def test_redis_is_killed_between_two_events_and_nothing_is_lost_or_doubled(
    cluster: Make, own_redis: RedisServer
) -> None:
    events = Events()
    worker, web = cluster(own_redis.url, lease=30.0), cluster(own_redis.url, lease=30.0)
    reader = Reader(web.runs, worker.runs.start(events).run_id)
    events.say(*texts(0, 50))
    assert reader.has(50)
    own_redis.kill()
    events.say(*texts(50, 100))  # While it is down.
    own_redis.start()
    assert reader.has(100)
    events.say(*texts(100, 150), None)
    found = reader.rest()
    check_whole_text(found, 150)


def check_whole_text(found: list[Frame], count: int) -> None:
    assert [one.number for one in found] == list(range(1, count + 2))
    assert text_of(found) == "".join(texts(0, count))
    assert found[-1].event == "done"


def test_a_redis_that_lost_everything_is_filled_again_from_the_worker(cluster: Make, own_redis: RedisServer) -> None:
    events = Events()
    worker, web = cluster(own_redis.url), cluster(own_redis.url)
    handle = worker.runs.start(events)
    reader = Reader(web.runs, handle.run_id)
    events.say(*texts(0, 10))
    assert reader.has(10)
    with worker.link.asking() as client:
        client.flushall()
    events.say(*texts(10, 20), None)
    check_whole_text(reader.rest(), 20)
    check_whole_text(frames(sse(cluster(own_redis.url).runs.get(handle.run_id))), 20)


@pytest.mark.parametrize("whose", ["the worker's", "the follower's"])
def test_a_network_cut_of_five_seconds_costs_neither_the_run_nor_an_event(
    whose: str, cluster: Make, own_redis: RedisServer
) -> None:
    proxy = Proxy(own_redis.socket)
    try:
        events = Events()
        cut = cluster(proxy.url, lease=30.0)
        well = cluster(own_redis.url, lease=30.0)
        worker, web = (cut, well) if whose == "the worker's" else (well, cut)
        reader = Reader(web.runs, worker.runs.start(events).run_id)
        events.say(*texts(0, 20))
        assert reader.has(20)
        proxy.cut()
        events.say(*texts(20, 40))
        time.sleep(CUT)  # The cut itself is tested; nothing can signal that it has lasted long enough.
        proxy.mend()
        events.say(*texts(40, 60), None)
        check_whole_text(reader.rest(), 60)
        cut.close()
    finally:
        proxy.close()


def test_a_worker_that_is_cut_off_for_longer_than_its_lease_stops_its_agent(
    cluster: Make, own_redis: RedisServer, gate: GateMaker
) -> None:
    """Its followers are told that it died, and may start again, so it must not continue."""
    there = gate()
    proxy = Proxy(own_redis.socket)
    try:
        worker, web = cluster(proxy.url, lease=2.0), cluster(own_redis.url, lease=2.0)
        handle = worker.runs.start(FakeRuntime(["text", "a"], ["notify", there.path], ["hang"]).start("hi"))
        agent = there.wait()
        reader = Reader(web.runs, handle.run_id)
        assert reader.has(1)
        proxy.cut()
        found = reader.rest()
        assert [one.data.get("code") for one in found] == [None, "WORKER_DIED", None]
        assert wait_until(lambda: not alive(agent))
        proxy.mend()
        worker.runs.abort_all()
        assert frames(sse(web.runs.get(handle.run_id))) == found, "it has added nothing afterwards"
        worker.close()
    finally:
        proxy.close()


# --- many at once ------------------------------------------------------------------------------------------------

FOLLOWERS = 1000


def test_a_thousand_followers_in_one_process_share_a_handful_of_connections(
    cluster: Make, own_redis: RedisServer
) -> None:
    events = Events()
    worker, web = cluster(own_redis.url, lease=30.0), cluster(own_redis.url, lease=30.0)
    handle = worker.runs.start(events)
    events.say(*texts(0, 5))
    threading.stack_size(256 << 10)
    try:
        readers = [Reader(web.runs, handle.run_id) for _ in range(FOLLOWERS)]
    finally:
        threading.stack_size(0)
    with worker.link.asking() as client:
        assert len(client.client_list()) <= 2 * CONNECTIONS
    assert all(reader.has(5) for reader in readers)
    events.say(*texts(5, 20), None)
    for reader in readers:
        check_whole_text(reader.rest(), 20)


WORKER = """
import json, sys
from remoteclaw_sync.cluster import Cluster
from tests.fakes import FakeRuntime
cluster = Cluster(sys.argv[1], prefix=sys.argv[2], lease=30.0)
def start(params):
    with open(sys.argv[3], "a") as log:
        log.write(params.prompt + "\\n")
    return FakeRuntime(["text", "answer "], ["text", params.prompt]).start("hi")
for line in sys.stdin:
    cluster.runs.work(line.strip(), start)
cluster.close()
"""


def test_two_hundred_runs_on_eight_workers_each_once(
    cluster: Make, own_redis: RedisServer, prefix: str, tmp_path: Path
) -> None:
    """Each run is offered to two workers, as by a queue that delivers twice."""
    web = cluster(own_redis.url, lease=30.0)
    log = tmp_path / "started"
    homes = [tmp_path / f"machine{number}" for number in range(8)]
    workers: list[subprocess.Popen[str]] = []
    for home in homes:
        home.mkdir()
        env = {"HOME": str(home)}
        workers.append(start_host(WORKER, own_redis.url, prefix, str(log), stdin=subprocess.PIPE, env=env))
    handles = [web.runs.reserve(f"question {number}") for number in range(200)]
    for number, handle in enumerate(handles):
        for worker in (workers[number % 8], workers[(number + 1) % 8]):
            assert worker.stdin is not None
            worker.stdin.write(handle.run_id + "\n")
            worker.stdin.flush()
    for number, handle in enumerate(handles):
        found = frames(sse(handle))
        check_whole(found)
        assert text_of(found) == f"answer question {number}"
    for worker in workers:
        with worker:
            _, err = worker.communicate(timeout=PATIENCE)
            assert (worker.returncode, err.replace(NOT_STARTED, "")) == (0, "")
    assert sorted(log.read_text().splitlines()) == sorted(f"question {number}" for number in range(200))


NOT_STARTED = "a run was not started: it has been taken, aborted, or has waited too long\n"


def test_followers_on_other_machines_hear_of_a_killed_worker_and_the_agent_is_gone(
    cluster: Make, own_redis: RedisServer, prefix: str, gate: GateMaker
) -> None:
    there = gate()
    code = """
        import sys
        from remoteclaw_sync.cluster import Cluster
        from tests.fakes import FakeRuntime
        cluster = Cluster(sys.argv[1], prefix=sys.argv[2], lease=3.0)
        handle = cluster.runs.start(FakeRuntime(["text", "a"], ["notify", sys.argv[3]], ["hang"]).start("hi"))
        print(handle.run_id, flush=True)
        sys.stdin.read()
    """
    with start_host(code, own_redis.url, prefix, there.path, stdin=subprocess.PIPE) as host:
        assert host.stdout is not None
        run_id = host.stdout.readline().strip()
        agent = there.wait()
        readers = [Reader(cluster(own_redis.url, lease=3.0).runs, run_id) for _ in range(3)]
        assert all(reader.has(1) for reader in readers)
        os.kill(host.pid, signal.SIGKILL)
    found = [reader.rest() for reader in readers]
    assert found[0] == found[1] == found[2]
    assert [one.data.get("code") for one in found[0]] == [None, "WORKER_DIED", None]
    assert wait_until(lambda: not alive(agent))
