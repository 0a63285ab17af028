"""A live session that is recorded: what is sent in both directions, and what its caller asks of it."""

from __future__ import annotations

from ..process.ending import EndLatch, EndReason
from ..process.launch import Exit, Limits, Phase, SpawnFailure, Strays
from ..recording.recorder import Recording
from ..recording.session_recorder import SessionRecorder
from ..types import AgentExecuteParams, Allow, Deny, PermissionRequest
from .agent import Agent
from .approval import STOCK_WORDS
from .live_session import LiveSession
from .setup import RunSetup
from .transport import Transport


def new_live_session(
    agent: Agent, fields: AgentExecuteParams, *, idle_timeout: float | None, one_turn: bool = False
) -> LiveSession:
    """A live session, recorded if the agent has a `record`. The agent has to be a copy that belongs to the session."""
    kind = RecordedLiveSession if isinstance(agent.record, Recording) else LiveSession
    return kind(agent, fields, idle_timeout=idle_timeout, one_turn=one_turn)


class RecordedTransport:
    """Passes everything on to another transport, and has a recorder note what goes through."""

    def __init__(self, transport: Transport, recorder: SessionRecorder) -> None:
        self._transport = transport
        self._recorder = recorder
        self._has_ended = False
        self._started = False

    @property
    def ending(self) -> EndLatch:
        return self._transport.ending

    @property
    def tools_outstanding(self) -> bool:
        return self._transport.tools_outstanding

    @tools_outstanding.setter
    def tools_outstanding(self, value: bool) -> None:
        self._transport.tools_outstanding = value

    @property
    def has_served(self) -> bool:
        return self._transport.has_served

    @property
    def lines_skipped(self) -> int:
        return self._transport.lines_skipped

    @lines_skipped.setter
    def lines_skipped(self, value: int) -> None:
        self._transport.lines_skipped = value

    @property
    def failure(self) -> SpawnFailure | None:
        return self._transport.failure

    @property
    def exit_code(self) -> int | None:
        return self._transport.exit_code

    @property
    def pid(self) -> int | None:
        return self._transport.pid

    @property
    def phase(self) -> Phase:
        return self._transport.phase

    @property
    def exit(self) -> Exit | None:
        return self._transport.exit

    @property
    def diagnostics(self) -> str:
        return self._transport.diagnostics

    @property
    def heard_in_time(self) -> bool:
        return self._transport.heard_in_time

    def start(self) -> None:
        self._started = True
        self._transport.start()

    def send(self, data: bytes, *, last: bool = False) -> None:
        self._recorder.sent(data)
        self._transport.send(data, last=last)

    def receive(self, timeout: float | None = None) -> bytes | None:
        chunk = self._transport.receive(timeout)
        if chunk is not None:
            self._recorder.said(chunk)
        return chunk

    def begin_phase(self, phase: Phase, limits: Limits) -> None:
        self._transport.begin_phase(phase, limits)

    def pause_clock(self) -> None:
        self._transport.pause_clock()

    def resume_clock(self) -> None:
        self._transport.resume_clock()

    def expect_exit(self, expected: bool, linger: float | None = None) -> None:
        self._transport.expect_exit(expected, linger)

    def let_go(self) -> None:
        self._transport.let_go()

    def end_strays(self, strays: Strays) -> None:
        self._transport.end_strays(strays)

    def request_end(self, reason: EndReason) -> None:
        self._transport.request_end(reason)

    def request_close(self) -> None:
        self._transport.request_close()

    def close(self) -> Exit:
        closed = self._transport.close()
        if self._started and not self._has_ended:
            self._has_ended = True
            self._recorder.ended(closed)
        return closed


class RecordedLiveSession(LiveSession):
    """Records the whole session, with all the processes that serve it."""

    def __init__(
        self, agent: Agent, fields: AgentExecuteParams, *, idle_timeout: float | None, one_turn: bool = False
    ) -> None:
        super().__init__(agent, fields, idle_timeout=idle_timeout, one_turn=one_turn)
        assert isinstance(agent.record, Recording)
        self._recorder = SessionRecorder(
            agent.record, is_session=not one_turn, has_approver=fields.approve is not None, timeout=agent.timeout
        )
        agent.record = self._recorder
        self._is_told = False  # The recorder knows about this turn.

    def way_to(self, setup: RunSetup) -> Transport:
        return RecordedTransport(super().way_to(setup), self._recorder)

    def prepare(self, params: AgentExecuteParams) -> None:
        self._is_told = False
        super().prepare(params)

    def start(self) -> None:
        if not self._is_told:  # A turn may be started twice, the second time with another process.
            self._is_told = True
            self._recorder.turn(self.params)
        super().start()

    def answer(self, request: PermissionRequest, decision: Allow | Deny) -> None:
        has_reason = isinstance(decision, Deny) and decision.message not in STOCK_WORDS
        self._recorder.decided(request, decision, has_reason=has_reason)
        super().answer(request, decision)

    def steer(self, text: str, interrupt: bool) -> None:
        super().steer(text, interrupt)
        self._recorder.steered(text)

    def request_end(self, reason: EndReason) -> None:
        with self._lock:
            if self._begun and self._latch.reason is None:
                self._recorder.aborted(reason)
            super().request_end(reason)

    def close(self) -> Exit:
        was_begun = self._begun
        exit = super().close()
        if was_begun:
            self._recorder.over()
            if self._one_turn:
                self._recorder.close()
        return exit

    def shut(self) -> None:
        super().shut()
        self._recorder.close()
