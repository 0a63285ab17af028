"""Sessions that move between machines, in Redis or Valkey."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from .._values import check_count, check_seconds, check_text
from ..portable.store import StoredSession, busy, digest_of, place_of, stale
from .link import ClusterUnavailableError, Link
from .scripts import STATE_LOAD, STATE_SAVE

POLL_SECONDS = 0.05


class RedisSessionStore:
    """A `SessionStore` for all machines that can reach the Redis of a cluster: `cluster.session_store`.

    The names of the keys are digests, so they do not reveal whose sessions these are. The data is sealed with the
    cluster's key, if it has one, and kept for the cluster's `session_ttl` after the last save. A lock is renewed while
    it is held; if its machine dies, it becomes free after the cluster's `lease`. All calls may raise
    ClusterUnavailableError.
    """

    def __init__(self, link: Link, *, retention: float | None, lease: float) -> None:
        self.retention = retention
        self._link = link
        self._lease = lease

    def load(self, key: str, *, known: int = 0) -> StoredSession | None:
        """See `SessionStore`."""
        check_text("key", key)
        name = digest_of(key)
        found = self._link.run(STATE_LOAD, [self._key(name)], known)
        if found is None:
            return None
        generation = int(found[0])
        if len(found) == 1:
            return StoredSession(generation, None)
        return StoredSession(generation, self._link.seals.open(found[1], place_of(name, generation)))

    def save(self, key: str, data: bytes, *, after: int) -> int:
        """See `SessionStore`."""
        check_text("key", key)
        check_count("after", after)
        name = digest_of(key)
        sealed = self._link.seals.seal(data, place_of(name, after + 1))
        kept = "" if self.retention is None else max(1, int(self.retention * 1000))
        generation = int(self._link.run(STATE_SAVE, [self._key(name)], after, sealed, kept))
        if generation < 0:
            raise stale(-generation - 1, after)
        return generation

    def lock(self, key: str, *, timeout: float | None = None) -> AbstractContextManager[None]:
        """See `SessionStore`."""
        check_text("key", key)
        check_seconds("timeout", timeout)
        return self._locked(f"{self._key(digest_of(key))}:lock", timeout)

    def _key(self, name: str) -> str:
        return self._link.key("state", name)

    @contextlib.contextmanager
    def _locked(self, name: str, timeout: float | None) -> Iterator[None]:
        with self._link.asking() as client:
            lock = client.lock(name, timeout=self._lease, sleep=POLL_SECONDS, thread_local=False)
            is_mine = lock.acquire(blocking_timeout=timeout)
        if not is_mine:
            raise busy(timeout)
        is_over = threading.Event()
        renewal = threading.Thread(target=self._renew, args=(lock, is_over), name="remoteclaw-lease", daemon=True)
        renewal.start()
        try:
            yield
        finally:
            is_over.set()
            renewal.join()
            with contextlib.suppress(ClusterUnavailableError), self._link.asking():
                lock.release()  # If that fails, the lock expires; if the lock was lost, `save` has noticed.

    def _renew(self, lock: Any, is_over: threading.Event) -> None:
        while not is_over.wait(self._lease / 3):
            with contextlib.suppress(ClusterUnavailableError), self._link.asking():
                lock.reacquire()
