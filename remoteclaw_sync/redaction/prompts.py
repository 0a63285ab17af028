"""Finds text that repeats a prompt: all of it, one line, its beginning (as a title), or a long passage."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

import attrs

from .letters import Letters, letters_of
from .secrets import MANY_LETTERS, Beginnings, Span

# Columns of a terminal; six Chinese characters. A shorter prompt ("yes") is an ordinary word, except in the user's own
# text, or if it is several words or not a real word ("pw hunter2").
SHORTEST_PROMPT = 12
WORDS = re.compile(r"[^\W\d_]+(?: [^\W\d_]+)*[.!?]*")
SHORTEST_RUN = 12  # Letters in common: shorter passages are ignored.
LONG_RUN = 24  # Letters in common that cannot be a coincidence: five or six words.
CUT_MARKS = ("...", "\N{HORIZONTAL ELLIPSIS}", "[...]")

# Grams are taken at every STEP-th letter of the prompt, or of the text that is compared with it. A run of SHORTEST_RUN
# letters always contains a whole one.
GRAM = 8
STEP = SHORTEST_RUN - GRAM + 1
# For prompts of up to this many letters, we keep all grams (150 bytes each), or every STEP-th one. For a longer prompt,
# a few long grams must do: text that shares fewer than two of them with it is not found.
ALL_GRAMS = 64 * 1024
SOME_GRAMS = 1024 * 1024
LONG_GRAM = 64
PLACES_TRIED = 8  # For a gram that occurs in the prompt many times.
MOST_LINE_STARTS = 2_000
MOST_JOINED = SOME_GRAMS // 4  # Letters of texts that are searched for together.


@attrs.frozen
class Run:
    """Letters in common: from `begin` to `end` in the text being searched, from `start` to `stop` in the prompt."""

    begin: int
    end: int
    start: int
    stop: int


class Prompt:
    """A text that was sent, prepared for being recognised by its letters."""

    def __init__(self, text: str) -> None:
        lines = [_without_case(letters_of(line)) for line in text.splitlines()]
        self.letters = "".join(lines)
        self._starts: list[int] = []  # The start of each line that has letters.
        self._stops: list[int] = []
        at = 0
        for line in lines:
            if line:
                self._starts.append(at)
                self._stops.append(at + len(line))
            at += len(line)
        size = len(self.letters)
        self._gram = GRAM if size <= SOME_GRAMS else LONG_GRAM
        self._probe_step = STEP if size <= ALL_GRAMS else 1
        index_step = 1 if size <= ALL_GRAMS else STEP if size <= SOME_GRAMS else LONG_GRAM
        self._index: dict[str, list[int]] = {}
        for at in range(0, size - self._gram + 1, index_step):
            self._index.setdefault(self.letters[at : at + self._gram], []).append(at)

    def line_starts(self) -> Iterator[str]:
        """The first letters of each line, for finding beginnings that are too short to be a run."""
        for start in self._starts[:MOST_LINE_STARTS]:
            yield self.letters[start : start + SHORTEST_RUN]

    def runs(self, letters: str) -> Iterator[Run]:
        """The longest passages that these letters share with the prompt."""
        index, gram, known, step = self._index, self._gram, self.letters, self._probe_step
        at, told = 0, 0
        while at <= len(letters) - gram:
            places = index.get(letters[at : at + gram])
            if places is None:
                at += step
                continue
            tried = [_extended(letters, at, told, known, place, gram) for place in places[:PLACES_TRIED]]
            best = max(tried, key=lambda run: run.end - run.begin)
            at = told = best.end
            if best.end - best.begin >= SHORTEST_RUN:
                yield best

    def quoted(self, run: Run, *, ends_text: bool) -> tuple[int, int] | None:
        """The part of a run that quotes the prompt; None if it may be a phrase that both happen to use."""
        if run.stop - run.start >= LONG_RUN:
            return run.begin, run.end
        first = bisect_left(self._starts, run.start)
        last = bisect_right(self._stops, run.stop) - 1
        if first <= last and self._stops[last] - self._starts[first] >= SHORTEST_RUN:  # Whole lines.
            return run.begin + self._starts[first] - run.start, run.end - (run.stop - self._stops[last])
        begins_line = first < len(self._starts) and self._starts[first] == run.start
        ends_line = last >= 0 and self._stops[last] == run.stop
        if (begins_line and ends_text) or (ends_line and run.begin == 0):
            return run.begin, run.end
        return None


def _extended(letters: str, at: int, least: int, known: str, place: int, gram: int) -> Run:
    """The common passage around a shared gram, not before `least`."""
    begin, start = at, place
    while begin > least and start > 0 and letters[begin - 1] == known[start - 1]:
        begin, start = begin - 1, start - 1
    end, stop = at + gram, place + gram
    size = 1  # Doubled while the letters match, because a repeated prompt may be megabytes long.
    while size:
        if (
            letters[end : end + size] == known[stop : stop + size]
            and stop + size <= len(known)
            and end + size <= len(letters)
        ):
            end, stop, size = end + size, stop + size, size * 2
        else:
            size //= 2
    return Run(begin, end, start, stop)


class Prompts:
    """Texts that were sent: the prompt, the system prompt, and their rewritten forms.

    `as_one`: search for them as the lines of one text, so that a thousand take no longer than one.
    """

    def __init__(self, texts: Iterable[str], *, as_one: bool = False) -> None:
        stripped = {text.strip() for text in texts}
        whole = {form for text in stripped if text for form in _compositions(text)}
        long = {text for text in whole if not _is_ordinary(text)}
        unique = {letters_of(text): text for text in long}
        self._texts = [text for letters, text in unique.items() if len(letters) >= SHORTEST_RUN]
        self._prompts = [Prompt("\n".join(self._texts))] if as_one else [Prompt(text) for text in self._texts]
        short = [text for letters, text in unique.items() if len(letters) < SHORTEST_RUN]
        self.few_letters = frozenset(form for text in short for form in _in_title(text))
        few = [_without_case(letters_of(text)) for text in short]
        starts = [start for prompt in self._prompts for start in prompt.line_starts()]
        self._beginnings = Beginnings([*starts, *few], [*(prompt.letters for prompt in self._prompts), *few], 1)

    @property
    def size(self) -> int:
        """How many letters the texts have that are searched for."""
        return sum(len(prompt.letters) for prompt in self._prompts)

    def joined_with(self, later: Prompts) -> Prompts:
        """These prompts and later ones. (Those with few letters are searched for elsewhere.)"""
        return Prompts([*self._texts, *later._texts], as_one=True)

    def spans(self, text: str, view: Letters, *, every_run: bool) -> list[Span]:
        """Where the text quotes a prompt; with `every_run`, even where it shares only a few words with one."""
        found = []
        letters = _without_case(view.letters)
        for prompt in self._prompts:
            for run in prompt.runs(letters):
                ends_text = run.end == len(letters) or text[view.place(run.begin, run.end)[1] :].startswith(CUT_MARKS)
                part = (run.begin, run.end) if every_run else prompt.quoted(run, ends_text=ends_text)
                if part is not None:
                    found.append(view.place(*part))
        return found

    def pending(self, letters: str) -> int:
        """How many letters at the end are part of a prompt whose rest may follow."""
        letters = _without_case(letters)
        runs = [
            run.end - run.begin
            for prompt in self._prompts
            for run in prompt.runs(letters)
            if run.end == len(letters) and run.stop < len(prompt.letters)
        ]
        return max([*runs, self._beginnings.pending(letters)])


def _without_case(letters: str) -> str:
    """In lower case, to recognise a title made from a prompt; unchanged if letters would lose their places."""
    lower = letters.lower()
    return lower if len(lower) == len(letters) else letters


def _compositions(text: str) -> set[str]:
    return {unicodedata.normalize(form, text) for form in ("NFC", "NFD")} | {text}


def _is_ordinary(text: str) -> bool:
    columns = sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)
    if columns >= SHORTEST_PROMPT or not WORDS.fullmatch(text):
        return False
    return text.isalpha() or len(letters_of(text)) < MANY_LETTERS


def _in_title(text: str) -> set[str]:
    return {text, text.lower(), text.upper(), text.capitalize(), text.title()}
