"""Lets a conversation continue on whichever machine gets the next message, through a session store."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator

from ..portable.handover import HandedOver, Handover, Place, Portable
from ..portable.store import SessionStore
from ..types import AgentRunResult
from .conversation import Conversation


class Moved:
    """The session of one run. Without a store it is this machine's own."""

    def __init__(self, handed: HandedOver | None, *, held: bool) -> None:
        self._handed = handed
        self._held = held

    def session(self, mapped: str | None) -> str | None:
        """The session to resume, if this machine's own map has `mapped`."""
        return mapped if self._handed is None or not self._handed.is_stored else self._handed.session_id

    def keep(self, result: AgentRunResult) -> None:
        """Save the session's state after the run."""
        if self._handed is not None and result.session_id and result.error_subtype != "session_not_found":
            self._handed.save(result.session_id, held=self._held)

    def fetch_again(self) -> bool:
        """Whether a session that turned out to be missing here may be fetched from the store next time."""
        return self._handed is not None and self._handed.fetch_again()

    @property
    def warnings(self) -> list[str]:
        """What went wrong with the store."""
        return [] if self._handed is None else self._handed.warnings


class Moves:
    """All conversations of a bridge."""

    def __init__(self, store: SessionStore | None) -> None:
        self._handover = None if store is None else Handover(store)

    @contextlib.contextmanager
    def run(
        self,
        provider: str,
        conversation: Conversation,
        place: Place | None,
        *,
        is_unwanted: Callable[[], bool],
        let_go: Callable[[str], object] | None,
    ) -> Iterator[Moved]:
        """A context for one run. Raises as `Handover.turn` does. `let_go` is given if a warm process may hold it."""
        if self._handover is None or place is None:
            yield Moved(None, held=False)
            return
        with self._handover.turn(
            key_of(provider, conversation),
            place,
            is_unwanted=is_unwanted,
            let_go=let_go or (lambda session_id: None),
        ) as handed:
            yield Moved(handed, held=let_go is not None)

    def forget(self, provider: str, conversation: Conversation) -> None:
        """Begin a new session next time, on any machine."""
        if self._handover is not None:
            self._handover.forget(key_of(provider, conversation))


def key_of(provider: str, conversation: Conversation) -> str:
    """The key leaves out the workspace: its path may differ on another machine."""
    return json.dumps([provider, *conversation.columns[1:]])


def place_of(runtime: object, working_directory: str, env: dict[str, str | None]) -> Place | None:
    """Where the runtime's sessions are; None if they cannot be moved."""
    return Place(runtime, working_directory, env) if isinstance(runtime, Portable) else None
