"""One turn, from its prompt to `done`: the only loop.

It works in the consumer's thread: what the agent writes arrives here as raw chunks, is cut into lines, read by the
session's dialect, and leaves as events. Only `request_end` and `close` are called from elsewhere.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

import attrs

from .. import errors
from ..process.ending import EndReason
from ..types import (
    AgentDoneEvent,
    AgentErrorEvent,
    AgentEvent,
    AgentRunResult,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    ErrorSubtype,
)
from .dialect import NOTHING, each_of, hook_failure
from .outcome import Closing, RunOutcome
from .session import Session
from .transport import Transport
from .verdict import WAS_ABORTED, Evidence, judge

logger = logging.getLogger(__name__)

NO_WORDS = "an error was reported without a message"


class Turn:
    """What its consumer has been told so far, and what others want of it.

    Holds no reference to the generator of its events, so that dropping that one ends the turn.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.RLock()
        self._wanted_end: EndReason | None = None  # What was asked for first, perhaps before there was a transport.
        self._transport: Transport | None = None
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

    def request_end(self, reason: EndReason) -> None:
        """Have the turn ended, from any thread. Does not block."""
        with self._lock:
            if self._wanted_end is None:
                self._wanted_end = reason
            if self._transport is not None:
                self._transport.request_end(reason)

    def close(self) -> None:
        """End the turn and wait until nothing of it is left."""
        self.request_end(EndReason.CLOSED)
        if self._transport is not None:
            self._transport.close()

    def _attach(self, transport: Transport) -> None:
        """From now on requests go to this transport; one that came before is passed on."""
        with self._lock:
            self._transport = transport
            if self._wanted_end is not None:
                transport.request_end(self._wanted_end)

    # --- the loop ---------------------------------------------------------------------------------------------

    def events(self) -> Generator[AgentEvent, None, None]:
        """See `CLIRuntimeBase.execute` for the contract."""
        session, signal = self._session, self._session.params.abort_signal
        self._started_at = time.monotonic()
        if signal is not None and signal.is_set():
            self.request_end(EndReason.ABORTED)
        if self._wanted_end is EndReason.CLOSED:
            return
        if session.remedied is not None:  # In the recorded run that is played here.
            yield self._error(session.remedied)
        closing = Closing()
        start = self._wanted_end is None
        while start:
            transport = session.open(self._due())
            try:
                self._attach(transport)
                ending, next_items, read = transport.ending, session.reader.next_items, session.dialect.read
                append_text, note = self._text_parts.append, self._note
                transport.start()  # After all else: from here on two threads want the interpreter.
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
                                if ending.backlog_unwanted:
                                    break
                        if ending.backlog_unwanted:
                            break
                    if (skipped := self._after_chunk()) is not None:
                        yield skipped
                closing = session.end()
                for warning in session.warnings(closing):
                    yield self._error(warning)
            finally:
                session.close()
            start = False
            if not self._answered and (remedy := session.remedy()) is not None:
                session.remedied = self._error(remedy)
                yield session.remedied
                start = True
        yield from self._end(closing)

    def _due(self) -> float | None:
        deadline = self._session.params.deadline
        return None if deadline is None else self._started_at + deadline

    @property
    def _answered(self) -> bool:
        """Whether the agent said or did anything."""
        return self._tools_used or any(self._text_parts)

    def _after_chunk(self) -> AgentErrorEvent | None:
        """Look whether that was the agent's last word, and whether lines were too long."""
        session, transport = self._session, self._transport
        assert transport is not None
        if transport.ending.backlog_unwanted:
            return None
        outcome = session.dialect.outcome
        finished = outcome.terminal is not None
        if finished and not self._exit_expected:
            self._finished_in_time = transport.heard_in_time
        if finished or self._exit_expected:
            self._exit_expected = finished
            transport.expect_exit(finished, max(session.agent.linger, outcome.may_stay))
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
        session, agent = self._session, self._session.agent
        if self._transport is None:  # Somebody wanted the end before there was anything to end.
            yield from self._ended_before_start()
            return
        end, ended = session.close(), session.ended
        logger.debug("child %s: %s, exit code %s", self._transport.pid, end.reason, end.code)
        outcome = closing.applied_to(session.dialect.outcome)
        stderr = session.presentable(ended.stderr)
        result = functools.partial(self._result, outcome, end.reason, exit_code=end.code, stderr=stderr)
        if end.reason is EndReason.CLOSED:
            self.result = result("aborted")
            return
        verdict = judge(
            Evidence(
                program=agent.program,
                exit_codes=agent.cli_facts.exit_codes if agent.cli_facts else {},
                end_reason=end.reason,
                spawn_failure=session.spawn_failure(),
                exit_code=end.code,
                diagnostics=session.presentable(ended.said),
                outcome=outcome,
                finished_in_time=self._finished_in_time,
                answered=self._answered,
                expects_terminal=agent.expects_terminal_event,
                errors_seen=tuple(self._errors),
                timeout=agent.timeout,
                deadline=session.params.deadline,
                explained_exit=closing.cause,
            )
        )
        verdict = session.explained(verdict)
        # Built before the error is yielded: by then files are restored and the process is reaped, whatever comes next.
        self.result = result(verdict.error_subtype)
        if verdict.error is not None:
            yield self._error(verdict.error)
        yield AgentDoneEvent(self.result)

    def _ended_before_start(self) -> Generator[AgentEvent, None, None]:
        assert self._wanted_end is not None
        self.result = self._result(RunOutcome(), self._wanted_end, "aborted")
        yield self._error(AgentErrorEvent(WAS_ABORTED, errors.ABORTED))
        yield AgentDoneEvent(self.result)

    def _result(
        self,
        outcome: RunOutcome,
        reason: EndReason,
        error_subtype: ErrorSubtype | None,
        exit_code: int | None = None,
        stderr: str = "",
    ) -> AgentRunResult:
        return AgentRunResult(
            text="".join(self._text_parts),
            session_id=outcome.session_id,
            duration_ms=round(self._session.duration(time.monotonic() - self._started_at) * 1000, 3),
            usage=outcome.usage,
            aborted=reason in (EndReason.ABORTED, EndReason.CLOSED),
            total_cost_usd=outcome.total_cost_usd,
            api_duration_ms=outcome.api_duration_ms,
            num_turns=outcome.num_turns,
            stop_reason=outcome.stop_reason,
            error_subtype=error_subtype,
            permission_denials=tuple(outcome.permission_denials),
            exit_code=exit_code,
            stderr=stderr,
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
        AgentErrorEvent: Turn._error,
        AgentDoneEvent: Turn._note_done,
    }
)
