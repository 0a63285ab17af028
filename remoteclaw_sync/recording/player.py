"""Agents that play recordings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..engine.dialect import Dialect
from ..engine.live_dialect import LiveDialect
from ..engine.resources import RunResources
from ..engine.transport import Transport
from ..limits import Price
from ..process.launch import Launch, Limits, Setup
from ..runtime import CLIRuntimeBase
from ..types import AgentErrorEvent, AgentExecuteParams
from .cassette import Cassette, LiveCassette, Process
from .played_run import ReplayedChild
from .recorder import Recording
from .session_recorder import SessionRecorder


class Player:
    """An `Agent` (see engine/agent.py) with a runtime's dialect and no process."""

    most_restarts = 0  # The cassette holds only the last start.
    record: Recording | SessionRecorder | None = None

    def __init__(self, runtime: CLIRuntimeBase, header: Mapping[str, Any]) -> None:
        self._runtime = runtime
        self.command = runtime.command
        self.linger = runtime.linger
        self.tool_timeout: float | None = None
        self.max_line_bytes = runtime.max_line_bytes
        self.prices: Mapping[str, Price] = runtime.prices
        self.cli_facts = runtime.cli_facts
        self.provider = runtime.provider
        self.program = runtime.program
        self.install_hint = runtime.install_hint
        self.expects_terminal_event = runtime.expects_terminal_event
        timeout = header.get("timeout")
        self.timeout = timeout if isinstance(timeout, int | float) else None  # Only for an error message.

    def session_store(self, params: AgentExecuteParams) -> str | None:
        return None  # Nothing is written to the session.

    def native_schema(self, schema: Mapping[str, Any], from_start: bool) -> dict[str, Any] | None:
        return None

    def check_params(self, params: AgentExecuteParams) -> None:
        self._runtime.check_params(params)

    def new_dialect(self, params: AgentExecuteParams) -> Dialect:
        return self._runtime.new_dialect(params)

    def prepare(self, params: AgentExecuteParams, resources: RunResources, dialect: Dialect) -> Launch:
        return Launch(
            argv=self.command,
            env={},
            cwd=os.path.abspath(params.working_directory or os.getcwd()),
            stdin=dialect.greeting if isinstance(dialect, LiveDialect) else b"",
            marker="",
            limits=Limits(wall_clock=params.deadline),
            linger=self.linger,
            max_pending_bytes=self._runtime.max_pending_bytes,
            abort_signal=params.abort_signal,
        )

    def remedy(self, exit_code: int | None, said: str) -> AgentErrorEvent | None:
        return None

    def other_places(self) -> list[str]:
        return []  # This machine's places are not those of the recorded one.


class RunPlayer(Player):
    """Plays a one-shot run."""

    def __init__(self, runtime: CLIRuntimeBase, cassette: Cassette, speed: float | None) -> None:
        super().__init__(runtime, cassette.header)
        self._cassette = cassette
        self._speed = speed

    def connect(self, setup: Setup) -> Transport:
        return ReplayedChild(setup, self._cassette, self._speed)

    def facts(self) -> Mapping[str, Any]:
        return self._cassette.facts

    def cli_version(self) -> str | None:
        version = self._cassette.header.get("cli_version")
        return version if isinstance(version, str) else None


class LivePlayer(Player):
    """Plays the processes of a live session; the session chooses the current one."""

    def __init__(self, runtime: CLIRuntimeBase, cassette: LiveCassette) -> None:
        super().__init__(runtime, cassette.header)
        self.process = Process()

    def prepare(self, params: AgentExecuteParams, resources: RunResources, dialect: Dialect) -> Launch:
        self._runtime.stand_in(params)
        return super().prepare(params, resources, dialect)

    def connect(self, setup: Setup) -> Transport:
        raise NotImplementedError("the session has its own way")

    def facts(self) -> Mapping[str, Any]:
        return self.process.facts

    def cli_version(self) -> str | None:
        return self.process.cli_version
