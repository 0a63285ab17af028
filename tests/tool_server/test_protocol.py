"""The protocol, line by line, without a socket."""

from __future__ import annotations

import datetime
import enum
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from remoteclaw_sync.tool_server.protocol import PROTOCOL_VERSIONS, Protocol, tool_failure, tool_result
from remoteclaw_sync.tool_server.tools import Tool, build_tools


def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


class Client:
    """Sends messages and keeps the responses; calls are answered when `finish` is called."""

    def __init__(self, *, adds_objects: bool = False) -> None:
        self.lines: list[bytes] = []
        self.pending: list[Callable[[], None]] = []
        self.protocol = Protocol(build_tools([add]), self._start_call, self.lines.append, adds_objects=adds_objects)

    def _start_call(self, tool: Tool, arguments: Mapping[str, Any], respond: Callable[[dict[str, Any]], None]) -> None:
        self.pending.append(lambda: respond(tool_result(tool(arguments))))

    def send(self, **message: Any) -> None:
        self.protocol.receive(json.dumps({"jsonrpc": "2.0", **message}))

    def call(self, ident: Any, **arguments: Any) -> None:
        self.send(id=ident, method="tools/call", params={"name": "add", "arguments": arguments})

    @property
    def answers(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.mark.parametrize("version", PROTOCOL_VERSIONS)
def test_a_known_protocol_version_is_agreed_to(client: Client, version: str) -> None:
    client.send(id=1, method="initialize", params={"protocolVersion": version})
    (answer,) = client.answers
    assert answer["result"]["protocolVersion"] == version
    assert "tools" in answer["result"]["capabilities"]


def test_to_an_unknown_version_the_newest_known_is_offered(client: Client) -> None:
    client.send(id=1, method="initialize", params={"protocolVersion": "2099-01-01"})
    assert client.answers[0]["result"]["protocolVersion"] == PROTOCOL_VERSIONS[0]


def test_tools_are_listed_with_their_schemas(client: Client) -> None:
    client.send(id="x", method="tools/list")
    (answer,) = client.answers
    (listed,) = answer["result"]["tools"]
    assert (answer["id"], listed["name"], listed["description"]) == ("x", "add", "Add two numbers.")
    assert listed["inputSchema"]["required"] == ["a"]


def test_a_ping_is_answered(client: Client) -> None:
    client.send(id=0, method="ping")
    assert client.answers == [{"jsonrpc": "2.0", "id": 0, "result": {}}]


def test_calls_are_answered_as_they_finish_each_with_its_id(client: Client) -> None:
    client.call(1, a=1)
    client.call("1", a=2)
    client.pending[1]()
    client.pending[0]()
    assert [(one["id"], one["result"]["content"][0]["text"]) for one in client.answers] == [("1", "4"), (1, "3")]


def test_a_cancelled_call_is_not_answered(client: Client) -> None:
    client.call(1, a=1)
    client.send(method="notifications/cancelled", params={"requestId": 1})
    client.pending[0]()
    assert client.answers == []


def test_notifications_and_answers_are_not_answered(client: Client) -> None:
    client.send(method="notifications/initialized")
    client.send(method="notifications/unheard_of", params=[1])
    client.send(id=7, result={})
    client.protocol.receive("  ")
    assert client.lines == []


@pytest.mark.parametrize(
    ("line", "code", "ident"),
    [
        ("{nonsense", -32700, None),
        ("[" * 100_000, -32700, None),
        ("[]", -32600, None),
        ("3", -32600, None),
        ('{"id": 1, "method": "ping"}', -32600, None),
        ('{"jsonrpc": "2.0", "id": 1}', -32600, 1),
        ('{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}', -32600, None),
        ('{"jsonrpc": "2.0", "id": [1], "method": "ping"}', -32600, None),
        ('{"jsonrpc": "2.0", "id": 1, "method": "resources/list"}', -32601, 1),
        ('{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [1]}', -32602, 1),
        ('{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "sub"}}', -32602, 1),
        ('{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {}}', -32602, 1),
        ('{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add", "arguments": [1]}}', -32602, 1),
    ],
)
def test_what_is_wrong_gets_the_error_json_rpc_has_for_it(client: Client, line: str, code: int, ident: Any) -> None:
    client.protocol.receive(line)
    (answer,) = client.answers
    assert (answer["error"]["code"], answer["id"]) == (code, ident)


# --- results -------------------------------------------------------------------------------------------------


class Size(enum.Enum):
    BIG = "big"


@attrs.frozen
class Thing:
    size: Size
    where: Path


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is\n", "as it is\n"),
        (None, "(no output)"),
        ("", "(no output)"),
        (b"caf\xc3\xa9", "caf\u00e9"),
        (3, "3"),
        (True, "true"),
        ({"a": [1, None], "b": "\u00e9"}, '{"a": [1, null], "b": "\u00e9"}'),
        ((1, 2), "[1, 2]"),
        ({3, 1}, "[1, 3]"),
        (Thing(Size.BIG, Path("/etc")), '{"size": "big", "where": "/etc"}'),
        (datetime.date(2024, 2, 29), '"2024-02-29"'),
        ((n * n for n in range(3)), "[0, 1, 4]"),
    ],
)
def test_what_a_function_returns_is_told_as_text(value: Any, text: str) -> None:
    assert tool_result(value) == {"content": [{"type": "text", "text": text}], "isError": False}


@pytest.mark.parametrize(("adds_objects", "structured"), [(True, {"result": 3}), (False, None)])
def test_a_client_that_takes_a_number_for_structured_content_gets_it_as_an_object(
    adds_objects: bool, structured: Any
) -> None:
    client = Client(adds_objects=adds_objects)
    client.call(2, a=1)
    client.pending.pop()()
    result = client.answers[-1]["result"]
    assert (result["content"][0]["text"], result.get("structuredContent")) == ("3", structured)


def test_a_lone_surrogate_in_a_result_does_not_break_the_line() -> None:
    assert tool_result("a\ud83db")["content"][0]["text"] == "a?b"
    assert tool_failure("\ud83d") == {"content": [{"type": "text", "text": "?"}], "isError": True}
