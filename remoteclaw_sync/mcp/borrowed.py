"""Merge-restore: borrow a config file of the user's for as long as a CLI needs to read it.

The original stays on disk all the time: it is renamed to a backup beside the file (so that inode, mode, times and
links come back as they were), and a journal beside that says what was done. Whoever holds the lock may therefore put
things right after a host that was killed. The lock is on the folder that holds the config's folder: there is always
one, it leaves no file behind, it is let go by the kernel when its holder dies, and the CLI does not inherit it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from .. import errors
from .config_edit import ConfigError, Entries, Format, add_entries, remove_entries
from .private_file import Reading

if os.name == "posix":
    import fcntl

logger = logging.getLogger(__name__)

MAX_CONFIG_BYTES = 10 * 1024 * 1024
LOCK_POLL_SECONDS = 0.02
BACKUP_SUFFIX = ".remoteclaw-backup"
JOURNAL_SUFFIX = ".remoteclaw-journal"


@attrs.frozen
class ConfigFile:
    """Which file to borrow, and what to add to it."""

    path: str
    format: Format
    key: str
    entries: Entries = attrs.field(repr=False)
    read_words: bytes = b""  # What the CLI prints once it has read the file.
    defaults: Entries = {}  # At the top level, if not there: what the CLI would otherwise write into the file itself.
    litter: tuple[str, ...] = ()  # What the CLI puts into the file's folder; it goes with a folder that we made.


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
        """Wait for the file, repair what a dead host left, and add the entries.

        `pause(seconds)` sleeps between looks and raises to give up. Raises RunSetupError, the file being untouched.
        """
        try:
            self._acquire(pause)
            try:
                recover(self._path)
                self._write()
            except BaseException:
                self._release()
                raise
        except (ConfigError, OSError) as error:
            raise errors.RunSetupError(errors.MCP_CONFIG_ERROR, self._explain(error)) from None

    def give_back(self) -> None:
        """Put the original back and let go of the file. Does nothing the second time, or in a forked copy."""
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
        """Once more at the end of the run: the CLI may have been filling the folder when the file was given back."""
        if not self._created_folder or not self._config.litter:
            return
        try:
            self._lock_fd = os.open(os.path.dirname(os.path.dirname(self._path)), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            if _try_lock(self._lock_fd):  # Otherwise another run is using it.
                _remove_folder(os.path.dirname(self._path), self._config.litter)
        finally:
            self._release()

    def forget_after_fork(self) -> None:
        """In a forked copy of the host, which would otherwise keep the lock."""
        self._release()

    def _explain(self, error: Exception) -> str:
        reason = (error.strerror or type(error).__name__) if isinstance(error, OSError) else str(error)
        return f"config file {self._config.path} {_as_clause(reason)}; it was left as it is"

    def _acquire(self, pause: Callable[[float], None]) -> None:
        folder = os.path.dirname(os.path.dirname(self._path))
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
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
            os.close(fd)

    def _write(self) -> None:
        config = self._config
        original = _read_config(config.path, self._path)
        text = "" if original is None else _decode(original)
        edit = add_entries(text, config.format, config.key, config.entries, config.defaults)
        merged = edit.text.encode()
        folder = os.path.dirname(self._path)
        created_folder = not os.path.isdir(folder)
        if created_folder:
            os.mkdir(folder, 0o700)
            self._created_folder = True
        try:
            journal = {
                "existed": original is not None,
                "created_folder": created_folder,
                "litter": config.litter,
                "format": config.format,
                "key": config.key,
                "names": list(config.entries),
                "merged_sha256": _digest(merged),
                "entries": dict(config.entries),
                "inserted": edit.inserted,
            }
            _write_private(self._path + JOURNAL_SUFFIX, json.dumps(journal).encode())
            if original is not None:
                _link_or_copy(self._path, self._path + BACKUP_SUFFIX)
            _replace(self._path, merged)
        except BaseException:
            recover(self._path)
            raise


def recover(path: str) -> bool:
    """Undo what the journal beside `path` tells of; says whether there was one. The caller holds the lock."""
    journal = _read_journal(path + JOURNAL_SUFFIX)
    if journal is None:
        return False
    backup = path + BACKUP_SUFFIX
    current = _read_if_there(path)
    has_backup = os.path.lexists(backup)
    if current is None:
        # Gone meanwhile. To bring it back is the smaller mistake, if it is one.
        if has_backup:
            os.replace(backup, path)
    elif _digest(current) == journal["merged_sha256"]:
        if has_backup:
            os.replace(backup, path)
        elif not journal["existed"]:
            os.unlink(path)
    elif journal["existed"] and not has_backup:
        pass  # Killed between journal and backup: nothing had been changed.
    elif has_backup and current == _read_if_there(backup):
        pass  # Killed between backup and replace.
    else:
        _take_out(path, current, _read_if_there(backup), journal)
    if os.path.lexists(backup):
        os.unlink(backup)
    os.unlink(path + JOURNAL_SUFFIX)
    if journal["created_folder"]:
        _remove_folder(os.path.dirname(path), journal.get("litter", ()))
    return True


def left_behind(path: str, *, repair: bool = False) -> bool:
    """Whether a host that is gone has left this file changed; with `repair`, put it right.

    What a live host has borrowed is not looked at. Raises ConfigError or OSError if it cannot be put right.
    """
    path = os.path.realpath(path)
    if not os.path.lexists(path + JOURNAL_SUFFIX):
        return False
    fd = os.open(os.path.dirname(os.path.dirname(path)), os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not _try_lock(fd):
            return False
        return recover(path) if repair else os.path.lexists(path + JOURNAL_SUFFIX)
    finally:
        os.close(fd)


def _take_out(path: str, current: bytes, original: bytes | None, journal: dict[str, Any]) -> None:
    """The file was edited while it was borrowed: keep the edit, take our entries out."""
    try:
        text = remove_entries(
            _decode(current),
            journal["format"],
            journal["key"],
            journal["entries"],
            None if original is None else _decode(original),
            journal["inserted"],
        )
    except ConfigError as error:
        logger.warning("%s was changed during the run and %s; leaving it as it is", path, error)
        return
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if original is not None:
        mode = stat.S_IMODE(os.stat(path + BACKUP_SUFFIX).st_mode)
    _replace(path, text.encode(), mode)


def _read_config(shown: str, path: str) -> bytes | None:
    """The file's bytes, None if there is none. Raises ConfigError for what we must not touch."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        if os.path.islink(shown) or os.path.islink(path):
            raise ConfigError("is a link to a file that does not exist") from None
        return None
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError("is not a regular file")
    # Looked at in the mode bits, because for root everything is readable and writable.
    if not status.st_mode & 0o444:
        raise ConfigError("is not readable (mode)")
    if not status.st_mode & 0o222:
        raise ConfigError("is read-only (mode)")
    if status.st_size > MAX_CONFIG_BYTES:
        raise ConfigError(f"is larger than {MAX_CONFIG_BYTES // 1024 // 1024} MB")
    with open(path, "rb") as file:
        return file.read()


def _read_if_there(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _read_journal(path: str) -> dict[str, Any] | None:
    raw = _read_if_there(path)
    if raw is None:
        return None
    try:
        journal: dict[str, Any] = json.loads(raw)
        journal["merged_sha256"], journal["existed"], journal["created_folder"]
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"has a damaged journal beside it ({path}); put it right by hand") from None
    return journal


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise ConfigError("is not UTF-8") from None


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def _write_private(path: str, data: bytes) -> None:
    """A new file that only its owner can read, whole on disk before anyone sees its name."""
    fd, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".remoteclaw-")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _replace(path: str, data: bytes, mode: int = 0o600) -> None:
    """Put `data` in the place of `path` at once. Private by default: the entries hold secrets."""
    _write_private(path, data)
    if mode != 0o600:
        os.chmod(path, mode)


def _link_or_copy(path: str, backup: str) -> None:
    try:
        os.link(path, backup)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        status = os.stat(path)
        with open(path, "rb") as file:
            _write_private(backup, file.read())
        os.chmod(backup, stat.S_IMODE(status.st_mode))


def _remove_folder(folder: str, litter: Sequence[str]) -> None:
    """A folder that we made, unless somebody put something there: then it is theirs."""
    try:
        names = os.listdir(folder)
        if set(names) <= set(litter):
            for name in names:
                _remove(os.path.join(folder, name))
            os.rmdir(folder)
    except OSError as error:
        logger.debug("%s stays: %s", folder, error)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def _try_lock(fd: int) -> bool:
    if os.name != "posix":
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _as_clause(reason: str) -> str:
    return reason if reason.startswith(("is ", "has ")) else f"cannot be used ({reason})"
