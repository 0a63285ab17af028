"""Rules for the tools of Gemini CLI, as it takes them with `--admin-policy` (0.61.0)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

# In plan mode Gemini does not offer the tools of MCP servers. The caller's functions are wanted there too: only what
# Gemini does by itself is to be limited. By their names: when 0.61.0 runs a tool, it does not know the server.
PLAN_RULE = """\
[[rule]]
toolName = {tools}
decision = "allow"
priority = 998
modes = ["plan"]
"""


def rule_for_plan_mode(functions: Mapping[str, Iterable[str]]) -> str:
    """Let these tools be used in plan mode. They are given by their server."""
    names = [f"mcp_{server}_{tool}" for server, tools in functions.items() for tool in tools]
    return PLAN_RULE.format(tools=json.dumps(names))
