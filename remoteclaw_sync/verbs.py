"""The ways to have an agent do something, the same on a runtime and on a session."""

from __future__ import annotations

import abc
from collections.abc import Generator
from contextlib import closing
from typing import Unpack

from .engine.agent_run import AgentRun, remember
from .engine.turn import Turn
from .errors import AgentRunError
from .types import AgentErrorEvent, AgentEvent, AgentExecuteParams, AgentRunResult, RunFields


class Verbs(abc.ABC):
    """The three ways to have an agent do something; they differ in what the caller is given."""

    @abc.abstractmethod
    def new_turn(self, params: AgentExecuteParams | str, fields: RunFields) -> Turn:
        """A turn that has not begun. Raises ValueError or TypeError for bad arguments."""

    def execute(
        self, params: AgentExecuteParams | str, **fields: Unpack[RunFields]
    ) -> Generator[AgentEvent, None, None]:
        """Run the CLI and yield its events, the last of them `done`. Blocks while waiting for the next.

        Takes an AgentExecuteParams, or a prompt and its other fields as keywords. Bad arguments raise here
        (ValueError, TypeError); nothing is started before the first `next()`; what goes wrong later is an `error`
        event. Leaving early (`close()`, `break`, an exception) ends the CLI and all it started.
        """
        turn = self.new_turn(params, fields)
        events = turn.events()
        remember(events, turn)
        return events

    def start(self, params: AgentExecuteParams | str, **fields: Unpack[RunFields]) -> AgentRun:
        """The same run as a handle: an iterator and context manager with `abort()`, `close()`, `pid`, `result`.

        Does not block: the CLI is started when the first event is asked for. Raises as `execute()` does.
        """
        turn = self.new_turn(params, fields)
        return AgentRun(turn.events(), turn)

    def run(
        self, params: AgentExecuteParams | str, *, check: bool = True, **fields: Unpack[RunFields]
    ) -> AgentRunResult:
        """Run to the end and return the summary. Blocks until then.

        Raises AgentRunError (with the result and the `error` events) if the run failed, unless `check` is False, and
        ValueError or TypeError for bad arguments.
        """
        turn = self.new_turn(params, fields)
        reported: list[AgentErrorEvent] = []
        with closing(turn.events()) as events:
            for event in events:
                if isinstance(event, AgentErrorEvent):
                    reported.append(event)
        assert turn.result is not None
        if check and not turn.result.ok:
            raise AgentRunError(turn.result, reported)
        return turn.result
