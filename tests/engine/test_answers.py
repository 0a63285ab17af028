"""Answers of a type, from programs that imitate the CLIs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from remoteclaw_sync import (
    AgentDoneEvent,
    AgentErrorEvent,
    AgentOutputError,
    AgentRunError,
    AgentRunResult,
    AgentTextEvent,
    AgentUsage,
    Budget,
    create_cli_runtime,
)
from remoteclaw_sync.clis.registry import NAMES
from remoteclaw_sync.testing import FakeAnswer, FakeCli, fake_cli  # noqa: F401 - a fixture

Fake = Callable[..., FakeCli]


@attrs.frozen
class Bug:
    file: str
    line: int


GOOD = '{"file": "a.py", "line": 3}'
BAD = '{"file": "a.py"}'


@pytest.mark.parametrize("provider", NAMES)
def test_ask_gives_an_instance_of_the_type(fake_cli: Fake, provider: str) -> None:  # noqa: F811
    fake = fake_cli(provider, GOOD)
    assert create_cli_runtime(provider).ask("Which bug?", Bug) == Bug("a.py", 3)
    (call,) = fake.calls
    by_flag = {"claude": "--json-schema=", "codex": "--output-schema="}.get(provider)
    assert any(by_flag is not None and argument.startswith(by_flag) for argument in call.argv) == (by_flag is not None)
    assert ("JSON schema" in call.stdin) == (by_flag is None)


@pytest.mark.parametrize("provider", NAMES)
def test_an_answer_that_does_not_fit_is_sent_back_in_the_same_session(fake_cli: Fake, provider: str) -> None:  # noqa: F811
    fake = fake_cli(provider, BAD, GOOD)
    result = create_cli_runtime(provider).run("Which bug?", output_type=Bug)
    assert (result.output, result.text, result.ok) == (Bug("a.py", 3), GOOD, True)
    first, second = fake.calls
    assert "missing: line" in second.stdin
    assert "Which bug?" not in second.stdin
    assert result.session_id is not None
    assert result.session_id in " ".join(second.argv)
    assert result.session_id not in " ".join(first.argv)


def test_usage_and_time_of_a_repair_are_booked(fake_cli: Fake) -> None:  # noqa: F811
    fake_cli("opencode", BAD, BAD, GOOD)
    once = create_cli_runtime("opencode").run("Which bug?", output_type=Bug, repairs=0, check=False)
    twice = create_cli_runtime("opencode").run("Which bug?", output_type=Bug)
    assert isinstance(once.usage, AgentUsage)
    assert isinstance(twice.usage, AgentUsage)
    assert twice.usage == once.usage + once.usage
    assert (twice.num_turns, once.num_turns) == (2, 1)


def test_a_stubborn_agent_is_an_output_error_with_its_text(fake_cli: Fake) -> None:  # noqa: F811
    fake = fake_cli("claude", BAD)
    with pytest.raises(AgentOutputError, match="missing: line") as caught:
        create_cli_runtime("claude").ask("Which bug?", Bug, repairs=2)
    assert isinstance(caught.value, AgentRunError)
    assert (caught.value.text, caught.value.result.error_subtype) == (BAD, "invalid_output")
    assert [error.code for error in caught.value.errors] == ["INVALID_OUTPUT"]
    assert len(fake.calls) == 3


def test_a_repair_that_the_budget_does_not_allow_leaves_the_answer_and_its_error(fake_cli: Fake) -> None:  # noqa: F811
    fake = fake_cli("claude", BAD, GOOD)
    budget = Budget(max_runs=1)
    with pytest.raises(AgentOutputError, match="missing: line") as caught:
        create_cli_runtime("claude").ask("Which bug?", Bug, budget=budget)
    assert (caught.value.text, len(fake.calls), budget.spent.runs) == (BAD, 1, 1)


def test_a_repair_that_fails_leaves_what_was_said_and_the_session(fake_cli: Fake) -> None:  # noqa: F811
    fake_cli("opencode", BAD, FakeAnswer(error="Quota exceeded, billing"))
    result = create_cli_runtime("opencode").run("Which bug?", output_type=Bug, check=False)
    assert (result.ok, result.error_subtype, result.text) == (False, "billing", BAD)
    assert result.session_id is not None


def test_a_run_that_fails_is_not_repaired(fake_cli: Fake) -> None:  # noqa: F811
    fake = fake_cli("gemini", FakeAnswer(error="Quota exceeded, billing"))
    with pytest.raises(AgentRunError) as caught:
        create_cli_runtime("gemini").ask("Which bug?", Bug)
    assert not isinstance(caught.value, AgentOutputError)
    assert len(fake.calls) == 1


def test_streaming_is_as_always_and_done_has_the_value(fake_cli: Fake) -> None:  # noqa: F811
    fake_cli("opencode", GOOD)
    *events, last = create_cli_runtime("opencode").execute("Which bug?", output_type=Bug)
    assert "".join(event.text for event in events if isinstance(event, AgentTextEvent)) == GOOD
    assert isinstance(last, AgentDoneEvent)
    assert last.result.output == Bug("a.py", 3)


def test_execute_tells_of_an_answer_that_does_not_fit_and_repairs_nothing(fake_cli: Fake) -> None:  # noqa: F811
    fake = fake_cli("gemini", "No idea.")
    *_, error, last = create_cli_runtime("gemini").execute("Which bug?", output_type=Bug)
    assert isinstance(error, AgentErrorEvent)
    assert (error.code, error.message) == ("INVALID_OUTPUT", "answer: expected JSON, got 'No idea.'")
    assert isinstance(last, AgentDoneEvent)
    assert (last.result.ok, last.result.error_subtype, last.result.text) == (False, "invalid_output", "No idea.")
    assert len(fake.calls) == 1


def test_a_schema_gives_a_dict(fake_cli: Fake) -> None:  # noqa: F811
    fake_cli("codex", GOOD)
    schema = {"type": "object", "properties": {"file": {"type": "string"}, "line": {"type": "integer"}}}
    assert create_cli_runtime("codex").ask("Which bug?", schema) == {"file": "a.py", "line": 3}


@pytest.mark.parametrize("output_type", ["Bug", object(), {"type": "nonsense"}])
def test_what_cannot_be_asked_for_raises_in_the_call(output_type: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        create_cli_runtime("claude").start("Which bug?", output_type=output_type)
    with pytest.raises(ValueError, match="repairs must be at least 0"):
        create_cli_runtime("claude").ask("Which bug?", Bug, repairs=-1)


def test_a_session_repairs_in_its_next_turn(fake_cli: Fake) -> None:  # noqa: F811
    fake = fake_cli("claude", BAD, GOOD, "[1, 2]", "plain words")
    with create_cli_runtime("claude").open_session() as session:
        assert session.ask("Which bug?", Bug) == Bug("a.py", 3)
        pid = session.pid
        assert session.ask("Which lines?", list[int]) == [1, 2]
        assert session.run("Thanks.").text == "plain words"
        assert session.pid == pid
    assert "missing: line" in fake.calls[1].stdin
    assert "JSON" not in fake.calls[3].stdin


def test_a_session_of_one_type_has_no_other(fake_cli: Fake) -> None:  # noqa: F811
    fake_cli("claude", GOOD, GOOD)
    with create_cli_runtime("claude").open_session(output_type=Bug) as session:
        assert session.run("Which bug?").output == Bug("a.py", 3)
        assert session.ask("Which else?", Bug) == Bug("a.py", 3)
        with pytest.raises(ValueError, match="opened with an output_type"):
            session.ask("How many?", int)


def test_a_result_with_an_output_becomes_json() -> None:
    result = AgentRunResult(text=GOOD, output=[Bug("a.py", 3)])
    written = json.loads(json.dumps(result.to_dict()))
    assert written["output"] == [{"file": "a.py", "line": 3}]
    assert AgentRunResult.from_dict(written).output == [{"file": "a.py", "line": 3}]
