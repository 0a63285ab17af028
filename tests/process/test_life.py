"""What counts as a sign of life, chunk by chunk."""

from __future__ import annotations

import pytest

from remoteclaw_sync.process.life import GROWTH, LifeSigns


def signs(*chunks: bytes, limit: int = 1 << 26) -> list[bool]:
    life = LifeSigns(limit)
    return [life.are_in(chunk) for chunk in chunks]


def test_the_end_of_a_line_is_life_and_what_comes_before_it_is_not() -> None:
    assert signs(b"a", b"b", b"c\n", b"d", b"\n", b"e\nf") == [False, False, True, False, True, True]


def test_a_carriage_return_ends_no_line() -> None:
    assert signs(b"10 %\r", b"20 %\r", b"30 %\r\n") == [False, False, True]


@pytest.mark.parametrize("size", [1, 1000, GROWTH // 2, GROWTH, 3 * GROWTH])
def test_a_line_is_life_each_time_it_has_grown_by_so_much(size: int) -> None:
    count = 6 * GROWTH // size
    found = signs(*[b"x" * size] * count)
    assert sum(found) == min(count, count * size // GROWTH)
    assert found[-1] == (count * size // GROWTH > (count - 1) * size // GROWTH)


def test_a_new_line_grows_from_its_own_beginning() -> None:
    almost = b"x" * (GROWTH - 1)
    assert signs(almost, b"\n" + almost, b"x", b"x") == [False, True, True, False]


def test_beyond_the_longest_line_growing_is_no_life_but_an_end_is() -> None:
    assert signs(*[b"x" * GROWTH] * 4, b"\n", limit=2 * GROWTH) == [True, True, False, False, True]


def test_where_no_long_lines_are_expected_growing_is_never_life() -> None:
    assert signs(*[b"x" * GROWTH] * 3, b"\n", limit=0) == [False, False, False, True]


@pytest.mark.parametrize("size", [1, 5, 7, 100])
def test_a_hook_sees_whole_lines_however_they_were_cut(size: int) -> None:
    seen: list[bytes] = []

    def is_life(lines: bytes) -> bool:
        seen.append(lines)
        return b"retry" not in lines

    life = LifeSigns(1 << 26, is_life)
    said = b"retry 1\nretry 2\nanswer\nretry 3\nhalf"
    found = [life.are_in(said[start : start + size]) for start in range(0, len(said), size)]
    assert b"".join(seen) == b"retry 1\nretry 2\nanswer\nretry 3\n"
    assert all(lines.endswith(b"\n") for lines in seen)
    assert sum(found) == (1 if size < len(said) else 0)


def test_a_hook_that_raises_is_life(caplog: pytest.LogCaptureFixture) -> None:
    def is_life(lines: bytes) -> bool:
        raise ValueError("a secret")

    assert LifeSigns(1, is_life).are_in(b"line\n")
    assert "ValueError" in caplog.text
    assert "a secret" not in caplog.text
