"""The differences between the transcripts of two versions of a CLI: line types, fields, exit codes, words on stderr.

This only compares and starts no CLI; capture.py makes the transcripts.

A line type is the line's own `type` with those of the tagged objects in it
(`stream_event/content_block_delta/text_delta`). A field is a path (`message.content[tool_use].input.command`) with the
JSON types seen there. Values do not count, because they differ in every run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NOT_JSON = "(not JSON)"
UNTYPED = "(untyped)"
# The keys that distinguish kinds of lines, outermost first, and the parts that may hold further ones.
TAGS = ("type", "subtype", "role")
TAGGED_PARTS = ("event", "delta", "content_block", "item", "part")
# A path is still the same in another version if it only contains another id or file name.
ID_LIKE_KEY = re.compile(r"[/\\]|[0-9a-f]{8}-[0-9a-f]{4}-|_[0-9A-Za-z]{16,}")
# Stack traces, and messages of Gemini CLI about its own startup, which appear or not depending on timing.
UNTOLD_LINE = re.compile(r"\s+at .+|\s+cause: .+|[{}\s]*|\[STARTUP\] .+")
WORD_WITH_DIGIT = re.compile(r"\S*\d\S*")


@dataclass(frozen=True)
class Transcript:
    """One captured run."""

    lines: tuple[str, ...]
    exit_code: int
    stderr: str


Shape = Mapping[str, frozenset[str]]  # Field path to the JSON types seen there.


@dataclass(frozen=True)
class Drift:
    """The differences, ready to print; falsy if there are none."""

    findings: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.findings)


def read_transcripts(folder: Path) -> dict[str, Transcript]:
    """The captured runs of one version, by scenario; empty if there is no such folder."""
    return {path.stem: _read_transcript(path) for path in sorted(folder.glob("*.ndjson"))}


def compare(old: Mapping[str, Transcript], new: Mapping[str, Transcript]) -> Drift:
    """The differences in the scenarios that both have, and which of the new ones are not stored."""
    shared = [name for name in new if name in old]
    findings = [f"scenario {name}: nothing stored to compare with" for name in new if name not in old]
    findings += _shape_findings([old[name] for name in shared], [new[name] for name in shared])
    for name in shared:
        findings += _scenario_findings(name, old[name], new[name])
    return Drift(tuple(findings))


def shapes(transcripts: Iterable[Transcript]) -> dict[str, Shape]:
    """All line types with their fields."""
    seen: dict[str, dict[str, set[str]]] = {}
    for transcript in transcripts:
        for line in transcript.lines:
            kind, fields = _line_shape(line)
            shape = seen.setdefault(kind, {})
            for path, json_type in fields:
                shape.setdefault(path, set()).add(json_type)
    return {kind: {path: frozenset(json_types) for path, json_types in shape.items()} for kind, shape in seen.items()}


def line_type(line: str) -> str:
    """Which kind of line this is."""
    return _line_shape(line)[0]


# --- comparison ---------------------------------------------------------------------------------------------


def _shape_findings(old: Iterable[Transcript], new: Iterable[Transcript]) -> Iterator[str]:
    before, after = shapes(old), shapes(new)
    for kind in sorted(after.keys() - before.keys()):
        yield f"new line type {kind}: {', '.join(sorted(after[kind]))}"
    for kind in sorted(before.keys() - after.keys()):
        yield f"missing line type {kind}"
    kinds_of: dict[str, list[str]] = {}
    for kind in sorted(before.keys() & after.keys()):
        for finding in _field_findings(before[kind], after[kind]):
            kinds_of.setdefault(finding, []).append(kind)
    for finding, kinds in sorted(kinds_of.items()):
        yield f"{finding} in {', '.join(kinds)}"


def _field_findings(old: Shape, new: Shape) -> Iterator[str]:
    for path in _outermost(new.keys() - old.keys()):
        yield f"new field {path} ({_spelled(new[path])})"
    for path in _outermost(old.keys() - new.keys()):
        yield f"missing field {path} ({_spelled(old[path])})"
    for path in sorted(old.keys() & new.keys()):
        if old[path] != new[path]:
            yield f"changed field {path} ({_spelled(old[path])} -> {_spelled(new[path])})"


def _scenario_findings(name: str, old: Transcript, new: Transcript) -> Iterator[str]:
    if old.exit_code != new.exit_code:
        yield f"scenario {name}: exit code {old.exit_code} -> {new.exit_code}"
    before, after = ({line_type(line) for line in transcript.lines} for transcript in (old, new))
    for kind in sorted(after - before):
        yield f"scenario {name}: now also prints {kind}"
    for kind in sorted(before - after):
        yield f"scenario {name}: no longer prints {kind}"
    said, says = _words(old.stderr), _words(new.stderr)
    for line in sorted(says - said):
        yield f"scenario {name}: stderr says anew: {line:.200}"
    for line in sorted(said - says):
        yield f"scenario {name}: stderr no longer says: {line:.200}"


def _outermost(paths: Iterable[str]) -> list[str]:
    """Without the paths below another one: a new object has only new fields."""
    kept: list[str] = []
    for path in sorted(paths):
        if not any(path.startswith((f"{outer}.", f"{outer}[")) for outer in kept):
            kept.append(path)
    return kept


def _spelled(json_types: frozenset[str]) -> str:
    return "|".join(sorted(json_types))


def _words(stderr: str) -> set[str]:
    """What stderr says, without what differs in every run (ids, times, chunk names)."""
    lines = (line for line in stderr.splitlines() if not UNTOLD_LINE.fullmatch(line))
    return {WORD_WITH_DIGIT.sub("#", line).strip() for line in lines}


# --- shapes -------------------------------------------------------------------------------------------------


def _read_transcript(path: Path) -> Transcript:
    end = json.loads(path.with_suffix(".end.json").read_text(encoding="utf-8"))
    lines = path.read_text(encoding="utf-8").split("\n")
    return Transcript(tuple(line for line in lines if line.strip()), end["exit_code"], end["stderr"])


def _line_shape(line: str) -> tuple[str, set[tuple[str, str]]]:
    try:
        value = json.loads(line, strict=False)
    except ValueError:
        return NOT_JSON, set()
    if not isinstance(value, dict):
        return UNTYPED, {("", _json_type(value))}
    return "/".join(_tags(value)) or UNTYPED, set(_fields("", value))


def _tags(value: Mapping[str, Any]) -> Iterator[str]:
    for name in TAGS:
        if isinstance(value.get(name), str):
            yield value[name]
    for name in TAGGED_PARTS:
        if isinstance(value.get(name), dict):
            yield from _tags(value[name])


def _fields(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if path:
        yield path, _json_type(value)
    if isinstance(value, dict):
        for key, inner in value.items():
            name = "*" if ID_LIKE_KEY.search(key) else key
            yield from _fields(f"{path}.{name}" if path else name, inner)
    elif isinstance(value, list):
        for element in value:
            tag = element.get("type", "") if isinstance(element, dict) else ""
            yield from _fields(f"{path}[{tag}]", element)


def _json_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
