"""Text as the operating system takes it: arguments, environment variables and folders of a child."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping


def native(text: str) -> bytes:
    """Its bytes. What the host's locale cannot carry (under `LC_ALL=C` all but ASCII) goes as UTF-8: the CLIs take
    nothing else, whatever the locale says."""
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape")


def native_arguments(arguments: Iterable[str]) -> list[bytes]:
    """A command line."""
    return [native(argument) for argument in arguments]


def native_environment(env: Mapping[str, str]) -> dict[bytes, bytes]:
    """A whole environment."""
    return {native(name): native(value) for name, value in env.items()}
