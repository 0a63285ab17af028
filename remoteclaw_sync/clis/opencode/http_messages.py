"""HTTP/1.1 and server-sent events, as much of them as OpenCode's own server needs. Does no I/O itself."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from ...wire.json_lines import LineFramer

USER = "opencode"
MAX_HEAD_BYTES = 65_536
JSON_TYPE = "application/json"
EVENTS_TYPE = "text/event-stream"


class BadResponse(ValueError):
    """The response is not valid HTTP."""


def authorization(password: str) -> str:
    """The header by which the server recognises us."""
    return "Basic " + base64.b64encode(f"{USER}:{password}".encode()).decode()


def request_bytes(method: str, path: str, host: str, body: Any = None, password: str | None = None) -> bytes:
    """A whole request. Each has its own connection, so that none has to wait for another."""
    headers = {"Host": host, "Connection": "close", "Accept": f"{JSON_TYPE}, {EVENTS_TYPE}"}
    if password is not None:
        headers["Authorization"] = authorization(password)
    data = b""
    if body is not None:
        data = json.dumps(body).encode()
        headers |= {"Content-Type": JSON_TYPE}
    if method != "GET":
        headers["Content-Length"] = str(len(data))
    head = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(head).encode() + data


class Response:
    """The response on one connection: `status` and `headers` once they are known, `is_over` when it is complete."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: Mapping[str, str] = {}
        self.is_over = False
        self._unread = bytearray()
        self._left: int | None = None  # Bytes left of the body or its current chunk; None: until the connection ends.
        self._chunked = False

    @property
    def media_type(self) -> str:
        """The content type without its parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def feed(self, data: bytes) -> bytes:
        """The part of the body that these bytes contain. Raises BadResponse."""
        self._unread += data
        if self.status is None and not self._read_head():
            return b""
        return self._read_chunks() if self._chunked else self._read_plain()

    def end(self) -> None:
        """The connection has ended. Raises BadResponse if the response is incomplete."""
        if not self.is_over and (self.status is None or self._chunked or self._left):
            raise BadResponse("the connection ended before the answer did")
        self.is_over = True

    def _read_head(self) -> bool:
        while self.status is None:
            end = self._unread.find(b"\r\n\r\n")
            if end < 0:
                if len(self._unread) > MAX_HEAD_BYTES:
                    raise BadResponse("the head of the answer does not end")
                return False
            first, *lines = bytes(self._unread[:end]).decode("latin-1").split("\r\n")
            del self._unread[: end + 4]
            version, _, rest = first.partition(" ")
            code = rest[:3]
            if not version.startswith("HTTP/1.") or not (code.isascii() and code.isdigit() and len(code) == 3):
                raise BadResponse("the answer is no HTTP/1.1")
            if int(code) >= 200:  # 1xx responses announce another one.
                self.status = int(code)
                self._understand(lines)
        return True

    def _understand(self, lines: list[str]) -> None:
        pairs = (line.partition(":") for line in lines)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self._chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        length = self.headers.get("content-length", "")
        if self.status in (204, 304):
            self._left, self._chunked = 0, False
        elif not self._chunked and length:
            if not (length.isascii() and length.isdigit()):
                raise BadResponse("the length of the answer is no number")
            self._left = int(length)

    def _read_plain(self) -> bytes:
        size = len(self._unread) if self._left is None else min(self._left, len(self._unread))
        body = bytes(self._unread[:size])
        del self._unread[:size]
        if self._left is not None:
            self._left -= size
            self.is_over = self._left == 0
        return body

    def _read_chunks(self) -> bytes:
        pieces = []
        while not self.is_over:
            if self._left is None and not self._begin_chunk():
                break
            assert self._left is not None
            if self._left == 0:
                self.is_over = True  # Trailers are ignored.
                break
            piece = bytes(self._unread[: self._left])
            del self._unread[: len(piece)]
            pieces.append(piece)
            self._left -= len(piece)
            if self._left:
                break
            self._left = None
        return b"".join(pieces)

    def _begin_chunk(self) -> bool:
        """Whether the size of the next chunk is known. The one before it ends with an empty line."""
        start = 2 if self._unread[:2] == b"\r\n" else 0
        end = self._unread.find(b"\r\n", start)
        if end < 0:
            if len(self._unread) > MAX_HEAD_BYTES:
                raise BadResponse("the size of a chunk does not end")
            return False
        try:
            self._left = int(bytes(self._unread[start:end]).partition(b";")[0], 16)
        except ValueError:
            raise BadResponse("the size of a chunk is no number") from None
        del self._unread[: end + 2]
        return True


class EventStream:
    """The data of server-sent events, one line each. (OpenCode's are JSON, which needs only one.)"""

    def __init__(self, max_line_bytes: int) -> None:
        self._framer = LineFramer(max_line_bytes)

    def feed(self, body: bytes) -> bytes:
        """The data of the events completed by these bytes, as lines."""
        block = self._framer.push_block(body)
        if block is None:
            return b""
        data = [line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:")]
        return b"".join(line + b"\n" for line in data if line)


def answer_line(number: int, status: int, media_type: str, body: bytes) -> bytes:
    """An answer, as a line for the dialect. Bodies other than JSON are left out: unknown routes return a web page."""
    told = b"null"
    if media_type == JSON_TYPE and body.strip():
        try:
            told = body if b"\n" not in body and b"\r" not in body else json.dumps(json.loads(body)).encode()
        except (ValueError, RecursionError):
            media_type = ""
    kind = json.dumps(media_type).encode()
    return b'{"id":%d,"result":{"status":%d,"type":%b,"body":%b}}\n' % (number, status, kind, told)


def rung_line(number: int) -> bytes:
    """A line that tells the dialect that a `WAIT` is over."""
    return b'{"id":%d,"result":"rung"}\n' % number


def failure_line(number: int, message: str) -> bytes:
    """A line that tells the dialect that there is no answer."""
    return json.dumps({"id": number, "error": {"code": 0, "message": message}}).encode() + b"\n"
