"""A number that all descendants of a process carry, whatever they do to their environment, session and parents.

It is the soft limit for file locks (RLIMIT_LOCKS). Linux has ignored that limit since 2.4.25, but passes it on at each
fork and exec: it survives `env -i`, `setsid` and a double fork. Another process of the same user can set and read it
(in 4 and 0.5 us). Only a program that sets this very limit (`ulimit -x` in bash) gets rid of it.
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
SMALLEST_TAG = 1 << 48  # Nobody sets a limit of this many locks.

if sys.platform == "linux":
    import resource

    RLIMIT_LOCKS = 10  # On every architecture; the resource module has no name for it.

    def tag_of(pid: int) -> int | None:
        """The tag of this process (perhaps a zombie); None if we may not read it."""
        try:
            return resource.prlimit(pid, RLIMIT_LOCKS)[0]
        except PermissionError:
            # The process belongs to another user; perhaps root started the program and it switched to that user. A
            # container's root may not query its limits, but may end it.
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
            pass  # Gone, owned by another user (setuid), or in a sandbox without prlimit: the other marks still work.

else:

    def tag_of(pid: int) -> int | None:
        """There are no tags here."""
        return None

    def _set_limit(pid: int, tag: int | None) -> None:
        pass


def new_tag() -> int:
    """A tag that no other run has."""
    return SMALLEST_TAG + secrets.randbits(48)


@functools.cache
def tagging(popen: type[subprocess.Popen[bytes]]) -> Any:
    """The class with one more argument, `tag`, which it sets on its process as soon as it knows the pid.

    By then the program has been loaded, and a shell script that starts by launching a daemon may have been quicker:
    8 of 200 were on an idle host, and 145 of 200 on one with a busy thread, which keeps us from running for 5 ms. The
    CLIs need at least ten times as long to start.
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
    """Set the tag on this process and the descendants that it already has. Later ones inherit it."""
    _set_limit(pid, tag)
    for child in _children(pid):
        put_tag(child, tag)


def take_tag_off(pid: int) -> None:
    """Remove the tag from this process, which has inherited one if this host is itself part of a run."""
    _set_limit(pid, None)


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return [int(number) for number in file.read().split() if tag_of(int(number)) != tag_of(pid)]
    except OSError:
        return []
