"""Claude Code's sessions (2.1.326): `projects/<slug of the folder>/<id>.jsonl`, and beside it the folder `<id>/` with
the records of sub-agents and the long outputs of tools.

A session that is stored under another folder's slug can be resumed in that folder. Claude itself looks nowhere else.
"""

from __future__ import annotations

import glob
import os
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

import attrs

from ...errors import SessionTransferError
from ...portable.capsule import foreign, not_found
from ...portable.local import Room, check_progress, log_of, progress_of_records, regular_files_below, write_below

LOG = "session.jsonl"
BESIDE = re.compile(r"(subagents|tool-results)(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+")
LONGEST_SLUG = 200  # A longer one is cut, and ends with a hash that depends on how Claude was built.


@attrs.frozen
class ClaudeSessions:
    """The sessions in the `projects` of this state folder, for this working directory."""

    _state_folder: str
    _cwd: str

    def read(self, session_id: str, limit: int) -> dict[str, bytes]:
        path = self._find(session_id)
        room = Room(session_id, limit)
        content = {LOG: room.read(path)}
        beside = path.removesuffix(".jsonl")
        for other in regular_files_below(beside):
            name = os.path.relpath(other, beside).replace(os.sep, "/")
            if BESIDE.fullmatch(name):
                content[name] = room.read(other)
        return content

    def write(self, session_id: str, content: Mapping[str, bytes], replace: bool) -> None:
        for name in content:
            if name != LOG and not BESIDE.fullmatch(name):
                raise foreign(name, "Claude")
        if LOG not in content:
            raise SessionTransferError("damaged", "the capsule has no Claude session in it")
        folder = self._folder()
        path = os.path.join(folder, f"{session_id}.jsonl")
        progress = progress_of_records(log_of(path), content[LOG], _said)
        check_progress(progress, session_id, replace)
        root, slug = os.path.split(folder)
        for name, data in content.items():
            if name != LOG:
                write_below(root, f"{slug}/{session_id}/{name}", data)
        write_below(root, f"{slug}/{session_id}.jsonl", content[LOG])  # Last, because it makes the session exist.

    def _find(self, session_id: str) -> str:
        here = os.path.join(self._folder(), f"{session_id}.jsonl")
        if os.path.isfile(here):
            return here
        projects = os.path.join(self._state_folder, "projects")
        found = glob.glob(os.path.join(glob.escape(projects), "*", f"{session_id}.jsonl"))
        if len(found) == 1:
            return found[0]
        if found:
            message = f"session {session_id} is there for several folders; give its working_directory"
            raise SessionTransferError("not_found", message)
        raise not_found(session_id, projects)

    def _folder(self) -> str:
        projects = os.path.realpath(os.path.join(self._state_folder, "projects"))
        slug = re.sub("[^a-zA-Z0-9]", "-", unicodedata.normalize("NFC", os.path.realpath(self._cwd)))
        if len(slug) <= LONGEST_SLUG:
            return os.path.join(projects, slug)
        known = glob.glob(os.path.join(glob.escape(projects), f"{slug[:LONGEST_SLUG]}-*"))
        if len(known) == 1:
            return known[0]
        message = f"Claude cuts the name of this working_directory, which is longer than {LONGEST_SLUG} characters"
        raise SessionTransferError("unsafe", f"{message}: run it there once before, or use a shorter path")


def _said(record: dict[str, Any]) -> object:
    """The id of a message. Other records are Claude's bookkeeping, some written as it exits."""
    return record.get("uuid") if record.get("type") in ("user", "assistant") else None
