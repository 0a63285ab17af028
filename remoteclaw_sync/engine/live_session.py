"""A conversation whose process stays: it serves one turn after another, and when it is gone, a new one takes over.

The consumer of the running turn reads what the process prints. Between turns nobody reads; what arrives then is read
when the next turn begins.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from .. import errors
from ..process.abort_listener import AbortListener
from ..process.ending import EndLatch, EndReason
from ..process.launch import Exit, Limits, Phase, SpawnFailure, Strays, UnreadInputError
from ..process.sweep import boot_ticks, is_dying
from ..types import (
    AgentErrorEvent,
    AgentEvent,
    AgentExecuteParams,
    Allow,
    Deny,
    PermissionMode,
    PermissionRequest,
)
from ..wire.json_lines import LineReader
from .agent import Agent
from .approval import FAILED, what_is_remembered
from .dialect import each_of
from .live_dialect import LiveDialect
from .outcome import Closing, RunOutcome
from .session import Session
from .setup import RunSetup
from .transport import Transport
from .turn import Turn

INTERRUPT_PATIENCE = 2.0  # From the CLI's own interrupt to ending its process.
# The longest that an interrupted turn can last: the above, then SIGTERM, SIGKILL and the sweep.
LEAVE_PATIENCE = INTERRUPT_PATIENCE + 10.0
DEATH_PATIENCE = 10.0  # Until a killed process is gone, with everything that it started.
ONE_TURN_AT_A_TIME = "this session has a turn that is not over; close it, or wait for its end"


class LiveSession(Session):
    """Keeps its process between turns.

    Args:
        agent: the CLI; a copy that belongs to this session.
        fields: what applies to all turns. Its prompt and the other fields of a turn are ignored.
        idle_timeout: seconds after which an idle process is let go; None keeps it.
        one_turn: the process ends with the first turn.
    """

    is_live = True

    def __init__(
        self, agent: Agent, fields: AgentExecuteParams, *, idle_timeout: float | None, one_turn: bool = False
    ) -> None:
        super().__init__(agent)
        self.fields = fields
        self.idle_timeout = idle_timeout
        self._one_turn = one_turn
        # Held while the turn's state changes, never while waiting. Re-entered by signal handlers and the GC.
        self._lock = threading.RLock()
        self._turn: weakref.ref[Turn] | None = None
        self._closed = False
        self._warming = False
        self._process: Transport | None = None  # The one that serves this turn or may serve the next.
        self._mode_at_start: PermissionMode = fields.permission_mode
        self._latch = EndLatch()
        self.remembered: set[tuple[str, str]] = set()  # What the caller has approved for the rest of the session.
        self._listener: AbortListener | None = None
        self._due: float | None = None
        self._prompt = b""
        self._failure: SpawnFailure | None = None
        self._reused = False  # This turn's process has served a turn before, or was started ahead of it.
        self._begun = False  # The process was given the prompt.
        # When the CLI was ready for the turn, in `boot_ticks`: its MCP servers are older. None: it is not ready yet.
        self._tools_from: int | None = None
        self._heard_at = 0  # When it last printed something before that.
        self._further: list[str] = []  # What to ask next, once the CLI's turn is over.
        self._makes_room = False  # The turn was interrupted for that.
        self._earlier: list[RunOutcome] = []  # The outcomes of the CLI's earlier turns within this one.
        self.dialect: LiveDialect

    def __del__(self) -> None:
        process = getattr(self, "_process", None)
        if process is not None:
            process.let_go()

    # --- what users call --------------------------------------------------------------------------------------

    @property
    def session_id(self) -> str | None:
        """What the CLI calls this conversation; None before its first turn."""
        return self.fields.session_id

    @property
    def pid(self) -> int | None:
        """The id of the process that serves it now."""
        process = self._process
        return None if process is None or process.exit is not None else process.pid

    def new_turn(self, params: AgentExecuteParams) -> Turn:
        """A turn that has not begun. Raises SessionBusyError, or RuntimeError if the session is closed."""
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
        """Start a process now, if there is none, and wait until it is ready. A failure is left for the next turn to
        report, unless somebody else holds the session (SessionBusyError)."""
        with self._lock:
            self._check_free()
            self._warming = True
        try:
            may_begin = self.gate is None or self.gate.enter(lambda: self._closed, None)
            if may_begin and not self._is_warm():
                self._connect(self.fields, None)
                self._start_warm()
                failure = self.transport.failure
                if failure is not None and failure.code == errors.SESSION_BUSY:
                    raise errors.SessionBusyError(failure.message)
        finally:
            try:
                if self.gate is not None:
                    self.gate.leave()
            finally:
                self._warming = False

    def _start_warm(self) -> None:
        process, dialect = self.transport, self.dialect
        dialect.greeting = dialect.opening(self.fields)
        process.begin_phase(Phase.STARTING, Limits(self.agent.timeout))
        with self._lock:
            if self._closed:
                return
            process.start()
        try:
            while not dialect.is_ready and self._feed(None):
                pass
            process.begin_phase(Phase.IDLE, Limits(wall_clock=self.idle_timeout))
        except BaseException:
            process.request_close()
            raise

    def set_model(self, name: str | None) -> None:
        """Use another model, starting with the CLI's next request."""
        with self._lock:
            self.fields = attrs.evolve(self.fields, model=name)
            self._tell(self.dialect.set_model(name) if self._process is not None else b"")

    def set_permission_mode(self, mode: PermissionMode) -> None:
        """Use another mode, starting with the next tool call or, if that needs a new process, the next turn."""
        with self._lock:
            fields = attrs.evolve(self.fields, permission_mode=mode)
            said = b"" if self._process is None else self.dialect.set_permission_mode(mode, self._mode_at_start)
            if said is None:
                self._check_free()
            self.fields = fields
            self._tell(said)

    def _tell(self, said: bytes | None) -> None:
        """Send it to the process; None: let the process go."""
        if self._process is None:
            return
        try:
            if said:
                self._process.send(said)
        except UnreadInputError:
            said = None
        if said is None:
            self._let_go()

    def cool(self) -> None:
        """Let the process go, as after `idle_timeout`, and wait until it is gone.

        Only for a gate, which ensures that no turn begins meanwhile.
        """
        with self._lock:
            process = self._process
            if process is None or self._begun:
                return
            process.let_go()
        self._see_off(process)  # Without the lock: a turn that is wanted meanwhile waits at the gate.

    def _see_off(self, process: Transport) -> None:
        """Wait until the process is gone. Until then it belongs to this session, and no other can continue the
        conversation."""
        process.close()
        self._setup.heard_all()
        with self._lock:
            if self._process is process:
                self._process = None

    def rest(self) -> None:
        """Like `cool`, without a gate: raises SessionBusyError if there is a turn; so does a turn begun meanwhile."""
        with self._lock:
            self._check_free()
            self._warming = True
        try:
            process = self._process
            if process is not None:
                process.let_go()
                self._see_off(process)
        finally:
            self._warming = False

    def take_over(self, other: LiveSession) -> None:
        """Take over the process of another session, which has the same fields and has had no turn. That session is over
        then.

        Only for a gate, which ensures that no turn of either session begins meanwhile.
        """
        with other._lock:
            process, other._process, other._closed = other._process, None, True
        if process is None:
            return
        with self._lock:
            self.agent, self.dialect, self.reader = other.agent, other.dialect, other.reader
            self._setup, self._mode_at_start = other._setup, other._mode_at_start
            self.meanwhile = other.meanwhile
            self.transport = self._process = process
            process.begin_phase(Phase.IDLE, Limits(wall_clock=self.idle_timeout))
            if self._closed:
                process.let_go()

    def begin_shut(self) -> Transport | None:
        """Abort the running turn and let the process go. Returns the process. Does not block."""
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
        return process

    def shut(self) -> None:
        """The same, and wait until the process is gone."""
        process = self.begin_shut()
        if process is not None:
            process.close()

    # --- a turn -----------------------------------------------------------------------------------------------

    def prepare(self, params: AgentExecuteParams) -> None:
        with self._lock:
            self._latch = EndLatch()
            self._begun = False
            self._further, self._makes_room, self._earlier = [], False, []
            self.restarts = 0
            self.remedied = None
        super().prepare(params)

    def open(self, due: float | None) -> Transport:
        with self._lock:
            self._due = due
            self._failure = None
            self._begun = False
            if self._latch.reason is EndReason.EXITED:
                self._latch = EndLatch()  # A second try, with another process.
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
        """Whether the process can take a turn. Reads what it said meanwhile."""
        if self._process is None:
            return False
        try:
            while self._feed(0.0):
                pass
        except TimeoutError:
            if is_dying(self._process.pid):
                self._hear_it_die()
            elif self._process.phase is Phase.IDLE and not self.dialect.is_lost:
                return True
        self._process.let_go()
        self._bury()
        return False

    def _hear_it_die(self) -> None:
        """Read until a dying process is gone. A shared one has told all its sessions by then, and admits no more."""
        give_up_at = time.monotonic() + DEATH_PATIENCE
        try:
            while self._feed(max(give_up_at - time.monotonic(), 0.0)):
                pass
        except TimeoutError:
            pass

    def _connect(self, params: AgentExecuteParams, due: float | None) -> None:
        """Make a process, without starting it."""
        params = attrs.evolve(
            params,
            session_id=self.fields.session_id,
            model=self.fields.model,
            permission_mode=self.fields.permission_mode,
            output_type=self.fields.output_type,
            abort_signal=None,  # It ends a turn, not the process.
        )
        dialect = self.agent.new_dialect(params)
        assert isinstance(dialect, LiveDialect)
        setup = RunSetup(self.agent, params, dialect, None, due)
        process = self.way_to(setup)
        with self._lock:
            self.dialect = dialect
            self._mode_at_start = params.permission_mode
            self._setup = setup
            self.transport = self._process = process
            self.reader = LineReader(dialect.parse, self.agent.max_line_bytes)

    def way_to(self, setup: RunSetup) -> Transport:
        """The process, or what stands in for it."""
        return self.agent.connect(setup)

    def so_far(self) -> RunOutcome:
        now = self.dialect.outcome
        if self._earlier:
            now = attrs.evolve(now, permission_denials=[*now.permission_denials])
            for earlier in self._earlier:
                now.add_earlier(earlier)
        return now

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
            process = self.transport
            process.begin_phase(Phase.TURN, self._limits())
            self._begun = True
            self._heard_at = boot_ticks()
            self._tools_from = self._heard_at if self.dialect.is_ready else None
            if self._reused:
                self._send(self._prompt)
            else:
                self.dialect.greeting = self.dialect.opening(self.fields) + self._prompt
                process.start()
        signal = self.params.abort_signal
        if signal is not None:
            self._listener = AbortListener(signal, self._on_abort)
            self._listener.attach()

    def _on_abort(self) -> None:
        self.request_end(EndReason.ABORTED)

    def listener(self) -> Callable[[], bytes | None]:
        return self._next_words

    def _next_words(self) -> bytes | None:
        if self._tools_from is None and self.dialect.is_ready:
            self._tools_from = self._heard_at
        self._say()
        if self._further:
            self._make_room()
        if self._latch.reason is not None:
            return b""
        chunk = self._receive(None)
        if chunk is None:
            self._latch.claim(EndReason.EXITED)
        if self._tools_from is None:
            self._heard_at = boot_ticks()
        return chunk

    def _receive(self, timeout: float | None) -> bytes | None:
        """The next output of the process; None when it is gone or its output is no longer wanted. Raises
        TimeoutError."""
        process = self.transport
        if process.ending.backlog_unwanted:
            return None
        chunk = process.receive(timeout) if self.dialect.peer is None else self._receive_in_time(timeout)
        if process.lines_skipped:
            self.reader.lines_skipped += process.lines_skipped
            process.lines_skipped = 0
        return None if process.ending.backlog_unwanted else chunk

    def _receive_in_time(self, timeout: float | None) -> bytes | None:
        """The same, for a CLI that we send requests to, each of which has a time limit."""
        process, peer = self.transport, self.dialect.peer
        assert peer is not None
        while True:
            left, overdue = peer.waits(time.monotonic())
            patience = min((one for one in (left, timeout) if one is not None), default=None)
            try:
                return process.receive(patience)
            except TimeoutError:
                if timeout is not None and (left is None or timeout <= left):
                    raise
                if overdue is not None and process.ending.reason is None:  # Nor is the answer in what has arrived.
                    message = f"{self.agent.program} has not answered {overdue!r} in time"
                    self._failure = SpawnFailure(errors.WATCHDOG_TIMEOUT, message)
                    process.request_end(EndReason.LINGERED)
                if overdue is not None:
                    return process.receive(timeout)

    def last_word(self, said: bool) -> bool:
        with self._lock:
            if said and self._further and self._latch.reason is None:
                self._ask_again()
            elif said and self.dialect.has_unanswered:
                self.dialect.outcome.reopen()  # The turn was steered meanwhile.
            elif said:
                self._add_earlier()
                self._latch.claim(EndReason.EXITED)
        return self.transport.heard_in_time

    def _add_earlier(self) -> None:
        while self._earlier:
            self.dialect.outcome.add_earlier(self._earlier.pop())

    def _ask_again(self) -> None:
        """The CLI's turn is over, and there is text that it has not been given yet: send it."""
        words, self._further, self._makes_room = "\n\n".join(self._further), [], False
        self._earlier.append(self.dialect.outcome)
        prompt = self.dialect.ask_again(attrs.evolve(self.params, prompt=words, images=()))
        self.transport.begin_phase(Phase.TURN, self._limits())
        self._send(prompt)

    def _limits(self) -> Limits:
        """The limits of the turn, from now on."""
        left = None if self._due is None else max(self._due - time.monotonic(), 0.001)
        return Limits(self.agent.timeout, self.agent.tool_timeout, left)

    def _interrupted_limits(self) -> Limits:
        """The limits after an interrupt. The CLI is not blamed if it has obeyed and the consumer reads that late."""
        return Limits(wall_clock=INTERRUPT_PATIENCE, is_over=self.dialect.may_end_turn)

    def answer(self, request: PermissionRequest, decision: Allow | Deny) -> None:
        # A yes to other arguments is none to these: the next such call is asked about again.
        if isinstance(decision, Allow) and decision.remember and decision.input in (None, request.input):
            known_by = what_is_remembered(request)
            if known_by is not None:
                self.remembered.add(known_by)
        try:
            said = self.dialect.answer(request, decision)
        except Exception:  # noqa: BLE001 - whatever it is (nested too deep), the CLI must not be left waiting
            said = self.dialect.answer(request, Deny(FAILED))
        self._say()  # First the outbox, so that the order does not depend on how many lines came at once.
        self._send(said)

    def answered(self) -> Sequence[AgentEvent]:
        return self.dialect.take_told()

    def remembers(self, request: PermissionRequest) -> bool:
        if what_is_remembered(request) not in self.remembered:
            return False
        self.answer(request, Allow())
        return True

    def _say(self) -> None:
        """Send what the dialect has put into its outbox."""
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
        """Read more without a turn; False if the process is gone. Raises TimeoutError."""
        for item in self.reader.rest:
            self._take(item)
        chunk = self._receive(timeout)
        for item in self.reader.feed(chunk):
            self._take(item)
        self._say()
        return chunk is not None

    def _take(self, item: Any) -> None:
        for event in each_of(self.dialect.read(item)):
            if isinstance(event, AgentErrorEvent) and event.code in errors.SURVIVABLE:
                self.meanwhile.append(event)

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
                process.request_end(reason)  # The process is not worth keeping, or cannot be kept.
            else:
                process.begin_phase(Phase.TURN, self._interrupted_limits())

    def wait_for_end(self) -> None:
        """Does nothing: the consumer waits, in `close`; without a consumer, the interrupted turn ends on its own."""

    def steer(self, text: str, interrupt: bool) -> None:
        with self._lock:
            if not self._begun or self._latch.reason is not None:
                raise errors.UnsupportedOperationError("there is no running turn that could take further words")
            said = self.dialect.steer(text)
            if said is not None:
                self.transport.send(said)
            elif interrupt:
                self._further.append(text)
                self._make_room()
            else:
                program = self.agent.program
                message = f"{program} takes no further words in a turn; interrupt=True ends it, and asks again"
                raise errors.UnsupportedOperationError(message)

    def _make_room(self) -> None:
        """Interrupt the turn, once it has begun, to make room for more text."""
        with self._lock:
            if self._makes_room or not self.dialect.may_interrupt or self._latch.reason is not None:
                return
            said = self.dialect.interrupt()
            if said is not None:
                self._makes_room = True
                self.transport.send(said)
                self.transport.begin_phase(Phase.TURN, self._interrupted_limits())

    # --- its end ----------------------------------------------------------------------------------------------

    def close(self) -> Exit:
        """Called when the turn is over or its consumer leaves it. In the latter case the turn is interrupted. Waits
        until the process can take the next turn."""
        if self._listener is not None:
            self._listener.detach()
            self._listener = None
        process = self.transport
        if self._begun:
            try:
                self.request_end(EndReason.CLOSED)
                self._hear_out()
                self._add_earlier()  # Also if the turn was aborted, or its process is gone.
                self._end_turn()
            except BaseException:
                process.request_close()  # We were interrupted. The session goes on with another process.
                raise
        if self._makes_room and self._end_reason is EndReason.DEADLINE and self._failure is None:
            self._failure = SpawnFailure(errors.CLI_ERROR, f"{self.agent.program} did not stop for the further words")
        return Exit(process.exit_code, self._end_reason, process.diagnostics, self._failure or process.failure)

    def _hear_out(self) -> None:
        """Read until the CLI has sent the final message of the turn, or is gone."""
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
        self.meanwhile.clear()  # These warnings belong to the turn that is over, not to the next one.

    def _end_turn(self) -> None:
        process, outcome = self.transport, self.dialect.outcome
        with self._lock:
            self._begun = False
            if outcome.session_id is not None:
                self.fields = attrs.evolve(self.fields, session_id=outcome.session_id)
            is_over = outcome.terminal is not None and process.ending.reason is None
            is_done_with = self._one_turn or self._closed or self.dialect.has_unanswered or self.dialect.is_lost
            if is_over and not is_done_with:
                self._hold()
                process.begin_phase(Phase.IDLE, Limits(wall_clock=self.idle_timeout))
                if self._tools_from is not None and self._latch.reason is not EndReason.EXITED:
                    self._setup.interrupted()
                    process.end_strays(Strays(self._tools_from, boot_ticks(), self.dialect.word_of_tools))
                return
            if is_over:
                process.let_go()
        self._bury()

    def _hold(self) -> None:
        """From now on others can know the id of this conversation. While the process is warm, lock them out."""
        if self.fields.session_id is not None:
            with contextlib.suppress(errors.RunSetupError):
                self._setup.hold(self.fields.session_id)

    def _let_go(self) -> None:
        if self._process is not None:
            self._process.let_go()
            self._bury()

    def _bury(self) -> None:
        """Wait until the process is gone and all that was made for it is removed. The next turn gets a new process."""
        process, self._process = self._process, None
        if process is not None:
            process.close()
            self._setup.heard_all()

    @property
    def _end_reason(self) -> EndReason:
        own, process = self._latch.reason, self.transport.ending.reason
        if own in (EndReason.ABORTED, EndReason.CLOSED, EndReason.LIMIT):
            return own
        # These two mean that a limit ran out and ended the process. Being let go after its turn is not a failure.
        return process if process in (EndReason.WATCHDOG, EndReason.DEADLINE) else EndReason.EXITED

    @property
    def was_not_heard(self) -> bool:
        gone_by_itself = self.transport.ending.reason in (EndReason.EXITED, EndReason.LINGERED)
        left_alone = self._latch.reason is EndReason.EXITED and self._failure is None
        has_served = self._reused or self.transport.has_served
        return has_served and not self.dialect.has_begun and gone_by_itself and left_alone

    def closing(self, exit: Exit, stderr: str, said: str) -> Closing:
        return Closing() if self._process is not None else super().closing(exit, stderr, said)
