"""The protocol as the official client (`mcp` on PyPI) understands it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from remoteclaw_sync.tool_server.server import Gateway
from remoteclaw_sync.types import McpServerConfig
from tests.fakes import PATIENCE

mcp = pytest.importorskip("mcp", reason="the official MCP client is not installed (extra `test-mcp`)")
stdio = pytest.importorskip("mcp.client.stdio")


def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    Args:
        a: the first
    """
    return a + b


def fail(text: str) -> None:
    raise ValueError(text)


def talk(server: McpServerConfig, conversation: Any) -> Any:
    """What this coroutine function returns when it is called with a session of the official client."""

    async def main() -> Any:
        parameters = mcp.StdioServerParameters(command=server.command, args=list(server.args), env=dict(server.env))
        async with stdio.stdio_client(parameters) as streams, mcp.ClientSession(*streams) as session:
            greeting = await session.initialize()
            return greeting, await conversation(session)

    return asyncio.run(asyncio.wait_for(main(), PATIENCE))


def text_of(result: Any) -> str:
    (block,) = result.content
    return str(block.text)


def is_error(result: Any) -> bool:
    return bool(getattr(result, "is_error", None) or getattr(result, "isError", False))


def test_it_connects_pings_and_lists_the_tools() -> None:
    async def conversation(session: Any) -> Any:
        await session.send_ping()
        return await session.list_tools()

    with Gateway([add]) as gateway:
        _, listed = talk(gateway.mcp_server(), conversation)
    (listed_tool,) = listed.tools
    schema = listed_tool.model_dump(by_alias=True)["inputSchema"]
    assert (listed_tool.name, listed_tool.description) == ("add", "Add two numbers.")
    assert schema["properties"]["a"] == {"type": "integer", "description": "the first"}


def test_it_calls_tools_and_sees_results_and_failures() -> None:
    async def conversation(session: Any) -> Any:
        return [
            await session.call_tool("add", {"a": 3}),
            await session.call_tool("fail", {"text": "caf\u00e9 \U0001f600"}),
            await session.call_tool("add", {"a": "x"}),
        ]

    with Gateway([add, fail]) as gateway:
        _, (five, failure, misuse) = talk(gateway.mcp_server(), conversation)
    assert (text_of(five), is_error(five)) == ("5", False)
    assert (text_of(failure), is_error(failure)) == ("ValueError: caf\u00e9 \U0001f600", True)
    assert (text_of(misuse), is_error(misuse)) == ("wrong arguments for add: a: expected an integer, got 'x'", True)


def test_its_calls_run_at_the_same_time() -> None:
    both = threading.Barrier(2)

    def meet(name: str) -> str:
        both.wait(PATIENCE)
        return name

    async def conversation(session: Any) -> Any:
        return await asyncio.gather(*(session.call_tool("meet", {"name": name}) for name in "ab"))

    with Gateway([meet]) as gateway:
        _, results = talk(gateway.mcp_server(), conversation)
    assert [text_of(result) for result in results] == ["a", "b"]


def test_an_unknown_tool_is_an_error_of_the_protocol() -> None:
    async def conversation(session: Any) -> Any:
        with pytest.raises(Exception, match="unknown tool: nothing"):
            await session.call_tool("nothing", {})
        return True

    with Gateway([add]) as gateway:
        assert talk(gateway.mcp_server(), conversation)[1]
