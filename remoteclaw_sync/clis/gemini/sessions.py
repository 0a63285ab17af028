"""Protects Gemini's sessions from Gemini's own clean-up (0.61.0).

Every start of Gemini deletes, in the background, the session files of its project that contain no conversation. The
file of every new session looks like that for a moment, until the prompt has been written to it. And `--resume` leaves a
second, empty file (a stub) of the same session behind, because of which the clean-up deletes the real one too. So a
resumed session was gone after the next start, and of eight new ones started at once about half were lost.

Our countermeasures: runs in one folder start one after another (each until its `init` line); a session's file has a
second link, unknown to the clean-up, as long as the run takes; stubs are removed as soon as they appear; and at the
end, or in the next run if this host is killed, a file that was deleted in the meantime is put back.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from ...process.host import host_identity, host_is_gone
from .facts import state_folder

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

OWN_FOLDER = "remoteclaw-sync"  # In Gemini's own folder, because links cannot cross file systems.
LONGEST_WAIT = 15.0  # Seconds; a start that hangs must not hold up the others forever.
POLL_SECONDS = 0.02

NOT_IN_FILE_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
FILE_NAME = re.compile(r"session-(\d{4}-\d\d-\d\dT\d\d-\d\d)-([a-zA-Z0-9_-]{1,8})\.jsonl?")
# A stub's name contains the minute in which it was made. A session that was started in the same minute has that name
# too. Then the stub's lines go into the session's own file, and a run that ends there has lost the conversation. Gemini
# finds files by their content, so a name may contain any other minute.
NO_MINUTE_OF_TODAY = "2000-01-01T00-00"

LONGEST_HEAD = 64 * 1024  # The first line of a session: its id, its project and two times.
LONGEST_STUB = 4 * 1024 * 1024  # Its one message lists up to 200 files of the project.
LONGEST_COPY = 256 * 1024 * 1024  # On file systems without links.
CONTEXT = "<session_context>"


class SessionGuard:
    """Looks after the session of one run. A loan (see process.launch.Loan) that is over when Gemini has started."""

    def __init__(self, environ: Mapping[str, str | None], project: str) -> None:
        self._folder = os.path.abspath(os.path.join(project, state_folder(environ)))
        self._project = project
        self._owner = os.getpid()
        self._output = b""
        self._session_id: str | None = None
        self._links = LinkFolder(self._folder)
        self._turn_fd = -1
        self._ending_turn = threading.Lock()

    # --- before the start -----------------------------------------------------------------------------------

    def put_right(self) -> None:
        """Restore what hosts that were killed could not put back."""
        recover(self._folder)

    def wait_for_turn(self, pause: Callable[[float], None]) -> None:
        """Wait until no other run is starting in this project. `pause` raises if this run is to end."""
        try:
            fd = os.open(self._project, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return  # The run itself will report what is wrong with the folder.
        give_up = time.monotonic() + LONGEST_WAIT
        try:
            while not _try_lock(fd):
                if time.monotonic() > give_up:
                    os.close(fd)
                    return
                pause(POLL_SECONDS)
        except BaseException:
            os.close(fd)
            raise
        self._turn_fd = fd

    def protect(self, session_id: str) -> None:
        """Protect a session that is about to be resumed."""
        self._session_id = session_id
        minute = time.strftime("%Y-%m-%dT%H-%M", time.gmtime())
        for path in session_files(self._folder, session_id):
            if not is_stub(path):
                self._links.add(_moved_from(path, minute))
        self._remove_stubs()

    # --- a loan ---------------------------------------------------------------------------------------------

    def is_over(self, chunk: bytes) -> bool:
        """Whether Gemini has started. Then its session has a name and, if it is new, a file, which we keep from now on.

        The first line shows it. Any line other than `init` would come even later.
        """
        self._output += chunk
        line, ended, _ = self._output.partition(b"\n")
        if not ended:
            return False
        self._output = b""
        if self._session_id is None:
            self._session_id = _session_in(line)
            if self._session_id is not None:
                for path in session_files(self._folder, self._session_id):
                    self._links.add(path)
        return True

    def give_back(self) -> None:
        """Let the next run start, and remove the stub. Called when Gemini has started, and at the end of the run."""
        if os.getpid() == self._owner:
            self._remove_stubs()
            self._end_turn()

    def forget_after_fork(self) -> None:
        """In a forked copy of the host: close its copy of the lock, which would keep other runs waiting."""
        self._ending_turn = threading.Lock()  # A thread that does not exist here may hold the old one.
        self._end_turn()

    def _end_turn(self) -> None:
        with self._ending_turn:
            fd, self._turn_fd = self._turn_fd, -1
        if fd != -1:
            os.close(fd)

    # --- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Put back what was deleted in the meantime. Does not raise."""
        if os.getpid() == self._owner:
            self.give_back()
            self._links.settle()

    def _remove_stubs(self) -> None:
        # Only if Gemini was seen writing to the real file; otherwise it may be using the other one.
        if self._session_id is None or not self._links.have_grown():
            return
        for path in session_files(self._folder, self._session_id):
            if path not in self._links.originals and is_stub(path):
                _unlink(path)


class LiveSessionGuard(SessionGuard):
    """The same for a live session, where Gemini's lines are those of ACP."""

    def __init__(self, environ: Mapping[str, str | None], project: str) -> None:
        super().__init__(environ, project)
        self._is_open = False

    @property
    def has_conversation(self) -> bool:
        """Whether the protected session has anything to resume."""
        return bool(self._links.originals)

    def is_over(self, chunk: bytes) -> bool:
        """Whether nothing can happen to the session any more: it has a file and, after a resume, no stub.

        Gemini writes to a resumed session's file only when it gets the next prompt, long after others may start.
        """
        if not self._is_open:
            answer = _first_answer(chunk)
            if answer is None:
                return False
            self._is_open = True
            self._end_turn()
            self._session_id = self._session_id or _named_in(answer)
        if self._session_id is None:
            return True  # Gemini refused the session.
        if self._links.originals:
            return self._links.have_grown()
        for path in session_files(self._folder, self._session_id):
            self._links.add(path)
        return False


class LinkFolder:
    """Second links to session files: `remoteclaw-sync/<owner>/<project>/<file>` for `tmp/<project>/chats/<file>`."""

    def __init__(self, gemini_folder: str) -> None:
        self._gemini_folder = gemini_folder
        self._path = os.path.join(gemini_folder, OWN_FOLDER, f"{host_identity()}.{secrets.token_hex(4)}")
        self.originals: dict[str, int] = {}  # With the sizes they had when added.

    def add(self, original: str) -> None:
        """Keep this file. If that fails, the session is used unprotected."""
        link = os.path.join(self._path, os.path.basename(os.path.dirname(os.path.dirname(original))))
        try:
            _make_folder(link)
            link = os.path.join(link, os.path.basename(original))
            try:
                os.link(original, link, follow_symlinks=False)
            except FileNotFoundError:
                raise
            except OSError:  # Some file systems have no links.
                _copy(original, link)
        except OSError as error:
            logger.warning("a Gemini session cannot be kept from being deleted: %s", type(error).__name__)
            return
        self.originals[original] = _size(original)

    def have_grown(self) -> bool:
        """Whether one of the files has been written to."""
        return any(_size(path) > size for path, size in self.originals.items())

    def settle(self) -> None:
        """Put back what is gone, and remove the links. Does not raise."""
        if self.originals:
            self.originals = {}
            settle(self._path, self._gemini_folder)


def recover(gemini_folder: str) -> None:
    """Clean up what hosts that died have left behind. Does not raise."""
    own_folder = os.path.join(gemini_folder, OWN_FOLDER)
    try:
        owners = os.listdir(own_folder)
    except OSError:
        return
    for owner in owners:
        if not host_is_gone(owner.partition(".")[0]):
            continue
        mine = os.path.join(own_folder, f"{host_identity()}.{secrets.token_hex(4)}")
        try:
            os.rename(os.path.join(own_folder, owner), mine)  # Only one host can succeed.
        except OSError:
            continue
        settle(mine, gemini_folder)


def settle(folder: str, gemini_folder: str) -> None:
    """Restore the original of each link if it is gone, and remove the links. Does not raise."""
    for project in _names(folder):
        for name in _names(os.path.join(folder, project)):
            link = os.path.join(folder, project, name)
            original = os.path.join(gemini_folder, "tmp", project, "chats", name)
            try:
                if FILE_NAME.fullmatch(name):  # Anything else is an unfinished file of ours.
                    _restore(link, original)
                os.unlink(link)
            except OSError as error:
                logger.error("cannot put back the Gemini session %s (kept as %s): %s", original, link, error)
        _remove_folder(os.path.join(folder, project))
    _remove_folder(folder)
    _remove_folder(os.path.dirname(folder))


def session_files(gemini_folder: str, session_id: str) -> list[str]:
    """The files of a session in any project, including its stubs."""
    short_id = NOT_IN_FILE_NAMES.sub("_", session_id)[:8]
    chats = (os.path.join(gemini_folder, "tmp", name, "chats") for name in _names(os.path.join(gemini_folder, "tmp")))
    found = []
    for folder in chats:
        for name in _names(folder):
            match = FILE_NAME.fullmatch(name)
            if match and match[2] == short_id and _belongs_to(os.path.join(folder, name), session_id):
                found.append(os.path.join(folder, name))
    return found


def is_stub(path: str) -> bool:
    """Whether a session file contains nothing but what Gemini sends to its model at the start."""
    if not 0 < _size(path) <= LONGEST_STUB:
        return False
    try:
        records = [json.loads(line) for line in _read(path, LONGEST_STUB).splitlines() if line.strip()]
    except (OSError, ValueError, RecursionError):
        return False
    return all(map(_says_nothing, records))


def _says_nothing(record: Any) -> bool:
    if not isinstance(record, dict) or "id" in record or "messages" in record or "$rewindTo" in record:
        return False
    change = record.get("$set", {})
    messages = change.get("messages", []) if isinstance(change, dict) else None
    return isinstance(messages, list) and all(map(_is_context, messages))


def _is_context(message: Any) -> bool:
    return isinstance(message, dict) and message.get("type") == "user" and CONTEXT in json.dumps(message.get("content"))


def _session_in(line: bytes) -> str | None:
    """The session that an `init` line names."""
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return None
    session_id = told.get("session_id") if isinstance(told, dict) and told.get("type") == "init" else None
    return session_id if isinstance(session_id, str) and session_id else None


def _first_answer(chunk: bytes) -> dict[str, Any] | None:
    """The answer to a session's own first request, if it is among these lines."""
    for line in chunk.split(b"\n"):
        if not line or b'"method"' in line[:64]:
            continue
        try:
            told = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(told, dict) and "method" not in told and type(told.get("id")) is int:
            return told
    return None


def _named_in(answer: dict[str, Any]) -> str | None:
    result = answer.get("result")
    session_id = result.get("sessionId") if isinstance(result, dict) else None
    return session_id if isinstance(session_id, str) and session_id else None


def _belongs_to(path: str, session_id: str) -> bool:
    try:
        head = _read(path, LONGEST_HEAD)
    except OSError:
        return False
    wanted = re.escape(json.dumps(session_id, ensure_ascii=False).encode())
    return re.search(rb'"sessionId"\s*:\s*' + wanted, head) is not None


def _moved_from(path: str, minute: str) -> str:
    """The file's path; the file is moved first if Gemini would otherwise write its stub into it."""
    folder, name = os.path.split(path)
    match = FILE_NAME.fullmatch(name)
    if match is None or match[1] < minute:
        return path
    moved = os.path.join(folder, name.replace(match[1], NO_MINUTE_OF_TODAY, 1))
    try:
        os.link(path, moved, follow_symlinks=False)  # Unlike a rename, a link replaces nothing.
        os.unlink(path)
    except OSError:
        return path
    return moved


# --- putting back -------------------------------------------------------------------------------------------


def _restore(link: str, original: str) -> None:
    """Make `original` what it would be if it had not been deleted; Gemini may have begun a new file of that name."""
    if not os.path.isdir(os.path.dirname(original)):
        return  # The user has deleted all of the project's sessions.
    try:
        os.link(link, original, follow_symlinks=False)
    except FileExistsError:
        if not _holds(original, link):
            _join(link, original)
    except OSError:  # No links here: what we have is a copy.
        if not os.path.lexists(original):
            _copy(link, original)
        elif not _holds(original, link):
            _join(link, original)


def _holds(original: str, link: str) -> bool:
    """Whether a file begins with everything in our link to it, or in our copy of it."""
    with _open(original) as whole, _open(link) as beginning:
        if os.path.sameopenfile(whole.fileno(), beginning.fileno()):
            return True
        while block := beginning.read(1 << 20):
            if whole.read(len(block)) != block:
                return False
    return True


def _join(link: str, original: str) -> None:
    """Write what was in the file before it was deleted, followed by what has been written since."""
    joined = f"{link}.joined"
    with _open(link) as before, _open(original) as since:
        with open(joined, "xb", opener=_private) as file:
            os.fchmod(file.fileno(), stat.S_IMODE(os.fstat(before.fileno()).st_mode))
            known = set()
            for line in before:
                known.add(_digest(line))
                file.write(line if line.endswith(b"\n") else line + b"\n")
            _append_unknown(since, known, file)
        os.replace(joined, original)
        with open(original, "ab") as file:  # What another Gemini has written in the meantime.
            _append_unknown(since, known, file)


def _append_unknown(source: IO[bytes], known: set[bytes], target: IO[bytes]) -> None:
    for line in source:
        if _digest(line) not in known:
            target.write(line)


def _digest(line: bytes) -> bytes:
    return hashlib.blake2b(line.rstrip(b"\n"), digest_size=16).digest()


def _copy(original: str, target: str) -> None:
    with _open(original) as source:
        if os.fstat(source.fileno()).st_size > LONGEST_COPY:
            raise OSError("too big to be copied")
        with open(target, "xb", opener=_private) as file:
            shutil.copyfileobj(source, file)


# --- files --------------------------------------------------------------------------------------------------


def _open(path: str) -> IO[bytes]:
    """Open a regular file for reading. Raises OSError for anything else, links included; does not wait for a FIFO."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{path} is not a regular file")
    return os.fdopen(fd, "rb")


def _read(path: str, limit: int) -> bytes:
    with _open(path) as file:
        return file.read(limit)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _make_folder(path: str) -> None:
    for _ in range(10):  # Another run, when it ends, removes the parents if they are empty.
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
            return
        except FileNotFoundError:
            continue
    os.makedirs(path, mode=0o700, exist_ok=True)


def _names(folder: str) -> Iterator[str]:
    try:
        yield from os.listdir(folder)
    except OSError:
        return


def _remove_folder(path: str) -> None:
    with contextlib.suppress(OSError):  # Not empty: others use it.
        os.rmdir(path)


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _try_lock(fd: int) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # A file system without locks.
    return True
