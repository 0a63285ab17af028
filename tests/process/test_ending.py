"""Why a run ended: written once."""

from __future__ import annotations

import threading

import pytest

from remoteclaw_sync.process.ending import EndLatch, EndReason


@pytest.mark.parametrize("first", EndReason)
@pytest.mark.parametrize("second", EndReason)
def test_the_first_reason_wins(first: EndReason, second: EndReason) -> None:
    latch = EndLatch()
    latch.claim(first)
    latch.claim(second)
    assert latch.reason is first


def test_of_many_threads_one_wins_and_all_see_the_same() -> None:
    latch = EndLatch()
    together = threading.Barrier(len(EndReason))
    seen = []

    def claim(reason: EndReason) -> None:
        together.wait()
        latch.claim(reason)
        seen.append(latch.reason)

    threads = [threading.Thread(target=claim, args=(reason,)) for reason in EndReason]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == {latch.reason}


@pytest.mark.parametrize("reason", [EndReason.ABORTED, EndReason.CLOSED])
def test_who_leaves_does_not_want_the_backlog(reason: EndReason) -> None:
    latch = EndLatch()
    latch.claim(EndReason.WATCHDOG)
    assert not latch.backlog_unwanted
    latch.claim(reason)
    assert latch.backlog_unwanted


def test_after_the_exit_was_seen_the_backlog_is_wanted_for_ever() -> None:
    latch = EndLatch()
    latch.claim(EndReason.EXITED)
    latch.claim(EndReason.ABORTED)
    assert not latch.backlog_unwanted
