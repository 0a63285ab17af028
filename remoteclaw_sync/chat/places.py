"""Whose turn it is in a conversation. Within this process a list decides; between processes, the session map's file.

The list always works. If the file does not, turns are in order only within this process.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
import weakref
from collections.abc import Callable
from typing import Any

from ..process.bell import Bell
from ..process.host import has_lasted, host_identity
from .conversation import Conversation
from .database import CONVERSATION, Database

logger = logging.getLogger(__name__)

# Seconds between checks of the file while another process has its turn, with backoff.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 0.1
# Seconds between attempts to delete rows when the file could not be written.
SHORTEST_RETRY, LONGEST_RETRY = 0.25, 5.0
LONGEST_IDENTITY = 100  # Characters; three times any real one. Others may have written anything into the file.


class Place(weakref.ref[Any]):
    """The place of a turn in the line. It outlives the turn and knows when the turn is gone.

    It is a weak reference itself, so that only C code runs between the end of the turn and `on_end(place)`: no signal
    handler can raise in between.
    """

    __slots__ = ("bell", "conversation", "due", "fault", "granted", "left", "number", "pause", "pid", "settled")

    def __new__(cls, turn: object, on_end: Callable[[Any], object], conversation: Conversation) -> Place:
        return super().__new__(cls, turn, on_end)

    def __init__(self, turn: object, on_end: Callable[[Any], object], conversation: Conversation) -> None:
        # `__new__` has set up the reference.
        self.conversation = conversation
        self.pid = os.getpid()
        self.number: int | None = None  # The number of its row, if it has one.
        self.fault: Exception | None = None  # Why there is no row, or why other processes' rows could not be read.
        self.granted = False
        self.left = False
        self.bell = Bell()  # Rings when it is our turn or there is something to check.
        self.settled = Bell()  # Rings when the turn has been left.
        self.pause, self.due = SHORTEST_PAUSE, 0.0


class Line:
    """The places of this process, in the order in which they were taken, and their rows. For one thread only."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._places: dict[Conversation, list[Place]] = {}
        self._behind_others: list[Place] = []  # First in this process, but another process has its turn.
        self._is_new = True  # An earlier map of this process may have left rows when it was closed in trouble.
        self._retry_at: float | None = None
        self._retry_pause = SHORTEST_RETRY

    @property
    def is_empty(self) -> bool:
        return not self._places

    def take(self, place: Place) -> None:
        """Join the end of the line."""
        if place() is None:
            return  # The turn has already been dropped.
        if self._is_new:
            self._is_new = False
            self._tidy()
        try:
            place.number = self._insert(place)
        except Exception as error:
            self._tidy_later()  # A failing disk may have written the row anyway.
            self._go_without(place, error)
        places = self._places.setdefault(place.conversation, [])
        places.append(place)
        if places[0] is place:
            self._look(place)

    def ahead(self, place: Place) -> int:
        """How many places of this process are ahead of it."""
        places = self._places.get(place.conversation, [])
        return next((number for number, one in enumerate(places) if one is place), 0)

    def leave(self, place: Place) -> None:
        """Remove this place and let the next one have its turn."""
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
        """None if there is nothing to do until somebody joins or leaves."""
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
            # The file was set aside or replaced, so our row is gone too.
            place.number = self._insert(place)
            rows = self._rows_up_to(place)
        # Within this process the list decides who is first.
        others = [(number, owner) for number, owner in rows if owner != host_identity()]
        dead = [(number, owner) for number, owner in others if not is_alive(owner)]
        if dead:
            logger.warning("removed %d turns of processes that have died", len(dead))
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
        """Delete our rows that have no place any more: from turns that were left, and from earlier failures."""
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
                # Until then other processes wait for the row, for as long as this process lives.
                logger.warning("a finished turn could not be removed from the session map (%s); trying again", error)
            self._tidy_later()
        else:
            self._retry_at, self._retry_pause = None, SHORTEST_RETRY

    def _tidy_later(self) -> None:
        self._retry_at = time.monotonic() + self._retry_pause
        self._retry_pause = min(self._retry_pause * 2, LONGEST_RETRY)

    def _go_without(self, place: Place, error: Exception) -> None:
        place.fault = error
        logger.warning("turns are in order only within this process: the session map cannot be used (%s)", error)


def is_alive(owner: object) -> bool:
    """Whether that process is still running. Anything that is not a process of this machine and boot counts as dead."""
    return isinstance(owner, str) and len(owner) <= LONGEST_IDENTITY and has_lasted(owner) is True
