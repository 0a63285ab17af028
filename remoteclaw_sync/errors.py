"""Exceptions and error codes.

    RemoteClawError
    ├── AgentRunError              `run()`: the run failed; carries its result and error events
    ├── SessionBusyError           a second turn on a session whose turn is not over
    ├── UnsupportedOperationError  this CLI, or this way of running it, cannot do that
    └── UnknownProviderError       `create_cli_runtime()`: also a ValueError

A run itself never raises for what the CLI does: it yields `error` events with one of the codes below and ends
with `done`. Bad arguments raise ValueError or TypeError when the call is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from .types import AgentErrorEvent, AgentRunResult

# --- codes of `error` events -----------------------------------------------------------------------------
CLI_NOT_FOUND: Final = "CLI_NOT_FOUND"
CLI_NOT_EXECUTABLE: Final = "CLI_NOT_EXECUTABLE"
WORKING_DIRECTORY_NOT_FOUND: Final = "WORKING_DIRECTORY_NOT_FOUND"
SPAWN_FAILED: Final = "SPAWN_FAILED"
CLI_ERROR: Final = "CLI_ERROR"
CLI_EXIT_ERROR: Final = "CLI_EXIT_ERROR"
CLI_INCOMPLETE: Final = "CLI_INCOMPLETE"
WATCHDOG_TIMEOUT: Final = "WATCHDOG_TIMEOUT"
DEADLINE_EXCEEDED: Final = "DEADLINE_EXCEEDED"
ABORTED: Final = "ABORTED"
LINE_TOO_LONG: Final = "LINE_TOO_LONG"
EXTRACT_EVENT_FAILED: Final = "EXTRACT_EVENT_FAILED"
CLI_WARNING: Final = "CLI_WARNING"
UNSUPPORTED_OPTION: Final = "UNSUPPORTED_OPTION"
SESSION_NOT_FOUND: Final = "SESSION_NOT_FOUND"
MCP_SERVER_FAILED: Final = "MCP_SERVER_FAILED"
MCP_CONFIG_ERROR: Final = "MCP_CONFIG_ERROR"
RECORD_FAILED: Final = "RECORD_FAILED"

# The codes above as a type. A CLI may also report a code of its own, so `AgentErrorEvent.code` is any str.
ErrorCode: TypeAlias = Literal[
    "CLI_NOT_FOUND",
    "CLI_NOT_EXECUTABLE",
    "WORKING_DIRECTORY_NOT_FOUND",
    "SPAWN_FAILED",
    "CLI_ERROR",
    "CLI_EXIT_ERROR",
    "CLI_INCOMPLETE",
    "WATCHDOG_TIMEOUT",
    "DEADLINE_EXCEEDED",
    "ABORTED",
    "LINE_TOO_LONG",
    "EXTRACT_EVENT_FAILED",
    "CLI_WARNING",
    "UNSUPPORTED_OPTION",
    "SESSION_NOT_FOUND",
    "MCP_SERVER_FAILED",
    "MCP_CONFIG_ERROR",
    "RECORD_FAILED",
]

# Errors that a run survives: they do not explain a non-zero exit or a missing answer.
SURVIVABLE: frozenset[str | None] = frozenset({LINE_TOO_LONG, EXTRACT_EVENT_FAILED, MCP_SERVER_FAILED, CLI_WARNING})


class RemoteClawError(Exception):
    """Base of all exceptions of this package."""


class RunSetupError(RemoteClawError):
    """Raised by a hook that prepares a run. The run yields an `error` event with this `code`, then `done`."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        self.code: ErrorCode = code
        super().__init__(message)


class AgentRunError(RemoteClawError):
    """A run failed. `result` is its summary, `errors` are its `error` events."""

    def __init__(self, result: AgentRunResult, errors: Sequence[AgentErrorEvent] = ()) -> None:
        self.result = result
        self.errors = tuple(errors)
        super().__init__(f"{self._cause()} [{result.error_subtype or 'unknown'}]")

    def _cause(self) -> str:
        # The last one that could have ended the run: earlier ones may be retries, which CLIs report as errors too.
        fatal = [error for error in self.errors if error.code not in SURVIVABLE] or list(self.errors)
        return fatal[-1].message if fatal else "the run failed"

    def __reduce__(self) -> tuple[type[AgentRunError], tuple[AgentRunResult, tuple[AgentErrorEvent, ...]]]:
        # By default an exception pickles only its message; this one must cross process pools with its result.
        return (type(self), (self.result, self.errors))


class SessionBusyError(RemoteClawError):
    """The session has a turn that is not over yet."""


class UnsupportedOperationError(RemoteClawError):
    """This CLI, or this way of running it, cannot do what was asked for."""


class UnknownProviderError(RemoteClawError, ValueError):
    """There is no runtime of that name. `provider` is the name, `known` lists those that exist."""

    def __init__(self, provider: object, known: Sequence[str]) -> None:
        self.provider = provider
        self.known = tuple(known)
        super().__init__(f"unknown provider {provider!r}; known are: {', '.join(self.known)}")

    def __reduce__(self) -> tuple[type[UnknownProviderError], tuple[object, tuple[str, ...]]]:
        return (type(self), (self.provider, self.known))
