"""The plain fallback for systems without POSIX: blocking threads, `terminate()`, `kill()`.

It ends only the CLI itself, not its descendants. A reader thread stays for as long as one of them holds the pipe.
"""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from typing import IO

from .launch import Launch, Sink, Strays
from .spawn_errors import explain_spawn_failure

READ_SIZE = 65_536
JOIN_SECONDS = 1.0  # After the exit, a reader only has to empty the pipe.


class PortableBackend:
    """The methods of PosixBackend, with only what every platform has."""

    def __init__(self, launch: Launch, events: Sink, diagnostics: Sink) -> None:
        self._launch = launch
        self._events = events
        self._diagnostics = diagnostics
        self._process: subprocess.Popen[bytes] | None = None
        self._readers: list[threading.Thread] = []
        self._may_read = threading.Event()
        self._may_read.set()
        self._woken = threading.Event()
        self._input: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()  # None: close stdin.
        self._bytes_to_write = 0  # Counted by the supervisor,
        self._bytes_written = 0  # and by the thread that writes.
        self.pid: int | None = None
        self.exited = False
        self.events_ended = False

    def spawn(self) -> None:
        """Start the child and the threads that serve it. Raises SpawnError."""
        try:
            process = subprocess.Popen(
                list(self._launch.argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=self._launch.cwd,
                env=dict(self._launch.env),
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
        except (OSError, ValueError) as error:
            raise explain_spawn_failure(error, self._launch) from error
        self._process = process
        self.pid = process.pid
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        streams = {"stdout": process.stdout, "stderr": process.stderr}
        events = streams.pop(self._launch.events_on)
        (diagnostics,) = streams.values()
        self._readers = [
            self._thread("events", self._read_events, events),
            self._thread("diagnostics", self._read_diagnostics, diagnostics),
        ]
        self._thread("stdin", self._write_stdin, process.stdin)
        self.send(self._launch.stdin, last=not self._launch.stdin_stays_open)
        self._thread("exit", self._wait_for_exit, process)

    def _thread(self, job: str, target: object, argument: object) -> threading.Thread:
        assert callable(target)
        thread = threading.Thread(target=target, args=(argument,), name=f"remoteclaw-{job}-{self.pid}", daemon=True)
        thread.start()
        return thread

    def is_guarded(self) -> bool:
        return True

    def start_guard(self) -> None:
        """Does nothing: there is no guard here."""

    def wake(self) -> None:
        """Make `wait()` return."""
        self._woken.set()

    def wait(self, timeout: float | None) -> None:
        """Sleep until something happens."""
        self._woken.wait(timeout)
        self._woken.clear()

    def pause_reading(self) -> None:
        """Let the pipe fill up."""
        self._may_read.clear()

    def resume_reading(self) -> None:
        """Read on."""
        self._may_read.set()

    def _read_events(self, stream: IO[bytes]) -> None:
        while chunk := _read(stream):
            self._events(chunk)
            self.wake()
            self._may_read.wait()
        stream.close()
        self.events_ended = True
        self.wake()

    def _read_diagnostics(self, stream: IO[bytes]) -> None:
        while chunk := _read(stream):
            self._diagnostics(chunk)
        stream.close()

    @property
    def unsent_bytes(self) -> int:
        """How many bytes the child has not read yet."""
        return self._bytes_to_write - self._bytes_written

    def send(self, data: bytes, *, last: bool) -> None:
        """Queue this for stdin; if it is the last data, close stdin afterwards."""
        self._bytes_to_write += len(data)
        self._input.put(data)
        if last:
            self._input.put(None)

    def _write_stdin(self, stream: IO[bytes]) -> None:
        reads = True
        while (data := self._input.get()) is not None:
            left = memoryview(data)
            try:
                while left and reads:
                    left = left[os.write(stream.fileno(), left) :]
            except OSError:
                reads = False  # The child died, or has closed its stdin.
            self._bytes_written += len(data)
        try:
            stream.close()
        except OSError:
            pass

    def _wait_for_exit(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self.exited = True
        self.wake()

    def terminate(self) -> None:
        """Ask the CLI to end."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """End the CLI."""
        if self._process is not None:
            self._process.kill()

    def end_strays(self, strays: Strays) -> None:
        """Does nothing: strays cannot be found here."""

    def finish(self, *, drain: bool) -> int | None:
        """Wait for the readers to empty the pipes; returns the exit code."""
        if self._process is None:
            return None
        self._may_read.set()
        self._input.put(None)
        for thread in self._readers:
            thread.join(JOIN_SECONDS)
        return self._process.returncode

    def forget_after_fork(self) -> None:
        """Does nothing: this platform does not fork."""


def _read(stream: IO[bytes]) -> bytes:
    try:
        return os.read(stream.fileno(), READ_SIZE)
    except (OSError, ValueError):
        return b""
