"""Checks a JSON value against a JSON schema: the keywords that models' APIs know, and references within the schema.

Keywords that are not known here are ignored, as the standard requires.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .convert import equal, one_of, shown

MAX_PROBLEMS = 10
MAX_DEPTH = 200  # A schema may refer to itself.

_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "object": ("an object", lambda value: isinstance(value, dict)),
    "array": ("an array", lambda value: isinstance(value, list)),
    "string": ("a string", lambda value: isinstance(value, str)),
    "integer": ("an integer", lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer())),
    "number": ("a number", lambda value: _is_number(value)),
    "boolean": ("true or false", lambda value: isinstance(value, bool)),
    "null": ("null", lambda value: value is None),
}
_TEXTS = frozenset({"$ref", "title", "description", "format"})
_MAY_BE_NEGATIVE = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_SIZES = _MAY_BE_NEGATIVE | {"multipleOf", "minLength", "maxLength", "minItems", "maxItems"}
_SIZES |= {"minProperties", "maxProperties"}
# Escapes that mean the same in all kinds of regular expressions, and groups that only group.
_COMMON = re.compile(r"(?:[^\\(]|\\[dDwWsSbB.^$*+?()\[\]{}|/\\nrt]|\((?!\?)|\(\?:)*", re.DOTALL)
_WITH_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_WITH_SCHEMA = ("items", "additionalProperties", "not", "propertyNames", "contains", "if", "then", "else")
_WITH_NAMED_SCHEMAS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")


def copy_of_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the schema, as the model gets it, that nobody else can change. Raises what `check_schema` raises."""
    try:
        copy = json.loads(json.dumps(dict(schema), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the schema is not JSON: {error}") from None
    assert isinstance(copy, dict)
    check_schema(copy)
    return copy


def check_schema(schema: Any) -> None:
    """Raise ValueError for something that is not a JSON schema or cannot be used here."""
    try:
        json.dumps(schema, allow_nan=False)
        _check_part(schema, "the schema")
    except (TypeError, RecursionError) as error:
        raise ValueError(f"the schema is not JSON: {error}") from None
    for reference in _references(schema):
        if not _found(schema, reference):
            raise ValueError(f"the schema refers to {reference!r}, which is not in it")


def _check_part(part: Any, where: str) -> None:
    if isinstance(part, bool):
        return
    if not isinstance(part, dict):
        raise ValueError(f"{where} must be an object (or true, or false), not {shown(part)}")
    kinds = part.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if not isinstance(kind, str) or kind not in _KINDS:
            raise ValueError(f"{where}: type must be {one_of(tuple(_KINDS))}, not {kind!r}")
    if "enum" in part and not (isinstance(part["enum"], list) and part["enum"]):
        raise ValueError(f"{where}: enum must be an array of at least one value")
    required = part.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise ValueError(f"{where}: required must be an array of strings")
    for word in _TEXTS & part.keys():
        if not isinstance(part[word], str):
            raise ValueError(f"{where}: {word} must be a string")
    for word in _SIZES & part.keys():
        if not _is_number(part[word]) or (word not in _MAY_BE_NEGATIVE and part[word] < 0):
            raise ValueError(f"{where}: {word} must be a number, not {shown(part[word])}")
    for name, inner in _parts(part):
        _check_part(inner, f"{where}.{name}")
    for pattern in (*([part["pattern"]] if "pattern" in part else []), *part.get("patternProperties", {})):
        try:
            re.compile(pattern)
        except (re.error, TypeError, RecursionError) as error:
            raise ValueError(f"{where}: pattern cannot be used: {error}") from None


def _parts(part: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in _WITH_SCHEMA:
        if name in part:
            yield name, part[name]
    for name in _WITH_SCHEMAS:
        found = part.get(name, [])
        if not isinstance(found, list):
            raise ValueError(f"{name} of a schema must be an array")
        yield from ((f"{name}[{number}]", inner) for number, inner in enumerate(found))
    for name in _WITH_NAMED_SCHEMAS:
        named = part.get(name, {})
        if not isinstance(named, dict):
            raise ValueError(f"{name} of a schema must be an object")
        yield from ((f"{name}.{key}", inner) for key, inner in named.items())


def is_common_pattern(pattern: str) -> bool:
    """Whether other programs read this regular expression as Python does: no look-around, no flags, no names."""
    return _COMMON.fullmatch(pattern) is not None


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for _, inner in _parts(part):
            yield from _references(inner)


def _found(root: Any, reference: str) -> list[Any]:
    """What a reference leads to, in a list; empty if the target does not exist or is outside the schema."""
    place = root
    if reference != "#" and not reference.startswith("#/"):
        return []
    for step in reference[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(place, dict) and name in place:
            place = place[name]
        elif isinstance(place, list) and name.isdecimal() and int(name) < len(place):
            place = place[int(name)]
        else:
            return []
    return [place]


def problems(value: Any, schema: Any, where: str) -> list[str]:
    """Everything that is wrong with a value, as sentences for the model that gave it; empty if it fits."""
    return _Check(schema).of(value, schema, where, 0)[:MAX_PROBLEMS]


class _Check:
    """The check of one value; `root` is the schema in which references are looked up."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: dict[tuple[int, str, int], list[str]] = {}

    def of(self, value: Any, schema: Any, where: str, depth: int) -> list[str]:
        if schema is True or depth > MAX_DEPTH:
            return []
        if schema is False:
            return [f"{where}: nothing is allowed here"]
        # Each pair is checked once: alternatives that lead to each other would double the work on each level. A schema
        # that is met again while it is being checked reports nothing more.
        pair = (id(value), where, id(schema))
        if pair not in self._known:
            self._known[pair] = []
            self._known[pair] = self._new(value, schema, where, depth)
        return self._known[pair]

    def _new(self, value: Any, schema: Mapping[str, Any], where: str, depth: int) -> list[str]:
        found = [problem for check in (_kind, _choices, _numbers, _strings) for problem in check(value, schema, where)]
        if found:
            return found
        found += self._references(value, schema, where, depth)
        found += self._combined(value, schema, where, depth)
        if isinstance(value, dict):
            found += self._object(value, schema, where, depth)
        if isinstance(value, list):
            found += self._array(value, schema, where, depth)
        return found

    def _references(self, value: Any, schema: Mapping[str, Any], where: str, depth: int) -> Iterator[str]:
        for target in _found(self._root, schema["$ref"]) if isinstance(schema.get("$ref"), str) else []:
            yield from self.of(value, target, where, depth + 1)

    def _combined(self, value: Any, schema: Mapping[str, Any], where: str, depth: int) -> Iterator[str]:
        for inner in schema.get("allOf", []):
            yield from self.of(value, inner, where, depth + 1)
        for word in ("anyOf", "oneOf"):
            reasons = [self.of(value, inner, where, depth + 1) for inner in schema.get(word, [])]
            fitting = sum(not reason for reason in reasons)
            if reasons and not fitting:
                yield "; or ".join(dict.fromkeys(reason[0] for reason in reasons))
            elif word == "oneOf" and fitting > 1:
                yield f"{where}: fits more than one of the forms it may have"
        if "not" in schema and not self.of(value, schema["not"], where, depth + 1):
            yield f"{where}: {shown(value)} is not allowed"
        if "if" in schema:
            branch = "else" if self.of(value, schema["if"], where, depth + 1) else "then"
            yield from self.of(value, schema.get(branch, True), where, depth + 1)

    def _object(self, value: dict[str, Any], schema: Mapping[str, Any], where: str, depth: int) -> Iterator[str]:
        known: dict[str, Any] = schema.get("properties", {})
        patterns: dict[str, Any] = schema.get("patternProperties", {})
        missing = [name for name in schema.get("required", []) if name not in value]
        if missing:
            yield f"{where}: missing: {', '.join(missing)}"
        for name, inner in schema.get("dependentSchemas", {}).items():
            if name in value:
                yield from self.of(value, inner, where, depth + 1)
        others = schema.get("additionalProperties", True)
        for name, item in value.items():
            matching = [inner for pattern, inner in patterns.items() if re.search(pattern, name)]
            schemas = [*([known[name]] if name in known else []), *matching]
            if others is False and not schemas:
                yield f"{where}: unknown: {name}; known are: {', '.join(known) or 'none'}"
                continue
            for inner in schemas or [others]:
                yield from self.of(item, inner, f"{where}.{name}", depth + 1)
            if "propertyNames" in schema:
                yield from self.of(name, schema["propertyNames"], where, depth + 1)
        yield from _within(len(value), schema, where, "Properties", "field")

    def _array(self, value: list[Any], schema: Mapping[str, Any], where: str, depth: int) -> Iterator[str]:
        first: list[Any] = schema.get("prefixItems", [])
        for number, item in enumerate(value):
            inner = first[number] if number < len(first) else schema.get("items", True)
            yield from self.of(item, inner, f"{where}[{number}]", depth + 1)
        yield from _within(len(value), schema, where, "Items", "item")
        if schema.get("uniqueItems") is True:
            written = [json.dumps(item, sort_keys=True) for item in value]
            if len(set(written)) < len(written):
                yield f"{where}: has an item twice"
        if "contains" in schema and all(self.of(item, schema["contains"], where, depth + 1) for item in value):
            yield f"{where}: lacks an item that it must have"


def _kind(value: Any, schema: Mapping[str, Any], where: str) -> Iterator[str]:
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if kinds and not any(_KINDS[kind][1](value) for kind in kinds):
        yield f"{where}: expected {' or '.join(_KINDS[kind][0] for kind in kinds)}, got {shown(value)}"


def _choices(value: Any, schema: Mapping[str, Any], where: str) -> Iterator[str]:
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if choices is not None and not any(equal(value, choice) for choice in choices):
        yield f"{where}: expected {one_of(tuple(choices))}, got {shown(value)}"


def _numbers(value: Any, schema: Mapping[str, Any], where: str) -> Iterator[str]:
    if not _is_number(value):
        return
    limits: list[tuple[str, str, Callable[[Any], bool]]] = [
        ("minimum", "at least", lambda limit: value >= limit),
        ("maximum", "at most", lambda limit: value <= limit),
        ("exclusiveMinimum", "more than", lambda limit: value > limit),
        ("exclusiveMaximum", "less than", lambda limit: value < limit),
    ]
    for word, words, fits in limits:
        limit = schema.get(word)
        if _is_number(limit) and not fits(limit):
            yield f"{where}: expected {words} {limit}, got {shown(value)}"
    step = schema.get("multipleOf")
    if _is_number(step) and step and not _is_multiple(value, step):
        yield f"{where}: expected a multiple of {step}, got {shown(value)}"


def _is_multiple(value: float, step: float) -> bool:
    if isinstance(value, int) and isinstance(step, int):
        return value % step == 0
    try:
        return abs(value / step - round(value / step)) <= 1e-9
    except OverflowError:
        return True  # For a number of this size it cannot be decided.


def _strings(value: Any, schema: Mapping[str, Any], where: str) -> Iterator[str]:
    if not isinstance(value, str):
        return
    yield from _within(len(value), schema, where, "Length", "character")
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and re.search(pattern, value) is None:
        yield f"{where}: expected text that matches {pattern!r}, got {shown(value)}"


def _within(size: int, schema: Mapping[str, Any], where: str, word: str, unit: str) -> Iterator[str]:
    least, most = schema.get(f"min{word}"), schema.get(f"max{word}")
    if isinstance(least, int) and size < least:
        yield f"{where}: expected at least {least} {unit}s, got {size}"
    if isinstance(most, int) and size > most:
        yield f"{where}: expected at most {most} {unit}s, got {size}"


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or math.isfinite(value)


def without_nulls(value: Any, schema: Any) -> Any:
    """The value without fields that are null instead of left out: some APIs make a model fill in every field."""
    return _WithoutNulls(schema).of(value, schema, 0)


class _WithoutNulls:
    def __init__(self, root: Any) -> None:
        self._root = root

    def of(self, value: Any, schema: Any, depth: int) -> Any:
        if not isinstance(schema, dict) or not isinstance(value, dict | list) or depth > MAX_DEPTH:
            return value
        for target in _found(self._root, schema["$ref"]) if "$ref" in schema else []:
            value = self.of(value, target, depth + 1)
        for inner in schema.get("allOf", []):
            value = self.of(value, inner, depth + 1)
        value = self._of_alternatives(value, [*schema.get("anyOf", []), *schema.get("oneOf", [])], depth)
        return self._of_list(value, schema, depth) if isinstance(value, list) else self._of_fields(value, schema, depth)

    def _of_alternatives(self, value: Any, alternatives: list[Any], depth: int) -> Any:
        """Which alternative is meant is clear only without the nulls."""
        for inner in alternatives:
            attempt = self.of(value, inner, depth + 1)
            if not self._problems(attempt, inner):
                return attempt
        return value

    def _of_list(self, value: list[Any], schema: dict[str, Any], depth: int) -> list[Any]:
        return [self.of(item, schema.get("items"), depth + 1) for item in value]

    def _of_fields(self, value: dict[str, Any], schema: dict[str, Any], depth: int) -> dict[str, Any]:
        known, required = schema.get("properties", {}), schema.get("required", [])
        return {
            name: self.of(item, known.get(name), depth + 1)
            for name, item in value.items()
            if item is not None or name in required or name not in known or not self._problems(None, known[name])
        }

    def _problems(self, value: Any, schema: Any) -> list[str]:
        return _Check(self._root).of(value, schema, "it", 0)
