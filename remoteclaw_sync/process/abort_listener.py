"""Notices when the caller's `threading.Event` is set, without a thread per run and without polling.

An Event can only be waited for, and a thread that waits for someone else's Event cannot be woken when the run ends
first: it has to poll, or it outlives the run. Measured with 50 idle runs: `wait(0.02)` takes 8 % of a core, `wait(1.0)`
takes 0.4 % and leaves each thread behind for up to a second. So the listener joins the Event's own list of waiters (the
same list since Python 3.2): `Event.set()` calls `release()` on each member, and ours calls `on_set`.
For anything else that looks like an Event (multiprocessing's, gevent's, a subclass that hides its parts), a thread
polls.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from .greenlets import stops_greenlets

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0  # For look-alikes only: reacts within a millisecond, checks once a second if the run has ended.
LOOK_SECONDS = 0.1  # For look-alikes whose wait() would block all greenlets.


class AbortListener:
    """Calls `on_set` when the event is set: in the setter's thread, perhaps twice, so it must be quick and idempotent.

    The Event's lock is not taken: otherwise a signal handler that sets the Event could wait for its own thread.
    Appending to and removing from the list are atomic.
    """

    def __init__(self, signal: threading.Event, on_set: Callable[[], None]) -> None:
        self._signal = signal
        self._on_set = on_set
        self._waiters = _waiters_of(signal)
        self._detached = threading.Event()

    def attach(self) -> None:
        """Start listening. An event that is already set counts."""
        if self._waiters is None:
            threading.Thread(target=self._poll, name="remoteclaw-abort", daemon=True).start()
            return
        self._waiters.append(self)
        if self._signal.is_set():
            self._on_set()

    def detach(self) -> None:
        """Stop listening. A call that is in progress may still reach `on_set`."""
        self._detached.set()
        if self._waiters is not None:
            try:
                self._waiters.remove(self)
            except ValueError:
                pass  # Event.set() has removed it.

    def release(self) -> None:
        """Called by `Condition.notify()` on each waiter."""
        self._on_set()

    def _poll(self) -> None:
        try:
            while not self._detached.is_set():
                if self._was_set_meanwhile():
                    self._on_set()
                    return
        except Exception as error:  # noqa: BLE001 - the event is not ours: a multiprocessing manager may have died
            logger.warning("abort_signal can no longer be checked: %s", type(error).__name__)

    def _was_set_meanwhile(self) -> bool:
        if not stops_greenlets(self._signal):
            return self._signal.wait(POLL_SECONDS)
        self._detached.wait(LOOK_SECONDS)
        return self._signal.is_set()


def _waiters_of(signal: threading.Event) -> deque[Any] | None:
    waiters = getattr(getattr(signal, "_cond", None), "_waiters", None)
    return waiters if isinstance(waiters, deque) else None
