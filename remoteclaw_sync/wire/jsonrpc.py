"""One side of a JSON-RPC conversation, one message per line. It is fed, never connected: no pipe, thread or clock."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from .fields import Message, mapping, text

METHOD_NOT_FOUND = -32601
PATIENCE = 60.0  # Seconds within which an answer is expected.
# A request as `Peer` writes it: the part before its number, and the number.
REQUEST = re.compile(rb'(\{(?:"jsonrpc": "2\.0", )?"id": )(\d+)(?=, "method": )')

RequestId = int | str


@attrs.frozen
class Called:
    """A request from the other side, to be answered with `Peer.answer` or `Peer.refuse`."""

    id: RequestId
    method: str
    params: Message


@attrs.frozen
class Told:
    """A notification from the other side."""

    method: str
    params: Message


@attrs.frozen
class Answered:
    """The other side's answer to one of our requests."""

    id: RequestId
    method: str
    result: Any


@attrs.frozen
class Failed:
    """The other side's refusal of one of our requests."""

    id: RequestId
    method: str
    code: int
    message: str
    data: Any = None


Heard = Called | Told | Answered | Failed


@attrs.define
class _Asked:
    method: str
    then: Callable[[Answered | Failed], Any] | None
    patience: float | None
    since: float | None = None  # When `waits` was first asked about it.


class Peer:
    """Numbers our requests, and matches answers to them by number. Messages to be sent are collected in `outbox`.

    Args:
        envelope: whether our messages have the key "jsonrpc". (Codex leaves it out.) Incoming ones may have it or not.
    """

    def __init__(self, *, envelope: bool = True) -> None:
        self._envelope: Message = {"jsonrpc": "2.0"} if envelope else {}
        self._numbers = itertools.count(1)
        self._asked: dict[RequestId, _Asked] = {}
        self._lock = threading.RLock()  # Re-entered by signal handlers (an abort) and the GC.
        self.outbox: list[bytes] = []

    # --- what we send ---------------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        then: Callable[[Answered | Failed], Any] | None = None,
        patience: float | None = PATIENCE,
    ) -> int:
        """Send a request; `feed` calls `then` with the answer. Returns the request's number.

        `patience` is how many seconds the answer may take (see `waits`); None: no limit.
        """
        with self._lock:
            number = next(self._numbers)
            self._asked[number] = _Asked(method, then, patience)
        self._say({"id": number, "method": method, **_params(params)})
        return number

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        self._say({"method": method, **_params(params)})

    def answer(self, request_id: RequestId, result: Any) -> None:
        """Answer a request."""
        self._say({"id": request_id, "result": result})

    def refuse(self, request_id: RequestId | None, code: int, message: str) -> None:
        """Answer a request with an error. Without an id: to a message that could not be read."""
        self._say({"id": request_id, "error": {"code": code, "message": message}})

    def _say(self, message: Message) -> None:
        # ASCII: otherwise a lone surrogate would not be valid UTF-8, and some readers would end a line at U+2028.
        line = json.dumps({**self._envelope, **message}).encode() + b"\n"
        with self._lock:
            self.outbox.append(line)

    def take(self) -> bytes:
        """Take all that is to be sent out of the outbox."""
        said: list[bytes] = []
        with self._lock:
            while self.outbox:  # One by one, so that none is lost if a signal handler adds one meanwhile.
                said.append(self.outbox.pop(0))
        return b"".join(said)

    # --- what we receive ------------------------------------------------------------------------------------

    @property
    def waiting_for(self) -> list[str]:
        """The methods of our unanswered requests, oldest first."""
        with self._lock:
            return [asked.method for asked in [*self._asked.values()]]

    def waits(self, now: float) -> tuple[float | None, str | None]:
        """How many more seconds we may wait for the answers (None: no limit), and the method of a request whose time is
        over. A request's time counts from the first call after it was made: there is no clock in here."""
        if not self._asked:
            return None, None
        least: float | None = None
        with self._lock:
            for asked in [*self._asked.values()]:  # A copy: a signal handler may add a request meanwhile.
                if asked.patience is None:
                    continue
                asked.since = now if asked.since is None else asked.since
                left = asked.since + asked.patience - now
                if left <= 0:
                    return 0.0, asked.method
                least = left if least is None else min(left, least)
        return least, None

    def feed(self, message: Message) -> Heard | None:
        """Take a message. Calls `then` if it is an answer. Returns what it was; None if it makes no sense here (an
        answer to something we did not ask)."""
        method, given = text(message, "method"), message.get("id")
        number: RequestId | None = given if type(given) in (int, str) else None
        if method:
            params = mapping(message, "params")
            return Told(method, params) if number is None else Called(number, method, params)
        with self._lock:
            asked = None if number is None else self._asked.pop(number, None)
        if asked is None or number is None:
            return None
        heard = answer_in(message, number, asked.method)
        if asked.then is not None:
            asked.then(heard)
        return heard


def answer_in(message: Message, number: RequestId, method: str) -> Answered | Failed:
    """This message as the answer to a request of that method."""
    if message.get("error") is None:
        return Answered(number, method, message.get("result"))
    error = mapping(message, "error")
    code = error.get("code")
    said = text(error, "message") or "an error without a message"
    return Failed(number, method, code if type(code) is int else 0, said, error.get("data"))


def request_number(line: bytes) -> int | None:
    """The number of the request on this line, written by a Peer; None if it is not a request."""
    found = REQUEST.match(line)
    return None if found is None else int(found[2])


def renumbered(line: bytes, number: int) -> bytes:
    """The request on this line with another number."""
    return REQUEST.sub(lambda found: found[1] + b"%d" % number, line, count=1)


def _params(params: Mapping[str, Any] | None) -> Message:
    return {} if params is None else {"params": dict(params)}
