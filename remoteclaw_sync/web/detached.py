"""The runs that web requests have started, so that any thread or worker can abort them or continue listening."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .._values import check_size
from ..process.host import after_fork
from ..types import AgentEvent
from .background import Item, Next, as_run, end
from .handle import LocalRun, RunHandle, check_live, dead_workers_ending, resumed
from .journal import KEPT, UNKEPT, JournalReader, JournalWriter, RunFolder, UnknownRunError, is_written
from .visitor import NOT_ASKED, NotAskedError

logger = logging.getLogger(__name__)

FOLDER_NAME = "remoteclaw-sync-runs"
FOLDER_VARIABLE = "REMOTECLAW_SYNC_RUNS"  # The folder that the workers of a site share.
RETENTION = 900.0  # Seconds for which an ended run can still be read: a phone that slept in a pocket reconnects.
MAX_BYTES = 64 << 20  # For one run's events. Even a long day of an agent's work is under 10 MB.
# How often a follower checks whether another worker has written: soon after an event, less and less often in silence.
FIRST_POLL_SECONDS = 0.01
POLL_SECONDS = 0.1
ORDER_POLL_SECONDS = 0.25  # How often a worker with live runs checks for orders from other workers.


class Runs:
    """A registry of runs, shared by the workers of one machine through a private folder.

    Args:
        folder: where the runs are kept (default: `$REMOTECLAW_SYNC_RUNS`, else one per user in the temporary folder).
        retention: seconds for which an ended run can be read again; older ones are deleted when the next run starts.
        max_bytes: limit for one detached run's events; a run that exceeds it is aborted.
        max_live: how many runs of this process may be live at once (default: any number); beyond it,
            TooManyRunsError is raised.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        retention: float = RETENTION,
        max_bytes: int = MAX_BYTES,
        max_live: int | None = None,
    ) -> None:
        self.retention = retention
        self.max_bytes = max_bytes
        self.max_live = max_live
        if max_live is not None:
            check_size("max_live", max_live)
        self._given = None if folder is None else os.fspath(folder)
        self._lock = threading.Lock()
        self._orders = threading.Lock()  # So that each order is carried out once.
        self._live: dict[str, _Live] = {}
        self._watcher: threading.Thread | None = None
        self._wake = threading.Event()
        _ALL.add(self)

    @property
    def folder(self) -> RunFolder:
        """Looked up on each use, so that a site can set the variable after importing this package."""
        named = self._given or os.environ.get(FOLDER_VARIABLE)
        return RunFolder(named) if named else folder_of_this_user()

    def start(self, events: Iterable[AgentEvent]) -> RunHandle:
        """Let a run continue on its own: a thread writes its events to a file, whether or not anybody listens."""
        run_id = new_run_id()
        folder = self.folder
        live = self._enter(run_id, as_run(events), folder, KEPT)
        thread = threading.Thread(target=self._record, args=(live,), name="remoteclaw-run", daemon=True)
        thread.start()
        return RunHandle(self, run_id)

    def get(self, run_id: str) -> RunHandle:
        """A run by its id, live or ended. Raises UnknownRunError (a LookupError)."""
        self.folder.find(run_id)
        return RunHandle(self, run_id)

    def resume(self, last_event_id: str) -> RunHandle:
        """The run that this event id (the `Last-Event-ID` header) belongs to, continuing after that event."""
        return resumed(self, last_event_id)

    def __iter__(self) -> Iterator[RunHandle]:
        """All live runs, in any worker."""
        for run_id in self.folder.run_ids():
            handle = RunHandle(self, run_id)
            if handle.live:
                yield handle

    def abort_all(self) -> None:
        """Abort the runs of this process and wait, for a limited time, until they have ended. For a stopping server."""
        with self._lock:
            mine = list(self._live.values())
        for live in mine:
            live.abort()
        deadline = time.monotonic() + 5.0
        for live in mine:
            live.ended.wait(max(0.0, deadline - time.monotonic()))

    # --- for this package -----------------------------------------------------------------------------------

    def watch(self, run_id: str, run: Any) -> Callable[[], None]:
        """Register a visitor's own run while it lives; returns the function to call at its end."""
        live = self._enter(run_id, run, self.folder, UNKEPT)
        return lambda: self._leave(live)

    def local(self, run_id: str) -> _Live | None:
        """The run, if it belongs to this process."""
        return self._live.get(run_id)

    def is_live(self, run_id: str) -> bool:
        """Whether a living worker has the run."""
        try:
            return is_written(self.folder.find(run_id))
        except UnknownRunError:
            return False

    def order(self, run_id: str, order: Mapping[str, Any]) -> None:
        """Leave an order for the worker that has this run. Raises NotAskedError for a second answer to a request."""
        once = order["request_id"] if order["do"] == "answer" else None
        if not self.folder.order(run_id, order, once):
            raise NotAskedError(NOT_ASKED)

    def asks(self, run_id: str) -> list[Mapping[str, Any]]:
        """The open permission requests of another worker's run, as JSON."""
        return self.folder.asks(run_id)

    def follow(self, run_id: str, after: int) -> Follower:
        """The run's events after that number: those already written and those still to come."""
        return Follower(self, self.folder, run_id, after)

    def _enter(self, run_id: str, run: Any, folder: RunFolder, suffix: str) -> _Live:
        folder.sweep(self.retention)
        with self._lock:
            check_live(self.max_live, len(self._live))
            live = self._live[run_id] = _Live(run_id, run, folder, suffix, self._carry_out_orders)
            if self._watcher is None or not self._watcher.is_alive():
                self._wake = threading.Event()
                self._watcher = threading.Thread(target=self._watch, name="remoteclaw-runs", daemon=True)
                self._watcher.start()
        return live

    def _leave(self, live: _Live) -> None:
        if live.owner != os.getpid():
            return  # In a forked copy: the run, and the files that announce it, belong to the parent.
        live.folder.forget(live.run_id)
        live.finish()
        with self._lock:
            self._live.pop(live.run_id, None)
            if not self._live:
                self._watcher = None
                self._wake.set()

    def forget_after_fork(self) -> None:
        """In a forked copy: the runs, their threads and the locks that show they are alive belong to the parent."""
        self._lock, self._orders = threading.Lock(), threading.Lock()
        for live in self._live.values():
            live.writer.close()
        self._live = {}
        self._watcher = None

    def _watch(self) -> None:
        """Carry out what other workers ask for. Runs only while this process has live runs."""
        wake = self._wake
        while not wake.wait(ORDER_POLL_SECONDS):
            self._carry_out_orders()

    def _carry_out_orders(self) -> None:
        mine = dict(self._live)
        with self._orders:
            for folder in {live.folder.path: live.folder for live in mine.values()}.values():
                for name, order in folder.take_orders():
                    live = mine.get(name.partition("-")[0])
                    if live is not None:
                        # In this sequence, so that a second answer to a request finds the first, or the request gone.
                        live.carry_out(order)
                        folder.done_with(name)

    def _record(self, live: _Live) -> None:
        try:
            live.write_down(self.max_bytes)
        except OSError as error:
            # A full disk, for example. Followers notice that the lock was released and end their streams.
            logger.error("cannot keep the events of a run: %s", error.strerror)
        finally:
            end(live.run)
            self._leave(live)


class _Live(LocalRun):
    """A run of this process."""

    def __init__(
        self, run_id: str, run: Any, folder: RunFolder, suffix: str, carry_out_orders: Callable[[], None]
    ) -> None:
        self.folder = folder
        self._carry_out_orders = carry_out_orders
        self.writer = JournalWriter(folder, run_id, suffix)
        self.count = 0
        self._changed = threading.Condition()
        super().__init__(run_id, run)

    def show_asks(self, requests: list[Mapping[str, Any]]) -> None:
        try:
            self.folder.show_asks(self.run_id, requests)
        except OSError as error:  # The disk is full, or a cleaner has removed the folder.
            logger.warning("other workers will not see what a run asks: %s", error.strerror)

    def catch_up(self) -> None:
        self._carry_out_orders()

    def append(self, item: Item) -> None:
        self.writer.append(item)
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def wait(self, seen: int, seconds: float) -> None:
        """Wait until more than `seen` events are written, or the run has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self.count != seen or self.ended.is_set(), seconds)

    def finish(self) -> None:
        self.writer.close()
        self.ended.set()
        with self._changed:
            self._changed.notify_all()


class Follower:
    """The source of a stream that follows a run. Closing it does not affect the run."""

    def __init__(self, runs: Runs, folder: RunFolder, run_id: str, after: int) -> None:
        self._reader = JournalReader(folder, run_id, after)
        self._live = runs.local(run_id)
        self._after = after
        self._items = self._reader.read()
        self._ending: Iterator[Item] | None = None
        self._pause = FIRST_POLL_SECONDS

    def get(self, timeout: float) -> Next:
        deadline = time.monotonic() + timeout
        while True:
            # Checked before reading, so that nothing written before the end can be missed.
            count = 0 if self._live is None else self._live.count
            gone = self._reader.writer_is_gone()
            item = self._next_written()
            if item is not None:
                self._pause = FIRST_POLL_SECONDS
                return item
            if gone:
                return self._next_of_ending()
            left = deadline - time.monotonic()
            if left <= 0:
                return "silence"
            if self._live is None:
                time.sleep(min(left, self._pause))
                self._pause = min(2 * self._pause, POLL_SECONDS)
            else:
                self._live.wait(count, left)

    def close(self) -> None:
        self._reader.close()

    def _next_written(self) -> Item | None:
        item = next(self._items, None)
        if item is None:
            self._items = self._reader.read()
            item = next(self._items, None)
        return item

    def _next_of_ending(self) -> Next:
        """The last events, on behalf of a worker that died."""
        if self._ending is None:
            said = () if self._reader.ended_well else dead_workers_ending(self._reader.number)
            self._ending = (item for item in said if item.number > self._after)
        return next(self._ending, "end")


def folder_of_this_user() -> RunFolder:
    """The folder that all workers of this user find without any setting.

    In a temporary folder shared by all users, another user may have taken the name. Then the folder is in this user's
    home or, if there is no home, is one that only this process and its forks know.
    """
    try:
        return _ours(os.path.join(tempfile.gettempdir(), f"{FOLDER_NAME}-{os.geteuid()}"))
    except OSError as error:
        taken = error
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    try:
        return _ours(os.path.join(cache, FOLDER_NAME))
    except OSError:
        pass
    with _FOLDER_LOCK:
        if not _PRIVATE_FOLDERS:
            try:
                path = tempfile.mkdtemp(prefix=f"{FOLDER_NAME}-")
            except OSError:
                raise PermissionError(f"{taken}; set {FOLDER_VARIABLE} to a private folder") from None
            logger.warning("runs are kept in %s, which other workers cannot find: set %s", path, FOLDER_VARIABLE)
            _PRIVATE_FOLDERS.append(path)
            atexit.register(_remove_private_folder, path, os.getpid())
        return RunFolder(_PRIVATE_FOLDERS[0])


def _ours(path: str) -> RunFolder:
    folder = RunFolder(path)
    folder.prepare()
    return folder


def _remove_private_folder(path: str, owner: int) -> None:
    if owner == os.getpid():
        shutil.rmtree(path, ignore_errors=True)


_FOLDER_LOCK = threading.Lock()
_PRIVATE_FOLDERS: list[str] = []  # The fallback folder of this process, if it was ever needed.


def new_run_id() -> str:
    """Impossible to guess, because whoever knows the id can listen and abort."""
    return secrets.token_hex(16)


def _forget_after_fork() -> None:
    global _FOLDER_LOCK
    _FOLDER_LOCK = threading.Lock()
    for registry in list(_ALL):
        registry.forget_after_fork()


_ALL: weakref.WeakSet[Runs] = weakref.WeakSet()
after_fork(_forget_after_fork)

runs = Runs()
