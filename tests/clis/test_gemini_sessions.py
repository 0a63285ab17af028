"""Gemini's sessions survive Gemini's own clean-up. The files are as Gemini 0.61.0 writes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import GeminiCliRuntime
from remoteclaw_sync.clis.gemini import sessions as gemini_sessions
from remoteclaw_sync.clis.gemini.sessions import SessionGuard, is_stub, session_files
from tests.fakes import finished

SESSION = "6ef4015b-9bd1-48a8-9a2d-b43ca73d7309"
OLD, RECENT = "2026-01-02T03-04", "2026-01-02T03-09"

HEADER = {"sessionId": SESSION, "projectHash": "ab12", "startTime": "2026-01-02T03:04:05.678Z", "kind": "main"}
CONTEXT = {"id": "d0", "type": "user", "content": [{"text": "<session_context>\nThis is the Gemini CLI."}]}
START: list[Any] = [HEADER, {"$set": {"messages": [CONTEXT]}}]


def turn(prompt: str) -> list[Any]:
    """What Gemini appends in a turn."""
    return [
        {"id": f"{prompt}-1", "type": "user", "content": [{"text": prompt}]},
        {"$set": {"lastUpdated": "2026-01-02T03:04:06.789Z"}},
        {"id": f"{prompt}-2", "type": "gemini", "content": f"answer to {prompt}"},
    ]


def text_of(records: list[Any]) -> str:
    return "".join(f"{json.dumps(record)}\n" for record in records)


@pytest.fixture
def gemini_home(tmp_path: Path) -> Path:
    """A user's home in which Gemini has worked on one project."""
    (tmp_path / "home" / ".gemini" / "tmp" / "work" / "chats").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    return tmp_path / "home"


@pytest.fixture
def chats(gemini_home: Path) -> Path:
    return gemini_home / ".gemini" / "tmp" / "work" / "chats"


@pytest.fixture
def real(chats: Path) -> Path:
    """A session with one turn, started some minutes ago."""
    path = chats / f"session-{OLD}-6ef4015b.jsonl"
    path.write_text(text_of([*START, *turn("first")]))
    return path


def guard_of(home: Path) -> SessionGuard:
    return SessionGuard({"HOME": str(home)}, str(home.parent / "work"))


def resume(path: Path, prompt: str) -> None:
    """Like `gemini --resume`: first a stub with the current minute, then the real file."""
    (path.parent / f"session-{RECENT}-6ef4015b.jsonl").write_text(text_of(START))
    append(path, [{"$set": {"sessionId": SESSION}}, *turn(prompt)])


def append(path: Path, records: list[Any]) -> None:
    with path.open("a") as file:
        file.write(text_of(records))


def clean_up(chats: Path) -> None:
    """As another Gemini does at startup: delete a session with all its files if one is a stub or has no header."""
    empty = {path.stem[-8:] for path in chats.glob("session-*") if is_stub(str(path)) or not has_header(path)}
    for path in chats.glob("session-*"):
        if path.stem[-8:] in empty:
            path.unlink()


def has_header(path: Path) -> bool:
    return "sessionId" in json.loads(path.read_text().partition("\n")[0])


def prompts_in(path: Path) -> list[str]:
    """The prompts that Gemini would find in the file."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert records[0] == HEADER
    messages = {record["id"]: record for record in records if "id" in record}
    return [message["content"][0]["text"] for message in messages.values() if message["type"] == "user"]


def nothing_of_ours(home: Path) -> bool:
    return list(home.rglob("remoteclaw*")) == []


# --- one session --------------------------------------------------------------------------------------------


def test_a_resumed_session_leaves_no_stub_for_which_the_next_start_would_delete_it(
    gemini_home: Path, real: Path
) -> None:
    guard = guard_of(gemini_home)
    guard.protect(SESSION)
    resume(real, "second")
    assert guard.is_over(b'{"type":"init","session_id":"' + SESSION.encode() + b'"}\n')
    guard.give_back()
    clean_up(real.parent)
    guard.close()
    clean_up(real.parent)
    assert prompts_in(real) == ["first", "second"]
    assert nothing_of_ours(gemini_home)


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
@pytest.mark.parametrize("went_on", [True, False], ids=["Gemini went on writing", "Gemini had written all"])
def test_a_session_that_another_gemini_deletes_during_the_run_is_put_back_with_all_its_turns(
    gemini_home: Path, real: Path, went_on: bool, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    guard = guard_of(gemini_home)
    guard.protect(SESSION)
    (real.parent / f"session-{RECENT}-6ef4015b.jsonl").write_text(text_of(START))
    clean_up(real.parent)
    assert list(real.parent.iterdir()) == []
    if went_on:
        append(real, turn("second"))
    guard.close()
    assert prompts_in(real) == (["first", "second"] if went_on else ["first"])
    assert nothing_of_ours(gemini_home)


def no_links(*args: Any, **kwargs: Any) -> None:
    raise PermissionError("this file system has no links")


def test_where_there_are_no_links_a_session_that_nobody_deleted_stays_as_gemini_wrote_it(
    gemini_home: Path, real: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", no_links)
    guard = guard_of(gemini_home)
    guard.protect(SESSION)
    resume(real, "second")
    before = real.read_bytes(), real.stat().st_ino
    guard.close()
    assert (real.read_bytes(), real.stat().st_ino) == before
    assert [path.name for path in real.parent.iterdir()] == [real.name]
    assert nothing_of_ours(gemini_home)


def test_a_new_session_that_is_deleted_before_its_prompt_was_written_down_keeps_its_beginning(
    gemini_home: Path, chats: Path
) -> None:
    path = chats / f"session-{RECENT}-6ef4015b.jsonl"
    guard = guard_of(gemini_home)
    append(path, START)
    assert not guard.is_over(b'{"type":"init","session_')
    assert guard.is_over(b'id":"' + SESSION.encode() + b'"}\n{"type":"mess')
    guard.give_back()
    assert path.exists()  # It looks like a stub, but is not one.
    clean_up(chats)
    append(path, turn("first"))
    guard.close()
    assert prompts_in(path) == ["first"]
    assert nothing_of_ours(gemini_home)


def test_a_session_of_this_minute_is_moved_where_geminis_stub_cannot_overwrite_it(
    gemini_home: Path, real: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "strftime", lambda *_: OLD)
    guard = guard_of(gemini_home)
    guard.protect(SESSION)
    append(real, START)  # A stub of the same name; the run ends there.
    guard.close()
    (kept,) = (Path(path) for path in session_files(str(gemini_home / ".gemini"), SESSION) if not is_stub(path))
    assert kept != real
    assert prompts_in(kept) == ["first"]


def test_a_second_file_is_left_alone_if_gemini_did_not_write_to_the_first(gemini_home: Path, real: Path) -> None:
    """Another version may use the new file: then that one counts."""
    guard = guard_of(gemini_home)
    guard.protect(SESSION)
    other = real.parent / f"session-{RECENT}-6ef4015b.jsonl"
    append(other, START)
    guard.is_over(b'{"type":"init","session_id":"' + SESSION.encode() + b'"}\n')
    guard.give_back()
    append(other, turn("second"))
    guard.close()
    assert prompts_in(other) == ["second"]
    assert prompts_in(real) == ["first"]


def test_sessions_of_others_with_the_same_beginning_of_their_id_are_not_touched(gemini_home: Path, real: Path) -> None:
    other = real.parent / f"session-{RECENT}-6ef4015b.jsonl"
    other.write_text(text_of([{**HEADER, "sessionId": "6ef4015b-another"}]))
    guard = guard_of(gemini_home)
    guard.protect(SESSION)
    append(real, turn("second"))
    guard.close()
    assert other.exists()


@pytest.mark.parametrize("kind", ["symlink", "fifo", "folder", "unreadable JSON", "deep JSON"])
def test_what_only_has_the_name_of_a_session_is_left_alone(gemini_home: Path, chats: Path, kind: str) -> None:
    path = chats / f"session-{OLD}-6ef4015b.jsonl"
    victim = gemini_home / "victim"
    victim.write_text(text_of(START))
    if kind == "symlink":
        path.symlink_to(victim)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_text(f"{json.dumps(HEADER)}\n{'{' if kind == 'unreadable JSON' else '[' * 200_000}\n")
    guard = guard_of(gemini_home)
    guard.protect(SESSION)
    guard.close()
    assert os.path.lexists(path)
    assert victim.read_text() == text_of(START)
    assert nothing_of_ours(gemini_home)


def test_a_giant_session_costs_no_copy(gemini_home: Path, real: Path) -> None:
    with real.open("ab") as file:
        file.truncate(1 << 40)  # A hole: it takes no space, and reading it would take for ever.
    guard = guard_of(gemini_home)
    guard.protect(SESSION)
    real.unlink()
    guard.close()
    assert real.stat().st_size == 1 << 40


def test_the_home_is_geminis_own_variable_before_the_users(tmp_path: Path, gemini_home: Path, real: Path) -> None:
    for environ in ({"GEMINI_CLI_HOME": str(gemini_home), "HOME": "/nowhere"}, {"GEMINI_CLI_HOME": "../home"}):
        guard = SessionGuard(environ, str(tmp_path / "work"))
        guard.protect(SESSION)
        kept = real.read_bytes()
        real.unlink()
        guard.close()
        assert real.read_bytes() == kept


def test_a_folder_that_the_user_deleted_does_not_come_back(gemini_home: Path, real: Path) -> None:
    guard = guard_of(gemini_home)
    guard.protect(SESSION)
    real.unlink()
    real.parent.rmdir()
    guard.close()
    assert not real.parent.exists()
    assert nothing_of_ours(gemini_home)


# --- hosts that are killed ----------------------------------------------------------------------------------

KILLED_HOST = """
import os, sys
from remoteclaw_sync.clis.gemini.sessions import SessionGuard
home, project, session = sys.argv[1:]
guard = SessionGuard({"HOME": home}, project)
guard.protect(session)
os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="whether a host is gone is read from /proc")
def test_the_next_run_puts_back_what_was_deleted_after_a_host_was_killed(gemini_home: Path, real: Path) -> None:
    arguments = [str(gemini_home), str(gemini_home.parent / "work"), SESSION]
    subprocess.run([sys.executable, "-c", KILLED_HOST, *arguments], env={**os.environ, "PYTHONPATH": os.getcwd()})
    assert not nothing_of_ours(gemini_home)
    resume(real, "second")
    clean_up(real.parent)
    assert list(real.parent.iterdir()) == []
    next_run = guard_of(gemini_home)
    next_run.put_right()
    assert prompts_in(real) == ["first", "second"]
    assert nothing_of_ours(gemini_home)


def test_what_a_living_host_keeps_is_not_taken_from_it(gemini_home: Path, real: Path) -> None:
    guard = guard_of(gemini_home)
    guard.protect(SESSION)
    guard_of(gemini_home).put_right()
    real.unlink()
    guard.close()
    assert prompts_in(real) == ["first"]


# --- one start after another --------------------------------------------------------------------------------


def never(seconds: float) -> None:
    raise AssertionError("nobody else is starting here")


def test_runs_of_one_folder_start_one_after_another_and_of_others_at_once(gemini_home: Path) -> None:
    first, second = guard_of(gemini_home), guard_of(gemini_home)
    first.wait_for_turn(never)
    elsewhere = SessionGuard({"HOME": str(gemini_home)}, str(gemini_home))
    elsewhere.wait_for_turn(never)
    waited: list[float] = []

    def pause(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            assert first.is_over(b'{"type":"init","session_id":"x"}\n')
            first.give_back()

    second.wait_for_turn(pause)
    assert len(waited) == 3
    for guard in (first, second, elsewhere):
        guard.close()


def test_a_start_that_hangs_does_not_hold_up_the_others_for_ever(
    gemini_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = guard_of(gemini_home), guard_of(gemini_home)
    first.wait_for_turn(never)
    now = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def pause(seconds: float) -> None:
        now[0] += 1.0

    second.wait_for_turn(pause)
    assert now[0] >= gemini_sessions.LONGEST_WAIT
    second.close()
    first.close()


def test_an_end_of_the_run_while_it_waits_leaves_nothing_open(gemini_home: Path) -> None:
    class GivenUp(Exception):
        pass

    def pause(seconds: float) -> None:
        raise GivenUp

    first, second = guard_of(gemini_home), guard_of(gemini_home)
    first.wait_for_turn(never)
    before = os.listdir("/dev/fd")
    with pytest.raises(GivenUp):
        second.wait_for_turn(pause)
    assert len(os.listdir("/dev/fd")) == len(before)
    first.close()


# --- with a run ---------------------------------------------------------------------------------------------

# A Gemini that writes its session like the real one; another one deletes it in the meantime.
GEMINI = """
import json, sys, time
chats, header, start, turn, delete = json.loads(sys.argv[1])
real, stub = chats + "/session-OLD-6ef4015b.jsonl", chats + "/session-RECENT-6ef4015b.jsonl"
import os
prompt = sys.stdin.read()
def append(path, records):
    with open(path, "a") as file:
        file.writelines(json.dumps(record) + "\\n" for record in records)
append(stub, start)
append(real, [{"$set": {"sessionId": header["sessionId"]}}])
if delete:
    os.unlink(real)
    os.unlink(stub)
print(json.dumps({"type": "init", "session_id": header["sessionId"]}).replace(": ", ":"), flush=True)
append(real, turn)
print(json.dumps({"type": "message", "role": "assistant", "content": "ok", "delta": True}))
print(json.dumps({"type": "result", "status": "success", "stats": {}}))
""".replace("OLD", OLD).replace("RECENT", RECENT)


@pytest.mark.parametrize("deleted", [True, False], ids=["deleted meanwhile", "let alone"])
def test_a_run_that_resumes_a_session_leaves_it_whole_and_alone(
    gemini_home: Path, real: Path, deleted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GEMINI_CLI_HOME", raising=False)
    monkeypatch.setenv("HOME", str(gemini_home))
    told = json.dumps([str(real.parent), HEADER, START, turn("second"), deleted])
    runtime = GeminiCliRuntime([sys.executable, "-I", "-S", "-c", GEMINI, told], timeout=60.0)
    project = gemini_home.parent / "work"
    _, result = finished(runtime.execute("second", session_id=SESSION, working_directory=project))
    assert (result.ok, result.session_id) == (True, SESSION)
    assert prompts_in(real) == ["first", "second"]
    assert [path.name for path in real.parent.iterdir()] == [real.name]
    assert nothing_of_ours(gemini_home)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before
