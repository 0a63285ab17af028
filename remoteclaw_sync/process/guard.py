"""The guard: a shell that outlives this host. If the host is killed by SIGKILL, the guard ends the host's runs.

One guard serves all children and lives as long as any of them. It learns about each on its stdin, a pipe that only
this host holds: when the pipe closes, the host is gone, and the guard ends every run on its list.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading

from .greenlets import popen
from .live_children import spawning
from .native import write_to_pipe
from .tag import take_tag_off

logger = logging.getLogger(__name__)

SHELL = "/bin/sh"

# A run is "session:marker:tag", the marks by which its processes are recognised, as in sweep.py.
SCRIPT = """
runs=
while read -r change run; do
  others=
  for other in $runs; do
    [ "$other" = "$run" ] || others="$others $other"
  done
  runs=$others
  [ "$change" = - ] || runs="$runs $run"
done
[ -n "$runs" ] || exit 0
for run in $runs; do
  kill -s TERM -- "-${run%%:*}" 2>/dev/null
done
sleep 2
for run in $runs; do
  session=${run%%:*} tag=${run##*:} marker=${run#*:}
  marker=${marker%:*}
  kill -s KILL -- "-$session" 2>/dev/null
  for folder in /proc/[0-9]*; do
    { read -r status < "$folder/stat"; } 2>/dev/null || continue
    set -- ${status##*) }
    if [ "$4" = "$session" ] || grep -qs "^Max file locks  *$tag " "$folder/limits" ||
      grep -qsa "$marker=" "$folder/environ"; then
      kill -s KILL "${folder#/proc/}" 2>/dev/null
    fi
  done
done
"""


class Guard:
    """Watches over the children of this host. The lock is not held while the guard process starts: with gevent, another
    greenlet may want it meanwhile. Messages to the guard wait in the pipe until it has started."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._runs: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1

    def watch_if_there(self, run: str) -> bool:
        """Put a run on the list if there already is a guard. Takes almost no time. Returns whether it did."""
        with self._lock:
            told = self._tell("+", run)
            if told:
                self._runs.add(run)
            return told

    def watch(self, run: str) -> None:
        """Put a run on the list. Starts the guard if there is none, or if somebody has killed it."""
        with self._lock:
            self._runs.add(run)
            if self._tell("+", run) or not os.path.exists(SHELL):
                return
            killed, self._process = self._process, None
            try:
                out, pipe = os.pipe()
            except OSError as error:
                logger.warning("no guard process: %s", error)
                return
            os.set_blocking(pipe, False)  # If the guard does not read, waiting for it is pointless.
            self._pipe = pipe
            for each in self._runs:
                self._tell("+", each)
        try:
            self._adopt(_spawn(out), pipe)
        finally:
            os.close(out)
            if killed is not None:
                killed.wait()

    def _adopt(self, process: subprocess.Popen[bytes] | None, pipe: int) -> None:
        with self._lock:
            if self._pipe == pipe:
                self._process = process
                if process is None:
                    self._hang_up()
                return
        if process is not None:  # All runs ended before it had started: it reads the end of the pipe, and exits.
            process.wait()

    def release(self, run: str) -> subprocess.Popen[bytes] | None:
        """Take a run off the list. After the last run, the guard is killed and returned, and the caller must wait for
        it."""
        with self._lock:
            self._runs.discard(run)
            self._tell("-", run)
            if self._runs:
                return None
            self._hang_up()
            process, self._process = self._process, None
        if process is not None:
            process.kill()  # It would also exit by itself, but later.
        return process

    def forget_after_fork(self) -> None:
        """In a forked copy of the host: close the pipe, so that the parent's death is still noticed."""
        self._lock = threading.RLock()
        self._runs = set()
        self._process = None
        self._hang_up()

    def _tell(self, change: str, run: str) -> bool:
        """Send a message to the guard. Returns whether there is one to read it."""
        if self._pipe == -1:
            return False
        try:
            write_to_pipe(self._pipe, f"{change} {run}\n".encode())
        except OSError as error:
            logger.warning("the guard process is gone: %s", error)
            self._hang_up()
        return self._pipe != -1

    def _hang_up(self) -> None:
        pipe, self._pipe = self._pipe, -1
        if pipe != -1:
            os.close(pipe)


def _spawn(stdin: int) -> subprocess.Popen[bytes] | None:
    try:
        with spawning():
            process = popen()(
                [SHELL, "-c", SCRIPT, "remoteclaw-guard"],
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"PATH": os.environ.get("PATH", os.defpath)},
                cwd="/",
                start_new_session=True,
            )
    except (OSError, RuntimeError) as error:  # RuntimeError: the interpreter is shutting down.
        logger.warning("no guard process: %s", error)
        return None
    take_tag_off(process.pid)
    return process


guard = Guard()
