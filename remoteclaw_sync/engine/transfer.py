"""Moves a session out of a CLI's store, or into it, as a capsule, while nobody else writes to the session."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

import attrs

from .. import errors
from ..errors import SessionTransferError
from ..portable.capsule import Capsule, check_session_id
from ..portable.local import LocalSessions
from ..types import AgentExecuteParams
from ..versions import is_below
from .one_writer import hold


class Mover(Protocol):
    """What is needed from a runtime."""

    @property
    def program(self) -> str:
        """The command as people know it."""

    def session_store(self, params: AgentExecuteParams) -> str | None:
        """The store that the session ids belong to."""

    def local_sessions(self, params: AgentExecuteParams) -> LocalSessions | None:
        """Where its sessions are."""

    def cli_version(self) -> str | None:
        """The installed version, if it is known."""


def exported(agent: Mover, params: AgentExecuteParams, limit: int, *, held: bool) -> bytes:
    """The session of the params as a capsule."""
    sessions, session_id = _sessions(agent, params), params.session_id
    assert session_id is not None
    check_session_id(session_id)
    with contextlib.nullcontext() if held else _held(agent, params, session_id):
        content = sessions.read(session_id, limit)
    capsule = Capsule(provider=agent.program, session_id=session_id, cli_version=agent.cli_version(), files=content)
    return capsule.pack(limit)


def imported(agent: Mover, params: AgentExecuteParams, data: bytes, limit: int, *, replace: bool) -> str:
    """Write the session in the capsule to this machine. Returns its id."""
    sessions = _sessions(agent, params)
    capsule = Capsule.unpack(data, limit)
    if capsule.provider != agent.program:
        message = f"this is a session of {capsule.provider}, which {agent.program} cannot continue"
        raise SessionTransferError("other_provider", message)
    here = agent.cli_version()
    if capsule.cli_version is not None and is_below(here, capsule.cli_version):
        message = (
            f"this session was written by {capsule.provider} {capsule.cli_version}, and {here} is installed here: "
            "an older one may not understand it. Update it on this machine"
        )
        raise SessionTransferError("newer_cli", message)
    params = attrs.evolve(params, session_id=capsule.session_id)
    with _held(agent, params, capsule.session_id):
        sessions.write(capsule.session_id, capsule.files, replace)
    return capsule.session_id


def _sessions(agent: Mover, params: AgentExecuteParams) -> LocalSessions:
    sessions = agent.local_sessions(params)
    if sessions is None:
        raise errors.UnsupportedOperationError(f"sessions of {agent.program} cannot be moved to another machine")
    return sessions


@contextlib.contextmanager
def _held(agent: Mover, params: AgentExecuteParams, session_id: str) -> Iterator[None]:
    """Hold the session meanwhile, so that no other run of this user on this machine writes to it."""
    store = agent.session_store(params)
    try:
        held = None if store is None else hold(store, session_id)
    except errors.RunSetupError as error:
        raise errors.SessionBusyError(str(error)) from None
    try:
        yield
    finally:
        if held is not None:
            held.release()
