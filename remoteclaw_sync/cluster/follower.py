"""The source of a stream that follows a run on any machine."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable

from ..types import AgentErrorEvent
from ..web.background import Item, Next, item_of
from ..web.handle import dead_workers_ending
from .hub import READ_AT_ONCE, Feed, Hub
from .link import ClusterUnavailableError

EVENTS_TRIMMED = "EVENTS_TRIMMED"
OUTAGE_PATIENCE = 60.0  # Seconds without Redis before a stream ends without a `done`, so that the browser reconnects.
RETRY_PAUSE = 0.2

Read = Callable[[int, int], list[Item]]  # The events after a number; the second argument is how many at most.


class Follower:
    """The events of one run after a number. Closing it does not affect the run."""

    def __init__(self, hub: Hub, feed: Feed, after: int, read: Read, is_over: bool) -> None:
        self._hub = hub
        self._feed: Feed | None = feed
        self._number = after
        self._read = read
        self._ready: collections.deque[Item] = collections.deque()
        self._is_over = is_over

    def get(self, timeout: float) -> Next:
        deadline = time.monotonic() + timeout
        while not self._ready:
            left = deadline - time.monotonic()
            if self._is_over or self._feed is None or self._has_waited_enough():
                return "end"
            found = self._feed.after(self._number, max(0.0, min(left, 1.0)))
            if found == "behind":
                self._catch_up(left)
            elif found == "lost":
                self._take(list(dead_workers_ending(self._number)))
            elif found == "over":
                return "end"
            elif found == "silence":
                if left <= 0:
                    return "silence"
            else:
                self._take(found)
        return self._ready.popleft()

    def close(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            self._hub.unfollow(feed)

    def _has_waited_enough(self) -> bool:
        since = self._hub.down_since
        return since is not None and time.monotonic() - since > OUTAGE_PATIENCE

    def _catch_up(self, left: float) -> None:
        try:
            found = self._read(self._number, READ_AT_ONCE)
        except ClusterUnavailableError:
            time.sleep(max(0.0, min(left, RETRY_PAUSE)))
            return
        if not found:
            # The events were announced but are gone: the run has expired in Redis.
            found = list(dead_workers_ending(self._number))
        elif found[0].number > self._number + 1:
            lost = f"the events up to number {found[0].number - 1} are no longer kept"
            found.insert(0, item_of(found[0].number - 1, AgentErrorEvent(lost, EVENTS_TRIMMED)))
        self._take(found)

    def _take(self, items: list[Item]) -> None:
        self._ready.extend(items)
        self._number = items[-1].number
        self._is_over = items[-1].kind == "done"
