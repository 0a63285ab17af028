"""A recorded one-shot run."""

from __future__ import annotations

import functools
import threading
import time

import attrs

from ..engine.agent import Agent
from ..engine.outcome import TurnEnd
from ..engine.session import Session
from ..process.child import ChildProcess
from ..process.ending import EndReason
from ..process.launch import Launch, Setup, Sink, SpawnError, Strays
from .cassette import Cassette


class PlayedRun(Session):
    """A session from a recording, with the recorded duration and the recorded first warning."""

    def __init__(self, agent: Agent, cassette: Cassette) -> None:
        super().__init__(agent)
        self._cassette = cassette
        self.remedied = cassette.remedied

    def finish(self) -> TurnEnd:
        return attrs.evolve(super().finish(), seconds=self._cassette.ended_at)


class ReplayedChild(ChildProcess):
    """Ends for the recorded reason, but only after the consumer has read everything that was recorded until then."""

    def __init__(self, setup: Setup, cassette: Cassette, speed: float | None) -> None:
        self._unheard = len(cassette.said)
        self._end = None if cassette.reason is EndReason.EXITED else cassette.reason
        if self._end is EndReason.CLOSED:
            self._end = EndReason.ABORTED  # The recorded consumer left, but the present one wants a `done`.
        super().__init__(setup, functools.partial(_Tape, cassette, speed, self._end is not None))

    def receive(self, timeout: float | None = None) -> bytes | None:
        if self._unheard == 0 and self._end is not None:
            self.request_end(self._end)
        chunk = super().receive(timeout)
        self._unheard -= chunk is not None
        return chunk


class _Tape:
    """A backend (see process/child.py) that reads a cassette instead of a pipe."""

    def __init__(
        self,
        cassette: Cassette,
        speed: float | None,
        stays: bool,
        launch: Launch,
        events: Sink,
        diagnostics: Sink,
    ) -> None:
        self._cassette = cassette
        self._speed = speed
        self._stays = stays  # Runs until it is ended, as the recorded child did.
        self._events = events
        self._diagnostics = diagnostics
        self._position = 0
        self._reading = True
        self._woken = threading.Event()
        self._started_at = 0.0
        self.pid: int | None = None
        self.exited = False
        self.events_ended = False
        self.unsent_bytes = 0

    def spawn(self) -> None:
        failure = self._cassette.failure
        if failure is not None:
            raise SpawnError(failure.code, failure.message)
        self._started_at = time.monotonic()
        if self._cassette.stderr:
            self._diagnostics(self._cassette.stderr.encode(errors="replace"))

    def send(self, data: bytes, *, last: bool) -> None:
        """Do nothing: the answers are already in the recording."""

    def wait(self, timeout: float | None) -> None:
        said = self._cassette.said
        over = self._position == len(said)
        if over and not self._stays:
            if not self._sleep_until(self._cassette.ended_at, timeout):
                self.exited = self.events_ended = True
        elif over or not self._reading:
            self._woken.wait(timeout)
            self._woken.clear()
        elif not self._sleep_until(said[self._position].at, timeout):
            self._position += 1
            self._events(said[self._position - 1].data)

    def _sleep_until(self, at: float, timeout: float | None) -> bool:
        """Wait for part of the time; returns whether there is more to wait."""
        if self._speed is None:
            return False
        left = self._started_at + at / self._speed - time.monotonic()
        if left <= 0:
            return False
        self._woken.wait(left if timeout is None else min(left, timeout))
        self._woken.clear()
        return True

    def wake(self) -> None:
        self._woken.set()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True

    def is_guarded(self) -> bool:
        return True

    def start_guard(self) -> None:
        """Do nothing: there is nothing to guard."""

    def terminate(self) -> None:
        self.exited = True
        self._woken.set()  # The supervisor waits once more before it checks.

    def kill(self) -> None:
        self.terminate()

    def end_strays(self, strays: Strays) -> None:
        """Do nothing: there are none."""

    def finish(self, *, drain: bool) -> int | None:
        return self._cassette.exit_code

    def forget_after_fork(self) -> None:
        """Do nothing: it holds nothing."""
