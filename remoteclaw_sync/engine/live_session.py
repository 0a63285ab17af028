"""A conversation whose process stays: it serves one turn after the other, and another one takes over if it is gone.

The consumer of the running turn reads what the process says. Between turns nobody does: what comes then is read when
the next turn begins.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from .. import errors
from ..process.abort_listener import AbortListener
from ..process.ending import EndLatch, EndReason
from ..process.launch import Limits, Phase, SpawnFailure, UnreadInputError
from ..types import AgentErrorEvent, AgentExecuteParams, Allow, Deny, PermissionMode, PermissionRequest
from .agent import Agent
from .approval import FAILED, what_is_remembered
from .dialect import each_of
from .live_dialect import LiveDialect
from .outcome import Closing
from .reader import Reader
from .session import Session
from .setup import RunSetup
from .transport import Transport
from .turn import Turn

INTERRUPT_PATIENCE = 2.0  # From the CLI's own interrupt to ending its process.
# Until an interrupted turn is over in any case: the above, SIGTERM, SIGKILL and the sweep.
LEAVE_PATIENCE = INTERRUPT_PATIENCE + 10.0
ONE_TURN_AT_A_TIME = "this session has a turn that is not over; close it, or wait for its end"


class LiveSession(Session):
    """Keeps its process between turns.

    Args:
        agent: the CLI, as a copy for this session.
        fields: what holds for all turns. Its prompt and the other fields of a turn are not looked at.
        idle_timeout: seconds after which an idle process is let go; None keeps it.
        one_turn: the process ends with the first turn.
    """

    is_live = True

    def __init__(
        self, agent: Agent, fields: AgentExecuteParams, *, idle_timeout: float | None, one_turn: bool = False
    ) -> None:
        super().__init__(agent)
        self.fields = fields
        self._idle_timeout = idle_timeout
        self._one_turn = one_turn
        # Held while the turn's state changes, never while waiting. Re-entered by signal handlers and the GC.
        self._lock = threading.RLock()
        self._turn: weakref.ref[Turn] | None = None
        self._closed = False
        self._warming = False
        self._process: Transport | None = None  # The one that serves, or may serve the next turn.
        self._mode_at_start: PermissionMode = fields.permission_mode
        self._latch = EndLatch()
        self._remembered: set[tuple[str, str]] = set()
        self._warnings: list[AgentErrorEvent] = []
        self._listener: AbortListener | None = None
        self._due: float | None = None
        self._prompt = b""
        self._failure: SpawnFailure | None = None
        self._reused = False  # The process of this turn has served before, or was kept warm for it.
        self._begun = False  # It was given the prompt.
        self.dialect: LiveDialect

    def __del__(self) -> None:
        process = getattr(self, "_process", None)
        if process is not None:
            process.let_go()

    # --- what users hold asks ---------------------------------------------------------------------------------

    @property
    def session_id(self) -> str | None:
        """What the CLI calls this conversation; None before its first turn."""
        return self.fields.session_id

    @property
    def pid(self) -> int | None:
        """Of the process that serves it now."""
        process = self._process
        return None if process is None or process.exit is not None else process.pid

    def new_turn(self, params: AgentExecuteParams) -> Turn:
        """A turn that has not begun. Raises SessionBusyError, and RuntimeError if the session is closed."""
        with self._lock:
            self._check_free()
            turn = Turn(self, params)
            self._turn = weakref.ref(turn)
            return turn

    def _check_free(self) -> None:
        if self._closed:
            raise RuntimeError("the session is closed")
        turn = None if self._turn is None else self._turn()
        if self._warming or (turn is not None and not turn.is_over):
            raise errors.SessionBusyError(ONE_TURN_AT_A_TIME)

    def warm(self) -> None:
        """Start a process now, if there is none, and wait until it is ready. A failure is left to the next turn."""
        with self._lock:
            self._check_free()
            self._warming = True
        try:
            if not self._is_warm():
                self._connect(self.fields, None)
                self._start_warm()
        finally:
            self._warming = False

    def _start_warm(self) -> None:
        process, dialect = self.transport, self.dialect
        dialect.greeting = dialect.opening()
        process.begin_phase(Phase.STARTING, Limits(self.agent.timeout))
        process.start()
        try:
            while not dialect.is_ready and self._feed(None):
                pass
            process.begin_phase(Phase.IDLE, Limits(wall_clock=self._idle_timeout))
        except BaseException:
            process.request_close()
            raise

    def set_model(self, name: str | None) -> None:
        """Another model, from the CLI's next request to one on."""
        with self._lock:
            self.fields = attrs.evolve(self.fields, model=name)
            self._tell(self.dialect.set_model(name) if self._process is not None else b"")

    def set_permission_mode(self, mode: PermissionMode) -> None:
        """Another mode, from the next tool call on, or if that takes another process, from the next turn on."""
        with self._lock:
            fields = attrs.evolve(self.fields, permission_mode=mode)
            said = b"" if self._process is None else self.dialect.set_permission_mode(mode, self._mode_at_start)
            if said is None:
                self._check_free()
            self.fields = fields
            self._tell(said)

    def _tell(self, said: bytes | None) -> None:
        """Pass it on to the process; None: the process has to go."""
        if self._process is None:
            return
        try:
            if said:
                self._process.send(said)
        except UnreadInputError:
            said = None
        if said is None:
            self._let_go()

    def shut(self) -> None:
        """Abort the turn that runs, let the process go, and wait until it is gone."""
        with self._lock:
            self._closed = True
            turn = None if self._turn is None else self._turn()
            process, begun = self._process, self._begun
        if turn is not None and not turn.is_over:
            turn.request_end(EndReason.ABORTED)
        if process is not None:
            if begun:
                process.request_end(EndReason.ABORTED)
            else:
                process.let_go()
            process.close()

    # --- a turn -----------------------------------------------------------------------------------------------

    def prepare(self, params: AgentExecuteParams) -> None:
        with self._lock:
            self._latch = EndLatch()
            self._begun = False
            self.restarts = 0
            self.remedied = None
        super().prepare(params)

    def open(self, due: float | None) -> Transport:
        with self._lock:
            self._due = due
            self._failure = None
            self._begun = False
            if self._latch.reason is EndReason.EXITED:
                self._latch = EndLatch()  # Once more, with another process.
        self._reused = self._is_warm()
        if not self._reused:
            self._connect(self.params, due)
        try:
            self._prompt = self.dialect.begin_turn(self.params)
        except Exception as error:  # noqa: BLE001 - an image that is gone, or anything else
            message = f"preparing the turn failed: {type(error).__name__}: {error}"
            self._failure = SpawnFailure(errors.SPAWN_FAILED, message)
        return self.transport

    def _is_warm(self) -> bool:
        """Whether the process can take a turn, having read what it said meanwhile."""
        if self._process is None:
            return False
        try:
            while self._feed(0.0):
                pass
        except TimeoutError:
            if self._process.phase is Phase.IDLE:
                return True
        self._process.let_go()
        self._bury()
        return False

    def _connect(self, params: AgentExecuteParams, due: float | None) -> None:
        """A process that has not been started."""
        params = attrs.evolve(
            params,
            session_id=self.fields.session_id,
            model=self.fields.model,
            permission_mode=self.fields.permission_mode,
            abort_signal=None,  # It ends a turn, and not the process.
        )
        dialect = self.agent.new_dialect(params)
        assert isinstance(dialect, LiveDialect)
        setup = RunSetup(self.agent, params, dialect, None, due)
        process = self.agent.connect(setup)
        with self._lock:
            self.dialect = dialect
            self._mode_at_start = params.permission_mode
            self._setup = setup
            self.transport = self._process = process
            self.reader = Reader(process, dialect, self.agent.max_line_bytes)

    @property
    def ending(self) -> EndLatch:
        return self._latch

    def start(self) -> None:
        with self._lock:
            if self._closed:
                self._latch.claim(EndReason.ABORTED)
            if self._latch.reason is not None:
                return
            if self._failure is not None:
                self._latch.claim(EndReason.EXITED)
                return
            left = None if self._due is None else max(self._due - time.monotonic(), 0.001)
            agent, process = self.agent, self.transport
            process.begin_phase(Phase.TURN, Limits(agent.timeout, agent.tool_timeout, left))
            self._begun = True
            if self._reused:
                self._send(self._prompt)
            else:
                self.dialect.greeting = self.dialect.opening() + self._prompt
                process.start()
        signal = self.params.abort_signal
        if signal is not None:
            self._listener = AbortListener(signal, self._on_abort)
            self._listener.attach()

    def _on_abort(self) -> None:
        self.request_end(EndReason.ABORTED)

    def said_meanwhile(self) -> list[AgentErrorEvent]:
        warnings, self._warnings = self._warnings, []
        return warnings

    def listener(self) -> Callable[[], Iterator[Any] | None]:
        return self._next_items

    def _next_items(self) -> Iterator[Any] | None:
        self._say()
        if self._latch.reason is not None:
            return None
        items = self.reader.next_items()
        if items is None:
            self._latch.claim(EndReason.EXITED)
        return None if self._latch.backlog_unwanted else items

    def last_word(self, said: bool) -> None:
        with self._lock:
            if said and self.dialect.has_unanswered:
                self.dialect.outcome.reopen()  # Somebody has steered meanwhile.
            elif said:
                self._latch.claim(EndReason.EXITED)

    def answer(self, request: PermissionRequest, decision: Allow | Deny) -> None:
        if isinstance(decision, Allow) and decision.remember:
            known_by = what_is_remembered(request)
            if known_by is not None:
                self._remembered.add(known_by)
        try:
            said = self.dialect.answer(request, decision)
        except Exception:  # noqa: BLE001 - whatever it is (nested too deep), the CLI must not be left waiting
            said = self.dialect.answer(request, Deny(FAILED))
        self._send(said)

    def remembers(self, request: PermissionRequest) -> bool:
        if what_is_remembered(request) not in self._remembered:
            return False
        self.answer(request, Allow())
        return True

    def _say(self) -> None:
        """Send what the dialect has to say by itself."""
        outbox = self.dialect.outbox
        while outbox:
            self._send(outbox.pop(0))

    def _send(self, data: bytes) -> None:
        try:
            self.transport.send(data)
        except UnreadInputError as error:
            self._failure = SpawnFailure(errors.CLI_ERROR, str(error))
            self.transport.request_close()

    def _feed(self, timeout: float | None) -> bool:
        """Read on without a turn; False if the process is gone. Raises TimeoutError."""
        for item in self.reader.rest:
            self._take(item)
        items = self.reader.next_items(timeout)
        for item in items or ():
            self._take(item)
        self._say()
        return items is not None

    def _take(self, item: Any) -> None:
        for event in each_of(self.dialect.read(item)):
            if isinstance(event, AgentErrorEvent) and event.code in errors.SURVIVABLE:
                self._warnings.append(event)

    # --- for anyone -------------------------------------------------------------------------------------------

    def request_end(self, reason: EndReason) -> None:
        with self._lock:
            is_first = self._latch.reason is None
            self._latch.claim(reason)
            if not is_first or not self._begun:
                return
            process = self.transport
            keeps_process = self.dialect.is_ready and not self._one_turn
            said = self.dialect.interrupt() if keeps_process else None
            try:
                if said is not None:
                    process.send(said)
            except UnreadInputError:
                said = None
            if said is None:
                process.request_end(reason)  # There is nothing to keep, or no way to.
            else:
                process.begin_phase(Phase.TURN, Limits(wall_clock=INTERRUPT_PATIENCE))

    def wait_for_end(self) -> None:
        """Its consumer does, in `close`; and if there is none, the interrupted turn ends by itself."""

    def steer(self, text: str) -> None:
        with self._lock:
            if not self._begun or self._latch.reason is not None:
                raise errors.UnsupportedOperationError("there is no running turn that could take further words")
            said = self.dialect.steer(text)
            if said is None:
                raise errors.UnsupportedOperationError(f"{self.agent.program} takes no further words in a turn")
            self.transport.send(said)

    # --- its end ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """The turn is over, or is left: interrupt it then, and wait until the process can take the next one."""
        if self._listener is not None:
            self._listener.detach()
            self._listener = None
        if not self._begun:
            return
        try:
            self.request_end(EndReason.CLOSED)
            self._hear_out()
            self._end_turn()
        except BaseException:
            self.transport.request_close()  # Interrupted. The session goes on with another process.
            raise

    def _hear_out(self) -> None:
        """Until the CLI has said its last word on the turn, or is gone."""
        give_up_at = time.monotonic() + LEAVE_PATIENCE
        outcome = self.dialect.outcome
        for item in self.reader.rest:
            self._take(item)
        self._say()
        try:
            while outcome.terminal is None and self._feed(max(give_up_at - time.monotonic(), 0.0)):
                pass
        except TimeoutError:
            self.transport.request_close()
        self._warnings.clear()  # Of the turn that is over, and not for the consumer of the next.

    def _end_turn(self) -> None:
        process, outcome = self.transport, self.dialect.outcome
        with self._lock:
            self._begun = False
            if outcome.session_id is not None:
                self.fields = attrs.evolve(self.fields, session_id=outcome.session_id)
            is_over = outcome.terminal is not None and process.ending.reason is None
            if is_over and not (self._one_turn or self._closed or self.dialect.has_unanswered):
                process.begin_phase(Phase.IDLE, Limits(wall_clock=self._idle_timeout))
                return
            if is_over:
                process.let_go()
        self._bury()

    def _let_go(self) -> None:
        if self._process is not None:
            self._process.let_go()
            self._bury()

    def _bury(self) -> None:
        """Wait until the process is gone, with all that was made for it. The next turn gets another one."""
        process, self._process = self._process, None
        if process is not None:
            process.close()
            self._setup.heard_all()

    @property
    def end_reason(self) -> EndReason:
        own, process = self._latch.reason, self.transport.ending.reason
        if own in (EndReason.ABORTED, EndReason.CLOSED):
            return own
        # A limit that ran out ended the process; that it was let go after its turn is nobody's fault.
        return process if process in (EndReason.WATCHDOG, EndReason.DEADLINE) else EndReason.EXITED

    @property
    def was_not_heard(self) -> bool:
        gone_by_itself = self.transport.ending.reason in (EndReason.EXITED, EndReason.LINGERED)
        left_alone = self._latch.reason is EndReason.EXITED and self._failure is None
        return self._reused and not self.dialect.has_begun and gone_by_itself and left_alone

    def closing(self) -> Closing:
        return Closing() if self._process is not None or self._failure is not None else super().closing()

    def spawn_failure(self) -> SpawnFailure | None:
        return self._failure or super().spawn_failure()
