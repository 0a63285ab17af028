"""Limits of a run, prices and budgets: counted while it runs, and refused where nothing could enforce them."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from remoteclaw_sync import (
    AgentEvent,
    AgentToolUseEvent,
    AgentUsage,
    Budget,
    BudgetSpent,
    ClaudeCliRuntime,
    CodexCliRuntime,
    OpenCodeCliRuntime,
    Price,
    SessionPool,
    create_cli_runtime,
)
from remoteclaw_sync.chat.bridge import RetryPolicy
from remoteclaw_sync.engine.retry_after import seconds_in
from tests.fakes import FakeRuntime, codes, done, finished, quick

NOW = datetime(2026, 11, 18, 12, 0, tzinfo=UTC)


class Counting(FakeRuntime):
    """Reports how many tokens were used, line by line."""

    def extract_event(self, line: str) -> Any:
        message = json.loads(line)
        if message["type"] == "used":
            self.outcome.requests += 1
            self.outcome.so_far = AgentUsage(message["input"], message["output"], message.get("cached", 0))
            self.outcome.cost_so_far = message.get("cost")
            return None
        return super().extract_event(line)


def used(number: int, **more: Any) -> list[Any]:
    return ["line", {"type": "used", "input": number, "output": 0, **more}]


STAYS = ["sleep", 60]  # It has to be ended.
CALLS = [["line", {"type": "tool_use", "id": str(number)}] for number in range(3)]


def ended(runtime: FakeRuntime, **fields: Any) -> tuple[list[AgentEvent], Any]:
    events, result = finished(runtime.execute("hi", **fields))
    assert (codes(events), result.error_subtype) == (["LIMIT_EXCEEDED"], "limit")
    return events, result


@pytest.mark.parametrize("limit", [{"max_tokens": 9}, {"max_turns": 1}, {"max_cost_usd": 1.0}], ids=str)
def test_a_run_over_its_limit_is_ended_and_keeps_what_was_said(limit: dict[str, Any]) -> None:
    _, result = ended(Counting(["text", "a"], used(5, cost=0.5), ["text", "b"], used(10, cost=1.5), STAYS), **limit)
    assert (result.text, result.usage, result.aborted) == ("ab", AgentUsage(10), False)


def test_the_call_that_is_one_too_many_ends_the_run() -> None:
    events, _ = ended(FakeRuntime(*CALLS, STAYS), max_tool_calls=2)
    assert [event.tool_id for event in events if isinstance(event, AgentToolUseEvent)] == ["0", "1", "2"]


def test_a_run_that_is_known_to_be_over_only_at_its_end_has_failed_too() -> None:
    _, result = ended(Counting(["text", "a"], ["line", {"type": "done"}], used(10)), max_tokens=9)
    assert result.text == "a"


def test_tokens_have_a_price_where_the_cli_tells_no_costs() -> None:
    price = {"input": 2.0, "output": 10.0, "cache_read": 0.5}
    runtime = Counting(used(1_000_000, cached=1_000_000), ["text", "a"], ["line", {"type": "done"}], prices=price)
    assert runtime.run("hi").total_cost_usd == 2.5
    assert ended(runtime, max_cost_usd=2.0)[1].total_cost_usd == 2.5


def test_a_budget_counts_all_runs_and_refuses_when_it_is_used_up() -> None:
    budget = Budget(max_tokens=25)
    runtime = Counting(used(10), ["text", "a"], ["line", {"type": "done"}])
    assert done(runtime.execute("hi", budget=budget)).ok
    failing = Counting(used(10), ["exit", 3])
    assert done(failing.execute("hi", budget=budget)).error_subtype == "crash"
    assert (budget.spent.tokens, budget.spent.runs) == (20, 2)
    ended(runtime, budget=budget)
    events, result = ended(FakeRuntime(command="/nonexistent"), budget=budget)
    assert (len(events), result.text, budget.is_used_up) == (1, "", True)
    assert budget.spent.runs == 3


def test_a_run_that_its_consumer_leaves_is_counted() -> None:
    budget = Budget()
    with Counting(used(10), ["text", "a"], STAYS).start("hi", budget=budget) as run:
        next(run)
    assert budget.spent.tokens == 10


def test_many_threads_share_a_budget_without_losing_a_count() -> None:
    budget = Budget(max_runs=500)
    refused: list[str] = []

    def work() -> None:
        for _ in range(100):
            why = budget.begin_run()
            if why is not None:
                refused.append(why)
            budget.book(BudgetSpent(tokens=1))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (budget.spent.runs, len(refused), budget.spent.tokens) == (500, 300, 800)


def test_a_signal_handler_may_count_on_a_budget_that_is_just_being_counted_on() -> None:
    budget = Budget()

    class Interrupted(BudgetSpent):
        """Is read so slowly that a handler runs in between."""

        def __getattribute__(self, name: str) -> Any:
            if name == "tokens" and not budget.spent.tokens:
                budget.book(BudgetSpent(tokens=1))
            return super().__getattribute__(name)

    budget.book(Interrupted(tokens=1))
    assert budget.spent.tokens == 2


@pytest.mark.parametrize(("period", "of"), [("day", ""), (None, "2026-11-17")])
def test_what_was_used_before_counts_also_if_it_has_no_period_or_periods_do_not_matter(period: Any, of: str) -> None:
    assert Budget(max_tokens=900, period=period, spent=BudgetSpent(tokens=900, period=of)).is_used_up


def test_a_budget_tells_its_numbers_as_people_write_them() -> None:
    budget = Budget(max_tokens=2_000_000)
    assert "max_tokens=2000000" in (budget.book(BudgetSpent(tokens=2_000_001)) or "")
    assert "2000001 of max_tokens=2000000" in (budget.begin_run() or "")


def test_a_budget_begins_at_zero_with_each_period_and_can_be_taken_up_again() -> None:
    time = [NOW.timestamp()]
    budget = Budget(max_runs=1, period="day", clock=lambda: time[0])
    assert budget.begin_run() is None
    again = Budget(max_runs=1, period="day", clock=lambda: time[0], spent=BudgetSpent.from_dict(budget.spent.to_dict()))
    assert again.is_used_up
    time[0] += 86_400
    assert (again.is_used_up, again.spent.runs, again.spent.period) == (False, 0, "2026-11-19")


def test_what_was_spent_counts_without_a_period_too_and_not_when_its_period_is_over() -> None:
    clock = NOW.timestamp
    assert Budget(max_tokens=9, period="day", clock=clock, spent=BudgetSpent(tokens=9)).is_used_up
    assert not Budget(
        max_tokens=9, period="day", clock=clock, spent=BudgetSpent(tokens=9, period="2026-11-17")
    ).is_used_up


def test_what_a_run_uses_after_midnight_belongs_to_the_new_day() -> None:
    now = [NOW.timestamp()]
    budget = Budget(period="day", clock=lambda: now[0])
    with Counting(used(10), ["text", "a"], used(25), ["text", "b"], STAYS).start("hi", budget=budget) as run:
        next(run)
        assert (budget.spent.tokens, budget.spent.runs) == (10, 1)
        now[0] += 86_400
        next(run)
        assert (budget.spent.tokens, budget.spent.runs) == (15, 0)


def test_fifty_runs_at_once_are_all_booked_and_no_run_begins_when_the_budget_is_used_up() -> None:
    budget = Budget(max_runs=40)
    runtime = Counting(used(10), ["text", "a"], ["line", {"type": "done"}])
    with ThreadPoolExecutor(50) as threads:
        results = [*threads.map(lambda _: done(runtime.execute("hi", budget=budget)), range(50))]
    assert sorted(result.error_subtype or "" for result in results) == [""] * 40 + ["limit"] * 10
    assert (budget.spent.runs, budget.spent.tokens) == (40, 400)


@pytest.mark.parametrize("limit", ["max_turns", "max_tool_calls", "max_tokens", "max_runs", "max_cost_usd"])
@pytest.mark.parametrize("value", [0, -1, True, float("nan"), "3"])
def test_a_limit_that_is_none_is_refused_wherever_it_is_given(limit: Any, value: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=limit):
        Budget(**{limit: value})
    if limit != "max_runs":
        with pytest.raises((ValueError, TypeError), match=limit):
            ClaudeCliRuntime().open_session(**{limit: value})
        with SessionPool(ClaudeCliRuntime()) as pool, pytest.raises((ValueError, TypeError), match=limit):
            pool.session(**{limit: value})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_turns": 0}, "max_turns must be at least 1"),
        ({"max_tokens": 1.5}, "max_tokens must be an int"),
        ({"max_tool_calls": True}, "max_tool_calls must be an int"),
        ({"max_cost_usd": -1}, "max_cost_usd must be a positive number"),
        ({"max_cost_usd": float("nan")}, "max_cost_usd must be a positive number"),
        ({"budget": 3}, "budget must be a Budget, not int"),
    ],
    ids=str,
)
def test_a_bad_limit_is_refused_in_the_call(fields: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        quick().execute("hi", **fields)


def test_a_limit_on_costs_that_nobody_would_know_is_refused_in_the_call() -> None:
    with pytest.raises(ValueError, match="codex does not tell what a run costs; give the runtime prices="):
        CodexCliRuntime().execute("hi", max_cost_usd=1.0)
    with pytest.raises(ValueError, match="of the budget: codex does not tell"):
        CodexCliRuntime().execute("hi", budget=Budget(max_cost_usd=1.0))
    with pytest.raises(ValueError, match="none for the model 'b'"):
        CodexCliRuntime(prices={"a": Price(1, 2)}).execute("hi", model="b", max_cost_usd=1.0)
    for runtime in (ClaudeCliRuntime(), OpenCodeCliRuntime(), CodexCliRuntime(prices={"*": {"input": 1, "output": 2}})):
        runtime.execute("hi", max_cost_usd=1.0).close()


@pytest.mark.parametrize(
    "prices", [3, {"a": 1}, {"input": 1}, {"a": {"input": 1, "outptu": 2}}, {"a": Price(1, 2), "b": 3}]
)
def test_bad_prices_are_refused_in_the_call(prices: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="price"):
        create_cli_runtime("codex", prices=prices)


# --- when another try may succeed ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "seconds"),
    [
        ("429 Too Many Requests (Retry-After: 30)", 30.0),
        ('{"retryDelay": "34s"}', 34.0),
        ("Quota exceeded. Please retry in 12.5s.", 12.5),
        ("Rate limit reached. Please try again in 6m0s.", 360.0),
        ("Please try again in 20ms.", 0.02),
        ("Your quota will reset after 14h18m42s.", 51_522.0),
        ("You've hit your usage limit. Upgrade to Pro or try again in 3 days 4 hours 5 minutes.", 273_900.0),
        ("You've hit your usage limit. Try again at 3:05 PM.", 11_100.0),
        ("You've hit your usage limit. Try again at Nov 20th, 2026 3:05 PM.", 183_900.0),
        ("You've hit your limit · resets 11am (UTC)", 82_800.0),
        ("You've hit your limit · resets 3pm (Europe/Berlin)", 7_200.0),
        ("Claude AI usage limit reached|1795003260", 60.0),
        ("usage_limit_reached, resets_in_seconds: 90", 90.0),
        ("the file was reset after 3 tries", None),
        ("try again later", None),
        ("resets 99pm (Nowhere/Land)", None),
    ],
)
def test_the_time_until_another_try_is_read_from_what_vendors_say(message: str, seconds: float | None) -> None:
    assert seconds_in(message, NOW) == (None if seconds is None else pytest.approx(seconds))


def test_a_rate_limit_tells_when_to_try_again_in_the_error_and_in_the_result() -> None:
    error = ["line", {"type": "error", "message": "rate limit: try again in 2 minutes", "code": "429"}]
    events, result = finished(FakeRuntime(error, ["exit", 1]).execute("hi"))
    assert (result.error_subtype, result.retry_after) == ("rate_limit", 120.0)
    assert events[0].to_dict()["retry_after"] == 120.0
    assert done(quick(["text", "a"]).execute("hi")).retry_after is None


def test_a_retry_waits_as_long_as_the_vendor_asks_for_and_not_longer_than_the_policy_allows() -> None:
    policy = RetryPolicy(first_delay=1.0, longest_delay=30.0, jitter=0.0)
    assert [policy.delay(1), policy.delay(1, 20.0), policy.delay(3, 2.0), policy.delay(1, 31.0)] == [
        1.0,
        20.0,
        4.0,
        None,
    ]
