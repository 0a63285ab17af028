"""Sessions that share one `codex app-server`, on the real Codex."""

from __future__ import annotations

import contextlib
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from remoteclaw_sync import AgentDoneEvent, AgentRun, AgentRunResult, CodexCliRuntime, SessionFields
from tests.fakes import children, wait_until
from tests.real_clis.bench import Bench
from tests.real_clis.model_server import ModelRequest
from tests.real_clis.scenarios_codex import shell
from tests.real_clis.script import Hang, Turn


@pytest.fixture
def bench(cli_bench: Bench) -> Bench:
    return cli_bench


def rest(run: AgentRun) -> AgentRunResult:
    *_, last = run
    assert isinstance(last, AgentDoneEvent)
    return last.result


def memory_of_tree(pid: int) -> int:
    """Kilobytes, each page counted once."""
    total = 0
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total + sum(memory_of_tree(child) for child in children(pid))


def sleeping(bench: Bench, seconds: int) -> bool:
    return any(f"sleep {seconds}" in command for command in bench.processes().values())


def by_prompt(request: ModelRequest) -> Turn | Hang:
    """Each prompt has its own answer, in any order."""
    words = request.prompt or ""
    if words.startswith("sleep") and not request.tool_results:
        return Turn(tool_calls=[shell(words, yield_time_ms=30_000)])
    return Turn(text=[f"re: {words}"[index : index + 2] for index in range(0, len(words) + 4, 2)])


def test_abort_of_one_session_ends_its_command_and_leaves_the_other_ones(bench: Bench) -> None:
    bench.server.respond(by_prompt)
    runtime = CodexCliRuntime()
    fields: SessionFields = {"working_directory": bench.workdir, "permission_mode": "bypass"}
    with runtime.open_session(**fields) as one, runtime.open_session(**fields) as two:
        with one.start("sleep 1001") as kept, two.start("sleep 1002") as aborted:
            for run in (kept, aborted):
                assert any(event.type == "tool_use" for event in run)
            assert wait_until(lambda: sleeping(bench, 1001) and sleeping(bench, 1002))
            assert one.pid == two.pid
            aborted.abort()
            assert rest(aborted).aborted
            assert two.run("again").text == "re: again"
            assert wait_until(lambda: not sleeping(bench, 1002))
            assert sleeping(bench, 1001)
            kept.abort()
            assert rest(kept).aborted


@pytest.mark.parametrize("in_a_turn", [False, True])
def test_a_session_that_is_closed_can_be_resumed_by_a_one_shot_run_while_others_stay(
    in_a_turn: bool, bench: Bench
) -> None:
    bench.server.respond(by_prompt)
    runtime = CodexCliRuntime()
    with runtime.open_session(working_directory=bench.workdir) as other:
        other.run("hello")
        session = runtime.open_session(working_directory=bench.workdir, permission_mode="bypass")
        session.run("first words")
        if in_a_turn:
            run = session.start("sleep 1003")
            assert any(event.type == "tool_use" for event in run)
            assert wait_until(lambda: sleeping(bench, 1003))
        session.close()
        assert wait_until(lambda: not sleeping(bench, 1003))
        again = runtime.run("once more", working_directory=bench.workdir, session_id=session.session_id)
        assert (again.text, again.session_id) == ("re: once more", session.session_id)
        assert bench.server.requests[-1].occurrences("first words") >= 1
        assert other.run("still here").text == "re: still here"


def test_sixteen_sessions_at_once_mix_nothing(bench: Bench) -> None:
    bench.server.respond(by_prompt)
    runtime = CodexCliRuntime()

    def talk(number: int) -> list[str]:
        folder = bench.workdir / str(number)
        folder.mkdir()
        with runtime.open_session(working_directory=folder) as session:
            return [session.run(f"prompt {number} {turn}").text for turn in range(3)]

    with ThreadPoolExecutor(16) as pool:
        said = list(pool.map(talk, range(16)))
    assert said == [[f"re: prompt {number} {turn}" for turn in range(3)] for number in range(16)]


def test_a_process_that_is_killed_fails_the_turns_of_all_and_each_session_goes_on(bench: Bench) -> None:
    bench.server.respond(by_prompt)
    runtime = CodexCliRuntime()
    sessions = [runtime.open_session(working_directory=bench.workdir, permission_mode="bypass") for _ in range(3)]
    runs = [session.start(f"sleep 101{number}") for number, session in enumerate(sessions)]
    for run in runs:
        assert any(event.type == "tool_use" for event in run)
    (pid,) = {session.pid for session in sessions}
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert [rest(run).error_subtype for run in runs] == ["crash"] * 3
    assert [session.run("go on").text for session in sessions] == ["re: go on"] * 3
    assert len({session.pid for session in sessions}) == 1
    for session in sessions:
        session.close()


def test_twenty_sessions_take_less_than_twice_the_memory_of_one(bench: Bench) -> None:
    bench.server.respond(by_prompt)
    runtime = CodexCliRuntime()
    sessions = [runtime.open_session(working_directory=bench.workdir) for _ in range(20)]
    try:
        sessions[0].run("hello")
        assert sessions[0].pid is not None
        one = memory_of_tree(sessions[0].pid)
        for session in sessions[1:]:
            session.run("hello")
        twenty = memory_of_tree(sessions[0].pid)
        print(f"one session {one} kB, twenty sessions {twenty} kB")
        assert twenty <= 2 * one
    finally:
        for session in sessions:
            session.close()
