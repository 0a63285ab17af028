"""One side of a JSON-RPC conversation, one message a line. It is fed, never connected: no pipe, no thread, no clock."""

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
# A request as `Peer` writes it: up to its number, and the number.
REQUEST = re.compile(rb'(\{(?:"jsonrpc": "2\.0", )?"id": )(\d+)(?=, "method": )')

RequestId = int | str


@attrs.frozen
class Called:
    """The other side wants an answer to this: `Peer.answer` or `Peer.refuse`."""

    id: RequestId
    method: str
    params: Message


@attrs.frozen
class Told:
    """A notification."""

    method: str
    params: Message


@attrs.frozen
class Answered:
    """The other side's answer to a request of ours."""

    id: RequestId
    method: str
    result: Any


@attrs.frozen
class Failed:
    """The other side's refusal of a request of ours."""

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
    """Numbers requests, and knows by its number what an answer is about. What is to be sent gathers in `outbox`.

    Args:
        envelope: whether messages have the key "jsonrpc". (Codex leaves it out.) In what is heard it never matters.
    """

    def __init__(self, *, envelope: bool = True) -> None:
        self._envelope: Message = {"jsonrpc": "2.0"} if envelope else {}
        self._numbers = itertools.count(1)
        self._asked: dict[RequestId, _Asked] = {}
        self._lock = threading.RLock()  # Re-entered by signal handlers (an abort) and the GC.
        self.outbox: list[bytes] = []

    # --- what we say ----------------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        then: Callable[[Answered | Failed], Any] | None = None,
        patience: float | None = PATIENCE,
    ) -> int:
        """Ask; `then` is called by `feed` with what comes back. The number that it will come back with.

        `patience` is how many seconds that may take (see `waits`); None: as long as it likes.
        """
        with self._lock:
            number = next(self._numbers)
            self._asked[number] = _Asked(method, then, patience)
        self._say({"id": number, "method": method, **_params(params)})
        return number

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Tell."""
        self._say({"method": method, **_params(params)})

    def answer(self, request_id: RequestId, result: Any) -> None:
        """What was asked for."""
        self._say({"id": request_id, "result": result})

    def refuse(self, request_id: RequestId | None, code: int, message: str) -> None:
        """An error instead of an answer. Without an id: to what could not be read."""
        self._say({"id": request_id, "error": {"code": code, "message": message}})

    def _say(self, message: Message) -> None:
        # ASCII: a lone surrogate would otherwise be no UTF-8, and U+2028 the end of a line for some readers.
        line = json.dumps({**self._envelope, **message}).encode() + b"\n"
        with self._lock:
            self.outbox.append(line)

    def take(self) -> bytes:
        """All that is to be sent."""
        said: list[bytes] = []
        with self._lock:
            while self.outbox:  # One by one: so none is lost that a signal handler adds meanwhile.
                said.append(self.outbox.pop(0))
        return b"".join(said)

    # --- what we hear ---------------------------------------------------------------------------------------

    @property
    def waiting_for(self) -> list[str]:
        """The methods of our requests that have no answer yet, oldest first."""
        with self._lock:
            return [asked.method for asked in [*self._asked.values()]]

    def waits(self, now: float) -> tuple[float | None, str | None]:
        """For how many seconds more the answers may be waited for (None: for ever), and the method of a request whose
        time is over. A request's time counts from the first call after it was made: there is no clock in here."""
        if not self._asked:
            return None, None
        least: float | None = None
        with self._lock:
            for asked in [*self._asked.values()]:  # A copy, for the same reason.
                if asked.patience is None:
                    continue
                asked.since = now if asked.since is None else asked.since
                left = asked.since + asked.patience - now
                if left <= 0:
                    return 0.0, asked.method
                least = left if least is None else min(left, least)
        return least, None

    def feed(self, message: Message) -> Heard | None:
        """What it was, having called back; None if it makes no sense here (an answer to nothing we asked)."""
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
    """What this message says to a request for that."""
    if message.get("error") is None:
        return Answered(number, method, message.get("result"))
    error = mapping(message, "error")
    code = error.get("code")
    said = text(error, "message") or "an error without a message"
    return Failed(number, method, code if type(code) is int else 0, said, error.get("data"))


def request_number(line: bytes) -> int | None:
    """The number of the request on this line of a Peer's; None if it is no request."""
    found = REQUEST.match(line)
    return None if found is None else int(found[2])


def renumbered(line: bytes, number: int) -> bytes:
    """The request on this line, with another number."""
    return REQUEST.sub(lambda found: found[1] + b"%d" % number, line, count=1)


def _params(params: Mapping[str, Any] | None) -> Message:
    return {} if params is None else {"params": dict(params)}
