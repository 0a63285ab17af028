"""Limits over all machines, first come first served: each is a line in Redis whose places are leased."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from ..process.bell import Bell
from .hub import Hub, Message
from .link import ClusterUnavailableError, Link
from .scripts import LEAVE, LINE_UP

logger = logging.getLogger(__name__)

LOOK_AGAIN = 1.0  # Seconds. A slot that is left wakes the next one; this is for when that message is lost.


class Slots:
    """A line for `limit` places. All processes that use one name must use the same limit."""

    def __init__(self, lines: Lines, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self._lines = lines

    def take(self) -> Slot:
        """Take a place in the line; you hold a slot when `wait()` returns True. Raises ClusterUnavailableError."""
        return Slot(self._lines, self.name, self.limit)

    @contextmanager
    def hold(self, timeout: float | None = None) -> Iterator[Slot]:
        """Wait for a slot and hold it. Raises TimeoutError if none becomes free in time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self.take() as slot:
            if not slot.wait(lambda: deadline is not None and time.monotonic() > deadline):
                raise TimeoutError(f"all {self.limit} slots of {self.name!r} were in use for {timeout} s")
            yield slot


class Slot:
    """A place in a line. It blocks others until it is left or dropped, or its process has been silent for a lease."""

    def __init__(self, lines: Lines, name: str, limit: int, *, must_line_up: bool = True) -> None:
        self.limit = limit
        self.number: int | None = None  # Its number in the line; None if it could not be written there.
        self.fault: Exception | None = None  # Why others may not have waited for this place; None if all is well.
        self.keys = lines.keys(name)
        self.ticket = f"{lines.token}.{secrets.token_hex(8)}"
        self.bell = Bell()
        self._lines = lines
        self._pid = os.getpid()
        self._granted = False
        self._left = False
        self._lock = threading.Lock()  # A place that is renewed while it is given up would stay for a whole lease.
        lines.enter(self)
        try:
            self.look()
        except ClusterUnavailableError as error:
            if must_line_up:
                self.leave()
                raise
            self._go_without(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()

    @property
    def is_held(self) -> bool:
        """False once it has been left, and in a forked copy of the process that took it."""
        return not self._left and self._pid == os.getpid()

    def wait(self, give_up: Callable[[], bool] = lambda: False) -> bool:
        """Block until it is our turn or `give_up()` is true (checked now and then, and after `wake()`)."""
        while self.is_held and not give_up():
            if self._granted:
                return True
            self.bell.wait(min(LOOK_AGAIN, self._lines.heartbeat))
            if not self._granted:
                try:
                    self.look()
                except ClusterUnavailableError as error:
                    logger.warning("waiting for a slot: %s", error)
        return False

    def wake(self) -> None:
        """Make a waiting thread check `give_up()` now."""
        self.bell.ring()

    def leave(self) -> None:
        """Let the next one have its turn. Redis errors are never raised: such a place is given up later."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if not self._left:
                self._left = True
                self._lines.leave(self.ticket, self.keys, self.limit)

    def look(self) -> None:
        """Renew the place, and see whether it is our turn."""
        with self._lock:
            if self._left:
                return
            self.number, ahead = self._lines.line_up(self)
            if ahead < self.limit:
                self._granted = True

    def _go_without(self, error: Exception) -> None:
        self.fault = error
        self._granted = True
        logger.warning("turns are not in order: %s", error)


class Lines:
    """The places of this process in all lines, renewed for as long as somebody holds them."""

    def __init__(self, link: Link, hub: Hub, lease: float) -> None:
        self._link = link
        self._hub = hub
        self._lease = lease
        self._begin()
        hub.handlers["look"] = self._on_look
        hub.members.append(self)

    def _begin(self) -> None:
        # By ticket. A dead reference means that the slot was dropped without being left.
        self._places: dict[str, tuple[Callable[[], Slot | None], list[str], int]] = {}

    def forget_after_fork(self) -> None:
        self._begin()

    @property
    def token(self) -> str:
        return self._hub.token

    @property
    def heartbeat(self) -> float:
        return self._hub.heartbeat

    def keys(self, name: str) -> list[str]:
        # The braces keep the keys of a line on one server of a Redis Cluster.
        return [self._link.key("slots", f"{{{name}}}", part) for part in ("line", "seen", "count")]

    def enter(self, slot: Slot) -> None:
        self._places[slot.ticket] = (weakref.ref(slot), slot.keys, slot.limit)
        self._hub.listen()

    def line_up(self, slot: Slot) -> tuple[int, int]:
        number = "" if slot.number is None else slot.number
        found = self._link.run(LINE_UP, slot.keys, slot.ticket, number, int(self._lease * 1000))
        return found[0], found[1]

    def leave(self, ticket: str, keys: list[str], limit: int) -> None:
        place = self._places.get(ticket)
        try:
            next_ones = self._link.run(LEAVE, keys, ticket, limit)
        except ClusterUnavailableError as error:
            logger.warning("a place in a line is given up later: %s", error)
            if place is not None:
                self._places[ticket] = (_dropped, keys, limit)
            return
        self._places.pop(ticket, None)
        for one in next_ones:
            self._wake(one.decode())

    def _wake(self, ticket: str) -> None:
        here = self._places.get(ticket)
        if here is not None:
            slot = here[0]()
            if slot is not None:
                slot.bell.ring()
            return
        try:
            self._hub.send(self._hub.inbox_of(ticket.partition(".")[0]), self._lease, {"t": "look", "k": ticket})
        except ClusterUnavailableError:
            pass  # The next one looks for itself within a second.

    def _on_look(self, message: Message) -> None:
        here = self._places.get(message.get(b"k", b"").decode())
        slot = here[0]() if here is not None else None
        if slot is not None:
            slot.bell.ring()

    def is_busy(self) -> bool:
        return bool(self._places)

    def look_at_clock(self) -> None:
        """Nothing to do: waiting and holding continue until Redis is back."""

    def beat(self) -> None:
        """Renew the places that are held, and give up those that were dropped."""
        for ticket, (reference, keys, limit) in list(self._places.items()):
            slot = reference()
            if slot is None or not slot.is_held:
                self.leave(ticket, keys, limit)
            elif slot.fault is None:
                slot.look()


def _dropped() -> None:
    """Stands for a place whose holder is gone."""
