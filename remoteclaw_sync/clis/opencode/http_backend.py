"""A child that we talk to over HTTP: `opencode acp` opens a server, and exits when its stdin is closed.

We send it lines like `{"id", "method": "POST /session", "params": {"body", "limit"}}`. It returns answers like
`{"id", "result": {"status", "type", "body"}}` and, unchanged, the server's events. The method `WAIT` is answered
(`{"id", "result": "rung"}`) after `limit` seconds, and `END` closes the child's stdin.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import attrs

from ...process.backend import Backend
from ...process.launch import Launch, Sink, Strays
from ...wire.fields import mapping, text
from ...wire.json_lines import LineFramer, parse_line
from .http_client import Ask, Door, HttpClient

if sys.platform == "win32":
    from ...process.fallback import PortableBackend as PlatformBackend
else:
    from ...process.posix import PosixBackend as PlatformBackend

MAX_STDOUT_LINE = 1 << 20
DEFAULT_LIMIT = 60.0  # Seconds until an answer must arrive.
# OpenCode answers this only when its server listens. Then the port is our child's, and nobody else gets the password.
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": 1, "clientCapabilities": {}},
}


class HttpBackend:
    """See `process.backend.Backend`. What arrives over HTTP is passed on in the supervisor's thread."""

    def __init__(self, launch: Launch, events: Sink, diagnostics: Sink, *, door: Callable[[], Door]) -> None:
        hello = json.dumps(INITIALIZE).encode() + b"\n"
        self._inner: Backend = PlatformBackend(attrs.evolve(launch, stdin=hello), self._on_stdout, diagnostics)
        self._events = events
        self._stdout: LineFramer | None = LineFramer(MAX_STDOUT_LINE)
        self._client = HttpClient(door(), launch.max_line_bytes, self._hear, self._on_opened)
        self._heard: deque[bytes] = deque()
        self._unsaid = [launch.stdin]  # Kept until the server is ready.
        self._is_open = False
        self._gave_up = False
        self._lock = threading.Lock()
        self._version = ""
        self.pid: int | None = None
        self.exited = False
        self.events_ended = False

    # --- the process ------------------------------------------------------------------------------------------

    def spawn(self) -> None:
        self._inner.spawn()
        self._note()

    def _note(self) -> None:
        inner = self._inner
        self.pid, self.exited, self.events_ended = inner.pid, inner.exited, inner.events_ended

    def is_guarded(self) -> bool:
        return self._inner.is_guarded()

    def start_guard(self) -> None:
        self._inner.start_guard()

    def wake(self) -> None:
        self._inner.wake()

    def wait(self, timeout: float | None) -> None:
        self._inner.wait(timeout)
        self._note()
        self._pass_on()
        if self._gave_up:
            self._inner.send(b"", last=True)

    def terminate(self) -> None:
        self._inner.terminate()

    def kill(self) -> None:
        self._inner.kill()

    def end_strays(self, strays: Strays) -> None:
        self._inner.end_strays(strays)

    def finish(self, *, drain: bool) -> int | None:
        try:
            exit_code = self._inner.finish(drain=False)
        finally:
            self._client.stop()
            self._note()
        if drain:
            self._pass_on()
        return exit_code

    def forget_after_fork(self) -> None:
        self._inner.forget_after_fork()
        self._client.forget_after_fork()

    # --- what it says -----------------------------------------------------------------------------------------

    def _on_stdout(self, chunk: bytes) -> None:
        """Read stdout only until the greeting is answered. Later output is for ACP clients, not for us."""
        block = None if self._stdout is None else self._stdout.push_block(chunk)
        for line in [] if block is None else block.split(b"\n"):
            message = parse_line(line.decode(errors="replace")) or {}
            if message.get("id") == INITIALIZE["id"] and self._stdout is not None:
                self._stdout = None
                self._on_greeted(message)

    def _on_greeted(self, message: dict[str, Any]) -> None:
        result = mapping(message, "result")
        self._version = text(mapping(result, "agentInfo"), "version")
        if not result:
            self._on_opened(text(mapping(message, "error"), "message") or "it did not return the greeting")
            return
        try:
            self._client.start()
        except (OSError, RuntimeError) as error:
            self._on_opened(f"no connection to it can be made: {error}")

    def _on_opened(self, problem: str | None) -> None:
        if problem is None:
            self._hear(_notice("ready", version=self._version))
        else:
            self._gave_up = True
            self._hear(_notice("failed", version=self._version, reason=problem))
            return
        with self._lock:
            self._is_open = True
            unsaid, self._unsaid = self._unsaid, []
            for data in unsaid:
                self._submit(data)

    def _hear(self, data: bytes) -> None:
        self._heard.append(data)
        self._inner.wake()

    def _pass_on(self) -> None:
        while self._heard:
            self._events(self._heard.popleft())

    def pause_reading(self) -> None:
        self._client.pause()

    def resume_reading(self) -> None:
        self._client.resume()

    # --- what is said to it -----------------------------------------------------------------------------------

    @property
    def unsent_bytes(self) -> int:
        return self._client.unsent_bytes + sum(map(len, self._unsaid))

    def send(self, data: bytes, *, last: bool) -> None:
        if data:
            with self._lock:
                if self._is_open:
                    self._submit(data)
                else:
                    self._unsaid.append(data)
        if last:
            self._inner.send(b"", last=True)

    def _submit(self, data: bytes) -> None:
        for line in filter(None, data.split(b"\n")):
            message = json.loads(line)
            method, _, path = message["method"].partition(" ")
            if method == "END":
                self._gave_up = True
                self._inner.wake()
                continue
            given = message.get("params", {})
            limit = given.get("limit", DEFAULT_LIMIT)
            self._client.submit(Ask(message["id"], method, path, given.get("body"), limit))


def _notice(name: str, **params: str) -> bytes:
    return json.dumps({"method": name, "params": params}).encode() + b"\n"
