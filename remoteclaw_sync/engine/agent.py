"""What the engine needs from each CLI's folder, so that it knows no CLI by name and imports point one way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ..clis.facts import CliFacts
from ..limits import Price
from ..process.launch import Launch, Setup
from ..recording.recorder import Recording
from ..recording.session_recorder import SessionRecorder
from ..types import AgentErrorEvent, AgentExecuteParams
from .dialect import Dialect
from .resources import RunResources
from .transport import Transport


class Agent(Protocol):
    """One CLI, for one session: how it is started. (Its dialect knows what its output means.)

    `CLIRuntimeBase` documents the members.
    """

    command: tuple[str, ...]
    timeout: float | None
    tool_timeout: float | None
    linger: float
    max_line_bytes: int
    prices: Mapping[str, Price]
    record: Recording | SessionRecorder | None

    @property
    def cli_facts(self) -> CliFacts | None: ...
    @property
    def provider(self) -> str | None: ...
    @property
    def program(self) -> str: ...
    @property
    def install_hint(self) -> str | None: ...
    @property
    def expects_terminal_event(self) -> bool: ...
    @property
    def most_restarts(self) -> int: ...

    def session_store(self, params: AgentExecuteParams, /) -> str | None: ...
    def check_params(self, params: AgentExecuteParams, /) -> None: ...
    def new_dialect(self, params: AgentExecuteParams, /) -> Dialect: ...
    def prepare(self, params: AgentExecuteParams, resources: RunResources, dialect: Dialect, /) -> Launch: ...
    def connect(self, setup: Setup, /) -> Transport: ...
    def facts(self) -> Mapping[str, Any]: ...
    def remedy(self, exit_code: int | None, said: str, /) -> AgentErrorEvent | None: ...
    def cli_version(self) -> str | None: ...
    def other_places(self) -> list[str]: ...
    def native_schema(self, schema: Mapping[str, Any], from_start: bool, /) -> dict[str, Any] | None: ...
