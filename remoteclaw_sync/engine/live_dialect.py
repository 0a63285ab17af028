"""A dialect that also sends: for a CLI whose process stays and serves many turns."""

from __future__ import annotations

import abc

from ..process.launch import FAREWELL_PATIENCE
from ..types import AgentEvent, AgentExecuteParams, Allow, Deny, PermissionMode, PermissionRequest
from ..wire.jsonrpc import Peer
from .dialect import Dialect


class LiveDialect(Dialect, abc.ABC):
    """Serves one process. Like any dialect, it is fed and never connected. Messages that it sends to the CLI on its own
    (such as an error in reply to an unknown request) go into `outbox`; the code that feeds the dialect sends them.

    `interrupt`, `steer`, `set_model` and `set_permission_mode` may be called from any thread, one at a time.
    """

    farewell_patience = FAREWELL_PATIENCE  # Seconds that the CLI may take to exit after it was asked to.

    def __init__(self) -> None:
        super().__init__()
        self.outbox: list[bytes] = []
        self.greeting = b""  # What the process is sent at its start.
        self.peer: Peer | None = None  # If the CLI speaks JSON-RPC; requests to it have time limits.

    @property
    @abc.abstractmethod
    def is_ready(self) -> bool:
        """Whether the CLI has answered the opening messages."""

    @property
    @abc.abstractmethod
    def has_begun(self) -> bool:
        """Whether the CLI has begun to work on the prompt of this turn."""

    @property
    def may_interrupt(self) -> bool:
        """Whether an interrupt would reach the turn now, instead of coming too early."""
        return self.has_begun

    @property
    @abc.abstractmethod
    def has_unanswered(self) -> bool:
        """Whether text was sent that no turn of the CLI has answered yet."""

    @property
    def is_lost(self) -> bool:
        """Whether this process will not serve any further turn."""
        return False

    @property
    def word_of_tools(self) -> str | None:
        """A variable (`NAME=value`) that all tools of this conversation, and no others, have in their environment."""
        return None

    @abc.abstractmethod
    def opening(self, fields: AgentExecuteParams) -> bytes:
        """What a process is sent before its first turn. `fields` are those of the session."""

    @abc.abstractmethod
    def begin_turn(self, params: AgentExecuteParams) -> bytes:
        """The message with the prompt. From here on `outcome` is that of this turn."""

    def ask_again(self, params: AgentExecuteParams) -> bytes:
        """The message with the text for which the previous turn was interrupted, in the same run."""
        return self.begin_turn(params)

    @abc.abstractmethod
    def answer(self, request: PermissionRequest, decision: Allow | Deny) -> bytes:
        """The message with the caller's answer. Empty if the CLI no longer waits for it."""

    def take_told(self) -> list[AgentEvent]:
        """Events that follow from the answer at once: a refused call may have ended with it."""
        return []

    @abc.abstractmethod
    def interrupt(self) -> bytes | None:
        """The message that ends the turn and keeps the session; None if the CLI cannot do that."""

    def may_end_turn(self, chunk: bytes) -> bool:
        """Whether this output, which the consumer has not read yet, may be the end of the turn. Asked after an
        interrupt, in a separate thread."""
        return False

    @abc.abstractmethod
    def steer(self, text: str) -> bytes | None:
        """The message that adds text to the running turn; None if the CLI cannot take any."""

    @abc.abstractmethod
    def set_model(self, name: str | None) -> bytes | None:
        """The message that switches the model from now on; None if that needs a new process."""

    @abc.abstractmethod
    def set_permission_mode(self, mode: PermissionMode, started_with: PermissionMode) -> bytes | None:
        """The message that switches the mode from now on; None if a process that was started with `started_with` cannot
        switch to it, so that a new one is needed."""

    @abc.abstractmethod
    def farewell(self) -> bytes:
        """The message that asks the CLI to exit. Its stdin is closed after it."""
