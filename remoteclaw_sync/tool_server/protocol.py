"""The server's side of the Model Context Protocol, for tools: JSON-RPC lines in, JSON-RPC lines out.

It is fed lines and never connected: no socket, no thread. We offer only tools, so every other request gets "no such
method".
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any, TypeAlias

import attrs

from .._version import __version__
from .tools import Tool

# Newest first. For tools over stdio they say the same.
PROTOCOL_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602

NOTHING_TO_SHOW = "(no output)"  # Some models' APIs refuse an empty block of text.

Message: TypeAlias = dict[str, Any]
Respond: TypeAlias = Callable[[Message], None]
# Starts a tool call elsewhere and passes its result (see `tool_result`, `tool_failure`) to the last argument.
StartCall: TypeAlias = Callable[[Tool, Mapping[str, Any], Respond], None]


class Protocol:
    """One connection. `send` and `start_call` may be called from any thread that calls `receive`."""

    def __init__(self, tools: Iterable[Tool], start_call: StartCall, send: Callable[[str], None]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._start_call = start_call
        self._send = send
        self._lock = threading.Lock()
        self._open: set[str] = set()  # The ids of calls that still need an answer.
        self._methods: dict[str, Callable[[Any, Message], None]] = {
            "initialize": self._initialize,
            "ping": lambda ident, params: self._answer(ident, {}),
            "tools/list": self._list_tools,
            "tools/call": self._call_tool,
        }

    def receive(self, line: str) -> None:
        """Handle one line from the client and send the reply, if any."""
        if not line.strip():
            return
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            self._fail(None, PARSE_ERROR, "not JSON")
            return
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            self._fail(None, INVALID_REQUEST, "not a JSON-RPC 2.0 message")
            return
        method, params = message.get("method"), message.get("params", {})
        if "id" not in message:
            self._notice(method, params)
        elif isinstance(method, str):
            self._request(message["id"], method, params)
        elif "result" not in message and "error" not in message:  # We never send requests, so we ignore answers.
            self._fail(message["id"], INVALID_REQUEST, "a request needs a method")

    def _request(self, ident: Any, method: str, params: Any) -> None:
        handler = self._methods.get(method)
        if handler is None:
            self._fail(ident, METHOD_NOT_FOUND, f"no such method: {method}")
        elif not isinstance(params, dict):
            self._fail(ident, INVALID_PARAMS, "params must be an object")
        else:
            handler(ident, params)

    def _notice(self, method: Any, params: Any) -> None:
        if method == "notifications/cancelled" and isinstance(params, dict):
            self._close(_key(params.get("requestId")))

    def _initialize(self, ident: Any, params: Message) -> None:
        asked = params.get("protocolVersion")
        result = {
            "protocolVersion": asked if asked in PROTOCOL_VERSIONS else PROTOCOL_VERSIONS[0],
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": "remoteclaw_sync", "version": __version__},
        }
        self._answer(ident, result)

    def _list_tools(self, ident: Any, params: Message) -> None:
        described = [
            {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
            for tool in self._tools.values()
        ]
        self._answer(ident, {"tools": described})

    def _call_tool(self, ident: Any, params: Message) -> None:
        tool = self._tools.get(params["name"]) if isinstance(params.get("name"), str) else None
        arguments = params.get("arguments") or {}
        if tool is None:
            self._fail(ident, INVALID_PARAMS, f"unknown tool: {params.get('name')}")
            return
        if not isinstance(arguments, dict):
            self._fail(ident, INVALID_PARAMS, "arguments must be an object")
            return
        key = _key(ident)
        with self._lock:
            self._open.add(key)

        def respond(result: Message) -> None:
            if self._close(key):
                self._answer(ident, result)

        self._start_call(tool, arguments, respond)

    def _close(self, key: str) -> bool:
        """Whether this call still needed an answer; from now on it does not."""
        with self._lock:
            if key not in self._open:
                return False
            self._open.remove(key)
            return True

    def _answer(self, ident: Any, result: Message) -> None:
        self._send(_line({"jsonrpc": "2.0", "id": ident, "result": result}))

    def _fail(self, ident: Any, code: int, message: str) -> None:
        error = {"code": code, "message": _without_surrogates(message)}
        self._send(_line({"jsonrpc": "2.0", "id": ident, "error": error}))


def _key(ident: Any) -> str:
    return json.dumps(ident)


def _line(message: Message) -> str:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")) + "\n"


# --- results -------------------------------------------------------------------------------------------------


def tool_result(value: Any) -> Message:
    """A function's return value as the model sees it: text unchanged, anything else as JSON."""
    if value is None:
        text = ""
    elif isinstance(value, str):
        text = value
    elif isinstance(value, bytes | bytearray):
        text = value.decode(errors="replace")
    else:
        text = json.dumps(value, ensure_ascii=False, default=_plain)
    return {"content": [_text_block(text)], "isError": False}


def tool_failure(message: str) -> Message:
    """A function's failure as the model sees it."""
    return {"content": [_text_block(message)], "isError": True}


def _text_block(text: str) -> Message:
    return {"type": "text", "text": _without_surrogates(text) or NOTHING_TO_SHOW}


def _without_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode: a strict parser would drop the whole line."""
    return text.encode(errors="replace").decode()


def _plain(value: Any) -> Any:
    """For json.dumps: types that it does not know."""
    if callable(to_dict := getattr(value, "to_dict", None)):
        return to_dict()
    if attrs.has(type(value)):
        return attrs.asdict(value, recurse=False)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable):
        return list(value)
    return str(value)
