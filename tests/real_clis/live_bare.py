"""The least that a client of each live protocol can do: our sessions are compared with this.

Each client starts the CLI as ours does, sends a prompt and reads until the turn is over. There is no watchdog, no
abort, no clean-up of what the CLI leaves behind, and no events: only the text is looked at.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import subprocess
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from remoteclaw_sync.clis.acp.profiles import GEMINI
from remoteclaw_sync.clis.claude.live import LIVE_ENV
from remoteclaw_sync.clis.codex.app_server import SERVER_CONFIG

PASSWORD = "a-password-of-the-benchmark"


class Bare(ABC):
    """A client of one process."""

    argv: list[str]
    env: dict[str, str] = {}

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            self.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={**os.environ, **self.env},
            start_new_session=True,  # Like ours: the scheduler divides the machine by sessions.
        )
        self.begin()

    @abstractmethod
    def begin(self) -> None:
        """The handshake."""

    @abstractmethod
    def turn(self, prompt: str) -> float:
        """Seconds from the prompt to the first text; returns at the end of the turn."""

    def close(self) -> None:
        self._stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._stdout.close()

    @property
    def _stdin(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin

    @property
    def _stdout(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def send(self, message: dict[str, Any]) -> None:
        self._stdin.write(json.dumps(message).encode() + b"\n")
        self._stdin.flush()

    def lines(self) -> Iterator[dict[str, Any]]:
        for line in self._stdout:
            yield json.loads(line)


class BareClaude(Bare):
    """stream-json on pipes."""

    argv = [
        "claude",
        "-p",
        "--input-format=stream-json",
        "--output-format=stream-json",
        "--verbose",
        "--include-partial-messages",
        "--permission-prompt-tool=stdio",
        "--replay-user-messages",
    ]
    env = {**LIVE_ENV, "CLAUDE_CODE_DISABLE_ATTACHMENTS": "1"}

    def begin(self) -> None:
        self.send({"type": "control_request", "request_id": "1", "request": {"subtype": "initialize", "hooks": None}})
        next(line for line in self.lines() if line["type"] == "control_response")

    def turn(self, prompt: str) -> float:
        began, first = time.monotonic(), 0.0
        message = {"role": "user", "content": [{"type": "text", "text": prompt}]}
        self.send({"type": "user", "message": message, "parent_tool_use_id": None, "uuid": str(uuid.uuid4())})
        for line in self.lines():
            if line["type"] == "stream_event" and line["event"].get("delta", {}).get("type") == "text_delta":
                first = first or time.monotonic()
            elif line["type"] == "result":
                break
        return first - began


class BareCodex(Bare):
    """JSON-RPC on pipes."""

    argv = ["codex", "app-server", *(part for setting in SERVER_CONFIG for part in ("-c", setting))]

    def begin(self) -> None:
        about_us = {"name": "bare", "title": None, "version": "0"}
        params = {"clientInfo": about_us, "capabilities": {"experimentalApi": True}}
        self.send({"id": 1, "method": "initialize", "params": params})
        self._answer(1)
        self.send({"method": "initialized"})
        self.send({"id": 2, "method": "thread/start", "params": {"cwd": str(self.folder)}})
        self.thread = self._answer(2)["thread"]["id"]

    def _answer(self, number: int) -> Any:
        return next(line["result"] for line in self.lines() if line.get("id") == number)

    def turn(self, prompt: str) -> float:
        began, first = time.monotonic(), 0.0
        given = {"threadId": self.thread, "input": [{"type": "text", "text": prompt}]}
        self.send({"id": 3, "method": "turn/start", "params": given})
        for line in self.lines():
            if line.get("method") == "item/agentMessage/delta":
                first = first or time.monotonic()
            elif line.get("method") == "turn/completed":
                break
        return first - began


class BareGemini(Bare):
    """ACP on pipes."""

    argv = ["gemini", "--acp"]
    env = {**{name: value for name, value in GEMINI.env.items() if value}, "GEMINI_CLI_TRUST_WORKSPACE": "true"}

    def begin(self) -> None:
        self._ask(1, "initialize", {"protocolVersion": 1, "clientCapabilities": {}})
        self._answer(1)
        self._ask(2, "session/new", {"cwd": str(self.folder), "mcpServers": []})
        self.session = self._answer(2)["sessionId"]

    def _ask(self, number: int, method: str, params: dict[str, Any]) -> None:
        self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})

    def _answer(self, number: int) -> Any:
        return next(line["result"] for line in self.lines() if line.get("id") == number)

    def turn(self, prompt: str) -> float:
        began, first = time.monotonic(), 0.0
        self._ask(3, "session/prompt", {"sessionId": self.session, "prompt": [{"type": "text", "text": prompt}]})
        for line in self.lines():
            if line.get("id") == 3:
                break
            if line.get("params", {}).get("update", {}).get("sessionUpdate") == "agent_message_chunk":
                first = first or time.monotonic()
        return first - began


class BareOpenCode(Bare):
    """HTTP, with the stream of events on a separate connection."""

    env = {"OPENCODE_SERVER_PASSWORD": PASSWORD}
    headers = {
        "Authorization": "Basic " + base64.b64encode(f"opencode:{PASSWORD}".encode()).decode(),
        "Content-Type": "application/json",
    }

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.argv = ["opencode", "acp", "--hostname=127.0.0.1", f"--port={self.port}", "--mdns=false"]
        self.env = {**self.env, "PWD": str(folder)}
        super().__init__(folder)

    def begin(self) -> None:
        hello = {"protocolVersion": 1, "clientCapabilities": {}}
        self.send({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
        next(self.lines())
        self.news: SimpleQueue[tuple[float, dict[str, Any]]] = SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        self.news.get()
        self.session = self._post(f"/session?directory={self.folder}", {"title": "bare"})["id"]

    def _listen(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("GET", "/global/event", headers=self.headers)
        response = connection.getresponse()
        try:
            for line in response:
                if line.startswith(b"data:"):
                    self.news.put((time.monotonic(), json.loads(line[5:])["payload"]))
        except (OSError, http.client.HTTPException):
            pass  # The server is gone.
        finally:
            connection.close()

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            connection.request("POST", path, json.dumps(body), self.headers)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def turn(self, prompt: str) -> float:
        began, first = time.monotonic(), 0.0
        asked = threading.Thread(
            target=self._post,
            args=(f"/session/{self.session}/message", {"parts": [{"type": "text", "text": prompt}]}),
        )
        asked.start()
        while True:
            at, event = self.news.get()
            if event["type"] == "message.part.delta":
                first = first or at
            elif event["type"] == "session.idle":
                break
        asked.join()
        return first - began


BARE: dict[str, type[Bare]] = {
    "claude": BareClaude,
    "codex": BareCodex,
    "gemini": BareGemini,
    "opencode": BareOpenCode,
}
