"""Writes a recording to its file. Never raises, never stops the run."""

from __future__ import annotations

import json
import logging
import os
import select
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

logger = logging.getLogger(__name__)

MAX_CASSETTE_BYTES = 1024 * 1024 * 1024  # A larger one could not be replayed.
MOST_UNWRITTEN = 16 * 1024 * 1024  # Buffered for the slow reader of a FIFO.
FIFO_PATIENCE = 1.0  # Seconds for which the end of a run waits for that reader.


class CassetteWriter:
    """Appends entries, each a line of JSON, to a descriptor that it owns. Thread-safe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        # So that no thread writes while another one closes: a closed descriptor's number may be reused.
        self._lock = threading.Lock()
        self._unwritten = b""  # What a FIFO has no room for yet.
        self._room = MAX_CASSETTE_BYTES
        self.started_at = time.monotonic()

    def now(self) -> float:
        """Seconds since the recording began."""
        return round(time.monotonic() - self.started_at, 4)

    def write(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Append these entries."""
        data = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
        with self._lock:
            if self._fd == -1:
                return
            self._room -= len(data)
            if self._room < 0:
                logger.warning("recording stopped: it is larger than %s bytes", MAX_CASSETTE_BYTES)
                self._give_up()
                return
            self._unwritten += data
            self._drain()

    def close(self) -> None:
        """Stop writing. Waits for the reader of a FIFO, but not for long."""
        give_up_at = time.monotonic() + FIFO_PATIENCE
        with self._lock:
            while self._unwritten and self._fd != -1 and (left := give_up_at - time.monotonic()) > 0:
                select.select([], [self._fd], [], left)
                self._drain()
            self._give_up()

    def __del__(self) -> None:
        self._give_up()  # The code that should have closed it was interrupted.

    def _drain(self) -> None:
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[os.write(self._fd, self._unwritten) :]
        except BlockingIOError:
            if len(self._unwritten) > MOST_UNWRITTEN:
                logger.warning("recording stopped: nobody reads it")
                self._give_up()
        except OSError as error:
            logger.warning("recording stopped: %s", error.strerror)
            self._give_up()

    def _give_up(self) -> None:
        fd, self._fd, self._unwritten = self._fd, -1, b""
        if fd != -1:
            os.close(fd)
