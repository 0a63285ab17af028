"""A conversation with one agent: how it is started, the process that serves it now, how its words are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs

from .. import errors
from ..process.ending import EndLatch, EndReason
from ..process.environment import host_environment
from ..process.launch import SpawnFailure
from ..redaction import Redactor, secrets_of_run
from ..types import AgentErrorEvent, AgentExecuteParams, Allow, Deny, PermissionRequest
from .agent import Agent
from .asking import ask
from .dialect import Dialect
from .outcome import Closing, Ended
from .reader import Reader
from .setup import RunSetup
from .startup import MAY_BE_AGE, missing_program, with_needed_version, with_place
from .transport import Transport
from .verdict import Verdict


class Session:
    """One-shot: each turn has a process of its own, which gets the prompt at its start and exits when it has
    answered."""

    is_live = False

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.params: AgentExecuteParams  # Of the turn.
        # The warning that a run which had to be started twice began with (see `Agent.remedy`).
        self.remedied: AgentErrorEvent | None = None
        self.restarts = 0
        self.redact: Redactor
        self.dialect: Dialect
        self.transport: Transport
        self.reader: Reader
        self._setup: RunSetup

    def prepare(self, params: AgentExecuteParams) -> None:
        """When the first event of a turn is asked for."""
        self.params = params
        self.redact = Redactor(secrets_of_run(params, host_environment, self.agent.command))

    def open(self, due: float | None) -> Transport:
        """A way to the agent, not yet started. `due` is when the turn has to be over."""
        self.dialect = self.agent.new_dialect(self.params)
        self._setup = RunSetup(self.agent, self.params, self.dialect, self.remedied, due)
        self.transport = self.agent.connect(self._setup)
        self.reader = Reader(self.transport, self.dialect, self.agent.max_line_bytes)
        return self.transport

    @property
    def ending(self) -> EndLatch:
        """Why the turn ends."""
        return self.transport.ending

    def start(self) -> None:
        """Have the agent begin with the turn."""
        self.transport.start()

    def listener(self) -> Callable[[], Iterator[Any] | None]:
        """Gives what the agent has said next; None when the turn is over. Blocks."""
        return self.reader.next_items

    def last_word(self, said: bool) -> None:
        """The agent has said its last word on the turn (or has not, after all)."""
        self.transport.expect_exit(said, max(self.agent.linger, self.dialect.outcome.may_stay))

    def said_meanwhile(self) -> list[AgentErrorEvent]:
        """Warnings from before the turn."""
        return []

    def answer(self, request: PermissionRequest, decision: Allow | Deny) -> None:
        """Pass on what the caller says to a request."""

    def remembers(self, request: PermissionRequest) -> bool:
        """Whether the caller has said yes to this for good; then the agent has its answer."""
        return False

    # --- for anyone -------------------------------------------------------------------------------------------

    def request_end(self, reason: EndReason) -> None:
        """Have the turn that is open ended. Does not block."""
        self.transport.request_end(reason)

    def wait_for_end(self) -> None:
        """Until nothing is left of a turn that was told to end."""
        self.transport.close()

    def steer(self, text: str) -> None:
        """Further words for the running turn. Raises UnsupportedOperationError."""
        raise errors.UnsupportedOperationError(
            f"a one-shot run of {self.agent.program} takes no further words; open_session() gives one that does"
        )

    # --- its end ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Wait until the process is gone, with all that was made for it."""
        try:
            self.transport.close()
        except BaseException:
            self.transport.request_close()  # Interrupted, perhaps before it was asked; the rest it does by itself.
            raise
        finally:
            self._setup.heard_all()

    def closing(self) -> Closing:
        """What the end of the process means."""
        transport = self.transport
        if transport.failure is not None:
            return Closing()
        stderr, said = self.redact(transport.diagnostics), self.said()
        agent = self.agent
        ended = Ended(exit_code=transport.exit_code, stderr=stderr, said=said, cli_version=agent.cli_version)
        closing = ask(self.dialect.at_exit, ended)
        if not isinstance(closing, Closing):
            closing = Closing()
        if not self.reader.preamble.is_over:
            missing = missing_program(agent.program, transport.exit_code, said)
            closing = closing if missing is None else attrs.evolve(closing, cause=missing)
        return closing

    def warnings(self, closing: Closing) -> Iterator[AgentErrorEvent]:
        """What the caller should know of the end, though it does not fail the run."""
        if self._setup.failure is not None:
            yield AgentErrorEvent(self._setup.failure, errors.CLI_WARNING)
        if not self.transport.ending.backlog_unwanted:
            yield from closing.warnings

    def said(self) -> str:
        """All that the CLI said to people: on stderr, and on the other stream where no event followed."""
        return self.redact("\n".join(filter(None, (self.transport.diagnostics, self.reader.preamble.text()))))

    def presentable(self, stderr: str) -> str:
        """What of it people are shown."""
        shown = ask(self.dialect.presentable, stderr) if stderr else ""
        return shown if isinstance(shown, str) else ""

    def duration(self, measured: float) -> float:
        """Seconds that a turn took, given those that went by here."""
        return measured

    @property
    def end_reason(self) -> EndReason:
        """What ended the turn."""
        return self.transport.ending.reason or EndReason.EXITED

    @property
    def was_not_heard(self) -> bool:
        """Whether the process was gone before it had begun with the prompt, so that another one can be asked."""
        return False

    def remedy(self) -> AgentErrorEvent | None:
        """The wish to start once more, with the warning to give, if that may cure a start that failed."""
        transport, agent = self.transport, self.agent
        failed = transport.failure is None and transport.ending.reason is EndReason.EXITED and transport.exit_code != 0
        if not failed or self.restarts >= agent.most_restarts or self.dialect.outcome.terminal is not None:
            return None
        warning = ask(agent.remedy, transport.exit_code, self.said())
        if warning is not None:
            self.restarts += 1
        return warning

    def explained(self, verdict: Verdict) -> Verdict:
        """The verdict, with what an old CLI may have to do with a failure at its start."""
        transport, agent = self.transport, self.agent
        at_start = transport.failure is None and not self.reader.preamble.is_over
        if not at_start or transport.ending.reason is not EndReason.EXITED or verdict.error is None:
            return verdict
        if agent.cli_facts is None or verdict.error_subtype not in MAY_BE_AGE:
            return verdict
        version = ask(agent.cli_version)
        return attrs.evolve(verdict, error=with_needed_version(verdict.error, agent.cli_facts, version, self.params))

    def spawn_failure(self) -> SpawnFailure | None:
        """Why there is no process, with where the command is after all, or how to install it."""
        failure = self.transport.failure
        if failure is None:
            return None
        return with_place(failure, ask(self.agent.other_places) or [], self.agent.install_hint)
