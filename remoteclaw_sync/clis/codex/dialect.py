"""What the lines of `codex exec --json` mean, as of 0.169.0."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ... import errors
from ...engine.classify import classify_error
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
    ErrorSubtype,
    PermissionDenial,
)
from ...wire.fields import Message, items, mapping, text, wording
from ..shared import used_since
from . import stderr as codex_stderr
from .items import TOOL_ITEMS, ToolItem, Utterance, denial_reason, todo_output
from .rollout import ThreadCounter, usage_of

# A retry that Codex makes by itself. Every other `error` line is followed by the turn's failure.
RETRY_PREFIX = "Reconnecting..."
RETRY_WORD = RETRY_PREFIX.encode()
RETRIES_BYTES = 8_192  # Retries arrive one by one. (Searching each full chunk would take 0.05 us a line.)
RETRY_LINE = re.compile(rb'\{"type":"error","message":"Reconnecting\.\.\.')

# Failures that the general table does not know.
EXIT_SUBTYPES: dict[str, ErrorSubtype] = {
    "Missing optional dependency": "cli_missing",  # The npm package without the program it starts.
    "already has an active writer": "overloaded",  # Another run uses this thread; it will be free later.
}

AT_THE_VENDOR = ("web_search",)  # Tools that run at the vendor, within one answer of the model.
NO_MESSAGE = "codex reported an error without a message"
UNFINISHED = "(no result: the turn ended before the call did)"


class CodexDialect(Dialect):
    """Reads `codex exec --json`."""

    HANDLERS = {
        "thread.started": "_on_thread_started",
        "turn.started": "_on_turn_started",
        "turn.completed": "_on_turn_completed",
        "turn.failed": "_on_turn_failed",
        "item.started": "_on_item",
        "item.updated": "_on_item",
        "item.completed": "_on_item",
        "error": "_on_error",
    }

    def __init__(self) -> None:
        super().__init__()
        self._asked_thread: str | None = None
        self._used_before: AgentUsage | None = AgentUsage()  # In this thread; None if it is not known.
        self._instructions_ignored = False
        self._in_wrong_thread = False
        self._utterances: dict[str, Utterance] = {}
        self._last_said: dict[str, str] = {}  # Item type -> the last whole text since the model was last asked.
        self._completed: set[str] = set()  # Ids of texts that are complete: repeats are dropped.
        self._said_before_cut: dict[str, str] = {}
        self._open_tools: dict[str, ToolItem] = {}
        self._closed_tools: set[str] = set()
        self._plans: dict[str, list[str]] = {}
        self._failure_told: str | None = None
        self.counter: ThreadCounter | None = None  # Counts tokens before the last line has arrived.
        self.is_limited = False  # If so, tokens must be counted while the run goes on.

    def recall(self, facts: Mapping[str, Any]) -> None:
        self._asked_thread = text(facts, "thread_id") or None
        if self._asked_thread is not None:
            used = mapping(facts, "used_before")
            self._used_before = AgentUsage.from_dict(used) if used else None
            self._instructions_ignored = facts.get("instructions_ignored") is True

    # --- what the CLI says -----------------------------------------------------------------------------------

    def is_life(self, chunk: bytes) -> bool:
        """Lines that are all retries count as silence: without a network Codex prints one per minute, forever."""
        if len(chunk) > RETRIES_BYTES or RETRY_WORD not in chunk:
            return True
        lines = [line for line in chunk.split(b"\n") if line.strip()]
        return not lines or not all(RETRY_LINE.match(line) for line in lines)

    def may_run_tool(self, chunk: bytes) -> bool:
        return b'"item.started"' in chunk

    def _on_thread_started(self, line: Message) -> AgentEvent | None:
        thread_id = text(line, "thread_id")
        asked = self._asked_thread
        if asked is not None and thread_id.lower() != asked:
            # Not the thread we asked for, so we want neither its answer nor its id.
            self._in_wrong_thread = True
            self.outcome.fail("session_not_found")
            return AgentErrorEvent(f"codex did not resume thread {asked} but began another", errors.SESSION_NOT_FOUND)
        self.outcome.session_id = thread_id or None
        if self._instructions_ignored:
            message = "codex keeps the instructions its thread began with: system_prompt is ignored when it is resumed"
            return AgentErrorEvent(message, errors.CLI_WARNING)
        return None

    def _on_turn_started(self, line: Message) -> None:
        if not self._in_wrong_thread:
            self.outcome.reopen()
        self._utterances.clear()
        self._completed.clear()
        self._forget_words()
        self._closed_tools.clear()

    def _on_turn_completed(self, line: Message) -> list[AgentEvent]:
        if self._in_wrong_thread:
            return []
        self.outcome.usage = _used_by_this_run(line, self._used_before)
        self.outcome.succeed()
        return self._close_open_tools()

    def _on_turn_failed(self, line: Message) -> list[AgentEvent]:
        if self._in_wrong_thread:
            return []
        failure = self._failure(wording(line.get("error")) or "the turn failed")
        self.outcome.fail(self.outcome.error_subtype)
        return [*self._close_open_tools(), *failure]

    def _on_error(self, line: Message) -> list[AgentEvent]:
        if self._in_wrong_thread:
            return []
        message = wording(line.get("message")) or wording(line.get("error")) or NO_MESSAGE
        if message.startswith(RETRY_PREFIX):
            self._said_before_cut = dict(self._last_said)
            return [AgentErrorEvent(message, errors.CLI_WARNING)]
        return self._failure(message)  # `turn.failed` has the last word.

    def _failure(self, message: str) -> list[AgentEvent]:
        """A failure comes twice, as `error` and as `turn.failed`; we report it once."""
        words, code = codex_stderr.unpack_api_error(message)
        self.outcome.error_subtype = _subtype_of_failure(words, code)
        if message == self._failure_told:
            return []
        self._failure_told = message
        return [AgentErrorEvent(words, code or errors.CLI_ERROR)]

    # --- items -----------------------------------------------------------------------------------------------

    def _on_item(self, line: Message) -> Extracted:
        item, is_final = line.get("item"), line.get("type") == "item.completed"
        if type(item) is not dict or self._in_wrong_thread:
            return None
        kind = item.get("type")
        if self.is_limited:
            self.outcome.so_far = self._counted_so_far() or self.outcome.so_far
        if kind in ("agent_message", "reasoning"):
            self._note_words()
        if kind == "agent_message":
            new = self._new_words(kind, item, is_final)
            return AgentTextEvent(new) if new else None
        if kind == "reasoning":
            new = self._new_words(kind, item, is_final)
            return AgentThinkingEvent(new) if new else None
        if kind == "error":
            # Not an error, but a deprecation, an unknown model or a change of transport. The run goes on.
            message = wording(item.get("message")) or NO_MESSAGE
            return AgentErrorEvent(message, errors.CLI_WARNING) if is_final else None
        if kind == "todo_list":
            return self._on_plan(item)
        tool = TOOL_ITEMS.get(text(item, "type"))
        return None if tool is None else self._on_tool(tool, item, is_final)

    def _note_words(self) -> None:
        """The model speaks. If tools ran before, it was asked again."""
        outcome = self.outcome
        if outcome.asks_again or not outcome.requests:
            outcome.requests += 1
            outcome.asks_again = False

    def _note_call(self) -> None:
        self.outcome.requests = self.outcome.requests or 1
        self.outcome.asks_again = True

    def _counted_so_far(self) -> AgentUsage | None:
        thread = self.outcome.session_id
        total = None if self.counter is None or thread is None else self.counter.total(thread)
        used = None if total is None else used_since(self._used_before, total)
        return used if used != AgentUsage() else None

    def _new_words(self, kind: str, item: Message, is_final: bool) -> str:
        whole, item_id = item.get("text"), item.get("id")
        if type(whole) is not str or type(item_id) is not str:
            whole, item_id = text(item, "text"), text(item, "id")
        if item_id in self._completed:
            return ""
        if is_final:
            self._last_said[kind] = whole
            if item_id:
                self._completed.add(item_id)
            if not self._utterances and not self._said_before_cut:
                return whole  # As 0.166.0 prints it: once, and whole.
        utterance = self._utterances.pop(item_id, None) or Utterance(self._said_before_cut.pop(kind, ""))
        if not is_final:
            self._utterances[item_id] = utterance
        return utterance.grow(whole, is_final=is_final)

    def _forget_words(self) -> None:
        self._last_said.clear()
        self._said_before_cut.clear()

    def _on_tool(self, tool: ToolItem, item: Message, is_final: bool) -> list[AgentEvent]:
        # After a tool the model is asked again, so what it says then is not a second attempt. (A web_search item has
        # two "id" keys; the last, which the parser keeps, is the same in all its lines.)
        self._forget_words()
        item_id = text(item, "id")
        if item_id in self._closed_tools:
            return []
        events: list[AgentEvent] = []
        if item_id not in self._open_tools:
            self._open_tools[item_id] = tool
            if item["type"] not in AT_THE_VENDOR:
                self._note_call()
            events.append(AgentToolUseEvent(tool.name(item), item_id, tool.input(item)))
        if not is_final:
            return events
        del self._open_tools[item_id]
        self._closed_tools.add(item_id)
        reason = denial_reason(item)
        if reason is not None:
            self.outcome.permission_denials.append(PermissionDenial(tool.name(item), reason, item_id))
        events.append(AgentToolResultEvent(item_id, tool.output(item), tool.failed(item)))
        return events

    def _on_plan(self, item: Message) -> Sequence[AgentEvent]:
        """A plan is one item for the whole turn; we report each of its states as a separate call, finished at once.

        If it stayed open until the turn's end, it would look like a tool that is running all the time.
        """
        item_id, plan = text(item, "id"), todo_output(item)
        states = self._plans.setdefault(item_id, [])
        if states and states[-1] == plan:
            return ()
        states.append(plan)
        call_id = item_id if len(states) == 1 else f"{item_id}.{len(states)}"
        use = AgentToolUseEvent("todo_list", call_id, {"items": items(item, "items")})
        return use, AgentToolResultEvent(call_id, plan)

    def _close_open_tools(self) -> list[AgentEvent]:
        """A command that continues in the background has no `item.completed`; Codex ends it when it exits."""
        unfinished, self._open_tools = self._open_tools, {}
        return [AgentToolResultEvent(item_id, UNFINISHED, is_error=True) for item_id in unfinished]

    # --- what it says on stderr ------------------------------------------------------------------------------

    def at_exit(self, ended: Ended) -> Closing:
        """Codex reports a bad command line, configuration or thread only on stderr. The same goes for calls that it
        refused: they have no item, only a line in its log."""
        closing = self._closing(ended)
        return closing if self.outcome.usage is not None else attrs.evolve(closing, so_far=self._counted_so_far())

    def _closing(self, ended: Ended) -> Closing:
        refused = [*codex_stderr.refused_calls(ended.stderr)]
        warnings = tuple(
            AgentErrorEvent(f"a tool call was not made: {refusal.reason}", errors.CLI_WARNING) for refusal in refused
        )
        denials = tuple(PermissionDenial(refusal.tool, refusal.reason) for refusal in refused if refusal.is_denial)
        failed = ended.exit_code is not None and ended.exit_code > 0
        sentence = codex_stderr.last_words(ended.said) if failed else None
        if sentence is None:
            return Closing(warnings=warnings, denials=denials)
        kind = next((kind for words, kind in EXIT_SUBTYPES.items() if words in sentence), None)
        return Closing(
            warnings=warnings,
            denials=denials,
            cause=AgentErrorEvent(sentence, errors.CLI_EXIT_ERROR),
            error_subtype=kind if self.outcome.terminal is None else None,
        )

    def presentable(self, stderr: str) -> str:
        return codex_stderr.readable(stderr)


def _used_by_this_run(line: Message, before: AgentUsage | None) -> AgentUsage | None:
    """This run's part of `usage`, which counts from the thread's beginning."""
    counts = mapping(line, "usage")
    return used_since(before, usage_of(counts)) if counts else None


def _subtype_of_failure(message: str, code: str | None) -> ErrorSubtype:
    if message.startswith("Incomplete response returned"):
        return "incomplete"
    # Ignore the address at the end of some messages: its port may look like a status.
    return classify_error(message.partition(", url: ")[0], code=code).error_subtype
