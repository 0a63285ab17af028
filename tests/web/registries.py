"""The registries of runs on which the same tests are run, and how another process opens the same registry."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from remoteclaw_sync.web import RunHandle, Runs
from remoteclaw_sync.web.handle import Registry

LEASE = 6.0  # Seconds. Longer than a busy machine keeps a thread waiting.


class Place:
    """Where registries of one test keep their runs. Its `address` is for other processes."""

    def __init__(self, where: str, prefix: str = "") -> None:
        self.address = json.dumps([where, prefix])
        self._where, self._prefix = where, prefix
        self._opened: list[Any] = []

    @classmethod
    def at(cls, address: str) -> Place:
        return cls(*json.loads(address))

    @property
    def is_redis(self) -> bool:
        return bool(self._prefix)

    def open(self, **options: Any) -> Registry:
        if not self.is_redis:
            return Runs(self._where, **options)
        from remoteclaw_sync.cluster import Cluster

        cluster = Cluster(self._where, prefix=self._prefix, lease=LEASE, **options)
        self._opened.append(cluster)
        return cluster.runs

    def close(self) -> None:
        for cluster in self._opened:
            cluster.close()

    def left(self) -> dict[str, set[str]]:
        """What is left of each run: its "events", and anything that only a live run needs."""
        found: dict[str, set[str]] = {}
        for run_id, part in self._redis_parts() if self.is_redis else self._file_parts():
            found.setdefault(run_id, set()).add(part)
        return found

    def _file_parts(self) -> list[tuple[str, str]]:
        names = (os.path.splitext(name) for name in os.listdir(self._where))
        return [(stem.partition("-")[0], "events" if suffix == ".run" else suffix) for stem, suffix in names]

    def _redis_parts(self) -> list[tuple[str, str]]:
        import redis

        with redis.Redis.from_url(self._where, decode_responses=True) as client:
            parts = [key.split(":") for key in client.keys(f"{self._prefix}:{{*")]
            live = {key: client.hget(f"{self._prefix}:{key}:run", "state") != "ended" for _, key, _ in parts}
        found = [(key.strip("{}"), part) for _, key, part in parts if part != "run"]
        return found + [(key.strip("{}"), "live") for key, is_live in live.items() if is_live]


def ids(registry: Registry) -> list[str]:
    """The ids of the live runs."""
    return [handle.run_id for handle in registry]


def has_ended(handle: RunHandle) -> bool:
    return not handle.live


def redis_place(url: str, folder: Path) -> Place:
    """A place that no other test shares."""
    return Place(url, f"test-{os.getpid()}-{abs(hash(folder)):x}")
