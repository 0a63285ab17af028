"""A disk or database fault costs the memory of a conversation, but never the answer or the conversation itself."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import (
    AgentDoneEvent,
    AgentEvent,
    AgentExecuteParams,
    AgentRunResult,
    AgentTextEvent,
    BridgeCallbacks,
    ChannelMessage,
    ReplyPayload,
)
from remoteclaw_sync.chat.bridge import ChannelBridge
from remoteclaw_sync.chat.sessions import Conversation, SessionMap
from tests.fakes import PATIENCE, run_host, start_host, wait_until

SHORT = 0.02  # Seconds to wait for a locked file.
MESSAGE = ChannelMessage("hi", provider="telegram", channel_id="c1", sender="u1")
ANN = Conversation("/work", "telegram", "chat", "ann")


class Echo:
    """Answers with what it was asked, in the session it was given or in `s1`."""

    provider = "echo"

    def __init__(self) -> None:
        self.resumed: list[str | None] = []

    def execute(self, params: AgentExecuteParams, /) -> Iterator[AgentEvent]:
        self.resumed.append(params.session_id)
        yield AgentTextEvent(params.prompt)
        yield AgentDoneEvent(AgentRunResult(text=params.prompt, session_id=params.session_id or "s1"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "sessions.db"


@pytest.fixture
def runtime() -> Echo:
    return Echo()


@pytest.fixture
def bridge(path: Path, runtime: Echo, tmp_path: Path) -> Iterator[ChannelBridge]:
    with SessionMap(path, busy_timeout=SHORT) as sessions:
        yield ChannelBridge(runtime, session_map=sessions, workspace_dir=tmp_path)


def turns_in(path: Path) -> list[Any]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT * FROM remoteclaw_turns").fetchall()


def execute(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


# --- faults: each breaks the file until its context is left ------------------------------------------------------

Fault = Callable[[Path], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield


@contextlib.contextmanager
def deleted(path: Path) -> Iterator[None]:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink()
    yield


@contextlib.contextmanager
def folder_removed(path: Path) -> Iterator[None]:
    shutil.rmtree(path.parent)
    yield


@contextlib.contextmanager
def no_database(path: Path) -> Iterator[None]:
    with deleted(path):
        path.write_bytes(b"{}" * 5_000)
        yield


@contextlib.contextmanager
def another_database(path: Path) -> Iterator[None]:
    new = path.with_name("new.db")
    execute(new, "CREATE TABLE customers (name TEXT)")
    with deleted(path):
        os.replace(new, path)
        yield


@contextlib.contextmanager
def cut_short(path: Path) -> Iterator[None]:
    os.truncate(path, 100)
    yield


@contextlib.contextmanager
def emptied(path: Path) -> Iterator[None]:
    execute(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    os.truncate(path, 0)
    yield


@contextlib.contextmanager
def tables_dropped(path: Path) -> Iterator[None]:
    execute(path, "DROP TABLE remoteclaw_turns", "DROP TABLE remoteclaw_sessions")
    yield


@contextlib.contextmanager
def writing_refused(path: Path) -> Iterator[None]:
    """As on a disk that is full or has become read-only: each write fails, reading works."""
    refuse = "BEGIN SELECT RAISE(FAIL, 'database or disk is full'); END"
    for table in ("remoteclaw_turns", "remoteclaw_sessions"):
        for change in ("INSERT", "UPDATE", "DELETE"):
            execute(path, f"CREATE TRIGGER no_{change}_{table} BEFORE {change} ON {table} {refuse}")
    yield
    for table in ("remoteclaw_turns", "remoteclaw_sessions"):
        for change in ("INSERT", "UPDATE", "DELETE"):
            execute(path, f"DROP TRIGGER no_{change}_{table}")


@contextlib.contextmanager
def folder_in_its_place(path: Path) -> Iterator[None]:
    with deleted(path):
        path.mkdir()
        yield
        path.rmdir()


@contextlib.contextmanager
def fifo_in_its_place(path: Path) -> Iterator[None]:
    with deleted(path):
        os.mkfifo(path)
        yield
        path.unlink()


FAULTS: list[Fault] = [
    locked, deleted, folder_removed, no_database, another_database, cut_short, emptied, tables_dropped,
    writing_refused, folder_in_its_place, fifo_in_its_place,
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_before_the_turn_costs_neither_the_answer_nor_the_conversation(
    bridge: ChannelBridge, runtime: Echo, path: Path, fault: Fault
) -> None:
    bridge.handle(MESSAGE)
    with fault(path):
        for _ in range(2):
            result = bridge.handle(MESSAGE)
            assert (result.payloads, result.error, result.run.ok) == ((ReplyPayload("hi"),), None, True)
    check_recovered(bridge, runtime, path)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_during_the_turn_costs_neither_the_answer_nor_the_conversation(
    bridge: ChannelBridge, runtime: Echo, path: Path, fault: Fault
) -> None:
    """H2: the row of the turn stayed, and its owner, this process, looked alive for ever."""
    bridge.handle(MESSAGE)
    with contextlib.ExitStack() as stack:
        breaking = BridgeCallbacks(lambda payload: stack.enter_context(fault(path)))
        result = bridge.handle(MESSAGE, breaking)
        assert (result.payloads, result.error, result.run.ok) == ((ReplyPayload("hi"),), None, True)
        assert bridge.handle(MESSAGE).payloads == (ReplyPayload("hi"),)
    check_recovered(bridge, runtime, path)


def check_recovered(bridge: ChannelBridge, runtime: Echo, path: Path) -> None:
    assert [bridge.handle(MESSAGE).warnings for _ in range(2)] == [(), ()]
    assert runtime.resumed[-1] == "s1"
    assert turns_in(path) == []


@pytest.mark.slow
def test_a_full_disk_costs_neither_the_answer_nor_the_conversation(tmp_path: Path) -> None:
    """H2, with a limit on the size of files: the kernel refuses the write, as on a full disk."""
    code = """
        import resource, sys
        from remoteclaw_sync import BridgeCallbacks
        from remoteclaw_sync.chat.bridge import ChannelBridge
        from tests.chat.test_session_faults import MESSAGE, Echo
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        def fill(payload):
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
        with ChannelBridge(Echo(), session_map=sys.argv[1], workspace_dir="/") as bridge:
            first = bridge.handle(MESSAGE, BridgeCallbacks(fill))
            second = bridge.handle(MESSAGE)
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            third = bridge.handle(MESSAGE)
        for result in (first, second, third):
            print(result.run.text, result.error, bool(result.warnings))
    """
    path = tmp_path / "sessions.db"
    with start_host(code, str(path)) as host:
        out, _ = host.communicate(timeout=PATIENCE)
    assert (host.returncode, out) == (0, "hi None True\nhi None True\nhi None False\n")
    assert turns_in(path) == []


@pytest.fixture
def own_file_system(tmp_path: Path) -> list[str]:
    """The beginning of a command that is run where `tmp_path` is a tmpfs of 200 kB that nobody else can see."""
    private = ["unshare", "--user", "--map-root-user", "--mount", "--", "sh", "-c"]
    mount = 'mount -t tmpfs -o size=200k none "$0"'
    if not shutil.which("unshare") or subprocess.run([*private, mount, str(tmp_path)], stderr=-3).returncode:
        pytest.skip("namespace: no tmpfs can be mounted in one of our own")
    return [*private, f'{mount} && exec "$@"', str(tmp_path)]


@pytest.mark.slow
def test_a_full_file_system_costs_neither_the_answer_nor_the_conversation(
    tmp_path: Path, own_file_system: list[str]
) -> None:
    """H2 as it was found: a tmpfs of 200 kB, filled by a callback."""
    code = """
        import os, sys
        from remoteclaw_sync import BridgeCallbacks
        from remoteclaw_sync.chat.bridge import ChannelBridge
        from tests.chat.test_session_faults import MESSAGE, Echo
        def fill(payload):
            with open(sys.argv[1] + "/ballast", "wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(512))
                except OSError:
                    pass
        with ChannelBridge(Echo(), session_map=sys.argv[1] + "/sessions.db", workspace_dir="/") as bridge:
            first = bridge.handle(MESSAGE, BridgeCallbacks(fill))
            second = bridge.handle(MESSAGE)
            os.unlink(sys.argv[1] + "/ballast")
            third = bridge.handle(MESSAGE)
        for result in (first, second, third):
            print(result.run.text, result.error, bool(result.warnings))
    """
    with start_host(code, str(tmp_path), inside=own_file_system) as host:
        out, _ = host.communicate(timeout=PATIENCE)
    assert (host.returncode, out) == (0, "hi None True\nhi None True\nhi None False\n")


@pytest.mark.slow
def test_a_disk_that_becomes_read_only_costs_neither_the_answer_nor_the_conversation(
    tmp_path: Path, own_file_system: list[str]
) -> None:
    """As Linux does with a disk that reports errors."""
    code = """
        import subprocess, sys
        from remoteclaw_sync.chat.bridge import ChannelBridge
        from tests.chat.test_session_faults import MESSAGE, Echo
        with ChannelBridge(Echo(), session_map=sys.argv[1] + "/sessions.db", workspace_dir="/") as bridge:
            bridge.handle(MESSAGE)
            bridge.session_map.close()
            for mode in ("ro", "rw"):
                subprocess.run(["mount", "-o", f"remount,{mode}", sys.argv[1]], check=True)
                result = bridge.handle(MESSAGE)
                print(result.run.text, result.error, bool(result.warnings))
    """
    with start_host(code, str(tmp_path), inside=own_file_system) as host:
        out, _ = host.communicate(timeout=PATIENCE)
    assert (host.returncode, out) == (0, "hi None True\nhi None False\n")


def test_what_will_not_be_remembered_is_in_the_result_and_in_the_log(
    bridge: ChannelBridge, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with locked(path):
        result = bridge.handle(MESSAGE)
    assert [warning for warning in result.warnings if "could not be stored" in warning and "locked" in warning]
    logged = [record for record in caplog.records if "could not be stored" in record.getMessage()]
    assert [record.levelname for record in logged] == ["WARNING"]
    assert "s1" not in caplog.text
    assert bridge.handle(MESSAGE).warnings == ()


def test_a_session_can_be_continued_while_nothing_can_be_written(bridge: ChannelBridge, path: Path) -> None:
    bridge.session_map.set("echo", bridge.conversation(MESSAGE), "s7")
    with writing_refused(path):
        assert bridge.handle(MESSAGE).run.session_id == "s7"


def test_a_lost_session_is_replaced_while_nothing_can_be_written(path: Path, tmp_path: Path) -> None:
    class Forgetful(Echo):
        def execute(self, params: AgentExecuteParams, /) -> Iterator[AgentEvent]:
            if params.session_id == "lost":
                self.resumed.append("lost")
                yield AgentDoneEvent(AgentRunResult(error_subtype="session_not_found"))
            else:
                yield from super().execute(params)

    runtime = Forgetful()
    with SessionMap(path) as sessions:
        bridge = ChannelBridge(runtime, session_map=sessions, workspace_dir=tmp_path)
        sessions.set("echo", bridge.conversation(MESSAGE), "lost")
        with writing_refused(path):
            assert bridge.handle(MESSAGE).payloads == (ReplyPayload("hi"),)
    assert runtime.resumed == ["lost", None]


def test_turns_are_in_order_in_a_process_whose_session_map_cannot_be_used(bridge: ChannelBridge, path: Path) -> None:
    with folder_in_its_place(path):
        messages = [ChannelMessage(str(n), channel_id="c1") for n in range(8)]
        turns = [bridge.arrive(message) for message in messages]
        order: list[str] = []
        running = 0

        def handle(number: int) -> None:
            def told(payload: ReplyPayload) -> None:
                nonlocal running
                running += 1
                order.append(f"{payload.text} of {running}")
                running -= 1

            bridge.handle(messages[number], BridgeCallbacks(told), turn=turns[number])

        with ThreadPoolExecutor(8) as pool:
            for future in [pool.submit(handle, number) for number in reversed(range(8))]:
                future.result(PATIENCE)
    assert order == [f"{number} of 1" for number in range(8)]


@pytest.mark.slow
def test_a_turn_that_the_file_would_not_give_up_blocks_no_other_process_once_it_does(
    bridge: ChannelBridge, path: Path, tmp_path: Path
) -> None:
    """Although this process, which owned the row, lives on and does nothing more."""
    with contextlib.ExitStack() as stack:
        bridge.handle(MESSAGE, BridgeCallbacks(lambda payload: stack.enter_context(locked(path))))
    code = """
        import sys
        from remoteclaw_sync.chat.bridge import ChannelBridge
        from tests.chat.test_session_faults import MESSAGE, Echo
        with ChannelBridge(Echo(), session_map=sys.argv[1], workspace_dir=sys.argv[2]) as bridge:
            print(bridge.handle(MESSAGE).run.session_id)
    """
    assert run_host(code, str(path), str(tmp_path)) == "s1\n"
    assert wait_until(lambda: turns_in(path) == [])


@pytest.mark.slow
def test_leaving_a_turn_of_a_file_that_was_replaced_takes_nobody_elses_place(tmp_path: Path) -> None:
    """The numbers start again in a new file."""
    path = tmp_path / "sessions.db"
    code = """
        import sys
        from remoteclaw_sync.chat.sessions import SessionMap
        from tests.chat.test_session_faults import ANN
        with SessionMap(sys.argv[1]) as sessions, sessions.turn(ANN) as turn:
            print(turn.number, flush=True)
            sys.stdin.read()
    """
    with SessionMap(path) as sessions, sessions.turn(ANN) as old:
        with deleted(path):
            pass
        with start_host(code, str(path), stdin=subprocess.PIPE) as host:
            assert host.stdout is not None
            assert host.stdout.readline() == f"{old.number}\n"
            old.leave()
            with sessions.turn(ANN) as mine:
                looks = iter((False, True))
                assert not mine.wait(give_up=lambda: next(looks))
                host.communicate("", timeout=PATIENCE)
                assert mine.wait()


def test_a_map_can_be_made_while_the_file_is_locked(path: Path, runtime: Echo, tmp_path: Path) -> None:
    SessionMap(path).close()
    with locked(path):
        with SessionMap(path, busy_timeout=SHORT) as sessions:
            bridge = ChannelBridge(runtime, session_map=sessions, workspace_dir=tmp_path)
            assert bridge.handle(MESSAGE).payloads == (ReplyPayload("hi"),)


def test_a_conversation_that_no_database_can_name_is_answered(bridge: ChannelBridge) -> None:
    """A lone surrogate, like half an emoji in a user's name."""
    result = bridge.handle(ChannelMessage("hi", channel_id="\ud83e"))
    assert (result.payloads, result.error) == ((ReplyPayload("hi"),), None)
    assert "UnicodeEncodeError" in result.warnings[-1]


HOLDER = """
    import sys
    from remoteclaw_sync.chat.sessions import SessionMap
    from tests.chat.test_session_faults import MESSAGE, Conversation
    with SessionMap(sys.argv[1]) as sessions, sessions.turn(Conversation.of(MESSAGE, sys.argv[2])) as turn:
        print("there", flush=True)
        sys.stdin.read()
"""


@pytest.mark.slow
def test_a_process_that_can_start_no_thread_uses_the_map_all_the_same(
    bridge: ChannelBridge, runtime: Echo, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It also waits for another process."""

    def refuse(*arguments: object) -> int:
        raise RuntimeError("can't start new thread")

    bridge.session_map.close()
    with start_host(HOLDER, str(path), str(tmp_path), stdin=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "there\n"
        with monkeypatch.context() as patch:
            patch.setattr("_thread.start_new_thread", refuse)
            turn = bridge.arrive(MESSAGE)
            looks = iter((False, False, True))
            assert not turn.wait(give_up=lambda: next(looks))
            holder.kill()
            holder.wait()
            result = bridge.handle(MESSAGE, turn=turn)
    assert (result.run.text, result.warnings) == ("hi", ())
    assert runtime.resumed == [None]
    assert turns_in(path) == []


# --- exceptions that come at any moment ------------------------------------------------------------------------


INTERRUPTED = """
    import random, signal, sys
    from remoteclaw_sync.chat.bridge import ChannelBridge
    from tests.chat.test_session_faults import MESSAGE, Echo, turns_in

    def interrupt(number, frame):
        raise KeyboardInterrupt

    def wait_for_no_turns():
        while turns_in(path):
            pass

    path, folder, wanted, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    rng = random.Random(seed)
    signal.signal(signal.SIGALRM, interrupt)
    with ChannelBridge(Echo(), session_map=path, workspace_dir=folder, max_concurrent_runs=1) as bridge:
        interrupts = 0
        while interrupts < wanted:
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.00001, 0.004))
                turn = bridge.arrive(MESSAGE) if rng.random() < 0.3 else None
                assert bridge.handle(MESSAGE, turn=turn).run.text == "hi"
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupts += 1
        turn = None
        wait_for_no_turns()
        print("there", flush=True)
        sys.stdin.read()
        result = bridge.handle(MESSAGE)
        print(result.run.text, result.warnings, bridge.abort(MESSAGE))
"""


@pytest.mark.slow
def test_an_interrupt_at_any_moment_leaves_no_transaction_no_turn_and_no_slot(
    path: Path, runtime: Echo, tmp_path: Path
) -> None:
    """H3: after some twenty interrupts each call raised, and other processes found a locked file."""
    seed = os.urandom(4).hex()
    print(f"seed {seed}")  # Shown if it fails.
    with start_host(INTERRUPTED, str(path), str(tmp_path), "500", seed, stdin=subprocess.PIPE) as host:
        try:
            assert host.stdout is not None
            assert host.stdout.readline() == "there\n"
            with SessionMap(path, busy_timeout=SHORT) as sessions:
                bridge = ChannelBridge(runtime, session_map=sessions, workspace_dir=tmp_path)
                result = bridge.handle(MESSAGE)
                assert (result.run.text, result.warnings) == ("hi", ())
            out, err = host.communicate("", timeout=PATIENCE)
            assert (host.returncode, out, err) == (0, "hi () 0\n", "")
        finally:
            host.kill()


def test_a_turn_that_nobody_holds_any_more_is_given_up(bridge: ChannelBridge) -> None:
    """For example, of a dispatcher whose pool was shut down."""
    bridge.arrive(MESSAGE)
    gc.collect()
    assert bridge.handle(MESSAGE).payloads == (ReplyPayload("hi"),)


def test_a_turn_lost_in_a_cycle_of_garbage_is_given_up(bridge: ChannelBridge) -> None:
    cycle: list[Any] = [bridge.arrive(MESSAGE)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert bridge.handle(MESSAGE).payloads == (ReplyPayload("hi"),)


def test_a_turn_that_was_left_is_no_turn_to_wait_for_and_its_message_gets_another(bridge: ChannelBridge) -> None:
    turn = bridge.arrive(MESSAGE)
    turn.leave()
    assert not turn.wait()
    assert bridge.handle(MESSAGE, turn=turn).payloads == (ReplyPayload("hi"),)


# --- what others have written into the file ------------------------------------------------------------------------


@pytest.mark.parametrize("owner", ["", "somebody", "a b c d", "boot 1 1", "1-1-", "9" * 5000 + "-1-1", 17, b"\xff"])
def test_a_turn_of_an_owner_that_is_no_process_is_given_up(bridge: ChannelBridge, path: Path, owner: object) -> None:
    conversation = bridge.conversation(MESSAGE)
    insert = (
        "INSERT INTO remoteclaw_turns (workspace, platform, channel, user, thread, owner) VALUES (?, ?, ?, ?, ?, ?)"
    )
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(insert, (*conversation.columns, owner))
    result = bridge.handle(MESSAGE)
    assert (result.run.text, result.warnings) == ("hi", ())


def test_columns_that_a_later_version_has_added_change_nothing(
    bridge: ChannelBridge, runtime: Echo, path: Path
) -> None:
    for table in ("remoteclaw_sessions", "remoteclaw_turns"):
        execute(path, f"ALTER TABLE {table} ADD COLUMN machine TEXT NOT NULL DEFAULT ''")
    assert [bridge.handle(MESSAGE).warnings for _ in range(2)] == [(), ()]
    assert runtime.resumed == [None, "s1"]


@pytest.mark.parametrize("stored", ["", "-flag", "two\nlines", b"\xff"])
def test_what_is_no_session_id_is_not_passed_on_and_does_not_block_the_conversation(
    bridge: ChannelBridge, runtime: Echo, path: Path, stored: object
) -> None:
    bridge.handle(MESSAGE)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE remoteclaw_sessions SET session_id = ?", (stored,))
    assert [bridge.handle(MESSAGE).error for _ in range(2)] == [None, None]
    assert runtime.resumed == [None, None, "s1"]
