"""Rules for the tools of Gemini CLI, in the format of `--admin-policy` (0.61.0)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

# In plan mode Gemini does not offer the tools of MCP servers. The caller's functions should work there too, because
# only what Gemini does by itself is to be limited. The rule names tools: when 0.61.0 runs one, it does not know its
# server.
PLAN_RULE = """\
[[rule]]
toolName = {tools}
decision = "allow"
priority = 998
modes = ["plan"]
"""


def rule_for_plan_mode(functions: Mapping[str, Iterable[str]]) -> str:
    """A rule that allows these tools, which are grouped by server, in plan mode."""
    names = [f"mcp_{server}_{tool}" for server, tools in functions.items() for tool in tools]
    return PLAN_RULE.format(tools=json.dumps(names))
