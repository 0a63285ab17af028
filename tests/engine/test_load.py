"""Many runs: nothing crosses, nothing is left, nothing grows."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import pytest

from tests.fakes import FakeRuntime, done

# A shell starts in a millisecond, the fake CLI in thirty.
ECHO = ["sh", "-c", """read -r word; echo "{\\"type\\":\\"text\\",\\"text\\":\\"$word\\"}" """]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.slow
def test_a_thousand_runs_in_sequence_leave_nothing_and_grow_nothing() -> None:
    runtime = FakeRuntime(command=ECHO)

    def some(count: int) -> None:
        for number in range(count):
            assert done(runtime.execute(f"word{number}\n")).text == f"word{number}"

    some(100)
    gc.collect()
    before = resident(), len(os.listdir("/proc/self/fd")), threading.active_count(), len(gc.get_objects())
    some(900)
    gc.collect()
    after = resident(), len(os.listdir("/proc/self/fd")), threading.active_count(), len(gc.get_objects())
    assert after[1:3] == before[1:3]
    assert after[0] - before[0] < 8 << 20
    assert after[3] - before[3] < 900  # Less than one object per run.


@pytest.mark.parametrize("ending", ["in order", "abort", "close"])
def test_forty_runs_at_once_do_not_mix(ending: str) -> None:
    runtime = FakeRuntime(command=[*ECHO[:2], f"{ECHO[2]}; {'exec cat' if ending == 'in order' else 'exec sleep 100'}"])
    together = threading.Barrier(40)
    answers: dict[str, list[str]] = {}

    def ask(word: str) -> None:
        run = runtime.start(f"{word}\n")
        first = next(run)
        together.wait()
        if ending == "close":
            run.close()
        elif ending == "abort":
            run.abort()
        answers[word] = [first.to_dict()["text"], *(event.type for event in run)]

    threads = [threading.Thread(target=ask, args=(f"word{number}",)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rest = {"in order": ["done"], "abort": ["error", "done"], "close": []}[ending]
    assert answers == {f"word{number}": [f"word{number}", *rest] for number in range(40)}


@pytest.mark.slow
def test_a_hundred_aborts_in_sequence_leave_nothing() -> None:
    runtime = FakeRuntime(command=["sh", "-c", f"{ECHO[2]}; exec sleep 100"])
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(100):
        run = runtime.start("word\n")
        next(run)
        run.abort()
        assert [event.type for event in run] == ["error", "done"]
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


@pytest.mark.slow
def test_a_stream_of_fifty_megabytes_that_is_read_does_not_pile_up() -> None:
    line = '{"type":"thinking","text":"' + "x" * 10_000 + '"}\n'
    gc.collect()
    before = resident()
    peak = 0
    for number, _ in enumerate(FakeRuntime(["repeat", line, 5000], max_pending_bytes=4 << 20).execute("hi")):
        if number % 500 == 0:
            peak = max(peak, resident())
    assert peak - before < 40 << 20
