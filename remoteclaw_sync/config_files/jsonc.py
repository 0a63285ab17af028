"""Parses JSON with comments and trailing commas, as the CLIs accept it in their configs, and finds positions in it."""

from __future__ import annotations

import json
import re
from typing import Any

_TOKEN = re.compile(
    r"""
      (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<comment>//[^\n]*|/\*.*?\*/)
    | (?P<open>[{\[]) | (?P<close>[}\]]) | (?P<comma>,) | (?P<colon>:)
    | (?P<space>\s+)
    | (?P<other>[^\s"{}\[\],:/]+|.)
    """,
    re.VERBOSE | re.DOTALL,
)
BOM = "\ufeff"


def parse(text: str) -> Any:
    """The value of a JSON text with comments and trailing commas. Raises ValueError."""
    try:
        return json.loads(_without_extras(text.removeprefix(BOM)), strict=False)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _without_extras(text: str) -> str:
    parts: list[str] = []
    comma_at: int | None = None  # The last comma, which is a trailing one if a bracket closes next.
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        if kind == "comment":
            parts.append(" ")
            continue
        if kind == "close" and comma_at is not None:
            parts[comma_at] = ""
        if kind == "comma":
            comma_at = len(parts)
        elif kind != "space":
            comma_at = None
        parts.append(match.group())
    return "".join(parts)


def object_start(text: str, path: tuple[str, ...]) -> int | None:
    """The offset just after the `{` of the object at this path of keys; None if there is no such object.

    If a key is repeated, the last one counts, as in every JSON parser.
    """
    start: int | None = None
    depth = 0  # How many brackets are open inside the object.
    key: str | None = None
    found: int | None = None
    wanted = list(path)
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        if kind in ("comment", "space"):
            continue
        if start is None:
            if kind != "open" or match.group() != "{":
                return None if match.group() != BOM else object_start(text[1:], path)
            start = match.end()
            if not wanted:
                return start
            continue
        if kind == "open":
            if depth == 0 and key == wanted[0] and match.group() == "{":
                found = match.start()
            depth += 1
        elif kind == "close":
            depth -= 1
            if depth < 0:
                break
        elif depth == 0 and kind == "string":
            key = json.loads(match.group(), strict=False)
        elif depth == 0 and kind == "comma":
            key = None
    if found is None:
        return None
    inner = object_start(text[found:], path[1:])
    return None if inner is None else found + inner
