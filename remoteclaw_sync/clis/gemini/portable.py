"""Gemini's sessions (0.61.0): `tmp/<project>/chats/session-<minute>-<short id>.jsonl`. The file
`.project_root` names the project's folder; Gemini adds it to its list (`projects.json`) when it is started there.

Stubs, which a resume leaves behind (see sessions.py), are not part of a session.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping

import attrs

from ... import files
from ..._json import read_object
from ...errors import SessionTransferError
from ...portable.capsule import foreign, not_found
from ...portable.local import Room, check_progress, log_of, progress_of_records, write_below
from .sessions import FILE_NAME, NO_MINUTE_OF_TODAY, NOT_IN_FILE_NAMES, is_stub, session_files

LOG = "session.jsonl"
ROOT_FILE = ".project_root"
LONGEST_ROOT = 16_384


@attrs.frozen
class GeminiSessions:
    """The sessions of the project in this working directory."""

    _gemini_folder: str
    _cwd: str

    def read(self, session_id: str, limit: int) -> dict[str, bytes]:
        paths = self._logs(session_id, anywhere=True)
        if not paths:
            raise not_found(session_id, os.path.join(self._gemini_folder, "tmp"))
        project = self._known_project()
        here = [path for path in paths if _project_of(path) == project]
        return {LOG: Room(session_id, limit).read(_newest(here or paths))}

    def write(self, session_id: str, content: Mapping[str, bytes], replace: bool) -> None:
        for name in content:
            if name != LOG:
                raise foreign(name, "Gemini")
        data = content[LOG]
        _check_head(data, session_id)
        present = self._logs(session_id, anywhere=False)
        local = log_of(_newest(present)) if present else None
        check_progress(progress_of_records(local, data, lambda record: record.get("id")), session_id, replace)
        root = os.path.realpath(os.path.join(self._gemini_folder, "tmp"))
        project = self._known_project() or self._new_project(root)
        short_id = NOT_IN_FILE_NAMES.sub("_", session_id)[:8]
        name = os.path.basename(present[0]) if present else f"session-{NO_MINUTE_OF_TODAY}-{short_id}.jsonl"
        write_below(root, f"{project}/chats/{name}", data)
        for path in present:
            if os.path.basename(path) != name:
                os.unlink(path)  # Gemini would not know which to use.

    def _logs(self, session_id: str, *, anywhere: bool) -> list[str]:
        project = None if anywhere else self._known_project()
        found = sorted(session_files(self._gemini_folder, session_id))
        return [path for path in found if not is_stub(path) and (anywhere or _project_of(path) == project)]

    # --- projects -------------------------------------------------------------------------------------------

    def _known_project(self) -> str | None:
        """Gemini's name for the working directory; None if it has never run there."""
        wanted = os.path.realpath(self._cwd)
        listed = read_object(os.path.join(self._gemini_folder, "projects.json")).get("projects")
        name = listed.get(wanted) if isinstance(listed, dict) else None
        if isinstance(name, str) and _is_name(name) and self._roots(name) <= {wanted}:
            return name
        return next((name for name in self._names() if wanted in self._roots(name)), None)

    def _new_project(self, root: str) -> str:
        wanted = os.path.realpath(self._cwd)
        plain = re.sub("[^a-z0-9]+", "-", os.path.basename(wanted).lower()).strip("-") or "project"
        listed = read_object(os.path.join(self._gemini_folder, "projects.json")).get("projects")
        taken = {*self._names(), *(listed.values() if isinstance(listed, dict) else ())}
        for number in itertools.count():
            name = f"{plain}-{number}" if number else plain
            if name not in taken:
                write_below(root, f"{name}/{ROOT_FILE}", wanted.encode())
                return name
        raise AssertionError

    def _names(self) -> Iterator[str]:
        for place in ("tmp", "history"):
            with contextlib.suppress(OSError):
                yield from sorted(filter(_is_name, os.listdir(os.path.join(self._gemini_folder, place))))

    def _roots(self, name: str) -> set[str]:
        """The folders that this project names as its root: one, or none if it does not say."""
        found = set()
        for place in ("tmp", "history"):
            with contextlib.suppress(OSError):
                path = os.path.join(self._gemini_folder, place, name, ROOT_FILE)
                found.add(files.read_regular(path, LONGEST_ROOT).decode(errors="replace").strip())
        return found


def _is_name(name: str) -> bool:
    return re.fullmatch("[a-z0-9-]+", name) is not None


def _project_of(path: str) -> str:
    return os.path.basename(os.path.dirname(os.path.dirname(path)))


def _newest(paths: list[str]) -> str:
    return max(paths, key=lambda path: (os.stat(path).st_mtime_ns, FILE_NAME.fullmatch(os.path.basename(path)) is None))


def _check_head(data: bytes, session_id: str) -> None:
    try:
        head = json.loads(data.partition(b"\n")[0])
        named = head.get("sessionId")
    except (ValueError, AttributeError, RecursionError):
        named = None
    if named != session_id:
        raise SessionTransferError("damaged", "the capsule has no Gemini session of its id in it")
