"""The verdict at the end of a turn, from all that is known about it."""

from __future__ import annotations

import signal

import attrs

from .. import errors
from ..process.ending import EndReason
from ..process.spawn_errors import lacks_interpreter
from ..types import AgentErrorEvent, ErrorSubtype
from .agent import Agent
from .classify import classify_error
from .outcome import TurnEnd

STDERR_IN_MESSAGE = 2_000  # Characters of the stderr tail that an error message quotes.

WAS_ABORTED = "the run was aborted"
USED_TOO_MUCH = "the run was ended by one of its limits"

SPAWN_SUBTYPES: dict[str, ErrorSubtype] = {
    errors.CLI_NOT_FOUND: "cli_missing",
    errors.CLI_NOT_EXECUTABLE: "cli_missing",
    errors.WORKING_DIRECTORY_NOT_FOUND: "config",
    errors.UNSUPPORTED_OPTION: "config",
    errors.MCP_CONFIG_ERROR: "config",
    errors.REPLAY_MISMATCH: "config",
    errors.SESSION_NOT_FOUND: "session_not_found",
    errors.SESSION_BUSY: "session_busy",
    errors.WATCHDOG_TIMEOUT: "timeout",
}


@attrs.frozen(kw_only=True)
class Evidence:
    """All that is known when a run has ended."""

    agent: Agent
    end: TurnEnd
    finished_in_time: bool  # The CLI's final message came before it was told to end.
    answered: bool
    errors_seen: tuple[AgentErrorEvent, ...]
    deadline: float | None
    is_live: bool = False  # The process should have outlived the turn, so even exit code 0 is a failure.
    over: str | None = None  # The limit that the run has exceeded, in words.


@attrs.frozen
class Verdict:
    """What the end of the run adds: an error that was not reported yet, and the kind of failure (None: success)."""

    error: AgentErrorEvent | None = None
    error_subtype: ErrorSubtype | None = None


def judge(evidence: Evidence) -> Verdict:
    """Report the real cause, once. Success needs evidence: the CLI's own report, or exit 0 with an answer."""
    if evidence.end.reason is EndReason.LIMIT:
        return exceeded(evidence.over or USED_TOO_MUCH)
    if evidence.end.failure is not None:
        code, message = evidence.end.failure.code, evidence.end.failure.message
        # A program without its interpreter is as good as missing.
        otherwise: ErrorSubtype = "cli_missing" if lacks_interpreter(message) else "crash"
        return Verdict(AgentErrorEvent(message, code), SPAWN_SUBTYPES.get(code, otherwise))
    reason = evidence.end.reason
    if reason is EndReason.ABORTED:
        return Verdict(AgentErrorEvent(WAS_ABORTED, errors.ABORTED), "aborted")
    if reason is EndReason.CLOSED:
        return Verdict(None, "aborted")
    if evidence.end.outcome.terminal is None or not evidence.finished_in_time:
        if reason is EndReason.WATCHDOG:
            message = f"{evidence.agent.program} was silent for too long (timeout {_seconds(evidence.agent.timeout)})"
            return Verdict(AgentErrorEvent(message, errors.WATCHDOG_TIMEOUT), "timeout")
        if reason is EndReason.DEADLINE:
            message = f"the run did not end within its deadline ({_seconds(evidence.deadline)})"
            return Verdict(AgentErrorEvent(message, errors.DEADLINE_EXCEEDED), "timeout")
    if evidence.end.outcome.terminal is None:
        return _judge_exit(evidence)
    if evidence.end.outcome.terminal == "failure":
        return _judge_reported_failure(evidence)
    return Verdict()


def exceeded(words: str) -> Verdict:
    """The verdict on a run that used more than it may."""
    return Verdict(AgentErrorEvent(words, errors.LIMIT_EXCEEDED), "limit")


def _judge_reported_failure(evidence: Evidence) -> Verdict:
    cause = _reported_cause(evidence)
    subtype = evidence.end.outcome.error_subtype or (_classify(cause, evidence) if cause else "unknown")
    if cause is not None:
        return Verdict(None, subtype)
    return Verdict(AgentErrorEvent(f"{evidence.agent.program} reported a failure", errors.CLI_ERROR), subtype)


def _judge_exit(evidence: Evidence) -> Verdict:
    """The verdict on a CLI that exited without a final message."""
    cause = _reported_cause(evidence)
    ended_by_us = evidence.end.reason is EndReason.LINGERED
    if evidence.end.exit_code is None or ended_by_us or (evidence.end.exit_code == 0 and not evidence.is_live):
        if evidence.answered and not evidence.agent.expects_terminal_event and not ended_by_us:
            return Verdict()
        if cause is not None:
            return Verdict(None, _classify(cause, evidence))
        if evidence.end.cause is not None:
            return Verdict(evidence.end.cause, _subtype_of_exit(evidence, evidence.end.cause))
        return Verdict(AgentErrorEvent(_describe_incomplete(evidence), errors.CLI_INCOMPLETE), "incomplete")
    if cause is not None:
        return Verdict(None, _classify(cause, evidence))
    error = evidence.end.cause or AgentErrorEvent(_describe_exit(evidence), errors.CLI_EXIT_ERROR)
    return Verdict(error, _subtype_of_exit(evidence, error))


def _reported_cause(evidence: Evidence) -> AgentErrorEvent | None:
    """The last error the CLI reported that may have ended it."""
    fatal = [error for error in evidence.errors_seen if error.code not in errors.SURVIVABLE]
    return fatal[-1] if fatal else None


def _classify(error: AgentErrorEvent, evidence: Evidence) -> ErrorSubtype:
    if evidence.end.outcome.error_subtype:
        return evidence.end.outcome.error_subtype
    cli = evidence.agent.cli_facts
    known = {} if cli is None else cli.exit_codes
    found = classify_error(error.message, code=error.code, exit_code=evidence.end.exit_code, exit_codes=known)
    return found.error_subtype


def _subtype_of_exit(evidence: Evidence, error: AgentErrorEvent) -> ErrorSubtype:
    subtype = SPAWN_SUBTYPES.get(error.code or "") or _classify(error, evidence)
    return "crash" if subtype == "unknown" else subtype


def _describe_exit(evidence: Evidence) -> str:
    code = evidence.end.exit_code
    assert code is not None
    how = f"exited with code {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"
    when = " in the middle of a turn" if evidence.is_live else ""
    return f"{evidence.agent.program} {how}{when}{_quote(evidence.end.shown)}"


def _describe_incomplete(evidence: Evidence) -> str:
    what = "ended without saying that it had finished" if evidence.answered else "ended without an answer"
    return f"{evidence.agent.program} {what}{_quote(evidence.end.shown)}"


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
