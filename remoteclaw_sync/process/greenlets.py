"""Hosts whose threads are greenlets: gevent works, eventlet is refused.

After gevent's `monkey.patch_all()`, `threading` starts greenlets, and its locks let others run while one waits. So the
supervisor is a greenlet too, and must wait in something that lets others run: gevent's poll and Popen, whether or not
`select` and `subprocess` are patched. With real threads it must not use them: gevent's poll would create an event loop
in each thread, and nobody would close it.
"""

from __future__ import annotations

import importlib
import select
import subprocess
import sys
from typing import Any

# Modules that a run needs unpatched by eventlet, whose select, for example, has no poll().
NEEDED_UNPATCHED = ("os", "select", "socket", "subprocess", "thread", "time")


def check_host() -> None:
    """Raise RuntimeError if runs cannot work in this host or this thread."""
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None and any(map(patcher.is_monkey_patched, NEEDED_UNPATCHED)):
        raise RuntimeError("runs do not work after eventlet.monkey_patch(): use real threads, or gevent")
    if not _is_patched("threading"):
        if _is_patched("subprocess"):
            raise RuntimeError(
                "gevent has patched subprocess but not threading, so that no thread can start a process: "
                "call monkey.patch_all() without thread=False, or with subprocess=False too"
            )
    elif not _gevent().get_hub().loop.default:
        raise RuntimeError(
            "gevent starts processes in its main thread only: run the agent in a greenlet there, not in a thread pool"
        )


def threads_are_greenlets() -> bool:
    """Whether `threading.Thread` starts a greenlet."""
    return _is_patched("threading")


def _is_patched(module: str) -> bool:
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched(module))


def _gevent(submodule: str = "") -> Any:
    return importlib.import_module(f"gevent{submodule}")


def new_poll() -> select.poll:
    """A `select.poll()` that blocks only its caller."""
    made: select.poll
    if threads_are_greenlets():
        made = _gevent(".select").poll()
    elif _is_patched("select"):
        made = _gevent(".monkey").get_original("select", "poll")()
    else:
        made = select.poll()
    return made


def popen() -> type[subprocess.Popen[bytes]]:
    """The class to start a child with. gevent's event loop reaps all children of a process, so it must know ours."""
    found: type[subprocess.Popen[bytes]] = _gevent(".subprocess").Popen if threads_are_greenlets() else subprocess.Popen
    return found


def may_wait() -> bool:
    """Whether the caller may block. Not in gevent's event loop, where the GC may nevertheless close a forgotten run."""
    return not threads_are_greenlets() or _gevent().getcurrent() is not _gevent().get_hub()


def stops_greenlets(event: object) -> bool:
    """Whether waiting for this event would block all greenlets, not only the caller's: multiprocessing's would."""
    return threads_are_greenlets() and not isinstance(event, _gevent(".event").Event)
