"""Empty folders that Codex's sandbox leaves behind when a command in it is ended early (0.169.0).

It puts them where it wants nothing to be written, and takes them away when the command has ended by itself.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping

NAMES = (".git", ".codex", ".agents", ".aws")
SHARED = "/tmp"  # noqa: S108 - always open to its sandboxed commands


def absent_folders(cwd: str, env: Mapping[str, str | None]) -> list[str]:
    """Those that are not there now, in the folders that a sandboxed command may write to."""
    folders = dict.fromkeys((cwd, env.get("TMPDIR") or tempfile.gettempdir(), SHARED))
    paths = (os.path.join(folder, name) for folder in folders for name in NAMES)
    return [path for path in paths if not os.path.lexists(path)]


def remove_empty(paths: Iterable[str]) -> None:
    """Take away those that have nothing in them."""
    for path in paths:
        try:
            os.rmdir(path)
        except OSError:
            pass  # Not there, not empty, or not ours.
