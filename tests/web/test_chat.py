"""The chat application: who may talk to it, and what it does not let through. Called as a WSGI server would."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable
from typing import Any
from wsgiref.validate import validator

import pytest

from remoteclaw_sync import AgentEvent, AgentTextEvent, create_cli_runtime
from remoteclaw_sync.web import Runs
from remoteclaw_sync.web.chat import MAX_BODY, PAGE, Chat
from tests.fakes import wait_until
from tests.web.streams import check_whole, frames

TOKEN = "the-token"
HOST = "127.0.0.1:8788"
COOKIE = f"chat={TOKEN}"
JSON = {"CONTENT_TYPE": "application/json"}


class Answer:
    """A response, read to its end."""

    def __init__(self, chat: Chat, method: str, path: str, body: bytes = b"", **headers: str | None) -> None:
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "SCRIPT_NAME": "",
            "PATH_INFO": path.partition("?")[0],
            "QUERY_STRING": path.partition("?")[2],
            "SERVER_NAME": "127.0.0.1",
            "SERVER_PORT": "8788",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "HTTP_HOST": HOST,
            "HTTP_COOKIE": COOKIE,
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(body),
            "wsgi.errors": io.StringIO(),
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
            **headers,
        }
        # What the standard says of applications is checked on the way.
        chunks = validator(chat)({name: value for name, value in environ.items() if value is not None}, self._start)
        try:
            self.body = b"".join(chunks)
        finally:
            chunks.close()  # type: ignore[attr-defined]

    def _start(self, status: str, headers: list[tuple[str, str]], error: Any = None) -> Any:
        self.status = int(status.split()[0])
        self.headers = dict(headers)
        return lambda data: None

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@pytest.fixture
def chat(registry: Runs) -> Chat:
    def start(provider: str, prompt: str, session_id: str | None) -> Iterable[AgentEvent]:
        return create_cli_runtime(provider, pace=0).start(prompt, session_id=session_id)

    return Chat(
        token=TOKEN,
        cookie="chat",
        hosts={HOST},
        providers={"claude": False, "demo": True},
        default="demo",
        start=start,
        runs=registry,
    )


def ask(chat: Chat, **body: Any) -> Answer:
    return Answer(chat, "POST", "/api/runs", json.dumps({"provider": "demo", "prompt": "hi", **body}).encode(), **JSON)


# --- the way it is meant ---------------------------------------------------------------------------------------


def test_the_address_with_the_token_gives_the_page_and_a_cookie(chat: Chat) -> None:
    page = Answer(chat, "GET", f"/?token={TOKEN}", HTTP_COOKIE=None)
    assert (page.status, page.body) == (200, PAGE)
    assert page.headers["Set-Cookie"] == f"{COOKIE}; Path=/; HttpOnly; SameSite=Strict"
    assert Answer(chat, "GET", "/").status == 200


def test_a_run_is_started_listened_to_and_found_again(chat: Chat) -> None:
    started = ask(chat)
    assert started.status == 201
    events = f"/api/runs/{started.json['run_id']}/events"
    stream = Answer(chat, "GET", events)
    assert stream.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    whole = frames([stream.body])
    check_whole(whole)
    assert frames([Answer(chat, "GET", events, HTTP_LAST_EVENT_ID=whole[9].id).body]) == whole[10:]


def test_a_run_is_stopped(chat: Chat, registry: Runs) -> None:
    run_id = ask(chat, prompt="demo:hang").json["run_id"]
    assert Answer(chat, "POST", f"/api/runs/{run_id}/abort", b"{}", **JSON).status == 200
    assert wait_until(lambda: not registry.get(run_id).live)
    *_, error, done = frames([Answer(chat, "GET", f"/api/runs/{run_id}/events").body])
    assert (error.data["code"], done.data["result"]["aborted"]) == ("ABORTED", True)


# --- who may not -----------------------------------------------------------------------------------------------

PLACES = [("GET", "/"), ("GET", "/api/providers"), ("POST", "/api/runs"), ("GET", "/api/runs/x/events")]
PLACES += [("POST", "/api/runs/x/abort"), ("GET", "/nowhere")]


@pytest.mark.parametrize(("method", "path"), PLACES)
@pytest.mark.parametrize(
    "headers",
    [
        {"HTTP_COOKIE": None},
        {"HTTP_COOKIE": "chat=wrong"},
        {"HTTP_COOKIE": "chat="},
        {"HTTP_COOKIE": f"other={TOKEN}"},
        {"HTTP_HOST": "evil.example:8788"},
        {"HTTP_HOST": "127.0.0.1"},
        {"HTTP_HOST": None},
        {"HTTP_ORIGIN": "http://evil.example"},
        {"HTTP_ORIGIN": "https://127.0.0.1:8788"},
        {"HTTP_ORIGIN": "http://127.0.0.1:8789"},
        {"HTTP_ORIGIN": "null"},
    ],
    ids=str,
)
def test_nobody_else_gets_in(
    method: str, path: str, headers: dict[str, str | None], chat: Chat, registry: Runs
) -> None:
    body = json.dumps({"provider": "demo", "prompt": "hi"}).encode() if method == "POST" else b""
    answer = Answer(chat, method, path, body, **{**JSON, **headers})
    assert answer.status == 403
    assert "Set-Cookie" not in answer.headers
    assert TOKEN.encode() not in answer.body
    assert registry.folder.run_ids() == []


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_sites_page_may_link_to_the_page_and_nothing_else(site: str, chat: Chat) -> None:
    assert Answer(chat, "GET", f"/?token={TOKEN}", HTTP_COOKIE=None, HTTP_SEC_FETCH_SITE=site).status == 200
    assert Answer(chat, "GET", "/api/providers", HTTP_SEC_FETCH_SITE=site).status == 403
    assert Answer(chat, "GET", "/api/providers", HTTP_SEC_FETCH_SITE="same-origin").status == 200


def test_the_token_in_the_address_opens_the_page_only(chat: Chat) -> None:
    assert Answer(chat, "GET", f"/api/providers?token={TOKEN}", HTTP_COOKIE=None).status == 403
    assert Answer(chat, "GET", "/?token=wrong", HTTP_COOKIE=None).status == 403


def test_the_page_is_found_beside_other_servers_cookies(chat: Chat) -> None:
    assert Answer(chat, "GET", "/", HTTP_COOKIE=f'odd="[{{; {COOKIE}; x').status == 200


# --- what it does not take -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b'{"provider": "demo", "prompt": "hi"}', {"CONTENT_TYPE": "text/plain"}, 415),
        (b'{"provider": "demo", "prompt": "hi"}', {"CONTENT_TYPE": "application/x-www-form-urlencoded"}, 415),
        (b"{", JSON, 400),
        (b"[]", JSON, 400),
        (b"[" * 100_000, JSON, 400),
        (b'{"provider": "demo"}', JSON, 400),
        (b'{"provider": "demo", "prompt": ""}', JSON, 400),
        (b'{"provider": "demo", "prompt": "hi", "session_id": "--flag"}', JSON, 400),
        (b'{"provider": "demo", "prompt": "hi", "session_id": 1}', JSON, 400),
        (b'{"provider": "claude", "prompt": "hi"}', JSON, 400),
        (b'{"provider": "/bin/sh", "prompt": "hi"}', JSON, 400),
        (b'{"provider": ["demo"], "prompt": "hi"}', JSON, 400),
        (b"x" * (MAX_BODY + 1), JSON, 413),
        (b"{}", {**JSON, "CONTENT_LENGTH": ""}, 411),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_bad_request_starts_nothing(
    body: bytes, headers: dict[str, str], status: int, chat: Chat, registry: Runs
) -> None:
    answer = Answer(chat, "POST", "/api/runs", body, **headers)
    assert answer.status == status
    assert answer.json["error"]
    assert registry.folder.run_ids() == []


@pytest.mark.parametrize("run_id", ["0" * 32, "..", "%2e%2e", "x"])
def test_an_unknown_run_is_not_found(run_id: str, chat: Chat) -> None:
    assert Answer(chat, "GET", f"/api/runs/{run_id}/events").status == 404
    assert Answer(chat, "POST", f"/api/runs/{run_id}/abort", b"{}", **JSON).status == 404


def test_an_event_id_that_is_none_is_not_found(chat: Chat, registry: Runs) -> None:
    run_id = registry.start([AgentTextEvent("a")]).run_id
    assert Answer(chat, "GET", f"/api/runs/{run_id}/events", HTTP_LAST_EVENT_ID="1; x").status == 404


# --- the page itself -------------------------------------------------------------------------------------------


def test_the_page_runs_no_script_but_its_own_and_is_framed_by_nobody(chat: Chat) -> None:
    headers = Answer(chat, "GET", "/").headers
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert re.fullmatch(r"'sha256-[\w+/]+='", policy["script-src"])
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert (headers["Referrer-Policy"], headers["X-Content-Type-Options"]) == ("no-referrer", "nosniff")


def test_the_page_loads_nothing_from_elsewhere_and_never_makes_markup_of_text() -> None:
    page = PAGE.decode()
    assert "//" not in re.sub(r"^\s*//.*$|\s//\s.*$", "", page, flags=re.MULTILINE), "no remote address"
    for way_in in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser"):
        assert way_in not in page
