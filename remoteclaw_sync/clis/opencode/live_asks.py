"""What OpenCode asks its user during a turn: permissions and questions. Every request gets an answer.

Permission is always granted only once: OpenCode would apply an "always" to all sessions of the folder. A refusal always
has a message: without one it would end the turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from ... import errors
from ...engine.approval import NOBODY_TO_ASK
from ...engine.outcome import RunOutcome
from ...types import (
    AgentErrorEvent,
    AgentEvent,
    AgentPermissionEvent,
    Allow,
    Deny,
    PermissionDenial,
    PermissionMode,
    PermissionRequest,
)
from ...wire.fields import Message, items, mapping, strings, text
from ...wire.jsonrpc import Answered, Failed
from .config import ASK_RULES
from .live_settings import SessionSettings, route
from .mcp import OUR_RULES_END
from .rules import Rule, denies, read_rules

# How long a request waits for the call that it is about. The call has the arguments, and arrives right after it.
CALL_SECONDS = 1.0
HOLD_SECONDS = 0.1  # Requests of calls that were made together arrive within this time.
# How long a refusal waits for running calls that have not asked yet: a shell's first request may take a second, and
# OpenCode would refuse it along with the other. Some never ask in that time: the second of two edits of a file, or a
# tool that needs no permission.
MOST_HOLD_SECONDS = 5.0
GONE = 404
QUESTION_TOOL = "question"
# Permissions that are asked for in addition to the tool's own.
ABOUT_THE_CALL = ("external_directory", "doom_loop")

NO_OTHER_INPUT = "opencode cannot change the arguments of a call, so it was refused"
RULED_OUT = "The user's configuration denies this tool call."
REFUSED_TOO = "These were refused:"
CANCELLED = "It was not made, because another call was refused. Make it again if it is still needed."
WITHDRAWN = "opencode did not wait for the answer about {}: it has refused it along with another call, or was stopped"

Request = Callable[..., None]  # (method, then, body)


@attrs.define
class _Ask:
    """One request from OpenCode."""

    id: str
    session: str
    directory: str
    properties: Message
    is_question: bool

    @property
    def call_id(self) -> str:
        return text(mapping(self.properties, "tool"), "callID")

    @property
    def permission(self) -> str:
        return text(self.properties, "permission")


class Asks:
    """The open requests of the session and its sub-agents. Sends answers through `request`."""

    def __init__(self, request: Request, parents: Mapping[str, str], tell: Callable[[AgentEvent], None]) -> None:
        self._request = request
        self._parents = parents  # The calls that started sub-agents, by sub-agent session.
        self._late = tell
        self.mode: PermissionMode = "default"
        self.root: str | None = None
        self.refused: set[str] = set()  # Calls whose denial is already recorded.
        self.children: dict[str, str] = {}  # Sub-agents' sessions, and their parents.
        self._asks_for_all = False
        self._rules: dict[str, list[Rule]] = {}  # The user's rules, by agent.
        self._agents: dict[str, str] = {}  # The agent that works in each session.
        self._outcome = RunOutcome()
        self._open: dict[str, _Ask] = {}  # Passed on to the caller.
        self._waiting: dict[str, _Ask] = {}  # Waiting for their call.
        self._held: dict[str, list[tuple[_Ask, str]]] = {}  # Refusals, by session.
        self._on_their_way: dict[str, int] = {}  # Unconfirmed grants, by session.
        self._impatient: set[str] = set()  # Sessions whose refusals no longer wait for any call.
        self._running: dict[str, str] = {}  # Running calls, and their sessions.
        self._decided: set[str] = set()  # Calls whose request has been decided.
        self._withdrawn: dict[str, _Ask] = {}  # Requests that OpenCode refused by itself.
        self._unheard: list[str] = []  # Refusals whose reason the model has not been told.

    def begin(self, settings: SessionSettings) -> None:
        """The server is ready."""
        self.mode, self._asks_for_all = settings.mode, settings.asks

    def begin_turn(self, outcome: RunOutcome) -> None:
        self._outcome = outcome
        self.refused.clear()
        self.children.clear()
        self._unheard.clear()
        self.clear()

    def clear(self) -> None:
        """Forget all requests: nobody will be asked any more."""
        self._open.clear()
        self._waiting.clear()
        self._held.clear()
        self._on_their_way.clear()
        self._impatient.clear()
        self._running.clear()
        self._decided.clear()
        self._withdrawn.clear()

    def note_agent(self, session: str, agent: str) -> None:
        if agent:
            self._agents[session] = agent

    def on_agents(self, status: int, body: Any) -> None:
        """Keep the agents' effective rules, except those that we have added."""
        for agent in body if isinstance(body, list) else ():
            if isinstance(agent, dict):
                self._rules[text(agent, "name")] = [rule for rule in read_rules(agent) if not _is_ours(rule)]

    # --- what is asked --------------------------------------------------------------------------------------

    def on_asked(self, properties: Message, directory: str, calls: Any, *, is_wanted: bool) -> list[AgentEvent]:
        """A request has arrived; `calls` looks up a call that has been reported."""
        name = text(properties, "id")
        if not name or name in self._open or name in self._waiting:
            return []
        is_question = "questions" in properties
        ask = _Ask(name, text(properties, "sessionID"), directory, properties, is_question)
        if not is_wanted:
            self._say_no(ask, NOBODY_TO_ASK)
            return []
        if not is_question and self._is_ruled_out(ask):
            self._refuse(ask, RULED_OUT)
            self._note_denial(ask.permission, RULED_OUT, ask.call_id)
            return []
        if not is_question and (self.mode == "bypass" or (self.mode == "accept-edits" and ask.permission == "edit")):
            self._allow(ask)
            return []
        call = calls(ask.call_id)
        if call is not None or not ask.call_id:
            return [self._tell(ask, call)]
        self._waiting[name] = ask

        def waited(answer: Answered | Failed) -> None:
            if name in self._waiting:
                self._late(self._tell(ask, None))

        self._request("WAIT", waited, limit=CALL_SECONDS)
        return []

    def on_call(self, call_id: str, call: tuple[str, Message] | None) -> list[AgentEvent]:
        """A call has its arguments, so the requests about it can be passed on."""
        if call is None or not self._waiting:
            return []
        found = [ask for ask in self._waiting.values() if ask.call_id == call_id]
        return [self._tell(ask, call) for ask in found]

    def note_call(self, session: str, call_id: str, status: str) -> None:
        """A call's status has changed: while it is running, it may still ask."""
        if status == "running":
            self._running[call_id] = session
        elif self._running.pop(call_id, None) is not None:
            self._release(session)

    def _tell(self, ask: _Ask, call: tuple[str, Message] | None) -> AgentEvent:
        self._waiting.pop(ask.id, None)
        self._open[ask.id] = ask
        return AgentPermissionEvent(self._described(ask, call))

    def _described(self, ask: _Ask, call: tuple[str, Message] | None) -> PermissionRequest:
        properties, permission = ask.properties, ask.permission
        patterns = strings(properties, "patterns")
        questions: list[Message] = []
        name, given = call or (permission, dict(mapping(properties, "metadata")))
        reason = None
        if ask.is_question:
            questions = [question for question in items(properties, "questions") if isinstance(question, dict)]
            name, given = QUESTION_TOOL, {"questions": questions}
        elif permission in ABOUT_THE_CALL:
            reason = f"{permission}: {', '.join(patterns)}"
            name, given = permission, {**given, "tool": name, "patterns": patterns}
        return PermissionRequest(
            ask.id,
            name,
            ask.call_id,
            given,
            reason=reason,
            session_id=ask.session or self.root,
            parent_tool_use_id=self._parents.get(ask.session),
            questions=questions,
        )

    def _is_ruled_out(self, ask: _Ask) -> bool:
        """Whether OpenCode asks only because of our rules, for something that the user's own rules deny."""
        if not self._asks_for_all:
            return False
        agent = self._agents.get(ask.session, "")
        known = [self._rules[agent]] if agent in self._rules else [*self._rules.values()]
        patterns = strings(ask.properties, "patterns") or ["*"]
        return any(denies(rules, ask.permission, patterns) for rules in known)

    def on_gone(self, properties: Message) -> None:
        """The request was answered, whether by us or not."""
        name = text(properties, "requestID")
        told, untold = self._open.pop(name, None), self._waiting.pop(name, None)
        gone = told or untold
        if gone is None:
            return
        if text(properties, "reply") == "reject":
            if told is not None:
                self._withdrawn[name] = told
            else:
                self._note_unheard(gone, CANCELLED)
        self._release(gone.session)

    def read_again(self, directory: str, then: Callable[[Message], None]) -> None:
        """Ask the server for its open requests, because some may have been missed."""

        def heard(answer: Answered | Failed) -> None:
            result = answer.result if isinstance(answer, Answered) else None
            body = result.get("body") if isinstance(result, dict) else None
            for properties in body if isinstance(body, list) else ():
                if isinstance(properties, dict):
                    then(properties)

        for kind in ("permission", "question"):
            self._request(f"GET {route(kind, directory=directory)}", heard)

    # --- what is answered -----------------------------------------------------------------------------------

    def answer(self, request: PermissionRequest, decision: Allow | Deny) -> list[AgentEvent]:
        """Pass on the caller's answer; returns events that report problems with it."""
        ask = self._open.pop(request.id, None)
        if ask is None:
            gone = self._withdrawn.pop(request.id, None)
            if gone is not None:
                self._note_unheard(gone, CANCELLED if isinstance(decision, Allow) else decision.message)
            if isinstance(decision, Allow):
                return [AgentErrorEvent(WITHDRAWN.format(request.tool_name), errors.CLI_WARNING)]
            return []
        if isinstance(decision, Deny):
            self.refused.add(ask.call_id)
            if not decision.stop:  # With `stop`, the turn is about to be ended.
                self._refuse(ask, decision.message)
            return []
        if ask.is_question:
            self._post(ask, "reply", {"answers": _in_order(request.questions, decision.answers or {})})
            self._decided.add(ask.call_id)
            self._release(ask.session)
            return []
        if decision.input is not None and dict(decision.input) != dict(request.input):
            self._refuse(ask, NO_OTHER_INPUT)
            self._note_denial(request.tool_name, NO_OTHER_INPUT, ask.call_id)
            return [AgentErrorEvent(NO_OTHER_INPUT, errors.CLI_WARNING)]
        self._allow(ask)
        return []

    def _allow(self, ask: _Ask) -> None:
        session = ask.session
        if ask.permission not in ABOUT_THE_CALL:  # After these, the tool itself may still ask.
            self._decided.add(ask.call_id)
        self._on_their_way[session] = self._on_their_way.get(session, 0) + 1
        outcome = self._outcome

        def heard(answer: Answered | Failed) -> None:
            if outcome is not self._outcome or session not in self._on_their_way:
                return  # About a turn that is over, or was interrupted.
            if _is_gone(answer):
                self._late(AgentErrorEvent(WITHDRAWN.format(ask.permission), errors.CLI_WARNING))
                self._note_unheard(ask, CANCELLED)
            self._on_their_way[session] -= 1
            self._release(session)

        self._post(ask, "reply", {"reply": "once"}, heard)

    def _refuse(self, ask: _Ask, message: str) -> None:
        """Refuse only after all other open requests are decided: OpenCode refuses those along with this one."""
        session = ask.session
        self._decided.add(ask.call_id)
        held = self._held.setdefault(session, [])
        held.append((ask, message))

        def waited_long_enough(answer: Answered | Failed) -> None:
            if self._held.get(session) is held:
                self._impatient.add(session)
                self._release(session)

        self._request("WAIT", lambda answer: self._release(session), limit=HOLD_SECONDS)
        if len(held) == 1:
            self._request("WAIT", waited_long_enough, limit=MOST_HOLD_SECONDS)

    def _release(self, session: str) -> None:
        undecided = any(ask.session == session for ask in (*self._open.values(), *self._waiting.values()))
        if undecided or self._on_their_way.get(session):
            return
        may_ask = any(of == session and call not in self._decided for call, of in self._running.items())
        if may_ask and session not in self._impatient:
            return
        self._impatient.discard(session)
        held = self._held.pop(session, [])
        questions = [refusal for refusal in held if refusal[0].is_question]
        calls = [refusal for refusal in held if not refusal[0].is_question]
        for ask, message in (*calls[:1], *questions):  # OpenCode refuses the other calls with the first.
            self._say_no(ask, message)
        for ask, message in (*calls[1:], *questions):
            self._note_unheard(ask, message)

    def _note_unheard(self, ask: _Ask, message: str) -> None:
        if ask.session == self.root:
            self._unheard.append(f"{ask.permission or QUESTION_TOOL}: {message}")

    def take_unheard(self) -> str:
        """A message to the model about refusals it has not heard of; "" if there are none."""
        unheard, self._unheard = self._unheard, []
        return "\n".join([REFUSED_TOO, *(f"- {refusal}" for refusal in unheard)]) if unheard else ""

    def _say_no(self, ask: _Ask, message: str) -> None:
        outcome = self._outcome

        def heard(answer: Answered | Failed) -> None:
            if _is_gone(answer) and outcome is self._outcome:
                self._note_unheard(ask, message)

        if ask.is_question:
            self._post(ask, "reject", {})
        else:
            self._post(ask, "reply", {"reply": "reject", "message": message}, heard)

    def _post(self, ask: _Ask, verb: str, body: Message, then: Any = None) -> None:
        kind = "question" if ask.is_question else "permission"
        where = {"directory": ask.directory} if ask.directory else {}
        self._request(f"POST {route(kind, ask.id, verb, **where)}", then, body)

    def _note_denial(self, tool: str, reason: str, call_id: str) -> None:
        self.refused.add(call_id)
        self._outcome.permission_denials.append(PermissionDenial(tool, reason, call_id or None))


def _is_ours(rule: Rule) -> bool:
    return rule[0] in ASK_RULES or rule[0].endswith(OUR_RULES_END)


def _is_gone(answer: Answered | Failed) -> bool:
    """Whether OpenCode no longer waits for this decision."""
    result = answer.result if isinstance(answer, Answered) else None
    return isinstance(result, dict) and result.get("status") == GONE


def _in_order(questions: Iterable[Mapping[str, Any]], answers: Mapping[str, Any]) -> list[list[str]]:
    """The answers, which are keyed by the questions' texts, in the order of the questions."""
    found = []
    for question in questions:
        answer = answers.get(str(question.get("question")), ())
        found.append([str(one) for one in (answer if isinstance(answer, list | tuple) else [answer])])
    return found
