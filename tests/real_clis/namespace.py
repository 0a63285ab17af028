"""A network namespace with nothing but loopback, for the calling thread.

The real CLIs are only ever started inside one, so no test can reach a vendor, whatever a CLI, a tool or a configuration
mistake tries to do.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

CLONE_NEWNET = 0x40000000
SIOCGIFFLAGS = 0x8913
SIOCSIFFLAGS = 0x8914
IFF_UP = 0x1

# Per thread, not /proc/self: namespaces belong to threads, and /proc/self is always the main thread.
THREAD_NAMESPACE = "/proc/thread-self/ns/net"
THREAD_INTERFACES = Path("/proc/thread-self/net/dev")


class NamespaceUnavailable(RuntimeError):
    """This machine or user cannot have a loopback-only namespace. The message says why."""


@contextlib.contextmanager
def loopback_namespace() -> Iterator[None]:
    """Put the calling thread in a fresh loopback-only network namespace.

    Threads and processes that it starts in the meantime inherit the namespace and keep it. Afterwards the thread is
    back in its old namespace. Raises NamespaceUnavailable, without having changed anything, if this is not possible.
    """
    _check_platform()
    before = os.open(THREAD_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _unshare_network()
        try:
            _bring_loopback_up()
            require_loopback_only()
            yield
        finally:
            _enter_namespace(before)
    finally:
        os.close(before)


def require_loopback_only() -> None:
    """Raise NamespaceUnavailable unless the calling thread sees only `lo`."""
    names = interfaces()
    if names != ["lo"]:
        raise NamespaceUnavailable(f"not in a loopback-only network namespace: interfaces {names}")


def interfaces() -> list[str]:
    """Names of the network interfaces the calling thread can use."""
    lines = THREAD_INTERFACES.read_text().splitlines()[2:]  # two heading lines
    return [line.split(":", 1)[0].strip() for line in lines]


def unavailable_reason() -> str | None:
    """Why no namespace can be created here, or None; tried in a temporary thread."""
    reasons: list[str] = []

    def attempt() -> None:
        try:
            with loopback_namespace():
                pass
        except NamespaceUnavailable as error:
            reasons.append(str(error))

    thread = threading.Thread(target=attempt, name="namespace-probe", daemon=True)
    thread.start()
    thread.join(10)
    if thread.is_alive():
        return "creating a network namespace did not return within 10 s"
    return reasons[0] if reasons else None


def _check_platform() -> None:
    if not sys.platform.startswith("linux"):
        raise NamespaceUnavailable(f"network namespaces need Linux, this is {sys.platform}")
    if not os.path.exists(THREAD_NAMESPACE):
        raise NamespaceUnavailable(f"no {THREAD_NAMESPACE}: /proc or network namespaces are missing")


def _unshare_network() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) == 0:
        return
    code = ctypes.get_errno()
    hint = " (needs root or CAP_SYS_ADMIN)" if code == errno.EPERM else ""
    raise NamespaceUnavailable(f"unshare of the network failed: {os.strerror(code)}{hint}")


def _enter_namespace(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"could not return to the old network namespace: {os.strerror(code)}")


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sh22x", b"lo", 0)
        try:
            answer = fcntl.ioctl(probe, SIOCGIFFLAGS, request)
            (flags,) = struct.unpack_from("h", answer, 16)
            fcntl.ioctl(probe, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | IFF_UP))
        except OSError as error:
            raise NamespaceUnavailable(f"could not bring loopback up: {error}") from error
