"""Reads fields of lines that another program wrote: each may be missing, null or of the wrong type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Message = dict[str, Any]
AMOUNTS_END = 2**63


def text(source: Mapping[str, Any], key: str) -> str:
    """The field if it is a str, else ""."""
    value = source.get(key)
    return value if type(value) is str else ""


def mapping(source: Mapping[str, Any], key: str) -> Message:
    """The field if it is an object, else {}."""
    value = source.get(key)
    return value if type(value) is dict else {}


def items(source: Mapping[str, Any], key: str) -> list[Any]:
    """The field if it is an array, else []."""
    value = source.get(key)
    return value if isinstance(value, list) else []


def objects(source: Mapping[str, Any], key: str) -> list[Message]:
    """The objects in the field, if it is an array; else []."""
    return [item for item in items(source, key) if type(item) is dict]


def strings(source: Mapping[str, Any], key: str) -> list[str]:
    """The strings in the field, if it is an array; else []."""
    return [item for item in items(source, key) if isinstance(item, str)]


def integer(source: Mapping[str, Any], key: str) -> int:
    """The field rounded down to an int, if it is a number that can be a count; else 0."""
    return int(number(source, key) or 0)


def number(source: Mapping[str, Any], key: str) -> float | None:
    """The field if it is a number that can be an amount (not negative, not over 64 bits, not infinity or NaN); else
    None."""
    value = source.get(key)
    if type(value) is not int and type(value) is not float:
        return None
    return value if 0 <= value < AMOUNTS_END else None


def wording(value: Any) -> str:
    """The message in a field that should hold one, whatever its type; "" if there is none."""
    if isinstance(value, dict):
        rest = {key: part for key, part in value.items() if key != "message"}
        said = wording(value.get("message")) or (plain_text(rest) if rest else "")
    else:
        said = "" if isinstance(value, bool) else plain_text(value)
    return said if said.strip() else ""


def plain_text(content: Any) -> str:
    """The readable form of a tool's output: a str, a list of content blocks, or anything else as JSON."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list):
        return "\n".join(_block_text(block) for block in content)
    return _as_json(content)


def _block_text(block: Any) -> str:
    if isinstance(block, str):
        return block
    if isinstance(block, dict):
        if isinstance(block.get("text"), str):
            return str(block["text"])
        if block.get("type") in ("image", "audio"):
            return f"[{block['type']}]"
    return "" if block is None else _as_json(block)


def _as_json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "[nested too deeply to be shown]"
