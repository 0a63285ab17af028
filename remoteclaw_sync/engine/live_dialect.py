"""A dialect that also speaks: for a CLI whose process stays and serves many turns."""

from __future__ import annotations

import abc

from ..process.launch import FAREWELL_PATIENCE
from ..types import AgentEvent, AgentExecuteParams, Allow, Deny, PermissionMode, PermissionRequest
from ..wire.jsonrpc import Peer
from .dialect import Dialect


class LiveDialect(Dialect, abc.ABC):
    """Fed, never connected, as any dialect: it serves one process. What it has to say to the CLI by itself (a request
    that nobody knows is answered with an error) it puts into `outbox`; whoever feeds it sends that.

    `interrupt`, `steer`, `set_model` and `set_permission_mode` may be called from any thread, one at a time.
    """

    farewell_patience = FAREWELL_PATIENCE  # Seconds that the CLI may take to exit when it is asked to.

    def __init__(self) -> None:
        super().__init__()
        self.outbox: list[bytes] = []
        self.greeting = b""  # What the process is sent at its start.
        self.peer: Peer | None = None  # If it speaks JSON-RPC: its requests have time limits.

    @property
    @abc.abstractmethod
    def is_ready(self) -> bool:
        """Whether the CLI has answered the opening."""

    @property
    @abc.abstractmethod
    def has_begun(self) -> bool:
        """Whether the CLI has begun to work on the prompt of this turn."""

    @property
    def may_interrupt(self) -> bool:
        """Whether an interrupt would reach the turn, and not come too early."""
        return self.has_begun

    @property
    @abc.abstractmethod
    def has_unanswered(self) -> bool:
        """Whether words were sent that no turn of the CLI has answered yet."""

    @property
    def is_lost(self) -> bool:
        """Whether this process will not serve any further turn."""
        return False

    @property
    def word_of_tools(self) -> str | None:
        """A variable with its value that is in the environment of all tools of this conversation, and of no other."""
        return None

    @abc.abstractmethod
    def opening(self, fields: AgentExecuteParams) -> bytes:
        """What a process is sent before its first turn. `fields` are those of the session."""

    @abc.abstractmethod
    def begin_turn(self, params: AgentExecuteParams) -> bytes:
        """The prompt. From here on `outcome` is that of this turn."""

    def ask_again(self, params: AgentExecuteParams) -> bytes:
        """The prompt that the turn before was interrupted for, in the same run."""
        return self.begin_turn(params)

    @abc.abstractmethod
    def answer(self, request: PermissionRequest, decision: Allow | Deny) -> bytes:
        """The caller's answer. Nothing, if the CLI does not wait for it any more."""

    def take_told(self) -> list[AgentEvent]:
        """What has come of the answer at once: a call that was refused may have ended with it."""
        return []

    @abc.abstractmethod
    def interrupt(self) -> bytes | None:
        """What ends the turn and leaves the session; None if the CLI cannot do that."""

    def may_end_turn(self, chunk: bytes) -> bool:
        """Whether this output, which the consumer has not read yet, may be the end of the turn. Asked after an
        interrupt, in a thread of its own."""
        return False

    @abc.abstractmethod
    def steer(self, text: str) -> bytes | None:
        """Further words for the running turn; None if the CLI cannot take any."""

    @abc.abstractmethod
    def set_model(self, name: str | None) -> bytes | None:
        """Another model from now on; None if it takes another process."""

    @abc.abstractmethod
    def set_permission_mode(self, mode: PermissionMode, started_with: PermissionMode) -> bytes | None:
        """Another mode from now on; None if it takes another process than one that was started with this one."""

    @abc.abstractmethod
    def farewell(self) -> bytes:
        """What asks the CLI to exit. Its stdin is closed after that."""
