"""The one thread of a process that uses a session map's file.

Other threads put their requests into its inbox and wait. So if a signal handler or a task queue's time limit raises an
exception in them, it cannot leave a transaction open, a lock held or a row behind, and Ctrl-C does not have to wait for
a locked file. `SimpleQueue.put` is written in C and safe to call at any moment, even from the garbage collector.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import errno
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from ..process.bell import Bell
from ..process.host import after_fork
from ..recording.file import check_links
from .database import IN_MEMORY, Database
from .places import Line, Place

T = TypeVar("T")

# Seconds after which an idle thread ends: a process that forks should have few threads, and none should be left behind.
IDLE = 0.2
LOOK_AGAIN = 1.0  # Seconds between a waiting caller's checks that the thread is alive.
EXIT_PATIENCE = 2.0  # Seconds for which an unresponsive disk may delay interpreter exit.


class Keeper:
    """Owns the file and the line of turns; its thread starts when there is work, and stays while turns are held."""

    def __init__(self, path: str, busy_timeout: float) -> None:
        self.database = Database(path, busy_timeout)
        self._begin()
        _keepers.add(self)

    def _begin(self) -> None:
        self.inbox: SimpleQueue[Any] = SimpleQueue()  # Calls, and places whose turn is over.
        self.line = Line(self.database)
        self._working = threading.Lock()  # Held by the thread that works.
        self._worker: int | None = None
        self._closing = False

    def call(self, operation: Callable[[], T], patience: float = math.inf) -> T:
        """Run the operation in the keeper's thread, after all earlier requests. Returns or raises what it does."""
        if self._worker == _thread.get_ident():
            return operation()  # We are that thread, in a log handler for example: waiting would be a deadlock.
        call = _Call(operation)
        self.inbox.put(call)
        self.see_to_it()
        deadline = time.monotonic() + patience
        while not call.done.wait(LOOK_AGAIN):
            self.see_to_it()
            if time.monotonic() > deadline:
                raise TimeoutError(errno.ETIMEDOUT, "the disk does not answer", self.database.path)
        return call.outcome()

    def see_to_it(self) -> None:
        """Make sure that a thread looks into the inbox."""
        if self._working.locked():
            return  # That thread looks once more before it ends.
        worker = threading.Thread(target=self._work, args=(False,), name="remoteclaw-sessions", daemon=True)
        try:
            # From a thread in which no signal handler can raise: an interrupted Thread.start() may block for ever.
            _thread.start_new_thread(_start, (worker,))
        except RuntimeError:
            self._work(inline=True)  # No thread can be started: do it here.

    def close(self, patience: float = math.inf) -> None:
        """Close the file and end the thread, unless turns are held."""
        self.call(self._close, patience)

    def _close(self) -> None:
        self.database.close()
        self._closing = True

    def forget_after_fork(self) -> None:
        """In a forked copy: the thread does not exist, and the turns belong to the parent."""
        self.database.forget_after_fork()
        self._begin()

    def _work(self, inline: bool) -> None:
        while self._working.acquire(blocking=False):
            self._worker = _thread.get_ident()
            try:
                self._empty_inbox(inline)
            finally:
                self._worker = None
                self._working.release()
            if self.inbox.empty():
                return

    def _empty_inbox(self, inline: bool) -> None:
        self._closing = False
        while not (self._closing and self.line.is_empty and self.inbox.empty()):
            pause = 0.0 if inline else self.line.seconds_to_next_task()
            is_idle = inline or (pause is None and self.line.is_empty)
            try:
                task = self.inbox.get(timeout=IDLE if is_idle and not inline else pause)
            except Empty:
                if inline:
                    self.line.attend()
                if is_idle:
                    return
            else:
                self._closing = False
                if isinstance(task, Place):
                    self.line.leave(task)
                else:
                    task.answer()
            self.line.attend()


class _Call(Generic[T]):
    def __init__(self, operation: Callable[[], T]) -> None:
        self._operation = operation
        self._result: T | None = None
        self._error: BaseException | None = None
        self.done = Bell()

    def answer(self) -> None:
        try:
            self._result = self._operation()
        except BaseException as error:
            self._error = error
        self.done.ring()

    def outcome(self) -> T:
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # Its traceback refers to this frame, and so to itself.
        return self._result  # type: ignore[return-value]


def _start(worker: threading.Thread) -> None:
    try:
        worker.start()
    except RuntimeError:
        worker.run()  # No further thread can be started, so use this one.


# --- all keepers of this process ---------------------------------------------------------------------------------

_keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()
_by_path: weakref.WeakValueDictionary[str, Keeper] = weakref.WeakValueDictionary()
_by_path_lock = threading.Lock()


def keeper_of(path: str, busy_timeout: float) -> Keeper:
    """The keeper of that file: two maps of the same file share one line of turns."""
    if path == IN_MEMORY:
        return Keeper(path, busy_timeout)
    check_links(os.path.abspath(path))
    real = os.path.realpath(path)
    with _by_path_lock:
        keeper = _by_path.get(real)
        if keeper is None:
            keeper = _by_path[real] = Keeper(real, busy_timeout)
        keeper.database.busy_timeout = busy_timeout
        return keeper


def _close_all() -> None:
    for keeper in list(_keepers):
        if keeper.database.is_open:
            with contextlib.suppress(TimeoutError):
                keeper.close(EXIT_PATIENCE)


def _forget_all() -> None:
    global _by_path_lock
    _by_path_lock = threading.Lock()  # The old one may have been held by a thread that does not exist here.
    for keeper in list(_keepers):
        keeper.forget_after_fork()


atexit.register(_close_all)
after_fork(_forget_all)
