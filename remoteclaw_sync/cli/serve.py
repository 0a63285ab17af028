"""`serve`: the example page, on this machine only."""

from __future__ import annotations

import argparse
import importlib
import ipaddress
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..factory import DEMO, SUPPORTED_PROVIDERS, create_cli_runtime
from ..runtimes.agent_run import AgentRun
from ..types import AgentExecuteParams
from ..web.chat import Chat
from ..web.runs import Runs
from .commands import UsageError

THREADS = 64  # Each visitor who listens to a run holds one.
A_DAY = 24 * 3600.0  # For which ended runs can be reloaded; all go when the server stops.


def command(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C; returns the exit code."""
    host = checked_host(options.host, options.allow_remote)
    try:
        waitress = importlib.import_module("waitress")
    except ImportError:
        raise UsageError("serve needs waitress: pip install 'remoteclaw_sync[web]'") from None
    providers = usable_providers()
    default = options.provider or next(name for name, usable in providers.items() if usable)
    if not providers.get(default):
        names = ", ".join(name for name, usable in providers.items() if usable)
        raise UsageError(f"--provider must be one that is installed ({names}), not {default!r}")
    if options.cwd is not None and not os.path.isdir(options.cwd):
        raise UsageError(f"--cwd: there is no folder {options.cwd}")
    with runs_of_this_server() as runs:
        serve(waitress, options, host, providers, default, runs)
    return 0


def serve(
    waitress: Any, options: argparse.Namespace, host: str, providers: dict[str, bool], default: str, runs: Runs
) -> None:
    """Listen, say where, and answer until interrupted."""
    token = secrets.token_urlsafe(24)
    late = LateApplication()
    try:
        server = waitress.create_server(late, host=host, port=options.port, threads=THREADS, ident=None)
    except OSError as error:
        raise UsageError(f"cannot listen on {host}:{options.port}: {error.strerror}") from None
    port = server.effective_port
    # Not before now: with --port 0 the kernel has just chosen it.
    late.application = Chat(
        token=token,
        cookie=f"remoteclaw-sync-{port}",
        hosts=None if options.allow_remote else own_names(host, port),
        providers=providers,
        default=default,
        start=Starter(options),
        runs=runs,
    )
    shown = f"[{host}]" if ":" in host else host
    print(f"Open http://{shown}:{port}/?token={token}", flush=True)
    print("Whoever has this address can run agents as you. Ctrl-C stops the server.", file=sys.stderr, flush=True)
    logging.getLogger("waitress").setLevel(logging.ERROR)
    try:
        with ended_by_signals(runs):
            server.run()
    finally:
        runs.abort_all()
        server.close()


class LateApplication:
    """A WSGI application that is known only when the server has its port."""

    application: Any = None

    def __call__(self, environ: Any, start_response: Any) -> Any:
        return self.application(environ, start_response)


class Starter:
    """Makes runs with what the command line says."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options

    def __call__(self, provider: str, prompt: str, session_id: str | None) -> AgentRun:
        options = self._options
        params = AgentExecuteParams(
            prompt,
            session_id=session_id,
            working_directory=options.cwd,
            model=options.model,
            permission_mode=options.permission_mode,
        )
        limits = {} if options.timeout is None else {"timeout": options.timeout}
        return create_cli_runtime(provider, **limits).start(params)


def checked_host(host: str, allow_remote: bool) -> str:
    """The address to listen on. Other machines are let in only by two options, not by a slip in one."""
    name = "127.0.0.1" if host == "localhost" else host.strip("[]")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        raise UsageError(f"--host must be an address such as 127.0.0.1, not {host!r}") from None
    if not address.is_loopback and not allow_remote:
        raise UsageError(
            f"{host} can be reached from other machines, without encryption, and whoever gets hold of the token runs "
            "agents as you. If you mean it, say so twice: add --allow-remote"
        )
    return name


def own_names(host: str, port: int) -> frozenset[str]:
    """The `Host` headers of requests that mean us."""
    return frozenset(
        {f"127.0.0.1:{port}", f"localhost:{port}", f"[{host}]:{port}" if ":" in host else f"{host}:{port}"}
    )


def usable_providers() -> dict[str, bool]:
    """All providers, and whether each can be used here. Starts nothing."""
    return {**{name: shutil.which(name) is not None for name in SUPPORTED_PROVIDERS}, DEMO: True}


@contextmanager
def runs_of_this_server() -> Iterator[Runs]:
    """A registry in a folder that goes with the server."""
    with tempfile.TemporaryDirectory(prefix="remoteclaw-sync-serve-", ignore_cleanup_errors=True) as folder:
        yield Runs(folder, retention=A_DAY)


@contextmanager
def ended_by_signals(runs: Runs) -> Iterator[None]:
    """Ctrl-C, or a service manager's SIGTERM: the runs end first, because waitress waits for those who listen."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        threading.Thread(target=runs.abort_all, name="remoteclaw-stop").start()
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
