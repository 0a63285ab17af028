"""Being told when the caller's `threading.Event` is set, without a thread per run and without polling.

An Event can only be waited for, and a thread that waits for someone else's Event cannot be woken when the run
ends first: it has to poll, or it outlives the run. Measured with 50 idle runs: `wait(0.02)` costs 8 % of a core,
`wait(1.0)` 0.4 % and leaves each thread behind for up to a second. So the listener joins the Event's own list of
waiters (the same list since Python 3.2): `Event.set()` calls `release()` on each member, and ours passes it on.
Anything else that looks like an Event (multiprocessing's, gevent's, a subclass that hides its parts) is polled by a
thread.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from .greenlets import stops_greenlets

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0  # For look-alikes only: reacts within a millisecond, looks for the run's end once a second.
LOOK_SECONDS = 0.1  # For one whose wait() would stop all greenlets.


class AbortListener:
    """Calls `on_set` when the event is set: in the setter's thread, perhaps twice, so it must be quick and idempotent.

    No lock of the Event is taken: a signal handler that sets it could otherwise wait for its own thread.
    Appending to and removing from the list are atomic.
    """

    def __init__(self, signal: threading.Event, on_set: Callable[[], None]) -> None:
        self._signal = signal
        self._on_set = on_set
        self._waiters = _waiters_of(signal)
        self._detached = threading.Event()

    def attach(self) -> None:
        """Begin to listen; an event that is set already counts."""
        if self._waiters is None:
            threading.Thread(target=self._poll, name="remoteclaw-abort", daemon=True).start()
            return
        self._waiters.append(self)
        if self._signal.is_set():
            self._on_set()

    def detach(self) -> None:
        """Stop listening. A call that is under way may still come through."""
        self._detached.set()
        if self._waiters is not None:
            try:
                self._waiters.remove(self)
            except ValueError:
                pass  # Event.set() has removed it.

    def release(self) -> None:
        """What `Condition.notify()` calls on each waiter."""
        self._on_set()

    def _poll(self) -> None:
        try:
            while not self._detached.is_set():
                if self._was_set_meanwhile():
                    self._on_set()
                    return
        except Exception as error:  # noqa: BLE001 - somebody else's event: a multiprocessing manager that has died
            logger.warning("abort_signal cannot be asked any more: %s", type(error).__name__)

    def _was_set_meanwhile(self) -> bool:
        if not stops_greenlets(self._signal):
            return self._signal.wait(POLL_SECONDS)
        self._detached.wait(LOOK_SECONDS)
        return self._signal.is_set()


def _waiters_of(signal: threading.Event) -> deque[Any] | None:
    waiters = getattr(getattr(signal, "_cond", None), "_waiters", None)
    return waiters if isinstance(waiters, deque) else None
