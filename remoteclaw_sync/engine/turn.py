"""One turn, from its prompt to `done`: the only loop.

It works in the consumer's thread: what the agent writes arrives here as raw chunks, is cut into lines, read by the
session's dialect, and leaves as events. Only `request_end`, `close` and `steer` are called from elsewhere.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Generator
from typing import Any

import attrs

from ..errors import UnsupportedOperationError
from ..process.ending import EndReason
from ..types import (
    AgentDoneEvent,
    AgentErrorEvent,
    AgentEvent,
    AgentExecuteParams,
    AgentPermissionEvent,
    AgentRunResult,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    Deny,
    ErrorSubtype,
    PermissionDenial,
    PermissionRequest,
)
from .approval import decide
from .dialect import NOTHING, each_of, hook_failure
from .outcome import Closing, RunOutcome
from .session import Session
from .transport import Transport
from .verdict import Evidence, judge

logger = logging.getLogger(__name__)

NO_WORDS = "an error was reported without a message"


class Turn:
    """What its consumer has been told so far, and what others want of it.

    Holds no reference to the generator of its events, so that dropping that one ends the turn.
    """

    def __init__(self, session: Session, params: AgentExecuteParams) -> None:
        self._session = session
        self._params = params
        self._lock = threading.RLock()
        self._wanted_end: EndReason | None = None  # What was asked for first, perhaps before there was a transport.
        self._transport: Transport | None = None
        self._events: weakref.ref[Generator[AgentEvent, None, None]] | None = None
        self._left = False
        self.result: AgentRunResult | None = None
        self._started_at = 0.0
        self._text_parts: list[str] = []
        self._errors: list[AgentErrorEvent] = []
        self._tools_open: set[str] = set()
        self._tools_used = False
        self._exit_expected = False
        self._finished_in_time = False  # The last word came before the process was told to end.

    # --- for anyone -------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        return None if self._transport is None else self._transport.pid

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come of it."""
        if self._left or self._events is None:
            return self._left
        events = self._events()
        # A generator that was closed before its first event has had no chance to say so.
        return events is None or getattr(events, "gi_frame", None) is None

    def request_end(self, reason: EndReason) -> None:
        """Have the turn ended, from any thread. Does not block."""
        with self._lock:
            if self._wanted_end is None:
                self._wanted_end = reason
            if self._transport is not None and not self._left:
                self._session.request_end(reason)

    def close(self) -> None:
        """End the turn and wait until nothing of it is left."""
        self.request_end(EndReason.CLOSED)
        if self._transport is not None and not self._left:
            self._session.wait_for_end()

    def steer(self, text: str) -> None:
        """Further words for the agent, from any thread. Does not block."""
        with self._lock:
            if self._session.is_live and (self._transport is None or self._left):
                raise UnsupportedOperationError("there is no running turn that could take further words")
            self._session.steer(text)

    def _attach(self, transport: Transport) -> None:
        """From now on requests go to this transport; one that came before is passed on."""
        with self._lock:
            self._transport = transport
            if self._wanted_end is not None:
                self._session.request_end(self._wanted_end)

    # --- the loop ---------------------------------------------------------------------------------------------

    def events(self) -> Generator[AgentEvent, None, None]:
        """See `CLIRuntimeBase.execute` for the contract. To be called once."""
        events = self._loop()
        self._events = weakref.ref(events)
        return events

    def _loop(self) -> Generator[AgentEvent, None, None]:
        try:
            closing = yield from self._talk()
        finally:
            self._left = True
        if self._wanted_end is not EndReason.CLOSED or self._transport is not None:
            yield from self._end(closing)

    def _talk(self) -> Generator[AgentEvent, None, Closing]:
        session, signal = self._session, self._params.abort_signal
        self._started_at = time.monotonic()
        session.prepare(self._params)
        if signal is not None and signal.is_set():
            self.request_end(EndReason.ABORTED)
        if self._wanted_end is EndReason.CLOSED:
            return Closing()
        if session.remedied is not None:  # In the recorded run that is played here.
            yield self._error(session.remedied)
        closing = Closing()
        start = self._wanted_end is None
        while start:
            transport = session.open(self._due())
            try:
                self._attach(transport)
                ending, next_items = session.ending, session.listener()
                dialect, framer = session.dialect, session.reader.framer
                read = dialect.read
                append_text, note = self._text_parts.append, self._note
                session.start()  # After all else: from here on two threads want the interpreter.
                for warning in session.said_meanwhile():
                    yield self._error(warning)
                while (items := next_items()) is not None:
                    for item in items:
                        found = read(item)
                        if type(found) is AgentTextEvent and type(found.text) is str:  # By far the most.
                            append_text(found.text)
                            yield found
                        elif found is not NOTHING:
                            for event in each_of(found):
                                if (noted := note(event)) is not None:
                                    yield noted
                                    if type(noted) is AgentPermissionEvent and not ending.backlog_unwanted:
                                        self._decide(noted.request)
                                if ending.backlog_unwanted:
                                    break
                        if ending.backlog_unwanted:
                            break
                    if dialect.outcome.terminal is None and not self._exit_expected and not framer.lines_skipped:
                        continue
                    if (skipped := self._after_chunk()) is not None:
                        yield skipped
                session.close()
                closing = session.closing()
                for warning in session.warnings(closing):
                    yield self._error(warning)
            finally:
                session.close()
            start = False
            if not self._answered:
                if session.was_not_heard:
                    start = True
                elif (remedy := session.remedy()) is not None:
                    session.remedied = self._error(remedy)
                    yield session.remedied
                    start = True
        return closing

    def _due(self) -> float | None:
        deadline = self._params.deadline
        return None if deadline is None else self._started_at + deadline

    @property
    def _answered(self) -> bool:
        """Whether the agent said or did anything."""
        return self._tools_used or any(self._text_parts)

    def _after_chunk(self) -> AgentErrorEvent | None:
        """Look whether that was the agent's last word, and whether lines were too long."""
        session, transport = self._session, self._transport
        assert transport is not None
        if session.ending.backlog_unwanted:
            return None
        outcome = session.dialect.outcome
        finished = outcome.terminal is not None
        if finished and not self._exit_expected:
            self._finished_in_time = transport.heard_in_time
        if finished or self._exit_expected:
            self._exit_expected = finished
            session.last_word(finished)
        skipped = session.reader.skipped()
        return None if skipped is None else self._error(skipped)

    # --- what is kept of an event -----------------------------------------------------------------------------

    def _note(self, event: AgentEvent) -> AgentEvent | None:
        """Keep what the turn's end needs to know of an event; None if the consumer is not to see it."""
        try:
            return NOTES[type(event)](self, event)
        except Exception as error:  # noqa: BLE001 - a field of a wrong type
            return self._error(hook_failure(self._session.dialect.owner, error))

    def _note_text(self, event: AgentTextEvent) -> AgentEvent:
        if not isinstance(event.text, str):
            raise TypeError(f"text must be a str, not {type(event.text).__name__}")
        self._text_parts.append(event.text)
        return event

    def _note_tool_use(self, event: AgentToolUseEvent) -> AgentEvent:
        self._tools_used = True
        self._tools_open.add(event.tool_id)
        self._session.transport.tools_outstanding = True
        return event

    def _note_tool_result(self, event: AgentToolResultEvent) -> AgentEvent:
        self._tools_open.discard(event.tool_id)
        self._session.transport.tools_outstanding = bool(self._tools_open)
        return event

    def _note_permission(self, event: AgentPermissionEvent) -> AgentEvent | None:
        """From here on the agent waits for us."""
        if self._session.remembers(event.request):
            return None
        if self._session.is_live:
            self._session.transport.pause_clock()
        return event

    def _decide(self, request: PermissionRequest) -> None:
        """Ask the caller, and tell the agent; a no is a denial in the result."""
        session = self._session
        if not session.is_live:
            return  # Told by a hook of a CLI that gets no answer.
        decision = decide(self._params.approve, request)
        if session.ending.backlog_unwanted:
            return  # Aborted meanwhile: the CLI does not wait any more.
        if isinstance(decision, Deny):
            denial = PermissionDenial(request.tool_name, decision.message, request.tool_id or None)
            session.dialect.outcome.permission_denials.append(denial)
        session.answer(request, decision)
        session.transport.resume_clock()
        if isinstance(decision, Deny) and decision.stop:
            self.request_end(EndReason.ABORTED)

    def _note_done(self, event: AgentDoneEvent) -> None:
        """The agent's last word, given by a hook as an event."""
        outcome, reported = self._session.dialect.outcome, event.result
        if reported.error_subtype is None:
            outcome.succeed()
        else:
            outcome.fail(reported.error_subtype)
        outcome.session_id = reported.session_id or outcome.session_id
        outcome.usage = reported.usage or outcome.usage
        outcome.stop_reason = reported.stop_reason or outcome.stop_reason
        outcome.permission_denials.extend(reported.permission_denials)
        for name in ("total_cost_usd", "api_duration_ms", "num_turns"):
            if getattr(reported, name) is not None:
                setattr(outcome, name, getattr(reported, name))

    def _error(self, event: AgentErrorEvent) -> AgentErrorEvent:
        """Keep an error that is about to be yielded, without the secrets it may quote, and with words in any case."""
        redact = self._session.redact
        message = redact("" if event.message is None else str(event.message))
        if not message.strip():
            message = NO_WORDS
        # A hook may pass on what the CLI gave it: null, 429.
        code = None if event.code is None else redact(str(event.code))
        if message != event.message or code != event.code:
            event = attrs.evolve(event, message=message, code=code)
        self._errors.append(event)
        return event

    # --- the end ----------------------------------------------------------------------------------------------

    def _end(self, closing: Closing) -> Generator[AgentEvent, None, None]:
        """The verdict: an error if there is one to tell, then `done`."""
        session, transport = self._session, self._transport
        agent = session.agent
        reason = self._reason
        if transport is not None:
            logger.debug("child %s: %s, exit code %s", transport.pid, reason, transport.exit_code)
        outcome = closing.applied_to(session.dialect.outcome) if transport else RunOutcome()
        if reason is EndReason.CLOSED:
            self.result = self._result(outcome, "aborted")
            return
        verdict = judge(
            Evidence(
                program=agent.program,
                exit_codes=agent.cli_facts.exit_codes if agent.cli_facts else {},
                end_reason=reason,
                spawn_failure=session.spawn_failure() if transport else None,
                exit_code=transport.exit_code if transport else None,
                diagnostics=session.presentable(session.said()) if transport else "",
                outcome=outcome,
                finished_in_time=self._finished_in_time,
                answered=self._answered,
                expects_terminal=agent.expects_terminal_event,
                errors_seen=tuple(self._errors),
                timeout=agent.timeout,
                deadline=self._params.deadline,
                explained_exit=closing.cause,
            )
        )
        if transport is not None:
            verdict = session.explained(verdict)
        # Built before the error is yielded: by then files are restored and the process is reaped, whatever comes next.
        self.result = self._result(outcome, verdict.error_subtype)
        if verdict.error is not None:
            yield self._error(verdict.error)
        yield AgentDoneEvent(self.result)

    @property
    def _reason(self) -> EndReason:
        if self._transport is not None:
            return self._session.end_reason
        return self._wanted_end or EndReason.EXITED

    def _result(self, outcome: RunOutcome, error_subtype: ErrorSubtype | None) -> AgentRunResult:
        session, transport = self._session, self._transport
        return AgentRunResult(
            text="".join(self._text_parts),
            session_id=outcome.session_id,
            duration_ms=round(session.duration(time.monotonic() - self._started_at) * 1000, 3),
            usage=outcome.usage,
            aborted=self._reason in (EndReason.ABORTED, EndReason.CLOSED),
            total_cost_usd=outcome.total_cost_usd,
            api_duration_ms=outcome.api_duration_ms,
            num_turns=outcome.num_turns,
            stop_reason=outcome.stop_reason,
            error_subtype=error_subtype,
            permission_denials=tuple(outcome.permission_denials),
            exit_code=transport.exit_code if transport else None,
            stderr=session.presentable(session.redact(transport.diagnostics)) if transport else "",
        )


class ByClass(dict[type, Callable[[Turn, Any], AgentEvent | None]]):
    """What to do with an event, by its class; for a subclass what its base has."""

    def __missing__(self, cls: type) -> Callable[[Turn, Any], AgentEvent | None]:
        self[cls] = next(self[base] for base in cls.__mro__[1:] if base in self)
        return self[cls]


# Not bound to a Turn: it would hold itself, and what a run has said would outlive it.
NOTES = ByClass(
    {
        AgentTextEvent: Turn._note_text,
        AgentThinkingEvent: lambda turn, event: event,
        AgentToolUseEvent: Turn._note_tool_use,
        AgentToolResultEvent: Turn._note_tool_result,
        AgentPermissionEvent: Turn._note_permission,
        AgentErrorEvent: Turn._error,
        AgentDoneEvent: Turn._note_done,
    }
)
