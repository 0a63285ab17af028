"""Finds and ends the processes that a CLI has left behind, through /proc."""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator

import attrs

from .greenlets import new_poll
from .launch import Strays
from .live_children import leaders
from .tag import tag_of

logger = logging.getLogger(__name__)

READ_SIZE = 65_536
GONE_SECONDS = 0.2  # How long a leftover may take to act on SIGTERM before SIGKILL.
KILL_SECONDS = 1.0  # How long the kernel may take to end a process that was sent SIGKILL.
LOOK_SECONDS = 0.01  # How often to check whether a process without a pidfd is gone.
SWEEP_ROUNDS = 5  # A leftover may fork while we look for it.
MOST_ANCESTORS = 1000  # A limit, because parents may change while we look at them.
CAN_SWEEP = os.path.exists("/proc/self/environ")
DEAD = (b"Z", b"X")
EXITING = 0x4  # One of the flags of a process in /proc/<pid>/stat.
KILLED = 1 << (9 - 1)  # SIGKILL (unknown on Windows), in the mask there of signals pending for the first thread.
# The session of kernel threads, which are half of all processes on a quiet machine. A CLI and all that it starts have a
# real session.
KERNEL_SESSION = 0


@attrs.frozen
class Marks:
    """The marks of one run's processes.

    There are three, because each misses some processes. The CLIs start shell tools in new sessions, Codex starts MCP
    servers without our environment, and a daemon may have neither. The tag is not always available (see tag.py).
    """

    session: int
    marker: str
    tag: int | None = None

    def are_on(self, pid: int) -> bool:
        """Whether this process, dead or alive, belongs to the run."""
        return _Look([self]).run_of(pid) is not None


@attrs.frozen
class Stat:
    """What the kernel reports about a process."""

    state: bytes
    parent: int
    started: bytes


class Grip:
    """A leftover that cannot be confused with another process: known by its pidfd, or by its pid and start time.

    A pidfd may not be available: on a kernel before 5.3, in a sandbox that forbids it, or with no file descriptor left.
    """

    def __init__(self, pid: int, started: bytes) -> None:
        self.pid = pid
        self._started = started
        try:
            self.fd = os.pidfd_open(pid)
        except (AttributeError, OSError):
            self.fd = -1

    @property
    def is_gone(self) -> bool:
        """Whether it has ended, reaped or not."""
        stat = stat_of(self.pid)
        return stat is None or stat.state in DEAD or stat.started != self._started

    def _signal_by_pidfd(self, number: signal.Signals) -> bool:
        """Returns whether it worked: a sandbox may allow opening a pidfd but forbid sending a signal through it."""
        if self.fd == -1:
            return False
        try:
            signal.pidfd_send_signal(self.fd, number)
        except ProcessLookupError:
            pass
        except (AttributeError, OSError):
            return False
        return True

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it is gone."""
        try:
            if not self._signal_by_pidfd(number) and not self.is_gone:
                os.kill(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def close(self) -> None:
        """Close the pidfd."""
        if self.fd != -1:
            os.close(self.fd)


def stat_of(pid: int) -> Stat | None:
    """What the kernel reports about this process; None if it does not exist."""
    try:
        fields = _content(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        return Stat(fields[0], int(fields[1]), fields[19])
    except (OSError, IndexError):
        return None


def is_dying(pid: int | None) -> bool:
    """Whether this child has ended, or was killed and is about to end. (A killed launcher leaves behind the program
    that it started, which answers until it is swept away.) False where there is no way to know."""
    if pid is None or not CAN_SWEEP:
        return False
    try:
        fields = _content(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        state, flags, signals = fields[0], int(fields[6]), int(fields[28])
    except (OSError, IndexError, ValueError):
        return not os.path.exists(f"/proc/{pid}")
    return state in DEAD or bool(flags & EXITING) or bool(signals & KILLED)


class _Look:
    """Matches processes with any number of runs of this host."""

    def __init__(self, runs: Iterable[Marks]) -> None:
        self._by_session = {marks.session: marks for marks in runs}
        self._by_tag: dict[int | None, Marks] = {marks.tag: marks for marks in runs if marks.tag is not None}
        self._by_marker = {f"{marks.marker}=".encode(): marks for marks in runs}
        self._exempt = {os.getpid(), *self._by_session, *leaders}

    def run_of(self, pid: int) -> Marks | None:
        """The run that this process, dead or alive, belongs to."""
        if pid in self._exempt:
            return None
        try:
            session = os.getsid(pid)
            if session == KERNEL_SESSION:
                return None
            found = self._by_session.get(session) or self._by_tag.get(tag_of(pid))
            return found or self._marked(_content(f"/proc/{pid}/environ"))
        except OSError:
            return None  # It is gone meanwhile, or belongs to another user.

    def _marked(self, environment: bytes) -> Marks | None:
        return next((marks for marker, marks in self._by_marker.items() if marker in environment), None)


class _Search:
    """One run's request for the processes that are left of it."""

    def __init__(self, marks: Marks) -> None:
        self.marks = marks
        self.found: list[tuple[int, Stat]] | None = None  # None: not searched yet.


_waiting: deque[_Search] = deque()
_looking = threading.Lock()


def find_leftovers(marks: Marks) -> list[tuple[int, Stat]]:
    """The processes of that run, including zombies.

    Looking at every process takes milliseconds. When many runs end at once, one pass serves all runs that were waiting
    when it began.
    """
    search = _Search(marks)
    _waiting.append(search)
    with _looking:
        if search.found is None:
            searches = {search, *(_waiting.popleft() for _ in range(len(_waiting)))}
            _look_for(searches)
    return search.found or []


def _look_for(searches: Collection[_Search]) -> None:
    found: dict[Marks, list[tuple[int, Stat]]] = {search.marks: [] for search in searches}
    look = _Look(found)
    for name in os.listdir("/proc"):
        if name.isdigit() and (marks := look.run_of(pid := int(name))) and (stat := stat_of(pid)) is not None:
            found[marks].append((pid, stat))
    for search in searches:
        search.found = found[search.marks]


def forget_after_fork() -> None:
    """In a forked copy of the host: the thread that was looking does not exist there."""
    global _looking
    _looking = threading.Lock()
    _waiting.clear()


def end_leftovers(session: int, marker: str, tag: int | None = None) -> None:
    """Send SIGTERM, wait a moment, send SIGKILL; repeat until no more processes are found."""
    marks = Marks(session, marker, tag)
    for _ in range(SWEEP_ROUNDS):
        grips = list(_grips(marks))
        if not grips:
            return
        logger.info("ending %d processes that child %s left behind", len(grips), session)
        try:
            _signal_all(grips, signal.SIGTERM)
            _signal_all(grips, signal.SIGCONT)
            wait_until_gone(grips, GONE_SECONDS)
            _signal_all(grips, signal.SIGKILL)
            wait_until_gone(grips, KILL_SECONDS)
        finally:
            for grip in grips:
                grip.close()


def boot_ticks() -> int:
    """The current time, in the units in which the kernel records the start of a process."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return 0 if clock is None else int(time.clock_gettime(clock) * os.sysconf("SC_CLK_TCK"))


def signal_strays(marks: Marks, strays: Strays) -> None:
    """Send SIGTERM to the strays that exist, and SIGKILL to those that got SIGTERM before. Does not wait."""
    for pid, stat in find_leftovers(marks):
        if not strays.since <= int(stat.started) <= strays.until or _is_cared_for(stat, marks, strays.since):
            continue
        if stat.state in DEAD:
            _reap_if_adopted(pid, stat)
            continue
        grip = Grip(pid, stat.started)
        try:
            if not grip.is_gone and marks.are_on(pid) and _has_word(pid, strays.word):
                was_told = (pid, stat.started) in strays.told
                strays.told.add((pid, stat.started))
                logger.info("ending process %d, which an interrupted turn of child %d has left", pid, marks.session)
                grip.signal(signal.SIGKILL if was_told else signal.SIGTERM)
                grip.signal(signal.SIGCONT)
        finally:
            grip.close()


def _is_cared_for(stat: Stat, marks: Marks, since: int) -> bool:
    """Whether the process descends from the child, or from something that an earlier turn has started (a database
    that forks for each connection), and all processes in between still exist."""
    for _ in range(MOST_ANCESTORS):
        if stat.parent in (marks.session, 0, 1):
            return stat.parent == marks.session
        parent = stat_of(stat.parent)
        if parent is None:
            return False
        if int(parent.started) < since and marks.are_on(stat.parent):
            return True
        stat = parent
    return True


def _has_word(pid: int, word: str | None) -> bool:
    try:
        return word is None or word.encode() in _content(f"/proc/{pid}/environ").split(b"\0")
    except OSError:
        return False  # It is gone meanwhile, or belongs to another user.


def _grips(marks: Marks) -> Iterator[Grip]:
    for pid, stat in find_leftovers(marks):
        if stat.state in DEAD:
            _reap_if_adopted(pid, stat)
            continue
        grip = Grip(pid, stat.started)
        # Checked again now that we hold it: before that, the pid may have been reused by another process.
        if not grip.is_gone and marks.are_on(pid):
            yield grip
        else:
            grip.close()


def _reap_if_adopted(pid: int, stat: Stat) -> None:
    """An orphan becomes the child of process 1, or of a subreaper. If that is this host, nobody else will reap it."""
    if stat.parent == os.getpid():
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            pass  # The host ignores SIGCHLD, or waits for any child.


def _signal_all(grips: list[Grip], number: signal.Signals) -> None:
    for grip in grips:
        grip.signal(number)


def wait_until_gone(grips: list[Grip], seconds: float) -> None:
    """Wait until all have ended, or the time is up."""
    poll = new_poll()
    pinned = {grip.fd for grip in grips if grip.fd != -1}
    unpinned = [grip for grip in grips if grip.fd == -1]
    for fd in pinned:
        poll.register(fd, select.POLLIN)
    deadline = time.monotonic() + seconds
    while (pinned or unpinned) and (remaining := deadline - time.monotonic()) > 0:
        for fd, _ in poll.poll(1000 * (min(remaining, LOOK_SECONDS) if unpinned else remaining)):
            poll.unregister(fd)
            pinned.discard(fd)
        unpinned = [grip for grip in unpinned if not grip.is_gone]


def _content(path: str) -> bytes:
    """The content of a file in /proc."""
    fd = os.open(path, os.O_RDONLY)
    try:
        parts = [os.read(fd, READ_SIZE)]
        while len(parts[-1]) == READ_SIZE:
            parts.append(os.read(fd, READ_SIZE))
        return b"".join(parts)
    finally:
        os.close(fd)
