"""Empty folders that Codex's sandbox leaves behind when a command in it is ended early (0.169.0).

The sandbox creates them where nothing may be written, and removes them when the command ends by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

NAMES = (".git", ".codex", ".agents", ".aws")


def absent_folders(cwd: str) -> list[str]:
    """The folders that do not exist now. Only the session's own: those in /tmp may be another session's."""
    paths = (os.path.join(cwd, name) for name in NAMES)
    return [path for path in paths if not os.path.lexists(path)]


def remove_empty(paths: Iterable[str]) -> None:
    """Remove the folders that are empty."""
    for path in paths:
        try:
            os.rmdir(path)
        except OSError:
            pass  # Missing, not empty, or not ours.
