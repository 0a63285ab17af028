"""Finds out which session a line on a shared connection belongs to, by JSON-RPC and the CLI's names for sessions.

Like a dialect, it is fed and never connected: the code that feeds it sends what `take` returns.
"""

from __future__ import annotations

import abc

from ..wire.fields import Message
from ..wire.jsonrpc import Peer, renumbered, request_number

EVERYONE = 0  # The address of lines for all sessions, including later ones.
# Each session numbers its requests from 1. On the wire, each session has its own block of numbers; those below the
# first block are the switchboard's own. (JavaScript counts to 2**53: enough for 33 million sessions on a process.)
BLOCK_BITS = 28

# The number of a session; EVERYONE; None for nobody; or the name of a conversation that may become known in a moment.
Address = int | str | None


class Switchboard(abc.ABC):
    """Does the handshake with one process, and knows which session each of its lines is for.

    Attributes:
        claimed: names of conversations that have become known, with the sessions they belong to.
        released: sessions that the CLI has forgotten.
        promised: sessions that the CLI has said it will forget.
    """

    def __init__(self, *, envelope: bool = True) -> None:
        self.peer = Peer(envelope=envelope)
        self.claimed: list[tuple[str, int]] = []
        self.released: set[int] = set()
        self.promised: set[int] = set()

    @property
    def is_usable(self) -> bool:
        """Whether further sessions may be opened on the process."""
        return True

    @abc.abstractmethod
    def opening(self) -> bytes:
        """The handshake, once for all sessions."""

    @abc.abstractmethod
    def route(self, message: Message) -> Address:
        """Which session this is for. In an answer, sets `id` to the number that the session gave its request, or, if
        the answer is for everyone, to a name."""

    @abc.abstractmethod
    def knows(self, session: int) -> bool:
        """Whether the CLI has a conversation for this session."""

    @abc.abstractmethod
    def release(self, session: int) -> None:
        """Have the CLI end its work for this session and forget it. From now on, the session's lines are dropped."""

    def passed_on(self, session: int, line: bytes) -> None:
        """A session has sent this line to the CLI."""

    def take(self) -> bytes:
        """What must be sent to the CLI now."""
        return self.peer.take()


def outgoing(session: int, line: bytes) -> tuple[bytes, int | None]:
    """A session's line as it is sent to the CLI, and its number there if it is a request."""
    own = request_number(line)
    if own is None:
        return line, None
    number = session << BLOCK_BITS | own
    return renumbered(line, number), number


def asked_by(number: int) -> tuple[int, int]:
    """The session whose request has this number on the wire, and the number that the session gave it."""
    return number >> BLOCK_BITS, number & ((1 << BLOCK_BITS) - 1)
