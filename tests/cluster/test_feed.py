"""What a process keeps in memory of a run that it follows."""

from __future__ import annotations

from remoteclaw_sync.cluster.hub import Feed
from remoteclaw_sync.web.background import Item


def items(first: int, last: int) -> list[Item]:
    return [Item(number, "text", b"") for number in range(first, last + 1)]


def test_events_that_a_worker_had_to_drop_are_not_skipped_in_silence() -> None:
    feed = Feed("key", "run", 0)
    feed.add(items(1, 8))
    feed.add(items(11, 20))
    assert feed.after(5, 0.0) == items(6, 8)
    assert feed.after(8, 0.0) == "behind"  # So Redis is asked, and says what it no longer has.
    assert feed.after(10, 0.0) == items(11, 20)
    assert feed.after(19, 0.0) == items(20, 20)
    assert feed.after(20, 0.0) == "silence"
