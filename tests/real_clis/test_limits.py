"""Limits on the real CLIs, in the middle of a tool loop, one-shot and live."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from remoteclaw_sync import (
    AgentErrorEvent,
    AgentRunResult,
    AgentToolUseEvent,
    Budget,
    CLIRuntimeBase,
    Price,
    create_cli_runtime,
)
from remoteclaw_sync.verbs import Verbs
from tests.fakes import finished
from tests.real_clis.bench import Bench
from tests.real_clis.clis import ALL_CLIS, FAKE_KEY, RealCli
from tests.real_clis.script import HttpError, Turn, Usage

WAYS = [(name, way) for way in ("oneshot", "live") for name in ALL_CLIS]
PRICE = Price(input=1_000_000, output=1_000_000)  # A dollar per token.
OWN_ACCOUNTS = {"claude": 0.00014, "opencode": 0.00006}  # What they report as the cost of a request.
EACH = Usage(input=10, output=5)  # Per request: 15 tokens.


def endless(cli: RealCli) -> list[Turn]:
    """A model that calls a tool every time it is asked."""
    return [Turn(text=f"({n}) ", tool_calls=[cli.shell_call(f"echo {n}")], usage=EACH) for n in range(1, 8)]


def fields(cli: RealCli, bench: Bench) -> dict[str, Any]:
    return {
        "working_directory": bench.workdir,
        "permission_mode": "bypass",
        "model": cli.model if cli.name == "gemini" else None,
        "env": {"IS_SANDBOX": "1"} if cli.name == "claude" else {},
    }


def runtime(cli: RealCli, **options: Any) -> CLIRuntimeBase:
    return create_cli_runtime(cli.name, timeout=300, **options)


@contextmanager
def opened(cli: RealCli, bench: Bench, way: str, **options: Any) -> Iterator[tuple[Verbs, dict[str, Any]]]:
    """Yields something with the verbs, and the fields for them: a runtime, or a live session."""
    given = fields(cli, bench)
    if way == "oneshot":
        yield runtime(cli, **options), given
        return
    with runtime(cli, **options).open_session(**given) as session:
        yield session, {}


def ended(verbs: Verbs, **given: Any) -> tuple[list[Any], AgentRunResult]:
    events, result = finished(verbs.execute("Go.", **given))
    assert (result.error_subtype, result.ok, result.aborted) == ("limit", False, False)
    errors = [event for event in events if isinstance(event, AgentErrorEvent)]
    assert [error.code for error in errors] == ["LIMIT_EXCEEDED"]
    assert errors[0].message
    return events, result


def check_goes_on(verbs: Verbs, way: str, bench: Bench, given: dict[str, Any]) -> None:
    """A session survives its turn's limit, and its next turn starts its own counts."""
    if way == "live":
        bench.server.script([Turn(text="Still here.", usage=EACH)])
        result = verbs.run("And now?", max_turns=1, max_tokens=15, max_tool_calls=1, **given)
        assert result.text == "Still here."


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_a_run_is_ended_when_the_model_has_been_asked_often_enough(name: str, way: str, cli_bench: Bench) -> None:
    cli = cli_bench.clis[name]
    cli_bench.server.script(endless(cli))
    with opened(cli, cli_bench, way) as (verbs, given):
        _, result = ended(verbs, max_turns=2, **given)
        assert result.text.startswith("(1) (2) ")
        # The third request may be on its way before the second is known to have called a tool.
        assert len(cli_bench.server.requests) in (2, 3)
        assert result.usage is not None
        # 11: for a third message that was cut off, the API has reported the 1 with which each message starts.
        assert result.usage.output_tokens in (5, 10, 11, 15)
        check_goes_on(verbs, way, cli_bench, given)


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_a_run_that_stays_within_its_limits_is_not_ended(name: str, way: str, cli_bench: Bench) -> None:
    cli = cli_bench.clis[name]
    cli_bench.server.script([*endless(cli)[:2], Turn(text="Done.", usage=EACH)])
    budget = Budget(max_tokens=1000, max_runs=2)
    with opened(cli, cli_bench, way, prices=PRICE) as (verbs, given):
        result = verbs.run(
            "Go.", max_turns=3, max_tool_calls=2, max_tokens=45, max_cost_usd=45.0, budget=budget, **given
        )
    assert result.text == "(1) (2) Done."
    assert (budget.spent.tokens, budget.spent.runs, budget.spent.tool_calls) == (45, 1, 2)
    if name in ("codex", "gemini"):
        assert result.total_cost_usd == 45.0


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_a_run_is_ended_by_the_tool_call_that_is_one_too_many(name: str, way: str, cli_bench: Bench) -> None:
    cli = cli_bench.clis[name]
    cli_bench.server.script(endless(cli))
    with opened(cli, cli_bench, way) as (verbs, given):
        events, result = ended(verbs, max_tool_calls=1, **given)
        assert result.text == "(1) (2) "
        assert len([event for event in events if isinstance(event, AgentToolUseEvent)]) == 2
        assert len(cli_bench.server.requests) <= 3
        check_goes_on(verbs, way, cli_bench, given)


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_a_run_is_ended_when_it_has_taken_too_many_tokens(name: str, way: str, cli_bench: Bench) -> None:
    cli = cli_bench.clis[name]
    cli_bench.server.script(endless(cli))
    budget = Budget(max_tokens=10_000)
    with opened(cli, cli_bench, way) as (verbs, given):
        _, result = ended(verbs, max_tokens=27, budget=budget, **given)
        assert result.text.startswith("(1) (2) ")
        assert len(cli_bench.server.requests) <= 4
        usage = result.usage
        assert usage is not None
        assert usage.input_tokens + usage.output_tokens > 27
        assert budget.spent.tokens == usage.input_tokens + usage.output_tokens
        check_goes_on(verbs, way, cli_bench, given)


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_a_run_is_ended_when_it_has_cost_too_much(name: str, way: str, cli_bench: Bench) -> None:
    cli = cli_bench.clis[name]
    cli_bench.server.script(endless(cli))
    each = OWN_ACCOUNTS.get(name)
    options: dict[str, Any] = {"prices": PRICE} if each is None else {}
    most = 1.5 * (each or 15.0)
    with opened(cli, cli_bench, way, **options) as (verbs, given):
        _, result = ended(verbs, max_cost_usd=most, **given)
        assert result.text.startswith("(1) (2) ")
        assert len(cli_bench.server.requests) <= 4
        assert result.total_cost_usd is not None
        assert result.total_cost_usd > most
        check_goes_on(verbs, way, cli_bench, given)


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_a_budget_ends_the_run_that_exceeds_it_and_refuses_the_next(name: str, way: str, cli_bench: Bench) -> None:
    cli = cli_bench.clis[name]
    cli_bench.server.script(endless(cli))
    budget = Budget(max_tokens=20)
    with opened(cli, cli_bench, way) as (verbs, given):
        ended(verbs, budget=budget, **given)
        asked = len(cli_bench.server.requests)
        events, result = ended(verbs, budget=budget, **given)
    assert len(events) == 1
    assert "used up" in events[0].message
    assert (result.text, result.usage, len(cli_bench.server.requests)) == ("", None, asked)
    assert budget.spent.runs == 1
    assert budget.spent.tokens > 20


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_the_tokens_of_an_aborted_run_are_booked(name: str, way: str, cli_bench: Bench) -> None:
    cli = cli_bench.clis[name]
    cli_bench.server.script(endless(cli))
    budget = Budget(max_tokens=10_000)
    with opened(cli, cli_bench, way) as (verbs, given), verbs.start("Go.", budget=budget, **given) as run:
        calls = 0
        for event in run:
            calls += event.type == "tool_use"
            if calls == 3:
                run.abort()
    assert run.result is not None
    assert (run.result.aborted, run.result.usage is not None) == (True, True)
    assert budget.spent.tokens >= 30


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_the_tokens_of_a_failed_run_are_booked(name: str, way: str, cli_bench: Bench) -> None:
    cli = cli_bench.clis[name]
    refusal = HttpError(status=400, message="no more of this", kind="invalid_request_error")
    cli_bench.server.script([*endless(cli)[:2], refusal])
    budget = Budget(max_tokens=10_000)
    with opened(cli, cli_bench, way) as (verbs, given):
        result = verbs.run("Go.", budget=budget, check=False, **given)
    assert (result.ok, result.error_subtype == "limit", result.text) == (False, False, "(1) (2) ")
    assert (budget.spent.runs, budget.spent.tokens, budget.spent.tool_calls) == (1, 30, 2)


# --- limits of the vendor's ------------------------------------------------------------------------------------------

HOUR = 3600


def claudes_limit(ends_at: int) -> HttpError:
    """The limit of a subscription."""
    told = {"status": "rejected", "reset": f"{ends_at}", "representative-claim": "five_hour"}
    headers = {f"anthropic-ratelimit-unified-{name}": value for name, value in told.items()}
    return HttpError(status=429, message="the account's limit", headers=headers)


def codexs_limit(ends_at: int) -> HttpError:
    """The limit of a ChatGPT plan."""
    return HttpError(status=429, kind="usage_limit_reached", details={"plan_type": "pro", "resets_at": ends_at})


def geminis_limit(ends_at: int) -> HttpError:
    """The limit of a key. Gemini itself asks again if the limit ends soon."""
    return HttpError(status=429, message="the key's limit", retry_after=ends_at - time.time() - 30)


USAGE_LIMITS: dict[str, tuple[Callable[[int], HttpError], dict[str, str | None]]] = {
    "claude": (claudes_limit, {"ANTHROPIC_API_KEY": None, "CLAUDE_CODE_OAUTH_TOKEN": f"sk-ant-oat01-{FAKE_KEY}"}),
    "codex": (codexs_limit, {}),
    "gemini": (geminis_limit, {}),
}


@pytest.mark.parametrize("way", ["oneshot", "live"])
@pytest.mark.parametrize("name", USAGE_LIMITS)
def test_a_usage_limit_tells_when_it_ends(name: str, way: str, cli_bench: Bench) -> None:
    limit, env = USAGE_LIMITS[name]
    cli, ends_at = cli_bench.clis[name], int(time.time()) + HOUR
    cli_bench.server.script([], then=limit(ends_at))
    given = fields(cli, cli_bench)
    verbs = runtime(cli, transport=way)
    began = time.time()
    result = verbs.run("Go.", check=False, **{**given, "env": {**given["env"], **env}})
    assert (result.ok, result.error_subtype) == (False, "rate_limit")
    assert result.retry_after is not None
    # Codex reports only the minute.
    assert ends_at - time.time() - 60 <= result.retry_after <= ends_at - began
