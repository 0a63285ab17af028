"""How the caller's MCP servers reach OpenCode (1.18.33): in a variable with settings, or in a project's file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from typing import Any

from ...config_files.borrowed import BorrowedConfig, ConfigFile, repair
from ...engine.resources import RunResources
from ...types import McpServerConfig
from ..mcp_entries import EnvReferences, Protect, Servers, check_distinct, protected, stdio_entry, tool_prefix_name
from .facts import config_files

# OpenCode itself writes this into every config that has no `$schema`.
DEFAULTS = {"$schema": "https://opencode.ai/config.json"}
# What OpenCode puts into every `.opencode` folder.
LITTER = (".gitignore", "node_modules", "package.json", "package-lock.json", "bun.lock")
IGNORES_PROJECT = "OPENCODE_DISABLE_PROJECT_CONFIG"

# Ends the keys of our permission rules. To OpenCode, `**` means the same as `*`. As nobody else writes such a key, it
# is added at the end of the rules, where it wins over `"*": "ask"`.
OUR_RULES_END = "_**"

LONGEST_TIMER_MS = 2**31 - 1  # A longer timer fires at once.

LOG_VALUE = r'("(?:[^"\\]|\\.)*"|\S+)'
UNAVAILABLE = re.compile(rf'message="server unavailable" key={LOG_VALUE} .*?\bstatus={LOG_VALUE}')
CLOSED = re.compile(rf'message="MCP connection closed" server={LOG_VALUE}')


def check_names(servers: Servers) -> None:
    """Raise ValueError for names whose tools OpenCode or its permission rules would confuse."""
    check_distinct(servers)
    prefixes = {f"{tool_prefix_name(name)}_": name for name in servers}
    for prefix, name in prefixes.items():
        for longer, other in prefixes.items():
            if longer != prefix and longer.startswith(prefix) and servers[name].trust and not servers[other].trust:
                message = f"{name!r} is trusted and {other!r} is not: OpenCode takes the tools of one for the other's"
                raise ValueError(f"mcp_servers: {message}; rename one")


def settings(servers: Servers, tool_timeout: float | None) -> dict[str, Any]:
    """Settings for OPENCODE_CONFIG_CONTENT, wherever the servers themselves are configured."""
    # Without this, a call may take a minute at most. A server's own `timeout` would also apply to its start.
    milliseconds = LONGEST_TIMER_MS if tool_timeout is None else min(tool_timeout * 1000, LONGEST_TIMER_MS)
    return {"experimental": {"mcp_timeout": max(round(milliseconds), 1)}} if servers else {}


def entries(servers: Servers) -> dict[str, Any]:
    """The servers, as `mcp` in OPENCODE_CONFIG_CONTENT."""
    return opencode_entries(servers, str)


def opencode_entries(servers: Servers, protect: Protect) -> dict[str, Any]:
    """The entries for the `mcp` object of opencode.json."""
    return {protect(name): _entry(server, protect) for name, server in servers.items()}


def _entry(server: McpServerConfig, protect: Protect) -> dict[str, Any]:
    if server.url is not None:
        headers = protected(server.headers, protect)
        return {"type": "remote", "url": protect(server.url), "headers": headers, "enabled": True}
    stdio = stdio_entry(server, protect)
    command = [stdio["command"], *stdio["args"]]
    environment = {protect(key): protect(value) for key, value in server.env.items()}
    return {"type": "local", "command": command, "environment": environment, "enabled": True}


def rules(servers: Servers) -> dict[str, str]:
    """Permission rules that let the tools of trusted servers, and no others, run without asking."""
    return {f"{tool_prefix_name(name)}{OUR_RULES_END}": "allow" for name, server in servers.items() if server.trust}


def asked_rules(servers: Servers) -> dict[str, str]:
    """Rules that make OpenCode ask for the tools of all other servers, in a live session with someone to ask."""
    return {f"{tool_prefix_name(name)}{OUR_RULES_END}": "ask" for name, server in servers.items() if not server.trust}


def borrows_config(mode: str, env: Mapping[str, str]) -> bool:
    """Whether the servers go into the project's file: only if OpenCode will read it."""
    return mode == "merge-restore" and env.get(IGNORES_PROJECT, "").lower() not in ("1", "true")


def borrow_config(servers: Servers, project: str, resources: RunResources) -> dict[str, str]:
    """Put the servers into the project's file until OpenCode has read it; returns the variables that it refers to."""
    places = config_files(project)
    path = next((path for path in reversed(places) if os.path.lexists(path)), places[0])
    hide = EnvReferences("{", "{{env:{}}}", _as_json_text)
    # OpenCode has read all its configuration by the time of its first output, whatever that is.
    config = ConfigFile(
        path,
        "json",
        "mcp",
        opencode_entries(servers, hide),
        defaults=DEFAULTS,
        project=project,
        litter=LITTER,
    )
    loan = BorrowedConfig(config)
    loan.take(resources.pause)
    resources.borrow(loan)
    return hide.variables


def repair_config(project: str) -> None:
    """Restore the project's files if a host that died has left its servers in them."""
    for path in config_files(project):
        repair(path, project)


def _as_json_text(value: str) -> str:
    # OpenCode inserts variables into the config's text before parsing it, then looks for `{file:...}` in the text.
    return json.dumps(value)[1:-1].replace("{", "\\u007b")


def failures(stderr: str, servers: Collection[str]) -> dict[str, str]:
    """Which of these servers OpenCode had trouble with, according to its log, which does not give the cause."""
    found = {}
    for key, status in UNAVAILABLE.findall(stderr):
        found[_unquoted(key)] = f"could not be used ({_unquoted(status).replace('_', ' ')})"
    for key in CLOSED.findall(stderr):
        found.setdefault(_unquoted(key), "closed its connection during the run")
    return {name: what for name, what in found.items() if name in servers}


def _unquoted(value: str) -> str:
    try:
        return str(json.loads(value)) if value.startswith('"') else value
    except ValueError:
        return value
