"""An agent in a web request: its events as a stream that a browser reads and that ends when the visitor leaves.

    from remoteclaw_sync.web import flask_stream

    @app.post("/ask")
    def ask():
        return flask_stream(runtime.start(request.json["prompt"]))

Does not depend on any web framework; `flask_stream()` and `django_stream()` import theirs when they are called.
"""

from __future__ import annotations

from .detached import Runs, runs
from .frameworks import django_stream, flask_stream
from .handle import RunHandle, TooManyRunsError
from .journal import UnknownRunError
from .streams import EventStream, ndjson, sse
from .visitor import NotAskedError, Visitor

__all__ = [
    "EventStream",
    "NotAskedError",
    "RunHandle",
    "Runs",
    "TooManyRunsError",
    "UnknownRunError",
    "Visitor",
    "django_stream",
    "flask_stream",
    "ndjson",
    "runs",
    "sse",
]
