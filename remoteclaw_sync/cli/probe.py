"""What can be learned of an installed CLI without asking a model: its version, whether it can log in, its trust."""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
from typing import Any

import attrs

from ..process.child import ChildProcess
from ..process.identity import host_identity
from ..process.launch import Launch
from ..runtimes.base import MARKER_PREFIX
from ..versions import TESTED_VERSIONS, VERSION, installed_version
from .leftovers import codex_home

PROBE_SECONDS = 15.0  # `gemini --version` takes 2-5 s.
MAX_ANSWER = 64 * 1024

# Variables of which one is enough to log in. (Codex's `exec` ignores OPENAI_API_KEY.)
KEY_VARIABLES = {
    "claude": (
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_AUTH_TOKEN",
        "CLAUDE_CODE_OAUTH_TOKEN",
        "CLAUDE_CODE_USE_BEDROCK",
        "CLAUDE_CODE_USE_VERTEX",
    ),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA"),
    "codex": ("CODEX_API_KEY",),
    "opencode": ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY", "OPENCODE_API_KEY"),
}


@attrs.frozen(kw_only=True)
class Installed:
    """One CLI as it is found here."""

    provider: str
    path: str | None = None
    version: str | None = None
    login: str | None = None
    problem: str | None = None

    @property
    def can_run(self) -> bool:
        """Whether there is a program that answers."""
        return self.path is not None and self.problem is None

    @property
    def tested(self) -> bool:
        """Whether this is the version that this package is tested against."""
        return self.version == TESTED_VERSIONS[self.provider]


def probe(provider: str) -> Installed:
    """Look at one CLI. It is started (with --version) only if its files do not tell the version."""
    path = shutil.which(provider)
    if path is None:
        return Installed(provider=provider)
    version = installed_version(provider, path)
    problem = None
    if version is None:
        version, problem = ask_version(path)
    return Installed(provider=provider, path=path, version=version, login=login_of(provider), problem=problem)


def ask_version(path: str) -> tuple[str | None, str | None]:
    """What `--version` says, or what is wrong with it."""
    marker = MARKER_PREFIX + os.urandom(8).hex()
    child = ChildProcess(
        Launch(
            argv=(path, "--version"),
            env={**os.environ, "GEMINI_CLI_NO_RELAUNCH": "true", "NO_COLOR": "1", marker: host_identity()},
            cwd="/",
            stdin=b"",
            marker=marker,
            timeout=None,
            tool_timeout=None,
            deadline=PROBE_SECONDS,
            linger=1.0,
            max_pending_bytes=MAX_ANSWER,
        )
    )
    child.start()
    try:
        answer = b""
        while (chunk := child.next_chunk()) is not None:
            answer = (answer + chunk)[:MAX_ANSWER]
    finally:
        child.close()
    if child.failure is not None:
        return None, child.failure.message
    found = VERSION.search(answer.decode(errors="replace"))
    if found is None or child.exit_code != 0:
        return None, f"`{path} --version` gave no version (exit code {child.exit_code})"
    return found.group(), None


def login_of(provider: str) -> str | None:
    """Where a login or key seems to be; its value is not looked at. None: none was found."""
    for name in KEY_VARIABLES[provider]:
        if os.environ.get(name):
            return f"{name} is set"
    for path in _login_files(provider):
        if _has_content(path):
            return path
    return None


def _login_files(provider: str) -> tuple[str, ...]:
    home = os.path.expanduser("~")
    match provider:
        case "claude":
            folder = os.environ.get("CLAUDE_CONFIG_DIR") or os.path.join(home, ".claude")
            return (os.path.join(folder, ".credentials.json"),)
        case "gemini":
            folder = gemini_folder()
            return (os.path.join(folder, "oauth_creds.json"), os.path.join(folder, ".env"))
        case "codex":
            return (os.path.join(codex_home(), "auth.json"),)
        case _:
            data = os.environ.get("XDG_DATA_HOME") or os.path.join(home, ".local", "share")
            return (os.path.join(data, "opencode", "auth.json"),)


def _has_content(path: str) -> bool:
    try:
        return os.stat(path).st_size > len("{}\n")
    except OSError:
        return False


# --- the folder ----------------------------------------------------------------------------------------------


def gemini_folder() -> str:
    """Where Gemini keeps its files."""
    return os.path.join(os.environ.get("GEMINI_CLI_HOME") or os.path.expanduser("~"), ".gemini")


def is_in_git(folder: str) -> bool:
    """Whether the folder belongs to a git repository."""
    while not os.path.exists(os.path.join(folder, ".git")):
        parent = os.path.dirname(folder)
        if parent == folder:
            return False
        folder = parent
    return True


def trusted_by(folder: str) -> dict[str, bool]:
    """Whether each CLI that keeps such a list has this folder on it."""
    return {"gemini": _trusted_by_gemini(folder), "codex": _trusted_by_codex(folder)}


def _trusted_by_gemini(folder: str) -> bool:
    trusted = _read_json(os.path.join(gemini_folder(), "trustedFolders.json"))
    for place, level in trusted.items():
        root = os.path.dirname(place) if level == "TRUST_PARENT" else place
        inside = folder == root or folder.startswith(os.path.join(root, ""))
        if inside and level in ("TRUST_FOLDER", "TRUST_PARENT"):
            return True
    return False


def _trusted_by_codex(folder: str) -> bool:
    try:
        with open(os.path.join(codex_home(), "config.toml"), "rb") as file:
            projects = tomllib.load(file).get("projects", {})
        return bool(projects[folder]["trust_level"] == "trusted")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _read_json(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            # Gemini allows comments there.
            content = json.loads(re.sub(r"^\s*//.*$", "", file.read(), flags=re.MULTILINE))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
