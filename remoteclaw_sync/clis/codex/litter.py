"""Empty folders that Codex's sandbox leaves behind when a command in it is ended early (0.169.0).

It puts them where it wants nothing to be written, and takes them away when the command has ended by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

NAMES = (".git", ".codex", ".agents", ".aws")


def absent_folders(cwd: str) -> list[str]:
    """Those that are not there now. Only of the session's own folder: what is in /tmp may be another session's."""
    paths = (os.path.join(cwd, name) for name in NAMES)
    return [path for path in paths if not os.path.lexists(path)]


def remove_empty(paths: Iterable[str]) -> None:
    """Take away those that have nothing in them."""
    for path in paths:
        try:
            os.rmdir(path)
        except OSError:
            pass  # Not there, not empty, or not ours.
