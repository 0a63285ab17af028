"""A Flask site as in README, for tests."""

from __future__ import annotations

import os
import threading
from typing import Any

from flask import Flask, request

from remoteclaw_sync import create_cli_runtime
from remoteclaw_sync.web import flask_stream, runs
from tests.web.site_parts import answered, approver, steered

app = Flask(__name__)


@app.get("/ask")
def ask() -> Any:
    last_event_id = request.headers.get("Last-Event-ID")
    heartbeat = float(request.args.get("heartbeat", 15))
    if last_event_id:
        return flask_stream(runs.resume(last_event_id), heartbeat=heartbeat)
    runtime = create_cli_runtime("demo", pace=float(request.args.get("pace", 0)))
    run = runtime.start(request.args["prompt"], approve=approver(request.args))
    return flask_stream(
        run, heartbeat=heartbeat, detach="detach" in request.args, format=request.args.get("format", "sse")
    )


@app.post("/abort/<run_id>")
def abort(run_id: str) -> Any:
    runs.get(run_id).abort()
    return {"worker": os.getpid()}


@app.post("/answer/<path:run_id>")
def answer(run_id: str) -> Any:
    return answered(run_id, request.args)


@app.post("/steer/<run_id>")
def steer(run_id: str) -> Any:
    return steered(run_id, request.args)


@app.get("/open/<run_id>")
def open_requests(run_id: str) -> Any:
    return {"worker": os.getpid(), "open": [one.id for one in runs.get(run_id).open_requests]}


@app.get("/threads")
def threads() -> Any:
    return {"worker": os.getpid(), "threads": [thread.name for thread in threading.enumerate()]}
