"""The session map: what it remembers, for how long, and whose turn it is; across threads, processes and crashes."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync.chat.sessions import Conversation, SessionMap
from remoteclaw_sync.types import ChannelMessage
from tests.fakes import PATIENCE, start_host

DAY = 86_400.0
OpenMap = Callable[..., Any]  # SessionMap or ClusterSessionMap.
ANN = Conversation("/work", "telegram", "chat", "ann")
BOB = Conversation("/work", "telegram", "chat", "bob")


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


@pytest.fixture(params=["one machine", pytest.param("several machines", marks=[pytest.mark.slow, pytest.mark.redis])])
def open_map(request: pytest.FixtureRequest, path: Path) -> Iterator[OpenMap]:
    """Opens maps of the same sessions: what holds for a file must hold for Redis."""
    if request.param == "one machine":
        yield lambda **options: SessionMap(path, **options)
        return
    from remoteclaw_sync.cluster import Cluster
    from remoteclaw_sync.cluster.session_map import ClusterSessionMap

    cluster = Cluster(request.getfixturevalue("redis_url"), prefix=f"sessions-{os.getpid()}-{path.parent.name}")

    def make(ttl: float | None = 7 * DAY, **options: Any) -> ClusterSessionMap:
        return ClusterSessionMap(cluster.link, cluster.session_map.lines, ttl, **options)

    yield make
    cluster.close()


@pytest.fixture
def sessions(open_map: OpenMap) -> Iterator[Any]:
    with open_map() as opened:
        yield opened


# --- what it remembers ---------------------------------------------------------------------------------------


def test_a_session_is_remembered_beyond_the_end_of_the_map(open_map: OpenMap) -> None:
    with open_map() as first:
        assert first.get("claude", ANN) is None
        first.set("claude", ANN, "s1")
    with open_map() as second:
        assert second.get("claude", ANN) == "s1"


def test_another_cli_folder_platform_channel_user_or_thread_has_another_session(sessions: SessionMap) -> None:
    """RemoteClaw joins them with colons and leaves the CLI out, so that one bot resumes another's session."""
    keys = [
        ("claude", Conversation("/w", "telegram", "a:b", "c", "")),
        ("codex", Conversation("/w", "telegram", "a:b", "c", "")),
        ("claude", Conversation("/v", "telegram", "a:b", "c", "")),
        ("claude", Conversation("/w", "slack", "a:b", "c", "")),
        ("claude", Conversation("/w", "telegram", "a", "b:c", "")),
        ("claude", Conversation("/w", "telegram", "a:b", "", "c")),
    ]
    for number, (provider, conversation) in enumerate(keys):
        sessions.set(provider, conversation, f"s{number}")
    assert [sessions.get(*key) for key in keys] == [f"s{number}" for number in range(len(keys))]


def test_the_conversation_of_a_message_is_where_and_by_whom_it_was_written() -> None:
    message = ChannelMessage("hi", provider="slack", channel_id="C1", sender="U1", thread_id="T1")
    assert Conversation.of(message, "/srv/../srv") == Conversation("/srv", "slack", "C1", "U1", "T1")


def test_forgetting_a_session_spares_one_that_has_replaced_it(sessions: SessionMap) -> None:
    sessions.set("claude", ANN, "old")
    sessions.set("claude", ANN, "new")
    assert not sessions.forget("claude", ANN, "old")
    assert sessions.get("claude", ANN) == "new"
    assert sessions.forget("claude", ANN)
    assert sessions.get("claude", ANN) is None


def test_a_session_expires_when_it_has_not_been_used_for_a_week_and_using_it_counts(open_map: OpenMap) -> None:
    clock = Clock()
    with open_map(clock=clock) as sessions:
        sessions.set("claude", ANN, "s1")
        sessions.set("claude", BOB, "s2")
        clock.now += 6 * DAY
        assert sessions.get("claude", ANN) == "s1"
        clock.now += 6 * DAY
        assert sessions.get("claude", ANN) == "s1"
        assert sessions.get("claude", BOB) is None
        assert len(sessions) == 1


def test_a_clock_that_was_far_ahead_for_a_while_has_cost_no_session(open_map: OpenMap) -> None:
    """A single look at a clock that was briefly wrong used to delete them all."""
    clock = Clock()
    with open_map(clock=clock) as sessions:
        sessions.set("claude", ANN, "s1")
        sessions.set("claude", BOB, "s2")
        clock.now += 30 * DAY
        assert sessions.get("claude", ANN) is None
        sessions.set("claude", Conversation(user="new"), "s3")
        assert len(sessions) == 1
        clock.now -= 30 * DAY
        assert (sessions.get("claude", ANN), sessions.get("claude", BOB)) == ("s1", "s2")


def test_of_expired_sessions_only_the_last_stay_in_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remoteclaw_sync.chat.sessions.EXPIRED_KEPT", 3)
    clock = Clock()
    with SessionMap(path, clock=clock) as sessions:
        for number in range(10):
            sessions.set("claude", Conversation(user=str(number)), "s")
            clock.now += 1
        clock.now += 30 * DAY
        sessions.set("claude", ANN, "s1")
        connection = sqlite3.connect(path)
        try:
            users = [user for (user,) in connection.execute("SELECT user FROM remoteclaw_sessions ORDER BY used_at")]
        finally:
            connection.close()
    assert users == ["7", "8", "9", "ann"]


def test_a_map_without_a_ttl_keeps_everything(open_map: OpenMap) -> None:
    clock = Clock()
    with open_map(ttl=None, clock=clock) as sessions:
        sessions.set("claude", ANN, "s1")
        clock.now += 10_000 * DAY
        assert sessions.get("claude", ANN) == "s1"


def test_the_file_is_the_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "sessions.db"
    with SessionMap(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_map_in_memory_needs_no_file() -> None:
    with SessionMap(":memory:") as sessions:
        sessions.set("claude", ANN, "s1")
        with sessions.turn(ANN) as turn:
            assert turn.wait()
        assert sessions.get("claude", ANN) == "s1"


# --- a damaged file ------------------------------------------------------------------------------------------


def damage_header(path: Path) -> None:
    path.write_bytes(b"{}" * 5_000)


def damage_a_page(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:8192] = b"\xff" * 4096
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [damage_header, damage_a_page])
def test_a_corrupt_file_is_set_aside_and_reported_and_the_map_goes_on(
    path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    with SessionMap(path) as sessions:
        sessions.set("claude", ANN, "s1")
    damage(path)
    damaged = path.read_bytes()
    with SessionMap(path) as sessions:
        sessions.set("claude", BOB, "s2")
        (aside,) = sessions.set_aside
    assert aside.name.startswith("sessions.db.corrupt-")
    assert aside.read_bytes() == damaged
    assert "corrupt" in caplog.text
    with SessionMap(path) as sessions:
        assert sessions.get("claude", BOB) == "s2"
        assert sessions.set_aside == ()


def test_a_file_that_cannot_be_used_is_an_error_and_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        SessionMap(tmp_path)
    assert tmp_path.is_dir()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a link of another user")
@pytest.mark.parametrize("place", ["s.db", "folder/s.db", "s.db.lock"])
def test_a_link_that_another_user_has_put_in_the_way_is_not_followed(tmp_path: Path, place: str) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    link = shared / place.split("/")[0]
    link.symlink_to(victim if place.startswith("folder") else victim / "new")
    os.chown(link, 65534, 65534, follow_symlinks=False)
    with pytest.raises(OSError):
        SessionMap(shared / place.removesuffix(".lock"))
    assert list(victim.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a link of another user")
def test_a_link_that_takes_the_files_place_later_is_not_followed_either(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    with SessionMap(shared / "s.db") as sessions:
        (shared / "s.db").unlink()
        (shared / "s.db").symlink_to(victim / "new")
        os.chown(shared / "s.db", 65534, 65534, follow_symlinks=False)
        with pytest.raises(OSError, match="another user"):
            sessions.set("claude", ANN, "s1")
    assert list(victim.iterdir()) == []


def test_a_map_follows_when_its_file_is_replaced(path: Path) -> None:
    """As happens when another process has moved the file aside."""
    with SessionMap(path) as first, SessionMap(path) as second:
        first.set("claude", ANN, "s1")
        for suffix in ("", "-wal", "-shm"):
            os.replace(f"{path}{suffix}", f"{path}.aside{suffix}")
        second.set("claude", ANN, "s2")
        assert first.get("claude", ANN) == "s2"


# --- many at once --------------------------------------------------------------------------------------------


def test_threads_lose_no_update(sessions: SessionMap) -> None:
    def work(number: int) -> None:
        for step in range(20):
            sessions.set("claude", Conversation(user=f"{number}.{step}"), f"s{number}.{step}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sessions) == 160


@pytest.mark.slow
def test_processes_that_start_at_once_lose_no_update(path: Path) -> None:
    code = """
        import sys
        from remoteclaw_sync.chat.sessions import Conversation, SessionMap
        with SessionMap(sys.argv[1]) as sessions:
            for step in range(25):
                sessions.set("claude", Conversation(user=f"{sys.argv[2]}.{step}"), "s")
    """
    finish([start_host(code, str(path), str(number)) for number in range(4)])
    with SessionMap(path) as sessions:
        assert len(sessions) == 100
        assert sessions.set_aside == ()


def finish(hosts: list[subprocess.Popen[str]]) -> list[str]:
    outputs = []
    for host in hosts:
        with host:
            out, err = host.communicate(timeout=PATIENCE)
            assert (host.returncode, err) == (0, "")
            outputs.append(out)
    return outputs


# --- turns ---------------------------------------------------------------------------------------------------


def test_turns_in_a_conversation_come_in_the_order_they_were_taken(sessions: SessionMap) -> None:
    turns = [sessions.turn(ANN) for _ in range(20)]
    order: list[int] = []

    def work(number: int) -> None:
        with turns[number] as turn:
            assert turn.wait()
            order.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in reversed(range(20))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert order == list(range(20))


@pytest.mark.slow
def test_two_maps_of_one_file_are_one_queue(open_map: OpenMap, sessions: SessionMap) -> None:
    with open_map() as other:
        with sessions.turn(ANN) as first, other.turn(ANN) as second:
            assert first.wait()
            assert not second.wait(give_up=answers(False, True))
            first.leave()
            assert second.wait()


def test_conversations_do_not_wait_for_each_other(sessions: SessionMap) -> None:
    with sessions.turn(ANN) as anns, sessions.turn(BOB) as bobs:
        assert anns.wait()
        assert bobs.wait()


def test_who_gives_up_waiting_holds_up_nobody(sessions: SessionMap) -> None:
    with sessions.turn(ANN) as first:
        assert first.wait()
        with sessions.turn(ANN) as second:
            assert not second.wait(give_up=lambda: True)
        third = sessions.turn(ANN)
    with third:
        assert third.wait()


@pytest.mark.slow
def test_leaving_twice_gives_up_one_place_only(sessions: SessionMap) -> None:
    first, second = sessions.turn(ANN), sessions.turn(ANN)
    first.leave()
    first.leave()
    with second:
        assert second.wait()
        with sessions.turn(ANN) as third:
            assert not third.wait(give_up=answers(False, True))


def answers(*values: bool) -> Callable[[], bool]:
    remaining = iter(values)
    return lambda: next(remaining)


@pytest.mark.slow
def test_processes_take_turns_one_at_a_time_and_in_order(path: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    code = """
        import os, sys
        from remoteclaw_sync.chat.sessions import Conversation, SessionMap
        def note(word, number):
            fd = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(fd, f"{word} {number}\\n".encode())
            os.close(fd)
        with SessionMap(sys.argv[1]) as sessions:
            for _ in range(5):
                with sessions.turn(Conversation(user="ann")) as turn:
                    assert turn.wait()
                    note("enter", turn.number)
                    note("leave", turn.number)
    """
    finish([start_host(code, str(path), str(journal)) for _ in range(4)])
    numbers = sorted(int(line.split()[1]) for line in journal.read_text().splitlines() if line.startswith("enter"))
    assert len(numbers) == 20
    assert journal.read_text().split("\n") == [f"{word} {n}" for n in numbers for word in ("enter", "leave")] + [""]


HOLDER = """
    import sys
    from remoteclaw_sync.chat.sessions import Conversation, SessionMap
    with SessionMap(sys.argv[1]) as sessions, sessions.turn(Conversation(user="ann")) as turn:
        print("there", flush=True)
        turn.wait()
        sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("buried", [True, False])
def test_the_turn_of_a_process_that_was_killed_passes_to_the_next(path: Path, buried: bool) -> None:
    """Even before anybody has waited for the dead process."""
    conversation = Conversation(user="ann")
    with start_host(HOLDER, str(path), stdin=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "there\n"
        with SessionMap(path) as sessions, sessions.turn(conversation) as turn:
            assert not turn.wait(give_up=answers(False, True))
            holder.send_signal(signal.SIGKILL)
            if buried:
                holder.wait(PATIENCE)
            assert turn.wait()


@pytest.mark.slow
def test_a_forked_copy_shares_the_map_and_does_not_give_up_its_parents_turn(sessions: SessionMap) -> None:
    sessions.set("claude", ANN, "s1")
    with sessions.turn(ANN) as turn:
        assert turn.wait()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                turn.leave()
                status = 0 if sessions.get("claude", ANN) == "s1" else 2
                sessions.set("claude", BOB, "from the child")
                sessions.close()
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with sessions.turn(ANN) as second:
            assert not second.wait(give_up=answers(False, True))
    assert sessions.get("claude", BOB) == "from the child"


def test_the_columns_of_the_file_are_as_documented(path: Path) -> None:
    with SessionMap(path) as sessions:
        sessions.set("claude", Conversation("/w", "slack", "C", "U", "T"), "s1")
    connection = sqlite3.connect(path)
    try:
        row = connection.execute(
            "SELECT provider, workspace, platform, channel, user, thread, session_id FROM remoteclaw_sessions"
        ).fetchone()
    finally:
        connection.close()
    assert row == ("claude", "/w", "slack", "C", "U", "T", "s1")
