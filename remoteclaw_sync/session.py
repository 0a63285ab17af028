"""`AgentSession`: a conversation whose process stays between turns."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, get_args

import attrs

from ._closeable import Closeable
from ._values import check_choice, check_known, check_text
from .engine.answers import asking, with_format
from .engine.live_session import LiveSession
from .engine.meter import check_limits
from .engine.turn import Turn
from .types import TURN_FIELDS, AgentExecuteParams, AgentRunResult, PermissionMode, RunFields
from .verbs import Verbs


class AgentSession(Closeable, Verbs):
    """Many turns with one agent, with the same verbs as a runtime: `execute`, `start`, `run`.

    Made by `runtime.open_session()`. A warm process serves the turns; if it is gone (idle for too long, crashed,
    killed), the next turn starts another one and resumes. One turn at a time: a second one raises SessionBusyError.
    All other methods may be called from any thread. Use the session as a context manager, or `close()` it.

    A turn takes a prompt, the fields `images`, `deadline`, `abort_signal`, `prompt_syntax` and `output_type`, and the
    limits. All other fields belong to the session.
    """

    def __init__(self, live: LiveSession) -> None:
        self._live = live

    @property
    def session_id(self) -> str | None:
        """The CLI's id for this conversation, to resume it with; None before the first turn."""
        return self._live.session_id

    @property
    def pid(self) -> int | None:
        """The id of the process that serves this session now; None if there is none."""
        return self._live.pid

    def warm(self) -> None:
        """Start the process now, so that the next turn does not have to wait for it. Blocks until it is ready.

        If it cannot be started, the next turn tries again and says why. Raises SessionBusyError during a turn.
        """
        self._live.warm()

    def set_model(self, name: str | None) -> None:
        """Use another model (None: the CLI's own choice), from the next turn on at the latest. Does not block."""
        if name is not None:
            check_text("name", name)
        self._live.set_model(name)

    def set_permission_mode(self, mode: PermissionMode) -> None:
        """Use another permission mode, from the next turn on at the latest.

        If the CLI can set it only when it starts, the process is let go, which may take two seconds; during a turn,
        that raises SessionBusyError.
        """
        check_choice("mode", mode, get_args(PermissionMode))
        self._live.set_permission_mode(mode)

    def close(self) -> None:
        """Abort the running turn, if there is one, and wait until the process is gone (bounded: some seconds).

        The CLI keeps the conversation: `session_id` resumes it, even in a run without a session.
        """
        self._live.shut()

    def new_turn(self, params: AgentExecuteParams | str, fields: RunFields) -> Turn:
        checked = self._checked(params, fields)
        return self._live.new_turn(asking(self._live.agent, checked, self._live.fields.output_type))

    def next_turn(self, params: AgentExecuteParams, before: AgentRunResult) -> Turn | None:
        return self._live.new_turn(asking(self._live.agent, params, self._live.fields.output_type))

    def _own_fields(self) -> AgentExecuteParams:
        """The fields that apply to all turns."""
        return self._live.fields

    def _checked(self, params: AgentExecuteParams | str, fields: RunFields) -> AgentExecuteParams:
        """The turn's own fields on top of the session's. Raises ValueError or TypeError."""
        given: dict[str, Any] = {**fields}
        check_known("there is no field", given, RunFields.__annotations__)
        if isinstance(params, AgentExecuteParams):
            given = {**set_fields(params), **given}
        elif isinstance(params, str):
            given["prompt"] = params
        else:
            raise TypeError(f"params must be an AgentExecuteParams or a prompt, not {type(params).__name__}")
        for name in given.keys() - TURN_FIELDS:
            raise ValueError(f"{name} belongs to the session: give it to open_session()")
        of_session = self._live.fields.output_type
        turn = with_format(attrs.evolve(self._own_fields(), **given))
        if of_session is not None and not of_session.same_as(turn.output_type):
            raise ValueError("this session was opened with an output_type, which all its answers have")
        self._live.agent.check_params(turn)
        check_limits(self._live.agent, turn)
        return turn


def set_fields(params: AgentExecuteParams) -> Mapping[str, Any]:
    """The fields that differ from their defaults."""
    plain = _defaults()
    names = (field.name for field in attrs.fields(AgentExecuteParams))
    found = {name: getattr(params, name) for name in names}
    return {name: value for name, value in found.items() if name == "prompt" or value != getattr(plain, name)}


@functools.cache
def _defaults() -> AgentExecuteParams:
    return AgentExecuteParams("-")
