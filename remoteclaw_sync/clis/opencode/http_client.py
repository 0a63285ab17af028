"""All connections to one OpenCode server, in one thread: the stream of its events, and a connection for each request.

What arrives is passed on as lines, in order of arrival. Neither a request that takes as long as a turn nor a server
that does not answer blocks a caller.
"""

from __future__ import annotations

import errno
import logging
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import attrs

from .http_messages import (
    EVENTS_TYPE,
    BadResponse,
    EventStream,
    Response,
    answer_line,
    failure_line,
    request_bytes,
    rung_line,
)

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
READ_SIZE = 65_536
MAX_IN_FLIGHT = 16  # Connections at once; more requests wait. A turn keeps one or two open; the others are brief.
JOIN_SECONDS = 5.0
CONNECT_SECONDS = 10.0
RECONNECT_SECONDS = 0.2
EVENTS_PATH = "/global/event"
HEALTH_PATH = "/global/health"
UNAUTHORIZED = 401


@attrs.frozen
class Door:
    """Where the server listens, and the password that lets us in."""

    port: int
    password: str = attrs.field(repr=False)


@attrs.frozen
class Ask:
    """A request; `limit` is in seconds, None if it may take as long as the turn."""

    number: int
    method: str
    path: str
    body: Any = attrs.field(default=None, repr=False)
    limit: float | None = None


class HttpClient:
    """`submit`, `pause`, `resume` and `stop` may be called from any thread; `say` is called in the client's own.

    The client first checks that the server admits nobody without the password, then opens the event stream, and only
    then sends requests. `opened` is called with None when the stream is open, or with the reason why that failed.
    """

    def __init__(
        self, door: Door, max_line_bytes: int, say: Callable[[bytes], None], opened: Callable[[str | None], None]
    ) -> None:
        self._door = door
        self._max_line_bytes = max_line_bytes
        self._say = say
        self._opened = opened
        self._lock = threading.Lock()
        self._asked: deque[Ask] = deque()
        self._timers: list[tuple[float, int]] = []
        self._waiting: deque[Ask] = deque()
        self._connections: set[_Connection] = set()
        self._events: _Connection | None = None
        self._reconnect_at: float | None = None
        self._is_open = False
        self._paused = False
        self._stopping = False
        self._closed = False
        self.unsent_bytes = 0
        self._selector: selectors.BaseSelector | None = None
        self._bell: tuple[socket.socket, socket.socket] | None = None
        self._thread: threading.Thread | None = None

    # --- for anyone -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread. Raises OSError or RuntimeError if no descriptor or thread is available."""
        self._selector = selectors.DefaultSelector()
        self._bell = socket.socketpair()
        for end in self._bell:
            end.setblocking(False)
        self._selector.register(self._bell[0], selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._serve, name="remoteclaw-http", daemon=True)
        self._thread.start()

    def submit(self, ask: Ask) -> None:
        """Send this request when a connection is free, and pass its result to `say`. Does not block."""
        with self._lock:
            self._asked.append(ask)
        self._ring()

    def pause(self) -> None:
        """Stop reading for now."""
        self._paused = True
        self._ring()

    def resume(self) -> None:
        """Continue reading."""
        self._paused = False
        self._ring()

    def stop(self) -> None:
        """Pass on what has arrived, close everything, and wait until the thread has ended."""
        self._stopping = True
        self._ring()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_SECONDS)
        if thread is None or thread.ident is None:
            self._close()

    def forget_after_fork(self) -> None:
        """In a forked copy of the host, where this thread does not exist: close its copies of the descriptors."""
        self._lock = threading.Lock()
        self._close()

    def _ring(self) -> None:
        bell = self._bell
        if bell is not None:
            try:
                bell[1].send(b"!")
            except OSError:
                pass  # Full, so the thread will wake up anyway; or closed.

    # --- its thread -------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            self._connect(_Check(self))
            while not self._stopping:
                self._look_around()
            self._read_the_rest()
        except Exception as error:
            logger.exception("talking to OpenCode's server failed")
            if not self._is_open:
                self._opened(f"talking to its server failed: {type(error).__name__}")
        finally:
            self._close()

    def _look_around(self) -> None:
        selector = self._selector
        assert selector is not None
        for key, _ in selector.select(self._patience()):
            if key.data is None:
                self._hear_bell()
            elif key.data in self._connections:
                key.data.move()
        now = time.monotonic()
        self._take_asked(now)
        for connection in [*self._connections]:
            connection.check(now)
        self._ring_timers(now)
        if self._reconnect_at is not None and now >= self._reconnect_at:
            self._reconnect_at = None
            self._listen()
        while self._is_open and self._waiting and len(self._connections) < MAX_IN_FLIGHT:
            self._begin(self._waiting.popleft())

    def _patience(self) -> float | None:
        due = [connection.due for connection in self._connections if connection.due is not None]
        due += [at for at, _ in self._timers]
        due += [] if self._reconnect_at is None else [self._reconnect_at]
        return max(min(due) - time.monotonic(), 0.0) if due else None

    def _hear_bell(self) -> None:
        assert self._bell is not None
        try:
            self._bell[0].recv(4096)
        except OSError:
            pass

    def _take_asked(self, now: float) -> None:
        with self._lock:
            asked, self._asked = self._asked, deque()
        for ask in asked:
            if ask.method == "WAIT":
                self._timers.append((now + (ask.limit or 0.0), ask.number))
            else:
                self._waiting.append(ask)

    def _ring_timers(self, now: float) -> None:
        rung = [timer for timer in self._timers if timer[0] <= now]
        if rung:
            self._timers = [timer for timer in self._timers if timer[0] > now]
            self._say(b"".join(rung_line(number) for _, number in rung))

    def _begin(self, ask: Ask) -> None:
        self._connect(_Request(self, ask))

    def _listen(self) -> None:
        self._events = _Events(self)
        self._connect(self._events)

    def _connect(self, connection: _Connection) -> None:
        self._connections.add(connection)
        connection.begin()

    # --- called by its connections ----------------------------------------------------------------------------

    @property
    def door(self) -> Door:
        return self._door

    @property
    def is_paused(self) -> bool:
        return self._paused

    def watch(self, connection: _Connection, events: int) -> None:
        """Call the connection's `move` on these events; 0: never."""
        selector, sock = self._selector, connection.socket
        if selector is None or sock is None or events == connection.watched:
            return
        if not connection.watched:
            selector.register(sock, events, connection)
        elif not events:
            selector.unregister(sock)
        else:
            selector.modify(sock, events, connection)
        connection.watched = events

    def drop(self, connection: _Connection) -> None:
        """Close a connection that is no longer needed."""
        if connection in self._connections:
            self._connections.discard(connection)
            self.watch(connection, 0)
            connection.close()

    def say(self, data: bytes) -> None:
        if data:
            self._say(data)

    def checked(self, status: int) -> None:
        """The server has answered the request without the password."""
        if status == UNAUTHORIZED:
            self._listen()
        else:
            self._opened(f"its server lets in anybody (status {status} without a password)")

    def listening(self) -> None:
        """The event stream is open."""
        if self._is_open:
            self._say(b'{"method":"reconnected","params":{}}\n')
        else:
            self._is_open = True
            self._opened(None)

    def not_listening(self, reason: str) -> None:
        """The event stream has ended, or could not be opened."""
        if not self._is_open:
            self._opened(reason)
        elif not self._stopping:
            logger.debug("the stream of OpenCode's events was lost: %s", reason)
            self._reconnect_at = time.monotonic() + RECONNECT_SECONDS

    # --- the end ----------------------------------------------------------------------------------------------

    def _read_the_rest(self) -> None:
        """Read what the process wrote before it ended."""
        self._paused = False
        for connection in [*self._connections]:
            connection.move()

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for connection in [*self._connections]:
            self.drop(connection)
        selector, self._selector = self._selector, None
        bell, self._bell = self._bell, None
        if selector is not None:
            selector.close()
        for end in bell or ():
            end.close()


class _Connection:
    """One request and its response."""

    def __init__(self, client: HttpClient, limit: float | None) -> None:
        self._client = client
        self._response = Response()
        self._unsent = memoryview(b"")
        self.socket: socket.socket | None = None
        self.watched = 0
        self.due = None if limit is None else time.monotonic() + limit

    def request(self) -> bytes:
        raise NotImplementedError

    def received(self, body: bytes) -> None:
        raise NotImplementedError

    def over(self) -> None:
        raise NotImplementedError

    def failed(self, reason: str) -> None:
        raise NotImplementedError

    def begin(self) -> None:
        try:
            self._unsent = memoryview(self.request())
            self._client.unsent_bytes += len(self._unsent)
            self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self.socket.setblocking(False)
            code = self.socket.connect_ex((HOST, self._client.door.port))
            if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
                raise OSError(code, os.strerror(code))
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            self._fail(f"cannot connect: {error.strerror or type(error).__name__}")
            return
        self._client.watch(self, selectors.EVENT_READ | selectors.EVENT_WRITE)

    def check(self, now: float) -> None:
        """Fail if it is overdue; start or stop reading as the client wishes."""
        if self.due is not None and now >= self.due:
            self._fail("no answer in time")
            return
        reads = 0 if self._client.is_paused else selectors.EVENT_READ
        self._client.watch(self, reads | (selectors.EVENT_WRITE if self._unsent else 0))

    def move(self) -> None:
        """Send and receive as much as possible now."""
        try:
            self._send()
            if not self._client.is_paused:
                self._receive()
        except BlockingIOError:
            pass
        except (OSError, BadResponse) as error:
            self._fail(str(error) if isinstance(error, BadResponse) else f"the connection was lost: {error.strerror}")

    def _send(self) -> None:
        while self._unsent:
            assert self.socket is not None
            try:
                sent = self.socket.send(self._unsent)
            except BlockingIOError:
                return
            self._unsent = self._unsent[sent:]
            self._client.unsent_bytes -= sent

    def _receive(self) -> None:
        while self.socket is not None and self.watched:
            data = self.socket.recv(READ_SIZE)
            if not data:
                self._response.end()
            else:
                self.received(self._response.feed(data))
            if self._response.is_over:
                self._client.drop(self)
                self.over()

    def _fail(self, reason: str) -> None:
        self._client.drop(self)
        self.failed(reason)

    def close(self) -> None:
        sock, self.socket = self.socket, None
        self._client.unsent_bytes -= len(self._unsent)
        self._unsent = memoryview(b"")
        if sock is not None:
            sock.close()


class _Check(_Connection):
    """Sends a request without the password."""

    def __init__(self, client: HttpClient) -> None:
        super().__init__(client, CONNECT_SECONDS)

    def request(self) -> bytes:
        return request_bytes("GET", HEALTH_PATH, f"{HOST}:{self._client.door.port}")

    def received(self, body: bytes) -> None:
        """Only the status matters."""

    def over(self) -> None:
        self._client.checked(self._response.status or 0)

    def failed(self, reason: str) -> None:
        self._client.not_listening(reason)


class _Events(_Connection):
    """The event stream. It ends with the server."""

    def __init__(self, client: HttpClient) -> None:
        super().__init__(client, CONNECT_SECONDS)
        self._stream = EventStream(client._max_line_bytes)
        self._begun = False

    def request(self) -> bytes:
        door = self._client.door
        return request_bytes("GET", EVENTS_PATH, f"{HOST}:{door.port}", password=door.password)

    def received(self, body: bytes) -> None:
        response = self._response
        if response.status is not None and (response.status != 200 or response.media_type != EVENTS_TYPE):
            raise BadResponse(f"its server has no stream of events (status {response.status})")
        lines = self._stream.feed(body)
        if lines and not self._begun:
            self._begun, self.due = True, None
            self._client.listening()
        self._client.say(lines)

    def over(self) -> None:
        self._client.not_listening("the stream of events ended")

    def failed(self, reason: str) -> None:
        self._client.not_listening(reason)


class _Request(_Connection):
    """One request from the dialect."""

    def __init__(self, client: HttpClient, ask: Ask) -> None:
        super().__init__(client, ask.limit)
        self._ask = ask
        self._body: list[bytes] = []

    def request(self) -> bytes:
        door, ask = self._client.door, self._ask
        return request_bytes(ask.method, ask.path, f"{HOST}:{door.port}", ask.body, door.password)

    def received(self, body: bytes) -> None:
        if body:
            self._body.append(body)

    def over(self) -> None:
        response = self._response
        body = b"".join(self._body)
        self._client.say(answer_line(self._ask.number, response.status or 0, response.media_type, body))

    def failed(self, reason: str) -> None:
        self._client.say(failure_line(self._ask.number, reason))
