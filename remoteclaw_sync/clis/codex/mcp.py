"""How the caller's MCP servers reach Codex (0.166): on the command line, in a private profile, or in config.toml."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from ... import errors, files
from ...config_files.borrowed import MAX_CONFIG_BYTES, BorrowedConfig, ConfigFile, repair
from ...config_files.private_file import PrivateFile
from ...engine.resources import RunResources
from ...redaction import has_secrets
from ...types import McpServerConfig
from ..mcp_entries import Servers

# With other names Codex fails to start.
SERVER_NAME = re.compile(r"[A-Za-z0-9_:@/.-]+")
CONFIG_READ = b'"thread.started"'
PROFILE_SUFFIX = ".config.toml"  # `-p NAME` reads $CODEX_HOME/NAME.config.toml on top of config.toml.
LONGEST_CALL_SECONDS = 7 * 24 * 3600.0
PROFILE_FLAG = "--profile="
UNKNOWN_PROFILE = re.compile(r"config profile `?(?P<name>[^`\s]+)`? not found")
NOT_STARTED = "required MCP servers failed to initialize:"


def tidy_up(home: Path) -> None:
    """Remove what hosts that died have left in Codex's home: entries in its config, and profiles."""
    repair(str(home / "config.toml"))


def check_names(servers: Servers) -> None:
    """Raise ValueError for a name that Codex refuses."""
    for name in servers:
        if not SERVER_NAME.fullmatch(name):
            raise ValueError(f"mcp_servers name {name!r}: Codex takes letters, digits and _ : @ / . - only")


def inject(
    servers: Servers,
    home: Path,
    resources: RunResources,
    *,
    borrow_config: bool,
    extra_args: Sequence[str],
    tool_timeout: float | None,
) -> list[str]:
    """Add the servers to the run; returns the arguments for Codex. Raises RunSetupError."""
    entries = codex_entries(servers, required=True, tool_timeout=_call_limit(tool_timeout))
    config = home / "config.toml"
    if borrow_config or _names_in(config) & set(servers):
        # Overrides and profiles merge field by field: an entry of the same name would become a mixture.
        loan = BorrowedConfig(ConfigFile(str(config), "toml", "mcp_servers", entries, CONFIG_READ))
        loan.take(resources.pause)
        resources.borrow(loan)
        return []
    if not any(map(has_secrets, servers.values())):
        return [f"--config=mcp_servers={inline_toml(entries)}"]
    if any(arg.startswith(("-p", "--profile")) for arg in extra_args):
        return inject(servers, home, resources, borrow_config=True, extra_args=(), tool_timeout=tool_timeout)
    # Every user can read arguments. Only its owner can read this file, and it is removed once Codex has read it.
    profile = _new_profile(home, tomli_w.dumps({"mcp_servers": entries}).encode(), resources)
    return [f"{PROFILE_FLAG}{Path(profile.path).name.removesuffix(PROFILE_SUFFIX)}"]


def thread_entries(servers: Servers, home: Path, *, tool_timeout: float | None) -> dict[str, Any]:
    """The servers' entries for the configuration of a live session's thread. Raises RunSetupError."""
    for name in sorted(_names_in(home / "config.toml") & set(servers)):
        # Codex would mix both, field by field.
        message = f"mcp_servers: config.toml has a server {name!r} too; a live session needs another name for its own"
        raise errors.RunSetupError(errors.MCP_CONFIG_ERROR, message)
    return codex_entries(servers, required=True, tool_timeout=_call_limit(tool_timeout))


def _call_limit(tool_timeout: float | None) -> float:
    return LONGEST_CALL_SECONDS if tool_timeout is None else min(tool_timeout, LONGEST_CALL_SECONDS)


def _new_profile(home: Path, data: bytes, resources: RunResources) -> PrivateFile:
    """Create a profile. The home may not exist yet: Codex creates it on its first run, too late for a profile."""
    try:
        if not home.is_dir():
            home.mkdir(0o700, exist_ok=True)
            resources.callback(_remove_if_empty, home)
        profile = PrivateFile(str(home), PROFILE_SUFFIX, data, CONFIG_READ)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and home.parent.is_dir():
            resources.pause(0.0)  # Another run created it and, at its end, removed it: try again.
            return _new_profile(home, data, resources)
        reason = error.strerror or type(error).__name__
        message = (
            f"secrets of MCP servers and Python tools are passed to Codex in a private file in {home}, which cannot be "
            f"written ({reason}); set CODEX_HOME to a folder that can"
        )
        raise errors.RunSetupError(errors.MCP_CONFIG_ERROR, message) from None
    resources.borrow(profile)
    return profile


def _remove_if_empty(home: Path) -> None:
    try:
        home.rmdir()
    except OSError:
        pass  # Codex has put files there.


def _names_in(config: Path) -> set[str]:
    """The user's own servers; if the config cannot be read, Codex will report it."""
    try:
        text = files.read_regular(config, MAX_CONFIG_BYTES, follow=True).decode()
        servers = tomllib.loads(text).get("mcp_servers", {})
    except (OSError, ValueError, RecursionError):
        return set()
    return set(servers) if isinstance(servers, dict) else set()


def failed_servers(stderr: str, servers: Servers) -> dict[str, str]:
    """Which of these servers Codex could not start, and why."""
    _, found, reasons = stderr.rpartition(NOT_STARTED)
    if not found:
        return {}
    line = reasons.partition("\n")[0]
    starts = {name: at for name in servers if (at := f" {line}".find(f" {name}: ")) != -1}
    ends = sorted([*starts.values(), len(line)])
    return {name: line[at : min(end for end in ends if end > at)].strip(" ,;") for name, at in starts.items()}


def profile_is_unknown(stderr: str, mcp_args: Sequence[str]) -> bool:
    """Whether Codex could not find our profile, which these arguments name."""
    found = UNKNOWN_PROFILE.search(stderr)
    return found is not None and f"{PROFILE_FLAG}{found['name']}" in mcp_args


# --- entries in its TOML -----------------------------------------------------------------------------------------


def codex_entries(servers: Servers, *, required: bool, tool_timeout: float | None = None) -> dict[str, Any]:
    """The entries for the `mcp_servers` table of config.toml.

    `required` makes Codex wait for the server: otherwise, one that takes over a second is missing from the turn.
    `tool_timeout` limits one call, in seconds; Codex's own limit is a minute.
    """
    limit = {} if tool_timeout is None else {"tool_timeout_sec": float(tool_timeout)}
    return {name: {**_entry(server, required), **limit} for name, server in servers.items()}


def _entry(server: McpServerConfig, required: bool) -> dict[str, Any]:
    entry: dict[str, Any]
    if server.url is not None:
        entry = {"url": server.url, **({"http_headers": dict(server.headers)} if server.headers else {})}
    else:
        assert server.command is not None
        entry = {"command": server.command, "args": list(server.args)}
        if server.env:
            entry["env"] = dict(server.env)
    # As the other CLIs do; otherwise Codex makes a server's calls one after another.
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
    # JSON's escapes are valid in TOML, except surrogate pairs (hence raw UTF-8). DEL has to be escaped in TOML.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
