"""`--mcp` and `--mcp-file`: MCP servers given on the command line."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from ..files import read_named
from ..types import McpServerConfig
from .dispatch import UsageError

MAX_FILE_BYTES = 10 * 1024 * 1024
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def mcp_servers(pairs: Iterable[str], files: Iterable[str]) -> dict[str, McpServerConfig]:
    """All servers given by the options; a later one replaces an earlier one with the same name."""
    servers: dict[str, McpServerConfig] = {}
    for path in files:
        servers.update(_from_file(path))
    for pair in pairs:
        name, equals, target = pair.partition("=")
        if not equals or not name.strip() or not target.strip():
            raise UsageError(f"--mcp takes NAME=COMMAND or NAME=URL, not {pair!r}")
        servers[name.strip()] = _from_words(name, target.strip())
    return servers


def _from_words(name: str, target: str) -> McpServerConfig:
    if re.match(r"https?://", target):
        return McpServerConfig(url=target)
    try:
        command, *arguments = shlex.split(target)
    except ValueError as error:
        raise UsageError(f"--mcp {name}: {error}") from None
    return McpServerConfig(command, tuple(arguments))


def _from_file(path: str) -> dict[str, McpServerConfig]:
    try:
        content = json.loads(read_named(path, MAX_FILE_BYTES))
    except OSError as error:
        raise UsageError(f"--mcp-file {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--mcp-file {path} is not JSON: {error}") from None
    entries = content.get("mcpServers") if isinstance(content, dict) else None
    if not isinstance(entries, dict):
        raise UsageError(f'--mcp-file {path} has no {{"mcpServers": {{...}}}}')
    return {name: _from_entry(path, name, entry) for name, entry in entries.items()}


def _from_entry(path: str, name: str, entry: Any) -> McpServerConfig:
    where = f"--mcp-file {path}: server {name!r}"
    if not isinstance(entry, dict):
        raise UsageError(f"{where} is not an object")
    entry = _expand(entry, where)
    try:
        return McpServerConfig(
            entry.get("command"),
            entry.get("args") or (),
            entry.get("env") or {},
            entry.get("trust", True),
            url=entry.get("url") or entry.get("httpUrl"),
            headers=entry.get("headers") or {},
        )
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where}: {error}") from None


def _expand(value: Any, where: str) -> Any:
    """Expand `${NAME}` and `${NAME:-default}`, as the CLIs themselves do in such files."""
    if isinstance(value, Mapping):
        return {key: _expand(item, where) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, where) for item in value]
    return VARIABLE.sub(lambda found: _variable(found, where), value) if isinstance(value, str) else value


def _variable(found: re.Match[str], where: str) -> str:
    value = os.environ.get(found[1], found[2])
    if value is None:
        raise UsageError(f"{where} needs the environment variable {found[1]}, which is not set")
    return value
