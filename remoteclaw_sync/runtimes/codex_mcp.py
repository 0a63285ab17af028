"""How the caller's MCP servers reach Codex (0.166): on the command line, in a private profile, or in config.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from ..mcp.borrowed import BorrowedConfig, ConfigFile
from ..mcp.private_file import PrivateFile
from ..mcp.render import Servers, codex_entries, inline_toml
from .resources import RunResources

# Other names end the start with an error.
SERVER_NAME = re.compile(r"[A-Za-z0-9_:@/.-]+")
CONFIG_READ = b'"thread.started"'
PROFILE_SUFFIX = ".config.toml"  # `-p NAME` reads $CODEX_HOME/NAME.config.toml on top of config.toml.
LONGEST_CALL_SECONDS = 7 * 24 * 3600.0
NOT_STARTED = "required MCP servers failed to initialize:"


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
    """Make the servers known to the run; returns the arguments it takes. Raises RunSetupError."""
    limit = LONGEST_CALL_SECONDS if tool_timeout is None else min(tool_timeout, LONGEST_CALL_SECONDS)
    entries = codex_entries(servers, required=True, tool_timeout=limit)
    config = home / "config.toml"
    if borrow_config or _names_in(config) & set(servers):
        # Overrides and profiles merge field by field: an entry of the same name would become a mixture.
        loan = BorrowedConfig(ConfigFile(str(config), "toml", "mcp_servers", entries, CONFIG_READ))
        loan.take(resources.pause)
        resources.borrow(loan)
        return []
    has_secrets = any(server.env or server.headers for server in servers.values())
    if not has_secrets:
        return [f"--config=mcp_servers={inline_toml(entries)}"]
    if any(arg.startswith(("-p", "--profile")) for arg in extra_args):
        return inject(servers, home, resources, borrow_config=True, extra_args=(), tool_timeout=tool_timeout)
    # Arguments are there for every user to read; this file only for its owner, and only until Codex has read it.
    profile = PrivateFile(str(home), PROFILE_SUFFIX, tomli_w.dumps({"mcp_servers": entries}).encode(), CONFIG_READ)
    resources.borrow(profile)
    return [f"--profile={Path(profile.path).name.removesuffix(PROFILE_SUFFIX)}"]


def _names_in(config: Path) -> set[str]:
    """The user's own servers; a config that cannot be read is for Codex to complain of."""
    try:
        with config.open("rb") as file:
            servers = tomllib.load(file).get("mcp_servers", {})
    except (OSError, ValueError):
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
