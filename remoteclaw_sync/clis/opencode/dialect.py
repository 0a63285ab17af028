"""What the lines of `opencode run --format json` mean, as of 1.18.33 and 2.0."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import attrs

from ... import errors
from ...engine.dialect import Dialect
from ...engine.outcome import Closing, Ended
from ...types import (
    AgentErrorEvent,
    AgentEvent,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    AgentUsage,
    ErrorSubtype,
    PermissionDenial,
)
from ...wire.fields import Message, integer, items, mapping, number, strings, text
from . import errors as reported
from . import mcp as opencode_mcp
from . import stderr as opencode_stderr
from . import two as opencode_two
from .store import SessionStore

# Reasons for a step's end after which OpenCode continues, or has yet to say what went wrong.
NOT_THE_LAST_WORD = frozenset({"tool-calls", "unknown", "error", "content-filter"})

REJECTED = "rejected permission"  # Nobody could answer: OpenCode ends the turn.
RULED_OUT = "specified a rule which prevents"  # A rule in the user's config: the turn goes on.
INVALID_TOOL = "invalid"


class OpenCodeDialect(Dialect):
    """Reads `opencode run --format json`. What the lines leave out is looked up in `store`, if there is one."""

    HANDLERS = {
        "step_start": "_on_step_start",
        "text": "_on_text",
        "reasoning": "_on_reasoning",
        "tool_use": "_on_tool_use",
        "step_finish": "_on_step_finish",
        "error": "_on_error",
    }

    def __init__(self) -> None:
        super().__init__()
        self.store: SessionStore | None = None
        self._servers: Collection[str] = ()  # Names of the caller's MCP servers.
        self._step_message: str | None = None
        self._parts_seen: set[str] = set()
        self._summaries: dict[str, bool] = {}
        self._messages_with_tools: set[str] = set()
        self._rejections: list[PermissionDenial] = []
        self._doubtful_error: Message | None = None
        self._is_two = False
        self._read_only = False

    def recall(self, facts: Mapping[str, Any]) -> None:
        self._servers = strings(facts, "mcp_servers")
        self._summaries = dict.fromkeys(strings(facts, "summaries"), True)
        self._is_two = facts.get("is_two") is True
        self._read_only = facts.get("read_only") is True

    def runs_tool(self) -> bool:
        """OpenCode reports a tool only after it has ended, which may be long after `timeout`."""
        store, message_id = self.store, self._step_message
        return store is not None and message_id is not None and store.runs_tool(message_id)

    # --- what the CLI says -----------------------------------------------------------------------------------

    def may_run_tool(self, chunk: bytes) -> bool:
        """A step has begun. Until its line has been read, `runs_tool` cannot look it up in the store."""
        return b'"step_start"' in chunk

    def _on_step_start(self, line: Message) -> AgentEvent | None:
        self._note_session(line)
        self._go_on()
        self.outcome.requests += 1
        self.outcome.asks_again = False
        self._step_message = text(mapping(line, "part"), "messageID") or None
        survived, self._doubtful_error = self._doubtful_error, None
        return None if survived is None else AgentErrorEvent(reported.message_of(survived), errors.CLI_WARNING)

    def _on_text(self, line: Message) -> AgentEvent | None:
        part = self._new_part(line)
        if part.get("synthetic"):
            # OpenCode's own message to its model after a compaction: another step follows.
            self._go_on()
            return None
        words = part.get("text")
        return AgentTextEvent(words) if type(words) is str and words and not self._is_summary(part) else None

    def _on_reasoning(self, line: Message) -> AgentEvent | None:
        part = self._new_part(line)
        words = text(part, "text")
        return AgentThinkingEvent(words) if words and not self._is_summary(part) else None

    def _on_tool_use(self, line: Message) -> Iterable[AgentEvent]:
        """A tool call that has ended; OpenCode prints nothing when it begins."""
        part = self._new_part(line)
        state = mapping(part, "state")
        # A later compaction shortens old results and prints them again.
        if not state or "compacted" in mapping(state, "time"):
            return ()
        self._note_tool(part, state)
        tool_id = opencode_two.call_id(part)
        name, arguments = text(part, "tool"), mapping(state, "input")
        if name == INVALID_TOOL:
            name = text(arguments, "tool") or name
        use = AgentToolUseEvent(name, tool_id, arguments)
        result = AgentToolResultEvent(tool_id, output_of(state), has_failed(part, state))
        return use, result

    def _note_tool(self, part: Message, state: Message) -> None:
        # After a call that the provider ran itself, or that was interrupted, OpenCode does not ask the model again.
        interrupted = mapping(state, "metadata").get("interrupted")
        if not opencode_two.is_provider_executed(part, state) and not interrupted:
            self._messages_with_tools.add(text(part, "messageID"))
        reason = text(state, "error")
        rejected = REJECTED in reason or opencode_two.DECLINED in reason
        if not rejected and RULED_OUT not in reason and not reason.startswith(opencode_two.BLOCKED):
            return
        denial = PermissionDenial(text(part, "tool"), reason, opencode_two.call_id(part) or None)
        self.outcome.permission_denials.append(denial)
        if rejected:
            self._rejections.append(denial)

    def _on_step_finish(self, line: Message) -> None:
        part = self._new_part(line)
        if not part:
            return
        self._count(part)
        self._step_message = None
        reason = text(part, "reason")
        self.outcome.stop_reason = reason or None
        self.outcome.asks_again = reason == "tool-calls"
        # Some providers wrongly report "stop" after tool calls; OpenCode still asks again.
        called_tools = text(part, "messageID") in self._messages_with_tools
        if reason and reason not in NOT_THE_LAST_WORD and not called_tools and not self._is_summary(part):
            self.outcome.succeed()

    def _on_error(self, line: Message) -> AgentEvent | None:
        self._note_session(line)
        error = line.get("error")
        if type(error) is not dict:
            error = {"message": error}
        if not reported.is_fatal(error):
            self._doubtful_error = self._doubtful_error or error
            return None
        if self.outcome.terminal == "failure":
            return None
        self._doubtful_error = None
        event = AgentErrorEvent(reported.message_of(error), reported.code_of(error))
        self.outcome.fail(reported.subtype_of(error, event))
        return event

    def _go_on(self) -> None:
        if self.outcome.terminal is not None:
            self.outcome.reopen()

    def _note_session(self, line: Message) -> None:
        self.outcome.session_id = text(line, "sessionID") or self.outcome.session_id

    def _new_part(self, line: Message) -> Message:
        """The line's `part`, or {} if it was seen before: OpenCode prints a part again whenever it changes."""
        if line.get("sessionID") != self.outcome.session_id:
            self._note_session(line)
        part = line.get("part")
        if type(part) is not dict:
            return {}
        part_id = opencode_two.part_id(part)
        if part_id:
            if part_id in self._parts_seen:
                return {}
            self._parts_seen.add(part_id)
        return part

    def _is_summary(self, part: Message) -> bool:
        """Whether a part belongs to OpenCode's summary of a conversation that became too long; lines do not say."""
        message_id = part.get("messageID")
        if type(message_id) is not str:
            return False
        known = self._summaries.get(message_id)
        if known is None:
            known = self.store is not None and message_id != "" and self.store.is_summary(message_id)
            self._summaries[message_id] = known
            if known and self.learn is not None:
                self.learn({"summaries": [name for name, is_summary in self._summaries.items() if is_summary]})
        return known

    def _count(self, part: Message) -> None:
        tokens = mapping(part, "tokens")
        cache = mapping(tokens, "cache")
        used = AgentUsage(
            integer(tokens, "input"), integer(tokens, "output"), integer(cache, "read"), integer(cache, "write")
        )
        outcome = self.outcome
        outcome.usage = (outcome.usage or AgentUsage()) + used
        outcome.total_cost_usd = (outcome.total_cost_usd or 0.0) + (number(part, "cost") or 0.0)
        outcome.num_turns = (outcome.num_turns or 0) + 1

    # --- the end ---------------------------------------------------------------------------------------------

    def at_exit(self, ended: Ended) -> Closing:
        failures = opencode_mcp.failures(ended.stderr, self._servers)
        warnings = tuple(
            AgentErrorEvent(f"MCP server {name!r} {trouble}", errors.MCP_SERVER_FAILED)
            for name, trouble in failures.items()
        )
        return attrs.evolve(self._cause(ended.exit_code, ended.said), warnings=warnings)

    def _cause(self, exit_code: int | None, said: str) -> Closing:
        if self._doubtful_error is not None:
            return self._explained(self._doubtful_error, said)
        asked = opencode_stderr.rejected_permissions(said)
        if self._rejections or (self._is_two and asked and self.outcome.terminal is None):
            what = f": {', '.join(asked)}" if asked else ""
            message = f"opencode stopped because nobody could grant a permission it asked for{what}"
            return Closing(cause=AgentErrorEvent(message, errors.CLI_ERROR), error_subtype="permission")
        if exit_code is None or exit_code <= 0:
            return Closing()
        if not self._is_two and self._read_only and opencode_two.refuses_dir(said):
            cause = AgentErrorEvent(opencode_two.NO_READ_ONLY, errors.UNSUPPORTED_OPTION)
            return Closing(cause=cause, error_subtype="config")
        words = opencode_stderr.failure(said)
        if words is None:
            return Closing()
        kind: ErrorSubtype | None = "config" if opencode_stderr.is_about_settings(words) else None
        return Closing(cause=AgentErrorEvent(words, errors.CLI_EXIT_ERROR), error_subtype=kind)

    def _explained(self, error: Message, said: str) -> Closing:
        cause = opencode_stderr.logged_cause(said, text(mapping(error, "data"), "ref"))
        event = AgentErrorEvent(cause or reported.message_of(error), reported.code_of(error))
        return Closing(cause=event, error_subtype=reported.subtype_of(error, event))

    def presentable(self, stderr: str) -> str:
        return opencode_stderr.without_warnings(opencode_stderr.without_secrets(stderr))


def output_of(state: Message) -> str:
    """A tool's output as text."""
    output = text(state, "output") or text(state, "error")
    attached = [f"[{text(file, 'mime') or 'file'}]" for file in items(state, "attachments") if isinstance(file, dict)]
    return "\n".join([output, *attached] if output else attached)


def has_failed(part: Message, state: Message) -> bool:
    """Whether a finished tool call failed."""
    tool = text(part, "tool")
    if state.get("status") == "error" or tool == INVALID_TOOL:
        return True
    # A command that failed is still "completed"; one that timed out has no exit code.
    told, exit_code = opencode_two.exit_code(part, state)
    return told and exit_code != 0
