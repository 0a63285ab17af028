"""The chat page's server side, as one WSGI application: conversations with agents, for one person.

Whoever is let in can run an agent on this machine. So each request must present its session, must use one of our host
names (not a foreign name that points here), and must not come from another site's page. The page's own files contain
nothing secret and are open to everybody.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Protocol, get_args

import attrs

from ..errors import SessionBusyError, UnsupportedOperationError
from ..types import AgentEvent, PermissionMode
from .assets import FILES, PAGE, SAFETY
from .background import end
from .conversations import AskedTurn, Conversations, UnknownConversationError
from .detached import Runs
from .door import Door
from .exchange import Environ, Refused, Response, as_json, bearer, body_of, content, json_body
from .frameworks import headers as stream_headers
from .handle import RunHandle, TooManyRunsError
from .journal import UnknownRunError
from .streams import EventStream, sse
from .uploads import MAX_IMAGE, SUFFIXES, UnknownImageError, Uploads
from .visitor import NotAskedError
from .warm import Wanted

HEARTBEAT = 9.0
MOST_IMAGES = 10  # Per message.
COME_IN = (
    "This tab is not signed in. Open the newest link in the terminal where remoteclaw-sync serve runs. "
    "Each link works once; when one is used, the next is printed."
)

StartResponse = Callable[..., Any]


class Agents(Protocol):
    """Does the work; see `WarmSessions`."""

    def start(self, key: str, wanted: Wanted, /) -> Iterable[AgentEvent]:
        """A turn of the conversation `key`; a ValueError or TypeError is the visitor's mistake."""

    def change(self, key: str, provider: str, model: str | None, permission_mode: PermissionMode, /) -> None:
        """Apply new settings, at once if possible."""

    def close(self, key: str, /) -> None:
        """End the conversation."""


@attrs.frozen(kw_only=True)
class Settings:
    """What a conversation starts with, and the choices that the page offers.

    Args:
        providers: the agents to choose from, and whether each can be used.
        provider, model, permission_mode: selected at first.
        cached_in_input: the agents whose input tokens include those read from a cache.
        folder: where agents work, as shown on the page.
    """

    providers: Mapping[str, bool]
    provider: str
    model: str | None = None
    permission_mode: PermissionMode = "default"
    cached_in_input: Collection[str] = ()
    folder: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, for the page."""
        providers = [{"name": name, "installed": usable} for name, usable in self.providers.items()]
        modes, cached = list(get_args(PermissionMode)), list(self.cached_in_input)
        return {**attrs.asdict(self), "providers": providers, "permission_modes": modes, "cached_in_input": cached}


@attrs.frozen(kw_only=True)
class Chat:
    """The application.

    Args:
        door: decides who is let in. The page gets a session from it and must present it with every further request.
        hosts: the `Host` headers that are ours; None accepts any.
        settings: the choices that the page offers.
        agents: does the work.
        runs: where the runs are kept.
        conversations: where the prompts are kept.
        uploads: where images are kept.
    """

    door: Door
    hosts: Collection[str] | None
    settings: Settings
    agents: Agents
    runs: Runs
    conversations: Conversations
    uploads: Uploads

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        try:
            with refusals():
                response = self._answer(environ)
        except Refused as refused:
            response = as_json({"error": str(refused)}, refused.status)
        line = f"{response.status.value} {response.status.phrase}"
        start_response(line, list({**SAFETY, **response.headers}.items()))
        if isinstance(response.body, EventStream):
            return response.body
        return [response.body]

    def _answer(self, environ: Environ) -> Response:
        method = environ["REQUEST_METHOD"]
        parts = environ.get("PATH_INFO", "/").strip("/").split("/")
        self._check(environ, method, parts)
        match method, parts:
            case "GET", [""]:
                return content(*FILES[PAGE])
            case "GET", ["static", name] if name in FILES:
                return content(*FILES[name])
            case "POST", ["api", "session"]:
                return self._new_session(bearer(environ))
            case "GET", ["api", "providers"]:
                return as_json(self.settings.to_dict())
            case _, ["api", "conversations", *where]:
                return self._conversation(method, where, environ)
            case _, ["api", "images", *where]:
                return self._image(method, where, environ)
            case "POST", ["api", "runs"]:
                return self._new_run(json_body(environ))
            case "GET", ["api", "runs", run_id, "events"]:
                return self._events(run_id, environ.get("HTTP_LAST_EVENT_ID"))
            case "POST", ["api", "runs", run_id, verb]:
                return self._tell(self.runs.get(run_id), verb, json_body(environ))
        raise Refused(HTTPStatus.NOT_FOUND, "there is no such page")

    # --- who is allowed -----------------------------------------------------------------------------------

    def admits(self, environ: Environ) -> bool:
        """Whether a request with these headers has a valid session."""
        return self._is_for_us(environ) and self.door.knows(bearer(environ))

    def _is_for_us(self, environ: Environ) -> bool:
        return self.hosts is None or environ.get("HTTP_HOST", "").lower() in self.hosts

    def _check(self, environ: Environ, method: str, parts: list[str]) -> None:
        if not self._is_for_us(environ):
            raise Refused(HTTPStatus.FORBIDDEN, "this server does not go by that name")
        origin = environ.get("HTTP_ORIGIN")
        site = environ.get("HTTP_SEC_FETCH_SITE", "none")
        # Following a link from elsewhere (to the printed address) is fine; a request by another page's script is not.
        is_page = method == "GET" and parts == [""] and origin is None
        ours = f"http://{environ.get('HTTP_HOST', '').lower()}"
        if (origin is not None and origin != ours) or (not is_page and site not in ("same-origin", "none")):
            raise Refused(HTTPStatus.FORBIDDEN, "requests from other sites are refused")
        is_public = is_page or (method == "GET" and parts[0] == "static") or parts == ["api", "session"]
        if not is_public and not self.door.knows(bearer(environ)):
            raise Refused(HTTPStatus.FORBIDDEN, COME_IN)

    def _new_session(self, link: str) -> Response:
        session = self.door.open(link)
        if session is None:
            raise Refused(HTTPStatus.FORBIDDEN, COME_IN)
        return as_json({"session": session}, HTTPStatus.CREATED)

    # --- runs ---------------------------------------------------------------------------------------------

    def _new_run(self, body: dict[str, Any]) -> Response:
        prompt, name = body.get("prompt"), body.get("conversation")
        if not isinstance(prompt, str) or not isinstance(name, str | None):
            raise Refused(HTTPStatus.BAD_REQUEST, "prompt and conversation must be strings")
        chosen = self._chosen(body)
        images = body.get("images", [])
        if not isinstance(images, list) or len(images) > MOST_IMAGES:
            raise Refused(HTTPStatus.BAD_REQUEST, f"images must be a list of at most {MOST_IMAGES} names")
        paths = tuple(self.uploads.path(str(image)) for image in images)
        turn = AskedTurn(prompt, chosen["provider"], [str(image) for image in images])
        name = self.conversations.begin(name, turn, **chosen)
        try:
            session_id = self.conversations.session_id(name, turn.provider)
            run_id = self._started(name, turn, Wanted(prompt=prompt, images=paths, session_id=session_id, **chosen))
        except BaseException:
            self.conversations.not_begun(name)
            raise
        try:
            self.conversations.began(name, turn, run_id)
        except UnknownConversationError:  # It was deleted meanwhile, in another tab.
            self._delete_run(run_id)
            self.agents.close(name)
            raise
        return as_json({"run_id": run_id, "conversation": name}, HTTPStatus.CREATED)

    def _started(self, name: str, turn: AskedTurn, wanted: Wanted) -> str:
        run = self.agents.start(name, wanted)
        try:
            return self.runs.start(self.conversations.watch(name, turn, run)).run_id
        except BaseException:
            end(run)  # Otherwise a turn that never began would keep its session busy.
            raise

    def _events(self, run_id: str, last_event_id: str | None) -> Response:
        stream = sse(self.runs.get(run_id), heartbeat=HEARTBEAT, retry=1.0, last_event_id=last_event_id or None)
        return Response(HTTPStatus.OK, stream_headers(stream), stream)

    def _tell(self, run: RunHandle, verb: str, body: dict[str, Any]) -> Response:
        if verb == "abort":
            run.abort()
        elif verb == "steer":
            text = body.get("text")
            local = self.runs.local(run.run_id)
            heard = 0 if local is None else local.count
            run.steer(text)  # type: ignore[arg-type] # steer() checks it.
            self.conversations.note_further(run.run_id, heard, str(text))
            return as_json({"heard": heard})
        elif verb == "answer":
            self._answer_request(run, body)
        else:
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such page")
        return as_json({})

    def _answer_request(self, run: RunHandle, body: dict[str, Any]) -> None:
        request_id, allow = body.get("request_id"), body.get("allow")
        remember, answers = body.get("remember", False), body.get("answers")
        if not isinstance(request_id, str) or not isinstance(answers, dict | None):
            raise Refused(HTTPStatus.BAD_REQUEST, "request_id must be a string and answers an object")
        message = body.get("message", "")
        run.answer(request_id, allow, message=message, remember=remember, answers=answers)  # type: ignore[arg-type]
        self.conversations.note_answer(
            run.run_id, request_id, ("remember" if remember else "allow") if allow else "deny"
        )

    # --- conversations and images ---------------------------------------------------------------------------

    def _conversation(self, method: str, where: list[str], environ: Environ) -> Response:
        match method, where:
            case "GET", []:
                return as_json({"conversations": [self._listed(one) for one in self.conversations.list()]})
            case "GET", [name]:
                found = self.conversations.details(name)
                for turn in found["turns"]:  # As an age, because the page's clock may differ.
                    turn["age"] = max(0.0, time.time() - turn["began"])
                return as_json(found)
            case "POST", [name, "settings"]:
                chosen = self._chosen(json_body(environ))
                self.conversations.change(name, **chosen)
                self.agents.change(name, chosen["provider"], chosen["model"], chosen["permission_mode"])
                return as_json({})
            case "POST", [name, "delete"]:
                json_body(environ)
                self._delete(name)
                return as_json({})
        raise Refused(HTTPStatus.NOT_FOUND, "there is no such page")

    def _listed(self, one: dict[str, Any]) -> dict[str, Any]:
        """Add whether its agent waits for an answer: only one conversation is shown, but any of them may ask."""
        is_asking = False
        if one["is_running"] and one["run_id"]:
            with contextlib.suppress(UnknownRunError):
                is_asking = bool(self.runs.get(one["run_id"]).open_requests)
        return {**one, "is_asking": is_asking}

    def _delete(self, name: str) -> None:
        """Delete a conversation with everything said in it. Only the session stays, which belongs to the CLI."""
        gone = self.conversations.delete(name)
        self.agents.close(name)
        for turn in gone.turns:
            self._delete_run(turn.run_id)
            for image in turn.images:
                self.uploads.delete(image)

    def _delete_run(self, run_id: str) -> None:
        with contextlib.suppress(UnknownRunError, FileNotFoundError):
            self.runs.get(run_id).abort()
            os.unlink(self.runs.folder.find(run_id))

    def _image(self, method: str, where: list[str], environ: Environ) -> Response:
        match method, where:
            case "POST", []:
                data = body_of(environ, tuple(SUFFIXES), MAX_IMAGE)
                return as_json({"image": self.uploads.add(data)}, HTTPStatus.CREATED)
            case "GET", [name]:
                return content(*self.uploads.read(name))
        raise Refused(HTTPStatus.NOT_FOUND, "there is no such page")

    def _chosen(self, body: dict[str, Any]) -> dict[str, Any]:
        """Provider, model and permission mode: those of the body, else those of the command line."""
        provider, model = body.get("provider"), body.get("model")
        mode = body.get("permission_mode", self.settings.permission_mode)
        if not isinstance(provider, str) or not self.settings.providers.get(provider):
            raise Refused(HTTPStatus.BAD_REQUEST, "provider must be one that is installed")
        if not isinstance(model, str | None):
            raise Refused(HTTPStatus.BAD_REQUEST, "model must be a string")
        if mode not in get_args(PermissionMode):
            raise Refused(
                HTTPStatus.BAD_REQUEST, f"permission_mode must be one of {', '.join(get_args(PermissionMode))}"
            )
        return {"provider": provider, "model": model or self.settings.model, "permission_mode": mode}


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Turn errors from behind the routes into statuses that the page understands."""
    try:
        yield
    except (SessionBusyError, UnsupportedOperationError, NotAskedError) as error:
        raise Refused(HTTPStatus.CONFLICT, str(error)) from None
    except TooManyRunsError as error:
        raise Refused(HTTPStatus.TOO_MANY_REQUESTS, str(error)) from None
    except (UnknownRunError, UnknownConversationError, UnknownImageError) as error:
        raise Refused(HTTPStatus.NOT_FOUND, str(error)) from None
    except (ValueError, TypeError) as error:
        raise Refused(HTTPStatus.BAD_REQUEST, str(error)) from None
    except OSError as error:
        raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, f"that cannot be stored: {error.strerror}") from None
