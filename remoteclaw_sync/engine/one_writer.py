"""One writer per session: a run that resumes a session locks out all others of this user on this machine.

If two processes write to one session, half of what was said is lost, and no CLI notices. So each run that resumes a
session holds a lock file while its process lives, and so does a live session from the end of its first turn on. The
lock (flock) belongs to the kernel, which releases it when a host is killed. The file's name is a digest; it is in a
folder that only this user can enter.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import logging
import os
import threading
import time
import weakref

from .. import errors, files
from ..process.host import after_fork

try:
    import fcntl
except ImportError:  # On Windows, sessions are not held.
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

FOLDER = "sessions"
TIDYING = 0.005  # Seconds that another process may hold the file while it checks whether it can remove it.
TRIES = 100  # How often to try to open a file that others remove at the same time.

_is_exit = False
_tidied: set[int] = set()
_holds: weakref.WeakSet[Hold] = weakref.WeakSet()


class Hold:
    """A session that nobody else may write to, until `release()` is called or this object is dropped."""

    def __init__(self, path: str, fd: int) -> None:
        self._lock = threading.RLock()  # Re-entered by the GC.
        self._path = path
        self._fd: int | None = fd
        _holds.add(self)

    def release(self) -> None:
        """Let others have the session. A second call does nothing."""
        with self._lock:
            fd, self._fd = self._fd, None
        if fd is None:
            return
        try:
            os.unlink(self._path)  # First: whoever gets the lock next can see that the path is no longer this file.
        except OSError:
            pass
        try:
            fcntl.flock(fd, fcntl.LOCK_UN)  # Closing is not enough: a process being forked may have a copy of the fd.
        finally:
            os.close(fd)
        if _is_exit:
            files.remove_user_folder(FOLDER)

    def forget_after_fork(self) -> None:
        """In a forked copy of the host: the hold is the parent's."""
        self._lock = threading.RLock()
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __del__(self) -> None:
        self.release()


def hold(store: str, session_id: str) -> Hold | None:
    """Hold this session of the store. None if that is not possible: then the session is not protected.

    Raises RunSetupError (SESSION_BUSY) if somebody else has it.
    """
    if fcntl is None:
        return None
    name = hashlib.blake2b(f"{store}\0{session_id}".encode(errors="surrogatepass"), digest_size=16).hexdigest()
    busy: errors.RunSetupError | None = None
    try:
        for _ in range(TRIES):
            try:
                folder = files.user_folder(FOLDER)
                _tidy(folder)
                path = os.path.join(folder, name)
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except FileNotFoundError:
                continue  # The last process to leave has removed the folder.
            try:
                held = _locked(path, fd, session_id)
            except errors.RunSetupError as error:
                if busy is not None:
                    raise
                busy = error
                time.sleep(TIDYING)
                continue
            if held is not None:
                return held
    except OSError as error:  # A full or read-only disk must not keep anyone from working.
        logger.warning("a session cannot be protected from a second writer: %s", error)
    return None


def _locked(path: str, fd: int, session_id: str) -> Hold | None:
    """Lock the open file; None if it was removed meanwhile."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False)):
            os.pwrite(fd, b"%-20d" % os.getpid(), 0)  # Only for the message to others.
            return Hold(path, fd)
    except FileNotFoundError:
        pass
    except BaseException as error:
        if isinstance(error, OSError) and error.errno in (errno.EAGAIN, errno.EACCES):
            owner = os.pread(fd, 20, 0).decode(errors="replace").strip()
            os.close(fd)
            raise errors.RunSetupError(errors.SESSION_BUSY, _busy(session_id, owner)) from None
        os.close(fd)
        raise
    os.close(fd)
    return None


def _tidy(folder: str) -> None:
    """Once per process: remove the files of hosts that were killed."""
    if os.getpid() in _tidied:
        return
    _tidied.add(os.getpid())
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        try:
            held = _locked(path, os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW), "")
        except (OSError, errors.RunSetupError):
            continue  # Somebody holds it, or has just removed it.
        if held is not None:
            held.release()


def _busy(session_id: str, owner: str) -> str:
    who = "this process" if owner == str(os.getpid()) else f"process {owner}" if owner.isdigit() else "another process"
    return (
        f"session {session_id} is in use: a run or a live session of {who} holds it. "
        "Close that session, or wait until it has ended or was idle for its idle_timeout"
    )


def _forget_all() -> None:
    for held in list(_holds):
        held.forget_after_fork()


def _remove_folder_from_now_on() -> None:
    """The interpreter exits, so the remaining holds are about to be released. (Removing the folder after each run would
    take longer than everything else here.)"""
    global _is_exit
    _is_exit = True
    files.remove_user_folder(FOLDER)


after_fork(_forget_all)
if fcntl is not None:
    atexit.register(_remove_folder_from_now_on)
