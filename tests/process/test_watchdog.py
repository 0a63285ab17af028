"""The timer that makes the supervisor look at the clocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from remoteclaw_sync.process.clocks import LONGEST_TIMER, Watchdog
from tests.fakes import FakeRuntime, Gate, wait_until


class Timers:
    """Makes timers that do not wait, and keeps what they were asked for."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.made: list[threading.Timer] = []

    def __call__(self, seconds: float, ring: Callable[[], None]) -> threading.Timer:
        self.asked.append(seconds)
        self.made.append(threading.Timer(3600, ring))
        return self.made[-1]


@pytest.fixture
def timers() -> Timers:
    return Timers()


@pytest.fixture
def watchdog(timers: Timers) -> Watchdog:
    return Watchdog(lambda: None, timers)


def test_one_timer_outlasts_the_signs_of_life(watchdog: Watchdog, timers: Timers) -> None:
    for now in range(100):
        assert watchdog.set(due=now + 300.0, now=float(now))
    assert timers.asked == [300.0]
    watchdog.cancel()


def test_an_earlier_time_takes_the_place_of_a_later_one(watchdog: Watchdog, timers: Timers) -> None:
    watchdog.set(due=300.0, now=0.0)
    watchdog.set(due=5.0, now=0.0)
    assert timers.asked == [300.0, 5.0]
    assert not timers.made[0].is_alive()
    watchdog.cancel()


def test_a_timer_that_has_rung_is_followed_by_another(watchdog: Watchdog, timers: Timers) -> None:
    watchdog.set(due=300.0, now=0.0)
    watchdog.set(due=450.0, now=300.0)
    assert timers.asked == [300.0, 150.0]
    watchdog.cancel()


def test_a_time_that_no_timer_can_wait_for_is_waited_for_in_parts(watchdog: Watchdog, timers: Timers) -> None:
    watchdog.set(due=1e12, now=0.0)
    watchdog.set(due=1e12, now=LONGEST_TIMER)
    assert timers.asked == [LONGEST_TIMER, LONGEST_TIMER]
    watchdog.cancel()


def test_a_cancelled_timer_is_gone(watchdog: Watchdog, timers: Timers) -> None:
    watchdog.set(due=300.0, now=0.0)
    watchdog.cancel()
    assert not timers.made[0].is_alive()
    watchdog.cancel()


def test_without_a_thread_the_supervisor_has_to_wait_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Timer, "start", refuse)
    assert not Watchdog(lambda: None).set(due=300.0, now=0.0)


@pytest.mark.slow
def test_a_long_run_is_watched_by_a_timer_that_goes_with_it(gate: Callable[[], Gate]) -> None:
    there = gate()
    with FakeRuntime(["text", "a"], ["notify", there.path], ["hang"], timeout=300).start("hi") as run:
        next(run)
        there.wait()
        assert wait_until(lambda: "remoteclaw-watchdog" in {thread.name for thread in threading.enumerate()})
    assert "remoteclaw-watchdog" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.slow
def test_the_timer_ends_a_run_that_is_silent_for_too_long() -> None:
    began = time.monotonic()
    result = FakeRuntime(["text", "a"], ["hang"], timeout=4.5).run("hi", check=False)
    assert result.error_subtype == "timeout"
    assert time.monotonic() - began >= 4.5
