"""The way to an agent and back. A child process is one, and so is a recording."""

from __future__ import annotations

from typing import Protocol

from ..process.ending import EndLatch, EndReason
from ..process.launch import SpawnFailure


class Transport(Protocol):
    """What a turn needs of whatever talks to it. `ChildProcess` says what each member means."""

    ending: EndLatch
    tools_outstanding: bool
    failure: SpawnFailure | None
    exit_code: int | None

    @property
    def pid(self) -> int | None: ...
    @property
    def diagnostics(self) -> str: ...
    @property
    def heard_in_time(self) -> bool: ...

    def start(self) -> None: ...
    def next_chunk(self) -> bytes | None: ...
    def expect_exit(self, expected: bool, linger: float | None = None) -> None: ...
    def request_end(self, reason: EndReason) -> None: ...
    def request_close(self) -> None: ...
    def close(self) -> object: ...
