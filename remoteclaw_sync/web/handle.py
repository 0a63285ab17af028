"""A run as any thread or worker sees it, and what all registries of runs share, wherever events are kept."""

from __future__ import annotations

import abc
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import attrs

from .._values import check_text
from ..errors import RemoteClawError, UnsupportedOperationError
from ..types import AgentErrorEvent, AgentEvent, Allow, Deny, PermissionRequest
from .background import Item, Source, end, ending, item_of, items
from .journal import UnknownRunError
from .sse import split_event_id
from .visitor import NOT_ASKED, NotAskedError, Visitor, decision_of

logger = logging.getLogger(__name__)

BUFFER_FULL = "BUFFER_FULL"
WORKER_DIED = "WORKER_DIED"


class TooManyRunsError(RemoteClawError, RuntimeError):
    """The limit of live runs is reached; another can start when one of them has ended."""


class Registry(Protocol):
    """Finds runs by their ids: `Runs` on one machine, `Cluster(...).runs` on several."""

    def start(self, events: Iterable[AgentEvent]) -> RunHandle:
        """Let a run continue on its own; its events are kept whether or not anybody listens."""

    def get(self, run_id: str) -> RunHandle:
        """A run by its id, live or ended. Raises UnknownRunError (a LookupError)."""

    def resume(self, last_event_id: str) -> RunHandle:
        """The run that this event id (the `Last-Event-ID` header) belongs to, continuing after that event."""

    def __iter__(self) -> Iterator[RunHandle]:
        """All live runs, in any worker."""

    def abort_all(self) -> None:
        """Abort the runs of this process and wait, for a limited time, until they have ended."""

    # --- for this package -----------------------------------------------------------------------------------

    def watch(self, run_id: str, run: Any) -> Any:
        """Register a visitor's own run while it lives; returns the function to call at its end."""

    def local(self, run_id: str) -> LocalRun | None:
        """The run, if it belongs to this process."""

    def is_live(self, run_id: str) -> bool:
        """Whether a living worker has the run."""

    def order(self, run_id: str, order: Mapping[str, Any]) -> None:
        """Leave an order for the worker that has this run."""

    def asks(self, run_id: str) -> list[Mapping[str, Any]]:
        """The open permission requests of another worker's run, as JSON."""

    def follow(self, run_id: str, after: int) -> Source:
        """The run's events after that number: those already written and those still to come."""


def resumed(registry: Registry, last_event_id: str) -> RunHandle:
    """The implementation of `resume()` for all registries."""
    try:
        run_id, number = split_event_id(last_event_id)
    except ValueError as error:
        raise UnknownRunError(str(error)) from None
    handle = registry.get(run_id)
    handle.after = number
    return handle


def check_live(most: int | None, live: int) -> None:
    """Raises TooManyRunsError if one more would be too many."""
    if most is not None and live >= most:
        raise TooManyRunsError(f"{most} agents are at work, the most allowed: wait for one to end, or stop one")


def dead_workers_ending(number: int) -> Iterator[Item]:
    """The last events, on behalf of a worker that died."""
    return ending(number, AgentErrorEvent("the server process that ran the agent has ended", WORKER_DIED))


class LocalRun(abc.ABC):
    """A run of this process."""

    def __init__(self, run_id: str, run: Any) -> None:
        self.run_id = run_id
        self.run = run
        self.owner = os.getpid()
        self.ended = threading.Event()
        approve = getattr(run, "approve", None)
        self.visitor = approve if isinstance(approve, Visitor) else None
        self._stopped = False
        if self.visitor is not None:
            self.visitor.attend(lambda: self._stopped or run.is_ending, self._show_asks)

    @abc.abstractmethod
    def append(self, item: Item) -> None:
        """Keep an event."""

    @abc.abstractmethod
    def show_asks(self, requests: list[Mapping[str, Any]]) -> None:
        """Let other workers know which permission requests are open."""

    def catch_up(self) -> None:
        """Carry out what other workers have asked for so far: their answer may be the first."""

    def _show_asks(self, requests: list[PermissionRequest]) -> None:
        if not self.ended.is_set():
            self.show_asks([request.to_dict() for request in requests])

    def write_down(self, max_bytes: int) -> None:
        """Keep all events of the run. A run that exceeds `max_bytes` is aborted."""
        size = number = 0
        full = False
        for item in items(self.run):
            size += len(item.data) + 1
            if size <= max_bytes or item.kind in ("error", "done"):
                number += 1
                self.append(attrs.evolve(item, number=number))
            elif not full:
                full = True
                number += 1
                self.abort()
                message = f"the run said more than {max_bytes} bytes, the limit for a detached run"
                self.append(item_of(number, AgentErrorEvent(message, BUFFER_FULL)))

    def carry_out(self, order: Mapping[str, Any]) -> None:
        """Carry out another worker's order. Failures are only logged, because whoever sent it does not wait."""
        try:
            match order.get("do"):
                case "abort":
                    self.abort()
                case "steer":
                    self.steer(order["text"], order["interrupt"])
                case "answer":
                    decision = (Allow if order["allow"] else Deny).from_dict(order["decision"])
                    self.answer(order["request_id"], decision)
        except (RemoteClawError, ValueError, TypeError, KeyError) as error:
            logger.warning("an order of another worker could not be carried out: %s", type(error).__name__)

    def answer(self, request_id: str, decision: Allow | Deny) -> None:
        if self.visitor is None:
            raise NotAskedError("this run asks nobody: start it with approve=Visitor()")
        self.visitor.answer(request_id, decision)

    def steer(self, text: str, interrupt: bool) -> None:
        steer = getattr(self.run, "steer", None)
        if steer is None:
            raise UnsupportedOperationError("these events are not of a run that could take further words")
        if interrupt:
            steer(text, interrupt=True)
        else:
            steer(text)

    def abort(self) -> None:
        self._stopped = True
        abort = getattr(self.run, "abort", None)
        if abort is not None:
            abort()
        else:
            end(self.run)


class RunHandle:
    """One run, seen from any thread or worker. Pass it to `sse()` or `ndjson()` to listen to it."""

    def __init__(self, runs: Registry, run_id: str, after: int = 0) -> None:
        self._runs = runs
        self.run_id = run_id
        self.after = after  # The number of the last event that the listener already has.

    def __repr__(self) -> str:
        return f"<RunHandle {self.run_id}>"

    @property
    def live(self) -> bool:
        """Whether the run has not ended and its worker is alive."""
        return self._runs.is_live(self.run_id)

    def abort(self) -> None:
        """Ask for the run to be stopped: listeners get an `error` with code ABORTED, then `done`. Does not block.

        In another worker this takes up to a quarter of a second. Does nothing to a run that has ended.
        """
        local = self._runs.local(self.run_id)
        if local is not None:
            local.abort()
        elif self.live:
            self._runs.order(self.run_id, {"do": "abort"})

    @property
    def open_requests(self) -> list[PermissionRequest]:
        """The agent's requests that nobody has answered yet, for a returning visitor."""
        local = self._runs.local(self.run_id)
        if local is not None:
            return [] if local.visitor is None else local.visitor.open_requests
        found = self._runs.asks(self.run_id) if self.live else []
        return [PermissionRequest.from_dict(data) for data in found]

    def answer(
        self,
        request_id: str,
        allow: bool,
        *,
        message: str = "",
        remember: bool = False,
        input: Mapping[str, Any] | None = None,
        answers: Mapping[str, Any] | None = None,
    ) -> None:
        """Answer a permission request of this run, from any thread or worker. Does not block.

        Each request is answered once. Raises NotAskedError if it is not, or no longer, waiting. In another worker the
        answer arrives within a quarter of a second.

        Args:
            request_id: `request.id` of the `permission` event.
            allow: whether the call may be made.
            message: a text for the agent, with a refusal.
            remember: do not ask again in this session (see `Allow`).
            input: other arguments for the call.
            answers: the answers to the agent's questions, keyed by the question's text.
        """
        decision = decision_of(allow, message, remember, input, answers)
        local = self._runs.local(self.run_id)
        if local is not None:
            local.catch_up()
            local.answer(request_id, decision)
            return
        check_text("request_id", request_id)
        if request_id not in [request.id for request in self.open_requests]:
            raise NotAskedError(NOT_ASKED)
        order = {"do": "answer", "request_id": request_id, "allow": allow, "decision": decision.to_dict()}
        self._runs.order(self.run_id, order)

    def steer(self, text: str, *, interrupt: bool = False) -> None:
        """Give the running turn further words, from any thread or worker; see `AgentRun.steer`. Does not block.

        Raises UnsupportedOperationError if the run cannot take them; another worker only logs that.
        """
        check_text("text", text)
        local = self._runs.local(self.run_id)
        if local is not None:
            local.steer(text, interrupt)
        elif self.live:
            self._runs.order(self.run_id, {"do": "steer", "text": text, "interrupt": interrupt})
        else:
            raise UnsupportedOperationError("the run has ended")

    def follow(self) -> Source:
        """The run's events after number `after`: those already written and those still to come."""
        return self._runs.follow(self.run_id, self.after)
