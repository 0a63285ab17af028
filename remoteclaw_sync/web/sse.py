"""Events as bytes: `text/event-stream` frames and JSON lines. Uses no thread, no clock and no server."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, get_args

from .._json import COMPACT, dump
from ..types import AgentEvent

EVENT_TYPES: frozenset[str] = frozenset(cls.type for cls in get_args(AgentEvent))
SSE_HEARTBEAT = b": still here\n\n"  # A comment: clients skip it.
NDJSON_HEARTBEAT = b"\n"
EVENT_ID = re.compile(r"([0-9a-f]{32})-([0-9]{1,18})")

SSE_TYPE = "text/event-stream; charset=utf-8"
NDJSON_TYPE = "application/x-ndjson; charset=utf-8"
# `no-transform` stops proxies from compressing, which would delay text; nginx buffers unless this header says no.
STREAM_HEADERS = {"Cache-Control": "no-cache, no-store, no-transform", "X-Accel-Buffering": "no"}


def event_id(run_id: str, number: int) -> str:
    """The id of a run's nth event, counted from 1. It includes the run's id, so a reconnect needs nothing else."""
    return f"{run_id}-{number}"


def split_event_id(value: str) -> tuple[str, int]:
    """The run id and the number in an event id. It comes from the network: raises ValueError if it is malformed."""
    found = EVENT_ID.fullmatch(value.strip())
    if found is None:
        raise ValueError("that is not an event id of ours")
    return found[1], int(found[2])


def event_dict(event: AgentEvent) -> dict[str, Any]:
    """The event as visitors see it: the CLI's diagnostics (`result.stderr`) stay on the server."""
    data = event.to_dict()
    if event.type == "done":
        data["result"]["stderr"] = ""
    return data


def as_json(data: Any) -> bytes:
    """One line of JSON that a browser can parse."""
    # A lone surrogate cannot be encoded as UTF-8; the escape `\udc80` is valid JSON.
    return dump(data, COMPACT).encode("utf-8", "backslashreplace")


def sse_frame(kind: str, data: bytes, id: str | None = None) -> bytes:
    """One event of a stream. `data` is JSON, so it contains no line end."""
    named = b"" if id is None else b"id: %s\n" % id.encode()
    return named + b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


def ndjson_line(data: bytes, id: str) -> bytes:
    """One line: the event's JSON with its id in it."""
    return b'{"id":"%s",%s\n' % (id.encode(), data[1:])


def checked_types(include: Collection[str] | None) -> frozenset[str]:
    """The types to send. `done` is always sent: without it a client could not tell an end from a lost connection."""
    if include is None:
        return EVENT_TYPES
    if isinstance(include, str):
        raise TypeError("include must be a collection of event types, not a str")
    unknown = set(include) - EVENT_TYPES
    if unknown:
        raise ValueError(f"include must name event types ({', '.join(sorted(EVENT_TYPES))}), not {unknown.pop()!r}")
    return frozenset({*include, "done"})
