"""A file for one run that only its owner can read, deleted as soon as the CLI has read it."""

from __future__ import annotations

from .. import files


class Reading:
    """Searches a CLI's output for the text that shows that it has read its configuration."""

    def __init__(self, words: bytes) -> None:
        self._words = words
        self._end_of_last = b""

    def seen_in(self, chunk: bytes) -> bool:
        """Whether the text is in this chunk, or split between the previous one and this one."""
        found = self._words in self._end_of_last + chunk
        self._end_of_last = chunk[-len(self._words) :]
        return found


class PrivateFile:
    """A loan (see process.launch.Loan) of a new file, mode 0600."""

    def __init__(self, folder: str, suffix: str, data: bytes, read_words: bytes) -> None:
        self.path = files.new_file(folder, suffix, data)
        self._reading = Reading(read_words)

    def is_over(self, chunk: bytes) -> bool:
        """Whether the CLI has read the file."""
        return self._reading.seen_in(chunk)

    def give_back(self) -> None:
        """Delete the file. Does nothing on a second call, or in a forked copy of the host."""
        files.remove(self.path)

    def forget_after_fork(self) -> None:
        """In a forked copy: the file is the parent's to delete."""
