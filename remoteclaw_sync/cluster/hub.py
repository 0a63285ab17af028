"""The one thread of a process that listens to Redis, for all runs, followers and slots of that process.

One connection waits for this process's inbox (requests from other machines) and for the events of all runs that are
followed here; the leases are renewed between two waits. So a thousand followers cost one connection, and each event is
read from Redis once per process. The thread runs only while there is something to listen to.
"""

from __future__ import annotations

import collections
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

from ..web.background import Item
from .link import ClusterUnavailableError, Link

logger = logging.getLogger(__name__)

BEATS_PER_LEASE = 6
LONGEST_BLOCK = 1.0  # Seconds. Shorter than a connection's patience; also how long an idle thread stays.
LONGEST_PAUSE = 2.0  # Seconds between two attempts to reach a server that is down.
READ_AT_ONCE = 500
KEPT_IN_MEMORY = 1000  # Events of a followed run; a follower further behind reads them from Redis.
INBOX_LENGTH = 10_000
CLOSE_PATIENCE = 5.0

Message = Mapping[bytes, bytes]


class Feed:
    """The newest events of a run that is followed in this process. Any number of threads can wait for the next one."""

    def __init__(self, key: str, run_id: str, last: int) -> None:
        self.key = key
        self.run_id = run_id
        self.last = last
        self.followers = 0
        self.overdue_since: float | None = None  # When we first saw that its worker's lease had ended.
        self._items: collections.deque[Item] = collections.deque(maxlen=KEPT_IN_MEMORY)
        self._changed = threading.Condition()
        self._is_lost = False
        self._ended_at: int | None = None

    def add(self, items: list[Item]) -> None:
        with self._changed:
            self._items.extend(items)
            self.last = items[-1].number
            self._changed.notify_all()

    def lose(self) -> None:
        """Redis no longer knows this run."""
        with self._changed:
            self._is_lost = True
            self._changed.notify_all()

    def end(self, number: int) -> None:
        """The run has ended with this event: do not wait for later ones, even if an invented event id asks for them."""
        with self._changed:
            self._ended_at = number
            self._changed.notify_all()

    def after(self, number: int, seconds: float) -> list[Item] | Literal["behind", "silence", "lost", "over"]:
        """The events after that number, as soon as there are any; "behind" if they must be read from Redis."""
        with self._changed:
            self._changed.wait_for(lambda: self.last > number or self._is_lost or self._is_over(number), seconds)
            if self.last > number:
                return self._next_to(number) or "behind"
            if self._is_over(number):
                return "over"
            return "lost" if self._is_lost else "silence"

    def _next_to(self, number: int) -> list[Item]:
        """The events that follow that one without a gap. (The worker leaves one if Redis was away for too long.)"""
        if not self._items:
            return []
        first, last = self._items[0].number, self._items[-1].number
        if last - first + 1 == len(self._items) and first <= number + 1:  # By far the most.
            return list(itertools.islice(self._items, number + 1 - first, None))
        later = [item for item in self._items if item.number > number]
        return [item for place, item in enumerate(later, number + 1) if item.number == place]

    def _is_over(self, number: int) -> bool:
        return self._ended_at is not None and number >= self._ended_at


class Member(Protocol):
    """Something with leases to renew."""

    def is_busy(self) -> bool:
        """Whether the thread is needed."""

    def beat(self) -> None:
        """Renew the leases. Raises ClusterUnavailableError."""

    def look_at_clock(self) -> None:
        """Called while Redis cannot be reached."""


class Hub:
    """Listens for this process. After `lease` seconds of silence a process counts as dead."""

    def __init__(self, link: Link, lease: float, decode: Callable[[str, int, bytes], Item]) -> None:
        self._link = link
        self._decode = decode
        self.heartbeat = lease / BEATS_PER_LEASE
        self.handlers: dict[str, Callable[[Message], None]] = {}
        self.members: list[Member] = []
        self._begin()

    def _begin(self) -> None:
        self.token = secrets.token_hex(8)
        self.down_since: float | None = None
        self.feeds: dict[str, Feed] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._seen = "0"  # The last message in the inbox.

    def forget_after_fork(self) -> None:
        """In a forked copy: the thread does not exist, and the inbox is the parent's."""
        self._begin()

    @property
    def inbox(self) -> str:
        return self.inbox_of(self.token)

    def inbox_of(self, token: str) -> str:
        return self._link.key("inbox", token)

    def send(self, inbox: str, seconds: float, fields: Mapping[str, str | bytes]) -> None:
        """Leave a message for a process; it expires after this time."""
        with self._link.asking() as client:
            pipeline = client.pipeline(transaction=False)
            pipeline.xadd(inbox, dict(fields), maxlen=INBOX_LENGTH)
            pipeline.pexpire(inbox, int(seconds * 1000))
            pipeline.execute()

    def follow(self, key: str, run_id: str, last: int) -> Feed:
        """The feed of these events, the first `last` of which are known to exist. `unfollow` it afterwards."""
        with self._lock:
            feed = self.feeds.get(key)
            is_new = feed is None
            if feed is None:
                feed = self.feeds[key] = Feed(key, run_id, last)
            feed.followers += 1
        self.listen()
        if is_new:
            self._wake()
        return feed

    def unfollow(self, feed: Feed) -> None:
        with self._lock:
            feed.followers -= 1
            if feed.followers == 0 and self.feeds.get(feed.key) is feed:
                del self.feeds[feed.key]

    def listen(self) -> None:
        """Make sure that the thread runs."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._closing = False
                self._thread = threading.Thread(target=self._run, name="remoteclaw-cluster", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread."""
        thread = self._thread
        self._closing = True
        if thread is not None and thread is not threading.current_thread():
            self._wake()
            thread.join(CLOSE_PATIENCE)

    def _wake(self) -> None:
        """Make the thread wait again: it may be waiting without a feed that was just added."""
        try:
            self.send(self.inbox, LONGEST_BLOCK + 1, {"t": "wake"})
        except ClusterUnavailableError:
            pass  # Then it is not waiting.

    # --- the thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        beat_at = time.monotonic() + self.heartbeat
        pause = 0.05
        while not self._closing:
            try:
                self._read(max(0.0, min(beat_at - time.monotonic(), LONGEST_BLOCK)))
                if time.monotonic() >= beat_at:
                    beat_at = time.monotonic() + self.heartbeat
                    self._beat()
                self.down_since, pause = None, 0.05
            except ClusterUnavailableError as error:
                if self.down_since is None:
                    self.down_since = time.monotonic()
                    logger.warning("%s; trying again", error)
                time.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE, self.heartbeat)
                beat_at = time.monotonic()  # Beat as soon as Redis is back.
                for member in self.members:
                    member.look_at_clock()
            if self._is_idle():
                return

    def _is_idle(self) -> bool:
        with self._lock:
            if self.feeds or any(member.is_busy() for member in self.members):
                return False
            if self._thread is threading.current_thread():
                self._thread = None
            return True

    def _beat(self) -> None:
        for member in self.members:
            member.beat()

    def _read(self, seconds: float) -> None:
        with self._lock:
            feeds = {feed.key.encode(): feed for feed in self.feeds.values()}
        streams = {self.inbox: self._seen, **{feed.key: f"{feed.last}-0" for feed in feeds.values()}}
        with self._link.asking() as client:
            # 0 would wait for ever.
            found = client.xread(streams, count=READ_AT_ONCE, block=max(1, int(seconds * 1000)))
        for key, entries in found or ():
            feed = feeds.get(key)
            if feed is None:
                self._take_messages(entries)
            else:
                self._feed(feed, entries)

    def _feed(self, feed: Feed, entries: list[tuple[bytes, Message]]) -> None:
        try:
            feed.add([self._decode(feed.run_id, number_of(entry), fields[b"d"]) for entry, fields in entries])
        except ValueError as error:
            logger.error("a run cannot be followed: %s", error)
            feed.lose()

    def _take_messages(self, entries: list[tuple[bytes, Message]]) -> None:
        for entry, fields in entries:
            self._seen = entry.decode()
            handler = self.handlers.get(fields.get(b"t", b"").decode())
            if handler is not None:
                handler(fields)
        with self._link.asking() as client:
            client.xdel(self.inbox, *(entry for entry, _ in entries))


def number_of(entry: bytes) -> int:
    """The number of the event with this id in its stream."""
    return int(entry.partition(b"-")[0])
