"""Typed answers: how they are asked for, and how they are read.

`schema/` converts types to and from JSON. It is imported only for a run with an output_type: most runs have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from .. import errors
from ..types import AgentErrorEvent, AgentExecuteParams, AgentRunResult, AgentUsage
from .agent import Agent
from .outcome import RunOutcome
from .verdict import Verdict

if TYPE_CHECKING:
    from ..schema.answers import AnswerFormat


def with_format(params: AgentExecuteParams) -> AgentExecuteParams:
    """The same params with the output_type as an AnswerFormat. Raises TypeError or ValueError."""
    if params.output_type is None:
        return params
    from ..schema.answers import AnswerFormat

    return attrs.evolve(params, output_type=AnswerFormat.of(params.output_type))


def asking(agent: Agent, params: AgentExecuteParams, of_process: AnswerFormat | None) -> AgentExecuteParams:
    """The same params, asking for the answer in its format: in the CLI's own way if it has one, otherwise in words.

    `of_process` is the format that the process is started with, if any; with some CLIs a process cannot have another.
    """
    answer: AnswerFormat | None = params.output_type
    if answer is None:
        return params
    native = agent.native_schema(answer.schema, answer.same_as(of_process))
    prompt = params.prompt if native is not None else answer.asked_for(params.prompt)
    asked = attrs.evolve(params, prompt=prompt, output_type=attrs.evolve(answer, native=native))
    agent.check_params(asked)
    return asked


def read_answer(answer: AnswerFormat, outcome: RunOutcome, *texts: str) -> tuple[Any, Verdict]:
    """The answer of a successful run, and the verdict: the run fails if its answer does not fit the type."""
    from ..schema.convert import ArgumentError

    try:
        for found in outcome.structured:
            return answer.checked(found), Verdict()
        return answer.read(*texts), Verdict()
    except ArgumentError as error:
        return None, Verdict(AgentErrorEvent(str(error), errors.INVALID_OUTPUT), "invalid_output")


def repair_of(params: AgentExecuteParams, problem: str) -> AgentExecuteParams:
    """The params of another turn, whose prompt says what was wrong with the answer."""
    from ..schema.answers import REPAIR

    return attrs.evolve(params, prompt=REPAIR.format(problem=problem), images=())


def joined(first: AgentRunResult, then: AgentRunResult) -> AgentRunResult:
    """The result of two turns that make up one run: the answer of the second, the cost of both."""
    return attrs.evolve(
        then,
        text=then.text or first.text,  # A turn that was not started has no text.
        session_id=then.session_id or first.session_id,
        duration_ms=first.duration_ms + then.duration_ms,
        usage=_sum(first.usage, then.usage, AgentUsage()),
        total_cost_usd=_sum(first.total_cost_usd, then.total_cost_usd, 0.0),
        api_duration_ms=_sum(first.api_duration_ms, then.api_duration_ms, 0.0),
        num_turns=_sum(first.num_turns, then.num_turns, 0),
        permission_denials=(*first.permission_denials, *then.permission_denials),
    )


def _sum(one: Any, other: Any, nothing: Any) -> Any:
    return None if one is None and other is None else (one or nothing) + (other or nothing)
