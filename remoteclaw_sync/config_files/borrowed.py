"""Merge-restore: borrow one of the user's config files for as long as a CLI needs to read it.

The original stays on disk all the time: it becomes a backup next to the file, so that inode, mode, times and links come
back unchanged, and a journal next to that records what was done. So if a host was killed, any process that holds the
lock can repair things. The lock is on the parent of the config's folder. This folder always exists, so no lock file is
needed; the kernel releases the lock when the holder dies, and the CLI does not inherit it.

Which files are accepted: config, backup and journal must be regular files of limited size. A project's config may be a
link to a file that belongs to the user (or the project's owner) and is inside the project's checkout; without a
checkout, inside the project or the user's home. Git stores links, so anybody may have made one that leads out of a
checkout. The user's own config (Codex's) may be a link to anything; backup and journal must not be links.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import attrs
from attrs.validators import deep_iterable, in_, instance_of, matches_re

from .. import errors, files
from .config_edit import ConfigError, Entries, Format, add_entries, remove_entries
from .private_file import Reading

if os.name == "posix":
    import fcntl

logger = logging.getLogger(__name__)

MAX_CONFIG_BYTES = 10 * 1024 * 1024
MAX_MERGED_BYTES = 4 * MAX_CONFIG_BYTES  # For the config with our entries, and for the journal, which has them twice.
LOCK_POLL_SECONDS = 0.02
BACKUP_SUFFIX = ".remoteclaw-backup"
JOURNAL_SUFFIX = ".remoteclaw-journal"
# Names that a journal may have us remove. A repository may contain a journal, and "../.." would lead out of it.
PLAIN_NAME = r"(?!\.\.?\Z)[^/\\\0]+"


@attrs.frozen
class ConfigFile:
    """Which file to borrow, and what to add to it."""

    path: str
    format: Format
    key: str
    entries: Entries = attrs.field(repr=False)
    read_words: bytes = b""  # What the CLI prints once it has read the file.
    defaults: Entries = {}  # Added at the top level if missing: otherwise the CLI would write them itself.
    project: str | None = None  # The folder whose config it is; None: the user's own.
    litter: tuple[str, ...] = ()  # What the CLI puts into the file's folder; removed with the folder if we made that.


class BorrowedConfig:
    """The loan of one file. `take` once, `give_back` any number of times, from any thread."""

    def __init__(self, config: ConfigFile) -> None:
        self._config = config
        self._path = os.path.realpath(config.path)
        self._lock_fd = -1
        self._returning = threading.Lock()
        self._owner = os.getpid()
        self._created_folder = False
        self._reading = Reading(config.read_words)

    def is_over(self, chunk: bytes) -> bool:
        """Whether the CLI has read the file."""
        return self._reading.seen_in(chunk)

    def take(self, pause: Callable[[float], None]) -> None:
        """Wait for the file, repair what a dead host left behind, and add the entries.

        `pause(seconds)` sleeps between tries and raises to give up. Raises RunSetupError and leaves the file unchanged.
        """
        try:
            _check_way_to(self._config.path, self._path, self._config.project)
            self._acquire(pause)
            try:
                _sweep_around(self._config.path)
                recover(self._path)
                self._write()
            except BaseException:
                self._release()
                raise
        except (ConfigError, OSError) as error:
            raise errors.RunSetupError(errors.MCP_CONFIG_ERROR, self._explain(error)) from None

    def give_back(self) -> None:
        """Put the original back and release the file. Does nothing on a second call, or in a forked copy."""
        if os.getpid() != self._owner:
            return
        with self._returning:
            if self._lock_fd == -1:
                self._tidy_up()
                return
            try:
                recover(self._path)
            except (ConfigError, OSError) as error:
                logger.error("cannot restore %s: %s (backup: %s)", self._path, error, self._path + BACKUP_SUFFIX)
            finally:
                self._release()

    def _tidy_up(self) -> None:
        """At the end of the run, remove the folder if we made it: the CLI may still have been writing to it when the
        file was put back."""
        if not self._created_folder or not self._config.litter:
            return
        try:
            self._lock_fd = _open_folder(os.path.dirname(os.path.dirname(self._path)))
        except OSError:
            return
        try:
            if _try_lock(self._lock_fd):  # Otherwise another run is using it.
                _remove_folder(os.path.dirname(self._path), self._config.litter)
        finally:
            self._release()

    def forget_after_fork(self) -> None:
        """In a forked copy of the host: close the lock, which the copy would otherwise keep."""
        fd, self._lock_fd = self._lock_fd, -1
        if fd != -1:
            os.close(fd)

    def _explain(self, error: Exception) -> str:
        reason = (error.strerror or type(error).__name__) if isinstance(error, OSError) else str(error)
        return f"config file {self._config.path} {_as_clause(reason)}; it was left as it is"

    def _acquire(self, pause: Callable[[float], None]) -> None:
        fd = _open_folder(os.path.dirname(os.path.dirname(self._path)))
        try:
            while not _try_lock(fd):
                pause(LOCK_POLL_SECONDS)
        except BaseException:
            os.close(fd)
            raise
        self._lock_fd = fd

    def _release(self) -> None:
        fd, self._lock_fd = self._lock_fd, -1
        if fd != -1:
            _unlock(fd)

    def _write(self) -> None:
        config = self._config
        original = _read_config(config.path, self._path)
        text = "" if original is None else _decode(original)
        edit = add_entries(text, config.format, config.key, config.entries, config.defaults)
        merged = edit.text.encode()
        journal = {
            "existed": original is not None,
            "created_folder": not os.path.isdir(os.path.dirname(self._path)),
            "litter": config.litter,
            "format": config.format,
            "key": config.key,
            "merged_sha256": _digest(merged),
            "entries": dict(config.entries),
            "inserted": edit.inserted,
        }
        noted = json.dumps(journal).encode()
        if max(len(merged), len(noted)) > MAX_MERGED_BYTES:
            raise ConfigError(f"would be larger than {MAX_MERGED_BYTES // 1024 // 1024} MB with the servers in it")
        if os.path.lexists(self._path + BACKUP_SUFFIX):
            # If it were our backup, it would have a journal next to it.
            raise ConfigError(f"has {os.path.basename(self._path)}{BACKUP_SUFFIX} beside it, which is in the way")
        try:
            if journal["created_folder"]:
                _create_folder(os.path.dirname(self._path), os.path.basename(self._path) + JOURNAL_SUFFIX, noted)
                self._created_folder = True
            else:
                files.replace_file(self._path + JOURNAL_SUFFIX, noted)
            if original is not None:
                _link_or_copy(self._path, self._path + BACKUP_SUFFIX)
            files.replace_file(self._path, merged)  # Private: the entries hold secrets.
        except BaseException:
            recover(self._path)
            raise


def recover(path: str) -> bool:
    """Undo what the journal next to `path` records; returns whether there was one. The caller holds the lock."""
    journal = _read_journal(path + JOURNAL_SUFFIX)
    if journal is None:
        return False
    backup = path + BACKUP_SUFFIX
    current = _read_if_there(path)
    original = _read_if_there(backup)
    if current is None:
        # It was deleted in the meantime. Restoring it may be a mistake, but not restoring it would be a worse one.
        if original is not None:
            os.replace(backup, path)
    elif _digest(current) == journal.merged_sha256:
        if original is not None:
            os.replace(backup, path)
        elif not journal.existed:
            os.unlink(path)
    elif journal.existed and original is None:
        pass  # Killed between journal and backup: nothing had been changed.
    elif original is not None and current == original:
        pass  # Killed between backup and replace.
    else:
        _take_out(path, current, original, journal)
    if os.path.lexists(backup):
        os.unlink(backup)
    if not journal.created_folder or not _remove_folder(os.path.dirname(path), journal.litter, path + JOURNAL_SUFFIX):
        os.unlink(path + JOURNAL_SUFFIX)
    return True


def left_behind(path: str, project: str | None = None, *, repair: bool = False) -> bool:
    """Whether a dead host has left this file changed; with `repair`, restore it.

    A file that a live host has borrowed is left unchanged. Raises ConfigError or OSError if it cannot be restored.
    """
    real_path = os.path.realpath(path)
    if not os.path.lexists(real_path + JOURNAL_SUFFIX):
        return False
    _check_way_to(path, real_path, project)
    fd = _open_folder(os.path.dirname(os.path.dirname(real_path)))
    try:
        if not _try_lock(fd):
            return False
        return recover(real_path) if repair else os.path.lexists(real_path + JOURNAL_SUFFIX)
    finally:
        _unlock(fd)


def repair(path: str, project: str | None = None) -> None:
    """For a run that does not borrow the file: restore the file and tidy up around it. Failures are logged."""
    try:
        left_behind(path, project, repair=True)
        _sweep_around(path)
    except (ConfigError, OSError) as error:
        logger.warning("cannot restore %s: %s", path, error)


def folders_around(path: str) -> list[str]:
    """The folders in which we create short-lived files when we borrow or check this file."""
    folders = [os.path.dirname(os.path.abspath(path)), os.path.dirname(os.path.realpath(path))]
    return list(dict.fromkeys(os.path.realpath(one) for folder in folders for one in (folder, os.path.dirname(folder))))


def _sweep_around(path: str) -> None:
    for folder in folders_around(path):
        files.sweep(folder)


def _take_out(path: str, current: bytes, original: bytes | None, journal: Journal) -> None:
    """The file was edited while it was borrowed: keep the edit, remove our entries."""
    try:
        text = remove_entries(
            _decode(current),
            journal.format,
            journal.key,
            journal.entries,
            None if original is None else _decode(original),
            journal.inserted,
        )
    except ConfigError as error:
        logger.warning("%s was changed during the run and %s; leaving it as it is", path, error)
        return
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if original is not None:
        mode = stat.S_IMODE(os.stat(path + BACKUP_SUFFIX).st_mode)
    files.replace_file(path, text.encode(), mode)


def _read_config(shown: str, path: str) -> bytes | None:
    """The file's bytes; None if it does not exist. Raises ConfigError if we must not touch it."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        if os.path.islink(shown) or os.path.islink(path):
            raise ConfigError("is a link to a file that does not exist") from None
        return None
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError("is not a regular file")
    # Checked in the mode bits, because root can read and write everything.
    if not status.st_mode & 0o444:
        raise ConfigError("is not readable (mode)")
    if not status.st_mode & 0o222:
        raise ConfigError("is read-only (mode)")
    if status.st_size > MAX_CONFIG_BYTES:
        raise ConfigError(f"is larger than {MAX_CONFIG_BYTES // 1024 // 1024} MB")
    return files.read_regular(path, MAX_CONFIG_BYTES)


def _check_way_to(path: str, real_path: str, project: str | None) -> None:
    """Raise ConfigError if links lead from `path` to a file that must not serve as a project's config."""
    if project is None:
        return
    home = os.path.realpath(project)
    roots = [home]
    checkout = checkout_of(home)
    roots.append(os.path.realpath(os.path.expanduser("~")) if checkout is None else checkout)
    if not any(_is_inside(real_path, root) for root in roots):
        raise ConfigError(f"is reached by a link that leads out of the project (to {real_path}); put a copy there")
    if real_path == os.path.join(home, os.path.relpath(os.path.abspath(path), os.path.abspath(project))):
        return
    if not hasattr(os, "geteuid"):
        return
    # A link that leads out of the project must belong to the user (or root); the project's owner is not enough.
    ours = {os.geteuid(), os.stat(home).st_uid}
    trusted = {*ours, 0} if any(_is_inside(real_path, root) for root in (home, checkout or home)) else {os.geteuid(), 0}
    if any(os.lstat(link).st_uid not in trusted for link in _links_on_the_way(path, project)):
        raise ConfigError("is reached by a link that belongs to another user; put a copy there")
    try:
        owner = os.stat(real_path).st_uid
    except OSError:
        return  # It does not exist; this is reported when it is read.
    if owner not in ours:
        raise ConfigError(f"is reached by a link to a file of another user ({real_path}); put a copy there")


def _links_on_the_way(path: str, project: str) -> Iterator[str]:
    way = os.path.abspath(project)
    for step in os.path.relpath(os.path.abspath(path), way).split(os.sep):
        way = os.path.join(way, step)
        if os.path.islink(way):
            yield way


def checkout_of(folder: str) -> str | None:
    """The root of the checked-out repository that this folder is in; None if it is not in one."""
    while not _has_repository(os.path.join(folder, ".git")):
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above
    return folder


def _has_repository(git: str) -> bool:
    """Whether this `.git` is a repository: a folder with a HEAD, or a file that points elsewhere. Sandboxes leave empty
    `.git` folders behind, even in the temp folder, and what is below that is not one project."""
    return os.path.isfile(git) or os.path.lexists(os.path.join(git, "HEAD"))


def _is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(os.path.join(folder, ""))


def _read_if_there(path: str) -> bytes | None:
    try:
        return files.read_regular(path, MAX_MERGED_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.EINVAL, errno.EFBIG):
            raise ConfigError(f"has {os.path.basename(path)} beside it, which is {error.strerror}; remove it") from None
        raise


@attrs.frozen
class Journal:
    """What was done to a borrowed file."""

    existed: bool = attrs.field(validator=instance_of(bool))
    created_folder: bool = attrs.field(validator=instance_of(bool))
    litter: tuple[str, ...] = attrs.field(converter=tuple, validator=deep_iterable(matches_re(PLAIN_NAME)))
    format: Format = attrs.field(validator=in_(get_args(Format)))
    key: str = attrs.field(validator=instance_of(str))
    merged_sha256: str = attrs.field(validator=instance_of(str))
    entries: dict[str, Any] = attrs.field(validator=instance_of(dict), repr=False)
    inserted: str = attrs.field(validator=instance_of(str), repr=False)


def _read_journal(path: str) -> Journal | None:
    raw = _read_if_there(path)
    if raw is None:
        return None
    try:
        noted = json.loads(raw)
        return Journal(**{field.name: noted[field.name] for field in attrs.fields(Journal)})
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ConfigError(f"has a damaged journal beside it ({path}); put it right by hand") from None


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise ConfigError("is not UTF-8") from None


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def _link_or_copy(path: str, backup: str) -> None:
    try:
        os.link(path, backup)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        files.replace_file(backup, files.read_regular(path, MAX_CONFIG_BYTES), stat.S_IMODE(os.stat(path).st_mode))


def _create_folder(folder: str, journal_name: str, journal: bytes) -> None:
    """Create the config's folder with the journal already in it, so that a killed host never leaves an empty folder."""
    new = files.new_folder(os.path.dirname(folder), hidden=True)
    try:
        files.replace_file(os.path.join(new, journal_name), journal)
        os.rename(new, folder)
    except BaseException:
        files.remove(new)
        raise


def _remove_folder(folder: str, litter: Sequence[str], journal: str = "") -> bool:
    """Remove a folder that we made, including the journal, unless somebody else put something into it. Returns whether
    it is gone."""
    name = os.path.basename(journal)
    try:
        if not set(os.listdir(folder)) <= {*litter, name}:
            return False
        for one in litter:
            _remove(os.path.join(folder, one))
        # Renamed first to a name that is swept up later, so that a host killed here leaves no empty folder.
        doomed = files.new_folder(os.path.dirname(folder), hidden=True)
    except OSError as error:
        logger.debug("%s stays: %s", folder, error)
        return False
    try:
        os.rename(folder, doomed)
        if name:
            os.unlink(os.path.join(doomed, name))
    except OSError as error:
        logger.debug("%s stays: %s", folder, error)
    try:
        os.rmdir(doomed)
    except OSError:
        os.rename(doomed, folder)  # Somebody has just put something into it.
    return not os.path.lexists(journal or folder)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def _open_folder(folder: str) -> int:
    return os.open(folder, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_DIRECTORY", 0))


def _try_lock(fd: int) -> bool:
    if os.name != "posix":
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unlock(fd: int) -> None:
    """Closing is not enough: a forked copy of the host has the same lock."""
    if os.name == "posix":
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def _as_clause(reason: str) -> str:
    return reason if reason.startswith(("is ", "has ")) else f"cannot be used ({reason})"
