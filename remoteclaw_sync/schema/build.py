"""From Python types to JSON schemas.

Schemas are written out in full, without references: not every model's API follows them.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args, get_origin

from .fields import (
    DECIMAL,
    FROM_STRING,
    LISTS,
    MAPPINGS,
    PLAIN,
    SETS,
    Field,
    fields_of,
    is_named_tuple,
    is_pydantic,
    is_union,
    unwrapped,
    without_none,
)
from .plain import plain

Schema = dict[str, Any]

DEEPEST = 8  # How often a class is written out within itself: without a limit it would never end.
SMALL = 500  # Parts of a schema; one with more parts is written out less deeply.
LARGEST = 20_000  # Parts. No model reads more than this.


class _TooLarge(Exception):
    """The schema has more parts than allowed."""


def object_schema(fields: Iterable[Field], *, closed: bool) -> Schema:
    """The schema of an object with these fields; a closed one allows no others."""
    fields = list(fields)
    return _as_small_as_needed(lambda writer: writer.object(fields, (), closed=closed))


def schema_of(hint: Any) -> Schema:
    """The JSON schema of a type. Raises TypeError for one that JSON cannot carry."""
    return _as_small_as_needed(lambda writer: writer.of(hint, ()))


def without_references(schema: Mapping[str, Any]) -> Schema:
    """The same schema with each `$ref` replaced by its target; beyond some depth anything is allowed."""
    definitions = schema.get("$defs", {})
    written = _as_small_as_needed(lambda writer: writer.written_out(schema, definitions, ()))
    written.pop("$defs", None)
    return written


def _as_small_as_needed(write: Callable[[_Writer], Any]) -> Schema:
    """Classes that contain each other several times grow with each level; then the deeper levels are left out."""
    for deepest in range(DEEPEST, 1, -1):
        try:
            return dict(write(_Writer(deepest, SMALL)))
        except _TooLarge:
            continue
    try:
        return dict(write(_Writer(1, LARGEST)))
    except _TooLarge:
        raise TypeError(f"the type is too large: its JSON schema would have more than {LARGEST} parts") from None


class _Writer:
    """Writes a schema; `around` are the classes that enclose a part."""

    def __init__(self, deepest: int, most_parts: int) -> None:
        self._deepest = deepest
        self._parts_left = most_parts

    def object(self, fields: list[Field], around: tuple[Any, ...], *, closed: bool) -> Schema:
        properties = {field.name: self._field(field, around) for field in fields}
        required = [field.name for field in fields if field.required]
        schema: Schema = {"type": "object", "properties": properties}
        if required:
            schema["required"] = required
        if closed:
            schema["additionalProperties"] = False
        return schema

    def _field(self, field: Field, around: tuple[Any, ...]) -> Schema:
        hint, note = unwrapped(field.hint)
        if not field.required and field.default is None:
            hint = without_none(hint)  # Leaving it out means the same, and models handle the simpler schema better.
        schema = self.of(hint, around)
        if field.description or note:
            schema = {**schema, "description": field.description or note}
        if not field.required and isinstance(field.default, str | int | float | bool) and type(field.default) in PLAIN:
            schema = {**schema, "default": field.default}
        return schema

    def of(self, hint: Any, around: tuple[Any, ...]) -> Schema:
        self._count()
        hint, description = unwrapped(hint)
        schema = self._of_bare(hint, around)
        return {**schema, "description": description} if description else schema

    def _of_bare(self, hint: Any, around: tuple[Any, ...]) -> Schema:
        if hint in (Any, object):
            return {}
        if hint in PLAIN:
            return {"type": PLAIN[hint]}
        if hint in (None, types.NoneType):
            return {"type": "null"}
        if hint is DECIMAL:
            return {"anyOf": [{"type": "number"}, {"type": "string"}]}
        if hint in FROM_STRING:
            form = FROM_STRING[hint][1]
            return {"type": "string", "format": form} if form else {"type": "string"}
        origin, args = get_origin(hint) or hint, get_args(hint)
        if origin is Literal:
            return _choice(args)
        if is_union(hint):
            return {"anyOf": [self.of(member, around) for member in args]}
        if origin in LISTS and not is_named_tuple(origin):
            return self._array(origin, args, around)
        if origin in MAPPINGS:
            return self._mapping(args, around)
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return _choice(tuple(member.value for member in hint))
        if around.count(hint) >= self._deepest:
            return {}
        if is_pydantic(hint):
            return without_references(hint.model_json_schema())
        fields = fields_of(hint)
        if fields is None:
            raise TypeError(f"{getattr(hint, '__name__', hint)} cannot be passed as JSON")
        return self.object(fields, (*around, hint), closed=False)

    def _array(self, origin: Any, args: tuple[Any, ...], around: tuple[Any, ...]) -> Schema:
        if origin is tuple and args and args[-1] is not Ellipsis:
            size = len(args)
            items = {"anyOf": [self.of(member, around) for member in dict.fromkeys(args)]}
            return {"type": "array", "items": items, "minItems": size, "maxItems": size}
        schema: Schema = {"type": "array", "items": self.of(args[0], around) if args else {}}
        if origin in SETS:
            schema["uniqueItems"] = True
        return schema

    def _mapping(self, args: tuple[Any, ...], around: tuple[Any, ...]) -> Schema:
        if not args:
            return {"type": "object", "additionalProperties": {}}
        _check_key(args[0])
        return {"type": "object", "additionalProperties": self.of(args[1], around)}

    def written_out(self, part: Any, definitions: Mapping[str, Any], around: tuple[Any, ...]) -> Any:
        self._count()
        if isinstance(part, list):
            return [self.written_out(item, definitions, around) for item in part]
        if not isinstance(part, Mapping):
            return part
        name = str(part.get("$ref", "")).removeprefix("#/$defs/")
        if name in definitions:
            if around.count(name) >= self._deepest:
                return {}
            beside = {key: item for key, item in part.items() if key != "$ref"}
            return {**self.written_out(definitions[name], definitions, (*around, name)), **beside}
        return {key: self.written_out(item, definitions, around) for key, item in part.items() if key != "$defs"}

    def _count(self) -> None:
        self._parts_left -= 1
        if self._parts_left < 0:
            raise _TooLarge


def _choice(values: tuple[Any, ...]) -> Schema:
    values = tuple(map(plain, values))
    if not values:
        raise TypeError("an enum without members has no values")
    kinds = {PLAIN.get(type(value)) for value in values}
    kind = kinds.pop() if len(kinds) == 1 else None
    return {"type": kind, "enum": list(values)} if kind else {"enum": list(values)}


def _check_key(hint: Any) -> None:
    """Raise TypeError if the keys of a mapping cannot be written as strings."""
    bare, _ = unwrapped(hint)
    if is_union(bare):
        for member in get_args(bare):
            _check_key(member)
        return
    is_choice = get_origin(bare) is Literal or (isinstance(bare, type) and issubclass(bare, enum.Enum))
    if not (is_choice or bare in (Any, object, DECIMAL) or bare in PLAIN or bare in FROM_STRING):
        raise TypeError(f"{getattr(bare, '__name__', bare)} cannot be the key of a JSON object")
