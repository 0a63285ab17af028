"""The Claude runtime without Claude: lines of real runs (tests/transcripts/claude) and command lines."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import (
    AgentDoneEvent,
    AgentErrorEvent,
    AgentEvent,
    AgentExecuteParams,
    AgentRunResult,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    AgentUsage,
    ClaudeCliRuntime,
)
from tests.fakes import Step, codes, events_from, fake_command, finished

TRANSCRIPTS = Path(__file__).parents[1] / "transcripts" / "claude" / "2.1.197"
WARNING = "CLI_WARNING"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)


class Replay:
    """A real run, replayed through our runtime."""

    def __init__(self, name: str, tmp_path: Path, **fields: Any) -> None:
        end = json.loads((TRANSCRIPTS / f"{name}.end.json").read_text(encoding="utf-8"))
        steps: list[Step] = [
            ["read_stdin"],
            ["raw", (TRANSCRIPTS / f"{name}.ndjson").read_bytes().decode("latin-1")],
            ["raw", end["stderr"].encode().decode("latin-1"), 2],
            ["exit", end["exit_code"]],
        ]
        command = fake_command(*steps, script_file=tmp_path / f"{name}.json")
        self.events, self.result = finished(ClaudeCliRuntime(command).execute("hello", **fields))

    @property
    def errors(self) -> list[tuple[str | None, str]]:
        """The errors that were reported, without warnings."""
        found = [event for event in self.events if isinstance(event, AgentErrorEvent)]
        return [(event.code, event.message) for event in found if event.code != WARNING]

    def of(self, kind: type[AgentEvent]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def lines_to_events(*lines: dict[str, Any], runtime: ClaudeCliRuntime | None = None) -> list[AgentEvent]:
    """What these lines mean, one after another."""
    return events_from(runtime or ClaudeCliRuntime(), *lines)


def answer(events: Iterable[AgentEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, AgentTextEvent))


def started(message_id: str) -> dict[str, Any]:
    return stream({"type": "message_start", "message": {"id": message_id}})


def block_started(index: int, **block: Any) -> dict[str, Any]:
    return stream({"type": "content_block_start", "index": index, "content_block": block})


def delta(index: int, kind: str, piece: str) -> dict[str, Any]:
    field = "partial_json" if kind == "input_json" else kind
    return stream({"type": "content_block_delta", "index": index, "delta": {"type": f"{kind}_delta", field: piece}})


def block_stopped(index: int) -> dict[str, Any]:
    return stream({"type": "content_block_stop", "index": index})


def stream(event: dict[str, Any], parent: str | None = None) -> dict[str, Any]:
    return {"type": "stream_event", "event": event, "parent_tool_use_id": parent}


def whole(message_id: str, *blocks: dict[str, Any], parent: str | None = None) -> dict[str, Any]:
    message = {"id": message_id, "model": "claude", "content": list(blocks)}
    return {"type": "assistant", "message": message, "parent_tool_use_id": parent}


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


# --- real runs, replayed -------------------------------------------------------------------------------------


def test_a_plain_answer_is_streamed_once_with_its_usage_cost_and_session(tmp_path: Path) -> None:
    run = Replay("plain", tmp_path)
    assert [event.text for event in run.of(AgentTextEvent)] == ["Hel", "lo, ", "world"]
    assert run.result.ok
    assert run.result.usage == AgentUsage(100, 20, 30, 40)
    assert run.result.total_cost_usd is not None
    assert run.result.total_cost_usd > 0
    assert run.result.api_duration_ms is not None
    assert run.result.num_turns == 1
    assert run.result.stop_reason == "end_turn"
    assert run.result.session_id
    assert len(run.result.session_id) == 36


def test_thinking_parallel_tools_and_their_results_keep_their_ids(tmp_path: Path) -> None:
    run = Replay("thinking_and_parallel_tools", tmp_path)
    assert [event.text for event in run.of(AgentThinkingEvent)] == ["think ", "hard"]
    assert run.result.text == "Wait.Done."
    uses = {event.tool_id: event for event in run.of(AgentToolUseEvent)}
    assert list(uses) == ["toolu_slow", "toolu_bad", "toolu_empty"]
    assert uses["toolu_slow"].input == {"command": "sleep 0.5; echo ok", "description": "run it"}
    assert (uses["toolu_empty"].tool_name, uses["toolu_empty"].input) == ("TaskList", {})
    results = {event.tool_id: event for event in run.of(AgentToolResultEvent)}
    assert (results["toolu_slow"].output, results["toolu_slow"].is_error) == ("ok", False)
    assert (results["toolu_bad"].output, results["toolu_bad"].is_error) == ("Exit code 3\nbad", True)
    assert len(run.of(AgentToolUseEvent)) == len(run.of(AgentToolResultEvent)) == 3
    assert run.result.usage == AgentUsage(300, 30)


def test_whole_messages_give_the_same_as_streamed_ones(tmp_path: Path) -> None:
    run = Replay("whole_messages_only", tmp_path)
    assert run.result.ok
    assert run.result.text == "Wait.Done."
    assert [event.text for event in run.of(AgentThinkingEvent)] == ["hm"]
    assert [event.tool_id for event in run.of(AgentToolUseEvent)] == ["toolu_a"]


def test_the_real_answer_after_a_cut_stream_arrives_after_a_warning(tmp_path: Path) -> None:
    run = Replay("stream_cut", tmp_path)
    told = [event.text if isinstance(event, AgentTextEvent) else event.type for event in run.events]
    assert told == ["half ", "of it", "error", "The real answer."]
    assert codes(run.events) == [WARNING]
    assert run.result.ok
    assert run.result.usage == AgentUsage(33, 11)  # `usage` of the result line is all zero here.


def test_two_parallel_sub_agents_are_kept_apart_from_each_other_and_from_the_answer(tmp_path: Path) -> None:
    run = Replay("two_sub_agents", tmp_path)
    assert run.result.text == "Wait.Delegated."
    assert run.of(AgentThinkingEvent) == []
    uses = {event.tool_id: event.parent_tool_use_id for event in run.of(AgentToolUseEvent)}
    assert uses == {"toolu_A": None, "toolu_B": None, "toolu_inner_A": "toolu_A", "toolu_inner_B": "toolu_B"}
    results = {event.tool_id: event for event in run.of(AgentToolResultEvent)}
    assert {tool_id: event.parent_tool_use_id for tool_id, event in results.items()} == uses
    assert (results["toolu_inner_A"].output, results["toolu_inner_B"].output) == ("A", "B")
    assert results["toolu_A"].output.startswith("answer of A")
    assert run.result.usage == AgentUsage(150, 75)  # Six requests, four of them by the sub-agents.


def test_turns_that_background_agents_begin_belong_to_the_run(tmp_path: Path) -> None:
    run = Replay("background_agents", tmp_path)
    assert run.result.ok
    assert run.result.text == "Wait.Delegated.\n\nNoted.\n\nNoted."
    assert run.result.num_turns == 5  # 3 + 1 + 1
    assert run.result.usage == AgentUsage(164, 81)
    inner = [event for event in run.of(AgentToolUseEvent) if event.parent_tool_use_id]
    assert {event.tool_id for event in inner} == {"toolu_inner_A", "toolu_inner_B"}


def test_the_turn_after_a_background_shell_belongs_to_the_run(tmp_path: Path) -> None:
    run = Replay("background_shells", tmp_path)
    assert run.result.ok
    assert run.result.text == "Wait.Left running.\n\nNoted."
    assert run.result.usage == AgentUsage(30, 15)
    assert run.result.num_turns == 4


def test_denied_tools_are_listed_with_claudes_reason_and_the_run_is_no_failure(tmp_path: Path) -> None:
    run = Replay("permission_denied", tmp_path)
    assert run.result.ok
    denials = {denial.tool_id: denial for denial in run.result.permission_denials}
    assert {tool_id: denial.tool for tool_id, denial in denials.items()} == {
        "toolu_web": "WebFetch",
        "toolu_write": "Write",
    }
    assert "haven't granted it" in (denials["toolu_web"].reason or "")


def test_a_tool_that_read_only_leaves_out_is_a_denial_too(tmp_path: Path) -> None:
    run = Replay("read_only", tmp_path)
    assert [(denial.tool, denial.tool_id) for denial in run.result.permission_denials] == [("Bash", "toolu_bash")]
    assert run.result.text == "I could not."


@pytest.mark.parametrize(
    ("name", "beginning"), [("slash_command", "## Context"), ("unknown_slash_command", "Unknown command: /no-such")]
)
def test_the_output_of_a_slash_command_is_the_answer(name: str, beginning: str, tmp_path: Path) -> None:
    run = Replay(name, tmp_path)
    assert run.result.ok
    assert run.result.text.startswith(beginning)
    assert run.result.text.count(beginning) == 1


@pytest.mark.parametrize(
    ("name", "subtype", "code", "message"),
    [
        ("http_400", "config", "CLI_ERROR", "API Error: 400 the scripted complaint"),
        ("http_401", "auth", "authentication_failed", "401 the scripted complaint"),
        ("http_403", "auth", "authentication_failed", "403 the scripted complaint"),
        ("http_404", "config", "model_not_found", "issue with the selected model"),
        ("http_413", "context_window", "invalid_request", "Request too large"),
        ("http_429", "rate_limit", "rate_limit", "the scripted complaint"),
        ("http_500", "overloaded", "server_error", "API Error: 500 the scripted complaint"),
        ("http_529", "overloaded", "server_error", "API Error: 529 the scripted complaint"),
        ("prompt_too_long", "context_window", "invalid_request", "Prompt is too long"),
        ("no_credit", "billing", "billing_error", "Credit balance is too low"),
        ("max_output_tokens", "incomplete", "max_output_tokens", "exceeded the 32000 output token maximum"),
        ("refusal", "unknown", "invalid_request", "violate our Usage Policy"),
        ("dropped_connection", "network", "server_error", "Unable to connect to API"),
        ("refused_connection", "network", "server_error", "Unable to connect to API"),
        ("not_logged_in", "auth", "authentication_failed", "Not logged in"),
        ("max_turns", "max_turns", "error_max_turns", "Reached maximum number of turns (1)"),
        ("max_budget", "max_turns", "error_max_budget_usd", "budget"),
        ("unknown_session", "session_not_found", "error_during_execution", "No conversation found"),
        ("unknown_session_title", "session_not_found", "error_during_execution", "not match any session title"),
        ("interrupted", "aborted", "error_during_execution", "error_during_execution"),
        ("bypass_as_root", "permission", "CLI_EXIT_ERROR", "IS_SANDBOX=1"),
        ("unknown_flag", "config", "CLI_EXIT_ERROR", "unknown option '--no-such-flag'"),
    ],
)
def test_a_failure_is_told_once_in_claudes_words_and_classified(
    name: str, subtype: str, code: str, message: str, tmp_path: Path
) -> None:
    run = Replay(name, tmp_path)
    assert run.result.error_subtype == subtype
    ((reported, words),) = run.errors
    assert reported == code
    assert message in words
    assert "API Error" not in run.result.text


def test_retries_are_warnings_that_say_what_and_when(tmp_path: Path) -> None:
    run = Replay("http_529", tmp_path)
    (warning,) = [event for event in run.events if isinstance(event, AgentErrorEvent) and event.code == WARNING]
    assert warning.message.startswith("the API request failed (HTTP 529, overloaded); retry 1 of 1 in 0.")
    assert run.result.session_id is not None  # The conversation exists, so it can be continued.


def test_a_budget_abort_reports_what_was_spent(tmp_path: Path) -> None:
    run = Replay("max_budget", tmp_path)
    assert run.result.usage == AgentUsage(100_000, 5_000)  # `usage` of the result line is all zero here.
    assert run.result.total_cost_usd == pytest.approx(0.375)


def test_a_resumed_run_reports_its_own_usage_and_cost(tmp_path: Path) -> None:
    run = Replay("resumed", tmp_path)
    assert (run.result.text, run.result.usage) == ("Seven.", AgentUsage(20, 2))
    assert run.result.total_cost_usd == pytest.approx(9e-05)


def test_usage_since_the_last_result_is_added_up_where_the_totals_are_of_the_whole_session() -> None:
    runtime = ClaudeCliRuntime()
    recent = {"m": {"inputTokens": 20, "outputTokens": 2, "costUSD": 0.25}}
    total = {"m": {"inputTokens": 540, "outputTokens": 54, "costUSD": 9.0}}
    line = {"type": "result", "subtype": "success", "total_cost_usd": 9.0, "modelUsage": total, "result": "x"}
    lines_to_events(*[{**line, "model_usage_since_last_result": recent}] * 2, runtime=runtime)
    assert (runtime.outcome.usage, runtime.outcome.total_cost_usd) == (AgentUsage(40, 4), 0.5)
    # A turn that an earlier line has already counted (a background agent ended at once), and one that used nothing.
    usage = {"input_tokens": 20, "output_tokens": 2}
    nothing_new = {**line, "usage": usage, "model_usage_since_last_result": {}}
    lines_to_events(nothing_new, {**line, "model_usage_since_last_result": recent}, runtime=runtime)
    assert (runtime.outcome.usage, runtime.outcome.total_cost_usd) == (AgentUsage(60, 6), 0.75)


def test_a_request_that_fails_in_a_resumed_session_is_not_charged_with_what_the_session_used_before() -> None:
    runtime = ClaudeCliRuntime()
    total = {"m": {"inputTokens": 540, "outputTokens": 54, "costUSD": 9.0}}
    line = {"type": "result", "subtype": "success", "is_error": True, "total_cost_usd": 9.0, "modelUsage": total}
    lines_to_events({**line, "model_usage_since_last_result": {}}, runtime=runtime)
    assert (runtime.outcome.usage, runtime.outcome.total_cost_usd) == (AgentUsage(), 0.0)


def test_the_useless_id_of_a_failed_resume_is_not_kept(tmp_path: Path) -> None:
    run = Replay("unknown_session", tmp_path, session_id="00000000-0000-4000-8000-000000000000")
    assert run.result.session_id is None


def test_every_stored_transcript_is_replayed_here() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    names = {path.stem for path in TRANSCRIPTS.glob("*.ndjson")}
    assert names
    assert not [name for name in names if f'"{name}"' not in source]


# --- lines that the transcripts do not have --------------------------------------------------------------------


def test_a_whole_message_adds_only_what_was_not_streamed() -> None:
    events = lines_to_events(
        started("m1"), block_started(0, type="text", text=""), delta(0, "text", "Hel"), whole("m1", said("Hello"))
    )
    assert events == [AgentTextEvent("Hel"), AgentTextEvent("lo")]


def test_whole_messages_after_the_end_of_the_stream_are_not_told_twice() -> None:
    events = lines_to_events(
        started("m1"),
        block_started(0, type="text", text=""),
        delta(0, "text", "one"),
        block_stopped(0),
        block_started(1, type="text", text=""),
        delta(1, "text", "two"),
        block_stopped(1),
        stream({"type": "message_stop"}),
        whole("m1", said("one"), said("two")),
        whole("m2", said("two")),
    )
    assert [event.text for event in events if isinstance(event, AgentTextEvent)] == ["one", "two", "two"]
    assert codes(events) == []


def test_a_message_that_claude_abandons_and_asks_for_again_is_marked() -> None:
    """Source: 2.1.326, when its API reports an error in mid-stream: `message_stop` arrives nevertheless."""
    abandoned = stream({"type": "message_stop"}) | {"abandoned_blocks": {"api_message_id": "m1"}}
    half = [
        started("m1"),
        block_started(0, type="text", text=""),
        delta(0, "text", "Half "),
        block_stopped(0),
        abandoned,
    ]
    events = lines_to_events(*half, whole("m2", said("Half an answer.")))
    assert [event.type for event in events] == ["text", "error", "text"]
    assert codes(events) == [WARNING]


def test_equal_text_in_another_message_is_told_again() -> None:
    events = lines_to_events(whole("m1", said("yes")), whole("m1", said("yes")), whole("m2", said("yes")))
    assert events == [AgentTextEvent("yes")] * 3


def test_tool_calls_of_interleaved_blocks_get_their_own_input_also_without_whole_messages() -> None:
    events = lines_to_events(
        started("m1"),
        block_started(1, type="tool_use", id="a", name="Bash", input={}),
        block_started(2, type="tool_use", id="b", name="Read", input={}),
        delta(2, "input_json", '{"path":'),
        delta(1, "input_json", '{"command": "ls"}'),
        delta(2, "input_json", ' "x"}'),
        block_stopped(1),
        block_stopped(2),
        block_started(3, type="tool_use", id="c", name="List", input={}),
        block_stopped(3),
        whole("m1", {"type": "tool_use", "id": "a", "name": "Bash", "input": {"command": "ls"}}),
    )
    assert events == [
        AgentToolUseEvent("Bash", "a", {"command": "ls"}),
        AgentToolUseEvent("Read", "b", {"path": "x"}),
        AgentToolUseEvent("List", "c", {}),
    ]


def test_a_sub_agent_that_streams_is_kept_out_of_the_answer() -> None:
    inner = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "inner"}}
    events = lines_to_events(
        started("m1"),
        block_started(0, type="text", text=""),
        delta(0, "text", "out"),
        stream({"type": "message_start", "message": {"id": "sub"}}, parent="t1"),
        stream(inner, parent="t1"),
        whole("sub", said("inner"), parent="t1"),
        delta(0, "text", "er"),
        whole("m1", said("outer")),
    )
    assert events == [AgentTextEvent("out"), AgentTextEvent("er")]


def test_a_stream_that_is_repeated_as_a_stream_is_marked_too() -> None:
    half = [started("m1"), block_started(0, type="text", text=""), delta(0, "text", "half")]
    again = [started("m2"), block_started(0, type="text", text=""), delta(0, "text", "whole")]
    assert codes(lines_to_events(*half, *again)) == [WARNING]


def test_a_server_tool_and_its_result_are_told() -> None:
    events = lines_to_events(
        whole("m1", {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}),
        whole("m1", {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"type": "x", "title": "t"}]}),
        whole("m1", {"type": "server_tool_use", "id": "f", "name": "web_search", "input": {}}),
        whole(
            "m1",
            {
                "type": "web_search_tool_result",
                "tool_use_id": "f",
                "content": {"type": "web_search_tool_result_error", "error_code": "unavailable"},
            },
        ),
    )
    results = [event for event in events if isinstance(event, AgentToolResultEvent)]
    assert [(event.tool_id, event.is_error) for event in results] == [("s", False), ("f", True)]
    assert "unavailable" in results[1].output


@pytest.mark.parametrize(
    "line",
    [
        {"type": "stream_event"},
        {"type": "stream_event", "event": None},
        {"type": "stream_event", "event": {"type": "content_block_delta"}, "parent_tool_use_id": None},
        stream({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": None}}),
        stream({"type": "content_block_delta", "index": [], "delta": {"type": "text_delta", "text": 3}}),
        stream({"type": "content_block_stop", "index": 7}),
        {"type": "assistant", "message": None},
        {"type": "assistant", "message": {"content": ["x", None, {"type": "text"}, {}]}},
        {"type": "user", "message": {"content": "just text"}},
        {"type": "user", "message": {"content": [None, {"type": "text", "text": "[Request interrupted by user]"}]}},
        {"type": "system"},
        {"type": "system", "subtype": "of_next_year"},
        {"type": "of_next_year"},
        {"type": 3},
    ],
)
def test_a_line_of_another_shape_means_nothing_and_breaks_nothing(line: dict[str, Any]) -> None:
    assert lines_to_events(line) == []


def test_a_text_delta_without_its_beginning_is_still_told() -> None:
    assert lines_to_events(delta(0, "text", "x"), delta(0, "text", "y")) == [AgentTextEvent("x"), AgentTextEvent("y")]


RENAMED = {"text": "output_text", "thinking": "reasoning"}


def with_renamed_blocks(source: str) -> str:
    lines = [json.loads(line) for line in source.splitlines()]
    for line in lines:
        block = (line.get("event") or {}).get("content_block") or {}
        block["type"] = RENAMED.get(str(block.get("type")), block.get("type"))
    return "\n".join(map(json.dumps, lines))


def transcripts() -> list[Path]:
    return sorted(TRANSCRIPTS.parent.glob("*/*.ndjson"))


@pytest.mark.parametrize("path", transcripts(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_blocks_that_begin_under_an_unknown_name_are_still_told_once(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    expected = events_from(ClaudeCliRuntime(), source)
    assert events_from(ClaudeCliRuntime(), with_renamed_blocks(source)) == expected


def test_the_first_delta_of_a_block_of_an_unknown_kind_says_what_it_is() -> None:
    events = lines_to_events(
        started("m1"),
        block_started(0, type="reasoning"),
        delta(0, "thinking", "hm"),
        delta(0, "text", "not this"),
        block_started(1, type="output_text", text=""),
        delta(1, "text", "Hel"),
        whole("m1", {"type": "thinking", "thinking": "hm, yes"}),
        whole("m1", said("Hello")),
    )
    assert events == [
        AgentThinkingEvent("hm"),
        AgentTextEvent("Hel"),
        AgentThinkingEvent(", yes"),
        AgentTextEvent("lo"),
    ]


def test_what_a_block_of_an_unknown_kind_began_with_is_told_by_the_whole_message() -> None:
    events = lines_to_events(
        started("m1"),
        block_started(0, type="output_text", text="Hel"),
        delta(0, "text", "lo"),
        whole("m1", said("Hello")),
    )
    assert events == [AgentTextEvent("Hello")]


@pytest.mark.parametrize(
    ("kind", "stray"),
    [("thinking", "text"), ("text", "thinking"), ("text", "citations"), ("text", "of_next_year"), ("tool_use", "text")],
)
def test_a_delta_of_another_kind_than_its_block_is_left_to_the_whole_message(kind: str, stray: str) -> None:
    own = (
        {"type": kind, kind: "whole"} if kind != "tool_use" else {"type": kind, "id": "t", "name": "Bash", "input": {}}
    )
    streamed = [started("m1"), block_started(0, **{**own, kind: ""}), delta(0, stray, "stray")]
    assert lines_to_events(*streamed) == []
    assert lines_to_events(*streamed, whole("m1", own)) == lines_to_events(whole("m1", own))


def test_text_without_its_beginning_is_not_told_again_by_the_whole_message() -> None:
    assert answer(lines_to_events(started("m1"), delta(0, "text", "Hel"), whole("m1", said("Hello")))) == "Hello"


@pytest.mark.parametrize(("streamed", "repeated"), [(None, "m1"), ("m1", None), (None, None)])
def test_a_message_without_an_id_is_told_once(streamed: Any, repeated: Any) -> None:
    message = [block_started(0, type="text", text=""), delta(0, "text", "Hel"), delta(0, "text", "lo")]
    assert lines_to_events(*message, whole(repeated, said("Hello"))) == [AgentTextEvent("Hel"), AgentTextEvent("lo")]
    begun = lines_to_events(started(streamed), *message, whole(repeated, said("Hello")))
    assert begun == [AgentTextEvent("Hel"), AgentTextEvent("lo")]


@pytest.mark.parametrize("index", [True, None, "0", 0.5, [0]])
def test_a_block_whose_number_is_none_is_told_once(index: Any) -> None:
    lines = [block_started(index, type="text", text=""), delta(index, "text", "Hel"), delta(index, "text", "lo")]
    assert answer(lines_to_events(started("m1"), *lines, whole("m1", said("Hello")))) == "Hello"


# --- several turns ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        ("One.", "Two.", "One.\n\nTwo."),
        ("One.\n", "Two.", "One.\nTwo."),
        ("One.", "\n\nTwo.", "One.\n\nTwo."),
        ("now ", "later", "now later"),
        ("", "Two.", "Two."),
    ],
)
def test_the_words_of_two_turns_are_kept_apart(first: str, second: str, joined: str) -> None:
    streamed = [started("m2"), block_started(0, type="text", text=""), delta(0, "text", second)]
    ways = ([whole("m2", said(second))], [*streamed, whole("m2", said(second))])
    for turn in ways:
        end = {**SUCCESS, "result": ""}
        events = lines_to_events(INIT, whole("m1", said(first)), end, INIT, *turn, end)
        assert answer(events) == joined


def test_only_the_first_words_of_a_turn_are_set_off() -> None:
    call = {"type": "tool_use", "id": "t", "name": "Bash", "input": {}}
    events = lines_to_events(
        INIT,
        whole("m1", said("One.")),
        SUCCESS,
        INIT,
        whole("m2", call),
        whole("m3", said("Two.")),
        whole("m4", said("Three.")),
    )
    assert answer(events) == "One.\n\nTwo.Three."


def test_the_result_of_a_tool_may_be_blocks_of_any_kind() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}
    block = {"type": "tool_result", "tool_use_id": "t", "content": [said("seen"), image]}
    line = {"type": "user", "message": {"content": [block]}, "parent_tool_use_id": None}
    assert lines_to_events(line) == [AgentToolResultEvent("t", "seen\n[image]")]


def test_a_failure_without_words_still_has_a_message() -> None:
    runtime = ClaudeCliRuntime()
    (event,) = lines_to_events({"type": "result", "subtype": "error_of_next_year", "errors": []}, runtime=runtime)
    assert event == AgentErrorEvent("claude ended with error_of_next_year", "error_of_next_year")
    assert runtime.outcome.terminal == "failure"


def test_errors_that_claude_lists_are_told_without_its_diagnostics_and_stacks() -> None:
    errors = ["[ede_diagnostic] result_type=user", "Error: it broke\n    at f (x.js:1)", "Error: it broke\n at g"]
    result = {"type": "result", "subtype": "error_during_execution", "is_error": True, "errors": errors}
    assert lines_to_events(result) == [AgentErrorEvent("Error: it broke", "error_during_execution")]


def ended(*steps: Step, **options: Any) -> tuple[list[AgentEvent], AgentRunResult]:
    """A complete run of our runtime on a fake Claude."""
    return finished(ClaudeCliRuntime(fake_command(["read_stdin"], *steps), **options).execute("hello"))


SUCCESS = {"type": "result", "subtype": "success", "is_error": False, "result": "ok", "session_id": "s1"}
AGENT_STARTED = {"type": "system", "subtype": "task_started", "task_id": "a1", "task_type": "local_agent"}
AGENT_ENDED = {"type": "system", "subtype": "task_notification", "task_id": "a1", "status": "completed"}
INIT = {"type": "system", "subtype": "init", "session_id": "s1"}


@pytest.mark.slow
def test_a_result_while_a_sub_agent_works_does_not_start_the_clock_of_the_end(tmp_path: Path) -> None:
    """This Claude reports each turn's result at once; the run waits for it longer than `linger`."""
    again: list[Step] = [["line", AGENT_ENDED], ["line", INIT], ["line", whole("m2", said("later"))], ["line", SUCCESS]]
    first: list[Step] = [
        ["line", INIT],
        ["line", AGENT_STARTED],
        ["line", whole("m1", said("now "))],
        ["line", SUCCESS],
    ]
    events, result = ended(*first, ["sleep", 0.5], *again, linger=0.1)
    assert (result.text, result.ok) == ("now later", True)


def test_a_success_that_was_held_back_for_a_sub_agent_counts_if_claude_gives_up_waiting() -> None:
    events, result = ended(["line", INIT], ["line", AGENT_STARTED], ["line", SUCCESS])
    assert (codes(events), result.ok, result.text) == ([], True, "ok")


def test_a_claude_that_dies_while_its_sub_agent_works_has_failed() -> None:
    events, result = ended(["line", INIT], ["line", AGENT_STARTED], ["line", SUCCESS], ["exit", 3])
    assert not result.ok


def test_a_claude_that_stays_after_its_result_is_ended_and_has_succeeded() -> None:
    events, result = ended(["line", INIT], ["line", SUCCESS], ["hang"], linger=0.1)
    assert (codes(events), result.ok) == ([], True)


SHELL_STARTED = {"type": "system", "subtype": "task_started", "task_id": "b1", "task_type": "local_bash"}
SHELL_ENDED = {"type": "system", "subtype": "task_notification", "task_id": "b1", "status": "completed"}
CLAUDE_WAITS = 5.0  # Seconds after its result, for a shell in the background (2.1.197).


def test_a_claude_with_a_shell_in_the_background_has_more_time_to_go_on_than_it_takes() -> None:
    runtime = ClaudeCliRuntime(linger=1.0)
    lines_to_events(INIT, SHELL_STARTED, SUCCESS, runtime=runtime)
    assert runtime.outcome.may_stay >= CLAUDE_WAITS + 1.0


def test_a_claude_without_a_shell_in_the_background_has_the_time_that_the_caller_gives() -> None:
    runtime = ClaudeCliRuntime(linger=1.0)
    lines_to_events(INIT, SHELL_STARTED, SHELL_ENDED, SUCCESS, runtime=runtime)
    assert runtime.linger == 1.0


@pytest.mark.slow
def test_a_turn_that_a_shell_in_the_background_begins_is_waited_for_beyond_linger() -> None:
    first: list[Step] = [["line", INIT], ["line", SHELL_STARTED], ["line", whole("m1", said("now"))], ["line", SUCCESS]]
    again: list[Step] = [["line", SHELL_ENDED], ["line", INIT], ["line", whole("m2", said("later"))], ["line", SUCCESS]]
    _, result = ended(*first, ["sleep", 0.5], *again, linger=0.1)
    assert (result.text, result.ok) == ("now\n\nlater", True)


def test_an_exit_without_a_result_is_no_success() -> None:
    events, result = ended(["line", INIT], ["line", whole("m1", said("half"))])
    assert (codes(events), result.error_subtype) == (["CLI_INCOMPLETE"], "incomplete")


def test_a_crash_is_explained_without_colours_and_stack() -> None:
    stderr = "1 | let x = y\n    ^\n\x1b[31mTypeError: y is no good\x1b[0m\n      at f (/opt/x.js:1:2)\n"
    events, result = ended(["raw", stderr, 2], ["exit", 1])
    assert events == [AgentErrorEvent("TypeError: y is no good", "CLI_EXIT_ERROR")]
    assert result.error_subtype == "crash"


# --- the command line ----------------------------------------------------------------------------------------------


class Started:
    """How a fake Claude was started by our runtime."""

    def __init__(self, tmp_path: Path, prompt: str = "hello", prompt_syntax: str | None = None, **fields: Any) -> None:
        report = tmp_path / "started.json"
        steps: list[Step] = [["read_stdin"], ["record", str(report)], ["line", SUCCESS]]
        options: dict[str, Any] = {} if prompt_syntax is None else {"prompt_syntax": prompt_syntax}
        self.events, self.result = finished(ClaudeCliRuntime(fake_command(*steps), **options).execute(prompt, **fields))
        told = json.loads(report.read_text())
        self.args: list[str] = told["argv"]
        self.env: dict[str, str] = told["env"]
        self.stdin: str = told["stdin"]

    def content(self) -> list[dict[str, Any]]:
        """The blocks of the user message, if it was sent as a line of JSON."""
        assert "--input-format=stream-json" in self.args
        assert self.stdin.endswith("\n")
        assert self.stdin.count("\n") == 1
        content: list[dict[str, Any]] = json.loads(self.stdin)["message"]["content"]
        return content


BASIC = ["-p", "--output-format=stream-json", "--verbose", "--include-partial-messages"]


@pytest.mark.parametrize("prompt", ["--help", "-", "--", " /clear", "a\r\nb\n\n", "\U0001f469\u200d\U0001f4bb"])
def test_a_prompt_goes_to_stdin_as_it_is_and_never_into_the_arguments(prompt: str, tmp_path: Path) -> None:
    run = Started(tmp_path, prompt)
    assert (run.args, run.stdin) == (BASIC, prompt)


@pytest.mark.parametrize("prompt", ["/clear", "/", "see @file", "@/etc/passwd", "/x\n@y \U0001f600 \u2028"])
def test_a_prompt_that_looks_like_syntax_is_not_the_last_block_in_which_claude_looks(
    prompt: str, tmp_path: Path
) -> None:
    assert Started(tmp_path, prompt).content() == [said(prompt), said("")]


def test_the_cli_syntax_is_for_the_caller_to_ask_for(tmp_path: Path) -> None:
    assert Started(tmp_path, "/clear", "cli").stdin == "/clear"
    assert Started(tmp_path, "/clear", "cli").args == BASIC


def test_a_run_may_choose_another_syntax_than_its_runtime() -> None:
    text, cli = ClaudeCliRuntime(), ClaudeCliRuntime(prompt_syntax="cli")
    assert text.stdin_data(AgentExecuteParams("/clear", prompt_syntax="cli")) == b"/clear"
    assert cli.stdin_data(AgentExecuteParams("/clear", prompt_syntax="text")) != b"/clear"


def test_an_unknown_prompt_syntax_is_refused() -> None:
    with pytest.raises(ValueError, match="prompt_syntax"):
        ClaudeCliRuntime(prompt_syntax="shell")  # type: ignore[arg-type]


def test_no_value_can_become_a_flag(tmp_path: Path) -> None:
    run = Started(tmp_path, model="--dangerously-skip-permissions", session_id="a b", extra_args=("--max-turns=3",))
    assert run.args == [*BASIC, "--resume=a b", "--model=--dangerously-skip-permissions", "--max-turns=3"]


def test_a_system_prompt_is_in_no_command_line_and_its_file_is_gone_afterwards(tmp_path: Path) -> None:
    run = Started(tmp_path, system_prompt="secret rules")
    (flag,) = [arg for arg in run.args if arg.startswith("--append-system-prompt-file=")]
    assert not any("secret rules" in arg for arg in run.args)
    assert not Path(flag.partition("=")[2]).exists()


def test_the_default_permission_mode_leaves_the_users_own_setting_alone(tmp_path: Path) -> None:
    assert Started(tmp_path, permission_mode="default").args == BASIC


@pytest.mark.parametrize(
    ("mode", "flag"),
    [
        ("read-only", "--permission-mode=default"),
        ("accept-edits", "--permission-mode=acceptEdits"),
        ("bypass", "--permission-mode=bypassPermissions"),
    ],
)
def test_a_permission_mode_is_applied_also_on_resume(mode: str, flag: str, tmp_path: Path) -> None:
    args = Started(tmp_path, permission_mode=mode, session_id="s1").args
    assert flag in args
    assert "--resume=s1" in args


def test_no_tool_of_read_only_can_write_or_run_anything(tmp_path: Path) -> None:
    (flag,) = [arg for arg in Started(tmp_path, permission_mode="read-only").args if arg.startswith("--tools=")]
    assert not {"Bash", "Write", "Edit", "NotebookEdit"} & set(flag.partition("=")[2].split(","))


def test_images_are_shown_after_the_prompt_which_stays_text(tmp_path: Path) -> None:
    image = tmp_path / "photo.bin"
    image.write_bytes(PNG)
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()}
    shown = {"type": "image", "source": source}
    assert Started(tmp_path, "/look", images=[image]).content() == [said("/look"), shown]
    assert Started(tmp_path, "/look", "cli", images=[image]).content() == [shown, said("/look")]


def test_an_image_that_cannot_be_shown_is_refused_before_anything_starts(tmp_path: Path) -> None:
    text = tmp_path / "note.png"
    text.write_text("no image")
    for bad in (text, tmp_path / "missing.png", tmp_path):
        with pytest.raises(ValueError, match="images"):
            ClaudeCliRuntime().execute("look", images=[bad])


def test_a_run_inside_claude_is_no_child_session_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_SESSION_ID", "CLAUDE_CODE_CHILD_SESSION"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "the-users-own")
    env = Started(tmp_path).env
    assert not [name for name in env if name.startswith(("CLAUDECODE", "CLAUDE_CODE_"))]
    assert env["ANTHROPIC_API_KEY"] == "the-users-own"


def test_two_runs_of_one_instance_share_nothing() -> None:
    runtime = ClaudeCliRuntime(fake_command(["read_stdin"], ["line", whole("m1", said("x"))], ["line", SUCCESS]))
    first, second = runtime.execute("a"), runtime.execute("b")
    results = [[*run][-1] for run in (first, second)]
    assert all(isinstance(last, AgentDoneEvent) and last.result.text == "x" for last in results)
