"""What every value class shares: plain-dict round trips and field checks.

Knows nothing of runs or CLIs, so that `types.py` reads as a list of facts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Self

import attrs

# A field that stays in this process (a threading.Event, a callback) and is left out of to_dict().
TRANSIENT = {"transient": True}


def decoded_by(decode: Callable[[Any], Any]) -> dict[str, Any]:
    """Field metadata: how from_dict() turns the plain value back into ours."""
    return {"decode": decode}


def plain(value: Any) -> Any:
    """The JSON-ready form of one value: values become dicts, tuples lists, paths strings."""
    if isinstance(value, Value):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value


@attrs.frozen
class Value:
    """Base of all frozen values: `to_dict()` and `from_dict()` are inverse over JSON."""

    def to_dict(self) -> dict[str, Any]:
        """This value as a dict of plain JSON types, snake_case keys."""
        return {
            field.name: plain(getattr(self, field.name))
            for field in attrs.fields(type(self))
            if not field.metadata.get("transient")
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The value `to_dict()` was called on. Unknown keys are ignored, so newer writers can be read."""
        kwargs: dict[str, Any] = {}
        for field in attrs.fields(cls):
            if field.init and field.name in data and not field.metadata.get("transient"):
                raw = data[field.name]
                decode = field.metadata.get("decode")
                kwargs[field.name] = decode(raw) if decode is not None and raw is not None else raw
        return cls(**kwargs)


def each(decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A decoder for a list of such values."""
    return lambda items: tuple(decode(item) for item in items)


def each_value(decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A decoder for a mapping to such values."""
    return lambda items: {key: decode(item) for key, item in items.items()}


def as_tuple(value: Any) -> Any:
    """Converter for sequence fields. A lone string is left alone, so that the validator can refuse it."""
    return value if isinstance(value, str | bytes) or not hasattr(value, "__iter__") else tuple(value)


def as_dict(value: Any) -> Any:
    """Converter for mapping fields: a private copy, so a caller's later change does not reach a run."""
    if value is None:
        return {}
    return dict(value) if isinstance(value, Mapping) else value


# --- checks: each message starts with the field's name and says what would be right -------------------


def check_text(name: str, value: object, *, empty_ok: bool = False) -> None:
    """A str that UTF-8 and an operating system can carry."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if not empty_ok and not value.strip():
        raise ValueError(f"{name} must not be empty")
    if "\0" in value:
        raise ValueError(f"{name} must not contain a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        # The value itself stays out of the message: it may be a prompt or a secret.
        message = f"{name} contains a lone surrogate at position {error.start}, which UTF-8 cannot carry"
        raise ValueError(message) from None


def check_strings(name: str, value: object) -> None:
    """A tuple of such texts (each may be empty)."""
    if not isinstance(value, tuple):
        raise TypeError(f"{name} must be a sequence of str, not {type(value).__name__}")
    for index, item in enumerate(value):
        check_text(f"{name}[{index}]", item, empty_ok=True)


def check_env(name: str, value: object, *, unset_ok: bool) -> None:
    """A mapping of variable names to values; with `unset_ok` None removes the variable."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping of str to str, not {type(value).__name__}")
    for key, item in value.items():
        check_text(f"a key of {name}", key)
        if "=" in key:
            # Only the part before it is shown: the rest is a value that went into the wrong place.
            raise ValueError(f"{name}: the name {key.partition('=')[0]!r}... must not contain '='")
        if item is None and unset_ok:
            continue
        check_text(f"{name}[{key!r}]", item, empty_ok=True)


def check_seconds(name: str, value: object) -> None:
    """A positive number of seconds, or None for no limit."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds or None, not {type(value).__name__}")
    try:
        seconds = float(value)
    except OverflowError:
        raise ValueError(f"{name} is a larger number than a clock can take; None is no limit") from None
    if not seconds > 0:  # NaN is not, either.
        raise ValueError(f"{name} must be a positive number of seconds (or None for no limit), not {value}")


def check_size(name: str, value: object) -> None:
    """A positive number of bytes."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if value <= 0:
        raise ValueError(f"{name} must be positive, not {value}")


def check_flag(name: str, value: object) -> None:
    """True or False; "no" and "false" are true, which is the wrong way round to find out."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")


def check_path(name: str, value: object) -> None:
    """A non-empty str or os.PathLike[str]."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name} must be a str or a path, not {type(value).__name__}")
    check_text(name, os.fspath(value))
