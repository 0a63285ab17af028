"""Listening to an Event that is not ours."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from remoteclaw_sync.process.abort_listener import AbortListener


class LookAlike:
    def __init__(self) -> None:
        self._event = threading.Event()
        self.is_set = self._event.is_set
        self.wait = self._event.wait
        self.set = self._event.set


class Subclass(threading.Event):
    pass


EVENTS = pytest.mark.parametrize("make", [threading.Event, Subclass, LookAlike])


@EVENTS
def test_it_is_told_when_the_event_is_set(make: Any) -> None:
    event, told = make(), threading.Event()
    listener = AbortListener(event, told.set)
    listener.attach()
    assert not told.is_set()
    event.set()
    assert told.wait(30)
    listener.detach()


@EVENTS
def test_it_is_told_of_an_event_that_was_set_before(make: Any) -> None:
    event, told = make(), threading.Event()
    event.set()
    listener = AbortListener(event, told.set)
    listener.attach()
    assert told.wait(30)
    listener.detach()


@pytest.mark.slow
@EVENTS
def test_after_detach_it_is_told_nothing(make: Any) -> None:
    event, told = make(), threading.Event()
    listener = AbortListener(event, told.set)
    listener.attach()
    listener.detach()
    listener.detach()
    if isinstance(event, threading.Event):
        event.set()
        assert not told.is_set()


def test_an_event_that_can_no_longer_be_asked_is_told_in_the_log_and_not_by_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """For example, one of a multiprocessing manager that has died. (pytest fails a test whose thread ends with an
    exception.)"""

    class Broken(LookAlike):
        def __init__(self) -> None:
            super().__init__()
            self.wait = self.broken

        def broken(self, timeout: float | None = None) -> bool:
            raise EOFError

    before = set(threading.enumerate())
    listener = AbortListener(Broken(), lambda: None)  # type: ignore[arg-type]
    listener.attach()
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
    listener.detach()
    assert "EOFError" in caplog.text


def test_it_needs_no_thread_for_a_real_event() -> None:
    before = threading.active_count()
    listeners = [AbortListener(threading.Event(), lambda: None) for _ in range(50)]
    for listener in listeners:
        listener.attach()
    assert threading.active_count() == before
    for listener in listeners:
        listener.detach()


def test_many_listeners_come_and_go_while_the_event_is_set_and_waited_for() -> None:
    event = threading.Event()
    together = threading.Barrier(9)
    counts = [0] * 8

    def listen(index: int) -> None:
        def count() -> None:
            counts[index] += 1

        together.wait()
        for _ in range(200):
            listener = AbortListener(event, count)
            listener.attach()
            event.wait(0)
            listener.detach()
        listener = AbortListener(event, count)
        counts[index] = 0
        listener.attach()
        event.wait(30)
        listener.detach()

    threads = [threading.Thread(target=listen, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    together.wait()
    event.set()
    for thread in threads:
        thread.join()
    assert all(counts)
    assert not event._cond._waiters  # type: ignore[attr-defined]
