"""The bytes that a web server sends: a run's events, with heartbeats while the agent is silent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from .._values import check_flag, check_seconds
from ..engine.agent_run import AgentRun
from ..types import AgentEvent, AgentPermissionEvent
from .background import Item, OnDone, Overheard, Pump, Source
from .detached import new_run_id, runs
from .handle import Registry, RunHandle
from .journal import UnknownRunError
from .sse import (
    NDJSON_HEARTBEAT,
    NDJSON_TYPE,
    SSE_HEARTBEAT,
    SSE_TYPE,
    as_json,
    checked_types,
    event_id,
    ndjson_line,
    split_event_id,
    sse_frame,
)

# A server notices that a visitor has left when a write fails. The kernel still accepts the first write after that, and
# waitress learns only with the third that the second has failed: so there are three writes per heartbeat.
WRITES_PER_HEARTBEAT = 3
HEARTBEAT = 15.0
LONGEST = 86_400.0  # Seconds. The upper limit for our waits and for the browser's.

RunOrEvents = AgentRun | RunHandle | Iterable[AgentEvent]


class EventStream(Iterator[bytes]):
    """A run's events as an iterable of bytes for any WSGI server, which calls `close()` when the visitor leaves.

    For one consumer. Dropping it closes it.
    """

    def __init__(
        self,
        run_id: str,
        source: Source,
        content_type: str,
        encode: Callable[[Item], bytes],
        heartbeat: float,
        pulse: bytes,
        types: frozenset[str],
        preamble: bytes = b"",
    ) -> None:
        self.run_id = run_id
        self.content_type = content_type
        self._source = source
        self._encode = encode
        self._heartbeat = min(heartbeat, LONGEST)
        self._pulse = pulse
        self._types = types
        self._preamble = preamble
        self._closed = False

    def __next__(self) -> bytes:
        if self._preamble and not self._closed:
            preamble, self._preamble = self._preamble, b""
            return preamble
        while not self._closed:
            got = self._source.get(self._heartbeat / WRITES_PER_HEARTBEAT)
            if got == "end":
                self.close()
            elif got == "silence":
                return self._pulse
            elif got.kind in self._types:
                return self._encode(got)
        raise StopIteration

    def close(self) -> None:
        """End the run and wait, for a limited time, until nothing of it is left. A detached run continues."""
        self._closed = True
        self._source.close()

    def __del__(self) -> None:
        # Do not close twice: at interpreter exit, what closing needs may already be gone.
        if not getattr(self, "_closed", True):
            self.close()


def sse(
    run_or_events: RunOrEvents,
    *,
    heartbeat: float = HEARTBEAT,
    retry: float | None = None,
    include: Collection[str] | None = None,
    detach: bool = False,
    last_event_id: str | None = None,
    registry: Registry | None = None,
    on_done: OnDone | None = None,
) -> EventStream:
    """A run as a `text/event-stream`: `id`, `event` (our event type) and `data` (the event's JSON) for each event.

    Nothing starts before the first `next()`, except with `detach`. Blocks while waiting for the next event.

    Args:
        run_or_events: what `start()` or `execute()` returns, any iterable of events, or a run from the registry.
        heartbeat: how quickly a disconnected client is detected while the agent is silent, in seconds; a comment is
            sent three times as often.
        retry: seconds the browser should wait before it reconnects.
        include: the event types to send (default: all); `done` is always sent.
        detach: the run continues without the visitor, who can come back (see `runs.resume`).
        last_event_id: for a run from the registry: continue after this event.
        registry: where the run can be found by other requests (default: `runs`).
        on_done: called with the run's result when it ends by itself, before the visitor gets it; use it to store the
            `session_id`, for example. Not called if the visitor leaves first and the run is not detached.
    """
    check_seconds("retry", retry)
    preamble = b"" if retry is None else b"retry: %d\n\n" % round(min(retry, LONGEST) * 1000)
    run_id, source = _source(run_or_events, detach, last_event_id, registry or runs, heartbeat, on_done)
    preamble += b"".join(sse_frame("permission", data) for data in _still_open(run_or_events, last_event_id))

    def encode(item: Item) -> bytes:
        return sse_frame(item.kind, item.data, event_id(run_id, item.number))

    return EventStream(run_id, source, SSE_TYPE, encode, heartbeat, SSE_HEARTBEAT, checked_types(include), preamble)


def _still_open(run_or_events: RunOrEvents, last_event_id: str | None) -> list[bytes]:
    """The open requests, for a returning visitor. They have no id, so that the visitor's last event id is kept."""
    if not isinstance(run_or_events, RunHandle) or (run_or_events.after == 0 and last_event_id is None):
        return []
    return [as_json(AgentPermissionEvent(request).to_dict()) for request in run_or_events.open_requests]


def ndjson(
    run_or_events: RunOrEvents,
    *,
    heartbeat: float = HEARTBEAT,
    include: Collection[str] | None = None,
    detach: bool = False,
    last_event_id: str | None = None,
    registry: Registry | None = None,
    on_done: OnDone | None = None,
) -> EventStream:
    """A run as JSON lines: each event's JSON with its `id`; an empty line while the agent is silent. See `sse`."""
    run_id, source = _source(run_or_events, detach, last_event_id, registry or runs, heartbeat, on_done)

    def encode(item: Item) -> bytes:
        return ndjson_line(item.data, event_id(run_id, item.number))

    types = checked_types(include)
    preamble = b"".join(data + b"\n" for data in _still_open(run_or_events, last_event_id))
    return EventStream(run_id, source, NDJSON_TYPE, encode, heartbeat, NDJSON_HEARTBEAT, types, preamble)


def _source(
    run_or_events: RunOrEvents,
    detach: bool,
    last_event_id: str | None,
    registry: Registry,
    heartbeat: float,
    on_done: OnDone | None,
) -> tuple[str, Source]:
    check_seconds("heartbeat", heartbeat)
    if heartbeat is None:
        raise TypeError("heartbeat must be a number of seconds: without one, a disconnected client is never detected")
    check_flag("detach", detach)
    if isinstance(run_or_events, RunHandle):
        if on_done is not None:
            raise ValueError("on_done needs a run that begins here, not one of the registry")
        return _followed(run_or_events, last_event_id)
    if last_event_id is not None:
        raise ValueError("last_event_id needs a run from the registry: runs.get(run_id) or runs.resume(last_event_id)")
    if on_done is not None:
        run_or_events = Overheard(run_or_events, on_done)
    if detach:
        return _followed(registry.start(run_or_events), None)
    run_id = new_run_id()
    pump = Pump(run_or_events)
    if isinstance(pump.events, AgentRun) or isinstance(getattr(pump.events, "run", None), AgentRun):
        pump.on_end = registry.watch(run_id, pump.events)
    return run_id, pump


def _followed(handle: RunHandle, last_event_id: str | None) -> tuple[str, Source]:
    if last_event_id is not None:
        try:
            run_id, handle.after = split_event_id(last_event_id)
        except ValueError as error:
            raise UnknownRunError(str(error)) from None
        if run_id != handle.run_id:
            raise UnknownRunError("last_event_id belongs to another run")
    return handle.run_id, handle.follow()
