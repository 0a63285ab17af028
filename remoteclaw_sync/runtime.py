"""`CLIRuntimeBase`: what all runtimes share, and the hooks that make one."""

from __future__ import annotations

import abc
import copy
import json
import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, ClassVar, Literal, TypedDict, Unpack

import attrs

from ._values import check_known, check_path, check_seconds, check_size, check_text
from .clis.facts import CliFacts
from .engine.agent_run import AgentRun, RunControl, remember
from .engine.interpreter import Extracted, Interpreter
from .engine.python_tools import check_tools
from .engine.resources import RunResources
from .engine.turn import drive
from .engine.verdict import RunOutcome
from .errors import WORKING_DIRECTORY_NOT_FOUND, AgentRunError, RunSetupError
from .process.child import ChildProcess
from .process.environment import host_environment
from .process.greenlets import check_host
from .process.host import host_identity
from .process.launch import Launch, Setup
from .recording.recorder import Recorder, Recording, as_recording
from .types import AgentErrorEvent, AgentEvent, AgentExecuteParams, AgentRunResult, PromptSyntax, RunFields
from .versions import found_elsewhere, installed_version
from .wire.json_lines import MAX_LINE_BYTES, decode, is_strict_json, parse_line

DEFAULT_TIMEOUT = 300.0  # Seconds of silence.
DEFAULT_TOOL_TIMEOUT = 1800.0  # Seconds of silence while a tool runs: a long build prints nothing.
DEFAULT_LINGER = 2.0  # Seconds a CLI may stay after its last word.
MAX_PENDING_BYTES = 256 * 1024 * 1024  # Unread output kept in memory before the CLI is made to wait.
MARKER_PREFIX = "REMOTECLAW_SYNC_RUN_"


class RuntimeOptions(TypedDict, total=False):
    """What every runtime's constructor takes beside its command and timeout; see `CLIRuntimeBase`."""

    tool_timeout: float | None
    linger: float
    max_pending_bytes: int
    max_line_bytes: int
    record: str | os.PathLike[str] | Recording | None


class CliOptions(RuntimeOptions, total=False):
    """What the constructors of the built-in runtimes all take; each adds its own."""

    command: str | os.PathLike[str] | Sequence[str]
    timeout: float | None
    prompt_syntax: PromptSyntax


class CLIRuntimeBase(abc.ABC):
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
    """

    provider: ClassVar[str | None] = None
    install_hint: ClassVar[str | None] = None
    # Of a CLI with a folder in `clis/`: its versions, exit codes and places.
    cli_facts: ClassVar[CliFacts | None] = None
    # The warning that a run which had to be started twice began with (see `remedy`).
    remedied: AgentErrorEvent | None = None
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
        self.record = as_recording(record)
        self._recorder: Recorder | None = None
        self.outcome = RunOutcome()
        self._launched_env: dict[str, str] = {}  # Of the CLI that was started last.

    # --- the three verbs ------------------------------------------------------------------------------------

    def execute(
        self, params: AgentExecuteParams | str, **fields: Unpack[RunFields]
    ) -> Generator[AgentEvent, None, None]:
        """Run the CLI and yield its events, the last of them `done`. Blocks while waiting for the next.

        Takes an AgentExecuteParams, or a prompt and its other fields as keywords. Bad arguments raise here
        (ValueError, TypeError); nothing is started before the first `next()`; what goes wrong later is an `error`
        event. Leaving early (`close()`, `break`, an exception) ends the CLI and all it started.
        """
        events, control = self._new_run(params, fields)
        remember(events, control)
        return events

    def start(self, params: AgentExecuteParams | str, **fields: Unpack[RunFields]) -> AgentRun:
        """The same run as a handle: an iterator and context manager with `abort()`, `close()`, `pid`, `result`.

        Does not block: the CLI is started when the first event is asked for. Raises as `execute()` does.
        """
        return AgentRun(*self._new_run(params, fields))

    def run(
        self, params: AgentExecuteParams | str, *, check: bool = True, **fields: Unpack[RunFields]
    ) -> AgentRunResult:
        """Run to the end and return the summary. Blocks until then.

        Raises AgentRunError (with the result and the `error` events) if the run failed, unless `check` is False, and
        ValueError or TypeError for bad arguments.
        """
        events, control = self._new_run(params, fields)
        reported: list[AgentErrorEvent] = []
        with closing(events):
            for event in events:
                if isinstance(event, AgentErrorEvent):
                    reported.append(event)
        assert control.result is not None
        if check and not control.result.ok:
            raise AgentRunError(control.result, reported)
        return control.result

    def _new_run(
        self, params: AgentExecuteParams | str, fields: RunFields
    ) -> tuple[Generator[AgentEvent, None, None], RunControl]:
        if fields:
            check_known("there is no field", fields, RunFields.__annotations__)
        if isinstance(params, str):
            params = AgentExecuteParams(params, **fields)
        elif not isinstance(params, AgentExecuteParams):
            raise TypeError(f"params must be an AgentExecuteParams or a prompt, not {type(params).__name__}")
        elif fields:
            params = attrs.evolve(params, **fields)
        check_host()
        check_tools(params)
        self.check_params(params)
        private = copy.copy(self)
        private.outcome = RunOutcome()
        private.reset_state()
        control = RunControl()
        return drive(private, params, control), control

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

    def stdin_data(self, params: AgentExecuteParams) -> bytes:
        """What is written to the CLI's stdin, which is closed after it."""
        return params.prompt.encode() if self.supports_stdin_prompt else b""

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

    def explain_exit(self, exit_code: int | None, stderr: str) -> AgentErrorEvent | None:
        """The CLI's own words for an exit without a terminal event, if its stderr has them."""
        return None

    def presentable(self, stderr: str) -> str:
        """What of stderr people are shown, in `result.stderr` and in error messages."""
        return stderr

    def warnings_in(self, stderr: str) -> Iterable[AgentErrorEvent]:
        """What the CLI told only on stderr that the caller should know, and that does not fail the run."""
        return ()

    def remedy(self, exit_code: int | None, stderr: str) -> AgentErrorEvent | None:
        """A failed start that a change on `self` can cure: the warning to give, after which the CLI is started again.

        Asked `most_restarts` times, only when nothing had been said or done. `stderr` has also what the CLI printed on
        the other stream where no event followed.
        """
        return None

    def facts(self) -> dict[str, Any]:
        """What this run's lines are read by and do not say themselves (the session asked for, names of MCP servers), as
        JSON values: a recording keeps it. Asked when the run has been prepared; see `learn` for what comes later."""
        return {}

    def recall(self, facts: Mapping[str, Any]) -> None:
        """Take the facts of a recorded run for those of this one; some may be missing."""

    def enrich_result(self, result: AgentRunResult) -> AgentRunResult:
        """Add what this runtime knows to the result (`attrs.evolve`)."""
        return result

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

    def interpreter(self) -> Interpreter:
        """From lines to events; lines that are not JSON objects are logged and skipped."""
        extract_event = self.extract_event

        def read(raw: bytes) -> Extracted:
            line = decode(raw)
            if parse_line(line) is None:
                return None
            try:
                return extract_event(line.strip())
            except json.JSONDecodeError:
                # Our parser lets raw control characters inside strings pass. For a hook that does not, such a line is
                # malformed as any other.
                if is_strict_json(line):
                    raise
                return None

        return Interpreter(type(self).__name__, lambda block: block.split(b"\n"), read)

    def heard_all(self) -> None:
        """The consumer is done with what this start of the CLI said."""
        if self._recorder is not None:
            self._recorder.heard()

    def learn(self, facts: Mapping[str, Any]) -> None:
        """Have a recording keep further facts, for `recall`."""
        if self._recorder is not None:
            self._recorder.learned(facts)

    def take_reported_result(self, reported: AgentRunResult) -> None:
        """The CLI's last word, given by a hook as an AgentDoneEvent."""
        outcome = self.outcome
        if reported.error_subtype is None:
            outcome.succeed()
        else:
            outcome.fail(reported.error_subtype)
        outcome.session_id = reported.session_id or outcome.session_id
        outcome.usage = reported.usage or outcome.usage
        outcome.stop_reason = reported.stop_reason or outcome.stop_reason
        outcome.permission_denials.extend(reported.permission_denials)
        for name in ("total_cost_usd", "api_duration_ms", "num_turns"):
            if getattr(reported, name) is not None:
                setattr(outcome, name, getattr(reported, name))

    def prepare(self, params: AgentExecuteParams, resources: RunResources) -> Launch:
        """Everything that is needed to start the child."""
        try:
            cwd = os.path.abspath(params.working_directory or os.getcwd())
        except FileNotFoundError as error:
            message = "the current directory of this process does not exist any more; give a working_directory"
            raise RunSetupError(WORKING_DIRECTORY_NOT_FOUND, message) from error
        marker = MARKER_PREFIX + os.urandom(8).hex()
        self.enter_run(params, resources)
        self._launched_env = self._environment(params, cwd, marker)
        life_is_everything = type(self).is_life is CLIRuntimeBase.is_life
        launch = Launch(
            argv=(*self.command, *self.build_args(params)),
            env=self._launched_env,
            cwd=cwd,
            stdin=self.stdin_data(params),
            marker=marker,
            events_on=self.ndjson_stream,
            timeout=self.timeout,
            tool_timeout=self.tool_timeout,
            deadline=resources.time_left(),
            linger=self.linger,
            max_pending_bytes=self.max_pending_bytes,
            max_line_bytes=self.max_line_bytes,
            may_run_tool=self.may_run_tool,
            is_life=None if life_is_everything else self.is_life,
            abort_signal=params.abort_signal,
            loans=tuple(resources.loans),
        )
        if self.record is None:
            return launch
        recorder = self.record.start(params, launch, self.provider, self.cli_version())
        resources.callback(recorder.close)
        self._recorder = recorder
        facts = self.facts()
        if self.remedied is not None:
            facts["remedied"] = self.remedied.to_dict()
        if facts:
            self.learn(facts)
        return attrs.evolve(launch, observer=recorder)

    def new_child(self, setup: Setup) -> ChildProcess:
        """The child itself. A runtime that has none to start gives one that acts as if."""
        return ChildProcess(setup)

    def _environment(self, params: AgentExecuteParams, cwd: str, marker: str) -> dict[str, str]:
        # PWD, because some CLIs believe it rather than the real working directory. The marker's name is unique, so
        # that a run inside a run carries both.
        env = host_environment()
        env["PWD"] = cwd
        for name, value in (*self.build_env(params).items(), *params.env.items()):
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
