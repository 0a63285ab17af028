"""Settings for one OpenCode run, on top of the user's files and variables. None of the user's files is changed.

Two variables carry them: OPENCODE_CONFIG_CONTENT (a whole config, above every file) and OPENCODE_PERMISSION (rules
above every config's `permission`). Either may be set already; then ours is merged into it.
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

# Of OpenCode's rules the last that matches wins, and a merge keeps the place of a key that is there already: the user's
# `{"edit": "deny", "*": "allow"}` would undo an "edit" of ours. A key that nobody writes goes to the end.
READ_ONLY_RULES: Settings = {"e?it": "deny", "bas?": "deny", "tas?": "deny"}
# Here the place is wanted: `"*": "ask"` becomes "allow", what the user denies by a narrower pattern stays denied.
ACCEPT_EDITS_RULES: Settings = {"edit": {"*": "allow"}}

NO_QUESTIONS: Settings = {"questio?": "deny"}

# For live sessions with somebody to ask: what changes something, or leaves the machine. Put to the end, as above; what
# the user's own rules deny is refused by us then (see live_asks.py).
ASK_RULES: Settings = {"e?it": "ask", "bas?": "ask", "webfetc?": "ask", "websearc?": "ask"}

# For versions without a flag for it: what is asked for by default. Not `"*": "allow"`, which would also allow what the
# user's config denies.
BYPASS_RULES: Settings = {"external_directory": {"*": "allow"}, "doom_loop": "allow"}

RULES: dict[PermissionMode, Settings] = {"read-only": READ_ONLY_RULES, "accept-edits": ACCEPT_EDITS_RULES}

DEFAULT_AGENT = "build"

# OpenCode replaces `{env:NAME}` and `{file:PATH}` in the text of a config, before it parses it.
REFERENCE = re.compile(r"\{(?=(?:env|file):)")
ESCAPED_BRACE = r"\\u007b"
# Stands for the brace of such a reference while the user's settings are not text. A character that has no meaning.
KEPT_BRACE = "\ufdd0"


def config_overlay(params: AgentExecuteParams, instructions: str | None) -> Settings:
    """What goes into OPENCODE_CONFIG_CONTENT; `instructions` is a file with additions to the system prompt."""
    overlay: Settings = {}
    if instructions is not None:
        overlay["instructions"] = [instructions]
    # An agent's own rules come after all others, so they are set for the agent that will run. The user's default agent
    # may be one whose name, and rules, cannot be known here.
    agents = [*_named_agents(params.extra_args)] or [DEFAULT_AGENT]
    rules = opencode_mcp.rules(params.mcp_servers)
    if params.permission_mode == "read-only":
        rules = {**READ_ONLY_RULES, **rules}
        overlay["default_agent"] = agents[-1]
    if rules:
        overlay["agent"] = {name: {"permission": rules} for name in agents}
    return overlay


def live_overlays(params: AgentExecuteParams) -> dict[str, Settings]:
    """The same for a process that serves a live session: what is not "read-only" is a matter of who answers when it
    asks, so that these modes can be changed."""
    config = config_overlay(params, None)
    if not asks(params):
        rules = READ_ONLY_RULES if params.permission_mode == "read-only" else {}
        return {CONFIG_VARIABLE: config, PERMISSION_VARIABLE: {**rules, **opencode_mcp.rules(params.mcp_servers)}}
    rules = {**ASK_RULES, **opencode_mcp.asked_rules(params.mcp_servers), **opencode_mcp.rules(params.mcp_servers)}
    agents = [*_named_agents(params.extra_args)] or [DEFAULT_AGENT]
    config["agent"] = {name: {"permission": rules} for name in agents}
    return {CONFIG_VARIABLE: config, PERMISSION_VARIABLE: rules}


def asks(params: AgentExecuteParams) -> bool:
    """Whether OpenCode is told to ask for what it would do by itself."""
    return params.approve is not None and params.permission_mode != "read-only"


def permission_overlay(params: AgentExecuteParams) -> Settings:
    """What goes into OPENCODE_PERMISSION."""
    # Only a session that `opencode run` has begun has no questions; another one's would wait for ever.
    rules = NO_QUESTIONS if params.session_id is not None else {}
    return {**rules, **RULES.get(params.permission_mode, {}), **opencode_mcp.rules(params.mcp_servers)}


def overlaid(variable: str, current: str | None, overlay: Settings) -> str:
    """The value for a variable that may already have one. Raises RunSetupError if ours cannot be merged into it."""
    try:
        base = jsonc.parse(REFERENCE.sub(KEPT_BRACE, current)) if current and current.strip() else {}
    except ValueError:
        base = None
    if not isinstance(base, dict):
        # Not overwritten, and not left alone either: a run without the wanted rules must not start.
        message = f"{variable} is set and is not a JSON object, so this run's settings cannot be added to it"
        raise errors.RunSetupError(errors.UNSUPPORTED_OPTION, message)
    text = json.dumps(merged(base, overlay), ensure_ascii=False)
    return REFERENCE.sub(ESCAPED_BRACE, text).replace(KEPT_BRACE, "{")


def merged(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> Settings:
    """As OpenCode merges its configs: objects by key, `instructions` joined, all else replaced.

    But our server replaces one of the same name: a mixture of the two would be neither.
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
    """The values of `--agent` among further arguments."""
    for argument, following in itertools.pairwise([*extra_args, ""]):
        if argument == "--agent" and following:
            yield following
        elif argument.startswith("--agent="):
            yield argument.removeprefix("--agent=")
