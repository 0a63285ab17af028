"""Which version of a CLI is installed, as its files tell (`gemini --version` takes seconds), and what works on it."""

from __future__ import annotations

import enum
import glob
import os
import re
import shutil
from collections.abc import Iterator, Mapping

import attrs

from ._json import read_object

VERSION = re.compile(r"\d+\.\d+\.\d+(?:-[\w.]+)?")
# What installers call a program or its folder: `claude/versions/2.1.197`, `Caskroom/claude-code@latest/2.1.197`,
# `Cellar/opencode/1.18.33_1`, `standalone/releases/0.146.0-x86_64-unknown-linux-musl` (Codex's own).
VERSIONED_NAME = re.compile(r"(\d+\.\d+\.\d+(?:-(?:alpha|beta|rc|preview|nightly|dev)[\w.]*)?)(?:[-_].*)?")
PARENTS = 5  # Folders from the program up to its package.json.


@attrs.frozen(kw_only=True)
class Support:
    """One line of a CLI's versions, and what works on them.

    Args:
        package: the npm package it comes from.
        tested: the version that the tests run against.
        tested_from: the oldest that has passed a whole conformance suite.
        floor: the oldest on which everything works, by the flags it has.
        least: older ones cannot run, or not safely.
        gaps: what does not work from `least` up to `floor`.
        untested: no test of ours has run on this line; `tested` is the version it was read from.
        needs: option of a run -> the version that brought what it takes.
    """

    package: str
    tested: str
    tested_from: str
    floor: str
    least: str
    gaps: str
    untested: bool = False
    needs: Mapping[str, str] = attrs.field(factory=dict)


# Provider -> its lines of versions, the usual one first, a later major version after it.
SUPPORT: Mapping[str, tuple[Support, ...]] = {
    "claude": (
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
    "gemini": (
        Support(
            package="@google/gemini-cli",
            tested="0.61.0",
            tested_from="0.53.0",
            floor="0.47.0",
            least="0.35.0",  # --admin-policy, without which plan mode is a way out of every permission mode.
            gaps="the output of shell commands",
        ),
    ),
    "codex": (
        Support(
            package="@openai/codex",
            tested="0.169.0",
            tested_from="0.142.5",
            floor="0.134.0",
            least="0.101.0",
            gaps="secret MCP values and tools= unless config.toml is borrowed",
        ),
    ),
    "opencode": (
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
            package="@opencode/cli",
            tested="2.0.15",
            tested_from="2.0.15",
            floor="2.0.0",
            least="2.0.0",
            gaps="",
            untested=True,
        ),
    ),
}

# Provider -> the npm package it comes from, and the version this package is tested against.
PACKAGES = {provider: (lines[0].package, lines[0].tested) for provider, lines in SUPPORT.items()}
TESTED_VERSIONS = {provider: version for provider, (_, version) in PACKAGES.items()}


# --- what is installed ---------------------------------------------------------------------------------------


@attrs.frozen
class Installation:
    """What the files of a CLI tell: its npm package (None if it came another way) and its version."""

    package: str | None
    version: str


def installation(provider: str, program: str, search_path: str | None = None) -> Installation | None:
    """What is installed under this name or path; None if its files do not tell. Starts nothing, does not raise."""
    if provider not in SUPPORT:
        return None
    try:
        found = shutil.which(program, path=search_path)
        return None if found is None else _installation_at(provider, os.path.realpath(found))
    except ValueError:  # A path that this locale cannot name.
        return None


def installed_version(provider: str, program: str, search_path: str | None = None) -> str | None:
    """The version of the installed CLI, None if its files do not tell. Starts nothing, does not raise."""
    found = installation(provider, program, search_path)
    return None if found is None else found.version


def _installation_at(provider: str, path: str) -> Installation | None:
    packages = [line.package for line in SUPPORT[provider]]
    names = {provider, packages[0].rpartition("/")[2]}
    for _ in range(PARENTS):
        path, name = os.path.split(path)
        version = VERSIONED_NAME.fullmatch(name)
        if version is not None and _is_of_product(path, names):
            return Installation(None, version[1])
        found = _package_in(path, packages)
        if found is not None:
            return found
    return None


def _is_of_product(folder: str, names: set[str]) -> bool:
    """Whether versions in this folder are the product's own. (Not so `.pyenv/versions`, `installs/node`.)"""
    parts = [part.lstrip(".").partition("@")[0] for part in folder.split(os.sep)[-4:]]
    return parts[-1] in names or (parts[-1] in ("versions", "releases") and not names.isdisjoint(parts))


def _package_in(folder: str, names: list[str]) -> Installation | None:
    package = read_object(os.path.join(folder, "package.json"))
    if package.get("name") not in names:
        return None
    version = package.get("version")
    return Installation(package["name"], version) if isinstance(version, str) else None


# --- what works on it ----------------------------------------------------------------------------------------


class Standing(enum.StrEnum):
    """How a version stands to those that were tested."""

    TOO_OLD = "too old"  # It cannot run, or not safely.
    GAPS = "too old for some options"
    OLDER = "older than tested"
    TESTED = "tested"
    IN_RANGE = "in the tested range"
    NEWER = "newer than tested"
    UNTESTED = "not tested"
    UNKNOWN = "unknown"


def support_of(provider: str, version: str | None) -> Support:
    """The line of versions that this one belongs to; the usual one if it is not known."""
    lines = SUPPORT[provider]
    if version is None:
        return lines[0]
    fitting = [line for line in lines if as_numbers(line.least)[0] <= as_numbers(version)[0]]
    return fitting[-1] if fitting else lines[0]


def standing(provider: str, version: str | None) -> Standing:
    """How this version stands to the tested ones."""
    if version is None or not VERSION.match(version):
        return Standing.UNKNOWN
    line, numbers = support_of(provider, version), as_numbers(version)
    if line.untested and numbers >= as_numbers(line.floor):
        return Standing.UNTESTED
    if version == line.tested:
        return Standing.TESTED
    for limit, kind in (
        (line.least, Standing.TOO_OLD),
        (line.floor, Standing.GAPS),
        (line.tested_from, Standing.OLDER),
        (line.tested, Standing.IN_RANGE),
    ):
        if numbers < as_numbers(limit):
            return kind
    return Standing.NEWER


def is_below(version: str | None, limit: str) -> bool:
    """Whether a version is known and older than this one."""
    return version is not None and bool(VERSION.match(version)) and as_numbers(version) < as_numbers(limit)


def what_is_needed(provider: str, version: str | None, options: tuple[str, ...] = ()) -> str | None:
    """A sentence for a run that failed on a version below the floor; None if this one is not, or is not known.

    `options` are those of the run that may need more than the CLI has ("system_prompt", "read-only", "bypass").
    """
    if version is None or not is_below(version, support_of(provider, version).floor):
        return None
    line = support_of(provider, version)
    newer = [
        f"{name} came with {line.needs[name]}" for name in options if is_below(version, line.needs.get(name, "0.0.0"))
    ]
    detail = f" ({', '.join(newer)})" if newer else ""
    return f"this is {provider} {version}; {line.floor} or newer is needed{detail}"


def as_numbers(version: str) -> tuple[int, ...]:
    """For comparing. A pre-release counts as the version it leads to."""
    found = VERSION.match(version)
    return tuple(int(number) for number in found.group().partition("-")[0].split(".")) if found else (0, 0, 0)


# --- where else it may be ------------------------------------------------------------------------------------

# Where installers put programs: a login shell has these on its PATH, cron, systemd and a web server do not.
USUAL_FOLDERS = (
    "~/.local/bin",
    "~/.claude/local",
    "~/.claude/local/node_modules/.bin",
    "~/.opencode/bin",
    "~/.npm-global/bin",
    "~/.npm-packages/bin",
    "~/.bun/bin",
    "~/.volta/bin",
    "~/.local/share/pnpm",
    "~/.local/share/mise/shims",
    "~/.asdf/shims",
    "~/.nvm/versions/node/*/bin",
    "~/bin",
    "/usr/local/bin",
    "/opt/homebrew/bin",
)
NPM_PREFIX = re.compile(r"^\s*prefix\s*=\s*(.+?)\s*$", re.MULTILINE)


def found_elsewhere(program: str, env: Mapping[str, str]) -> list[str]:
    """Where a program that is not on the PATH of `env` is installed, if an installer put it in its usual place."""
    found: dict[str, str] = {}
    try:
        for folder in _usual_folders(env):
            path = shutil.which(os.path.basename(program), path=folder)
            if path is not None:
                found.setdefault(os.path.realpath(path), path)
    except ValueError:  # A path that this locale cannot name.
        pass
    return list(found.values())


def _usual_folders(env: Mapping[str, str]) -> Iterator[str]:
    home = env.get("HOME") or os.path.expanduser("~")
    for folder in USUAL_FOLDERS:
        place = folder.replace("~", glob.escape(home), 1) if folder.startswith("~") else folder
        yield from sorted(
            glob.glob(place), key=lambda path: [int(part) for part in re.findall(r"\d+", path)], reverse=True
        )
    for name in ("NPM_CONFIG_PREFIX", "npm_config_prefix"):
        if env.get(name):
            yield os.path.join(env[name], "bin")
    if env.get("PNPM_HOME"):
        yield env["PNPM_HOME"]
    yield from _npmrc_prefix(home)


def _npmrc_prefix(home: str) -> Iterator[str]:
    try:
        with open(os.path.join(home, ".npmrc"), encoding="utf-8", errors="replace") as file:
            prefixes = NPM_PREFIX.findall(file.read(1_000_000))
    except OSError:
        return
    for prefix in prefixes:
        place = prefix.strip("\"'").replace("${HOME}", home).replace("$HOME", home)
        yield os.path.join(home + place[1:] if place.startswith("~") else place, "bin")
