"""Which version of a CLI is installed, as its files tell: `gemini --version` takes seconds, reading takes none."""

from __future__ import annotations

import json
import os
import re
import shutil

# Provider -> the npm package it comes from, and the version this package is tested against.
PACKAGES = {
    "claude": ("@anthropic-ai/claude-code", "2.1.197"),
    "gemini": ("@google/gemini-cli", "0.61.0"),
    "codex": ("@openai/codex", "0.166.0"),
    "opencode": ("opencode-ai", "1.18.33"),
}
TESTED_VERSIONS = {provider: version for provider, (_, version) in PACKAGES.items()}
VERSION = re.compile(r"\d+\.\d+\.\d+(?:-[\w.]+)?")
PARENTS = 5  # Folders from the program up to its package.json.


def installed_version(provider: str, program: str, search_path: str | None = None) -> str | None:
    """The version of the installed CLI, None if its files do not tell. Starts nothing, does not raise."""
    found = shutil.which(program, path=search_path)
    if found is None or provider not in PACKAGES:
        return None
    path = os.path.realpath(found)
    for _ in range(PARENTS):
        if VERSION.fullmatch(os.path.basename(path)):  # Claude's own installer: .../claude/versions/2.1.197
            return os.path.basename(path)
        path = os.path.dirname(path)
        version = _version_in_package(path, PACKAGES[provider][0])
        if version is not None:
            return version
    return None


def _version_in_package(folder: str, name: str) -> str | None:
    try:
        with open(os.path.join(folder, "package.json"), encoding="utf-8") as file:
            package = json.load(file)
    except (OSError, ValueError):
        return None
    version = package.get("version") if isinstance(package, dict) and package.get("name") == name else None
    return version if isinstance(version, str) else None
