"""A site's Celery application, as a worker of the tests loads it. The prompt is the script of a fake CLI."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from celery import Celery, signals

from remoteclaw_sync import AgentExecuteParams
from remoteclaw_sync.cluster import Cluster
from remoteclaw_sync.cluster.celery import agent_task
from tests.fakes import FakeRuntime

settings: dict[str, Any] = json.loads(os.environ["CLUSTER_SITE"])


def start(params: AgentExecuteParams) -> Any:
    """Run the steps of the prompt. Each start is logged, so that a second one would show."""
    if "log" in settings:
        with open(settings["log"], "a") as log:
            log.write(params.prompt + "\n")
    return FakeRuntime(*json.loads(params.prompt)).start("hi", deadline=params.deadline)


def make(settings: dict[str, Any]) -> tuple[Any, Any, Cluster]:
    """The application, its task and the cluster."""
    app = Celery("site", broker=settings["url"].replace("unix://", "redis+socket://", 1), set_as_current=False)
    app.conf.update(
        task_default_queue=settings["prefix"],
        worker_disable_prefetch=True,
        broker_connection_retry_on_startup=True,
    )
    app.conf.update(settings.get("conf", {}))
    cluster = Cluster(settings["cluster_url"], prefix=settings["prefix"], lease=settings["lease"])
    slots = cluster.slots(*settings["slots"]) if "slots" in settings else None
    return app, agent_task(app, cluster, start, slots=slots, **settings.get("task", {})), cluster


@signals.worker_ready.connect  # type: ignore[untyped-decorator]
def on_ready(**_: object) -> None:
    """Tell the process that started this worker."""
    Path("ready").touch()


app, ask, cluster = make(settings)
