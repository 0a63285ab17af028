"""A Celery task that runs an agent. However the task ends, the agent ends with it, and the run's followers learn why.

    ask = agent_task(app, cluster, create_cli_runtime("claude"), deadline=600)
    handle = ask.start("Why is the build red?", working_directory="/srv/site")  # In a view.

The task's message holds only the id of the run. The prompt stays in the cluster, sealed if the cluster has a key, until
a worker takes it. Needs the extra `celery`.
"""

from __future__ import annotations

import logging
from typing import Any

import attrs
from celery import bootsteps, signals
from celery.exceptions import SoftTimeLimitExceeded

from .._values import check_seconds
from ..types import AgentExecuteParams
from ..web.handle import WORKER_DIED, RunHandle
from .cluster import Cluster
from .link import ClusterUnavailableError
from .runs import NOT_STARTED, WORKER_STOPPED
from .slots import Slots

__all__ = ["TIME_LIMIT", "AgentTask", "agent_task"]

logger = logging.getLogger(__name__)

TIME_LIMIT = "TIME_LIMIT"
LIMITS = {"TimeLimitExceeded": "hard", "SoftTimeLimitExceeded": "soft"}
SPARE = 30.0  # Seconds between a run's deadline and the soft time limit, and between that and the hard one.
VISIBILITY_TIMEOUT = 3600  # Seconds: Celery's own default with Redis.
REDELIVERING = ("redis", "rediss", "valkey", "valkeys", "sentinel", "sqs")
WITHOUT_PREFETCH = ("redis", "rediss", "sentinel")  # Brokers with which a worker can take only what it begins at once.


class AgentTask:
    """What `agent_task` returns."""

    def __init__(self, cluster: Cluster, task: Any, deadline: float | None) -> None:
        self.cluster = cluster
        self.task = task
        """The Celery task. Its only argument is the id of a reserved run."""
        self.deadline = deadline

    def start(self, prompt: str | AgentExecuteParams, *, queue: str | None = None, **fields: Any) -> RunHandle:
        """Send a run to the workers. Returns at once; the handle can be followed and aborted right away.

        The task's id is the run's id. Raises ClusterUnavailableError, or Celery's own error if there is no broker.
        """
        params = prompt if isinstance(prompt, AgentExecuteParams) else AgentExecuteParams(prompt, **fields)
        if self.deadline is not None:
            if params.deadline is not None and params.deadline > self.deadline:
                raise ValueError(f"deadline must be at most {self.deadline:g} s, which the task was set up for")
            params = attrs.evolve(params, deadline=params.deadline or self.deadline)
        handle = self.cluster.runs.reserve(params)
        try:
            self.task.apply_async((handle.run_id,), task_id=handle.run_id, queue=queue)
        except BaseException:
            self.cluster.runs.tell_end(handle.run_id, "the run could not be sent to a worker", NOT_STARTED)
            raise
        return handle

    # --- what a killed process cannot report: the worker's main process hears of it and reports it ---------------

    def on_failure(self, sender: Any = None, task_id: str = "", exception: object = None, **_: Any) -> None:
        """Celery's signal: the task raised, its process died, or a hard time limit was reached."""
        if getattr(sender, "name", None) != self.task.name:
            return
        kind = type(exception).__name__
        if kind in LIMITS:
            self._tell(task_id, f"the task's {LIMITS[kind]} time limit was reached", TIME_LIMIT)
        else:
            code = WORKER_DIED if kind == "WorkerLostError" else WORKER_STOPPED
            self._tell(task_id, f"the task failed ({kind})", code)

    def on_revoked(self, sender: Any = None, request: Any = None, expired: bool = False, **_: Any) -> None:
        """Celery's signal: the task was revoked, before it began or while it was running."""
        if getattr(sender, "name", None) == self.task.name:
            how = "has expired" if expired else "was revoked"
            self._tell(getattr(request, "id", ""), f"the task {how}", NOT_STARTED if expired else WORKER_STOPPED)

    def _tell(self, run_id: str, message: str, code: str) -> None:
        try:
            self.cluster.runs.tell_end(run_id, message, code)
        except ClusterUnavailableError as error:
            logger.error("the end of a run could not be told, its followers wait for its lease: %s", error)
        except LookupError:
            pass  # A task that was not sent by `start()`.


def agent_task(
    app: Any,
    cluster: Cluster,
    start: Any,
    *,
    name: str = "remoteclaw_sync.agent",
    deadline: float | None = None,
    slots: Slots | None = None,
    **options: Any,
) -> AgentTask:
    """Register a task that takes a run, starts it with `start` and waits for its end. Checks run when a worker starts.

    Args:
        app: the Celery application.
        cluster: where the events go.
        start: a runtime, a `SessionPool`, or a function that turns the params into a run.
        name: the task's name.
        deadline: the longest a run may take, in seconds. Unless you set the task's time limits, they are derived from
            this and from how long a run may wait for a slot (the cluster's `retention`).
        slots: a run waits for one of these slots before it starts.
        options: for the Celery task. `acks_late` is off unless you turn it on: an agent's work must not be done twice.
    """
    check_seconds("deadline", deadline)
    if deadline is not None:
        # A run that has waited for longer than `retention` is not started.
        longest = deadline + (0 if slots is None else cluster.retention)
        options.setdefault("soft_time_limit", longest + SPARE)
        options.setdefault("time_limit", longest + 2 * SPARE)
    fixed = {"acks_late": False, "ignore_result": True, "max_retries": 0, "track_started": False}

    def work(run_id: str) -> None:
        cluster.runs.work(run_id, start, stop_with_parent=True, slots=slots, codes={SoftTimeLimitExceeded: TIME_LIMIT})

    # Not shared: the applications of a process may have different clusters.
    task = app.task(name=name, shared=False, **{**fixed, **options})(work)
    made = AgentTask(cluster, task, deadline)
    # Celery's signals hold these only weakly; the application keeps them alive as long as it lives.
    signals.task_failure.connect(made.on_failure)
    signals.task_revoked.connect(made.on_revoked)
    _check_at_start(app, made)
    return made


# --- settings that cause trouble --------------------------------------------------------------------------------------


def _check_at_start(app: Any, made: AgentTask) -> None:
    checked = getattr(app, "_remoteclaw_tasks", None)
    if checked is not None:
        checked.append(made)
        return
    app._remoteclaw_tasks = [made]
    app.steps["worker"].add(AgentChecks)


class AgentChecks(bootsteps.Step):  # type: ignore[misc]
    """Refuses to start a worker with settings under which an agent could not be stopped, or would run twice."""

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        pool = worker.pool_cls.__module__.rpartition(".")[2]
        for made in worker.app._remoteclaw_tasks:
            problem = problem_of(made.task, made.deadline, pool, worker.app.conf)
            if problem is not None:
                raise SystemExit(f"remoteclaw_sync: the task {made.task.name} cannot run here: {problem}")
        setting = advice_of(worker.app.conf)
        if setting is not None:
            logger.warning("set %s: otherwise runs wait behind a long one while other workers are free", setting)


def problem_of(task: Any, deadline: float | None, pool: str, conf: Any) -> str | None:
    """What is wrong with this pool and these settings, with the remedy; None if all is well."""
    if pool != "prefork":
        return (
            f"the pool {pool!r} can neither revoke a task nor keep its time limits, so that nothing could stop the "
            "agent. Start the worker with --pool prefork"
        )
    hard, soft = task.time_limit, task.soft_time_limit
    if deadline is not None and soft is not None and soft <= deadline:
        return f"soft_time_limit ({soft:g} s) must be longer than deadline ({deadline:g} s)"
    if hard is not None and ((soft is not None and hard <= soft) or (deadline is not None and hard <= deadline)):
        return f"time_limit ({hard:g} s) must be longer than soft_time_limit and deadline"
    if not task.acks_late:
        return None
    visible = (conf.broker_transport_options or {}).get("visibility_timeout", VISIBILITY_TIMEOUT)
    longest = hard or deadline
    if _broker_of(conf) in REDELIVERING and (longest is None or visible <= longest):
        how_long = "any time" if longest is None else f"{longest:g} s"
        return (
            f"with acks_late the broker delivers a task again after visibility_timeout ({visible:g} s), and a run may "
            f"take {how_long}. Leave acks_late off (an agent's work is not done twice), or set a deadline and "
            'broker_transport_options = {"visibility_timeout": ...} above it'
        )
    return None


def advice_of(conf: Any) -> str | None:
    """The setting that keeps workers from holding messages that another one could take; None if it is set."""
    # A message is confirmed when its task begins, so even with a multiplier of 1 a process may take a second message
    # besides the one it works on.
    if _broker_of(conf) in WITHOUT_PREFETCH:
        return None if conf.worker_disable_prefetch else "worker_disable_prefetch = True"
    return None if conf.worker_prefetch_multiplier == 1 else "worker_prefetch_multiplier = 1"


def _broker_of(conf: Any) -> str:
    """The broker's kind, from its URL; of several URLs, the first."""
    url = conf.broker_read_url or conf.broker_url or ""
    first = url if isinstance(url, str) else next(iter(url), "")
    return str(first).partition(":")[0].partition("+")[0]
