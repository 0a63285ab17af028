"""The end of a stream of any length."""

from __future__ import annotations

import pytest

from remoteclaw_sync.process.tail import Tail


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9, 10, 11, 100])
@pytest.mark.parametrize("length", [0, 1, 9, 10, 11, 95])
def test_the_last_bytes_are_kept_whatever_the_chunks(size: int, length: int) -> None:
    data = bytes(range(32, 127))[:length]
    tail = Tail(10)
    for start in range(0, len(data), size):
        tail.push(data[start : start + size])
    assert tail.text() == data[-10:].decode()


def test_what_is_kept_does_not_grow() -> None:
    tail = Tail(10)
    for _ in range(1000):
        tail.push(b"x" * 7)
    assert sum(map(len, tail._chunks)) <= 17


def test_a_character_cut_by_the_limit_is_replaced() -> None:
    tail = Tail(4)
    tail.push("ab語c".encode())
    assert tail.text() == "語c"
    tail.push(b"d")
    assert tail.text() == "��cd"


def test_half_a_line_at_the_beginning_is_left_out_if_there_is_a_whole_one() -> None:
    tail = Tail(10)
    tail.push(b"abc\ndef")
    assert tail.text() == "abc\ndef"
    tail.push(b"ghijk\nl")
    assert tail.text() == "l"
    tail.push(b"mnopqrstuvw\n")
    assert tail.text() == "opqrstuvw\n"
