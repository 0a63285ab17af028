"""Keeps the sessions of this machine in step with a store: before a turn it fetches the store's state, unless this
machine already has it, and after the turn it saves the new one."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, runtime_checkable

import attrs

from ..errors import SessionBusyError, SessionTransferError, StaleSessionError
from .capsule import Capsule
from .store import SessionStore

logger = logging.getLogger(__name__)

MOST_KNOWN = 10_000  # Sessions whose generation is remembered; the state of any other is fetched once more.
WAIT_SECONDS = 0.5  # How often a waiting turn checks that it is still wanted.

UNFETCHED = "the conversation could not be fetched, so it goes on from what this machine has"
UNSAVED = "the conversation could not be saved, so other machines do not see this turn"
OVERTAKEN = "another machine has gone on with the conversation meanwhile, so it does not contain this turn"
DROPPED = "this machine had gone on by itself; what was said then is not part of the conversation any more"


class UnwantedError(Exception):
    """The turn is no longer wanted, and another machine still has the session."""


@runtime_checkable
class Portable(Protocol):
    """A runtime whose sessions can be moved."""

    def export_session(
        self,
        session_id: str,
        *,
        working_directory: str | os.PathLike[str] | None = None,
        env: Mapping[str, str | None] | None = None,
        held: bool = False,
    ) -> bytes:
        """A session as a capsule."""

    def import_session(
        self,
        data: bytes,
        *,
        working_directory: str | os.PathLike[str] | None = None,
        env: Mapping[str, str | None] | None = None,
        replace: bool = False,
    ) -> str:
        """Make the capsule a session of this machine; returns its id."""


@attrs.frozen
class Place:
    """Where a session is on this machine: its runtime, and the folder and variables of its runs."""

    runtime: Portable
    working_directory: str | os.PathLike[str] | None = None
    env: Mapping[str, str | None] = attrs.field(factory=dict, repr=False)

    def export(self, session_id: str, *, held: bool) -> bytes:
        return self.runtime.export_session(
            session_id, working_directory=self.working_directory, env=self.env, held=held
        )

    def take(self, data: bytes, *, replace: bool = False) -> str:
        return self.runtime.import_session(
            data, working_directory=self.working_directory, env=self.env, replace=replace
        )


@attrs.frozen
class _Known:
    """The last state that was fetched or saved on this machine."""

    generation: int
    session_id: str | None
    digest: bytes


class Handover:
    """All sessions of one process. Thread-safe."""

    def __init__(self, store: SessionStore) -> None:
        if not isinstance(store, SessionStore):
            raise TypeError(f"session_store must have load, save and lock, which {type(store).__name__} does not")
        self.store = store
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()

    @contextlib.contextmanager
    def turn(
        self,
        key: str,
        place: Place,
        *,
        is_unwanted: Callable[[], bool] = lambda: False,
        let_go: Callable[[str], object] = lambda session_id: None,
    ) -> Iterator[HandedOver]:
        """A session that nobody else writes to, on any machine; its state is current when the block begins.

        `let_go` is called with the id of a session that is about to be replaced by a newer state, so that a warm
        process can be ended. Raises UnwantedError if `is_unwanted` returns True while another machine has the session;
        SessionTransferError if the state in the store cannot be used here, and SessionBusyError if another process of
        this machine has the session. In the last two cases the store's state is left as it is.
        """
        handed = HandedOver(self, key, place)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._locked(key, is_unwanted))
                handed._fetch(let_go)
            except (SessionBusyError, SessionTransferError, UnwantedError):
                raise
            except Exception as error:  # Of any kind, depending on the store: its server is down, its disk is full.
                handed._warn(UNFETCHED, error)
            yield handed

    def forget(self, key: str) -> None:
        """Begin a new session next time, on any machine. Raises what the store raises."""
        with self.store.lock(key):
            found = self.store.load(key)
            if found is not None and found.data:
                self.store.save(key, b"", after=found.generation)

    @contextlib.contextmanager
    def _locked(self, key: str, is_unwanted: Callable[[], bool]) -> Iterator[None]:
        while True:
            with contextlib.ExitStack() as stack:
                try:
                    stack.enter_context(self.store.lock(key, timeout=WAIT_SECONDS))
                except SessionBusyError:
                    if is_unwanted():
                        raise UnwantedError from None
                    continue
                yield
                return

    def known(self, key: str) -> _Known | None:
        with self._lock:
            return self._known.get(key)

    def forget_known(self, key: str) -> None:
        with self._lock:
            self._known.pop(key, None)

    def remember(self, key: str, known: _Known) -> None:
        with self._lock:
            self._known[key] = known
            self._known.move_to_end(key)
            while len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)


class HandedOver:
    """A session for one turn. `session_id` is the one to resume; None if there is no session yet."""

    def __init__(self, owner: Handover, key: str, place: Place) -> None:
        self._owner, self._key, self._place = owner, key, place
        self._generation = 0
        self._digest = b""
        self._was_fetched = False
        self.session_id: str | None = None
        self.warnings: list[str] = []

    def _fetch(self, let_go: Callable[[str], object]) -> None:
        known = self._owner.known(self._key)
        if known is not None:
            self._generation, self.session_id, self._digest = known.generation, known.session_id, known.digest
        found = self._owner.store.load(self._key, known=self._generation)
        if found is None:  # Nothing was saved yet, or its retention is over.
            self._generation = 0
            return
        if found.data is None:
            return  # The state here is current.
        session_id = self._taken(found.data, let_go) if found.data else None
        # Not earlier: if it cannot be taken in, this turn must not be saved over it.
        self.session_id = session_id
        self._was_fetched = True
        self._note(found.generation, found.data)

    @property
    def is_stored(self) -> bool:
        """Whether the store has a state of this session, even one that only says it was forgotten."""
        return self._generation > 0

    def fetch_again(self) -> bool:
        """Make the next turn fetch the state from the store, because it is not here after all. Returns whether that
        may help."""
        if self._was_fetched or not self.is_stored:
            return False
        self._owner.forget_known(self._key)
        return True

    def _taken(self, data: bytes, let_go: Callable[[str], object]) -> str:
        session_id = Capsule.unpack(data).session_id
        let_go(session_id)
        try:
            return self._place.take(data)
        except SessionTransferError as error:
            if error.reason == "local_newer":
                return session_id  # A turn was made here but could not be saved.
            if error.reason != "diverged":
                raise
            self._warn(DROPPED, error)
            return self._place.take(data, replace=True)

    def save(self, session_id: str, *, held: bool = False) -> None:
        """Store the session's state after the turn. Failures are added to `warnings`. `held`: by a warm process."""
        try:
            data = self._place.export(session_id, held=held)
            if self.session_id == session_id and hashlib.sha256(data).digest() == self._digest:
                return  # Nothing was said.
            self.session_id = session_id
            self._note(self._owner.store.save(self._key, data, after=self._generation), data)
        except StaleSessionError as error:
            self._warn(OVERTAKEN, error)
        except Exception as error:  # See Handover.turn.
            self._warn(UNSAVED, error)

    def _note(self, generation: int, data: bytes) -> None:
        self._generation, self._digest = generation, hashlib.sha256(data).digest()
        self._owner.remember(self._key, _Known(generation, self.session_id, self._digest))

    def _warn(self, consequence: str, error: Exception) -> None:
        self.warnings.append(f"{consequence}: {type(error).__name__}: {error}")
        logger.warning("%s", self.warnings[-1])
