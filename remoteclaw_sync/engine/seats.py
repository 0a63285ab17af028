"""Limits how many sessions have a process at once. To make room, the process that has been idle for longest is ended.

A seat is the right to have a process. A session's turn needs one, and the session keeps it afterwards until another
session needs it. Sessions that share a process share a seat.

There is no counter, because a signal handler may raise between any two steps and leave it wrong. Instead, the end of a
turn gives back what the turn took, and `look` puts the rest in order.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Hashable

from ..process.bell import Bell
from ..process.host import after_fork
from ..types import AgentExecuteParams
from .live_session import LiveSession

logger = logging.getLogger(__name__)

LOOK_AGAIN = 1.0  # Seconds; a safety net in case no bell was rung.
JOIN_PATIENCE = 15.0  # Seconds to wait for one of our threads after its process was told to end.

NewSpare = Callable[[], tuple[LiveSession, Hashable | None]]  # A session, and the key of its door.

_all: weakref.WeakSet[Seats] = weakref.WeakSet()


class Seat:
    """A process, or the right to start one."""

    def __init__(self, key: Hashable | None, used_at: int) -> None:
        self.key = key
        self.used_at = used_at  # Not a time but a sequence number.
        self.doors: list[Door] = []
        self.emptied_by: threading.Thread | None = None  # Set while it is being given up.

    @property
    def is_idle(self) -> bool:
        return self.emptied_by is None and not any(door.is_in for door in self.doors)


class Door:
    """The gate of one live session (see `session.Gate`).

    It holds no reference to the session or the seats, because dropping those ends their processes. Sessions with the
    same `key` share a process; None: the session has its own.
    """

    def __init__(self, seats: Seats, live: LiveSession, key: Hashable | None, *, is_spare: bool = False) -> None:
        self._seats = weakref.ref(seats)
        self._live = weakref.ref(live)
        self.key = key
        self.is_spare = is_spare
        self.bell = Bell()
        self.seat: Seat | None = None
        self.is_in = False
        self.is_waiting = is_spare  # Even before its thread has begun: otherwise `look` would think that it is over.
        self.inheritance: LiveSession | None = None  # The session whose process it takes over.
        live.gate = self

    @property
    def live(self) -> LiveSession | None:
        return self._live()

    @property
    def is_used(self) -> bool:
        """Whether it has a turn or waits for one."""
        return self.is_in or self.is_waiting

    def enter(self, is_unwanted: Callable[[], bool], due: float | None) -> bool:
        seats = self._seats()
        if seats is None:
            return True  # The pool is gone, and so is the limit.
        if not seats.wait_for_seat(self, is_unwanted, due):
            return False
        heir, other, self.inheritance = self.live, self.inheritance, None
        if heir is not None and other is not None:
            heir.take_over(other)
            seats.restock()
        return True

    def leave(self) -> None:
        if self.is_in or self.is_waiting:
            self.is_in = self.is_waiting = False
            seats = self._seats()
            if seats is not None:
                seats.was_left(self)

    def wake(self) -> None:
        self.bell.ring()


class Seats:
    """At most `most` processes at once. May be used from any thread.

    Args:
        most: the limit.
        spare: how many idle processes are kept ready for new conversations.
    """

    def __init__(self, most: int, spare: int = 0) -> None:
        self._most = most
        self._spare = spare
        self._uses = itertools.count()
        self._set_up()
        _all.add(self)

    def _set_up(self) -> None:
        self.lock = threading.RLock()  # Re-entered by signal handlers and the GC.
        self._seats: list[Seat] = []
        self._line: list[Door] = []
        self._threads: list[threading.Thread] = []
        self._spares: list[tuple[LiveSession, Door]] = []
        self._new_spare: NewSpare | None = None
        self._is_looking = self._must_look_again = self._is_closed = False

    def forget_after_fork(self) -> None:
        """In a forked copy of the host: the processes are the parent's."""
        for door in [*self._line, *(door for seat in self._seats for door in seat.doors)]:
            door.seat, door.is_in, door.is_waiting = None, False, False
        self._set_up()

    # --- for doors --------------------------------------------------------------------------------------------

    def wait_for_seat(self, door: Door, is_unwanted: Callable[[], bool], due: float | None) -> bool:
        """Block until the door has a seat. False if it became unwanted or due first, or is a spare one and no seat is
        free."""
        with self.lock:
            door.is_waiting = True
            self._line.append(door)
        self.look()
        while not door.is_in:
            left = LOOK_AGAIN if due is None else min(due - time.monotonic(), LOOK_AGAIN)
            if is_unwanted() or left <= 0 or door.is_spare or self._is_closed:
                with self.lock:
                    if door.is_in:
                        break  # It was given a seat at this moment, perhaps with another session's process.
                    door.leave()
                    return False
            door.bell.wait(left)
            if not door.is_in:
                self.look()
        return True

    def was_left(self, door: Door) -> None:
        """The door's turn is over, or it no longer waits for one."""
        if door.seat is not None:
            door.seat.used_at = next(self._uses)
        self.look()
        if not door.is_spare:  # If a spare process cannot be started, the next one cannot either.
            self.restock()

    # --- for the pool -----------------------------------------------------------------------------------------

    def stock(self, new_spare: NewSpare) -> None:
        """From now on, start the processes of sessions made by this function ahead."""
        with self.lock:
            self._new_spare = new_spare
        self.restock()

    def close(self) -> None:
        """Give out no more seats. Ends the spare processes, and waits for them and for our threads."""
        with self.lock:
            self._is_closed = True
            line, threads, spares = list(self._line), list(self._threads), list(self._spares)
            self._spares.clear()
        for door in line:
            door.wake()
        for live, _ in spares:
            live.begin_shut()
        for live, _ in spares:
            live.shut()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(JOIN_PATIENCE)
        for live, _ in spares:
            live.shut()  # Again: its process may have been started meanwhile.

    # --- who gets a seat --------------------------------------------------------------------------------------

    def look(self) -> None:
        """Give out the free seats, in the order of the line, and have idle ones emptied for the rest."""
        with self.lock:
            self._must_look_again = True
            if self._is_looking:
                return  # Called by a signal handler or the GC, in the middle of the code below.
            self._is_looking = True
            try:
                while self._must_look_again:
                    self._must_look_again = False
                    self._tidy()
                    self._give_out()
            finally:
                self._is_looking = False

    def _tidy(self) -> None:
        """Forget what is over: turns that were left, sessions without a process, seats without a session."""
        self._line = [door for door in self._line if door.is_waiting]
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        for seat in self._seats:
            if seat.emptied_by is not None and not seat.emptied_by.is_alive():
                seat.emptied_by = None  # It was interrupted before it could begin.
            if seat.emptied_by is not None:
                continue
            for door in [door for door in seat.doors if not door.is_in and not _has_process(door)]:
                seat.doors.remove(door)
                door.seat = None
        for seat in [seat for seat in self._seats if not seat.doors]:
            self._seats.remove(seat)
        self._spares = [(live, door) for live, door in self._spares if door.is_used or door.seat is not None]

    def _give_out(self) -> None:
        coming = sum(seat.emptied_by is not None for seat in self._seats)
        for door in list(self._line):
            seat = self._seat_for(door)
            if seat is not None:
                self._let_in(door, seat)
            elif door.is_spare:
                continue
            elif coming:
                coming -= 1
            else:
                idle = [seat for seat in self._seats if seat.is_idle]
                if idle:
                    self._give_up(min(idle, key=lambda seat: seat.used_at))

    def _seat_for(self, door: Door) -> Seat | None:
        """The door's own seat, that of the process it shares, that of a spare process that fits it, or a new one."""
        if door.seat is not None:
            return None if door.seat.emptied_by is not None else door.seat
        if self._is_closed:
            return None
        for seat in self._seats:
            if door.key is not None and seat.key == door.key and seat.emptied_by is None:
                return seat
        spare = self._spare_for(door)
        if spare is not None:
            return spare
        if len(self._seats) < self._most:
            self._seats.append(Seat(door.key, next(self._uses)))
            return self._seats[-1]
        return None

    def _spare_for(self, door: Door) -> Seat | None:
        heir = door.live
        if type(heir) is not LiveSession or door.is_spare or heir.session_id is not None or heir.pid is not None:
            return None
        for live, spare in self._spares:
            seat = spare.seat
            if spare.key is None and seat is not None and seat.is_idle and starts_alike(heir.fields, live.fields):
                self._spares = [one for one in self._spares if one[0] is not live]
                door.inheritance = live
                seat.doors, spare.seat = [], None
                return seat
        return None

    def _let_in(self, door: Door, seat: Seat) -> None:
        if door not in seat.doors:
            seat.doors.append(door)
        door.seat = seat
        seat.used_at = next(self._uses)
        door.is_in = True  # From here on, the end of the turn gives the seat back.
        door.is_waiting = False
        self._line = [other for other in self._line if other is not door]
        door.bell.ring()

    def _give_up(self, seat: Seat) -> None:
        """Let the process go in a separate thread, so that a turn that waits for the seat can still be stopped."""
        lives = [live for door in seat.doors if (live := door.live) is not None]

        def empty() -> None:
            try:
                for live in lives:
                    live.cool()
            except Exception:
                logger.exception("letting an idle process go failed")
            finally:
                with self.lock:
                    for door in seat.doors:
                        door.seat = None
                    seat.doors = []
                self.look()

        seat.emptied_by = threading.Thread(target=empty, name="remoteclaw-pool", daemon=True)
        self._start(seat.emptied_by)

    def _start(self, thread: threading.Thread) -> None:
        try:
            thread.start()
            self._threads.append(thread)
        except RuntimeError:  # No thread can be started.
            thread.run()

    # --- processes started ahead ------------------------------------------------------------------------------

    def restock(self) -> None:
        """Start as many spare processes as there is room for."""
        if not self._spare or self._new_spare is None:
            return
        with self.lock:
            room = self._most - len(self._seats)
            for _ in range(min(self._spare - len(self._spares), room)):
                if self._is_closed or self._line:
                    return
                live, key = self._new_spare()
                if type(live) is not LiveSession:
                    return  # It is recorded, and a recording is of one session.
                door = Door(self, live, key, is_spare=True)
                self._spares.append((live, door))
                self._start(threading.Thread(target=_warm, args=(live, door), name="remoteclaw-pool", daemon=True))


def _warm(live: LiveSession, door: Door) -> None:
    try:
        live.warm()
    except Exception as error:  # noqa: BLE001 - whoever needs a process starts one, and is told why it cannot
        logger.info("a process could not be started ahead: %s", type(error).__name__)
    finally:
        door.leave()


def _has_process(door: Door) -> bool:
    live = door.live
    return live is not None and live.pid is not None


def starts_alike(a: AgentExecuteParams, b: AgentExecuteParams) -> bool:
    """Whether a process started for a session with one of these can serve one with the other, conversation aside."""
    same_output = b.output_type is None if a.output_type is None else a.output_type.same_as(b.output_type)
    return (
        same_output
        and (a.approve is None) == (b.approve is None)
        and len(a.tools) == len(b.tools)
        and all(mine is theirs or mine == theirs for mine, theirs in zip(a.tools, b.tools, strict=True))
        and all(getattr(a, name) == getattr(b, name) for name in START_FIELDS)
    )


START_FIELDS = ("mcp_servers", "working_directory", "env", "system_prompt", "model", "permission_mode", "extra_args")


def _forget_all() -> None:
    for seats in list(_all):
        seats.forget_after_fork()


def _close_all() -> None:
    """The interpreter exits: a process started from now on would outlive it."""
    for seats in list(_all):
        seats.close()


after_fork(_forget_all)
atexit.register(_close_all)  # Runs before the one of process.live_children, which ends the processes that exist.
