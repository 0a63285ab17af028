"""Who is let in: a link that works once, and the session that a browser tab gets in exchange.

There is no cookie, because browsers send cookies to every port of a host, and so to every other server on this machine.
And nothing in an address stays valid, because browsers keep addresses in their history.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable

TOKEN_BYTES = 24


class Door:
    """Has one valid link at a time. A used link is replaced by a new one, which is passed to `announce`."""

    def __init__(self, announce: Callable[[str], object]) -> None:
        self._announce = announce
        self._lock = threading.Lock()
        self._link = secrets.token_urlsafe(TOKEN_BYTES)
        # Stored as hashes, because the time of a set lookup could reveal how much of a guess was right.
        self._sessions: set[bytes] = set()

    @property
    def link(self) -> str:
        """The token of the link that is valid now."""
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
        """Whether this session was given out here."""
        return _digest(session) in self._sessions


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
