"""Identifies the process that started a run or owns a file, so that we can find out later whether it is still alive.

A pid alone is not enough: it is reused, and means a different process in another container or after a reboot.
"""

from __future__ import annotations

import contextlib
import functools
import os
import zlib
from collections.abc import Callable

NOT_KNOWN = "0"  # As a start time: there is no /proc to read it from.


def host_identity() -> str:
    """This process, as a string that can be part of a file name: pid, start time, and where the pid is valid."""
    return _identity_of(os.getpid())


@functools.lru_cache(maxsize=1)
def _identity_of(pid: int) -> str:
    # Cached by pid, so that a forked copy has its own identity.
    return f"{pid}-{_start_time(pid) or NOT_KNOWN}-{_place()}"


def host_is_gone(identity: str) -> bool:
    """Whether the process with that identity has ended. False if we cannot know from here."""
    return has_lasted(identity) is False


def has_lasted(identity: str) -> bool | None:
    """Whether the process with that identity is still alive. None if we cannot know from here: it ran in another
    container, on another machine or before the last boot, or the text is not an identity."""
    pid, _, rest = identity.partition("-")
    started, _, place = rest.partition("-")
    if not pid.isascii() or not pid.isdigit() or not started or place != _place():
        return None
    if started == NOT_KNOWN or not _has_proc():
        return _has_number(int(pid))
    return _start_time(int(pid)) == started


def _has_number(pid: int) -> bool:
    """Whether any process has this pid. Without a start time, a later process with the same pid counts too."""
    if pid == 0:
        return False  # For kill() this is our own group.
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # It belongs to another user.
    return True


def _has_proc() -> bool:
    return os.path.exists("/proc/self/stat")


def _start_time(pid: int) -> str | None:
    """The start time, in clock ticks since boot; None if there is no such live process."""
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
    """Identifies where pids mean the same as here: this boot of this machine, this container. Eight characters, because
    it must fit into the path of a socket, which is short. (Cached by pid, as above.)"""
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
    """Call this in every forked copy of this process, where threads, locks and children still belong to the parent."""
    _forgetters.append(forget)


def _in_forked_copy() -> None:
    with contextlib.ExitStack() as stack:  # All of them, even after one has failed.
        for forget in reversed(_forgetters):
            stack.callback(forget)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_copy)
