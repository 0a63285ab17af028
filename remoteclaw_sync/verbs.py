"""The ways to have an agent do something, the same on a runtime and on a session."""

from __future__ import annotations

import abc
from collections.abc import Generator, Mapping
from typing import Any, TypeVar, Unpack, overload

import attrs

from ._values import check_count, check_flag
from .engine.agent_run import AgentRun, remember
from .engine.answers import joined, repair_of
from .engine.turn import Turn
from .errors import run_failure
from .types import AgentEvent, AgentExecuteParams, AgentRunResult, AskFields, RunFields

T = TypeVar("T")


class Verbs(abc.ABC):
    """The four ways to have an agent do something; they differ in what the caller is given."""

    @abc.abstractmethod
    def new_turn(self, params: AgentExecuteParams | str, fields: RunFields) -> Turn:
        """A turn that has not begun. Raises ValueError or TypeError for bad arguments."""

    def next_turn(self, params: AgentExecuteParams, before: AgentRunResult) -> Turn | None:
        """A further turn in the conversation that has had this one; None if there is no way to have it."""
        return None

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
        self,
        params: AgentExecuteParams | str,
        *,
        check: bool = True,
        repairs: int = 1,
        **fields: Unpack[RunFields],
    ) -> AgentRunResult:
        """Run to the end and return the summary. Blocks until then.

        With an `output_type`, an answer that does not fit it is sent back up to `repairs` times, in the same
        conversation; the summary is then that of all turns.

        Raises AgentRunError (with the result and the `error` events) if the run failed, unless `check` is False;
        AgentOutputError if that is because of the answer; ValueError or TypeError for bad arguments.
        """
        check_flag("check", check)
        check_count("repairs", repairs)
        turn = self.new_turn(params, fields)
        result = turn.to_end()
        for _ in range(repairs):
            if result.error_subtype != "invalid_output":
                break
            further = self._repairing(turn, result)
            if further is None:
                break
            result, turn = joined(result, further.to_end()), further
        if check and not result.ok:
            raise run_failure(result, turn.errors)
        return result

    @overload
    def ask(
        self,
        prompt: AgentExecuteParams | str,
        output_type: type[T],
        *,
        repairs: int = 1,
        **fields: Unpack[AskFields],
    ) -> T: ...
    @overload
    def ask(
        self,
        prompt: AgentExecuteParams | str,
        output_type: Mapping[str, Any],
        *,
        repairs: int = 1,
        **fields: Unpack[AskFields],
    ) -> dict[str, Any]: ...
    @overload
    def ask(
        self,
        prompt: AgentExecuteParams | str,
        output_type: object,
        *,
        repairs: int = 1,
        **fields: Unpack[AskFields],
    ) -> Any: ...
    def ask(
        self,
        prompt: AgentExecuteParams | str,
        output_type: Any,
        *,
        repairs: int = 1,
        **fields: Unpack[AskFields],
    ) -> Any:
        """The agent's answer as a value of this type. Blocks until it is there.

        The type is an attrs class, a dataclass, a TypedDict, a NamedTuple, a pydantic model, an enum, a list, a
        mapping, a union, ...; or it is a JSON schema, and the answer a dict. (A type checker sees the type of a class
        and of `list[...]`; a union or a Literal has to be said once more: `answer: int | str = runtime.ask(...)`.)

        An answer that does not fit is sent back up to `repairs` times, in the same conversation. Raises
        AgentOutputError (with the text) if it still does not fit, AgentRunError if the run failed, ValueError or
        TypeError for bad arguments.
        """
        return self.run(prompt, repairs=repairs, output_type=output_type, **fields).output

    def _repairing(self, turn: Turn, result: AgentRunResult) -> Turn | None:
        """A further turn that says what was wrong with the answer, within what is left of the deadline, the limits
        and the budget."""
        budget = turn.params.budget
        if budget is not None and budget.is_used_up:
            return None
        left = turn.what_is_left
        if any(value is not None and value <= 0 for value in left.values()):
            return None
        return self.next_turn(attrs.evolve(repair_of(turn.params, turn.errors[-1].message), **left), result)
