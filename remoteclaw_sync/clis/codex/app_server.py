"""Codex's app server, as of 0.169.0: JSON-RPC in lines, in both directions, with a process that stays.

One process serves many sessions; this module handles one of them (see switchboard.py). Messages about a turn may arrive
too early or too late: those about a turn that is over are recognised by its id, and dropped.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from ... import errors
from ...engine.approval import STOCK_WORDS
from ...engine.classify import classify_error
from ...engine.dialect import Extracted
from ...engine.live_dialect import LiveDialect
from ...engine.outcome import Closing, Ended, RunOutcome
from ...types import (
    AgentErrorEvent,
    AgentEvent,
    AgentExecuteParams,
    AgentPermissionEvent,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    AgentUsage,
    Allow,
    Deny,
    ErrorSubtype,
    PermissionDenial,
    PermissionMode,
    PermissionRequest,
    PromptSyntax,
)
from ...wire.fields import Message, integer, items, mapping, strings, text, wording
from ...wire.jsonrpc import METHOD_NOT_FOUND, Answered, Called, Failed, Peer, RequestId, answer_in
from ..shared import used_since
from . import mcp as codex_mcp
from . import stderr as codex_stderr
from .app_items import as_exec_item
from .dialect import EXIT_SUBTYPES, RETRY_WORD, CodexDialect
from .items import TOOL_ITEMS
from .switchboard import INITIALIZE, LOGIN, NEEDED, refusal

# No network traffic except to the model, no turns that nobody has asked for, and a thread is free when we leave it.
# (Codex ignores settings that it does not know.)
SERVER_CONFIG = (
    "features.plugins=false",
    "features.apps=false",
    "features.goals=false",
    "thread_unload_delay_secs=0",
    "check_for_update_on_startup=false",
    "analytics.enabled=false",
)
KEY_IN_MEMORY = 'cli_auth_credentials_store="ephemeral"'  # Otherwise a login with a key would be written to auth.json.

OPENING_PATIENCE = 600.0  # Seconds for the thread: it may have MCP servers to wait for.
RETRIES_BYTES = 8_192
NO_SKILL = "/dev/null"
SKILL_NAME = re.compile(r"\$([A-Za-z0-9_:-]+)")

# For `thread/start`. "default" leaves the sandbox to the user's configuration; it is read-only if that has none.
THREAD_MODES: Mapping[PermissionMode, Mapping[str, str]] = {
    "default": {"approvalPolicy": "on-request"},
    "read-only": {"approvalPolicy": "never", "sandbox": "read-only"},
    "accept-edits": {"approvalPolicy": "on-request", "sandbox": "workspace-write"},
    "bypass": {"approvalPolicy": "never", "sandbox": "danger-full-access"},
}
# For `turn/start`.
READ_ONLY: Mapping[str, Any] = {"type": "readOnly", "networkAccess": False}
WORKSPACE_WRITE: Mapping[str, Any] = {
    "type": "workspaceWrite",
    "writableRoots": [],
    "networkAccess": False,
    "excludeTmpdirEnvVar": False,
    "excludeSlashTmp": False,
}
# Without the folders for temporary files: Codex would leave its own folders there, and an approved command that fails
# without them is run again outside the sandbox.
APPROVED_WRITE: Mapping[str, Any] = {**WORKSPACE_WRITE, "excludeTmpdirEnvVar": True, "excludeSlashTmp": True}
TURN_SANDBOXES: Mapping[PermissionMode, Mapping[str, Any]] = {
    "read-only": READ_ONLY,
    "accept-edits": WORKSPACE_WRITE,
    "bypass": {"type": "dangerFullAccess"},
}

COMMAND_REQUEST = "item/commandExecution/requestApproval"
CHANGE_REQUEST = "item/fileChange/requestApproval"
MCP_REQUEST = "mcpServer/elicitation/request"
QUESTION_REQUEST = "item/tool/requestUserInput"
QUESTION_TOOL = "request_user_input"

RETRACTED = "codex has taken back the text before this and begun its answer anew"
NO_OTHER_INPUT = "codex cannot change the arguments of a call, so it was refused"
NO_FORMS = "an MCP server asked the user to fill in a form, which was declined"
NO_MODEL_OF_ITS_OWN = "codex keeps the model of its thread: give set_model() a name"


@attrs.frozen(kw_only=True)
class ThreadSettings:
    """The settings with which a session's thread is started or resumed."""

    cwd: str
    model: str | None = None
    mode: PermissionMode = "default"
    has_approver: bool = False
    instructions: str | None = None
    config: Mapping[str, Any] = attrs.field(factory=dict)
    servers: Mapping[str, Any] = attrs.field(factory=dict, repr=False)  # MCP servers, as entries of its configuration.
    logs_in: bool = False  # The process is ready only after a login.

    def params(self, failed_servers: set[str]) -> dict[str, Any]:
        servers = {name: entry for name, entry in self.servers.items() if name not in failed_servers}
        config = {**self.config, **({"mcp_servers": servers} if servers else {})}
        optional = {"model": self.model, "developerInstructions": self.instructions, "config": config or None}
        given = {name: value for name, value in optional.items() if value is not None}
        return {"cwd": self.cwd, **THREAD_MODES[self.mode], "approvalPolicy": self.policy(self.mode), **given}

    def policy(self, mode: PermissionMode) -> str:
        """When Codex asks. Its own policy is to ask when the model wants it to, which does not cover all writes."""
        return "untrusted" if mode == "default" and self.has_approver else THREAD_MODES[mode]["approvalPolicy"]


class CodexLiveDialect(LiveDialect, CodexDialect):
    """Talks to one thread of a `codex app-server`."""

    HANDLERS = {}  # Messages have a `method` and no `type`.

    def __init__(self, prompt_syntax: PromptSyntax = "text") -> None:
        super().__init__()
        self._prompt_syntax = prompt_syntax
        self._as_text = True
        self.settings = ThreadSettings(cwd="/")
        self.peer = self._peer = Peer(envelope=False)
        self._initialized = False
        self._is_refused = False  # The handshake failed: the process will not serve any session.
        self._thread: str | None = None
        self._is_asking = False  # A request for the thread is open.
        self._handshake_over = False
        self._failed_servers: set[str] = set()
        self._own_model: str | None = None
        self._own_sandbox: Mapping[str, Any] = READ_ONLY
        self._overrides: dict[str, Any] = {}  # Settings for the next turn and later ones.
        self._warnings: list[AgentEvent] = []  # To be reported with the next event.
        self._total: AgentUsage | None = None  # Tokens of the whole thread so far.
        self._children: dict[str, str] = {}  # Sub-agents' threads, and their running turns.
        self._spawned_by: dict[str, str] = {}  # Sub-agents' threads, and the calls that started them.
        self._old_turns: set[str] = set()
        self._new_turn()

    def _new_turn(self) -> None:
        self._prompt: list[Message] | None = None  # The prompt, while it waits for the thread.
        self._answer_schema: Message | None = None
        self._turn: str | None = None
        self._has_begun = False  # Only then does Codex accept an interrupt with the turn's id.
        self._interrupted = False
        self._ended: Message | None = None  # A turn that is over, while steering is unanswered.
        self._steers: list[str] = []  # Steering that Codex has not answered yet.
        self._early_steers: list[str] = []
        self._counted = False
        self._asked: dict[str, tuple[RequestId, str, Message]] = {}
        self._calls: dict[str, Message] = {}  # Items of tool calls, as they began.
        self._refused: set[str] = set()  # Calls whose denial is already recorded.
        self._words: dict[str, list[str]] = {}  # The text so far of messages that are not complete.
        self._repeats = ""  # Text of an abandoned message: the new attempt may repeat it.
        self._attempt = ""  # What the new attempt has said so far.
        self._thought: set[str] = set()
        self._open_tools.clear()
        self._closed_tools.clear()
        self._failure_told = None

    def recall(self, facts: Mapping[str, Any]) -> None:
        super().recall(facts)
        if facts.get("login"):
            self.settings = attrs.evolve(self.settings, logs_in=True)

    @property
    def is_ready(self) -> bool:
        return self._handshake_over

    @property
    def has_begun(self) -> bool:
        return self._turn is not None

    @property
    def has_unanswered(self) -> bool:
        return bool(self._steers)

    @property
    def is_lost(self) -> bool:
        return self._is_refused

    @property
    def word_of_tools(self) -> str | None:
        return f"CODEX_SESSION_ID={self._thread}"

    # --- what is said to Codex ------------------------------------------------------------------------------

    def opening(self, fields: AgentExecuteParams) -> bytes:
        return b""  # The switchboard sends it, and tells all sessions when the process is ready.

    def begin_turn(self, params: AgentExecuteParams) -> bytes:
        self.outcome = RunOutcome(session_id=self.outcome.session_id)
        if self._turn is not None:
            self._old_turns.add(self._turn)
        self._new_turn()
        if self._total is not None:
            self._used_before = self._total
        self._as_text = (params.prompt_syntax or self._prompt_syntax) == "text"
        self._prompt = self._said(params.prompt, params.images)
        if params.output_type is not None:
            self._answer_schema = params.output_type.native
        if self._thread is not None:
            self._send_prompt()
        elif self._initialized and not self._is_asking:
            self._ask_for_thread()  # An earlier attempt was refused.
        return self._peer.take()

    def _said(self, words: str, images: Iterable[str | os.PathLike[str]] = ()) -> list[Message]:
        """The input items. For each `$name` in the text, Codex adds the instructions of the skill of that name, unless
        another item has the name. To prevent that we add such items, which the model does not see."""
        names = dict.fromkeys(SKILL_NAME.findall(words)) if self._as_text else ()
        return [
            {"type": "text", "text": words},
            *({"type": "localImage", "path": os.path.abspath(image)} for image in images),
            *({"type": "skill", "name": name, "path": NO_SKILL} for name in names),
        ]

    def _send_prompt(self) -> None:
        if self._prompt is not None:
            given = {"threadId": self._thread, "input": self._prompt, **self._overrides}
            if self._answer_schema is not None:
                given["outputSchema"] = self._answer_schema
            self._prompt = None
            self._peer.request("turn/start", given, self._on_turn_answer)

    def interrupt(self) -> bytes | None:
        if self._thread is None:
            return None
        self._interrupted = True
        self._forget_unsaid()
        self._stop()
        return self._peer.take()

    def _forget_unsaid(self) -> None:
        self._prompt = None
        self._steers.clear()
        self._early_steers.clear()

    def _stop(self) -> None:
        """End the turn, the sub-agents, and the commands of both, which Codex itself would leave running."""
        # Until `turn/started`, Codex refuses the turn's own id, and accepts an empty one.
        self._peer.request(
            "turn/interrupt", {"threadId": self._thread, "turnId": self._turn if self._has_begun and self._turn else ""}
        )
        for child, turn in list(self._children.items()):
            self._peer.request("turn/interrupt", {"threadId": child, "turnId": turn})
        self._end_commands()

    def _end_commands(self) -> None:
        for thread in (self._thread, *self._children):
            self._peer.request("thread/backgroundTerminals/clean", {"threadId": thread})

    def steer(self, text: str) -> bytes:
        self._steers.append(text)
        if self._has_begun:
            self._send_steer(text)
        else:
            self._early_steers.append(text)
        return self._peer.take()

    def _send_steer(self, words: str) -> None:
        def heard(answer: Answered | Failed) -> None:
            if words not in self._steers:
                return  # Interrupted in the meantime.
            self._steers.remove(words)
            if isinstance(answer, Failed):
                self._begin_another(words)  # The turn was over, so the text gets its own turn.
            elif self._ended is not None and not self._steers:
                self._warnings += self._judge_turn(self._ended)

        self._peer.request(
            "turn/steer", {"threadId": self._thread, "input": self._said(words), "expectedTurnId": self._turn}, heard
        )

    def _begin_another(self, words: str) -> None:
        self._turn, self._has_begun, self._ended = None, False, None
        self.outcome.reopen()
        self._prompt = self._said(words)
        self._send_prompt()

    def set_model(self, name: str | None) -> bytes:
        name = name or self._own_model
        if name is None:
            self._warnings.append(AgentErrorEvent(NO_MODEL_OF_ITS_OWN, errors.CLI_WARNING))
        else:
            self._overrides["model"] = name
        return b""

    def set_permission_mode(self, mode: PermissionMode, started_with: PermissionMode) -> bytes:
        self._overrides["approvalPolicy"] = self.settings.policy(mode)
        self._overrides["sandboxPolicy"] = dict(TURN_SANDBOXES.get(mode, self._own_sandbox))
        return b""

    def farewell(self) -> bytes:
        return b""  # When its stdin is closed, it exits and so releases the thread.

    # --- the handshake --------------------------------------------------------------------------------------

    def _on_handshake(self, message: Message, method: str) -> None:
        answer = answer_in(message, method, method)
        refused = refusal(answer)
        if refused is not None:
            self._is_refused = True
            self._give_up(refused.message, refused.code, refused.kind)
            return
        self._initialized = True
        if method == LOGIN or not self.settings.logs_in:
            self._ask_for_thread()

    def _ask_for_thread(self) -> None:
        self._is_asking = True
        given = self.settings.params(self._failed_servers)
        if self._asked_thread is None:
            self._peer.request("thread/start", given, self._on_thread, OPENING_PATIENCE)
        else:
            resumed = {"threadId": self._asked_thread, "excludeTurns": True, **given}
            self._peer.request("thread/resume", resumed, self._on_thread, OPENING_PATIENCE)

    def _on_thread(self, answer: Answered | Failed) -> None:
        self._is_asking = False
        if isinstance(answer, Failed):
            self._on_no_thread(answer.message)
            return
        result = _result(answer)
        thread = text(mapping(result, "thread"), "id")
        asked = self._asked_thread
        if not thread or (asked is not None and thread.lower() != asked):
            message = f"codex did not resume thread {asked} but began another" if asked else "codex began no thread"
            self._give_up(message, errors.SESSION_NOT_FOUND if asked else errors.CLI_ERROR)
            return
        self._thread = thread
        self._handshake_over = True
        if self.settings.model is None and asked is None:
            self._own_model = text(result, "model") or None
        if self.settings.mode == "default":
            self._own_sandbox = mapping(result, "sandbox") or READ_ONLY
            self._let_what_is_approved_write()
        if self._instructions_ignored:
            message = "codex keeps the instructions its thread began with: system_prompt is ignored when it is resumed"
            self._warnings.append(AgentErrorEvent(message, errors.CLI_WARNING))
        self._send_prompt()

    def _let_what_is_approved_write(self) -> None:
        """Codex runs an approved command in the sandbox first, and outside only if it fails there. In a read-only
        sandbox `touch made; true` would be approved and succeed, but no file would be made."""
        if self.settings.has_approver and text(self._own_sandbox, "type") == READ_ONLY["type"]:
            self._own_sandbox = APPROVED_WRITE
            self._overrides.setdefault("sandboxPolicy", dict(APPROVED_WRITE))

    def _on_no_thread(self, message: str) -> None:
        failed = codex_mcp.failed_servers(message, {**self.settings.servers})
        failed = {name: reason for name, reason in failed.items() if name not in self._failed_servers}
        if failed:
            self._failed_servers |= set(failed)
            reasons = "; ".join(f"{reason:.300}" for reason in failed.values())
            self._warnings.append(AgentErrorEvent(f"MCP server could not be used: {reasons}", errors.MCP_SERVER_FAILED))
            self._ask_for_thread()
            return
        if self._asked_thread is not None and ("no rollout found" in message or "not found" in message):
            self._give_up(message, errors.SESSION_NOT_FOUND, "session_not_found")
            return
        self._give_up(message, errors.CLI_ERROR)

    def _give_up(self, message: str, code: str, kind: ErrorSubtype | None = None) -> None:
        """Fail this turn. The next one tries again."""
        self._handshake_over = True
        self._forget_unsaid()
        message = self.presentable(message)
        kind = kind or next((kind for words, kind in EXIT_SUBTYPES.items() if words in message), None)
        if kind is None:
            kind = "config" if "configuration" in message else classify_error(message).error_subtype
        self.outcome.fail(kind)
        self._warnings.append(AgentErrorEvent(message, code))

    # --- what Codex says ------------------------------------------------------------------------------------

    def is_life(self, chunk: bytes) -> bool:
        if len(chunk) > RETRIES_BYTES or RETRY_WORD not in chunk:
            return True
        lines = [line for line in chunk.split(b"\n") if line.strip()]
        return not all(RETRY_WORD in line and b'"willRetry":true' in line for line in lines)

    def may_run_tool(self, chunk: bytes) -> bool:
        return b'"item/started"' in chunk

    def may_end_turn(self, chunk: bytes) -> bool:
        return b'"turn/completed"' in chunk

    def _read(self, message: Message) -> Extracted:
        if "method" not in message and (handshake := message.get("id")) in (INITIALIZE, LOGIN):
            self._on_handshake(message, str(handshake))
        heard = self._peer.feed(message)
        found: Extracted = None
        if isinstance(heard, Called):
            found = self._on_call(heard)
        elif heard is not None and not isinstance(heard, Answered | Failed):
            reader = NOTICES.get(heard.method)
            if reader is not None:
                found = reader(self, heard.params)
        if said := self._peer.take():
            self.outbox.append(said)
        if not self._warnings:
            return found
        warnings, self._warnings = self._warnings, []
        return [*warnings, *_listed(found)]

    def _is_current(self, params: Message) -> bool:
        """Whether a message is about this turn: not about a sub-agent, or a turn that is over."""
        return text(params, "threadId") == self._thread and text(params, "turnId") not in self._old_turns

    def _on_turn_answer(self, answer: Answered | Failed) -> None:
        if isinstance(answer, Answered):
            self._turn = text(mapping(_result(answer), "turn"), "id") or self._turn
            self.outcome.session_id = self._thread
            return
        if "thread not found" in answer.message:
            self._asked_thread, self._thread = self._thread, None  # The next turn resumes it.
        self._forget_unsaid()
        self._warnings += self._failure(answer.message)
        self.outcome.fail(self.outcome.error_subtype)

    def _on_turn_begun(self, params: Message) -> None:
        turn = text(mapping(params, "turn"), "id") or text(params, "turnId")
        thread = text(params, "threadId")
        if thread != self._thread:
            self._children[thread] = turn
            return
        if turn in self._old_turns:
            return
        self._turn, self._has_begun = turn, True
        self.outcome.session_id = self._thread
        if self._interrupted:
            self._stop()  # The first attempt may have come too early.
            return
        early, self._early_steers = self._early_steers, []
        for words in early:
            self._send_steer(words)

    def _on_turn_over(self, params: Message) -> list[AgentEvent]:
        turn = mapping(params, "turn")
        thread, name = text(params, "threadId"), text(turn, "id") or text(params, "turnId")
        if thread != self._thread:
            self._children.pop(thread, None)
            return []
        if name in self._old_turns:
            return []
        self._old_turns.add(name)
        if self._interrupted:
            self._end_commands()
        self._asked.clear()
        if self._counted and self._total is not None:
            self.outcome.usage = used_since(self._used_before, self._total)
        if self._steers:
            self._ended = turn  # The answers will show whether it was the last one.
            return self._close_open_tools()
        return [*self._close_open_tools(), *self._judge_turn(turn)]

    def _judge_turn(self, turn: Message) -> list[AgentEvent]:
        status = text(turn, "status")
        if status == "failed":
            failure = self._failure(wording(mapping(turn, "error").get("message")) or "the turn failed")
            self.outcome.fail(self.outcome.error_subtype)
            return failure
        if status == "interrupted":
            self.outcome.fail("aborted")
            return []
        self.outcome.succeed()
        return []

    def _on_usage(self, params: Message) -> None:
        if text(params, "threadId") == self._thread:
            total = mapping(mapping(params, "tokenUsage"), "total")
            self._total = AgentUsage(
                integer(total, "inputTokens"),
                integer(total, "outputTokens"),
                integer(total, "cachedInputTokens"),
                integer(total, "cacheWriteInputTokens"),
            )
            self._counted = text(params, "turnId") not in self._old_turns
            if self._counted:  # Sent when a request and the tools that it called are over.
                self.outcome.requests += 1
                self.outcome.so_far = used_since(self._used_before, self._total)

    def _on_problem(self, params: Message) -> list[AgentEvent]:
        if not self._is_current(params):
            return []
        message = wording(mapping(params, "error").get("message")) or "codex reported an error without a message"
        if params.get("willRetry") is True:
            return [AgentErrorEvent(message, errors.CLI_WARNING)]
        return self._failure(message)

    def _on_warning(self, params: Message) -> AgentEvent | None:
        message = wording(params.get("message")) or wording(params.get("summary"))
        if not message or codex_stderr.NO_BUBBLEWRAP.match(message):
            return None
        return AgentErrorEvent(message, errors.CLI_WARNING)

    def _on_request_gone(self, params: Message) -> None:
        self._asked.pop(str(params.get("requestId")), None)

    # --- words ----------------------------------------------------------------------------------------------

    def _on_text(self, params: Message) -> Extracted:
        item, delta = text(params, "itemId"), text(params, "delta")
        if not self._is_current(params) or not delta:
            return None
        if item not in self._words:
            self._begin_message(item)
        self._words[item].append(delta)
        return AgentTextEvent(delta) if not self._repeats else self._again(delta)

    def _begin_message(self, item: str) -> None:
        """A new message begins. One before it without an end was abandoned: the stream was cut off, or we steered."""
        given_up = ["".join(words) for words in self._words.values()]
        if given_up:
            self._repeats, self._attempt = given_up[-1], ""
        self._words = {item: []}

    def _again(self, words: str) -> Extracted:
        """What the second attempt at a message adds to the first."""
        self._attempt += words
        if self._repeats.startswith(self._attempt):
            return None
        repeats, self._repeats = self._repeats, ""
        if self._attempt.startswith(repeats):
            return AgentTextEvent(self._attempt[len(repeats) :])
        return [AgentErrorEvent(RETRACTED, errors.CLI_WARNING), AgentTextEvent(self._attempt)]

    def _on_whole_text(self, item: Message) -> Extracted:
        name, whole = text(item, "id"), text(item, "text")
        if name not in self._words:
            if not whole:
                return None
            self._begin_message(name)
        said = "".join(self._words.pop(name))
        rest = whole[len(said) :] if whole.startswith(said) else ""
        if not self._repeats:
            return AgentTextEvent(rest) if rest else None
        found = self._again(rest) if rest else None
        if self._repeats:  # All of it was in the first attempt.
            shorter, self._repeats = self._attempt != self._repeats, ""
            return AgentErrorEvent(RETRACTED, errors.CLI_WARNING) if shorter else None
        return found

    def _on_thought(self, params: Message) -> AgentEvent | None:
        delta = text(params, "delta")
        if not self._is_current(params) or not delta:
            return None
        self._thought.add(text(params, "itemId"))
        return AgentThinkingEvent(delta)

    def _on_further_thought(self, params: Message) -> AgentEvent | None:
        known = text(params, "itemId") in self._thought
        return AgentThinkingEvent("\n\n") if known and self._is_current(params) else None

    def _on_whole_thought(self, item: Message) -> AgentEvent | None:
        whole, name = "\n\n".join(strings(item, "summary") or strings(item, "content")), text(item, "id")
        is_told = name in self._thought
        self._thought.discard(name)  # Some servers give every thought the same id.
        return AgentThinkingEvent(whole) if whole and not is_told else None

    # --- tools ----------------------------------------------------------------------------------------------

    def _on_item_begun(self, params: Message) -> Extracted:
        return self._on_any_item(params, is_final=False)

    def _on_item_over(self, params: Message) -> Extracted:
        return self._on_any_item(params, is_final=True)

    def _on_any_item(self, params: Message, is_final: bool) -> Extracted:
        item = mapping(params, "item")
        if not self._is_current(params):
            return None
        kind = text(item, "type")
        if kind in ("agentMessage", "reasoning"):
            self.outcome.asks_again = False
        if kind == "agentMessage":
            return self._on_whole_text(item) if is_final else None
        if kind == "reasoning":
            return self._on_whole_thought(item) if is_final else None
        known = as_exec_item(item)
        if known is None:
            return None
        name, before = text(known, "id"), len(self.outcome.permission_denials)
        if known.get("tool") == "spawn_agent":
            self._spawned_by |= dict.fromkeys(strings(known, "receiver_thread_ids"), name)
        if not is_final:
            self._closed_tools.discard(name)  # A new call: some servers give every call the same id.
        events = self._on_tool(TOOL_ITEMS[known["type"]], known, is_final)
        if name in self._refused:
            del self.outcome.permission_denials[before:]  # The caller's own refusal, which is already recorded.
        if not is_final and name:
            self._calls[name] = known
        return events

    def _note_call(self) -> None:
        self.outcome.asks_again = True  # Requests are counted when they are over.

    # --- what Codex asks ------------------------------------------------------------------------------------

    def _on_call(self, call: Called) -> Extracted:
        if call.method not in APPROVALS:
            # Always answer, or Codex would wait forever.
            self._peer.refuse(call.id, METHOD_NOT_FOUND, f"this client does not know {call.method!r}")
            return None
        if call.method == MCP_REQUEST and not _is_mcp_approval(call.params):
            self._peer.answer(call.id, {"action": "decline", "content": None, "_meta": None})
            return AgentErrorEvent(NO_FORMS, errors.CLI_WARNING)
        name = str(call.id)
        if self._interrupted or self._turn is None or self.outcome.terminal is not None:
            self._peer.answer(call.id, _answer(call.method, "decline"))  # From a sub-agent that nobody listens to.
            return None
        self._asked[name] = call.id, call.method, call.params
        request = self._permission(name, call.method, call.params)
        asks = AgentPermissionEvent(request)
        if call.method != QUESTION_REQUEST or not request.tool_id:
            return asks
        parent = request.parent_tool_use_id  # Codex sends no item for this call.
        return [AgentToolUseEvent(QUESTION_TOOL, request.tool_id, request.input, parent), asks]

    def _permission(self, name: str, method: str, params: Message) -> PermissionRequest:
        tool_id = text(params, "itemId")
        known = self._calls.get(tool_id, {})
        reason = text(params, "reason") or None
        questions: list[Message] = []
        given: Mapping[str, Any]
        if method == COMMAND_REQUEST:
            tool = "command_execution"
            command = text(params, "command") or text(known, "command")
            given = {"command": command, **({"cwd": params["cwd"]} if text(params, "cwd") else {})}
        elif method == CHANGE_REQUEST:
            tool, given = "file_change", {"changes": items(known, "changes")}
        elif method == MCP_REQUEST:
            meta = mapping(params, "_meta")
            tool, given = f"mcp__{text(params, 'serverName')}__{text(meta, 'tool_name')}", mapping(meta, "tool_params")
            tool_id, reason = self._open_mcp_call(tool), text(params, "message") or None
        else:
            questions = [question for question in items(params, "questions") if isinstance(question, dict)]
            tool, given = QUESTION_TOOL, {"questions": questions}
        return PermissionRequest(
            name,
            tool,
            tool_id,
            given,
            reason=reason,
            session_id=self._thread,  # Even for a sub-agent, because callers do not know its thread.
            parent_tool_use_id=self._spawned_by.get(text(params, "threadId")),
            questions=questions,
        )

    def _open_mcp_call(self, tool: str) -> str:
        """The call that a request is about; the request does not name it."""
        mcp = TOOL_ITEMS["mcp_tool_call"]
        found = [name for name, kind in self._open_tools.items() if kind is mcp and mcp.name(self._calls[name]) == tool]
        return found[-1] if found else ""

    def answer(self, request: PermissionRequest, decision: Allow | Deny) -> bytes:
        asked = self._asked.pop(request.id, None)
        if asked is None:
            return b""  # Codex no longer waits for it.
        number, method, _ = asked
        if method == QUESTION_REQUEST and request.tool_id:
            self._warnings.append(_question_over(request, decision))
        if isinstance(decision, Deny):
            self._refused.add(request.tool_id)
            if decision.message not in STOCK_WORDS and not decision.stop and self._turn is not None:
                # Codex has no field for a reason. If it is sent before the answer, the model reads it after the call.
                # (The stock words say no more than Codex itself does.)
                what = "question was not answered" if method == QUESTION_REQUEST else "call was refused"
                words = f"The {what}: {decision.message}"
                given = {"threadId": self._thread, "input": self._said(words), "expectedTurnId": self._turn}
                self._peer.request("turn/steer", given)
            self._peer.answer(number, _answer(method, "cancel" if decision.stop else "decline"))
        elif method == QUESTION_REQUEST:
            self._peer.answer(number, {"answers": _by_id(request, decision.answers or {})})
        elif decision.input is not None and dict(decision.input) != dict(request.input):
            self._refused.add(request.tool_id)
            denial = PermissionDenial(request.tool_name, NO_OTHER_INPUT, request.tool_id or None)
            self.outcome.permission_denials.append(denial)
            self._warnings.append(AgentErrorEvent(NO_OTHER_INPUT, errors.CLI_WARNING))
            self._peer.answer(number, _answer(method, "decline"))
        else:
            self._peer.answer(number, _answer(method, "accept"))
        return self._peer.take()

    # --- its end --------------------------------------------------------------------------------------------

    def at_exit(self, ended: Ended) -> Closing:
        closing = super().at_exit(ended)
        if self._initialized or closing.cause is None:
            return closing
        message = f"{closing.cause.message} (a live session needs `codex app-server`, of Codex {NEEDED} or newer)"
        return attrs.evolve(closing, cause=attrs.evolve(closing.cause, message=message))


APPROVALS = {COMMAND_REQUEST, CHANGE_REQUEST, MCP_REQUEST, QUESTION_REQUEST}

NOTICES: Mapping[str, Callable[[CodexLiveDialect, Message], Extracted]] = {
    "turn/started": CodexLiveDialect._on_turn_begun,
    "turn/completed": CodexLiveDialect._on_turn_over,
    "item/started": CodexLiveDialect._on_item_begun,
    "item/completed": CodexLiveDialect._on_item_over,
    "item/agentMessage/delta": CodexLiveDialect._on_text,
    "item/reasoning/summaryTextDelta": CodexLiveDialect._on_thought,
    "item/reasoning/textDelta": CodexLiveDialect._on_thought,
    "item/reasoning/summaryPartAdded": CodexLiveDialect._on_further_thought,
    "thread/tokenUsage/updated": CodexLiveDialect._on_usage,
    "error": CodexLiveDialect._on_problem,
    "warning": CodexLiveDialect._on_warning,
    "configWarning": CodexLiveDialect._on_warning,
    "deprecationNotice": CodexLiveDialect._on_warning,
    "serverRequest/resolved": CodexLiveDialect._on_request_gone,
}


def _result(answer: Answered) -> Message:
    return answer.result if isinstance(answer.result, dict) else {}


def _listed(found: Extracted) -> list[AgentEvent]:
    if found is None:
        return []
    return [found] if isinstance(found, AgentEvent) else [*found]


def _is_mcp_approval(params: Message) -> bool:
    """Whether Codex asks about a tool, and not the server about something else."""
    return text(mapping(params, "_meta"), "codex_approval_kind") == "mcp_tool_call"


def _answer(method: str, decision: str) -> Message:
    if method == MCP_REQUEST:
        return {"action": decision, "content": {} if decision == "accept" else None, "_meta": None}
    return {"answers": {}} if method == QUESTION_REQUEST else {"decision": decision}


def _question_over(request: PermissionRequest, decision: Allow | Deny) -> AgentEvent:
    if isinstance(decision, Deny):
        return AgentToolResultEvent(request.tool_id, decision.message, True, request.parent_tool_use_id)
    answers = {str(question): answer for question, answer in (decision.answers or {}).items()}
    output = json.dumps(answers, ensure_ascii=False, default=str)
    return AgentToolResultEvent(request.tool_id, output, False, request.parent_tool_use_id)


def _by_id(request: PermissionRequest, answers: Mapping[str, Any]) -> Message:
    """The answers, which are keyed by the questions' texts, by the questions' ids instead."""
    found = {}
    for question in request.questions:
        answer = answers.get(str(question.get("question")))
        if answer is not None:
            several = answer if isinstance(answer, list | tuple) else [answer]
            found[str(question.get("id"))] = {"answers": [str(one) for one in several]}
    return found
