"""The fallback for systems without POSIX, tested here with the same scenarios."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from remoteclaw_sync.process.child import ChildProcess
from remoteclaw_sync.process.fallback import PortableBackend
from remoteclaw_sync.process.launch import Setup
from tests.fakes import FakeRuntime, Gate, alive, codes, done, finished, quick_command, wait_until

BIG = "x" * 5_000_000
DONE: list[Any] = ["line", {"type": "done"}]


class Portable(FakeRuntime):
    def new_child(self, setup: Setup) -> ChildProcess:
        return ChildProcess(setup, PortableBackend)


def test_an_answer_arrives() -> None:
    result = done(Portable(["read_stdin"], ["text", "a"], ["raw", "note", 2]).execute("hi"))
    assert (result.ok, result.text, result.stderr, result.exit_code) == (True, "a", "note", 0)


@pytest.mark.parametrize("command", ["no-such-agent-cli", "/"])
def test_a_command_that_cannot_be_started_is_told(command: str) -> None:
    events, result = finished(Portable(command=command).execute("hi"))
    assert codes(events) in (["CLI_NOT_FOUND"], ["CLI_NOT_EXECUTABLE"])
    assert not result.ok


@pytest.mark.parametrize("hook", ["build_args", "build_env"])
def test_nonsense_from_a_hook_is_an_error_and_done(hook: str) -> None:
    runtime = Portable(["text", "a"])
    setattr(runtime, hook, lambda params: {"build_args": [5], "build_env": {"A": 5}}[hook])
    assert codes(finished(runtime.execute("hi"))[0]) == ["SPAWN_FAILED"]


def test_a_big_prompt_to_a_cli_that_never_reads_or_exits_at_once_does_not_block() -> None:
    assert done(Portable(["text", "a"]).execute(BIG)).ok
    assert done(Portable(["exit", 3]).execute(BIG)).exit_code == 3


@pytest.mark.slow
def test_a_flood_on_both_streams_does_not_block() -> None:
    steps = (["flood", 20 << 20, 2], ["raw", "end", 2], ["repeat", '{"type":"text","text":"x"}\n', 100_000])
    result = done(Portable(*steps).execute("hi"))
    assert len(result.text) == 100_000
    assert result.stderr.endswith("xend")


@pytest.mark.slow
def test_beyond_the_limit_the_cli_waits_and_nothing_is_lost() -> None:
    steps = (["repeat", '{"type":"text","text":"%d,"}\n', 100_000],)
    result = done(Portable(*steps, max_pending_bytes=100_000).execute("hi"))
    assert result.text == "".join(f"{number}," for number in range(100_000))


@pytest.mark.slow
def test_silence_ends_the_run() -> None:
    events, result = finished(Portable(command=quick_command(["text", "a"], ["hang"]), timeout=0.4).execute("hi"))
    assert codes(events) == ["WATCHDOG_TIMEOUT"]
    assert result.text == "a"


@pytest.mark.slow
def test_a_cli_that_ignores_sigterm_is_killed() -> None:
    run = Portable(["ignore", "SIGTERM"], ["text", "a"], ["hang"]).start("hi")
    next(run)
    run.abort()
    assert [event.type for event in run] == ["error", "done"]
    assert run.result is not None
    assert run.result.exit_code == -signal.SIGKILL


def test_abort_ends_the_cli_while_nobody_iterates() -> None:
    event = threading.Event()
    run = Portable(["text", "a"], ["hang"]).start("hi", abort_signal=event)
    next(run)
    event.set()
    assert wait_until(lambda: not alive(run.pid or 0))
    assert [event.type for event in run] == ["error", "done"]


def test_close_ends_the_cli() -> None:
    run = Portable(["text", "a"], ["hang"]).start("hi")
    next(run)
    run.close()
    assert not alive(run.pid or 0)


def test_a_cli_that_stays_after_its_last_word_is_ended() -> None:
    assert done(Portable(["text", "a"], DONE, ["hang"], linger=0.1).execute("hi")).ok


def test_closing_stdout_ends_the_run() -> None:
    assert done(Portable(["text", "a"], DONE, ["close", 1], ["hang"], linger=0.1).execute("hi")).ok


def test_events_may_come_on_stderr() -> None:
    runtime = Portable(["line", {"type": "text", "text": "a"}, 2], ["raw", "note", 1])
    runtime.stream = "stderr"
    result = done(runtime.execute("hi"))
    assert (result.text, result.stderr) == ("a", "note")


@pytest.mark.slow
def test_a_grandchild_that_holds_the_pipes_does_not_keep_the_run_alive(gate: Callable[[], Gate]) -> None:
    """It survives here (this is documented), and so do the threads that read its pipes; they end when it does."""
    there = gate()
    grandchild = [["notify", there.path], ["hang"]]
    run = Portable(["fork", grandchild], ["text", "a"], ["hang"]).start("hi")
    next(run)
    pid = there.wait()
    try:
        run.abort()
        assert [event.type for event in run] == ["error", "done"]
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_many_runs_leave_nothing() -> None:
    runtime = Portable(command=["sh", "-c", """echo '{"type":"text","text":"a"}'"""])
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(50):
        assert done(runtime.execute("hi")).ok
    assert wait_until(lambda: (len(os.listdir("/proc/self/fd")), threading.active_count()) == before)
