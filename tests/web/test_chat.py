"""The chat application: who may talk to it, and what it does not let through. Called as a WSGI server would."""

from __future__ import annotations

import io
import json
import re
import weakref
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from wsgiref.validate import validator

import pytest

from remoteclaw_sync import AgentEvent, AgentTextEvent, create_cli_runtime
from remoteclaw_sync.web import Runs
from remoteclaw_sync.web.door import Door
from remoteclaw_sync.web.page import MAX_BODY, PAGE, Chat
from tests.fakes import wait_until
from tests.web.streams import check_whole, frames

HOST = "127.0.0.1:8788"
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
            "HTTP_AUTHORIZATION": f"Bearer {session_of(chat)}",
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


SESSIONS: weakref.WeakKeyDictionary[Door, str] = weakref.WeakKeyDictionary()


def session_of(chat: Chat) -> str:
    """The session of a visitor who has been let in before."""
    return SESSIONS[chat.door]


@pytest.fixture
def announced() -> list[str]:
    """The links that were announced."""
    return []


@pytest.fixture
def chat(registry: Runs, announced: list[str]) -> Chat:
    def start(provider: str, prompt: str, session_id: str | None) -> Iterable[AgentEvent]:
        assert provider == "demo"
        return create_cli_runtime("demo", pace=0).start(prompt, session_id=session_id)

    door = Door(announced.append)
    SESSIONS[door] = door.open(door.link) or ""
    announced.clear()
    return Chat(
        door=door,
        hosts={HOST},
        providers={"claude": False, "demo": True},
        default="demo",
        start=start,
        runs=registry,
    )


def ask(chat: Chat, **body: Any) -> Answer:
    return Answer(chat, "POST", "/api/runs", json.dumps({"provider": "demo", "prompt": "hi", **body}).encode(), **JSON)


# --- the way it is meant ---------------------------------------------------------------------------------------


def enter(chat: Chat, link: str, **headers: str | None) -> Answer:
    """Exchange a link for a session, as the page does."""
    return Answer(chat, "POST", "/api/session", b"", HTTP_AUTHORIZATION=f"Bearer {link}", **headers)


def test_the_page_is_for_everybody_and_holds_nothing(chat: Chat) -> None:
    page = Answer(chat, "GET", "/", HTTP_AUTHORIZATION=None)
    assert (page.status, page.body) == (200, PAGE)


def test_a_link_is_exchanged_for_a_session_that_opens_everything(chat: Chat) -> None:
    entered = enter(chat, chat.door.link)
    assert entered.status == 201
    mine = f"Bearer {entered.json['session']}"
    assert Answer(chat, "GET", "/api/providers", HTTP_AUTHORIZATION=mine).json["default"] == "demo"


def test_a_link_works_once_and_the_next_one_is_announced(chat: Chat, announced: list[str]) -> None:
    first = chat.door.link
    session = enter(chat, first).json["session"]
    assert announced == [chat.door.link]
    again = enter(chat, first)
    assert again.status == 403
    assert "remoteclaw-sync serve" in again.json["error"], "it says where the next link is"
    assert announced == [chat.door.link], "a link that fails uses nothing up"
    second = enter(chat, announced[0])
    assert second.status == 201
    for one in (session, second.json["session"]):
        assert Answer(chat, "GET", "/api/providers", HTTP_AUTHORIZATION=f"Bearer {one}").status == 200


def test_of_many_who_use_a_link_at_once_one_is_let_in(chat: Chat) -> None:
    link = chat.door.link
    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(lambda _: enter(chat, link).status, range(64)))
    assert sorted(statuses) == [201] + [403] * 63


@pytest.mark.parametrize("place", ["/", "/api/providers", "/api/session"])
def test_no_answer_sets_a_cookie_and_a_cookie_opens_nothing(place: str, chat: Chat) -> None:
    session = session_of(chat)
    method = "POST" if place == "/api/session" else "GET"
    link = chat.door.link
    shown = f"Bearer {link if method == 'POST' else session}"
    answer = Answer(chat, method, place, HTTP_AUTHORIZATION=shown)
    assert answer.status in (200, 201)
    assert "Set-Cookie" not in answer.headers
    cookies = "; ".join(f"{name}={value}" for name in ("session", "token", "chat") for value in (session, link))
    assert Answer(chat, "GET", "/api/providers", HTTP_AUTHORIZATION=None, HTTP_COOKIE=cookies).status == 403


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

PLACES = [("GET", "/api/providers"), ("POST", "/api/runs"), ("GET", "/api/runs/x/events")]
PLACES += [("POST", "/api/runs/x/abort"), ("GET", "/nowhere")]
FOREIGN = [
    {"HTTP_HOST": "evil.example:8788"},
    {"HTTP_HOST": "127.0.0.1"},
    {"HTTP_HOST": None},
    {"HTTP_ORIGIN": "http://evil.example"},
    {"HTTP_ORIGIN": "https://127.0.0.1:8788"},
    {"HTTP_ORIGIN": "http://127.0.0.1:8789"},
    {"HTTP_ORIGIN": "null"},
]


@pytest.mark.parametrize(("method", "path"), PLACES)
@pytest.mark.parametrize(
    "headers",
    [
        {"HTTP_AUTHORIZATION": None},
        {"HTTP_AUTHORIZATION": ""},
        {"HTTP_AUTHORIZATION": "Bearer"},
        {"HTTP_AUTHORIZATION": "Bearer "},
        {"HTTP_AUTHORIZATION": "Bearer wrong"},
        {"HTTP_AUTHORIZATION": "Bearer \xff\ud800"},
        *FOREIGN,
    ],
    ids=str,
)
def test_nobody_else_gets_in(
    method: str, path: str, headers: dict[str, str | None], chat: Chat, registry: Runs
) -> None:
    body = json.dumps({"provider": "demo", "prompt": "hi"}).encode() if method == "POST" else b""
    answer = Answer(chat, method, path, body, **{**JSON, **headers})
    assert answer.status == 403
    for secret in (session_of(chat), chat.door.link):
        assert secret.encode() not in answer.body
    assert registry.folder.run_ids() == []


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_link_is_not_exchanged_for_another_site(headers: dict[str, str | None], chat: Chat) -> None:
    link = chat.door.link
    assert enter(chat, link, **headers).status == 403
    assert enter(chat, link).status == 201, "and it is not used up by that"


def test_neither_link_nor_session_does_the_others_work(chat: Chat) -> None:
    assert Answer(chat, "GET", "/api/providers", HTTP_AUTHORIZATION=f"Bearer {chat.door.link}").status == 403
    assert enter(chat, session_of(chat)).status == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_sites_page_may_link_to_the_page_and_nothing_else(site: str, chat: Chat) -> None:
    assert Answer(chat, "GET", "/", HTTP_AUTHORIZATION=None, HTTP_SEC_FETCH_SITE=site).status == 200
    assert enter(chat, chat.door.link, HTTP_SEC_FETCH_SITE=site).status == 403
    assert Answer(chat, "GET", "/api/providers", HTTP_SEC_FETCH_SITE=site).status == 403
    assert Answer(chat, "GET", "/api/providers", HTTP_SEC_FETCH_SITE="same-origin").status == 200


@pytest.mark.parametrize("name", ["token", "session"])
def test_nothing_in_an_address_opens_anything(name: str, chat: Chat) -> None:
    for secret in (session_of(chat), chat.door.link):
        assert Answer(chat, "GET", f"/api/providers?{name}={secret}", HTTP_AUTHORIZATION=None).status == 403


def test_one_run_more_than_may_be_is_refused_until_one_has_ended(chat: Chat, registry: Runs) -> None:
    registry.max_live = 2
    run_ids = [ask(chat, prompt="demo:hang").json["run_id"] for _ in range(2)]
    refused = ask(chat)
    assert refused.status == 429
    assert "2 agents are at work" in refused.json["error"]
    assert len(registry.folder.run_ids()) == 2
    registry.get(run_ids[0]).abort()
    assert wait_until(lambda: ask(chat).status == 201)
    registry.abort_all()


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
