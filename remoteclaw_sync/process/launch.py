"""What to start and how to look after it, as plain values."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import attrs

from .. import errors
from .ending import EndLatch, EndReason

FAREWELL_PATIENCE = 2.0  # Seconds from asking a child to exit to ending it by force.
MAX_UNSENT_BYTES = 1 << 26  # The most that may wait for a child that does not read its stdin.
StreamName = Literal["stdout", "stderr"]
Sink = Callable[[bytes], None]  # Takes what was read from a stream, in the thread that read it.


class Phase(enum.Enum):
    """What a child is doing, as far as its clocks are concerned."""

    STARTING = "starting"
    TURN = "working on a turn"
    IDLE = "waiting for the next turn"
    ENDING = "asked to exit"


@attrs.frozen
class Limits:
    """How long a phase may take, in seconds; None means no limit.

    Attributes:
        silence: without a sign of life from the child.
        silence_in_tool: the same while a tool runs. Without `silence` there is no silence clock at all.
        wall_clock: from the beginning of the phase, whatever the child prints.
        is_over: whether this output of the child ends the phase. While the consumer has not read it, the wall clock
            waits.
    """

    silence: float | None = None
    silence_in_tool: float | None = None
    wall_clock: float | None = None
    is_over: Callable[[bytes], bool] | None = None


class Loan(Protocol):
    """Something that belongs to the user and that the child needs only at its start (a config file with our
    additions)."""

    def is_over(self, chunk: bytes) -> bool:
        """Whether this output shows that the child no longer needs it."""

    def give_back(self) -> None:
        """Return it. May be called more than once and from any thread; does not raise."""

    def forget_after_fork(self) -> None:
        """In a forked copy of the host: it is the parent's to return."""


class Observer(Protocol):
    """Gets what a child prints and how it ends, in the supervisor's thread. Must be quick and must not raise."""

    def said(self, chunk: bytes) -> None:
        """These bytes came on the events stream."""

    def ended(self, reason: EndReason, exit_code: int | None, diagnostics: str, failure: SpawnFailure | None) -> None:
        """The child is gone, or was never started."""


class Exchange(Protocol):
    """Takes what a child prints, in place of a consumer, and passes it on to several. All methods are called in the
    supervisor's thread, except for `forget_after_fork`."""

    def said(self, chunk: bytes) -> None:
        """These bytes came on the events stream."""

    def logged(self) -> None:
        """There was a sign of life on the other stream."""

    def look(self, now: float) -> float:
        """Do what is due; returns when to check again."""

    def gone(self) -> None:
        """The child has ended, or was never started, and what was made for it has been removed."""

    def forget_after_fork(self) -> None:
        """In a forked copy of the host: nothing will ever arrive again."""


@attrs.frozen(kw_only=True)
class Launch:
    """One child: its program, its input and its limits (seconds and bytes; None means no limit).

    `stdin` is sent first. Unless `stdin_stays_open`, the child's stdin is closed after that. `farewell` asks an idle
    child to exit; without one, or if the child has not exited within `farewell_patience`, it is ended by force.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = attrs.field(repr=False)
    cwd: str
    stdin: bytes = attrs.field(repr=False)
    stdin_stays_open: bool = False
    farewell: bytes | None = attrs.field(default=None, repr=False)
    farewell_patience: float = FAREWELL_PATIENCE
    marker: str
    events_on: StreamName = "stdout"
    limits: Limits = Limits()  # Of the first phase.
    linger: float
    max_pending_bytes: int
    max_unsent_bytes: int = MAX_UNSENT_BYTES
    max_line_bytes: int = 1 << 26
    # Whether these whole lines of the events stream are a sign of life; None: every line is.
    is_life: Callable[[bytes], bool] | None = None
    # Whether a tool may be running if this was the last output; None: it may not.
    may_run_tool: Callable[[bytes], bool] | None = None
    # Whether a tool is running now, if the CLI itself does not report it; called when a clock runs out.
    runs_tool: Callable[[], bool] | None = None
    abort_signal: threading.Event | None = None
    loans: tuple[Loan, ...] = ()
    observer: Observer | None = None


class Setup(Protocol):
    """Makes what a child needs before its start and removes it after its end, both in the supervisor's thread: there,
    Ctrl-C and other exceptions in the consumer's thread cannot prevent the clean-up."""

    @property
    def abort_signal(self) -> threading.Event | None:
        """The event that the caller sets to end the run; needed even before there is a Launch."""

    def prepare(self, ending: EndLatch) -> Launch | None:
        """What to start; None if `ending` has a reason not to. Raises SpawnError."""

    def clean_up(self) -> None:
        """Remove what was made, even if not all of it was. Does not raise."""

    def forget_after_fork(self) -> None:
        """In a forked copy of the host: it is the parent's to remove."""


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
        """Does nothing: nothing was made."""

    def forget_after_fork(self) -> None:
        """Forget the loans; there is nothing else."""
        for loan in self.launch.loans:
            loan.forget_after_fork()


@attrs.frozen
class SpawnFailure:
    """Why there is no child: one of our error codes, and a sentence that says what to do."""

    code: str
    message: str


@attrs.frozen
class Exit:
    """How a child ended, or why there never was one (`failure`). `code` is None if it is not known."""

    code: int | None
    reason: EndReason
    diagnostics: str
    failure: SpawnFailure | None


@attrs.frozen(eq=False)
class Strays:
    """What an interrupted turn may have left: processes of its run that began in this time, and whose parents are gone.
    (The CLI's own helpers are its children, and a server of an earlier turn is the parent of its workers.)

    `since`, `until`: in the units of `sweep.boot_ticks`. `word`: a variable (`NAME=value`) that they have in their
    environment.
    """

    since: int
    until: int
    word: str | None = None
    told: set[tuple[int, bytes]] = attrs.field(factory=set)  # Those that have been asked to end.


class UnreadInputError(errors.RemoteClawError):
    """Raised by `send()`: the child does not read its stdin, and the buffer is full."""


class SpawnError(Exception):
    """Raised only inside the process layer; reaches the consumer as its `failure`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.failure = SpawnFailure(code, message)
