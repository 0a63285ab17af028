"""Where sessions are kept between machines: the protocol, and a store in a folder.

There is one writer at a time (`lock`), and nothing is overwritten unseen: each state has a generation, and `save` is
told which one the new state follows. If the store has another one by then, `save` raises StaleSessionError.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

import attrs

from .. import files
from .._values import check_count, check_path, check_seconds, check_text
from ..errors import SessionBusyError, StaleSessionError
from .capsule import MAX_CAPSULE_BYTES
from .sealing import Key, sealer

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

DEFAULT_RETENTION = datetime.timedelta(days=7)
POLL_SECONDS = 0.02
FIRST_LINE = re.compile(rb"remoteclaw-state (\d{1,18})\n")
LONGEST_FILE = 2 * MAX_CAPSULE_BYTES  # Data that cannot be compressed takes a little more than its own size.
SWEEP_SECONDS = 60.0


@attrs.frozen
class StoredSession:
    """A state of a session. `data` is None if the caller knows this state already, and empty if it was forgotten."""

    generation: int
    data: bytes | None = attrs.field(repr=False)


@runtime_checkable
class SessionStore(Protocol):
    """Keeps the states of sessions, under keys that the caller chooses. Thread-safe."""

    def load(self, key: str, *, known: int = 0) -> StoredSession | None:
        """The current state; None if there is none. Its data is left out if its generation is `known`."""

    def save(self, key: str, data: bytes, *, after: int) -> int:
        """Store the state that follows generation `after` (0: there was none) and return its generation.

        Raises StaleSessionError if the store's generation is not `after`.
        """

    def lock(self, key: str, *, timeout: float | None = None) -> AbstractContextManager[None]:
        """A context in which nobody else holds this lock, on any machine.

        Raises SessionBusyError if it does not become free within `timeout` seconds; None waits as long as it takes. A
        holder that dies releases it.
        """


def digest_of(key: str) -> str:
    """A name for what is stored under this key, which does not reveal whose it is."""
    return hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def stale(generation: int, after: int) -> StaleSessionError:
    """For a state that does not follow the one in the store."""
    message = (
        f"somebody else has saved this session: the store has generation {generation}, and this state follows {after}; "
        "load that one first"
    )
    return StaleSessionError(generation, message)


def busy(timeout: float | None) -> SessionBusyError:
    """For a lock that did not become free in time."""
    return SessionBusyError(f"another process or machine has this session; it was not given back within {timeout:g} s")


def place_of(name: str, generation: int) -> str:
    """What a sealed state is bound to, so that nobody can replace it with an older one or with another session's."""
    return f"session:{name}:{generation}"


class FolderSessionStore:
    """Keeps sessions as files in a folder that all machines can see (a network drive), or all users of one machine.

    The folder's file system must have working locks (flock): a local disk, NFS 4, CephFS. Files have mode 0600.

    Args:
        path: the folder; created (mode 0700) if missing.
        retention: how long a session is kept after its last save (seconds or a timedelta); None keeps all.
        key: from `new_key()`; seals the files (extra `seal`). Of several, the first seals and all open.
        clock: wall clock, for tests.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        retention: float | datetime.timedelta | None = DEFAULT_RETENTION,
        key: Key | Sequence[Key] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        check_path("path", path)
        seconds = retention.total_seconds() if isinstance(retention, datetime.timedelta) else retention
        check_seconds("retention", seconds)
        self.path = os.path.abspath(path)
        self.retention = seconds
        self._seals = sealer(key)
        self._clock = clock
        self._next_sweep = float("-inf")
        os.makedirs(self.path, mode=0o700, exist_ok=True)

    def load(self, key: str, *, known: int = 0) -> StoredSession | None:
        """See `SessionStore`. Raises OSError if the folder cannot be read."""
        check_text("key", key)
        name = digest_of(key)
        found = self._read(name)
        if found is None or not found.generation:
            return None
        if found.generation == known:
            return StoredSession(known, None)
        assert found.data is not None
        return StoredSession(found.generation, self._seals.open(found.data, place_of(name, found.generation)))

    def save(self, key: str, data: bytes, *, after: int) -> int:
        """See `SessionStore`. Raises OSError if the folder cannot be written to."""
        check_text("key", key)
        check_count("after", after)
        name = digest_of(key)
        with self._locked(f"{name}.write", None):
            found = self._read(name)
            now = 0 if found is None else found.generation
            if now != after:
                raise stale(now, after)
            sealed = self._seals.seal(data, place_of(name, after + 1))
            files.replace_file(self._file(name), b"remoteclaw-state %d\n" % (after + 1) + sealed)
        self._sweep()
        return after + 1

    def lock(self, key: str, *, timeout: float | None = None) -> AbstractContextManager[None]:
        """See `SessionStore`. Raises OSError if the folder cannot be written to."""
        check_text("key", key)
        check_seconds("timeout", timeout)
        return self._locked(f"{digest_of(key)}.lock", timeout)

    def _file(self, name: str) -> str:
        return os.path.join(self.path, f"{name}.session")

    def _read(self, name: str) -> StoredSession | None:
        path = self._file(name)
        try:
            if self._is_expired(os.stat(path, follow_symlinks=False).st_mtime):
                return None
            content = files.read_regular(path, LONGEST_FILE)
        except FileNotFoundError:
            return None
        line = FIRST_LINE.match(content)
        if line is None:
            raise OSError(f"{path} is not a session that was saved here")
        return StoredSession(int(line[1]), content[line.end() :])

    @contextlib.contextmanager
    def _locked(self, name: str, timeout: float | None) -> Iterator[None]:
        if fcntl is None:
            raise OSError("a folder store needs file locks (flock), which this system does not have")
        path = os.path.join(self.path, name)
        fd = self._wait_for(path, timeout)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)  # Before unlocking: whoever gets the lock afterwards sees that the file is gone.
            fcntl.flock(fd, fcntl.LOCK_UN)  # A process that was forked meanwhile has a copy of the descriptor.
            os.close(fd)

    def _wait_for(self, path: str, timeout: float | None) -> int:
        due = None if timeout is None else time.monotonic() + timeout
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(fd, path):
                    return fd
            except BlockingIOError:
                pass
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
            if due is not None and time.monotonic() >= due:
                raise busy(timeout)
            time.sleep(POLL_SECONDS)

    def _is_expired(self, saved_at: float) -> bool:
        return self.retention is not None and saved_at < self._clock() - self.retention

    def _sweep(self) -> None:
        """Remove expired sessions."""
        now = time.monotonic()
        if now < self._next_sweep:
            return
        self._next_sweep = now + SWEEP_SECONDS
        with os.scandir(self.path) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    saved_at = entry.stat(follow_symlinks=False).st_mtime
                    if entry.name.endswith(".session") and self._is_expired(saved_at):
                        os.unlink(entry.path)


def _is_at(fd: int, path: str) -> bool:
    """Whether the path still leads to this file: the previous holder of the lock may have removed it."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
