"""Runs the module that a command names."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence

from .arguments import parse


class UsageError(Exception):
    """A mistake in the command line: the message is shown to the user, and the exit code is 2."""


def dispatch(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    _prepare_streams()
    options = parse(argv)
    # Imported only when needed: `run` does not pay for `doctor`.
    module = importlib.import_module(f".{options.module}", __package__)
    command: Callable[..., int] = module.command
    try:
        return command(options)
    except UsageError as error:
        print(f"remoteclaw-sync: {error}", file=sys.stderr)
        return 2


def _prepare_streams() -> None:
    """Make sure that printing cannot fail, whatever an agent says and whatever the terminal can show."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
