"""One session's part of a shared process: to the session it looks like its own process.

Other threads only set flags here and wake the process's supervisor, which does all the work (see shared_process.py). So
these calls are safe from any thread, from a signal handler and during garbage collection.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from .. import errors
from ..process import live_children as registry
from ..process.clocks import Clock, PhaseClocks
from ..process.ending import EndReason
from ..process.greenlets import may_wait
from ..process.inbox import Inbox
from ..process.launch import (
    Exit,
    Launch,
    Limits,
    Loan,
    Observer,
    Phase,
    Setup,
    SpawnError,
    SpawnFailure,
    Strays,
    UnreadInputError,
)
from ..process.life import LifeSigns, ask

logger = logging.getLogger(__name__)

RELEASE_PATIENCE = 3.0  # Seconds that a CLI may take to end its work for a session that leaves.
CLOSE_PATIENCE = RELEASE_PATIENCE + 10.0  # The same, plus ending the process: SIGTERM, SIGKILL, the sweep.


class Host(Protocol):
    """The process, as its channels see it."""

    @property
    def pid(self) -> int | None: ...
    @property
    def is_in_its_thread(self) -> bool: ...
    def wake(self) -> None: ...
    def see_off(self) -> None: ...
    def end_strays(self, strays: Strays) -> None: ...
    def diagnostics_of(self, channel: Channel) -> str: ...


Join = Callable[["Channel", Launch], None]  # Finds or starts the process, and has it admit the channel.


class Channel(Inbox):
    """A `Transport`. `ChildProcess` documents the members.

    Args:
        setup: what the session needs; it is made in a separate thread, so that nobody has to wait for it.
        join: connects the channel to a process.
    """

    def __init__(self, setup: Setup, join: Join, clock: Clock = time.monotonic) -> None:
        super().__init__(clock)
        self._setup = setup
        self._join = join
        self._owner = os.getpid()
        self.number = 0  # The session's number on its process, which assigns it.
        self.host: Host | None = None
        self.has_served = False
        self.lines_skipped = 0
        self.is_leaving = False  # The CLI was told to forget the session.
        self.is_promised = False  # The CLI said that it will forget it.
        self.has_spoken = False  # The CLI knows about the session.
        self._wants_out = False
        self.unsent: deque[bytes] = deque()  # Lines, which the supervisor takes out.
        self._unsent_bytes = 0
        self._lock = threading.RLock()
        self._max_unsent = 0
        self._max_pending = 0
        self._loans: tuple[Loan, ...] = ()
        self._observer: Observer | None = None
        self._may_run_tool: Callable[[bytes], bool] | None = None
        self._runs_tool: Callable[[], bool] | None = None
        self._life = LifeSigns(0)
        self._clocks = PhaseClocks(clock)
        self._thread: threading.Thread | None = None
        self._finished = threading.Event()
        self._diagnostics: str | None = None
        self.tools_outstanding = False
        self.failure: SpawnFailure | None = None
        self.exit_code: int | None = None

    # --- its beginning ----------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread = threading.Thread(target=self._connect, name="remoteclaw-channel", daemon=True)
        registry.add(self)  # Until a process is registered there in its place.
        try:
            self._thread.start()
        except RuntimeError as error:
            self._thread = None
            self.failure = SpawnFailure(errors.SPAWN_FAILED, f"cannot start a thread: {error}")
            self.finish()

    def _connect(self) -> None:
        try:
            launch = None if self.ending.reason is not None else self._setup.prepare(self.ending)
            if launch is not None and not os.path.isdir(launch.cwd):
                raise SpawnError(errors.WORKING_DIRECTORY_NOT_FOUND, _no_folder(launch.cwd))
            if launch is not None and self.ending.reason is None:
                self._take(launch)
                self._join(self, launch)
                registry.discard(self)
                return
        except SpawnError as error:
            self.failure = error.failure
        except Exception as error:  # noqa: BLE001 - whatever it is, the consumer must be told
            logger.exception("connecting a session failed")
            self.failure = SpawnFailure(errors.SPAWN_FAILED, f"connecting to the CLI failed: {error!r}")
        if self._is_ours():
            self.finish()

    def _take(self, launch: Launch) -> None:
        self._life = LifeSigns(0, launch.is_life)
        self._may_run_tool, self._runs_tool = launch.may_run_tool, launch.runs_tool
        self._loans, self._observer = launch.loans, launch.observer
        self._max_pending, self._max_unsent = launch.max_pending_bytes, launch.max_unsent_bytes
        if not self._clocks.begun:
            self._clocks.begin(Phase.STARTING, launch.limits)
        with self._lock:
            self.unsent.extendleft(reversed(launch.stdin.splitlines(keepends=True)))
            self._unsent_bytes += len(launch.stdin)

    def _is_ours(self) -> bool:
        return os.getpid() == self._owner

    # --- for the consumer -------------------------------------------------------------------------------------

    def expect_exit(self, expected: bool, linger: float | None = None) -> None:
        """Does nothing: the process stays after a session's final message."""

    # --- for anyone -------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        return None if self.host is None else self.host.pid

    @property
    def diagnostics(self) -> str:
        if self._diagnostics is not None or self.host is None:
            return self._diagnostics or ""
        return self.host.diagnostics_of(self)

    @property
    def phase(self) -> Phase:
        return self._clocks.phase

    @property
    def exit(self) -> Exit | None:
        if not self._finished.is_set():
            return None
        return Exit(self.exit_code, self.ending.reason or EndReason.EXITED, self.diagnostics, self.failure)

    def send(self, data: bytes, *, last: bool = False) -> None:
        data = bytes(data)
        if not self._is_ours() or self._finished.is_set() or self._wants_out:
            return
        with self._lock:
            if self._max_unsent and self._unsent_bytes + len(data) > self._max_unsent:
                raise UnreadInputError(
                    f"{self._unsent_bytes} bytes wait for a CLI that does not read its stdin, and another {len(data)} "
                    f"would be more than the {self._max_unsent} that are kept for it"
                )
            self.unsent.extend(data.splitlines(keepends=True))
            self._unsent_bytes += len(data)
        self._wake()

    def begin_phase(self, phase: Phase, limits: Limits) -> None:
        self.tools_outstanding = False
        self._clocks.begin(phase, limits)
        self._wake()

    def pause_clock(self) -> None:
        self._clocks.hold()

    def resume_clock(self) -> None:
        self._clocks.release()

    def let_go(self) -> None:
        if self._is_ours():
            self._wants_out = True
            self._wake()

    def end_strays(self, strays: Strays) -> None:
        if self._is_ours() and self.host is not None:
            self.host.end_strays(strays)

    def request_end(self, reason: EndReason) -> None:
        if self._is_ours():
            self._claim_end(reason)
            self._wants_out = True
            self._wake()

    def request_close(self) -> None:
        self.request_end(EndReason.CLOSED)

    def begin_exit(self) -> None:
        """The interpreter exits before there is a process, or while `finish_elsewhere` is still at work."""
        self.request_close()

    def close(self) -> Exit:
        if self._is_ours() and self._thread is not None:
            if not self._wants_out and not self._finished.is_set():
                self.request_close()
            if may_wait() and not self._is_waited_for():
                self._see_off()
        return self.exit or Exit(None, self.ending.reason or EndReason.CLOSED, "", None)

    def _see_off(self) -> None:
        self._finished.wait(CLOSE_PATIENCE)
        if self._thread is not None:
            self._thread.join(1.0)
        if self.host is not None:
            self.host.see_off()

    def _is_waited_for(self) -> bool:
        """Whether the current thread has work that `close()` would wait for. (The GC may close a forgotten turn in any
        thread.)"""
        return threading.current_thread() is self._thread or (self.host is not None and self.host.is_in_its_thread)

    def _wake(self) -> None:
        if self.host is not None:
            self.host.wake()

    def forget_after_fork(self) -> None:
        self._forget_inbox()
        self._setup.forget_after_fork()

    # --- for the supervisor of the process --------------------------------------------------------------------

    @property
    def wants_out(self) -> bool:
        return self._wants_out

    def deliver(self, block: bytes) -> bool:
        """Take whole lines for this session. Returns False if its consumer lags too far behind."""
        if self._life.are_in(block):
            self._clocks.last_life = self._clock()
        if self._observer is not None:
            self._observer.said(block)
        self._put(block)
        self._wake_consumer()
        if self._loans and any(loan.is_over(block) for loan in self._loans):
            self._give_back()
        return self._pending <= self._max_pending

    def logged(self) -> None:
        """Note a sign of life on stderr that can only be about this session."""
        self._clocks.last_life = self._clock()

    def sent(self, line: bytes) -> None:
        """Note that this line of `unsent` was sent."""
        self.has_spoken = True
        with self._lock:
            self._unsent_bytes -= len(line)

    def look(self, now: float) -> EndReason | float:
        """Why the session must end now, or when to check again."""
        return self._clocks.look(now, kept_waiting=False, in_tool=self._in_tool, unread=self._is_unread)

    def _in_tool(self) -> bool:
        return self.tools_outstanding or self._is_unread(self._may_run_tool) or ask(self._runs_tool)

    def leave(self, reason: EndReason | None, patience: float) -> None:
        """The CLI is being told to forget the session."""
        if reason is not None:
            self._claim_end(reason)
        self._wants_out = self.is_leaving = True
        self.unsent.clear()
        self._clocks.begin(Phase.ENDING, Limits(wall_clock=patience))

    def finish(self) -> None:
        """The session no longer has a process: remove what was made for it."""
        if self.host is not None and self._diagnostics is None:
            self._diagnostics = self.host.diagnostics_of(self)
        try:
            self._give_back()
            if self._observer is not None:
                reason = self.ending.reason or EndReason.EXITED
                self._observer.ended(reason, self.exit_code, self.diagnostics, self.failure)
            self._setup.clean_up()
        finally:
            registry.discard(self)
            self._finished.set()
            self._put_end()

    def finish_elsewhere(self) -> None:
        """The same in a separate thread: the process goes on, and cleaning up may take a while."""
        registry.add(self)
        self._thread = threading.Thread(target=self.finish, name="remoteclaw-channel", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = None
            self.finish()

    def _give_back(self) -> None:
        loans, self._loans = self._loans, ()
        for loan in loans:
            loan.give_back()


def _no_folder(path: str) -> str:
    kind = "is not a folder" if os.path.exists(path) else "does not exist"
    return f"working directory {path!r} {kind}"
