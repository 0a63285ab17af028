"""What a CLI may write, and what a consumer sees of it."""

from __future__ import annotations

import json
import logging
import resource
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import AgentErrorEvent, AgentEvent, AgentTextEvent
from tests.fakes import FakeRuntime, Gate, codes, done, fake_command, finished


def latin1(text: str) -> str:
    """Text as the `raw` step takes it: its UTF-8 bytes, one character each."""
    return text.encode().decode("latin-1")


def line(text: str) -> str:
    return json.dumps({"type": "text", "text": text}, ensure_ascii=False) + "\n"


def texts_of(*steps: list[Any], **options: Any) -> list[str]:
    events, result = finished(FakeRuntime(*steps, **options).execute("hi"))
    assert result.ok, result
    return [event.text for event in events if isinstance(event, AgentTextEvent)]


def test_a_last_line_without_newline_counts() -> None:
    assert texts_of(["raw", line("a") + line("b").rstrip()]) == ["a", "b"]


def test_crlf_and_blank_lines_and_a_byte_order_mark_do_no_harm() -> None:
    raw = "\ufeff" + line("a").replace("\n", "\r\n") + "\r\n\n  \n" + line("b")
    assert texts_of(["raw", latin1(raw)]) == ["a", "b"]


def test_a_character_cut_by_the_edge_of_a_chunk_arrives_whole(gate: Callable[[], Gate]) -> None:
    """The first half is read before the second is written, as the event between them proves."""
    halves = gate()
    data = line("first") + line("🦞 語")
    cut = len(line("first")) + data.encode()[len(line("first")) :].index("🦞".encode()) + 2
    raw = latin1(data)
    runtime = FakeRuntime(["raw", raw[:cut]], ["wait", halves.path], ["raw", raw[cut:]])
    events = runtime.execute("hi")
    assert next(events) == AgentTextEvent("first")
    halves.open()
    assert next(events) == AgentTextEvent("🦞 語")
    assert done(events_after(events, "first", "🦞 語")).ok


def events_after(rest: Iterable[AgentEvent], *texts: str) -> Iterable[AgentEvent]:
    yield from map(AgentTextEvent, texts)
    yield from rest


def test_a_line_that_comes_byte_by_byte_is_one_line() -> None:
    steps: list[list[Any]] = [["raw", byte] for byte in latin1(line("sécond 語"))]
    assert texts_of(*steps) == ["sécond 語"]


def test_invalid_utf8_is_replaced_inside_its_string() -> None:
    assert texts_of(["raw", '{"type":"text","text":"a\xff\xc3b"}\n']) == ["a\ufffd\ufffdb"]


SEPARATORS = "\u2028 \u2029 \x0b \x0c \x1c \x1d \x1e \x85"


def test_separators_inside_a_string_do_not_cut_the_line() -> None:
    raw = '{"type":"text","text":"' + SEPARATORS + '"}\n'
    assert texts_of(["raw", latin1(raw)]) == [SEPARATORS]


def test_nul_bytes_inside_a_string_are_kept() -> None:
    assert texts_of(["raw", '{"type":"text","text":"a\x00b"}\n']) == ["a\x00b"]


def test_a_lone_surrogate_arrives_and_the_result_still_goes_through_json() -> None:
    result = done(FakeRuntime(["raw", '{"type":"text","text":"\\ud83e"}\n'], ["text", "!"]).execute("hi"))
    assert result.ok
    assert result.text == "\ud83e!"
    assert json.loads(json.dumps(result.to_dict()))["text"] == result.text


@pytest.mark.parametrize(
    "junk",
    [
        "not json",
        '{"type":"text","text":',
        '{"type":"text"} trailing',
        "NaN",
        "Infinity",
        "5",
        '"text"',
        "null",
        "[1,2]",
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"n":' + "9" * 5000 + "}",
        "\x00\x00\x00",
        "\xff\xfe",
        "{}{}",
    ],
    ids=lambda junk: repr(junk[:10]),
)
def test_a_malformed_line_between_good_ones_is_skipped_with_a_warning(
    junk: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    command = fake_command(["text", "a"], ["raw", junk + "\n"], ["text", "b"], script_file=tmp_path / "script")
    with caplog.at_level(logging.WARNING):
        events, result = finished(FakeRuntime(command=command).execute("hi"))
    assert [event.to_dict()["text"] for event in events] == ["a", "b"]
    assert result.ok
    assert [record.name for record in caplog.records] == ["remoteclaw_sync.wire.json_lines"]


def test_nan_inside_an_object_does_no_harm() -> None:
    assert texts_of(["raw", '{"type":"text","text":"a","cost":NaN}\n'], ["text", "b"]) == ["a", "b"]


@pytest.mark.slow
def test_a_line_of_sixty_megabytes_arrives_whole() -> None:
    size = 60 * 1024 * 1024
    steps = (["raw", '{"type":"text","text":"'], ["flood", size, 1], ["raw", '"}\n'], ["text", "end"])
    result = done(FakeRuntime(*steps).execute("hi"))
    assert result.ok
    assert len(result.text) == size + 3
    assert result.text.count("x") == size


def test_a_line_over_the_limit_is_skipped_and_reported_and_the_rest_is_parsed() -> None:
    steps = (["text", "a"], ["flood", 3_000_000, 1], ["raw", "\n"], ["text", "b"])
    events, result = finished(FakeRuntime(*steps, max_line_bytes=1_000_000).execute("hi"))
    assert result.ok
    assert result.text == "ab"
    assert codes(events) == ["LINE_TOO_LONG"]


def test_an_endless_line_does_not_grow_in_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    steps = (["text", "a"], ["flood", 200 << 20, 1], ["raw", "\n"], ["text", "b"])
    result = done(FakeRuntime(*steps, max_line_bytes=1 << 20, max_pending_bytes=4 << 20).execute("hi"))
    assert result.text == "ab"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60 * 1024  # KiB


def test_a_flood_on_stderr_neither_blocks_nor_grows_and_its_tail_is_kept() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    steps = (["text", "a"], ["flood", 200 << 20, 2], ["raw", "the end", 2], ["text", "b"])
    result = done(FakeRuntime(*steps).execute("hi"))
    assert result.ok
    assert result.text == "ab"
    assert result.stderr.endswith("xxxthe end")
    assert len(result.stderr) == 65_536
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60 * 1024  # KiB


def test_a_flood_on_stderr_before_a_failing_exit_leaves_its_end_in_the_message() -> None:
    events, result = finished(
        FakeRuntime(["flood", 10 << 20, 2], ["raw", "\nout of luck", 2], ["exit", 9]).execute("hi")
    )
    (error,) = events
    assert isinstance(error, AgentErrorEvent)
    assert error.message.endswith("out of luck")
    assert len(error.message) < 3000
    assert result.exit_code == 9


def test_events_may_come_on_stderr() -> None:
    runtime = FakeRuntime(["line", {"type": "text", "text": "a"}, 2], ["raw", "note", 1])
    runtime.stream = "stderr"
    result = done(runtime.execute("hi"))
    assert result.ok
    assert result.text == "a"
    assert result.stderr == "note"


def test_a_flood_on_stdout_does_not_block_events_on_stderr() -> None:
    runtime = FakeRuntime(["flood", 20 << 20, 1], ["line", {"type": "text", "text": "a"}, 2])
    runtime.stream = "stderr"
    assert done(runtime.execute("hi")).text == "a"


@pytest.mark.parametrize("written", ["", "a word", "x" * 60_000])
def test_a_cli_that_closes_stderr_early_keeps_what_it_wrote_there(written: str, gate: Callable[[], Gate]) -> None:
    go_on = gate()
    script = f"printf %s '{written}' >&2; exec 2>&-; echo '{line('a').strip()}'; head -c 1 < {go_on.path} > /dev/null"
    events = FakeRuntime(command=["sh", "-c", script]).execute("hi")
    assert next(events) == AgentTextEvent("a")
    go_on.open()
    assert done(events_after(events, "a")).stderr == written


def test_a_cli_with_nothing_to_say_on_stderr_costs_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    start = threading.Thread.start

    def noting(thread: threading.Thread) -> None:
        started.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noting)
    runtime = FakeRuntime(command=["echo", line("a").strip()], timeout=None)
    assert done(runtime.execute("hi")).text == "a"
    assert started == ["remoteclaw-supervisor"]


def test_invalid_bytes_on_stderr_are_replaced() -> None:
    assert done(FakeRuntime(["text", "a"], ["raw", "b\xffd", 2]).execute("hi")).stderr == "b\ufffdd"


def test_closing_stdout_ends_the_run_although_the_process_lives() -> None:
    events, result = finished(FakeRuntime(["text", "a"], ["close", 1], ["hang"], linger=0.1).execute("hi"))
    assert result.text == "a"
    assert codes(events) == ["CLI_INCOMPLETE"]
    assert result.error_subtype == "incomplete"


def test_closing_stdout_after_the_last_word_is_a_success() -> None:
    steps = (["text", "a"], ["line", {"type": "done"}], ["close", 1], ["hang"])
    assert done(FakeRuntime(*steps, linger=0.1).execute("hi")).ok


def test_closing_stdout_and_exiting_a_moment_later_is_a_success(gate: Callable[[], Gate]) -> None:
    closed, leave = gate(), gate()
    run = FakeRuntime(["text", "a"], ["close", 1], ["notify", closed.path], ["wait", leave.path]).start("hi")
    with run:
        next(run)
        closed.wait()
        leave.open()
        assert done(events_after(run, "a")).ok


def test_closing_both_streams_ends_the_run() -> None:
    steps = (["text", "a"], ["line", {"type": "done"}], ["close", 1], ["close", 2], ["hang"])
    assert done(FakeRuntime(*steps, linger=0.1).execute("hi")).ok


def test_an_empty_output_is_not_a_success() -> None:
    events, result = finished(FakeRuntime().execute("hi"))
    assert codes(events) == ["CLI_INCOMPLETE"]
    assert (result.error_subtype, result.exit_code) == ("incomplete", 0)


def test_a_line_that_only_the_hook_s_own_parser_refuses_is_malformed_not_an_error() -> None:
    """A raw control character inside a string: our parser lets it pass, a strict `json.loads` does not."""

    class Strict(FakeRuntime):
        def extract_event(self, line: str) -> AgentEvent:
            return AgentTextEvent(json.loads(line)["text"])

    runtime = Strict(["raw", '{"type": "text", "text": "a\x01b"}\n' + line("good")])
    events, result = finished(runtime.execute("hi"))
    assert [event.type for event in events] == ["text"]
    assert result.text == "good"
    assert result.ok
