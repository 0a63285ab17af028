"""Adds server entries to the text of a config file so that they can be removed again.

If possible, the entries are inserted as text, which keeps the user's comments and layout. The result is parsed and
checked; only if that fails is the file rewritten from its values.
"""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Mapping
from typing import Any, Literal

import attrs
import tomli_w

from . import jsonc

Format = Literal["json", "toml"]
Entries = Mapping[str, Any]  # Server name -> its table in the CLI's own shape.


class ConfigError(ValueError):
    """The config cannot be used as it is; the message says why, without quoting the config."""


@attrs.frozen
class Edit:
    """The new text, and the piece of it that we inserted ("" if the text was rewritten)."""

    text: str
    inserted: str


def add_entries(text: str, format: Format, key: str, entries: Entries, defaults: Entries | None = None) -> Edit:
    """Merge `entries` into the table `key`; entries with the same name are replaced. Raises ConfigError.

    `defaults` are added at the top level of a JSON config if their keys are missing.
    """
    text = _with_defaults(text, defaults or {}, _parse(text, format, key))
    config = _parse(text, format, key)
    wanted = copy.deepcopy(config)
    wanted.setdefault(key, {}).update(entries)
    if not set(entries) & set(config.get(key, {})):
        for insert in (_insert_into_json,) if format == "json" else (_append_to_toml,):
            edit = insert(text, key, entries, config)
            if edit is not None and _says(edit.text, format, wanted):
                return edit
    return Edit(_dump(wanted, format), "")


def remove_entries(text: str, format: Format, key: str, entries: Entries, original: str | None, inserted: str) -> str:
    """Undo `add_entries` in a text that somebody has changed since then. Their changes stay, even those in our
    entries."""
    if inserted and text.count(inserted) == 1:
        rest = text.replace(inserted, "")
        if _parses(rest, format, key):
            return rest
    config = _parse(text, format, key)
    before = _parse(original, format, key).get(key, {}) if original is not None else {}
    table = config.get(key, {})
    for name, entry in entries.items():
        if table.get(name) != entry:
            continue
        if name in before:
            table[name] = before[name]
        else:
            del table[name]
    if not table and (original is None or key not in _parse(original, format, key)):
        config.pop(key, None)
    return _dump(config, format)


def _parse(text: str, format: Format, key: str) -> dict[str, Any]:
    try:
        config = _load(text, format)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"is not valid {format.upper()} ({_position(error)})") from None
    if not isinstance(config, dict):
        raise ConfigError("is not an object at its top level")
    if not isinstance(config.get(key, {}), dict):
        raise ConfigError(f"has a {key!r} that is not a table of servers")
    return config


def _load(text: str, format: Format) -> Any:
    if format == "toml":
        return tomllib.loads(text.removeprefix(jsonc.BOM).replace("\r\n", "\n"))
    return jsonc.parse(text) if text.strip().removeprefix(jsonc.BOM) else {}


def _position(error: Exception) -> str:
    """Where it went wrong. We do not use the parser's message, which may quote the file."""
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno} column {error.colno}"
    message = str(error)
    return message[message.rfind("(") :].strip("()") if "(at " in message else type(error).__name__


def _parses(text: str, format: Format, key: str) -> bool:
    try:
        _parse(text, format, key)
    except ConfigError:
        return False
    return True


def _says(text: str, format: Format, wanted: dict[str, Any]) -> bool:
    try:
        return bool(_load(text, format) == wanted)
    except (ValueError, RecursionError):
        return False


def _dump(config: dict[str, Any], format: Format) -> str:
    if format == "toml":
        return tomli_w.dumps(config)
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"


def _with_defaults(text: str, defaults: Entries, config: dict[str, Any]) -> str:
    missing = {key: value for key, value in defaults.items() if key not in config}
    if not missing:
        return text
    at = jsonc.object_start(text, ())
    if at is None:
        return _dump({**missing, **config}, "json")
    return text[:at] + json.dumps(missing)[1:-1] + ("," if config else "") + text[at:]


def _insert_into_json(text: str, key: str, entries: Entries, config: dict[str, Any]) -> Edit | None:
    body = json.dumps(dict(entries), ensure_ascii=False)[1:-1]
    if key in config:
        at = jsonc.object_start(text, (key,))
        comma = "," if config[key] else ""
        inserted = f"{body}{comma}"
    else:
        at = jsonc.object_start(text, ())
        comma = "," if config else ""
        inserted = f"{json.dumps(key)}: {{{body}}}{comma}"
    if at is None:
        return None
    return Edit(text[:at] + inserted + text[at:], inserted)


def _append_to_toml(text: str, key: str, entries: Entries, config: dict[str, Any]) -> Edit | None:
    newline = "" if not text or text.endswith("\n") else "\n"
    inserted = newline + "\n" + tomli_w.dumps({key: dict(entries)})
    return Edit(text + inserted, inserted)
