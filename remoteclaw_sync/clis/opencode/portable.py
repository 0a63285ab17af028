"""OpenCode's sessions are rows of a database (1.18.33), so its own commands move them: `export` and `import`.

An import adds missing messages, changes none, and assigns the session to the folder that the command runs in. Sessions
of sub-agents stay behind.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from ... import files
from ...errors import SessionTransferError
from ...portable.capsule import foreign, not_found, too_large
from ...portable.local import Progress, check_progress, progress_of_parts
from ...process.child import ChildProcess
from ...process.ending import EndReason
from ...process.launch import Launch, Limits
from .store import SessionStore

EXPORT = "session.json"
PATIENCE = 120.0  # Seconds; each command takes 2 to 4, and more the first time, when it creates its database.
MAX_DIAGNOSTICS = 1 << 20
QUOTED_WORDS = 300
# Output goes into a file: OpenCode exits without waiting until a full pipe has been read, and the rest is lost.
INTO_FILE = 'exec >"$0"; exec "$@"'


@attrs.frozen(kw_only=True)
class OpenCodeSessions:
    """The sessions in the database that this environment uses."""

    command: Sequence[str]
    env: Mapping[str, str] = attrs.field(repr=False)
    cwd: str
    new_marker: Callable[[], tuple[str, str]]

    def read(self, session_id: str, limit: int) -> dict[str, bytes]:
        if self._store.directory_of(session_id) is None:
            raise not_found(session_id, "OpenCode's database")
        folder = files.new_folder(files.temporary_folder())
        try:
            path = os.path.join(folder, EXPORT)
            self._run("export", session_id, output=path)
            try:
                data = files.read_regular(path, limit)
            except OSError:
                raise too_large(session_id, limit) from None
        finally:
            files.remove(folder)
        _parsed(data, session_id)
        return {EXPORT: data}

    def write(self, session_id: str, content: Mapping[str, bytes], replace: bool) -> None:
        for name in content:
            if name != EXPORT:
                raise foreign(name, "OpenCode")
        incoming = _parsed(content[EXPORT], session_id)
        progress = self._progress(session_id, incoming)
        check_progress(progress, session_id, replace)
        is_here = os.path.realpath(self._store.directory_of(session_id) or "/") == os.path.realpath(self.cwd)
        if progress is Progress.SAME and is_here:
            return
        folder = files.new_folder(files.temporary_folder())
        try:
            path = os.path.join(folder, EXPORT)
            with open(path, "xb", opener=files.private) as file:
                file.write(content[EXPORT])
            if progress not in (Progress.AHEAD, Progress.DIVERGED):
                self._run("import", path, output=os.devnull)
                return
            before = os.path.join(folder, "before.json")
            self._run("export", session_id, output=before)
            self._run("session", "delete", session_id, output=os.devnull)
            try:
                self._run("import", path, output=os.devnull)
            except BaseException:
                self._run("import", before, output=os.devnull)  # As it was.
                raise
        finally:
            files.remove(folder)

    @property
    def _store(self) -> SessionStore:
        return SessionStore(self.env)

    def _progress(self, session_id: str, incoming: dict[str, Any]) -> Progress:
        store = self._store
        if store.directory_of(session_id) is None:
            return Progress.ABSENT
        there = {message["info"]["id"] for message in incoming["messages"]}
        return progress_of_parts(store.message_ids(session_id), there)

    def _run(self, *arguments: str, output: str) -> None:
        marker, identity = self.new_marker()
        child = ChildProcess(
            Launch(
                argv=("/bin/sh", "-c", INTO_FILE, output, *self.command, *arguments),
                env={**self.env, "PWD": self.cwd, marker: identity},
                cwd=self.cwd,
                stdin=b"",
                marker=marker,
                limits=Limits(wall_clock=PATIENCE),
                linger=PATIENCE,
                max_pending_bytes=MAX_DIAGNOSTICS,
            )
        )
        child.start()
        try:
            while child.receive() is not None:
                pass
        finally:
            end = child.close()
        what = f"`opencode {arguments[0]}`"
        if end.failure is not None:
            raise SessionTransferError("cli_failed", f"{what} could not be started: {end.failure.message}")
        if end.reason is EndReason.DEADLINE:
            raise SessionTransferError("cli_failed", f"{what} did not end within {PATIENCE:g} s")
        if end.code != 0:
            words = " ".join(end.diagnostics.split())[-QUOTED_WORDS:]
            raise SessionTransferError("cli_failed", f"{what} failed with exit code {end.code}: {words}")


def _parsed(data: bytes, session_id: str) -> dict[str, Any]:
    """The export, if it is complete and every id that an import would write to belongs to this session."""
    try:
        exported: dict[str, Any] = json.loads(data)
        named = {exported["info"]["id"]}
        for message in exported["messages"]:
            named.add(message["info"]["sessionID"])
            named.update(part["sessionID"] for part in message["parts"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise SessionTransferError("damaged", "this is not a whole session of OpenCode") from None
    if named != {session_id}:
        raise SessionTransferError("unsafe", "the capsule would write to other sessions of OpenCode than its own")
    return exported
