"""The verdict at the end of a turn, from all that is known of it."""

from __future__ import annotations

import signal
from collections.abc import Mapping

import attrs

from .. import errors
from ..process.ending import EndReason
from ..process.launch import SpawnFailure
from ..process.spawn_errors import lacks_interpreter
from ..types import AgentErrorEvent, ErrorSubtype
from .classify import classify_error
from .outcome import RunOutcome

STDERR_IN_MESSAGE = 2_000  # Characters of the stderr tail that an error message quotes.

WAS_ABORTED = "the run was aborted"

SPAWN_SUBTYPES: dict[str, ErrorSubtype] = {
    errors.CLI_NOT_FOUND: "cli_missing",
    errors.CLI_NOT_EXECUTABLE: "cli_missing",
    errors.WORKING_DIRECTORY_NOT_FOUND: "config",
    errors.UNSUPPORTED_OPTION: "config",
    errors.MCP_CONFIG_ERROR: "config",
    errors.SESSION_NOT_FOUND: "session_not_found",
}


@attrs.frozen(kw_only=True)
class Evidence:
    """All that is known when a run has ended."""

    program: str
    exit_codes: Mapping[int, ErrorSubtype]
    end_reason: EndReason
    spawn_failure: SpawnFailure | None
    exit_code: int | None
    diagnostics: str
    outcome: RunOutcome
    finished_in_time: bool  # The CLI's last word came before it was told to end.
    answered: bool
    expects_terminal: bool
    errors_seen: tuple[AgentErrorEvent, ...]
    timeout: float | None
    deadline: float | None
    explained_exit: AgentErrorEvent | None


@attrs.frozen
class Verdict:
    """What the run's end adds: an error that nobody has reported yet, and the kind of failure (None: success)."""

    error: AgentErrorEvent | None = None
    error_subtype: ErrorSubtype | None = None


def judge(evidence: Evidence) -> Verdict:
    """The real cause, once. Success needs evidence: the CLI's word, or exit 0 with an answer."""
    if evidence.spawn_failure is not None:
        code, message = evidence.spawn_failure.code, evidence.spawn_failure.message
        # A program without its interpreter is as good as missing.
        otherwise: ErrorSubtype = "cli_missing" if lacks_interpreter(message) else "crash"
        return Verdict(AgentErrorEvent(message, code), SPAWN_SUBTYPES.get(code, otherwise))
    reason = evidence.end_reason
    if reason is EndReason.ABORTED:
        return Verdict(AgentErrorEvent(WAS_ABORTED, errors.ABORTED), "aborted")
    if reason is EndReason.CLOSED:
        return Verdict(None, "aborted")
    if evidence.outcome.terminal is None or not evidence.finished_in_time:
        if reason is EndReason.WATCHDOG:
            message = f"{evidence.program} was silent for too long (timeout {_seconds(evidence.timeout)})"
            return Verdict(AgentErrorEvent(message, errors.WATCHDOG_TIMEOUT), "timeout")
        if reason is EndReason.DEADLINE:
            message = f"the run did not end within its deadline ({_seconds(evidence.deadline)})"
            return Verdict(AgentErrorEvent(message, errors.DEADLINE_EXCEEDED), "timeout")
    if evidence.outcome.terminal is None:
        return _judge_exit(evidence)
    if evidence.outcome.terminal == "failure":
        return _judge_reported_failure(evidence)
    return Verdict()


def _judge_reported_failure(evidence: Evidence) -> Verdict:
    cause = _reported_cause(evidence)
    subtype = evidence.outcome.error_subtype or (_classify(cause, evidence) if cause else "unknown")
    if cause is not None:
        return Verdict(None, subtype)
    return Verdict(AgentErrorEvent(f"{evidence.program} reported a failure", errors.CLI_ERROR), subtype)


def _judge_exit(evidence: Evidence) -> Verdict:
    """The CLI is gone without a last word."""
    cause = _reported_cause(evidence)
    ended_by_us = evidence.end_reason is EndReason.LINGERED
    if evidence.exit_code in (0, None) or ended_by_us:
        if evidence.answered and not evidence.expects_terminal and not ended_by_us:
            return Verdict()
        if cause is not None:
            return Verdict(None, _classify(cause, evidence))
        if evidence.explained_exit is not None:
            return Verdict(evidence.explained_exit, _subtype_of_exit(evidence, evidence.explained_exit))
        return Verdict(AgentErrorEvent(_describe_incomplete(evidence), errors.CLI_INCOMPLETE), "incomplete")
    if cause is not None:
        return Verdict(None, _classify(cause, evidence))
    error = evidence.explained_exit or AgentErrorEvent(_describe_exit(evidence), errors.CLI_EXIT_ERROR)
    return Verdict(error, _subtype_of_exit(evidence, error))


def _reported_cause(evidence: Evidence) -> AgentErrorEvent | None:
    """The last error the CLI told of that it may have died from."""
    fatal = [error for error in evidence.errors_seen if error.code not in errors.SURVIVABLE]
    return fatal[-1] if fatal else None


def _classify(error: AgentErrorEvent, evidence: Evidence) -> ErrorSubtype:
    if evidence.outcome.error_subtype:
        return evidence.outcome.error_subtype
    found = classify_error(error.message, code=error.code, exit_code=evidence.exit_code, exit_codes=evidence.exit_codes)
    return found.error_subtype


def _subtype_of_exit(evidence: Evidence, error: AgentErrorEvent) -> ErrorSubtype:
    subtype = SPAWN_SUBTYPES.get(error.code or "") or _classify(error, evidence)
    return "crash" if subtype == "unknown" else subtype


def _describe_exit(evidence: Evidence) -> str:
    code = evidence.exit_code
    assert code is not None
    how = f"exited with code {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"
    return f"{evidence.program} {how}{_quote(evidence.diagnostics)}"


def _describe_incomplete(evidence: Evidence) -> str:
    what = "ended without saying that it had finished" if evidence.answered else "ended without an answer"
    return f"{evidence.program} {what}{_quote(evidence.diagnostics)}"


def _quote(diagnostics: str) -> str:
    tail = diagnostics.strip()
    if len(tail) > STDERR_IN_MESSAGE:
        tail = "..." + tail[-STDERR_IN_MESSAGE:]
    return f": {tail}" if tail else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _seconds(value: float | None) -> str:
    return "none" if value is None else f"{value:g} s"
