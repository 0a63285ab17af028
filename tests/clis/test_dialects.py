"""What applies to the lines of all four CLIs: lines of odd shapes, fed to each runtime as its runs feed it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import (
    AgentErrorEvent,
    AgentEvent,
    AgentTextEvent,
    AgentToolResultEvent,
    AgentUsage,
    CLIRuntimeBase,
    create_cli_runtime,
    errors,
)
from remoteclaw_sync.wire import json_lines
from tests.fakes import codes, events_from, fake_command, finished, quick

TRANSCRIPTS = Path(__file__).parents[1] / "transcripts"
CLIS = ("claude", "gemini", "codex", "opencode")


@pytest.fixture(params=["json", "orjson"], autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs everything here with each of the two parsers."""
    if request.param == "orjson":
        pytest.importorskip("orjson", reason="orjson is not installed (extra `speed`)")
    else:
        monkeypatch.setattr(json_lines, "fast_parser", lambda: None)


# --- there is one way from a line to its events --------------------------------------------------------------------


def transcripts() -> list[Path]:
    return sorted(TRANSCRIPTS.glob("*/*/*.ndjson"))


@pytest.mark.parametrize("path", transcripts(), ids=lambda path: "-".join(path.with_suffix("").parts[-3:]))
def test_line_by_line_a_real_run_means_what_it_means_as_a_whole(path: Path) -> None:
    """Compares `extract_event`, which users may call, with the path of a run, which gets many lines at once."""
    provider = path.parts[-3]
    lines = path.read_text(encoding="utf-8").split("\n")
    runtime = create_cli_runtime(provider)
    one_by_one: list[AgentEvent] = []
    for line in lines:
        extracted = runtime.extract_event(line)
        if isinstance(extracted, AgentEvent):
            one_by_one.append(extracted)
        elif extracted is not None:
            one_by_one += extracted
    whole = create_cli_runtime(provider)
    assert events_from(whole, *lines) == one_by_one
    assert whole.outcome == runtime.outcome


# --- numbers -------------------------------------------------------------------------------------------------------

USAGE_LINES = {
    "claude": '{"type":"result","subtype":"success","total_cost_usd":COST,"num_turns":N,'
    '"usage":{"input_tokens":N,"output_tokens":7}}',
    "gemini": '{"type":"message","role":"assistant","content":"x"}\n'
    '{"type":"result","status":"success","stats":{"input_tokens":N,"output_tokens":7}}',
    "codex": '{"type":"turn.completed","usage":{"input_tokens":N,"output_tokens":7}}',
    "opencode": '{"type":"step_finish","sessionID":"s","part":{"id":"p","messageID":"m","reason":"stop","cost":COST,'
    '"tokens":{"input":N,"output":7}}}',
}
LARGEST = 2**63 - 1
NO_COUNTS = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-1e999",
    "1e30",
    str(10**30),
    str(2**63),
    str(2**64 + 1),
    str(-(10**30)),
    "1" + "0" * 400,
    "-5",
    "-0.5",
    "true",
    '"12"',
    "null",
    "[3]",
    "{}",
]


def after_usage(provider: str, count: str, cost: str = "0.5") -> CLIRuntimeBase:
    runtime = create_cli_runtime(provider)
    lines = USAGE_LINES[provider].replace("N,", f"{count},").replace("COST", cost)
    events = events_from(runtime, *lines.split("\n"))
    assert codes(events) == []
    assert runtime.outcome.terminal == "success"
    return runtime


@pytest.mark.parametrize("count", NO_COUNTS)
@pytest.mark.parametrize("provider", CLIS)
def test_a_number_that_cannot_be_a_count_counts_nothing_and_fails_nothing(provider: str, count: str) -> None:
    assert after_usage(provider, count).outcome.usage == AgentUsage(0, 7)


@pytest.mark.parametrize(("count", "meant"), [("12", 12), ("12.0", 12), ("1.2e3", 1200), (str(LARGEST), LARGEST)])
@pytest.mark.parametrize("provider", CLIS)
def test_a_number_that_can_be_a_count_is_one(provider: str, count: str, meant: int) -> None:
    assert after_usage(provider, count).outcome.usage == AgentUsage(meant, 7)


@pytest.mark.parametrize("cost", NO_COUNTS)
@pytest.mark.parametrize("provider", ["claude", "opencode"])
def test_a_number_that_cannot_be_a_cost_costs_nothing_and_fails_nothing(provider: str, cost: str) -> None:
    assert after_usage(provider, "1", cost).outcome.total_cost_usd in (None, 0.0)


@pytest.mark.parametrize("count", ["1e999", "NaN", str(10**30)])
@pytest.mark.parametrize("provider", CLIS)
def test_a_run_whose_usage_is_nonsense_has_succeeded_all_the_same(
    provider: str, count: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    lines = USAGE_LINES[provider].replace("N,", f"{count},").replace("COST", "0.5")
    command = fake_command(["read_stdin"], ["raw", lines + "\n"])
    events, result = finished(create_cli_runtime(provider, command=command).execute("hi", working_directory=tmp_path))
    assert (codes(events), result.ok) == ([], True)


# --- words ---------------------------------------------------------------------------------------------------------

Line = dict[str, Any]
ERROR_LINES: dict[str, Callable[[Any], Line]] = {
    "claude result": lambda value: {"type": "result", "subtype": "error_x", "is_error": True, "result": value},
    "claude errors": lambda value: {"type": "result", "subtype": "error_x", "is_error": True, "errors": [value]},
    "claude errors bare": lambda value: {"type": "result", "subtype": "", "is_error": True, "errors": value},
    "gemini error": lambda value: {"type": "error", "severity": "error", "message": value},
    "gemini warning": lambda value: {"type": "error", "severity": "warning", "message": value},
    "gemini error without message": lambda value: {"type": "error", "error": value},
    "gemini result": lambda value: {"type": "result", "status": "error", "error": {"type": "", "message": value}},
    "gemini result bare": lambda value: {"type": "result", "status": "error", "error": value},
    "codex error": lambda value: {"type": "error", "message": value},
    "codex turn": lambda value: {"type": "turn.failed", "error": {"message": value}},
    "codex turn bare": lambda value: {"type": "turn.failed", "error": value},
    "codex item": lambda value: {"type": "item.completed", "item": {"id": "i", "type": "error", "message": value}},
    "opencode data": lambda value: {"type": "error", "error": {"name": "APIError", "data": {"message": value}}},
    "opencode error": lambda value: {"type": "error", "error": {"name": "APIError", "message": value}},
    "opencode data bare": lambda value: {"type": "error", "error": {"name": "APIError", "data": value}},
}


@pytest.mark.parametrize("value", [None, "", " \n", 0, 429, 1.5, False, True, [], [None], {}, {"message": None}])
@pytest.mark.parametrize("kind", ERROR_LINES)
def test_every_error_has_words_whatever_the_cli_puts_in_the_place_of_a_message(kind: str, value: Any) -> None:
    (event,) = events_from(create_cli_runtime(kind.split()[0]), ERROR_LINES[kind](value))
    assert isinstance(event, AgentErrorEvent)
    assert event.message.strip()


@pytest.mark.parametrize("value", ["it broke", ["it broke"], {"message": "it broke"}, {"why": "it broke"}])
@pytest.mark.parametrize("kind", [kind for kind in ERROR_LINES if kind != "opencode data bare"])
def test_the_words_of_an_error_are_told_in_whatever_they_are_wrapped(kind: str, value: Any) -> None:
    (event,) = events_from(create_cli_runtime(kind.split()[0]), ERROR_LINES[kind](value))
    assert isinstance(event, AgentErrorEvent)
    assert "it broke" in event.message


@pytest.mark.parametrize("error", [None, "", 5, "it broke"])
def test_an_opencode_that_ends_after_an_error_without_a_name_says_something(
    error: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    command = fake_command(["read_stdin"], ["line", {"type": "error", "sessionID": "s", "error": error}], ["exit", 1])
    events, result = finished(create_cli_runtime("opencode", command=command).execute("hi", working_directory=tmp_path))
    assert not result.ok
    (event,) = [event for event in events if isinstance(event, AgentErrorEvent)]
    assert event.message.strip()
    assert event.code == errors.CLI_ERROR
    assert str(error or "") in event.message


@pytest.mark.parametrize("message", [None, "", "  "])
def test_an_error_of_a_hook_that_has_no_words_gets_some(message: Any) -> None:
    events, _ = finished(quick(["line", {"type": "error", "message": message}]).execute("hi"))
    (event,) = [event for event in events if isinstance(event, AgentErrorEvent)]
    assert "without a message" in event.message


# --- what is said again --------------------------------------------------------------------------------------------


def test_a_codex_message_that_is_printed_again_is_told_once() -> None:
    line = {"type": "item.completed", "item": {"id": "item_0", "type": "agent_message", "text": "Hello."}}
    grown = {"type": "item.updated", "item": {"id": "item_0", "type": "agent_message", "text": "Hello. More"}}
    other = {"type": "item.completed", "item": {"id": "item_1", "type": "agent_message", "text": "Hello."}}
    many = [{**other, "item": {"id": f"i{number}", "type": "agent_message", "text": "."}} for number in range(999)]
    events = events_from(create_cli_runtime("codex"), line, line, grown, other, *many, line)
    assert events == [AgentTextEvent("Hello."), AgentTextEvent("Hello."), *[AgentTextEvent(".")] * 999]


def test_an_opencode_part_that_is_printed_again_is_told_once() -> None:
    def part(number: int) -> Line:
        body = {"id": f"p{number}", "messageID": "m", "type": "text", "text": str(number)}
        return {"type": "text", "sessionID": "s", "part": body}

    numbers = [0, 0, *range(5000), 0, 4999]
    events = events_from(create_cli_runtime("opencode"), *map(part, numbers))
    assert events == [AgentTextEvent(str(number)) for number in range(5000)]


# --- deep things ---------------------------------------------------------------------------------------------------


def test_the_result_of_a_tool_may_be_nested_deeply() -> None:
    content = json.loads("[" * 700 + "]" * 700)
    block = {"type": "tool_result", "tool_use_id": "t", "content": content}
    (event,) = events_from(create_cli_runtime("claude"), {"type": "user", "message": {"content": [block]}})
    assert isinstance(event, AgentToolResultEvent)
