"""Claude Code's control protocol, as of 2.1.326: the lines in both directions with a process that stays.

The lines of a turn are those of a one-shot run, read by the same handlers. Nothing on the wire says which prompt
a line belongs to, so only one prompt is in flight at a time. Prompts have ids, and a `result` (2.1.326) or the echo of
the prompt (2.1.197) shows by them whether steering was part of the turn.
"""

from __future__ import annotations

import itertools
import json
import uuid
from typing import Any

from ... import errors
from ...engine.dialect import Extracted
from ...engine.live_dialect import LiveDialect
from ...engine.meter import limits_cost
from ...engine.outcome import RunOutcome
from ...types import (
    AgentErrorEvent,
    AgentEvent,
    AgentExecuteParams,
    AgentPermissionEvent,
    Allow,
    Deny,
    PermissionMode,
    PermissionRequest,
    PromptSyntax,
)
from ...wire.fields import Message, items, mapping, number, text
from .dialect import ClaudeDialect
from .messages import answer_schema, user_line

# These make a process return one result for each prompt, and make the model see the tools of MCP servers at once.
LIVE_ENV = {"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1", "ENABLE_TOOL_SEARCH": "false"}
LIVE_ARGS = ("--input-format=stream-json", "--permission-prompt-tool=stdio", "--replay-user-messages")

COST_REQUEST = "get_usage"  # 2.1.326 has it; older ones refuse it, and show costs only when the turn is over.
QUESTION_TOOL = "AskUserQuestion"
NO_FORMS = "an MCP server asked the user to fill in a form, which was declined"
UNASKED = "task-notification"  # The origin of a turn that a background task has started.
# Modes that a running process can change to. The others must be set at its start: "read-only" removes tools, and
# "bypass" needs a flag with which (2.1.197) other modes would ask less than they should.
CHANGEABLE: dict[PermissionMode, str] = {"default": "default", "accept-edits": "acceptEdits"}


class ClaudeLiveDialect(LiveDialect, ClaudeDialect):
    """Reads and writes stream-json with control messages, for one process."""

    HANDLERS = {
        **ClaudeDialect.HANDLERS,
        "control_request": "on_control_request",
        "control_response": "on_control_response",
        "control_cancel_request": "on_control_cancel_request",
    }

    def __init__(self, prompt_syntax: PromptSyntax = "text") -> None:
        super().__init__()
        self._prompt_syntax = prompt_syntax
        self._numbers = itertools.count(1)
        self._asked: dict[str, str] = {}  # Our unanswered requests, and what they are about.
        self._open: dict[str, Message] = {}  # Claude's requests for permission, with the arguments of the call.
        self._parents: dict[str, str | None] = {}  # Of tool calls.
        self._is_ready = False
        self._own_mode: str | None = None  # The mode in the user's settings.
        self._as_text = True
        self._prompts: set[str] = set()  # All prompts of the turn.
        self._unanswered: set[str] = set()
        self._has_begun = False
        self._echoed = False
        self._interrupted = False
        self._cost_before: float | None = None  # At the beginning of the turn, if it has a cost limit.
        self._wants_cost = False

    @property
    def is_ready(self) -> bool:
        return self._is_ready

    @property
    def has_begun(self) -> bool:
        return self._has_begun

    @property
    def has_unanswered(self) -> bool:
        return bool(self._unanswered)

    # --- what is said to Claude -----------------------------------------------------------------------------

    def opening(self, fields: AgentExecuteParams) -> bytes:
        schema = answer_schema(fields)  # For all answers of this process.
        return self._request("initialize", hooks=None, **({} if schema is None else {"jsonSchema": schema}))

    def begin_turn(self, params: AgentExecuteParams) -> bytes:
        self.outcome = RunOutcome(session_id=self.outcome.session_id)
        self._forget_turn()
        self._before = self._totals
        self._parents.clear()
        self._prompts, self._unanswered = set(), set()
        self._has_begun = self._echoed = self._interrupted = False
        self._as_text = (params.prompt_syntax or self._prompt_syntax) == "text"
        self._cost_before, self._wants_cost = None, limits_cost(params)
        asked = self._request(COST_REQUEST) if self._wants_cost else b""
        return asked + self._prompt(params.prompt, params.images)

    def _prompt(self, words: str, images: Any = ()) -> bytes:
        name = str(uuid.uuid4())
        line = user_line(words, images, as_text=self._as_text, uuid=name)
        self._prompts.add(name)
        self._unanswered.add(name)
        return line

    def steer(self, text: str) -> bytes:
        return self._prompt(text)

    def interrupt(self) -> bytes:
        self._interrupted = True
        return self._request("interrupt", cancel_queued=True)

    def set_model(self, name: str | None) -> bytes:
        return self._request("set_model", model=name)

    def set_permission_mode(self, mode: PermissionMode, started_with: PermissionMode) -> bytes | None:
        if mode not in CHANGEABLE or started_with not in CHANGEABLE:
            return None
        own = self._own_mode if mode == started_with == "default" else None
        return self._request("set_permission_mode", mode=own or CHANGEABLE[mode])

    def farewell(self) -> bytes:
        return self._request("end_session")

    def answer(self, request: PermissionRequest, decision: Allow | Deny) -> bytes:
        asked = self._open.get(request.id)
        if asked is None:
            return b""  # Claude has withdrawn it.
        if isinstance(decision, Deny):
            stop = {"interrupt": True} if decision.stop else {}
            said = _response(request.id, {"behavior": "deny", "message": decision.message, **stop})
        else:
            # All of the input, changed or not: Claude up to 2.1.206 refuses an answer without it.
            allowed = dict(asked if decision.input is None else decision.input)
            if decision.answers is not None:
                # Claude takes several options as one string.
                allowed["answers"] = {
                    question: ", ".join(map(str, answer)) if isinstance(answer, list | tuple) else answer
                    for question, answer in decision.answers.items()
                }
            said = _response(request.id, {"behavior": "allow", "updatedInput": allowed})
        del self._open[request.id]
        return said

    def _request(self, subtype: str, **fields: Any) -> bytes:
        name = f"rc-{next(self._numbers)}"
        self._asked[name] = subtype
        line = {"type": "control_request", "request_id": name, "request": {"subtype": subtype, **fields}}
        return json.dumps(line).encode() + b"\n"

    # --- what Claude says -----------------------------------------------------------------------------------

    def on_control_response(self, line: Message) -> AgentEvent | None:
        response = mapping(line, "response")
        about = self._asked.pop(text(response, "request_id"), None)
        if about == "initialize":
            self._is_ready = True
        if about == COST_REQUEST:
            self._note_cost(number(mapping(mapping(response, "response"), "session"), "total_cost_usd"))
        if text(response, "subtype") == "error" and about in ("set_model", "set_permission_mode"):
            return AgentErrorEvent(f"Claude refused {about}: {text(response, 'error')}", errors.CLI_WARNING)
        return None

    def _note_cost(self, total: float | None) -> None:
        """What the process has cost so far; we ask at the turn's beginning, and after each answer of the model."""
        if total is not None and self._cost_before is None:
            self._cost_before = total
        elif total is not None and self._cost_before is not None:
            self.outcome.cost_so_far = max(total - self._cost_before, 0.0)

    def _count_answer(self, event: Message) -> None:
        super()._count_answer(event)
        if self._wants_cost:
            self.outbox.append(self._request(COST_REQUEST))

    def on_control_request(self, line: Message) -> AgentEvent | None:
        name, request = text(line, "request_id"), mapping(line, "request")
        if not name:
            return None
        if request.get("subtype") == "can_use_tool":
            return self._permission(name, request)
        if request.get("subtype") == "elicitation":
            self.outbox.append(_response(name, {"action": "decline"}))
            return AgentErrorEvent(NO_FORMS, errors.CLI_WARNING)
        # Always answer, or Claude would wait forever.
        self.outbox.append(_refusal(name, f"this client does not know {text(request, 'subtype') or 'that'!r}"))
        return None

    def _permission(self, request_id: str, request: Message) -> AgentEvent:
        name, tool_id, arguments = text(request, "tool_name"), text(request, "tool_use_id"), mapping(request, "input")
        self._open[request_id] = arguments
        questions = items(arguments, "questions") if name == QUESTION_TOOL else []
        return AgentPermissionEvent(
            PermissionRequest(
                request_id,
                name,
                tool_id,
                arguments,
                reason=text(request, "decision_reason") or None,
                session_id=self.outcome.session_id,
                parent_tool_use_id=self._parents.get(tool_id),
                questions=[question for question in questions if isinstance(question, dict)],
            )
        )

    def on_control_cancel_request(self, line: Message) -> None:
        self._open.pop(text(line, "request_id"), None)

    def _tool_use(self, tool_id: str, name: str, arguments: Message, parent: str | None) -> AgentEvent | None:
        self._parents.setdefault(tool_id, parent)
        return super()._tool_use(tool_id, name, arguments, parent)

    def on_user(self, line: Message) -> list[AgentEvent]:
        if line.get("isReplay"):
            self._echoed = True
            self._unanswered.discard(text(line, "uuid"))
            return []
        return super().on_user(line)

    def on_system(self, line: Message) -> Extracted:
        if line.get("subtype") == "init":
            self._has_begun = True  # It comes first in every turn.
            self._own_mode = self._own_mode or text(line, "permissionMode") or None
        return super().on_system(line)

    def may_end_turn(self, chunk: bytes) -> bool:
        return b'"type":"result"' in chunk

    def on_result(self, line: Message) -> AgentEvent | None:
        answered = {name for name in items(line, "user_message_uuids") if isinstance(name, str)}
        answered |= {text(line, "user_message_uuid")} - {""}
        if text(mapping(line, "origin"), "kind") == UNASKED or (answered and not answered & self._prompts):
            return None  # The result of a turn that nobody has asked for, or that is over.
        self._agents.clear()  # All ran in the foreground, so they have ended even if that was not reported.
        self._unanswered -= answered
        if not answered and not self._echoed:
            self._unanswered.clear()  # An old Claude does not say which were answered.
        event = super().on_result(line)
        if self._unanswered and not self._interrupted:
            self.outcome.reopen()  # Prompts that were not part of this turn belong to the next.
        return event


def _response(number: str, answer: Message) -> bytes:
    response = {"subtype": "success", "request_id": number, "response": answer}
    return json.dumps({"type": "control_response", "response": response}).encode() + b"\n"


def _refusal(number: str, message: str) -> bytes:
    response = {"subtype": "error", "request_id": number, "error": message}
    return json.dumps({"type": "control_response", "response": response}).encode() + b"\n"
