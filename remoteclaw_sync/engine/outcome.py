"""What a CLI has said about a turn, and what its end adds to that. Plain values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import attrs

from ..process.ending import EndReason
from ..process.launch import SpawnFailure
from ..types import AgentErrorEvent, AgentUsage, ErrorSubtype, PermissionDenial


@attrs.define
class RunOutcome:
    """Filled by a dialect while its CLI talks; `terminal` is the CLI's own last word on the turn."""

    terminal: Literal["success", "failure"] | None = None
    error_subtype: ErrorSubtype | None = None
    session_id: str | None = None
    usage: AgentUsage | None = None
    total_cost_usd: float | None = None
    api_duration_ms: float | None = None
    num_turns: int | None = None
    stop_reason: str | None = None
    structured: tuple[Any, ...] = ()  # The answer as JSON, where a CLI gives it apart from its words.
    permission_denials: list[PermissionDenial] = attrs.field(factory=list)
    # Seconds that the CLI may take to exit after its last word, if that is longer than the runtime's `linger`.
    may_stay: float = 0.0
    resets_at: float | None = None  # When a limit of the vendor's ends, in seconds since 1970.
    # While the turn goes on, for its limits:
    requests: int = 0  # To the model, as far as they are known to have begun.
    asks_again: bool = False  # The last answer of the model was to call tools; when they have ended, it is asked again.
    so_far: AgentUsage | None = None  # Tokens, where `usage` comes only at the end.
    cost_so_far: float | None = None

    @property
    def used(self) -> AgentUsage | None:
        """Tokens, as far as they are known. The account of a turn that was cut short may leave out its last request."""
        if self.usage is None or (self.terminal != "success" and _total(self.so_far) > _total(self.usage)):
            return self.so_far
        return self.usage

    @property
    def cost(self) -> float | None:
        """In USD, as far as the CLI has reported it."""
        told = [cost for cost in (self.total_cost_usd, self.cost_so_far) if cost is not None]
        return max(told, default=None)

    def succeed(self) -> None:
        """The CLI says that all went well (again, if it goes on after what looked like its last word)."""
        self.terminal = "success"
        self.error_subtype = None

    def fail(self, error_subtype: ErrorSubtype | None = None) -> None:
        """The CLI says that the turn failed."""
        self.terminal = "failure"
        self.error_subtype = error_subtype

    def add_earlier(self, earlier: RunOutcome) -> None:
        """Add an earlier turn of the CLI's in the same run."""
        for name in ("usage", "total_cost_usd", "api_duration_ms", "num_turns", "requests", "so_far", "cost_so_far"):
            before, own = getattr(earlier, name), getattr(self, name)
            if before is not None:
                setattr(self, name, before if own is None else before + own)
        self.permission_denials[:0] = earlier.permission_denials

    def reopen(self) -> None:
        """The CLI goes on after what looked like its last word."""
        self.terminal = None
        self.error_subtype = None


@attrs.frozen(kw_only=True)
class Ended:
    """How a CLI ended, and what it said to people. Secrets are masked."""

    exit_code: int | None
    stderr: str
    said: str  # stderr, and what was printed on the other stream before the first event.
    cli_version: Callable[[], str | None] = lambda: None  # Looked up when asked for: it reads files.


@attrs.frozen(kw_only=True)
class Closing:
    """What a CLI's end adds to the things it said in its lines."""

    warnings: tuple[AgentErrorEvent, ...] = ()
    cause: AgentErrorEvent | None = None  # In the CLI's own words, of an exit without a last word.
    error_subtype: ErrorSubtype | None = None  # Of the failure.
    succeeded: bool = False  # After all, though the CLI has not said so in a line.
    denials: tuple[PermissionDenial, ...] = ()
    session_id: str | None = None
    so_far: AgentUsage | None = None  # Tokens, of a turn without an account of its own.

    def applied_to(self, outcome: RunOutcome) -> RunOutcome:
        """The outcome, given this end; its usage and cost are final."""
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
    """How a turn ended, looked at once. Secrets are masked."""

    reason: EndReason
    outcome: RunOutcome = attrs.field(factory=RunOutcome)  # With what the end adds to it.
    exit_code: int | None = None
    failure: SpawnFailure | None = None
    cause: AgentErrorEvent | None = None
    warnings: tuple[AgentErrorEvent, ...] = ()
    said: str = ""  # All that the CLI said to people.
    shown: str = ""  # What of it people are shown.
    stderr: str = ""  # What of stderr alone people are shown.
    at_start: bool = False  # Before the CLI's first event.
    seconds: float | None = None  # The turn's duration, if it was not measured here.


def _total(usage: AgentUsage | None) -> int:
    return 0 if usage is None else sum(attrs.astuple(usage))
