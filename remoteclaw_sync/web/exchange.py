"""One request to the chat page and its response. Nothing in the WSGI environment is trusted."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Any

import attrs

from .streams import EventStream

MAX_BODY = 1 << 20  # For JSON: a long prompt, not an upload.

Environ = dict[str, Any]


class Refused(Exception):
    """A request that is refused with this status and message."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        self.status = status
        super().__init__(message)


@attrs.frozen
class Response:
    """The response to send."""

    status: HTTPStatus
    headers: Mapping[str, str]
    body: bytes | EventStream


def content(kind: str, body: bytes) -> Response:
    """A response with a file."""
    return Response(HTTPStatus.OK, {"Content-Type": kind, "Content-Length": str(len(body))}, body)


def as_json(data: Mapping[str, Any], status: HTTPStatus = HTTPStatus.OK) -> Response:
    """A response with JSON values."""
    body = json.dumps(data).encode()
    return Response(status, {"Content-Type": "application/json", "Content-Length": str(len(body))}, body)


def json_body(environ: Environ) -> dict[str, Any]:
    """A request's JSON object. Raises Refused."""
    try:
        body = json.loads(body_of(environ, ("application/json",), MAX_BODY))
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise Refused(HTTPStatus.BAD_REQUEST, "the body must be a JSON object")
    return body


def body_of(environ: Environ, kinds: Collection[str], most: int) -> bytes:
    """A request's body. Its content type must be one of `kinds`: a foreign page's form can send all simpler types."""
    if environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower() not in kinds:
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the body must be {' or '.join(kinds)}")
    length = environ.get("CONTENT_LENGTH") or ""
    if not length.isdecimal():
        raise Refused(HTTPStatus.LENGTH_REQUIRED, "Content-Length is required")
    if int(length) > most:
        raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body must not be longer than {most} bytes")
    data: bytes = environ["wsgi.input"].read(int(length))
    return data


def bearer(environ: Environ) -> str:
    """The bearer token of a request; empty if it has none."""
    scheme, _, token = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
