"""The caller's MCP servers in Claude's format. Pure: values in, values out."""

from __future__ import annotations

from typing import Any

from ...types import McpServerConfig
from ..mcp_entries import Protect, Servers, protected, stdio_entry


def claude_entries(servers: Servers, protect: Protect) -> dict[str, Any]:
    """The entries for the `mcpServers` object of `--mcp-config`."""
    return {name: _entry(server, protect) for name, server in servers.items()}


def _entry(server: McpServerConfig, protect: Protect) -> dict[str, Any]:
    # Claude (2.1.326) hides the tools of a server behind its ToolSearch tool, so that the model does not know them in
    # the first request, unless the entry says this. The user's own servers stay as they are.
    offered = {"alwaysLoad": True}
    if server.url is not None:
        headers = protected(server.headers, protect)
        return {"type": "http", "url": protect(server.url), "headers": headers, **offered}
    return {"type": "stdio", **stdio_entry(server, protect), "env": protected(server.env, protect), **offered}
