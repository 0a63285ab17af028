"""Reserved runs, slots, sealing and retention: what a cluster has beyond its one-machine counterparts."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import remoteclaw_sync.cluster
from remoteclaw_sync import (
    AgentDoneEvent,
    AgentRunResult,
    AgentTextEvent,
    Budget,
    ChannelBridge,
    ChannelMessage,
    ClaudeCliRuntime,
    SessionPool,
    UnsupportedOperationError,
)
from remoteclaw_sync.chat.conversation import Conversation
from remoteclaw_sync.cluster import Cluster, ClusterUnavailableError, SealError, new_key
from remoteclaw_sync.portable.capsule import Capsule
from remoteclaw_sync.web import UnknownRunError, sse
from tests.engine.live import command, starts, steps
from tests.fakes import PATIENCE, FakeRuntime, Gate, start_host, wait_until
from tests.portable.test_handover import FakeCli
from tests.web.streams import Frame, check_whole, frames, next_frame, text_of

pytestmark = pytest.mark.redis

Make = Callable[..., Cluster]
GateMaker = Callable[[], Gate]
SECRET = "mango-chutney"


def codes(found: list[Frame]) -> list[Any]:
    return [one.data.get("code") for one in found if one.event == "error"]


def stored(url: str, prefix: str) -> dict[bytes, bytes]:
    """Everything that Redis holds for a cluster."""
    import redis

    with redis.Redis.from_url(url) as client:
        return {key: client.dump(key) for key in client.keys(f"{prefix}:*")}


# --- reserved runs -----------------------------------------------------------------------------------------------


def test_a_reserved_run_is_worked_on_elsewhere_and_followed_here(cluster: Make) -> None:
    here, there = cluster(), cluster()
    handle = here.runs.reserve("What is up?", model="m")
    seen: list[Any] = []

    def start(params: Any) -> Any:
        seen.append(params)
        return FakeRuntime(["text", "a"], ["text", "b"]).start("hi")

    assert there.runs.work(handle.run_id, start)
    found = frames(sse(handle))
    check_whole(found)
    assert (seen[0].prompt, seen[0].model) == ("What is up?", "m")


def test_a_reserved_run_is_taken_once(cluster: Make) -> None:
    handle = cluster().runs.reserve("hi")
    workers = [cluster() for _ in range(4)]
    taken: list[bool] = []

    def work(one: Cluster) -> None:
        taken.append(one.runs.work(handle.run_id, lambda params: [AgentTextEvent("a")]))

    threads = [threading.Thread(target=work, args=(one,)) for one in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(taken) == [False, False, False, True]
    assert text_of(frames(sse(handle))) == "a"


def test_a_run_lives_while_its_worker_prepares_to_start_it(cluster: Make, redis_url: str) -> None:
    """A session may have to be fetched first, which can take longer than a lease."""
    import redis

    here = cluster(lease=1.0)
    handle = here.runs.reserve("hi")
    with redis.Redis.from_url(redis_url) as client:

        def lives_until() -> int:
            return int(client.hget(here.runs.keys(handle.run_id)[0], "until"))

        def start(params: Any) -> list[AgentTextEvent]:
            taken = lives_until()
            assert wait_until(lambda: lives_until() > taken + 2000)
            return [AgentTextEvent("a")]

        assert here.runs.work(handle.run_id, start)
    assert [one.event for one in frames(sse(handle))] == ["text", "done"]


def test_a_run_of_which_redis_forgot_that_it_was_taken_goes_on_and_is_taken_by_nobody_else(
    cluster: Make, redis_url: str
) -> None:
    """As after a power cut, with an append-only file that is written once per second."""
    import redis

    worker, other = cluster(), cluster()
    handle = worker.runs.reserve("hi")
    keys = worker.runs.keys(handle.run_id)
    with redis.Redis.from_url(redis_url) as client:
        kept = {key: client.dump(key) for key in keys if client.exists(key)}

        def events() -> Any:
            yield AgentTextEvent("a")
            client.delete(*keys)
            for key, data in kept.items():
                client.restore(key, 60_000, data)
            yield AgentTextEvent("b")
            assert not other.runs.work(handle.run_id, lambda params: [AgentTextEvent("c")])

        assert worker.runs.work(handle.run_id, lambda params: events())
        assert not client.exists(keys[2]), "the prompt is gone again"
    found = frames(sse(other.runs.get(handle.run_id)))
    assert [(one.number, one.event) for one in found] == [(1, "text"), (2, "text"), (3, "done")]
    assert text_of(found) == "ab"


def test_a_lease_that_is_renewed_just_after_the_end_is_no_fault(
    cluster: Make, caplog: pytest.LogCaptureFixture
) -> None:
    here = cluster()

    def events() -> Any:
        try:
            yield AgentDoneEvent(AgentRunResult())
        finally:
            here.runs.beat()  # As the listening thread may do at any time.

    assert [one.event for one in frames(sse(here.runs.start(events())))] == ["done"]
    here.close()
    assert caplog.messages == []


@pytest.mark.slow
def test_a_run_that_nobody_takes_in_time_ends_for_its_followers(cluster: Make) -> None:
    here = cluster(retention=1.0, lease=1.0)
    handle = here.runs.reserve("hi")
    assert codes(frames(sse(handle))) == ["NOT_STARTED"]
    assert not here.runs.work(handle.run_id, lambda params: [AgentTextEvent("a")])


def test_a_run_that_has_not_begun_takes_no_words(cluster: Make) -> None:
    handle = cluster().runs.reserve("hi")
    with pytest.raises(UnsupportedOperationError, match="has not begun"):
        handle.steer("more")
    handle.abort()
    assert codes(frames(sse(handle))) == ["ABORTED"]


@pytest.mark.parametrize(
    "field", [{"approve": lambda request: True}, {"tools": [print]}, {"output_type": int}, {"budget": Budget()}]
)
def test_what_cannot_travel_is_refused_by_name(field: dict[str, Any], cluster: Make) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(field))} cannot be sent"):
        cluster().runs.reserve("hi", **field)


def test_a_run_that_cannot_be_started_ends_for_its_followers(cluster: Make) -> None:
    here = cluster()
    handle = here.runs.reserve("hi")

    def start(params: Any) -> Any:
        raise RuntimeError(SECRET)

    with pytest.raises(RuntimeError):
        here.runs.work(handle.run_id, start)
    found = frames(sse(handle))
    assert codes(found) == ["NOT_STARTED"]
    assert SECRET not in str(found)


def test_an_exception_in_the_workers_thread_ends_the_agent_and_is_told(cluster: Make, gate: GateMaker) -> None:
    there = gate()
    here = cluster()
    handle = here.runs.reserve("hi")

    class TimeIsUp(BaseException):
        pass

    class Impatient:
        """A signal handler raises in the worker's thread as soon as the agent is working."""

        def start(self, params: Any) -> Any:
            signal.signal(signal.SIGALRM, self.on_alarm)
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            return FakeRuntime(["text", "a"], ["notify", there.path], ["hang"]).start("hi")

        def on_alarm(self, number: int, frame: object) -> None:
            there.wait()
            raise TimeIsUp

    before = signal.getsignal(signal.SIGALRM)
    try:
        with pytest.raises(TimeIsUp):
            here.runs.work(handle.run_id, Impatient(), codes={TimeIsUp: "TIME_LIMIT"})
    finally:
        signal.signal(signal.SIGALRM, before)
    found = frames(sse(handle))
    assert codes(found) == ["TIME_LIMIT"]
    assert found[-1].data["result"]["aborted"] is True


# --- sessions that stay warm, and move -----------------------------------------------------------------------------


class Movable(ClaudeCliRuntime):
    """The fake Claude that stays; its conversations are files in its folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        super().__init__(command(folder), timeout=60.0)

    def export_session(self, session_id: str, **_: Any) -> bytes:
        log = (self.folder / f"{session_id}.session").read_bytes()
        return Capsule(provider="claude", session_id=session_id, cli_version=None, files={"log": log}).pack()

    def import_session(self, data: bytes, **_: Any) -> str:
        capsule = Capsule.unpack(data)
        (self.folder / f"{capsule.session_id}.session").write_bytes(capsule.files["log"])
        return capsule.session_id


class Machine:
    """A worker with its own pool and sessions."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        home = {"HOME": str(folder), "CLAUDE_CONFIG_DIR": None}
        self.pool = SessionPool(
            Movable(folder), session_store=cluster.session_store, working_directory=folder, env=home
        )

    def work(self, question: str, session_id: str | None = None) -> tuple[str, str]:
        """The answer, and the session, of a run that this machine takes."""
        handle = self.cluster.runs.reserve(question, session_id=session_id)
        assert self.cluster.runs.work(handle.run_id, self.pool)
        found = frames(sse(handle))
        check_whole(found)
        return text_of(found), found[-1].data["result"]["session_id"]

    @property
    def starts(self) -> int:
        return len(starts(self.folder))


@pytest.fixture
def machines(cluster: Make, tmp_path: Path) -> Iterator[list[Machine]]:
    made = [Machine(cluster(), tmp_path / name) for name in ("one", "two")]
    yield made
    for machine in made:
        machine.pool.close()


def test_a_session_that_is_warm_where_the_job_is_taken_is_used_and_elsewhere_it_is_fetched(
    machines: list[Machine],
) -> None:
    one, two = machines
    answer, session_id = one.work(MEMORY)
    said = [said_before(answer)]
    for machine in (one, two, one, one):
        answer, same = machine.work(MEMORY, session_id)
        assert same == session_id
        said.append(said_before(answer))
    assert said == [0, 1, 2, 3, 4]
    assert [one.starts, two.starts] == [2, 1], "one process for the first two turns, and one that knows of the third"


MEMORY = steps(["memory"])


def said_before(answer: str) -> int:
    """How many turns the fake remembers."""
    return len(json.loads(answer))


def test_a_session_that_another_machine_has_is_waited_for_as_long_as_it_takes_to_find_that_dead(
    machines: list[Machine], cluster: Make
) -> None:
    one, two = machines
    _, session_id = one.work("a")
    waiting = two.cluster.runs.reserve("b", session_id=session_id)
    worker = threading.Thread(target=two.cluster.runs.work, args=(waiting.run_id, two.pool))
    with one.pool.session(session_id):
        worker.start()
        assert wait_until(lambda: two.cluster.runs._early)
    check_whole(frames(sse(waiting)))
    worker.join(PATIENCE)


def test_a_run_that_is_aborted_gives_its_session_back(machines: list[Machine]) -> None:
    one, two = machines
    _, session_id = one.work("a")
    handle = one.cluster.runs.reserve(steps(["text", "working"], ["hang"]), session_id=session_id)
    worker = threading.Thread(target=one.cluster.runs.work, args=(handle.run_id, one.pool))
    worker.start()
    stream = sse(two.cluster.runs.get(handle.run_id))
    assert next_frame(stream).data["text"] == "working"
    two.cluster.runs.get(handle.run_id).abort()
    assert codes(frames(stream)) == ["ABORTED"]
    assert two.work("b", session_id)[1] == session_id
    worker.join(PATIENCE)


def test_a_chat_goes_on_on_whichever_machine_gets_the_message(cluster: Make, tmp_path: Path) -> None:
    clusters = [cluster(), cluster()]
    with ExitStack() as stack:
        bridges = [
            stack.enter_context(
                ChannelBridge(
                    FakeCli(name),
                    session_map=one.session_map,
                    session_store=one.session_store,
                    workspace_dir=tmp_path / name,
                )
            )
            for name, one in zip(("one", "two"), clusters, strict=True)
        ]
        for number in range(4):
            message = ChannelMessage(str(number), provider="test", channel_id="c1", sender="u1")
            result = bridges[number % 2].handle(message)
            assert (result.error, result.warnings) == (None, ())
            assert result.run.text == " ".join(map(str, range(number + 1)))


# --- bounds ------------------------------------------------------------------------------------------------------


def test_of_a_long_run_the_last_events_are_kept_and_who_comes_late_hears_it(cluster: Make) -> None:
    here = cluster(max_events=5)
    handle = here.runs.start([AgentTextEvent(str(number)) for number in range(20)])
    assert wait_until(lambda: not handle.live)
    found = frames(sse(here.runs.get(handle.run_id)))
    assert codes(found) == ["EVENTS_TRIMMED"]
    assert [one.number for one in found] == list(range(16, 22))
    assert frames(sse(here.runs.resume(found[-3].id))) == found[-2:]


@pytest.mark.slow
def test_nothing_of_a_run_is_in_redis_after_the_retention_time(cluster: Make, redis_url: str, prefix: str) -> None:
    here = cluster(retention=1.0, lease=1.0)
    ended = here.runs.start([AgentTextEvent(SECRET)])
    waiting = here.runs.reserve(SECRET)
    assert SECRET.encode() in b"".join(stored(redis_url, prefix).values())
    assert wait_until(lambda: SECRET.encode() not in b"".join(stored(redis_url, prefix).values()))
    assert wait_until(lambda: not [key for key in stored(redis_url, prefix) if b"{" in key])
    for handle in (ended, waiting):
        with pytest.raises(UnknownRunError):
            here.runs.get(handle.run_id)


def test_all_that_a_live_run_has_in_redis_ends_by_itself_if_its_worker_dies(
    cluster: Make, redis_url: str, prefix: str, gate: GateMaker
) -> None:
    import redis

    there = gate()
    handle = cluster(retention=60.0).runs.start(FakeRuntime(["notify", there.path], ["hang"]).start("hi"))
    there.wait()
    with redis.Redis.from_url(redis_url) as client:
        assert all(client.pttl(key) > 0 for key in client.keys(f"{prefix}:{{*"))
    handle.abort()
    frames(sse(handle))


# --- sealing -----------------------------------------------------------------------------------------------------


def test_with_a_key_nothing_that_was_said_can_be_read_in_redis(cluster: Make, redis_url: str, prefix: str) -> None:
    pytest.importorskip("cryptography", reason="cryptography is not installed (extra `seal`)")
    key = new_key()
    here, there = cluster(key=key), cluster(key=key)
    handle = here.runs.reserve(SECRET)
    assert SECRET.encode() not in b"".join(stored(redis_url, prefix).values())
    assert there.runs.work(handle.run_id, lambda params: [AgentTextEvent(params.prompt)])
    assert SECRET.encode() not in b"".join(stored(redis_url, prefix).values())
    assert text_of(frames(sse(here.runs.get(handle.run_id)))) == SECRET


def test_a_new_key_is_introduced_while_the_old_one_is_in_use(cluster: Make) -> None:
    pytest.importorskip("cryptography", reason="cryptography is not installed (extra `seal`)")
    old, new = new_key(), new_key()
    handle = cluster(key=old).runs.start([AgentTextEvent("a")])
    assert wait_until(lambda: not handle.live)
    assert text_of(frames(sse(cluster(key=[new, old]).runs.get(handle.run_id)))) == "a"
    for wrong in (new, None):
        with pytest.raises(SealError):
            frames(sse(cluster(key=wrong).runs.get(handle.run_id)))


@pytest.mark.parametrize("key", ["", "short", b"x" * 31, "\N{SNOWMAN}" * 44])
def test_a_key_that_is_none_is_refused_without_being_quoted(key: Any) -> None:
    pytest.importorskip("cryptography", reason="cryptography is not installed (extra `seal`)")
    with pytest.raises(ValueError, match="key must be 32 bytes") as caught:
        Cluster("redis://localhost", key=key)
    assert not key or str(key) not in str(caught.value)


# --- slots -------------------------------------------------------------------------------------------------------


def test_so_many_hold_a_slot_at_once_and_they_come_in_order(cluster: Make) -> None:
    machines = [cluster(), cluster()]
    slots = [machines[number % 2].slots("acme", 2).take() for number in range(8)]
    lock = threading.Lock()
    inside: set[int] = set()
    done_with: set[int] = set()
    most, overtaken = 0, []

    def work(number: int) -> None:
        nonlocal most
        with slots[number] as slot:
            assert slot.wait()
            with lock:
                inside.add(number)
                most = max(most, len(inside))
                overtaken.append(len(set(range(number)) - done_with))
            with lock:
                inside.remove(number)
                done_with.add(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in reversed(range(8))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(done_with) == 8
    assert most <= 2
    assert max(overtaken) <= 1, "only the one that had the other slot may not have left yet"


@pytest.mark.slow
def test_a_worker_that_loses_its_parent_while_it_waits_for_a_slot_starts_nothing(
    cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = cluster()
    handle = here.runs.reserve("hi")
    slots = here.slots("acme", 1)
    parents = itertools.chain([1000], itertools.repeat(1))
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    with slots.hold(timeout=PATIENCE):
        assert not here.runs.work(handle.run_id, None, slots=slots, stop_with_parent=True)
    error, done = frames(sse(handle))
    assert (error.data["code"], done.event) == ("WORKER_DIED", "done")


def test_slots_of_another_name_are_others(cluster: Make) -> None:
    here = cluster()
    with here.slots("acme", 1).hold(), here.slots("other", 1).hold(timeout=PATIENCE):
        with pytest.raises(TimeoutError, match="'acme'"), here.slots("acme", 1).hold(timeout=0.05):
            pass


def test_a_slot_that_is_dropped_is_given_up(cluster: Make) -> None:
    here = cluster(lease=1.0)
    dropped = here.slots("acme", 1).take()
    assert dropped.wait()
    del dropped
    with here.slots("acme", 1).hold(timeout=PATIENCE):
        pass


HOLDER = """
import sys
from remoteclaw_sync.cluster import Cluster
cluster = Cluster(sys.argv[1], prefix=sys.argv[2], lease=3.0)
with cluster.slots("acme", 1).hold():
    print("there", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_the_slot_of_a_machine_that_died_passes_to_the_next_and_a_living_one_keeps_its(
    cluster: Make, redis_url: str, prefix: str
) -> None:
    with start_host(HOLDER, redis_url, prefix, stdin=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "there\n"
        with cluster(lease=3.0).slots("acme", 1).take() as slot:
            give_up_at = time.monotonic() + 6.0  # Two leases.
            assert not slot.wait(lambda: time.monotonic() > give_up_at)
            os.kill(holder.pid, signal.SIGKILL)
            assert slot.wait()


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_a_limit_of_slots_that_is_none_is_refused(limit: Any, cluster: Make) -> None:
    with pytest.raises((TypeError, ValueError), match="limit"):
        cluster().slots("acme", limit)


# --- no server ---------------------------------------------------------------------------------------------------


def test_without_a_server_nothing_starts_and_the_error_is_ours(tmp_path: Any) -> None:
    cluster = Cluster(f"unix://{tmp_path}/none")
    started = []

    def events() -> Any:
        started.append(True)
        yield AgentTextEvent("a")

    with pytest.raises(ClusterUnavailableError):
        cluster.runs.start(events())
    with pytest.raises(ClusterUnavailableError):
        cluster.runs.reserve("hi")
    with pytest.raises(OSError):
        cluster.session_map.get("claude", Conversation())
    with cluster.session_map.turn(Conversation()) as turn:
        assert turn.wait()
        assert isinstance(turn.fault, ClusterUnavailableError)
    cluster.close()
    assert started == []


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"lease": 0.5}, "lease"),
        ({"retention": -1}, "retention"),
        ({"prefix": ""}, "prefix"),
        ({"max_events": 0}, "max_"),
    ],
)
def test_bad_settings_are_named(options: dict[str, Any], word: str) -> None:
    with pytest.raises((TypeError, ValueError), match=word):
        Cluster("redis://localhost", **options)


def test_the_acl_user_of_the_page_can_do_all_that_a_cluster_needs_and_nothing_else(own_redis: Any) -> None:
    import redis

    page = (Path(remoteclaw_sync.cluster.__file__).parent / "README.md").read_text(encoding="utf-8")
    (rule,) = re.findall(r"`ACL SETUSER agents (.+)`", page)
    with redis.Redis.from_url(own_redis.url) as admin:
        admin.execute_command("ACL", "SETUSER", "agents", *rule.split())
        admin.set("other", "secret")
    url = f"unix://agents:PASSWORD@{own_redis.socket}"
    with redis.Redis.from_url(url) as client:
        for command in (("GET", "other"), ("FLUSHALL",), ("CONFIG", "GET", "dir"), ("KEYS", "*")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command)
    with Cluster(url) as cluster:
        handle = cluster.runs.reserve("hi")
        assert cluster.runs.work(handle.run_id, lambda params: FakeRuntime(["text", "a"]).start("hi"))
        check_whole(frames(sse(handle)))
        cluster.session_map.set("claude", Conversation(), "s1")
        assert (cluster.session_map.get("claude", Conversation()), len(cluster.session_map)) == ("s1", 1)
        with cluster.slots("acme", 1).hold():
            assert list(cluster.runs) == []
