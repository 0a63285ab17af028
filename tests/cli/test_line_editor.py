"""A line while it is being typed."""

from __future__ import annotations

import pytest

from remoteclaw_sync.cli.line_editor import END, MOST_ROWS, LineEditor, lay_out
from remoteclaw_sync.cli.terminal_text import width

LEFT, RIGHT, UP, DOWN = "\x1b[D", "\x1b[C", "\x1b[A", "\x1b[B"


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("hello", "hello"),
        ("helo" + LEFT + "l", "hello"),
        ("hello" + LEFT * 9 + "X", "Xhello"),
        ("hello" + "\x7f\x7f" + "p", "help"),
        ("xhello" + "\x01" + "\x1b[3~", "hello"),
        ("xhello" + "\x1b[H" + "\x04", "hello"),
        ("hello" + "\x1b[H" + "\x05" + "!", "hello!"),
        ("one two three" + "\x17", "one two "),
        ("one two" + "\x1bb" + "X", "one Xtwo"),
        ("one two" + "\x1b[1;5D\x1b[1;5D" + "\x1b[1;5C" + "X", "one Xtwo"),
        ("one two" + "\x15", ""),
        ("one two" + LEFT * 3 + "\x0b", "one "),
        ("日本" + LEFT + "語", "日語本"),
        ("ne\u0301" + "\x7f", "n"),  # An accent of its own.
        ("x👨\u200d👩\u200d👧y" + LEFT + "\x7f", "xy"),  # A family, made of five characters.
        ("👍🏽❤\ufe0f" + "\x01\x1b[3~", "❤\ufe0f"),
        ("👍🏽❤\ufe0f" + LEFT + "|", "👍🏽|❤\ufe0f"),
        ("👍🏽❤\ufe0f" + "\x01" + RIGHT + "|", "👍🏽|❤\ufe0f"),
        ("a\x1b\rb", "a\nb"),  # Alt-Enter.
        ("a\\\rb", "a\nb"),
        ("a\x1b[200~b\r\nc\rd\x1b[31m\x07e\x1b[201~f", "ab\nc\ndef"),
        ("a\x1b[99~\x1bOZ\x00b", "ab"),  # Keys without a meaning here.
        ("a\x1bxb", "axb"),
    ],
)
def test_keys_do_what_they_do_elsewhere(typed: str, text: str) -> None:
    whole, by_key = LineEditor(), LineEditor()
    assert whole.feed(typed) == []
    for key in typed:  # A slow connection may split sequences.
        by_key.feed(key)
    assert (whole.text, by_key.text) == (text, text)


def test_enter_gives_the_line_and_begins_another() -> None:
    editor = LineEditor()
    assert editor.feed("one\rtwo\nthr") == ["one", "two"]
    assert editor.text == "thr"


def test_ctrl_d_ends_only_an_empty_line() -> None:
    editor = LineEditor()
    assert editor.feed("a\x01\x04") == []
    assert editor.feed("\x04") == [END]


def test_the_up_key_brings_earlier_lines_back_and_down_the_one_that_was_begun() -> None:
    editor = LineEditor()
    editor.remember("first")
    editor.remember("second")
    editor.remember("second")
    editor.feed("new" + UP)
    assert editor.text == "second"
    editor.feed(UP + UP)
    assert editor.text == "first"
    editor.feed(DOWN + DOWN + DOWN)
    assert editor.text == "new"


@pytest.mark.parametrize("text", ["short", "x" * 100, "日本語" * 20, "one\ntwo\n\nthree", "a\tb" * 9, "e\u0301" * 30])
@pytest.mark.parametrize("columns", [9, 20, 79])
def test_no_row_is_wider_than_the_terminal_and_nothing_is_lost(text: str, columns: int) -> None:
    shown = lay_out("> ", text, len(text), columns)
    assert all(width(row) <= columns for row in shown.rows)
    joined = "".join(row[2:] for row in shown.rows)
    whole = text.replace("\n", "").replace("\t", "    ")
    assert whole.endswith(joined)
    assert len(shown.rows) == MOST_ROWS or joined == whole
    assert (shown.row, shown.column) == (len(shown.rows) - 1, width(shown.rows[-1]))


def test_the_cursor_is_where_the_next_key_goes() -> None:
    assert lay_out("> ", "abcd", 2, 5).column == 4
    shown = lay_out("> ", "abcd\nef", 5, 5)
    assert (shown.rows, shown.row, shown.column) == (("> abc", "  d", "  ef"), 2, 2)


@pytest.mark.parametrize("columns", [9, 13, 40])
def test_a_prompt_may_be_longer_than_the_terminal_is_wide(columns: int) -> None:
    shown = lay_out("  allow? y / n / always / why > ", "because", 7, columns)
    assert all(width(row) <= columns for row in shown.rows)
    assert "".join(shown.rows) == "  allow? y / n / always / why > because"
    assert (shown.row, shown.column) == (len(shown.rows) - 1, width(shown.rows[-1]))


@pytest.mark.parametrize("cursor", [0, 25, 59])
def test_of_many_rows_those_around_the_cursor_are_shown(cursor: int) -> None:
    shown = lay_out("> ", "0123456789" * 6, cursor, 12, 3)
    assert len(shown.rows) == 3
    assert shown.rows[shown.row][shown.column] == str(cursor % 10)
