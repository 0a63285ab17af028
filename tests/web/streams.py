"""Reads what our streams send, as a browser does."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from remoteclaw_sync import AgentEvent, event_from_dict


@attrs.frozen
class Frame:
    """One event of a `text/event-stream`."""

    id: str
    event: str
    data: dict[str, Any]

    @property
    def number(self) -> int:
        return int(self.id.rpartition("-")[2])

    @property
    def agent_event(self) -> AgentEvent:
        return event_from_dict(self.data)


def frame(block: bytes) -> Frame | None:
    """A block between empty lines; None for a comment, or for the `retry` at the beginning."""
    fields: dict[str, str] = {}
    for line in block.decode().split("\n"):
        name, _, value = line.partition(": ")
        if name:
            assert name not in fields, "each field comes once"
            fields[name] = value
    if not fields.keys() & {"id", "event", "data"}:
        return None
    # What is repeated to a visitor who comes back has no id.
    return Frame(fields.get("id", ""), fields["event"], json.loads(fields["data"]))


def frames(chunks: Iterable[bytes]) -> list[Frame]:
    """All events of a stream, whose chunks may be cut anywhere."""
    *blocks, rest = b"".join(chunks).split(b"\n\n")
    assert rest == b"", "the last block is complete"
    return [found for block in blocks if (found := frame(block)) is not None]


def next_frame(stream: Iterator[bytes]) -> Frame:
    """The next event of a stream whose blocks arrive whole."""
    return next(found for chunk in stream if (found := frame(chunk.removesuffix(b"\n\n"))) is not None)


def text_of(found: Iterable[Frame]) -> str:
    return "".join(one.data["text"] for one in found if one.event == "text")


def check_whole(found: list[Frame]) -> None:
    """Check that every event came once and in order, and that `done` is the last and has the same text."""
    assert [one.number for one in found] == list(range(1, len(found) + 1))
    assert [one.event for one in found].count("done") == 1
    assert found[-1].event == "done"
    assert found[-1].data["result"]["text"] == text_of(found)
