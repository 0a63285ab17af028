"""Sessions that share a process: each hears its own words, in order, and what happens to one does not affect the
others.

The process is the fake Codex (tests/live_codex.py).
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import AgentDoneEvent, AgentPermissionEvent, AgentRunResult, AgentSession, CodexCliRuntime
from remoteclaw_sync.process.sweep import CAN_SWEEP
from tests.engine.live import heard_by, starts, steps
from tests.fakes import PATIENCE, alive, codes, finished, run_host, start_host, wait_until

FAKE = Path(__file__).parents[1] / "live_codex.py"
ASK = "item/commandExecution/requestApproval"
HANG = steps(["text", "working"], ["hang"])
Open = Callable[..., AgentSession]

HOST = """
import json, os, sys, threading
from remoteclaw_sync import CodexCliRuntime
fake, folder = sys.argv[1:]
runtime = CodexCliRuntime([sys.executable, "-I", "-S", fake, folder], timeout=60.0)
sessions = [runtime.open_session(working_directory=folder) for _ in range(3)]
for session in sessions:
    session.run("hello")
"""


def new_runtime(folder: Path, **options: Any) -> CodexCliRuntime:
    return CodexCliRuntime([sys.executable, "-I", "-S", str(FAKE), str(folder)], **{"timeout": 60.0, **options})


@pytest.fixture
def runtime(tmp_path: Path) -> CodexCliRuntime:
    return new_runtime(tmp_path)


@pytest.fixture
def open_one(tmp_path: Path, runtime: CodexCliRuntime) -> Open:
    return opener(tmp_path, runtime)


def opener(folder: Path, runtime: CodexCliRuntime) -> Open:
    (folder / "home").mkdir(exist_ok=True)

    def open_one(env: dict[str, str] | None = None, **fields: Any) -> AgentSession:
        env = {"CODEX_HOME": str(folder / "home"), "CODEX_API_KEY": "", **(env or {})}
        return runtime.open_session(**{"working_directory": folder, "env": env, **fields})

    return open_one


def sent(folder: Path, method: str) -> list[dict[str, Any]]:
    return [line.get("params", {}) for line in heard_by(folder) if line.get("method") == method]


def begun(session: AgentSession, prompt: str = HANG) -> Any:
    """A turn, run up to its first event."""
    run = session.start(prompt)
    assert next(run).type == "text"
    return run


def rest(run: Any) -> tuple[list[Any], AgentRunResult]:
    """What follows the first event, and the result."""
    *events, last = run
    assert isinstance(last, AgentDoneEvent)
    return events, last.result


# --- one process ----------------------------------------------------------------------------------------------


def test_sessions_share_a_process_which_is_greeted_once_and_ends_with_the_last(open_one: Open, tmp_path: Path) -> None:
    sessions = [open_one() for _ in range(4)]
    results = [session.run(f"prompt {number}") for number, session in enumerate(sessions)]
    (pid,) = {session.pid for session in sessions}
    assert pid is not None
    assert [result.text for result in results] == [f"re: prompt {number}" for number in range(4)]
    assert len({session.session_id for session in sessions}) == 4
    methods = [line.get("method") for line in heard_by(tmp_path)]
    assert (methods.count("initialize"), methods.count("initialized"), methods.count("thread/start")) == (1, 1, 4)
    for session in sessions[:-1]:
        session.close()
        assert session.pid is None
    assert sessions[-1].run("still here").text == "re: still here"
    sessions[-1].close()
    assert not alive(pid)
    assert len(starts(tmp_path)) == 1


def test_sixteen_sessions_at_once_hear_their_own_words_in_order(open_one: Open) -> None:
    def talk(number: int) -> list[str]:
        with open_one() as session:
            return [session.run(steps(["count", f"{number}/{turn}:", 60])).text for turn in range(3)]

    with ThreadPoolExecutor(16) as pool:
        said = list(pool.map(talk, range(16)))
    for number, turns in enumerate(said):
        assert turns == ["".join(f"{number}/{turn}:{count} " for count in range(60)) for turn in range(3)]


def test_with_share_process_off_each_session_has_its_own(tmp_path: Path) -> None:
    open_one = opener(tmp_path, new_runtime(tmp_path, share_process=False))
    with open_one() as one, open_one() as two:
        one.run("hello")
        two.run("hello")
        assert one.pid != two.pid


def test_another_environment_another_argument_or_another_runtime_is_another_process(
    open_one: Open, tmp_path: Path
) -> None:
    other = opener(tmp_path, new_runtime(tmp_path))
    sessions = [open_one(), open_one({"COLOUR": "red"}), open_one(extra_args=["-c", "a=1"]), other()]
    for session in sessions:
        session.run("hello")
    assert len({session.pid for session in sessions}) == 4
    for session in sessions:
        session.close()


def test_sessions_in_different_folders_share_a_process_unless_its_home_is_named_by_the_folder(
    open_one: Open, tmp_path: Path
) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    sessions = [open_one(working_directory=folder) for folder in folders]
    relative = [open_one({"CODEX_HOME": "home"}, working_directory=folder) for folder in folders]
    for session in (*sessions, *relative):
        session.run("hello")
    assert len({session.pid for session in sessions}) == 1
    assert len({session.pid for session in relative}) == 2
    assert [params["cwd"] for params in sent(tmp_path, "thread/start")] == [*map(str, folders), *map(str, folders)]
    for session in (*sessions, *relative):
        session.close()


def test_a_folder_that_is_not_there_fails_its_own_session_alone(open_one: Open, tmp_path: Path) -> None:
    with open_one() as session, open_one(working_directory=tmp_path / "gone") as lost:
        session.run("hello")
        events, result = finished(lost.execute("hello"))
        assert (result.error_subtype, codes(events)) == ("config", ["WORKING_DIRECTORY_NOT_FOUND"])
        assert session.run("hello").ok


def test_a_process_that_cannot_be_started_is_told_to_each_session(tmp_path: Path) -> None:
    runtime = CodexCliRuntime(str(tmp_path / "no-such-codex"))
    for _ in range(2):
        with runtime.open_session(working_directory=tmp_path) as session:
            events, result = finished(session.execute("hello"))
            assert (result.error_subtype, codes(events)) == ("cli_missing", ["CLI_NOT_FOUND"])


def test_a_process_that_refuses_the_handshake_fails_every_turn_and_hangs_none(open_one: Open) -> None:
    with open_one({"FAKE_VERSION": "0.77.0"}) as one, open_one({"FAKE_VERSION": "0.77.0"}) as two:
        one.warm()
        for session in (one, two, one):
            events, result = finished(session.execute("hello"))
            assert (result.error_subtype, codes(events)) == ("config", ["UNSUPPORTED_OPTION"])


def test_what_is_said_of_a_thread_before_its_name_is_known_is_told_to_its_session(open_one: Open) -> None:
    with open_one(model="early bird") as one, open_one(model="early worm") as two, open_one() as three:
        told = [
            [event.message for event in session.execute("hello") if event.type == "error"]
            for session in (one, two, three)
        ]
    assert told == [["words for early bird"], ["words for early worm"], []]


def test_what_concerns_the_process_is_told_to_every_session(open_one: Open) -> None:
    warning = steps(["tell", "configWarning", {"threadId": None, "summary": "bad config"}])
    with open_one() as one, open_one() as two, open_one() as late:
        two.run("hello")
        for session, prompt in ((one, warning), (two, "hello"), (late, "hello")):
            messages = [event.message for event in session.execute(prompt) if event.type == "error"]
            assert messages == ["bad config"]


# --- one of several -------------------------------------------------------------------------------------------


def test_abort_ends_one_turn_and_leaves_the_others(open_one: Open, tmp_path: Path) -> None:
    with open_one() as one, open_one() as two:
        run = begun(one)
        with begun(two) as aborted:
            aborted.abort()
            assert rest(aborted)[1].aborted
        assert two.run("next").text == "re: next"
        assert {params["threadId"] for params in sent(tmp_path, "turn/interrupt")} == {two.session_id}
        run.abort()
        assert rest(run)[1].aborted
        assert one.pid == two.pid


def test_a_session_that_is_closed_in_a_turn_leaves_the_others_and_its_conversation(open_one: Open) -> None:
    with open_one() as other:
        other.run("hello")
        session = open_one()
        run = begun(session)
        session.close()
        assert rest(run)[1].aborted
        with open_one(session_id=session.session_id) as again:
            assert again.run("back").text == "re: back"
            assert again.session_id == session.session_id
            assert again.pid == other.pid


def test_a_thread_is_let_go_of_when_its_session_is_closed(open_one: Open, tmp_path: Path) -> None:
    with open_one() as other:
        other.run("hello")
        with open_one() as session:
            session.run("hello")
        assert [params["threadId"] for params in sent(tmp_path, "thread/unsubscribe")] == [session.session_id]


def test_an_idle_session_is_released_and_its_next_turn_resumes_on_the_same_process(
    open_one: Open, tmp_path: Path
) -> None:
    with open_one() as other, open_one(idle_timeout=0.05) as session:
        other.run("hello")
        session.run("hello")
        assert wait_until(lambda: sent(tmp_path, "thread/unsubscribe"))
        assert session.run("again").text == "re: again"
        assert session.pid == other.pid
        assert [params["threadId"] for params in sent(tmp_path, "thread/resume")] == [session.session_id]


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["timeout", "deadline"])
def test_a_limit_that_runs_out_ends_its_turn_and_no_other(limit: str, tmp_path: Path) -> None:
    slow, quick = new_runtime(tmp_path), new_runtime(tmp_path, timeout=0.3 if limit == "timeout" else 60.0)
    quick.processes = slow.processes
    with opener(tmp_path, slow)() as one, opener(tmp_path, quick)() as two:
        run = begun(one, steps(["text", "working"], ["take_in"]))
        two.warm()
        events, result = finished(two.execute(HANG, deadline=0.3 if limit == "deadline" else None))
        code = "WATCHDOG_TIMEOUT" if limit == "timeout" else "DEADLINE_EXCEEDED"
        assert (codes(events), result.error_subtype) == ([code], "timeout")
        assert two.run("next").text == "re: next"
        run.steer("go on")
        assert rest(run)[1].text == "workingtook in: go on"
        assert one.pid == two.pid


def test_a_cli_that_does_not_let_go_of_a_session_is_ended_and_each_turn_has_its_own_done(
    open_one: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remoteclaw_sync.engine.live_session.INTERRUPT_PATIENCE", 0.1)
    monkeypatch.setattr("remoteclaw_sync.engine.shared_process.RELEASE_PATIENCE", 0.1)
    with open_one() as one, open_one() as deaf:
        run = begun(one)
        with begun(deaf, steps(["deafen"], ["text", "working"], ["hang"])) as stuck:
            pid = deaf.pid
            stuck.abort()
            assert rest(stuck)[1].aborted
        events, result = rest(run)
        assert (result.error_subtype, codes(events)) == ("crash", ["CLI_EXIT_ERROR"])
        assert not alive(pid or 0)
        assert (one.run("again").text, deaf.run("again").text) == ("re: again", "re: again")


def test_a_process_that_dies_fails_the_running_turns_of_all_and_nothing_else(open_one: Open, tmp_path: Path) -> None:
    with open_one() as one, open_one() as two, open_one() as idle:
        idle.run("hello")
        runs = [begun(one), begun(two)]
        pid = one.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        for run in runs:
            events, result = rest(run)
            assert (result.error_subtype, result.exit_code, codes(events)) == ("crash", -9, ["CLI_EXIT_ERROR"])
        for session in (one, two, idle):
            assert session.run("again").text == "re: again"
        assert {one.pid, two.pid, idle.pid} == {one.pid}
        assert one.pid != pid
        resumed = {params["threadId"] for params in sent(tmp_path, "thread/resume")}
        assert resumed == {one.session_id, two.session_id, idle.session_id}


def test_a_slow_consumer_holds_nobody_up(open_one: Open) -> None:
    with open_one() as slow, open_one() as quick:
        run = begun(slow, steps(["count", "x" * 1000, 3000]))  # More than the pipe holds.
        for _ in range(3):
            assert quick.run("hello").ok
        assert len(rest(run)[1].text) > 3_000_000


def test_a_consumer_that_lags_too_far_behind_loses_its_turn_alone(tmp_path: Path) -> None:
    open_one = opener(tmp_path, new_runtime(tmp_path, max_pending_bytes=100_000))
    with open_one() as slow, open_one() as quick:
        quick.run("hello")
        run = begun(slow, steps(["count", "x" * 1000, 500], ["hang"]))
        assert wait_until(lambda: sent(tmp_path, "thread/unsubscribe"))
        events, result = rest(run)
        assert (result.ok, codes(events)) == (False, ["CLI_ERROR"])
        assert quick.run("hello").ok
        assert slow.run("hello").ok


def test_approvals_reach_the_session_they_are_for_also_those_of_sub_agents(open_one: Open, tmp_path: Path) -> None:
    ask = ["ask", 0, ASK, {"itemId": "call", "command": "ls"}]
    asked: dict[str, int] = {"one": 0, "two": 0}

    def approve(name: str) -> Callable[[Any], bool]:
        def decide(request: Any) -> bool:
            asked[name] += 1
            return name == "one"

        return decide

    with open_one(approve=approve("one")) as one, open_one(approve=approve("two")) as two:
        two.run("hello")
        events, result = finished(one.execute(steps(ask, ["child", ["ask", 1, *ask[2:]]])))
        assert [type(event) for event in events].count(AgentPermissionEvent) == 2
        assert json.loads(result.text) == {"decision": "accept"}
        assert json.loads(two.run(steps(ask)).text) == {"decision": "decline"}
    assert asked == {"one": 2, "two": 1}


def test_a_request_that_is_nobodys_is_refused(open_one: Open) -> None:
    call = ["ask", 5, ASK, {"threadId": "019a0000-0000-7000-8000-000000000000", "itemId": "call"}]
    with open_one(approve=lambda request: True) as one, open_one() as two:
        two.run("hello")
        assert json.loads(one.run(steps(call)).text) == -32601


@pytest.mark.skipif(not CAN_SWEEP, reason="leftovers can be found on Linux only")
def test_abort_ends_what_the_tools_of_its_own_session_left_behind(open_one: Open, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one", "two")]
    with open_one() as one, open_one() as two:
        runs = [
            begun(s, steps(["daemon", str(f)], ["text", "x"], ["hang"])) for s, f in zip((one, two), files, strict=True)
        ]
        pids = [int(file.read_text()) for file in files]
        runs[1].abort()
        rest(runs[1])
        assert wait_until(lambda: not alive(pids[1]))
        assert alive(pids[0])
        runs[0].abort()
        rest(runs[0])
        assert wait_until(lambda: not alive(pids[0]))


def test_abort_ends_the_sub_agents_of_its_own_session(open_one: Open, tmp_path: Path) -> None:
    def approve(request: Any) -> bool:
        asked.append(request.session_id)
        run.abort()
        return True

    asked: list[str] = []
    with open_one(approve=approve) as one, open_one() as two:
        two.run("hello")
        run = begun(one, steps(["text", "working"], ["child", ["ask", 1, ASK, {"itemId": "call"}]]))
        assert rest(run)[1].aborted
        assert asked == [one.session_id]
        ended = {params["threadId"] for params in sent(tmp_path, "turn/interrupt")}
        (child,) = ended - {one.session_id}
        assert child != two.session_id
        # The process may still be reading its input when the turn is over.
        clean = "thread/backgroundTerminals/clean"
        assert wait_until(lambda: {params["threadId"] for params in sent(tmp_path, clean)} == ended)


# --- requests of ours -----------------------------------------------------------------------------------------


def test_a_request_without_an_answer_fails_its_turn_in_time(
    open_one: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remoteclaw_sync.clis.codex.app_server.OPENING_PATIENCE", 0.2)
    monkeypatch.setattr("remoteclaw_sync.engine.shared_process.OPENING_PATIENCE", 0.2)
    with open_one() as session, open_one(model="none that answers") as lost:
        session.run("hello")
        events, result = finished(lost.execute("hello"))
        assert (result.error_subtype, codes(events)) == ("timeout", ["WATCHDOG_TIMEOUT"])
    assert sent(tmp_path, "thread/start")[1]["model"] == "none that answers"


def test_no_more_requests_are_on_the_way_than_codex_can_take(
    open_one: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remoteclaw_sync.engine.shared_process.MOST_IN_FLIGHT", 1)

    def talk(number: int) -> str:
        with open_one() as session:
            return session.run(f"prompt {number}").text

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(talk, range(8))) == [f"re: prompt {number}" for number in range(8)]


# --- nothing is left ------------------------------------------------------------------------------------------


def test_a_session_that_is_forgotten_is_released_and_the_last_ends_the_process(open_one: Open, tmp_path: Path) -> None:
    one, two = open_one(), open_one()
    one.run("hello")
    two.run("hello")
    pid, name = one.pid, one.session_id
    del one
    gc.collect()
    assert wait_until(lambda: [params["threadId"] for params in sent(tmp_path, "thread/unsubscribe")] == [name])
    assert two.run("still here").ok
    del two
    gc.collect()
    assert wait_until(lambda: not alive(pid or 0))


def test_idle_sessions_have_two_threads_in_all(open_one: Open) -> None:
    before = threading.active_count()
    sessions = [open_one() for _ in range(10)]
    for session in sessions:
        session.run("hello")
    assert wait_until(lambda: threading.active_count() - before <= 2)
    for session in sessions:
        session.close()


@pytest.mark.slow
def test_a_fork_leaves_the_sessions_to_the_parent(tmp_path: Path) -> None:
    code = """
pid = os.fork()
if pid == 0:
    try:
        session = runtime.open_session(working_directory=folder)
        os.write(1, b"child " + session.run("from the child").text.encode() + b"\\n")
        session.close()
        os.write(1, b"child is alone\\n" if session.pid != sessions[0].pid else b"child shares\\n")
    finally:
        os._exit(0)
os.waitpid(pid, 0)
print(len({session.pid for session in sessions}), [session.run("again").text for session in sessions], flush=True)
"""
    said = run_host(HOST + code, str(FAKE), str(tmp_path))
    assert said.splitlines() == ["child re: from the child", "child is alone", f"1 {['re: again'] * 3}"]


LAUNCHER = "import subprocess, sys; subprocess.run([sys.executable, '-I', '-S', *sys.argv[1:]])"


def test_a_launcher_that_is_killed_between_turns_is_not_missed_though_its_program_still_answers(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", "-c", LAUNCHER, str(FAKE), str(tmp_path)]
    open_one = opener(tmp_path, CodexCliRuntime(command, timeout=60.0))
    with open_one() as one, open_one() as other:
        one.run("first")
        for number in range(5):
            assert one.pid is not None
            os.kill(one.pid, signal.SIGKILL)  # Nobody waits until this has been noticed.
            assert other.run(f"new {number}").ok
            assert one.run(f"further {number}").ok
            assert one.pid == other.pid


def test_a_host_that_exits_leaves_no_process(tmp_path: Path) -> None:
    code = HOST + "runs = [session.start('hello') for session in sessions]\nnext(runs[0])"
    run_host(code, str(FAKE), str(tmp_path))
    (start,) = tmp_path.glob("*.start")
    assert not alive(int(start.stem))


@pytest.mark.slow
def test_a_host_that_is_killed_leaves_no_process_and_its_sessions_can_be_taken_up(tmp_path: Path) -> None:
    code = HOST + "print(*[session.session_id for session in sessions], flush=True)\nthreading.Event().wait()"
    host = start_host(code, str(FAKE), str(tmp_path))
    assert host.stdout is not None
    names = host.stdout.readline().split()
    host.kill()
    host.communicate(timeout=PATIENCE)
    (start,) = tmp_path.glob("*.start")
    assert wait_until(lambda: not alive(int(start.stem)))
    runtime = new_runtime(tmp_path)
    for name in names:
        with runtime.open_session(working_directory=tmp_path, session_id=name) as session:
            assert session.run("again").session_id == name
