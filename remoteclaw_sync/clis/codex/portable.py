"""Codex's sessions (0.169.0) are one file each, `sessions/<y>/<m>/<d>/rollout-<time>-<thread id>.jsonl`, and belong to
no folder. Codex may pack old ones (`.jsonl.zst`); those are moved as they are. Threads of sub-agents stay behind."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping

import attrs

from ...errors import SessionTransferError
from ...portable.capsule import foreign, not_found
from ...portable.local import Progress, Room, check_progress, log_of, progress_of_log, write_below

NAME = re.compile(r"\d{4}/\d\d/\d\d/rollout-[0-9T-]+-(?P<thread>[0-9a-f-]{36})\.jsonl(?P<packed>\.zst)?")


@attrs.frozen
class CodexSessions:
    """The sessions in this CODEX_HOME."""

    _codex_home: str

    def read(self, session_id: str, limit: int) -> dict[str, bytes]:
        names = self._names(session_id)
        if not names:
            raise not_found(session_id, self._root)
        return {names[-1]: Room(session_id, limit).read(os.path.join(self._root, names[-1]))}

    def write(self, session_id: str, content: Mapping[str, bytes], replace: bool) -> None:
        if len(content) != 1:
            raise SessionTransferError("damaged", "the capsule has no Codex session in it")
        ((name, data),) = content.items()
        match = NAME.fullmatch(name)
        if match is None or match["thread"] != session_id:
            raise foreign(name, "Codex")
        names = self._names(session_id)
        local = log_of(os.path.join(self._root, names[-1])) if names else None
        progress = progress_of_log(local, data)
        if progress is Progress.DIVERGED and (match["packed"] or names[-1].endswith(".zst")):
            # One of the two is packed. We cannot compare the contents, but Codex packs only what has long been idle.
            progress = Progress.AHEAD if match["packed"] else Progress.BEHIND
        check_progress(progress, session_id, replace)
        write_below(os.path.realpath(self._root), name, data)
        for other in names:
            if other != name:  # The same thread in another form: Codex would not know which to use.
                os.unlink(os.path.join(self._root, other))

    @property
    def _root(self) -> str:
        return os.path.join(self._codex_home, "sessions")

    def _names(self, session_id: str) -> list[str]:
        """The files with the thread's record; the last is the newest."""
        found = glob.glob(f"*/*/*/rollout-*-{glob.escape(session_id)}.jsonl*", root_dir=self._root)
        return sorted(name for path in found if NAME.fullmatch(name := path.replace(os.sep, "/")))
