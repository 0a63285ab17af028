"""From JSON values to values of a type. Messages are for the model that gave the value."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import math
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from .fields import (
    DECIMAL,
    FROM_STRING,
    LISTS,
    MAPPINGS,
    PATHS,
    PLAIN,
    Field,
    allows_none,
    fields_of,
    is_named_tuple,
    is_pydantic,
    is_union,
    unwrapped,
)
from .plain import key_of, plain

_NAMES = {"string": "a string", "integer": "an integer", "number": "a number", "boolean": "true or false"}
_NUMBERS = {int: re.compile(r"-?\d+", re.ASCII), float: re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", re.ASCII)}


class ArgumentError(ValueError):
    """A value that does not fit; the message is for the model that gave it."""


def convert_fields(values: Mapping[str, Any], fields: list[Field], where: str, *, closed: bool) -> dict[str, Any]:
    """Convert each value for its field. Raises ArgumentError, with a message for the model, if one does not fit."""
    by_name = {field.name: field for field in fields}
    missing = [field.name for field in fields if field.required and field.name not in values]
    if missing:
        raise ArgumentError(f"{where}missing: {', '.join(missing)}")
    unknown = [name for name in values if name not in by_name]
    if unknown and closed:
        raise ArgumentError(f"{where}unknown: {', '.join(unknown)}; known are: {', '.join(by_name) or 'none'}")
    converted: dict[str, Any] = {}
    # A Literal comes first: it tells the members of a union apart before everything in them has been tried.
    for name in sorted(values, key=lambda name: name not in by_name or not _is_literal(by_name[name].hint)):
        field, value = by_name.get(name), values[name]
        if field is None:
            converted[name] = value
        elif not (value is None and _may_be_left_out(field)):
            converted[name] = convert(value, field.hint, f"{where}{name}")
    return {name: converted[name] for name in values if name in converted}


def _is_literal(hint: Any) -> bool:
    return get_origin(unwrapped(hint)[0]) is Literal


def _may_be_left_out(field: Field) -> bool:
    """Whether null means the same as leaving the field out. Models send null where an API makes them fill in all."""
    return not field.required and (field.default is None or not allows_none(field.hint))


def convert(value: Any, hint: Any, where: str) -> Any:
    """The JSON value as this type. Raises ArgumentError if it does not fit."""
    hint, _ = unwrapped(hint)
    if hint in (Any, object):
        return value
    if hint in PLAIN:
        return _convert_plain(value, hint, where)
    if hint in (None, types.NoneType):
        return _check(value is None, value, where, "null")
    if hint is DECIMAL:
        return _convert_decimal(value, where)
    if hint in FROM_STRING:
        return _from_string(value, hint, where)
    origin, args = get_origin(hint) or hint, get_args(hint)
    if origin is Literal:
        return _convert_choice(value, args, where)
    if is_union(hint):
        return _convert_union(value, args, where)
    if origin in LISTS and not is_named_tuple(origin):
        return _convert_list(value, origin, args, where)
    if origin in MAPPINGS:
        _check(isinstance(value, dict), value, where, "an object")
        return _convert_mapping(value, args, where)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _convert_enum(value, hint, where)
    if is_pydantic(hint):
        return _convert_pydantic(value, hint, where)
    return _convert_object(value, hint, where)


def _convert_plain(value: Any, hint: Any, where: str) -> Any:
    # JSON has only one kind of number, and some CLIs write 3 as 3.0.
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ArgumentError(f"{where}: expected a number of a usual size, got {shown(value)}") from None
    fits = isinstance(value, hint) and (hint is bool or not isinstance(value, bool))
    if hint is float and fits:
        fits = math.isfinite(value)
    return _check(fits, value, where, _NAMES[PLAIN[hint]])


def _convert_decimal(value: Any, where: str) -> decimal.Decimal:
    """A number is read from its shortest form: 19.99, and not the float nearest to it."""
    _check(isinstance(value, str | int | float) and not isinstance(value, bool), value, where, "a number")
    try:
        read = decimal.Decimal(str(value))
    except ArithmeticError:
        read = decimal.Decimal("nan")
    _check(read.is_finite(), value, where, "a number")
    return read


def _from_string(value: Any, hint: Any, where: str) -> Any:
    read, form = FROM_STRING[hint]
    _check(isinstance(value, str), value, where, f"a string ({form or 'a path'})")
    try:
        return read(value)
    except ValueError:
        expected = "a UUID" if form == "uuid" else f"an ISO 8601 {form}"
        raise ArgumentError(f"{where}: expected {expected}, got {shown(value)}") from None


def _convert_union(value: Any, members: tuple[Any, ...], where: str) -> Any:
    reasons = []
    for member in sorted(members, key=lambda member: _distance(value, unwrapped(member)[0])):
        try:
            return convert(value, member, where)
        except ArgumentError as error:
            reasons.append(str(error))
    raise ArgumentError("; or ".join(dict.fromkeys(reasons)))


def _distance(value: Any, hint: Any) -> int:
    """How far a member of a union is from this value: of those that fit, the closest is meant.

    3 stays an int and does not become a float, a date is a date although it is also a text, and for an object the class
    with exactly these fields precedes one that has others, too.
    """
    if hint in (Any, object):
        return 4
    if get_origin(hint) is Literal or (isinstance(hint, type) and issubclass(hint, enum.Enum)):
        return 0
    if isinstance(value, str):
        return 3 if hint is str or hint in PATHS else 1 if hint is datetime.date else 2
    if isinstance(value, dict):
        fields = fields_of(hint)
        return 1 if fields is not None and {field.name for field in fields} == value.keys() else 2
    return 1 if type(value) is hint else 2


def _convert_list(value: Any, origin: Any, args: tuple[Any, ...], where: str) -> Any:
    _check(isinstance(value, list), value, where, "an array")
    if origin is tuple and args and args[-1] is not Ellipsis:
        _check(len(value) == len(args), value, where, f"an array of {len(args)}")
        return tuple(convert(value[index], hint, f"{where}[{index}]") for index, hint in enumerate(args))
    hint = args[0] if args else Any
    try:
        return LISTS[origin]([convert(item, hint, f"{where}[{number}]") for number, item in enumerate(value)])
    except TypeError:
        raise ArgumentError(f"{where}: the items of a set must be plain values") from None


def _convert_mapping(value: Mapping[str, Any], args: tuple[Any, ...], where: str) -> dict[Any, Any]:
    if not args:
        return dict(value)
    return {_convert_key(key, args[0], where): convert(item, args[1], f"{where}.{key}") for key, item in value.items()}


def _convert_key(key: str, hint: Any, where: str) -> Any:
    """JSON keys are strings, so a number is written as one."""
    bare, _ = unwrapped(hint)
    if is_union(bare):
        return _convert_union_key(key, get_args(bare), where)
    if bare in _NUMBERS:
        _check(_NUMBERS[bare].fullmatch(key) is not None, key, where, f"{_NAMES[PLAIN[bare]]} as a key")
        return _convert_plain(bare(key), bare, where)
    choices = get_args(bare) if get_origin(bare) is Literal else (True, False) if bare is bool else ()
    if isinstance(bare, type) and issubclass(bare, enum.Enum):
        choices = tuple(bare)
    if choices:
        by_name = {key_of(choice): choice for choice in choices}
        _check(key in by_name, key, where, one_of(tuple(by_name)))
        return by_name[key]
    return convert(key, hint, where)


def _convert_union_key(key: str, members: tuple[Any, ...], where: str) -> Any:
    """A key is a text only if it is nothing else."""
    reasons = []
    for member in sorted(members, key=lambda member: _distance(key, unwrapped(member)[0])):
        try:
            return _convert_key(key, member, where)
        except ArgumentError as error:
            reasons.append(str(error))
    raise ArgumentError("; or ".join(reasons))


def _convert_pydantic(value: Any, hint: Any, where: str) -> Any:
    try:
        return hint.model_validate_json(json.dumps(value))  # In JSON, even a strict model takes a date as a string.
    except Exception as error:  # noqa: BLE001 - pydantic's own, or what a validator of the model raises
        raise ArgumentError(f"{where}: {_reason(error)}") from error


def _convert_choice(value: Any, choices: tuple[Any, ...], where: str) -> Any:
    for choice in choices:
        if equal(plain(choice), value):
            return choice
    raise ArgumentError(f"{where}: expected {one_of(tuple(map(plain, choices)))}, got {shown(value)}")


def _convert_enum(value: Any, hint: type[enum.Enum], where: str) -> Any:
    try:
        return _convert_choice(value, tuple(hint), where)
    except ArgumentError:
        if isinstance(value, bool):
            raise
        try:
            return hint(value)  # Some enums accept other names for a value, or combine values.
        except Exception:  # noqa: BLE001 - also what its `_missing_` raises
            pass
        raise


def _convert_object(value: Any, hint: Any, where: str) -> Any:
    _check(isinstance(value, dict), value, where, "an object")
    fields = fields_of(hint)
    if fields is None:
        return value
    converted = convert_fields(value, fields, f"{where}.", closed=True)
    if typing.is_typeddict(hint):
        return converted
    try:
        return hint(**converted)
    except Exception as error:  # noqa: BLE001 - what the class raises for values that it does not take
        raise ArgumentError(f"{where}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Why a class refused its values. ValueErrors are written for people; a KeyError needs its name."""
    if isinstance(error, ValueError | TypeError):
        return str(error)
    return ": ".join(filter(None, (type(error).__name__, str(error))))


def equal(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal: 1 equals 1.0, but not true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return bool(one == other)


def _check(fits: bool, value: Any, where: str, expected: str) -> Any:
    if not fits:
        raise ArgumentError(f"{where}: expected {expected}, got {shown(value)}")
    return value


def one_of(values: tuple[Any, ...]) -> str:
    """The choices, in words."""
    return f"one of {', '.join(map(repr, values))}"


def shown(value: Any) -> str:
    """The value as quoted in a message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
