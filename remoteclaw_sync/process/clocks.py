"""The clocks of a child: how long it may be silent, and how long its phase may take.

`PhaseClocks` have no thread and no timer: a sign of life only updates a time stamp. `Watchdog` is the timer that makes
the supervisor check them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import attrs

from .ending import EndReason
from .launch import Limits, Phase

Clock = Callable[[], float]
Says = Callable[[bytes], bool]
TimerFactory = Callable[[float, Callable[[], None]], threading.Timer]
FOREVER = float("inf")
LOOKS = 4  # Checks per wall-clock limit of a phase whose consumer is late, to see whether it has read on.
LONGEST_TIMER = 86_400.0  # threading.Timer takes what a C timestamp takes; one check a day costs nothing.


@attrs.frozen
class _Current:
    phase: Phase
    limits: Limits
    began_at: float


class Watchdog:
    """One lazy `threading.Timer`: it rings when a clock may have run out, and is not reset at each sign of life.

    A Timer per line would cost 260-520 µs per line. Only for the supervisor, including `cancel`.
    """

    def __init__(self, ring: Callable[[], None], timer_factory: TimerFactory = threading.Timer) -> None:
        self._ring = ring
        self._timer_factory = timer_factory
        self._timer: threading.Timer | None = None
        self._due = FOREVER  # When it will ring.

    def set(self, due: float, now: float) -> bool:
        """Have it ring at that time at the latest. If it rings sooner, set it again. Returns False if that failed."""
        if self._due <= due and self._due > now:
            return True
        self.cancel()
        timer = self._timer_factory(min(due - now, LONGEST_TIMER), self._ring)
        timer.daemon = True
        timer.name = "remoteclaw-watchdog"
        try:
            timer.start()
        except RuntimeError:
            return False  # No thread can be started, for example because the interpreter is shutting down.
        self._timer, self._due = timer, min(due, now + LONGEST_TIMER)
        return True

    def cancel(self) -> None:
        """Have it ring no more. Waits until its thread is gone."""
        timer, self._timer, self._due = self._timer, None, FOREVER
        if timer is not None:
            timer.cancel()
            timer.join(timeout=1.0)


class PhaseClocks:
    """The clocks of a child's current phase. `look` is for the supervisor; the rest may be called from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._current = _Current(Phase.STARTING, Limits(), clock())
        self._held = False
        self.begun = False  # Whether a phase has been set.
        self.last_life = self._current.began_at
        self._late: tuple[_Current, float] | None = None  # When the consumer was last late, and in which phase.

    @property
    def phase(self) -> Phase:
        return self._current.phase

    def begin(self, phase: Phase, limits: Limits) -> None:
        """Restart all clocks now."""
        now = self._clock()
        self.begun = True
        self._held = False
        self.last_life = now  # Before the limits: the supervisor may be looking.
        self._current = _Current(phase, limits, now)

    def hold(self) -> None:
        """Stop the silence clock: the child is waiting for somebody else."""
        self._held = True

    def release(self) -> None:
        """Restart the silence clock now."""
        self.last_life = self._clock()
        self._held = False

    def look(
        self, now: float, *, kept_waiting: bool, in_tool: Callable[[], bool], unread: Callable[[Says], bool]
    ) -> EndReason | float:
        """Why the child must end now, or when to check again."""
        current, limits = self._current, self._current.limits
        over = FOREVER if limits.wall_clock is None else current.began_at + limits.wall_clock
        if now >= over and limits.wall_clock is not None and limits.is_over is not None:
            if unread(limits.is_over):
                self._late = current, now
                return now + limits.wall_clock / LOOKS
            if self._late is not None and self._late[0] is current:
                over = self._late[1] + limits.wall_clock  # The consumer may still be dealing with it.
        if now >= over:
            return EndReason.LINGERED if current.phase is Phase.ENDING else EndReason.DEADLINE
        if limits.silence is None:
            return over
        quiet_until = self._look_at_silence(now, limits.silence, limits.silence_in_tool, kept_waiting, in_tool)
        if now >= quiet_until:
            return EndReason.LINGERED if current.phase is Phase.ENDING else EndReason.WATCHDOG
        return min(over, quiet_until)

    def _look_at_silence(
        self, now: float, outside: float, inside: float | None, kept_waiting: bool, in_tool: Callable[[], bool]
    ) -> float:
        """When to check again. If that is not in the future, the child has been silent for too long."""
        shortest = outside if inside is None else min(outside, inside)
        if kept_waiting or self._held:
            return now + shortest
        since = self.last_life
        if now - since < shortest:
            return since + shortest
        limit = inside if in_tool() else outside
        end = FOREVER if limit is None else since + limit
        # Not `end` if that is later: a tool may begin or end without any output.
        return min(end, now + shortest)
