"""`CLIRuntimeBase`: what all runtimes share, and the hooks that a runtime is made of."""

from __future__ import annotations

import abc
import copy
import os
from collections import ChainMap
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, TypedDict, Unpack, get_args

import attrs

from ._values import check_choice, check_flag, check_known, check_path, check_seconds, check_size, check_text
from .clis.facts import CliFacts
from .engine.answers import asking, with_format
from .engine.dialect import Dialect, Extracted, HookDialect
from .engine.live_dialect import LiveDialect
from .engine.meter import check_limits
from .engine.outcome import Closing, Ended, RunOutcome
from .engine.python_tools import check_tools
from .engine.recorded_session import new_live_session
from .engine.resources import RunResources
from .engine.session import Session
from .engine.shared_process import SharedProcesses
from .engine.transfer import exported, imported
from .engine.transport import Transport
from .engine.turn import Turn
from .errors import WORKING_DIRECTORY_NOT_FOUND, RunSetupError, UnsupportedOperationError
from .limits import Price, Prices, as_prices
from .portable.capsule import MAX_CAPSULE_BYTES
from .portable.local import LocalSessions
from .process.child import ChildProcess
from .process.environment import host_environment
from .process.greenlets import check_host
from .process.host import host_identity
from .process.launch import FAREWELL_PATIENCE, Launch, Limits, Setup
from .recording.recorder import Recording, as_recording
from .recording.session_recorder import SessionRecorder
from .session import AgentSession
from .types import (
    AgentErrorEvent,
    AgentExecuteParams,
    AgentRunResult,
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
DEFAULT_LINGER = 2.0  # Seconds that a CLI may stay after its final message.
MAX_PENDING_BYTES = 256 * 1024 * 1024  # Unread output kept in memory before the CLI is made to wait.
DEFAULT_IDLE_TIMEOUT = 600.0  # Seconds after which the idle process of a session is let go.
NO_PROMPT = "(none)"  # For the fields of a session, which cannot be checked without a prompt; each turn has its own.
MARKER_PREFIX = "REMOTECLAW_SYNC_RUN_"


class RuntimeOptions(TypedDict, total=False):
    """What every runtime's constructor takes besides its command and timeout; see `CLIRuntimeBase`."""

    tool_timeout: float | None
    linger: float
    max_pending_bytes: int
    max_line_bytes: int
    record: str | os.PathLike[str] | Recording | None
    transport: TransportChoice
    share_process: bool
    prices: Prices | None


class CliOptions(RuntimeOptions, total=False):
    """What the constructors of all built-in runtimes take; each adds its own options."""

    command: str | os.PathLike[str] | Sequence[str]
    timeout: float | None
    prompt_syntax: PromptSyntax


class CLIRuntimeBase(Verbs):
    """Runs an agent CLI that prints one JSON object per line, and yields its output as events.

    A subclass provides `build_args`, `build_env` and `extract_event`. Each run works on a copy of the instance
    (copied, then `reset_state()`), so hooks may keep a run's state on `self`, and one instance serves any number of
    threads at once.

    Args:
        command: the program: a name to be found on PATH, a path, or a sequence (program and first arguments).
        timeout: seconds of silence after which the run is ended; None for no limit.
        tool_timeout: the same while a tool call is outstanding.
        linger: seconds that the CLI may stay after its terminal event.
        max_pending_bytes: unread output kept in memory before the CLI is made to wait.
        max_line_bytes: a longer line is skipped and reported.
        record: a file to write the CLI's output to, for `ReplayRuntime` (see recording/).
        transport: "oneshot" (a process for each prompt), "live" (one that can be talked to while it works) or "auto":
            one-shot, unless a run has `approve`.
        share_process: whether live sessions share a process if the CLI supports it and they have the same command,
            arguments and environment.
        prices: what models cost, by name ("*" for all others), or one price for all: for `max_cost_usd` and
            `total_cost_usd` if the CLI does not report costs.
    """

    provider: ClassVar[str | None] = None
    # For a CLI with a folder in `clis/`: its versions, exit codes and places.
    cli_facts: ClassVar[CliFacts | None] = None
    install_hint: ClassVar[str | None] = None
    # Whether the CLI always ends with a line that says so. If so, a run without it has failed, whatever the exit code.
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
        share_process: bool = True,
        prices: Prices | None = None,
    ) -> None:
        check_seconds("timeout", timeout)
        check_seconds("tool_timeout", tool_timeout)
        check_seconds("linger", linger, none_ok=False)
        check_size("max_pending_bytes", max_pending_bytes)
        check_size("max_line_bytes", max_line_bytes)
        self.command = _as_argv(command)
        self.timeout = timeout
        self.tool_timeout = tool_timeout
        self.linger = linger
        self.max_pending_bytes = max_pending_bytes
        self.max_line_bytes = max_line_bytes
        check_choice("transport", transport, get_args(TransportChoice))
        self.record: Recording | SessionRecorder | None = as_recording(record)
        self.transport: TransportChoice = transport
        check_flag("share_process", share_process)
        self.share_process = share_process
        self.prices: Mapping[str, Price] = as_prices(prices)
        self.processes = SharedProcesses()  # The same object in all copies.
        self.is_live = False  # True in the copy that serves a live session.
        self.outcome = RunOutcome()
        self._launched_env: dict[str, str] = {}  # The environment of the CLI that was started last.

    def new_turn(self, params: AgentExecuteParams | str, fields: RunFields) -> Turn:
        checked = self.checked(params, fields)
        if not self._goes_live(checked):
            agent = self.private_copy()
            asked = checked if checked.output_type is None else asking(agent, checked, checked.output_type)
            return Turn(Session(agent), asked)
        live_agent = self.live_copy()
        live_agent.share_process = False  # Its process ends with the run.
        asked = asking(live_agent, checked, checked.output_type)
        return new_live_session(live_agent, asked, idle_timeout=None, one_turn=True).new_turn(asked)

    def next_turn(self, params: AgentExecuteParams, before: AgentRunResult) -> Turn | None:
        if before.session_id is None:
            return None
        return self.new_turn(attrs.evolve(params, session_id=before.session_id), {})

    def open_session(self, **fields: Unpack[SessionFields]) -> AgentSession:
        """Open a conversation whose process stays between turns: many turns, approvals, interrupts.

        Takes the fields that apply to all turns, and `idle_timeout`: seconds after which an idle process is let go
        (None keeps it); the next turn then starts another one and resumes. Nothing is started before the first turn or
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
        agent = self.live_copy()
        return AgentSession(
            new_live_session(agent, asking(agent, params, params.output_type), idle_timeout=idle_timeout)
        )

    def export_session(
        self,
        session_id: str,
        *,
        working_directory: str | os.PathLike[str] | None = None,
        env: Mapping[str, str | None] | None = None,
        max_bytes: int = MAX_CAPSULE_BYTES,
        held: bool = False,
    ) -> bytes:
        """Export a session as a capsule: bytes from which `import_session` recreates it on another machine.

        The capsule contains all that was said, but not the CLI's own secrets, nor the files that the agent worked on.
        `env` has the variables that the session's runs had (HOME and the like), in the form that a run takes. `held`
        says that the caller itself has the session open, and that no turn is running.

        Raises SessionTransferError (not found, larger than `max_bytes`), SessionBusyError if a run or a live session
        has it, UnsupportedOperationError for a CLI whose sessions cannot be moved, ValueError or TypeError.
        """
        check_size("max_bytes", max_bytes)
        agent, params = self._at_rest(session_id, working_directory, env)
        return exported(agent, params, max_bytes, held=held)

    def import_session(
        self,
        data: bytes,
        *,
        working_directory: str | os.PathLike[str] | None = None,
        env: Mapping[str, str | None] | None = None,
        max_bytes: int = MAX_CAPSULE_BYTES,
        replace: bool = False,
    ) -> str:
        """Import the session in a capsule from `export_session`, for runs on this machine in this working directory.

        Returns its id, to resume it with. A session that is here already is brought up to date. If it has something
        that the capsule lacks, the call is refused, unless `replace` is True.

        Raises SessionTransferError (damaged, from another or a newer CLI, in conflict with what is here; nothing is
        changed then), SessionBusyError, UnsupportedOperationError, ValueError or TypeError.
        """
        check_size("max_bytes", max_bytes)
        check_flag("replace", replace)
        agent, params = self._at_rest(None, working_directory, env)
        return imported(agent, params, data, max_bytes, replace=replace)

    def _at_rest(
        self,
        session_id: str | None,
        working_directory: str | os.PathLike[str] | None,
        env: Mapping[str, str | None] | None,
    ) -> tuple[Self, AgentExecuteParams]:
        """An agent and params for operations on a session that no run is using."""
        fields: RunFields = {"session_id": session_id, "working_directory": working_directory, "env": env or {}}
        params = self.checked(NO_PROMPT, fields)
        agent = self.private_copy()
        agent._launched_env = agent._environment(
            params, os.path.abspath(working_directory or os.getcwd()), MARKER_PREFIX
        )
        return agent, params

    def _goes_live(self, params: AgentExecuteParams) -> bool:
        if self.transport == "oneshot" and params.approve is not None:
            raise UnsupportedOperationError("approve needs a live run, and this runtime has transport='oneshot'")
        return self.transport == "live" or params.approve is not None

    def live_copy(self) -> Self:
        """A copy for one live session. Raises UnsupportedOperationError if the CLI has no live sessions."""
        private = self.private_copy()
        if private.new_live_dialect() is None:
            raise UnsupportedOperationError(f"{self.program} has no live sessions in this package yet")
        private.is_live = True
        return private

    def checked(self, params: AgentExecuteParams | str, fields: RunFields) -> AgentExecuteParams:
        """The arguments of a verb as params, checked for this runtime. Raises ValueError or TypeError."""
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
        if params.max_cost_usd is not None or params.budget is not None:
            check_limits(self, params)
        return params if params.output_type is None else with_format(params)

    def private_copy(self) -> Self:
        """A copy for one session, so that neither it nor this runtime changes the other."""
        private = copy.copy(self)
        private.outcome = RunOutcome()
        private.reset_state()
        return private

    # --- hooks that every runtime provides ------------------------------------------------------------------

    @abc.abstractmethod
    def build_args(self, params: AgentExecuteParams) -> list[str]:
        """The arguments after the command."""

    @abc.abstractmethod
    def build_env(self, params: AgentExecuteParams) -> dict[str, str | None]:
        """Variables on top of the host's environment; None removes one. `params.env` is applied after these."""

    @abc.abstractmethod
    def extract_event(self, line: str) -> Extracted:
        """The event or events in a line (one JSON object). Return an AgentDoneEvent for the CLI's own final message:
        its fields go into the result, and the `done` that consumers see comes from the base."""

    # --- hooks with a default -------------------------------------------------------------------------------

    @property
    def supports_stdin_prompt(self) -> bool:
        """Whether the prompt is written to stdin. If not, `build_args` has to include it."""
        return True

    @property
    def ndjson_stream(self) -> Literal["stdout", "stderr"]:
        """The stream that carries the events. The tail of the other one becomes `result.stderr`."""
        return "stdout"

    def reset_state(self) -> None:
        """Prepare a fresh copy for one run."""

    def check_params(self, params: AgentExecuteParams) -> None:
        """Raise ValueError, naming the field, if this CLI cannot do what is asked."""

    def overriding_env(self, params: AgentExecuteParams) -> Mapping[str, str | None]:
        """Variables that take precedence over the caller's, because they include the caller's values."""
        return {}

    def stdin_data(self, params: AgentExecuteParams) -> bytes:
        """What is written to the CLI's stdin, which is then closed."""
        return params.prompt.encode() if self.supports_stdin_prompt else b""

    def native_schema(self, schema: Mapping[str, Any], from_start: bool) -> dict[str, Any] | None:
        """The JSON schema of an answer, in the form that the CLI's own option for it takes. None if the CLI has no such
        option, or cannot use it for this schema, or (`from_start` False) for a process that was started without it; the
        model is then told in words. When the command is built, `params.output_type.native` has the returned value."""
        return None

    def resolve(self, params: AgentExecuteParams) -> AgentExecuteParams:
        """The params, completed with what has to be looked up (the folder of a session). Raises RunSetupError."""
        return params

    def enter_run(self, params: AgentExecuteParams, resources: RunResources) -> None:
        """Make what the run needs outside the process (temporary files). `resources` is unwound after the CLI's end.

        Called in the run's own thread, in the consumer's context (contextvars), like the other hooks of the start.
        Raise RunSetupError to end the run with an `error` event with its code.
        """

    def is_life(self, chunk: bytes) -> bool:
        """Whether these whole lines (all that came at once) are a sign of life for the watchdog."""
        return True

    def may_run_tool(self, chunk: bytes) -> bool:
        """Whether output that the consumer has not read yet may be a tool call; if so, `tool_timeout` is the limit.

        Asked by the watchdog in its own thread. Override it if this CLI writes tool calls differently.
        """
        return b'"tool' in chunk

    def runs_tool(self) -> bool:
        """Whether a tool is running that no line has reported. The watchdog asks when a clock is about to run out."""
        return False

    def presentable(self, stderr: str) -> str:
        """The part of stderr that people are shown, in `result.stderr` and in error messages."""
        return stderr

    def at_exit(self, ended: Ended) -> Closing:
        """What the end of the CLI's process means: warnings, and the cause of a failed run if stderr shows it."""
        return Closing()

    def stand_in(self, params: AgentExecuteParams) -> None:
        """Tell the live dialect of a replay about its session, without looking at this machine: there is no process."""

    def remedy(self, exit_code: int | None, said: str) -> AgentErrorEvent | None:
        """If a change on `self` can cure this failed start, make it and return the warning to give: the CLI is then
        started again.

        Asked up to `most_restarts` times, and only if nothing had been said or done. `said` is what the CLI printed on
        stderr, and on the other stream if no event followed.
        """
        return None

    def facts(self) -> dict[str, Any]:
        """Facts that reading this run's lines depends on and that are not in them (the requested session, names of MCP
        servers), as JSON values: a recording keeps them. Asked when the run has been prepared."""
        return {}

    def recall(self, facts: Mapping[str, Any]) -> None:
        """Use the facts of a recorded run as those of this one; some may be missing."""

    # --- for the engine -------------------------------------------------------------------------------------

    @property
    def program(self) -> str:
        """The command as people know it."""
        return self.provider or os.path.basename(self.command[0])

    def session_store(self, params: AgentExecuteParams) -> str | None:
        """The store that the session ids belong to. Only one run at a time may write to a session; None: any number."""
        cli = self.cli_facts
        if cli is None or not cli.forks.isdisjoint(params.extra_args):
            return None
        return f"{cli.name} {os.path.realpath(cli.sessions_in(ChainMap(params.env, os.environ)))}"  # type: ignore[arg-type]

    def local_sessions(self, params: AgentExecuteParams) -> LocalSessions | None:
        """Where this CLI keeps its sessions, and how they are read and written; None if they cannot be moved."""
        return None

    def cli_version(self) -> str | None:
        """The version of the CLI that was started, if its files show it."""
        cli, path = self.cli_facts, self._launched_env.get("PATH")
        if cli is None:
            return None
        # Try all parts of the command: it may be `node .../agent.js`.
        found = (installed_version(cli, part, path) for part in self.command)
        return next((version for version in found if version is not None), None)

    def other_places(self) -> list[str]:
        """Places where the command is installed although they are not on PATH."""
        if self.provider is None or os.path.dirname(self.command[0]):
            return []
        own_folders = () if self.cli_facts is None else self.cli_facts.program_folders
        return found_elsewhere(self.command[0], self._launched_env, own_folders)

    def new_dialect(self, params: AgentExecuteParams) -> Dialect:
        """What reads the lines of a run: the hooks, unless a runtime has its own dialect."""
        return HookDialect(self)

    def new_live_dialect(self) -> LiveDialect | None:
        """The dialect for a process that stays; None if this CLI has no live sessions."""
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
            farewell_patience=FAREWELL_PATIENCE if live is None else live.farewell_patience,
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
        """The connection to the CLI."""
        return ChildProcess(setup)

    def shared_by(self, params: AgentExecuteParams) -> Hashable | None:
        """A key: sessions with the same key share a process. None if the session has its own process."""
        return None

    def _environment(self, params: AgentExecuteParams, cwd: str, marker: str) -> dict[str, str]:
        # PWD, because some CLIs trust it more than the real working directory. The marker's name is unique, so that a
        # run inside a run has both markers.
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
    if not isinstance(command, Iterable):
        raise TypeError(f"command must be a program or a sequence (program, arguments), not {type(command).__name__}")
    argv = tuple(command)
    if not argv:
        raise ValueError("command must not be empty")
    for index, part in enumerate(argv):
        check_text(f"command[{index}]", part)
    return argv
