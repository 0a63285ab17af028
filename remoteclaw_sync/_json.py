"""Writes strictly standard JSON, whatever values an agent's tools may use."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterator
from typing import Any

COMPACT = (",", ":")
SPACED = (", ", ": ")
LARGEST_FILE = 1024 * 1024


def read_object(path: str) -> dict[str, Any]:
    """The object in a small file; an empty one if the file is missing or contains something else.

    The file may come from a repository, which can contain a link to /dev/zero or to a FIFO: we do not wait for those.
    """
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return {}
            content = json.loads(file.read(LARGEST_FILE))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def dump(value: Any, separators: tuple[str, str] = SPACED) -> str:
    """The value as one line of JSON. NaN and the like become null, unknown objects become strings."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=separators, default=str)
    except (ValueError, RecursionError):
        # It contains NaN, or is nested too deeply for the encoder, which cannot go as deep as the parser.
        return "".join(_pieces(value, *separators))


def _pieces(value: Any, comma: str, colon: str) -> Iterator[str]:
    """The same without recursion. Raises ValueError for a value that contains itself."""
    levels: list[tuple[Iterator[tuple[str, Any]], str, int]] = [(iter([("", value)]), "", 0)]
    around: set[int] = set()
    while levels:
        items, closing, key = levels[-1]
        for lead, item in items:
            yield lead
            if isinstance(item, dict):
                inner, brackets = _members(item, comma, colon), "{}"
            elif isinstance(item, list | tuple):
                inner, brackets = _elements(item, comma), "[]"
            else:
                yield _scalar(item)
                continue
            if id(item) in around:
                raise ValueError("a value that contains itself cannot be written as JSON")
            around.add(id(item))
            levels.append((inner, brackets[1], id(item)))
            yield brackets[0]
            break
        else:
            levels.pop()
            around.discard(key)
            yield closing


def _members(items: dict[Any, Any], comma: str, colon: str) -> Iterator[tuple[str, Any]]:
    lead = ""
    for key, item in items.items():
        name = key if isinstance(key, str) else json.dumps(key)
        yield f"{lead}{_scalar(name)}{colon}", item
        lead = comma


def _elements(items: list[Any] | tuple[Any, ...], comma: str) -> Iterator[tuple[str, Any]]:
    return ((comma if index else "", item) for index, item in enumerate(items))


def _scalar(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "null"
    return json.dumps(value, ensure_ascii=False, default=str)
