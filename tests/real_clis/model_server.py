"""A loopback model server that speaks four vendors' APIs and says what a test has scripted.

Start it from the thread that is inside the network namespace: its listening socket and its threads belong to that
namespace.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import select
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import urlsplit

from tests.real_clis import wire_anthropic, wire_chat, wire_gemini, wire_responses
from tests.real_clis.script import Cut, Delay, Drop, Hang, Hold, HttpError, Reply, Turn
from tests.real_clis.wire import Conversation, Frame, Json, ToolResult, Wire

WIRES: dict[str, Wire] = {
    "anthropic": cast(Wire, wire_anthropic),
    "gemini": cast(Wire, wire_gemini),
    "responses": cast(Wire, wire_responses),
    "chat": cast(Wire, wire_chat),
}

# How often a held answer checks whether the client is gone or the server is stopping.
POLL_SECONDS = 0.02
START_PATIENCE = 100.0  # Seconds a CLI may take until its first request, on a very busy machine.
# Threads end as soon as their connection is shut down; longer means a bug here.
JOIN_SECONDS = 5.0


@dataclass(eq=False)
class ModelRequest:
    """One request as it arrived; `conversation` is the same in neutral terms.

    `disconnected` is set if the client disconnects while an answer is held or hangs.
    """

    vendor: str
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: Json
    raw: bytes = field(repr=False)
    conversation: Conversation = field(repr=False)
    disconnected: threading.Event = field(default_factory=threading.Event, repr=False)

    @property
    def model(self) -> str:
        """The model's name."""
        return self.conversation.model

    @property
    def system(self) -> str:
        """The system prompt, with developer messages."""
        return self.conversation.system

    @property
    def prompt(self) -> str | None:
        """The last text of the user, exactly as the model received it."""
        return self.conversation.prompt

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """The tool results since the model's last words."""
        return self.conversation.tool_results

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the tools offered."""
        return self.conversation.tools

    def occurrences(self, text: str) -> int:
        """How often a text occurs in what the user is said to have written."""
        return sum(part.count(text) for part in self.conversation.user_texts)


@dataclass(frozen=True)
class OtherRequest:
    """A request that is not a model request: telemetry, model lists, health checks."""

    method: str
    path: str


Responder = Callable[[ModelRequest], Reply]


class ModelServer:
    """The scripted model; `with ModelServer() as server:`.

    `requests` belong to the conversation, `side_requests` are those that a CLI makes for itself (titles, routing, token
    counts), which never use up a scripted reply. `problems` holds what a test must not overlook: requests that nobody
    scripted, and failures of the server itself.
    """

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []
        self.side_requests: list[ModelRequest] = []
        self.other_requests: list[OtherRequest] = []
        self.problems: list[str] = []
        self.stopping = threading.Event()
        self._changed = threading.Condition()
        self._replies: list[Reply] = []
        self._then: Reply | None = None
        self._responder: Responder | None = None
        self._http = _HttpServer(self)
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(POLL_SECONDS,), name="model-server", daemon=True
        )

    @property
    def url(self) -> str:
        """The base address, without a trailing slash."""
        return f"http://127.0.0.1:{self._http.server_port}"

    def script(self, replies: Sequence[Reply], then: Reply | None = None) -> None:
        """Answer the coming model requests in this order, and later ones with `then`.

        Without `then`, a final HttpError, Hang or Drop is repeated, because the CLIs retry; after a final Turn, a
        further request is a problem.
        """
        with self._changed:
            self._replies = list(replies)
            self._responder = None
            repeats = bool(replies) and not isinstance(replies[-1], Turn)
            self._then = then if then is not None or not repeats else replies[-1]

    def respond(self, responder: Responder) -> None:
        """Let a function choose each reply; called in the request's own thread."""
        with self._changed:
            self._responder = responder

    def received_prompts(self) -> list[str]:
        """The user's prompts as they arrived, one for each request that brought a new one."""
        conversations = [request.conversation for request in self.requests]
        return [c.prompt for c in conversations if c.prompt is not None and c.prompt_is_new]

    def wait_for_requests(self, count: int, timeout: float = START_PATIENCE) -> list[ModelRequest]:
        """Block until `count` model requests have arrived; raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.requests) >= count, timeout):
                raise TimeoutError(f"{len(self.requests)} of {count} model requests within {timeout} s")
            return list(self.requests)

    def start(self) -> Self:
        """Listen; the socket belongs to the calling thread's network namespace."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Drop all connections and end all threads, including those of held and hanging answers."""
        self.stopping.set()
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join(JOIN_SECONDS)
        self._http.server_close()
        self._http.drop_connections()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # Called by the request handlers.

    def choose(self, request: ModelRequest) -> Reply | Json:
        """Record a model request and choose the answer."""
        side = WIRES[request.vendor].side_reply(request.path, request.body, request.conversation)
        with self._changed:
            (self.requests if side is None else self.side_requests).append(request)
            self._changed.notify_all()
            responder = self._responder
            if side is None and responder is None:
                return self._next_reply(request)
        if side is not None:
            return side
        assert responder is not None
        return responder(request)

    def record_other(self, request: OtherRequest) -> None:
        """Record a request that is not a model request."""
        with self._changed:
            self.other_requests.append(request)

    def record_problem(self, text: str) -> None:
        """Keep a problem, so that the test fails."""
        with self._changed:
            self.problems.append(text)

    def _next_reply(self, request: ModelRequest) -> Reply:
        if self._replies:
            return self._replies.pop(0)
        if self._then is not None:
            return self._then
        what = f"{request.vendor}, {request.prompt!r:.200}"
        text = f"no reply scripted for request {len(self.requests)} ({what})"
        self.problems.append(text)
        return HttpError(status=400, message=text)


def refused_url() -> str:
    """An address on which nobody listens (the port was free a moment ago)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


class _HttpServer(ThreadingHTTPServer):
    """Keeps track of threads and connections, so that a test can leave none behind."""

    request_queue_size = 128
    daemon_threads = True
    block_on_close = False

    def __init__(self, model: ModelServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model = model
        self._lock = threading.Lock()
        self._open: dict[threading.Thread, socket.socket] = {}

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(
            target=self._serve_connection,
            args=(request, client_address),
            name=f"model-connection-{client_address[1]}",
            daemon=True,
        )
        with self._lock:
            self._open[thread] = request
        thread.start()

    def _serve_connection(self, request: Any, client_address: Any) -> None:
        try:
            self.process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open.pop(threading.current_thread(), None)

    def drop_connections(self) -> None:
        with self._lock:
            connections = dict(self._open)
        for connection in connections.values():
            _shut(connection)
        for thread in connections:
            thread.join(JOIN_SECONDS)

    def handle_error(self, request: Any, client_address: Any) -> None:
        self.model.record_problem(f"the model server failed:\n{traceback.format_exc()}")


class _ClientGone(Exception):
    """Nobody reads the answer any more, or the script cuts it off here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a delta must leave at once
    server: _HttpServer

    def handle(self) -> None:
        # A client that is killed resets its connection; this is how an abort usually ends.
        with contextlib.suppress(ConnectionError, _ClientGone):
            super().handle()

    def finish(self) -> None:
        with contextlib.suppress(ConnectionError, ValueError):
            super().finish()

    def do_POST(self) -> None:
        raw = self._read_body()
        address = urlsplit(self.path)
        for vendor, wire in WIRES.items():
            if wire.matches(address.path):
                body = json.loads(raw)
                headers = {name.lower(): value for name, value in self.headers.items()}
                conversation = wire.read(address.path, body)
                self._answer(
                    wire,
                    ModelRequest(vendor, self.command, address.path, address.query, headers, body, raw, conversation),
                )
                return
        self._answer_other()

    def do_GET(self) -> None:
        self._answer_other()

    def do_HEAD(self) -> None:
        self._answer_other()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a failing test prints the recorded requests instead."""

    def _answer(self, wire: Wire, request: ModelRequest) -> None:
        reply = self.server.model.choose(request)
        if isinstance(reply, dict):
            self._send_json(HTTPStatus.OK, reply)
        elif isinstance(reply, HttpError):
            self._send_error(wire, reply)
        elif isinstance(reply, Drop):
            self._cut()
        elif isinstance(reply, Hang):
            if reply.after_headers:
                self._start_stream()
            self._hold(Hold(), request)
            self._cut()
        elif request.conversation.stream:
            self._start_stream()
            self._send_stream(wire.stream(reply, request.model), request)
        else:
            self._hold_whole(reply, request)
            self._send_json(HTTPStatus.OK, wire.whole(reply, request.model))

    def _send_stream(self, frames: Iterator[Frame], request: ModelRequest) -> None:
        for frame in frames:
            if isinstance(frame, bytes):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(frame), frame))
            elif isinstance(frame, Cut) and frame.clean:
                break
            else:
                self._pause(frame, request)
        self.wfile.write(b"0\r\n\r\n")

    def _hold_whole(self, turn: Turn, request: ModelRequest) -> None:
        for piece in [*turn.thinking_pieces(), *turn.text_pieces()]:
            if isinstance(piece, Hold | Delay | Cut):
                self._pause(piece, request)

    def _pause(self, pause: Hold | Delay | Cut, request: ModelRequest) -> None:
        if isinstance(pause, Cut):
            self._cut()
        elif isinstance(pause, Delay):
            self._wait(threading.Event(), request, pause.seconds)
        else:
            self._hold(pause, request)

    def _hold(self, hold: Hold, request: ModelRequest) -> None:
        hold.reached.set()
        self._wait(hold.release, request, None)

    def _wait(self, event: threading.Event, request: ModelRequest, seconds: float | None) -> None:
        deadline = None if seconds is None else time.monotonic() + seconds
        while not event.wait(POLL_SECONDS):
            if self.server.model.stopping.is_set():
                self._cut()
            if self._client_has_gone():
                request.disconnected.set()
                self._cut()
            if deadline is not None and time.monotonic() >= deadline:
                return

    def _client_has_gone(self) -> bool:
        readable, _, _ = select.select([self.connection], [], [], 0)
        if not readable:
            return False
        try:
            data: bytes = self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True
        return data == b""

    def _cut(self) -> None:
        self.close_connection = True
        _shut(self.connection)
        raise _ClientGone

    def _start_stream(self) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _send_error(self, wire: Wire, error: HttpError) -> None:
        headers = dict(error.headers)
        if error.retry_after is not None:
            headers["retry-after"] = f"{error.retry_after:g}"
        self._send_json(error.status, wire.error(error), headers)

    def _answer_other(self) -> None:
        path = urlsplit(self.path).path
        self.server.model.record_other(OtherRequest(self.command, path))
        status = HTTPStatus.OK if path == "/" else HTTPStatus.NOT_FOUND
        self._send_json(status, {"error": {"type": "not_found_error", "message": f"no {path} here"}})

    def _send_json(self, status: int, body: Json, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            data = b"".join(self._read_chunks())
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(data) if self.headers.get("Content-Encoding") == "gzip" else data

    def _read_chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().split(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
