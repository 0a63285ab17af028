"""A way to Redis that can be cut: packets no longer pass, and nobody is notified."""

from __future__ import annotations

import socket
import threading
from pathlib import Path


class Proxy:
    """Listens on a loopback port, or at a path that other network namespaces can reach, and passes bytes on to a Unix
    socket, except while it is cut."""

    def __init__(self, target: Path, path: Path | None = None) -> None:
        self._target = str(target)
        self._passing = threading.Event()
        self._passing.set()
        self._closed = False
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        if path is None:
            self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
            self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        else:
            self._listener = socket.create_server(str(path), family=socket.AF_UNIX, backlog=100)
            self.url = f"unix://{path}"
        self._start(self._accept)

    def cut(self) -> None:
        self._passing.clear()

    def mend(self) -> None:
        self._passing.set()

    def close(self) -> None:
        self._closed = True
        self._passing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._sockets:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(self._target)
            self._sockets += [near, far]
            self._start(self._pass, near, far)
            self._start(self._pass, far, near)

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                self._passing.wait()
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass
