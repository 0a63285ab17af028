"""Server entries in the shape each CLI wants. Pure: values in, values out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from ..types import McpServerConfig

Servers = Mapping[str, McpServerConfig]
Protect = Callable[[str], str]  # Keeps a CLI from expanding variables inside a value.

_NOT_IN_TOOL_NAMES = re.compile(r"[^A-Za-z0-9_-]")


def tool_prefix_name(name: str) -> str:
    """A server's name as Claude and OpenCode put it into tool names."""
    return _NOT_IN_TOOL_NAMES.sub("_", name)


def check_distinct(servers: Servers) -> None:
    """Raise ValueError if a CLI would take two of the names for one: it would trust both or neither."""
    seen: dict[str, str] = {}
    for name in servers:
        other = seen.setdefault(tool_prefix_name(name), name)
        if other != name:
            raise ValueError(f"mcp_servers names {other!r} and {name!r} are the same in tool names; rename one")


def claude_entries(servers: Servers, protect: Protect) -> dict[str, Any]:
    """For the `mcpServers` object of `--mcp-config`."""
    return {name: _claude_entry(server, protect) for name, server in servers.items()}


def _claude_entry(server: McpServerConfig, protect: Protect) -> dict[str, Any]:
    # Claude (2.1.326) keeps the tools of a server behind its ToolSearch tool, so that the model does not know them in
    # the first request, unless the entry says this. The user's own servers stay as they are.
    offered = {"alwaysLoad": True}
    if server.url is not None:
        headers = _protected(server.headers, protect)
        return {"type": "http", "url": protect(server.url), "headers": headers, **offered}
    return {"type": "stdio", **_stdio(server, protect), "env": _protected(server.env, protect), **offered}


def gemini_entries(servers: Servers, protect: Protect) -> dict[str, Any]:
    """For the `mcpServers` object of settings.json."""
    return {name: _gemini_entry(server, protect) for name, server in servers.items()}


def _gemini_entry(server: McpServerConfig, protect: Protect) -> dict[str, Any]:
    def protect_twice(value: str) -> str:
        # Gemini (0.61) expands these once more when it starts the server, by a rule that knows "\\$".
        return protect(value.replace("$", r"\$"))

    trust = {"trust": True} if server.trust else {}
    if server.url is not None:
        return {"httpUrl": protect(server.url), "headers": _protected(server.headers, protect_twice), **trust}
    return {**_stdio(server, protect), "env": _protected(server.env, protect_twice), **trust}


def _stdio(server: McpServerConfig, protect: Protect) -> dict[str, Any]:
    assert server.command is not None
    return {"command": protect(server.command), "args": [protect(arg) for arg in server.args]}


def _protected(values: Mapping[str, str], protect: Protect) -> dict[str, str]:
    return {key: protect(value) for key, value in values.items()}


def opencode_entries(servers: Servers, protect: Protect) -> dict[str, Any]:
    """For the `mcp` object of opencode.json."""
    return {protect(name): _opencode_entry(server, protect) for name, server in servers.items()}


def _opencode_entry(server: McpServerConfig, protect: Protect) -> dict[str, Any]:
    if server.url is not None:
        headers = _protected(server.headers, protect)
        return {"type": "remote", "url": protect(server.url), "headers": headers, "enabled": True}
    stdio = _stdio(server, protect)
    command = [stdio["command"], *stdio["args"]]
    environment = {protect(key): protect(value) for key, value in server.env.items()}
    return {"type": "local", "command": command, "environment": environment, "enabled": True}


def codex_entries(servers: Servers, *, required: bool, tool_timeout: float | None = None) -> dict[str, Any]:
    """For the `mcp_servers` table of config.toml.

    `required` makes Codex wait for the server: otherwise one that takes over a second is left out of the turn.
    `tool_timeout` is for one call, in seconds; by default Codex gives it a minute.
    """
    limit = {} if tool_timeout is None else {"tool_timeout_sec": float(tool_timeout)}
    return {name: {**_codex_entry(server, required), **limit} for name, server in servers.items()}


def _codex_entry(server: McpServerConfig, required: bool) -> dict[str, Any]:
    entry: dict[str, Any]
    if server.url is not None:
        entry = {"url": server.url, **({"http_headers": dict(server.headers)} if server.headers else {})}
    else:
        assert server.command is not None
        entry = {"command": server.command, "args": list(server.args)}
        if server.env:
            entry["env"] = dict(server.env)
    # As the other CLIs do; otherwise Codex waits for each call of a server before it makes the next.
    entry["supports_parallel_tool_calls"] = True
    if required:
        entry["required"] = True
    if server.trust:
        # The default, "auto", refuses every tool without a read-only hint in `codex exec` (0.166).
        entry["default_tools_approval_mode"] = "approve"
    return entry


def inline_toml(value: Any) -> str:
    """A TOML value on one line, for `codex -c key=value`. Keys are always quoted."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml_string(key)} = {inline_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(inline_toml(item) for item in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return _toml_string(value)


def _toml_string(text: str) -> str:
    # JSON's escapes are TOML's, but for surrogate pairs (so: raw UTF-8) and DEL, which TOML wants escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


class Hideaway:
    """Moves values out of a config into environment variables, because the CLI would expand what stands in them.

    Claude and Gemini replace `$NAME` and `${NAME}` in every string, OpenCode `{env:NAME}` and `{file:NAME}`: a password
    may contain any of these. What a variable holds is not expanded again (on OpenCode: if it is `written` so).
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
