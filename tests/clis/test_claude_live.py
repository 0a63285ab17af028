"""Claude's control protocol, read and written without a process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from remoteclaw_sync import (
    AgentErrorEvent,
    AgentEvent,
    AgentExecuteParams,
    AgentPermissionEvent,
    AgentTextEvent,
    AgentUsage,
    Allow,
    ClaudeCliRuntime,
    Deny,
)
from remoteclaw_sync.clis.claude.live import ClaudeLiveDialect
from remoteclaw_sync.engine.answers import asking, with_format
from tests.fakes import codes

PARAMS = AgentExecuteParams("hello")


def feed(dialect: ClaudeLiveDialect, **line: Any) -> list[AgentEvent]:
    return dialect.events(json.dumps(line).encode())


def begin(dialect: ClaudeLiveDialect, params: AgentExecuteParams = PARAMS) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(dialect.begin_turn(params))
    return line


def result(**fields: Any) -> dict[str, Any]:
    return {"type": "result", "subtype": "success", "is_error": False, "session_id": "s1", **fields}


def ask(dialect: ClaudeLiveDialect, number: str = "r1", **fields: Any) -> AgentPermissionEvent:
    request = {"subtype": "can_use_tool", "tool_name": "Bash", "tool_use_id": "t1", "input": {"command": "ls"}}
    (event,) = feed(dialect, type="control_request", request_id=number, request=request | fields)
    assert isinstance(event, AgentPermissionEvent)
    return event


def test_every_line_that_is_sent_is_one_json_object() -> None:
    dialect = ClaudeLiveDialect()
    said = [dialect.opening(PARAMS), dialect.begin_turn(AgentExecuteParams("a\nb\u2028\x85 é")), dialect.steer("c\nd")]
    said += [dialect.interrupt(), dialect.set_model(None), dialect.farewell()]
    event = ask(dialect)
    said.append(dialect.answer(event.request, Deny("no\nno")))
    for line in said:
        assert line.endswith(b"\n")
        assert (line.count(b"\n"), type(json.loads(line)), line.isascii()) == (1, dict, True)


def test_the_opening_names_the_schema_of_the_answers() -> None:
    agent, fields = ClaudeCliRuntime().live_copy(), with_format(AgentExecuteParams("-", output_type=int))
    asked = asking(agent, fields, fields.output_type)
    opening = json.loads(ClaudeLiveDialect().opening(asked))
    assert opening["request"]["jsonSchema"] == fields.output_type.schema


def test_it_is_ready_when_the_opening_is_answered() -> None:
    dialect = ClaudeLiveDialect()
    opening = json.loads(dialect.opening(PARAMS))
    assert opening["request"] == {"subtype": "initialize", "hooks": None}
    feed(dialect, type="control_response", response={"subtype": "success", "request_id": "another"})
    assert not dialect.is_ready
    feed(dialect, type="control_response", response={"subtype": "success", "request_id": opening["request_id"]})
    assert dialect.is_ready


def test_a_prompt_is_text_unless_the_caller_says_otherwise() -> None:
    dialect = ClaudeLiveDialect()
    blocks = begin(dialect, AgentExecuteParams("/clear"))["message"]["content"]
    assert [block["text"] for block in blocks] == ["/clear", ""]  # Claude looks for syntax only in the last block.
    blocks = begin(dialect, AgentExecuteParams("look at @file"))["message"]["content"]
    assert [block["text"] for block in blocks] == ["look at @file", ""]
    # Only there: 2.1.48 passes an empty block on, and the API refuses it.
    assert [block["text"] for block in begin(dialect, AgentExecuteParams(" /clear"))["message"]["content"]] == [
        " /clear"
    ]
    blocks = begin(dialect, AgentExecuteParams("/clear", prompt_syntax="cli"))["message"]["content"]
    assert [block["text"] for block in blocks] == ["/clear"]
    assert [block["text"] for block in begin(ClaudeLiveDialect("cli"))["message"]["content"]] == ["hello"]


def test_usage_and_cost_are_differences_of_the_running_totals_of_2_1_197() -> None:
    dialect = ClaudeLiveDialect()
    for turn in (1, 2, 3):
        begin(dialect)
        models = {"m": {"inputTokens": 10 * turn, "outputTokens": 2 * turn}}
        feed(dialect, **result(modelUsage=models, total_cost_usd=0.5 * turn, duration_api_ms=40 * turn, num_turns=1))
        outcome = dialect.outcome
        assert (outcome.usage, outcome.total_cost_usd, outcome.api_duration_ms) == (AgentUsage(10, 2), 0.5, 40)
        assert (outcome.terminal, outcome.num_turns) == ("success", 1)


def test_a_resumed_session_of_2_1_326_does_not_pay_for_its_past_again() -> None:
    dialect = ClaudeLiveDialect()
    begin(dialect)
    recent = {"m": {"inputTokens": 3, "outputTokens": 4, "costUSD": 0.25}}
    models = {"m": {"inputTokens": 1000, "outputTokens": 1000}}
    feed(dialect, **result(modelUsage=models, total_cost_usd=99.0, model_usage_since_last_result=recent))
    assert (dialect.outcome.usage, dialect.outcome.total_cost_usd) == (AgentUsage(3, 4), 0.25)


def test_nothing_of_a_turn_is_left_in_the_next_but_the_session() -> None:
    dialect = ClaudeLiveDialect()
    begin(dialect)
    block = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {}}
    feed(dialect, type="assistant", message={"id": "m1", "content": [block]})
    feed(dialect, **result(is_error=True, result="boom", permission_denials=[{"tool_name": "Bash"}]))
    feed(dialect, type="system", subtype="init", session_id="s1")
    begin(dialect)
    outcome = dialect.outcome
    assert (outcome.terminal, outcome.permission_denials, outcome.session_id) == (None, [], "s1")
    assert feed(dialect, type="assistant", message={"id": "m2", "content": [block]}) != []  # The same id, another call.


@pytest.mark.parametrize(
    "stray",
    [{"origin": {"kind": "task-notification"}}, {"user_message_uuids": ["00000000-0000-4000-8000-000000000000"]}],
)
def test_the_result_of_a_turn_that_was_not_asked_for_does_not_end_this_one(stray: dict[str, Any]) -> None:
    dialect = ClaudeLiveDialect()
    prompt = begin(dialect)
    assert feed(dialect, **result(result="of another", **stray)) == []
    assert dialect.outcome.terminal is None
    feed(dialect, **result(user_message_uuids=[prompt["uuid"]]))
    assert dialect.outcome.terminal == "success"


def test_a_steered_turn_is_over_when_all_its_words_are_answered() -> None:
    dialect = ClaudeLiveDialect()
    prompt, more = begin(dialect), json.loads(dialect.steer("more"))
    feed(dialect, **result(user_message_uuids=[prompt["uuid"]], num_turns=1))
    assert (dialect.outcome.terminal, dialect.has_unanswered) == (None, True)
    feed(dialect, **result(user_message_uuids=[more["uuid"]], num_turns=1))
    assert (dialect.outcome.terminal, dialect.has_unanswered, dialect.outcome.num_turns) == ("success", False, 2)


def test_an_old_claude_that_tells_nothing_is_taken_at_its_first_result() -> None:
    dialect = ClaudeLiveDialect()
    begin(dialect)
    dialect.steer("more")
    feed(dialect, **result())
    assert (dialect.outcome.terminal, dialect.has_unanswered) == ("success", False)


def test_an_interrupted_turn_is_over_whatever_was_not_answered() -> None:
    dialect = ClaudeLiveDialect()
    prompt = begin(dialect)
    dialect.steer("more")
    dialect.interrupt()
    feed(dialect, **result(user_message_uuids=[prompt["uuid"]], terminal_reason="aborted_streaming"))
    assert (dialect.outcome.terminal, dialect.has_unanswered) == ("success", True)


def test_the_echo_of_a_prompt_is_not_an_event() -> None:
    dialect = ClaudeLiveDialect()
    prompt = begin(dialect)
    assert feed(dialect, **{**prompt, "isReplay": True}) == []


def test_a_request_in_the_middle_of_a_message_does_not_break_it() -> None:
    dialect = ClaudeLiveDialect()
    begin(dialect)
    start: dict[str, Any] = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    delta: dict[str, Any] = {"type": "content_block_delta", "index": 0}
    for event in ({"type": "message_start", "message": {"id": "m1"}}, start):
        feed(dialect, type="stream_event", event=event)
    told = feed(dialect, type="stream_event", event={**delta, "delta": {"type": "text_delta", "text": "a"}})
    ask(dialect)
    told += feed(dialect, type="stream_event", event={**delta, "delta": {"type": "text_delta", "text": "b"}})
    told += feed(dialect, type="assistant", message={"id": "m1", "content": [{"type": "text", "text": "ab"}]})
    assert told == [AgentTextEvent("a"), AgentTextEvent("b")]


def test_a_request_tells_why_and_for_whom_it_is() -> None:
    dialect = ClaudeLiveDialect()
    begin(dialect)
    request = ask(dialect, decision_reason="outside of the folder", agent_id="a1").request
    assert (request.id, request.reason, request.input) == ("r1", "outside of the folder", {"command": "ls"})


def test_an_answer_has_the_whole_input() -> None:
    dialect = ClaudeLiveDialect()
    begin(dialect)
    answer = json.loads(dialect.answer(ask(dialect).request, Allow()))["response"]
    assert (answer["subtype"], answer["request_id"]) == ("success", "r1")
    assert answer["response"] == {"behavior": "allow", "updatedInput": {"command": "ls"}}
    answer = json.loads(dialect.answer(ask(dialect).request, Deny("no", stop=True)))["response"]
    assert answer["response"] == {"behavior": "deny", "message": "no", "interrupt": True}


def test_a_request_that_was_withdrawn_is_not_answered() -> None:
    dialect = ClaudeLiveDialect()
    begin(dialect)
    event = ask(dialect)
    feed(dialect, type="control_cancel_request", request_id="r1")
    assert dialect.answer(event.request, Allow()) == b""


def test_a_form_of_an_mcp_server_is_declined_and_told() -> None:
    dialect = ClaudeLiveDialect()
    asked = {"subtype": "elicitation", "message": "?"}
    assert codes(feed(dialect, type="control_request", request_id="r9", request=asked)) == ["CLI_WARNING"]
    (answer,) = dialect.outbox
    assert json.loads(answer)["response"] == {
        "subtype": "success",
        "request_id": "r9",
        "response": {"action": "decline"},
    }


@pytest.mark.parametrize("subtype", ["hook_callback", "mcp_message", "something new", None])
def test_a_request_that_is_not_known_gets_an_error(subtype: str | None) -> None:
    dialect = ClaudeLiveDialect()
    assert feed(dialect, type="control_request", request_id="r9", request={"subtype": subtype}) == []
    (answer,) = dialect.outbox
    assert json.loads(answer)["response"]["subtype"] == "error"
    assert json.loads(answer)["response"]["request_id"] == "r9"


def test_what_is_malformed_is_passed_over() -> None:
    dialect = ClaudeLiveDialect()
    begin(dialect)
    for line in ({"type": "control_request"}, {"type": "control_response"}, {"type": "control_cancel_request"}):
        assert feed(dialect, **line) == []
    assert feed(dialect, type="control_response", response="odd") == []
    assert feed(dialect, type="control_request", request_id="r1", request={"subtype": "can_use_tool"}) != []


def test_a_refused_change_is_a_warning() -> None:
    dialect = ClaudeLiveDialect()
    number = json.loads(dialect.set_model("nonsense"))["request_id"]
    refusal = {"subtype": "error", "request_id": number, "error": "no such model"}
    (event,) = feed(dialect, type="control_response", response=refusal)
    assert event == AgentErrorEvent("Claude refused set_model: no such model", "CLI_WARNING")


def test_only_modes_that_are_no_matter_of_the_start_are_changed_in_a_process() -> None:
    dialect = ClaudeLiveDialect()
    feed(dialect, type="system", subtype="init", permissionMode="plan")
    changed = json.loads(dialect.set_permission_mode("accept-edits", "default") or b"{}")["request"]
    back = json.loads(dialect.set_permission_mode("default", "default") or b"{}")["request"]
    assert changed == {"subtype": "set_permission_mode", "mode": "acceptEdits"}
    assert back["mode"] == "plan"  # What the user's settings say.
    for mode, started_with in (("read-only", "default"), ("bypass", "default"), ("default", "bypass")):
        assert dialect.set_permission_mode(mode, started_with) is None  # type: ignore[arg-type]
