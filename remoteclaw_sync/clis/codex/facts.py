"""What we know about Codex before it is run."""

from __future__ import annotations

import os

from ...files import read_regular
from ..facts import MAX_CONFIG_BYTES, CliFacts, Environment, Support, home_of


def codex_home(env: Environment) -> str:
    """Where Codex keeps its files."""
    return env.get("CODEX_HOME") or os.path.join(home_of(env), ".codex")


def config_file(home: str) -> str:
    """The user's own configuration."""
    return os.path.join(home, "config.toml")


def _trusts(env: Environment, folder: str) -> bool:
    import tomllib  # Nothing else that reads these facts needs it.

    try:
        config = read_regular(config_file(codex_home(env)), MAX_CONFIG_BYTES, follow=True)
        projects = tomllib.loads(config.decode()).get("projects", {})
        return bool(projects[folder]["trust_level"] == "trusted")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


FACTS = CliFacts(
    name="codex",
    title="Codex",
    runtime="CodexCliRuntime",
    install="npm install -g @openai/codex",
    support=(
        Support(
            package="@openai/codex",
            tested="0.169.0",
            tested_from="0.142.5",
            floor="0.134.0",
            least="0.101.0",
            gaps="secret MCP values and tools= unless config.toml is borrowed",
        ),
    ),
    exit_codes={2: "config"},
    key_variables=("CODEX_API_KEY",),  # `exec` ignores OPENAI_API_KEY.
    login_files=lambda env: (os.path.join(codex_home(env), "auth.json"),),
    sessions_in=codex_home,
    cached_in_input=True,
    trusts=_trusts,
    borrowed_files=lambda env, folder: {config_file(codex_home(env)): None},
)
