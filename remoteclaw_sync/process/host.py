"""Which process started a run or owns a file, so that a later look can tell whether it is still there.

A number alone is not enough: it is given to another process later, and it means another one in another container or
after the next boot.
"""

from __future__ import annotations

import contextlib
import functools
import os
import zlib
from collections.abc import Callable

NOT_KNOWN = "0"  # As a start time: there is no /proc that tells it.


def host_identity() -> str:
    """This process, in a word that can be part of a file's name: number, start time, and where the number is valid."""
    return _identity_of(os.getpid())


@functools.lru_cache(maxsize=1)
def _identity_of(pid: int) -> str:
    # Keyed by the number, so that a forked copy has its own.
    return f"{pid}-{_start_time(pid) or NOT_KNOWN}-{_place()}"


def host_is_gone(identity: str) -> bool:
    """Whether the process of that identity has ended. False if that cannot be known from here."""
    return has_lasted(identity) is False


def has_lasted(identity: str) -> bool | None:
    """Whether the process of that identity is still there. None if that cannot be known from here: it ran in another
    container, on another machine, before the last boot, or the word is no identity."""
    pid, _, rest = identity.partition("-")
    started, _, place = rest.partition("-")
    if not pid.isascii() or not pid.isdigit() or not started or place != _place():
        return None
    if started == NOT_KNOWN or not _has_proc():
        return _has_number(int(pid))
    return _start_time(int(pid)) == started


def _has_number(pid: int) -> bool:
    """Whether any process has this number. For want of a start time, one that came later counts too."""
    if pid == 0:
        return False  # For kill() this is our own group.
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # Another user's.
    return True


def _has_proc() -> bool:
    return os.path.exists("/proc/self/stat")


def _start_time(pid: int) -> str | None:
    """In clock ticks since the machine's start; None if there is no such living process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()


def _place() -> str:
    return _place_of(os.getpid())


@functools.lru_cache(maxsize=1)
def _place_of(pid: int) -> str:
    """Where process numbers mean what they mean here: this boot of this machine, this container. In eight characters,
    because the path of a socket, which has to hold it, is short. (Keyed as above.)"""
    facts = [os.uname().nodename if hasattr(os, "uname") else ""]
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            facts = [file.read().decode(), str(os.stat("/proc/self/ns/pid").st_ino)]
    except OSError:
        pass
    return f"{zlib.crc32(' '.join(facts).encode(errors='replace')):08x}"


# --- forked copies ------------------------------------------------------------------------------------------------

_forgetters: list[Callable[[], None]] = []


def after_fork(forget: Callable[[], None]) -> None:
    """Have this called in every forked copy of this process: threads, locks and children there are the original's."""
    _forgetters.append(forget)


def _in_forked_copy() -> None:
    with contextlib.ExitStack() as stack:  # All of them, also after one that fails.
        for forget in reversed(_forgetters):
            stack.callback(forget)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_copy)
