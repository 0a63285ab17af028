"""Which process started a run, so that a later look can tell whether it is still there.

A number alone is not enough: it is given to another process later, and it means another one in another container.
"""

from __future__ import annotations

import functools
import os

UNKNOWN = "1"


def host_identity() -> str:
    """This process, in a word: number, start time and pid namespace where there is a /proc."""
    return _identity_of(os.getpid())


@functools.lru_cache(maxsize=1)
def _identity_of(pid: int) -> str:
    # Keyed by the number, so that a forked copy has its own.
    started = _start_time(pid)
    namespace = _namespace()
    return UNKNOWN if started is None or namespace is None else f"{pid}-{started}-{namespace}"


def host_is_gone(identity: str) -> bool:
    """Whether the process of that identity has ended. False if that cannot be known from here."""
    pid, _, rest = identity.partition("-")
    started, _, namespace = rest.partition("-")
    if not pid.isdigit() or not started or namespace != _namespace():
        return False
    return _start_time(int(pid)) != started


def _start_time(pid: int) -> str | None:
    """In clock ticks since the machine's start; None if there is no such living process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()


def _namespace() -> str | None:
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return None
