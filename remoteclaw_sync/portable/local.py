"""The sessions that a CLI keeps on this machine: the protocol that its part in `clis/` implements, and file helpers.

Everything is written below one folder and nowhere else: each step down uses a directory descriptor and follows no link,
so a link that somebody put there leads to an error and not to somebody's file.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any, Protocol

from .. import files
from ..errors import SessionTransferError
from .capsule import too_large


class LocalSessions(Protocol):
    """How one CLI's sessions are read and written, in one home and for one working directory."""

    def read(self, session_id: str, limit: int) -> dict[str, bytes]:
        """The files of a session, by their names in a capsule. Raises SessionTransferError."""

    def write(self, session_id: str, content: Mapping[str, bytes], replace: bool) -> None:
        """Make the files a session of this machine; with `replace`, even if the one here has something else.

        Raises SessionTransferError; nothing has changed then.
        """


class Progress(enum.Enum):
    """How the session here compares with the one in a capsule."""

    ABSENT = enum.auto()
    SAME = enum.auto()
    BEHIND = enum.auto()
    AHEAD = enum.auto()
    DIVERGED = enum.auto()


def progress_of_log(local: bytes | None, incoming: bytes) -> Progress:
    """The progress of a session whose CLI only ever appends to its file."""
    if local is None:
        return Progress.ABSENT
    if local == incoming:
        return Progress.SAME
    if incoming.startswith(local):
        return Progress.BEHIND
    return Progress.AHEAD if local.startswith(incoming) else Progress.DIVERGED


def progress_of_parts(here: Set[str], there: Set[str]) -> Progress:
    """The progress by the ids of what was said."""
    if here == there:
        return Progress.SAME
    if here < there:
        return Progress.BEHIND
    return Progress.AHEAD if here > there else Progress.DIVERGED


def progress_of_records(local: bytes | None, incoming: bytes, id_of: Callable[[dict[str, Any]], object]) -> Progress:
    """The progress of a log in which only records with an id matter: a process adds others when it ends."""
    progress = progress_of_log(local, incoming)
    if local is None or progress not in (Progress.AHEAD, Progress.DIVERGED):
        return progress
    return progress_of_parts(_ids_in(local, id_of), _ids_in(incoming, id_of))


def _ids_in(log: bytes, id_of: Callable[[dict[str, Any]], object]) -> set[str]:
    found = set()
    for line in log.split(b"\n"):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue  # A killed process leaves half a line.
        name = id_of(record) if isinstance(record, dict) else None
        if isinstance(name, str):
            found.add(name)
    return found


def check_progress(progress: Progress, session_id: str, replace: bool) -> None:
    """Raises SessionTransferError if something that only the session here has would be lost, unless `replace`."""
    if replace or progress in (Progress.ABSENT, Progress.SAME, Progress.BEHIND):
        return
    if progress is Progress.AHEAD:
        message = f"session {session_id} has gone on here since the capsule was made"
        raise SessionTransferError("local_newer", f"{message}; replace=True takes the capsule all the same")
    message = f"session {session_id} has gone on both here and where the capsule was made"
    raise SessionTransferError("diverged", f"{message}; replace=True takes the capsule, and what was said here is lost")


class Room:
    """How many more bytes a session may have."""

    def __init__(self, session_id: str, limit: int) -> None:
        self._session_id, self._limit, self._left = session_id, limit, limit

    def read(self, path: str) -> bytes:
        """Read a regular file. Raises SessionTransferError if it does not fit, OSError if it cannot be read."""
        with files.open_regular(path) as file:
            data = file.read(self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise too_large(self._session_id, self._limit)
        return data


def log_of(path: str) -> bytes | None:
    """The existing file of the session; None if there is none. Raises SessionTransferError if a link, a device or a
    folder is in its place."""
    try:
        with files.open_regular(path) as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _in_the_way(os.path.basename(path)) from error


def regular_files_below(folder: str) -> Iterator[str]:
    """The paths of the regular files in this folder and its subfolders; links are left out."""
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(place, name)
            with contextlib.suppress(OSError):
                if stat.S_ISREG(os.lstat(path).st_mode):
                    yield path


def write_below(root: str, name: str, data: bytes) -> None:
    """Write a file with this relative name, as a whole or not at all. Raises SessionTransferError if a link, a device
    or a folder is in its place, OSError if it cannot be written."""
    *folders, last = name.split("/")
    os.makedirs(root, mode=0o700, exist_ok=True)
    place = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            place = _step(place, folder, name)
        _check_target(place, last, name)
        _write(place, last, data)
    finally:
        os.close(place)


def _step(place: int, folder: str, name: str) -> int:
    """Step from one folder into another, which is created if missing. Closes `place` on success."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700, dir_fd=place)
    try:
        below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
    except NotADirectoryError as error:  # Raised for a link, too.
        raise _in_the_way(name) from error
    os.close(place)
    return below


def _check_target(place: int, last: str, name: str) -> None:
    try:
        status = os.stat(last, dir_fd=place, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        raise _in_the_way(name)


def _write(place: int, last: str, data: bytes) -> None:
    temporary = f".remoteclaw-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(temporary, flags, 0o600, dir_fd=place), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, last, src_dir_fd=place, dst_dir_fd=place)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=place)
        raise


def _in_the_way(name: str) -> SessionTransferError:
    message = f"{name} cannot be written: there is a link, a device or something else in its place"
    return SessionTransferError("unsafe", message)
