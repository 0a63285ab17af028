"""What hosts that were killed have left behind: processes, borrowed config files, temporary files and folders."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import attrs

from .. import files
from ..clis.registry import all_facts
from ..config_files.borrowed import folders_around, left_behind
from ..config_files.config_edit import ConfigError
from ..process.host import host_is_gone
from ..runtime import MARKER_PREFIX
from ..tool_server.server import folder_for_sockets
from .server_folder import abandoned_folders, remove_abandoned_folders

NO_SESSION = -1


@attrs.frozen
class Leftover:
    """One thing that was left behind, its name, and whether it was repaired (None: not tried)."""

    kind: str
    what: str
    repaired: bool | None = None
    problem: str | None = None


def find_leftovers(folder: str, *, repair: bool) -> list[Leftover]:
    """Everything that can be found from this folder; with `repair`, after an attempt to repair each."""
    return [
        *_processes(repair),
        *_borrowed_configs(folder, repair),
        *_temporary_files(folder, repair),
        *_server_folders(repair),
    ]


# --- processes -----------------------------------------------------------------------------------------------


def _processes(repair: bool) -> Iterator[Leftover]:
    found = orphans()
    if not repair:
        for pid, (name, _) in found.items():
            yield Leftover("process", f"{pid} ({name})")
        return
    # Without /proc no process is found, so this is POSIX.
    for marker in {marker for _, markers in found.values() for marker in markers}:
        from ..process.sweep import end_leftovers

        end_leftovers(NO_SESSION, marker)
    left = orphans()
    for pid, (name, _) in found.items():
        yield Leftover("process", f"{pid} ({name})", repaired=pid not in left)


def orphans() -> dict[int, tuple[str, set[str]]]:
    """Live processes of this user that carry the marker of a run whose host is gone, with their names and markers."""
    found: dict[int, tuple[str, set[str]]] = {}
    own = _markers(os.getpid())
    for pid in _pids():
        # This process may itself be run by an agent whose host has died. It must not end its own process tree.
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
    """The run markers in a process's environment, with the host that each names."""
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
    """The name that `ps` shows; None for a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            head, _, rest = file.read().rpartition(")")
    except OSError:
        return None
    return None if rest.split()[0] in ("Z", "X") else head.partition("(")[2]


# --- files ---------------------------------------------------------------------------------------------------


def borrowed_paths(folder: str) -> dict[str, str | None]:
    """The config files that a run may borrow, and the project of each (None: the user's own)."""
    return {path: project for cli in all_facts() for path, project in cli.borrowed_files(os.environ, folder).items()}


def _borrowed_configs(folder: str, repair: bool) -> Iterator[Leftover]:
    for path, project in borrowed_paths(folder).items():
        try:
            if left_behind(path, project, repair=repair):
                yield Leftover("config", path, repaired=True if repair else None)
        except (ConfigError, OSError) as error:
            yield Leftover("config", path, repaired=False if repair else None, problem=str(error))


def _temporary_files(folder: str, repair: bool) -> Iterator[Leftover]:
    bases = [tempfile.gettempdir(), folder_for_sockets() or tempfile.gettempdir()]
    around = [one for path in borrowed_paths(folder) for one in folders_around(path)]
    for place in dict.fromkeys([*map(os.path.realpath, bases), *around]):
        for path in files.abandoned(place):
            yield Leftover("file", path, repaired=files.remove_abandoned(path) if repair else None)


def _server_folders(repair: bool) -> Iterator[Leftover]:
    found = abandoned_folders()
    removed = remove_abandoned_folders() if repair else []
    yield from (Leftover("file", path, repaired=path in removed if repair else None) for path in found)
