"""How long a run lives, what ends it, and what is gone afterwards."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from remoteclaw_sync import AgentEvent, AgentTextEvent
from tests.fakes import FakeRuntime, Gate, alive, codes, done, finished, is_kept_waiting, quick, wait_until

GateMaker = Callable[[], Gate]
DONE: list[Any] = ["line", {"type": "done"}]
SHORT = 0.4  # Seconds: a silence that is meant to be noticed.


def after(run: Any, *texts: str) -> list[AgentEvent]:
    return [*map(AgentTextEvent, texts), *run]


# --- ending the tree ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_cli_that_ignores_sigterm_is_killed() -> None:
    steps = (["ignore", "SIGTERM"], ["text", "a"], ["hang"])
    run = FakeRuntime(*steps).start("hi")
    with run:
        next(run)
        run.abort()
        _, result = finished(after(run, "a"))
    assert result.exit_code == -signal.SIGKILL
    assert result.aborted


def test_a_cli_gets_sigterm_first_and_time_to_act_on_it(gate: GateMaker) -> None:
    told, leave = gate(), gate()
    steps = (["on", "SIGTERM", [["notify", told.path], ["wait", leave.path], ["exit", 7]]], ["text", "a"], ["hang"])
    run = FakeRuntime(*steps).start("hi")
    with run:
        next(run)
        run.abort()
        told.wait()
        leave.open()
        assert done(after(run, "a")).exit_code == 7


@pytest.mark.slow
def test_a_stopped_cli_can_be_ended() -> None:
    events, result = finished(quick(["text", "a"], ["stop"], timeout=SHORT).execute("hi"))
    assert codes(events) == ["WATCHDOG_TIMEOUT"]
    assert result.exit_code == -signal.SIGTERM


@pytest.mark.parametrize("setsid", [False, True], ids=["same session", "own session"])
@pytest.mark.parametrize("ignores", [False, True], ids=["polite", "ignores SIGTERM"])
def test_a_grandchild_that_holds_stdout_neither_delays_the_end_nor_survives_it(
    setsid: bool, ignores: bool, gate: GateMaker
) -> None:
    there = gate()
    grandchild = [*([["ignore", "SIGTERM"]] if ignores else []), ["notify", there.path], ["hang"]]
    run = FakeRuntime(["fork", grandchild, setsid], ["read_stdin"], ["text", "a"], ["hang"], timeout=None).start("hi")
    with run:
        next(run)
        pid = there.wait()
        assert run.pid is not None
        os.kill(run.pid, signal.SIGKILL)
        assert done(after(run, "a")).exit_code == -signal.SIGKILL
        assert not alive(pid)


@pytest.mark.parametrize("setsid", [False, True], ids=["same session", "own session"])
def test_a_grandchild_is_gone_when_the_cli_exits_in_order(setsid: bool, gate: GateMaker) -> None:
    there, leave = gate(), gate()
    steps = (["fork", [["notify", there.path], ["hang"]], setsid], ["wait", leave.path], ["text", "a"], DONE)
    run = FakeRuntime(*steps, timeout=None, linger=60).start("hi")
    with run:

        def let_go() -> None:
            pids.append(there.wait())
            leave.open()

        pids: list[int] = []
        opener = threading.Thread(target=let_go)
        opener.start()
        assert done(run).ok
        opener.join()
        assert not alive(pids[0])


def test_a_stopped_grandchild_in_its_own_session_is_gone_too(gate: GateMaker) -> None:
    there = gate()
    run = FakeRuntime(["fork", [["notify", there.path], ["stop"]], True], ["text", "a"], ["hang"]).start("hi")
    with run:
        next(run)
        pid = there.wait()
    assert not alive(pid)


def test_a_grandchild_with_closed_streams_in_its_own_session_is_gone_too(gate: GateMaker) -> None:
    there = gate()
    grandchild = [["close", 0], ["close", 1], ["close", 2], ["notify", there.path], ["hang"]]
    run = FakeRuntime(["fork", grandchild, True], ["text", "a"], ["hang"]).start("hi")
    with run:
        next(run)
        pid = there.wait()
    assert not alive(pid)


def test_a_grandchild_without_our_environment_in_the_same_session_is_gone_too(gate: GateMaker) -> None:
    there = gate()
    run = FakeRuntime(["fork", [["notify", there.path], ["hang"]], False, True], ["text", "a"], ["hang"]).start("hi")
    with run:
        next(run)
        pid = there.wait()
    assert not alive(pid)


def test_a_whole_tree_of_sessions_is_gone(gate: GateMaker) -> None:
    there = gate()
    leaf: list[Any] = [["ignore", "SIGTERM"], ["notify", there.path], ["hang"]]
    branch: list[Any] = [["fork", leaf, True], ["fork", leaf, True], ["notify", there.path], ["hang"]]
    run = FakeRuntime(["fork", branch, True], ["fork", branch, True], ["text", "a"], ["hang"]).start("hi")
    with run:
        next(run)
        pids = [there.wait() for _ in range(6)]
    assert not any(map(alive, pids))


def test_a_grandchild_that_writes_on_does_not_keep_the_run_alive(gate: GateMaker) -> None:
    """The CLI is dead; its pipe is held by a process that cannot be found by session, variable or tag."""
    there = gate()
    grandchild = [["drop_tag"], ["notify", there.path], ["beat", 0.001, 1_000_000, "noise\n"]]
    run = FakeRuntime(["fork", grandchild, True, True], ["text", "a"], ["hang"], timeout=None).start("hi")
    with run:
        next(run)
        pid = there.wait()
        assert run.pid is not None
        os.kill(run.pid, signal.SIGKILL)
        try:
            assert done(after(run, "a")).exit_code == -signal.SIGKILL
        finally:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


def test_a_stranger_that_floods_stderr_does_not_keep_the_run_alive(gate: GateMaker) -> None:
    there = gate()
    grandchild = [["drop_tag"], ["notify", there.path], ["flood", 1 << 40, 2]]
    run = FakeRuntime(["fork", grandchild, True, True], ["text", "a"], ["hang"], timeout=None).start("hi")
    with run:
        next(run)
        pid = there.wait()
        assert run.pid is not None
        os.kill(run.pid, signal.SIGKILL)
        try:
            assert done(after(run, "a")).exit_code == -signal.SIGKILL
        finally:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


def test_a_cli_killed_from_outside_is_a_crash_that_names_the_signal() -> None:
    events, result = finished(FakeRuntime(["text", "a"], ["die", "SIGKILL"]).execute("hi"))
    assert codes(events) == ["CLI_EXIT_ERROR"]
    assert "SIGKILL" in events[-1].to_dict()["message"]
    assert (result.error_subtype, result.exit_code) == ("crash", -signal.SIGKILL)


# --- the last word -----------------------------------------------------------------------------------------


def test_a_cli_that_stays_after_its_last_word_is_ended_and_the_run_succeeds() -> None:
    events, result = finished(FakeRuntime(["text", "a"], DONE, ["hang"], linger=0.1, timeout=None).execute("hi"))
    assert codes(events) == []
    assert result.ok


@pytest.mark.slow
def test_a_cli_that_stays_and_ignores_sigterm_succeeds_too() -> None:
    steps = (["ignore", "SIGTERM"], ["text", "a"], DONE, ["hang"])
    assert done(FakeRuntime(*steps, linger=0.1, timeout=None).execute("hi")).ok


@pytest.mark.slow
def test_a_cli_that_chatters_on_after_its_last_word_is_ended() -> None:
    """Every line counts as life for the watchdog, so nothing else would end the CLI."""
    steps = (["text", "a"], DONE, ["beat", 0.05, 1_000_000, '{"type":"heartbeat"}\n'])
    assert done(FakeRuntime(*steps, linger=0.2).execute("hi")).ok


def test_a_cli_that_chatters_on_stderr_after_its_last_word_is_ended() -> None:
    steps = (["text", "a"], DONE, ["beat", 0.05, 1_000_000, "still here\n", 2])
    assert done(FakeRuntime(*steps, linger=0.2).execute("hi")).ok


def test_what_comes_after_the_last_word_still_arrives(gate: GateMaker) -> None:
    more = gate()
    run = FakeRuntime(["text", "a"], DONE, ["wait", more.path], ["text", "b"], linger=60).start("hi")
    with run:
        next(run)
        more.open()
        assert done(after(run, "a")).text == "ab"


@pytest.mark.slow
def test_a_cli_that_goes_on_after_its_last_word_has_all_the_time_it_needs() -> None:
    steps = (["text", "a"], DONE, ["line", {"type": "reopen"}], ["sleep", 1.2], ["text", "b"], DONE)
    assert done(FakeRuntime(*steps, linger=0.5).execute("hi")).text == "ab"


def test_a_linger_without_end_is_no_crash() -> None:
    assert done(FakeRuntime(["text", "a"], DONE, ["sleep", 0.1], linger=1e12).execute("hi")).ok


@pytest.mark.parametrize("ending", [["exit", 5], ["die", "SIGSEGV"]], ids=["exit code", "signal"])
def test_the_last_word_outranks_the_exit(ending: list[Any]) -> None:
    events, result = finished(FakeRuntime(["text", "a"], DONE, ending).execute("hi"))
    assert codes(events) == []
    assert result.ok
    assert result.exit_code != 0


@pytest.mark.slow
def test_the_last_word_outranks_the_watchdog() -> None:
    steps = (["text", "a"], DONE, ["hang"])
    events, result = finished(quick(*steps, linger=60, timeout=SHORT).execute("hi"))
    assert codes(events) == []
    assert result.ok


def test_a_reported_failure_outranks_exit_code_zero() -> None:
    steps = (["text", "a"], ["line", {"type": "done", "error_subtype": "max_turns"}])
    events, result = finished(FakeRuntime(*steps).execute("hi"))
    assert codes(events) == ["CLI_ERROR"]
    assert (result.ok, result.error_subtype, result.exit_code) == (False, "max_turns", 0)


# --- the clocks --------------------------------------------------------------------------------------------


def test_silence_from_the_start_ends_the_run() -> None:
    events, result = finished(quick(["hang"], timeout=SHORT).execute("hi"))
    assert codes(events) == ["WATCHDOG_TIMEOUT"]
    assert (result.error_subtype, result.aborted) == ("timeout", False)


def test_silence_in_the_middle_ends_the_run_and_what_was_said_stays() -> None:
    events, result = finished(quick(["text", "a"], ["text", "b"], ["hang"], timeout=SHORT).execute("hi"))
    assert codes(events) == ["WATCHDOG_TIMEOUT"]
    assert result.text == "ab"


@pytest.mark.slow
def test_silence_of_a_cli_that_ignores_sigterm_ends_the_run() -> None:
    events, result = finished(quick(["ignore", "SIGTERM"], ["text", "a"], ["hang"], timeout=SHORT).execute("hi"))
    assert codes(events) == ["WATCHDOG_TIMEOUT"]
    assert result.exit_code == -signal.SIGKILL


@pytest.mark.slow
def test_silence_ends_the_cli_while_nobody_iterates() -> None:
    run = quick(["text", "a"], ["hang"], timeout=SHORT).start("hi")
    with run:
        next(run)
        assert wait_until(lambda: not alive(run.pid or 0))
        assert codes(finished(after(run, "a"))[0]) == ["WATCHDOG_TIMEOUT"]


@pytest.mark.slow
@pytest.mark.parametrize("fd", [1, 2], ids=["stdout", "stderr"])
def test_steady_lines_at_a_third_of_the_timeout_are_life(fd: int) -> None:
    steps = (["beat", 0.3, 8, '{"type":"heartbeat"}\n', fd], ["text", "a"])
    assert done(FakeRuntime(*steps, timeout=1.0).execute("hi")).ok


@pytest.mark.slow
@pytest.mark.parametrize("fd", [1, 2], ids=["stdout", "stderr"])
def test_dots_without_an_end_of_line_are_silence(fd: int) -> None:
    steps = (["text", "a"], ["beat", 0.1, 1_000_000, ".", fd])
    events, _ = finished(FakeRuntime(*steps, timeout=SHORT).execute("hi", deadline=20))
    assert codes(events) == ["WATCHDOG_TIMEOUT"]


@pytest.mark.slow
def test_a_long_line_that_arrives_slowly_is_life() -> None:
    """Each piece takes longer than a third of the limit, all of them together three times as long as the limit."""
    piece = "x" * 65_536
    steps = (["raw", '{"type":"text","text":"'], ["beat", 0.35, 9, piece], ["raw", '"}\n'])
    assert len(done(FakeRuntime(*steps, timeout=1.0).execute("hi")).text) == 9 * len(piece)


@pytest.mark.slow
def test_a_line_that_is_too_long_to_be_kept_is_no_life() -> None:
    steps = (["text", "a"], ["beat", 0.05, 1_000_000, "x" * 65_536])
    runtime = FakeRuntime(*steps, timeout=SHORT, max_line_bytes=200_000)
    assert "WATCHDOG_TIMEOUT" in codes(finished(runtime.execute("hi", deadline=20))[0])


@pytest.mark.slow
def test_what_a_runtime_calls_no_life_does_not_reset_the_clock() -> None:
    class Sceptic(FakeRuntime):
        def is_life(self, chunk: bytes) -> bool:
            return b"reconnecting" not in chunk

    steps = (["text", "a"], ["beat", 0.1, 1_000_000, '{"type":"reconnecting"}\n'])
    assert codes(finished(Sceptic(*steps, timeout=SHORT).execute("hi"))[0]) == ["WATCHDOG_TIMEOUT"]


@pytest.mark.slow
def test_a_slow_consumer_is_no_silence_while_the_cli_writes() -> None:
    steps = (["text", "a"], ["beat", 0.2, 12, '{"type":"heartbeat"}\n'], ["text", "b"])
    run = FakeRuntime(*steps, timeout=0.8).start("hi")
    with run:
        next(run)
        time.sleep(2.4)  # Three timeouts: time itself is what is measured.
        assert done(after(run, "a")).ok


@pytest.mark.slow
def test_a_slow_consumer_is_no_silence_after_the_cli_has_finished() -> None:
    run = quick(["text", "a"], ["text", "b"], timeout=SHORT).start("hi")
    with run:
        next(run)
        time.sleep(3 * SHORT)
        assert done(after(run, "a")).ok


@pytest.mark.slow
def test_a_slow_consumer_gets_all_that_came_before_the_silence() -> None:
    run = quick(["text", "a"], ["text", "b"], ["text", "c"], ["hang"], timeout=SHORT).start("hi")
    with run:
        next(run)
        time.sleep(3 * SHORT)
        events, result = finished(after(run, "a"))
    assert result.text == "abc"
    assert codes(events) == ["WATCHDOG_TIMEOUT"]


TOOL: list[Any] = ["line", {"type": "tool_use", "id": "t1"}]
TOOL_RESULT: list[Any] = ["line", {"type": "tool_result", "id": "t1"}]


@pytest.mark.slow
def test_while_a_tool_runs_the_longer_limit_counts() -> None:
    steps = (TOOL, ["sleep", 4 * SHORT], TOOL_RESULT, ["text", "a"])
    assert done(quick(*steps, timeout=SHORT, tool_timeout=60).execute("hi")).ok


def test_a_tool_that_takes_too_long_ends_the_run() -> None:
    runtime = quick(["text", "a"], TOOL, ["hang"], timeout=0.1, tool_timeout=SHORT)
    assert codes(finished(runtime.execute("hi"))[0]) == ["WATCHDOG_TIMEOUT"]


@pytest.mark.slow
def test_after_the_last_tool_result_the_shorter_limit_counts_again() -> None:
    steps = (
        TOOL,
        ["line", {"type": "tool_use", "id": "t2"}],
        TOOL_RESULT,
        ["line", {"type": "tool_result", "id": "t2"}],
    )
    events, _ = finished(quick(*steps, ["hang"], timeout=SHORT, tool_timeout=3600).execute("hi"))
    assert codes(events) == ["WATCHDOG_TIMEOUT"]


@pytest.mark.slow
def test_while_one_of_two_tools_runs_the_longer_limit_counts() -> None:
    steps = (TOOL, ["line", {"type": "tool_use", "id": "t2"}], TOOL_RESULT, ["sleep", 4 * SHORT], ["text", "a"])
    assert done(quick(*steps, timeout=SHORT, tool_timeout=60).execute("hi")).ok


@pytest.mark.slow
def test_a_tool_call_that_a_slow_consumer_has_not_read_counts_as_well() -> None:
    steps = (["text", "a"], ["sleep", 0.1], TOOL, ["sleep", 4 * SHORT], TOOL_RESULT, ["text", "b"])
    run = quick(*steps, timeout=SHORT, tool_timeout=60).start("hi")
    with run:
        next(run)
        time.sleep(3 * SHORT)
        assert done(after(run, "a")).ok


@pytest.mark.parametrize(
    "steps", [[["hang"]], [["beat", 0.05, 1_000_000, '{"type":"heartbeat"}\n']]], ids=["silent", "busy"]
)
def test_a_deadline_ends_the_run_whatever_the_cli_does(steps: list[Any]) -> None:
    events, result = finished(FakeRuntime(*steps).execute("hi", deadline=SHORT))
    assert codes(events) == ["DEADLINE_EXCEEDED"]
    assert (result.error_subtype, result.aborted) == ("timeout", False)


@pytest.mark.slow
def test_a_deadline_counts_while_a_tool_runs_and_nobody_iterates() -> None:
    run = quick(TOOL, ["hang"]).start("hi", deadline=SHORT)
    with run:
        assert next(run).type == "tool_use"
        assert wait_until(lambda: not alive(run.pid or 0))
        assert codes(list(run)) == ["DEADLINE_EXCEEDED"]


@pytest.mark.parametrize("limit", [None, 1e12, float("inf")])
def test_no_limit_and_endless_limits_work(limit: float | None) -> None:
    runtime = FakeRuntime(["text", "a"], timeout=limit, tool_timeout=limit)
    assert done(runtime.execute("hi", deadline=limit)).ok


# --- back-pressure -----------------------------------------------------------------------------------------

NUMBERED = '{"type":"text","text":"%d,","padding":"' + "x" * 1000 + '"}\n'


@pytest.mark.slow
def test_a_consumer_that_stalls_while_the_cli_writes_fifty_megabytes_and_exits_loses_nothing() -> None:
    count = 50_000
    run = FakeRuntime(["repeat", NUMBERED, count], timeout=2.0).start("hi")
    with run:
        first = next(run)
        assert run.pid is not None
        deadline = time.monotonic() + 30
        while alive(run.pid):  # It can write everything and exit although nobody reads.
            assert time.monotonic() < deadline
            time.sleep(0.01)
        result = done([first, *run])
    assert result.ok
    assert result.text == "".join(f"{number}," for number in range(count))


def test_beyond_the_limit_the_cli_waits_and_nothing_is_lost(gate: GateMaker) -> None:
    written = gate()
    count = 5_000  # About 5 MB: more than the limit and the pipe hold.
    steps = (["repeat", NUMBERED, count], ["notify", written.path])
    run = FakeRuntime(*steps, max_pending_bytes=100_000).start("hi")
    with run:
        result = done(run)
    written.wait()
    assert result.ok
    assert result.text == "".join(f"{number}," for number in range(count))


@pytest.mark.slow
def test_being_kept_waiting_is_no_silence() -> None:
    count = 5_000
    run = FakeRuntime(["repeat", NUMBERED, count], max_pending_bytes=100_000, timeout=1.0).start("hi")
    with run:
        first = next(run)
        time.sleep(2.5)  # More than two timeouts.
        result = done([first, *run])
    assert result.ok
    assert result.text.endswith(f",{count - 1},")


def test_a_cli_that_is_kept_waiting_can_be_aborted() -> None:
    run = FakeRuntime(["repeat", NUMBERED, 1_000_000], max_pending_bytes=100_000).start("hi")
    with run:
        first = next(run)
        assert wait_until(lambda: is_kept_waiting(run.pid or 0))
        run.abort()
        assert done([first, *run]).aborted


@pytest.mark.slow
def test_a_cli_that_is_kept_waiting_meets_its_deadline() -> None:
    run = FakeRuntime(["repeat", NUMBERED, 1_000_000], max_pending_bytes=100_000).start("hi", deadline=2.0)
    with run:
        first = next(run)
        assert wait_until(lambda: not alive(run.pid or 0))
        events, _ = finished([first, *run])
    assert codes(events) == ["DEADLINE_EXCEEDED"]


def test_a_cli_killed_while_it_is_kept_waiting_loses_nothing_it_had_written() -> None:
    run = FakeRuntime(["repeat", NUMBERED, 1_000_000], max_pending_bytes=100_000).start("hi")
    with run:
        first = next(run)
        assert run.pid is not None
        assert wait_until(lambda: is_kept_waiting(run.pid or 0))
        os.kill(run.pid, signal.SIGKILL)
        result = done([first, *run])
    numbers = result.text.split(",")
    assert numbers[:-1] == [str(number) for number in range(len(numbers) - 1)]
    assert len(numbers) > (1 << 20) // 1100  # The full content of a 1 MiB pipe.
