"""Whose turn it is in a conversation: in this process by a list, among processes by rows in the session map's file.

The list always works. The file may not: then turns go on in the order of this process alone.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
import weakref
from collections.abc import Callable
from typing import Any

from ..process.host import has_lasted, host_identity
from .bell import Bell
from .conversation import Conversation
from .database import CONVERSATION, Database

logger = logging.getLogger(__name__)

# Seconds between looks at the file while another process has its turn; it backs off.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 0.1
# Seconds between tries to take back rows that the file would not give up.
SHORTEST_RETRY, LONGEST_RETRY = 0.25, 5.0
LONGEST_IDENTITY = 100  # Characters; three times as long as any. What others write into the file may be anything.


class Place(weakref.ref[Any]):
    """The place of a turn in the line. It outlives the turn, and says that it is gone.

    A reference of its own kind, so that nothing but C code runs between the end of the turn and `on_end(place)`:
    an exception raised by a signal cannot get in between.
    """

    __slots__ = ("bell", "conversation", "due", "fault", "granted", "left", "number", "pause", "pid", "settled")

    def __new__(cls, turn: object, on_end: Callable[[Any], object], conversation: Conversation) -> Place:
        return super().__new__(cls, turn, on_end)

    def __init__(self, turn: object, on_end: Callable[[Any], object], conversation: Conversation) -> None:
        # All of a reference is made by `__new__`.
        self.conversation = conversation
        self.pid = os.getpid()
        self.number: int | None = None  # Of its row; None if there is none.
        self.fault: Exception | None = None  # Why there is none, or why nobody could look who else is there.
        self.granted = False
        self.left = False
        self.bell = Bell()  # It is our turn, or worth a look.
        self.settled = Bell()  # It has been left.
        self.pause, self.due = SHORTEST_PAUSE, 0.0


class Line:
    """The places of this process, in the order in which they were taken, and their rows. For one thread only."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._places: dict[Conversation, list[Place]] = {}
        self._behind_others: list[Place] = []  # First in this process, but another one has its turn.
        self._is_new = True  # There may still be rows of an earlier map of this process, closed in trouble.
        self._retry_at: float | None = None
        self._retry_pause = SHORTEST_RETRY

    @property
    def is_empty(self) -> bool:
        return not self._places

    def take(self, place: Place) -> None:
        """To the end of the line."""
        if place() is None:
            return  # Nobody wants it any more.
        if self._is_new:
            self._is_new = False
            self._tidy()
        try:
            place.number = self._insert(place)
        except Exception as error:
            self._tidy_later()  # Who knows what a failing disk has kept of it.
            self._go_without(place, error)
        places = self._places.setdefault(place.conversation, [])
        places.append(place)
        if places[0] is place:
            self._look(place)

    def leave(self, place: Place) -> None:
        """The next one, please."""
        places = self._places.get(place.conversation, [])
        if any(one is place for one in places):
            places[:] = [one for one in places if one is not place]
            self._behind_others = [one for one in self._behind_others if one is not place]
            if not places:
                del self._places[place.conversation]
            if place.number is not None:
                self._tidy()
            if places and not places[0].granted:
                self._look(places[0])
        place.left = True
        place.settled.ring()

    def attend(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        if self._retry_at is not None and self._retry_at <= now:
            self._tidy()
        for place in [one for one in self._behind_others if one.due <= now]:
            self._look(place)

    def seconds_to_next_task(self) -> float | None:
        """None if there is nothing to do but wait for somebody to come or leave."""
        dues = [place.due for place in self._behind_others]
        if self._retry_at is not None:
            dues.append(self._retry_at)
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    # --- rows ------------------------------------------------------------------------------------------------

    def _look(self, place: Place) -> None:
        """Grant the first place of this process its turn, unless another process has it."""
        try:
            waits = place.number is not None and self._others_are_ahead(place)
        except Exception as error:
            self._go_without(place, error)
            waits = False
        self._behind_others = [one for one in self._behind_others if one is not place]
        if waits:
            place.due = time.monotonic() + place.pause
            place.pause = min(place.pause * 1.5, LONGEST_PAUSE)
            self._behind_others.append(place)
        else:
            place.granted = True
            place.bell.ring()

    def _others_are_ahead(self, place: Place) -> bool:
        rows = self._rows_up_to(place)
        if (place.number, host_identity()) not in rows:
            # The file was set aside or replaced, and our row with it.
            place.number = self._insert(place)
            rows = self._rows_up_to(place)
        # Who of this process is first says the list.
        others = [(number, owner) for number, owner in rows if owner != host_identity()]
        dead = [(number, owner) for number, owner in others if not is_alive(owner)]
        if dead:
            logger.warning("%d turns of processes that have died are given up", len(dead))
            query = "DELETE FROM remoteclaw_turns WHERE number = ? AND owner IS ?"
            self._database.run(lambda connection: connection.executemany(query, dead).close())
        return len(others) > len(dead)

    def _rows_up_to(self, place: Place) -> list[tuple[int, object]]:
        query = (
            f"SELECT number, owner FROM remoteclaw_turns WHERE {CONVERSATION} AND number <= ?"
            " AND (owner IS NOT ? OR number = ?)"
        )
        values = (*place.conversation.columns, place.number, host_identity(), place.number)

        def fetch(connection: sqlite3.Connection) -> list[tuple[int, object]]:
            return connection.execute(query, values).fetchall()

        return self._database.run(fetch, write=False)

    def _insert(self, place: Place) -> int:
        row = (*place.conversation.columns, host_identity())
        query = "INSERT INTO remoteclaw_turns (workspace, platform, channel, user, thread, owner) VALUES (?,?,?,?,?,?)"
        return self._database.run(lambda connection: connection.execute(query, row).lastrowid or 0)

    def _tidy(self) -> None:
        """Delete our rows that belong to no place: the one of a turn that was left, and whatever a fault has left."""
        numbers = {place.number for places in self._places.values() for place in places}

        def delete(connection: sqlite3.Connection) -> None:
            query = "SELECT number FROM remoteclaw_turns WHERE owner = ?"
            ours = connection.execute(query, (host_identity(),)).fetchall()
            dead = [row for row in ours if row[0] not in numbers]
            connection.executemany("DELETE FROM remoteclaw_turns WHERE number = ?", dead).close()

        try:
            self._database.run(delete)
        except Exception as error:
            if self._retry_at is None:
                # Other processes would wait for it as long as this one lives.
                logger.warning("a turn that is over could not be taken off the session map (%s); trying again", error)
            self._tidy_later()
        else:
            self._retry_at, self._retry_pause = None, SHORTEST_RETRY

    def _tidy_later(self) -> None:
        self._retry_at = time.monotonic() + self._retry_pause
        self._retry_pause = min(self._retry_pause * 2, LONGEST_RETRY)

    def _go_without(self, place: Place, error: Exception) -> None:
        place.fault = error
        logger.warning("turns are in order in this process only: the session map cannot be used (%s)", error)


def is_alive(owner: object) -> bool:
    """Whether that process still runs. A conversation must not wait for what is no process of this machine and boot."""
    return isinstance(owner, str) and len(owner) <= LONGEST_IDENTITY and has_lasted(owner) is True
