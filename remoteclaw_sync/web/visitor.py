"""Approvals by the person behind a web request: the run's thread waits, and another request brings the answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from .._values import check_seconds, check_text
from ..errors import RemoteClawError
from ..types import Allow, Deny, PermissionRequest

APPROVAL_TIMEOUT = 300.0  # Seconds. A request that reaches nobody must not hold an agent for ever.
POLL_SECONDS = 0.25  # How often a waiting thread checks whether the run was stopped.
NOBODY_ANSWERED = "Nobody answered in time."
NOT_ASKED = "nobody waits for that answer"
WITHDRAWN = "The run was stopped before anybody answered."

Watcher = Callable[[list[PermissionRequest]], None]


class NotAskedError(RemoteClawError, LookupError):
    """No such request is waiting: it was already answered, withdrawn, refused after its timeout, or never asked."""


class Visitor:
    """Asks whoever listens to the run: `runtime.start(prompt, approve=Visitor())`, then `runs.get(run_id).answer(...)`.

    For one run, or one session (whose turns come one after the other). The listener gets a `permission` event; the
    agent waits until somebody answers, the run is stopped, or the time is up, which counts as a no.

    Args:
        approval_timeout: seconds after which an unanswered request is refused; None waits for ever.
    """

    def __init__(self, *, approval_timeout: float | None = APPROVAL_TIMEOUT) -> None:
        check_seconds("approval_timeout", approval_timeout)
        self._timeout = approval_timeout
        self._changed = threading.Condition()
        self._open: dict[str, PermissionRequest] = {}
        self._decided: dict[str, Allow | Deny] = {}
        self._is_stopped: Callable[[], bool] = _never
        self._watch: Watcher | None = None
        self._telling = threading.Lock()  # So that the watcher's last call has the newest state.

    def __call__(self, request: PermissionRequest) -> Allow | Deny:
        """Blocks until there is a decision."""
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        with self._changed:
            self._open[request.id] = request
        self._tell()
        try:
            return self._wait_for(request.id, deadline)
        finally:
            with self._changed:
                self._open.pop(request.id, None)
                self._decided.pop(request.id, None)
            self._tell()

    def _wait_for(self, request_id: str, deadline: float | None) -> Allow | Deny:
        with self._changed:
            while request_id not in self._decided:
                left = POLL_SECONDS if deadline is None else min(POLL_SECONDS, deadline - time.monotonic())
                if self._is_stopped():
                    return Deny(WITHDRAWN)
                if left <= 0:
                    return Deny(NOBODY_ANSWERED)
                self._changed.wait(left)
            return self._decided[request_id]

    @property
    def open_requests(self) -> list[PermissionRequest]:
        """The requests that wait for an answer now."""
        with self._changed:
            return [request for name, request in self._open.items() if name not in self._decided]

    def answer(self, request_id: str, decision: Allow | Deny) -> None:
        """Decide a request, from any thread. Raises NotAskedError if it is not open, so each is answered once."""
        check_text("request_id", request_id)
        with self._changed:
            if request_id not in self._open or request_id in self._decided:
                raise NotAskedError(NOT_ASKED)
            self._decided[request_id] = decision
            self._changed.notify_all()
        self._tell()

    # --- for this package -----------------------------------------------------------------------------------

    def attend(self, is_stopped: Callable[[], bool], watch: Watcher | None) -> None:
        """Set the run to answer for: how to see that it was stopped, and whom to inform about open requests."""
        self._is_stopped, self._watch = is_stopped, watch

    def _tell(self) -> None:
        with self._telling:
            if self._watch is not None:
                self._watch(self.open_requests)


def decision_of(
    allow: bool,
    message: str = "",
    remember: bool = False,
    input: Mapping[str, Any] | None = None,
    answers: Mapping[str, Any] | None = None,
) -> Allow | Deny:
    """A visitor's decision. Raises TypeError unless it is a clear yes or no."""
    if type(allow) is not bool or type(remember) is not bool or not isinstance(message, str):
        raise TypeError("allow and remember must be True or False, and message a str")
    return Allow(input, remember, answers) if allow else Deny(message)


def _never() -> bool:
    return False
