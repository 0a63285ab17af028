"""The chat application: who may talk to it, and what it does not let through. Called as a WSGI server would call it."""

from __future__ import annotations

import io
import json
import re
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from wsgiref.validate import validator

import pytest

from remoteclaw_sync import AgentTextEvent
from remoteclaw_sync.demo.runtime import DemoRuntime
from remoteclaw_sync.web import Runs
from remoteclaw_sync.web.assets import FILES, PAGE
from remoteclaw_sync.web.conversations import Conversations
from remoteclaw_sync.web.door import Door
from remoteclaw_sync.web.exchange import MAX_BODY
from remoteclaw_sync.web.page import Chat, Settings
from remoteclaw_sync.web.uploads import MAX_IMAGE, Uploads
from remoteclaw_sync.web.warm import WarmSessions
from tests.fakes import wait_until
from tests.web.streams import Frame, check_whole, frames

HOST = "127.0.0.1:8788"
JSON = {"CONTENT_TYPE": "application/json"}


class Answer:
    """A response, read to the end."""

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
        # This also checks what the WSGI standard requires of applications.
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
    """The session of a visitor who has already been let in."""
    return SESSIONS[chat.door]


@pytest.fixture
def announced() -> list[str]:
    """The links that were announced."""
    return []


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[WarmSessions]:
    folder = tmp_path / "work"
    folder.mkdir()
    warm = WarmSessions(lambda provider: DemoRuntime(pace=0), folder, max_idle=2)
    yield warm
    warm.close_all()


@pytest.fixture
def chat(registry: Runs, announced: list[str], agents: WarmSessions, tmp_path: Path) -> Iterator[Chat]:
    door = Door(announced.append)
    SESSIONS[door] = door.open(door.link) or ""
    announced.clear()
    yield Chat(
        door=door,
        hosts={HOST},
        settings=Settings(providers={"claude": False, "demo": True}, provider="demo"),
        agents=agents,
        runs=registry,
        conversations=Conversations(str(tmp_path / "conversations")),
        uploads=Uploads(str(tmp_path / "images")),
    )
    registry.abort_all()


def ask(chat: Chat, **body: Any) -> Answer:
    return Answer(chat, "POST", "/api/runs", json.dumps({"provider": "demo", "prompt": "hi", **body}).encode(), **JSON)


# --- the way it is meant ---------------------------------------------------------------------------------------


def enter(chat: Chat, link: str, **headers: str | None) -> Answer:
    """Exchange a link for a session, as the page does."""
    return Answer(chat, "POST", "/api/session", b"", HTTP_AUTHORIZATION=f"Bearer {link}", **headers)


def test_the_page_is_for_everybody_and_holds_nothing(chat: Chat) -> None:
    page = Answer(chat, "GET", "/", HTTP_AUTHORIZATION=None)
    assert (page.status, page.body) == (200, FILES[PAGE][1])


def test_a_link_is_exchanged_for_a_session_that_opens_everything(chat: Chat) -> None:
    entered = enter(chat, chat.door.link)
    assert entered.status == 201
    mine = f"Bearer {entered.json['session']}"
    assert Answer(chat, "GET", "/api/providers", HTTP_AUTHORIZATION=mine).json["provider"] == "demo"


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


def conversation_of(answer: Answer) -> str:
    return str(answer.json["conversation"])


def read(chat: Chat, run_id: str) -> list[Frame]:
    """All events of a run."""
    return frames([Answer(chat, "GET", f"/api/runs/{run_id}/events").body])


def tell(chat: Chat, run_id: str, verb: str, **body: Any) -> Answer:
    return Answer(chat, "POST", f"/api/runs/{run_id}/{verb}", json.dumps(body).encode(), **JSON)


def the_request(chat: Chat, run_id: str) -> str:
    """The id of this run's open request, as soon as there is one."""
    handle = chat.runs.get(run_id)
    assert wait_until(lambda: handle.open_requests)
    return handle.open_requests[0].id


def test_a_conversation_has_one_warm_session_and_is_listed(chat: Chat) -> None:
    first = ask(chat, prompt="One\n  thing")
    name = conversation_of(first)
    read(chat, first.json["run_id"])
    assert wait_until(lambda: not chat.conversations.list()[0]["is_running"])
    second = ask(chat, prompt="Another", conversation=name)
    assert conversation_of(second) == name
    answer = read(chat, second.json["run_id"])[-1].data["result"]
    assert answer["text"].startswith("This is turn 2 of our session.")
    (listed,) = Answer(chat, "GET", "/api/conversations").json["conversations"]
    assert (listed["id"], listed["title"], listed["provider"]) == (name, "One thing", "demo")
    details = Answer(chat, "GET", f"/api/conversations/{name}").json
    assert [turn["prompt"] for turn in details["turns"]] == ["One\n  thing", "Another"]
    assert [len(times) for times in details["turns"][0]["tools"].values()] == [2]


def test_a_second_turn_at_the_same_time_is_refused(chat: Chat) -> None:
    first = ask(chat, prompt="demo:hang")
    again = ask(chat, conversation=conversation_of(first))
    assert again.status == 409
    assert len(chat.runs.folder.run_ids()) == 1


def test_an_idle_session_makes_room_and_is_resumed_later(chat: Chat, agents: WarmSessions) -> None:
    names = []
    for number in range(4):
        started = ask(chat, prompt=f"Number {number}")
        read(chat, started.json["run_id"])
        names.append(conversation_of(started))
    assert len(agents._warm) <= 3, "two that are idle, and the last"
    assert wait_until(lambda: not chat.conversations.details(names[0])["is_running"])
    resumed = ask(chat, conversation=names[0])
    assert read(chat, resumed.json["run_id"])[-1].data["result"]["text"].startswith("This is turn 2")


def test_conversations_are_found_again_by_the_next_server_and_hold_no_answers(chat: Chat, tmp_path: Path) -> None:
    started = ask(chat, prompt="Keep this")
    read(chat, started.json["run_id"])
    name = conversation_of(started)
    assert wait_until(lambda: chat.conversations.session_id(name, "demo") is not None)
    again = Conversations(str(tmp_path / "conversations"))
    assert again.details(name) == chat.conversations.details(name)
    (file,) = (tmp_path / "conversations").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert "Hello! This is the demo agent" not in file.read_text()
    file.write_text("{broken")
    assert Conversations(str(tmp_path / "conversations")).list() == []


def test_settings_are_changed_in_place(chat: Chat) -> None:
    started = ask(chat, prompt="demo:wait")
    name = conversation_of(started)
    body = json.dumps({"provider": "demo", "model": "large", "permission_mode": "bypass"}).encode()
    assert Answer(chat, "POST", f"/api/conversations/{name}/settings", body, **JSON).status == 200
    assert wait_until(lambda: tell(chat, started.json["run_id"], "steer", text="go").status == 200)
    read(chat, started.json["run_id"])
    assert wait_until(lambda: not chat.conversations.details(name)["is_running"])
    free = ask(chat, prompt="Run a command", conversation=name, permission_mode="bypass", model="large")
    assert "permission" not in [frame.event for frame in read(chat, free.json["run_id"])]
    assert chat.conversations.details(name)["model"] == "large"


# --- people in the loop ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("allow", "remember"), [(True, False), (True, True), (False, False)])
def test_an_answer_reaches_the_agent_and_is_known_later(allow: bool, remember: bool, chat: Chat) -> None:
    started = ask(chat, prompt="Run a command")
    run_id = started.json["run_id"]
    request = the_request(chat, run_id)
    assert tell(chat, run_id, "answer", request_id=request, allow=allow, remember=remember, message="No.").status == 200
    denials = read(chat, run_id)[-1].data["result"]["permission_denials"]
    assert len(denials) == (0 if allow else 1)
    noted = chat.conversations.details(conversation_of(started))["turns"][0]["answers"]
    assert noted == {request: ("remember" if remember else "allow") if allow else "deny"}


def test_the_list_says_which_agents_wait_for_an_answer(chat: Chat) -> None:
    def asking() -> dict[str, bool]:
        listed = Answer(chat, "GET", "/api/conversations").json["conversations"]
        return {one["title"]: one["is_asking"] for one in listed}

    asks, works = ask(chat, prompt="Run a command"), ask(chat, prompt="demo:hang")
    request = the_request(chat, asks.json["run_id"])
    assert asking() == {"Run a command": True, "demo:hang": False}
    tell(chat, asks.json["run_id"], "answer", request_id=request, allow=False)
    read(chat, asks.json["run_id"])
    assert asking() == {"Run a command": False, "demo:hang": False}
    tell(chat, works.json["run_id"], "abort")


def test_an_answer_counts_once_and_only_for_its_own_run(chat: Chat) -> None:
    """A replay, a second tab, another run's request, a forged id."""
    first, second = (ask(chat, prompt="Run a command").json["run_id"] for _ in range(2))
    mine, theirs = the_request(chat, first), the_request(chat, second)
    assert tell(chat, first, "answer", request_id="forged", allow=True).status == 409
    if mine != theirs:
        assert tell(chat, first, "answer", request_id=theirs, allow=True).status == 409
    assert tell(chat, "0" * 32, "answer", request_id=mine, allow=True).status == 404
    assert tell(chat, first, "answer", request_id=mine, allow=False).status == 200
    assert tell(chat, first, "answer", request_id=mine, allow=True).status == 409
    assert len(read(chat, first)[-1].data["result"]["permission_denials"]) == 1
    assert tell(chat, first, "answer", request_id=mine, allow=True).status == 409, "nor after the end"
    assert [request.id for request in chat.runs.get(second).open_requests] == [theirs]


UNCLEAR: list[dict[str, Any]] = [
    {"request_id": 1, "allow": True},
    {"request_id": None, "allow": True},
    {"allow": "true"},
    {"allow": 1},
    {"allow": None},
    {},
    {"allow": True, "remember": "yes"},
    {"allow": False, "message": 1},
    {"allow": True, "answers": ["a"]},
]
FORMS = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")


def test_only_a_clear_yes_or_no_is_an_answer_and_another_sites_form_is_none(chat: Chat) -> None:
    """Not even if that site knew the session: these are the types that its page can send without asking for
    permission."""
    run_id = ask(chat, prompt="Run a command").json["run_id"]
    request = the_request(chat, run_id)
    for body in UNCLEAR:
        assert tell(chat, run_id, "answer", **{"request_id": request, **body}).status == 400, body
    said = json.dumps({"request_id": request, "allow": True, "text": "x"}).encode()
    for verb in ("answer", "steer", "abort"):
        place = f"/api/runs/{run_id}/{verb}"
        for kind in FORMS:
            assert Answer(chat, "POST", place, said, CONTENT_TYPE=kind).status == 415
        assert Answer(chat, "POST", place, said, **JSON, HTTP_SEC_FETCH_SITE="cross-site").status == 403
        assert Answer(chat, "POST", place, said, **JSON, HTTP_ORIGIN="http://evil.example").status == 403
    assert [one.id for one in chat.runs.get(run_id).open_requests] == [request]


def test_further_words_are_given_on_and_noted_where_they_were_said(chat: Chat) -> None:
    started = ask(chat, prompt="demo:wait")
    run_id = started.json["run_id"]
    for text in ("", 1, None):
        assert tell(chat, run_id, "steer", text=text).status == 400
    assert wait_until(lambda: tell(chat, run_id, "steer", text="Be brief.").status == 200)
    assert "You added: “Be brief.”" in read(chat, run_id)[-1].data["result"]["text"]
    ((_, words),) = chat.conversations.details(conversation_of(started))["turns"][0]["further"]
    assert words == "Be brief."
    assert tell(chat, run_id, "steer", text="Too late").status == 409


# --- images ----------------------------------------------------------------------------------------------------

PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)


def upload(chat: Chat, data: bytes, kind: str = "image/png") -> Answer:
    return Answer(chat, "POST", "/api/images", data, CONTENT_TYPE=kind)


def test_an_image_is_kept_privately_shown_to_the_agent_and_deleted_with_its_conversation(
    chat: Chat, tmp_path: Path
) -> None:
    kept = upload(chat, PNG)
    assert kept.status == 201
    name = kept.json["image"]
    (file,) = (tmp_path / "images").iterdir()
    assert (file.name, file.stat().st_mode & 0o777) == (name, 0o600)
    shown = Answer(chat, "GET", f"/api/images/{name}")
    assert (shown.body, shown.headers["Content-Type"]) == (PNG, "image/png")
    started = ask(chat, prompt="Look", images=[name])
    assert "[1 image]" in read(chat, started.json["run_id"])[-1].data["result"]["text"]
    assert Answer(chat, "POST", f"/api/conversations/{conversation_of(started)}/delete", b"{}", **JSON).status == 200
    assert list((tmp_path / "images").iterdir()) == []
    assert Answer(chat, "GET", f"/api/images/{name}").status == 404


@pytest.mark.parametrize(
    ("data", "kind", "status"),
    [
        (b"<svg onload=alert(1)>", "image/png", 400),
        (PNG, "image/svg+xml", 415),
        (PNG, "text/html", 415),
        (PNG + bytes(MAX_IMAGE), "image/png", 413),
    ],
    ids=["no image", "an SVG", "a page", "too large"],
)
def test_what_is_no_image_is_not_kept(data: bytes, kind: str, status: int, chat: Chat, tmp_path: Path) -> None:
    assert upload(chat, data, kind).status == status
    assert list((tmp_path / "images").iterdir()) == []


# --- who may not -----------------------------------------------------------------------------------------------

PLACES = [("GET", "/api/providers"), ("POST", "/api/runs"), ("GET", "/api/runs/x/events")]
PLACES += [("POST", f"/api/runs/x/{verb}") for verb in ("abort", "answer", "steer")] + [("GET", "/nowhere")]
PLACES += [("GET", "/api/conversations"), ("GET", "/api/conversations/x"), ("POST", "/api/conversations/x/delete")]
PLACES += [("POST", "/api/conversations/x/settings"), ("POST", "/api/images"), ("GET", "/api/images/x")]
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
        (b'{"provider": "demo", "prompt": "hi", "conversation": 1}', JSON, 400),
        (b'{"provider": "demo", "prompt": "hi", "conversation": "../x"}', JSON, 404),
        (b'{"provider": "demo", "prompt": "hi", "model": ["x"]}', JSON, 400),
        (b'{"provider": "demo", "prompt": "hi", "permission_mode": "root"}', JSON, 400),
        (b'{"provider": "demo", "prompt": "hi", "images": "x"}', JSON, 400),
        (b'{"provider": "demo", "prompt": "hi", "images": ["/etc/passwd"]}', JSON, 404),
        (b'{"provider": "demo", "prompt": "hi", "images": ["../conversations/x"]}', JSON, 404),
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
    assert chat.conversations.list() == []


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
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["img-src"] == "'self' blob:"
    assert (policy["require-trusted-types-for"], policy["trusted-types"]) == ("'script'", "'none'")
    assert policy["frame-ancestors"] == "'none'"
    assert (headers["Referrer-Policy"], headers["X-Content-Type-Options"]) == ("no-referrer", "nosniff")


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_of_the_page_is_public_loads_nothing_from_elsewhere_and_never_makes_markup_of_text(
    name: str, chat: Chat
) -> None:
    answer = Answer(chat, "GET", f"/static/{name}", HTTP_AUTHORIZATION=None)
    assert (answer.status, answer.body) == (200, FILES[name][1])
    text = answer.body.decode()
    remote = re.findall(r"(?:https?:)?//[a-z0-9-]+\.", re.sub(r"^\s*//.*$|\s//\s.*$", "", text, flags=re.MULTILINE))
    assert remote == (["http://www."] if name.endswith(".svg") else []), "no remote address (but for the name of SVG)"
    for way_in in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser", "Function("):
        assert way_in not in text


@pytest.mark.parametrize("name", ["", "..", "../page.py", "nothing.js", "__init__.py"])
def test_nothing_but_the_files_of_the_page_is_given_out(name: str, chat: Chat) -> None:
    assert Answer(chat, "GET", f"/static/{name}").status == 404
