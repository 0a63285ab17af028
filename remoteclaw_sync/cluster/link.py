"""The connection to Redis: key names, scripts, and a single error type for a server that does not answer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ..errors import RemoteClawError
from ..portable.sealing import Sealer

# Seconds to wait for an answer. This is how long it takes to notice a connection whose packets vanish.
ANSWER_PATIENCE = 5.0
# Per process. With more threads than that, some wait for milliseconds; redis's default pool would raise instead.
CONNECTIONS = 32
CROWD_PATIENCE = 30.0


class ClusterUnavailableError(RemoteClawError, ConnectionError):
    """Redis cannot be reached, or cannot do its work now (full, loading, read-only)."""


class Link:
    """Redis, as the parts of a cluster use it. Thread-safe; forked copies make their own connections."""

    def __init__(self, url_or_client: Any, prefix: str, seals: Sealer) -> None:
        try:
            import redis
        except ImportError:
            raise ModuleNotFoundError(
                "a cluster needs the package redis: pip install remoteclaw_sync[cluster]"
            ) from None
        self._errors = redis.RedisError
        self.seals = seals
        self._prefix = prefix
        self._owns = isinstance(url_or_client, str)
        if self._owns:
            from redis.backoff import NoBackoff
            from redis.retry import Retry

            # We retry ourselves, where that is safe and for as long as it makes sense.
            pool = redis.BlockingConnectionPool.from_url(
                url_or_client,
                max_connections=CONNECTIONS,
                timeout=CROWD_PATIENCE,
                socket_timeout=ANSWER_PATIENCE,
                socket_connect_timeout=ANSWER_PATIENCE,
                retry=Retry(NoBackoff(), 0),
            )
            self.client: Any = redis.Redis(connection_pool=pool)
        elif isinstance(url_or_client, redis.Redis):
            self.client = url_or_client
        else:
            raise TypeError(f"url must be a str or a redis.Redis, not {type(url_or_client).__name__}")
        self._scripts: dict[str, Any] = {}

    def key(self, *parts: str) -> str:
        """The name of a key."""
        return ":".join((self._prefix, *parts))

    @contextlib.contextmanager
    def asking(self) -> Iterator[Any]:
        """The client, for commands; their failures are raised as ClusterUnavailableError."""
        try:
            yield self.client
        except (self._errors, OSError) as error:
            # Without the original message, which may quote what was sent.
            raise ClusterUnavailableError(f"Redis cannot be used now ({type(error).__name__})") from error

    def run(self, script: str, keys: list[str], *arguments: Any) -> Any:
        """Run a Lua script, which Redis executes as one step."""
        if script not in self._scripts:
            self._scripts[script] = self.client.register_script(script)
        with self.asking():
            return self._scripts[script](keys=keys, args=list(arguments))

    def close(self) -> None:
        """Close the connections, if we opened them."""
        if self._owns:
            with contextlib.suppress(self._errors, OSError):
                self.client.connection_pool.disconnect()
