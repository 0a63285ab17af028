"""`serve`: the chat page, on this machine only."""

from __future__ import annotations

import argparse
import importlib
import ipaddress
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..factory import DEMO, SUPPORTED_PROVIDERS, create_cli_runtime, runtime_class
from ..web.conversations import Conversations
from ..web.detached import Runs
from ..web.door import Door
from ..web.page import Chat, Settings
from ..web.uploads import MAX_IMAGE, Uploads
from ..web.warm import WarmSessions
from .dispatch import UsageError
from .server_folder import folder_of_this_server, locked
from .strangers import create_server

logger = logging.getLogger(__name__)

THREADS = 64  # Each visitor who listens to a run occupies one.
A_DAY = 24 * 3600.0  # How long ended runs can be reloaded. All are deleted when the server stops, unless
A_YEAR = 365 * A_DAY  # --keep names a folder for them.


def command(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C; returns the exit code."""
    host = checked_host(options.host, options.allow_remote)
    try:
        importlib.import_module("waitress")
    except ImportError:
        raise UsageError("serve needs waitress: pip install 'remoteclaw_sync[web]'") from None
    providers = usable_providers()
    default = options.provider or next(name for name, usable in providers.items() if usable)
    if not providers.get(default):
        names = ", ".join(name for name, usable in providers.items() if usable)
        raise UsageError(f"--provider must be one that is installed ({names}), not {default!r}")
    if options.cwd is not None and not os.path.isdir(options.cwd):
        raise UsageError(f"--cwd: there is no folder {options.cwd}")
    if options.max_runs < 1:
        raise UsageError("--max-runs must be 1 or more")
    settings = Settings(
        providers=providers,
        provider=default,
        model=options.model,
        permission_mode=options.permission_mode,
        cached_in_input=[name for name, usable in providers.items() if usable and counts_cache_as_input(name)],
        folder=shown_folder(options.cwd),
    )
    with ended_by_signals() as ending, kept_in(options.keep) as folder:
        retention = A_DAY if options.keep is None else A_YEAR
        ending.runs = Runs(os.path.join(folder, "runs"), retention=retention, max_live=options.max_runs)
        serve(options, host, settings, folder, ending.runs)
    return 0


def serve(options: argparse.Namespace, host: str, settings: Settings, folder: str, runs: Runs) -> None:
    """Listen, print the address, and serve until interrupted."""
    late = LateApplication()
    try:
        server = create_server(late, late.admits, host=host, port=options.port, threads=THREADS, max_body=MAX_IMAGE)
    except OSError as error:
        raise UsageError(f"cannot listen on {host}:{options.port}: {error.strerror}") from None
    port = server.effective_port
    shown = f"[{host}]" if ":" in host else host
    # The token is in the fragment, which browsers do not send; the page exchanges it for a session.
    address = f"http://{shown}:{port}/#token="
    door = Door(lambda link: tell(f"That link is used up. The next one, for another tab or browser: {address}{link}"))
    limits = {} if options.timeout is None else {"timeout": options.timeout}
    agents = WarmSessions(lambda provider: create_cli_runtime(provider, **limits), options.cwd)
    # Only now, because with --port 0 the kernel has just chosen the port.
    late.application = Chat(
        door=door,
        hosts=None if options.allow_remote else own_names(host, port),
        settings=settings,
        agents=agents,
        runs=runs,
        conversations=Conversations(os.path.join(folder, "conversations")),
        uploads=Uploads(os.path.join(folder, "images")),
    )
    print(f"Open {address}{door.link}", flush=True)
    print(
        "The link works once; the next one is printed here. Whoever has it can run agents as you. "
        "Ctrl-C stops the server.",
        file=sys.stderr,
        flush=True,
    )
    logging.getLogger("waitress").setLevel(logging.ERROR)
    try:
        server.run()
    finally:
        runs.abort_all()
        agents.close_all()
        server.close()


def tell(text: str) -> None:
    """Print a line. The terminal may be gone, which must not affect the visitor who has just been let in."""
    try:
        print(text, flush=True)
    except (OSError, ValueError):
        logger.warning("the next link cannot be printed: stdout is closed")


class LateApplication:
    """Stands in for the WSGI application, which can be created only when the server has its port."""

    application: Chat | None = None

    def __call__(self, environ: Any, start_response: Any) -> Any:
        assert self.application is not None
        return self.application(environ, start_response)

    def admits(self, headers: Mapping[str, str]) -> bool:
        return self.application is not None and self.application.admits(dict(headers))


def checked_host(host: str, allow_remote: bool) -> str:
    """The address to listen on. Letting other machines in takes two options, so that a single typo cannot do it."""
    name = "127.0.0.1" if host == "localhost" else host.strip("[]")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        raise UsageError(f"--host must be an address such as 127.0.0.1, not {host!r}") from None
    if not address.is_loopback and not allow_remote:
        raise UsageError(
            f"other machines can reach {host}, without encryption, and whoever gets hold of the token can run "
            "agents as you. If that is what you want, add --allow-remote"
        )
    return name


def own_names(host: str, port: int) -> frozenset[str]:
    """The `Host` headers that are ours."""
    return frozenset(
        {f"127.0.0.1:{port}", f"localhost:{port}", f"[{host}]:{port}" if ":" in host else f"{host}:{port}"}
    )


def usable_providers() -> dict[str, bool]:
    """All providers, and whether each can be used here. Starts nothing."""
    return {**{name: shutil.which(name) is not None for name in SUPPORTED_PROVIDERS}, DEMO: True}


def counts_cache_as_input(provider: str) -> bool:
    """Whether the input tokens that the provider reports include those read from a cache."""
    facts = runtime_class(provider).cli_facts
    return facts is not None and facts.cached_in_input


def shown_folder(cwd: str | None) -> str:
    """The folder where agents work, as people write it."""
    path = os.path.abspath(cwd or os.getcwd())
    home = os.path.expanduser("~")
    return "~" + path[len(home) :] if path == home or path.startswith(home + os.sep) else path


@contextmanager
def kept_in(folder: str | None) -> Iterator[str]:
    """The folder for conversations: this one, which only one server at a time may use, or a temporary one."""
    if folder is None:
        with folder_of_this_server() as made:
            yield made
        return
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        os.chmod(folder, 0o700)
        with locked(folder):
            yield folder
    except BlockingIOError:
        raise UsageError(f"--keep: another server uses {folder}") from None
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise UsageError(f"--keep: {folder}: {error.strerror}") from None


class Ending:
    """What a signal has to stop."""

    runs: Runs | None = None
    begun = False


@contextmanager
def ended_by_signals() -> Iterator[Ending]:
    """On Ctrl-C, a service manager's SIGTERM or a closed terminal (SIGHUP), the server stops and cleans up.

    The runs are stopped first, because waitress waits for their listeners. A second signal has no effect: a closed
    terminal sends two, and stopping has a time limit anyway.
    """
    ending = Ending()
    if threading.current_thread() is not threading.main_thread():
        yield ending
        return

    def interrupt(number: int, frame: object) -> None:
        if ending.begun:
            return
        ending.begun = True
        if ending.runs is not None:
            threading.Thread(target=ending.runs.abort_all, name="remoteclaw-stop").start()
        raise KeyboardInterrupt

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # An ignored signal stays ignored: that is how `nohup` lets the server outlive the terminal.
    heeded = [number for number in signals if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heeded}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
