"""A number that all descendants of a process carry, whatever they do to their environment, session and parents.

It is the soft limit for file locks (RLIMIT_LOCKS). Linux has not looked at that limit since 2.4.25, but hands it on at
each fork and exec: `env -i`, `setsid` and a double fork keep it. Another process of the same user can set it and read
it (4 and 0.5 us). Only a program that sets this very limit (`ulimit -x` in bash) gets rid of it.
"""

from __future__ import annotations

import functools
import os
import re
import secrets
import subprocess
import sys
from typing import Any

SOFT_LIMIT = re.compile(rb"^Max file locks +(\d+) ", re.MULTILINE)
MOST_YOUNGER = 1000  # Looked at; so many are not started in a moment.
SMALLEST_TAG = 1 << 48  # Nobody asks for so many locks.

if sys.platform == "linux":
    import resource

    RLIMIT_LOCKS = 10  # On every architecture; the resource module has no name for it.

    def tag_of(pid: int) -> int | None:
        """What this process (perhaps a zombie) carries; None if it is nobody's that we may ask."""
        try:
            return resource.prlimit(pid, RLIMIT_LOCKS)[0]
        except PermissionError:
            # Another user's, to which a program that root has started may have changed. A container's root may not ask
            # for its limits, but it may end it.
            return _tag_in_proc(pid) if os.geteuid() == 0 else None
        except (OSError, ValueError):
            return None

    def _tag_in_proc(pid: int) -> int | None:
        try:
            with open(f"/proc/{pid}/limits", "rb") as file:
                found = SOFT_LIMIT.search(file.read())
        except OSError:
            return None
        return None if found is None else int(found[1])

    def _set_limit(pid: int, tag: int | None) -> None:
        try:
            hardest = resource.prlimit(pid, RLIMIT_LOCKS)[1]
            resource.prlimit(pid, RLIMIT_LOCKS, (hardest if tag is None else tag, hardest))
        except (OSError, ValueError):
            pass  # Gone, another user's (setuid), or a sandbox without prlimit: there are session and marker yet.

else:

    def tag_of(pid: int) -> int | None:
        """There are no tags here."""
        return None

    def _set_limit(pid: int, tag: int | None) -> None:
        pass


def new_tag() -> int:
    """One that no other run has."""
    return SMALLEST_TAG + secrets.randbits(48)


@functools.cache
def tagging(popen: type[subprocess.Popen[bytes]]) -> Any:
    """That class with one more argument, the `tag`, which it puts on its process as soon as it knows the number.

    At that moment the program has just been loaded. Even a shell that begins with sending away a daemon needs longer
    for that than we do for the tag, unless a thread of the host that computes keeps us from running for 5 ms. The CLIs
    need at least ten times as long.
    """

    def start(process: Any, *args: Any, tag: int, **options: Any) -> None:
        process.tag = tag
        popen.__init__(process, *args, **options)

    def set_pid(process: Any, pid: int | None) -> None:
        process.__dict__["pid"] = pid
        if pid is not None:
            put_tag(pid, process.tag)

    pid = property(lambda process: process.__dict__["pid"], set_pid)
    return type("TaggedPopen", (popen,), {"__init__": start, "pid": pid})


def put_tag(pid: int, tag: int) -> None:
    """Have this process, the leader of a session, and all its descendants carry the tag: also those that it has by now,
    orphans included, as long as they have not left the session."""
    _set_limit(pid, tag)
    looked_at: set[int] = set()
    while strangers := _younger_than(pid) - looked_at:
        looked_at |= strangers
        for stranger in strangers:
            if _session_of(stranger) == pid and tag_of(stranger) != tag:
                _set_limit(stranger, tag)


def take_tag_off(pid: int) -> None:
    """Have this process carry none: its parent may be part of a run itself."""
    _set_limit(pid, None)


def _younger_than(pid: int) -> set[int]:
    """The numbers that were given to processes after this one: in a moment, hardly any."""
    try:
        with open("/proc/loadavg", "rb") as file:
            newest = int(file.read().split()[-1])
    except (OSError, ValueError, IndexError):
        return set()
    if newest < pid:  # They have begun anew.
        return {int(name) for name in os.listdir("/proc") if name.isdigit()}
    return set(range(pid + 1, min(newest, pid + MOST_YOUNGER) + 1))


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None
