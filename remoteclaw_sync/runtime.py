"""`CLIRuntimeBase`: what all runtimes share, and the hooks that make one."""

from __future__ import annotations

import abc
import copy
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, TypedDict, Unpack, get_args

import attrs

from ._values import check_choice, check_known, check_path, check_seconds, check_size, check_text
from .clis.facts import CliFacts
from .engine.dialect import Dialect, Extracted, HookDialect
from .engine.live_dialect import LiveDialect
from .engine.live_session import LiveSession
from .engine.outcome import Closing, Ended, RunOutcome
from .engine.python_tools import check_tools
from .engine.resources import RunResources
from .engine.session import Session
from .engine.transport import Transport
from .engine.turn import Turn
from .errors import WORKING_DIRECTORY_NOT_FOUND, RunSetupError, UnsupportedOperationError
from .process.child import ChildProcess
from .process.environment import host_environment
from .process.greenlets import check_host
from .process.host import host_identity
from .process.launch import Launch, Limits, Setup
from .recording.recorder import Recording, as_recording
from .session import AgentSession
from .types import (
    AgentErrorEvent,
    AgentExecuteParams,
    PromptSyntax,
    RunFields,
    SessionFields,
    TransportChoice,
)
from .verbs import Verbs
from .versions import found_elsewhere, installed_version
from .wire.json_lines import MAX_LINE_BYTES

DEFAULT_TIMEOUT = 300.0  # Seconds of silence.
DEFAULT_TOOL_TIMEOUT = 1800.0  # Seconds of silence while a tool runs: a long build prints nothing.
DEFAULT_LINGER = 2.0  # Seconds a CLI may stay after its last word.
MAX_PENDING_BYTES = 256 * 1024 * 1024  # Unread output kept in memory before the CLI is made to wait.
DEFAULT_IDLE_TIMEOUT = 600.0  # Seconds after which the idle process of a session is let go.
NO_PROMPT = "(none)"  # Stands in the fields of a session, which need one to be checked; each turn has its own.
MARKER_PREFIX = "REMOTECLAW_SYNC_RUN_"


class RuntimeOptions(TypedDict, total=False):
    """What every runtime's constructor takes beside its command and timeout; see `CLIRuntimeBase`."""

    tool_timeout: float | None
    linger: float
    max_pending_bytes: int
    max_line_bytes: int
    record: str | os.PathLike[str] | Recording | None
    transport: TransportChoice


class CliOptions(RuntimeOptions, total=False):
    """What the constructors of the built-in runtimes all take; each adds its own."""

    command: str | os.PathLike[str] | Sequence[str]
    timeout: float | None
    prompt_syntax: PromptSyntax


class CLIRuntimeBase(Verbs):
    """Runs an agent CLI that prints one JSON object a line, and yields what it says as events.

    A subclass gives `build_args`, `build_env` and `extract_event`. Each run works on a copy of the instance
    (copied, then `reset_state()`), so hooks may keep a run's state on `self`, and one instance serves any number of
    threads at once.

    Args:
        command: the program: a name looked for on PATH, a path, or a sequence (program and first arguments).
        timeout: seconds of silence after which the run is ended; None for no limit.
        tool_timeout: the same while a tool call is outstanding.
        linger: seconds the CLI may stay after its terminal event.
        max_pending_bytes: unread output kept in memory before the CLI is made to wait.
        max_line_bytes: a longer line is skipped and reported.
        record: write what the CLI says to this file, for `ReplayRuntime` (see record.py).
        transport: "oneshot" (a process for each prompt), "live" (one that can be talked to while it works) or "auto":
            one-shot, unless a run has `approve`.
    """

    provider: ClassVar[str | None] = None
    # Of a CLI with a folder in `clis/`: its versions, exit codes and places.
    cli_facts: ClassVar[CliFacts | None] = None
    install_hint: ClassVar[str | None] = None
    # Whether the CLI always ends with a line that says so: then its absence is a failure, whatever the exit code.
    expects_terminal_event: ClassVar[bool] = False
    # How many failed starts of one run `remedy` may cure.
    most_restarts: ClassVar[int] = 1

    def __init__(
        self,
        command: str | os.PathLike[str] | Sequence[str],
        timeout: float | None = DEFAULT_TIMEOUT,
        *,
        tool_timeout: float | None = DEFAULT_TOOL_TIMEOUT,
        linger: float = DEFAULT_LINGER,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        max_line_bytes: int = MAX_LINE_BYTES,
        record: str | os.PathLike[str] | Recording | None = None,
        transport: TransportChoice = "auto",
    ) -> None:
        check_seconds("timeout", timeout)
        check_seconds("tool_timeout", tool_timeout)
        check_seconds("linger", linger)
        check_size("max_pending_bytes", max_pending_bytes)
        check_size("max_line_bytes", max_line_bytes)
        self.command = _as_argv(command)
        self.timeout = timeout
        self.tool_timeout = tool_timeout
        self.linger = linger
        self.max_pending_bytes = max_pending_bytes
        self.max_line_bytes = max_line_bytes
        check_choice("transport", transport, get_args(TransportChoice))
        self.record = as_recording(record)
        self.transport: TransportChoice = transport
        self.is_live = False  # True in the copy that serves a live session.
        self.outcome = RunOutcome()
        self._launched_env: dict[str, str] = {}  # Of the CLI that was started last.

    def new_turn(self, params: AgentExecuteParams | str, fields: RunFields) -> Turn:
        checked = self.checked(params, fields)
        if not self._goes_live(checked):
            return Turn(Session(self.private_copy()), checked)
        live = LiveSession(self.live_copy(), checked, idle_timeout=None, one_turn=True)
        return live.new_turn(checked)

    def open_session(self, **fields: Unpack[SessionFields]) -> AgentSession:
        """A conversation with a process that stays: many turns, approvals, interrupts.

        Takes the fields that hold for all turns, and `idle_timeout`: seconds after which an idle process is let go
        (None keeps it); the next turn starts another one and resumes. Nothing is started before the first turn or
        `warm()`. Raises UnsupportedOperationError for a CLI without live sessions, ValueError or TypeError for bad
        arguments.
        """
        check_known("a session has no field", fields, SessionFields.__annotations__)
        idle_timeout = fields.pop("idle_timeout", DEFAULT_IDLE_TIMEOUT)
        check_seconds("idle_timeout", idle_timeout)
        run_fields: RunFields = {**fields}  # type: ignore[typeddict-item]
        params = self.checked(NO_PROMPT, run_fields)
        if self.transport == "oneshot":
            raise UnsupportedOperationError("a runtime with transport='oneshot' has no live sessions")
        return AgentSession(LiveSession(self.live_copy(), params, idle_timeout=idle_timeout))

    def _goes_live(self, params: AgentExecuteParams) -> bool:
        if self.transport == "oneshot" and params.approve is not None:
            raise UnsupportedOperationError("approve needs a live run, and this runtime has transport='oneshot'")
        return self.transport == "live" or params.approve is not None

    def live_copy(self) -> Self:
        """For one live session. Raises UnsupportedOperationError if there are none."""
        private = self.private_copy()
        if private.new_live_dialect() is None:
            raise UnsupportedOperationError(f"{self.program} has no live sessions in this package yet")
        if private.record is not None:
            raise UnsupportedOperationError("live sessions cannot be recorded yet; use a runtime without record=")
        private.is_live = True
        return private

    def checked(self, params: AgentExecuteParams | str, fields: RunFields) -> AgentExecuteParams:
        """What the verbs were given, as params that this runtime can do. Raises ValueError or TypeError."""
        if fields:
            check_known("there is no field", fields, RunFields.__annotations__)
        if isinstance(params, str):
            params = AgentExecuteParams(params, **fields)
        elif not isinstance(params, AgentExecuteParams):
            raise TypeError(f"params must be an AgentExecuteParams or a prompt, not {type(params).__name__}")
        elif fields:
            params = attrs.evolve(params, **fields)
        check_host()
        if params.tools:
            check_tools(params)
        self.check_params(params)
        return params

    def private_copy(self) -> Self:
        """For one session, so that neither it nor this runtime changes the other."""
        private = copy.copy(self)
        private.outcome = RunOutcome()
        private.reset_state()
        return private

    # --- hooks that every runtime gives ---------------------------------------------------------------------

    @abc.abstractmethod
    def build_args(self, params: AgentExecuteParams) -> list[str]:
        """The arguments after the command."""

    @abc.abstractmethod
    def build_env(self, params: AgentExecuteParams) -> dict[str, str | None]:
        """Variables on top of the host's environment; None removes one. `params.env` is applied after these."""

    @abc.abstractmethod
    def extract_event(self, line: str) -> Extracted:
        """What a line (one JSON object) means. An AgentDoneEvent is the CLI's own last word: its fields go into the
        result, and the `done` that consumers see comes from the base."""

    # --- hooks with a default -------------------------------------------------------------------------------

    @property
    def supports_stdin_prompt(self) -> bool:
        """Whether the prompt goes to stdin. If not, `build_args` has to carry it."""
        return True

    @property
    def ndjson_stream(self) -> Literal["stdout", "stderr"]:
        """The stream that carries the events. The tail of the other one becomes `result.stderr`."""
        return "stdout"

    def reset_state(self) -> None:
        """Prepare a fresh copy for one run."""

    def check_params(self, params: AgentExecuteParams) -> None:
        """Raise ValueError, naming the field, for what this CLI cannot do."""

    def overriding_env(self, params: AgentExecuteParams) -> Mapping[str, str | None]:
        """Variables that go before the caller's own, because they contain them."""
        return {}

    def stdin_data(self, params: AgentExecuteParams) -> bytes:
        """What is written to the CLI's stdin, which is closed after it."""
        return params.prompt.encode() if self.supports_stdin_prompt else b""

    def resolve(self, params: AgentExecuteParams) -> AgentExecuteParams:
        """The params with what they leave to be looked up (the folder of a session). Raises RunSetupError."""
        return params

    def enter_run(self, params: AgentExecuteParams, resources: RunResources) -> None:
        """Make what the run needs outside the process (temporary files); `resources` is unwound after the CLI's end.

        Called in the run's own thread, in the consumer's context (contextvars), as the other hooks of its start are.
        Raise RunSetupError to end the run with an `error` event of its code.
        """

    def is_life(self, chunk: bytes) -> bool:
        """Whether these lines (whole ones, as many as came at once) are a sign of life for the watchdog."""
        return True

    def may_run_tool(self, chunk: bytes) -> bool:
        """Whether output that the consumer has not read yet may be a tool call: then `tool_timeout` is the limit.

        Asked by the watchdog in a thread of its own. Override it if this CLI has other words for a tool call.
        """
        return b'"tool' in chunk

    def runs_tool(self) -> bool:
        """Whether a tool runs that no line has told of. Asked by the watchdog when a clock is about to run out."""
        return False

    def presentable(self, stderr: str) -> str:
        """What of stderr people are shown, in `result.stderr` and in error messages."""
        return stderr

    def at_exit(self, ended: Ended) -> Closing:
        """What the end of the CLI's process means: the cause of a failed run if its stderr tells it, warnings."""
        return Closing()

    def remedy(self, exit_code: int | None, said: str) -> AgentErrorEvent | None:
        """A failed start that a change on `self` can cure: the warning to give, after which the CLI is started again.

        Asked `most_restarts` times, only when nothing had been said or done. `said` is what the CLI printed on stderr,
        and on the other stream where no event followed.
        """
        return None

    def facts(self) -> dict[str, Any]:
        """What this run's lines are read by and do not say themselves (the session asked for, names of MCP servers), as
        JSON values: a recording keeps it. Asked when the run has been prepared."""
        return {}

    def recall(self, facts: Mapping[str, Any]) -> None:
        """Take the facts of a recorded run for those of this one; some may be missing."""

    # --- for the engine -------------------------------------------------------------------------------------

    @property
    def program(self) -> str:
        """The command as people know it."""
        return self.provider or os.path.basename(self.command[0])

    def cli_version(self) -> str | None:
        """The version of the CLI that was started, if its files tell."""
        cli, path = self.cli_facts, self._launched_env.get("PATH")
        if cli is None:
            return None
        # Any part of the command: it may be `node .../agent.js`.
        found = (installed_version(cli, part, path) for part in self.command)
        return next((version for version in found if version is not None), None)

    def other_places(self) -> list[str]:
        """Where the command is installed, though it is not on PATH."""
        if self.provider is None or os.path.dirname(self.command[0]):
            return []
        own_folders = () if self.cli_facts is None else self.cli_facts.program_folders
        return found_elsewhere(self.command[0], self._launched_env, own_folders)

    def new_dialect(self, params: AgentExecuteParams) -> Dialect:
        """How the lines of a run are read: by the hooks, unless a runtime has a dialect of its own."""
        return HookDialect(self)

    def new_live_dialect(self) -> LiveDialect | None:
        """How one talks with a process of this CLI that stays; None if it has none."""
        return None

    def prepare(self, params: AgentExecuteParams, resources: RunResources, dialect: Dialect) -> Launch:
        """Everything that is needed to start the child."""
        params = self.resolve(params)
        try:
            cwd = os.path.abspath(params.working_directory or os.getcwd())
        except FileNotFoundError as error:
            message = "the current directory of this process does not exist any more; give a working_directory"
            raise RunSetupError(WORKING_DIRECTORY_NOT_FOUND, message) from error
        marker = MARKER_PREFIX + os.urandom(8).hex()
        self.enter_run(params, resources)
        self._launched_env = self._environment(params, cwd, marker)
        life_is_everything = type(dialect).is_life is Dialect.is_life
        live = dialect if isinstance(dialect, LiveDialect) else None
        return Launch(
            argv=(*self.command, *self.build_args(params)),
            env=self._launched_env,
            cwd=cwd,
            stdin=self.stdin_data(params) if live is None else live.greeting,
            stdin_stays_open=live is not None,
            farewell=None if live is None else live.farewell(),
            marker=marker,
            events_on=self.ndjson_stream,
            limits=Limits(self.timeout, self.tool_timeout, resources.time_left()),
            linger=self.linger,
            max_pending_bytes=self.max_pending_bytes,
            max_line_bytes=self.max_line_bytes,
            may_run_tool=dialect.may_run_tool,
            runs_tool=dialect.runs_tool,
            is_life=None if life_is_everything else dialect.is_life,
            abort_signal=params.abort_signal,
            loans=tuple(resources.loans),
        )

    def connect(self, setup: Setup) -> Transport:
        """The way to the CLI."""
        return ChildProcess(setup)

    def _environment(self, params: AgentExecuteParams, cwd: str, marker: str) -> dict[str, str]:
        # PWD, because some CLIs believe it rather than the real working directory. The marker's name is unique, so
        # that a run inside a run carries both.
        env = host_environment()
        env["PWD"] = cwd
        layers = self.build_env(params), params.env, self.overriding_env(params)
        for name, value in (item for layer in layers for item in layer.items()):
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value
        env[marker] = host_identity()
        return env


def _as_argv(command: str | os.PathLike[str] | Sequence[str]) -> tuple[str, ...]:
    if isinstance(command, str | os.PathLike):
        check_path("command", command)
        return (os.fspath(command),)
    argv = tuple(command)
    if not argv:
        raise ValueError("command must not be empty")
    for index, part in enumerate(argv):
        check_text(f"command[{index}]", part)
    return argv
