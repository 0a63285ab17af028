"""Which CLI session belongs to which conversation, and whose turn it is in one. On SQLite, for threads and processes.

One connection per process, used under a lock: every statement is short, and forty waiting threads need no forty
descriptors. Processes exclude each other by SQLite's own locks (write-ahead log, a busy timeout).
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import attrs

from ._values import check_seconds, check_text
from .types import ChannelMessage

try:
    import fcntl
except ImportError:  # Windows: the first opening of a new file is not guarded there.
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

T = TypeVar("T")

DEFAULT_TTL = datetime.timedelta(days=7)
BUSY_TIMEOUT = 30.0  # Seconds; another process holds the file for milliseconds, unless the disk is in trouble.
# Seconds between a waiting turn's looks at the file while another process has its turn; it backs off. Of the turns of
# its own process it is told, and looks for good measure only.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 0.1
LOCAL_PAUSE = 1.0
CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
IN_MEMORY = ":memory:"

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
_CONVERSATION = "workspace = ? AND platform = ? AND channel = ? AND user = ? AND thread = ?"


@attrs.frozen
class Conversation:
    """Who talks to the agent, where: each combination has a session of its own, and one run at a time."""

    workspace: str = ""
    platform: str = ""
    channel: str = ""
    user: str = ""
    thread: str = ""

    @classmethod
    def of(cls, message: ChannelMessage, workspace: str | os.PathLike[str]) -> Conversation:
        """The conversation a message belongs to, for an agent that works in this folder."""
        where = os.path.abspath(workspace)
        return cls(where, message.provider, message.channel_id, message.sender, message.thread_id or "")

    @property
    def columns(self) -> tuple[str, str, str, str, str]:
        """Its parts, as they stand in the map."""
        return (self.workspace, self.platform, self.channel, self.user, self.thread)


class SessionMap:
    """From conversation to CLI session id, in a file that threads and processes share.

    A session that was not used for `ttl` is forgotten. A file that is no database any more is set aside as
    `<path>.corrupt-<time>`, logged as an error and listed in `set_aside`; the map goes on with a new one. Processes
    have to run on one machine (and in one pid namespace), because SQLite's log and the turns of the dead need it.

    Args:
        path: the file; made (0600, with its folders) if missing. ":memory:" for one process and its lifetime.
        ttl: seconds or a timedelta since a session was last used; None keeps all.
        clock: wall clock, for tests.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        ttl: float | datetime.timedelta | None = DEFAULT_TTL,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        seconds = ttl.total_seconds() if isinstance(ttl, datetime.timedelta) else ttl
        check_seconds("ttl", seconds)
        self.ttl = seconds
        self._clock = clock
        self._database = _Database(os.fspath(path))
        self._turns = _local_turns_of(self._database.path)
        self._database.run(lambda connection: None)

    def __enter__(self) -> SessionMap:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. It is opened again if it is needed again."""
        self._database.close()

    @property
    def set_aside(self) -> tuple[Path, ...]:
        """The corrupt files this map has come across, under their new names."""
        return tuple(self._database.set_aside)

    def get(self, provider: str, conversation: Conversation) -> str | None:
        """The session to continue, if there is one that has not expired. Counts as a use."""
        key = (provider, *conversation.columns)
        now = self._clock()

        def look_up(connection: sqlite3.Connection) -> str | None:
            self._expire(connection, now)
            where = f"WHERE provider = ? AND {_CONVERSATION}"
            connection.execute(f"UPDATE remoteclaw_sessions SET used_at = ? {where}", (now, *key))
            row = connection.execute(f"SELECT session_id FROM remoteclaw_sessions {where}", key).fetchone()
            return None if row is None else str(row[0])

        return self._database.run(look_up)

    def set(self, provider: str, conversation: Conversation, session_id: str) -> None:
        """Continue with this session from now on."""
        check_text("session_id", session_id)
        row = (provider, *conversation.columns, session_id, self._clock())
        self._database.run(
            lambda connection: connection.execute(
                "INSERT OR REPLACE INTO remoteclaw_sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row
            ).close()
        )

    def forget(self, provider: str, conversation: Conversation, session_id: str | None = None) -> bool:
        """Start afresh next time. With a session id only if it is still that one. Says whether there was one."""
        key: tuple[str, ...] = (provider, *conversation.columns)
        query = f"DELETE FROM remoteclaw_sessions WHERE provider = ? AND {_CONVERSATION}"
        if session_id is not None:
            query, key = query + " AND session_id = ?", (*key, session_id)
        return self._database.run(lambda connection: connection.execute(query, key).rowcount > 0)

    def __len__(self) -> int:
        now = self._clock()

        def count(connection: sqlite3.Connection) -> int:
            self._expire(connection, now)
            return int(connection.execute("SELECT count(*) FROM remoteclaw_sessions").fetchone()[0])

        return self._database.run(count)

    def _expire(self, connection: sqlite3.Connection, now: float) -> None:
        if self.ttl is not None:
            connection.execute("DELETE FROM remoteclaw_sessions WHERE used_at < ?", (now - self.ttl,))

    def turn(self, conversation: Conversation) -> Turn:
        """Take a number: turns in a conversation come in the order of these calls, across threads and processes.

        Use it as a context manager; inside, `wait()`. Others wait until it is left or its process is dead.
        """
        return Turn(self._database, self._turns, conversation)


class Turn:
    """A place in the queue of a conversation: it is somebody's turn when nobody alive has a lower number."""

    def __init__(self, database: _Database, local: _LocalTurns, conversation: Conversation) -> None:
        self._database = database
        self._local = local
        self._wake = threading.Event()
        self.conversation = conversation
        self.number = self._take_number()
        local.add(self)

    def __enter__(self) -> Turn:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()

    def wait(self, give_up: Callable[[], bool] = lambda: False) -> bool:
        """Block until it is our turn, or `give_up()` is true (asked now and then, and after `wake()`)."""
        pause = SHORTEST_PAUSE
        while not give_up():
            holder = self._holder()
            if holder == self.number:
                return True
            self._wake.wait(LOCAL_PAUSE if holder is None else pause)
            self._wake.clear()
            pause = min(pause * 1.5, LONGEST_PAUSE)
        return False

    def wake(self) -> None:
        """Have a waiting thread look again now."""
        self._wake.set()

    def leave(self) -> None:
        """The next one, please. A forked copy of a turn has no place to give up, nor has one that was left."""
        if self._local.remove(self):
            self._remove(self.number)
            self._local.wake(self.conversation)

    def _take_number(self) -> int:
        row = (*self.conversation.columns, _own_identity())
        insert = "INSERT INTO remoteclaw_turns (workspace, platform, channel, user, thread, owner) VALUES (?,?,?,?,?,?)"
        return self._database.run(lambda connection: connection.execute(insert, row).lastrowid or 0)

    def _remove(self, number: int) -> None:
        query = "DELETE FROM remoteclaw_turns WHERE number = ?"
        self._database.run(lambda connection: connection.execute(query, (number,)).close())

    def _holder(self) -> int | None:
        """The number whose turn it is; None for another one of this process."""
        while True:
            row = self._database.run(self._first_in_queue, write=False)
            if row is None:
                # The file was set aside or deleted, and our number with it.
                self.number = self._take_number()
                continue
            number, owner = row
            if number == self.number:
                return number
            if owner == _own_identity():
                return None
            if _is_alive(owner):
                return number
            logger.warning("the process %s died in its turn; its place is given up", owner)
            self._remove(number)

    def _first_in_queue(self, connection: sqlite3.Connection) -> tuple[int, str] | None:
        query = (
            f"SELECT number, owner FROM remoteclaw_turns WHERE {_CONVERSATION} AND number <= ? ORDER BY number LIMIT 1"
        )
        row: tuple[int, str] | None = connection.execute(query, (*self.conversation.columns, self.number)).fetchone()
        return row


class _LocalTurns:
    """The turns of this process, so that leaving one wakes the next without waiting for its next look."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._turns: dict[Conversation, list[Turn]] = {}

    def _mine(self) -> dict[Conversation, list[Turn]]:
        if self._pid != os.getpid():
            # In a forked copy: the turns are the original's, and the lock may have been held by a lost thread.
            self._lock, self._pid, self._turns = threading.Lock(), os.getpid(), {}
        return self._turns

    def add(self, turn: Turn) -> None:
        turns = self._mine()
        with self._lock:
            turns.setdefault(turn.conversation, []).append(turn)

    def remove(self, turn: Turn) -> bool:
        turns = self._mine()
        with self._lock:
            queue = turns.get(turn.conversation, [])
            if turn not in queue:
                return False
            queue.remove(turn)
            if not queue:
                del turns[turn.conversation]
            return True

    def wake(self, conversation: Conversation) -> None:
        turns = self._mine()
        with self._lock:
            for turn in turns.get(conversation, ()):
                turn.wake()


_local_turns: dict[str, _LocalTurns] = {}  # By path: two maps of one file are one queue.


def _local_turns_of(path: str) -> _LocalTurns:
    return _LocalTurns() if path == IN_MEMORY else _local_turns.setdefault(path, _LocalTurns())


# --- the file ------------------------------------------------------------------------------------------------

_inherited: list[sqlite3.Connection | None] = []  # Never to be closed: SQLite forbids it in a forked copy.
_databases: weakref.WeakSet[_Database] = weakref.WeakSet()


class _Database:
    """One connection for this process, opened when needed, and again after a fork or when the file was replaced."""

    def __init__(self, path: str) -> None:
        self.path = path if path == IN_MEMORY else os.path.realpath(path)
        self._lock = threading.RLock()
        self._open: list[sqlite3.Connection] = []  # At most one; a list, so that the finalizer can see it.
        self._inode: int | None = None
        self.set_aside: list[Path] = []
        _databases.add(self)
        # An unclosed connection is a ResourceWarning from Python 3.13 on.
        weakref.finalize(self, _close_all, self._open)

    def run(self, operation: Callable[[sqlite3.Connection], T], *, write: bool = True) -> T:
        """What the operation returns, done in one transaction; once more, on a new file, if this one is corrupt."""
        with self._lock:
            try:
                return self._transact(operation, write)
            except sqlite3.DatabaseError as error:
                if not _means_corrupt(error):
                    raise
                self.close()
            return self._transact(operation, write)

    def close(self) -> None:
        with self._lock:
            _close_all(self._open)

    def _transact(self, operation: Callable[[sqlite3.Connection], T], write: bool) -> T:
        connection = self._connection()
        if not write:
            return operation(connection)
        connection.execute("BEGIN IMMEDIATE")
        try:
            result = operation(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return result

    def _connection(self) -> sqlite3.Connection:
        if self._open and self._inode != _inode(self.path):
            # Set aside by another process, or deleted: what we hold is no longer what others see.
            self.close()
        if not self._open:
            with _guarded(self.path):
                try:
                    connection = _connect(self.path)
                except sqlite3.DatabaseError as error:
                    if not _means_corrupt(error):
                        raise
                    self._put_aside(error)
                    connection = _connect(self.path)
                self._open.append(connection)
                self._inode = _inode(self.path)
        return self._open[0]

    def _put_aside(self, error: sqlite3.DatabaseError) -> None:
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

    def forget_after_fork(self) -> None:
        _inherited.extend(self._open)
        self._open.clear()
        self._lock = threading.RLock()


def _close_all(connections: list[sqlite3.Connection]) -> None:
    while connections:
        connections.pop().close()


def _forget_all() -> None:
    for database in list(_databases):
        database.forget_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def _connect(path: str) -> sqlite3.Connection:
    """A connection to a file that is checked and has our tables."""
    if path != IN_MEMORY:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600))
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)
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


def _means_corrupt(error: sqlite3.DatabaseError) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in CORRUPT


def _inode(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


@contextlib.contextmanager
def _guarded(path: str) -> Iterator[None]:
    """One process at a time opens the file: two that find it corrupt must not set aside each other's new one, and
    SQLite's switch to the write-ahead log does not wait for a busy file."""
    if path == IN_MEMORY or fcntl is None:
        yield
        return
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


# --- who is alive --------------------------------------------------------------------------------------------


def _own_identity() -> str:
    return _identity(os.getpid())


@functools.lru_cache(maxsize=1)
def _identity(pid: int) -> str:
    return f"{_boot_id()} {pid} {_start_time(pid)}"


def _is_alive(identity: str) -> bool:
    """Whether that process still runs: its number may belong to another one by now, or come from before a reboot."""
    boot, pid, started = identity.split(" ")
    if boot != _boot_id():
        return False
    now = _start_time(int(pid))
    if now is not None or os.path.exists("/proc/self/stat"):
        return started == now
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "-"


def _start_time(pid: int) -> str | None:
    """When a process was started, in ticks since the boot; None if it is gone, or dead and not yet buried."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()
