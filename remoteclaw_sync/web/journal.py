"""A run's events in a file that every worker on this machine can follow, even after the worker that wrote it has died.

There is one file per run in a private folder (0700), with one line per event, append-only. The writer holds a lock on
the file while it lives. If a worker is killed, the kernel releases its lock, whereas a pid file would stay.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import RemoteClawError
from .background import Item
from .sse import as_json

KEPT = ".run"  # A detached run's events.
UNKEPT = ".live"  # Marks a visitor's own run while it lives. The file is empty.
ORDER = ".order"  # A request from another worker for a live run.
ASKS = ".asks"  # The permission requests of a live run that wait for an answer.
NEW = ".new"
SUFFIXES = (KEPT, UNKEPT, ORDER, ASKS, NEW)
RUN_ID = re.compile(r"[0-9a-f]{32}")
READ_SIZE = 1 << 20
# For lines that we wrote. They are not parsed as JSON, because an event may be nested too deeply for the parser.
KIND = re.compile(rb'\{"type":"(\w+)"')


class UnknownRunError(RemoteClawError, LookupError):
    """No such run is known here: it never existed, or it ended so long ago that it was deleted."""


class RunFolder:
    """The folder that the workers share. Created when first needed."""

    def __init__(self, path: str) -> None:
        self.path = path

    def prepare(self) -> None:
        """Make sure that the folder exists and is ours. Raises PermissionError if it belongs to somebody else."""
        try:
            os.makedirs(self.path, 0o700, exist_ok=True)
        except FileExistsError:
            pass  # Something else has that name; the check below refuses it.
        found = os.lstat(self.path)
        # In a world-writable /tmp another user could create the folder first, to read along or plant an answer.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(f"{self.path} must be a folder that belongs to this user and has mode 0700")

    def file(self, run_id: str, suffix: str = KEPT) -> str:
        """The path of this run's file. The id comes from the network: raises UnknownRunError if it is not a run id."""
        if not isinstance(run_id, str) or RUN_ID.fullmatch(run_id) is None:
            raise UnknownRunError("that is not a run id")
        return os.path.join(self.path, run_id + suffix)

    def find(self, run_id: str) -> str:
        """The path of the file that the run's worker holds or held. Raises UnknownRunError."""
        for suffix in (KEPT, UNKEPT):
            if os.path.exists(path := self.file(run_id, suffix)):
                return path
        raise UnknownRunError("no such run is kept here")

    def run_ids(self) -> list[str]:
        """All known runs, including ended ones."""
        stems = (os.path.splitext(name) for name in self._names())
        return sorted(stem for stem, suffix in stems if suffix in (KEPT, UNKEPT) and RUN_ID.fullmatch(stem))

    def order(self, run_id: str, order: Mapping[str, Any], once: str | None = None) -> bool:
        """Leave an order for the worker that has this run. Of orders with the same `once`, only the first is accepted
        until it has been carried out; returns False for the others."""
        if once is not None:
            digest = hashlib.sha256(once.encode("utf-8", "backslashreplace")).hexdigest()
            return self._write(self.file(run_id, f"-{digest}{ORDER}"), order, once=True)
        # The time in the name keeps orders in sequence; the random part keeps two at the same moment apart.
        return self._write(self.file(run_id, f"-{time.time_ns():020}-{secrets.token_hex(4)}{ORDER}"), order)

    def take_orders(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The file names and contents of all orders: a run's oldest first, its answers in any order. `done_with`
        removes one."""
        for name in sorted(name for name in self._names() if name.endswith(ORDER)):
            order = self._read(name)
            if order is not None:
                yield name, order

    def done_with(self, name: str) -> None:
        _unlink(os.path.join(self.path, name))

    def show_asks(self, run_id: str, requests: list[Mapping[str, Any]]) -> None:
        """Let other workers know which permission requests are open."""
        if requests:
            self._write(self.file(run_id, ASKS), requests)
        else:
            _unlink(self.file(run_id, ASKS))

    def asks(self, run_id: str) -> list[Mapping[str, Any]]:
        """The open permission requests, as JSON."""
        return self._read(os.path.basename(self.file(run_id, ASKS))) or []

    def forget(self, run_id: str) -> None:
        """Delete the files that only live runs need."""
        for suffix in (UNKEPT, ASKS):
            _unlink(self.file(run_id, suffix))
        for name in self._names():
            if name.startswith(run_id) and name.endswith(ORDER):
                self.done_with(name)

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.path)
        except OSError:
            return []

    def _write(self, path: str, data: Any, once: bool = False) -> bool:
        """Write a file that appears complete under its name; with `once`, not at all if that name exists already."""
        new = f"{path}-{secrets.token_hex(4)}{NEW}"
        with open(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(as_json(data))
        if not once:
            os.rename(new, path)
            return True
        try:
            os.link(new, path)
        except FileExistsError:
            return False
        finally:
            _unlink(new)
        return True

    def _read(self, name: str) -> Any:
        try:
            with open(os.path.join(self.path, name), "rb") as file:
                return json.load(file)
        except (OSError, ValueError, RecursionError):
            return None  # Already taken by now, or nested too deeply for the parser.

    def sweep(self, retention: float) -> None:
        """Delete runs that ended, or lost their worker, longer than `retention` seconds ago."""
        due = time.time() - retention
        for name in self._names():
            path = os.path.join(self.path, name)
            try:
                if os.stat(path).st_mtime < due and name.endswith(SUFFIXES) and not is_written(path):
                    os.unlink(path)
            except OSError:
                pass  # Another worker has already deleted it.


def is_written(path: str) -> bool:
    """Whether a live worker holds this file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return _is_locked(fd)
    finally:
        os.close(fd)


class JournalWriter:
    """Appends a run's events. The file appears with the lock already held."""

    def __init__(self, folder: RunFolder, run_id: str, suffix: str = KEPT) -> None:
        folder.prepare()
        path = folder.file(run_id, suffix)
        new = folder.file(run_id, NEW)
        # O_CLOEXEC: a CLI that inherited the descriptor would hold the lock after the worker's death.
        self._fd = os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            os.rename(new, path)
        except BaseException:
            os.close(self._fd)
            _unlink(new)
            raise
        self.size = 0

    def append(self, item: Item) -> None:
        line = memoryview(item.data + b"\n")
        self.size += len(line)
        while line:  # A full disk may take part of it before it raises; readers wait for the end of the line.
            line = line[os.write(self._fd, line) :]

    def close(self) -> None:
        """Release the lock, which shows readers that nothing more will be written."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class JournalReader:
    """Reads the events that have been written to a run's file so far, from number `after` + 1 on."""

    def __init__(self, folder: RunFolder, run_id: str, after: int = 0) -> None:
        try:
            self._fd = os.open(folder.file(run_id), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise UnknownRunError("no such run is kept here") from None
        self._after = after
        self.number = 0  # The number of the last event that was read or skipped.
        self._last_line = b""
        self._partial = b""

    def read(self) -> Iterator[Item]:
        """The events since the last call."""
        while chunk := os.read(self._fd, READ_SIZE) if self._fd >= 0 else b"":
            *lines, self._partial = (self._partial + chunk).split(b"\n")
            for line in lines:
                self.number += 1
                self._last_line = line
                if self.number > self._after:
                    yield Item(self.number, kind_of(line), line)

    @property
    def ended_well(self) -> bool:
        """Whether the last event read is a `done`."""
        return bool(self._last_line) and kind_of(self._last_line) == "done"

    def writer_is_gone(self) -> bool:
        """Whether nothing more will be written. There may still be events to read."""
        return self._fd < 0 or not _is_locked(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def kind_of(line: bytes) -> str:
    """The type of the event in a line that we wrote."""
    found = KIND.match(line)
    return "" if found is None else found[1].decode()


def _is_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
