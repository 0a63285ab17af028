"""Turns JSON schemas into the form of OpenAI's strict mode, in which Codex asks for an answer (0.169.0).

There every object is closed and every field is required: an optional field is null instead. Many keywords are not
known; those that only limit a value are left out, because we check the answer anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...schema.validate import check_schema, is_common_pattern

KINDS: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
KEPT = frozenset(
    {"type", "description", "enum", "pattern", "multipleOf"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems"}
)
# These say what a value is, and do not only limit it, so they cannot be left out.
UNKNOWN = frozenset({"allOf", "prefixItems", "patternProperties", "if", "dependentSchemas", "$dynamicRef"})
DEEPEST = 10
MOST_PROPERTIES = 5_000
MOST_CHOICES = 1_000


class _NotStrict(Exception):
    """The schema has something that strict mode lacks, such as a mapping or a value of any type."""


def strict(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same schema in the form of strict mode; None if it has no such form."""
    try:
        counted = _Counted()
        made = counted.part(schema, 1)
        for name in ("$defs", "definitions"):
            if name in schema:
                made[name] = {key: counted.part(part, 1) for key, part in schema[name].items()}
        check_schema(made)  # A reference may point to a keyword that was left out.
    except (_NotStrict, ValueError):
        return None
    return made


class _Counted:
    def __init__(self) -> None:
        self._properties = 0
        self._choices = 0

    def part(self, schema: Any, depth: int) -> dict[str, Any]:
        if isinstance(schema, Mapping) and _is_a_reference(schema.get("allOf")):
            schema = schema["allOf"][0]  # Older drafts needed this to put keywords beside a reference.
        if not isinstance(schema, Mapping) or depth > DEEPEST or UNKNOWN & schema.keys():
            raise _NotStrict
        if "$ref" in schema:
            return {"$ref": schema["$ref"]}  # No keyword may stand beside it.
        made = {word: schema[word] for word in schema if word in KEPT}
        if not is_common_pattern(made.get("pattern", "")):
            del made["pattern"]
        if schema.get("format") in FORMATS:
            made["format"] = schema["format"]
        if "const" in schema:
            made["enum"] = [schema["const"]]
        for word in ("anyOf", "oneOf"):
            if word in schema:
                made["anyOf"] = [self.part(member, depth) for member in schema[word]]
        if "enum" in made:
            return self._choice(made)
        kinds = schema.get("type")
        if kinds is None and "anyOf" not in made:
            raise _NotStrict  # Any value is allowed.
        if kinds == "object" or (isinstance(kinds, list) and "object" in kinds):
            made |= self._object(schema, depth)
        if kinds == "array" or (isinstance(kinds, list) and "array" in kinds):
            made["items"] = self.part(schema.get("items"), depth + 1)
        return made

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties", {})
        if not properties or schema.get("additionalProperties", False) is not False:
            raise _NotStrict  # Its fields are not known.
        self._properties += len(properties)
        if self._properties > MOST_PROPERTIES:
            raise _NotStrict
        required = schema.get("required", [])
        fields = {name: self.part(part, depth + 1) for name, part in properties.items()}
        fields = {name: part if name in required else _or_null(part) for name, part in fields.items()}
        return {"properties": fields, "required": list(fields), "additionalProperties": False}

    def _choice(self, made: dict[str, Any]) -> dict[str, Any]:
        """The choices of an enum must have one type; choices of several types become alternatives."""
        choices = made["enum"]
        self._choices += len(choices)
        if self._choices > MOST_CHOICES or not all(type(choice) in KINDS for choice in choices):
            raise _NotStrict
        if "type" in made:
            return made
        kinds = _once(KINDS[type(choice)] for choice in choices)
        rest = {word: part for word, part in made.items() if word != "enum"}
        groups = [{"type": kind, "enum": [one for one in choices if KINDS[type(one)] == kind]} for kind in kinds]
        return {**groups[0], **rest} if len(groups) == 1 else {"anyOf": groups, **rest}


def _is_a_reference(members: Any) -> bool:
    return isinstance(members, list) and len(members) == 1 and "$ref" in members[0]


def _once(kinds: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(kinds))


def _or_null(part: dict[str, Any]) -> dict[str, Any]:
    if "description" in part:
        inner = {word: value for word, value in part.items() if word != "description"}
        return {**_or_null(inner), "description": part["description"]}
    if "anyOf" in part:
        has_null = any(member.get("type") == "null" for member in part["anyOf"])
        return part if has_null else {**part, "anyOf": [*part["anyOf"], {"type": "null"}]}
    return {"anyOf": [part, {"type": "null"}]}
