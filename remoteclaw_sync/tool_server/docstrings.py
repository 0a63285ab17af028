"""Reads the descriptions of a function and its parameters from a docstring in Google, NumPy or Sphinx style."""

from __future__ import annotations

import inspect
import re

_SECTION = re.compile(
    r"(?:Args|Arguments|Parameters|Params|Returns?|Yields?|Raises|Examples?|Notes?|Attributes|See Also|Warnings?):?$"
)
_PARAMETERS = re.compile(r"(?:Args|Arguments|Parameters|Params):?$")
_GOOGLE = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY = re.compile(r"\*{0,2}(\w+)\s*(?::.*)?$")
_SPHINX = re.compile(r":param(?:eter)?\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)")


def describe(docstring: str | None) -> tuple[str, dict[str, str]]:
    """The text before the first section, and the description of each parameter."""
    lines = inspect.cleandoc(docstring or "").split("\n")
    summary: list[str] = []
    for line in lines:
        if line.startswith(":") or _SECTION.match(line):
            break
        summary.append(line)
    return "\n".join(summary).strip(), {**_sectioned(lines), **_sphinx(lines)}


def _sphinx(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    name = None
    for line in lines:
        if match := _SPHINX.match(line):
            name = match[1]
            found[name] = match[2].strip()
        elif name is not None and line.startswith(" ") and line.strip():
            found[name] = f"{found[name]} {line.strip()}".strip()
        else:
            name = None
    return found


def _sectioned(lines: list[str]) -> dict[str, str]:
    for index, line in enumerate(lines):
        if _PARAMETERS.match(line):
            if index + 1 < len(lines) and re.fullmatch(r"-{3,}", lines[index + 1].strip()):
                return _items(_body(lines[index + 2 :], indented=False), _NUMPY)
            return _items(_body(lines[index + 1 :], indented=True), _GOOGLE)
    return {}


def _body(lines: list[str], *, indented: bool) -> list[str]:
    """The lines of a section: Google style indents them, in NumPy style they end at the next title."""
    body = []
    for line in lines:
        if line.strip() and (not line.startswith(" ") if indented else bool(_SECTION.match(line))):
            break
        body.append(line)
    return inspect.cleandoc("\n" + "\n".join(body)).split("\n")


def _items(lines: list[str], pattern: re.Pattern[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    name = None
    for line in lines:
        match = None if line.startswith(" ") else pattern.match(line)
        if match is not None:
            name = match[1]
            found[name] = match[2].strip() if pattern.groups > 1 else ""
        elif name is not None and line.strip():
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found
