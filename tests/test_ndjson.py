"""The framer and the parser, fed with bytes."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable

import pytest

from remoteclaw_sync.ndjson import LineFramer, parse_line


def lines_of(chunks: Iterable[bytes], limit: int = 1000) -> list[str]:
    framer = LineFramer(limit)
    lines = [line for chunk in chunks for line in framer.push(chunk)]
    return lines + framer.flush()


TEXT = "first\r\nsécond 語 🦞\n\n\u2028\u2029\x0b\x0c\x1c\x85 in one line\nlast without an end"
LINES = ["first\r", "sécond 語 🦞", "", "\u2028\u2029\x0b\x0c\x1c\x85 in one line", "last without an end"]


@pytest.mark.parametrize("cut", range(len(TEXT.encode()) + 1))
def test_a_cut_at_any_byte_changes_no_line(cut: int) -> None:
    data = TEXT.encode()
    assert lines_of([data[:cut], data[cut:]]) == LINES


def test_bytes_that_come_one_by_one_make_the_same_lines() -> None:
    data = TEXT.encode()
    assert lines_of(data[i : i + 1] for i in range(len(data))) == LINES


def test_three_pieces_of_every_length_make_the_same_lines() -> None:
    data = "é\n語\n🦞".encode()
    for first in range(len(data)):
        for second in range(first, len(data)):
            assert lines_of([data[:first], data[first:second], data[second:]]) == ["é", "語", "🦞"]


def test_a_byte_order_mark_is_taken_off_the_start_only() -> None:
    mark = "\ufeff".encode()
    assert lines_of([mark + b"a\n" + mark + b"b\n"]) == ["a", "\ufeffb"]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_byte_order_mark_may_be_cut(cut: int) -> None:
    data = "\ufeffa\n".encode()
    assert lines_of([data[:cut], data[cut:]]) == ["a"]


def test_invalid_bytes_are_replaced_and_harm_no_other_line() -> None:
    assert lines_of([b"good\n\xff\xfe\xc3\n\xe8\xaanext\n"]) == ["good", "���", "�next"]


def test_a_stream_that_ends_with_a_newline_has_no_further_line() -> None:
    framer = LineFramer()
    assert framer.push(b"a\n") == ["a"]
    assert framer.flush() == []


def test_nothing_is_left_after_flush() -> None:
    framer = LineFramer()
    framer.push(b"a")
    assert framer.flush() == ["a"]
    assert framer.flush() == []


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_over_the_limit_are_skipped_whatever_the_chunks(size: int) -> None:
    data = b"ok\n" + b"x" * 11 + b"\nok2\n" + b"y" * 30 + b"\n" + b"z" * 10 + b"\nend"
    framer = LineFramer(10)
    lines = [line for i in range(0, len(data), size) for line in framer.push(data[i : i + size])]
    lines += framer.flush()
    assert lines == ["ok", "ok2", "z" * 10, "end"]
    assert framer.lines_skipped == 2


def test_a_last_line_over_the_limit_is_skipped_too() -> None:
    framer = LineFramer(10)
    assert framer.push(b"a\n" + b"x" * 11) == ["a"]
    assert framer.flush() == []
    assert framer.lines_skipped == 1


def test_a_skipped_line_is_not_kept_in_memory() -> None:
    framer = LineFramer(10)
    for _ in range(1000):
        framer.push(b"x" * 1000)
    assert sum(map(len, framer._parts)) == 0
    assert framer.push(b"\nnext\n") == ["next"]


@pytest.mark.parametrize(
    "value",
    [{}, {"a": [1, {"b": None}]}, {"text": "\u2028\x85\x1c\x00"}, {"text": "\ud800"}, {"n": 1e400}, {"": ""}],
)
def test_an_object_is_parsed(value: dict[str, object]) -> None:
    assert parse_line(json.dumps(value)) == value
    assert parse_line(f" \t{json.dumps(value)}\r") == value


def test_raw_control_characters_inside_a_string_are_kept() -> None:
    assert parse_line('{"text": "a\x00b\x0bc\x1fd\u2028e"}') == {"text": "a\x00b\x0bc\x1fd\u2028e"}


@pytest.mark.parametrize("blank", ["", " ", "\r", "\t \r"])
def test_a_blank_line_is_nothing_to_warn_about(blank: str, caplog: pytest.LogCaptureFixture) -> None:
    assert parse_line(blank) is None
    assert not caplog.records


@pytest.mark.parametrize(
    "line",
    [
        "sk-secret",
        "{",
        '{"a": 1} sk-secret',
        '{"a": 1}{"b": 2}',
        "1",
        '"sk-secret"',
        "null",
        "NaN",
        '["sk-secret"]',
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"n": ' + "9" * 5000 + "}",
        '{"sk-secret',
        "\x00{}",
    ],
    ids=lambda line: line[:12],
)
def test_anything_else_is_warned_about_without_being_quoted(line: str, caplog: pytest.LogCaptureFixture) -> None:
    assert parse_line(line) is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "secret" not in record.getMessage()
