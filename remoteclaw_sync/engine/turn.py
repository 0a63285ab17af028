"""One turn, from its prompt to `done`: the only loop.

It runs in the consumer's thread: the agent's output arrives here as raw chunks, is cut into lines, is read by the
session's dialect, and leaves as events. Only `request_end`, `close` and `steer` are called from other threads.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import closing
from datetime import datetime
from typing import Any

import attrs

from .. import errors
from ..process.abort_listener import AbortListener
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
    Approve,
    Deny,
    ErrorSubtype,
    PermissionDenial,
    PermissionRequest,
)
from .answers import read_answer
from .approval import decide
from .classify import RETRYABLE
from .dialect import hook_failure
from .meter import NO_LIMITS, Meter, limits_of
from .outcome import RunOutcome, TurnEnd
from .retry_after import seconds_in
from .session import Gate, Session
from .transport import Transport
from .verdict import Evidence, exceeded, judge

NO_WORDS = "an error was reported without a message"


class Turn:
    """One turn: what its consumer has been given so far, and what others have asked of it.

    Holds no reference to the generator of its events, so that dropping the generator ends the turn.
    """

    def __init__(self, session: Session, params: AgentExecuteParams) -> None:
        self._session = session
        self._params = params
        self._lock = threading.RLock()
        self._wanted_end: EndReason | None = None  # The first reason requested, perhaps before there was a transport.
        self._transport: Transport | None = None
        self._events: weakref.ref[Generator[AgentEvent, None, None]] | None = None
        self._left = False
        self.result: AgentRunResult | None = None
        self.keeps: object = None  # Lives as long as the turn.
        self._started_at = 0.0
        self._text_parts: list[str] = []
        self._errors: list[AgentErrorEvent] = []
        self._tools_open: set[str] = set()
        self._tools_used = False
        self._words_begin = 0  # Where in the text parts the text after the last tool call begins.
        self._exit_expected = False
        self._finished_in_time = False  # The final message came before the process was told to end.
        self._is_limited = limits_of(params) != NO_LIMITS
        # Most turns need no meter.
        self._meter = Meter(session.agent, params) if self._is_limited or session.agent.prices else None
        self._over: str | None = None  # The limit that the turn has exceeded, in words.

    # --- for anyone -------------------------------------------------------------------------------------------

    @property
    def params(self) -> AgentExecuteParams:
        return self._params

    @property
    def what_is_left(self) -> dict[str, Any]:
        """What is left of the deadline and the limits, for a turn that continues after this one."""
        assert self.result is not None
        deadline = self._params.deadline
        limits = {} if self._meter is None else self._meter.left(self._session.so_far())
        return {"deadline": None if deadline is None else deadline - self.result.duration_ms / 1000, **limits}

    @property
    def errors(self) -> list[AgentErrorEvent]:
        """The errors that the consumer has been given so far."""
        return self._errors

    @property
    def pid(self) -> int | None:
        return None if self._transport is None else self._transport.pid

    @property
    def is_over(self) -> bool:
        """Whether the turn is over: nothing more will happen in it."""
        if self._left or self._events is None:
            return self._left
        events = self._events()
        # A generator that was closed before its first event has not run, and so could not set `_left`.
        return events is None or getattr(events, "gi_frame", None) is None

    @property
    def approve(self) -> Approve | None:
        """Who decides on tool calls."""
        return self._params.approve

    @property
    def is_ending(self) -> bool:
        """Whether somebody, or a clock, has asked for the turn to end."""
        transport = self._transport
        if self._wanted_end is not None or transport is None:
            return self._wanted_end is not None
        return self._session.ending.reason is not None or transport.ending.reason is not None

    def request_end(self, reason: EndReason) -> None:
        """Have the turn ended, from any thread. Does not block."""
        with self._lock:
            if self._wanted_end is None:
                self._wanted_end = reason
            if self._transport is not None and not self._left:
                self._session.request_end(reason)
            elif self._session.gate is not None:
                self._session.gate.wake()

    def close(self) -> None:
        """End the turn and wait until nothing of it is left."""
        self.request_end(EndReason.CLOSED)
        if self._transport is not None and not self._left:
            self._session.wait_for_end()

    def steer(self, text: str, interrupt: bool) -> None:
        """Add text for the agent, from any thread. Does not block."""
        with self._lock:
            if self._session.is_live and (self._transport is None or self._left):
                raise errors.UnsupportedOperationError("there is no running turn that could take further words")
            self._session.steer(text, interrupt)

    def to_end(self) -> AgentRunResult:
        """Consume all events and return the summary. Blocks until then."""
        with closing(self.events()) as events:
            for _ in events:
                pass
        assert self.result is not None
        return self.result

    # --- the loop ---------------------------------------------------------------------------------------------

    def events(self) -> Generator[AgentEvent, None, None]:
        """See `CLIRuntimeBase.execute` for the contract. May be called only once."""
        events = self._loop()
        self._events = weakref.ref(events)
        return events

    def _loop(self) -> Generator[AgentEvent, None, None]:
        try:
            end = yield from self._talk()
        finally:
            try:
                if self._session.gate is not None:
                    self._session.gate.leave()  # First: the session's next turn must not be taken for this one.
                if self._meter is not None and self._transport is not None:
                    self._meter.book(self._session.so_far())
            finally:
                self._left = True
        if self._wanted_end is not EndReason.CLOSED or self._transport is not None:
            yield from self._end(end)

    def _talk(self) -> Generator[AgentEvent, None, TurnEnd]:
        session, params = self._session, self._params
        self._started_at = time.monotonic()
        due = None if params.deadline is None else self._started_at + params.deadline
        session.prepare(params)
        if params.abort_signal is not None and params.abort_signal.is_set():
            self.request_end(EndReason.ABORTED)
        self._over = None if self._meter is None or self._wanted_end is not None else self._meter.begin()
        if self._over is not None:
            return TurnEnd(reason=EndReason.LIMIT)
        if session.remedied is not None and self._wanted_end is not EndReason.CLOSED:
            yield self._error(session.remedied)  # From the recorded run that is being replayed.
        if session.gate is not None and self._wanted_end is None:
            self._enter(session.gate, due)
        if self._wanted_end is not None:
            return TurnEnd(reason=self._wanted_end)
        while True:
            transport = session.open(due)
            try:
                with self._lock:  # From here on, requests reach this transport; an earlier one is passed on here.
                    self._transport = transport
                    if self._wanted_end is not None:
                        session.request_end(self._wanted_end)
                ending, receive = session.ending, session.listener()
                dialect, reader = session.dialect, session.reader
                feed, read = reader.feed, dialect.read
                append_text, note = self._text_parts.append, self._note
                limited = self._is_limited
                session.start()  # Last: from here on two threads compete for the interpreter.
                while session.meanwhile:
                    yield self._error(session.meanwhile.pop(0))
                while not ending.backlog_unwanted:
                    chunk = receive()
                    items = feed(chunk)  # Even if unwanted: a session searches them for the end of the turn.
                    if ending.backlog_unwanted:
                        break
                    for item in items:
                        found = read(item)
                        if type(found) is AgentTextEvent and type(found.text) is str:  # By far the most common.
                            append_text(found.text)
                            yield found
                        elif found is not None:
                            for event in found if isinstance(found, list) else (found,):
                                if (noted := note(event)) is not None:
                                    yield noted
                                    if type(noted) is AgentPermissionEvent and not ending.backlog_unwanted:
                                        self._decide(noted.request)
                                        if not ending.backlog_unwanted:
                                            yield from filter(None, map(note, session.answered()))
                                if ending.backlog_unwanted:
                                    break
                        if limited:
                            self._hold_to_limits()
                        if ending.backlog_unwanted:
                            break
                    if ending.backlog_unwanted:
                        break
                    finished = dialect.outcome.terminal is not None
                    if finished != self._exit_expected or (finished and chunk):
                        in_time = session.last_word(finished)
                        if not self._exit_expected:
                            self._finished_in_time = in_time
                        self._exit_expected = finished
                    if reader.lines_skipped > reader.lines_reported:
                        reader.lines_reported = reader.lines_skipped
                        yield self._error(self._long_line())
                    if not chunk:
                        break
                end = session.finish()
                for warning in end.warnings:
                    yield self._error(warning)
            except BaseException:
                session.close()
                raise
            if self._answered:
                return end
            if not session.was_not_heard:
                session.remedied = session.remedy(end)
                if session.remedied is None:
                    return end
                session.remedied = self._error(session.remedied)
                yield session.remedied

    def _enter(self, gate: Gate, due: float | None) -> None:
        """Wait until this turn may run beside the others."""
        signal = self._params.abort_signal
        listener = None if signal is None else AbortListener(signal, lambda: self.request_end(EndReason.ABORTED))
        try:
            if listener is not None:
                listener.attach()
            if not gate.enter(lambda: self._wanted_end is not None, due) and self._wanted_end is None:
                self._wanted_end = EndReason.DEADLINE
        finally:
            if listener is not None:
                listener.detach()

    def _hold_to_limits(self) -> None:
        """End the turn if it has used more than it may. If the CLI has finished already, the verdict deals with it."""
        outcome = self._session.so_far()
        if self._meter is not None and self._over is None and outcome.terminal is None:
            self._over = self._meter.over(outcome, bool(self._tools_open))
            if self._over is not None:
                self.request_end(EndReason.LIMIT)

    @property
    def _answered(self) -> bool:
        """Whether the agent said or did anything."""
        return self._tools_used or any(self._text_parts)

    def _long_line(self) -> AgentErrorEvent:
        message = f"skipped a line of over {self._session.agent.max_line_bytes} bytes (max_line_bytes)"
        return AgentErrorEvent(message, errors.LINE_TOO_LONG)

    # --- what is kept of an event -----------------------------------------------------------------------------

    def _note(self, event: AgentEvent) -> AgentEvent | None:
        """Keep what the end of the turn needs from an event. Returns what to yield; None if nothing."""
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
        if self._meter is not None:
            self._meter.tool_calls += 1
        self._words_begin = len(self._text_parts)
        self._tools_open.add(event.tool_id)
        self._session.transport.tools_outstanding = True
        return event

    def _note_tool_result(self, event: AgentToolResultEvent) -> AgentEvent:
        self._tools_open.discard(event.tool_id)
        self._session.transport.tools_outstanding = bool(self._tools_open)
        return event

    def _note_permission(self, event: AgentPermissionEvent) -> AgentEvent | None:
        """From here on, the agent waits for our answer."""
        if self._session.remembers(event.request):
            return None
        if self._session.is_live:
            self._session.transport.pause_clock()
        return event

    def _decide(self, request: PermissionRequest) -> None:
        """Ask the caller, and pass on the answer; a refusal is a denial in the result."""
        session = self._session
        if not session.is_live:
            return  # Reported by a hook, for a CLI that cannot be answered.
        decision = decide(self._params.approve, request)
        if session.ending.backlog_unwanted:
            return  # Aborted meanwhile: the CLI no longer waits.
        if isinstance(decision, Deny):
            denial = PermissionDenial(request.tool_name, decision.message, request.tool_id or None)
            session.dialect.outcome.permission_denials.append(denial)
        session.answer(request, decision)
        session.transport.resume_clock()
        if isinstance(decision, Deny) and decision.stop:
            self.request_end(EndReason.ABORTED)

    def _note_done(self, event: AgentDoneEvent) -> None:
        """The agent's final message, which a hook returned as an event."""
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
        """Keep an error that is about to be yielded, without secrets it may quote, and never with an empty message."""
        redact = self._session.redact
        message = redact("" if event.message is None else str(event.message))
        if not message.strip():
            message = NO_WORDS
        # A hook may pass on what the CLI gave it: null, 429.
        code = None if event.code is None else redact(str(event.code))
        if message != event.message or code != event.code:
            event = attrs.evolve(event, message=message, code=code)
        if event.retry_after is None and code not in errors.SURVIVABLE:
            later = seconds_in(message, datetime.now().astimezone())
            event = event if later is None else attrs.evolve(event, retry_after=later)
        self._errors.append(event)
        return event

    # --- the end ----------------------------------------------------------------------------------------------

    def _end(self, end: TurnEnd) -> Generator[AgentEvent, None, None]:
        """The verdict: an error if there is one to report, then `done`."""
        session = self._session
        if end.reason is EndReason.CLOSED:
            self.result = self._result(end, "aborted")
            return
        evidence = Evidence(
            agent=session.agent,
            end=end,
            finished_in_time=self._finished_in_time,
            answered=self._answered,
            errors_seen=tuple(self._errors),
            deadline=self._params.deadline,
            is_live=self._session.is_live,
            over=self._over,
        )
        verdict = judge(evidence)
        if self._meter is not None:
            self._meter.book(end.outcome)
            over = self._over or self._meter.over(end.outcome, False)
            verdict = verdict if over is None or verdict.error_subtype is not None else exceeded(over)
        if verdict.error is not None:
            verdict = session.explained(verdict, end)
        output = None
        if self._params.output_type is not None and verdict.error_subtype is None:
            words, last_words = "".join(self._text_parts), "".join(self._text_parts[self._words_begin :])
            output, verdict = read_answer(self._params.output_type, end.outcome, last_words, words)
        # Built before the error is yielded: by then files are restored and the process is reaped, whatever comes next.
        self.result = self._result(end, verdict.error_subtype, output)
        if verdict.error is not None:
            yield self._error(verdict.error)
        yield AgentDoneEvent(self.result)

    def _result(self, end: TurnEnd, error_subtype: ErrorSubtype | None, output: Any = None) -> AgentRunResult:
        outcome = end.outcome
        retry_after = self._retry_after(outcome, error_subtype)
        return AgentRunResult(
            text="".join(self._text_parts),
            session_id=outcome.session_id,
            duration_ms=round((time.monotonic() - self._started_at if end.seconds is None else end.seconds) * 1000, 3),
            usage=outcome.usage,
            aborted=end.reason in (EndReason.ABORTED, EndReason.CLOSED),
            total_cost_usd=outcome.total_cost_usd if self._meter is None else self._meter.cost(outcome),
            api_duration_ms=outcome.api_duration_ms,
            num_turns=outcome.num_turns,
            stop_reason=outcome.stop_reason,
            error_subtype=error_subtype,
            permission_denials=tuple(outcome.permission_denials),
            exit_code=end.exit_code,
            stderr=end.stderr,
            output=output,
            retry_after=retry_after,
        )

    def _retry_after(self, outcome: RunOutcome, error_subtype: ErrorSubtype | None) -> float | None:
        if error_subtype not in RETRYABLE:
            return None
        if outcome.resets_at is not None:
            return round(max(outcome.resets_at - time.time(), 0.0), 3)
        told = [error.retry_after for error in self._errors if error.retry_after is not None]
        return told[-1] if told else None


class ByClass(dict[type, Callable[[Turn, Any], AgentEvent | None]]):
    """What to do with an event, by its class; a subclass is handled like its base."""

    def __missing__(self, cls: type) -> Callable[[Turn, Any], AgentEvent | None]:
        self[cls] = next(self[base] for base in cls.__mro__[1:] if base in self)
        return self[cls]


# Not bound to a Turn: bound methods would make a cycle, which would keep a run's output alive after it.
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
