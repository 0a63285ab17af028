"""Runs that are interrupted at a random moment, on fakes of all four CLIs, and what is left of them.

    python -m tests.interrupted_runs --way=sigint --runs=500

Each run has Python tools, an MCP server with a secret, a system prompt and everything else that makes its CLI's runtime
prepare something outside its process. Prints the findings as JSON; exits with 1 if anything was left.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from remoteclaw_sync import CLIRuntimeBase, McpServerConfig, create_cli_runtime
from remoteclaw_sync.testing import FakeAnswer, write_fake_cli

LATEST = 0.060  # Seconds after the start of a run within which it is interrupted: a fake CLI is up and talking by then.
PATIENCE = 30.0  # Seconds for what continues in the background after an interrupted close().
PNG = b"\x89PNG\r\n\x1a\n"

RUNTIMES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("claude", {}),
    ("gemini", {}),
    ("codex", {}),
    ("opencode", {}),
    ("codex", {"mcp_config": "merge-restore"}),
    ("opencode", {"mcp_config": "merge-restore"}),
)


class TimeIsUp(Exception):
    """What a user's signal handler, or time limit, raises."""


class Interrupter:
    """Raises `error` in the consumer's thread, once for each `arm`, after a random time."""

    def __init__(self, way: str, seed: int) -> None:
        self.error: type[BaseException] = KeyboardInterrupt if way == "sigint" else TimeIsUp
        self.armed = False
        self.hits = 0
        self._random = random.Random(seed)
        self._strike = self._strike_thread if way == "async" else self._strike_process
        self._number = signal.SIGINT if way == "sigint" else signal.SIGALRM
        self._target = 0
        self._asked = threading.Semaphore(0)
        if way != "async":
            signal.signal(self._number, self._on_signal)
        threading.Thread(target=self._work, daemon=True).start()

    def arm(self) -> None:
        self._target = threading.get_ident()
        self.armed = True
        self._asked.release()

    def _work(self) -> None:
        while True:
            self._asked.acquire()
            time.sleep(LATEST * self._random.random() ** 3)  # Most of them early, while things are being prepared.
            self._strike()

    def _strike_process(self) -> None:
        os.kill(os.getpid(), self._number)

    def _strike_thread(self) -> None:
        # Up to CPython 3.11 a new thread briefly has the id of the thread that starts it, and may get the exception
        # meant for that one: then it dies before it begins, and Thread.start() never returns.
        while _is_in(threading.Thread.start, self._target):
            time.sleep(0.001)
        if self.armed:
            self.armed = False
            self.hits += 1
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._target), ctypes.py_object(self.error))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.armed:
            self.armed = False
            self.hits += 1
            raise self.error


def _is_in(function: Callable[..., Any], thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None


def by_execute(runtime: CLIRuntimeBase, fields: dict[str, Any]) -> None:
    for _ in runtime.execute("hi", **fields):
        pass


def by_start(runtime: CLIRuntimeBase, fields: dict[str, Any]) -> None:
    with runtime.start("hi", **fields) as run:
        for _ in run:
            pass


def by_run(runtime: CLIRuntimeBase, fields: dict[str, Any]) -> None:
    runtime.run("hi", check=False, **fields)


VERBS: tuple[Callable[[CLIRuntimeBase, dict[str, Any]], None], ...] = (by_execute, by_start, by_run)


class Home:
    """A user's machine: the CLIs, a project with its own settings, a temporary folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clis = root / "bin"
        self.project = root / "project"
        self.tmp = root / "tmp"
        for folder in (self.clis, self.project / ".gemini", self.tmp):
            folder.mkdir(parents=True)
        (self.project / ".gemini" / "settings.json").write_text('{"theme": "dark"} // mine\n')
        (self.project / "a,b.png").write_bytes(PNG)
        os.environ.update(HOME=str(root), TMPDIR=str(self.tmp))
        os.environ.pop("CODEX_HOME", None)
        tempfile.tempdir = None
        for provider in sorted({provider for provider, _ in RUNTIMES}):
            write_fake_cli(self.clis, provider, FakeAnswer("one two three", delay=0.01))

    def runtime(self, number: int) -> CLIRuntimeBase:
        provider, options = RUNTIMES[number % len(RUNTIMES)]
        return create_cli_runtime(provider, command=str(self.clis / provider), timeout=60.0, **options)

    def files(self) -> dict[str, bytes | None]:
        """All files in there, except what the fake CLIs write down."""
        return {
            str(path.relative_to(self.root)): path.read_bytes() if path.is_file() else None
            for path in sorted(self.root.rglob("*"))
            if not path.is_relative_to(self.clis)
        }


def lookup(order: int) -> str:
    return f"order {order}"


def consume(home: Home, number: int, interrupter: Interrupter) -> None:
    fields = {
        "tools": [lookup],
        "mcp_servers": {"other": McpServerConfig("server", env={"TOKEN": "very-secret"})},
        "system_prompt": "be brief",
        "working_directory": home.project,
        "images": [home.project / "a,b.png"],
    }
    try:
        interrupter.arm()
        VERBS[number // len(RUNTIMES) % len(VERBS)](home.runtime(number), fields)
        interrupter.armed = False
    except interrupter.error:
        interrupter.armed = False


def open_descriptors() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            pass  # The descriptor of listdir() itself.
    return found


def children() -> list[str]:
    tasks = Path("/proc/self/task").iterdir()
    return [pid for task in tasks for pid in (task / "children").read_text().split()]


def interrupted_runs(home: Home, way: str, runs: int, seed: int) -> dict[str, Any]:
    """Do the runs; returns what is left of them in the end, and how many were hit."""
    interrupter = Interrupter(way, seed)
    threads_before, files_before, descriptors_before = set(threading.enumerate()), home.files(), open_descriptors()
    escaped = 0

    def all_runs() -> None:
        nonlocal escaped
        numbers = iter(range(runs))
        while True:
            try:
                for number in numbers:
                    consume(home, number, interrupter)
                return
            except interrupter.error:
                escaped += 1  # It came after the end of the run, or while it was being caught.

    if way == "async":
        # One thread for all of them: the id of a thread that has ended is reused, perhaps for a thread of the library.
        worker = threading.Thread(target=all_runs)
        worker.start()
        worker.join()
    else:
        all_runs()

    def left() -> dict[str, Any]:
        gc.collect()
        files, descriptors = home.files(), open_descriptors()
        threads = [one for one in threading.enumerate() if one.is_alive() and one not in threads_before]
        changed = {name for name in files.keys() | files_before.keys() if files.get(name) != files_before.get(name)}
        return {
            "threads": [thread.name for thread in threads],
            "descriptors": sorted(descriptors[name] for name in descriptors.keys() - descriptors_before.keys()),
            "files": sorted(changed),
            "processes": children(),
        }

    deadline = time.monotonic() + PATIENCE
    found = left()
    while any(found.values()) and time.monotonic() < deadline:
        time.sleep(0.05)
        found = left()
    return {"runs": runs, "interrupted": interrupter.hits, "escaped": escaped, "left": found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--way", choices=("sigint", "handler", "async"), default="sigint")
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="interrupted-") as folder:
        report = interrupted_runs(Home(Path(folder)), options.way, options.runs, options.seed)
    print(json.dumps(report, indent=1))
    return 1 if any(report["left"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
