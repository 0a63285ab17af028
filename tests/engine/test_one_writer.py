"""One writer per session: in this process, in others, in forked copies, and after a host that was killed."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from remoteclaw_sync import AgentErrorEvent, AgentRunError, SessionBusyError
from remoteclaw_sync.engine import one_writer
from remoteclaw_sync.errors import RunSetupError, SessionHeldError
from tests.engine.live import command, open_session, runtime, starts, steps
from tests.fakes import PATIENCE, run_host, start_host, wait_until

# In a separate host: a live session that has had a turn, and stays until it is told to leave.
LIVE_HOST = """
import sys
from pathlib import Path
from remoteclaw_sync import ClaudeCliRuntime
session = ClaudeCliRuntime({command!r}).open_session(working_directory={folder!r}, session_id={session!r})
print(session.run("hello").session_id, flush=True)
sys.stdin.readline()
session.close()
print("closed", flush=True)
sys.stdin.readline()
"""


def test_a_second_live_session_of_one_id_is_told_that_it_is_in_use_and_can_have_it_when_the_first_is_closed(
    tmp_path: Path,
) -> None:
    with open_session(tmp_path) as first:
        session_id = first.run("one").session_id
        with open_session(tmp_path, session_id=session_id) as second:
            with pytest.raises(SessionBusyError, match="this process") as caught:
                second.run("two")
            assert isinstance(caught.value, AgentRunError)
            assert caught.value.result.error_subtype == "session_busy"
            with pytest.raises(SessionBusyError):
                second.warm()
            first.close()
            assert second.run("three").session_id == session_id
    assert len(starts(tmp_path)) == 2


def test_a_one_shot_run_is_told_so_too_and_nothing_is_started(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        session_id = session.run("one").session_id
        events = list(runtime(tmp_path).execute("two", session_id=session_id, working_directory=tmp_path))
    assert [event.type for event in events] == ["error", "done"]
    assert isinstance(events[0], AgentErrorEvent)
    assert events[0].code == "SESSION_BUSY"
    assert len(starts(tmp_path)) == 1


def test_a_session_that_has_cooled_down_is_given_back(tmp_path: Path) -> None:
    with open_session(tmp_path, idle_timeout=0.05) as first:
        session_id = first.run("one").session_id
        assert wait_until(lambda: first.pid is None, PATIENCE)
        with open_session(tmp_path, session_id=session_id) as second:
            assert second.run("two").ok
            # And the other way round: now the second has it.
            assert first.run("three", check=False).error_subtype == "session_busy"


def test_a_session_whose_process_was_killed_is_given_back(tmp_path: Path) -> None:
    with open_session(tmp_path) as first:
        session_id = first.run("one").session_id
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        assert wait_until(lambda: first.pid is None, PATIENCE)
        with open_session(tmp_path, session_id=session_id) as second:
            assert second.run("two").ok


def test_a_live_session_cannot_resume_what_a_one_shot_run_is_writing_to(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        session_id = session.run("one").session_id
    one_shot = runtime(tmp_path, transport="live").start(
        steps(["text", "hi"], ["hang"]), session_id=session_id, working_directory=tmp_path
    )
    with one_shot:
        assert next(one_shot).type == "text"
        with open_session(tmp_path, session_id=session_id) as session:
            assert session.run("two", check=False).error_subtype == "session_busy"
            one_shot.close()
            assert session.run("three").ok


def test_runs_that_resume_a_session_one_after_the_other_do_not_hinder_each_other(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        session_id = session.run("one").session_id
    agent = runtime(tmp_path, transport="live")
    for number in range(3):
        assert agent.run(f"{number}", session_id=session_id, working_directory=tmp_path).session_id == session_id


def test_the_same_id_in_another_home_is_another_session(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        session_id = session.run("one").session_id
        other = open_session(tmp_path, session_id=session_id, env={"CLAUDE_CONFIG_DIR": str(tmp_path / "other")})
        with other:
            assert other.run("two").ok


def test_a_fork_of_a_session_only_reads_it(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        session_id = session.run("one").session_id
        with open_session(tmp_path, session_id=session_id, extra_args=["--fork-session"]) as fork:
            assert fork.run("two").ok


def test_a_session_that_another_process_holds_is_in_use_until_it_lets_go(tmp_path: Path) -> None:
    code = LIVE_HOST.format(command=command(tmp_path), folder=str(tmp_path), session=None)
    with start_host(code, stdin=subprocess.PIPE) as host:
        assert host.stdin is not None
        assert host.stdout is not None
        session_id = host.stdout.readline().strip()
        with open_session(tmp_path, session_id=session_id) as session:
            with pytest.raises(SessionHeldError, match=f"process {host.pid}"):
                session.run("two")
            host.stdin.write("\n")
            host.stdin.flush()
            assert host.stdout.readline() == "closed\n"
            assert session.run("three").session_id == session_id
        host.stdin.write("\n")
        host.stdin.flush()
        host.wait(PATIENCE)


@pytest.mark.slow
def test_a_host_that_is_killed_gives_its_sessions_back(tmp_path: Path) -> None:
    code = LIVE_HOST.format(command=command(tmp_path), folder=str(tmp_path), session=None)
    with start_host(code, stdin=subprocess.PIPE) as host:
        assert host.stdout is not None
        session_id = host.stdout.readline().strip()
        host.kill()
        host.wait(PATIENCE)
    with open_session(tmp_path, session_id=session_id) as session:
        assert session.run("two").session_id == session_id


@pytest.mark.slow
def test_an_interpreter_that_exits_leaves_no_trace_of_what_it_held(tmp_path: Path) -> None:
    code = LIVE_HOST.format(command=command(tmp_path), folder=str(tmp_path), session=None)
    run_host(f"{code}\nsession = session._live.agent.open_session(); session.run('hi')", stdin=subprocess.DEVNULL)
    assert os.listdir(tempfile.gettempdir()) == []


# --- the lock itself ----------------------------------------------------------------------------------------------


def test_a_hold_is_one_of_many_and_leaves_nothing() -> None:
    held = one_writer.hold("claude /home", "s1")
    other = one_writer.hold("claude /home", "s2")
    assert held is not None
    assert other is not None
    with pytest.raises(RunSetupError):
        one_writer.hold("claude /home", "s1")
    held.release()
    held.release()
    again = one_writer.hold("claude /home", "s1")
    assert again is not None
    del again
    other.release()
    (folder,) = Path(tempfile.gettempdir()).iterdir()
    assert list(folder.iterdir()) == []


def test_the_folder_and_its_names_tell_others_nothing() -> None:
    held = one_writer.hold("claude /home/ann", "secret-session")
    assert held is not None
    (folder,) = Path(tempfile.gettempdir()).iterdir()
    (file,) = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "secret" not in file.name
    assert "ann" not in file.name
    held.release()


def test_something_else_in_the_place_of_the_folder_is_left_alone_and_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    held = one_writer.hold("claude", "s1")
    assert held is not None
    (folder,) = Path(tempfile.gettempdir()).iterdir()
    held.release()
    folder.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(0o700)
    folder.symlink_to(elsewhere)
    try:
        assert one_writer.hold("claude", "s1") is None
        assert list(elsewhere.iterdir()) == []
        assert "cannot be protected" in caplog.text
    finally:
        folder.unlink()


def test_a_forked_copy_does_not_hold_what_its_parent_holds() -> None:
    held = one_writer.hold("claude", "s1")
    assert held is not None
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - in the copy
        try:
            held.release()  # It is not the copy's own, so this must change nothing.
            os.read(read, 1)
        finally:
            os._exit(0)
    try:
        with pytest.raises(RunSetupError):
            one_writer.hold("claude", "s1")
        held.release()
        again = one_writer.hold("claude", "s1")
        assert again is not None
        again.release()
    finally:
        os.write(write, b"x")
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)


def test_of_many_threads_that_want_a_session_again_and_again_one_has_it_at_a_time() -> None:
    inside: list[int] = []
    crowds: list[int] = []
    taken = []

    def want() -> None:
        for _ in range(200):
            try:
                held = one_writer.hold("claude", "s1")
            except RunSetupError:
                continue
            assert held is not None
            inside.append(1)
            crowds.append(len(inside))
            taken.append(1)
            inside.pop()
            held.release()

    threads = [threading.Thread(target=want) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken
    assert set(crowds) == {1}
