"""What can be learned of an installed CLI without asking a model: its version, whether it can log in, its trust."""

from __future__ import annotations

import json
import os
import re
import tomllib
from typing import Any

import attrs

from ..config_files.borrowed import MAX_CONFIG_BYTES
from ..engine.startup import missing_program
from ..files import read_regular
from ..process.child import ChildProcess
from ..process.host import host_identity
from ..process.launch import Launch
from ..process.program import defect_of, programs_on_path
from ..runtime import MARKER_PREFIX
from ..versions import VERSION, Standing, Support, found_elsewhere, installation, standing, support_of
from .leftovers import codex_home
from .terminal_text import one_line

PROBE_SECONDS = 15.0  # `gemini --version` takes 2-5 s.
MAX_ANSWER = 64 * 1024
QUOTED_WORDS = 500  # Characters of what it says instead.

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
class Program:
    """One file that goes by the name of a CLI."""

    path: str
    version: str | None = None
    package: str | None = None
    problem: str | None = None
    skipped: bool = False  # A run passes over it, and starts the next one on PATH.


@attrs.frozen(kw_only=True)
class Installed:
    """One CLI as it is found here: `path` is the first on PATH, `others` are those behind it."""

    provider: str
    path: str | None = None
    version: str | None = None
    package: str | None = None
    login: str | None = None
    problem: str | None = None
    others: tuple[Program, ...] = ()
    elsewhere: tuple[Program, ...] = ()  # Not on PATH. Looked for only if nothing there can run.
    started: str | None = None  # The one that a run starts.

    @property
    def can_run(self) -> bool:
        """Whether a run starts a program that answers."""
        if self.started is None:
            return False
        if self.started == self.path:
            return self.problem is None
        return any(other.path == self.started and other.problem is None for other in self.others)

    @property
    def standing(self) -> Standing:
        """How its version stands to the tested ones."""
        return standing(self.provider, self.version)

    @property
    def support(self) -> Support:
        """What works on the versions that this one belongs to."""
        return support_of(self.provider, self.version)

    @property
    def tested(self) -> bool:
        """Whether this is the version that this package is tested against."""
        return self.standing is Standing.TESTED


def probe(provider: str) -> Installed:
    """Look at one CLI. It is started (with --version) only if its files do not tell the version."""
    search_path = os.environ.get("PATH", os.defpath)
    programs = [_look_at(provider, path, search_path) for path in programs_on_path(provider, search_path)]
    started = next((program for program in programs if not program.skipped), None)
    elsewhere: list[Program] = []
    if started is None or started.problem is not None:
        known = {os.path.realpath(program.path) for program in programs}
        places = [path for path in found_elsewhere(provider, os.environ) if os.path.realpath(path) not in known]
        elsewhere = [_look_at(provider, path, search_path) for path in places]
    if not programs:
        return Installed(provider=provider, elsewhere=tuple(elsewhere))
    first, *others = programs
    return Installed(
        provider=provider,
        path=first.path,
        version=first.version,
        package=first.package,
        login=login_of(provider),
        problem=first.problem,
        others=tuple(others),
        elsewhere=tuple(elsewhere),
        started=started.path if started else None,
    )


def _look_at(provider: str, path: str, search_path: str) -> Program:
    defect = defect_of(path, search_path)
    installed = installation(provider, path)
    version, package = (installed.version, installed.package) if installed else (None, None)
    problem = None if defect is None else f"{path} {defect.message}"
    if version is None and defect is None:
        version, problem = ask_version(path)
    if problem is None and standing(provider, version) is Standing.TOO_OLD:
        problem = too_old(support_of(provider, version))
    return Program(
        path=path,
        version=version,
        package=package,
        problem=problem,
        skipped=defect is not None and defect.skipped,
    )


def too_old(support: Support) -> str:
    """In words, that a version cannot be used."""
    return f"too old, needs >= {support.floor}"


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
    missing = missing_program(path, child.exit_code, child.diagnostics)
    if missing is not None:
        return None, missing.message
    if found is None or child.exit_code != 0:
        words = one_line(child.diagnostics)[:QUOTED_WORDS]
        said = f": {words}" if words else ""
        return None, f"`{path} --version` gave no version (exit code {child.exit_code}){said}"
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
        config = read_regular(os.path.join(codex_home(), "config.toml"), MAX_CONFIG_BYTES, follow=True)
        projects = tomllib.loads(config.decode()).get("projects", {})
        return bool(projects[folder]["trust_level"] == "trusted")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _read_json(path: str) -> dict[str, Any]:
    try:
        # Gemini allows comments there.
        text = read_regular(path, MAX_CONFIG_BYTES, follow=True).decode()
        content = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
