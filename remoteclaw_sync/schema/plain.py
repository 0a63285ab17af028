"""From Python values to JSON values: the reverse of `convert`."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import os
import uuid
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import attrs

from .fields import is_named_tuple, is_pydantic


def plain(value: Any) -> Any:
    """The value as JSON types: classes become objects, enums their values, dates ISO 8601."""
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, uuid.UUID | decimal.Decimal):
        return str(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {key_of(key): plain(item) for key, item in value.items()}
    if is_pydantic(type(value)):
        return value.model_dump(mode="json", by_alias=True)
    named = _named_parts(value)
    if named is not None:
        return {name: plain(item) for name, item in named}
    if isinstance(value, list | tuple | AbstractSet):
        return [plain(item) for item in value]
    raise TypeError(f"a {type(value).__name__} has no JSON form")


def key_of(key: Any) -> str:
    """The value as the key of an object."""
    written = plain(key)
    return written if isinstance(written, str) else json.dumps(written)


def _named_parts(value: Any) -> Iterable[tuple[str, Any]] | None:
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(kind) if field.init]
    if attrs.has(kind):
        return [(field.alias or field.name, getattr(value, field.name)) for field in attrs.fields(kind) if field.init]
    if is_named_tuple(kind):
        return list(zip(value._fields, value, strict=True))
    return None
