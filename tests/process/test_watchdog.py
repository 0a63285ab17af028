"""The lazy timer, with time in the test's hands."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from remoteclaw_sync.process.clocks import MAX_DELAY_SECONDS, Watchdog


class ManualTimer:
    """A timer that fires when the test says so."""

    made: list[ManualTimer] = []

    def __init__(self, delay: float, function: Callable[[], None]) -> None:
        self.delay = delay
        self.fire = function
        self.daemon = False
        self.name = ""
        self.state = "made"
        self.made.append(self)

    def start(self) -> None:
        self.state = "started"

    def cancel(self) -> None:
        self.state = "cancelled"

    def join(self, timeout: float) -> None:
        assert self.state == "cancelled"


@pytest.fixture
def timers() -> Iterator[list[ManualTimer]]:
    ManualTimer.made = []
    yield ManualTimer.made
    ManualTimer.made = []


def watchdog(answers: list[float | None]) -> tuple[Watchdog, list[float | None]]:
    asked: list[float | None] = []

    def check() -> float | None:
        asked.append(answers[len(asked)])
        return asked[-1]

    factory: Any = ManualTimer
    return Watchdog(check, factory), asked


def test_it_looks_again_after_as_long_as_the_check_says(timers: list[ManualTimer]) -> None:
    dog, asked = watchdog([7.0, 3.0, None])
    dog.start(5.0)
    for number in range(3):
        timers[number].fire()
    assert [timer.delay for timer in timers] == [5.0, 7.0, 3.0]
    assert asked == [7.0, 3.0, None]
    assert all(timer.daemon for timer in timers)


def test_without_a_delay_there_is_no_timer(timers: list[ManualTimer]) -> None:
    dog, _ = watchdog([])
    dog.start(None)
    dog.cancel()
    assert timers == []


def test_after_cancel_nothing_is_checked_or_started(timers: list[ManualTimer]) -> None:
    dog, asked = watchdog([1.0])
    dog.start(5.0)
    dog.cancel()
    timers[0].fire()
    dog.start(1.0)
    assert asked == []
    assert [timer.state for timer in timers] in (["cancelled"], ["cancelled", "made"])


def test_cancel_during_a_check_starts_no_further_timer(timers: list[ManualTimer]) -> None:
    def check() -> float:
        dog.cancel()
        return 1.0

    factory: Any = ManualTimer
    dog = Watchdog(check, factory)
    dog.start(5.0)
    timers[0].fire()
    assert "started" not in [timer.state for timer in timers]


def test_an_endless_delay_is_cut_to_what_a_timer_takes(timers: list[ManualTimer]) -> None:
    dog, _ = watchdog([])
    dog.start(float("inf"))
    assert [timer.delay for timer in timers] == [MAX_DELAY_SECONDS]


def test_cancel_twice_and_before_the_start_is_fine(timers: list[ManualTimer]) -> None:
    dog, _ = watchdog([])
    dog.cancel()
    dog.cancel()
    dog.start(1.0)
    assert "started" not in [timer.state for timer in timers]


def test_with_a_real_timer_the_check_runs_and_the_thread_ends() -> None:
    looked = threading.Event()

    def check() -> None:
        looked.set()

    dog = Watchdog(check)
    dog.start(0.01)
    assert looked.wait(30)
    dog.cancel()
