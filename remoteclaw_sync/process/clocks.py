"""The clocks of a child: how long it may be silent, and how long its phase may take.

They have no thread and no timer. The supervisor sleeps until the time that `look` returned; activity in between only
moves a time stamp.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from .ending import EndReason
from .launch import Limits, Phase

Clock = Callable[[], float]
FOREVER = float("inf")


@attrs.frozen
class _Current:
    phase: Phase
    limits: Limits
    began_at: float


class PhaseClocks:
    """The clocks of a child's current phase. `look` is for the supervisor; the rest may be called from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._current = _Current(Phase.STARTING, Limits(), clock())
        self._held = False
        self.begun = False  # Whether a phase has been set.
        self.last_life = self._current.began_at

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

    def look(self, now: float, *, kept_waiting: bool, in_tool: Callable[[], bool]) -> EndReason | float:
        """Why the child must end now, or when to check again."""
        current, limits = self._current, self._current.limits
        over = FOREVER if limits.wall_clock is None else current.began_at + limits.wall_clock
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
        """When to check again. If that is not in the future, it has been silent for too long."""
        shortest = outside if inside is None else min(outside, inside)
        if kept_waiting or self._held:
            return now + shortest
        since = self.last_life
        if now - since < shortest:
            return since + shortest
        limit = inside if in_tool() else outside
        end = FOREVER if limit is None else since + limit
        # Even if there is more time left: a tool may begin or end without any output.
        return min(end, now + shortest)
