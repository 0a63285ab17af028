"""Finds known secrets in a text, in whatever form they are quoted."""

from __future__ import annotations

import base64
import html
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from urllib.parse import quote, quote_plus

from .known import Secret
from .letters import Letters, begins_word, letters_of

MASK = "[redacted]"
SHORTEST_SECRET = 6  # Shorter values would hide parts of ordinary words.
SHORTEST_NAMED_SECRET = 3  # Found only as whole words, and only if the name says that they are secret.
SHORTEST_FRAGMENT = 8  # Of a secret that is cut off by the beginning or end of a text.
SHORTEST_ENCODED = 8  # Bytes. The base64 or hexadecimal form of fewer looks like an ordinary word or number.
MANY_LETTERS = 6
FEW = 4
LONGEST_BEGINNING = 64

Span = tuple[int, int]

# The rest of a code (an escape, an encoded byte) that a cut may have left before the rest of a secret.
_CUT_CODE = re.compile(r"u?[0-9A-Fa-f]{0,4}|[nrtbfv]")


class Secrets:
    """Known secrets, prepared for searching. Each is searched for separately and the results are merged, so one secret
    may be part of another. (Searching 64 KiB for 1,000 secrets takes 0.2 s.)"""

    def __init__(self, secrets: Iterable[Secret | str]) -> None:
        self.literals: set[str] = set()
        self.letters: set[str] = set()
        words: set[str] = set()
        for given in secrets:
            secret = Secret(given) if isinstance(given, str) else given
            value = secret.value.strip()
            if len(value) < (SHORTEST_NAMED_SECRET if secret.named else SHORTEST_SECRET):
                continue
            letters = letters_of(value)
            forms = {value} if len(letters) >= MANY_LETTERS else _spellings(value)
            if len(value) < SHORTEST_SECRET:
                words |= forms
                continue
            # Also search for them verbatim: after a stray "%" or "\", the first letters would be taken for a code.
            self.literals |= forms
            if len(letters) >= MANY_LETTERS:
                self.letters.add(letters)
            self.letters |= _encodings(value)
        self._by_size = sorted(self.letters, key=len)
        self._beginnings = Beginnings(self.letters, self.letters, 2)
        self._words = [re.compile(rf"{re.escape(word)}(?![A-Za-z0-9])") for word in words]

    def spans(self, text: str, view: Letters | None = None) -> list[Span]:
        """Where in the text the secrets are. The spans are not sorted and may overlap."""
        found = [(at, at + len(needle)) for needle in self.literals for at in _places(text, needle)]
        matches = (match for word in self._words for match in word.finditer(text))
        found += [match.span() for match in matches if begins_word(text, match.start())]
        if self.letters:
            view = view or Letters(text)
            letters = view.letters
            # Most strings of a recorded line are too short for most secrets.
            fitting = self._by_size[: bisect_right(self._by_size, len(letters), key=len)]
            found += [view.place(at, at + len(needle)) for needle in fitting for at in _places(letters, needle)]
        return found

    def pending(self, letters: str) -> int:
        """How many letters at the end may be the beginning of a secret."""
        return self._beginnings.pending(letters)

    def cut_spans(self, text: str) -> list[Span]:
        """Where the text begins or ends in the middle of a secret."""
        view = Letters(text)
        letters, found = view.letters, []
        if len(letters) < SHORTEST_FRAGMENT:
            return []
        codes = [size for size in range(6) if _CUT_CODE.fullmatch(text, 0, size)]
        first_letters = [size for size in codes if view.place(size, size + 1)[0] == size or size == 0]
        for needle in self.letters:
            for skipped in first_letters:
                kept = _overlap(needle[1:], letters[skipped:])
                if kept >= SHORTEST_FRAGMENT:
                    found.append(view.place(0, skipped + kept))
            kept = _overlap(letters, needle[:-1])
            if kept >= SHORTEST_FRAGMENT:
                found.append(view.place(len(letters) - kept, len(letters)))
        return found


class Beginnings:
    """Checks whether letters end with the beginning of a text that may continue in the next piece.

    Four letters are enough, or `least` of an `eager` text, or fewer if no other letters precede them. With a lower
    limit, every second piece would match, and would have to wait.
    """

    def __init__(self, texts: Iterable[str], eager: Iterable[str], least: int) -> None:
        texts = [text[:LONGEST_BEGINNING] for text in texts]
        self._parts = {text[at : at + FEW] for text in texts for at in range(len(text) - FEW)}
        self._all = {text[:size] for text in texts for size in range(1, len(text))}
        self._eager = {text[:size] for text in eager for size in range(least, min(FEW, len(text)))}

    def pending(self, letters: str) -> int:
        """How many letters at the end are such a beginning; if there are several, the length of the longest."""
        if len(letters) < FEW and letters in self._all:
            return len(letters)
        if letters[-FEW:] in self._parts:
            for size in range(min(LONGEST_BEGINNING, len(letters)), FEW - 1, -1):
                if letters[-size:] in self._all:
                    return size
        return next((size for size in (3, 2, 1) if letters[-size:] in self._eager), 0)


class Redactor:
    """Replaces secrets in messages. Reads the iterable only at the first text, which most runs do not have."""

    def __init__(self, secrets: Iterable[Secret | str]) -> None:
        self._known = secrets
        self._secrets: Secrets | None = None

    def __call__(self, text: str) -> str:
        if not text:
            return text
        if self._secrets is None:
            self._secrets = Secrets(self._known)
        spans = [*self._secrets.spans(text), *self._secrets.cut_spans(text)]
        return replaced(text, spans, lambda hidden: MASK)


def replaced(text: str, spans: Iterable[Span], by: Callable[[str], str]) -> str:
    """The text with these spans replaced; overlapping ones only once."""
    kept: list[str] = []
    at = 0
    for start, stop in joined(spans):
        kept += [text[at:start], by(text[start:stop])]
        at = stop
    return "".join([*kept, text[at:]])


def joined(spans: Iterable[Span]) -> list[Span]:
    """The same spans in order, with overlapping ones merged."""
    result: list[Span] = []
    for start, stop in sorted(spans):
        if result and start < result[-1][1]:
            result[-1] = (result[-1][0], max(stop, result[-1][1]))
        elif stop > start:
            result.append((start, stop))
    return result


def _places(text: str, needle: str) -> Iterable[int]:
    at = text.find(needle)
    while at != -1:
        yield at
        at = text.find(needle, at + 1)


def _overlap(left: str, right: str) -> int:
    """How many characters at the end of `left` are the beginning of `right`."""
    longest = min(len(left), len(right))
    head, tail = right[:SHORTEST_FRAGMENT], left[len(left) - longest :]
    at = tail.find(head)
    while at != -1:
        if right.startswith(tail[at:]):
            return len(tail) - at
        at = tail.find(head, at + 1)
    return 0


def _spellings(value: str) -> set[str]:
    """The usual ways to write a value that has too few letters to be recognised by them."""
    found = {value, html.escape(value), html.escape(value, quote=False), value.replace("\r\n", "\n")}
    for encode in (quote_plus, quote):
        encoded = encode(value, safe="", errors="replace")
        found |= {encoded, re.sub("%..", lambda code: code.group().lower(), encoded)}
    for ascii_only in (True, False):
        once = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        found |= {once, json.dumps(once, ensure_ascii=ascii_only)[1:-1]}
    return found


def _encodings(value: str) -> set[str]:
    """The letters of a value encoded in base64 (alone, or as part of a longer text), in hexadecimal, and as a list of
    bytes, which is how Node.js prints a buffer."""
    data = value.encode(errors="replace")
    if len(data) < SHORTEST_ENCODED:
        return set()
    found = {data.hex(), data.hex().upper(), "".join(map(str, data))}
    for shift in range(3):  # Its place in a group of three bytes.
        whole = len(data) + shift
        encoded = base64.b64encode(b"\0" * shift + data).decode()
        # Without the characters that also hold bits of a neighbour.
        found.add(letters_of(encoded[(0, 2, 3)[shift] : whole // 3 * 4 + (0, 1, 2)[whole % 3]]))
    return {letters for letters in found if len(letters) >= MANY_LETTERS}
