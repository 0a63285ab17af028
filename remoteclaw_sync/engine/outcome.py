"""What a CLI has said about a turn, and what its end adds to that. Plain values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import attrs

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
    permission_denials: list[PermissionDenial] = attrs.field(factory=list)
    # Seconds that the CLI may take to exit after its last word, if that is longer than the runtime's `linger`.
    may_stay: float = 0.0

    def succeed(self) -> None:
        """The CLI says that all went well (again, if it goes on after what looked like its last word)."""
        self.terminal = "success"
        self.error_subtype = None

    def fail(self, error_subtype: ErrorSubtype | None = None) -> None:
        """The CLI says that the turn failed."""
        self.terminal = "failure"
        self.error_subtype = error_subtype

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

    def applied_to(self, outcome: RunOutcome) -> RunOutcome:
        """The outcome, given this end."""
        return attrs.evolve(
            outcome,
            terminal="success" if self.succeeded else outcome.terminal,
            error_subtype=self.error_subtype or outcome.error_subtype,
            session_id=self.session_id or outcome.session_id,
            permission_denials=[*outcome.permission_denials, *self.denials],
        )
