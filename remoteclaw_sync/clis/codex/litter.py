"""Empty folders that Codex's sandbox leaves behind when a command in it is ended early (0.169.0).

The sandbox creates them where nothing may be written, and removes them when the command ends by itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

NAMES = (".git", ".codex", ".agents", ".aws")
ESCAPED = re.compile(r"\\([0-7]{3})")


def absent_folders(cwd: str) -> list[str]:
    """The folders that do not exist now. Only the session's own: those in /tmp may be another session's."""
    paths = (os.path.join(cwd, name) for name in NAMES)
    return [path for path in paths if not os.path.lexists(path)]


def remove_empty(paths: Iterable[str]) -> None:
    """Remove the folders that are empty and that no sandbox uses any more."""
    found = [path for path in paths if os.path.isdir(path)]
    # Linux takes away a mount whose folder is removed, and with it the protection of a command that still runs.
    protected = _mount_points_of_others() if found else set()
    for path in found:
        if os.path.realpath(path) not in protected:
            try:
                os.rmdir(path)
            except OSError:
                pass  # Missing, not empty, or not ours.


def _mount_points_of_others() -> set[str]:
    """Where processes with a file system of their own have mounts."""
    seen = {_mount_namespace("self")}
    points: set[str] = set()
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        namespace = _mount_namespace(name)
        if namespace and namespace not in seen:
            seen.add(namespace)
            points.update(_mount_points(name))
    return points


def _mount_namespace(process: str) -> str:
    try:
        return os.readlink(f"/proc/{process}/ns/mnt")
    except OSError:
        return ""  # Gone meanwhile, or another user's.


def _mount_points(process: str) -> list[str]:
    try:
        with open(f"/proc/{process}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            fields = [line.split(" ") for line in file]
    except OSError:
        return []
    return [ESCAPED.sub(lambda found: chr(int(found[1], 8)), line[4]) for line in fields if len(line) > 4]
