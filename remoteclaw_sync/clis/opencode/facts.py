"""What we know about OpenCode before it is run."""

from __future__ import annotations

import os

from ..facts import CliFacts, Environment, Support, home_of

PACKAGE_OF_TWO = "@opencode/cli"


def config_files(project: str) -> tuple[str, ...]:
    """The configuration of a project. If both exist, the second is read last and wins."""
    return tuple(os.path.join(project, ".opencode", name) for name in ("opencode.json", "opencode.jsonc"))


def data_folder(env: Environment) -> str:
    """Where OpenCode keeps its login and sessions."""
    return os.path.join(env.get("XDG_DATA_HOME") or os.path.join(home_of(env), ".local", "share"), "opencode")


FACTS = CliFacts(
    name="opencode",
    title="OpenCode",
    runtime="OpenCodeCliRuntime",
    install="npm install -g opencode-ai",
    support=(
        Support(
            package="opencode-ai",
            tested="1.18.33",
            tested_from="1.18.4",
            floor="1.17.18",
            least="1.2.11",
            gaps="bypass at the first start",
            needs={"bypass": "1.17.18"},
        ),
        Support(
            package=PACKAGE_OF_TWO,
            tested="2.0.15",
            tested_from="2.0.15",
            floor="2.0.0",
            least="2.0.0",
            gaps="",
            untested=True,
        ),
    ),
    program_folders=("~/.opencode/bin",),
    key_variables=("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY", "OPENCODE_API_KEY"),
    login_files=lambda env: (os.path.join(data_folder(env), "auth.json"),),
    sessions_in=data_folder,
    forks=frozenset({"--fork"}),
    tells_cost=True,
    borrowed_files=lambda env, folder: dict.fromkeys(config_files(folder), folder),
)
