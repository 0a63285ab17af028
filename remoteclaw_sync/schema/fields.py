"""Takes types apart: the fields of a class, the members of a union, what is behind `Annotated`."""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import decimal
import os
import pathlib
import types
import typing
import uuid
from collections.abc import Callable
from typing import Any, Union, get_args, get_origin

import attrs

LISTS: dict[Any, Callable[[list[Any]], Any]] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    collections.abc.Sequence: list,
    collections.abc.Iterable: list,
    collections.abc.Collection: list,
    collections.abc.Set: set,
}
SETS = (set, frozenset, collections.abc.Set)
MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
PLAIN: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
DECIMAL = decimal.Decimal  # A number, or a string of digits, because a float cannot hold all of them.
PATHS = (pathlib.Path, pathlib.PurePath, os.PathLike)
# Types written as strings: how each is read, and its format.
FROM_STRING: dict[Any, tuple[Callable[[str], Any], str | None]] = {
    datetime.datetime: (datetime.datetime.fromisoformat, "date-time"),
    datetime.date: (datetime.date.fromisoformat, "date"),
    datetime.time: (datetime.time.fromisoformat, "time"),
    uuid.UUID: (uuid.UUID, "uuid"),
    pathlib.Path: (pathlib.Path, None),
    pathlib.PurePath: (pathlib.PurePath, None),
    os.PathLike: (pathlib.Path, None),
}
# Stands for the default of a class's field, which only the class knows. Not None, so that a given null stays a value.
OF_THE_CLASS = object()
TYPE_ALIAS: Any = getattr(typing, "TypeAliasType", ())  # `type X = ...`, from Python 3.12 on.


@attrs.frozen
class Field:
    """A named part of an object: a parameter of a function, or a field of a class."""

    name: str
    hint: Any
    required: bool
    description: str = ""
    default: Any = None


def unwrapped(hint: Any) -> tuple[Any, str]:
    """The type behind Annotated (with its description), NewType, Required, a type alias and the like."""
    description = ""
    while True:
        if get_origin(hint) is typing.Annotated:
            description = description or next((note for note in hint.__metadata__ if isinstance(note, str)), "")
            hint = hint.__origin__
        elif get_origin(hint) in (typing.Required, typing.NotRequired):
            hint = get_args(hint)[0]
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif isinstance(hint, TYPE_ALIAS):
            hint = hint.__value__
        else:
            return hint, description


def is_union(hint: Any) -> bool:
    """Whether the type is `A | B` or `Union[A, B]`."""
    return get_origin(hint) in (Union, types.UnionType)


def without_none(hint: Any) -> Any:
    """A union without its None; any other type unchanged."""
    members = tuple(member for member in get_args(hint) if member is not types.NoneType)
    return Union[members] if is_union(hint) else hint  # noqa: UP007


def allows_none(hint: Any) -> bool:
    """Whether null is a value of this type."""
    hint, _ = unwrapped(hint)
    if is_union(hint):
        return any(allows_none(member) for member in get_args(hint))
    if get_origin(hint) is typing.Literal:
        return None in get_args(hint)
    return hint in (Any, object, None, types.NoneType)


def is_pydantic(hint: Any) -> bool:
    """Whether the type is a pydantic model. Recognised by its methods: pydantic itself need not be installed."""
    return isinstance(hint, type) and hasattr(hint, "model_json_schema") and hasattr(hint, "model_validate")


def is_named_tuple(hint: Any) -> bool:
    """Whether the type is a NamedTuple; as JSON it is an object, like other classes."""
    return isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")


def fields_of(hint: Any) -> list[Field] | None:
    """The fields of a dataclass, an attrs class, a TypedDict or a NamedTuple; None for anything else."""
    if typing.is_typeddict(hint):
        hints = _hints_of(hint)
        # Not by __required_keys__ alone: with "from __future__ import annotations" it misses NotRequired.
        marks = {typing.Required: True, typing.NotRequired: False}
        required = hint.__required_keys__
        needed = {name: marks.get(get_origin(kind), name in required) for name, kind in hints.items()}
        return [Field(name, kind, needed[name], default=OF_THE_CLASS) for name, kind in hints.items()]
    if not isinstance(hint, type):
        return None
    if dataclasses.is_dataclass(hint):
        hints = _hints_of(hint)
        missing = dataclasses.MISSING
        return [
            Field(
                field.name,
                hints[field.name],
                field.default is missing and field.default_factory is missing,
                default=OF_THE_CLASS,
            )
            for field in dataclasses.fields(hint)
            if field.init
        ]
    if attrs.has(hint):
        hints = _hints_of(hint)
        return [
            Field(
                field.alias or field.name,
                hints.get(field.name, Any),
                field.default is attrs.NOTHING,
                default=OF_THE_CLASS,
            )
            for field in attrs.fields(hint)
            if field.init
        ]
    if is_named_tuple(hint):
        hints = _hints_of(hint)
        defaults = hint._field_defaults  # type: ignore[attr-defined]
        names = hint._fields  # type: ignore[attr-defined]
        return [Field(name, hints.get(name, Any), name not in defaults, default=OF_THE_CLASS) for name in names]
    return None


def _hints_of(cls: Any) -> dict[str, Any]:
    """The type hints of a class. Raises TypeError if a name in them cannot be found."""
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except NameError:
        pass  # A class within a function sees neither itself under its name nor the function's other classes.
    if cls.__dict__.get("__attrs_types_resolved__") is not None:  # The caller has resolved them with attrs.
        return {field.name: field.type for field in attrs.fields(cls)}
    try:
        return typing.get_type_hints(cls, localns={cls.__name__: cls}, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"the type hints of {cls.__name__} cannot be resolved: {error}; the classes in it have to be at the top "
            "level of their module"
        ) from error
