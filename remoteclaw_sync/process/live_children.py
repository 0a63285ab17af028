"""The live children, so that they can be ended at interpreter exit."""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Iterator
from typing import Protocol

from .host import after_fork


class Closable(Protocol):
    """What the registry needs from a child."""

    def begin_exit(self) -> None: ...
    def close(self) -> object: ...
    def forget_after_fork(self) -> None: ...


_live: set[Closable] = set()
_lock = threading.RLock()
leaders: set[int] = set()  # The pids of their CLIs, each ended and reaped by its own supervisor.
_spawning: set[int] = set()  # The threads, or greenlets, that are starting a process right now.


@contextlib.contextmanager
def spawning() -> Iterator[None]:
    """Use while this thread starts a process: gevent's Popen forks in Python, and that fork is not a copy of the host
    but the new process, which still needs its ends of the pipes."""
    thread = threading.get_ident()
    _spawning.add(thread)
    try:
        yield
    finally:
        _spawning.discard(thread)


def add(child: Closable) -> None:
    """Register a child, before it is spawned."""
    with _lock:
        _live.add(child)


def discard(child: Closable) -> None:
    """Forget a child that has ended."""
    with _lock:
        _live.discard(child)


def _close_all() -> None:
    # At interpreter exit, a generator's `finally` comes too late for file work, and daemon threads are simply stopped.
    children = list(_live)
    for child in children:
        child.begin_exit()
    for child in children:
        child.close()


def _forget_all() -> None:
    """In a forked copy: the threads are gone, and the children are the parent's to end."""
    global _lock
    if threading.get_ident() in _spawning:
        return
    _lock = threading.RLock()  # The old one may have been held by a thread that does not exist here.
    children = list(_live)
    _live.clear()
    leaders.clear()
    for child in children:
        child.forget_after_fork()


atexit.register(_close_all)
after_fork(_forget_all)
