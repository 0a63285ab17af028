"""A stream as a web framework's response. The framework is imported on first use."""

from __future__ import annotations

import importlib
from typing import Any

from .sse import STREAM_HEADERS
from .streams import EventStream, RunOrEvents, ndjson, sse

RUN_ID_HEADER = "X-Run-ID"


def flask_stream(run_or_events: RunOrEvents, *, format: str = "sse", **options: Any) -> Any:
    """A Flask response that streams a run; `format` is "sse" or "ndjson", other options are those of `sse()`."""
    response_class = importlib.import_module("flask").Response
    stream = _stream(run_or_events, format, options)
    # `direct_passthrough`: Werkzeug neither looks at the bytes nor buffers them.
    return response_class(stream, headers=headers(stream), direct_passthrough=True)


def django_stream(run_or_events: RunOrEvents, *, format: str = "sse", **options: Any) -> Any:
    """A Django response that streams a run; `format` is "sse" or "ndjson", other options are those of `sse()`.

    For WSGI. Under ASGI, Django reads such an iterator to its end before it sends the first byte.
    """
    response_class = importlib.import_module("django.http").StreamingHttpResponse
    stream = _stream(run_or_events, format, options)
    return response_class(stream, headers=headers(stream))


def headers(stream: EventStream) -> dict[str, str]:
    """The headers of a streaming response."""
    return {"Content-Type": stream.content_type, RUN_ID_HEADER: stream.run_id, **STREAM_HEADERS}


def _stream(run_or_events: RunOrEvents, format: str, options: dict[str, Any]) -> EventStream:
    if format not in ("sse", "ndjson"):
        raise ValueError(f"format must be 'sse' or 'ndjson', not {format!r}")
    return (sse if format == "sse" else ndjson)(run_or_events, **options)
