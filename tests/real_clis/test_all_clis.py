"""What no single CLI's suite shows: a hung model and `close()` on all four, and sub-agents of Gemini CLI and Codex."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from remoteclaw_sync import (
    AgentEvent,
    AgentTextEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    AgentUsage,
    CodexCliRuntime,
    GeminiCliRuntime,
    RunFields,
    create_cli_runtime,
)
from tests.fakes import finished, wait_until
from tests.real_clis import scenarios_codex, scenarios_gemini
from tests.real_clis.bench import Bench
from tests.real_clis.clis import RealCli
from tests.real_clis.script import Hang

GONE_WITHIN = 3.0  # Seconds within which everything that a run started must be gone.


@pytest.mark.parametrize("after_headers", [False, True], ids=["silent", "open_stream"])
def test_close_ends_a_run_whose_model_hangs(cli: RealCli, cli_bench: Bench, after_headers: bool) -> None:
    cli_bench.server.script([Hang(after_headers=after_headers)])
    handle = create_cli_runtime(cli.name, timeout=60).start("hello", working_directory=cli_bench.workdir)
    events: list[AgentEvent] = []
    consumer = threading.Thread(target=lambda: events.extend(handle))
    consumer.start()
    cli_bench.server.wait_for_requests(1)
    handle.close()
    consumer.join(GONE_WITHIN)
    assert not consumer.is_alive()
    assert wait_until(lambda: not cli_bench.processes(), GONE_WITHIN)
    assert events == []
    assert handle.result is not None
    assert handle.result.aborted


def test_a_sub_agent_of_codex_is_told_by_its_calls_and_its_words_are_not_the_answer(cli_bench: Bench) -> None:
    cli_bench.server.respond(scenarios_codex.delegate)
    events, result = finished(CodexCliRuntime().execute("go", working_directory=cli_bench.workdir))
    assert (result.ok, result.text) == (True, "outer answer")
    uses = {event.tool_id: event.tool_name for event in of(events, AgentToolUseEvent)}
    assert list(uses.values()) == ["spawn_agent", "wait"]
    results = {uses[event.tool_id]: (event.output, event.is_error) for event in of(events, AgentToolResultEvent)}
    assert results["wait"] == ("inner answer", False)


def test_a_sub_agent_of_gemini_is_one_call_and_its_words_are_not_the_answer(cli_bench: Bench) -> None:
    cli_bench.server.respond(scenarios_gemini.delegate)
    fields: RunFields = {
        "working_directory": cli_bench.workdir,
        "model": cli_bench.gemini.model,
        "permission_mode": "bypass",
    }
    events, result = finished(GeminiCliRuntime().execute("go", **fields))
    assert (result.ok, result.text) == (True, "Outer answer.")
    assert [event.text for event in of(events, AgentTextEvent)] == ["Outer answer."]
    assert [event.tool_name for event in of(events, AgentToolUseEvent)] == ["invoke_agent"]
    assert [event.is_error for event in of(events, AgentToolResultEvent)] == [False]
    assert result.usage == AgentUsage(30, 15)  # Two requests of its own and one of the sub-agent.


def of(events: list[AgentEvent], kind: type[AgentEvent]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]
