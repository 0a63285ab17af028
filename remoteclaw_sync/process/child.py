"""One CLI process, from before it starts to after it ends.

A supervisor thread owns the child: it makes what the child needs and spawns it (in a thread, because Ctrl-C can
interrupt the main one anywhere), reads its two streams, writes its stdin, watches its clocks, ends its process tree,
reaps it and cleans up. The consumer only takes the chunks that have arrived, so a slow consumer holds nothing up.

A child may serve one turn or many. Its callers decide which phase it is in, how long that may take (`begin_phase`), and
when its stdin ends (`send`).
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque

from .. import errors
from . import live_children as registry
from .abort_listener import AbortListener
from .backend import Backend, NewBackend, Unborn
from .clocks import FOREVER, Clock, PhaseClocks, TimerFactory, Watchdog
from .ending import EndReason
from .greenlets import may_wait
from .inbox import Inbox
from .launch import (
    FAREWELL_PATIENCE,
    MAX_UNSENT_BYTES,
    Exchange,
    Exit,
    Launch,
    Limits,
    Loan,
    Observer,
    Phase,
    Ready,
    Setup,
    SpawnError,
    SpawnFailure,
    Strays,
    UnreadInputError,
)
from .life import LifeSigns, ask
from .tail import Tail

if sys.platform == "win32":
    from .fallback import PortableBackend as PlatformBackend
else:
    from .posix import PosixBackend as PlatformBackend

logger = logging.getLogger(__name__)

TERM_GRACE = 1.5  # From SIGTERM to SIGKILL: the CLIs take 0.03-0.6 s to act on SIGTERM.
KILL_PATIENCE = 5.0  # From SIGKILL to giving up on a process that the kernel cannot end (hung disk).
CLOSE_PATIENCE = TERM_GRACE + KILL_PATIENCE + 3.0  # The longest that close() waits for the supervisor.
LINGER_LIMIT = 5  # At most this many linger times for a CLI that keeps talking after its final message.
LONGEST_SLEEP = 86_400.0  # poll() accepts at most 24 days.
# Starting a guard process takes a millisecond of CPU, so a run that ends before this delay gets none. Once the CLI has
# printed something, the guard is started almost at once.
GUARD_DELAY = 0.003
GUARD_DELAY_AFTER_WORDS = 0.0005
# Seconds after the end of an interrupted turn at which we look for what it has left: a CLI needs time to end its tools.
STRAY_LOOKS = (0.0, 0.25, 0.75, 1.75)
WATCHDOG_DELAY = 2.0  # Seconds: the watchdog is a thread, which a short run does not need.


class ChildProcess(Inbox):
    """A child and its supervisor. `start`, `receive`, `expect_exit` and `tools_outstanding` are for the consumer; the
    rest may be called from any thread.

    Args:
        setup: makes the child's Launch, in the supervisor's thread; or the Launch itself.
        backend: what spawns it, moves its bytes and ends it.
        clock: a monotonic clock in seconds.
        timer_factory: makes the watchdog's timers. None: only the backend waits, so tests can control time.
        exchange: takes what the child prints, so that `receive` gets none of it.
    """

    has_served = False  # Whether it has served other consumers before.
    lines_skipped = 0  # Lines that were skipped before they came here.

    def __init__(
        self,
        setup: Setup | Launch,
        backend: NewBackend = PlatformBackend,
        clock: Clock = time.monotonic,
        timer_factory: TimerFactory | None = threading.Timer,
        exchange: Exchange | None = None,
    ) -> None:
        self._exchange = exchange
        self._setup: Setup = Ready(setup) if isinstance(setup, Launch) else setup
        self._new_backend = backend
        self._backend: Backend = Unborn()
        self._launch: Launch  # From `prepare` on, and so before the first chunk.
        self._loans: tuple[Loan, ...] = ()
        self._observer: Observer | None = None
        super().__init__(clock)
        self._max_pending = 0
        self._paused = False
        # Input that the supervisor must still pass to the backend. Signal handlers and the GC may re-enter the lock.
        self._outbox: deque[tuple[bytes, bool]] = deque()
        self._outbox_bytes = 0
        self._outbox_lock = threading.RLock()
        self._input_ended = False
        self._max_unsent = MAX_UNSENT_BYTES
        self._farewell: bytes | None = None
        self._farewell_patience = FAREWELL_PATIENCE
        self._tail = Tail()
        self._owner = os.getpid()
        self._thread: threading.Thread | None = None
        self._finished = threading.Event()
        self._listener: AbortListener | None = None
        self._clock = clock
        self._clocks = PhaseClocks(clock)
        self._watchdog = None if timer_factory is None else Watchdog(self._wake, timer_factory)
        self._watchdog_from = FOREVER
        self._exit_expected_at: float | None = None
        self._last_word_at: float | None = None
        self._life_in_events: LifeSigns  # From `prepare` on.
        self._life_in_diagnostics: LifeSigns
        self._must_look = True  # There is something new for the supervisor to do.
        self._next_look_at = FOREVER  # When it checks everything without being woken.
        self._guard_at = FOREVER
        self._stray_looks: list[tuple[float, Strays]] = []  # When to look for which strays.
        self._ending_since: float | None = None
        self._killed = False
        self.tools_outstanding = False
        self.failure: SpawnFailure | None = None
        self.exit_code: int | None = None

    # --- for the consumer -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin. Does not block; a failure is in `exit` once `receive` has returned None."""
        thread = threading.Thread(target=self._supervise, name="remoteclaw-supervisor", daemon=True)
        self._thread = thread  # First: without it close() has nothing to do.
        registry.add(self)
        signal = self._setup.abort_signal
        try:
            if signal is not None:
                self._listener = AbortListener(signal, self._on_abort)
                self._listener.attach()
            thread.start()
        except RuntimeError as error:
            self._thread = None
            if self._listener is not None:
                self._listener.detach()
            self._end_without_child(SpawnFailure(errors.SPAWN_FAILED, f"cannot start a thread: {error}"))

    def expect_exit(self, expected: bool, linger: float | None = None) -> None:
        """Note that the CLI has sent its final message (or, after all, has not): it may stay only for the linger time.

        Must be called again after each chunk: a new chunk may be the beginning of another turn.
        """
        if not expected:
            self._last_word_at = self._exit_expected_at = None
        elif not self._chunks:
            now = self._clock()
            if self._last_word_at is None:
                self._last_word_at = now
            linger = self._launch.linger if linger is None else linger
            due = min(now + linger, self._last_word_at + LINGER_LIMIT * linger)
            self._exit_expected_at = due
            if due < self._next_look_at:
                self._wake()

    # --- for anyone -----------------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        """The CLI's process id, once it has been spawned."""
        return self._backend.pid

    @property
    def diagnostics(self) -> str:
        """The tail of the other stream."""
        return self._tail.text() if self._tail.size else ""

    @property
    def phase(self) -> Phase:
        """The phase that `begin_phase` last set."""
        return self._clocks.phase

    @property
    def exit(self) -> Exit | None:
        """How the child ended; None while anything of it is left."""
        return self._exit(EndReason.EXITED) if self._finished.is_set() else None

    def _exit(self, otherwise: EndReason) -> Exit:
        return Exit(self.exit_code, self.ending.reason or otherwise, self.diagnostics, self.failure)

    def send(self, data: bytes, *, last: bool = False) -> None:
        """Write this to the child's stdin, after everything sent before; if it is the last data, then close stdin.

        Does not block. Does nothing once the child has ended, has closed its stdin, or was sent the last data.
        Raises UnreadInputError if more than `max_unsent_bytes` would wait for a child that does not read.
        """
        data = bytes(data)  # Here and not in the supervisor, so that a str or a list raises TypeError in the caller.
        if not self._is_ours():
            return
        with self._outbox_lock:
            if self._input_ended or self._finished.is_set():
                return
            waiting = self._outbox_bytes + self._backend.unsent_bytes
            if waiting + len(data) > self._max_unsent:
                raise UnreadInputError(
                    f"{waiting} bytes wait for a CLI that does not read its stdin, and another {len(data)} would be "
                    f"more than the {self._max_unsent} that are kept for it"
                )
            self._outbox.append((data, last))
            self._outbox_bytes += len(data)
            self._input_ended = last
        self._wake()

    def begin_phase(self, phase: Phase, limits: Limits) -> None:
        """The child enters this phase, and its clocks start now. It is assumed that no tool is running and no exit is
        expected. When a limit runs out, the child is ended: WATCHDOG for silence, DEADLINE for the wall clock, LINGERED
        for either while it is ENDING."""
        self.tools_outstanding = False
        if phase is not Phase.ENDING:
            self.expect_exit(False)
        self._clocks.begin(phase, limits)
        self._wake()

    def pause_clock(self) -> None:
        """The child is waiting for somebody else, so its silence does not count. The wall clock keeps running."""
        self._clocks.hold()

    def resume_clock(self) -> None:
        """The child is no longer waiting: silence counts from now."""
        self._clocks.release()

    def let_go(self) -> None:
        """Ask the child to exit: send its farewell, close its stdin, and if it stays, use force. Does not block."""
        if self._is_ours() and self.phase is not Phase.ENDING:
            try:
                self.send(self._farewell or b"", last=True)
            except UnreadInputError:
                self.request_close()
            self.begin_phase(Phase.ENDING, Limits(wall_clock=self._farewell_patience))

    def end_strays(self, strays: Strays) -> None:
        """A turn was interrupted, and the child stays: end the processes that the turn left. Does not block."""
        if self._is_ours():
            now = self._clock()
            self._stray_looks += [(now + delay, strays) for delay in STRAY_LOOKS]
            self._wake()

    def request_end(self, reason: EndReason) -> None:
        """Ask for the child's tree to be ended for this reason, unless there already is a reason. Does not block."""
        if self._is_ours():
            self._claim_end(reason)
            self._wake()

    @property
    def is_in_its_thread(self) -> bool:
        """Whether the current thread is the supervisor."""
        return threading.current_thread() is self._thread

    def wake(self) -> None:
        """Have the exchange check what is due. Does not block."""
        self._wake()

    def _wake(self) -> None:
        self._must_look = True
        self._backend.wake()

    def request_close(self) -> None:
        """Ask for the child's tree to be ended because nobody wants any more output."""
        self.request_end(EndReason.CLOSED)

    def begin_exit(self) -> None:
        """The interpreter exits. An idle child is asked to exit; any other is ended. Does not block."""
        if self.phase is Phase.IDLE and self._farewell is not None:
            self.let_go()
        else:
            self.request_close()

    def close(self) -> Exit:
        """End the child's tree and wait, with a limit, until it is gone. A child that was let go is first given time to
        exit. A second call does nothing."""
        thread = self._thread
        if self._is_ours() and thread is not None:
            if self.ending.reason is None or not self._finished.is_set():
                if self.phase is Phase.ENDING and threading.current_thread() is not thread and may_wait():
                    self._finished.wait(self._farewell_patience)
                self.request_close()
            if self._listener is not None:
                self._listener.detach()
            self._wait_until_gone(thread)
        return self._exit(EndReason.CLOSED)

    def _wait_until_gone(self, thread: threading.Thread) -> None:
        if thread.ident is None:
            registry.discard(self)  # Ctrl-C came before the thread started; if it still starts, it ends at once.
        elif threading.current_thread() is not thread and (self._finished.is_set() or may_wait()):
            # (The GC may close a forgotten run in any thread, even one that belongs to the run.)
            self._finished.wait(CLOSE_PATIENCE)
            thread.join(1.0)

    def _on_abort(self) -> None:
        self.request_end(EndReason.ABORTED)

    def forget_after_fork(self) -> None:
        """In a forked copy of the host, the run is over: nothing there would ever fill the queue."""
        self._forget_inbox()
        self._backend.forget_after_fork()
        self._setup.forget_after_fork()
        if self._exchange is not None:
            self._exchange.forget_after_fork()

    # --- the supervisor thread ------------------------------------------------------------------------------

    def _supervise(self) -> None:
        try:
            if self._prepare():
                self._spawn_and_look_after()
        except SpawnError as error:
            self.failure = error.failure
        except Exception as error:  # noqa: BLE001 - whatever it is, the consumer must be told and the child must end
            logger.exception("supervising child %s failed", self.pid)
            self.failure = SpawnFailure(errors.SPAWN_FAILED, f"supervising the CLI failed: {error!r}")
            if self.pid is not None and self._is_ours():
                self._backend.kill()
        finally:
            if self._is_ours():
                self._wind_up()

    def _is_ours(self) -> bool:
        """False in a forked copy of the host, where threads are gone but gevent's greenlets continue."""
        return os.getpid() == self._owner

    def _wind_up(self) -> None:
        try:
            self._clean_up()
        finally:
            registry.discard(self)
            self._finished.set()
            if self._exchange is not None:
                self._exchange.gone()
            # Last: once the consumer has the end, this thread is practically gone, and close() need not wait for it.
            self._put_end()

    def _prepare(self) -> bool:
        """Prepare the launch. Returns whether there is a child to spawn."""
        launch = None if self.ending.reason is not None else self._setup.prepare(self.ending)
        if launch is None:
            return False
        self._launch = launch
        self._loans = launch.loans
        self._observer = launch.observer
        self._life_in_events = LifeSigns(launch.max_line_bytes, launch.is_life)
        self._life_in_diagnostics = LifeSigns(0)  # No long lines come here, but progress bars do.
        self._max_pending = launch.max_pending_bytes
        self._max_unsent = launch.max_unsent_bytes
        self._farewell, self._farewell_patience = launch.farewell, launch.farewell_patience
        if not launch.stdin_stays_open:
            self._input_ended = True
        if not self._clocks.begun:
            self._clocks.begin(Phase.STARTING, launch.limits)
        # Last: a request to end that found no backend to wake is recorded, and is checked next.
        self._backend = self._new_backend(launch, self._on_events, self._on_diagnostics)
        return True

    def _clean_up(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._listener is not None:
            self._listener.detach()  # Here too: the consumer may have been interrupted before it could.
        self._outbox.clear()
        try:
            self.exit_code = self._backend.finish(drain=not self.ending.backlog_unwanted)
        except Exception:
            logger.exception("cleaning up after child %s failed", self.pid)
        self._give_back()
        reason = self.ending.reason or EndReason.EXITED
        logger.debug("child %s: %s, exit code %s", self.pid, reason, self.exit_code)
        if self._observer is not None:
            self._observer.ended(reason, self.exit_code, self.diagnostics, self.failure)
        self._setup.clean_up()

    def _spawn_and_look_after(self) -> None:
        if self.ending.reason is not None:
            return
        backend, clock = self._backend, self._clock
        backend.spawn()
        now = self._clocks.last_life = clock()
        self._guard_at = FOREVER if backend.is_guarded() else now + GUARD_DELAY
        self._watchdog_from = now + WATCHDOG_DELAY
        due: float | None = FOREVER
        while not backend.exited:
            # Chunks are handled as they are read; only other events need a check.
            if self._must_look or now >= self._next_look_at or backend.events_ended:
                self._must_look = False  # First: a thread that changes something from here on must wake us.
                self._next_look_at = FOREVER
                due = self._look_around(now)
                if due is None:
                    return
                self._next_look_at = self._without_watchdog(due, now)
            due = self._next_look_at
            if self._chunks:
                if self._guard_at != FOREVER:
                    self._guard_at = min(self._guard_at, now + GUARD_DELAY_AFTER_WORDS)
                    self._next_look_at = due = min(due, self._guard_at)
                # Not earlier: until the supervisor releases the interpreter, the consumer could only wait for it.
                self._wake_consumer()
            if self._must_look:
                due = now  # Somebody has changed something while we looked.
            backend.wait(None if due == FOREVER else min(max(due - now, 0.0), LONGEST_SLEEP))
            now = clock()

    def _without_watchdog(self, due: float, now: float) -> float:
        """How long the supervisor itself may sleep at the most. Later times are left to the watchdog."""
        if self._watchdog is None or due == FOREVER or due - now < WATCHDOG_DELAY:
            return due
        if now < self._watchdog_from:
            return self._watchdog_from
        return FOREVER if self._watchdog.set(due, now) else due

    def _look_around(self, now: float) -> float | None:
        """Do what is due; returns when to check again. None: this child cannot be ended."""
        look_again_at = FOREVER if self._exchange is None else self._exchange.look(now)
        self._pass_on_input()
        self._apply_back_pressure(now)
        if now >= self._guard_at:
            self._guard_at = FOREVER
            self._backend.start_guard()
        if self._ending_since is None:
            due = min(self._look_at_clocks(now), self._look_for_strays(now))
            if self.ending.reason is None:
                return min(due, self._guard_at, look_again_at)
            logger.debug("ending child %s: %s", self.pid, self.ending.reason)
            self._ending_since = now
            self._backend.terminate()
        return self._see_it_end(now, self._ending_since)

    def _see_it_end(self, now: float, since: float) -> float | None:
        if now >= since + TERM_GRACE + KILL_PATIENCE:
            return None
        if now >= since + TERM_GRACE and not self._killed:
            self._killed = True
            logger.info("child %s ignored SIGTERM for %s s; killing it", self.pid, TERM_GRACE)
            self._backend.kill()
        return since + TERM_GRACE + (KILL_PATIENCE if self._killed else 0.0)

    def _pass_on_input(self) -> None:
        while self._outbox:
            data, last = self._outbox.popleft()
            self._backend.send(data, last=last)
            with self._outbox_lock:
                self._outbox_bytes -= len(data)

    def _look_at_clocks(self, now: float) -> float:
        """End the child if a clock has run out; returns when the next one may."""
        if self._backend.events_ended and self._exit_expected_at is None:
            self._exit_expected_at = now + self._launch.linger  # The CLI closed its stream: nothing more can come.
        expected = self._exit_expected_at
        if expected is not None and now >= expected:
            self.ending.claim(EndReason.LINGERED)
            return FOREVER
        kept_waiting = self._paused or self._backend.events_ended
        found = self._clocks.look(now, kept_waiting=kept_waiting, in_tool=self._in_tool, unread=self._is_unread)
        if isinstance(found, EndReason):
            if self.phase is Phase.IDLE and self._farewell is not None:
                self.let_go()
                return now
            self._claim_end(found)
            return FOREVER
        return found if expected is None else min(found, expected)

    def _look_for_strays(self, now: float) -> float:
        for look in [look for look in self._stray_looks if look[0] <= now]:
            self._stray_looks.remove(look)
            self._backend.end_strays(look[1])
        return min((at for at, _ in self._stray_looks), default=FOREVER)

    def _in_tool(self) -> bool:
        """Whether a tool may be running. Called only when a clock runs out, so it may be slow."""
        launch = self._launch
        return self.tools_outstanding or self._is_unread(launch.may_run_tool) or ask(launch.runs_tool)

    def _apply_back_pressure(self, now: float) -> None:
        full = self._pending >= self._max_pending
        if full and not self._paused:
            self._paused = True
            self._tell_at = self._max_pending // 2
            self._must_look = True  # Check again: the consumer may have caught up before `_tell_at` was set.
            self._backend.pause_reading()
        elif self._paused and self._pending <= self._tell_at:
            self._clocks.last_life = now  # The child was kept waiting, which is not silence.
            self._paused = False
            self._tell_at = -1
            self._backend.resume_reading()

    def _on_events(self, chunk: bytes) -> None:
        if self._life_in_events.are_in(chunk):
            self._clocks.last_life = self._clock()
        self._exit_expected_at = None  # The consumer sets it again unless another turn begins here.
        if self._exchange is not None:
            self._exchange.said(chunk)
            return
        if self._observer is not None:
            self._observer.said(chunk)  # First, so that what the consumer sees is on record if it crashes the host.
        self._put(chunk)
        if self._pending >= self._max_pending:
            self._must_look = True
        # Here and not in the consumer, which may not call again for a long time.
        if self._loans and any(loan.is_over(chunk) for loan in self._loans):
            self._wake_consumer()
            self._give_back()

    def _give_back(self) -> None:
        loans, self._loans = self._loans, ()
        for loan in loans:
            loan.give_back()

    def _on_diagnostics(self, chunk: bytes) -> None:
        if self._life_in_diagnostics.are_in(chunk):
            self._clocks.last_life = self._clock()
            if self._exchange is not None:
                self._exchange.logged()
        self._tail.push(chunk)

    def _end_without_child(self, failure: SpawnFailure) -> None:
        self.failure = failure
        registry.discard(self)
        self._finished.set()
        if self._exchange is not None:
            self._exchange.gone()
        self._put_end()
