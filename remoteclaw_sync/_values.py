"""What all value classes share: conversion to and from plain dicts, and field checks.

Knows nothing about runs or CLIs, so that `types.py` reads as a list of facts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

import attrs

# A field that stays in this process (a threading.Event, a callback) and is left out of to_dict().
TRANSIENT = {"transient": True}
ATOMS = frozenset({str, int, float, bool, type(None)})


def decoded_by(decode: Callable[[Any], Any]) -> dict[str, Any]:
    """Field metadata: how from_dict() turns the plain value back into the field's type."""
    return {"decode": decode}


def plain(value: Any) -> Any:
    """The JSON-ready form of one value: Values become dicts, tuples become lists, paths become strings.

    Does not recurse, because a tool's input may be nested as deeply as a parser can read. Raises ValueError for a value
    that contains itself.
    """
    made, items = _opened(value)
    if items is None:
        return made
    levels: list[tuple[Any, Iterator[tuple[Any, Any]], int]] = [(made, items, id(value))]
    around = {id(value)}
    while levels:
        target, items, identity = levels[-1]
        for key, item in items:
            if type(item) in ATOMS:
                target[key] = item
                continue
            target[key], inner = _opened(item)
            if inner is not None:
                if id(item) in around:
                    raise ValueError("a value that contains itself has no plain form")
                around.add(id(item))
                levels.append((target[key], inner, id(item)))
                break
        else:
            levels.pop()
            around.discard(identity)
    return made


def _opened(value: Any) -> tuple[Any, Iterator[tuple[Any, Any]] | None]:
    """The plain form; for a container, an empty one and the items to fill in."""
    if type(value) in ATOMS:
        return value, None
    if isinstance(value, Value):
        return value.to_dict(), None
    if isinstance(value, Mapping):
        return {}, iter(value.items())
    if isinstance(value, tuple | list):
        return [None] * len(value), enumerate(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value), None
    return value, None


@attrs.frozen
class Value:
    """Base of all frozen values: `from_dict()` is the inverse of `to_dict()`, also by way of JSON."""

    def to_dict(self) -> dict[str, Any]:
        """This value as a dict of plain JSON types with snake_case keys."""
        return {
            field.name: plain(getattr(self, field.name))
            for field in attrs.fields(type(self))
            if not field.metadata.get("transient")
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The value that `to_dict()` was called on. Unknown keys are ignored, so that data from newer versions can be
        read."""
        kwargs: dict[str, Any] = {}
        for field in attrs.fields(cls):
            if field.init and field.name in data and not field.metadata.get("transient"):
                raw = data[field.name]
                decode = field.metadata.get("decode")
                kwargs[field.name] = decode(raw) if decode is not None and raw is not None else raw
        return cls(**kwargs)


def each(decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A decoder for a list of values that `decode` decodes."""
    return lambda items: tuple(decode(item) for item in items)


def each_value(decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A decoder for a mapping to values that `decode` decodes."""
    return lambda items: {key: decode(item) for key, item in items.items()}


def as_tuple(value: Any) -> Any:
    """Converter for sequence fields. A single string is left unchanged, so that the validator can refuse it."""
    return value if isinstance(value, str | bytes) or not hasattr(value, "__iter__") else tuple(value)


def as_dict(value: Any) -> Any:
    """Converter for mapping fields: makes a private copy, so that a caller's later change does not reach a run."""
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
    """A tuple of texts as `check_text` accepts them (each may be empty)."""
    if not isinstance(value, tuple):
        raise TypeError(f"{name} must be a sequence of str, not {type(value).__name__}")
    for index, item in enumerate(value):
        check_text(f"{name}[{index}]", item, empty_ok=True)


def check_env(name: str, value: object, *, unset_ok: bool) -> None:
    """A mapping of variable names to values; with `unset_ok`, the value None removes the variable."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping of str to str, not {type(value).__name__}")
    for key, item in value.items():
        check_text(f"a key of {name}", key)
        if "=" in key:
            # Only the part before the "=" is shown: the rest is a value that was put in the wrong place.
            raise ValueError(f"{name}: the name {key.partition('=')[0]!r}... must not contain '='")
        if item is None and unset_ok:
            continue
        check_text(f"{name}[{key!r}]", item, empty_ok=True)


def check_seconds(name: str, value: object, *, none_ok: bool = True) -> None:
    """A positive number of seconds; with `none_ok`, None too, for no limit."""
    if value is None and none_ok:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        or_none = " or None" if none_ok else ""
        raise TypeError(f"{name} must be a number of seconds{or_none}, not {type(value).__name__}")
    or_none = " (or None for no limit)" if none_ok else ""
    try:
        seconds = float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large a number of seconds{or_none}") from None
    if not seconds > 0:  # Also true for NaN.
        raise ValueError(f"{name} must be a positive number of seconds{or_none}, not {value}")


def check_size(name: str, value: object) -> None:
    """A positive number of bytes."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if value <= 0:
        raise ValueError(f"{name} must be positive, not {value}")


def check_count(name: str, value: object, least: int = 0) -> None:
    """A whole number that is at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")


def check_limit(name: str, value: object) -> None:
    """A whole number of at least one, or None for no limit."""
    if value is not None:
        check_count(name, value, 1)


def check_amount(name: str, value: object, *, none_ok: bool = False) -> None:
    """A number of dollars that is not negative; a limit (`none_ok`) is positive, or None."""
    if value is None and none_ok:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of USD, not {type(value).__name__}")
    if not (0 < value < float("inf") if none_ok else 0 <= value < float("inf")):
        raise ValueError(f"{name} must be a {'positive' if none_ok else 'finite'} number of USD, not {value}")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """One of these words."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")


def check_known(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Keywords that exist. The message names the unknown one, and the one that was probably meant."""
    known = tuple(known)
    for name in names:
        if name not in known:
            import difflib  # Slow to import, and rarely needed.

            similar = difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean {similar[0]!r}?" if similar else f"known are: {', '.join(known)}"
            raise TypeError(f"{what} {name!r}; {meant}")


def check_flag(name: str, value: object) -> None:
    """True or False, nothing else: the strings "no" and "false" would count as true."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")


def check_path(name: str, value: object) -> None:
    """A non-empty str or os.PathLike[str] that this process's locale can encode as a path."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name} must be a str or a path, not {type(value).__name__}")
    path = os.fspath(value)
    check_text(name, _as_utf_8(path))
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        encoding = sys.getfilesystemencoding()
        message = f"{name}: this Python runs in a locale ({encoding}) that cannot name {path!a}"
        raise ValueError(f"{message}; set PYTHONUTF8=1, or a UTF-8 locale such as LC_ALL=C.UTF-8") from None


def _as_utf_8(path: object) -> object:
    """The path as the CLIs expect it. In an ASCII locale, os.getcwd() returns surrogates for non-ASCII characters."""
    try:
        return os.fsencode(path).decode(errors="surrogateescape") if isinstance(path, str) else path
    except UnicodeEncodeError:
        return path
