"""The caller's MCP servers in Gemini's format. Pure: values in, values out."""

from __future__ import annotations

import os
import shutil
from typing import Any

from ...types import McpServerConfig
from ..acp.mcp import acp_entries
from ..mcp_entries import Protect, Servers, protected, stdio_entry, with_results_as_objects


def gemini_entries(servers: Servers, protect: Protect) -> dict[str, Any]:
    """The entries for the `mcpServers` object of settings.json."""
    # 0.61.0 takes JSON in a function's result for structured content, and refuses it if it is not an object.
    return {name: _entry(server, protect) for name, server in with_results_as_objects(servers).items()}


def _entry(server: McpServerConfig, protect: Protect) -> dict[str, Any]:
    def protect_twice(value: str) -> str:
        # Gemini (0.61) expands these again when it starts the server, and that expansion understands "\\$".
        return protect(value.replace("$", r"\$"))

    trust = {"trust": True} if server.trust else {}
    if server.url is not None:
        return {"httpUrl": protect(server.url), "headers": protected(server.headers, protect_twice), **trust}
    return {**stdio_entry(server, protect), "env": protected(server.env, protect_twice), **trust}


def live_entries(servers: Servers) -> list[dict[str, Any]]:
    """The entries for `mcpServers` of a live session."""
    return acp_entries(with_results_as_objects(servers), lambda value: value.replace("$", r"\$"))


def missing_programs(servers: Servers, search_path: str | None) -> dict[str, str]:
    """Servers whose program is missing, with a message for each: Gemini never reports one that does not start."""
    commands = {name: server.command for name, server in servers.items() if server.command is not None}
    return {
        name: f"its program {command!r} was not found"
        for name, command in commands.items()
        if shutil.which(os.path.expanduser(command), path=search_path) is None
    }
