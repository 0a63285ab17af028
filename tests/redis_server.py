"""A real Redis server just for the tests, on a Unix socket in its own folder."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.fakes import PATIENCE, wait_until


def need_redis() -> str:
    """The path of the server's program; skips the test if the program or the package is missing."""
    pytest.importorskip("redis", reason="redis is not installed (extra `cluster`)")
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        pytest.skip("redis-server: there is none on PATH")
    return program


class RedisServer:
    """A server that is started and stopped by its pid. A `durable` one keeps what it has confirmed, and can be killed
    and restarted."""

    def __init__(self, program: str, *, durable: bool = False) -> None:
        self._program = program
        self._durable = durable
        # A unix socket's path must be short; the tests' own temporary folder has to be empty after each test.
        self.folder = Path(tempfile.mkdtemp(prefix="rc-redis-", dir="/tmp"))
        self.socket = self.folder / "s"
        self.url = f"unix://{self.socket}"
        self.start()

    def start(self) -> None:
        """Start the server; returns when it answers."""
        options = ["--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700", "--save", ""]
        options += ["--dir", str(self.folder), "--appendonly", "yes" if self._durable else "no"]
        self._process = subprocess.Popen(
            [self._program, *options, "--maxclients", "4000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        assert wait_until(self.answers), "redis-server does not answer"

    def answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(PATIENCE)
                client.connect(str(self.socket))
                client.sendall(b"PING\r\n")
                return client.recv(100).startswith(b"+PONG")
        except OSError:
            return False

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Kill it as the kernel does when memory runs out."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(PATIENCE)

    def close(self) -> None:
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE)
        shutil.rmtree(self.folder, ignore_errors=True)
