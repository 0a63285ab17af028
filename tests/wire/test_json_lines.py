"""The framer and the parser, fed with bytes."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Iterable

import pytest

from remoteclaw_sync import AgentEvent, AgentTextEvent, AgentToolUseEvent, create_cli_runtime
from remoteclaw_sync.wire import json_lines
from remoteclaw_sync.wire.json_lines import PIECE_BYTES, LineFramer, fast_parser, parse_block, parse_line, pieces_of
from tests.fakes import dialect_of


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


# --- blocks of lines --------------------------------------------------------------------------------------------------


def parsers() -> dict[str, Callable[[bytes], list[object]]]:
    fast = fast_parser()
    found: dict[str, Callable[[bytes], list[object]]] = {"standard": parse_block}
    return found if fast is None else {**found, "fast": functools.partial(parse_block, fast=fast)}


@pytest.mark.parametrize("parse", parsers().values(), ids=parsers())
@pytest.mark.parametrize(
    "block",
    [
        b'{"a":1}',
        b'{"a":1}\n{"b":"\xc3\xa9"}\r\n [1] ',
        b'{"a":[1\n2]}',  # Half a value on each line, a whole value across them.
        b'{"a":[{}\n{}]}\n{}',
        b'{"a":"x\ny"}',
        b"{},{}\n{}",  # Two values on one line.
        b'{},{}\n{"a":[1\n2]}',  # And half a value on each of two others: as many values as lines.
        b'{},{}\n{"a":[{}\n{}]}',
        b'{"a":[{}\n{}]}\n{},{}',
        b'{},null,{}\n{"a":[1\n2]}',
        b'{"n":18446744073709551617}\n{"n":-9223372036854775809}\n{"n":1e30}',
        b"{}\n",
        b"\n{}",
        b"{}\n\n{}",
        b"[{}\n{}]",
        b"{}]\n[{}",
        b"not JSON\n{}",
        b'\xff\n{"a":"\xff"}',
        b"",
        b"\n",
        b'{"a":"' + b"x" * 300_000 + b'"}\n{"b":1}\nnot JSON',
    ],
)
def test_a_block_gives_for_each_line_its_value_or_the_line_itself(
    parse: Callable[[bytes], list[object]], block: bytes
) -> None:
    def alone(line: bytes) -> object:
        try:
            return json.loads(line.decode(errors="replace"))
        except ValueError:
            return line

    assert parse(block) == [alone(line) for line in block.split(b"\n")]


@pytest.mark.parametrize("sizes", [[0], [5], [20_000] * 5, [100] * 1000, [0] * 40_000, [16_383, 16_384, 1, 16_385, 0]])
def test_a_block_is_cut_between_lines_only(sizes: list[int]) -> None:
    block = b"\n".join(b"x" * size for size in sizes)
    pieces = pieces_of(block)
    assert b"\n".join(pieces) == block
    assert all(len(piece) <= PIECE_BYTES + max(sizes) for piece in pieces)


# --- the fast parser (extra `speed`) makes no difference but speed ----------------------------------------------------

TEXT_LINES = {
    "claude": '{"type":"stream_event","event":{"type":"content_block_delta","index":0,'
    '"delta":{"type":"text_delta","text":"TEXT"}},"parent_tool_use_id":null,"extra":EXTRA}',
    "gemini": '{"type":"message","role":"assistant","content":"TEXT","delta":true,"extra":EXTRA}',
    "codex": '{"type":"item.completed","item":{"id":"item_NUMBER","type":"agent_message","text":"TEXT"},"extra":EXTRA}',
    "opencode": '{"type":"text","sessionID":"s","part":{"id":"p_NUMBER","messageID":"m","type":"text","text":"TEXT"},'
    '"extra":EXTRA}',
}
HUGE = 2**64 + 1  # orjson turns this into a float.
TOOL_LINES = {
    "claude": '{"type":"assistant","message":{"id":"m","content":'
    '[{"type":"tool_use","id":"t","name":"n","input":{"huge":HUGE}}]}}',
    "gemini": '{"type":"tool_use","tool_id":"t","tool_name":"n","parameters":{"huge":HUGE}}',
    "codex": '{"type":"item.completed","item":{"id":"t","type":"mcp_tool_call","server":"s","tool":"n",'
    '"arguments":{"huge":HUGE},"status":"completed"}}',
    "opencode": '{"type":"tool_use","sessionID":"s","part":{"id":"t","callID":"c","tool":"n","messageID":"m",'
    '"state":{"status":"completed","input":{"huge":HUGE},"output":""}}}',
}
# What is put into the string (as JSON source), and what the agent must then have said.
NASTY_TEXTS = {
    "plain": "plain",
    "\x00\x0b\x1f\x7f raw": "\x00\x0b\x1f\x7f raw",
    "\\ud83e alone": "\ud83e alone",
    "\\udd9e\\ud83e the wrong way round": "\udd9e\ud83e the wrong way round",
    "\\ud83e\\udd9e": "🦞",
    "\u2028\x85\ufeff": "\u2028\x85\ufeff",
    "\\u0000\\n": "\x00\n",
}
NASTY_EXTRAS = ["NaN", "-Infinity", "1e400", "9" * 30, "-" + "9" * 30, "[" * 500 + "]" * 500, '{"a":1,"a":2}', "0.1"]
BAD_LINES = [
    "",
    " ",
    "{",
    '{"type":"text"',
    '["type"]',
    "null",
    "1",
    '"type"',
    '{"type":[]}',
    '{"type":"new"}',
    "{}",
    "[{}]",
]
BAD_EXTRAS = ["9" * 5000, "01", "'x'", "[1,]", "undefined"]


def nasty_lines(provider: str) -> list[str]:
    template = TEXT_LINES[provider]
    sources = [(text, "0") for text in NASTY_TEXTS] + [("text", extra) for extra in NASTY_EXTRAS + BAD_EXTRAS]
    lines = [
        template.replace("TEXT", text).replace("EXTRA", extra).replace("NUMBER", str(number))
        for number, (text, extra) in enumerate(sources)
    ]
    good = template.replace("TEXT", "again").replace("EXTRA", "0")
    around = [
        f"{before}{good.replace('NUMBER', before + after)}{after}"
        for before in ("", " ", "\xa0")
        for after in "\r\x1cx"
    ]
    return [
        *lines,
        *around,
        *BAD_LINES,
        TOOL_LINES[provider].replace("HUGE", str(HUGE)),
        good.replace("NUMBER", "last"),
    ]


def events_of(provider: str, *blocks: Iterable[str]) -> list[AgentEvent]:
    reader = dialect_of(create_cli_runtime(provider))
    return [event for block in blocks for event in reader.events("\n".join(block).encode())]


def one_by_one(lines: list[str]) -> list[list[str]]:
    return [[line] for line in lines]


def together(lines: list[str]) -> list[list[str]]:
    return [lines]


def with_good_neighbours(lines: list[str]) -> list[list[str]]:
    """Blocks in which the fast parser can take all but perhaps one line at once."""
    return [['{"type":"unknown"}', line, '{"type":"unknown","n":1}'] for line in lines]


CUTS = pytest.mark.parametrize("cut", [one_by_one, together, with_good_neighbours])
Cut = Callable[[list[str]], list[list[str]]]


@CUTS
@pytest.mark.parametrize("provider", TEXT_LINES)
def test_both_parsers_tell_the_same_of_nasty_lines(
    provider: str, cut: Cut, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("orjson", reason="orjson is not installed (extra `speed`)")
    assert fast_parser() is not None
    # Too deep for orjson, and before Python 3.12 also for the standard parser.
    deep = TEXT_LINES[provider].replace("EXTRA", "[" * 1100 + "]" * 1100)
    blocks = cut([*nasty_lines(provider), deep])
    events = events_of(provider, *blocks)
    warnings = [record.getMessage() for record in caplog.records]
    caplog.clear()
    monkeypatch.setattr(json_lines, "fast_parser", lambda: None)
    assert events == events_of(provider, *blocks)
    assert warnings == [record.getMessage() for record in caplog.records]


@CUTS
@pytest.mark.parametrize("with_speed", [True, False])
@pytest.mark.parametrize("provider", TEXT_LINES)
def test_nothing_is_lost_of_nasty_lines(
    provider: str, with_speed: bool, cut: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    if with_speed:
        pytest.importorskip("orjson", reason="orjson is not installed (extra `speed`)")
    else:
        monkeypatch.setattr(json_lines, "fast_parser", lambda: None)
    events = events_of(provider, *cut(nasty_lines(provider)))
    texts = [event.text for event in events if isinstance(event, AgentTextEvent)]
    # Around the line: \r and \x1c are whitespace, an x is not.
    assert texts == [*NASTY_TEXTS.values(), *["text"] * len(NASTY_EXTRAS), *["again"] * 6, "again"]
    (call,) = [event for event in events if isinstance(event, AgentToolUseEvent)]
    assert call.input == {"huge": HUGE}
    assert isinstance(call.input["huge"], int)


@pytest.mark.parametrize("provider", TEXT_LINES)
def test_a_line_of_text_is_an_ordinary_event(provider: str) -> None:
    line = TEXT_LINES[provider].replace("EXTRA", "0")
    events = events_of(provider, [line, line.replace("NUMBER", "2")])
    assert events[-1] == AgentTextEvent("TEXT")
    assert hash(events[-1]) == hash(AgentTextEvent("TEXT"))
    assert events[-1].to_dict() == {"type": "text", "text": "TEXT"}
    with pytest.raises(AttributeError):
        events[-1].text = "changed"  # type: ignore[misc]
