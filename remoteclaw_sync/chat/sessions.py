"""Which CLI session belongs to which conversation, and whose turn it is there. Shared by threads and processes."""

from __future__ import annotations

import datetime
import logging
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TypeVar

from .._closeable import Closeable
from .._values import check_seconds, check_text
from .conversation import Conversation as Conversation
from .database import CONVERSATION, is_passing
from .keeper import keeper_of
from .turns import Turn as Turn

logger = logging.getLogger(__name__)

T = TypeVar("T")

DEFAULT_TTL = datetime.timedelta(days=7)
# Seconds to wait for a locked file. Another process normally holds it for milliseconds; if the machine is in trouble,
# one answer is delayed by this much.
BUSY_TIMEOUT = 5.0
# How many expired sessions stay in the file, so that a clock that was wrong for a while does not lose them.
EXPIRED_KEPT = 1000

_KEY = f"provider = ? AND {CONVERSATION}"


class AnyTurn(Protocol):
    """A place in the queue of a conversation, on one machine (`Turn`) or over several."""

    conversation: Conversation
    taken_at: float  # By the monotonic clock.

    def __enter__(self) -> Self:
        """Leaving the block leaves the turn."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    @property
    def number(self) -> int | None:
        """Its number in the queue; None if it could not be written there."""

    @property
    def fault(self) -> Exception | None:
        """Why this turn and those of others may not know of each other; None if all is well."""

    @property
    def is_held(self) -> bool:
        """False once it has been left, and in a forked copy of the process that took it."""

    @property
    def is_first(self) -> bool:
        """Whether it is our turn."""

    def ahead(self) -> int:
        """How many are ahead of us in the line."""

    def wait(self, give_up: Callable[[], bool] = ...) -> bool:
        """Block until it is our turn or `give_up()` is true."""

    def wake(self) -> None:
        """Make a waiting thread check `give_up()` now."""

    def leave(self) -> None:
        """Let the next one have its turn."""


class Sessions(Protocol):
    """What a bridge needs of a session map: implemented by `SessionMap` and by the `session_map` of a Cluster."""

    def get(self, provider: str, conversation: Conversation) -> str | None:
        """The session to continue, if there is one that has not expired. Counts as a use."""

    def set(self, provider: str, conversation: Conversation, session_id: str) -> None:
        """Continue with this session from now on."""

    def forget(self, provider: str, conversation: Conversation, session_id: str | None = None) -> bool:
        """Start a new session next time; with `session_id`, only if that is still the one."""

    def turn(self, conversation: Conversation) -> AnyTurn:
        """Take a number: turns in a conversation are granted in the order of these calls."""

    def close(self) -> None:
        """Close the map. It is reopened when needed."""


class SessionMap(Closeable):
    """Maps a conversation to a CLI session id, in a file that threads and processes share.

    A session that has not been used for `ttl` is not continued. A corrupt file is renamed to `<path>.corrupt-<time>`,
    logged as an error and listed in `set_aside`; the map continues with a new one, as it does when the file is deleted
    or replaced. Any other failure (a full disk, a lock that is not released) raises sqlite3.Error or OSError, except
    from `turn()`. All processes must run on one machine and in one pid namespace: SQLite's log needs that, and so does
    finding the turns of dead processes.

    Args:
        path: the file; created (mode 0600, with its folders) if missing. ":memory:" lasts as long as this process.
        ttl: how long a session is kept after its last use (seconds or a timedelta); None keeps all.
        clock: wall clock, for tests.
        busy_timeout: seconds to wait for a file that another process has locked.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        ttl: float | datetime.timedelta | None = DEFAULT_TTL,
        *,
        clock: Callable[[], float] = time.time,
        busy_timeout: float | None = None,
    ) -> None:
        seconds = ttl.total_seconds() if isinstance(ttl, datetime.timedelta) else ttl
        check_seconds("ttl", seconds)
        check_seconds("busy_timeout", busy_timeout)
        self.ttl = seconds
        self._clock = clock
        self._keeper = keeper_of(os.fspath(path), BUSY_TIMEOUT if busy_timeout is None else busy_timeout)
        self._known_set_aside = len(self._keeper.database.set_aside)
        try:
            self._run(lambda connection: None)
        except (sqlite3.Error, OSError) as error:
            if not is_passing(error):
                raise
            # A bot that starts while the disk is full should still answer.
            logger.warning("the session map cannot be used now (%s); sessions are not remembered until it can", error)

    def close(self) -> None:
        """Close the file. It is reopened when needed."""
        self._keeper.close()

    @property
    def set_aside(self) -> tuple[Path, ...]:
        """The corrupt files this map has come across, under their new names."""
        return tuple(self._keeper.database.set_aside[self._known_set_aside :])

    def get(self, provider: str, conversation: Conversation) -> str | None:
        """The session to continue, if there is one that has not expired. Counts as a use."""
        key = (provider, *conversation.columns)
        now = self._clock()
        database = self._keeper.database

        def read(connection: sqlite3.Connection) -> str | None:
            query = f"SELECT session_id FROM remoteclaw_sessions WHERE {_KEY} AND used_at >= ?"
            row = connection.execute(query, (*key, self._oldest(now))).fetchone()
            return row[0] if row is not None and isinstance(row[0], str) else None

        def note_use(connection: sqlite3.Connection) -> None:
            connection.execute(f"UPDATE remoteclaw_sessions SET used_at = ? WHERE {_KEY}", (now, *key)).close()

        def look_up() -> str | None:
            session_id = database.run(read, write=False)
            if session_id is not None:
                try:
                    database.run(note_use)
                except (sqlite3.Error, OSError) as error:
                    # Reading works even on a full disk.
                    logger.warning("the use of a session could not be stored, so it may expire too early (%s)", error)
            return session_id

        return self._keeper.call(look_up)

    def set(self, provider: str, conversation: Conversation, session_id: str) -> None:
        """Continue with this session from now on."""
        check_text("session_id", session_id)
        now = self._clock()
        row = (provider, *conversation.columns, session_id, now)

        def store(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO remoteclaw_sessions"
                " (provider, workspace, platform, channel, user, thread, session_id, used_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (provider, workspace, platform, channel, user, thread)"
                " DO UPDATE SET session_id = excluded.session_id, used_at = excluded.used_at",
                row,
            ).close()
            connection.execute(
                "DELETE FROM remoteclaw_sessions WHERE used_at < (SELECT used_at FROM remoteclaw_sessions"
                " WHERE used_at < ? ORDER BY used_at DESC LIMIT 1 OFFSET ?)",
                (self._oldest(now), EXPIRED_KEPT - 1),
            ).close()

        self._run(store)

    def forget(self, provider: str, conversation: Conversation, session_id: str | None = None) -> bool:
        """Start a new session next time; with `session_id`, only if that is still the one. Returns whether it was."""
        key: tuple[str, ...] = (provider, *conversation.columns)
        query = f"DELETE FROM remoteclaw_sessions WHERE {_KEY}"
        if session_id is not None:
            query, key = query + " AND session_id = ?", (*key, session_id)
        return self._run(lambda connection: connection.execute(query, key).rowcount > 0)

    def __len__(self) -> int:
        query = "SELECT count(*) FROM remoteclaw_sessions WHERE used_at >= ?"
        oldest = self._oldest(self._clock())
        return self._run(lambda connection: int(connection.execute(query, (oldest,)).fetchone()[0]))

    def turn(self, conversation: Conversation) -> Turn:
        """Take a number: turns in a conversation are granted in the order of these calls, across threads and processes.

        Use it as a context manager and call `wait()` inside. Others wait until it is left or dropped, or its process is
        dead. While the file cannot be used, the order holds only within this process, and `turn.fault` says why.
        """
        return Turn(self._keeper, conversation)

    def _oldest(self, now: float) -> float:
        """The oldest last use that still counts. Expired sessions are ignored, not deleted."""
        return float("-inf") if self.ttl is None else now - self.ttl

    def _run(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        return self._keeper.call(lambda: self._keeper.database.run(operation))
