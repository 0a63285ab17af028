"""A conversation with one agent: how it is started, which process serves it now, and how its output is read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import ClassVar, ParamSpec, Protocol, TypeVar

import attrs

from .. import errors
from ..process.ending import EndLatch, EndReason
from ..process.environment import host_environment
from ..process.launch import Exit, SpawnFailure
from ..redaction import Redactor, secrets_of_run
from ..types import AgentErrorEvent, AgentEvent, AgentExecuteParams, Allow, Deny, PermissionRequest
from ..wire.json_lines import LineReader
from .agent import Agent
from .dialect import Dialect
from .outcome import Closing, Ended, RunOutcome, TurnEnd
from .setup import RunSetup
from .startup import MAY_BE_AGE, missing_program, with_needed_version, with_place
from .transport import Transport
from .verdict import Verdict

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class Gate(Protocol):
    """Limits how many turns run at once. `wake` may be called from any thread, the rest from the consumer's."""

    def enter(self, is_unwanted: Callable[[], bool], due: float | None, /) -> bool:
        """Wait until a turn may begin. False if it became unwanted or due first."""

    def leave(self) -> None:
        """Called when the turn is over, or did not begin. A second call does nothing."""

    def wake(self) -> None:
        """Have a waiting turn check whether it is still wanted."""


@attrs.define(slots=False, eq=False)
class Session:
    """One-shot: each turn has its own process, which gets the prompt when it starts and exits when it has answered."""

    is_live: ClassVar[bool] = False

    agent: Agent
    gate: Gate | None = attrs.field(init=False, default=None)  # Limits how many turns run at once.
    params: AgentExecuteParams = attrs.field(init=False)  # Of the turn.
    # If the run had to be started twice: the warning that the second start began with (see `Agent.remedy`).
    remedied: AgentErrorEvent | None = attrs.field(init=False, default=None)
    restarts: int = attrs.field(init=False, default=0)
    meanwhile: list[AgentErrorEvent] = attrs.field(init=False, factory=list)  # Warnings from before the turn.
    dialect: Dialect = attrs.field(init=False)
    transport: Transport = attrs.field(init=False)
    reader: LineReader = attrs.field(init=False)
    _setup: RunSetup = attrs.field(init=False)
    _redactor: Redactor | None = attrs.field(init=False, default=None)

    def prepare(self, params: AgentExecuteParams) -> None:
        """Called when the first event of a turn is asked for."""
        self.params = params
        self._redactor = None

    def redact(self, text: str) -> str:
        """The text without the secrets of the turn. These are collected at the first text: most turns need none."""
        if text and self._redactor is None:
            self._redactor = Redactor(secrets_of_run(self.params, host_environment, self.agent.command))
        return self._redactor(text) if text and self._redactor is not None else text

    def open(self, due: float | None) -> Transport:
        """A connection to the agent, not yet started. `due` is when the turn has to be over."""
        self.dialect = self.agent.new_dialect(self.params)
        signal = self.params.abort_signal
        self._setup = RunSetup(self.agent, self.params, self.dialect, self.remedied, due, signal)
        self.transport = self.agent.connect(self._setup)
        self.reader = LineReader(self.dialect.parse, self.agent.max_line_bytes)
        return self.transport

    def so_far(self) -> RunOutcome:
        """What the agent has said about the turn up to now."""
        return self.dialect.outcome

    @property
    def ending(self) -> EndLatch:
        """Why the turn ends."""
        return self.transport.ending

    def start(self) -> None:
        """Have the agent begin the turn."""
        self.transport.start()

    def listener(self) -> Callable[[], bytes | None]:
        """A function that returns the agent's next output: b"" when the turn is over, None when the process is gone
        too. The function blocks."""
        return self.transport.receive

    def last_word(self, said: bool) -> bool:
        """The agent has sent the final message of the turn (or, after all, has not). Returns whether it came before the
        process was told to end."""
        transport = self.transport
        transport.expect_exit(said, max(self.agent.linger, self.dialect.outcome.may_stay))
        return transport.heard_in_time

    def answer(self, request: PermissionRequest, decision: Allow | Deny) -> None:
        """Pass on the caller's answer to a request."""

    def answered(self) -> Sequence[AgentEvent]:
        """Events that follow from that answer at once. They are yielded before the agent says more."""
        return ()

    def remembers(self, request: PermissionRequest) -> bool:
        """Whether the caller has approved this for the rest of the session. If so, the agent gets its answer here."""
        return False

    # --- for anyone -------------------------------------------------------------------------------------------

    def request_end(self, reason: EndReason) -> None:
        """Have the open turn ended. Does not block."""
        self.transport.request_end(reason)

    def wait_for_end(self) -> None:
        """Wait until nothing is left of a turn that was told to end."""
        self.transport.close()

    def steer(self, text: str, interrupt: bool) -> None:
        """Add text to the running turn, which may be interrupted for it. Raises UnsupportedOperationError."""
        raise errors.UnsupportedOperationError(
            f"a one-shot run of {self.agent.program} takes no further words; open_session() gives one that does"
        )

    # --- its end ----------------------------------------------------------------------------------------------

    def close(self) -> Exit:
        """Wait until the process is gone and all that was made for it is removed."""
        try:
            return self.transport.close()
        except BaseException:
            self.transport.request_close()  # Interrupted, perhaps before it could ask; the supervisor does the rest.
            raise
        finally:
            if self._setup.recorder is not None:
                self._setup.recorder.heard()

    def finish(self) -> TurnEnd:
        """Close the turn. Returns how it ended."""
        exit = self.close()
        stderr, preamble = self.redact(exit.diagnostics), self.reader.preamble
        said = stderr if not preamble else self.redact("\n".join(filter(None, (exit.diagnostics, preamble))))
        closing = self.closing(exit, stderr, said)
        warnings = closing.warnings if exit.reason is EndReason.EXITED else ()
        resources = self._setup.resources
        if resources is not None and resources.failure is not None:
            warnings = (AgentErrorEvent(resources.failure, errors.CLI_WARNING), *warnings)
        shown = self._presentable(stderr) if stderr else ""
        return TurnEnd(
            reason=exit.reason,
            outcome=closing.applied_to(self.dialect.outcome),
            exit_code=exit.code,
            failure=None if exit.failure is None else self._with_place(exit.failure),
            cause=closing.cause,
            warnings=warnings,
            said=said,
            shown=shown if said == stderr else self._presentable(said),
            stderr=shown,
            at_start=exit.failure is None and not self.reader.has_events,
        )

    def closing(self, exit: Exit, stderr: str, said: str) -> Closing:
        """What the end of the process means."""
        if exit.failure is not None:
            return Closing()
        agent = self.agent
        ended = Ended(exit_code=exit.code, stderr=stderr, said=said, cli_version=agent.cli_version)
        closing = ask(self.dialect.at_exit, ended)
        if not isinstance(closing, Closing):
            closing = Closing()
        if not self.reader.has_events:
            missing = missing_program(agent.program, exit.code, said)
            closing = closing if missing is None else attrs.evolve(closing, cause=missing)
        return closing

    def _presentable(self, stderr: str) -> str:
        """The part of stderr that people are shown."""
        shown = ask(self.dialect.presentable, stderr)
        return shown if isinstance(shown, str) else ""

    def _with_place(self, failure: SpawnFailure) -> SpawnFailure:
        """The failure, with where the command really is or how to install it."""
        return with_place(failure, ask(self.agent.other_places) or [], self.agent.install_hint)

    @property
    def was_not_heard(self) -> bool:
        """Whether the process was gone before it had begun to work on the prompt, so that another one can be asked."""
        return False

    def remedy(self, end: TurnEnd) -> AgentErrorEvent | None:
        """The warning to give before a second start, if that may cure a failed one; else None."""
        failed = end.failure is None and end.reason is EndReason.EXITED and end.exit_code != 0
        if not failed or self.restarts >= self.agent.most_restarts or self.dialect.outcome.terminal is not None:
            return None
        warning = ask(self.agent.remedy, end.exit_code, end.said)
        if warning is not None:
            self.restarts += 1
        return warning

    def explained(self, verdict: Verdict, end: TurnEnd) -> Verdict:
        """The verdict, which for a failure at the start mentions the CLI's version if that is too old."""
        cli, error = self.agent.cli_facts, verdict.error
        if error is None or cli is None or not end.at_start or end.reason is not EndReason.EXITED:
            return verdict
        if verdict.error_subtype not in MAY_BE_AGE:
            return verdict
        return attrs.evolve(verdict, error=with_needed_version(error, cli, ask(self.agent.cli_version), self.params))


def ask(hook: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """What a hook returns about a run that has ended; None if it raises, because `done` must come whatever happens."""
    try:
        return hook(*args, **kwargs)
    except Exception as error:
        # Not the exception itself: its message may quote a value of the environment.
        logger.error("%s raised %s", hook.__qualname__, type(error).__name__)
        return None
