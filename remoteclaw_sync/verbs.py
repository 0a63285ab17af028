"""The ways to have an agent do something. They are the same on a runtime and on a session."""

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
    """The four ways to have an agent do something; they differ in what the caller gets."""

    @abc.abstractmethod
    def new_turn(self, params: AgentExecuteParams | str, fields: RunFields) -> Turn:
        """A turn that has not begun. Raises ValueError or TypeError for bad arguments."""

    def next_turn(self, params: AgentExecuteParams, before: AgentRunResult) -> Turn | None:
        """Another turn in the same conversation; None if that is not possible."""
        return None

    def execute(
        self, params: AgentExecuteParams | str, **fields: Unpack[RunFields]
    ) -> Generator[AgentEvent, None, None]:
        """Run the CLI and yield its events, the last of which is `done`. Blocks while waiting for the next event.

        Takes an AgentExecuteParams, or a prompt and the other fields as keywords. Bad arguments raise here (ValueError,
        TypeError); nothing is started before the first `next()`; later failures are `error` events. Leaving early
        (`close()`, `break`, an exception) ends the CLI and all that it started.
        """
        turn = self.new_turn(params, fields)
        events = turn.events()
        remember(events, turn)
        return events

    def start(self, params: AgentExecuteParams | str, **fields: Unpack[RunFields]) -> AgentRun:
        """The same run as a handle: an iterator and context manager with `abort()`, `close()`, `pid`, `result`.

        Does not block: the CLI is started when the first event is asked for. Raises like `execute()`.
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
        conversation; the summary then covers all turns.

        Raises AgentRunError (with the result and the `error` events) if the run failed, unless `check` is False;
        AgentOutputError if the reason is the answer; ValueError or TypeError for bad arguments.
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
        """The agent's answer as a value of this type. Blocks until it is complete.

        The type is an attrs class, a dataclass, a TypedDict, a NamedTuple, a pydantic model, an enum, a list, a
        mapping, a union, ...; or it is a JSON schema, and the answer is a dict. (A type checker infers the type from a
        class and from `list[...]`; for a union or a Literal, annotate it: `answer: int | str = runtime.ask(...)`.)

        An answer that does not fit is sent back up to `repairs` times, in the same conversation. Raises
        AgentOutputError (with the text) if it still does not fit, AgentRunError if the run failed, ValueError or
        TypeError for bad arguments.
        """
        return self.run(prompt, repairs=repairs, output_type=output_type, **fields).output

    def _repairing(self, turn: Turn, result: AgentRunResult) -> Turn | None:
        """Another turn that says what was wrong with the answer, within what is left of the deadline, the limits and
        the budget; None if nothing is left."""
        budget = turn.params.budget
        if budget is not None and budget.is_used_up:
            return None
        left = turn.what_is_left
        if any(value is not None and value <= 0 for value in left.values()):
            return None
        return self.next_turn(attrs.evolve(repair_of(turn.params, turn.errors[-1].message), **left), result)
