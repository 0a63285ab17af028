"""What is delivered: the splitter's promises, and nothing said twice."""

from __future__ import annotations

import random
import re

import pytest

from remoteclaw_sync.chat.delivery import Chunk, LengthUnit, payloads_from, split_chunks, split_text, was_sent
from remoteclaw_sync.types import ReplyPayload

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"  # Seven code points, one glyph.
FLAGS = "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7"  # Germany, France.
SCOTLAND = "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f"
WAVE = "\U0001f44b\U0001f3fd"  # With a skin tone.
ACCENTED = "e\u0301"


def size(text: str, unit: LengthUnit = "characters") -> int:
    if unit == "characters":
        return len(text)
    encoding, width = ("utf-16-le", 2) if unit == "utf-16" else ("utf-8", 1)
    return len(text.encode(encoding, "surrogatepass")) // width


def fences(text: str) -> list[str]:
    """The fence lines of a text."""
    return re.findall(r"^[ \t]*(?:```|~~~)[^\n]*$", text, re.MULTILINE)


# --- where it cuts -------------------------------------------------------------------------------------------


def test_a_text_that_fits_is_one_chunk_as_it_is() -> None:
    assert split_text("x" * 20, 20) == ["x" * 20]
    assert split_text("  a\n\n```\nopen", 20) == ["  a\n\n```\nopen"]


def test_an_empty_or_blank_text_is_nothing_to_send() -> None:
    assert split_text("", 10) == []
    assert split_text(" \n" * 50, 10) == []


def test_only_chunks_of_blank_space_are_left_out() -> None:
    text = f"one{' ' * 500}\n\n{' ' * 100}two{chr(10) * 300}```\n{chr(10) * 200}three\n```{' ' * 100}"
    chunks = split_chunks(text, 40)
    assert "".join(chunk.body for chunk in chunks) == text
    left_out = [chunk.body for chunk in chunks if chunk.text not in split_text(text, 40)]
    assert left_out
    assert "".join(left_out).isspace()
    assert [word for chunk in split_text(text, 40) for word in re.findall(r"\w+", chunk)] == ["one", "two", "three"]


def test_it_cuts_at_a_paragraph_rather_than_at_a_later_line() -> None:
    assert split_text("one\ntwo\n\nthree\nfour", 17) == ["one\ntwo\n\n", "three\nfour"]


def test_it_cuts_at_a_line_rather_than_at_a_later_word() -> None:
    assert split_text("one two\nthree four", 15) == ["one two\n", "three four"]


def test_it_cuts_at_a_word_rather_than_inside_one() -> None:
    assert split_text("one two three", 9) == ["one two ", "three"]


def test_it_cuts_a_word_that_is_longer_than_a_chunk() -> None:
    assert split_text("abcdefghij", 4) == ["abcd", "efgh", "ij"]


def test_a_paragraph_that_fills_a_chunk_exactly_is_not_cut() -> None:
    assert [chunk.strip() for chunk in split_text("aaaa bbb\n\ncccc", 8)] == ["aaaa bbb", "cccc"]


def test_a_code_block_that_fits_into_one_chunk_is_kept_whole() -> None:
    code = "```py\nprint(1)\n\nprint(2)\n```\n"
    assert split_text(f"Some words first.\n{code}And some after it.", 40) == [
        "Some words first.\n",
        code,
        "And some after it.",
    ]


# --- code blocks ---------------------------------------------------------------------------------------------


def test_a_long_code_block_is_closed_and_reopened_with_its_language() -> None:
    code = "".join(f"line {number}\n" for number in range(10))
    chunks = split_text(f"```python\n{code}```\nbye", 50)
    assert len(chunks) > 2
    assert all(chunk.startswith("```python\n") for chunk in chunks[:-1])
    assert all(fences(chunk) == ["```python", "```"] for chunk in chunks[:-1])
    assert "".join(re.findall(r"^line \d\n", "".join(chunks), re.MULTILINE)) == code


def test_a_code_block_in_a_list_keeps_its_indentation_and_its_longer_fence() -> None:
    code = "".join(f"    line {number}\n" for number in range(10))
    chunks = split_chunks(f"1. Run:\n    ~~~~ sh\n{code}    ~~~~\n", 60)
    inner = [chunk for chunk in chunks if chunk.opening]
    assert inner
    assert {chunk.opening for chunk in inner} == {"    ~~~~ sh\n"}
    assert {chunk.closing for chunk in chunks if chunk.closing} == {"    ~~~~"}


def test_a_fenced_line_longer_than_the_limit_ends_and_loses_nothing() -> None:
    """RemoteClaw's splitter never returns from this one."""
    chunks = split_chunks(f"```\n{'x' * 9004}\n```", 4000)
    assert len(chunks) == 3
    assert "".join(chunk.body for chunk in chunks) == f"```\n{'x' * 9004}\n```"
    assert [fences(chunk.text) for chunk in chunks] == [["```", "```"]] * 3


def test_a_shorter_fence_inside_a_longer_one_is_part_of_the_code() -> None:
    code = "````md\n" + "```py\nx\n```\n" * 4 + "````\n"
    chunks = split_chunks(code, 40)
    assert {chunk.opening for chunk in chunks[1:]} == {"````md\n"}
    assert {chunk.closing for chunk in chunks[:-1]} == {"````"}


def test_ticks_in_the_middle_of_a_line_are_not_made_a_fence_by_cutting_before_them() -> None:
    text = "word word word ```x``` word ``` word"
    for limit in range(1, len(text)):
        _, *later = split_text(text, limit)
        assert [chunk for chunk in later if re.match(r"[ \t]*```", chunk)] == [], limit


def test_an_info_string_too_long_to_repeat_is_reopened_with_the_language_alone() -> None:
    chunks = split_chunks("```python title='a very long title indeed'\n" + "line\n" * 20 + "```", 60)
    assert {chunk.opening for chunk in chunks[1:]} == {"```python\n"}


def test_a_limit_too_small_for_fences_still_ends_and_loses_nothing() -> None:
    text = "```py\nab cd\n```\n"
    for limit in range(1, 16):
        chunks = split_chunks(text, limit)
        assert "".join(chunk.body for chunk in chunks) == text
        assert all(chunk.text == chunk.body and len(chunk.body) <= limit for chunk in chunks)


@pytest.mark.parametrize(("unit", "least"), [("characters", 1), ("utf-16", 2), ("utf-8", 4)])
def test_a_limit_no_character_fits_in_is_refused(unit: LengthUnit, least: int) -> None:
    assert split_text("\U0001f600" * 2, least, unit) == ["\U0001f600"] * 2
    with pytest.raises(ValueError, match=f"limit must be at least {least}"):
        split_text("x", least - 1, unit)


# --- characters ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "character", [FAMILY, SCOTLAND, WAVE, ACCENTED, FLAGS[:2], "\u1112\u1161\u11ab", "\ud83d\ude00"]
)
def test_a_character_of_several_code_points_is_not_torn(character: str) -> None:
    for limit in range(len(character), 3 * len(character)):
        for chunk in split_text(character * 10, limit):
            assert chunk == character * (len(chunk) // len(character))


def test_flags_are_not_torn_and_paired_anew() -> None:
    assert split_text("a" + FLAGS * 3, 4) == ["a" + FLAGS[:2], FLAGS[2:] + FLAGS[:2], FLAGS[2:] + FLAGS[:2], FLAGS[2:]]


def test_a_character_longer_than_a_chunk_is_cut_so_that_the_splitter_ends() -> None:
    text = "z" + "\u0301" * 50
    assert "".join(split_text(text, 7)) == text


def test_the_limit_counts_what_the_channel_counts() -> None:
    emoji = "\U0001f600" * 10
    assert [len(chunk) for chunk in split_text(emoji, 8)] == [8, 2]
    assert [len(chunk) for chunk in split_text(emoji, 8, "utf-16")] == [4, 4, 2]
    assert [len(chunk) for chunk in split_text(emoji, 8, "utf-8")] == [2, 2, 2, 2, 2]


# --- at random -----------------------------------------------------------------------------------------------

PIECES = [
    "word", "words and words ", "x" * 30, "y" * 200, " ", "   ", "\n", "\n\n", "\n \n\n", "\t", "\r\n",
    "`code`", "``", "```", "~~~", "```py\n", "\n```\n", "\n    ```sh\n", "\n````md title\n", "\n````\n", "\n~~~\n",
    FAMILY, FLAGS, SCOTLAND, WAVE, ACCENTED, "\u00e4", "\u6f22\u5b57", "\ud83d\ude00", "\u2028",
    "z\u0300\u0301\u0302",
]  # fmt: skip


def random_text(rng: random.Random) -> str:
    return "".join(rng.choices(PIECES, k=rng.randint(1, 40)))


def random_document(rng: random.Random) -> tuple[str, int]:
    """Paragraphs and well-formed code blocks, and the number of code blocks."""
    parts, blocks = [], rng.randint(1, 4)
    for _ in range(blocks):
        parts.append(" ".join(rng.choices(["lorem", FAMILY, "ipsum" * 9, "dolor\n"], k=rng.randint(1, 30))) + "\n\n")
        indent, fence = rng.choice(["", "  "]), rng.choice(["```", "~~~~"])
        code = "".join(
            rng.choice(["", "if x:\n", "y = 1; " * 20 + "\n", "z" * rng.randint(1, 300) + "\n"])
            for _ in range(rng.randint(0, 12))
        )
        parts.append(f"{indent}{fence}{rng.choice(['', 'py', 'c++'])}\n{code}{indent}{fence}\n")
    return "".join(parts), blocks


@pytest.mark.slow
def test_of_five_thousand_random_texts_none_is_lost_doubled_or_cut_too_long() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # Shown if it fails.
    rng = random.Random(seed)
    for _ in range(5_000):
        text = random_text(rng)
        limit = rng.choice([4, 5, 8, 16, 17, 23, 40, 100, 400])
        unit: LengthUnit = rng.choice(["characters", "utf-16", "utf-8"])
        chunks = split_chunks(text, limit, unit)
        case = (seed, limit, unit, text)
        assert "".join(chunk.body for chunk in chunks) == text, case
        assert all(chunk.body for chunk in chunks), case
        assert all(size(chunk.text, unit) <= limit for chunk in chunks), case
        assert all(added_is_a_fence(chunk) for chunk in chunks), case
        assert (chunks[0].opening, chunks[-1].closing) == ("", ""), case
        assert split_text(text, limit, unit) == [chunk.text for chunk in chunks if chunk.body.strip()], case


@pytest.mark.slow
def test_of_a_thousand_random_documents_every_chunk_has_its_code_blocks_closed() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(1_000):
        text, blocks = random_document(rng)
        limit = rng.choice([40, 64, 150, 500, 4000])
        chunks = split_text(text, limit)
        for chunk in chunks:
            assert len(fences(chunk)) % 2 == 0, (seed, limit, chunk)
        assert sum(len(fences(chunk)) for chunk in chunks) >= 2 * blocks, (seed, limit, text)


def added_is_a_fence(chunk: Chunk) -> bool:
    return bool(
        re.fullmatch(r"(?:[ \t]*(?:`{3,}|~{3,})[^\n]*\n)?", chunk.opening)
        and re.fullmatch(r"(?:\n?[ \t]*(?:`{3,}|~{3,}))?", chunk.closing)
        and (not chunk.closing or (chunk.body + chunk.closing)[len(chunk.body) - 1] == "\n" or chunk.closing[0] == "\n")
    )


# --- payloads ------------------------------------------------------------------------------------------------


def test_no_text_gives_no_payload_and_a_short_one_gives_one() -> None:
    assert payloads_from([""]) == ()
    assert payloads_from(["Hello", " there"]) == (ReplyPayload("Hello there"),)


def test_what_the_agent_already_sent_is_not_delivered_again() -> None:
    blocks = ["I will tell them. ", "Your order has\nshipped."]
    assert payloads_from(blocks, sent=["Your order has shipped."]) == (ReplyPayload("I will tell them. "),)


def test_an_answer_that_says_more_than_what_was_sent_is_delivered_whole() -> None:
    answer = "Your order has shipped. It arrives on Monday."
    assert payloads_from([answer], sent=["Your order has shipped."]) == (ReplyPayload(answer),)


def test_an_ordinary_short_answer_is_not_taken_for_a_repetition() -> None:
    assert not was_sent("ok", ["The booking is okay now"])
    assert was_sent("ok", ["ok\n"])
