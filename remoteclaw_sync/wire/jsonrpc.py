"""One side of a JSON-RPC conversation, one message a line. It is fed, never connected: no pipe, no thread, no clock."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from .fields import Message, mapping, text

METHOD_NOT_FOUND = -32601

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


class Peer:
    """Numbers requests, and knows by its number what an answer is about. What is to be sent gathers in `outbox`.

    Args:
        envelope: whether messages have the key "jsonrpc". (Codex leaves it out.) In what is heard it never matters.
    """

    def __init__(self, *, envelope: bool = True) -> None:
        self._envelope: Message = {"jsonrpc": "2.0"} if envelope else {}
        self._numbers = itertools.count(1)
        self._asked: dict[RequestId, tuple[str, Callable[[Answered | Failed], Any] | None]] = {}
        self._lock = threading.Lock()
        self.outbox: list[bytes] = []

    # --- what we say ----------------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        then: Callable[[Answered | Failed], Any] | None = None,
    ) -> int:
        """Ask; `then` is called by `feed` with what comes back. The number that it will come back with."""
        with self._lock:
            number = next(self._numbers)
            self._asked[number] = method, then
        self._say({"id": number, "method": method, **_params(params)})
        return number

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Tell."""
        self._say({"method": method, **_params(params)})

    def answer(self, request_id: RequestId, result: Any) -> None:
        """What was asked for."""
        self._say({"id": request_id, "result": result})

    def refuse(self, request_id: RequestId, code: int, message: str) -> None:
        """An error instead of an answer."""
        self._say({"id": request_id, "error": {"code": code, "message": message}})

    def _say(self, message: Message) -> None:
        # ASCII: a lone surrogate would otherwise be no UTF-8, and U+2028 the end of a line for some readers.
        line = json.dumps({**self._envelope, **message}).encode() + b"\n"
        with self._lock:
            self.outbox.append(line)

    def take(self) -> bytes:
        """All that is to be sent."""
        with self._lock:
            said, self.outbox[:] = b"".join(self.outbox), []
        return said

    # --- what we hear ---------------------------------------------------------------------------------------

    @property
    def waiting_for(self) -> list[str]:
        """The methods of our requests that have no answer yet, oldest first."""
        with self._lock:
            return [method for method, _ in self._asked.values()]

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
        about, then = asked
        heard: Answered | Failed
        if message.get("error") is not None:
            error = mapping(message, "error")
            code = error.get("code")
            said = text(error, "message") or "an error without a message"
            heard = Failed(number, about, code if type(code) is int else 0, said, error.get("data"))
        else:
            heard = Answered(number, about, message.get("result"))
        if then is not None:
            then(heard)
        return heard


def _params(params: Mapping[str, Any] | None) -> Message:
    return {} if params is None else {"params": dict(params)}
