"""What to start and how to look after it, as plain values."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import attrs

from .ending import EndLatch, EndReason

StreamName = Literal["stdout", "stderr"]
Sink = Callable[[bytes], None]  # Takes what a stream gave, in the thread that read it.


class Loan(Protocol):
    """Something of the user's that the child needs only at its start (a config file that carries our additions)."""

    def is_over(self, chunk: bytes) -> bool:
        """Whether this output shows that the child needs it no longer."""

    def give_back(self) -> None:
        """Return it. Called more than once, from any thread; does not raise."""

    def forget_after_fork(self) -> None:
        """In a forked copy of the host: it is the original's to return."""


class Observer(Protocol):
    """Is told what a child says and how it ends, in the supervisor's thread. Must be quick and must not raise."""

    def said(self, chunk: bytes) -> None:
        """These bytes came on the events stream."""

    def ended(self, reason: EndReason, exit_code: int | None, diagnostics: str, failure: SpawnFailure | None) -> None:
        """The child is gone, or never came to be."""


@attrs.frozen(kw_only=True)
class Launch:
    """One child: its program, its input and its limits (seconds and bytes; None is no limit)."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = attrs.field(repr=False)
    cwd: str
    stdin: bytes = attrs.field(repr=False)
    marker: str
    events_on: StreamName = "stdout"
    timeout: float | None
    tool_timeout: float | None
    deadline: float | None
    linger: float
    max_pending_bytes: int
    max_line_bytes: int = 1 << 26
    # Says whether these whole lines of the events stream are a sign of life; None: every line is.
    is_life: Callable[[bytes], bool] | None = None
    # Says whether a tool may be running when this was the last that was heard; None: it may not.
    may_run_tool: Callable[[bytes], bool] | None = None
    # Says whether a tool runs that no line has told of. Asked when a clock is about to run out.
    runs_tool: Callable[[], bool] | None = None
    abort_signal: threading.Event | None = None
    loans: tuple[Loan, ...] = ()
    observer: Observer | None = None


class Setup(Protocol):
    """Makes what a child needs before its start and takes it away after its end, both in the supervisor's thread:
    Ctrl-C, and whatever else is raised into the consumer's, cannot come between a thing and its clean-up there."""

    @property
    def abort_signal(self) -> threading.Event | None:
        """What the caller sets to have the run ended, from before there is a Launch."""

    def prepare(self, ending: EndLatch) -> Launch | None:
        """What to start; None if `ending` has a reason not to. Raises SpawnError."""

    def clean_up(self) -> None:
        """Take away what was made, whether or not all of it was. Does not raise."""

    def forget_after_fork(self) -> None:
        """In a forked copy of the host: it is the original's to take away."""


@attrs.frozen
class Ready:
    """The setup of a child that needs nothing made."""

    launch: Launch

    @property
    def abort_signal(self) -> threading.Event | None:
        return self.launch.abort_signal

    def prepare(self, ending: EndLatch) -> Launch:
        return self.launch

    def clean_up(self) -> None:
        """There is nothing to take away."""

    def forget_after_fork(self) -> None:
        """Loans apart, there is nothing to forget."""
        for loan in self.launch.loans:
            loan.forget_after_fork()


@attrs.frozen
class SpawnFailure:
    """Why there is no child: an error code of ours and a sentence that says what to do."""

    code: str
    message: str


class SpawnError(Exception):
    """Raised inside the process layer only; reaches the consumer as its `failure`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.failure = SpawnFailure(code, message)
