"""What a CLI has reported about a turn, and what its exit adds to that. Plain values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import attrs

from ..process.ending import EndReason
from ..process.launch import SpawnFailure
from ..types import AgentErrorEvent, AgentUsage, ErrorSubtype, PermissionDenial


@attrs.define
class RunOutcome:
    """Filled in by a dialect as it reads the CLI's output; `terminal` is the CLI's own verdict on the turn."""

    terminal: Literal["success", "failure"] | None = None
    error_subtype: ErrorSubtype | None = None
    session_id: str | None = None
    usage: AgentUsage | None = None
    total_cost_usd: float | None = None
    api_duration_ms: float | None = None
    num_turns: int | None = None
    stop_reason: str | None = None
    structured: tuple[Any, ...] = ()  # The answer as JSON, if the CLI sends it separately from its text.
    permission_denials: list[PermissionDenial] = attrs.field(factory=list)
    # Seconds that the CLI may take to exit after its final message, if that is longer than the runtime's `linger`.
    may_stay: float = 0.0
    resets_at: float | None = None  # When a limit set by the vendor ends, in seconds since 1970.
    # While the turn goes on, for its limits:
    requests: int = 0  # Requests to the model that are known to have begun.
    asks_again: bool = False  # The model's last answer called tools; when they have ended, the CLI asks it again.
    so_far: AgentUsage | None = None  # Tokens, for CLIs that send `usage` only at the end.
    cost_so_far: float | None = None

    @property
    def used(self) -> AgentUsage | None:
        """Tokens known so far. The `usage` of a turn that was cut short may leave out its last request."""
        if self.usage is None or (self.terminal != "success" and _total(self.so_far) > _total(self.usage)):
            return self.so_far
        return self.usage

    @property
    def cost(self) -> float | None:
        """In USD; None if the CLI has not reported it."""
        told = [cost for cost in (self.total_cost_usd, self.cost_so_far) if cost is not None]
        return max(told, default=None)

    def succeed(self) -> None:
        """The CLI says that the turn succeeded (again, if it went on after what looked like its final message)."""
        self.terminal = "success"
        self.error_subtype = None

    def fail(self, error_subtype: ErrorSubtype | None = None) -> None:
        """The CLI says that the turn failed."""
        self.terminal = "failure"
        self.error_subtype = error_subtype

    def add_earlier(self, earlier: RunOutcome) -> None:
        """Add an earlier turn of the CLI in the same run."""
        for name in ("usage", "total_cost_usd", "api_duration_ms", "num_turns", "requests", "so_far", "cost_so_far"):
            before, own = getattr(earlier, name), getattr(self, name)
            if before is not None:
                setattr(self, name, before if own is None else before + own)
        self.permission_denials[:0] = earlier.permission_denials

    def reopen(self) -> None:
        """The CLI goes on after what looked like its final message."""
        self.terminal = None
        self.error_subtype = None


@attrs.frozen(kw_only=True)
class Ended:
    """How a CLI ended, and what it printed for people to read. Secrets are masked."""

    exit_code: int | None
    stderr: str
    said: str  # stderr, and what was printed on the other stream before the first event.
    cli_version: Callable[[], str | None] = lambda: None  # A function, because looking it up reads files.


@attrs.frozen(kw_only=True)
class Closing:
    """What a CLI's exit adds to what it reported in its lines."""

    warnings: tuple[AgentErrorEvent, ...] = ()
    cause: AgentErrorEvent | None = None  # Why it exited without a final message, in its own words.
    error_subtype: ErrorSubtype | None = None  # The kind of the failure.
    succeeded: bool = False  # It succeeded after all, although no line said so.
    denials: tuple[PermissionDenial, ...] = ()
    session_id: str | None = None
    so_far: AgentUsage | None = None  # Tokens, if the turn did not report its `usage`.

    def applied_to(self, outcome: RunOutcome) -> RunOutcome:
        """The outcome with this added; its usage and cost are final."""
        end = attrs.evolve(
            outcome,
            terminal="success" if self.succeeded else outcome.terminal,
            error_subtype=self.error_subtype or outcome.error_subtype,
            session_id=self.session_id or outcome.session_id,
            permission_denials=[*outcome.permission_denials, *self.denials],
            so_far=self.so_far or outcome.so_far,
        )
        end.usage, end.total_cost_usd = end.used, end.cost
        return end


@attrs.frozen(kw_only=True)
class TurnEnd:
    """How a turn ended: a snapshot. Secrets are masked."""

    reason: EndReason
    outcome: RunOutcome = attrs.field(factory=RunOutcome)  # Including what the end adds to it.
    exit_code: int | None = None
    failure: SpawnFailure | None = None
    cause: AgentErrorEvent | None = None
    warnings: tuple[AgentErrorEvent, ...] = ()
    said: str = ""  # All that the CLI printed for people.
    shown: str = ""  # The part of that which is shown to people.
    stderr: str = ""  # The part of stderr alone which is shown to people.
    at_start: bool = False  # It ended before the CLI's first event.
    seconds: float | None = None  # The turn's duration, if it was not measured here.


def _total(usage: AgentUsage | None) -> int:
    return 0 if usage is None else sum(attrs.astuple(usage))
