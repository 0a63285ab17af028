"""Limits on what runs may use: `Budget`, shared by many runs, and `Price`, for CLIs that do not report their costs.

Knows nothing about runs. The limits of a single run are fields of `AgentExecuteParams`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, get_args

import attrs

from ._values import Value, check_amount, check_choice, check_known, check_limit, check_seconds

Period: TypeAlias = Literal["hour", "day", "month"]

ANY_MODEL = "*"  # The key of `prices` for models that are not listed.
MILLION = 1_000_000
_STAMPS: dict[str, str] = {"hour": "%Y-%m-%d %H", "day": "%Y-%m-%d", "month": "%Y-%m"}


@attrs.frozen
class Price(Value):
    """What a model costs: USD for a million tokens.

    Args:
        input: tokens of the prompt that were not in a cache.
        output: tokens of the answer.
        cache_read: tokens of the prompt that were read from a cache (default: as `input`).
        cache_write: tokens that were written to a cache (default: as `input`).
    """

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(Price):
            value = getattr(self, field.name)
            if value is not None or field.default is attrs.NOTHING:
                check_amount(f"the price {field.name!r}", value)

    def of(self, fresh: int, output: int, cache_read: int, cache_write: int) -> float:
        """What these tokens cost, in USD; `fresh` is input that is neither read from nor written to a cache."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        return (fresh * self.input + output * self.output + cache_read * read + cache_write * write) / MILLION


# One price for all models, or one for each. A price may also be given as a mapping: {"input": 2, "output": 8}.
Prices: TypeAlias = Price | Mapping[str, float] | Mapping[str, Price | Mapping[str, float]]


def as_prices(prices: Prices | None) -> dict[str, Price]:
    """The prices by model; `ANY_MODEL` for all others. Raises TypeError or ValueError."""
    if prices is None:
        return {}
    if isinstance(prices, Price):
        return {ANY_MODEL: prices}
    if not isinstance(prices, Mapping):
        raise TypeError(f"prices must be a Price or a mapping of models to prices, not {type(prices).__name__}")
    if not any(isinstance(value, Price | Mapping) for value in prices.values()):
        return {ANY_MODEL: _as_price("prices", prices)} if prices else {}
    return {model: _as_price(f"prices[{model!r}]", price) for model, price in prices.items()}


def _as_price(name: str, price: Any) -> Price:
    if isinstance(price, Price):
        return price
    if not isinstance(price, Mapping):
        raise TypeError(f"{name} must be a Price, not {type(price).__name__}")
    check_known(f"{name}: a price has no", price, [field.name for field in attrs.fields(Price)])
    if not {"input", "output"} <= price.keys():
        raise ValueError(f"{name} must have a price for 'input' and one for 'output'")
    return Price(**price)


@attrs.frozen(kw_only=True)
class BudgetSpent(Value):
    """What has been used of a budget; if it has periods, in the current one."""

    tokens: int = 0
    cost_usd: float = 0.0
    runs: int = 0
    turns: int = 0
    tool_calls: int = 0
    period: str = ""

    def __add__(self, other: BudgetSpent) -> BudgetSpent:
        return BudgetSpent(
            tokens=self.tokens + other.tokens,
            cost_usd=self.cost_usd + other.cost_usd,
            runs=self.runs + other.runs,
            turns=self.turns + other.turns,
            tool_calls=self.tool_calls + other.tool_calls,
            period=self.period,
        )

    def less(self, other: BudgetSpent) -> BudgetSpent:
        """The difference between this and the other."""
        return BudgetSpent(
            tokens=self.tokens - other.tokens,
            cost_usd=self.cost_usd - other.cost_usd,
            runs=self.runs - other.runs,
            turns=self.turns - other.turns,
            tool_calls=self.tool_calls - other.tool_calls,
            period=self.period,
        )


class Budget:
    """What any number of runs may use together. Pass it to each run as `budget=`, in any thread.

    Usage is counted while the runs are going on, including those that fail or are aborted. A run that takes the budget
    over one of its limits is ended; when nothing is left, further runs are refused before they start
    (`error_subtype="limit"`).

    Args:
        max_tokens, max_cost_usd, max_turns, max_tool_calls: like the fields of a run, but for all runs together.
        max_runs: how many runs and turns may be started.
        period: the time after which all counts begin at zero again: "hour", "day" or "month" (UTC), or seconds.
        spent: what was used before, for example by the previous process. Ignored if its period is over.
        clock: returns the time in seconds since 1970.
    """

    def __init__(
        self,
        *,
        max_tokens: int | None = None,
        max_cost_usd: float | None = None,
        max_runs: int | None = None,
        max_turns: int | None = None,
        max_tool_calls: int | None = None,
        period: Period | float | None = None,
        spent: BudgetSpent | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        for name, value in (("max_tokens", max_tokens), ("max_runs", max_runs), ("max_turns", max_turns)):
            check_limit(name, value)
        check_limit("max_tool_calls", max_tool_calls)
        check_amount("max_cost_usd", max_cost_usd, none_ok=True)
        if isinstance(period, str):
            check_choice("period", period, get_args(Period))
        else:
            check_seconds("period", period)
        if spent is not None and not isinstance(spent, BudgetSpent):
            raise TypeError(f"spent must be a BudgetSpent, not {type(spent).__name__}")
        self.max_tokens = max_tokens
        self.max_cost_usd = max_cost_usd
        self.max_runs = max_runs
        self.max_turns = max_turns
        self.max_tool_calls = max_tool_calls
        self.period = period
        self._clock = clock
        self._lock = threading.RLock()  # Re-entered by signal handlers and the GC, which may end a forgotten run.
        self._spent = self._taken_up(spent or BudgetSpent())

    def __repr__(self) -> str:
        limits = ", ".join(f"{name}={value}" for name, value in self._limits() if value is not None)
        return f"<Budget {limits or 'without limits'}: {self.spent}>"

    @property
    def spent(self) -> BudgetSpent:
        """What has been used so far in this period."""
        with self._lock:
            return self._current()

    @property
    def is_used_up(self) -> bool:
        """Whether another run would be refused."""
        with self._lock:
            return self._reached() is not None

    def reset(self) -> None:
        """Begin at zero again."""
        with self._lock:
            self._spent = BudgetSpent(period=self._now())

    # --- for the engine ---------------------------------------------------------------------------------------

    def begin_run(self) -> str | None:
        """Count a run. Returns, in words, why it must not start; None if it may."""
        with self._lock:
            reached = self._reached()
            if reached is None:
                self._add(BudgetSpent(runs=1))
            return None if reached is None else f"the budget is used up ({reached})"

    def book(self, used: BudgetSpent) -> str | None:
        """Count what a run has used since it was last counted. Returns, in words, the limit that is exceeded now, if
        any."""
        with self._lock:
            spent = self._add(used)
            for name, limit in self._limits():
                if limit is not None and name != "max_runs" and getattr(spent, name.removeprefix("max_")) > limit:
                    return f"the budget's {name}={_shown(limit)} is exceeded"
            return None

    def _add(self, used: BudgetSpent) -> BudgetSpent:
        while True:
            before = self._current()
            after = before + used
            if self._spent is before:  # Otherwise a signal handler or the GC has counted something in between.
                self._spent = after
                return after

    def _taken_up(self, spent: BudgetSpent) -> BudgetSpent:
        """What was used before. If it has no period, or this budget has none, it counts for the current one."""
        return spent if spent.period and self.period is not None else attrs.evolve(spent, period=self._now())

    def _reached(self) -> str | None:
        spent = self._current()
        for name, limit in self._limits():
            value = getattr(spent, name.removeprefix("max_"))
            if limit is not None and value >= limit:
                return f"{_shown(value)} of {name}={_shown(limit)}"
        return None

    def _limits(self) -> tuple[tuple[str, float | None], ...]:
        names = ("max_tokens", "max_cost_usd", "max_runs", "max_turns", "max_tool_calls")
        return tuple((name, getattr(self, name)) for name in names)

    def _current(self) -> BudgetSpent:
        """The counts, which begin at zero in each new period."""
        period = self._now()
        if self._spent.period != period:
            self._spent = BudgetSpent(period=period)
        return self._spent

    def _now(self) -> str:
        """The name of the current period."""
        if self.period is None:
            return ""
        if isinstance(self.period, str):
            return datetime.fromtimestamp(self._clock(), UTC).strftime(_STAMPS[self.period])
        return str(int(self._clock() // self.period))


def _shown(amount: float) -> str:
    return str(amount) if isinstance(amount, int) else f"{amount:g}"
