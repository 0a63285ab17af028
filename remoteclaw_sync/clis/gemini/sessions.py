"""Protects Gemini's sessions from Gemini's own clean-up (0.61.0).

Every start of Gemini deletes, in the background, the session files of its project that hold no conversation. A file
looks like that for a moment in every new session, until the prompt has been written down; and `--resume` leaves a
second, empty file (a stub) of the same session behind, and for its sake the clean-up deletes the real one too. So a
session that was resumed was gone after the next start, and of eight new ones begun at once about half were lost.

What is done about it: one run after another starts in a folder (until its `init` line); a session's file has a second
link, which no clean-up knows of, for as long as the run takes; stubs are removed as soon as they are there; and at the
end, or by the next run if this host is killed, a file that was deleted meanwhile is put back.
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

OWN_FOLDER = "remoteclaw-sync"  # In Gemini's own folder: links do not reach into another file system.
LONGEST_WAIT = 15.0  # Seconds; a start that hangs must not hold up the others forever.
POLL_SECONDS = 0.02

NOT_IN_FILE_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
FILE_NAME = re.compile(r"session-(\d{4}-\d\d-\d\dT\d\d-\d\d)-([a-zA-Z0-9_-]{1,8})\.jsonl?")
# A stub has the name of the minute it was made in. A session that was begun in the same minute has it too; then the
# stub's lines go into the session's own file, and a run that ends there has lost the conversation. Files are found by
# what is in them, so they may have any other minute.
NO_MINUTE_OF_TODAY = "2000-01-01T00-00"

LONGEST_HEAD = 64 * 1024  # The first line of a session: its id, its project and two times.
LONGEST_STUB = 4 * 1024 * 1024  # Its one message lists up to 200 files of the project.
LONGEST_COPY = 256 * 1024 * 1024  # Where there are no links.
CONTEXT = "<session_context>"


class SessionGuard:
    """Looks after the session of one run. A loan (see process.launch.Loan), over when Gemini has started."""

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
        """Bring back what was deleted while hosts were killed."""
        recover(self._folder)

    def wait_for_turn(self, pause: Callable[[float], None]) -> None:
        """Wait until no other run is starting in this project. `pause` raises when this one is to end."""
        try:
            fd = os.open(self._project, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return  # The run will say what is wrong with the folder.
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
        """Whether Gemini has started. Then its session has a name and, if it is new, a file, which is kept from now on.

        Its first line says so; one that says something else comes later still.
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
        """Let the next run start, and take the stub away. Called when Gemini has started, and at the end of the run."""
        if os.getpid() == self._owner:
            self._remove_stubs()
            self._end_turn()

    def forget_after_fork(self) -> None:
        """In a forked copy of the host, which would otherwise keep the others waiting."""
        self._ending_turn = threading.Lock()  # The old one may have been held by a thread that is not here.
        self._end_turn()

    def _end_turn(self) -> None:
        with self._ending_turn:
            fd, self._turn_fd = self._turn_fd, -1
        if fd != -1:
            os.close(fd)

    # --- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Put back what was deleted meanwhile. Does not raise."""
        if os.getpid() == self._owner:
            self.give_back()
            self._links.settle()

    def _remove_stubs(self) -> None:
        # Only where Gemini has been seen to write to the real file: else the other one may be the one that it uses.
        if self._session_id is None or not self._links.have_grown():
            return
        for path in session_files(self._folder, self._session_id):
            if path not in self._links.originals and is_stub(path):
                _unlink(path)


class LiveSessionGuard(SessionGuard):
    """The same for a session that a process serves while it stays: its lines are those of ACP."""

    def __init__(self, environ: Mapping[str, str | None], project: str) -> None:
        super().__init__(environ, project)
        self._is_open = False

    @property
    def has_conversation(self) -> bool:
        """Whether the protected session has anything to resume."""
        return bool(self._links.originals)

    def is_over(self, chunk: bytes) -> bool:
        """Whether nothing can happen to the session any more: it has a file, and after a resume no stub.

        Gemini writes to the file of a resumed session when it gets the next prompt, which is long after others may
        start.
        """
        if not self._is_open:
            answer = _first_answer(chunk)
            if answer is None:
                return False
            self._is_open = True
            self._end_turn()
            self._session_id = self._session_id or _named_in(answer)
        if self._session_id is None:
            return True  # It was refused.
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
        self.originals: dict[str, int] = {}  # With their sizes when they were added.

    def add(self, original: str) -> None:
        """Keep this file. What cannot be kept is used all the same, unprotected."""
        link = os.path.join(self._path, os.path.basename(os.path.dirname(os.path.dirname(original))))
        try:
            _make_folder(link)
            link = os.path.join(link, os.path.basename(original))
            try:
                os.link(original, link, follow_symlinks=False)
            except FileNotFoundError:
                raise
            except OSError:  # There are file systems without links.
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
    """Clean up what dead hosts have left behind. Does not raise."""
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
            os.rename(os.path.join(own_folder, owner), mine)  # Only one can do this.
        except OSError:
            continue
        settle(mine, gemini_folder)


def settle(folder: str, gemini_folder: str) -> None:
    """Put each original of these links back if it is gone, and remove the links. Does not raise."""
    for project in _names(folder):
        for name in _names(os.path.join(folder, project)):
            link = os.path.join(folder, project, name)
            original = os.path.join(gemini_folder, "tmp", project, "chats", name)
            try:
                if FILE_NAME.fullmatch(name):  # Anything else is a file of ours that was not finished.
                    _restore(link, original)
                os.unlink(link)
            except OSError as error:
                logger.error("cannot put back the Gemini session %s (kept as %s): %s", original, link, error)
        _remove_folder(os.path.join(folder, project))
    _remove_folder(folder)
    _remove_folder(os.path.dirname(folder))


def session_files(gemini_folder: str, session_id: str) -> list[str]:
    """The files of a session, in whichever project, its stubs among them."""
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
    """Whether a session file holds nothing but what Gemini sends to its model at the start."""
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
    """The answer to the first request of a session's own, if it is among these lines."""
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
    """The file's path, after it was moved if Gemini would otherwise write its stub into it."""
    folder, name = os.path.split(path)
    match = FILE_NAME.fullmatch(name)
    if match is None or match[1] < minute:
        return path
    moved = os.path.join(folder, name.replace(match[1], NO_MINUTE_OF_TODAY, 1))
    try:
        os.link(path, moved, follow_symlinks=False)  # Unlike a rename, replaces nothing.
        os.unlink(path)
    except OSError:
        return path
    return moved


# --- putting back -------------------------------------------------------------------------------------------


def _restore(link: str, original: str) -> None:
    """Make `original` what it would be if nobody had deleted it: Gemini may have begun a new file of that name."""
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
    """Whether a file begins with all that is in our link to it, or our copy of it."""
    with _open(original) as whole, _open(link) as beginning:
        if os.path.sameopenfile(whole.fileno(), beginning.fileno()):
            return True
        while block := beginning.read(1 << 20):
            if whole.read(len(block)) != block:
                return False
    return True


def _join(link: str, original: str) -> None:
    """Put what was there before the file was deleted before what was written since."""
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
        with open(original, "ab") as file:  # What another Gemini has written while this was done.
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
    for _ in range(10):  # Another run, when it is over, removes the parents if they are empty.
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
    with contextlib.suppress(OSError):  # Not empty: somebody else's.
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
