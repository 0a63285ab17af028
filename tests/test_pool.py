"""A pool of live sessions: many conversations on a few warm processes, none of them lost or mixed."""

from __future__ import annotations

import functools
import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import (
    AgentDoneEvent,
    AgentExecuteParams,
    AgentRun,
    AgentRunResult,
    AgentSession,
    Allow,
    ClaudeCliRuntime,
    CLIRuntimeBase,
    CodexCliRuntime,
    GeminiCliRuntime,
    McpServerConfig,
    PermissionRequest,
    SessionBusyError,
    SessionPool,
    UnsupportedOperationError,
)
from tests.engine.live import FAKE, command, runtime, starts, steps
from tests.fakes import FakeRuntime, alive, codes, done, finished, run_host, wait_until

LIVE_CODEX = Path(__file__).with_name("live_codex.py")
HANG = steps(["text", "working"], ["hang"])
Make = Callable[..., SessionPool]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes pools on the fake Claude and closes them after the test."""
    pools: list[SessionPool] = []

    def make(**options: Any) -> SessionPool:
        pools.append(SessionPool(runtime(tmp_path), **{"working_directory": tmp_path, **options}))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def test_a_turn_is_not_aborted_because_its_lease_is_held_by_nobody_else(make: Make) -> None:
    pool = make()
    runs = [pool.session().start(prompt) for prompt in ("a", "b")]
    gc.collect()
    pool.session().close()
    assert [done(run).text for run in runs] == ["re: a", "re: b"]


def begun(session: AgentSession, prompt: str = HANG, **fields: Any) -> AgentRun:
    """A turn, run up to its first event."""
    run = session.start(prompt, **fields)
    assert next(run).type == "text"
    return run


def rest(run: AgentRun) -> AgentRunResult:
    """The result of a turn whose first event was already taken."""
    *_, last = run
    assert isinstance(last, AgentDoneEvent)
    return last.result


def is_waiting(pool: SessionPool, number: int = 1) -> bool:
    """Whether this many turns are waiting for a process."""
    return len(pool._seats._line) == number


def conversation(pool: SessionPool, words: str) -> tuple[str, int]:
    """The id and the process of a new conversation that has had one turn."""
    with pool.session() as session:
        session.run(words)
        assert session.session_id is not None
        assert session.pid is not None
        return session.session_id, session.pid


def remembered(pool: SessionPool, session_id: str) -> list[str]:
    with pool.session(session_id) as session:
        words: list[str] = json.loads(session.run(steps(["memory"])).text)
        return [word for word in words if not word.startswith("[[")]


# --- warm and cold --------------------------------------------------------------------------------------------


def test_a_session_that_was_given_back_is_leased_again_with_its_process(make: Make, tmp_path: Path) -> None:
    pool = make()
    name, pid = conversation(pool, "hello")
    with pool.session(name) as again:
        assert again.run("more").text == "re: more"
        assert (again.session_id, again.pid) == (name, pid)
    assert remembered(pool, name) == ["hello", "more"]
    assert len(starts(tmp_path)) == 1


def test_the_process_that_was_idle_for_longest_goes_first_and_its_conversation_loses_nothing(make: Make) -> None:
    pool = make(max_warm=2)
    (one, first), (two, second) = conversation(pool, "one"), conversation(pool, "two")
    remembered(pool, one)
    three, third = conversation(pool, "three")
    assert [alive(pid) for pid in (first, second, third)] == [True, False, True]
    assert remembered(pool, two) == ["two"]
    assert [alive(pid) for pid in (first, third)] == [False, True]
    assert [remembered(pool, name) for name in (one, two, three)] == [["one"], ["two"], ["three"]]


@pytest.mark.slow
def test_there_are_never_more_processes_than_allowed(make: Make, tmp_path: Path) -> None:
    pool = make(max_warm=3)
    most: list[int] = []

    def talk(number: int) -> list[str]:
        with pool.session() as session:
            said = []
            for turn in range(3):
                with session.start(f"{number}/{turn}") as run:
                    said += [event.text for event in run if event.type == "text"]
                    most.append(sum(alive(int(file.stem)) for file in tmp_path.glob("*.start")))
            return said

    with ThreadPoolExecutor(8) as threads:
        said = list(threads.map(talk, range(8)))
    assert said == [[f"re: {number}/{turn}" for turn in range(3)] for number in range(8)]
    assert max(most) <= 3


@pytest.mark.slow
def test_a_turn_that_finds_all_processes_busy_waits_for_the_first_that_is_not(make: Make) -> None:
    pool = make(max_warm=1)
    with pool.session() as busy, pool.session() as waiting, ThreadPoolExecutor(1) as thread:
        run = begun(busy)
        answer = thread.submit(waiting.run, "hello")
        assert wait_until(lambda: is_waiting(pool))
        run.abort()
        assert rest(run).aborted
        assert answer.result().text == "re: hello"


@pytest.mark.slow
def test_who_waits_for_a_process_is_served_in_order_also_before_those_who_have_one(make: Make) -> None:
    pool = make(max_warm=1)
    order: list[str] = []

    def ask(session: AgentSession, words: str) -> None:
        with session.start(words) as run:
            for event in run:
                if event.type == "text":
                    order.append(words)

    with pool.session() as busy, pool.session() as one, pool.session() as two, ThreadPoolExecutor(3) as threads:
        run = begun(busy)
        for number, (session, words) in enumerate([(one, "one"), (two, "two")]):
            threads.submit(ask, session, words)
            assert wait_until(functools.partial(is_waiting, pool, number + 1))
        run.abort()
        rest(run)
        ask(busy, "busy")
    assert order == ["one", "two", "busy"]


def test_waiting_for_a_process_counts_towards_the_deadline(make: Make) -> None:
    pool = make(max_warm=1)
    with pool.session() as busy, pool.session() as waiting:
        run = begun(busy)
        events, result = finished(waiting.execute("hello", deadline=0.05))
        assert (codes(events), result.error_subtype) == (["DEADLINE_EXCEEDED"], "timeout")
        run.close()
        assert waiting.run("hello").ok


@pytest.mark.parametrize("by_signal", [True, False])
@pytest.mark.slow
def test_waiting_for_a_process_can_be_aborted(by_signal: bool, make: Make) -> None:
    pool = make(max_warm=1)
    signal = threading.Event()
    with pool.session() as busy, pool.session() as waiting, ThreadPoolExecutor(1) as thread:
        run = begun(busy)
        late = waiting.start("hello", abort_signal=signal)
        answer = thread.submit(finished, late)
        assert wait_until(lambda: is_waiting(pool))
        if by_signal:
            signal.set()
        else:
            late.abort()
        events, result = answer.result()
        assert (codes(events), result.aborted) == (["ABORTED"], True)
        run.close()
        assert waiting.run("hello").ok


@pytest.mark.slow
def test_an_idle_process_is_let_go_after_the_time_limit_and_the_conversation_goes_on(make: Make) -> None:
    pool = make(idle_timeout=0.05)
    name, pid = conversation(pool, "hello")
    assert wait_until(lambda: not alive(pid))
    assert remembered(pool, name) == ["hello"]


@pytest.mark.slow
def test_a_process_that_was_killed_leaves_its_place_and_the_conversation_goes_on(make: Make) -> None:
    pool = make(max_warm=1)
    name, pid = conversation(pool, "hello")
    os.kill(pid, signal.SIGKILL)
    with pool.session(name) as session:
        run = session.start(steps(["text", "working"], ["die"]))
        assert done(run).error_subtype == "crash"
    assert conversation(pool, "other")
    assert remembered(pool, name)[0] == "hello"


@pytest.mark.slow
def test_a_conversation_whose_process_is_just_being_let_go_is_not_taken_for_somebody_elses(tmp_path: Path) -> None:
    slow_to_go = ClaudeCliRuntime(["/bin/sh", "-c", '"$@"; sleep 1', "sh", *command(tmp_path)])
    with SessionPool(slow_to_go, max_warm=3, working_directory=tmp_path) as pool, ThreadPoolExecutor(1) as thread:
        oldest, *others = [conversation(pool, words) for words in ("one", "two", "three")]
        late = thread.submit(conversation, pool, "takes the place of the oldest")
        assert wait_until(lambda: any(seat.emptied_by is not None for seat in pool._seats._seats))
        for _, pid in others:
            os.kill(pid, signal.SIGKILL)
        assert remembered(pool, oldest[0]) == ["one"]
        assert late.result()


# --- leases ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_leases_of_one_id_are_one_conversation_with_one_turn_at_a_time(make: Make) -> None:
    pool = make()
    name, pid = conversation(pool, "hello")
    with pool.session(name) as one, pool.session(name) as two:
        run = begun(one)
        with pytest.raises(SessionBusyError, match="not over"):
            two.run("me too")
        run.close()
        assert two.run("now").text == "re: now"
        assert one.pid == two.pid == pid
        two.close()
        assert one.run("still here").ok
    assert remembered(pool, name)[::2] == ["hello", "still here"]


@pytest.mark.slow
def test_a_lease_that_is_closed_in_a_turn_ends_it_and_the_conversation_goes_on(make: Make) -> None:
    pool = make(max_warm=1)
    name, pid = conversation(pool, "hello")
    session = pool.session(name)
    run = begun(session)
    session.close()
    assert not alive(pid)
    assert rest(run).aborted
    calls: list[Callable[[], object]] = [
        lambda: session.run("more"),
        session.warm,
        lambda: session.set_model("large"),
        lambda: session.set_permission_mode("bypass"),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="given back"):
            call()
    assert remembered(pool, name) == ["hello"]


def test_a_lease_without_a_turn_leaves_nothing(make: Make, tmp_path: Path) -> None:
    with make().session() as session:
        assert (session.session_id, session.pid) == (None, None)
    assert starts(tmp_path) == []


@pytest.mark.slow
def test_other_fields_take_another_process_and_another_model_does_not(make: Make, tmp_path: Path) -> None:
    pool = make()
    name, pid = conversation(pool, "hello")
    with pool.session(name, model="large") as session:
        state = json.loads(session.run(steps(["state"])).text)
        assert (state["model"], state["pid"]) == ("large", pid)
    with pool.session(name, env={"MINE": "1"}) as session:
        state = json.loads(session.run(steps(["state"])).text)
        assert (state["model"], state["pid"] == pid) == ("large", False)
    assert starts(tmp_path)[-1]["env"]["MINE"] == "1"
    assert remembered(pool, name) == ["hello"]


@pytest.mark.slow
def test_other_fields_than_those_of_somebody_who_has_the_conversation_are_refused(make: Make) -> None:
    pool = make()
    name, _ = conversation(pool, "hello")
    with pool.session(name) as session:
        for fields in ({"env": {"MINE": "1"}}, {"model": "large"}):
            with pytest.raises(SessionBusyError, match="other fields"):
                pool.session(name, **fields)
        assert session.run("still here").ok


@pytest.mark.slow
def test_each_lease_has_an_approver_of_its_own_and_what_is_remembered_stays(make: Make) -> None:
    asked: list[str] = []

    def approver(words: str, answer: Any) -> Any:
        def approve(request: PermissionRequest) -> Any:
            asked.append(f"{words}: {request.tool_name}")
            return answer

        return approve

    pool = make(max_warm=1)
    ask, other = steps(["ask", "t1", "Bash", {"command": "ls"}]), steps(["ask", "t2", "Bash", {"command": "rm"}])
    with pool.session(approve=approver("first", Allow(remember=True))) as session:
        assert not session.run(ask).permission_denials
        name, pid = session.session_id, session.pid
    with pool.session(name, approve=approver("second", False)) as session:
        assert not session.run(ask).permission_denials
        assert session.run(other).permission_denials
        assert session.pid == pid
    conversation(pool, "takes the process")
    with pool.session(name) as session:  # Nobody decides here: the last lease's approver does not apply.
        assert session.run(other).permission_denials
    assert asked == ["first: Bash", "second: Bash"]


@pytest.mark.slow
def test_a_conversation_is_given_to_others_when_its_process_is_let_go(make: Make, tmp_path: Path) -> None:
    pool = make()
    name, pid = conversation(pool, "hello")
    outside = runtime(tmp_path)
    with outside.open_session(working_directory=tmp_path, session_id=name) as session:
        assert session.run("mine", check=False).error_subtype == "session_busy"
        assert pool.cool(name) is True
        assert session.run("mine").ok
    assert not alive(pid)
    assert pool.cool(name) is False
    assert remembered(pool, name) == ["hello", "mine"]
    with pool.session(name) as session:
        run = begun(session)
        with pytest.raises(SessionBusyError):
            pool.cool(name)
        run.close()


@pytest.mark.slow
def test_who_has_leased_a_conversation_goes_on_with_it_after_others_had_it(make: Make, tmp_path: Path) -> None:
    pool = make()
    name, pid = conversation(pool, "hello")
    with pool.session(name) as session:
        assert pool.cool(name) is True
        assert not alive(pid)
        with runtime(tmp_path).open_session(working_directory=tmp_path, session_id=name) as outside:
            assert outside.run("mine").ok
        assert session.run("more").text == "re: more"
        assert session.pid != pid
    assert remembered(pool, name) == ["hello", "mine", "more"]


# --- processes that are started ahead -------------------------------------------------------------------------


@pytest.mark.slow
def test_spare_processes_are_started_ahead_and_serve_new_conversations(make: Make, tmp_path: Path) -> None:
    pool = make(max_warm=3, spare=1)
    assert wait_until(lambda: ready_spares(pool) == 1)
    (ahead,) = (int(file.stem) for file in tmp_path.glob("*.start"))
    name, pid = conversation(pool, "hello")
    assert pid == ahead
    assert wait_until(lambda: ready_spares(pool) == 1)
    assert len(starts(tmp_path)) == 2
    assert remembered(pool, name) == ["hello"]
    pool.close()
    assert not any(alive(int(file.stem)) for file in tmp_path.glob("*.start"))


@pytest.mark.slow
def test_a_spare_process_is_kept_however_soon_the_pool_is_used(make: Make, tmp_path: Path) -> None:
    pool = make(max_warm=3, spare=1)
    conversation(pool, "hello")
    assert wait_until(lambda: ready_spares(pool) == 1)
    assert len(starts(tmp_path)) == 2


def ready_spares(pool: SessionPool) -> int:
    with pool._seats.lock:
        return sum(door.seat is not None and not door.is_used for _, door in pool._seats._spares)


@pytest.mark.slow
def test_a_spare_process_is_for_the_same_fields_only_and_takes_nobodys_place(make: Make, tmp_path: Path) -> None:
    pool = make(max_warm=2, spare=1)
    assert wait_until(lambda: ready_spares(pool) == 1)
    with pool.session(env={"MINE": "1"}) as session:
        session.run("hello")
        assert session.pid is not None
        assert json.loads((tmp_path / f"{session.pid}.start").read_text())["env"]["MINE"] == "1"
    conversation(pool, "other")
    conversation(pool, "third")
    assert sum(alive(int(file.stem)) for file in tmp_path.glob("*.start")) <= 2


@pytest.mark.slow
def test_spare_processes_that_cannot_be_started_are_not_tried_for_ever(tmp_path: Path) -> None:
    with SessionPool(ClaudeCliRuntime("/no/such/claude"), spare=2) as pool:
        with pool.session() as session:
            assert session.run("hello", check=False).error_subtype == "cli_missing"


# --- a process that sessions share ----------------------------------------------------------------------------


@pytest.mark.slow
def test_where_sessions_share_a_process_processes_are_counted(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    env = {"CODEX_HOME": str(tmp_path / "home"), "CODEX_API_KEY": ""}
    codex = CodexCliRuntime([sys.executable, "-I", "-S", str(LIVE_CODEX), str(tmp_path)], timeout=60.0)
    with SessionPool(codex, max_warm=1, working_directory=tmp_path, env=env) as pool:
        sessions = [pool.session() for _ in range(4)]
        runs = [begun(session) for session in sessions]
        (pid,) = {session.pid for session in sessions}
        with pool.session(env={**env, "COLOUR": "red"}) as other:
            assert done(other.execute("hello", deadline=0.05)).error_subtype == "timeout"
            for run in runs:
                run.close()
            names = [session.session_id for session in sessions]
            for session in sessions:
                session.close()
            assert other.run("hello").ok
            assert other.pid != pid
        assert pid is not None
        assert not alive(pid)
        for name in names:
            with pool.session(name) as session:
                assert session.run("again").text == "re: again"
    assert len(starts(tmp_path)) == 3


@pytest.mark.parametrize("kind", [CodexCliRuntime, GeminiCliRuntime])
def test_it_is_known_beforehand_which_sessions_share_a_process(kind: type[CLIRuntimeBase], tmp_path: Path) -> None:
    agent = kind("/bin/agent").live_copy()
    server = {"notes": McpServerConfig("notes")}

    def key(**fields: Any) -> Any:
        return agent.shared_by(AgentExecuteParams("-", **{"working_directory": tmp_path, **fields}))

    assert key() == key(model="large", session_id="s1") is not None
    assert key() != key(env={"COLOUR": "red"})
    assert (key() == key(mcp_servers=server)) is agent.keeps_servers_apart  # type: ignore[attr-defined]
    assert key(mcp_servers=server) == key(mcp_servers=dict(server))
    assert kind("/bin/agent", share_process=False).live_copy().shared_by(AgentExecuteParams("-")) is None


@pytest.mark.slow
def test_each_lease_has_limits_of_its_own(make: Make) -> None:
    pool = make()
    name, pid = conversation(pool, "hello")
    calls = steps(*(["call", f"t{number}", "Read", {}] for number in range(3)), ["text", "done"])
    with pool.session(name, max_tool_calls=1) as session:
        assert session.run(calls, check=False).error_subtype == "limit"
    with pool.session(name, max_tool_calls=9) as session:
        assert session.run(calls).text == "done"
        assert session.pid == pid


# --- bad arguments, and the end -------------------------------------------------------------------------------


def test_bad_arguments_raise_when_they_are_given(make: Make, tmp_path: Path) -> None:
    for options in (
        {"max_warm": 0},
        {"idle_timeout": -1},
        {"spare": -1},
        {"model": ""},
        {"colour": "red"},
        {"session_id": "s"},
    ):
        with pytest.raises((ValueError, TypeError), match=next(iter(options))):
            SessionPool(runtime(tmp_path), **options)
    with pytest.raises(TypeError, match="'max_warn'; did you mean 'max_warm'"):
        SessionPool(runtime(tmp_path), max_warn=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="extra_args must be a sequence"):
        SessionPool(runtime(tmp_path), extra_args="--verbose")
    with pytest.raises(TypeError, match="runtime must be"):
        SessionPool("claude")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedOperationError, match="no live sessions"):
        SessionPool(FakeRuntime())
    for fields in ({"colour": "red"}, {"idle_timeout": 3}, {"session_id": "-x"}):
        with pytest.raises((ValueError, TypeError)):
            make().session(**fields)


@pytest.mark.slow
def test_closing_the_pool_aborts_turns_and_those_who_wait_and_ends_all_processes(make: Make, tmp_path: Path) -> None:
    pool = make(max_warm=2)
    conversation(pool, "idle")
    busy, waiting, third = pool.session(), pool.session(), pool.session()
    runs = [begun(busy), begun(third)]
    with ThreadPoolExecutor(1) as thread:
        late = thread.submit(done, waiting.execute("hello"))
        assert wait_until(lambda: is_waiting(pool))
        pool.close()
        assert late.result().aborted
    assert all(rest(run).aborted for run in runs)
    assert not any(alive(int(file.stem)) for file in tmp_path.glob("*.start"))
    for call in (pool.session, lambda: busy.run("more")):
        with pytest.raises(RuntimeError, match="closed"):
            call()
    pool.close()


@pytest.mark.slow
def test_a_pool_that_is_dropped_ends_its_processes_but_not_before_its_last_lease(tmp_path: Path) -> None:
    pool = SessionPool(runtime(tmp_path), working_directory=tmp_path, spare=1)
    _, idle = conversation(pool, "idle")
    session = pool.session()
    session.run("hello")
    leased = session.pid
    gc.disable()  # No part of the pool is in a reference cycle.
    try:
        del pool
        assert session.run("still here").text == "re: still here"
        assert alive(idle)
        del session
        assert wait_until(lambda: not any(alive(int(file.stem)) for file in tmp_path.glob("*.start")))
    finally:
        gc.enable()
    assert not alive(leased or 0)


HOST = """
import os, sys
from remoteclaw_sync import ClaudeCliRuntime, SessionPool
fake, folder = sys.argv[1:]
pool = SessionPool(ClaudeCliRuntime([sys.executable, "-I", "-S", fake, folder]), spare=1, working_directory=folder)
with pool.session() as session:
    session.run("hello")
"""


@pytest.mark.slow
def test_nothing_is_left_when_the_interpreter_exits(tmp_path: Path) -> None:
    run_host(HOST, str(FAKE), str(tmp_path))
    assert starts(tmp_path)
    assert not any(alive(int(file.stem)) for file in tmp_path.glob("*.start"))


@pytest.mark.slow
def test_a_forked_copy_has_processes_of_its_own_and_leaves_the_parents_alone(tmp_path: Path) -> None:
    forked = """
first = session.pid
child = os.fork()
if child == 0:
    with pool.session() as session:
        session.run("hello")
        assert session.pid != first
    pool.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
with pool.session(session.session_id) as session:
    session.run("again")
    print(session.pid == first)
"""
    code = HOST.replace('session.run("hello")\n', 'session.run("hello")\n    first = session.pid\n')
    code += forked.replace("first = session.pid\n", "", 1)
    assert run_host(code, str(FAKE), str(tmp_path)) == "True\n"
    assert not any(alive(int(file.stem)) for file in tmp_path.glob("*.start"))
