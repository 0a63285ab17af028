"""What we know about Gemini CLI before it is run."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from ...files import read_regular
from ..facts import MAX_CONFIG_BYTES, CliFacts, Environment, Support, home_of


def home_folder(env: Environment) -> str:
    """What Gemini uses as the user's home."""
    return env.get("GEMINI_CLI_HOME") or home_of(env)


def state_folder(env: Environment) -> str:
    """Where Gemini keeps its files."""
    return os.path.join(home_folder(env), ".gemini")


def settings_file(project: str) -> str:
    """The settings of a workspace."""
    return os.path.join(project, ".gemini", "settings.json")


def _login_files(env: Environment) -> tuple[str, ...]:
    folder = state_folder(env)
    return (os.path.join(folder, "oauth_creds.json"), os.path.join(folder, ".env"))


def trusts(env: Environment, folder: str) -> bool:
    """Whether Gemini reads the settings of this folder and starts servers in it."""
    if env.get("GEMINI_CLI_TRUST_WORKSPACE") == "true" or _asks_nobody(env):
        return True
    trusted = _read_json(os.path.join(state_folder(env), "trustedFolders.json"))
    for place, level in trusted.items():
        root = os.path.dirname(place) if level == "TRUST_PARENT" else place
        inside = folder == root or folder.startswith(os.path.join(root, ""))
        if inside and level in ("TRUST_FOLDER", "TRUST_PARENT"):
            return True
    return False


def _asks_nobody(env: Environment) -> bool:
    """Whether the user has switched off the trust check for folders."""
    found: Any = _read_json(os.path.join(state_folder(env), "settings.json"))
    for name in ("security", "folderTrust", "enabled"):
        found = found.get(name) if isinstance(found, dict) else None
    return found is False


def _read_json(path: str) -> dict[str, Any]:
    try:
        text = read_regular(path, MAX_CONFIG_BYTES, follow=True).decode()
        # These files may contain comments.
        content = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


FACTS = CliFacts(
    name="gemini",
    title="Gemini CLI",
    runtime="GeminiCliRuntime",
    install="npm install -g @google/gemini-cli",
    support=(
        Support(
            package="@google/gemini-cli",
            tested="0.61.0",
            tested_from="0.53.0",
            floor="0.47.0",
            least="0.35.0",  # --admin-policy, without which plan mode is a way out of every permission mode.
            gaps="the output of shell commands",
        ),
    ),
    exit_codes={
        41: "auth",
        42: "config",
        44: "config",
        52: "config",
        53: "max_turns",
        54: "crash",
        55: "untrusted_directory",
        130: "aborted",
        # HTTP status & 0xFF
        144: "config",
        145: "auth",
        147: "auth",
        173: "rate_limit",
        244: "overloaded",
        247: "overloaded",
    },
    # Its launcher, when killed, leaves the real process behind.
    version_env={"GEMINI_CLI_NO_RELAUNCH": "true"},
    key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA"),
    login_files=_login_files,
    sessions_in=state_folder,
    cached_in_input=True,
    trusts=trusts,
    borrowed_files=lambda env, folder: {settings_file(folder): folder},
)
