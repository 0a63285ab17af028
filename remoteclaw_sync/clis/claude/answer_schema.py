"""Turns JSON schemas into the form that Claude Code takes for an answer (2.1.326).

It reads them with Ajv, in strict mode and as draft 7. A schema with any other keyword ends a one-shot run; a live
session silently drops it. So keywords that only describe or limit a value are left out, because we check the answer
anyway, and a schema that needs more than draft 7 goes into the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...schema.convert import equal
from ...schema.validate import check_schema, is_common_pattern

VALUES = frozenset({"const", "default", "examples"})  # Their values are not schemas.
KEPT = VALUES | frozenset(
    {"$ref", "type", "title", "description", "format", "pattern", "minLength", "maxLength", "uniqueItems"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"minItems", "maxItems", "minProperties", "maxProperties"}
)
WITH_SCHEMA = frozenset({"items", "additionalProperties", "not", "propertyNames", "contains", "if", "then", "else"})
WITH_SCHEMAS = frozenset({"anyOf", "oneOf", "allOf"})
WITH_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
# Keywords of later drafts. They say what a value is, so the model has to know about them.
LATER = frozenset(
    {"prefixItems", "dependentSchemas", "dependentRequired", "unevaluatedProperties", "unevaluatedItems"}
    | {"minContains", "maxContains", "$dynamicRef", "$recursiveRef"}
)


class _NotTaken(Exception):
    """The schema has something that Claude does not know."""


def accepted(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same schema in the form that Claude takes; None if it has no such form."""
    try:
        made = _part(schema)
        check_schema(made)  # A reference may point to a keyword that was left out.
    except (_NotTaken, ValueError):
        return None
    assert isinstance(made, dict)
    return made


def _part(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    if LATER & schema.keys() or _names_meet_patterns(schema):
        raise _NotTaken
    made = {word: value for word, value in schema.items() if word in KEPT}
    if not is_common_pattern(made.get("pattern", "")):
        del made["pattern"]
    if "enum" in schema:
        made["enum"] = _once(schema["enum"])
    if "required" in schema:
        made["required"] = list(dict.fromkeys(schema["required"]))
    made |= {word: _part(schema[word]) for word in WITH_SCHEMA & schema.keys()}
    made |= {word: [_part(inner) for inner in schema[word]] for word in WITH_SCHEMAS & schema.keys() if schema[word]}
    for word in WITH_NAMED_SCHEMAS & schema.keys():
        made[word] = {name: _part(inner) for name, inner in schema[word].items()}
    if "if" not in made or not {"then", "else"} & made.keys():
        made = {word: value for word, value in made.items() if word not in ("if", "then", "else")}
    return made


def _names_meet_patterns(schema: Mapping[str, Any]) -> bool:
    """Whether a field may have two schemas, one by its name and one by a pattern."""
    patterns, names = schema.get("patternProperties", {}), schema.get("properties", {})
    return any(not is_common_pattern(one) or any(re.search(one, name) for name in names) for one in patterns)


def _once(values: list[Any]) -> list[Any]:
    kept: list[Any] = []
    for value in values:
        if not any(equal(value, other) for other in kept):
            kept.append(value)
    return kept
