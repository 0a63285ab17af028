"""The agents of the chat page: one warm session per conversation and provider, up to a limit of idle ones.

This class is the only place where the page deals with live sessions.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import attrs

from ..engine.agent_run import AgentRun
from ..errors import SessionBusyError, UnsupportedOperationError
from ..runtime import CLIRuntimeBase
from ..session import AgentSession
from ..types import PermissionMode
from .visitor import Visitor

MAX_IDLE = 4  # A process takes 140 to 220 MB of memory.


@attrs.frozen(kw_only=True)
class Wanted:
    """A turn that was requested on the page."""

    prompt: str
    provider: str
    session_id: str | None = None
    model: str | None = None
    permission_mode: PermissionMode = "default"
    images: tuple[str, ...] = ()


@attrs.define
class _Warm:
    session: AgentSession
    model: str | None
    permission_mode: PermissionMode
    run: AgentRun | None = None

    @property
    def is_idle(self) -> bool:
        return self.run is None or self.run.result is not None


class WarmSessions:
    """Starts turns. Thread-safe.

    Args:
        new_runtime: makes the runtime of a provider.
        working_directory: where agents work.
        max_idle: how many sessions without a turn keep their process; the least recently used one is closed first.
    """

    def __init__(
        self,
        new_runtime: Callable[[str], CLIRuntimeBase],
        working_directory: str | os.PathLike[str] | None = None,
        max_idle: int = MAX_IDLE,
    ) -> None:
        self._new_runtime = new_runtime
        self._folder = working_directory
        self._max_idle = max_idle
        self._lock = threading.Lock()
        self._warm: dict[tuple[str, str], _Warm] = {}  # Ordered by last use, the most recent last.

    def start(self, key: str, wanted: Wanted) -> AgentRun:
        """A turn of the conversation `key`. Where a CLI has no live sessions: a run that resumes and asks nobody.

        Raises SessionBusyError, or ValueError or TypeError for what the CLI cannot do.
        """
        with self._lock:
            warm = self._warm.pop((key, wanted.provider), None) or self._opened(wanted)
            if warm is None:
                return self._one_shot(wanted)
            self._warm[key, wanted.provider] = warm
            self._apply(warm, wanted.model, wanted.permission_mode)
            warm.run = warm.session.start(wanted.prompt, images=wanted.images)
            run = warm.run
        self._cool()
        return run

    def change(self, key: str, provider: str, model: str | None, permission_mode: PermissionMode) -> None:
        """Change the settings of a warm session now, if its CLI can; otherwise the next turn uses them."""
        with self._lock:
            warm = self._warm.get((key, provider))
            if warm is None:
                return
            try:
                self._apply(warm, model, permission_mode)
            except SessionBusyError:
                pass

    def close(self, key: str) -> None:
        """End the processes of a conversation. Blocks for a few seconds at most."""
        with self._lock:
            gone = [self._warm.pop(place) for place in list(self._warm) if place[0] == key]
        for warm in gone:
            warm.session.close()

    def close_all(self) -> None:
        """End the processes of all conversations, when the server stops."""
        for key in {place[0] for place in self._warm}:
            self.close(key)

    def _opened(self, wanted: Wanted) -> _Warm | None:
        try:
            session = self._new_runtime(wanted.provider).open_session(
                session_id=wanted.session_id,
                working_directory=self._folder,
                model=wanted.model,
                permission_mode=wanted.permission_mode,
                approve=Visitor(),
            )
        except UnsupportedOperationError:
            return None
        return _Warm(session, wanted.model, wanted.permission_mode)

    def _one_shot(self, wanted: Wanted) -> AgentRun:
        return self._new_runtime(wanted.provider).start(
            wanted.prompt,
            session_id=wanted.session_id,
            working_directory=self._folder,
            model=wanted.model,
            permission_mode=wanted.permission_mode,
            images=wanted.images,
        )

    def _apply(self, warm: _Warm, model: str | None, permission_mode: PermissionMode) -> None:
        if model != warm.model:
            warm.session.set_model(model)
            warm.model = model
        if permission_mode != warm.permission_mode:
            warm.session.set_permission_mode(permission_mode)
            warm.permission_mode = permission_mode

    def _cool(self) -> None:
        with self._lock:
            idle = [place for place, warm in self._warm.items() if warm.is_idle]
            gone = [self._warm.pop(place) for place in idle[: max(0, len(idle) - self._max_idle)]]
        for warm in gone:
            warm.session.close()
