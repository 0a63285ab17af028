"""Abort: from any thread, at any time, once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from remoteclaw_sync import AgentErrorEvent, AgentTextEvent
from tests.fakes import FakeRuntime, Gate, alive, codes, done, finished, quick, run_host, wait_until

GateMaker = Callable[[], Gate]
TALKS_THEN_HANGS: tuple[list[Any], ...] = (["text", "a"], ["hang"])


class LookAlike:
    """As much of an Event as anyone may rely on, without its internals."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.is_set = self._event.is_set
        self.wait = self._event.wait
        self.set = self._event.set


EVENTS = pytest.mark.parametrize(
    "make_event",
    [threading.Event, LookAlike, multiprocessing.Event],
    ids=["threading", "look-alike", "multiprocessing"],
)


def check_aborted(events: Any, text: str) -> None:
    others, result = finished([*([AgentTextEvent(text)] if text else []), *events])
    assert codes(others) == ["ABORTED"]
    assert isinstance(others[-1], AgentErrorEvent)
    assert (result.aborted, result.ok, result.error_subtype, result.text) == (True, False, "aborted", text)


@EVENTS
def test_an_event_that_is_set_before_the_start_starts_nothing(make_event: Any, gate: GateMaker) -> None:
    event = make_event()
    event.set()
    started = gate()
    run = FakeRuntime(["notify", started.path], *TALKS_THEN_HANGS).start("hi", abort_signal=event)
    check_aborted(run, "")
    assert run.pid is None


def test_abort_before_the_start_starts_nothing() -> None:
    run = FakeRuntime(*TALKS_THEN_HANGS).start("hi")
    run.abort()
    check_aborted(run, "")
    assert run.pid is None


def test_an_event_set_after_execute_and_before_the_first_next_starts_nothing() -> None:
    event = threading.Event()
    events = FakeRuntime(*TALKS_THEN_HANGS).execute("hi", abort_signal=event)
    event.set()
    check_aborted(events, "")


@EVENTS
def test_an_event_set_in_the_middle_ends_a_blocked_consumer(make_event: Any, gate: GateMaker) -> None:
    event = make_event()
    there = gate()
    events = FakeRuntime(["notify", there.path], ["hang"]).execute("hi", abort_signal=event)
    setter = threading.Thread(target=lambda: (there.wait(), event.set()))
    setter.start()
    check_aborted(events, "")
    setter.join()


@EVENTS
def test_an_event_ends_the_cli_while_nobody_iterates(make_event: Any) -> None:
    event = make_event()
    run = FakeRuntime(*TALKS_THEN_HANGS).start("hi", abort_signal=event)
    with run:
        next(run)
        event.set()
        assert run.pid is not None
        assert wait_until(lambda: not alive(run.pid or 0))
        check_aborted(run, "a")


def test_an_event_is_left_as_it_was_found() -> None:
    event = threading.Event()
    done(FakeRuntime(["text", "a"]).execute("hi", abort_signal=event))
    assert not event.is_set()
    assert not event._cond._waiters  # type: ignore[attr-defined]


def test_one_event_ends_many_runs_and_serves_again_after_clear() -> None:
    event = threading.Event()
    runs = [FakeRuntime(*TALKS_THEN_HANGS).start("hi", abort_signal=event) for _ in range(5)]
    for run in runs:
        next(run)
    event.set()
    for run in runs:
        check_aborted(run, "a")
    event.clear()
    assert done(FakeRuntime(["text", "a"]).execute("hi", abort_signal=event)).ok


def test_waiters_of_the_caller_are_woken_as_well() -> None:
    event = threading.Event()
    waiter = threading.Thread(target=event.wait)
    waiter.start()
    run = FakeRuntime(*TALKS_THEN_HANGS).start("hi", abort_signal=event)
    next(run)
    event.set()
    waiter.join(30)
    assert not waiter.is_alive()
    check_aborted(run, "a")


@pytest.mark.parametrize("how", ["handle", "event"])
def test_abort_from_twenty_threads_at_once_is_one_abort(how: str) -> None:
    event = threading.Event()
    run = FakeRuntime(*TALKS_THEN_HANGS).start("hi", abort_signal=event)
    next(run)
    together = threading.Barrier(20)
    act = run.abort if how == "handle" else event.set
    threads = [threading.Thread(target=lambda: (together.wait(), act())) for _ in range(20)]
    for thread in threads:
        thread.start()
    check_aborted(run, "a")
    for thread in threads:
        thread.join()


def test_abort_after_the_end_changes_nothing() -> None:
    event = threading.Event()
    run = FakeRuntime(["text", "a"]).start("hi", abort_signal=event)
    result = done(run)
    event.set()
    run.abort()
    run.close()
    assert result.ok
    assert run.result == result
    assert list(run) == []


def test_abort_between_the_last_text_and_done_drops_no_done() -> None:
    run = FakeRuntime(["text", "a"], ["exit", 3]).start("hi")
    next(run)
    error = next(run)
    run.abort()
    assert codes([error]) == ["CLI_EXIT_ERROR"]
    assert [event.type for event in run] == ["done"]


def test_abort_does_not_play_out_the_backlog() -> None:
    """A hundred thousand lines are waiting; still, the next event is the abort."""
    run = FakeRuntime(["repeat", '{"type":"text","text":"%d,"}\n', 100_000]).start("hi")
    with run:
        first = next(run)
        assert wait_until(lambda: not alive(run.pid or 0))
        run.abort()
        others, result = finished([first, *run])
    assert codes(others) == ["ABORTED"]
    assert result.text == "0,"


def test_abort_inside_the_loop_is_the_next_event() -> None:
    run = FakeRuntime(["text", "a"], ["text", "b"], ["text", "c"]).start("hi")
    seen = []
    for event in run:
        seen.append(event.type)
        run.abort()
    assert seen == ["text", "error", "done"]


@pytest.mark.slow
def test_abort_while_a_cli_ignores_sigterm_and_floods() -> None:
    steps = (["ignore", "SIGTERM"], ["repeat", '{"type":"text","text":"%d,"}\n', 10_000_000])
    run = FakeRuntime(*steps).start("hi")
    first = next(run)
    run.abort()
    others, result = finished([first, *run])
    assert codes(others) == ["ABORTED"]
    assert result.exit_code == -signal.SIGKILL


def test_the_first_reason_stays_the_reason() -> None:
    """The watchdog has fired; an abort on top of it does not rewrite history."""
    run = quick(["text", "a"], ["hang"], timeout=0.3).start("hi")
    with run:
        next(run)
        assert wait_until(lambda: not alive(run.pid or 0))
        run.abort()
        others, result = finished([AgentTextEvent("a"), *run])
    assert codes(others) == ["WATCHDOG_TIMEOUT"]
    assert (result.aborted, result.error_subtype) == (False, "timeout")


@pytest.mark.slow
def test_an_abort_is_not_turned_into_a_timeout_by_a_slow_end() -> None:
    run = quick(["ignore", "SIGTERM"], ["text", "a"], ["hang"], timeout=0.5).start("hi", deadline=1.0)
    next(run)
    run.abort()
    check_aborted(run, "a")


def test_a_cli_that_exits_zero_on_sigterm_is_aborted_all_the_same() -> None:
    run = FakeRuntime(["on", "SIGTERM", [["line", {"type": "done"}], ["exit", 0]]], ["text", "a"], ["hang"]).start("hi")
    next(run)
    run.abort()
    check_aborted(run, "a")


def test_a_signal_handler_may_set_the_event_whatever_the_host_is_doing() -> None:
    """The handler runs between any two instructions of the main thread, even inside our locks."""
    out = run_host(
        """
        import os, signal, threading
        from tests.fakes import FakeRuntime, codes
        event = threading.Event()
        signal.signal(signal.SIGUSR1, lambda number, frame: event.set())
        kill_me = ["sh", "-c", f"kill -USR1 {os.getpid()}; exec sleep 100"]
        for _ in range(20):
            event.clear()
            events = list(FakeRuntime(command=kill_me).execute("hi", abort_signal=event))
            assert codes(events) == ["ABORTED"], events
            assert events[-1].type == "done"
        print("survived")
        """
    )
    assert out == "survived\n"


def test_a_signal_handler_may_abort_and_close_the_handle() -> None:
    out = run_host(
        """
        import os, signal
        from tests.fakes import FakeRuntime
        signal.signal(signal.SIGUSR1, lambda number, frame: run.abort())
        signal.signal(signal.SIGUSR2, lambda number, frame: run.close())
        for name in ("USR1", "USR2"):
            run = FakeRuntime(command=["sh", "-c", f"kill -{name} {os.getpid()}; sleep 100"]).start("hi")
            print([event.type for event in run])
        """
    )
    assert out == "['error', 'done']\n[]\n"


@pytest.mark.slow
def test_idle_waiting_costs_no_busy_loop() -> None:
    event = threading.Event()
    runs = [FakeRuntime(*TALKS_THEN_HANGS).start("hi", abort_signal=event) for _ in range(5)]
    for run in runs:
        next(run)
    before = sum(os.times()[:2])
    time.sleep(1.0)
    assert sum(os.times()[:2]) - before < 0.3
    event.set()
    for run in runs:
        done([AgentTextEvent("a"), *run])
