"""Exceptions and error codes.

    RemoteClawError
    ├── AgentRunError              `run()`: the run failed; carries its result and error events
    │   └── AgentOutputError       `ask()`: the answer is not what was asked for
    ├── SessionBusyError           the session has a turn that is not over, or somebody else holds it
    ├── SessionTransferError       a session cannot be exported or imported; `reason` says why
    ├── StaleSessionError          a session store has a newer state than the one to be replaced
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
SESSION_BUSY: Final = "SESSION_BUSY"
MCP_SERVER_FAILED: Final = "MCP_SERVER_FAILED"
MCP_CONFIG_ERROR: Final = "MCP_CONFIG_ERROR"
RECORD_FAILED: Final = "RECORD_FAILED"
INVALID_OUTPUT: Final = "INVALID_OUTPUT"
LIMIT_EXCEEDED: Final = "LIMIT_EXCEEDED"
REPLAY_MISMATCH: Final = "REPLAY_MISMATCH"

# The codes above as a type. A CLI may also report its own codes, so `AgentErrorEvent.code` may be any str.
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
    "SESSION_BUSY",
    "MCP_SERVER_FAILED",
    "MCP_CONFIG_ERROR",
    "RECORD_FAILED",
    "INVALID_OUTPUT",
    "LIMIT_EXCEEDED",
    "REPLAY_MISMATCH",
]

# Errors that a run survives. They do not explain a non-zero exit or a missing answer.
SURVIVABLE: frozenset[str | None] = frozenset({LINE_TOO_LONG, EXTRACT_EVENT_FAILED, MCP_SERVER_FAILED, CLI_WARNING})


class RemoteClawError(Exception):
    """Base of all exceptions of this package."""


class RunSetupError(RemoteClawError):
    """Raised by a hook that prepares a run. The run then yields an `error` event with this `code`, and `done`."""

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
        # The last one that could have ended the run. Earlier ones may be retries, which CLIs report as errors too.
        fatal = [error for error in self.errors if error.code not in SURVIVABLE] or list(self.errors)
        return fatal[-1].message if fatal else "the run failed"

    def __reduce__(self) -> tuple[type[AgentRunError], tuple[AgentRunResult, tuple[AgentErrorEvent, ...]]]:
        # By default, an exception pickles only its message; this one must pass through process pools with its result.
        return (type(self), (self.result, self.errors))


class AgentOutputError(AgentRunError):
    """The agent's answer does not fit the type that was asked for, even after it was told so. `text` is the answer."""

    @property
    def text(self) -> str:
        """The answer that does not fit."""
        return self.result.text


class SessionBusyError(RemoteClawError):
    """The session has a turn that is not over yet, or another run or live session is using it."""


class SessionHeldError(AgentRunError, SessionBusyError):
    """`run()`: the run failed because somebody else holds the session that it should resume."""


def run_failure(result: AgentRunResult, errors: Sequence[AgentErrorEvent] = ()) -> AgentRunError:
    """The exception for a run that failed."""
    if result.error_subtype == "invalid_output":
        return AgentOutputError(result, errors)
    return (SessionHeldError if result.error_subtype == "session_busy" else AgentRunError)(result, errors)


TransferObstacle: TypeAlias = Literal[
    "not_found",
    "damaged",
    "newer_format",
    "newer_cli",
    "other_provider",
    "too_large",
    "unsafe",
    "local_newer",
    "diverged",
    "cli_failed",
]


class SessionTransferError(RemoteClawError):
    """A session cannot be exported or imported. `reason` says why; nothing has been changed.

    "not_found": the CLI has no such session; "damaged": not a complete capsule; "newer_format": made by a newer version
    of this package; "newer_cli": made by a newer CLI than the one here; "other_provider": made by another CLI;
    "too_large"; "unsafe": has a name or a place that must not be written to; "local_newer": the session here has all
    that the capsule has, and more; "diverged": each has something that the other lacks; "cli_failed": the CLI's own
    export or import failed.
    """

    def __init__(self, reason: TransferObstacle, message: str) -> None:
        self.reason: TransferObstacle = reason
        super().__init__(message)

    def __reduce__(self) -> tuple[type[SessionTransferError], tuple[TransferObstacle, str]]:
        return (type(self), (self.reason, str(self)))


class StaleSessionError(RemoteClawError):
    """The store's state of the session is not the one that should be replaced: somebody else has saved meanwhile.
    `generation` is that of the state in the store now; 0 if it has none."""

    def __init__(self, generation: int, message: str) -> None:
        self.generation = generation
        super().__init__(message)

    def __reduce__(self) -> tuple[type[StaleSessionError], tuple[int, str]]:
        return (type(self), (self.generation, str(self)))


class UnsupportedOperationError(RemoteClawError):
    """This CLI, or this way of running it, cannot do what was asked for."""


class UnknownProviderError(RemoteClawError, ValueError):
    """There is no runtime with that name. `provider` is the name, `known` lists those that exist."""

    def __init__(self, provider: object, known: Sequence[str]) -> None:
        self.provider = provider
        self.known = tuple(known)
        super().__init__(f"unknown provider {provider!r}; known are: {', '.join(self.known)}")

    def __reduce__(self) -> tuple[type[UnknownProviderError], tuple[object, tuple[str, ...]]]:
        return (type(self), (self.provider, self.known))
