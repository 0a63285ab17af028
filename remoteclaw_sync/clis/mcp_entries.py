"""What entries of MCP servers have in common in the CLIs' configs. Each CLI's format is in `clis/<name>/mcp.py`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from ..tool_server import relay
from ..types import McpServerConfig

Servers = Mapping[str, McpServerConfig]
Protect = Callable[[str], str]  # Keeps a CLI from expanding variables inside a value.

_NOT_IN_TOOL_NAMES = re.compile(r"[^A-Za-z0-9_-]")


def tool_prefix_name(name: str) -> str:
    """A server's name as CLIs put it into tool names."""
    return _NOT_IN_TOOL_NAMES.sub("_", name)


def check_distinct(servers: Servers) -> None:
    """Raise ValueError if a CLI would confuse two of the names: it would trust both or neither."""
    seen: dict[str, str] = {}
    for name in servers:
        other = seen.setdefault(tool_prefix_name(name), name)
        if other != name:
            raise ValueError(f"mcp_servers names {other!r} and {name!r} are the same in tool names; rename one")


def stdio_entry(server: McpServerConfig, protect: Protect) -> dict[str, Any]:
    """Command and arguments of a server that has no URL."""
    assert server.command is not None
    return {"command": protect(server.command), "args": [protect(arg) for arg in server.args]}


def protected(values: Mapping[str, str], protect: Protect) -> dict[str, str]:
    """Variables or headers, with their values protected."""
    return {key: protect(value) for key, value in values.items()}


def with_results_as_objects(servers: Servers) -> Servers:
    """The servers for a CLI that takes JSON in a result's text for structured content, and then refuses a number or a
    list because that has to be an object. Only Python functions are told; other people's servers stay as they are."""
    return {name: _with_results_as_objects(server) for name, server in servers.items()}


def _with_results_as_objects(server: McpServerConfig) -> McpServerConfig:
    if relay.SOCKET_VARIABLE not in server.env:
        return server
    return attrs.evolve(server, env={**server.env, relay.OBJECTS_VARIABLE: "1"})


class EnvReferences:
    """Moves values out of a config into environment variables, because the CLI would expand references in them.

    CLIs replace `$NAME` and `${NAME}`, or `{env:NAME}` and `{file:NAME}`, in every string, and a password may contain
    any of these. A variable's value is not expanded again, at least not if `written` has encoded it.
    """

    PREFIX = "REMOTECLAW_SYNC_MCP_"

    def __init__(self, trigger: str, reference: str, written: Protect = str) -> None:
        self._trigger = trigger
        self._reference = reference
        self._written = written
        self.variables: dict[str, str] = {}

    def __call__(self, value: str) -> str:
        if self._trigger not in value:
            return value
        name = f"{self.PREFIX}{len(self.variables)}"
        self.variables[name] = self._written(value)
        return self._reference.format(name)
