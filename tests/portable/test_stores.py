"""Session stores: one writer at a time, and nothing is overwritten unnoticed. The same tests for both kinds."""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import FolderSessionStore, SessionBusyError, SessionStore, StaleSessionError
from remoteclaw_sync.portable.sealing import SealError, new_key
from remoteclaw_sync.portable.store import StoredSession
from tests.fakes import start_host, wait_until

NewStore = Callable[..., SessionStore]


@pytest.fixture(params=["folder", pytest.param("redis", marks=pytest.mark.redis)])
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewStore]:
    """Stores that see the same sessions, like those of several machines."""
    if request.param == "folder":
        yield lambda **options: FolderSessionStore(tmp_path / "store", **options)
        return
    url: str = request.getfixturevalue("redis_url")
    from remoteclaw_sync.cluster import Cluster

    opened = []

    def new(retention: float | None = 3600.0, key: Any = None) -> SessionStore:
        opened.append(Cluster(url, prefix=tmp_path.name, session_ttl=retention, key=key, lease=1.0))
        return opened[-1].session_store

    yield new
    for cluster in opened:
        cluster.close()


def test_what_one_machine_saves_another_one_loads(new_store: NewStore) -> None:
    one, two = new_store(), new_store()
    assert isinstance(one, SessionStore)
    assert one.load("a key") is None
    assert one.save("a key", b"\x00\n first", after=0) == 1
    assert two.load("a key") == StoredSession(1, b"\x00\n first")
    assert two.save("a key", b"second", after=1) == 2
    assert one.load("a key", known=1) == StoredSession(2, b"second")
    assert one.load("a key", known=2) == StoredSession(2, None)  # A state that is known is not sent again.
    assert one.load("another key") is None


def test_a_state_that_was_not_seen_is_never_overwritten(new_store: NewStore) -> None:
    one, two = new_store(), new_store()
    one.save("a key", b"first", after=0)
    two.save("a key", b"second", after=1)
    for after in (0, 1, 3):
        with pytest.raises(StaleSessionError, match="the store has generation 2") as caught:
            one.save("a key", b"other", after=after)
        assert caught.value.generation == 2
    assert one.load("a key") == StoredSession(2, b"second")


def test_of_many_that_save_at_once_each_generation_has_one(new_store: NewStore) -> None:
    stores = [new_store() for _ in range(4)]
    kept: list[tuple[int, bytes]] = []

    def write(number: int) -> None:
        for turn in range(5):
            data = b"%d %d" % (number, turn)
            found = stores[number].load("a key")
            try:
                kept.append((stores[number].save("a key", data, after=found.generation if found else 0), data))
            except StaleSessionError:
                pass

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(generation for generation, _ in kept) == list(range(1, len(kept) + 1))
    last = stores[0].load("a key")
    assert last is not None
    assert (last.generation, last.data) == max(kept)


def test_only_one_has_the_lock_and_whoever_waits_gets_it(new_store: NewStore) -> None:
    one, two = new_store(), new_store()
    got = threading.Event()

    def wait_for_it() -> None:
        with two.lock("a key"):
            got.set()

    waiter = threading.Thread(target=wait_for_it)
    with one.lock("a key"):
        with pytest.raises(SessionBusyError, match="another process or machine"), two.lock("a key", timeout=0.05):
            pass
        with two.lock("another key", timeout=0.05):
            pass
        waiter.start()
        assert not got.wait(0.1)
    assert got.wait(30)
    waiter.join()


@pytest.mark.slow
def test_a_lock_is_kept_for_longer_than_its_lease_and_given_back_by_a_process_that_is_killed(
    new_store: NewStore, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    store = new_store()
    with store.lock("a key"):
        threading.Event().wait(2.5)  # The lease is 1 s.
        with pytest.raises(SessionBusyError), new_store().lock("a key", timeout=0.05):
            pass
    if isinstance(store, FolderSessionStore):
        made = f"import sys; from remoteclaw_sync import FolderSessionStore; store = FolderSessionStore({store.path!r})"
    else:
        url = request.getfixturevalue("redis_url")
        made = (
            "import sys; from remoteclaw_sync.cluster import Cluster; "
            f"store = Cluster({url!r}, prefix={tmp_path.name!r}, lease=1.0).session_store"
        )
    code = f"{made}\nwith store.lock('a key'):\n    print('held', flush=True)\n    sys.stdin.read()"
    with start_host(code, stdin=subprocess.PIPE) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == "held\n"
        with pytest.raises(SessionBusyError), store.lock("a key", timeout=0.05):
            pass
        os.kill(host.pid, signal.SIGKILL)
        host.wait()
        with store.lock("a key", timeout=30):
            pass


def test_a_sealed_session_is_read_only_with_the_key_and_only_in_its_place(new_store: NewStore, tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="cryptography is not installed (extra `seal`)")
    old, new = new_key(), new_key()
    new_store(key=old).save("a key", b"secret words", after=0)
    assert new_store(key=[new, old]).load("a key") == StoredSession(1, b"secret words")
    for other in (new_store(key=new), new_store()):
        with pytest.raises(SealError):
            other.load("a key")


def test_the_folder_has_nothing_that_others_can_read(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="cryptography is not installed (extra `seal`)")
    store = FolderSessionStore(tmp_path / "store", key=new_key())
    with store.lock("alice"):
        store.save("alice", b"secret words", after=0)
    (file,) = (tmp_path / "store").iterdir()
    assert (file.stat().st_mode & 0o777, (tmp_path / "store").stat().st_mode & 0o777) == (0o600, 0o700)
    assert "alice" not in file.name
    assert b"secret" not in file.read_bytes()
    # An older state in place of a newer one is noticed.
    first = file.read_bytes()
    store.save("alice", b"more words", after=1)
    file.write_bytes(first.replace(b"state 1\n", b"state 2\n"))
    with pytest.raises(SealError):
        store.load("alice")


def test_a_session_is_kept_for_its_retention_and_then_removed(tmp_path: Path) -> None:
    now = [1_000_000_000.0]
    store = FolderSessionStore(tmp_path, retention=datetime.timedelta(days=1), clock=lambda: now[0])
    store.save("a key", b"first", after=0)
    (file,) = tmp_path.iterdir()
    os.utime(file, (now[0], now[0]))
    now[0] += 86_000
    assert store.load("a key") == StoredSession(1, b"first")
    now[0] += 1000
    assert store.load("a key") is None
    FolderSessionStore(tmp_path, retention=86_400, clock=lambda: now[0]).save("b", b"other", after=0)
    assert not file.exists()


@pytest.mark.redis
def test_redis_forgets_a_session_after_its_retention(redis_url: str, tmp_path: Path) -> None:
    from remoteclaw_sync.cluster import Cluster

    with Cluster(redis_url, prefix=tmp_path.name, session_ttl=0.05) as cluster:
        cluster.session_store.save("a key", b"first", after=0)
        assert wait_until(lambda: cluster.session_store.load("a key") is None)
        assert cluster.session_store.save("a key", b"again", after=0) == 1


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda store: store.load(7), "key"),
        (lambda store: store.save("", b"x", after=0), "key"),
        (lambda store: store.save("a", b"x", after=-1), "after"),
        (lambda store: store.lock("a", timeout=-1), "timeout"),
    ],
)
def test_bad_arguments_are_named(call: Callable[[SessionStore], object], error: str, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        call(FolderSessionStore(tmp_path))
