"""The caller's MCP servers in Gemini's format. Pure: values in, values out."""

from __future__ import annotations

from typing import Any

from ...types import McpServerConfig
from ..mcp_entries import Protect, Servers, protected, stdio_entry


def gemini_entries(servers: Servers, protect: Protect) -> dict[str, Any]:
    """For the `mcpServers` object of settings.json."""
    return {name: _entry(server, protect) for name, server in servers.items()}


def _entry(server: McpServerConfig, protect: Protect) -> dict[str, Any]:
    def protect_twice(value: str) -> str:
        # Gemini (0.61) expands these once more when it starts the server, by a rule that knows "\\$".
        return protect(value.replace("$", r"\$"))

    trust = {"trust": True} if server.trust else {}
    if server.url is not None:
        return {"httpUrl": protect(server.url), "headers": protected(server.headers, protect_twice), **trust}
    return {**stdio_entry(server, protect), "env": protected(server.env, protect_twice), **trust}
