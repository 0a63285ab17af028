"""Settings for one OpenCode run, laid over whatever the user's files and variables say. No file of the user's changes.

Two variables carry them: OPENCODE_CONFIG_CONTENT (a whole config, above every file) and OPENCODE_PERMISSION (rules
above every config's `permission`). Either may be set already; then ours is merged into it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .. import errors
from ..mcp import jsonc
from ..types import AgentExecuteParams, PermissionMode

CONFIG_VARIABLE = "OPENCODE_CONFIG_CONTENT"
PERMISSION_VARIABLE = "OPENCODE_PERMISSION"

Settings = dict[str, Any]

# Of OpenCode's rules the last that matches wins, and a merge keeps the place of a key that is there already: the user's
# `{"edit": "deny", "*": "allow"}` would undo an "edit" of ours. A key that nobody writes goes to the end.
READ_ONLY_RULES: Settings = {"e?it": "deny", "bas?": "deny", "tas?": "deny"}
# Here the place is wanted: `"*": "ask"` becomes "allow", what the user denies by a narrower pattern stays denied.
ACCEPT_EDITS_RULES: Settings = {"edit": {"*": "allow"}}

RULES: dict[PermissionMode, Settings] = {"read-only": READ_ONLY_RULES, "accept-edits": ACCEPT_EDITS_RULES}

DEFAULT_AGENT = "build"


def config_overlay(params: AgentExecuteParams, instructions: str | None) -> Settings:
    """What goes into OPENCODE_CONFIG_CONTENT; `instructions` is a file with additions to the system prompt."""
    overlay: Settings = {}
    if instructions is not None:
        overlay["instructions"] = [instructions]
    if params.permission_mode == "read-only":
        # An agent's own rules come after all others, so they are set for the agent that will run. The user's
        # default agent may be one whose name, and rules, cannot be known here.
        agents = [*_named_agents(params.extra_args)] or [DEFAULT_AGENT]
        overlay["agent"] = {name: {"permission": READ_ONLY_RULES} for name in agents}
        overlay["default_agent"] = agents[-1]
    return overlay


def permission_overlay(params: AgentExecuteParams) -> Settings:
    """What goes into OPENCODE_PERMISSION."""
    return RULES.get(params.permission_mode, {})


def overlaid(variable: str, current: str | None, overlay: Settings) -> str:
    """The value for a variable that may have one already. Raises RunSetupError if that one cannot be merged with."""
    try:
        base = jsonc.parse(current) if current and current.strip() else {}
    except ValueError:
        base = None
    if not isinstance(base, dict):
        # Not overwritten, and not left alone either: a run without the wanted rules must not start.
        message = f"{variable} is set and is not a JSON object, so this run's settings cannot be added to it"
        raise errors.RunSetupError(errors.UNSUPPORTED_OPTION, message)
    return json.dumps(merged(base, overlay), ensure_ascii=False)


def merged(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> Settings:
    """As OpenCode merges its configs: objects by key, `instructions` joined, all else replaced."""
    result = dict(base)
    for key, value in overlay.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
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
