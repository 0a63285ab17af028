"""The clocks of a live session, with time under the test's control: each turn has its own, an idle process has one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import AgentDoneEvent, AgentEvent, AgentSession, ClaudeCliRuntime
from remoteclaw_sync.engine.transport import Transport
from remoteclaw_sync.process.child import ChildProcess
from remoteclaw_sync.process.launch import FAREWELL_PATIENCE, Launch, Setup, Sink
from tests.fakes import PATIENCE, codes, wait_until
from tests.process.staged import ManualClock, StagedBackend

TIMEOUT, TOOL_TIMEOUT, IDLE = 100.0, 1000.0, 600.0


class StagedClaude(ClaudeCliRuntime):
    """Its processes do not exist: the test decides what they say."""

    def __init__(self) -> None:
        super().__init__("claude", timeout=TIMEOUT, tool_timeout=TOOL_TIMEOUT)
        self.clock = ManualClock()
        self.backends: list[StagedBackend] = []

    def connect(self, setup: Setup) -> Transport:
        return ChildProcess(setup, self._new_backend, self.clock, timer_factory=None)

    def _new_backend(self, launch: Launch, events: Sink, diagnostics: Sink) -> StagedBackend:
        self.backends.append(StagedBackend(self.clock, launch, events, diagnostics))
        return self.backends[-1]


class Stage:
    """A session, and a consumer of its turns in a separate thread."""

    def __init__(self, folder: Path, **fields: Any) -> None:
        self.runtime = StagedClaude()
        self.session: AgentSession = self.runtime.open_session(working_directory=folder, **fields)
        self.told: list[AgentEvent] = []
        self._consumer: threading.Thread | None = None

    @property
    def process(self) -> StagedBackend:
        return self.runtime.backends[-1]

    def ask(self, **fields: Any) -> None:
        """Begin a turn, and wait until the process has received its prompt."""
        before = self._prompts()
        self.told = []
        events = self.session.execute("hello", **fields)
        self._consumer = threading.Thread(target=lambda: self.told.extend(events))
        self._consumer.start()
        assert wait_until(lambda: self._prompts() > before)
        self.process.settle()

    def _prompts(self) -> int:
        return b"".join(data for backend in self.runtime.backends for data in backend.input).count(b'"hello"')

    def answer_opening(self) -> None:
        opening = json.loads(self.process.input[0].splitlines()[0])
        response = {"subtype": "success", "request_id": opening["request_id"], "response": {}}
        self.say(type="control_response", response=response)

    def say(self, **line: Any) -> None:
        self.process.says(json.dumps(line).encode() + b"\n")

    def finish(self) -> None:
        self.say(type="result", subtype="success", is_error=False, result="", session_id="s1")
        self.join()
        self.process.settle()

    def join(self) -> list[AgentEvent]:
        """Wait for the end of the turn."""
        assert self._consumer is not None
        self._consumer.join(PATIENCE)
        assert isinstance(self.told[-1], AgentDoneEvent)
        return self.told

    def wait(self, seconds: float) -> None:
        self.process.settle()
        self.runtime.clock.advance(seconds)
        self.process.settle()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    made: list[Stage] = []

    def make(**fields: Any) -> Stage:
        made.append(Stage(tmp_path, **fields))
        return made[-1]

    yield make
    for one in made:
        for backend in one.runtime.backends:
            backend.exits()
        one.session.close()


def test_silence_counts_from_the_beginning_of_each_turn(stage: Callable[..., Stage]) -> None:
    one = stage()
    one.ask()
    one.wait(TIMEOUT - 1)
    one.finish()
    one.wait(TIMEOUT * 2)  # An idle process may be silent.
    one.ask()
    one.wait(TIMEOUT - 1)
    assert not one.process.exited
    one.wait(2)
    assert codes(one.join()) == ["WATCHDOG_TIMEOUT"]


def test_a_deadline_counts_from_the_beginning_of_its_turn(stage: Callable[..., Stage]) -> None:
    one = stage()
    one.ask(deadline=50.0)
    one.wait(40)
    one.finish()
    one.ask(deadline=50.0)
    one.wait(40)
    assert not one.process.exited
    one.wait(11)
    assert codes(one.join()) == ["DEADLINE_EXCEEDED"]
    one.ask()  # On another process, and without a deadline.
    one.wait(60)
    one.finish()
    assert len(one.runtime.backends) == 2


def test_the_silence_of_an_agent_that_waits_for_approval_is_not_a_fault(stage: Callable[..., Stage]) -> None:
    asked, answer = threading.Event(), threading.Event()

    def approve(request: object) -> bool:
        asked.set()
        return answer.wait(PATIENCE)

    one = stage(approve=approve)
    one.ask()
    tool = {"subtype": "can_use_tool", "tool_name": "Read", "tool_use_id": "t1", "input": {}}
    one.say(type="control_request", request_id="r1", request=tool)
    assert asked.wait(PATIENCE)
    one.wait(TOOL_TIMEOUT * 10)
    assert not one.process.exited
    answer.set()
    assert wait_until(lambda: b'"behavior": "allow"' in one.process.input[-1])
    one.wait(TIMEOUT - 1)
    assert not one.process.exited
    one.wait(2)
    assert codes(one.join()) == ["WATCHDOG_TIMEOUT"]


def test_an_idle_process_is_asked_to_exit_and_made_to_if_it_does_not(stage: Callable[..., Stage]) -> None:
    one = stage(idle_timeout=IDLE)
    one.ask()
    one.finish()
    one.wait(IDLE - 1)
    assert (one.process.input_ended, one.process.exited) == (False, False)
    one.wait(2)
    assert b"end_session" in one.process.input[-1]
    assert (one.process.input_ended, one.process.exited) == (True, False)
    one.wait(FAREWELL_PATIENCE)
    assert (one.process.exited, one.process.signals) == (True, ["TERM"])


def test_without_an_idle_timeout_a_process_is_kept(stage: Callable[..., Stage]) -> None:
    one = stage(idle_timeout=None)
    one.ask()
    one.finish()
    one.wait(10_000_000)
    assert not one.process.exited
    one.ask()
    one.finish()
    assert len(one.runtime.backends) == 1


def test_an_interrupt_that_does_not_end_the_turn_within_two_seconds_ends_the_process(
    stage: Callable[..., Stage],
) -> None:
    one = stage()
    signal = threading.Event()
    one.ask(abort_signal=signal)
    one.answer_opening()
    assert wait_until(lambda: one.session._live.dialect.is_ready)
    signal.set()
    assert wait_until(lambda: b"interrupt" in one.process.input[-1])
    one.wait(1.9)
    assert not one.process.exited
    one.wait(0.2)
    assert codes(one.join()) == ["ABORTED"]
    assert one.process.exited


def test_a_process_that_has_not_even_answered_the_opening_is_ended_at_once(stage: Callable[..., Stage]) -> None:
    one = stage()
    signal = threading.Event()
    one.ask(abort_signal=signal)
    signal.set()
    assert codes(one.join()) == ["ABORTED"]
    assert one.process.exited
