"""OpenCode's record of its sessions: an SQLite file, as of 1.18.33. We only read it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

logger = logging.getLogger(__name__)

BUSY_SECONDS = 1.0  # Readers of this file do not wait for writers (WAL), only a moment for its clean-up.
DATABASE = "opencode.db"
OTHER_CHANNELS = "opencode-*.db"  # Builds that are neither a release nor a beta have their own file.

RUNNING_TOOL = """
    SELECT 1 FROM part WHERE message_id = ? AND json_extract(data, '$.type') = 'tool'
    AND json_extract(data, '$.state.status') = 'running' LIMIT 1
"""
# OpenCode 2 has its own tables in the same file.
RUNNING_TOOL_OF_TWO = """
    SELECT 1 FROM session_message, json_each(session_message.data, '$.content') AS content
    WHERE session_message.id = ? AND json_extract(content.value, '$.type') = 'tool'
    AND json_extract(content.value, '$.state.status') = 'running' LIMIT 1
"""


class SessionStore:
    """The sessions of the user an environment belongs to. What cannot be read counts as unknown, not as an error."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._absent: bool | None = None

    def directory_of(self, session_id: str) -> str | None:
        """The folder a session was started in; None if it is not known."""
        found = self._first("SELECT directory FROM session WHERE id = ?", session_id)
        if found is None:
            found = self._first("SELECT directory FROM session_v2 WHERE id = ?", session_id)
        return found if isinstance(found, str) and found else None

    def message_ids(self, session_id: str) -> set[str]:
        """The messages of a session."""
        found = self._first("SELECT json_group_array(id) FROM message WHERE session_id = ?", session_id)
        return set(json.loads(found)) if isinstance(found, str) else set()

    def is_summary(self, message_id: str) -> bool:
        """Whether a message is OpenCode's own summary of a long conversation rather than an answer."""
        if self._absent is None:
            # Checked once: by the time the CLI has printed a message, it has created its file.
            self._absent = not any(path.exists() for path in self._databases())
        if self._absent:
            return False
        found = self._first("SELECT json_extract(data, '$.summary') FROM message WHERE id = ?", message_id)
        return found is not None and found == 1

    def runs_tool(self, message_id: str) -> bool:
        """Whether a tool that the model called in this message is still running."""
        queries = (RUNNING_TOOL, RUNNING_TOOL_OF_TWO)
        return any(self._first(query, message_id) is not None for query in queries)

    def _first(self, query: str, key: str) -> Any:
        for path in self._databases():
            try:
                with contextlib.closing(sqlite3.connect(_read_only(path), timeout=BUSY_SECONDS, uri=True)) as database:
                    row = database.execute(query, (key,)).fetchone()
            except sqlite3.Error as error:
                logger.debug("cannot look into %s: %s", path, error)
                continue
            if row is not None:
                return row[0]
        return None

    def _databases(self) -> Iterator[Path]:
        folder = self._data_folder()
        named = self._env.get("OPENCODE_DB")
        if named == ":memory:" or (named is None and not folder.is_dir()):
            return
        if named:
            yield folder / named
            return
        yield folder / DATABASE
        yield from sorted(folder.glob(OTHER_CHANNELS))

    def _data_folder(self) -> Path:
        base = self._env.get("XDG_DATA_HOME")
        if not base:
            base = os.path.join(self._env.get("HOME") or os.path.expanduser("~"), ".local", "share")
        return Path(base, "opencode")


def _read_only(path: Path) -> str:
    # Without a WAL file beside it, everything is in the file itself; only `immutable` keeps SQLite from creating one.
    mode = "mode=ro" if path.with_name(path.name + "-wal").exists() else "mode=ro&immutable=1"
    return f"file:{quote(str(path))}?{mode}"
