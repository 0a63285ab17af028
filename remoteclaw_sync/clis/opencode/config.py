"""Settings for one OpenCode run, added to the user's own. None of the user's files is changed.

Two variables carry them: OPENCODE_CONFIG_CONTENT (a whole config, above every file) and OPENCODE_PERMISSION (rules
above every config's `permission`). Either may already be set; then our value is merged into it.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ... import errors
from ...config_files import jsonc
from ...types import AgentExecuteParams, PermissionMode
from . import mcp as opencode_mcp

CONFIG_VARIABLE = "OPENCODE_CONFIG_CONTENT"
PERMISSION_VARIABLE = "OPENCODE_PERMISSION"

Settings = dict[str, Any]

# In OpenCode the last matching rule wins, and a merge keeps the position of a key that already exists: the user's
# `{"edit": "deny", "*": "allow"}` would undo our "edit" rule. A key that nobody else writes is added at the end.
READ_ONLY_RULES: Settings = {"e?it": "deny", "bas?": "deny", "tas?": "deny"}
# Here we want the user's position: `"*": "ask"` becomes "allow", but what a narrower pattern denies stays denied.
ACCEPT_EDITS_RULES: Settings = {"edit": {"*": "allow"}}

NO_QUESTIONS: Settings = {"questio?": "deny"}

# For live sessions with someone to ask: tools that change something or reach beyond the machine. These keys are added
# at the end, as above, so we must refuse what the user's own rules deny (see live_asks.py).
ASK_RULES: Settings = {"e?it": "ask", "bas?": "ask", "webfetc?": "ask", "websearc?": "ask"}

# For versions without a bypass flag: allows what OpenCode asks for by default. Not `"*": "allow"`, which would also
# allow what the user's config denies.
BYPASS_RULES: Settings = {"external_directory": {"*": "allow"}, "doom_loop": "allow"}

RULES: dict[PermissionMode, Settings] = {"read-only": READ_ONLY_RULES, "accept-edits": ACCEPT_EDITS_RULES}

DEFAULT_AGENT = "build"

# OpenCode replaces `{env:NAME}` and `{file:PATH}` in a config's text before parsing it.
REFERENCE = re.compile(r"\{(?=(?:env|file):)")
ESCAPED_BRACE = r"\\u007b"
# Replaces the brace of such a reference while the user's settings are parsed. Unicode gives this character no meaning.
KEPT_BRACE = "\ufdd0"


def config_overlay(params: AgentExecuteParams, instructions: str | None) -> Settings:
    """The settings for OPENCODE_CONFIG_CONTENT; `instructions` is a file with additions to the system prompt."""
    overlay: Settings = {}
    if instructions is not None:
        overlay["instructions"] = [instructions]
    # An agent's own rules come after all others, so ours are set on the agent that will run. The user's default agent
    # may be one whose name and rules we cannot know here.
    agents = [*_named_agents(params.extra_args)] or [DEFAULT_AGENT]
    rules = opencode_mcp.rules(params.mcp_servers)
    if params.permission_mode == "read-only":
        rules = {**READ_ONLY_RULES, **rules}
        overlay["default_agent"] = agents[-1]
    if rules:
        overlay["agent"] = {name: {"permission": rules} for name in agents}
    return overlay


def live_overlays(params: AgentExecuteParams) -> dict[str, Settings]:
    """The settings of both variables for a live session's process. Modes other than "read-only" differ only in how its
    requests are answered, so that the mode can be changed later."""
    config = config_overlay(params, None)
    if not asks(params):
        rules = READ_ONLY_RULES if params.permission_mode == "read-only" else {}
        return {CONFIG_VARIABLE: config, PERMISSION_VARIABLE: {**rules, **opencode_mcp.rules(params.mcp_servers)}}
    rules = {**ASK_RULES, **opencode_mcp.asked_rules(params.mcp_servers), **opencode_mcp.rules(params.mcp_servers)}
    agents = [*_named_agents(params.extra_args)] or [DEFAULT_AGENT]
    config["agent"] = {name: {"permission": rules} for name in agents}
    return {CONFIG_VARIABLE: config, PERMISSION_VARIABLE: rules}


def asks(params: AgentExecuteParams) -> bool:
    """Whether our rules make OpenCode ask for what it would do by itself."""
    return params.approve is not None and params.permission_mode != "read-only"


def permission_overlay(params: AgentExecuteParams) -> Settings:
    """The rules for OPENCODE_PERMISSION."""
    # Only sessions started by `opencode run` have questions disabled; in others, a question would wait forever.
    rules = NO_QUESTIONS if params.session_id is not None else {}
    return {**rules, **RULES.get(params.permission_mode, {}), **opencode_mcp.rules(params.mcp_servers)}


def overlaid(variable: str, current: str | None, overlay: Settings) -> str:
    """The value for a variable that may already have one. Raises RunSetupError if `overlay` cannot be merged in."""
    try:
        base = jsonc.parse(REFERENCE.sub(KEPT_BRACE, current)) if current and current.strip() else {}
    except ValueError:
        base = None
    if not isinstance(base, dict):
        # Neither overwrite it nor leave it as it is: a run without the wanted rules must not start.
        message = f"{variable} is set and is not a JSON object, so this run's settings cannot be added to it"
        raise errors.RunSetupError(errors.UNSUPPORTED_OPTION, message)
    text = json.dumps(merged(base, overlay), ensure_ascii=False)
    return REFERENCE.sub(ESCAPED_BRACE, text).replace(KEPT_BRACE, "{")


def merged(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> Settings:
    """Merge as OpenCode merges its configs: objects by key, `instructions` joined, everything else replaced.

    The exception: our MCP server replaces one of the same name, because a mixture of the two would be neither.
    """
    result = dict(base)
    for key, value in overlay.items():
        old = result.get(key)
        if key == "mcp" and isinstance(old, dict):
            result[key] = {**old, **value}
        elif isinstance(old, dict) and isinstance(value, dict):
            result[key] = merged(old, value)
        elif key == "instructions" and isinstance(old, list):
            result[key] = [*old, *(item for item in value if item not in old)]
        else:
            result[key] = value
    return result


def _named_agents(extra_args: Sequence[str]) -> Iterator[str]:
    """The values of `--agent` in `extra_args`."""
    for argument, following in itertools.pairwise([*extra_args, ""]):
        if argument == "--agent" and following:
            yield following
        elif argument.startswith("--agent="):
            yield argument.removeprefix("--agent=")
