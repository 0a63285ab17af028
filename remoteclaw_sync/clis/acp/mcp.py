"""The caller's MCP servers in ACP's format. Pure: values in, values out."""

from __future__ import annotations

from typing import Any

from ...types import McpServerConfig
from ..mcp_entries import Protect, Servers, protected, stdio_entry


def acp_entries(servers: Servers, protect: Protect = str) -> list[dict[str, Any]]:
    """The entries for `mcpServers` of a session."""
    return [_entry(name, server, protect) for name, server in servers.items()]


def _entry(name: str, server: McpServerConfig, protect: Protect) -> dict[str, Any]:
    if server.url is not None:
        headers = _pairs(protected(server.headers, protect))
        return {"type": "http", "name": name, "url": server.url, "headers": headers}
    return {"name": name, **stdio_entry(server, str), "env": _pairs(protected(server.env, protect))}


def _pairs(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]
