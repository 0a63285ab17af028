"""A file for one run that only its owner can read, gone as soon as the CLI has read it."""

from __future__ import annotations

import os
import tempfile
import time

PREFIX = "remoteclaw-sync-"
ABANDONED_AFTER_SECONDS = 60.0  # A CLI has read its configuration long before.


class Reading:
    """Looks in a CLI's output for the words by which it has read its configuration."""

    def __init__(self, words: bytes) -> None:
        self._words = words
        self._end_of_last = b""

    def seen_in(self, chunk: bytes) -> bool:
        """Whether they have come, also if cut in two by the end of a chunk."""
        found = self._words in self._end_of_last + chunk
        self._end_of_last = chunk[-len(self._words) :]
        return found


class PrivateFile:
    """A loan (see process.launch.Loan) of a new file, mode 0600. Its name says whose it is, for a later clean-up."""

    def __init__(self, folder: str, suffix: str, data: bytes, read_words: bytes) -> None:
        remove_abandoned(folder, suffix)
        fd, self.path = tempfile.mkstemp(prefix=f"{PREFIX}{os.getpid()}-", suffix=suffix, dir=folder)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        self._reading = Reading(read_words)
        self._owner = os.getpid()

    def is_over(self, chunk: bytes) -> bool:
        """Whether the CLI has read it."""
        return self._reading.seen_in(chunk)

    def give_back(self) -> None:
        """Delete it; nothing happens the second time, or in a forked copy of the host."""
        if os.getpid() == self._owner:
            try:
                os.unlink(self.path)
            except OSError:
                pass

    def forget_after_fork(self) -> None:
        """It is the original's to delete."""


def remove_abandoned(folder: str, suffix: str) -> list[str]:
    """Delete such files of hosts that are no more; returns their paths."""
    removed: list[str] = []
    try:
        names = os.listdir(folder)
    except OSError:
        return removed
    for name in names:
        if name.startswith(PREFIX) and name.endswith(suffix):
            owner = name.removeprefix(PREFIX).partition("-")[0]
            path = os.path.join(folder, name)
            try:
                # The age, because a container that shares the folder has process numbers of its own.
                old = time.time() - os.stat(path).st_mtime > ABANDONED_AFTER_SECONDS
                if old and owner.isdigit() and not _is_alive(int(owner)):
                    os.unlink(path)
                    removed.append(path)
            except OSError:
                continue
    return removed


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
