"""Runs that are turns of a pool's sessions: warm on the machine that has the session, fetched on any other."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import SessionBusyError
from ..pool import SessionPool
from ..session import AgentSession, set_fields
from ..types import TURN_FIELDS, AgentEvent, AgentExecuteParams
from ..web.background import Overheard

Start = Callable[[AgentExecuteParams], Iterable[AgentEvent]]
RETRY_PAUSE = 0.1


def starter(start: Any, patience: float) -> Start:
    """A function that turns the params into a run, for a runtime, a pool or a function. With a pool it waits up to
    `patience` seconds for a session that another machine has: a dead machine's session is free after its lease."""
    if isinstance(start, SessionPool):
        return functools.partial(_turn, start, patience)
    made: Start = getattr(start, "start", start)
    return made


class _Turn(Overheard):
    """Returns its session before anybody sees the end, so that the next run, on any machine, has the whole state."""

    def __init__(self, events: Iterable[AgentEvent], lease: AgentSession) -> None:
        super().__init__(events, lambda result: lease.close())
        self._lease = lease

    def close(self) -> None:
        """The run is no longer wanted."""
        self.run.close()  # type: ignore[attr-defined]  # An AgentRun.
        self._lease.close()


def _turn(pool: SessionPool, patience: float, params: AgentExecuteParams) -> Iterable[AgentEvent]:
    given = dict(set_fields(params))
    of_turn: Any = {name: given.pop(name) for name in TURN_FIELDS & given.keys()}
    lease = _leased(pool, patience, given.pop("session_id", None), given)
    try:
        return _Turn(lease.start(of_turn.pop("prompt"), **of_turn), lease)
    except BaseException:
        lease.close()
        raise


def _leased(pool: SessionPool, patience: float, session_id: str | None, fields: Any) -> AgentSession:
    until = time.monotonic() + patience
    while True:
        try:
            return pool.session(session_id, **fields)
        except SessionBusyError:
            if time.monotonic() > until:
                raise
        time.sleep(RETRY_PAUSE)
