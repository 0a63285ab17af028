"""Makes all our temporary files and folders, and reads files that somebody else may have put in place.

Everything made here is private (0600, 0700) and has its owner's identity in its name. So a killed host leaves nothing
behind for good: the next run removes what no live host owns, and so does `doctor --repair`, by the same rule
(`abandoned`).

In a folder that others write to, such as a checked-out repository, we read only regular files of limited size: git
stores links, and reading a link to /dev/zero or to a FIFO would fill the memory or never end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import tempfile
import threading
import time
from typing import BinaryIO

from .process.host import has_lasted, host_identity

PREFIX = "remoteclaw-"
# Only these names are ours: identity (see process/host.py), eight random hex digits, suffix.
OWNED_NAME = re.compile(r"\.?remoteclaw-(\d+-\d+-[0-9a-f]{8})-[0-9a-f]{8}(?:\.[a-z.]+)?")
# A host in another container that shares the folder, or from before the last boot, cannot be seen from here. Its files
# are removed when they are this old.
UNSEEN_OWNER_SECONDS = 86_400.0
# Listing a folder takes about a microsecond per name. Large folders are listed so rarely that it takes 1 % of the time.
SMALL_FOLDER = 50
PAUSE_PER_NAME = 1e-4
SETTLED_NS = 1_000_000_000  # A folder that has just changed may change again without getting a new mtime.
OPENED_BY_THE_SHELL = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")

_sweep_lock = threading.Lock()
_next_sweep: dict[str, float] = {}  # Folder -> when it may be searched again.
_last_clean: dict[str, int] = {}  # Folder -> its mtime when it was last seen without a file of another host.


# --- making -------------------------------------------------------------------------------------------------------


def new_file(folder: str, suffix: str, data: bytes, *, hidden: bool = False, durable: bool = False) -> str:
    """Make a file that only its owner can read, and return its path; with `durable`, it is synced to disk. If an error
    occurs, no file is left."""
    while True:
        path = os.path.join(folder, _new_name(suffix, hidden=hidden))
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | _flag("O_NOFOLLOW"), 0o600)
            break
        except FileExistsError:
            continue
    try:
        with open(fd, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
    except BaseException:
        os.unlink(path)
        raise
    return path


def new_folder(base: str, *, hidden: bool = False) -> str:
    """Make a folder that only its owner can enter, and return its path."""
    while True:
        path = os.path.join(base, _new_name("", hidden=hidden))
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            continue
        return path


def private(path: str, flags: int) -> int:
    """An `opener` for open(): a new file gets the mode 0600."""
    return os.open(path, flags, 0o600)


def user_folder(name: str) -> str:
    """The path of a private folder that all hosts of this user share. It is made if it is missing. Raises OSError if
    somebody else has put something in its place."""
    path = _user_folder(name)
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        status = os.lstat(path)
    is_ours = status.st_uid == os.geteuid() and not status.st_mode & 0o077
    if not stat.S_ISDIR(status.st_mode) or not is_ours:
        raise OSError(errno.EPERM, "not a private folder of this user", path)
    return path


def remove_user_folder(name: str) -> None:
    """Remove that folder if it is empty. It is made again when needed."""
    with contextlib.suppress(OSError):
        os.rmdir(_user_folder(name))


def _user_folder(name: str) -> str:
    return os.path.join(tempfile.gettempdir(), f"{PREFIX}{os.geteuid()}-{name}")


def longest_folder(base: str) -> int:
    """How many bytes the path of a new folder in `base` has."""
    return len(os.fsencode(os.path.join(base, _new_name(""))))


def replace_file(path: str, data: bytes, mode: int = 0o600) -> None:
    """Replace the content of `path` atomically: it is complete, synced and has the right mode before anyone sees it."""
    temporary = new_file(os.path.dirname(path), "", data, hidden=True, durable=True)
    try:
        if mode != 0o600:
            os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def remove(path: str) -> None:
    """Remove a file or folder made here. Does nothing on a second call, or in a forked copy of its owner."""
    if owner_of(path) == host_identity():
        _remove(path)


def owner_of(path: str) -> str | None:
    """The identity of the owner, from the file name; None if the name is not one of ours."""
    found = OWNED_NAME.fullmatch(os.path.basename(path))
    return None if found is None else found[1]


def _new_name(suffix: str, *, hidden: bool = False) -> str:
    return f"{'.' if hidden else ''}{PREFIX}{host_identity()}-{secrets.token_hex(4)}{suffix}"


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except (IsADirectoryError, PermissionError):  # What unlink() raises for a folder: on Linux; elsewhere.
        shutil.rmtree(path, ignore_errors=True)
    except OSError:
        pass


# --- after a host that is gone --------------------------------------------------------------------------------------


def sweep(folder: str) -> None:
    """Remove what dead hosts have left in this folder. Cheap enough for every run: a folder is not listed again until
    it has changed, and one that is slow to list is listed rarely."""
    try:
        changed = os.stat(folder).st_mtime_ns
    except OSError:
        return
    with _sweep_lock:
        if time.monotonic() < _next_sweep.get(folder, 0.0) or _last_clean.get(folder) == changed:
            return
        _next_sweep[folder] = float("inf")  # Keeps other threads out while this one is at work.
    names: list[os.DirEntry[str]] = []
    try:
        names = _names_in(folder)
        for path in _abandoned(names):
            _remove(path)
        if time.time_ns() - changed > SETTLED_NS and not any(map(_is_of_another_host, names)):
            _last_clean[folder] = changed
    finally:
        _next_sweep[folder] = time.monotonic() + (len(names) * PAUSE_PER_NAME if len(names) > SMALL_FOLDER else 0.0)


def abandoned(folder: str) -> list[str]:
    """The files and folders in this folder that belong to dead hosts of this user."""
    return _abandoned(_names_in(folder))


def remove_abandoned(path: str) -> bool:
    """Remove one of these; returns whether it is gone."""
    _remove(path)
    return not os.path.lexists(path)


def _names_in(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _abandoned(names: list[os.DirEntry[str]]) -> list[str]:
    return [entry.path for entry in names if _is_of_another_host(entry) and _is_abandoned(entry)]


def _is_of_another_host(entry: os.DirEntry[str]) -> bool:
    return owner_of(entry.name) not in (None, host_identity())


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    owner = owner_of(entry.name)
    assert owner is not None
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return False
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        return False
    lives = has_lasted(owner)
    if lives is None:
        return time.time() - status.st_mtime > UNSEEN_OWNER_SECONDS
    return not lives


# --- reading what others may have put there ---------------------------------------------------------------------------


def open_regular(path: str | os.PathLike[str], *, follow: bool = False) -> BinaryIO:
    """A regular file, opened for reading. Raises OSError for anything else, without waiting for it or touching it.

    With `follow`, the path may be a link to a regular file.
    """
    # Checked twice: opening a device may have side effects, and the file may have been replaced in between.
    _check_regular(os.stat(path, follow_symlinks=follow), path)
    # A file that the caller named may be opened in the caller's thread, where Ctrl-C could leak a bare descriptor.
    file = open(path, "rb") if follow else _open_strictly(path)  # noqa: SIM115 - closed below, or given to the caller
    try:
        _check_regular(os.fstat(file.fileno()), path)
    except BaseException:
        file.close()
        raise
    return file


def _open_strictly(path: str | os.PathLike[str]) -> BinaryIO:
    """Open without following a link or waiting for the other end of a FIFO, in case one was put there just now."""
    flags = ("O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "O_NOFOLLOW", "O_BINARY")
    return open(os.open(path, os.O_RDONLY | sum(map(_flag, flags))), "rb")


def read_regular(path: str | os.PathLike[str], limit: int, *, follow: bool = False) -> bytes:
    """The contents of a regular file of at most `limit` bytes. Raises OSError for anything else."""
    with open_regular(path, follow=follow) as file:
        too_large = os.fstat(file.fileno()).st_size > limit
        data = b"" if too_large else file.read(limit + 1)
    if too_large or len(data) > limit:
        raise _too_large(path, limit)
    return data


def read_named(path: str | os.PathLike[str], limit: int) -> bytes:
    """The same for a file named by the user, which may also be a pipe that the shell opened (`<(...)`)."""
    if not os.fsdecode(path).startswith(OPENED_BY_THE_SHELL):
        return read_regular(path, limit, follow=True)
    with open(path, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise _too_large(path, limit)
    return data


def _too_large(path: str | os.PathLike[str], limit: int) -> OSError:
    return OSError(errno.EFBIG, f"larger than {limit // 1024 // 1024} MB", os.fspath(path))


def _check_regular(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "a symbolic link", os.fspath(path))
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, "a directory", os.fspath(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))


def _flag(name: str) -> int:
    """The flag of open() with this name; 0 if the system does not have it."""
    return int(getattr(os, name, 0))


def temporary_folder() -> str:
    """The folder for temporary files, after removing what dead hosts have left there."""
    folder = tempfile.gettempdir()
    sweep(folder)
    return folder
