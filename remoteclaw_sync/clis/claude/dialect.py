"""What Claude Code's lines mean, as of 2.1.326."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs

from ... import errors
from ...engine.dialect import Dialect, Extracted
from ...engine.outcome import Closing, Ended
from ...types import (
    AgentErrorEvent,
    AgentEvent,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    AgentUsage,
    PermissionDenial,
)
from ...wire.fields import Message, mapping, number, objects, plain_text, strings, text
from ..shared import used_since
from .messages import (
    StreamedBlock,
    Totals,
    account_of,
    failure_code,
    failure_message,
    failure_subtype,
    is_failed_server_result,
    readable_stderr,
    retry_warning,
    usage_of,
)

# Claude waits 5 s after its last word for a shell it left in the background, and may then begin another turn.
LINGER_WITH_SHELLS = 7.0

MCP_FAILED = ("failed", "needs-auth", "disabled")

SYNTHETIC_MODEL = "<synthetic>"  # Claude's own words in place of an answer: API errors, output of /commands.
TOLD_BLOCKS = frozenset({"text", "thinking"})
TOOL_BLOCKS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
# Only as a type: every line has a "parent_tool_use_id", and every usage a "server_tool_use".
TOOL_CALL = re.compile(rb'"type": ?"(?:server_|mcp_)?tool_use"')
KNOWN_BLOCKS = TOLD_BLOCKS | TOOL_BLOCKS
# Goes between the texts of two turns: no other event keeps their words apart.
TURN_BREAK = "\n\n"
# The result of calling a tool that "read-only" removes: Claude 2.1.197, 2.1.326.
TOOL_DISABLED = ("exists but is not enabled in this context", "is disabled for this session")
ANSWER_TOOL = "StructuredOutput"  # The model gives answers with a schema through it; not one of the agent's tools.
LIMIT_SUBTYPES = ("error_max_turns", "error_max_budget_usd")
SHELL_TASK = "local_bash"  # A background task for which Claude does not delay its result.
CUT_OFF = "the model's answer broke off and was asked for again; the text so far is not part of the answer"
ROOT_HINT = "run as another user, or set IS_SANDBOX=1 in `env` if this is a container made for it"


class ClaudeDialect(Dialect):
    """Reads `--output-format=stream-json`."""

    HANDLERS = {
        "stream_event": "on_stream_event",
        "assistant": "on_assistant",
        "user": "on_user",
        "system": "on_system",
        "result": "on_result",
        "rate_limit_event": "on_rate_limit",
    }

    def __init__(self) -> None:
        self._mcp_names: set[str] = set()  # The caller's servers whose failure has not been reported.
        self._has_limits = False  # Set by Claude's own flags.
        self._totals = self._before = Totals()  # Of the process: now, and when the turn began.
        self._forget_turn()
        super().__init__()

    def _forget_turn(self) -> None:
        """Forget what is known about the previous turn."""
        # The message that is being streamed; its blocks by their index.
        self._message_id: object = None
        self._blocks: dict[object, StreamedBlock] = {}
        self._in_stream = False
        self._last_words = ""  # The last piece of the answer.
        self._turn_ended = False  # The last words were an earlier turn's.
        self._tool_names: dict[str, str] = {}  # Tool calls reported so far, by id.
        self._tool_failures: dict[str, str] = {}
        self._api_error_kind = ""
        self._usage: AgentUsage | None = None  # Of the turns of this prompt that have been reported.
        self._counted: set[object] = set()  # Messages of the model whose tokens are in `so_far`.
        self._asked_with = AgentUsage()
        self._agents: set[str] = set()  # Running sub-agents; Claude does not end before they do.
        self._shells: set[str] = set()  # Running shells; Claude waits a little for them.
        self._success_held = False

    def recall(self, facts: Mapping[str, Any]) -> None:
        self._mcp_names = set(strings(facts, "mcp_servers"))
        self._has_limits = facts.get("limits") is True

    # --- streamed messages ----------------------------------------------------------------------------------

    def may_run_tool(self, chunk: bytes) -> bool:
        return TOOL_CALL.search(chunk) is not None

    def on_stream_event(self, line: Message) -> AgentEvent | None:
        event = line.get("event")
        if type(event) is not dict or line.get("parent_tool_use_id") is not None:
            return None  # A sub-agent's event says nothing new: its tool calls come as `assistant` lines.
        kind = event.get("type")
        if kind == "content_block_delta":
            return self._on_delta(event)
        if kind == "content_block_start":
            return self._on_block_start(event)
        if kind == "content_block_stop":
            return self._on_block_stop(event)
        if kind == "message_start":
            return self._on_message_start(mapping(event, "message"))
        if kind == "message_delta":
            self._count_answer(event)
        elif kind == "message_stop" and not line.get("abandoned_blocks"):  # Otherwise Claude asks again (2.1.326).
            self._in_stream = False
        return None

    def _on_message_start(self, message: Message) -> AgentEvent | None:
        warning = self._cut_off()
        self._message_id = message.get("id")
        self._blocks = {}
        self._in_stream = True
        self._count_request(message)
        return warning

    # Counts what the requests of a turn use while it goes on. The total, with sub-agents, is in the `result` line.

    def _count_request(self, message: Message) -> None:
        """The model has begun to answer. How long the answer will be is not known yet."""
        self.outcome.requests += 1
        self.outcome.asks_again = False
        self._counted.add(message.get("id"))
        self._asked_with = attrs.evolve(usage_of(message), output_tokens=0)
        self.outcome.so_far = (self.outcome.so_far or AgentUsage()) + self._asked_with

    def _count_answer(self, event: Message) -> None:
        """The model has ended its answer. Some providers report the input only now."""
        counts = usage_of(event)
        late = counts if self._asked_with == AgentUsage() else AgentUsage(output_tokens=counts.output_tokens)
        self.outcome.so_far = (self.outcome.so_far or AgentUsage()) + late
        self.outcome.asks_again = mapping(event, "delta").get("stop_reason") == "tool_use"

    def _count_unstreamed(self, message: Message, parent: str | None) -> None:
        """An answer that arrives whole: a sub-agent's, or one after a stream that was cut off."""
        name = message.get("id")
        if name is None or name in self._counted or (parent is None and self._is_streamed(name)):
            return
        self._counted.add(name)
        self.outcome.so_far = (self.outcome.so_far or AgentUsage()) + usage_of(message)
        if parent is None:
            self.outcome.requests += 1
            self.outcome.asks_again = False

    def _on_block_start(self, event: Message) -> AgentEvent | None:
        start = mapping(event, "content_block")
        kind = text(start, "type")
        block = self._blocks[_index(event)] = StreamedBlock(kind, start)
        piece = text(start, kind) if kind in TOLD_BLOCKS else ""
        block.length = len(piece)
        return self._told(kind, piece)

    def _on_delta(self, event: Message) -> AgentEvent | None:
        """Another piece of a block. Text and thinking are passed on at once, if the block is of that kind.

        Any other delta (a signature, citations, whatever a newer Claude has) is not: what matters in it comes again
        in the whole message.
        """
        delta, index = event.get("delta"), event.get("index")
        if type(delta) is not dict:
            return None
        block = self._blocks.get(index if type(index) is int else None)
        name = delta.get("type")
        if name == "text_delta":
            kind = "text"
        elif name == "thinking_delta":
            kind = "thinking"
        else:
            if name == "input_json_delta" and block is not None:
                block.input_parts.append(text(delta, "partial_json"))
            return None
        piece = delta.get(kind)
        if type(piece) is not str or not piece:
            return None
        if block is None or block.kind != kind:
            block = self._unannounced(event, block, kind)
            if block is None:
                return None
        block.length += len(piece)
        return self._answer(piece) if kind == "text" else AgentThinkingEvent(piece)

    def _unannounced(self, event: Message, block: StreamedBlock | None, kind: str) -> StreamedBlock | None:
        """The block that a delta belongs to, if the block was not announced, or has a kind that we do not know: then
        its deltas say what it is. None for a block that is known to be something else."""
        if block is None:
            block = self._blocks[_index(event)] = StreamedBlock(kind, {})
        elif block.kind in KNOWN_BLOCKS or text(block.start, kind):
            return None
        block.kind = kind
        return block

    def _on_block_stop(self, event: Message) -> AgentEvent | None:
        block = self._blocks.get(_index(event))
        if block is None or block.kind not in TOOL_BLOCKS:
            return None
        return self._tool_use(text(block.start, "id"), text(block.start, "name"), block.tool_input(), None)

    def _told(self, kind: str, words: str) -> AgentEvent | None:
        if not words:
            return None
        return self._answer(words) if kind == "text" else AgentThinkingEvent(words)

    def _answer(self, words: str) -> AgentEvent:
        """A piece of the answer."""
        if self._turn_ended:
            self._turn_ended = False
            if not (self._last_words[-1].isspace() or words[0].isspace()):
                words = TURN_BREAK + words
        self._last_words = words
        return AgentTextEvent(words)

    def _cut_off(self) -> AgentEvent | None:
        """A warning if the message being streamed is abandoned halfway."""
        half_told = self._in_stream and any(
            block.kind == "text" and block.length and not block.told_whole for block in self._blocks.values()
        )
        self._in_stream = False
        return AgentErrorEvent(CUT_OFF, errors.CLI_WARNING) if half_told else None

    # --- whole messages -------------------------------------------------------------------------------------

    def on_assistant(self, line: Message) -> list[AgentEvent]:
        """A complete block: text and thinking that were not streamed, and tool calls.

        Most lines repeat what has been streamed. After a stream that was cut off or idle, Claude asks again without
        streaming, and the answer comes only in this form, under a new message id.
        """
        message, parent = mapping(line, "message"), text(line, "parent_tool_use_id") or None
        if message.get("model") == SYNTHETIC_MODEL:
            if parent is None:
                self._in_stream = False
                self._api_error_kind = text(line, "error")
            return []
        message_id, events = message.get("id"), []
        if parent is None and self._in_stream and not self._is_streamed(message_id):
            events.append(self._cut_off())
        for block in objects(message, "content"):
            kind = text(block, "type")
            if kind in TOOL_BLOCKS:
                events.append(self._tool_use(text(block, "id"), text(block, "name"), mapping(block, "input"), parent))
            elif kind.endswith("_tool_result"):
                content = block.get("content")
                failed = is_failed_server_result(content)
                events.append(AgentToolResultEvent(text(block, "tool_use_id"), plain_text(content), failed, parent))
            elif parent is None and kind in TOLD_BLOCKS:  # What a sub-agent says is not the agent's answer.
                events.append(self._told(kind, self._not_streamed(message_id, kind, text(block, kind))))
        self._count_unstreamed(message, parent)
        return [event for event in events if event is not None]

    def _not_streamed(self, message_id: object, kind: str, whole: str) -> str:
        if self._is_streamed(message_id):
            for block in self._blocks.values():
                if block.kind == kind and not block.told_whole:
                    block.told_whole = True
                    return whole[block.length :]
        return whole

    def _is_streamed(self, message_id: object) -> bool:
        """Whether this is the message that is being streamed. One without an id is taken for it: reporting an answer
        twice is worse than losing the beginning of one whose stream was cut off."""
        return message_id == self._message_id or message_id is None or self._message_id is None

    def _tool_use(self, tool_id: str, name: str, arguments: Message, parent: str | None) -> AgentEvent | None:
        if tool_id in self._tool_names:
            return None  # Already reported: each call comes twice, streamed and whole.
        self._tool_names[tool_id] = name
        if name == ANSWER_TOOL:
            return None
        return AgentToolUseEvent(name, tool_id, arguments, parent)

    def on_user(self, line: Message) -> list[AgentEvent]:
        """Tool results. Other user lines are prompts of sub-agents and Claude's notes to the model."""
        results: list[AgentEvent] = []
        parent = text(line, "parent_tool_use_id") or None
        for block in objects(mapping(line, "message"), "content"):
            if block.get("type") != "tool_result":
                continue
            tool_id, output = text(block, "tool_use_id"), plain_text(block.get("content"))
            failed = bool(block.get("is_error"))
            if self._tool_names.get(tool_id) == ANSWER_TOOL:
                continue
            if failed:
                self._tool_failures[tool_id] = output
                if any(words in output for words in TOOL_DISABLED):
                    self._deny(self._tool_names.get(tool_id, ""), tool_id)
            results.append(AgentToolResultEvent(tool_id, output, failed, parent))
        return results

    # --- the run --------------------------------------------------------------------------------------------

    def on_system(self, line: Message) -> Extracted:
        match line.get("subtype"):
            case "init":
                # Comes again before each further turn, which the end of a background task begins.
                self.outcome.session_id = text(line, "session_id") or self.outcome.session_id
                self._success_held = False
                self._turn_ended = bool(self._last_words)
                if self.outcome.terminal is not None:
                    self.outcome.reopen()
                return self._mcp_failures(line) if self._mcp_names else None
            case "api_retry":
                return retry_warning(line)
            case "model_fallback":
                models = f"{text(line, 'original_model')} to {text(line, 'fallback_model')}"
                return AgentErrorEvent(f"Claude changed the model from {models}", errors.CLI_WARNING)
            case "task_started":
                at_work = self._shells if line.get("task_type") == SHELL_TASK else self._agents
                at_work.add(text(line, "task_id"))
            case "task_notification":
                self._agents.discard(text(line, "task_id"))
                self._shells.discard(text(line, "task_id"))
        return None

    def _mcp_failures(self, line: Message) -> list[AgentEvent]:
        """Warnings for those of the caller's servers that Claude could not start or connect to."""
        failed: list[AgentEvent] = []
        for server in objects(line, "mcp_servers"):
            name = server.get("name")
            if name in self._mcp_names and server.get("status") in MCP_FAILED:
                self._mcp_names.discard(name)
                message = f"MCP server {name!r} could not be used ({server['status']})"
                failed.append(AgentErrorEvent(message, errors.MCP_SERVER_FAILED))
        return failed

    def on_rate_limit(self, line: Message) -> None:
        """The state of a subscription's limits; it matters if a request was refused for one of them."""
        limit = mapping(line, "rate_limit_info")
        self.outcome.resets_at = number(limit, "resetsAt") if limit.get("status") == "rejected" else None

    def on_result(self, line: Message) -> AgentEvent | None:
        """The end of a turn, usually the last; more turns follow if background tasks were started."""
        self._account(line)
        for denial in objects(line, "permission_denials"):
            self._deny(text(denial, "tool_name"), text(denial, "tool_use_id"))
        if line.get("is_error") or line.get("subtype") not in ("success", None):
            return self._fail(line)
        self.outcome.session_id = text(line, "session_id") or self.outcome.session_id
        if "structured_output" in line:
            self.outcome.structured = (line["structured_output"],)
        if self._shells:
            self.outcome.may_stay = LINGER_WITH_SHELLS
        if self._agents:
            self._success_held = True  # Not the end: Claude waits for them, minutes if need be.
        else:
            self.outcome.succeed()
        # The output of a /command is not a message from the model.
        unsaid = "" if self._last_words else text(line, "result")
        return self._answer(unsaid) if unsaid else None

    def _account(self, line: Message) -> None:
        outcome, before, said = self.outcome, self._before, account_of(line)
        self._totals = Totals(said.total, said.cost or 0.0, said.api_duration or 0.0)
        used = said.of_turn if said.recent is None else said.recent
        self._usage = used if self._usage is None else self._usage + used
        if said.recent is not None:
            outcome.usage = self._usage
            outcome.total_cost_usd = (outcome.total_cost_usd or 0.0) + said.recent_cost
        else:
            # The process's own total is right even if the turns' numbers leave out sub-agents and fallbacks.
            of_process = used_since(before.usage, said.total) if said.total != AgentUsage() else None
            outcome.usage = of_process or self._usage
            if said.cost is not None:
                outcome.total_cost_usd = max(said.cost - before.cost, 0.0)
        if said.api_duration is not None:
            outcome.api_duration_ms = max(said.api_duration - before.api_duration, 0.0)
        outcome.num_turns = (outcome.num_turns or 0) + said.num_turns
        outcome.stop_reason = said.stop_reason or outcome.stop_reason

    def _deny(self, tool: str, tool_id: str) -> None:
        denials = self.outcome.permission_denials
        if not any(denial.tool_id == tool_id for denial in denials):
            denials.append(PermissionDenial(tool, self._tool_failures.get(tool_id), tool_id))

    def _fail(self, line: Message) -> AgentEvent:
        # The id on this line is not kept: after a failed resume it is a new id without a session.
        kind, message = self._api_error_kind, failure_message(line)
        if self._has_limits and line.get("subtype") in LIMIT_SUBTYPES:
            self.outcome.fail("limit")
            return AgentErrorEvent(f"the run was ended by its limit: {message}", errors.LIMIT_EXCEEDED)
        self.outcome.fail(failure_subtype(line, kind, message))
        return AgentErrorEvent(message, failure_code(line, kind))

    def at_exit(self, ended: Ended) -> Closing:
        if self._success_held and ended.exit_code == 0:
            return Closing(succeeded=True)  # Claude gave up waiting for its sub-agents.
        said = readable_stderr(ended.said) if ended.said else ""
        if not said or ended.exit_code is None or ended.exit_code < 0:
            return Closing()
        if "cannot be used with root" in said:
            cause = AgentErrorEvent(f"{said}; {ROOT_HINT}", errors.CLI_EXIT_ERROR)
            return Closing(cause=cause, error_subtype="permission")
        if "--json-schema is not" in said:
            return Closing(cause=AgentErrorEvent(said, errors.CLI_EXIT_ERROR), error_subtype="config")
        return Closing(cause=AgentErrorEvent(said, errors.CLI_EXIT_ERROR))


def _index(event: Message) -> object:
    index = event.get("index")
    return index if type(index) is int else None
