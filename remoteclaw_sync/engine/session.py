"""A conversation with one agent: how it is started, the process that serves it now, how its words are read."""

from __future__ import annotations

import attrs

from .. import errors
from ..process.ending import EndReason
from ..process.environment import host_environment
from ..process.launch import Exit, SpawnFailure
from ..redaction import Redactor, secrets_of_run
from ..types import AgentErrorEvent, AgentExecuteParams
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

    def __init__(self, agent: Agent, params: AgentExecuteParams) -> None:
        self.agent = agent
        self.params = params
        self.redact = Redactor(secrets_of_run(params, host_environment, agent.command))
        # The warning that a run which had to be started twice began with (see `Agent.remedy`).
        self.remedied: AgentErrorEvent | None = None
        self._restarts = 0
        self.dialect: Dialect
        self.transport: Transport
        self.reader: Reader
        self._setup: RunSetup
        self._exit: Exit | None = None
        self.ended: Ended  # From `end` on.

    def open(self, due: float | None) -> Transport:
        """A way to the agent, not yet started. `due` is when the turn has to be over."""
        self._exit = None
        self.dialect = self.agent.new_dialect(self.params)
        self._setup = RunSetup(self.agent, self.params, self.dialect, self.remedied, due)
        self.transport = self.agent.connect(self._setup)
        self.reader = Reader(self.transport, self.dialect, self.agent.max_line_bytes)
        return self.transport

    def close(self) -> Exit:
        """Wait until the process is gone, with all that was made for it. Does nothing a second time."""
        if self._exit is None:
            try:
                self._exit = self.transport.close()
            except BaseException:
                self.transport.request_close()  # Interrupted, perhaps before it was asked; the rest it does by itself.
                raise
            finally:
                self._setup.heard_all()
        return self._exit

    # --- its end ----------------------------------------------------------------------------------------------

    def end(self) -> Closing:
        """Wait for the end of the process, and say what it means."""
        end, agent = self.close(), self.agent
        stderr = said = self.redact(end.diagnostics)
        if words := self.reader.preamble.text():
            said = self.redact("\n".join(filter(None, (end.diagnostics, words))))
        self.ended = Ended(exit_code=end.code, stderr=stderr, said=said, cli_version=agent.cli_version)
        if end.failure is not None:
            return Closing()
        closing = ask(self.dialect.at_exit, self.ended)
        if not isinstance(closing, Closing):
            closing = Closing()
        if not self.reader.preamble.is_over:
            missing = missing_program(agent.program, end.code, said)
            closing = closing if missing is None else attrs.evolve(closing, cause=missing)
        return closing

    def warnings(self, closing: Closing) -> list[AgentErrorEvent]:
        """What the caller should know of the end, though it does not fail the run."""
        warnings = [] if self.transport.ending.backlog_unwanted else [*closing.warnings]
        if self._setup.failure is not None:
            warnings.insert(0, AgentErrorEvent(self._setup.failure, errors.CLI_WARNING))
        return warnings

    def presentable(self, stderr: str) -> str:
        """What of it people are shown."""
        shown = ask(self.dialect.presentable, stderr) if stderr else ""
        return shown if isinstance(shown, str) else ""

    def duration(self, measured: float) -> float:
        """Seconds that a turn took, given those that went by here."""
        return measured

    def remedy(self) -> AgentErrorEvent | None:
        """The wish to start once more, with the warning to give, if that may cure a start that failed."""
        end, agent = self.close(), self.agent
        failed = end.failure is None and end.reason is EndReason.EXITED and end.code != 0
        if not failed or self._restarts >= agent.most_restarts or self.dialect.outcome.terminal is not None:
            return None
        warning = ask(agent.remedy, end.code, self.ended.said)
        if warning is not None:
            self._restarts += 1
        return warning

    def explained(self, verdict: Verdict) -> Verdict:
        """The verdict, with what an old CLI may have to do with a failure at its start."""
        end, cli = self.close(), self.agent.cli_facts
        at_start = end.failure is None and end.reason is EndReason.EXITED and not self.reader.preamble.is_over
        if not at_start or cli is None or verdict.error is None or verdict.error_subtype not in MAY_BE_AGE:
            return verdict
        version = ask(self.agent.cli_version)
        return attrs.evolve(verdict, error=with_needed_version(verdict.error, cli, version, self.params))

    def spawn_failure(self) -> SpawnFailure | None:
        """Why there is no process, with where the command is after all, or how to install it."""
        failure = self.close().failure
        if failure is None:
            return None
        return with_place(failure, ask(self.agent.other_places) or [], self.agent.install_hint)
