"""The server's side of the Model Context Protocol, for tools: JSON-RPC lines in, JSON-RPC lines out (wire/jsonrpc.py).

It is fed lines and does no input or output: no socket, no thread. We offer only tools, so every other request gets "no
such method".
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
from ..wire.jsonrpc import METHOD_NOT_FOUND, Called, Peer, RequestId, Told
from .tools import Tool

# Newest first. For tools over stdio they are identical.
PROTOCOL_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
INVALID_PARAMS = -32602

NOTHING_TO_SHOW = "(no output)"  # Some models' APIs refuse an empty block of text.

Message: TypeAlias = dict[str, Any]
Respond: TypeAlias = Callable[[Message], None]
# Starts a tool call elsewhere and passes its result (see `tool_result`, `tool_failure`) to the last argument.
StartCall: TypeAlias = Callable[[Tool, Mapping[str, Any], Respond], None]


class Protocol:
    """One connection. `send` and `start_call` may be called from any thread that calls `receive`.

    Args:
        adds_objects: send a result that is JSON, but not an object, as structured content too. Most clients show
            that to their model instead of the text.
    """

    def __init__(
        self, tools: Iterable[Tool], start_call: StartCall, send: Callable[[bytes], None], *, adds_objects: bool = False
    ) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._start_call = start_call
        self._send = send
        self._peer = Peer()
        self._lock = threading.Lock()
        self._adds_objects = adds_objects
        self._open: set[RequestId] = set()  # Calls that still need an answer.
        self._methods: dict[str, Callable[[RequestId, Message], None]] = {
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
        heard = self._peer.feed(message)
        if isinstance(heard, Called):
            self._request(heard, message.get("params", {}))
        elif isinstance(heard, Told) and "id" in message:
            self._fail(None, INVALID_REQUEST, "an id must be a string or an integer")
        elif isinstance(heard, Told):
            self._notice(heard)
        elif "id" in message and "result" not in message and "error" not in message:  # Answers: ignored, we never ask.
            self._fail(message["id"], INVALID_REQUEST, "a request needs a method")

    def _request(self, asked: Called, params: Any) -> None:
        handler = self._methods.get(asked.method)
        if handler is None:
            self._fail(asked.id, METHOD_NOT_FOUND, f"no such method: {asked.method}")
        elif not isinstance(params, dict):
            self._fail(asked.id, INVALID_PARAMS, "params must be an object")
        else:
            handler(asked.id, params)

    def _notice(self, told: Told) -> None:
        if told.method == "notifications/cancelled":
            self._close(told.params.get("requestId"))

    def _initialize(self, ident: RequestId, params: Message) -> None:
        asked = params.get("protocolVersion")
        result = {
            "protocolVersion": asked if asked in PROTOCOL_VERSIONS else PROTOCOL_VERSIONS[0],
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": "remoteclaw_sync", "version": __version__},
        }
        self._answer(ident, result)

    def _list_tools(self, ident: RequestId, params: Message) -> None:
        described = [
            {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
            for tool in self._tools.values()
        ]
        self._answer(ident, {"tools": described})

    def _call_tool(self, ident: RequestId, params: Message) -> None:
        tool = self._tools.get(params["name"]) if isinstance(params.get("name"), str) else None
        arguments = params.get("arguments") or {}
        if tool is None:
            self._fail(ident, INVALID_PARAMS, f"unknown tool: {params.get('name')}")
            return
        if not isinstance(arguments, dict):
            self._fail(ident, INVALID_PARAMS, "arguments must be an object")
            return
        with self._lock:
            self._open.add(ident)

        def respond(result: Message) -> None:
            if self._close(ident):
                self._answer(ident, {**result, **_structured(result)} if self._adds_objects else result)

        self._start_call(tool, arguments, respond)

    def _close(self, ident: Any) -> bool:
        """Mark a call as answered. Returns whether it still needed an answer."""
        with self._lock:
            if not isinstance(ident, int | str) or ident not in self._open:
                return False
            self._open.remove(ident)
            return True

    def _answer(self, ident: RequestId, result: Message) -> None:
        self._peer.answer(ident, result)
        self._speak()

    def _fail(self, ident: RequestId | None, code: int, message: str) -> None:
        self._peer.refuse(ident, code, _without_surrogates(message))
        self._speak()

    def _speak(self) -> None:
        said = self._peer.take()
        if said:  # Otherwise another thread has already sent it, with its own.
            self._send(said)


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


def _structured(result: Message) -> Message:
    """If the result is JSON but not an object, an object with it as structured content."""
    try:
        value = json.loads(result["content"][0]["text"])
    except (LookupError, TypeError, ValueError, RecursionError):
        return {}
    return {} if isinstance(value, dict) else {"structuredContent": {"result": value}}


def tool_failure(message: str) -> Message:
    """A function's failure as the model sees it."""
    return {"content": [_text_block(message)], "isError": True}


def _text_block(text: str) -> Message:
    return {"type": "text", "text": _without_surrogates(text) or NOTHING_TO_SHOW}


def _without_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode: a strict parser would drop the whole line."""
    return text.encode(errors="replace").decode()


def _plain(value: Any) -> Any:
    """For json.dumps: the plain form of types that it does not know."""
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
