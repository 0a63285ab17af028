"""Turns Python types into JSON schemas, and JSON values into what a function expects.

Schemas are written out in full, without references: not every model's API follows them.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import enum
import os
import pathlib
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, get_args, get_origin

import attrs

Schema = dict[str, Any]

DEEPEST = 8  # Levels of nested classes; a class that contains itself would never end.
_LISTS: dict[Any, Callable[[list[Any]], Any]] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    collections.abc.Sequence: list,
    collections.abc.Iterable: list,
    collections.abc.Collection: list,
    collections.abc.Set: set,
}
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_NAMES = {"string": "a string", "integer": "an integer", "number": "a number", "boolean": "true or false"}
_PLAIN: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
# Written as a string; how it is read.
_FROM_STRING: dict[Any, tuple[Callable[[str], Any], str | None]] = {
    datetime.datetime: (datetime.datetime.fromisoformat, "date-time"),
    datetime.date: (datetime.date.fromisoformat, "date"),
    datetime.time: (datetime.time.fromisoformat, "time"),
    pathlib.Path: (pathlib.Path, None),
    pathlib.PurePath: (pathlib.PurePath, None),
    os.PathLike: (pathlib.Path, None),
}


class ArgumentError(ValueError):
    """An argument that does not fit; the message is for the model that gave it."""


@attrs.frozen
class Field:
    """A named part of an object: a parameter of a function, or a field of a class."""

    name: str
    hint: Any
    required: bool
    description: str = ""
    default: Any = None


def object_schema(fields: typing.Iterable[Field], *, closed: bool, depth: int = 0) -> Schema:
    """The schema of an object with these fields; a closed one allows no others."""
    properties = {field.name: _field_schema(field, depth) for field in fields}
    required = [field.name for field in fields if field.required]
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    if closed:
        schema["additionalProperties"] = False
    return schema


def _field_schema(field: Field, depth: int) -> Schema:
    hint, note = _unwrapped(field.hint)
    if not field.required and field.default is None:
        hint = _without_none(hint)  # Leaving it out means the same, and models handle the simpler schema better.
    schema = schema_of(hint, depth)
    if field.description or note:
        schema = {**schema, "description": field.description or note}
    if not field.required and isinstance(field.default, str | int | float | bool) and type(field.default) in _PLAIN:
        schema = {**schema, "default": field.default}
    return schema


def _without_none(hint: Any) -> Any:
    members = tuple(member for member in get_args(hint) if member is not types.NoneType)
    return Union[members] if _is_union(hint) else hint  # noqa: UP007


def schema_of(hint: Any, depth: int = 0) -> Schema:
    """The JSON schema of a type. Raises TypeError for one that JSON cannot carry."""
    hint, description = _unwrapped(hint)
    schema = _schema_of_bare(hint, depth)
    return {**schema, "description": description} if description else schema


def _schema_of_bare(hint: Any, depth: int) -> Schema:
    if hint in (Any, object) or depth > DEEPEST:
        return {}
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if hint in (None, types.NoneType):
        return {"type": "null"}
    if hint in _FROM_STRING:
        form = _FROM_STRING[hint][1]
        return {"type": "string", "format": form} if form else {"type": "string"}
    origin, args = get_origin(hint) or hint, get_args(hint)
    if origin is Literal:
        return _choice(args)
    if _is_union(hint):
        return {"anyOf": [schema_of(member, depth) for member in args]}
    if origin in _LISTS:
        return _array_schema(origin, args, depth)
    if origin in _MAPPINGS:
        return {"type": "object", "additionalProperties": schema_of(args[1], depth) if args else {}}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _choice(tuple(member.value for member in hint))
    fields = _fields_of(hint)
    if fields is None:
        raise TypeError(f"{getattr(hint, '__name__', hint)} cannot be passed as JSON")
    return object_schema(fields, closed=False, depth=depth + 1)


def _choice(values: tuple[Any, ...]) -> Schema:
    kinds = {_PLAIN.get(type(value)) for value in values}
    kind = kinds.pop() if len(kinds) == 1 else None
    return {"type": kind, "enum": list(values)} if kind else {"enum": list(values)}


def _array_schema(origin: Any, args: tuple[Any, ...], depth: int) -> Schema:
    if origin is tuple and args and args[-1] is not Ellipsis:
        size = len(args)
        items = {"anyOf": [schema_of(member, depth) for member in dict.fromkeys(args)]}
        return {"type": "array", "items": items, "minItems": size, "maxItems": size}
    schema: Schema = {"type": "array", "items": schema_of(args[0], depth) if args else {}}
    if origin in (set, frozenset, collections.abc.Set):
        schema["uniqueItems"] = True
    return schema


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _unwrapped(hint: Any) -> tuple[Any, str]:
    """The type behind Annotated (with its description), NewType, Required and the like."""
    description = ""
    while True:
        if get_origin(hint) is typing.Annotated:
            description = description or next((note for note in hint.__metadata__ if isinstance(note, str)), "")
            hint = hint.__origin__
        elif get_origin(hint) in (typing.Required, typing.NotRequired):
            hint = get_args(hint)[0]
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        else:
            return hint, description


def _fields_of(hint: Any) -> list[Field] | None:
    """The fields of a dataclass, an attrs class or a TypedDict; None for anything else."""
    if typing.is_typeddict(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        # Not by __required_keys__ alone: under "from __future__ import annotations" it misses NotRequired.
        marks = {typing.Required: True, typing.NotRequired: False}
        required = hint.__required_keys__
        return [Field(name, kind, marks.get(get_origin(kind), name in required)) for name, kind in hints.items()]
    if not isinstance(hint, type):
        return None
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        missing = dataclasses.MISSING
        return [
            Field(field.name, hints[field.name], field.default is missing and field.default_factory is missing)
            for field in dataclasses.fields(hint)
            if field.init
        ]
    if attrs.has(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        return [
            Field(field.alias or field.name, hints.get(field.name, Any), field.default is attrs.NOTHING)
            for field in attrs.fields(hint)
            if field.init
        ]
    return None


# --- from JSON to Python -------------------------------------------------------------------------------------


def convert_fields(values: Mapping[str, Any], fields: list[Field], where: str, *, closed: bool) -> dict[str, Any]:
    """Convert each value for its field. Raises ArgumentError, with a message for the model, if one does not fit."""
    by_name = {field.name: field for field in fields}
    missing = [field.name for field in fields if field.required and field.name not in values]
    if missing:
        raise ArgumentError(f"{where}missing: {', '.join(missing)}")
    unknown = [name for name in values if name not in by_name]
    if unknown and closed:
        raise ArgumentError(f"{where}unknown: {', '.join(unknown)}; known are: {', '.join(by_name) or 'none'}")
    converted = {}
    for name, value in values.items():
        field = by_name.get(name)
        if field is None:
            converted[name] = value
        elif not (value is None and not field.required and field.default is None):
            converted[name] = convert(value, field.hint, f"{where}{name}")
    return converted


def convert(value: Any, hint: Any, where: str) -> Any:
    """A JSON value as this type. Raises ArgumentError if it does not fit."""
    hint, _ = _unwrapped(hint)
    if hint in (Any, object):
        return value
    if hint in _PLAIN:
        return _convert_plain(value, hint, where)
    if hint in (None, types.NoneType):
        return _check(value is None, value, where, "null")
    if hint in _FROM_STRING:
        return _from_string(value, hint, where)
    origin, args = get_origin(hint) or hint, get_args(hint)
    if origin is Literal:
        _check(any(value == choice and type(value) is type(choice) for choice in args), value, where, _one_of(args))
        return value
    if _is_union(hint):
        return _convert_union(value, args, where)
    if origin in _LISTS:
        return _convert_list(value, origin, args, where)
    if origin in _MAPPINGS:
        _check(isinstance(value, dict), value, where, "an object")
        return {key: convert(item, args[1], f"{where}.{key}") if args else item for key, item in value.items()}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _convert_enum(value, hint, where)
    return _convert_object(value, hint, where)


def _convert_plain(value: Any, hint: Any, where: str) -> Any:
    # JSON has only one kind of number, and some CLIs write 3 as 3.0.
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    fits = isinstance(value, hint) and (hint is bool or not isinstance(value, bool))
    return _check(fits, value, where, _NAMES[_PLAIN[hint]])


def _from_string(value: Any, hint: Any, where: str) -> Any:
    read, form = _FROM_STRING[hint]
    _check(isinstance(value, str), value, where, f"a string ({form or 'a path'})")
    try:
        return read(value)
    except ValueError:
        raise ArgumentError(f"{where}: expected an ISO 8601 {form}, got {value!r}") from None


def _convert_union(value: Any, members: tuple[Any, ...], where: str) -> Any:
    reasons = []
    # A value that already has a member's type is kept: 3 stays an int and does not become a float.
    for member in sorted(members, key=lambda member: type(value) is not member):
        try:
            return convert(value, member, where)
        except ArgumentError as error:
            reasons.append(str(error))
    raise ArgumentError("; or ".join(reasons))


def _convert_list(value: Any, origin: Any, args: tuple[Any, ...], where: str) -> Any:
    _check(isinstance(value, list), value, where, "an array")
    if origin is tuple and args and args[-1] is not Ellipsis:
        _check(len(value) == len(args), value, where, f"an array of {len(args)}")
        return tuple(convert(value[index], hint, f"{where}[{index}]") for index, hint in enumerate(args))
    hint = args[0] if args else Any
    try:
        return _LISTS[origin]([convert(item, hint, f"{where}[{number}]") for number, item in enumerate(value)])
    except TypeError:
        raise ArgumentError(f"{where}: the items of a set must be plain values") from None


def _convert_enum(value: Any, hint: type[enum.Enum], where: str) -> Any:
    try:
        return hint(value)
    except ValueError:
        choices = _one_of(tuple(member.value for member in hint))
        raise ArgumentError(f"{where}: expected {choices}, got {value!r}") from None


def _convert_object(value: Any, hint: Any, where: str) -> Any:
    _check(isinstance(value, dict), value, where, "an object")
    fields = _fields_of(hint)
    if fields is None:
        return value
    converted = convert_fields(value, fields, f"{where}.", closed=not typing.is_typeddict(hint))
    if typing.is_typeddict(hint):
        return converted
    try:
        return hint(**converted)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{where}: {error}") from error


def _check(fits: bool, value: Any, where: str, expected: str) -> Any:
    if not fits:
        raise ArgumentError(f"{where}: expected {expected}, got {_shown(value)}")
    return value


def _one_of(values: tuple[Any, ...]) -> str:
    return f"one of {', '.join(map(repr, values))}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
