"""An agent in a Celery task: real workers as processes, a real Redis, and every way in which a task can end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync.web import sse
from tests.cluster.proxy import Proxy
from tests.cluster.workers import Site
from tests.fakes import Gate, alive, children, wait_until
from tests.redis_server import RedisServer
from tests.web.streams import Frame, check_whole, frames, next_frame, text_of

pytest.importorskip("celery", reason="celery is not installed (extra `celery`)")
pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(300)]

GateMaker = Callable[[], Gate]
MakeSite = Callable[..., Site]


@pytest.fixture
def make_site(redis_url: str, tmp_path: Path) -> Iterator[MakeSite]:
    made: list[Site] = []

    def make(**settings: Any) -> Site:
        made.append(Site(redis_url, f"site-{os.getpid()}-{abs(hash(tmp_path)):x}", tmp_path, **settings))
        return made[-1]

    yield make
    for site in made:
        site.close()


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    return make_site()


def codes(found: list[Frame]) -> list[Any]:
    return [one.data.get("code") for one in found if one.event == "error"]


def hanging(gate: Gate) -> tuple[list[Any], ...]:
    """An agent that says something, reports its pid and then works for ever."""
    return (["text", "a"], ["notify", gate.path], ["hang"])


def test_a_run_on_a_worker_is_followed_from_the_moment_it_is_asked_for(site: Site) -> None:
    handle = site.ask(["text", "Hello "], ["text", "world"])
    stream = sse(site.runs.get(handle.run_id))
    site.worker()
    found = frames(stream)
    check_whole(found)
    assert text_of(found) == "Hello world"


def test_the_message_in_the_broker_holds_no_prompt_and_the_prompt_goes_when_a_worker_takes_it(
    site: Site, redis_url: str, gate: GateMaker
) -> None:
    import redis

    there, secret = gate(), "mango-chutney"
    site.ask(["text", "a"], ["notify", there.path], ["line", {"type": "note", "text": secret}], ["hang"])
    prefix = site.settings["prefix"]
    with redis.Redis.from_url(redis_url) as client:
        assert client.llen(prefix) == 1
        assert secret.encode() not in client.lindex(prefix, 0)
        assert any(secret.encode() in client.get(key) for key in client.keys(f"{prefix}:*:params"))
        site.worker()
        there.wait()
        assert client.keys(f"{prefix}:*:params") == []
    for handle in site.runs:
        handle.abort()
        frames(sse(handle))


def test_a_run_is_aborted_on_its_worker(site: Site, gate: GateMaker) -> None:
    there = gate()
    handle = site.ask(*hanging(there))
    site.worker()
    agent = there.wait()
    site.runs.get(handle.run_id).abort()
    assert codes(frames(sse(handle))) == ["ABORTED"]
    assert wait_until(lambda: not alive(agent))


def test_a_run_that_is_aborted_before_a_worker_takes_it_is_never_started(site: Site, tmp_path: Path) -> None:
    marker = tmp_path / "gate"
    os.mkfifo(marker)
    aborted = site.ask(["notify", str(marker)])
    aborted.abort()
    assert codes(frames(sse(aborted))) == ["ABORTED"]
    other = site.ask(["text", "b"])
    site.worker()
    check_whole(frames(sse(other)))  # Its message came after the other one's, in the same queue.
    reader = os.open(marker, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert os.read(reader, 1) == b"", "nobody has opened it"
    finally:
        os.close(reader)


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_revoking_the_task_ends_the_agent_and_followers_hear_it(how: str, site: Site, gate: GateMaker) -> None:
    there = gate()
    handle = site.ask(*hanging(there))
    site.worker()
    agent = there.wait()
    site.here[0].control.revoke(handle.run_id, terminate=True, signal=how)
    assert codes(frames(sse(handle))) == ["WORKER_STOPPED"]
    assert wait_until(lambda: not alive(agent))


def test_a_task_that_is_revoked_before_it_begins_ends_the_run(site: Site, gate: GateMaker) -> None:
    there = gate()
    first = site.ask(*hanging(there))
    site.worker()
    there.wait()
    second = site.ask(["text", "b"])
    site.here[0].control.revoke(second.run_id)
    first.abort()
    found = frames(sse(second))
    assert codes(found) == ["WORKER_STOPPED"]
    assert text_of(found) == ""


@pytest.mark.parametrize("limit", ["soft", "hard"])
def test_a_time_limit_ends_the_agent_and_followers_hear_it(limit: str, make_site: MakeSite, gate: GateMaker) -> None:
    limits = {"soft_time_limit": 2} if limit == "soft" else {"time_limit": 2}
    site = make_site(task=limits)
    there = gate()
    handle = site.ask(*hanging(there))
    site.worker()
    agent = there.wait()
    assert codes(frames(sse(handle))) == ["TIME_LIMIT"]
    assert wait_until(lambda: not alive(agent))


def test_the_time_that_a_run_waits_for_a_slot_counts_to_the_limits_of_its_task(make_site: MakeSite) -> None:
    site = make_site(task={"soft_time_limit": 2}, slots=["acme", 1])
    with site.here[2].slots("acme", 1).hold():
        handle = site.ask(["text", "a"])
        site.worker()
        assert codes(frames(sse(handle))) == ["TIME_LIMIT"]
    assert text_of(frames(sse(site.ask(["text", "b"])))) == "b"


def test_the_limits_that_follow_from_a_deadline_leave_time_to_wait_for_a_slot(site: Site) -> None:
    from remoteclaw_sync.cluster.celery import agent_task

    app, _, cluster = site.here
    without = agent_task(app, cluster, None, name="without", deadline=600).task
    waiting = agent_task(app, cluster, None, name="waiting", deadline=600, slots=cluster.slots("acme", 1)).task
    assert (without.soft_time_limit, without.time_limit) == (630, 660)
    assert (waiting.soft_time_limit, waiting.time_limit) == (4230, 4260)


def test_the_deadline_of_a_run_comes_before_the_limits_of_its_task(make_site: MakeSite, gate: GateMaker) -> None:
    site = make_site(task={"deadline": 2})
    handle = site.ask(*hanging(gate()))
    site.worker()
    assert codes(frames(sse(handle))) == ["DEADLINE_EXCEEDED"]
    with pytest.raises(ValueError, match="at most 2 s"):
        site.ask(["text", "a"], deadline=3)


def test_a_warm_shutdown_waits_for_the_run(site: Site, gate: GateMaker) -> None:
    there, middle = gate(), gate()
    handle = site.ask(["text", "a"], ["notify", there.path], ["wait", middle.path], ["text", "b"])
    worker = site.worker()
    there.wait()
    worker.send(signal.SIGTERM)
    middle.open()
    found = frames(sse(handle))
    check_whole(found)
    assert text_of(found) == "ab"
    assert worker.wait() == 0


def test_a_cold_shutdown_ends_the_agent_and_followers_hear_it(site: Site, gate: GateMaker) -> None:
    there = gate()
    handle = site.ask(*hanging(there))
    worker = site.worker()
    agent = there.wait()
    worker.send(signal.SIGQUIT)
    assert codes(frames(sse(handle)))[0] in ("WORKER_STOPPED", "WORKER_DIED")
    assert wait_until(lambda: not alive(agent))
    worker.wait()


@pytest.mark.parametrize("which", ["main process", "pool process", "both"])
def test_a_worker_that_is_killed_leaves_no_agent_and_its_run_is_started_nowhere_else(
    which: str, site: Site, gate: GateMaker
) -> None:
    there = gate()
    handle = site.ask(*hanging(there))
    worker = site.worker()
    agent = there.wait()
    (pool,) = [pid for pid in children(worker.pid) if agent in _below(pid)]
    assert wait_until(lambda: len(children(pool)) == 2), "its guard is there"
    site.worker()  # Another machine, which must not start it again.
    stream = sse(handle)
    said = next_frame(stream)
    for pid in {"main process": [worker.pid], "pool process": [pool], "both": [worker.pid, pool]}[which]:
        os.kill(pid, signal.SIGKILL)
    found = [said, *frames(stream)]
    assert codes(found) == ["WORKER_DIED"]
    assert [one.event for one in found] == ["text", "error", "done"]
    assert wait_until(lambda: not alive(agent))
    after = site.ask(["text", "next"])
    check_whole(frames(sse(after)))
    assert frames(sse(site.runs.get(handle.run_id))) == found


CUT = 5.0  # Seconds.
ALONE = ("unshare", "--net")  # Without any network, not even the others' loopback.


def test_two_machines_that_share_nothing_but_redis_outlive_a_cut_and_the_death_of_one(
    own_redis: RedisServer, tmp_path: Path, gate: GateMaker
) -> None:
    """Each has its own home, folder, network namespace and connection."""
    if shutil.which("unshare") is None or subprocess.run([*ALONE, "true"], capture_output=True).returncode != 0:
        pytest.skip("namespace: none for networks can be made here")
    site = Site(own_redis.url, "site", tmp_path, lease=20.0)
    wires = [Proxy(own_redis.socket, own_redis.folder / name) for name in ("one", "two")]
    try:
        gates = [[gate() for _ in "abc"] for _ in wires]
        runs: list[Any] = []
        workers = []
        for wire, (there, go_on, later) in zip(wires, gates, strict=True):
            runs.append(
                site.ask(
                    *(["text", "a"], ["notify", there.path], ["wait", go_on.path]),
                    *(["text", "b"], ["wait", later.path], ["text", "c"]),
                )
            )
            workers.append(site.worker(inside=ALONE, url=wire.url))
            there.wait()
        wires[0].cut()
        for _, go_on, _ in gates:
            go_on.open()
        time.sleep(CUT)  # The cut itself is tested; nothing can signal that it has lasted long enough.
        wires[0].mend()
        gates[0][2].open()
        assert whole_text(runs[0]) == "abc"
        there = gate()
        lost = site.ask(*hanging(there))  # For the first machine: the other has not finished its work yet.
        agent = there.wait()
        (pool,) = [pid for pid in children(workers[0].pid) if agent in _below(pid)]
        assert wait_until(lambda: len(children(pool)) == 2), "its guard is there"
        for pid in (pool, workers[0].pid):
            os.kill(pid, signal.SIGKILL)
        assert codes(frames(sse(lost))) == ["WORKER_DIED"]
        assert wait_until(lambda: not alive(agent))
        gates[1][2].open()
        assert whole_text(runs[1]) == "abc"
        assert whole_text(site.ask(["text", "next"])) == "next"
    finally:
        site.close()
        for wire in wires:
            wire.close()


def whole_text(handle: Any) -> str:
    found = frames(sse(handle))
    check_whole(found)
    return text_of(found)


def _below(pid: int) -> list[int]:
    return [pid, *(one for child in children(pid) for one in _below(child))]


def test_a_message_that_is_delivered_twice_starts_one_agent(site: Site, gate: GateMaker) -> None:
    """As Redis delivers it with `acks_late` after the visibility timeout."""
    there, go_on = gate(), gate()
    handle = site.ask(["notify", there.path], ["wait", go_on.path], ["text", "a"])
    site.here[1].task.apply_async((handle.run_id,), task_id=handle.run_id)
    worker = site.worker(concurrency=2)
    there.wait()
    assert wait_until(lambda: "a run was not started" in worker.log)
    go_on.open()
    found = frames(sse(handle))
    check_whole(found)
    assert text_of(found) == "a"


def test_two_hundred_runs_on_eight_pool_processes_of_two_machines_each_once(
    make_site: MakeSite, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    site = make_site(log=str(started))
    for _ in range(2):
        site.worker(concurrency=4)
    handles = [site.ask(["text", str(number)]) for number in range(200)]
    for number, handle in enumerate(handles):
        found = frames(sse(handle))
        check_whole(found)
        assert text_of(found) == str(number)
    assert sorted(started.read_text().splitlines()) == sorted(f'[["text", "{number}"]]' for number in range(200))


def test_no_run_waits_behind_a_long_one_while_another_worker_is_free(site: Site, gate: GateMaker) -> None:
    """Celery's workers take messages ahead of time, unless they are told not to."""
    there = gate()
    long = site.ask(*hanging(there))
    for _ in range(2):
        site.worker()
    agent = there.wait()
    for number in range(6):
        found = frames(sse(site.ask(["text", str(number)])))
        check_whole(found)
        assert text_of(found) == str(number)
    assert alive(agent)
    long.abort()
    assert codes(frames(sse(long))) == ["ABORTED"]


# --- settings that bite ----------------------------------------------------------------------------------------


class Settings:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_a_worker_whose_pool_cannot_stop_an_agent_does_not_start(pool: str, site: Site) -> None:
    worker = site.worker("-P", pool)
    assert worker.wait() == 1
    assert "Start the worker with --pool prefork" in worker.log
    assert "Traceback" not in worker.log


def test_a_worker_whose_broker_delivers_a_running_task_again_does_not_start(make_site: MakeSite) -> None:
    conf = {"broker_transport_options": {"visibility_timeout": 300}}
    worker = make_site(task={"acks_late": True, "deadline": 600}, conf=conf).worker()
    assert worker.wait() == 1
    assert "Leave acks_late off" in worker.log


def test_a_worker_that_would_let_runs_wait_while_others_are_free_says_so(make_site: MakeSite) -> None:
    worker = make_site(conf={"worker_disable_prefetch": False, "worker_prefetch_multiplier": 1}).worker()
    assert "set worker_disable_prefetch = True: otherwise runs wait" in worker.log


@pytest.mark.parametrize(
    ("broker", "settings", "advice"),
    [
        ("redis://localhost", {"worker_disable_prefetch": True}, None),
        ("redis+socket:///run/redis", {"worker_prefetch_multiplier": 1}, "worker_disable_prefetch = True"),
        (["sentinel://one", "sentinel://two"], {}, "worker_disable_prefetch = True"),
        ("amqp://localhost", {"worker_disable_prefetch": True}, "worker_prefetch_multiplier = 1"),
        ("amqp://localhost", {"worker_prefetch_multiplier": 1}, None),
    ],
)
def test_the_setting_that_a_broker_needs_is_named(broker: Any, settings: dict[str, Any], advice: str | None) -> None:
    from remoteclaw_sync.cluster.celery import advice_of

    defaults = {"worker_disable_prefetch": False, "worker_prefetch_multiplier": 4}
    assert advice_of(Settings(broker_url=broker, broker_read_url=None, **{**defaults, **settings})) == advice


@pytest.mark.parametrize(
    ("task", "deadline", "visible", "word"),
    [
        ({}, None, 300, None),
        ({"acks_late": True}, None, 300, "any time"),
        ({"acks_late": True, "time_limit": 60}, 30, 300, None),
        ({"acks_late": True, "time_limit": 600}, 30, 300, "visibility_timeout"),
        ({"soft_time_limit": 30}, 30, 300, "soft_time_limit"),
        ({"time_limit": 30}, 30, 300, "time_limit"),
        ({"time_limit": 40, "soft_time_limit": 50}, 30, 300, "time_limit"),
    ],
)
def test_limits_that_contradict_each_other_are_named(
    task: dict[str, Any], deadline: float | None, visible: int, word: str | None
) -> None:
    from remoteclaw_sync.cluster.celery import problem_of

    values = {"time_limit": None, "soft_time_limit": None, "acks_late": False, **task}
    conf = Settings(
        broker_url="redis://", broker_read_url=None, broker_transport_options={"visibility_timeout": visible}
    )
    problem = problem_of(Settings(**values), deadline, "prefork", conf)
    assert (problem is None) if word is None else (problem is not None and word in problem)
