"""Who is let in: a link that works once, and the session that a browser tab gets for it.

No cookie, because browsers send cookies to every port of a host, so to every other server on this machine. And nothing
in an address stays valid, because browsers keep addresses in their history.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable

TOKEN_BYTES = 24


class Door:
    """Has one valid link at a time. A used link is replaced by the next, which is passed to `announce`."""

    def __init__(self, announce: Callable[[str], object]) -> None:
        self._announce = announce
        self._lock = threading.Lock()
        self._link = secrets.token_urlsafe(TOKEN_BYTES)
        # As hashes, because the time a set lookup takes could show how much of a guess was right.
        self._sessions: set[bytes] = set()

    @property
    def link(self) -> str:
        """The token of the link that can be used next."""
        return self._link

    def open(self, link: str) -> str | None:
        """A session in exchange for the link, which is then used up; None if it is not the current link."""
        with self._lock:
            if not hmac.compare_digest(link.encode(errors="replace"), self._link.encode()):
                return None
            next_link = self._link = secrets.token_urlsafe(TOKEN_BYTES)
        session = secrets.token_urlsafe(TOKEN_BYTES)
        self._sessions.add(_digest(session))
        self._announce(next_link)
        return session

    def knows(self, session: str) -> bool:
        """Whether this session was given to somebody."""
        return _digest(session) in self._sessions


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
