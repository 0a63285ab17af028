"""Which CLI session belongs to which conversation, and whose turn it is there, over all machines."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from .._closeable import Closeable
from .._values import check_text
from ..chat.conversation import Conversation
from .link import Link
from .scripts import SESSION_FORGET, SESSION_GET, SESSION_SET
from .slots import Lines, Slot

EXPIRED_KEPT = 1000  # So that a clock that was wrong for a while does not cost sessions.


class ClusterSessionMap(Closeable):
    """The interface of `SessionMap`, in Redis. All but `turn()` may raise ClusterUnavailableError (an OSError)."""

    def __init__(self, link: Link, lines: Lines, ttl: float | None, *, clock: Callable[[], float] = time.time) -> None:
        self.ttl = ttl
        self._link = link
        self.lines = lines
        self._clock = clock
        self._keys = [link.key("{sessions}", part) for part in ("ids", "used")]

    def close(self) -> None:
        """Nothing to close: the connections are the cluster's."""

    def get(self, provider: str, conversation: Conversation) -> str | None:
        """The session to continue, if there is one that has not expired. Counts as a use."""
        now = self._clock()
        found = self._link.run(SESSION_GET, self._keys, _key(provider, conversation), now, self._oldest(now))
        return None if found is None else bytes(found).decode()

    def set(self, provider: str, conversation: Conversation, session_id: str) -> None:
        """Continue with this session from now on."""
        check_text("session_id", session_id)
        now = self._clock()
        key = _key(provider, conversation)
        self._link.run(SESSION_SET, self._keys, key, now, self._oldest(now), EXPIRED_KEPT, session_id)

    def forget(self, provider: str, conversation: Conversation, session_id: str | None = None) -> bool:
        """Start a new session next time; with `session_id`, only if that is still the one. Returns whether it was."""
        return bool(self._link.run(SESSION_FORGET, self._keys, _key(provider, conversation), session_id or ""))

    def __len__(self) -> int:
        with self._link.asking() as client:
            return int(client.zcount(self._keys[1], self._oldest(self._clock()), "+inf"))

    def turn(self, conversation: Conversation) -> ClusterTurn:
        """Take a number: turns in a conversation are granted in the order of these calls, over all machines.

        Use it as a context manager and call `wait()` inside. While Redis cannot be reached, turns do not wait,
        and `turn.fault` says why.
        """
        return ClusterTurn(self.lines, conversation)

    def _oldest(self, now: float) -> float | str:
        return "-inf" if self.ttl is None else now - self.ttl


class ClusterTurn(Slot):
    """A place in the queue of a conversation. It is your turn when everyone ahead of you has left or is dead."""

    def __init__(self, lines: Lines, conversation: Conversation) -> None:
        self.conversation = conversation
        self.taken_at = time.monotonic()
        super().__init__(lines, f"turn {json.dumps(conversation.columns)}", 1, must_line_up=False)

    @property
    def is_first(self) -> bool:
        """Whether it is our turn."""
        return self._granted

    def ahead(self) -> int:
        """How many are ahead of us in the line, on all machines."""
        return self._lines.line_up(self)[1]


def _key(provider: str, conversation: Conversation) -> str:
    return json.dumps([provider, *conversation.columns])
