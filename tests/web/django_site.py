"""The same site in Django."""

from __future__ import annotations

import os
import threading
from typing import Any

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from remoteclaw_sync import create_cli_runtime
from remoteclaw_sync.web import django_stream, runs
from tests.web.site_parts import answered, approver, steered

settings.configure(
    ALLOWED_HOSTS=["127.0.0.1"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="for tests only",
    MIDDLEWARE=["django.middleware.security.SecurityMiddleware", "django.middleware.common.CommonMiddleware"],
)


def ask(request: Any) -> Any:
    last_event_id = request.headers.get("Last-Event-ID")
    heartbeat = float(request.GET.get("heartbeat", 15))
    if last_event_id:
        return django_stream(runs.resume(last_event_id), heartbeat=heartbeat)
    runtime = create_cli_runtime("demo", pace=float(request.GET.get("pace", 0)))
    run = runtime.start(request.GET["prompt"], approve=approver(request.GET))
    return django_stream(
        run, heartbeat=heartbeat, detach="detach" in request.GET, format=request.GET.get("format", "sse")
    )


def abort(request: Any, run_id: str) -> Any:
    runs.get(run_id).abort()
    return JsonResponse({"worker": os.getpid()})


def answer(request: Any, run_id: str) -> Any:
    return JsonResponse(answered(run_id, request.GET))


def steer(request: Any, run_id: str) -> Any:
    return JsonResponse(steered(run_id, request.GET))


def open_requests(request: Any, run_id: str) -> Any:
    return JsonResponse({"worker": os.getpid(), "open": [one.id for one in runs.get(run_id).open_requests]})


def threads(request: Any) -> Any:
    return JsonResponse({"worker": os.getpid(), "threads": [thread.name for thread in threading.enumerate()]})


urlpatterns = [
    path("ask", ask),
    path("abort/<run_id>", csrf_exempt(abort)),
    path("answer/<path:run_id>", csrf_exempt(answer)),
    path("steer/<run_id>", csrf_exempt(steer)),
    path("open/<run_id>", open_requests),
    path("threads", threads),
]
app = get_wsgi_application()
