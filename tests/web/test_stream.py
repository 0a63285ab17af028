"""sse() and ndjson(): what they send, and how a stream ends."""

from __future__ import annotations

import gc
import json
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from remoteclaw_sync import (
    AgentDoneEvent,
    AgentEvent,
    AgentPermissionEvent,
    AgentRunResult,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolUseEvent,
    PermissionRequest,
    create_cli_runtime,
    event_from_dict,
)
from remoteclaw_sync.web import EventStream, Runs, ndjson, sse
from tests.fakes import PATIENCE, FakeRuntime, Gate, alive, wait_until
from tests.web.streams import check_whole, frames, text_of

GateMaker = Callable[[], Gate]
QUICK = 0.06  # A heartbeat so short that a test need not wait for it.

DONE = AgentDoneEvent(AgentRunResult(text="a\nb", stderr="a server's path"))
EVENTS: list[AgentEvent] = [
    AgentThinkingEvent("hm"),
    AgentTextEvent("a\n"),
    AgentTextEvent("b"),
    AgentToolUseEvent("shell", "t1", {"command": "ls"}),
    DONE,
]


def next_pulse(stream: EventStream) -> bytes:
    """The first heartbeat; anything before it is skipped."""
    return next(chunk for chunk in stream if chunk.startswith((b":", b"\n")))


# --- what is sent ----------------------------------------------------------------------------------------------


def test_each_event_is_a_frame_with_id_type_and_json() -> None:
    found = frames(sse(EVENTS))
    check_whole(found)
    assert [one.event for one in found] == ["thinking", "text", "text", "tool_use", "done"]
    assert [one.agent_event for one in found[:-1]] == EVENTS[:-1]


def test_a_request_for_permission_is_a_frame_as_any_other() -> None:
    event = AgentPermissionEvent(PermissionRequest("r1", "Bash", "t1", {"command": "ls"}))
    asked, _ = frames(sse([event, DONE]))
    assert (asked.event, asked.agent_event) == ("permission", event)


def test_the_exact_bytes_of_a_frame() -> None:
    stream = sse([AgentTextEvent("é\r\n\u2028")])
    assert next(stream) == (
        f"id: {stream.run_id}-1\nevent: text\n".encode()
        + b'data: {"type":"text","text":"\xc3\xa9\\r\\n\xe2\x80\xa8"}\n\n'
    )
    stream.close()


def test_what_the_cli_wrote_to_stderr_is_not_for_visitors() -> None:
    done = frames(sse(EVENTS))[-1]
    assert (done.data["result"]["stderr"], done.data["result"]["text"]) == ("", "a\nb")


def test_every_line_of_ndjson_is_an_event_with_its_id() -> None:
    stream = ndjson(EVENTS)
    lines = [json.loads(line) for line in b"".join(stream).splitlines()]
    assert [line["id"] for line in lines] == [f"{stream.run_id}-{number}" for number in range(1, 6)]
    assert [event_from_dict(line) for line in lines[:-1]] == EVENTS[:-1]


def test_what_json_or_utf8_cannot_carry_does_not_break_a_stream() -> None:
    events: list[AgentEvent] = [AgentTextEvent("\udc80"), AgentToolUseEvent("t", "1", {"x": [math.nan, math.inf, 1.5]})]
    text, tool, done = frames(sse(events))
    assert text.data["text"] == "\udc80"
    assert tool.data["input"] == {"x": [None, None, 1.5]}
    assert done.event == "done"


def test_retry_is_sent_first() -> None:
    assert next(sse(EVENTS, retry=2.5)) == b"retry: 2500\n\n"


def test_include_chooses_event_types_and_ids_stay() -> None:
    found = frames(sse(EVENTS, include={"text"}))
    assert [(one.event, one.number) for one in found] == [("text", 2), ("text", 3), ("done", 5)]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"include": {"texts"}}, ValueError),
        ({"include": "text"}, TypeError),
        ({"heartbeat": 0}, ValueError),
        ({"heartbeat": None}, TypeError),
        ({"retry": -1}, ValueError),
        ({"detach": "yes"}, TypeError),
        ({"last_event_id": "0" * 32 + "-1"}, ValueError),
    ],
)
def test_bad_options_raise_when_the_call_is_made(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options))):
        sse(EVENTS, **options)


@pytest.mark.parametrize("seconds", [1e10, 1e12, 1e300, math.inf])
@pytest.mark.parametrize("make", [sse, ndjson])
def test_a_heartbeat_longer_than_any_clock_can_wait_is_as_good_as_a_day(
    make: Any, seconds: float, registry: Runs
) -> None:
    assert len(list(make(EVENTS, heartbeat=seconds))) == len(EVENTS)
    assert len(list(make(EVENTS, heartbeat=seconds, detach=True, registry=registry))) == len(EVENTS)


def test_a_retry_longer_than_any_clock_can_wait_is_as_good_as_a_day() -> None:
    assert next(sse(EVENTS, retry=math.inf)) == b"retry: 86400000\n\n"


def nested(depth: int) -> dict[str, Any]:
    inner: Any = [math.nan]
    for _ in range(depth):
        inner = {"x": [inner, "é"]}
    return {"deep": inner}


@pytest.mark.parametrize("depth", [300, 600, 5_000, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("detach", [True, False])
def test_a_tools_input_may_be_nested_as_deep_as_it_likes(depth: int, detach: bool, registry: Runs) -> None:
    tool = AgentToolUseEvent("t", "1", nested(depth))
    events: list[AgentEvent] = [AgentTextEvent("a"), tool, AgentTextEvent("b"), DONE]
    # On a busy machine the deepest one takes long enough for a heartbeat.
    blocks = list(sse(events, heartbeat=10 * PATIENCE, detach=detach, registry=registry))
    assert [block.split(b"\n")[1] for block in blocks] == [
        b"event: text",
        b"event: tool_use",
        b"event: text",
        b"event: done",
    ]
    data = blocks[1].split(b"\n")[2]
    assert data.count(b'{"x":[') == data.count('"é"]}'.encode()) == depth
    assert b"[null]" in data


def test_an_input_that_contains_itself_ends_the_stream_and_not_the_server() -> None:
    around: dict[str, Any] = {}
    around["x"] = [around]
    found = frames(sse([AgentToolUseEvent("t", "1", around), DONE]))
    assert [one.data.get("code") for one in found] == ["STREAM_FAILED", None]


@pytest.mark.parametrize("make", [sse, ndjson])
def test_while_the_agent_is_silent_there_are_heartbeats(make: Any, registry: Runs) -> None:
    stream = make(FakeRuntime(["text", "a"], ["hang"]).start("hi"), heartbeat=QUICK, registry=registry)
    first, second = next_pulse(stream), next_pulse(stream)
    assert first == second
    assert first in (b": still here\n\n", b"\n")
    stream.close()


def test_an_iterator_that_raises_ends_in_an_error_without_its_message() -> None:
    def broken() -> Iterator[AgentEvent]:
        yield AgentTextEvent("a")
        raise RuntimeError("secret")

    found = frames(sse(broken()))
    assert [one.event for one in found] == ["text", "error", "done"]
    assert (found[1].data["code"], found[2].data["result"]["error_subtype"]) == ("STREAM_FAILED", "crash")
    assert "secret" not in str(found)


def test_the_demo_agent_arrives_whole(registry: Runs) -> None:
    found = frames(sse(create_cli_runtime("demo", pace=0).start("hi"), registry=registry))
    check_whole(found)
    assert "demo agent" in text_of(found)


# --- how it ends -----------------------------------------------------------------------------------------------


def test_nothing_is_started_before_the_first_next(gate: GateMaker, registry: Runs) -> None:
    run = FakeRuntime(["hang"]).start("hi")
    stream = sse(run, registry=registry)
    assert run.pid is None
    stream.close()
    assert list(stream) == []
    assert run.pid is None


@pytest.mark.parametrize("verb", ["start", "execute"])
def test_close_ends_a_silent_agent(verb: str, gate: GateMaker, registry: Runs) -> None:
    """This also covers what `execute()` returns: a generator that waits in the pump's thread and that nobody could
    close."""
    there = gate()
    stream = sse(getattr(FakeRuntime(["notify", there.path], ["hang"]), verb)("hi"), heartbeat=QUICK, registry=registry)
    next_pulse(stream)
    pid = there.wait()
    stream.close()
    assert not alive(pid)
    assert list(stream) == []
    stream.close()


def test_close_from_another_thread_ends_one_who_waits(gate: GateMaker, registry: Runs) -> None:
    there = gate()
    stream = sse(FakeRuntime(["notify", there.path], ["hang"]).start("hi"), registry=registry)

    def close() -> None:
        there.wait()
        stream.close()

    closer = threading.Thread(target=close)
    closer.start()
    assert list(stream) == []
    closer.join()


def test_dropping_a_stream_ends_its_agent(gate: GateMaker, registry: Runs) -> None:
    there = gate()
    stream = sse(FakeRuntime(["notify", there.path], ["hang"]).start("hi"), heartbeat=QUICK, registry=registry)
    next_pulse(stream)
    pid = there.wait()
    del stream
    gc.collect()
    assert wait_until(lambda: not alive(pid))


@pytest.mark.slow
def test_a_visitor_who_reads_slowly_does_not_make_the_queue_grow() -> None:
    too_many = threading.Event()

    def events() -> Iterator[AgentEvent]:
        for _ in range(2000):
            yield AgentTextEvent("a")
        too_many.set()

    stream = sse(events())
    next(stream)
    assert not too_many.wait(0.5)
    stream.close()


def test_a_plain_generator_is_closed_with_the_stream() -> None:
    closed = threading.Event()

    def events() -> Iterator[AgentEvent]:
        try:
            for _ in range(1000):
                yield AgentTextEvent("a")
        finally:
            closed.set()

    stream = sse(events())
    next(stream)
    stream.close()
    assert closed.is_set()


def test_a_stream_read_to_its_end_leaves_nothing_in_the_registry(registry: Runs) -> None:
    check_whole(frames(sse(FakeRuntime(["text", "a"]).start("hi"), registry=registry)))
    assert list(registry) == []
    assert registry.folder.run_ids() == []
