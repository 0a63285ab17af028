"""A child whose process and time are under the test's control: nothing is spawned, and no time passes by itself."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from remoteclaw_sync.process.child import ChildProcess
from remoteclaw_sync.process.launch import Launch, Sink, Strays

PATIENCE = 30.0  # Real seconds until a test gives up on a thread that should have done something.


class ManualClock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.changed = threading.Condition()

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        with self.changed:
            self.now += seconds
            self.changed.notify_all()


class StagedBackend:
    """A backend without a process. In the supervisor's thread, it does what the test says, as a real one would."""

    def __init__(self, clock: ManualClock, launch: Launch, events: Sink, diagnostics: Sink) -> None:
        self._clock = clock
        self._changed = clock.changed
        self._events = events
        self._diagnostics = diagnostics
        self._todo: deque[Callable[[], None]] = deque()
        self._woken = False
        self._asleep = False
        self._until: float | None = None
        self._first_input = (launch.stdin, not launch.stdin_stays_open)
        self._code: int | None = None
        self.input: list[bytes] = []
        self.input_ended = False
        self.reads_input = True
        self.signals: list[str] = []
        self.dies_of: tuple[str, ...] = ("TERM", "KILL")
        self.guarded = self.finished = False
        self.pid: int | None = None
        self.exited = False
        self.events_ended = False
        self.unsent_bytes = 0

    # --- for the test -----------------------------------------------------------------------------------------

    @property
    def sleeps_until(self) -> float | None:
        """When the supervisor would next look around although nothing has happened; None: never."""
        self.settle()
        return self._until

    def says(self, data: bytes) -> None:
        self._do(lambda: self._events(data))

    def grumbles(self, data: bytes) -> None:
        self._do(lambda: self._diagnostics(data))

    def exits(self, code: int = 0) -> None:
        self._do(lambda: self._exit(code))

    def settle(self) -> None:
        """Wait until the supervisor has done everything that it has to do at this time."""
        with self._changed:
            assert self._changed.wait_for(self._is_settled, PATIENCE)

    def _is_settled(self) -> bool:
        return self.exited or self.finished or (self._asleep and not self._is_due())

    def _do(self, step: Callable[[], None]) -> None:
        with self._changed:
            self._todo.append(step)
            self._changed.notify_all()
        self.settle()

    # --- for the supervisor -----------------------------------------------------------------------------------

    def spawn(self) -> None:
        self.pid = os.getpid()  # The pid of a process that exists for as long as these tests run.
        data, last = self._first_input
        self.send(data, last=last)

    def send(self, data: bytes, *, last: bool) -> None:
        if self.reads_input:
            self.input.append(data)
        else:
            self.unsent_bytes += len(data)
        self.input_ended = self.input_ended or last

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def wait(self, timeout: float | None) -> None:
        with self._changed:
            self._until = None if timeout is None else self._clock.now + timeout
            self._asleep = True
            self._changed.notify_all()
            assert self._changed.wait_for(self._is_due, PATIENCE)
            self._asleep = self._woken = False
            steps = list(self._todo)
            self._todo.clear()
        for step in steps:
            step()

    def _is_due(self) -> bool:
        return bool(self._todo) or self._woken or (self._until is not None and self._clock.now >= self._until)

    def is_guarded(self) -> bool:
        return False

    def start_guard(self) -> None:
        self.guarded = True

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...

    def terminate(self) -> None:
        self._signal("TERM", -15)

    def kill(self) -> None:
        self._signal("KILL", -9)

    def _signal(self, name: str, code: int) -> None:
        self.signals.append(name)
        if name in self.dies_of:
            self._exit(code)

    def _exit(self, code: int) -> None:
        self._code = code
        self.exited = True
        self.wake()

    def end_strays(self, strays: Strays) -> None:
        self.signals.append("STRAYS")

    def finish(self, *, drain: bool) -> int | None:
        self.finished = True
        return self._code

    def forget_after_fork(self) -> None: ...


class Stage:
    """A child that was started, its backend and its clock."""

    def __init__(self, *, start: bool = True, **launch: Any) -> None:
        self.clock = ManualClock()
        self._made = threading.Event()
        self.child = ChildProcess(make_launch(**launch), self._new_backend, self.clock, timer_factory=None)
        if start:
            self.start()

    def start(self) -> None:
        self.child.start()
        assert self._made.wait(PATIENCE)
        self.backend.settle()

    def _new_backend(self, launch: Launch, events: Sink, diagnostics: Sink) -> StagedBackend:
        self.backend = StagedBackend(self.clock, launch, events, diagnostics)
        self._made.set()
        return self.backend

    def wait(self, seconds: float) -> None:
        """Let time pass, and let the supervisor react to it."""
        self.backend.settle()
        self.clock.advance(seconds)
        self.backend.settle()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *error: object) -> None:
        self.backend.dies_of = ("TERM", "KILL")
        self.backend.exits()
        self.child.close()


def make_launch(**fields: Any) -> Launch:
    """A launch of nothing in particular."""
    defaults: dict[str, Any] = {
        "argv": ("agent",),
        "env": dict(os.environ),
        "cwd": "/",
        "stdin": b"",
        "stdin_stays_open": True,
        "marker": "REMOTECLAW_TEST_MARKER",
        "linger": 1.0,
        "max_pending_bytes": 1 << 20,
    }
    return Launch(**(defaults | fields))
