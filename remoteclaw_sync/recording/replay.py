"""`ReplayRuntime`: replays a recorded run through the same threads, framer and parser as a real one."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Generator, Mapping
from typing import Any, Unpack

from .._values import check_seconds
from ..engine.agent import Agent
from ..engine.agent_run import AgentRun
from ..engine.dialect import Dialect
from ..engine.resources import RunResources
from ..engine.session import Session
from ..engine.transport import Transport
from ..engine.turn import Turn
from ..errors import RemoteClawError
from ..factory import create_cli_runtime
from ..process.child import ChildProcess
from ..process.ending import EndReason
from ..process.launch import Launch, Limits, Setup, Sink, SpawnError
from ..runtime import CLIRuntimeBase
from ..types import AgentErrorEvent, AgentEvent, AgentExecuteParams, AgentRunResult, RunFields
from ..verbs import Verbs
from .recorder import Cassette, CassetteError, Recording, read_cassette

DEFAULT_PROMPT = "(replay)"


class ReplayRuntime(Verbs):
    """Replays a cassette (see `record=` of the runtimes). Needs no CLI, no account and no network.

    It gives the events and the result of the recorded run, whatever the prompt; abort, deadline and leaving early work
    as in a real run. Any number of threads can share one instance.

    Args:
        path: the cassette. Raises OSError or CassetteError (a ValueError) when it cannot be read.
        speed: None replays without pauses, 1.0 with the recorded pauses, 2.0 twice as fast.
        runtime: parses the lines, for a CLI of your own; by default the recorded provider's runtime.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, speed: float | None = None, runtime: CLIRuntimeBase | None = None
    ) -> None:
        check_seconds("speed", speed)
        self.cassette = read_cassette(path)
        if runtime is None:
            if self.cassette.provider is None:
                raise CassetteError(f"{os.fspath(path)!r} is of a CLI of your own: pass its `runtime`")
            try:
                runtime = create_cli_runtime(self.cassette.provider)
            except RemoteClawError as error:
                raise CassetteError(f"{os.fspath(path)!r}: {error}") from error
        self._runtime = runtime
        self._speed = speed

    @property
    def provider(self) -> str | None:
        """The recorded provider."""
        return self._runtime.provider

    def execute(
        self, params: AgentExecuteParams | str = DEFAULT_PROMPT, **fields: Unpack[RunFields]
    ) -> Generator[AgentEvent, None, None]:
        """As `CLIRuntimeBase.execute`."""
        return super().execute(params, **fields)

    def start(self, params: AgentExecuteParams | str = DEFAULT_PROMPT, **fields: Unpack[RunFields]) -> AgentRun:
        """As `CLIRuntimeBase.start`."""
        return super().start(params, **fields)

    def run(
        self, params: AgentExecuteParams | str = DEFAULT_PROMPT, *, check: bool = True, **fields: Unpack[RunFields]
    ) -> AgentRunResult:
        """As `CLIRuntimeBase.run`."""
        return super().run(params, check=check, **fields)

    def new_turn(self, params: AgentExecuteParams | str, fields: RunFields) -> Turn:
        params = self._runtime.checked(params, fields)
        player = _Player(self._runtime.private_copy(), self.cassette, self._speed)
        return Turn(_PlayedSession(player, self.cassette), params)


class _PlayedSession(Session):
    """A session from a recording: its duration and its first warning are the recorded ones."""

    def __init__(self, agent: Agent, cassette: Cassette) -> None:
        super().__init__(agent)
        self._cassette = cassette
        self.remedied = cassette.remedied

    def duration(self, measured: float) -> float:
        return self._cassette.ended_at


class _Player:
    """An `Agent` with the dialect of a runtime and a recorded child process."""

    most_restarts = 0  # The cassette holds the last start only.
    record: Recording | None = None

    def __init__(self, runtime: CLIRuntimeBase, cassette: Cassette, speed: float | None) -> None:
        self._runtime = runtime
        self._cassette = cassette
        self._speed = speed
        self.command = runtime.command
        self.linger = runtime.linger
        self.tool_timeout: float | None = None
        self.max_line_bytes = runtime.max_line_bytes
        self.cli_facts = runtime.cli_facts
        self.provider = runtime.provider
        self.program = runtime.program
        self.install_hint = runtime.install_hint
        self.expects_terminal_event = runtime.expects_terminal_event
        timeout = cassette.header.get("timeout")
        self.timeout = timeout if isinstance(timeout, int | float) else None  # Only for an error message.

    def check_params(self, params: AgentExecuteParams) -> None:
        self._runtime.check_params(params)

    def new_dialect(self, params: AgentExecuteParams) -> Dialect:
        return self._runtime.new_dialect(params)

    def prepare(self, params: AgentExecuteParams, resources: RunResources, dialect: Dialect) -> Launch:
        return Launch(
            argv=self.command,
            env={},
            cwd=os.path.abspath(params.working_directory or os.getcwd()),
            stdin=b"",
            marker="",
            limits=Limits(wall_clock=params.deadline),
            linger=self.linger,
            max_pending_bytes=self._runtime.max_pending_bytes,
            abort_signal=params.abort_signal,
        )

    def connect(self, setup: Setup) -> Transport:
        return _ReplayedChild(setup, self._cassette, self._speed)

    def facts(self) -> Mapping[str, Any]:
        return self._cassette.facts

    def remedy(self, exit_code: int | None, said: str) -> AgentErrorEvent | None:
        return None

    def cli_version(self) -> str | None:
        version = self._cassette.header.get("cli_version")
        return version if isinstance(version, str) else None

    def other_places(self) -> list[str]:
        return []  # This machine's are not the recorded one's.


class _ReplayedChild(ChildProcess):
    """Ends for the recorded reason, but only after the consumer has read everything recorded until then."""

    def __init__(self, setup: Setup, cassette: Cassette, speed: float | None) -> None:
        self._unheard = len(cassette.said)
        self._end = None if cassette.reason is EndReason.EXITED else cassette.reason
        if self._end is EndReason.CLOSED:
            self._end = EndReason.ABORTED  # The recorded consumer left; the one listening now wants a `done`.
        super().__init__(setup, functools.partial(_Tape, cassette, speed, self._end is not None))

    def receive(self, timeout: float | None = None) -> bytes | None:
        if self._unheard == 0 and self._end is not None:
            self.request_end(self._end)
        chunk = super().receive(timeout)
        self._unheard -= chunk is not None
        return chunk


class _Tape:
    """A backend (see process/child.py) that reads a cassette instead of a pipe."""

    def __init__(
        self,
        cassette: Cassette,
        speed: float | None,
        stays: bool,
        launch: Launch,
        events: Sink,
        diagnostics: Sink,
    ) -> None:
        self._cassette = cassette
        self._speed = speed
        self._stays = stays  # Until it is ended, as the recorded child did.
        self._events = events
        self._diagnostics = diagnostics
        self._position = 0
        self._reading = True
        self._woken = threading.Event()
        self._started_at = 0.0
        self.pid: int | None = None
        self.exited = False
        self.events_ended = False
        self.unsent_bytes = 0

    def spawn(self) -> None:
        failure = self._cassette.failure
        if failure is not None:
            raise SpawnError(failure.code, failure.message)
        self._started_at = time.monotonic()
        if self._cassette.stderr:
            self._diagnostics(self._cassette.stderr.encode(errors="replace"))

    def send(self, data: bytes, *, last: bool) -> None:
        """The recorded run has its answers already."""

    def wait(self, timeout: float | None) -> None:
        said = self._cassette.said
        over = self._position == len(said)
        if over and not self._stays:
            if not self._sleep_until(self._cassette.ended_at, timeout):
                self.exited = self.events_ended = True
        elif over or not self._reading:
            self._woken.wait(timeout)
            self._woken.clear()
        elif not self._sleep_until(said[self._position].at, timeout):
            self._position += 1
            self._events(said[self._position - 1].data)

    def _sleep_until(self, at: float, timeout: float | None) -> bool:
        """Wait for a part of the time; returns whether there is more to wait."""
        if self._speed is None:
            return False
        left = self._started_at + at / self._speed - time.monotonic()
        if left <= 0:
            return False
        self._woken.wait(left if timeout is None else min(left, timeout))
        self._woken.clear()
        return True

    def wake(self) -> None:
        self._woken.set()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True

    def is_guarded(self) -> bool:
        return True

    def start_guard(self) -> None:
        """There is nothing to guard."""

    def terminate(self) -> None:
        self.exited = True
        self._woken.set()  # The supervisor waits once more before it looks.

    def kill(self) -> None:
        self.terminate()

    def finish(self, *, drain: bool) -> int | None:
        return self._cassette.exit_code

    def forget_after_fork(self) -> None:
        """There is nothing to let go of."""
