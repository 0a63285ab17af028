"""Whose a line is, on a connection that several sessions share: by JSON-RPC, with the CLI's own names for sessions.

Fed, never connected, as a dialect is: whoever feeds it sends what there is to `take`.
"""

from __future__ import annotations

import abc

from ..wire.fields import Message
from ..wire.jsonrpc import Peer, renumbered, request_number

EVERYONE = 0  # The address of what is said to all sessions, those to come included.
# Each session numbers its requests from 1. On the wire they have a block of numbers for each session: those below the
# first block are the switchboard's own. (JavaScript counts to 2**53: enough for 33 million sessions on a process.)
BLOCK_BITS = 28

# The number of a session; EVERYONE; None for nobody; the name of a conversation that may become known in a moment.
Address = int | str | None


class Switchboard(abc.ABC):
    """Does the handshake of one process, and knows which session each of its lines is for.

    Attributes:
        claimed: names of conversations that have become known, with the sessions they belong to.
        released: sessions that the CLI has nothing more to do with.
        promised: sessions that the CLI has said it will let go of.
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
        """Whose this is. An answer has the number that its session gave the request, or for all of them a name."""

    @abc.abstractmethod
    def knows(self, session: int) -> bool:
        """Whether the CLI has a conversation for this session."""

    @abc.abstractmethod
    def release(self, session: int) -> None:
        """Have the CLI end what it does for this session, and forget it. From now on its lines are dropped."""

    def passed_on(self, session: int, line: bytes) -> None:
        """A session has sent this line to the CLI."""

    def take(self) -> bytes:
        """What has to be sent to the CLI."""
        return self.peer.take()


def outgoing(session: int, line: bytes) -> tuple[bytes, int | None]:
    """A line as it goes to the CLI, and its number there if it is a request."""
    own = request_number(line)
    if own is None:
        return line, None
    number = session << BLOCK_BITS | own
    return renumbered(line, number), number


def asked_by(number: int) -> tuple[int, int]:
    """Whose request has this number on the wire, and the number that it was given there."""
    return number >> BLOCK_BITS, number & ((1 << BLOCK_BITS) - 1)
