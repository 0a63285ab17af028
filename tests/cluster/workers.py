"""Real Celery workers, each as a separate machine with its own home and its own folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.fakes import PATIENCE, alive, children, wait_until

# Seconds. Longer than a busy machine keeps a thread waiting.
LEASE = 6.0
# Seconds for a worker, which imports all of Celery before it starts.
START_PATIENCE = 4 * PATIENCE


def descendants(pid: int) -> list[int]:
    """All descendants of this process, as long as their parents are alive."""
    found = children(pid)
    for child in list(found):
        found += descendants(child)
    return found


class Site:
    """A broker, a cluster and any number of workers."""

    def __init__(self, url: str, prefix: str, folder: Path, cluster_url: str | None = None, **settings: Any) -> None:
        self.settings = {
            "url": url,
            "cluster_url": cluster_url or url,
            "prefix": prefix,
            "lease": LEASE,
            **settings,
        }
        self.folder = folder
        self.workers: list[Worker] = []
        self._made: tuple[Any, Any, Any] | None = None

    @property
    def here(self) -> tuple[Any, Any, Any]:
        """The application, its task and the cluster, as a web process has them."""
        if self._made is None:
            os.environ["CLUSTER_SITE"] = json.dumps(self.settings)
            try:
                from tests.cluster import celery_site
            finally:
                del os.environ["CLUSTER_SITE"]
            # Not the task's own cluster: a web process has its own connection to Redis.
            self._made = celery_site.make({**self.settings, "cluster_url": self.settings["url"]})
        return self._made

    def ask(self, *steps: list[Any], **fields: Any) -> Any:
        return self.here[1].start(json.dumps(steps), **fields)

    @property
    def runs(self) -> Any:
        return self.here[2].runs

    def worker(
        self, *arguments: str, concurrency: int = 1, inside: Sequence[str] = (), url: str | None = None
    ) -> Worker:
        """A worker that has started to take messages, or has refused to. `inside`: a command that starts it; `url`: its
        own way to Redis."""
        settings = self.settings if url is None else {**self.settings, "url": url, "cluster_url": url}
        made = Worker(self.folder / f"machine{len(self.workers)}", settings, concurrency, arguments, inside)
        self.workers.append(made)
        assert wait_until(made.has_begun, START_PATIENCE), made.log
        return made

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        if self._made is not None:
            from kombu import pools

            app, ask, cluster = self._made
            cluster.close()
            app.close()
            self._made = None
            # Celery keeps its connections for the process, not for the application.
            pools.reset()  # type: ignore[no-untyped-call]


class Worker:
    """`celery worker` as a process. Ended by its pid."""

    def __init__(
        self,
        home: Path,
        settings: Mapping[str, Any],
        concurrency: int,
        arguments: tuple[str, ...],
        inside: Sequence[str],
    ) -> None:
        self.home = home
        self.home.mkdir()
        self._log = (self.home / "log").open("wb")
        search = os.pathsep.join([*filter(None, sys.path), os.getcwd()])
        env = {**os.environ, "HOME": str(self.home), "PYTHONPATH": search, "CLUSTER_SITE": json.dumps(settings)}
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "WARNING"]
        env["TMPDIR"] = str(self.home)  # A killed worker leaves files behind.
        # Our worker may run as root, in a container; Celery warns about that.
        env["C_FORCE_ROOT"] = "1"
        command = [sys.executable, "-m", "celery", "-A", "tests.cluster.celery_site", "worker", "-n", f"{home.name}@%h"]
        self.process = subprocess.Popen(
            [*inside, *command, "-c", str(concurrency), *quiet, *arguments],
            cwd=self.home,
            env=env,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def has_begun(self) -> bool:
        return (self.home / "ready").exists() or self.process.poll() is not None

    @property
    def log(self) -> str:
        return (self.home / "log").read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        """End it and its pool, which outlives a main process that is killed."""
        pool = descendants(self.pid)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        for pid in pool:
            if alive(pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        assert wait_until(lambda: not any(alive(pid) for pid in pool))
        self._log.close()
