"""The host's end: a private socket through which the relays of a run's CLI call Python functions in this process."""

from __future__ import annotations

import contextvars
import hmac
import logging
import os
import secrets
import selectors
import socket
import stat
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

from .. import files
from .._values import check_seconds
from ..schema.convert import ArgumentError
from ..types import McpServerConfig
from ..wire.json_lines import LineFramer
from . import relay
from .protocol import Protocol, Respond, tool_failure, tool_result
from .tools import Tool, ToolLike, build_tools

logger = logging.getLogger(__name__)

SERVER_NAME = "remoteclaw"
DEFAULT_CALL_TIMEOUT = 60.0  # Seconds. The CLIs are configured to wait longer (the runtime's `tool_timeout`).
HELLO_TIMEOUT = 10.0  # Seconds that a connection has to send its token.
LONGEST_HELLO = 256
CALLS_GRACE = 1.0  # Seconds for calls in progress when the run ends, such as a message that is being sent.
JOIN_TIMEOUT = 5.0
LONGEST_SOCKET_PATH = 100  # Bytes; the kernel's limit is 104 or 108.
SOCKET_NAME = "s"
OTHER_BASES = ("/tmp", "/var/tmp")


class Gateway:
    """Python functions as an MCP server, open during the `with` block.

        with Gateway([lookup_order]) as gateway:
            runtime.run("Where is order 17?", mcp_servers=gateway.mcp_servers())

    The CLI starts a small relay, which connects to a socket in a folder of mode 0700 and authenticates with this
    gateway's token, which it gets in its environment. Any number of relays may connect. Functions run in threads of
    this process, in the context (contextvars) in which the gateway was opened. At the end of the block, socket and
    folder are removed; a function that is still running continues, but its result is dropped.

    Args:
        tools: functions, `tool(...)`s, or GatewayTools.
        call_timeout: seconds for one call, after which the model gets a timeout error; None for no limit.
    """

    def __init__(self, tools: Iterable[ToolLike], *, call_timeout: float | None = DEFAULT_CALL_TIMEOUT) -> None:
        check_seconds("call_timeout", call_timeout)
        self.tools = build_tools(tools)
        self._call_timeout = call_timeout
        self._token = secrets.token_urlsafe(32)
        self._lock = threading.Lock()
        self._listener: _Listener | None = None
        self._connections: set[_Connection] = set()
        self._calls: set[threading.Thread] = set()
        self._calls_made = 0
        self._context = contextvars.Context()

    def __enter__(self) -> Gateway:
        if self._listener is not None:
            raise RuntimeError("this gateway is already open")
        self._context = contextvars.copy_context()
        listener = _Listener(self._accept, self._end_connections)
        try:
            listener.open()
        except BaseException:
            listener.stop()  # If interrupted, the listener removes whatever it has created or is still creating.
            raise
        self._listener = listener
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def calls_made(self) -> int:
        """How many calls have been started, whether or not they succeeded."""
        return self._calls_made

    def mcp_server(self) -> McpServerConfig:
        """The server to put into a run's `mcp_servers`. Available only while the gateway is open."""
        if self._listener is None:
            raise RuntimeError("the gateway is not open; use it as a context manager")
        if not sys.executable:
            raise RuntimeError("there is no Python to start the relay with (sys.executable is empty)")
        env = {relay.SOCKET_VARIABLE: self._listener.path, relay.TOKEN_VARIABLE: self._token}
        # A script rather than "-m": importing the package takes several times as long as the relay itself.
        return McpServerConfig(sys.executable, ("-I", "-S", os.path.abspath(relay.__file__)), env)

    def mcp_servers(self, others: Mapping[str, McpServerConfig] | None = None) -> dict[str, McpServerConfig]:
        """A mapping with this server and these others. Raises ValueError if another has this gateway's name."""
        if others and SERVER_NAME in others:
            raise ValueError(f"the mcp_servers name {SERVER_NAME!r} is taken by the Python tools")
        return {**(others or {}), SERVER_NAME: self.mcp_server()}

    def close(self) -> None:
        """End all connections and remove the socket. Waits a moment for calls in progress."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.stop()
            listener.join()

    def _end_connections(self) -> None:
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.close()
        for connection in connections:
            connection.join()
        with self._lock:
            calls = list(self._calls)
        deadline = time.monotonic() + CALLS_GRACE
        for call in calls:
            call.join(max(0.0, deadline - time.monotonic()))

    # --- connections and calls ------------------------------------------------------------------------------

    def _accept(self, client: socket.socket) -> None:
        connection = _Connection(client, self)
        with self._lock:
            self._connections.add(connection)
        try:
            connection.start()
        except RuntimeError as error:  # No more threads: this relay is refused, but others may still connect.
            logger.warning("a relay's connection was refused: %s", error)
            self.forget(connection)
            client.close()

    def admits(self, token: bytes) -> bool:
        """Whether this is the gateway's token. The comparison takes the same time for a wrong one."""
        return hmac.compare_digest(token, self._token.encode())

    def forget(self, connection: _Connection) -> None:
        """Remove a connection that has ended."""
        with self._lock:
            self._connections.discard(connection)

    def start_call(self, tool: Tool, arguments: Mapping[str, Any], respond: Respond) -> None:
        """Call a function in a new thread. Its result or its time limit, whichever comes first, is the answer."""
        timeout = tool.timeout if tool.timeout is not None else self._call_timeout
        timer = None
        if timeout is not None:
            overdue = tool_failure(f"{tool.name} did not return within {timeout:g} s")
            timer = threading.Timer(min(timeout, threading.TIMEOUT_MAX), respond, (overdue,))
            timer.name, timer.daemon = "remoteclaw-tool-timer", True
        context = self._context.copy()

        def work() -> None:
            try:
                respond(context.run(_outcome, tool, arguments))
            finally:
                if timer is not None:
                    timer.cancel()
                with self._lock:
                    self._calls.discard(thread)

        thread = threading.Thread(target=work, name=f"remoteclaw-tool-{tool.name}", daemon=True)
        with self._lock:
            self._calls_made += 1
            self._calls.add(thread)
        try:
            if timer is not None:
                timer.start()
            thread.start()
        except RuntimeError as error:  # No more threads.
            if timer is not None:
                timer.cancel()
            with self._lock:
                self._calls.discard(thread)
            respond(tool_failure(f"{tool.name} was not called: {error}"))


def _outcome(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return tool_result(tool(arguments))
    except ArgumentError as error:
        return tool_failure(f"wrong arguments for {tool.name}: {error}")
    except BaseException as error:  # SystemExit too: a tool that exits must not leave the model waiting.
        logger.warning("tool %s failed", tool.name, exc_info=True)
        return tool_failure(f"{type(error).__name__}: {error}")


class _Connection:
    """One relay: a thread reads its requests, and any thread that has an answer writes it."""

    def __init__(self, client: socket.socket, gateway: Gateway) -> None:
        self._client = client
        self._gateway = gateway
        self._write_lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="remoteclaw-gateway", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join(JOIN_TIMEOUT)

    def close(self) -> None:
        """Wake the threads that read or write; the reading thread closes the socket."""
        try:
            self._client.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # The other side has already closed.

    def _serve(self) -> None:
        try:
            admitted = self._admitted()
            if admitted is None:
                logger.warning("a connection to the gateway without the right token was refused")
            else:
                self._talk(*admitted)
        except OSError as error:
            logger.debug("a relay's connection broke: %s", error)
        finally:
            self.close()
            with self._write_lock:
                self._client.close()
            self._gateway.forget(self)

    def _admitted(self) -> tuple[bytes, bool] | None:
        """The bytes after the token, and whether results must also be objects; None if the token is wrong."""
        self._client.settimeout(HELLO_TIMEOUT)
        hello = b""
        while b"\n" not in hello:
            part = self._client.recv(LONGEST_HELLO)
            hello += part
            if not part or (len(hello) > LONGEST_HELLO and b"\n" not in hello[:LONGEST_HELLO]):
                return None
        words, _, rest = hello.partition(b"\n")
        token = words.removesuffix(relay.OBJECTS_WORD.encode())
        self._client.settimeout(None)
        return (rest, token != words) if self._gateway.admits(token) else None

    def _talk(self, rest: bytes, adds_objects: bool) -> None:
        protocol = Protocol(self._gateway.tools, self._gateway.start_call, self._send, adds_objects=adds_objects)
        framer = LineFramer()
        data = rest or self._client.recv(relay.BLOCK)
        while data:
            for line in framer.push(data):
                protocol.receive(line)
            data = self._client.recv(relay.BLOCK)

    def _send(self, line: bytes) -> None:
        with self._write_lock:
            try:
                self._client.sendall(line)
            except OSError as error:
                logger.debug("an answer was not delivered: %s", error)


class _Listener:
    """A socket in a folder that only this user can enter, and the thread that accepts connections on it.

    The thread creates and removes both, so that an exception in the thread that opens or closes a gateway (Ctrl-C)
    cannot leave anything behind.
    """

    def __init__(self, on_client: Callable[[socket.socket], None], on_end: Callable[[], None]) -> None:
        self._on_client = on_client
        self._on_end = on_end
        self._lock = threading.Lock()
        self._stopped = False
        self._sockets: list[socket.socket] = []
        self._wake_write: socket.socket | None = None
        self._opened = threading.Event()
        self._failure: BaseException | None = None
        self._owner = os.getpid()
        self._thread = threading.Thread(target=self._run, name="remoteclaw-gateway-listener", daemon=True)
        self.path = ""

    def open(self) -> None:
        """Start listening. Raises any failure to do so."""
        self._thread.start()
        self._opened.wait()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Make the thread end all connections and then itself. Does not wait."""
        with self._lock:
            self._stopped = True
            if self._wake_write is not None:
                self._wake_write.close()

    def join(self) -> None:
        """Wait until nothing is left. Does nothing in a forked copy."""
        if os.getpid() != self._owner:
            self._close_sockets()
        self._thread.join(JOIN_TIMEOUT + CALLS_GRACE)

    def _run(self) -> None:
        folder = None
        try:
            folder = _private_folder()
            # Also needed at interpreter exit, when a daemon thread still has the gateway open.
            weakref.finalize(self, files.remove, folder)
            wake, listening = self._listen(os.path.join(folder, SOCKET_NAME))
            self._opened.set()
            self._accept(wake, listening)
        except BaseException as error:  # noqa: BLE001 - raised again, by open()
            self._failure = error
        finally:
            self._close_sockets()
            self._on_end()
            if folder is not None:
                files.remove(folder)
            self._opened.set()

    def _listen(self, path: str) -> tuple[socket.socket, socket.socket]:
        wake_read, wake_write = socket.socketpair()
        self._sockets += [wake_read, wake_write]
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sockets.append(listening)
        listening.bind(path)
        os.chmod(path, stat.S_IRUSR | stat.S_IWUSR)
        listening.listen()
        listening.setblocking(False)
        self.path = path
        with self._lock:
            self._wake_write = wake_write
            if self._stopped:
                wake_write.close()
        return wake_read, listening

    def _accept(self, wake: socket.socket, listening: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(listening, selectors.EVENT_READ)
            # Closing a socket does not wake a thread that is accepting on it; closing the other end of this pair does.
            selector.register(wake, selectors.EVENT_READ)
            while all(key.fileobj is not wake for key, _ in selector.select()):
                try:
                    client, _ = listening.accept()
                except OSError as error:
                    logger.debug("accepting a relay failed: %s", error)
                    continue
                client.setblocking(True)
                self._on_client(client)

    def _close_sockets(self) -> None:
        for one in self._sockets:
            one.close()


def _private_folder() -> str:
    """A new folder of mode 0700 whose path is short enough for a socket."""
    if not hasattr(socket, "AF_UNIX"):
        raise RuntimeError("Python tools need Unix sockets, which this platform does not have")
    base = folder_for_sockets()
    if base is None:
        raise RuntimeError(f"no folder has a path short enough for a socket; set TMPDIR (now {tempfile.gettempdir()})")
    files.sweep(base)
    return files.new_folder(base)


def folder_for_sockets() -> str | None:
    """The folder in which gateways create theirs: the temporary folder, or another if its path is too long for a
    socket."""
    for base in (tempfile.gettempdir(), *OTHER_BASES):
        if files.longest_folder(base) + 1 + len(SOCKET_NAME) <= LONGEST_SOCKET_PATH and os.path.isdir(base):
            return base
    return None
