"""Who may come in: a link that works once, and the session that a browser's tab gets for it.

No cookie: browsers send those to every port of a host, so to every other server on this machine. And nothing that
stays good in an address: browsers write addresses down.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable

TOKEN_BYTES = 24


class Door:
    """Opened by one link at a time. A link that has been used is replaced by the next, which `announce` is told."""

    def __init__(self, announce: Callable[[str], object]) -> None:
        self._announce = announce
        self._lock = threading.Lock()
        self._link = secrets.token_urlsafe(TOKEN_BYTES)
        # As hashes, because a set tells by the time it takes how much of a guess was right.
        self._sessions: set[bytes] = set()

    @property
    def link(self) -> str:
        """The token of the link that can be used next."""
        return self._link

    def open(self, link: str) -> str | None:
        """A session for this link, which is used up by that; None if it is not the one."""
        with self._lock:
            if not hmac.compare_digest(link.encode(errors="replace"), self._link.encode()):
                return None
            next_link = self._link = secrets.token_urlsafe(TOKEN_BYTES)
        session = secrets.token_urlsafe(TOKEN_BYTES)
        self._sessions.add(_digest(session))
        self._announce(next_link)
        return session

    def knows(self, session: str) -> bool:
        """Whether it has given this session to somebody."""
        return _digest(session) in self._sessions


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
