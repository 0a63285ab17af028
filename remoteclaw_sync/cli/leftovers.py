"""What hosts that died without a word have left: processes, borrowed config files, private files."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator

import attrs

from ..mcp.borrowed import left_behind
from ..mcp.config_edit import ConfigError
from ..mcp.private_file import ABANDONED_AFTER_SECONDS, PREFIX, remove_abandoned
from ..process.identity import host_is_gone
from ..runtimes.base import MARKER_PREFIX

NO_SESSION = -1


@attrs.frozen
class Leftover:
    """One thing that is still there, what to call it, and what came of its repair (None: not tried)."""

    kind: str
    what: str
    repaired: bool | None = None
    problem: str | None = None


def find_leftovers(folder: str, *, repair: bool) -> list[Leftover]:
    """All that can be found from this folder; with `repair`, what came of putting each right."""
    return [*_processes(repair), *_borrowed_configs(folder, repair), *_private_files(repair)]


# --- processes -----------------------------------------------------------------------------------------------


def _processes(repair: bool) -> Iterator[Leftover]:
    found = orphans()
    if not repair:
        for pid, (name, _) in found.items():
            yield Leftover("process", f"{pid} ({name})")
        return
    # There are none to be found where there is no /proc, so this is POSIX.
    for marker in {marker for _, markers in found.values() for marker in markers}:
        from ..process.posix import end_leftovers

        end_leftovers(NO_SESSION, marker)
    left = orphans()
    for pid, (name, _) in found.items():
        yield Leftover("process", f"{pid} ({name})", repaired=pid not in left)


def orphans() -> dict[int, tuple[str, set[str]]]:
    """Living processes of this user that carry the marker of a run whose host is gone: name and such markers."""
    found: dict[int, tuple[str, set[str]]] = {}
    own = _markers(os.getpid())
    for pid in _pids():
        # This process may itself be run by an agent whose host has died: that tree is not for it to end.
        markers = {marker for marker, host in _markers(pid).items() if marker not in own and host_is_gone(host)}
        name = _name(pid) if markers else None
        if name is not None:
            found[pid] = (name, markers)
    return found


def _pids() -> list[int]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    return [int(name) for name in names if name.isdigit() and int(name) != os.getpid()]


def _markers(pid: int) -> dict[str, str]:
    """The run markers in a process's environment, and the hosts they name."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.geteuid():
            return {}
        with open(f"/proc/{pid}/environ", "rb") as file:
            environ = file.read().decode(errors="replace")
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in environ.split("\0") if entry.startswith(MARKER_PREFIX))
    return {name: host for name, _, host in pairs}


def _name(pid: int) -> str | None:
    """What `ps` calls it; None for one that has ended and only waits to be reaped."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            head, _, rest = file.read().rpartition(")")
    except OSError:
        return None
    return None if rest.split()[0] in ("Z", "X") else head.partition("(")[2]


# --- files ---------------------------------------------------------------------------------------------------


def borrowed_paths(folder: str) -> list[str]:
    """The config files that a run may borrow."""
    return [
        os.path.join(folder, ".gemini", "settings.json"),
        os.path.join(folder, ".opencode", "opencode.json"),
        os.path.join(folder, ".opencode", "opencode.jsonc"),
        os.path.join(codex_home(), "config.toml"),
    ]


def codex_home() -> str:
    """Where Codex keeps its files."""
    return os.environ.get("CODEX_HOME") or os.path.expanduser("~/.codex")


def _borrowed_configs(folder: str, repair: bool) -> Iterator[Leftover]:
    for path in borrowed_paths(folder):
        try:
            if left_behind(path, repair=repair):
                yield Leftover("config", path, repaired=True if repair else None)
        except (ConfigError, OSError) as error:
            yield Leftover("config", path, repaired=False if repair else None, problem=str(error))


def _private_files(repair: bool) -> Iterator[Leftover]:
    for folder in (tempfile.gettempdir(), codex_home()):
        if repair:
            for path in remove_abandoned(folder, ""):
                yield Leftover("file", path, repaired=True)
        else:
            yield from (Leftover("file", path) for path in _abandoned(folder))


def _abandoned(folder: str) -> list[str]:
    """What `remove_abandoned` would remove."""
    found = []
    try:
        for entry in os.scandir(folder):
            owner = entry.name.removeprefix(PREFIX).partition("-")[0]
            if not entry.name.startswith(PREFIX) or not owner.isdigit() or os.path.exists(f"/proc/{owner}"):
                continue
            if time.time() - entry.stat().st_mtime > ABANDONED_AFTER_SECONDS:
                found.append(entry.path)
    except OSError:
        pass
    return found
