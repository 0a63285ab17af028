"""What Gemini CLI's lines mean, as of 0.61.0."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from ... import errors
from ...engine.dialect import Dialect, Extracted
from ...engine.outcome import Closing, Ended
from ...types import (
    AgentErrorEvent,
    AgentEvent,
    AgentTextEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    AgentUsage,
    PermissionDenial,
)
from ...versions import Standing, standing, support_of
from ...wire.fields import Message, integer, mapping, plain_text, strings, text, wording
from .facts import FACTS
from .failures import (
    NOT_ASKED,
    Failure,
    failure_of_error_line,
    failure_of_result,
    is_wrong_usage,
    policy_was_ignored,
    readable_stderr,
    retry_warning,
    subtype_from_stderr,
    with_account_hint,
)
from .record import ChatRecord

POLICY_IGNORED = (
    "gemini ignored our --admin-policy because this machine has policies of its own: make sure that they deny "
    "exit_plan_mode, with which the model can leave its permission mode"
)

# A tool that nobody could approve is not offered at all; if a model calls it anyway, it gets "not found".
TOOLS_NEEDING_APPROVAL = frozenset(
    {
        "run_shell_command",
        "write_file",
        "replace",
        "web_fetch",
        "activate_skill",
        "ask_user",
        "enter_plan_mode",
        "exit_plan_mode",
    }
)
MCP_TOOL_PREFIX = "mcp_"

NO_MESSAGE = "gemini reported an error without a message"
MCP_TROUBLE = "MCP issues detected"
SHELL_TOOL = "run_shell_command"
# The status of a failed command is "success"; the output shows the failure only if the command printed nothing.
SHELL_FAILURE = re.compile(r"Command (?:exited with code: [1-9]\d*|terminated by signal: .*|failed: .*)", re.DOTALL)


class GeminiDialect(Dialect):
    """Reads `--output-format=stream-json`."""

    HANDLERS = {
        "init": "on_init",
        "message": "on_message",
        "tool_use": "on_tool_use",
        "tool_result": "on_tool_result",
        "error": "on_error",
        "result": "on_result",
    }

    def __init__(self) -> None:
        super().__init__()
        self._resumed_id: str | None = None
        self._mcp_names: set[str] = set()
        self._tool_names: dict[str, str] = {}  # Tool calls reported so far, by id.
        self._answered = False
        self._warned = False
        self._failure: Failure | None = None  # Reported before the `result` line.
        self._output_missing = False  # A shell command's output was missing.
        self.record: ChatRecord | None = None  # Counts tokens before the last line has arrived.
        self.is_limited = False  # If so, tokens must be counted while the run goes on.

    def recall(self, facts: Mapping[str, Any]) -> None:
        self._resumed_id = text(facts, "session_id") or None
        self._mcp_names = set(strings(facts, "mcp_servers"))

    # --- what it says ---------------------------------------------------------------------------------------

    def on_init(self, line: Message) -> Extracted:
        self.outcome.session_id = text(line, "session_id") or None
        if self.record is not None and self.outcome.session_id is not None:
            self.record.begin(self.outcome.session_id)
        if self._resumed_id is None or self.outcome.session_id == self._resumed_id:
            return None
        message = f"gemini resumed session {self.outcome.session_id} instead of {self._resumed_id}"
        self._failure = Failure(message, errors.SESSION_NOT_FOUND, "session_not_found")
        self.outcome.session_id = None
        self.outcome.fail(self._failure.subtype)
        return self._failure.event

    def may_run_tool(self, chunk: bytes) -> bool:
        # Must not match the "tool_calls" of the last line.
        return b'"tool_use"' in chunk

    def on_message(self, line: Message) -> Extracted:
        piece = line.get("content")
        if line.get("role") != "assistant" or type(piece) is not str or not piece:
            return None  # The prompt, repeated.
        if line.get("delta") is False and self._answered:
            return None  # The text of all deltas again (documented, never seen).
        self._answered = True
        self._note_request()
        return AgentTextEvent(piece)

    def _note_request(self) -> None:
        """The model answers. All its tools are called before any of them has a result, and then it is asked again."""
        outcome = self.outcome
        if outcome.asks_again or not outcome.requests:
            outcome.requests += 1
            outcome.asks_again = False
            self._count()

    def _count(self) -> None:
        if self.is_limited and self.record is not None:
            self.outcome.so_far = self.record.used()

    def on_tool_use(self, line: Message) -> Extracted:
        tool_id, name = text(line, "tool_id"), text(line, "tool_name")
        self._tool_names[tool_id] = name
        self._answered = True
        self._note_request()
        return AgentToolUseEvent(name, tool_id, mapping(line, "parameters"))

    def on_tool_result(self, line: Message) -> Extracted:
        tool_id, error = text(line, "tool_id"), mapping(line, "error")
        failed = line.get("status") == "error" or bool(error)
        # There is no `output` if the CLI would show no text: files written, sub-agents, folders listed.
        output = text(error, "message") or plain_text(line.get("output"))
        tool = self._tool_names.get(tool_id, "")
        self._output_missing |= tool == SHELL_TOOL and "output" not in line
        if tool == SHELL_TOOL and SHELL_FAILURE.fullmatch(output):
            failed = True
        elif failed:
            reason = _denial_reason(tool, text(error, "type"), output)
            if reason is not None:
                self.outcome.permission_denials.append(PermissionDenial(tool, reason, tool_id))
        self.outcome.asks_again = True
        self._count()
        return AgentToolResultEvent(tool_id, output, failed)

    def on_error(self, line: Message) -> Extracted:
        """Comes before the `result` line. A warning is reported, and the run goes on."""
        message = wording(line.get("message")) or wording(line.get("error")) or NO_MESSAGE
        if line.get("severity") == "warning":
            self._warned = True
            return AgentErrorEvent(message, errors.CLI_WARNING)
        self._failure = failure_of_error_line(message)
        return self._failure.event

    def on_result(self, line: Message) -> AgentEvent | None:
        stats = mapping(line, "stats")
        self.outcome.usage = _usage(stats)
        failure, told = self._failure, self._failure is not None
        if failure is None:
            if line.get("status") != "success":
                failure = failure_of_result(line.get("error"))
            elif not (self._answered or self._warned or mapping(stats, "models")):
                failure = NOT_ASKED
            else:
                self.outcome.succeed()
                return None
        # (Even with status "success": that is how a run with "Maximum session turns exceeded" ends.)
        self.outcome.fail(failure.subtype)
        if not self._answered and self._resumed_id is None:
            self.outcome.session_id = None  # A session that begins with a failure is not kept.
        return None if told else failure.event

    # --- what only its exit and stderr say --------------------------------------------------------------------

    def at_exit(self, ended: Ended) -> Closing:
        return attrs.evolve(self._closing(ended), so_far=None if self.record is None else self.record.used())

    def _closing(self, ended: Ended) -> Closing:
        outcome, warnings = self.outcome, tuple(self._warnings(ended))
        if outcome.terminal == "failure":
            return Closing(warnings=warnings, error_subtype=outcome.error_subtype or subtype_from_stderr(ended.said))
        if outcome.terminal is not None or ended.exit_code is None or ended.exit_code < 0:
            return Closing(warnings=warnings)
        said = with_account_hint(readable_stderr(ended.said))
        if ended.exit_code == 0:
            # Gemini also ends this way after SIGTERM, no matter who sent it.
            message = "gemini ended without saying that it had finished"
            cause = AgentErrorEvent(f"{message}: {said}" if said else message, errors.CLI_INCOMPLETE)
            return Closing(warnings=warnings, cause=cause, error_subtype="incomplete")
        return Closing(
            warnings=warnings,
            cause=AgentErrorEvent(said, errors.CLI_EXIT_ERROR) if said else None,
            error_subtype="config" if is_wrong_usage(ended.said) else None,
        )

    def _warnings(self, ended: Ended) -> Iterator[AgentErrorEvent]:
        stderr = ended.stderr
        if self.outcome.terminal == "success":
            retried = retry_warning(stderr)
            if retried is not None:
                yield retried
        version = ended.cli_version() if self._output_missing else None
        if version is not None and standing(FACTS, version) is Standing.GAPS:
            message = f"gemini {version} does not report what a shell command printed, nor whether it failed"
            yield AgentErrorEvent(f"{message}; {support_of(FACTS, None).floor} does", errors.CLI_WARNING)
        if policy_was_ignored(stderr):
            yield AgentErrorEvent(POLICY_IGNORED, errors.CLI_WARNING)
        if self._mcp_names and MCP_TROUBLE in stderr:
            names = ", ".join(map(repr, sorted(self._mcp_names)))
            message = f"gemini could not use an MCP server, without saying which: one of {names}, or one of the user's"
            yield AgentErrorEvent(message, errors.MCP_SERVER_FAILED)


def _usage(stats: Message) -> AgentUsage | None:
    """Tokens of all requests of the run. (`duration_ms` is wall time, `tool_calls` are not turns: both are ignored.)"""
    usage = AgentUsage(
        input_tokens=integer(stats, "input_tokens"),
        output_tokens=integer(stats, "output_tokens"),
        cache_read_tokens=integer(stats, "cached"),
    )
    # All zero after API errors and a detected loop, no matter what was spent.
    return None if usage == AgentUsage() else usage


def _denial_reason(tool: str, error_type: str, output: str) -> str | None:
    """Why this failed call was refused; None if it failed otherwise."""
    if error_type == "policy_violation":
        return output
    if error_type == "tool_not_registered" and (tool in TOOLS_NEEDING_APPROVAL or tool.startswith(MCP_TOOL_PREFIX)):
        return f"not offered in this permission mode ({output})"
    return None
