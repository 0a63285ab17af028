"""A number that all descendants of a process carry, whatever they do to their environment, session and parents.

It is the soft limit for file locks (RLIMIT_LOCKS). Linux has not looked at that limit since 2.4.25, but hands it on at
each fork and exec: `env -i`, `setsid` and a double fork keep it. Another process of the same user can set it and read
it (4 and 0.5 us). Only a program that sets this very limit (`ulimit -x` in bash) gets rid of it.
"""

from __future__ import annotations

import functools
import secrets
import subprocess
import sys
from typing import Any

SMALLEST_TAG = 1 << 48  # Nobody asks for so many locks.

if sys.platform == "linux":
    import resource

    RLIMIT_LOCKS = 10  # On every architecture; the resource module has no name for it.

    def tag_of(pid: int) -> int | None:
        """What this process (perhaps a zombie) carries; None if it is nobody's that we may ask."""
        try:
            return resource.prlimit(pid, RLIMIT_LOCKS)[0]
        except (OSError, ValueError):
            return None

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

    At that moment the program has just been loaded, and even a shell needs longer to start its first child than we do
    for the tag (0 of 150 got away, and 23 when Popen had returned first), unless a thread of the host that computes
    keeps us from running for 5 ms. The CLIs need at least ten times as long.
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
    """Have this process and all its descendants carry the tag: the children it has by now too, should there be any."""
    _set_limit(pid, tag)
    for child in _children(pid):
        put_tag(child, tag)


def take_tag_off(pid: int) -> None:
    """Have this process carry none: its parent may be part of a run itself."""
    _set_limit(pid, None)


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return [int(number) for number in file.read().split() if tag_of(int(number)) != tag_of(pid)]
    except OSError:
        return []
