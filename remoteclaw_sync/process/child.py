"""One CLI process, from before its birth to after its end.

A supervisor thread owns the child: it makes what the child needs and spawns it (in a thread, because Ctrl-C interrupts
the main one anywhere), reads its two streams, writes its stdin, ends its tree, reaps it and cleans up. A Timer looks at
the clocks. The consumer only takes the chunks that have come, so whether and when it does so cannot hold up anything.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from .. import errors
from . import live_children as registry
from .abort_listener import AbortListener
from .clocks import Watchdog
from .ending import EndLatch, EndReason
from .greenlets import may_wait
from .launch import Launch, Loan, Observer, Ready, Setup, Sink, SpawnError, SpawnFailure
from .life import LifeSigns

if sys.platform == "win32":
    from .fallback import PortableBackend as PlatformBackend
else:
    from .posix import PosixBackend as PlatformBackend

logger = logging.getLogger(__name__)

TERM_GRACE = 1.5  # From SIGTERM to SIGKILL: the CLIs take 0.03-0.6 s to act on it.
KILL_PATIENCE = 5.0  # From SIGKILL to giving up on a process that the kernel does not let go (hung disk).
CLOSE_PATIENCE = TERM_GRACE + KILL_PATIENCE + 3.0  # How long close() waits for the supervisor at the most.
LINGER_LIMIT = 5  # So many linger times at the most for a CLI that chatters on after its last word.
# CPython does not notice a signal (Ctrl-C) that comes just before the main thread waits for a lock until it has it.
SIGNAL_PATIENCE = 0.1
# Nor does an exception that is raised into another thread (Dramatiq's time limit) arrive while that waits for a lock.
EXCEPTION_PATIENCE = 1.0
FOREVER = float("inf")
LONGEST_SLEEP = 86_400.0  # poll() takes no more than 24 days.
GUARD_DELAY = 0.003  # A guard process costs a millisecond of CPU: a run that is over sooner goes without.
WATCHDOG_DELAY = 0.25  # A timer is a thread: likewise, unless a clock runs out sooner.
TAIL_BYTES = 65_536  # How much of the diagnostics stream is kept.
LONGEST_WORD = 64  # Bytes: what tells a tool call may be cut by the end of a chunk.


class Backend(Protocol):
    """What a platform has to give; see posix.py for what each means."""

    pid: int | None
    exited: bool
    events_ended: bool

    def spawn(self) -> None: ...
    def start_guard(self) -> None: ...
    def wake(self) -> None: ...
    def wait(self, timeout: float | None) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    def finish(self, *, drain: bool) -> int | None: ...
    def forget_after_fork(self) -> None: ...


NewBackend = Callable[[Launch, Sink, Sink], Backend]  # The sinks are for the events and for the diagnostics stream.


class Unborn:
    """Stands for the backend until there is a Launch to make one from."""

    pid: int | None = None
    exited = False
    events_ended = False

    def spawn(self) -> None: ...
    def start_guard(self) -> None: ...
    def wake(self) -> None: ...
    def wait(self, timeout: float | None) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    def finish(self, *, drain: bool) -> int | None: ...
    def forget_after_fork(self) -> None: ...


class Tail:
    """The last bytes of a stream of any length."""

    def __init__(self, limit: int = TAIL_BYTES) -> None:
        self._limit = limit
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._cut = False

    def push(self, chunk: bytes) -> None:
        """Add what came."""
        self._chunks.append(chunk)
        self._size += len(chunk)
        while self._size - len(self._chunks[0]) >= self._limit:
            self._size -= len(self._chunks.popleft())
            self._cut = True

    def text(self) -> str:
        """What is left of it, bad bytes replaced; from the first whole line on, if there is one: half a line may begin
        in the middle of a secret, which nobody would recognise."""
        data = b"".join(self._chunks)
        if len(data) > self._limit or self._cut:
            data = data[-self._limit :]
            data = data.partition(b"\n")[2] or data
        return data.decode(errors="replace")


class ChildProcess:
    """A child and its supervisor. `start`, `next_chunk` and `tools_outstanding` are the consumer's; the rest
    may be called from any thread."""

    def __init__(self, setup: Setup | Launch, backend: NewBackend = PlatformBackend) -> None:
        self._setup: Setup = Ready(setup) if isinstance(setup, Launch) else setup
        self._new_backend = backend
        self._backend: Backend = Unborn()
        self._launch: Launch  # From `prepare` on, and so before the first chunk.
        self._loans: tuple[Loan, ...] = ()
        self._observer: Observer | None = None
        # What has come and waits for the consumer; None is the end. Bounded in bytes by _pending(). Not a Queue: an
        # exception that hits the consumer inside one could leave its lock locked, and the supervisor would wait for it.
        self._chunks: deque[bytes | None] = deque()
        self._arrived = _locked()  # Released when something has come; released already, it tells nothing new.
        self._bytes_in = 0  # Written by the supervisor alone.
        self._bytes_out = 0  # Written by the consumer alone.
        self._bytes_at_end: int | None = None
        self._chunk_in_hand = b""
        self._paused = False
        self._tail = Tail()
        self.ending = EndLatch()
        self._owner = os.getpid()
        self._thread: threading.Thread | None = None
        self._finished = threading.Event()
        self._listener: AbortListener | None = None
        self._started_at = self._last_life = time.monotonic()
        self._exit_expected_at: float | None = None
        self._last_word_at: float | None = None
        self._life_in_events = LifeSigns(0)  # With the bounds of the launch from `prepare` on.
        self._life_in_diagnostics = LifeSigns(0)  # No long lines come here, but progress bars do.
        self._next_look_at = FOREVER  # When the supervisor looks around without being woken.
        self._watchdog = Watchdog(self._look_at_clocks)
        self.tools_outstanding = False
        self.failure: SpawnFailure | None = None
        self.exit_code: int | None = None

    # --- for the consumer -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin. Does not block; what goes wrong is `failure` once `next_chunk` has said None."""
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

    def next_chunk(self) -> bytes | None:
        """The next bytes of the events stream, or None when the child is gone and all has been read. Blocks."""
        self._chunk_in_hand = b""
        chunk = self._take()
        if chunk is None:
            self.ending.claim(EndReason.EXITED)
            return None
        self._chunk_in_hand = chunk
        self._bytes_out += len(chunk)
        if self._paused and self._pending() <= self._launch.max_pending_bytes // 2:
            self._backend.wake()
        return chunk

    def _take(self) -> bytes | None:
        in_main_thread = threading.current_thread() is threading.main_thread()
        patience = SIGNAL_PATIENCE if in_main_thread else EXCEPTION_PATIENCE
        while not self._chunks:
            self._arrived.acquire(timeout=patience)
        return self._chunks.popleft()

    def _hand_over(self, chunk: bytes | None) -> None:
        self._chunks.append(chunk)
        try:
            self._arrived.release()
        except RuntimeError:
            pass  # It was released before, and the consumer has not been here since.

    @property
    def heard_in_time(self) -> bool:
        """Whether the chunk in hand came before the child was told to end: a CLI may finish its turn on SIGTERM."""
        return self._bytes_at_end is None or self._bytes_out <= self._bytes_at_end

    def expect_exit(self, expected: bool, linger: float | None = None) -> None:
        """The CLI has said its last word (or has not, after all): it may stay for the linger time only.

        Said anew after each chunk; until then, what has come meanwhile may be the beginning of another turn.
        """
        if not expected:
            self._last_word_at = self._exit_expected_at = None
        elif not self._chunks:
            now = time.monotonic()
            if self._last_word_at is None:
                self._last_word_at = now
            linger = self._launch.linger if linger is None else linger
            due = min(now + linger, self._last_word_at + LINGER_LIMIT * linger)
            self._exit_expected_at = due
            if due < self._next_look_at:
                self._backend.wake()

    # --- for anyone -----------------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        """The CLI's process id, once it has been spawned."""
        return self._backend.pid

    @property
    def diagnostics(self) -> str:
        """The tail of the other stream."""
        return self._tail.text()

    def request_end(self, reason: EndReason) -> None:
        """Have the child's tree ended for this reason, unless there is another already. Does not block."""
        if self._is_ours():
            if self.ending.reason is None:
                self._bytes_at_end = self._bytes_in
            self.ending.claim(reason)
            self._backend.wake()

    def request_close(self) -> None:
        """As `request_end`, because nobody wants to hear any more of it."""
        self.request_end(EndReason.CLOSED)

    def close(self) -> None:
        """End the child's tree and wait until it is gone. Bounded, and does nothing a second time."""
        if not self._is_ours() or self._thread is None:
            return
        self.request_close()
        if self._listener is not None:
            self._listener.detach()
        if self._thread.ident is None:
            registry.discard(self)  # Ctrl-C came before the thread; should it start yet, it finds this end.
        elif threading.current_thread() is not self._thread and may_wait():
            # (The GC may close a forgotten run in any thread, also in one of its own.)
            self._finished.wait(CLOSE_PATIENCE)
            self._thread.join(1.0)

    def _on_abort(self) -> None:
        self.request_end(EndReason.ABORTED)

    def forget_after_fork(self) -> None:
        """In a forked copy of the host, where nobody would ever fill the queue: here the run is over."""
        self._chunks, self._arrived = deque([None]), _locked()
        self.ending = EndLatch()
        self.ending.claim(EndReason.CLOSED)
        self._backend.forget_after_fork()
        self._setup.forget_after_fork()

    # --- the supervisor thread ------------------------------------------------------------------------------

    def _supervise(self) -> None:
        try:
            if self._prepare():
                self._spawn_and_look_after()
        except SpawnError as error:
            self.failure = error.failure
        except Exception as error:  # noqa: BLE001 - whatever it is, the consumer must hear of it and the child end
            logger.exception("supervising child %s failed", self.pid)
            self.failure = SpawnFailure(errors.SPAWN_FAILED, f"supervising the CLI failed: {error!r}")
            if self.pid is not None and self._is_ours():
                self._backend.kill()
        finally:
            if self._is_ours():
                self._wind_up()

    def _is_ours(self) -> bool:
        """False in a forked copy of the host, where threads are gone, but gevent's greenlets go on."""
        return os.getpid() == self._owner

    def _wind_up(self) -> None:
        try:
            self._clean_up()
        finally:
            registry.discard(self)
            self._finished.set()
            # Last: when the consumer has it, this thread is as good as gone, and close() need not wait for it.
            self._hand_over(None)

    def _prepare(self) -> bool:
        """Whether there is now a child to spawn."""
        launch = None if self._must_end() else self._setup.prepare(self.ending)
        if launch is None:
            return False
        self._launch = launch
        self._loans = launch.loans
        self._observer = launch.observer
        self._life_in_events = LifeSigns(launch.max_line_bytes, launch.is_life)
        self._started_at = time.monotonic()
        # Last: a request to end that found no backend to wake has been noted, and is looked for next.
        self._backend = self._new_backend(launch, self._on_events, self._on_diagnostics)
        return True

    def _clean_up(self) -> None:
        self._watchdog.cancel()
        if self._listener is not None:
            self._listener.detach()  # Here too: the consumer may have been interrupted before it came to that.
        try:
            self.exit_code = self._backend.finish(drain=not self.ending.backlog_unwanted)
        except Exception:
            logger.exception("cleaning up after child %s failed", self.pid)
        self._give_back()
        if self._observer is not None:
            reason = self.ending.reason or EndReason.EXITED
            self._observer.ended(reason, self.exit_code, self.diagnostics, self.failure)
        self._setup.clean_up()

    def _spawn_and_look_after(self) -> None:
        if self._must_end():
            return
        self._backend.spawn()
        self._last_life = time.monotonic()
        guard_at: float | None = self._last_life + GUARD_DELAY
        first_look_at: float | None = self._last_life + self._first_look()
        ending_since: float | None = None
        killed = False
        while not self._backend.exited:
            if ending_since is None and self._must_end():
                ending_since = time.monotonic()
                logger.debug("ending child %s: %s", self.pid, self.ending.reason)
                self._backend.terminate()
            elif ending_since is not None:
                elapsed = time.monotonic() - ending_since
                if elapsed >= TERM_GRACE + KILL_PATIENCE:
                    return
                if elapsed >= TERM_GRACE and not killed:
                    killed = True
                    logger.info("child %s ignored SIGTERM for %s s; killing it", self.pid, TERM_GRACE)
                    self._backend.kill()
            self._apply_back_pressure()
            now = time.monotonic()
            if guard_at is not None and now >= guard_at:
                guard_at = None
                self._backend.start_guard()
            if first_look_at is not None and now >= first_look_at:
                first_look_at = None
                self._watchdog.start(self._look_at_clocks())
            # Unknown while it is worked out: who changes a due time meanwhile has to wake us.
            self._next_look_at = FOREVER
            due = self._next_due(ending_since, killed, guard_at, first_look_at)
            self._next_look_at = FOREVER if due is None else due
            self._backend.wait(None if due is None else min(max(due - now, 0.0), LONGEST_SLEEP))

    def _must_end(self) -> bool:
        now = time.monotonic()
        if self._backend.events_ended and self._exit_expected_at is None:
            self._exit_expected_at = now + self._launch.linger  # With its stream closed it cannot say any more.
        expected = self._exit_expected_at
        if expected is not None and now >= expected:
            self.ending.claim(EndReason.LINGERED)
        return self.ending.reason is not None

    def _next_due(self, ending_since: float | None, killed: bool, *others: float | None) -> float | None:
        """When the supervisor has to act even if nothing happens."""
        if ending_since is not None:
            return ending_since + TERM_GRACE + (KILL_PATIENCE if killed else 0.0)
        dues = [due for due in (self._exit_expected_at, *others) if due is not None]
        return min(dues, default=None)

    def _apply_back_pressure(self) -> None:
        full = self._pending() >= self._launch.max_pending_bytes
        if full and not self._paused:
            self._paused = True
            self._backend.pause_reading()
        elif self._paused and self._pending() <= self._launch.max_pending_bytes // 2:
            self._last_life = time.monotonic()  # Kept waiting is not silent.
            self._paused = False
            self._backend.resume_reading()

    def _on_events(self, chunk: bytes) -> None:
        if self._life_in_events.are_in(chunk):
            self._last_life = time.monotonic()
        self._exit_expected_at = None  # The consumer says so again if that was not the beginning of another turn.
        self._bytes_in += len(chunk)
        if self._observer is not None:
            self._observer.said(chunk)  # First: what the consumer has heard is on record if the host dies of it.
        self._hand_over(chunk)
        # Here and not in the consumer, which may not come back for a long time.
        for loan in self._loans:
            if loan.is_over(chunk):
                self._give_back()
                break

    def _give_back(self) -> None:
        loans, self._loans = self._loans, ()
        for loan in loans:
            loan.give_back()

    def _on_diagnostics(self, chunk: bytes) -> None:
        if self._life_in_diagnostics.are_in(chunk):
            self._last_life = time.monotonic()
        self._tail.push(chunk)

    def _pending(self) -> int:
        return self._bytes_in - self._bytes_out

    def _end_without_child(self, failure: SpawnFailure) -> None:
        self.failure = failure
        registry.discard(self)
        self._hand_over(None)
        self._finished.set()

    # --- the timer's thread ---------------------------------------------------------------------------------

    def _first_look(self) -> float:
        limits = (WATCHDOG_DELAY, self._launch.timeout, self._launch.deadline)
        return min(limit for limit in limits if limit is not None)

    def _look_at_clocks(self) -> float | None:
        """End the child if a clock has run out; else say when to look again."""
        now = time.monotonic()
        waits = []
        if self._launch.deadline is not None:
            left = self._launch.deadline - (now - self._started_at)
            if left <= 0:
                self.request_end(EndReason.DEADLINE)
                return None
            waits.append(left)
        if self._launch.timeout is not None:
            left = self._silence_left(now)
            if left <= 0:
                self.request_end(EndReason.WATCHDOG)
                return None
            # Not later than `timeout` even while a tool runs: it may end right after this look.
            waits.append(min(left, self._launch.timeout))
        return max(min(waits), 0.001) if waits else None

    def _silence_left(self, now: float) -> float:
        if self._paused or self._backend.events_ended:
            return float("inf")
        limit = self._launch.timeout
        if self.tools_outstanding or self._runs_tool() or self._tool_call_unread():
            limit = self._launch.tool_timeout
        return float("inf") if limit is None else limit - (now - self._last_life)

    def _runs_tool(self) -> bool:
        runs_tool = self._launch.runs_tool
        try:
            return runs_tool is not None and runs_tool()
        except Exception as error:  # noqa: BLE001 - a hook's mistake must not end the thread that looks at the clocks
            logger.warning("runs_tool raised %s", type(error).__name__)
            return True

    def _tool_call_unread(self) -> bool:
        """Whether a consumer that lags behind may have a tool call still to read. Looked at only when a clock
        runs out, so it may take its time."""
        before = b""
        for chunk in (self._chunk_in_hand, *self._chunks):
            if chunk and self._may_run_tool(before + chunk):
                return True
            before = chunk[-LONGEST_WORD:] if chunk else b""
        return False

    def _may_run_tool(self, output: bytes) -> bool:
        may_run_tool = self._launch.may_run_tool
        try:
            return may_run_tool is not None and may_run_tool(output)
        except Exception as error:  # noqa: BLE001 - a hook's mistake must not end the thread that looks at the clocks
            logger.warning("may_run_tool raised %s", type(error).__name__)
            return True


def _locked() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock
