"""Fixtures for the tests of several machines."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.redis_server import RedisServer, need_redis

pytest.register_assert_rewrite("tests.cluster.workers", "tests.web.streams")

_numbers = itertools.count()


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """A prefix that no other test uses."""
    return f"test-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def cluster(redis_url: str, prefix: str) -> Iterator[Callable[..., Any]]:
    """Makes clusters that share one Redis, as the machines of a site do."""
    from remoteclaw_sync.cluster import Cluster

    made: list[Cluster] = []

    def make(url: str = redis_url, **options: Any) -> Cluster:
        made.append(Cluster(url, prefix=prefix, **{"lease": 6.0, **options}))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A server just for this test, which may be killed and restarted."""
    server = RedisServer(need_redis(), durable=True)
    yield server
    server.close()
