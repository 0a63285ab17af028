"""Real WSGI servers on loopback, and a visitor with a real HTTP client."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.fakes import PATIENCE, wait_until
from tests.web.streams import Frame, frame, frames

SITE_VARIABLE = "REMOTECLAW_SYNC_TEST_SITE"  # Inherited by the site's workers and agents, so that they can be found.


def needs(*packages: str) -> None:
    """Skip the test if one of these is not installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"web packages: {package} is not installed (extra test-web)")


class Server:
    """A server process, which prints on stderr where it listens."""

    def __init__(self, *command: str, folder: Path, **env: str) -> None:
        self.identity = os.urandom(8).hex()
        folder.mkdir(exist_ok=True)
        self.runs_folder = folder / "runs"
        paths = [*filter(None, sys.path), os.getcwd()]
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(paths),
                "PYTHONUNBUFFERED": "1",
                "TMPDIR": str(folder),
                "REMOTECLAW_SYNC_RUNS": str(self.runs_folder),
                SITE_VARIABLE: self.identity,
                **env,
            },
        )
        self.output = ""
        self.address = self._address()
        self.port = int(re.findall(r":(\d+)", self.address)[0])
        # What it logs later must not fill the pipe.
        self._drain = threading.Thread(target=self._read_on, daemon=True)
        self._drain.start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        """Ask it to end, as a service manager does (or with another signal); returns the exit code."""
        self._process.send_signal(signal_number)
        try:
            return self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()
            self._drain.join(PATIENCE)
            assert self._process.stdout is not None
            self._process.stdout.close()

    def agents(self) -> set[int]:
        """The agents that this site's visitors have running."""
        return {pid for pid, command in self._processes().items() if b"demo.agent" in command}

    def workers(self) -> set[int]:
        """The processes that answer requests."""
        mine = {pid for pid in self._processes() if _parent(pid) == self._process.pid}
        return {pid for pid in mine if b"gunicorn" in self._processes().get(pid, b"")} or {self._process.pid}

    def worker_of_the_agent(self) -> int:
        """The process that started the only agent."""
        (agent,) = self.agents()
        return _parent(agent)

    def is_clean(self) -> bool:
        """Whether no agent is left, and no thread of ours in any worker (each worker that still answers is asked)."""
        clean: set[int] = set()

        def ask_one() -> bool:
            answer = get_json(self, "/threads")
            ours = [name for name in answer["threads"] if name.startswith("remoteclaw")]
            (clean.discard if ours else clean.add)(answer["worker"])
            return not self.agents() and clean >= self.workers()

        return wait_until(ask_one)

    def _processes(self) -> dict[int, bytes]:
        needle = f"{SITE_VARIABLE}={self.identity}".encode()
        found = {}
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
            try:
                if needle in Path(f"/proc/{pid}/environ").read_bytes():
                    found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                pass  # It has ended.
        return found

    def _address(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.output += line
            if found := re.search(r"http://\S+", line):
                return found[0]
        raise AssertionError(f"the server ended: {self.output}")

    def _read_on(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.output += line


def gunicorn(site: str, folder: Path, *, workers: int = 2) -> Server:
    """A site under gunicorn's threads."""
    threads = ("--worker-class", "gthread", "--workers", str(workers), "--threads", "32")
    return Server("-m", "gunicorn", *threads, "--bind", "127.0.0.1:0", f"tests.web.{site}:app", folder=folder)


def gunicorn_on_gevent(site: str, folder: Path) -> Server:
    """One worker, whose requests are greenlets of one thread."""
    worker = ("--worker-class", "gevent", "--workers", "1")
    return Server("-m", "gunicorn", *worker, "--bind", "127.0.0.1:0", f"tests.web.{site}:app", folder=folder)


def waitress(site: str, folder: Path) -> Server:
    """A site under waitress."""
    return Server("-m", "waitress", "--threads=32", "--listen=127.0.0.1:0", f"tests.web.{site}:app", folder=folder)


class Visitor:
    """Somebody with a separate connection."""

    def __init__(self, server: Server, path: str, headers: dict[str, str] | None = None, **query: Any) -> None:
        self._connection = HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        self._connection.request("GET", f"{path}?{urlencode(query)}", headers=headers or {})
        self.response: HTTPResponse = self._connection.getresponse()

    def __enter__(self) -> Visitor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.leave()

    def leave(self) -> None:
        """Close the tab."""
        self.response.close()
        self._connection.close()

    def block(self) -> bytes:
        """The next frame or comment, as soon as it has arrived."""
        lines = b""
        while not lines.endswith(b"\n\n"):
            line = self.response.readline()
            assert line, f"the stream ended: {lines!r}"
            lines += line
        return lines

    def frame(self) -> Frame:
        """The next event."""
        while (found := frame(self.block().removesuffix(b"\n\n"))) is None:
            pass
        return found

    def rest(self) -> list[Frame]:
        """All events to the end."""
        return frames([self.response.read()])


def get_json(server: Server, path: str, method: str = "GET") -> Any:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        return json.loads(response.read())
    finally:
        connection.close()


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
