"""Counts what a turn uses while it goes on, and compares it with its limits and its budget."""

from __future__ import annotations

import operator

from ..limits import ANY_MODEL, BudgetSpent, Price
from ..types import AgentExecuteParams, AgentUsage
from .agent import Agent
from .outcome import RunOutcome

# If any of these is set, what a run uses has to be counted while it goes on.
limits_of = operator.attrgetter("max_turns", "max_tool_calls", "max_tokens", "max_cost_usd", "budget")
NO_LIMITS = (None,) * 5


class Meter:
    """The meter of one turn. The limits are in `params`; `check_limits` has made sure that they can be enforced."""

    def __init__(self, agent: Agent, params: AgentExecuteParams) -> None:
        self._params = params
        self._cached_in_input = agent.cli_facts is not None and agent.cli_facts.cached_in_input
        self._price = price_of(agent, params)
        self._booked = BudgetSpent()
        self.tool_calls = 0

    def begin(self) -> str | None:
        """Why the turn must not start, in words; None if it may."""
        return None if self._params.budget is None else self._params.budget.begin_run()

    def cost(self, outcome: RunOutcome) -> float | None:
        """In USD: as the CLI reports it, or by our price. (OpenCode reports 0 for a model without a price.)"""
        used = outcome.used
        if outcome.cost or self._price is None or used is None:
            return outcome.cost
        cached = used.cache_read_tokens + used.cache_write_tokens if self._cached_in_input else 0
        fresh = max(used.input_tokens - cached, 0)
        return self._price.of(fresh, used.output_tokens, used.cache_read_tokens, used.cache_write_tokens)

    def spent(self, outcome: RunOutcome) -> BudgetSpent:
        """What the turn has used so far."""
        return BudgetSpent(
            tokens=tokens_of(outcome.used, self._cached_in_input),
            cost_usd=self.cost(outcome) or 0.0,
            turns=outcome.requests,
            tool_calls=self.tool_calls,
        )

    def over(self, outcome: RunOutcome, tools_open: bool) -> str | None:
        """The limit that is exceeded, in words, if any. Also books on the budget what was used."""
        spent, of = self.spent(outcome), self._params
        if of.max_tool_calls is not None and spent.tool_calls > of.max_tool_calls:
            exceeded = f"max_tool_calls={of.max_tool_calls}"
        elif of.max_turns is not None and (spent.turns + self._asks_again(outcome, tools_open)) > of.max_turns:
            exceeded = f"max_turns={of.max_turns}"
        elif of.max_tokens is not None and spent.tokens > of.max_tokens:
            exceeded = f"max_tokens={of.max_tokens} ({spent.tokens} used)"
        elif of.max_cost_usd is not None and spent.cost_usd > of.max_cost_usd:
            exceeded = f"max_cost_usd={of.max_cost_usd:g} ({spent.cost_usd:g} spent)"
        else:
            return self.book(outcome)
        self.book(outcome)
        return f"the run was ended by its limit {exceeded}"

    def book(self, outcome: RunOutcome) -> str | None:
        """Book on the budget what is not booked yet. Returns its limit that is exceeded, in words, if any."""
        if self._params.budget is None:
            return None
        spent = self.spent(outcome)
        new, self._booked = spent.less(self._booked), spent
        return self._params.budget.book(new)

    def left(self, outcome: RunOutcome) -> dict[str, float | None]:
        """What is left of the limits of `params`, by field."""
        spent, of = self.spent(outcome), self._params
        return {
            "max_turns": None if of.max_turns is None else of.max_turns - spent.turns,
            "max_tool_calls": None if of.max_tool_calls is None else max(of.max_tool_calls - spent.tool_calls, 1),
            "max_tokens": None if of.max_tokens is None else of.max_tokens - spent.tokens,
            "max_cost_usd": None if of.max_cost_usd is None else of.max_cost_usd - spent.cost_usd,
        }

    def _asks_again(self, outcome: RunOutcome, tools_open: bool) -> bool:
        return outcome.asks_again and not tools_open and outcome.terminal is None


def limits_cost(params: AgentExecuteParams) -> bool:
    """Whether the run's costs have to be known while it goes on."""
    of_budget = None if params.budget is None else params.budget.max_cost_usd
    return params.max_cost_usd is not None or of_budget is not None


def price_of(agent: Agent, params: AgentExecuteParams) -> Price | None:
    """The price of the requested model."""
    prices = agent.prices
    return prices.get(params.model or ANY_MODEL) or prices.get(ANY_MODEL)


def check_limits(agent: Agent, params: AgentExecuteParams) -> None:
    """Raise ValueError for a limit on costs if the costs cannot be known."""
    if not limits_cost(params):
        return
    cli = agent.cli_facts
    if cli is None or cli.tells_cost or price_of(agent, params) is not None:
        return
    which = "max_cost_usd" if params.max_cost_usd is not None else "max_cost_usd of the budget"
    if not agent.prices:
        raise ValueError(f"{which}: {agent.program} does not tell what a run costs; give the runtime prices=")
    model = "a run without `model`" if params.model is None else f"the model {params.model!r}"
    raise ValueError(f"{which}: the runtime's prices have none for {model}, and none for {ANY_MODEL!r} (all others)")


def tokens_of(usage: AgentUsage | None, cached_in_input: bool) -> int:
    """All tokens sent to the model and received from it."""
    if usage is None:
        return 0
    cached = 0 if cached_in_input else usage.cache_read_tokens + usage.cache_write_tokens
    return usage.input_tokens + usage.output_tokens + cached
