"""Encodes text for the operating system (a child's arguments, environment variables and folders), and writes to pipes
without causing SIGPIPE."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Mapping

ENCODING, ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()


def native(text: str) -> bytes:
    """The text as bytes. If the host's locale cannot encode it (under `LC_ALL=C` anything but ASCII), as UTF-8, which
    is what the CLIs expect in any locale."""
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
    """os.write() that fails with EPIPE even in a host that has restored the default SIGPIPE, which would kill it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    try:
        return os.write(fd, data)
    except BrokenPipeError:
        if signal.SIGPIPE in signal.sigpending():
            signal.sigwait({signal.SIGPIPE})  # Removes the signal before it is delivered.
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
