"""The run's clocks: one lazy `threading.Timer`."""

from __future__ import annotations

import threading
from collections.abc import Callable

# threading.Timer takes what a C timestamp takes; a check once a day costs nothing.
MAX_DELAY_SECONDS = 86_400.0


class Watchdog:
    """Calls `check` now and then; `check` says in how many seconds to look again (None: never).

    One Timer looks at the last sign of life when it fires and re-arms for the rest. A Timer per line costs
    260-520 µs a line, the time stamp that the reader takes instead 0.1 µs.
    """

    def __init__(
        self,
        check: Callable[[], float | None],
        timer_factory: Callable[[float, Callable[[], None]], threading.Timer] = threading.Timer,
    ) -> None:
        self._check = check
        self._timer_factory = timer_factory
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._cancelled = False

    def start(self, delay: float | None) -> None:
        """Look for the first time after so many seconds."""
        self._arm(delay)

    def cancel(self) -> None:
        """No further check begins. Waits for one that is under way, and for the timer's thread to be gone."""
        with self._lock:
            self._cancelled = True
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            if timer is not threading.current_thread():
                timer.join(timeout=1.0)

    def _fire(self) -> None:
        if not self._cancelled:
            self._arm(self._check())

    def _arm(self, delay: float | None) -> None:
        if delay is None:
            return
        timer = self._timer_factory(min(delay, MAX_DELAY_SECONDS), self._fire)
        timer.daemon = True
        timer.name = "remoteclaw-watchdog"
        with self._lock:
            if self._cancelled:
                return
            self._timer = timer
        try:
            timer.start()
        except RuntimeError:
            # No threads can start while the interpreter shuts down; the atexit hook ends the child then.
            self._timer = None
