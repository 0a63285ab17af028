"""Plays a process of a recorded live session: says what that process said, and checks what it is sent."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable
from typing import Any

from ..process.ending import EndLatch, EndReason
from ..process.launch import Exit, Limits, Phase, Setup, SpawnError, SpawnFailure, Strays
from .cassette import Process, Step, failure_in, raw
from .matching import Names, difference, kind_of, note_ids

PATIENCE = 10.0  # Seconds that a replay waits for a line that another thread may send.
KEPT_REASONS = (EndReason.WATCHDOG, EndReason.DEADLINE, EndReason.LINGERED)


class Played:
    """A transport (see engine/transport.py) without a process: it works in the thread that receives.

    Args:
        setup: of the process that would be started.
        process: the recording of that process.
        speed: None replays without pauses, 1.0 with the recorded ones.
        checks: whether what is sent must match the recording.
        on_abort: called where the recorded turn was told to end.
        on_steer: called with the recorded further words; None if the caller will give them.
    """

    def __init__(
        self,
        setup: Setup,
        process: Process,
        speed: float | None,
        *,
        checks: bool,
        on_abort: Callable[[], None],
        on_steer: Callable[[str], None] | None,
    ) -> None:
        self._setup = setup
        self._steps = process.steps
        self._speed = speed
        self._checks = checks
        self._on_abort = on_abort
        self._on_steer = on_steer
        self._news = threading.Condition(threading.RLock())
        self._at = 0  # The next step.
        self._to_be_sent = [index for index, step in enumerate(self._steps) if step.kind == "in"]
        self._given: set[int] = set()  # The steps with further words that were given.
        self._turn = 0  # The last turn that has begun.
        self._names = Names()
        self._is_lenient = False  # The turn is being left: what is sent then depends on the timing.
        self._heard_at = 0.0  # The time of the last step, in the recording and here.
        self._heard = time.monotonic()
        self._due: float | None = None
        self._closed = False
        self.mismatch: str | None = None
        self.ending = EndLatch()
        self.tools_outstanding = False
        self.has_served = False
        self.lines_skipped = 0
        self.failure: SpawnFailure | None = None
        self.exit_code: int | None = None
        self.diagnostics = ""
        self.phase = Phase.STARTING
        self.pid: int | None = None
        self.heard_in_time = True

    # --- the interface of a child -----------------------------------------------------------------------------

    @property
    def exit(self) -> Exit | None:
        return self._exit() if self._closed or self.ending.reason is not None else None

    def _exit(self) -> Exit:
        return Exit(self.exit_code, self.ending.reason or EndReason.EXITED, self.diagnostics, self.failure)

    def start(self) -> None:
        try:
            launch = self._setup.prepare(self.ending)
        except SpawnError as error:
            self.failure = error.failure
            self.ending.claim(EndReason.EXITED)
            return
        if launch is not None:
            self.send(launch.stdin)

    def send(self, data: bytes, *, last: bool = False) -> None:
        with self._news:
            for line in data.split(b"\n"):
                if line.strip() and self.ending.reason is None:
                    self._match(json.loads(line))
            self._news.notify_all()

    def receive(self, timeout: float | None = None) -> bytes | None:
        until = None if timeout is None else time.monotonic() + timeout
        while self.ending.reason is None:
            with self._news:
                found = self._next(until)
            if isinstance(found, bytes):
                return found
            if found is not None:
                found()  # Without the lock: it goes through the session, which has its own.
        return None

    def _next(self, until: float | None) -> bytes | Callable[[], None] | None:
        """The next line, or something to be done first; None: call again."""
        step = self._steps[self._at] if self._at < len(self._steps) else None
        if step is None or step.kind == "end":
            self._end(step)
        elif step.kind not in ("out", "rest"):
            return self._pass(step, until)
        elif not self._sleep_until(step.at, until):
            self._at += 1
            return self._said(step)
        return None

    def begin_phase(self, phase: Phase, limits: Limits) -> None:
        self.phase = phase
        # If there was an idle timeout, the recording already contains its effect.
        is_turn = phase is Phase.TURN and limits.wall_clock is not None
        self._due = time.monotonic() + (limits.wall_clock or 0.0) if is_turn else None

    def pause_clock(self) -> None:
        """Do nothing: there is no clock for silence."""

    def resume_clock(self) -> None:
        """Do nothing: there is no clock for silence."""

    def expect_exit(self, expected: bool, linger: float | None = None) -> None:
        """Do nothing: the end is recorded."""

    def let_go(self) -> None:
        self.phase = Phase.ENDING
        self.request_end(EndReason.EXITED)

    def end_strays(self, strays: Strays) -> None:
        """Do nothing: there are none."""

    def request_end(self, reason: EndReason) -> None:
        self.ending.claim(reason)
        with self._news:
            self._news.notify_all()

    def request_close(self) -> None:
        self.request_end(EndReason.CLOSED)

    def close(self) -> Exit:
        self.request_close()
        if not self._closed:
            self._closed = True
            self._setup.clean_up()
        return self._exit()

    # --- for the session --------------------------------------------------------------------------------------

    def begin_turn(self, number: int) -> None:
        """Allow what was recorded of this turn to be said from now on."""
        with self._news:
            self._turn = number
            self._is_lenient = False
            self._news.notify_all()

    def was_aborted(self) -> bool:
        """Whether the recorded turn was also told to end, from here on; then anything may be sent until it has."""
        with self._news:
            rest = (step for step in self._steps[self._at :] if step.turn == self._turn)
            found = self._is_lenient or any(step.kind == "abort" for step in rest)
            self._is_lenient = found
            return found

    # --- the recording ----------------------------------------------------------------------------------------

    def _pass(self, step: Step, until: float | None) -> Callable[[], None] | None:
        """Move on to the next step if this one allows it, or wait; returns what has to be done first, if anything."""
        if step.kind == "in" and self._to_be_sent and self._to_be_sent[0] <= self._at:
            if self._checks and not self._is_lenient:
                self._wait(until, self._missing(step))
            elif self._on_steer is not None and self._brings_words():
                return self._words(self._at + 1)
            else:
                self._skip()
            return None
        if step.kind == "turn" and step.turn > self._turn:
            self._wait(until, "the turn does not end where it ended in the recording")
            return None
        if step.kind == "steer" and self._on_steer is not None and self._at not in self._given:
            return self._words(self._at)  # These words had to wait until the turn could be interrupted for them.
        self._at += 1
        if step.kind in ("in", "turn"):
            self._heard_at, self._heard = step.at, time.monotonic()  # Our own delays are not replayed.
        return self._on_abort if step.kind == "abort" and not self._is_lenient else None

    def _brings_words(self) -> bool:
        after = self._at + 1
        return after not in self._given and any(step.kind == "steer" for step in self._steps[after : after + 1])

    def _words(self, index: int) -> Callable[[], None]:
        assert self._on_steer is not None
        self._given.add(index)
        return functools.partial(self._on_steer, str(self._steps[index].value["text"]))

    def _missing(self, step: Step) -> str:
        return f"the recording has {kind_of(json.loads(step.value))!r} here, and nothing was sent"

    def _wait(self, until: float | None, complaint: str) -> None:
        """Wait for another thread. Raises TimeoutError at the limit; if there is none, complains after a while."""
        now = time.monotonic()
        give_up_at = now + PATIENCE if until is None else until
        limit = give_up_at if self._due is None else min(give_up_at, self._due)
        if now < limit and self._news.wait(limit - now):
            return
        if self._due is not None and limit == self._due:
            self.ending.claim(EndReason.DEADLINE)
        elif until is not None:
            raise TimeoutError
        else:
            self._complain(complaint)

    def _sleep_until(self, at: float, until: float | None) -> bool:
        """Wait for part of the time; returns whether there is more to wait. Raises TimeoutError."""
        left = 0.0
        if self._speed is not None and not self._is_lenient:
            left = self._heard + (at - self._heard_at) / self._speed - time.monotonic()
        if left <= 0:
            self._heard_at, self._heard = at, time.monotonic()
            return False
        limits = [limit - time.monotonic() for limit in (until, self._due) if limit is not None]
        self._news.wait(max(min([left, *limits]), 0.0))
        if self._due is not None and time.monotonic() >= self._due:
            self.ending.claim(EndReason.DEADLINE)
        elif until is not None and time.monotonic() >= until:
            raise TimeoutError
        return True

    def _said(self, step: Step) -> bytes | None:
        """The line, with the present ids; None if it answers a request that was not sent this time."""
        text = str(step.value)
        for before, after in self._names.texts.items():
            text = text.replace(before, after)
        if self._names.numbers:
            line = _object(text)
            number = line.get("id")
            if "method" not in line and type(number) is int and number in self._names.numbers:
                now = self._names.numbers[number]
                if now is None:
                    return None
                if now != number:
                    text = json.dumps({**line, "id": now})
        return raw(text) + (b"" if step.kind == "rest" else b"\n")

    def _end(self, step: Step | None) -> None:
        """End as the recorded process did, or silently if the host died."""
        end = {} if step is None else step.value
        self.exit_code = end.get("exit_code")
        self.diagnostics = end.get("stderr", "")
        self.failure = failure_in(end)
        reason = EndReason[end["reason"]] if end else EndReason.EXITED
        self.ending.claim(reason if reason in KEPT_REASONS else EndReason.EXITED)

    # --- what is sent -----------------------------------------------------------------------------------------

    def _match(self, line: dict[str, Any]) -> None:
        if not self._checks or self._is_lenient:
            self._match_kind(line)
            return
        if not self._to_be_sent:
            self._complain(f"{kind_of(line)!r} was sent, and the recording has nothing more")
            return
        recorded = _object(self._steps[self._to_be_sent.pop(0)].value)
        if kind_of(recorded) != kind_of(line):
            self._complain(f"{kind_of(line)!r} was sent, and the recording has {kind_of(recorded)!r}")
        elif (found := difference(recorded, line, self._names)) is not None:
            self._complain(f"{kind_of(line)!r} was sent, and {found}")
        note_ids(recorded, line, self._names)

    def _match_kind(self, line: dict[str, Any]) -> None:
        """Find the next recorded line of this kind in this turn, if there is one."""
        for place, index in enumerate(self._to_be_sent):
            step = self._steps[index]
            if step.turn > self._turn:
                return
            recorded = _object(step.value)
            if kind_of(recorded) == kind_of(line):
                for _ in range(place):
                    self._skip()
                difference(recorded, line, self._names)
                note_ids(recorded, line, self._names)
                del self._to_be_sent[0]
                return

    def _skip(self) -> None:
        note_ids(_object(self._steps[self._to_be_sent.pop(0)].value), None, self._names)

    def _complain(self, words: str) -> None:
        if self.mismatch is None:
            self.mismatch = words
        self.ending.claim(EndReason.EXITED)


def _object(line: Any) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (TypeError, ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}
