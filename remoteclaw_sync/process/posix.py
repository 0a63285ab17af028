"""Everything that only POSIX has: pipes that can be polled, process groups, signals.

One `PosixBackend` belongs to one supervisor thread (see child.py). Only that thread calls it, except for `wake()`,
which may be called from anywhere.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import select
import signal
import subprocess
import threading
from collections import deque
from typing import Any

from .. import errors
from . import sweep
from .greenlets import check_host, new_poll, popen, threads_are_greenlets
from .guard import guard
from .launch import Launch, Sink, SpawnError, Strays
from .live_children import leaders, spawning
from .native import native, native_arguments, native_environment, write_to_pipe
from .spawn_errors import explain_spawn_failure
from .sweep import (
    CAN_SWEEP,
    KILL_SECONDS,
    Grip,
    Marks,
    end_leftovers,
    signal_strays,
    stat_of,
    wait_until_gone,
)
from .tag import new_tag, tagging

logger = logging.getLogger(__name__)

READ_SIZE = 65_536  # What a pipe gives at most by default; larger buffers cost more to allocate than they save.
PIPE_SIZE = 1_048_576  # The largest an ordinary user may request. CLIs exit without flushing a full pipe.


class PosixBackend:
    """Spawns the child in its own session, moves its bytes, and ends its whole process tree."""

    def __init__(self, launch: Launch, events: Sink, diagnostics: Sink) -> None:
        self._launch = launch
        self._events = events
        self._diagnostics = diagnostics
        self._fds: set[int] = set()
        self._poll = new_poll()
        self._unsent: deque[memoryview] = deque()
        self._stdin_ends = False  # Close stdin once everything unsent is written.
        self.unsent_bytes = 0
        self._stdin = self._events_fd = self._diagnostics_fd = self._pidfd = -1
        self._reading = False
        self._tag = new_tag()
        self._guarded = ""  # This child's entry on the guard's list.
        self._wake_lock = threading.RLock()  # Re-entered when the GC closes a run inside wake().
        self._wake_in = self._wake_out = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._forgotten = False
        self.pid: int | None = None
        self.exited = False
        self.events_ended = False

    # --- start --------------------------------------------------------------------------------------------

    def spawn(self) -> None:
        """Start the child. Raises SpawnError, in which case nothing is left open."""
        try:
            check_host()  # Again: the first event may be requested in another thread than the one that made the run.
        except RuntimeError as error:
            raise SpawnError(errors.SPAWN_FAILED, str(error)) from error
        try:
            self._open_and_spawn()
        except (OSError, ValueError) as error:  # ValueError: NUL or a surrogate in an argument.
            raise explain_spawn_failure(error, self._launch) from error

    def _open_and_spawn(self) -> None:
        self._wake_out, self._wake_in = self._pipe()
        stdin_out, stdin_in = self._pipe(enlarge=len(self._launch.stdin) > READ_SIZE)
        stdout_out, stdout_in = self._pipe(enlarge=True)
        stderr_out, stderr_in = self._pipe()
        plain_popen: Any = popen()
        with spawning():
            process: subprocess.Popen[bytes] = tagging(plain_popen)(
                native_arguments(self._launch.argv),
                tag=self._tag,
                stdin=stdin_out,
                stdout=stdout_in,
                stderr=stderr_in,
                cwd=native(self._launch.cwd),
                env=native_environment(self._launch.env),
                start_new_session=True,
            )
        self._process, self.pid = process, process.pid
        leaders.add(process.pid)
        for fd in (stdin_out, stdout_in, stderr_in):
            self._close(fd)
        self._stdin = stdin_in
        streams = {"stdout": stdout_out, "stderr": stderr_out}
        self._events_fd = streams.pop(self._launch.events_on)
        (self._diagnostics_fd,) = streams.values()
        for fd in (self._wake_in, self._wake_out, stdin_in, stdout_out, stderr_out):
            os.set_blocking(fd, False)
        self._watch_exit()
        self._poll.register(self._wake_out, select.POLLIN)
        self._poll.register(self._diagnostics_fd, select.POLLIN)
        self.resume_reading()
        self.send(self._launch.stdin, last=not self._launch.stdin_stays_open)

    def _pipe(self, *, enlarge: bool = False) -> tuple[int, int]:
        # Popen's own PIPE leaks descriptors on Python 3.11 and 3.12 when they run out half-way.
        out, in_ = os.pipe()
        self._fds |= {out, in_}
        if enlarge and hasattr(fcntl, "F_SETPIPE_SZ"):
            try:
                fcntl.fcntl(in_, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
            except OSError:
                pass  # Over the user's pipe quota: the ordinary size works too.
        return out, in_

    def _watch_exit(self) -> None:
        assert self.pid is not None
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            # In a host that ignores SIGCHLD, the kernel reaps all children, and has reaped this one already.
            self.exited = True
        except (AttributeError, OSError):
            threading.Thread(target=self._wait_for_exit, name=f"remoteclaw-exit-{self.pid}", daemon=True).start()
        else:
            self._fds.add(self._pidfd)
            self._poll.register(self._pidfd, select.POLLIN)

    def _wait_for_exit(self) -> None:
        """Where there are no pidfds: runs in a thread that ends with the child, which is reaped later."""
        assert self.pid is not None
        assert self._process is not None
        try:
            if threads_are_greenlets() or not hasattr(os, "waitid"):
                self._process.wait()
            else:
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            pass
        self.exited = True
        self.wake()

    def is_guarded(self) -> bool:
        """Put this child on the list of a guard that already runs. Returns whether it is on a list now."""
        guarded = f"{self.pid}:{self._launch.marker}:{self._tag}"
        if guard.watch_if_there(guarded):
            self._guarded = guarded
        return self._guarded != ""

    def start_guard(self) -> None:
        """Make sure that the child's tree is ended if this host is killed (SIGKILL)."""
        self._guarded = f"{self.pid}:{self._launch.marker}:{self._tag}"
        guard.watch(self._guarded)

    # --- while it runs ------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Make `wait()` return. Safe from any thread and at any time, even inside a signal handler."""
        with self._wake_lock:
            if self._wake_in != -1:
                try:
                    os.write(self._wake_in, b"!")
                except OSError:
                    pass  # Full: a wake-up is already on its way. (We hold both ends, so the pipe cannot break.)

    def wait(self, timeout: float | None) -> None:
        """Sleep until something happens, and move whatever bytes can be moved."""
        ready = self._poll.poll(None if timeout is None else timeout * 1000)
        if self._forgotten:
            self.exited = True
            return
        for fd, _ in ready:
            if fd == self._events_fd:
                self._read_events()
            elif fd == self._pidfd:
                self.exited = True
            elif fd == self._stdin:
                self._write_stdin()
            elif fd == self._diagnostics_fd:
                self._read_diagnostics()
            else:
                os.read(fd, 4096)

    def pause_reading(self) -> None:
        """Let the pipe fill up."""
        if self._reading:
            self._reading = False
            self._poll.unregister(self._events_fd)

    def resume_reading(self) -> None:
        """Read on."""
        if not self._reading and not self.events_ended:
            self._reading = True
            self._poll.register(self._events_fd, select.POLLIN)

    def _read_events(self) -> None:
        if chunk := _read(self._events_fd):
            self._events(chunk)
        elif chunk is not None:
            self.pause_reading()
            self.events_ended = True

    def send(self, data: bytes, *, last: bool) -> None:
        """Write this to stdin, now or when the pipe has room; if it is the last data, close stdin afterwards."""
        if self._stdin == -1 or self._stdin_ends:
            return
        if data:
            self._unsent.append(memoryview(data))
            self.unsent_bytes += len(data)
        self._stdin_ends = last
        self._write_stdin()

    def _write_stdin(self) -> None:
        """Write what fits into the pipe. Close it when everything is written and no more will come, or nobody reads."""
        try:
            while self._unsent:
                self._write_first()
        except BlockingIOError:
            self._poll.register(self._stdin, select.POLLOUT)
            return
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EBADF):
                logger.debug("writing to stdin of child %s: %s", self.pid, error)
            self._unsent.clear()
            self.unsent_bytes = 0
            self._stdin_ends = True
        try:
            self._poll.unregister(self._stdin)
        except KeyError:
            pass
        if self._stdin_ends:
            self._close(self._stdin)
            self._stdin = -1

    def _write_first(self) -> None:
        piece = self._unsent[0]
        written = write_to_pipe(self._stdin, piece)
        self.unsent_bytes -= written
        if written == len(piece):
            self._unsent.popleft()
        else:
            self._unsent[0] = piece[written:]

    def _read_diagnostics(self) -> None:
        chunk = _read(self._diagnostics_fd)
        if chunk:
            self._diagnostics(chunk)
        elif chunk is not None:
            self._poll.unregister(self._diagnostics_fd)

    # --- the end ------------------------------------------------------------------------------------------

    def terminate(self) -> None:
        """Ask the whole group to end. If it is stopped, continue it, so that it can."""
        self._signal_group(signal.SIGTERM)
        self._signal_group(signal.SIGCONT)

    def kill(self) -> None:
        """End the whole group."""
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: signal.Signals) -> None:
        # The leader has not been reaped yet, so its pid cannot belong to another process.
        assert self.pid is not None
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def end_strays(self, strays: Strays) -> None:
        """Send a signal to the strays that exist now."""
        if self.pid is not None and CAN_SWEEP:
            try:
                signal_strays(Marks(self.pid, self._launch.marker, self._tag), strays)
            except OSError as error:
                logger.warning("cannot look for what a turn of child %s has left: %s", self.pid, error)

    def finish(self, *, drain: bool) -> int | None:
        """End the rest of the tree, read the rest of the pipes, reap the child; returns the exit code.

        None: somebody else reaped the child (SIGCHLD ignored, a stray os.wait()), or it cannot be killed.
        """
        if self.pid is None:
            self._release()
            return None
        try:
            if not self.exited:  # It was killed a moment ago, or cannot be killed.
                self._wait_for_end()
            self._end_leftovers()
        finally:
            # Not earlier, and not after the child is reaped: then its pid may belong to another process.
            dismissed = guard.release(self._guarded) if self._guarded else None
            leaders.discard(self.pid)
        if drain and not self.events_ended:
            _drain(self._events_fd, self._events)
        _drain(self._diagnostics_fd, self._diagnostics)
        exit_code = self._reap()
        self._release()
        if dismissed is not None:
            dismissed.wait()
        return exit_code

    def _wait_for_end(self) -> None:
        assert self.pid is not None
        stat = stat_of(self.pid)
        if stat is not None:
            grip = Grip(self.pid, stat.started)
            wait_until_gone([grip], KILL_SECONDS)
            grip.close()

    def _end_leftovers(self) -> None:
        assert self.pid is not None
        if CAN_SWEEP:
            try:
                end_leftovers(self.pid, self._launch.marker, self._tag)
                return
            except OSError as error:  # Out of file descriptors; ending the group needs none.
                logger.warning("cannot look for what child %s left behind: %s", self.pid, error)
        self.kill()

    def _reap(self) -> int | None:
        assert self._process is not None
        assert self.pid is not None
        if threads_are_greenlets():
            return self._ask_gevent_for_exit_code()
        if self._process.returncode is not None:  # _wait_for_exit() had to reap it.
            return self._process.returncode
        # If somebody else has reaped the child, Popen.wait() would report success.
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            self._process.returncode = 0  # So that Popen no longer waits for this pid.
            return None
        if pid == 0:
            logger.error("child %s does not end, not even by SIGKILL", self.pid)
            return None
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return self._process.returncode

    def _ask_gevent_for_exit_code(self) -> int | None:
        # gevent's event loop has reaped the child, or is about to.
        assert self._process is not None
        try:
            return self._process.wait(timeout=KILL_SECONDS)
        except subprocess.TimeoutExpired:
            logger.error("child %s does not end, not even by SIGKILL", self.pid)
            return None

    def _release(self) -> None:
        with self._wake_lock:
            wake_in, self._wake_in = self._wake_in, -1
        self._close(wake_in)
        for fd in tuple(self._fds):
            self._close(fd)

    def _close(self, fd: int) -> None:
        if fd in self._fds:
            self._fds.discard(fd)
            os.close(fd)

    def forget_after_fork(self) -> None:
        """In a forked copy of the host: close the pipes, so that the parent's death is still noticed."""
        self._forgotten = True  # For a supervisor that is a greenlet: it continues in the copy.
        self._wake_in = -1
        guard.forget_after_fork()
        sweep.forget_after_fork()
        for fd in tuple(self._fds):
            self._close(fd)


def _read(fd: int) -> bytes | None:
    """The bytes that can be read now: b"" at the end of the stream, None if there are none yet."""
    try:
        return os.read(fd, READ_SIZE)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _drain(fd: int, sink: Sink) -> None:
    """Read what a dead process has left in its pipe, but no more than a pipe holds: others may keep writing to it."""
    left = PIPE_SIZE
    while left > 0 and (chunk := _read(fd)):
        sink(chunk)
        left -= len(chunk)
