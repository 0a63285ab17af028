"""Answers of a type on the real CLIs: requested in each CLI's own way if it has one, checked, repaired, refused."""

from __future__ import annotations

import datetime
import enum
import json
from typing import Any, Literal, TypedDict

import attrs
import pytest

from remoteclaw_sync import (
    AgentOutputError,
    AgentRunError,
    AgentTextEvent,
    AgentToolUseEvent,
    AskFields,
    CLIRuntimeBase,
    SessionFields,
    create_cli_runtime,
)
from tests.fakes import finished
from tests.real_clis.bench import Bench
from tests.real_clis.clis import RealCli
from tests.real_clis.script import HttpError, ToolCall, Turn

WITH_SCHEMAS = ("claude", "codex")  # These take a schema when a session is opened.


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


@attrs.frozen
class Part:
    name: str
    size: Size
    due: datetime.date | None = None
    note: str = "none"


class Order(TypedDict):
    number: int
    parts: list[Part]
    state: Literal["open", "done"]


GOOD: dict[str, Any] = {
    "number": 7,
    "parts": [{"name": "bolt", "size": "small", "due": "2024-02-29", "note": "x"}, {"name": "nut", "size": "large"}],
    "state": "open",
}
BAD: dict[str, Any] = {**GOOD, "state": "lost"}
ORDER: Order = {
    "number": 7,
    "parts": [Part("bolt", Size.SMALL, datetime.date(2024, 2, 29), "x"), Part("nut", Size.LARGE)],
    "state": "open",
}


def answer(cli: RealCli, value: object, *, by_tool: bool | None = None) -> Turn:
    """The model's answer, in the form that the CLI asks for: as a tool call, or in its text."""
    if cli.name == "claude" if by_tool is None else by_tool:
        assert isinstance(value, dict)
        return Turn(tool_calls=[ToolCall("StructuredOutput", value)])
    return Turn(text=json.dumps(value))


def fields(cli: RealCli, bench: Bench) -> AskFields:
    return {
        "working_directory": bench.workdir,
        "permission_mode": "bypass",
        "model": cli.model if cli.name == "gemini" else None,
        "env": {"IS_SANDBOX": "1"} if cli.name == "claude" else {},
    }


def session_fields(cli: RealCli, bench: Bench) -> SessionFields:
    return {"working_directory": bench.workdir, "model": cli.model if cli.name == "gemini" else None}


def runtime(cli: RealCli) -> CLIRuntimeBase:
    return create_cli_runtime(cli.name, timeout=60)


def test_an_answer_after_a_tool_loop_is_a_value_of_the_type(cli: RealCli, cli_bench: Bench) -> None:
    shell = Turn(text='I look {"number": 1}.', tool_calls=[cli.shell_call("echo hi")])
    cli_bench.server.script([shell, answer(cli, GOOD)])
    events, result = finished(runtime(cli).execute("Which order?", output_type=Order, **fields(cli, cli_bench)))
    assert (result.ok, result.output) == (True, ORDER)
    assert [event.tool_name for event in events if isinstance(event, AgentToolUseEvent)] != []
    assert "StructuredOutput" not in [event.tool_name for event in events if isinstance(event, AgentToolUseEvent)]
    assert "".join(event.text for event in events if isinstance(event, AgentTextEvent)) == result.text
    asked = cli_bench.server.requests[0]
    native = {"claude": '"StructuredOutput"', "codex": '"json_schema"'}.get(cli.name)
    if native is not None:
        assert native.encode() in asked.raw
        assert asked.occurrences("JSON schema") == 0
    else:
        assert asked.occurrences("JSON schema") == 1


@pytest.mark.parametrize(
    ("output_type", "said", "value"),
    [(list[int], {"value": [1, 2]}, [1, 2]), (dict[str, int], {"a": 1}, {"a": 1})],
    ids=["list", "mapping"],
)
def test_an_answer_that_is_no_class(
    cli: RealCli, cli_bench: Bench, output_type: type[Any], said: object, value: object
) -> None:
    cli_bench.server.script([answer(cli, said)])
    assert runtime(cli).ask("Which?", output_type, **fields(cli, cli_bench)) == value


def test_a_wrong_answer_is_repaired_in_the_same_session(cli: RealCli, cli_bench: Bench) -> None:
    # Claude checks it by itself, and asks again within the run; what it cannot check (a date) comes back to us.
    wrong = {**GOOD, "parts": [{"name": "bolt", "size": "small", "due": "tomorrow"}]} if cli.name == "claude" else BAD
    cli_bench.server.script([answer(cli, wrong), answer(cli, GOOD)])
    result = runtime(cli).run("Which order, zebra?", output_type=Order, **fields(cli, cli_bench))
    assert (result.output, result.ok) == (ORDER, True)
    first, second = cli_bench.server.requests
    assert b"zebra" in second.raw  # The model knows what it was asked.
    expected = "expected" if cli.name == "claude" else "expected one of 'open', 'done', got 'lost'"
    assert first.occurrences(expected) == 0
    assert expected.encode() in second.raw


def test_a_stubborn_model_is_refused_with_its_words(cli: RealCli, cli_bench: Bench) -> None:
    cli_bench.server.script([], then=Turn(text="I would rather not."))
    with pytest.raises(AgentOutputError) as caught:
        runtime(cli).ask("Which order?", Order, **fields(cli, cli_bench))
    assert (caught.value.result.error_subtype, caught.value.errors[-1].code) == ("invalid_output", "INVALID_OUTPUT")
    assert "I would rather not." in caught.value.text
    prompts = [prompt for prompt in cli_bench.server.received_prompts() if "cannot be used" in prompt]
    assert len(prompts) == 1


def test_a_schema_that_the_vendor_refuses_is_a_failure_in_its_words(cli: RealCli, cli_bench: Bench) -> None:
    words = "Invalid schema for response_format: 'uniqueItems' is not permitted"
    cli_bench.server.script([HttpError(status=400, message=words, kind="invalid_request_error")])
    with pytest.raises(AgentRunError, match="'uniqueItems' is not permitted") as caught:
        runtime(cli).ask("Which?", set[int], **fields(cli, cli_bench))
    assert caught.value.result.error_subtype == "config"
    assert not isinstance(caught.value, AgentOutputError)


# --- live ----------------------------------------------------------------------------------------------------


def test_a_session_asks_for_values_and_for_words_on_one_process(cli: RealCli, cli_bench: Bench) -> None:
    cli_bench.server.script(
        [
            Turn(text="Hello."),
            answer(cli, BAD, by_tool=False),
            answer(cli, GOOD, by_tool=False),
            Turn(text="You are welcome."),
        ]
    )
    with runtime(cli).open_session(**session_fields(cli, cli_bench)) as session:
        session.run("Hi.")
        pid = session.pid
        assert session.ask("Which order?", Order) == ORDER
        assert session.run("Thanks.").text == "You are welcome."
        assert session.pid == pid
    asked = cli_bench.server.requests
    assert "expected one of 'open', 'done', got 'lost'" in (asked[2].prompt or "")
    if cli.name == "codex":
        assert ["format" in request.body.get("text", {}) for request in asked] == [False, True, True, False]


def test_a_stubborn_model_in_a_session_is_refused_with_its_words_and_the_session_goes_on(
    cli: RealCli, cli_bench: Bench
) -> None:
    stubborn = Turn(text="I would rather not.")
    cli_bench.server.script([stubborn, stubborn, Turn(text="Gladly.")])
    with runtime(cli).open_session(**session_fields(cli, cli_bench)) as session:
        with pytest.raises(AgentOutputError) as caught:
            session.ask("Which order?", Order)
        pid = session.pid
        assert session.run("Then say hello.").text == "Gladly."
        assert session.pid == pid
    assert (caught.value.text, caught.value.result.error_subtype) == ("I would rather not.", "invalid_output")
    repair = cli_bench.server.requests[1].prompt or ""
    assert "cannot be used" in repair
    assert "expected JSON, got 'I would rather not.'" in repair


def test_a_schema_that_the_vendor_refuses_fails_the_turn_and_the_session_goes_on(
    cli: RealCli, cli_bench: Bench
) -> None:
    words = "Invalid schema for response_format: 'uniqueItems' is not permitted"
    refusal = HttpError(status=400, message=words, kind="invalid_request_error")
    cli_bench.server.script([Turn(text="Hello.")], then=refusal)  # Claude asks a second time.
    with runtime(cli).open_session(**session_fields(cli, cli_bench)) as session:
        session.run("Hi.")
        with pytest.raises(AgentRunError, match="'uniqueItems' is not permitted") as caught:
            session.ask("Which?", set[int])
        cli_bench.server.script([Turn(text="Still here.")])
        assert session.run("Are you there?").text == "Still here."
    assert (type(caught.value), caught.value.result.error_subtype) == (AgentRunError, "config")


@pytest.mark.parametrize("transport", ["oneshot", "live"])
def test_claude_takes_a_schema_with_words_of_others_and_is_told_in_the_prompt_of_those_it_has_no_form_for(
    transport: Literal["oneshot", "live"], cli_bench: Bench
) -> None:
    cli = cli_bench.clis["claude"]
    square = {"type": "object", "properties": {"kind": {"const": "square"}}, "required": ["kind"]}
    shape = {"oneOf": [square], "discriminator": {"propertyName": "kind"}}
    foreign = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"shape": shape, "code": {"type": "string", "pattern": r"^a\-b(?i:c)$", "deprecated": True}},
        "required": ["shape"],
    }
    pair = {"type": "object", "properties": {"pair": {"type": "array", "prefixItems": [{"type": "integer"}]}}}
    claude = create_cli_runtime("claude", timeout=60, transport=transport)
    cli_bench.server.script([answer(cli, {"shape": {"kind": "square"}}), answer(cli, {"pair": [1]}, by_tool=False)])
    assert claude.ask("Which?", foreign, **fields(cli, cli_bench)) == {"shape": {"kind": "square"}}
    assert claude.ask("Which?", pair, **fields(cli, cli_bench)) == {"pair": [1]}
    first, second = cli_bench.server.requests
    assert (b'"StructuredOutput"' in first.raw, first.occurrences("JSON schema")) == (True, 0)
    assert (b'"StructuredOutput"' in second.raw, second.occurrences("JSON schema")) == (False, 1)


@pytest.mark.parametrize("name", WITH_SCHEMAS)
def test_a_session_of_one_type_and_a_live_run_have_the_schema_from_the_start(name: str, cli_bench: Bench) -> None:
    cli = cli_bench.clis[name]
    cli_bench.server.script([answer(cli, GOOD), answer(cli, GOOD), answer(cli, GOOD)])
    with runtime(cli).open_session(working_directory=cli_bench.workdir, output_type=Order) as session:
        assert session.run("Which order?").output == ORDER
        assert session.ask("And now?", Order) == ORDER
    live = create_cli_runtime(name, transport="live")
    assert live.ask("Which order?", Order, working_directory=cli_bench.workdir) == ORDER
    assert [request.occurrences("JSON schema") for request in cli_bench.server.requests] == [0, 0, 0]
