"""Which version of a CLI is installed, judging by its files (starting it may take seconds), and what works with it."""

from __future__ import annotations

import enum
import glob
import os
import re
import shutil
from collections.abc import Iterator, Mapping

import attrs

from ._json import read_object
from .clis.facts import CliFacts, Support

VERSION = re.compile(r"\d+\.\d+\.\d+(?:-[\w.]+)?")
# What installers call a program or its folder: `NAME/versions/2.1.197`, `Caskroom/PACKAGE@latest/2.1.197`,
# `Cellar/NAME/1.18.33_1`, `NAME/standalone/releases/0.146.0-x86_64-unknown-linux-musl`.
VERSIONED_NAME = re.compile(r"(\d+\.\d+\.\d+(?:-(?:alpha|beta|rc|preview|nightly|dev)[\w.]*)?)(?:[-_].*)?")
PARENTS = 5  # Folders from the program up to its package.json.


# --- what is installed ---------------------------------------------------------------------------------------


@attrs.frozen
class Installation:
    """What a CLI's files show: its npm package (None if it was installed another way) and its version."""

    package: str | None
    version: str


def installation(cli: CliFacts, program: str, search_path: str | None = None) -> Installation | None:
    """What is installed under this name or path; None if its files do not show it. Starts nothing, does not raise."""
    try:
        found = shutil.which(program, path=search_path)
        return None if found is None else _installation_at(cli, os.path.realpath(found))
    except ValueError:  # A path that this locale cannot name.
        return None


def installed_version(cli: CliFacts, program: str, search_path: str | None = None) -> str | None:
    """The version of the installed CLI; None if its files do not show it. Starts nothing, does not raise."""
    found = installation(cli, program, search_path)
    return None if found is None else found.version


def _installation_at(cli: CliFacts, path: str) -> Installation | None:
    packages = [line.package for line in cli.support]
    names = {cli.name, packages[0].rpartition("/")[2]}
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
    """Whether the versions in this folder are the product's (unlike `.pyenv/versions` and `installs/node`)."""
    parts = [part.lstrip(".").partition("@")[0] for part in folder.split(os.sep)[-4:]]
    return parts[-1] in names or (parts[-1] in ("versions", "releases") and not names.isdisjoint(parts))


def _package_in(folder: str, names: list[str]) -> Installation | None:
    package = read_object(os.path.join(folder, "package.json"))
    if package.get("name") not in names:
        return None
    version = package.get("version")
    return Installation(package["name"], version) if isinstance(version, str) else None


# --- what works with it --------------------------------------------------------------------------------------


class Standing(enum.StrEnum):
    """How a version compares with those that were tested."""

    TOO_OLD = "too old"  # It cannot run, or cannot run safely.
    GAPS = "too old for some options"
    OLDER = "older than tested"
    TESTED = "tested"
    IN_RANGE = "in the tested range"
    NEWER = "newer than tested"
    UNTESTED = "not tested"
    UNKNOWN = "unknown"


def support_of(cli: CliFacts, version: str | None) -> Support:
    """The release line that this version belongs to; the default one if the version is not known."""
    lines = cli.support
    if version is None:
        return lines[0]
    fitting = [line for line in lines if as_numbers(line.least)[0] <= as_numbers(version)[0]]
    return fitting[-1] if fitting else lines[0]


def standing(cli: CliFacts, version: str | None) -> Standing:
    """How this version compares with the tested ones."""
    if version is None or not VERSION.match(version):
        return Standing.UNKNOWN
    line, numbers = support_of(cli, version), as_numbers(version)
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
    """Whether the version is known and older than the limit."""
    return version is not None and bool(VERSION.match(version)) and as_numbers(version) < as_numbers(limit)


def what_is_needed(cli: CliFacts, version: str | None, options: tuple[str, ...] = ()) -> str | None:
    """A sentence for a run that failed with a version below the floor; None if it is not below it, or is not known.

    `options` are the run's options that may need a newer CLI ("system_prompt", "read-only", "bypass").
    """
    if version is None or not is_below(version, support_of(cli, version).floor):
        return None
    line = support_of(cli, version)
    newer = [
        f"{name} came with {line.needs[name]}" for name in options if is_below(version, line.needs.get(name, "0.0.0"))
    ]
    detail = f" ({', '.join(newer)})" if newer else ""
    return f"this is {cli.name} {version}; {line.floor} or newer is needed{detail}"


def as_numbers(version: str) -> tuple[int, ...]:
    """A key for comparing versions. A pre-release counts as the version that it precedes."""
    found = VERSION.match(version)
    return tuple(int(number) for number in found.group().partition("-")[0].split(".")) if found else (0, 0, 0)


# --- where else it may be ------------------------------------------------------------------------------------

# Where installers put programs. A login shell has these on its PATH; cron, systemd and a web server do not.
NEWEST_FOLDER = "~/.local/bin"  # Vendors' installers used to have their own folders, and have moved here.
USUAL_FOLDERS = (
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


def found_elsewhere(program: str, env: Mapping[str, str], own_folders: tuple[str, ...] = ()) -> list[str]:
    """Where a program that is not on the PATH of `env` is installed, if it is in a folder that installers usually use
    or in that of its own installer."""
    found: dict[str, str] = {}
    try:
        for folder in _usual_folders(env, own_folders):
            path = shutil.which(os.path.basename(program), path=folder)
            if path is not None:
                found.setdefault(os.path.realpath(path), path)
    except ValueError:  # A path that this locale cannot name.
        pass
    return list(found.values())


def _usual_folders(env: Mapping[str, str], own_folders: tuple[str, ...]) -> Iterator[str]:
    home = env.get("HOME") or os.path.expanduser("~")
    for folder in (NEWEST_FOLDER, *own_folders, *USUAL_FOLDERS):
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
