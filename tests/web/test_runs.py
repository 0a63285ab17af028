"""Detached runs and the registry: across threads, processes and deaths."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import AgentEvent, AgentRunResult, AgentTextEvent
from remoteclaw_sync.web import Runs, TooManyRunsError, UnknownRunError, sse
from remoteclaw_sync.web.handle import Registry
from tests.fakes import PATIENCE, FakeRuntime, Gate, alive, is_guarded, wait_until
from tests.web.registries import Place, ids
from tests.web.streams import Frame, check_whole, frames, next_frame, text_of

runs_module = sys.modules[Runs.__module__]  # The package has a registry with the same name.
GateMaker = Callable[[], Gate]
Worker = Callable[[str], tuple[subprocess.Popen[str], str, int]]

WORKER = """
import sys
from remoteclaw_sync.web import sse
from tests.fakes import FakeRuntime
from tests.web.registries import Place
stream = sse(FakeRuntime(["text", "a"], ["text", "b"], ["notify", sys.argv[2]], ["hang"]).start("hi"),
    registry=Place.at(sys.argv[1]).open(), detach=sys.argv[3] == "detach", heartbeat=0.3)
print(stream.run_id, flush=True)
for chunk in stream:
    print(chunk.decode(), end="", flush=True)
"""


def ended(registry: Registry, run_id: str) -> bool:
    return wait_until(lambda: not registry.get(run_id).live)


@pytest.fixture
def worker(place: Place, gate: GateMaker) -> Worker:
    """Starts another process that streams a run; returns it, the run's id and the agent's pid."""

    def start(how: str) -> tuple[subprocess.Popen[str], str, int]:
        there = gate()
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), os.getcwd()])}
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, place.address, there.path, how],
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        assert process.stdout is not None
        run_id = process.stdout.readline().strip()
        return process, run_id, there.wait()

    return start


# --- detach and resume -----------------------------------------------------------------------------------------


def test_a_detached_run_goes_on_without_its_visitor(gate: GateMaker, any_registry: Registry) -> None:
    middle = gate()
    run = FakeRuntime(["text", "a"], ["wait", middle.path], ["text", "b"]).start("hi")
    stream = sse(run, detach=True, registry=any_registry)
    first = next_frame(stream)
    stream.close()
    assert any_registry.get(stream.run_id).live
    middle.open()
    rest = frames(sse(any_registry.resume(first.id)))
    check_whole([first, *rest])
    assert text_of([first, *rest]) == "ab"


def test_a_resumed_stream_has_neither_gap_nor_repeat_wherever_it_was_cut(any_registry: Registry) -> None:
    run = FakeRuntime(*(["text", f"{number} "] for number in range(20))).start("hi")
    whole = frames(sse(run, detach=True, registry=any_registry))
    check_whole(whole)
    for seen in whole:
        assert frames(sse(any_registry.resume(seen.id))) == whole[seen.number :]


def test_a_visitor_who_claims_to_have_more_than_there_is_does_not_wait_for_ever(
    gate: GateMaker, any_registry: Registry
) -> None:
    """Anybody can send any Last-Event-ID."""
    middle = gate()
    handle = any_registry.start(FakeRuntime(["wait", middle.path], ["text", "a"]).start("hi"))
    stream = sse(any_registry.resume(f"{handle.run_id}-999"), heartbeat=0.06)
    assert next(stream).startswith(b":")
    middle.open()
    assert frames(stream) == []


def test_many_visitors_read_the_same_run_at_once(gate: GateMaker, any_registry: Registry) -> None:
    begin = gate()
    handle = any_registry.start(FakeRuntime(["wait", begin.path], ["text", "a"], ["text", "b"]).start("hi"))
    seen: list[list[Frame]] = []
    readers = [threading.Thread(target=lambda: seen.append(frames(sse(handle)))) for _ in range(5)]
    for reader in readers:
        reader.start()
    begin.open()
    for reader in readers:
        reader.join(PATIENCE)
    assert len(seen) == 5
    assert all(one == seen[0] for one in seen)
    check_whole(seen[0])


def test_there_are_heartbeats_while_a_detached_agent_is_silent(any_registry: Registry) -> None:
    handle = any_registry.start(FakeRuntime(["hang"]).start("hi"))
    stream = sse(handle, heartbeat=0.06)
    assert next(stream).startswith(b":")
    handle.abort()
    assert [one.event for one in frames(stream)] == ["error", "done"]


@pytest.mark.slow
def test_another_process_reads_on(worker: Worker, any_registry: Registry) -> None:
    process, run_id, _ = worker("detach")
    with process:
        stream = sse(any_registry.get(run_id))
        assert [next_frame(stream).data["text"] for _ in "ab"] == ["a", "b"]
        any_registry.get(run_id).abort()
        assert [one.data.get("code") for one in frames(stream)] == ["ABORTED", None]


def test_a_worker_that_follows_anothers_run_looks_again_soon_after_an_event_and_less_often_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_speak = threading.Semaphore(0)
    pauses: list[float] = []
    heard: list[Any] = []

    def events() -> Iterator[AgentEvent]:
        for _ in "ab":
            may_speak.acquire()
            yield AgentTextEvent("a")

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) in (5, 7):
            may_speak.release()
            assert wait_until(lambda: live.count > len(heard))

    writer = Runs(tmp_path / "runs")
    handle = writer.start(events())
    live = writer._live[handle.run_id]
    source = Runs(tmp_path / "runs").follow(handle.run_id, 0)
    clock = types.SimpleNamespace(monotonic=time.monotonic, time=time.time, sleep=sleep)
    monkeypatch.setattr(runs_module, "time", clock)
    for _ in "ab":
        heard.append(source.get(PATIENCE))
    source.close()
    assert pauses == [0.01, 0.02, 0.04, 0.08, 0.1, 0.01, 0.02]


@pytest.mark.parametrize("bad", ["", "x", "../../etc/passwd-1", "0" * 32, "0" * 32 + "-1", "0" * 32 + "--1"])
def test_an_id_from_the_network_that_is_none_is_unknown(bad: str, any_registry: Registry) -> None:
    with pytest.raises(UnknownRunError):
        any_registry.resume(bad)
    with pytest.raises(LookupError):
        any_registry.get(bad)


def test_a_run_that_is_not_detached_cannot_be_listened_to_again(any_registry: Registry) -> None:
    stream = sse(FakeRuntime(["text", "a"], ["hang"]).start("hi"), registry=any_registry)
    first = next_frame(stream)
    with pytest.raises(UnknownRunError):
        sse(any_registry.resume(first.id))
    stream.close()


def test_an_event_id_of_another_run_is_refused(any_registry: Registry) -> None:
    handle = any_registry.start([AgentTextEvent("a")])
    with pytest.raises(UnknownRunError):
        sse(handle, last_event_id="0" * 32 + "-1")


# --- bounds ----------------------------------------------------------------------------------------------------


def test_a_run_that_says_more_than_is_kept_is_aborted(place: Place) -> None:
    registry = place.open(max_bytes=1000)
    runtime = FakeRuntime(["text", "a"], ["text", "b" * 2000], ["text", "c" * 2000], ["hang"])
    found = frames(sse(runtime.start("hi"), detach=True, registry=registry))
    assert [one.data.get("code") for one in found if one.event == "error"][0] == "BUFFER_FULL"
    assert found[-1].data["result"]["aborted"] is True
    assert [one.number for one in found] == list(range(1, len(found) + 1))
    assert frames(sse(registry.resume(found[0].id))) == found[1:]


def test_ended_runs_go_after_the_retention_time_and_living_ones_stay(tmp_path: Path) -> None:
    registry = Runs(tmp_path / "runs", retention=60.0)
    old = sse([AgentTextEvent("a")], detach=True, registry=registry)
    list(old)
    living = registry.start(FakeRuntime(["hang"]).start("hi"))
    assert ended(registry, old.run_id)
    long_ago = time.time() - 120
    for run_id in (old.run_id, living.run_id):
        os.utime(registry.folder.file(run_id), (long_ago, long_ago))
    young = sse([AgentTextEvent("a")], detach=True, registry=registry)
    list(young)
    assert registry.folder.run_ids() == sorted([living.run_id, young.run_id])
    living.abort()
    assert ended(registry, living.run_id)


def test_the_folder_and_its_files_are_private(registry: Runs) -> None:
    stream = sse([AgentTextEvent("a")], detach=True, registry=registry)
    list(stream)
    assert os.stat(registry.folder.path).st_mode & 0o777 == 0o700
    assert os.stat(registry.folder.file(stream.run_id)).st_mode & 0o777 == 0o600


TAKEN = ["a folder of another user", "open to others", "a link", "a file"]


def take(path: Path, kind: str) -> None:
    """As another user would who was there first."""
    if kind == "a link":
        (path.parent / "elsewhere").mkdir(mode=0o700)
        path.symlink_to(path.parent / "elsewhere")
    elif kind == "a file":
        path.touch()
    else:
        path.mkdir(mode=0o700)
        if kind == "open to others":
            path.chmod(0o777)
        elif os.geteuid() == 0:
            os.chown(path, 65534, 65534)
        else:
            pytest.skip("only root can give a folder to another user")


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder that all users share, with no setting for where runs are kept."""
    monkeypatch.delenv("REMOTECLAW_SYNC_RUNS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "shared"))
    monkeypatch.setattr(runs_module, "_PRIVATE_FOLDERS", [])
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


@pytest.mark.parametrize("kind", TAKEN)
def test_where_somebody_has_taken_the_folders_name_runs_are_kept_at_home(kind: str, shared: Path) -> None:
    take(shared / f"remoteclaw-sync-runs-{os.geteuid()}", kind)
    stream = sse(FakeRuntime(["text", "a"]).start("hi"), detach=True, registry=Runs())
    whole = frames(stream)
    check_whole(whole)
    assert frames(sse(Runs().resume(whole[0].id))) == whole[1:], "another worker finds it without being told"
    home = shared.parent / "home/.cache/remoteclaw-sync-runs"
    assert [path.stem for path in home.iterdir()] == [stream.run_id]
    assert home.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", TAKEN)
def test_without_a_home_they_are_kept_in_a_new_folder(
    kind: str, shared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (shared.parent / "home").touch()
    take(shared / f"remoteclaw-sync-runs-{os.geteuid()}", kind)
    check_whole(frames(sse(FakeRuntime(["text", "a"]).start("hi"), registry=Runs())))
    first = sse([AgentTextEvent("a")], detach=True, registry=Runs())
    list(first)
    assert Runs().get(first.run_id).run_id == first.run_id
    path = Path(Runs().folder.path)
    assert path.parent == shared
    assert path.stat().st_mode & 0o777 == 0o700
    assert "REMOTECLAW_SYNC_RUNS" in caplog.text


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # From 3.12 on, for forks beside threads.
@pytest.mark.parametrize("begun", [False, True])
def test_a_forked_copy_of_a_stream_that_is_dropped_leaves_the_run_alone(begun: bool, any_registry: Registry) -> None:
    stream = sse(FakeRuntime(["text", "a"], ["hang"]).start("hi"), registry=any_registry)
    if begun:
        next_frame(stream)
    child = os.fork()
    if not child:
        try:
            stream.close()
            os._exit(0 if list(stream) == [] else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert ids(any_registry) == [stream.run_id]
    if not begun:
        next_frame(stream)
    any_registry.get(stream.run_id).abort()
    assert [one.data.get("code") for one in frames(stream)] == ["ABORTED", None]


def test_one_run_more_than_may_be_live_is_refused(place: Place) -> None:
    registry = place.open(max_live=1)
    stream = sse(FakeRuntime(["hang"]).start("hi"), registry=registry)
    for detach in (True, False):
        with pytest.raises(TooManyRunsError, match="1 agents"):
            sse(FakeRuntime(["hang"]).start("hi"), detach=detach, registry=registry)
    assert ids(registry) == [stream.run_id]
    stream.close()
    check_whole(frames(sse(FakeRuntime(["text", "a"]).start("hi"), registry=registry)))


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "3"])
def test_a_limit_that_is_none_is_refused(number: Any, place: Place) -> None:
    with pytest.raises((TypeError, ValueError), match="max_live"):
        place.open(max_live=number)


@pytest.mark.parametrize("kind", ["open to others", "a link", "a file"])
def test_a_folder_that_somebody_else_could_write_to_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "runs"
    take(path, kind)
    with pytest.raises(PermissionError, match="0700"):
        Runs(path).start([AgentTextEvent("a")])


# --- abort -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("detach", [True, False])
def test_a_run_is_aborted_by_its_id(detach: bool, any_registry: Registry) -> None:
    stream = sse(FakeRuntime(["text", "a"], ["hang"]).start("hi"), detach=detach, registry=any_registry)
    first = next_frame(stream)
    assert ids(any_registry) == [stream.run_id]
    any_registry.get(stream.run_id).abort()
    rest = frames(stream)
    assert [one.data.get("code") for one in rest] == ["ABORTED", None]
    check_whole([first, *rest])
    assert wait_until(lambda: list(any_registry) == [])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["detach", "attach"])
def test_a_run_is_aborted_from_another_process(how: str, worker: Worker, any_registry: Registry, place: Place) -> None:
    process, run_id, agent = worker(how)
    with process:
        assert ids(any_registry) == [run_id]
        any_registry.get(run_id).abort()
        output, _ = process.communicate(timeout=PATIENCE)
    assert '"code":"ABORTED"' in output
    assert not alive(agent)
    assert place.left() == ({run_id: {"events"}} if how == "detach" else {})


def test_aborting_an_ended_run_does_nothing(any_registry: Registry, place: Place) -> None:
    stream = sse([AgentTextEvent("a")], detach=True, registry=any_registry)
    list(stream)
    assert ended(any_registry, stream.run_id)
    any_registry.get(stream.run_id).abort()
    assert place.left() == {stream.run_id: {"events"}}


def test_a_worker_that_dies_takes_its_agent_along_and_visitors_are_told(worker: Worker, any_registry: Registry) -> None:
    process, run_id, agent = worker("detach")
    stream = sse(any_registry.get(run_id))
    read = [next_frame(stream), next_frame(stream)]
    assert wait_until(lambda: is_guarded(process.pid))
    with process:
        process.kill()
    rest = frames(stream)
    assert [one.data.get("code") for one in rest] == ["WORKER_DIED", None]
    assert rest[-1].data["result"]["error_subtype"] == "crash"
    assert [one.number for one in [*read, *rest]] == [1, 2, 3, 4]
    for seen in rest:
        assert frames(sse(any_registry.resume(seen.id))) == rest[seen.number - 2 :]
    assert list(any_registry) == []
    any_registry.get(run_id).abort()
    assert wait_until(lambda: not alive(agent))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # From 3.12 on, for forks beside threads.
def test_a_forked_process_does_not_keep_a_dead_workers_run_alive(any_registry: Registry) -> None:
    """Its copy of the descriptor would hold the lock by which others know that the worker is alive.

    Without an agent: in any Python program, forking while another thread starts a process makes that thread wait.
    """
    go_on = threading.Event()

    def events() -> Iterator[AgentEvent]:
        go_on.wait(PATIENCE)
        yield AgentTextEvent("a")

    handle = any_registry.start(events())
    stay, there = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.write(there[1], b"!")
        os.read(stay[0], 1)
        os._exit(0)
    try:
        os.read(there[0], 1)
        assert handle.live
        go_on.set()
        assert ended(any_registry, handle.run_id)
    finally:
        os.write(stay[1], b"!")
        os.waitpid(child, 0)
        for fd in (*stay, *there):
            os.close(fd)


@pytest.mark.parametrize("detach", [False, True])
def test_the_site_hears_of_the_end_before_the_visitor_does(detach: bool, registry: Runs) -> None:
    heard: list[AgentRunResult] = []
    stream = sse(FakeRuntime(["text", "a"]).start("hi"), registry=registry, detach=detach, on_done=heard.append)
    for chunk in stream:
        if b"event: done" in chunk:
            assert [result.text for result in heard] == ["a"]
    assert len(heard) == 1


@pytest.mark.parametrize("detach", [False, True])
def test_a_function_of_the_site_that_fails_costs_the_visitor_nothing(
    detach: bool, registry: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(result: AgentRunResult) -> None:
        raise RuntimeError("secret")

    check_whole(frames(sse(FakeRuntime(["text", "a"]).start("hi"), registry=registry, detach=detach, on_done=fail)))
    assert "on_done raised RuntimeError" in caplog.text
    assert "secret" not in caplog.text


def test_a_run_that_began_elsewhere_has_no_end_to_be_told_of(registry: Runs) -> None:
    handle = registry.start(FakeRuntime(["text", "a"]).start("hi"))
    with pytest.raises(ValueError, match="a run that begins here"):
        sse(handle, on_done=print)
    frames(sse(handle))
