"""Gemini CLI's own record of a conversation, read during a run because the run's lines count tokens only at the end.

The format is internal to the CLI (0.61.0), so anything that cannot be read or understood is skipped.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping

from ...files import open_regular
from ...types import AgentUsage
from ...wire.fields import Message, integer, mapping, text
from .facts import state_folder
from .sessions import session_files

logger = logging.getLogger(__name__)


class ChatRecord:
    """The requests to the model in one run or turn. A message is recorded again with every change."""

    def __init__(self, environ: Mapping[str, str | None], project: str) -> None:
        self._folder = os.path.abspath(os.path.join(project, state_folder(environ)))
        self._session_id: str | None = None
        self._paths: list[str] = []
        self._read_up_to: dict[str, int] = {}
        self._older: set[str] = set()
        self._counts: dict[str, AgentUsage] = {}  # By message.

    def begin(self, session_id: str) -> None:
        """Start counting: what is recorded now is older than the run."""
        self._session_id = session_id
        self.used()
        self._older |= set(self._counts)
        self._counts = {}

    @property
    def requests(self) -> int:
        """How many requests to the model are recorded."""
        return len(self._counts)

    def used(self) -> AgentUsage | None:
        """Tokens of the run so far; None if nothing has been recorded. Never raises."""
        if not self._paths and self._session_id is not None:
            self._paths = session_files(self._folder, self._session_id)
        for path in self._paths:
            try:
                self._read(path)
            except OSError as error:
                logger.debug("the record of the session cannot be read: %s", type(error).__name__)
        return sum(self._counts.values(), AgentUsage()) if self._counts else None

    def _read(self, path: str) -> None:
        with open_regular(path, follow=True) as file:
            file.seek(self._read_up_to.get(path, 0))
            lines = file.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self._read_up_to[path] = self._read_up_to.get(path, 0) + len(whole)
        for line in whole.split(b"\n"):
            if b'"tokens"' in line:
                self._count(line)

    def _count(self, line: bytes) -> None:
        try:
            message: Message = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(message, dict) or message.get("type") != "gemini" or text(message, "id") in self._older:
            return
        counts = mapping(message, "tokens")
        self._counts[text(message, "id")] = AgentUsage(
            integer(counts, "input"), integer(counts, "output"), integer(counts, "cached")
        )
