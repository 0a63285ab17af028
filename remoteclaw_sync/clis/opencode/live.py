"""OpenCode's server, as of 1.18.33: requests and events of a process that serves many turns.

One process serves one session and its sub-agents. An answer may overtake earlier events, and an event may show a later
state than the one it was sent for. So a turn is over when its prompt has been answered *and* the session has become
idle after the message that the answer names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from ... import errors
from ...engine.dialect import Extracted
from ...engine.outcome import Closing, Ended, RunOutcome
from ...types import (
    AgentErrorEvent,
    AgentEvent,
    AgentExecuteParams,
    Allow,
    Deny,
    PermissionMode,
    PermissionRequest,
)
from ...versions import is_below
from ...wire.fields import Message, items, mapping, text
from ...wire.jsonrpc import Answered, Failed, Peer, Told
from . import errors as reported
from . import stderr as opencode_stderr
from . import two as opencode_two
from .facts import FACTS
from .live_messages import LiveMessages
from .live_settings import SessionSettings, prompt_parts, route

NEEDED = FACTS.support[0].least
SETTLE_SECONDS = 0.3  # After an error or an abort, a tool's last state may arrive late.
LOST_SECONDS = 5.0  # After a prompt's answer, until we ask whether we missed the turn's end.
ANSWER_SECONDS = 60.0
HANDSHAKE_SECONDS = 120.0  # A folder's first request starts its MCP servers.
MESSAGES_READ = 100  # The most that are read again if some may have been missed.

NOT_LIFE = (b'"server.heartbeat"', b'"session.status"', b'"result":"rung"')  # The last is our own timer.
FEW_BYTES = 8_192

NO_MODEL_OF_ITS_OWN = "opencode keeps the model of its session: give set_model() a name"
NO_ANSWER = "opencode's server did not answer"
ABORTED = "MessageAbortedError"


class OpenCodeLiveDialect(LiveMessages):
    """Talks to one server in lines (see http_backend.py)."""

    HANDLERS = {}  # Events have a `payload` and no `type`.

    def __init__(self) -> None:
        self._peer = Peer(envelope=False)
        super().__init__()
        self.settings = SessionSettings()
        self._left_to_hear = 0  # Answers that the handshake still waits for.
        self._handshake_over = False
        self._no_session: AgentErrorEvent | None = None  # Why the requested session is not available.
        self._model: str | None = None
        self._own_model: str | None = None
        self._names_model = False  # OpenCode's own choice must be named, or it takes the last one.
        self._number = 0  # Identifies the turn.
        self._new_turn()

    def _new_turn(self) -> None:
        self._number += 1
        self._forget_messages()
        self._prompt: AgentExecuteParams | None = None
        self._body: Message | None = None  # The prompt, while it waits for the session.
        self._early: list[str] = []  # Steering before the prompt has arrived: it must not overtake the prompt.
        self._posts = 0  # Unanswered prompts.
        self._answer: Message = {}  # The message in the answer to the last prompt.
        self._begun = False
        self._interrupted = False
        self._aborting = False
        self._settled: set[str] = set()  # Messages after which the session became idle.
        self._settling = False
        self._ends_when_idle = False

    def recall(self, facts: Mapping[str, Any]) -> None:
        super().recall(facts)
        self.settings = attrs.evolve(self.settings, servers=tuple(self._servers))

    @property
    def is_ready(self) -> bool:
        return self._handshake_over

    @property
    def has_begun(self) -> bool:
        return self._begun

    @property
    def has_unanswered(self) -> bool:
        return self._posts > 0 or bool(self._early)

    # --- what is said to OpenCode ---------------------------------------------------------------------------

    def _request(self, method: str, then: Any = None, body: Any = None, limit: float | None = ANSWER_SECONDS) -> None:
        given = {"limit": limit} if body is None else {"limit": limit, "body": body}
        self._peer.request(method, given, then)

    def opening(self, fields: AgentExecuteParams) -> bytes:
        return b""  # The server speaks first.

    def begin_turn(self, params: AgentExecuteParams) -> bytes:
        self.outcome = RunOutcome(session_id=self._session or self.outcome.session_id)
        self._new_turn()
        self._asks.begin_turn(self.outcome)
        self._prompt = params
        self._body = {"parts": prompt_parts(params.prompt, params.images)}
        if self._handshake_over:
            self._go()
        return self._peer.take()

    def _go(self) -> None:
        """Send the prompt, or get what it needs first."""
        if self._body is None or self._prompt is None:
            return
        if self._no_session is not None:
            self._wait(0.0, self._finish)
        elif self._session is None:
            title = self.settings.title_for(self._prompt.prompt)
            path = route("session", directory=self.settings.directory)
            self._request(f"POST {path}", self._on_session, title, HANDSHAKE_SECONDS)
        else:
            body, self._body = self._body, None
            self._send_prompt(body)

    def _send_prompt(self, body: Message) -> None:
        assert self._session is not None
        number = self._number
        self._posts += 1
        model = self._model or (self._own_model if self._names_model else None)
        body = {**self.settings.options(model), **body}
        path = route("session", self._session, "message")
        # Not `prompt_async`: it gives no answer, so we could not know which prompts have been answered.
        self._request(f"POST {path}", lambda answer: self._on_prompt_answer(number, answer), body, None)

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        number = self._number

        def rung(answer: Answered | Failed) -> None:
            if number == self._number and self.outcome.terminal is None:
                then()

        self._request("WAIT", rung, limit=seconds)

    def interrupt(self) -> bytes | None:
        self._interrupted = True
        self._early.clear()
        self._asks.clear()
        if self._session is None or self._body is not None:
            if self._handshake_over and self._session is None and self._no_session is None:
                return None  # The session is being created.
            self._body = None
            self._wait(0.0, self._finish)
        else:
            self._abort()
        return self._peer.take()

    def _abort(self) -> None:
        """End the turn. Closing the prompt's connection would not end it."""
        if self._session is None or self._aborting:
            return
        self._aborting, number = True, self._number

        def done(answer: Answered | Failed) -> None:
            if number == self._number:
                self._aborting = False
                self._look_for_end()

        self._request(f"POST {route('session', self._session, 'abort')}", done, {})

    def steer(self, text: str) -> bytes:
        # OpenCode reads a second prompt at its next step.
        if self._begun:
            self._send_prompt({"parts": prompt_parts(text)})
        else:
            self._early.append(text)
        return self._peer.take()

    def set_model(self, name: str | None) -> bytes:
        # OpenCode keeps using the session's last model, even one that does not exist.
        self._names_model = self._names_model or self._model is not None
        if name is None and self._names_model and self._own_model is None:
            self._told.append(AgentErrorEvent(NO_MODEL_OF_ITS_OWN, errors.CLI_WARNING))
        self._model = name
        return b""

    def set_permission_mode(self, mode: PermissionMode, started_with: PermissionMode) -> bytes | None:
        if "read-only" in (mode, started_with):
            return None  # It depends on rules that OpenCode reads only at its start.
        self._asks.mode = mode
        return b""

    def answer(self, request: PermissionRequest, decision: Allow | Deny) -> bytes:
        self._told += self._asks.answer(request, decision)
        return self._peer.take()

    def farewell(self) -> bytes:
        return b""  # When its stdin is closed, it ends its tools and exits.

    # --- the handshake --------------------------------------------------------------------------------------

    def _on_ready(self, params: Message) -> None:
        version = text(params, "version")
        if version and is_below(version, NEEDED):
            self._on_refused({"version": version, "reason": ""})
            return
        settings = self.settings
        self._model = settings.model
        self._asks.begin(settings)
        where = {"directory": settings.directory}
        # Not `/config`, which would reveal the user's keys.
        asked = [(f"GET {route('session', 'status', **where)}", self._on_warm)]
        if settings.asks:
            asked.append((f"GET {route('agent', **where)}", self._asks.on_agents))
        if settings.servers:
            asked.append((f"GET {route('mcp', **where)}", self._on_servers))
        if settings.session_id is not None:
            asked.append((f"GET {route('session', settings.session_id)}", self._on_old_session))
        self._left_to_hear = len(asked)
        for method, then in asked:
            self._ask_first(method, then)

    def _ask_first(self, method: str, then: Any) -> None:
        def heard(answer: Answered | Failed) -> None:
            then(*_status_and_body(answer))
            self._left_to_hear -= 1
            if self._left_to_hear == 0:
                self._handshake_over = True
                self._go()

        self._request(method, heard, limit=HANDSHAKE_SECONDS)

    def _on_refused(self, params: Message) -> None:
        """The process ends by itself or is ended here, and the turn ends with it."""
        version, reason = text(params, "version"), text(params, "reason")
        if version.startswith("2."):
            message, code = opencode_two.NO_LIVE_SESSIONS, errors.UNSUPPORTED_OPTION
        elif version and is_below(version, NEEDED):
            message = f"live sessions need OpenCode {NEEDED} or newer, and this is {version}"
            code = errors.UNSUPPORTED_OPTION
        else:
            message, code = f"opencode cannot be talked to: {reason or NO_ANSWER}", errors.CLI_ERROR
        if code == errors.UNSUPPORTED_OPTION:
            self.outcome.error_subtype = "config"
        self._told.append(AgentErrorEvent(message, code))
        self._request("END")

    def _on_warm(self, status: int, body: Any) -> None:
        """OpenCode has initialised the folder; the answer itself is not needed."""

    def _on_servers(self, status: int, body: Any) -> None:
        """Report the caller's MCP servers that do not work."""
        if status != 200 or not isinstance(body, dict):
            return
        for name in self.settings.servers:
            state = mapping(body, name)
            how = text(state, "status")
            if how in ("connected", ""):
                continue
            why = text(state, "error")
            message = f"MCP server {name!r} could not be used: {why or how.replace('_', ' ')}"
            self._told.append(AgentErrorEvent(message, errors.MCP_SERVER_FAILED))

    def _on_old_session(self, status: int, body: Any) -> None:
        asked = self.settings.session_id
        assert asked is not None
        found = text(body, "id") if status == 200 and isinstance(body, dict) else ""
        if found != asked:
            error = mapping(body, "data") if isinstance(body, dict) else {}
            message = text(error, "message") or f"there is no session {asked}"
            self._no_session = AgentErrorEvent(message, errors.SESSION_NOT_FOUND)
            return
        self._has_session(asked)

    def _on_session(self, answer: Answered | Failed) -> None:
        status, body = _status_and_body(answer)
        session = text(body, "id") if status == 200 and isinstance(body, dict) else ""
        if not session:
            self._body = None
            self._failed = _refusal(status, body)
            self._finish()
            return
        self._has_session(session)
        if self._interrupted:
            self._body = None
            self._finish()
        else:
            self._go()

    def _has_session(self, session: str) -> None:
        self._session = self.outcome.session_id = session
        self._asks.root = session

    # --- what OpenCode says ---------------------------------------------------------------------------------

    def is_life(self, chunk: bytes) -> bool:
        if len(chunk) > FEW_BYTES:
            return True
        lines = (line for line in chunk.split(b"\n") if line.strip())
        return any(all(word not in line for word in NOT_LIFE) for line in lines)

    def may_run_tool(self, chunk: bytes) -> bool:
        return b'"status":"running"' in chunk

    def may_end_turn(self, chunk: bytes) -> bool:
        return b'"session.idle"' in chunk

    def runs_tool(self) -> bool:
        return False  # It reports every call.

    def _read(self, message: Message) -> Extracted:
        payload = message.get("payload")
        if type(payload) is dict:
            self._on_event(payload, text(message, "directory"))
        else:
            heard = self._peer.feed(message)
            if isinstance(heard, Told):
                notice = NOTICES.get(heard.method)
                if notice is not None:
                    notice(self, heard.params)
        if said := self._peer.take():
            self.outbox.append(said)
        return self.take_told()

    def take_told(self) -> list[AgentEvent]:
        told = self._told[:]
        self._told.clear()
        return told

    def _on_event(self, payload: Message, directory: str) -> None:
        kind, properties = text(payload, "type"), mapping(payload, "properties")
        if kind in ASKED:
            self._on_ask(properties, directory)
        elif (reader := EVENTS.get(kind)) is not None:
            reader(self, properties)

    def _heard_of(self, info: Message) -> None:
        provider, model = text(info, "providerID"), text(info, "modelID")
        if provider and self._model is None and not self._names_model:
            self._own_model = f"{provider}/{model}"
        if self._interrupted:
            self._abort()  # The first abort may have arrived before the prompt.
            return
        self._begun = True
        early, self._early = self._early, []
        for words in early:
            self._send_prompt({"parts": prompt_parts(words)})

    def _on_ask(self, properties: Message, directory: str) -> None:
        is_wanted = self._begun and not self._interrupted and self.outcome.terminal is None
        self._told += self._asks.on_asked(properties, directory, self._parts.call, is_wanted=is_wanted)

    # --- how it goes ----------------------------------------------------------------------------------------

    def _on_status(self, properties: Message) -> None:
        if not self._is_root(properties):
            return
        status = mapping(properties, "status")
        kind = text(status, "type")
        if kind == "idle":
            self._on_idle(properties)
        elif self._interrupted:
            self._abort()
        elif kind == "retry":
            message = text(status, "message") or "the model's API failed"
            self._told.append(AgentErrorEvent(f"{message} (opencode tries again)", errors.CLI_WARNING))

    def _on_idle(self, properties: Message) -> None:
        if self._is_root(properties):
            self._settled.update(self._messages)
            self._look_for_end()
            if self._ends_when_idle and self._is_idle:
                self._finish()

    def _on_trouble(self, properties: Message) -> None:
        error = mapping(properties, "error")
        if not self._is_root(properties) or not error or self._interrupted:
            return
        if reported.name_of(error) == ABORTED:
            return  # A late error of an earlier turn; if this turn was aborted, its answer says so.
        if self._failed is not None or self.outcome.terminal is not None:
            return
        if reported.is_fatal(error):
            self._failed = error
        else:
            self._doubtful_error = self._doubtful_error or error

    def _on_prompt_answer(self, number: int, answer: Answered | Failed) -> None:
        if number != self._number:
            return
        self._posts -= 1
        if isinstance(answer, Failed):
            self._read_again()  # If the process is gone, its exit ends the turn.
            return
        self._begun = True
        status, body = _status_and_body(answer)
        if status != 200 or not isinstance(body, dict):
            self._answer = {"error": _refusal(status, body)}
            self._names_model = True  # It may be an unknown model, which the session would keep.
        else:
            self._answer = mapping(body, "info")
        self._look_for_end()

    def _look_for_end(self) -> None:
        if self._posts or not self._answer or self._settling or self.outcome.terminal is not None:
            return
        if self._aborting:
            return  # The abort would end the next turn if that began before it is answered.
        message = text(self._answer, "id")
        if self._interrupted or self._failed or mapping(self._answer, "error"):
            self._settling = True
            self._wait(SETTLE_SECONDS, self._finish_once_idle)
        elif message in self._settled or message in self._old:
            self._go_on_or_finish()
        else:
            self._wait(LOST_SECONDS, self._look_again)

    def _finish_once_idle(self) -> None:
        """Wait for the idle state, which follows all errors: a later error would be taken for one of the next turn."""
        if self._interrupted or not text(self._answer, "id") or self._is_idle:
            self._finish()
        else:
            self._ends_when_idle = True
            self._wait(LOST_SECONDS, self._finish)

    @property
    def _is_idle(self) -> bool:
        return text(self._answer, "id") in self._settled

    def _go_on_or_finish(self) -> None:
        """Several refusals at once end the turn before the model has heard the reasons; it is told them now."""
        unheard = self._asks.take_unheard()
        if unheard and text(self._answer, "finish") == "tool-calls":
            self._answer = {}
            self._send_prompt({"parts": prompt_parts(unheard)})
        else:
            self._finish()

    def _look_again(self) -> None:
        if self._answer and not self._posts and not self._settling:
            self._read_again()

    def _finish(self) -> None:
        """Decide how the turn ended, and report it."""
        if self.outcome.terminal is not None:
            return
        self._asks.clear()
        self._early.clear()
        self._told += self._parts.close_calls()
        if self._no_session is not None:
            self._told.append(self._no_session)
            self.outcome.fail("session_not_found")
        elif self._interrupted:
            self.outcome.fail("aborted")
        else:
            self._judge()

    def _judge(self) -> None:
        answered_with = mapping(self._answer, "error")
        if self._failed is None and not answered_with:
            self._on_step()  # A doubtful error was not fatal after all.
            self.outcome.succeed()
            return
        # If the server refused the prompt, only an event has the cause.
        is_vague = not text(self._answer, "id")
        self._fail(self._failed or (self._doubtful_error if is_vague else None) or answered_with)

    def _fail(self, error: Message) -> None:
        event = AgentErrorEvent(_first_line(reported.message_of(error)), reported.code_of(error))
        kind = self.outcome.error_subtype or reported.subtype_of(error, event)
        if kind == "unknown" and opencode_stderr.is_about_settings(event.message):
            kind = "config"
        self._told.append(event)
        self.outcome.fail(kind)

    # --- what was missed ------------------------------------------------------------------------------------

    def _on_reconnected(self, params: Message) -> None:
        self._parts.tear()
        self._read_again()

    def _read_again(self) -> None:
        """Ask for everything that missed events would have reported."""
        if self._session is None or self.outcome.terminal is not None:
            return
        number = self._number
        where = {"directory": self.settings.directory}
        sessions = [self._session, *self._asks.children]

        def messages(answer: Answered | Failed) -> None:
            _, body = _status_and_body(answer)
            for message in body if number == self._number and isinstance(body, list) else ():
                self._on_message({"info": mapping(message, "info")})
                for part in items(message, "parts"):
                    self._on_part({"part": part})

        def status(answer: Answered | Failed) -> None:
            code, body = _status_and_body(answer)
            if number != self._number or code != 200 or not isinstance(body, dict):
                return
            if text(mapping(body, self._session or ""), "type") in ("", "idle"):
                self._settled.update(self._messages)
                if not self._posts and not self._answer:
                    self._answer = {"error": {"name": "UnknownError", "data": {"message": NO_ANSWER}}}
                self._look_for_end()

        for session in sessions:
            self._request(f"GET {route('session', session, 'message', limit=MESSAGES_READ)}", messages)
        self._asks.read_again(self.settings.directory, lambda asked: self._on_ask(asked, self.settings.directory))
        self._request(f"GET {route('session', 'status', **where)}", status)

    # --- its end --------------------------------------------------------------------------------------------

    def at_exit(self, ended: Ended) -> Closing:
        if ended.exit_code and opencode_two.refuses_live(ended.said):
            cause = AgentErrorEvent(opencode_two.NO_LIVE_SESSIONS, errors.UNSUPPORTED_OPTION)
            return Closing(cause=cause, error_subtype="config")
        return super().at_exit(ended)


NOTICES: Mapping[str, Any] = {
    "ready": OpenCodeLiveDialect._on_ready,
    "failed": OpenCodeLiveDialect._on_refused,
    "reconnected": OpenCodeLiveDialect._on_reconnected,
}

ASKED = ("permission.asked", "question.asked")

EVENTS: Mapping[str, Any] = {
    "message.updated": OpenCodeLiveDialect._on_message,
    "message.part.updated": OpenCodeLiveDialect._on_part,
    "message.part.delta": OpenCodeLiveDialect._on_delta,
    "session.created": OpenCodeLiveDialect._on_child,
    "session.updated": OpenCodeLiveDialect._on_child,
    "session.status": OpenCodeLiveDialect._on_status,
    "session.idle": OpenCodeLiveDialect._on_idle,
    "session.error": OpenCodeLiveDialect._on_trouble,
    "permission.replied": lambda dialect, properties: dialect._asks.on_gone(properties),
    "question.replied": lambda dialect, properties: dialect._asks.on_gone(properties),
    "question.rejected": lambda dialect, properties: dialect._asks.on_gone(properties),
}


def _status_and_body(answer: Answered | Failed) -> tuple[int, Any]:
    """The status and body of an answer; the status is 0 if there was none."""
    if isinstance(answer, Failed) or not isinstance(answer.result, dict):
        return 0, None
    status = answer.result.get("status")
    return (status if type(status) is int else 0), answer.result.get("body")


def _refusal(status: int, body: Any) -> Message:
    """The server's error for a request that it refused, in the form of the other errors."""
    if isinstance(body, dict) and (reported.name_of(body) or mapping(body, "data")):
        return body
    return {"name": "UnknownError", "data": {"message": f"{NO_ANSWER} as it should (status {status})"}}


def _first_line(message: str) -> str:
    """The message without the stack trace that may follow it."""
    return message.partition("\n    at ")[0].strip() or message
