"""A scriptable CLI: does what the JSON list of steps in its first argument says (`@path`: in that file).

A step is `[name, argument...]`; each function below named `do_<name>` implements one. It runs under `python -I -S`,
where only the standard library can be imported and startup takes a few milliseconds. Steps wait on FIFOs (see `Gate` in
fakes.py), so that the test decides when something happens and nobody sleeps.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

TYPE_CHECKING = False  # Importing `typing` would take a fifth of the startup time.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

BLOCK = 1 << 20
RLIMIT_LOCKS = 10

received = b""  # What has arrived on stdin so far.


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def do_line(value: Any, fd: int = 1) -> None:
    """One JSON value and a newline, in one write."""
    write_all(fd, json.dumps(value).encode() + b"\n")


def do_text(text: str) -> None:
    do_line({"type": "text", "text": text})


def do_raw(latin1: str, fd: int = 1) -> None:
    """Write these bytes as they are; each call is a separate write."""
    write_all(fd, latin1.encode("latin-1"))


def do_repeat(latin1: str, times: int, fd: int = 1) -> None:
    """Write these bytes `times` times, in large writes. `%d` becomes the number of the repetition."""
    lines, size = [], 0
    for number in range(times):
        lines.append(latin1.replace("%d", str(number)))
        size += len(latin1)
        if size >= BLOCK:
            write_all(fd, "".join(lines).encode("latin-1"))
            lines, size = [], 0
    write_all(fd, "".join(lines).encode("latin-1"))


def do_flood(size: int, fd: int, filler: str = "x") -> None:
    """Write `size` bytes without an end of line."""
    block = filler.encode("latin-1") * BLOCK
    while size > 0:
        write_all(fd, block[:size])
        size -= BLOCK


def do_wait(fifo: str) -> None:
    """Block until the test opens this gate."""
    fd = os.open(fifo, os.O_RDONLY)
    os.read(fd, 1)
    os.close(fd)


def do_notify(fifo: str) -> None:
    """Tell the test that this point is reached, and by which process."""
    fd = os.open(fifo, os.O_RDWR)
    os.write(fd, b"%d\n" % os.getpid())
    os.close(fd)


def do_read_stdin(size: int = -1) -> None:
    global received
    while size and (part := os.read(0, BLOCK if size < 0 else min(size, BLOCK))):
        received += part
        size -= len(part) if size > 0 else 0


def do_record(path: str) -> None:
    """Write down how this process was started."""
    report = {
        "argv": sys.argv[2:],
        "env": dict(os.environ),
        "cwd": os.getcwd(),
        "stdin": received.decode("utf-8", "surrogateescape"),
        "pid": os.getpid(),
        "session": os.getsid(0),
        "fds": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1],  # The last one is listdir's own.
        "blocked": sorted(int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    }
    with open(path + ".new", "w") as file:
        json.dump(report, file)
    os.rename(path + ".new", path)


def do_close(fd: int) -> None:
    os.close(fd)


def do_ignore(signal_name: str) -> None:
    signal.signal(getattr(signal, signal_name), signal.SIG_IGN)


def do_on(signal_name: str, steps: list[Any]) -> None:
    signal.signal(getattr(signal, signal_name), lambda number, frame: run(steps))


def do_fork(steps: list[Any], setsid: bool = False, clear_env: bool = False) -> None:
    """Fork a child that does these steps and exits. It keeps the pipes unless its steps close them."""
    if os.fork():
        return
    if setsid:
        os.setsid()
    if clear_env:
        os.execve(sys.executable, [sys.executable, "-I", "-S", __file__, json.dumps(steps)], {})
    run(steps)
    os._exit(0)


def do_own_group() -> None:
    """Leave the process group, but not the session."""
    os.setpgid(0, 0)


def do_drop_tag() -> None:
    """Set the limit for file locks: it is what marks the descendants of a run."""
    import resource

    hardest = resource.getrlimit(RLIMIT_LOCKS)[1]
    resource.setrlimit(RLIMIT_LOCKS, (hardest, hardest))


def do_beat(seconds: float, times: int, latin1: str, fd: int = 1) -> None:
    """Write these bytes at intervals: a watchdog measures time, so here time has to pass."""
    for _ in range(times):
        write_all(fd, latin1.encode("latin-1"))
        time.sleep(seconds)


def do_sleep(seconds: float) -> None:
    time.sleep(seconds)


def do_hang() -> None:
    while True:
        signal.pause()


def do_stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def do_exit(code: int) -> None:
    os._exit(code)


def do_die(signal_name: str) -> None:
    number = getattr(signal, signal_name)
    signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
    os.kill(os.getpid(), number)


STEPS: dict[str, Callable[..., None]] = {
    name.removeprefix("do_"): function for name, function in globals().items() if name.startswith("do_")
}


def run(steps: list[Any]) -> None:
    for name, *arguments in steps:
        STEPS[name](*arguments)


def main() -> None:
    script = sys.argv[1]
    if script.startswith("@"):
        with open(script[1:]) as file:
            script = file.read()
    run(json.loads(script))


if __name__ == "__main__":
    main()
