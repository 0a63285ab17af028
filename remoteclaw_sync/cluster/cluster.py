"""Everything that several machines share, behind one address."""

from __future__ import annotations

import datetime
import functools
import weakref
from collections.abc import Sequence
from typing import Any

from .._closeable import Closeable
from .._values import check_seconds, check_size, check_text
from ..portable.sealing import Key, sealer
from ..process.host import after_fork
from ..web.background import Item
from .hub import Hub
from .link import Link
from .runs import MAX_BYTES, MAX_EVENTS, ClusterRuns
from .session_map import ClusterSessionMap
from .session_store import RedisSessionStore
from .slots import Lines, Slots

RETENTION = 3600.0
LEASE = 30.0
SHORTEST_LEASE = 1.0
SESSION_TTL = datetime.timedelta(days=7)


class Cluster(Closeable):
    """What the machines of a site share: `runs`, `session_map`, `session_store` and `slots(...)`, in Redis or Valkey.

    Connects when first used. Threads and forked processes may share one object.

    Args:
        url: `redis://`, `rediss://` (TLS) or `unix://`, or your own `redis.Redis`.
        prefix: of all keys; sites that share a server need different ones.
        key: from `new_key()`; seals prompts, events, orders and sessions. Of several, the first seals and all open.
        retention: seconds for which an ended run stays in Redis, and for which a reserved one waits for a worker.
        lease: seconds after which a silent machine counts as dead.
        max_bytes: limit for one run's events; a run that exceeds it is aborted.
        max_events: how many events of a run are kept.
        max_live: how many runs of this process may be live at once (default: any number).
        session_ttl: how long a session can be continued after its last use (seconds or a timedelta); None: for ever.
    """

    def __init__(
        self,
        url: Any,
        *,
        prefix: str = "remoteclaw",
        key: Key | Sequence[Key] | None = None,
        retention: float = RETENTION,
        lease: float = LEASE,
        max_bytes: int = MAX_BYTES,
        max_events: int = MAX_EVENTS,
        max_live: int | None = None,
        session_ttl: float | datetime.timedelta | None = SESSION_TTL,
    ) -> None:
        check_text("prefix", prefix)
        for name, seconds in (("retention", retention), ("lease", lease)):
            check_seconds(name, seconds)
            if seconds is None:
                raise TypeError(f"{name} must be a number of seconds")
        if lease < SHORTEST_LEASE:
            raise ValueError(f"lease must be at least {SHORTEST_LEASE} s: a busy machine is silent for a moment")
        ttl = session_ttl.total_seconds() if isinstance(session_ttl, datetime.timedelta) else session_ttl
        check_seconds("session_ttl", ttl)
        self.link = Link(url, prefix, sealer(key))
        self.retention = retention
        self.lease = lease
        self._hub = Hub(self.link, lease, self._decode)
        self._lines = Lines(self.link, self._hub, lease)
        self.runs = ClusterRuns(
            self.link,
            self._hub,
            retention=retention,
            lease=lease,
            max_bytes=max_bytes,
            max_events=max_events,
            max_live=max_live,
        )
        self.session_map = ClusterSessionMap(self.link, self._lines, ttl)
        _ALL.add(self)

    @functools.cached_property
    def session_store(self) -> RedisSessionStore:
        """Where the sessions that move between machines are kept."""
        return RedisSessionStore(self.link, retention=self.session_map.ttl, lease=self.lease)

    def slots(self, name: str, limit: int) -> Slots:
        """Slots under this name: at most `limit` holders at once over all machines, first come first served."""
        check_text("name", name)
        check_size("limit", limit)
        return Slots(self._lines, name, limit)

    def close(self) -> None:
        """Abort this process's runs, stop listening and close the connections. The next use connects again."""
        self.runs.abort_all()
        self._hub.close()
        self.link.close()

    def forget_after_fork(self) -> None:
        """In a forked copy: runs, slots and threads belong to the parent."""
        self._hub.forget_after_fork()
        self._lines.forget_after_fork()
        self.runs.forget_after_fork()

    def _decode(self, run_id: str, number: int, data: bytes) -> Item:
        return self.runs.decode(run_id, number, data)


_ALL: weakref.WeakSet[Cluster] = weakref.WeakSet()


def _forget_after_fork() -> None:
    for cluster in list(_ALL):
        cluster.forget_after_fork()


after_fork(_forget_after_fork)
