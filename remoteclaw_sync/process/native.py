"""Text as the operating system takes it (arguments, environment variables and folders of a child), and a write that no
signal follows."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Mapping

ENCODING, ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()


def native(text: str) -> bytes:
    """Its bytes. What the host's locale cannot carry (under `LC_ALL=C` all but ASCII) goes as UTF-8: the CLIs take
    nothing else, whatever the locale says."""
    try:
        return text.encode(ENCODING, ERRORS)
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape")


def native_arguments(arguments: Iterable[str]) -> list[bytes]:
    """A command line."""
    return [native(argument) for argument in arguments]


def native_environment(env: Mapping[str, str]) -> dict[bytes, bytes]:
    """A whole environment."""
    return {native(name): native(value) for name, value in env.items()}


def write_to_pipe(fd: int, data: bytes | memoryview) -> int:
    """os.write() that a host which has restored the default SIGPIPE survives (EPIPE instead)."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    try:
        return os.write(fd, data)
    except BrokenPipeError:
        if signal.SIGPIPE in signal.sigpending():
            signal.sigwait({signal.SIGPIPE})  # Takes it away before it is let through.
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
