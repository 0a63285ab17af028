"""Clusters of machines: runs, sessions and slots that all machines of a site share, in Redis or Valkey.

    from remoteclaw_sync.cluster import Cluster

    cluster = Cluster("redis://localhost")
    handle = cluster.runs.start(runtime.start("Why is the build red?"))
    cluster.runs.get(handle.run_id).abort()  # On any machine.

Needs the extra `cluster` (the package redis).
"""

from __future__ import annotations

from ..portable.sealing import SealError, new_key
from .cluster import Cluster
from .link import ClusterUnavailableError
from .runs import ClusterRuns
from .session_map import ClusterSessionMap
from .session_store import RedisSessionStore
from .slots import Slot, Slots

__all__ = [
    "Cluster",
    "ClusterRuns",
    "ClusterSessionMap",
    "ClusterUnavailableError",
    "RedisSessionStore",
    "SealError",
    "Slot",
    "Slots",
    "new_key",
]
