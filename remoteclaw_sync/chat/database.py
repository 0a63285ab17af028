"""The session map's file: an SQLite database that may be full, locked, damaged, replaced or deleted at any time.

If reopening the file helps, it is reopened; any other failure is raised to the caller, and the next call tries again.
Processes exclude each other with SQLite's own locks (write-ahead log, a busy timeout).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sqlite3
import stat
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

try:
    import fcntl
except ImportError:  # Windows: the first opening of a new file is not guarded there.
    fcntl = None  # type: ignore[assignment]

from ..recording.file import check_links

logger = logging.getLogger(__name__)

T = TypeVar("T")

IN_MEMORY = ":memory:"
# Seconds to wait for a locked file after it has just failed: the person talking to the agent has already waited once.
PATIENCE_IN_TROUBLE = 0.25
GUARD_PAUSE = 0.01  # Seconds between attempts to get the lock file; flock() cannot wait with a time limit.
DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
# A new connection to the same file would fail in the same way.
NOT_CURED_BY_REOPENING = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL}
PASSING_SQLITE = NOT_CURED_BY_REOPENING | {sqlite3.SQLITE_IOERR}
PASSING_ERRNO = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ETIMEDOUT}

# Queries name their columns, because a later version may have added some.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS remoteclaw_sessions (
    provider TEXT NOT NULL, workspace TEXT NOT NULL, platform TEXT NOT NULL, channel TEXT NOT NULL,
    user TEXT NOT NULL, thread TEXT NOT NULL, session_id TEXT NOT NULL, used_at REAL NOT NULL,
    PRIMARY KEY (provider, workspace, platform, channel, user, thread)
);
CREATE INDEX IF NOT EXISTS remoteclaw_sessions_age ON remoteclaw_sessions (used_at);
CREATE TABLE IF NOT EXISTS remoteclaw_turns (
    number INTEGER PRIMARY KEY AUTOINCREMENT, workspace TEXT NOT NULL, platform TEXT NOT NULL, channel TEXT NOT NULL,
    user TEXT NOT NULL, thread TEXT NOT NULL, owner TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS remoteclaw_turns_queue
    ON remoteclaw_turns (workspace, platform, channel, user, thread, number);
"""
CONVERSATION = "workspace = ? AND platform = ? AND channel = ? AND user = ? AND thread = ?"

_inherited: list[sqlite3.Connection] = []  # Never to be closed: SQLite forbids it in a forked copy.


class Database:
    """One connection, opened when needed and reopened when the file was replaced. For one thread at a time."""

    def __init__(self, path: str, busy_timeout: float) -> None:
        self.path = path
        self.busy_timeout = busy_timeout
        self.set_aside: list[Path] = []
        self._open: list[sqlite3.Connection] = []  # At most one; a list, so that the finalizer can see it.
        self._file: tuple[int, int] | None = None
        self._patience: float | None = None
        self._in_trouble = False
        # From Python 3.13 on, an unclosed connection causes a ResourceWarning.
        # At interpreter exit the keeper closes it: a finalizer could run in the middle of a transaction.
        weakref.finalize(self, _close_all, self._open).atexit = False

    def run(self, operation: Callable[[sqlite3.Connection], T], *, write: bool = True) -> T:
        """Run the operation in one transaction and return its result. Reopens the file and retries if that can help."""
        for attempt in (1, 2, 3):
            try:
                result = self._transact(operation, write)
            except (sqlite3.Error, OSError) as error:
                self._in_trouble = True
                if _is_cured_by_reopening(error):
                    self.close()
                    if attempt == 1:
                        continue
                    if attempt == 2 and _means_damaged(error):
                        # The damage did not show on opening, only in use.
                        with self._guarded():
                            self._put_aside(error)
                        continue
                raise
            self._in_trouble = False
            return result
        raise AssertionError("the third attempt returns or raises")

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def close(self) -> None:
        """Close the file. It is reopened when needed."""
        _close_all(self._open)

    def forget_after_fork(self) -> None:
        """In a forked copy: the connection belongs to the parent."""
        _inherited.extend(self._open)
        self._open.clear()

    def _transact(self, operation: Callable[[sqlite3.Connection], T], write: bool) -> T:
        connection = self._connection()
        if not write:
            return operation(connection)
        try:
            connection.execute("BEGIN IMMEDIATE")
            result = operation(connection)
            connection.execute("COMMIT")
        except BaseException:
            self._roll_back(connection)
            raise
        return result

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        with contextlib.suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        if connection.in_transaction:
            # Closing releases its locks, so that no other process has to wait for them.
            self.close()

    def _connection(self) -> sqlite3.Connection:
        if self._open and self.path != IN_MEMORY and self._file != _identity(self.path):
            # Otherwise we would be working on a file that nobody else sees.
            logger.warning("%s was deleted or replaced; continuing with the file that is there now", self.path)
            self.close()
        if not self._open:
            with self._guarded():
                try:
                    connection = self._connect()
                except sqlite3.DatabaseError as error:
                    if not _means_damaged(error):
                        raise
                    self._put_aside(error)
                    connection = self._connect()
                self._open.append(connection)
                self._file = _identity(self.path)
        connection = self._open[0]
        if self._patience != self._wanted_patience():
            self._patience = self._wanted_patience()
            connection.execute(f"PRAGMA busy_timeout = {int(self._patience * 1000)}").close()
        return connection

    def _wanted_patience(self) -> float:
        return min(self.busy_timeout, PATIENCE_IN_TROUBLE) if self._in_trouble else self.busy_timeout

    def _connect(self) -> sqlite3.Connection:
        """Check the file, create our tables and return the connection."""
        if self.path != IN_MEMORY:
            _make_private(self.path)
        self._patience = self._wanted_patience()
        connection = sqlite3.connect(self.path, timeout=self._patience, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL").close()
            connection.execute("PRAGMA synchronous = NORMAL").close()
            verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if verdict != "ok":
                damaged = sqlite3.DatabaseError(verdict)
                damaged.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
                raise damaged
            connection.executescript(_SCHEMA)
        except BaseException:
            connection.close()
            raise
        return connection

    def _put_aside(self, error: Exception) -> None:
        moment = time.strftime("%Y%m%dT%H%M%S")
        target = f"{self.path}.corrupt-{moment}"
        for number in range(2, 1000):
            if not os.path.exists(target):
                break
            target = f"{self.path}.corrupt-{moment}-{number}"
        logger.error("%s is corrupt (%s); it is kept as %s, and sessions start afresh", self.path, error, target)
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.replace(self.path + suffix, target + suffix)
        self.set_aside.append(Path(target))

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """One process at a time opens the file: two that find it corrupt must not set aside each other's new one, and
        SQLite's switch to the write-ahead log does not wait for a busy file."""
        if self.path == IN_MEMORY or fcntl is None:
            yield
            return
        check_links(self.path)
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        lock = os.open(f"{self.path}.lock", flags, 0o600)
        try:
            deadline = time.monotonic() + self._wanted_patience()
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise TimeoutError(errno.ETIMEDOUT, "another process holds it", f"{self.path}.lock") from None
                    time.sleep(GUARD_PAUSE)
            yield
        finally:
            os.close(lock)


def is_passing(error: BaseException) -> bool:
    """Whether the error comes from a machine in trouble, rather than from a path that can never work."""
    if isinstance(error, sqlite3.Error):
        return _code(error) in PASSING_SQLITE
    return isinstance(error, OSError) and error.errno in PASSING_ERRNO


def _is_cured_by_reopening(error: Exception) -> bool:
    """True also for a dropped table and for a file that was moved or truncated: opening creates what is missing."""
    return isinstance(error, sqlite3.Error) and _code(error) not in NOT_CURED_BY_REOPENING


def _means_damaged(error: Exception) -> bool:
    return isinstance(error, sqlite3.Error) and _code(error) in DAMAGED


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF  # The primary code, without the extended code's details.


def _make_private(path: str) -> None:
    """Create the file if it is missing. An existing one is not opened: by POSIX rules, closing it again would release
    the locks that another connection of this process holds on it."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600))
    except FileExistsError:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError(errno.EINVAL, "the session map needs a regular file", path) from None


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _close_all(connections: list[sqlite3.Connection]) -> None:
    while connections:
        with contextlib.suppress(sqlite3.Error):
            connections.pop().close()
