"""The example page and its server side, as one WSGI application: a chat with an agent, for one person.

Whoever is let in can run an agent on this machine. So each request must show its session, must use one of our host
names (not a foreign name that points here), and must not come from another site's page. The page itself contains
nothing secret and is open to everybody.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from http import HTTPStatus
from importlib import resources
from typing import Any

import attrs

from ..types import AgentEvent
from .detached import RunHandle, Runs, TooManyRunsError
from .door import Door
from .frameworks import headers as stream_headers
from .journal import UnknownRunError
from .streams import EventStream, sse

MAX_BODY = 1 << 20  # Of a request: a long prompt, not an upload.
HEARTBEAT = 9.0
COME_IN = (
    "This tab is not signed in. Open the newest link in the terminal where remoteclaw-sync serve runs. "
    "Each link works once; when one is used, the next is printed."
)

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
StartRun = Callable[[str, str, str | None], Iterable[AgentEvent]]


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


@attrs.frozen(kw_only=True)
class Chat:
    """The application.

    Args:
        door: decides who is let in. The page gets a session from it, which every further request must show.
        hosts: the `Host` headers that are ours; None accepts any.
        providers: the agents to choose from, and whether each can be used.
        default: the one that is selected at first.
        start: makes a run from provider, prompt and session id; ValueError and TypeError are the visitor's mistake.
        runs: where the runs are kept.
    """

    door: Door
    hosts: Collection[str] | None
    providers: Mapping[str, bool]
    default: str
    start: StartRun
    runs: Runs

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        try:
            response = self._answer(environ)
        except Refused as refused:
            response = _json(refused.status, {"error": str(refused)})
        line = f"{response.status.value} {response.status.phrase}"
        start_response(line, list({**SAFETY, **response.headers}.items()))
        if isinstance(response.body, EventStream):
            return response.body
        return [response.body]

    def _answer(self, environ: Environ) -> Response:
        method, path = environ["REQUEST_METHOD"], environ.get("PATH_INFO", "/")
        self._check(environ, path.strip("/"))
        match method, path.strip("/").split("/"):
            case "GET", [""]:
                return self._page()
            case "POST", ["api", "session"]:
                return self._new_session(_bearer(environ))
            case "GET", ["api", "providers"]:
                listed = [{"name": name, "installed": usable} for name, usable in self.providers.items()]
                return _json(HTTPStatus.OK, {"providers": listed, "default": self.default})
            case "POST", ["api", "runs"]:
                return self._new_run(_body(environ))
            case "GET", ["api", "runs", run_id, "events"]:
                return self._events(run_id, environ.get("HTTP_LAST_EVENT_ID"))
            case "POST", ["api", "runs", run_id, "abort"]:
                _body(environ)
                self._find(run_id).abort()
                return _json(HTTPStatus.OK, {})
        raise Refused(HTTPStatus.NOT_FOUND, "there is no such page")

    # --- who may ------------------------------------------------------------------------------------------

    def admits(self, environ: Environ) -> bool:
        """Whether a request with these headers has a valid session."""
        return self._is_for_us(environ) and self.door.knows(_bearer(environ))

    def _is_for_us(self, environ: Environ) -> bool:
        return self.hosts is None or environ.get("HTTP_HOST", "").lower() in self.hosts

    def _check(self, environ: Environ, path: str) -> None:
        if not self._is_for_us(environ):
            raise Refused(HTTPStatus.FORBIDDEN, "this server does not go by that name")
        origin = environ.get("HTTP_ORIGIN")
        site = environ.get("HTTP_SEC_FETCH_SITE", "none")
        # Following a link from elsewhere (to the printed address) is fine; a request by another page's script is not.
        is_page = environ["REQUEST_METHOD"] == "GET" and path == "" and origin is None
        ours = f"http://{environ.get('HTTP_HOST', '').lower()}"
        if (origin is not None and origin != ours) or (not is_page and site not in ("same-origin", "none")):
            raise Refused(HTTPStatus.FORBIDDEN, "requests from other sites are refused")
        if not is_page and path != "api/session" and not self.door.knows(_bearer(environ)):
            raise Refused(HTTPStatus.FORBIDDEN, COME_IN)

    # --- what there is --------------------------------------------------------------------------------------

    def _page(self) -> Response:
        head = {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": POLICY}
        return Response(HTTPStatus.OK, {**head, "Content-Length": str(len(PAGE))}, PAGE)

    def _new_session(self, link: str) -> Response:
        session = self.door.open(link)
        if session is None:
            raise Refused(HTTPStatus.FORBIDDEN, COME_IN)
        return _json(HTTPStatus.CREATED, {"session": session})

    def _new_run(self, body: dict[str, Any]) -> Response:
        provider, prompt, session_id = body.get("provider"), body.get("prompt"), body.get("session_id")
        if not isinstance(provider, str) or not self.providers.get(provider):
            raise Refused(HTTPStatus.BAD_REQUEST, "provider must be one that is installed")
        if not isinstance(prompt, str) or not isinstance(session_id, str | None):
            raise Refused(HTTPStatus.BAD_REQUEST, "prompt and session_id must be strings")
        try:
            run = self.start(provider, prompt, session_id)
        except (ValueError, TypeError) as error:
            raise Refused(HTTPStatus.BAD_REQUEST, str(error)) from None
        try:
            return _json(HTTPStatus.CREATED, {"run_id": self.runs.start(run).run_id})
        except TooManyRunsError as error:
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, str(error)) from None
        except OSError as error:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, f"the run cannot be stored: {error.strerror}") from None

    def _events(self, run_id: str, last_event_id: str | None) -> Response:
        handle = self._find(run_id)
        try:
            stream = sse(handle, heartbeat=HEARTBEAT, retry=1.0, last_event_id=last_event_id or None)
        except UnknownRunError as error:
            raise Refused(HTTPStatus.NOT_FOUND, str(error)) from None
        return Response(HTTPStatus.OK, stream_headers(stream), stream)

    def _find(self, run_id: str) -> RunHandle:
        try:
            return self.runs.get(run_id)
        except UnknownRunError as error:
            raise Refused(HTTPStatus.NOT_FOUND, str(error)) from None


def _body(environ: Environ) -> dict[str, Any]:
    """A request's JSON. We insist on its content type, because a foreign page's form can send all the simpler ones."""
    if environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be application/json")
    length = environ.get("CONTENT_LENGTH") or ""
    if not length.isdecimal():
        raise Refused(HTTPStatus.LENGTH_REQUIRED, "Content-Length is required")
    if int(length) > MAX_BODY:
        raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body must not be longer than {MAX_BODY} bytes")
    try:
        body = json.loads(environ["wsgi.input"].read(int(length)))
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise Refused(HTTPStatus.BAD_REQUEST, "the body must be a JSON object")
    return body


def _bearer(environ: Environ) -> str:
    scheme, _, token = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _json(status: HTTPStatus, data: Mapping[str, Any]) -> Response:
    body = json.dumps(data).encode()
    head = {"Content-Type": "application/json", "Cache-Control": "no-store", "Content-Length": str(len(body))}
    return Response(status, head, body)


def _policy(page: str) -> str:
    """Allows only the page's own script and style, by their hashes: nothing an agent says could run, if it got in."""
    sources = {}
    for tag in ("script", "style"):
        (code,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        sources[tag] = f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"
    return (
        f"default-src 'none'; script-src {sources['script']}; style-src {sources['style']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


SAFETY = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_TEXT = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
POLICY = _policy(_TEXT)
PAGE = _TEXT.encode()
