"""The folder where `serve` keeps its conversations: deleted with the server, or later if the server was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

PREFIX = "remoteclaw-sync-serve-"
LOCK = "server.lock"  # Held while the server lives. If it is killed, the kernel releases the lock.
NEW_SECONDS = 60.0  # The server of a younger folder may not have taken its lock yet.


@contextmanager
def folder_of_this_server() -> Iterator[str]:
    """A new folder that lasts as long as the block. Also removes the folders of servers that were killed."""
    remove_abandoned_folders()
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder:
        with locked(folder):
            yield folder


@contextmanager
def locked(folder: str) -> Iterator[None]:
    """Hold the folder's lock during the block. Raises BlockingIOError if another server holds it."""
    lock = os.open(os.path.join(folder, LOCK), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def abandoned_folders() -> list[str]:
    """Folders of servers that were killed. They may contain conversations."""
    found = []
    try:
        entries = list(os.scandir(tempfile.gettempdir()))
    except OSError:
        return []
    for entry in entries:
        try:
            if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False) and _is_abandoned(entry):
                found.append(entry.path)
        except OSError:
            pass  # Deleted in the meantime, or not ours to read.
    return found


def remove_abandoned_folders() -> list[str]:
    """Remove the folders of servers that were killed; returns those that were removed."""
    found = abandoned_folders()
    for path in found:
        shutil.rmtree(path, ignore_errors=True)
    return [path for path in found if not os.path.exists(path)]


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    about = entry.stat(follow_symlinks=False)
    if about.st_uid != os.geteuid():
        return False
    try:
        lock = os.open(os.path.join(entry.path, LOCK), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return time.time() - about.st_mtime > NEW_SECONDS
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
