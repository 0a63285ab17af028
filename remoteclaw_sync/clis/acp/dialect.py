"""The Agent Client Protocol, version 1: JSON-RPC in lines, in both directions, with an agent whose process stays.

One process may serve many sessions; this module handles one of them (see switchboard.py). Nothing on the wire says
which turn an update belongs to. So there is only one prompt at a time, identified by the number of its request, and
updates between two prompts are dropped. How agents differ is described by values (profiles.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from ... import errors
from ...engine.approval import STOCK_WORDS
from ...engine.classify import classify_error
from ...engine.dialect import Extracted
from ...engine.live_dialect import LiveDialect
from ...engine.meter import NO_LIMITS, limits_of
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
from ...wire.fields import Message, integer, mapping, number, objects, text, wording
from ...wire.jsonrpc import METHOD_NOT_FOUND, Answered, Called, Failed, Peer, RequestId, answer_in
from ..shared import used_since
from .profiles import UNKNOWN, Profile
from .prompt import blocks, instruction_block, is_command
from .switchboard import CANCELLED, INITIALIZE, PERMISSION, VERSION
from .tool_calls import Call, ToolCalls

OPENING_PATIENCE = 600.0  # Seconds for a session: it may have MCP servers to wait for.
QUICK_EXIT = 0.3  # Seconds for an agent that usually does not exit when its stdin is closed.
PING = "_remoteclaw_sync/ping"  # The protocol leaves names that begin with an underscore free.
AUTH_REQUIRED, NOT_FOUND = -32000, -32002

UNKNOWN_SESSION = re.compile(
    r"(?:session|thread|conversation|resource)\b.*\b(?:not found|not exist|unknown|invalid)"
    r"|(?:no|unknown|invalid) (?:previous |such )?(?:session|conversation)",
    re.IGNORECASE | re.DOTALL,
)
# Kinds of tools that change something; in "read-only" they are refused, no matter who would allow them.
CHANGING = frozenset({"edit", "delete", "move", "execute", "switch_mode"})
EDITING = frozenset({"edit", "move"})

STOPS: Mapping[str, tuple[str, ErrorSubtype]] = {
    "refusal": ("the model refused to answer", "unknown"),
    "max_turn_requests": ("the agent reached its limit of requests to the model", "max_turns"),
    "cancelled": ("the turn was cancelled, and not by us", "incomplete"),
}
NO_ANSWER = "{} ended the turn without an answer"
CUT = "{} says that the turn is over, but the answer was cut: it reports no usage for it"
PERHAPS_CUT = "{} reported no usage for this answer, so it may have been cut"
NO_IMAGES = "images: {} takes none"
OUT_OF_ROOM = "the answer was cut at the model's limit of tokens"
NO_OTHER_INPUT = "{} cannot change the arguments of a call, so it was refused"
NO_REASONS = "{} has no way to tell the model why a call was refused"
NO_SINGLE_YES = "{} offers no way to allow a call only once, so it was refused"
READ_ONLY = "not in the permission mode 'read-only'"


@attrs.frozen(kw_only=True)
class AcpSettings:
    """The settings with which a session is started or resumed."""

    cwd: str = "/"
    session_id: str | None = None
    model: str | None = None
    mode: PermissionMode = "default"
    servers: Sequence[Message] = attrs.field(default=(), repr=False)
    trusted: frozenset[str] = frozenset()  # Names of the servers whose tools need no approval.
    failed_servers: Mapping[str, str] = attrs.field(factory=dict)  # Known not to work, and why.
    instructions: str | None = None


@attrs.frozen
class Asked:
    """A request that the agent is waiting on."""

    id: RequestId
    options: Sequence[Message]
    call: Call

    def option(self, kind: str) -> Message | None:
        """The outcome that selects an option of this kind. Options also have names, but those are for people."""
        found = next((option for option in self.options if text(option, "kind") == kind), None)
        return None if found is None else {"outcome": "selected", "optionId": found.get("optionId")}


class AcpDialect(LiveDialect):
    """Talks to one session of an ACP agent."""

    HANDLERS = {}  # Messages have a `method` and no `type`.

    def __init__(
        self, profile: Profile = UNKNOWN, program: str = "the agent", prompt_syntax: PromptSyntax = "text"
    ) -> None:
        super().__init__()
        self.profile = profile
        self.program = program
        self._prompt_syntax = prompt_syntax
        self.settings = AcpSettings()
        self.is_limited = False
        if not profile.exits_at_eof:
            self.farewell_patience = QUICK_EXIT
        self.peer = self._peer = Peer()
        self._can: Message = {}  # The capabilities that the agent reports.
        self._login_ways: list[str] = []
        self._initialized = False
        self._is_refused = False  # The handshake failed: the process will not serve any session.
        self._is_opening = False
        self._is_settled = False  # The session is open, in its mode and with its model, or cannot be opened.
        self._session: str | None = None
        self._is_resumed = False
        self._was_replayed = False  # Some of the history has arrived since the last check.
        self._options: list[Message] = []  # `configOptions`
        self._modes: Message = {}
        self._models: Message = {}
        self._own_mode = self._own_model = ""
        self._mode: PermissionMode = "default"
        self._answers_for_mode = False  # The agent does not have this mode: we answer its requests instead.
        self._instructed = False  # The agent has the instructions, and will remember them.
        self._reports_usage = False
        self._cost: float | None = 0.0  # Of the whole session so far; None if it is not known.
        self._session_usage = AgentUsage()  # Likewise, if the agent counts usage per session.
        self._turn = 0
        self._told: list[AgentEvent] = []  # To be reported with the next event.
        self._shell_is_left = False  # A command may still be running although its turn was cancelled.
        self._new_turn()

    def _new_turn(self) -> None:
        self._turn += 1
        self._prompt: list[Message] | None = None  # The prompt, while it waits for the session.
        self._in_flight: list[Message] | None = None  # The prompt that the agent is working on.
        self._has_begun = False
        self._interrupted = False
        self._shell_was_interrupted = False
        self._has_said = False
        self._is_command = False
        self._calls = ToolCalls(self.profile)
        self._asked: dict[str, Asked] = {}
        self._refused: set[str] = set()  # Calls whose denial is already recorded.
        self._chunk_usage: Message = {}
        self._cost_before = self._cost
        self._usage_before = self._session_usage
        self._answers = 0  # The model's, as many as can be told apart.
        self._has_results = False  # Calls from the model's last answer have results.

    def recall(self, facts: Mapping[str, Any]) -> None:
        super().recall(facts)
        if text(facts, "session_id"):
            self.settings = attrs.evolve(self.settings, session_id=text(facts, "session_id"))

    # --- what the engine asks ---------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        return self._is_settled

    @property
    def has_begun(self) -> bool:
        return self._has_begun

    @property
    def may_interrupt(self) -> bool:
        return self._in_flight is not None

    @property
    def has_unanswered(self) -> bool:
        return False

    @property
    def is_lost(self) -> bool:
        return self._is_refused or self._shell_is_left

    # --- what is said to the agent ----------------------------------------------------------------------------

    def opening(self, fields: AgentExecuteParams) -> bytes:
        return b""  # The switchboard sends it, and tells all sessions when the process is ready.

    def begin_turn(self, params: AgentExecuteParams) -> bytes:
        return self._begin(params, [])

    def ask_again(self, params: AgentExecuteParams) -> bytes:
        is_forgotten = self.profile.forgets_cancelled and not self._calls
        return self._begin(params, (self._in_flight or []) if is_forgotten else [])

    def _begin(self, params: AgentExecuteParams, before: list[Message]) -> bytes:
        self.outcome = RunOutcome(session_id=self.outcome.session_id)
        self._new_turn()
        if params.images and self._initialized and not self._takes_images:
            raise ValueError(NO_IMAGES.format(self.program))
        as_text = (params.prompt_syntax or self._prompt_syntax) == "text"
        self.is_limited = limits_of(params) != NO_LIMITS
        self._prompt = [*before, *blocks(params.prompt, self.profile, as_text=as_text, images=params.images)]
        self._is_command = not as_text and is_command(params.prompt, self.profile)
        if self._session is not None and self._is_settled:
            self._send_prompt()
        elif self._initialized and not self._is_opening:
            self._open()  # An earlier attempt was refused.
        return self._peer.take()

    def _send_prompt(self) -> None:
        if self._prompt is None:
            return
        self._in_flight, self._prompt = self._prompt, None
        in_field = self.profile.system_prompt_field and not self._is_resumed
        instructions = None if self._instructed or in_field else self.settings.instructions
        before = [] if instructions is None else [instruction_block(instructions, self.profile)]
        turn = self._turn

        def answered(answer: Answered | Failed) -> None:
            if turn == self._turn:  # Otherwise the answer is late, and nobody waits for its turn.
                self._told += self._on_turn_over(answer)

        self.on_asked(self._session or "")
        # Only the clocks of the turn limit the prompt.
        given = {"sessionId": self._session, "prompt": [*before, *self._in_flight]}
        self._peer.request("session/prompt", given, answered, patience=None)
        # Agents send nothing until the model speaks, but they read line by line. So an answer to the request after the
        # prompt, usually that it is unknown, proves that the turn had begun, should the process die afterwards.
        self._peer.request(PING, {}, lambda answer: self._on_pong(turn), patience=None)

    def _on_pong(self, turn: int) -> None:
        if turn == self._turn:
            self._has_begun = True

    def on_asked(self, session_id: str) -> None:
        """A prompt is about to be sent."""

    def interrupt(self) -> bytes | None:
        if self._session is None:
            return None
        self._interrupted = True
        # Now: Mistral Vibe calls it failed, and lets it run on.
        self._shell_was_interrupted = self._shell_was_interrupted or self._runs_shell()
        self._prompt = None
        if self._in_flight is not None and self.outcome.terminal is None:
            self._peer.notify("session/cancel", {"sessionId": self._session})
        # A cancel alone does not release an agent that waits for an answer.
        self._answer_all_cancelled()
        return self._peer.take()

    def _answer_all_cancelled(self) -> None:
        while self._asked:
            try:
                _, asked = self._asked.popitem()
            except KeyError:
                return  # Another thread has answered the last one.
            self._peer.answer(asked.id, CANCELLED)

    def steer(self, text: str) -> bytes | None:
        return None  # The protocol has no message for it.

    def set_model(self, name: str | None) -> bytes | None:
        wanted = name or self._own_model
        self.settings = attrs.evolve(self.settings, model=name)
        if self._session is not None and self._is_settled and wanted:
            self._request_model(wanted, self._warn)
        return self._peer.take()

    def set_permission_mode(self, mode: PermissionMode, started_with: PermissionMode) -> bytes | None:
        if self._session is None or not self._is_settled:
            self.settings = attrs.evolve(self.settings, mode=mode)
            return None
        found = self._mode_for(mode)
        if found is None and mode == "read-only":
            return None  # Reported by the next turn, which gets its own process and session.
        self.settings = attrs.evolve(self.settings, mode=mode)
        self._mode, self._answers_for_mode = mode, found is None
        back = found or self._own_mode
        if back:
            self._request_mode(back, self._warn)
        return self._peer.take()

    def _warn(self, answer: Answered | Failed) -> None:
        if isinstance(answer, Failed):
            self._told.append(AgentErrorEvent(_words(answer), errors.CLI_WARNING))

    def farewell(self) -> bytes:
        return b""

    # --- the session ------------------------------------------------------------------------------------------

    def _on_initialized(self, answer: Answered | Failed) -> None:
        result = _result(answer)
        version = result.get("protocolVersion")
        if isinstance(answer, Failed) or version != VERSION:
            self._is_refused = True
            speaks = f"speaks version {version!r} of ACP, and this package version {VERSION}"
            said = f"did not answer the handshake: {_words(answer)}" if isinstance(answer, Failed) else speaks
            self._give_up(f"{self.program} {said}", errors.UNSUPPORTED_OPTION, "config")
            return
        refused = self.refuse_version(text(mapping(result, "agentInfo"), "version"))
        if refused is not None:
            self._is_refused = True
            self._give_up(refused, errors.UNSUPPORTED_OPTION, "config")
            return
        self._initialized = True
        self._can = mapping(result, "agentCapabilities")
        self._login_ways = [text(way, "name") for way in objects(result, "authMethods") if text(way, "name")]
        self._open()

    def refuse_version(self, version: str) -> str | None:
        """Why this version of the agent is too old; None if it is not."""
        return None

    def _open(self) -> None:
        wanted = self.settings.session_id
        servers, failed = self._usable_servers()
        for name, reason in failed.items():
            message = f"MCP server {name!r} could not be used: {reason}"
            self._told.append(AgentErrorEvent(message, errors.MCP_SERVER_FAILED))
        given: Message = {"cwd": self.settings.cwd, "mcpServers": servers}
        if wanted is None:
            if self.profile.system_prompt_field and self.settings.instructions is not None:
                given["_meta"] = {"systemPrompt": {"append": self.settings.instructions}}
            method = "session/new"
        else:
            given = {"sessionId": wanted, **given}
            resumes = mapping(self._can, "sessionCapabilities").get("resume") is not None and self.profile.resumes
            method = "session/resume" if resumes else "session/load"
            if not resumes and self._can.get("loadSession") is not True:
                self._give_up(f"{self.program} cannot take up a session again", errors.UNSUPPORTED_OPTION, "config")
                return
        self._is_opening, self._is_settled = True, False
        self._is_resumed = wanted is not None
        self._peer.request(method, given, self._on_opened, OPENING_PATIENCE)

    def _usable_servers(self) -> tuple[list[Message], dict[str, str]]:
        can = mapping(self._can, "mcpCapabilities")
        failed = dict(self.settings.failed_servers)
        for server in self.settings.servers:
            if text(server, "type") and can.get(text(server, "type")) is not True:
                failed[text(server, "name")] = f"{self.program} takes no servers with a URL"
        return [server for server in self.settings.servers if text(server, "name") not in failed], failed

    def _on_opened(self, answer: Answered | Failed) -> None:
        self._is_opening = False
        if isinstance(answer, Failed):
            self._on_not_opened(answer)
            return
        result, asked = _result(answer), self.settings.session_id
        name = text(result, "sessionId") or asked
        if not name or (asked is not None and name != asked):
            message = f"{self.program} did not resume session {asked} but began another"
            self._give_up(message if asked else f"{self.program} began no session", errors.SESSION_NOT_FOUND)
            return
        self._session = name
        self._options = objects(result, "configOptions")
        self._modes, self._models = mapping(result, "modes"), mapping(result, "models")
        self._own_mode = self._current("mode") or text(self._modes, "currentModeId")
        self._own_model = self._current("model") or text(self._models, "currentModelId")
        if self._is_resumed:
            self.outcome.session_id = name
            self._cost = self._cost_before = None
        if self._is_resumed and self.profile.replays_late:
            self._wait_for_history()
        else:
            self._settle_mode()

    def _on_not_opened(self, failed: Failed) -> None:
        message = _words(failed)
        if failed.code == AUTH_REQUIRED:
            hint = self.login_after(message)
            ways = f" (it knows: {', '.join(self._login_ways)})" if self._login_ways else ""
            self._give_up(f"{message}: {hint}{ways}", errors.CLI_ERROR, "auth")
        elif self.settings.session_id is not None and (failed.code == NOT_FOUND or UNKNOWN_SESSION.search(message)):
            self._give_up(message, errors.SESSION_NOT_FOUND, "session_not_found")
        else:
            self._give_up(message, errors.CLI_ERROR)

    def _wait_for_history(self) -> None:
        """Repeat a request that changes nothing until no history arrives before its answer: history has no end mark."""
        self._was_replayed = False

        def looked(answer: Answered | Failed) -> None:
            if self._was_replayed:
                self._wait_for_history()
            else:
                self._settle_mode()

        self._peer.request("session/set_model", {"sessionId": self._session, "modelId": self._own_model}, looked)

    def _settle_mode(self) -> None:
        self._mode = self.settings.mode
        found = self._mode_for(self._mode)
        self._answers_for_mode = found is None
        if found is None and self._mode == "read-only":
            message = f"{self.program} has no mode in which it only reads"
            self._give_up(message, errors.UNSUPPORTED_OPTION, "config")
        elif not found or found == self._own_mode:
            self._settle_model()
        else:
            self._request_mode(found, self._on_mode)

    def _on_mode(self, answer: Answered | Failed) -> None:
        if isinstance(answer, Failed):
            self._give_up(f"permission_mode: {_words(answer)}", errors.CLI_ERROR, self.kind_of(answer) or "config")
        else:
            self._settle_model()

    def _settle_model(self) -> None:
        if self.settings.model is None or self.settings.model == self._own_model:
            self._on_settled()
        else:
            self._request_model(self.settings.model, self._on_model)

    def _on_model(self, answer: Answered | Failed) -> None:
        if isinstance(answer, Failed):
            self._give_up(f"model: {_words(answer)}", errors.CLI_ERROR, self.kind_of(answer) or "config")
        else:
            self._on_settled()

    def _on_settled(self) -> None:
        self._is_settled = True
        if any(text(block, "type") == "image" for block in self._prompt or ()) and not self._takes_images:
            self._prompt = None
            self.outcome.fail("config")
            self._told.append(AgentErrorEvent(NO_IMAGES.format(self.program), errors.UNSUPPORTED_OPTION))
        self._send_prompt()

    @property
    def _takes_images(self) -> bool:
        return mapping(self._can, "promptCapabilities").get("image") is True

    def _give_up(self, message: str, code: str, kind: ErrorSubtype | None = None) -> None:
        """Fail this turn. The next one tries again."""
        self._is_settled = True
        self._session = None
        self._prompt = None
        if kind is None:
            kind = "session_not_found" if code == errors.SESSION_NOT_FOUND else classify_error(message).error_subtype
        self.outcome.fail(kind)
        self._told.append(AgentErrorEvent(self.presentable(message), code))

    # --- modes and models ---------------------------------------------------------------------------------------

    def _option(self, category: str) -> Message:
        """The agent's setting of this category. (Settings are newer than `modes` and `models`, and preferred.)"""
        found = (option for option in self._options if text(option, "category") == category)
        return next((option for option in found if text(option, "type") in ("", "select")), {})

    def _current(self, category: str) -> str:
        return text(self._option(category), "currentValue")

    def _mode_for(self, mode: PermissionMode) -> str | None:
        """The agent's name for this mode; "" for the mode that it started in, None if it has none."""
        names = self.profile.modes_for(mode)
        offered = [text(one, "id") for one in objects(self._modes, "availableModes")]
        offered += [text(one, "value") for one in _choices(self._option("mode"))]
        found = next((name for name in names if name in offered), None)
        return "" if found is None and mode == "default" else found

    def _request_mode(self, name: str, then: Callable[[Answered | Failed], Any]) -> None:
        in_option = any(text(one, "value") == name for one in _choices(self._option("mode")))
        if in_option:
            self._request_option("mode", name, then)
        else:
            self._peer.request("session/set_mode", {"sessionId": self._session, "modeId": name}, then)

    def _request_model(self, name: str, then: Callable[[Answered | Failed], Any]) -> None:
        if self._option("model"):
            self._request_option("model", name, then)
        else:
            self._peer.request("session/set_model", {"sessionId": self._session, "modelId": name}, then)

    def _request_option(self, category: str, value: str, then: Callable[[Answered | Failed], Any]) -> None:
        given = {"sessionId": self._session, "configId": self._option(category).get("id"), "value": value}
        self._peer.request("session/set_config_option", given, then)

    # --- what the agent says ------------------------------------------------------------------------------------

    def may_run_tool(self, chunk: bytes) -> bool:
        return b'"tool_call' in chunk

    def may_end_turn(self, chunk: bytes) -> bool:
        return b'"stopReason"' in chunk

    def _read(self, message: Message) -> Extracted:
        found: Extracted = None
        method = message.get("method")
        if method == "session/update" and "id" not in message:
            found = self._on_update(mapping(mapping(message, "params"), "update"))
        elif method is None and message.get("id") == INITIALIZE:
            self._on_initialized(answer_in(message, INITIALIZE, INITIALIZE))
        else:
            heard = self._peer.feed(message)
            if isinstance(heard, Called):
                found = self._on_call(heard)
        if self._peer.outbox:
            self.outbox.append(self._peer.take())
        if not self._told:
            return found
        return [*self.take_told(), *([] if found is None else [found] if isinstance(found, AgentEvent) else found)]

    def take_told(self) -> list[AgentEvent]:
        told, self._told = self._told, []
        return told

    def _on_update(self, update: Message) -> Extracted:
        kind = text(update, "sessionUpdate")
        if kind == "usage_update":
            self._on_cost(update)
            self._on_session_usage(update)
        elif kind == "config_option_update":
            self._options = objects(update, "configOptions") or self._options
        reader = UPDATES.get(kind)
        if reader is None:
            return None
        if not self._is_in_turn:
            self._was_replayed = True
            return None  # History, or the rest of a turn that is over.
        self._has_begun = True
        return reader(self, update)

    def _on_text(self, update: Message) -> Extracted:
        content, meta = mapping(update, "content"), mapping(update, "_meta")
        self._chunk_usage = mapping(meta, "usage") or self._chunk_usage
        words = text(content, "text") if text(content, "type") == "text" else ""
        notice = self.profile.mode_notice
        if not words or (notice is not None and notice.fullmatch(words)) or _is_sub_agents(meta):
            return None
        # Gemini passes on blank text, which it does not count as an answer itself.
        self._has_said = self._has_said or not words.isspace()
        self._note_request()
        return self._after_calls(AgentTextEvent(words))

    def _on_thought(self, update: Message) -> Extracted:
        words = text(mapping(update, "content"), "text").removeprefix(self.profile.empty_subject)
        if not words or _is_sub_agents(mapping(update, "_meta")):
            return None
        self._note_request()
        return self._after_calls(AgentThinkingEvent(words))

    def _note_request(self) -> None:
        """The model answers, for the first time or after the results of its tools."""
        if self._has_results or not self._answers:
            self._answers += 1
            self._has_results = self.outcome.asks_again = False
            self.outcome.requests = max(self.outcome.requests, self._answers)
            self.count()

    def _note_calls(self, events: list[AgentEvent]) -> None:
        for event in events:
            if isinstance(event, AgentToolUseEvent) and (not self._answers or self._may_be_first(event.tool_id)):
                self._note_request()
            elif isinstance(event, AgentToolResultEvent):
                self._has_results = True
                self.outcome.asks_again = not self.profile.one_by_one
        if events:
            self.count()

    def _may_be_first(self, call: str) -> bool:
        """Whether this call may be the beginning of a new answer of the model."""
        first = self.profile.first_call
        return not self.profile.one_by_one or (first is not None and first.fullmatch(call) is not None)

    def count(self) -> None:
        """Look up what the turn has used so far, if the messages do not say it."""

    def _after_calls(self, event: AgentEvent) -> Extracted:
        if not self._calls.has_held_back:
            return event
        return [*self._calls.announce_all(), event]

    def _on_tool(self, update: Message) -> Extracted:
        return self._judged(self._calls.told(update, is_first=True), update)

    def _on_tool_update(self, update: Message) -> Extracted:
        return self._judged(self._calls.told(update, is_first=False), update)

    def _judged(self, events: Any, update: Message) -> list[AgentEvent]:
        """Pass the events on, and note a call that one of the agent's rules refused."""
        found: list[AgentEvent] = list(events)
        self._note_calls(found)
        call = self._calls.get(text(update, "toolCallId"))
        denied = self.profile.denied
        if call is None or denied is None or call.status != "failed" or call.id in self._refused:
            return found
        if denied.search(output := call.output()):
            self._refused.add(call.id)
            self._deny(call, output)
        return found

    def _on_cost(self, update: Message) -> None:
        cost = mapping(update, "cost")
        amount = number(cost, "amount")
        if amount is not None and text(cost, "currency") in ("", "USD"):
            if not self._is_in_turn:
                self._cost_before = amount  # The cost before the turn.
            self._cost = amount

    def _on_session_usage(self, update: Message) -> None:
        """A resumed session first reports what it has used before."""
        told = mapping(update, "_meta")
        if self.profile.usage_of_session and "promptTokens" in told and not self._is_in_turn:
            self._usage_before = self._session_usage = AgentUsage(
                input_tokens=integer(told, "promptTokens"), output_tokens=integer(told, "completionTokens")
            )

    @property
    def _is_in_turn(self) -> bool:
        return self._in_flight is not None and self.outcome.terminal is None

    # --- what the agent asks ------------------------------------------------------------------------------------

    def _on_call(self, call: Called) -> Extracted:
        if call.method != PERMISSION:
            # Always answer, or the agent would wait forever.
            self._peer.refuse(call.id, METHOD_NOT_FOUND, f"this client does not know {call.method!r}")
            return None
        if self._interrupted or self._in_flight is None or self.outcome.terminal is not None:
            self._peer.answer(call.id, CANCELLED)
            return None
        self._has_begun = True
        said = mapping(call.params, "toolCall")
        tool = self._calls.merged(said, begins=True)
        if tool is None:  # The call has no id: there is nothing to decide on.
            self._peer.answer(call.id, CANCELLED)
            return None
        asked = Asked(call.id, objects(call.params, "options"), tool)
        events = list(self._calls.announced(tool))
        self._note_calls(events)
        if self._is_out_of_bounds(tool):
            return [*events, *self._refuse(asked, READ_ONLY)]
        if self._needs_no_approval(tool):
            return [*events, *self._allow(asked)]
        name = str(call.id)
        self._asked[name] = asked
        if self._interrupted:  # By another thread, in the meantime.
            self._answer_all_cancelled()
            return events
        request = PermissionRequest(
            name,
            tool.name(self.profile),
            tool.id,
            tool.input(),
            reason=tool.title or None,
            session_id=self._session,
            parent_tool_use_id=tool.parent,
        )
        return [*events, AgentPermissionEvent(request)]

    def _is_out_of_bounds(self, call: Call) -> bool:
        return self._mode == "read-only" and call.kind in CHANGING and not self._is_trusted(call)

    def _needs_no_approval(self, call: Call) -> bool:
        if self._mode == "bypass" or self._is_trusted(call):
            return True
        return self._mode == "accept-edits" and self._answers_for_mode and call.kind in EDITING

    def _is_trusted(self, call: Call) -> bool:
        """Whether the tool belongs to a server that the caller trusts."""
        servers = {*self.settings.trusted, *(text(server, "name") for server in self.settings.servers)}
        of = [server for server in servers if self._is_of_server(call, server)]
        # Of `git` and `git_admin`, which both fit `mcp_git_admin_wipe`, the longer one is meant.
        return bool(of) and max(of, key=len) in self.settings.trusted

    def _is_of_server(self, call: Call, server: str) -> bool:
        name = call.name(self.profile)
        if name.startswith((f"mcp__{server}__", f"mcp_{server}_")):
            return True
        # The agents' own tools have such names too (`run_shell_command`), but their kind is known.
        kinds = ("other", "") if self.profile.name else ("other",)
        return call.kind in kinds and name.startswith((f"{server}_", f"{server}/"))

    def answer(self, request: PermissionRequest, decision: Allow | Deny) -> bytes:
        asked = self._asked.pop(request.id, None)
        if asked is None:
            return b""  # The agent no longer waits for it.
        if isinstance(decision, Deny):
            self._refused.add(asked.call.id)
            self._told += self._said_no(asked, decision.message)
            if decision.message not in STOCK_WORDS and not decision.stop:  # Stock words tell the model nothing.
                self._told.append(AgentErrorEvent(NO_REASONS.format(self.program), errors.CLI_WARNING))
        elif decision.input is not None and dict(decision.input) != dict(request.input):
            self._told += self._refuse(asked, NO_OTHER_INPUT.format(self.program), warns=True)
        else:
            self._told += self._allow(asked)
        return self._peer.take()

    def _allow(self, asked: Asked) -> list[AgentEvent]:
        """Allow the call once. An "always" is kept by this library; the agent must never record it."""
        outcome = asked.option("allow_once")
        if outcome is None:
            return self._refuse(asked, NO_SINGLE_YES.format(self.program), warns=True)
        self._peer.answer(asked.id, {"outcome": outcome})
        return []

    def _refuse(self, asked: Asked, reason: str, *, warns: bool = False) -> list[AgentEvent]:
        self._refused.add(asked.call.id)
        self._deny(asked.call, reason)
        warning = [AgentErrorEvent(reason, errors.CLI_WARNING)] if warns else []
        return [*self._said_no(asked, reason), *warning]

    def _said_no(self, asked: Asked, reason: str) -> list[AgentEvent]:
        """Refuse the call and end it here, because some agents report nothing more about a refused call."""
        self._peer.answer(asked.id, {"outcome": asked.option("reject_once") or {"outcome": "cancelled"}})
        ended = list(self._calls.ended(asked.call, reason, True))
        self._note_calls(ended)
        return ended

    def _deny(self, call: Call, reason: str) -> None:
        denial = PermissionDenial(call.name(self.profile), reason, call.id or None)
        self.outcome.permission_denials.append(denial)

    # --- its end --------------------------------------------------------------------------------------------------

    def _runs_shell(self) -> bool:
        return any(call.kind == "execute" for call in self._calls.open)

    def _on_turn_over(self, answer: Answered | Failed) -> list[AgentEvent]:
        shell_runs = self._shell_was_interrupted or self._runs_shell()
        events = list(self._calls.end_all())
        self._asked.clear()
        self.count()
        result = _result(answer)
        self.outcome.usage = self._usage(result)
        if self._cost is not None and self._cost_before is not None and self._cost > self._cost_before:
            self.outcome.total_cost_usd = self._cost - self._cost_before
        self.outcome.stop_reason = text(result, "stopReason") or None
        if self._interrupted:
            self._shell_is_left = shell_runs and self.profile.shells_survive
            if self._calls or not self.profile.forgets_cancelled:
                self._remember()
            self.outcome.fail("aborted")
        elif isinstance(answer, Failed):
            if self._calls or not self.profile.forgets_cancelled:
                self._remember()
            events.append(self._failure(answer))
        else:
            self._remember()
            events += self._verdict(result)
        return events

    def _remember(self) -> None:
        """The turn is part of the conversation, which can be resumed from here on."""
        self._instructed = True
        self.outcome.session_id = self._session

    def _failure(self, failed: Failed) -> AgentErrorEvent:
        kind = self.kind_of(failed)
        self.outcome.fail(kind)
        return AgentErrorEvent(self.words_of(failed), self.code_of(failed))

    def words_of(self, failed: Failed) -> str:
        """What went wrong, for people."""
        return _words(failed)

    def code_of(self, failed: Failed) -> str:
        """The code of the error event."""
        return errors.CLI_ERROR

    def kind_of(self, failed: Failed) -> ErrorSubtype | None:
        """What kind of failure this is."""
        if failed.code == AUTH_REQUIRED:
            return "auth"
        status = failed.code if 400 <= failed.code < 600 else None
        found = classify_error(_words(failed), status=status).error_subtype
        return None if found == "unknown" else found

    def _verdict(self, result: Message) -> list[AgentEvent]:
        stop = text(result, "stopReason")
        if stop == "end_turn":
            return self._verdict_on_words(result)
        if stop == "max_tokens":
            self.outcome.fail(self.profile.max_tokens_means)
            return [AgentErrorEvent(OUT_OF_ROOM, errors.CLI_ERROR)]
        message, kind = STOPS.get(stop, (f"{self.program} stopped for an unknown reason: {stop!r}", "unknown"))
        self.outcome.fail(kind)
        return [AgentErrorEvent(message, errors.CLI_ERROR)]

    def _verdict_on_words(self, result: Message) -> list[AgentEvent]:
        if not self._has_said and not self._calls:
            self.outcome.fail("incomplete")
            return [AgentErrorEvent(NO_ANSWER.format(self.program), errors.CLI_INCOMPLETE)]
        if self.outcome.usage is None and self.profile.usage_is_certain and not self._is_command:
            if self._reports_usage:
                self.outcome.fail("incomplete")
                return [AgentErrorEvent(CUT.format(self.program), errors.CLI_INCOMPLETE)]
            self.outcome.succeed()
            return [AgentErrorEvent(PERHAPS_CUT.format(self.program), errors.CLI_WARNING)]
        self.outcome.succeed()
        return []

    def _usage(self, result: Message) -> AgentUsage | None:
        """The turn's usage, from wherever the agent reports it."""
        quota = mapping(mapping(mapping(result, "_meta"), "quota"), "token_count")
        given = mapping(result, "usage") or self._chunk_usage or quota
        usage = AgentUsage(
            input_tokens=_first(given, "inputTokens", "input_tokens", "promptTokenCount"),
            output_tokens=_first(given, "outputTokens", "output_tokens", "candidatesTokenCount"),
            cache_read_tokens=_first(given, "cachedReadTokens", "cached_read_tokens", "cachedInputTokens"),
            cache_write_tokens=_first(given, "cachedWriteTokens", "cached_write_tokens"),
        )
        self._reports_usage = self._reports_usage or usage != AgentUsage()
        if self.profile.usage_of_session and usage != AgentUsage():
            self._session_usage, usage = usage, used_since(self._usage_before, usage) or usage
        return None if usage == AgentUsage() else usage

    def at_exit(self, ended: Ended) -> Closing:
        if self._initialized or self._is_refused or ended.exit_code in (None, 0):
            return Closing()
        said = self.presentable(ended.said).strip()
        message = f"{self.program} ended before it had answered the handshake of ACP{self.needs()}"
        cause = AgentErrorEvent(f"{message}: {said}" if said else message, errors.CLI_EXIT_ERROR)
        return Closing(cause=cause)

    def login_after(self, message: str) -> str:
        """What the user has to do if the agent answers with this message instead of opening a session."""
        return self.profile.login or f"log in with {self.program}"

    def needs(self) -> str:
        """What may be needed instead, in brackets."""
        return ""


UPDATES: Mapping[str, Callable[[AcpDialect, Message], Extracted]] = {
    "agent_message_chunk": AcpDialect._on_text,
    "agent_thought_chunk": AcpDialect._on_thought,
    "tool_call": AcpDialect._on_tool,
    "tool_call_update": AcpDialect._on_tool_update,
}


def _result(answer: Answered | Failed) -> Message:
    return answer.result if isinstance(answer, Answered) and isinstance(answer.result, dict) else {}


def _words(failed: Failed) -> str:
    """The message, with the details that some agents put elsewhere."""
    data = failed.data if isinstance(failed.data, dict) else {"details": failed.data}
    details = wording(data.get("details")) or wording(data.get("message"))
    if not details or details in failed.message:
        return failed.message
    return details if failed.message == "Internal error" else f"{failed.message}: {details}"


def _choices(option: Message) -> list[Message]:
    """The values that a setting can have. They may be in groups."""
    found = objects(option, "options")
    return [*found, *(choice for group in found for choice in objects(group, "options"))]


def _is_sub_agents(meta: Message) -> bool:
    return bool(text(mapping(meta, "claudeCode"), "parentToolUseId"))


def _first(source: Message, *names: str) -> int:
    return next((integer(source, name) for name in names if integer(source, name)), 0)
