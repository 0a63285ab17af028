"""Opens the file for a recording: always a file that we created, never one that somebody else put in its place."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import tempfile
import time

# Harmless devices: null and zero discard what is written, full refuses it. Any other may be a disk and is refused.
HARMLESS_DEVICES = frozenset({(1, 3), (1, 5), (1, 7)})
MOST_LINKS = 40  # The kernel's own limit.
# Opens a folder, or a link itself, without reading it; Linux only.
O_PATH = getattr(os, "O_PATH", os.O_RDONLY)
HAS_PATH_FDS = hasattr(os, "O_PATH")


def create(path: str, prefix: str) -> int:
    """A descriptor for the recording of one run, of mode 0600. If the path is a folder, a new file is created in it. An
    existing file is replaced, so if two runs record to one path, the one that started last keeps the name. Never blocks
    on a FIFO.

    Raises OSError with a message that says what is wrong.
    """
    if not hasattr(os, "geteuid") or os.open not in os.supports_dir_fd:
        return _create_by_name(path, prefix)
    folder, name = _walk(path)
    try:
        if name is None:
            return _new_file(folder, f"{prefix}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}.jsonl")
        found = _look(folder, name)
        if found is None or stat.S_ISREG(found.st_mode):
            return _replace(folder, name)
        return _open_special(folder, name)
    finally:
        os.close(folder)


def check_links(path: str) -> None:
    """Raise PermissionError if the path to a file goes through a link that another user may have put there."""
    if not hasattr(os, "geteuid") or os.open not in os.supports_dir_fd:
        return
    try:
        os.close(_walk(path)[0])
    except FileNotFoundError:
        pass  # It does not exist yet, so it is not a link.


def _walk(path: str) -> tuple[int, str | None]:
    """The file's folder, opened, and the file's name in it; the name is None if the path is a folder.

    Each step starts from an open folder, so that nobody can put a link in the way meanwhile.
    """
    folder = os.open("/" if os.path.isabs(path) else ".", O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    steps = _steps(path)
    links = 0
    try:
        while steps:
            step = steps.pop()
            found = _look(folder, step)
            if found is None and steps:
                raise FileNotFoundError(errno.ENOENT, f"there is no folder {step!r}")
            if found is not None and stat.S_ISLNK(found.st_mode):
                links += 1
                if links > MOST_LINKS:
                    raise OSError(errno.ELOOP, "too many symbolic links")
                target = _read_link(folder, step, is_last=not steps)
                steps += _steps(target)
                if os.path.isabs(target):
                    folder = _instead_of(folder, "/", None)
            elif found is not None and (steps or stat.S_ISDIR(found.st_mode)):
                folder = _instead_of(folder, step, folder)
            else:
                return folder, step
    except BaseException:
        os.close(folder)
        raise
    return folder, None


def _steps(path: str) -> list[str]:
    return [step for step in reversed(path.split("/")) if step not in ("", ".")]


def _instead_of(folder: int, step: str, start: int | None) -> int:
    entered = os.open(step, O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=start)
    os.close(folder)
    return entered


def _look(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _read_link(folder: int, name: str, *, is_last: bool) -> str:
    """The target of a link, if it can be trusted: in /tmp anybody can create a link that points to a file of ours."""
    if not HAS_PATH_FDS:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        target = os.readlink(name, dir_fd=folder)
    else:
        link = os.open(name, O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            found, target = os.fstat(link), os.readlink("", dir_fd=link)
        finally:
            os.close(link)
    around = os.fstat(folder)
    by_owner_of_folder = found.st_uid == around.st_uid and not around.st_mode & (stat.S_IWOTH | stat.S_IWGRP)
    if _is_ours(found) or (by_owner_of_folder and not is_last):
        return target
    raise PermissionError(
        errno.EPERM, f"the symbolic link {name!r} belongs to another user; remove it, or choose another place"
    )


def _is_ours(found: os.stat_result) -> bool:
    return found.st_uid in (os.geteuid(), 0)


def _replace(folder: int, name: str) -> int:
    """A new file with this name. The old file is not written to: it may have other names, or be a link by now."""
    temporary = f".remoteclaw-{secrets.token_hex(8)}"
    fd = _new_file(folder, temporary)
    try:
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.close(fd)
        os.unlink(temporary, dir_fd=folder)
        raise
    return fd


def _new_file(folder: int, name: str) -> int:
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)


def _open_special(folder: int, name: str) -> int:
    """Open a FIFO that has a reader, or a harmless device."""
    fd = None
    try:
        # Without O_NONBLOCK this would wait for a reader, and no deadline would end it.
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
        if not _may_be_written(os.stat(name, dir_fd=folder, follow_symlinks=False)):
            raise _no_file(name)
        fd = os.open(name, flags, dir_fd=folder)
        if not _may_be_written(os.fstat(fd)):
            raise _no_file(name)
    except OSError as error:
        if fd is not None:
            os.close(fd)
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "nobody reads from this FIFO") from None
        raise
    return fd


def _may_be_written(found: os.stat_result) -> bool:
    if stat.S_ISFIFO(found.st_mode):
        return _is_ours(found)
    device = (os.major(found.st_rdev), os.minor(found.st_rdev))
    return stat.S_ISCHR(found.st_mode) and device in HARMLESS_DEVICES


def _no_file(name: str) -> OSError:
    return PermissionError(
        errno.EPERM, f"{name!r} is a device, a socket or another user's FIFO; give a file or a folder"
    )


def _create_by_name(path: str, prefix: str) -> int:
    """The same for platforms where folders cannot be opened (Windows)."""
    if os.path.isdir(path):
        return tempfile.mkstemp(dir=path, prefix=f"{prefix}-{time.strftime('%Y%m%d-%H%M%S')}-", suffix=".jsonl")[0]
    fd, temporary = tempfile.mkstemp(dir=os.path.dirname(os.path.abspath(path)), prefix=".remoteclaw-")
    with contextlib.ExitStack() as undo:
        undo.callback(os.unlink, temporary)
        undo.callback(os.close, fd)
        os.replace(temporary, path)
        undo.pop_all()
    return fd
