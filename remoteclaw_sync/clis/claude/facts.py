"""What we know about Claude Code before it is run."""

from __future__ import annotations

import os

from ..facts import CliFacts, Environment, Support, home_of


def state_folder(env: Environment) -> str:
    """Where Claude keeps its login, settings and sessions."""
    return env.get("CLAUDE_CONFIG_DIR") or os.path.join(home_of(env), ".claude")


FACTS = CliFacts(
    name="claude",
    title="Claude Code",
    runtime="ClaudeCliRuntime",
    install="npm install -g @anthropic-ai/claude-code",
    support=(
        Support(
            package="@anthropic-ai/claude-code",
            tested="2.1.326",
            tested_from="2.0.55",
            floor="2.0.34",
            least="2.0.14",
            gaps="system_prompt and read-only",
            needs={"system_prompt": "2.0.34", "read-only": "2.0.31"},
        ),
    ),
    program_folders=("~/.claude/local", "~/.claude/local/node_modules/.bin"),
    key_variables=(
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_AUTH_TOKEN",
        "CLAUDE_CODE_OAUTH_TOKEN",
        "CLAUDE_CODE_USE_BEDROCK",
        "CLAUDE_CODE_USE_VERTEX",
    ),
    login_files=lambda env: (os.path.join(state_folder(env), ".credentials.json"),),
    sessions_in=state_folder,
    forks=frozenset({"--fork-session"}),
    tells_cost=True,
)
