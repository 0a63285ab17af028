"""A small MCP server for the tests, over stdio (run this file) or streamable HTTP.

It uses only the standard library and imports nothing of ours: the CLIs start it by its path, in whatever environment
they give it. Its tools have no annotations, so every CLI's approval rules apply to them in full.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]

METHOD_NOT_FOUND = -32601
INTERNAL_ERROR = -32603


def echo(arguments: Json, headers: Mapping[str, str]) -> str:
    """Return the text."""
    return f"echo: {arguments.get('text', '')}"


def fail(arguments: Json, headers: Mapping[str, str]) -> str:
    """Always a tool error (isError)."""
    raise ToolError(str(arguments.get("text", "scripted tool failure")))


def rpc_fail(arguments: Json, headers: Mapping[str, str]) -> str:
    """Always a JSON-RPC error."""
    raise RuntimeError(str(arguments.get("text", "scripted protocol failure")))


def env(arguments: Json, headers: Mapping[str, str]) -> str:
    """The value of one environment variable of this server."""
    return os.environ.get(str(arguments.get("name", "")), "(unset)")


def header(arguments: Json, headers: Mapping[str, str]) -> str:
    """The value of one HTTP header of this request."""
    return headers.get(str(arguments.get("name", "")).lower(), "(unset)")


def slow(arguments: Json, headers: Mapping[str, str]) -> str:
    """Answer after some seconds."""
    time.sleep(float(arguments.get("seconds", 1)))
    return "slow answer"


def crash(arguments: Json, headers: Mapping[str, str]) -> str:
    """End the server process without an answer. Over HTTP that process would be the test itself."""
    if headers:
        raise RuntimeError("crash is for stdio only")
    os._exit(3)


Tool = Callable[[Json, Mapping[str, str]], str]
TOOLS: dict[str, tuple[Tool, Json]] = {
    "echo": (echo, {"text": {"type": "string"}}),
    "fail": (fail, {"text": {"type": "string"}}),
    "rpc_fail": (rpc_fail, {"text": {"type": "string"}}),
    "env": (env, {"name": {"type": "string"}}),
    "header": (header, {"name": {"type": "string"}}),
    "slow": (slow, {"seconds": {"type": "number"}}),
    "crash": (crash, {}),
}


class ToolError(Exception):
    """The tool ran and failed: the model is told; the protocol is fine."""


def answer(message: Json, headers: Mapping[str, str]) -> Json | None:
    """The JSON-RPC answer to one message; None for a notification."""
    if "id" not in message:
        return None
    head = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        return {**head, "result": _result(message["method"], message.get("params") or {}, headers)}
    except NotImplementedError as error:  # a RuntimeError, so it is caught first
        return {**head, "error": {"code": METHOD_NOT_FOUND, "message": str(error)}}
    except (RuntimeError, LookupError, TypeError, ValueError) as error:
        return {**head, "error": {"code": INTERNAL_ERROR, "message": str(error)}}


def _result(method: str, params: Json, headers: Mapping[str, str]) -> Json:
    if method == "initialize":
        server = {"name": "bench", "version": "1"}
        version = params.get("protocolVersion", "2025-06-18")
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": [_description(name) for name in TOOLS]}
    if method == "tools/call":
        return _call(params["name"], params.get("arguments") or {}, headers)
    raise NotImplementedError(f"no method {method}")


def _description(name: str) -> Json:
    tool, properties = TOOLS[name]
    schema = {"type": "object", "properties": properties}
    return {"name": name, "description": tool.__doc__ or name, "inputSchema": schema}


def _call(name: str, arguments: Json, headers: Mapping[str, str]) -> Json:
    if name not in TOOLS:
        raise NotImplementedError(f"no tool {name}")
    try:
        text, failed = TOOLS[name][0](arguments, headers), False
    except ToolError as error:
        text, failed = str(error), True
    return {"content": [{"type": "text", "text": text}], "isError": failed}


def serve_stdio() -> None:
    """Answer JSON lines on stdin until it ends; each in its own thread, so that `slow` does not block the others."""
    writing = threading.Lock()

    def handle(line: str) -> None:
        reply = answer(json.loads(line), {})
        if reply is not None:
            with writing:
                sys.stdout.write(json.dumps(reply) + "\n")
                sys.stdout.flush()

    for line in sys.stdin:
        threading.Thread(target=handle, args=(line,), daemon=True).start()


class HttpMcpServer:
    """The same tools over streamable HTTP at `url`, in this process; a context manager.

    `headers` holds the headers of each request, names in lower case.
    """

    def __init__(self) -> None:
        self.headers: list[dict[str, str]] = []
        handler = type("Handler", (_HttpHandler,), {"received": self.headers})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.02,), name="mcp-http-server", daemon=True
        )

    @property
    def url(self) -> str:
        """The address of the endpoint."""
        return f"http://127.0.0.1:{self._http.server_port}/mcp"

    def __enter__(self) -> HttpMcpServer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._http.shutdown()
        self._thread.join(5)
        self._http.server_close()


class _HttpHandler(BaseHTTPRequestHandler):
    # HTTP/1.0 closes after each answer, so no connection thread outlives a test.
    protocol_version = "HTTP/1.0"
    received: list[dict[str, str]]

    def do_POST(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.received.append(headers)
        message = json.loads(self.rfile.read(int(headers.get("content-length", 0))))
        reply = answer(message, headers)
        data = b"" if reply is None else json.dumps(reply).encode()
        self.send_response(202 if reply is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.send_error(405)  # no server-initiated stream; the protocol allows that

    def do_DELETE(self) -> None:
        self.send_error(405)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def main() -> None:
    """Serve stdio, after a delay, or not at all if the test wants a bad server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--start-delay", type=float, default=0.0, help="seconds of silence first")
    parser.add_argument("--broken", action="store_true", help="exit 1 at once")
    options = parser.parse_args()
    if options.broken:
        raise SystemExit("broken on purpose")
    time.sleep(options.start_delay)
    serve_stdio()


if __name__ == "__main__":
    main()
