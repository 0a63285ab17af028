"""In output that a slow consumer has not read yet, each runtime sees that a tool may be running: recorded runs of the
CLIs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from remoteclaw_sync import (
    SUPPORTED_PROVIDERS,
    AgentEvent,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    create_cli_runtime,
)
from remoteclaw_sync.engine.dialect import each_of
from remoteclaw_sync.runtime import CLIRuntimeBase
from remoteclaw_sync.wire.json_lines import LineReader
from tests.fakes import dialect_of

TRANSCRIPTS = Path(__file__).parent.parent / "transcripts"


def recorded(provider: str) -> Iterator[tuple[CLIRuntimeBase, bytes, list[AgentEvent]]]:
    """Each recorded line of this CLI, and the events it produced."""
    for path in sorted(TRANSCRIPTS.glob(f"{provider}/*/*.ndjson")):
        runtime = create_cli_runtime(provider)
        dialect = dialect_of(runtime)
        for line in path.read_bytes().splitlines():
            for item in LineReader(dialect.parse).feed(line + b"\n"):
                yield runtime, line, list(each_of(dialect.read(item)))


@pytest.mark.parametrize("provider", SUPPORTED_PROVIDERS)
def test_every_line_after_which_a_tool_runs_is_seen_to_be_one(provider: str) -> None:
    seen = 0
    for runtime, line, events in recorded(provider):
        results = {event.tool_id for event in events if isinstance(event, AgentToolResultEvent)}
        calls = [event for event in events if isinstance(event, AgentToolUseEvent) and event.tool_id not in results]
        # OpenCode prints a call when it has ended: it ran at some time after the beginning of the step.
        if calls or (provider == "opencode" and line.startswith(b'{"type":"step_start"')):
            seen += 1
            assert runtime.may_run_tool(line), line[:200]
    assert seen


@pytest.mark.parametrize(
    ("runtime", "call", "words"),
    [
        (
            create_cli_runtime("claude"),
            '{"type":"assistant","message":{"content":[{"type":"tool_use","id":"t1","name":"Bash","input":{}}]}}',
            '{"type":"assistant","message":{"content":[{"type":"text","text":"ls"}]},"parent_tool_use_id":null}',
        ),
        (
            create_cli_runtime("gemini"),
            '{"method":"session/update","params":{"update":{"sessionUpdate":"tool_call","toolCallId":"ls-1"}}}',
            '{"method":"session/update","params":{"update":{"sessionUpdate":"agent_message_chunk","content":{}}}}',
        ),
        (
            create_cli_runtime("codex"),
            '{"method":"item/started","params":{"item":{"type":"commandExecution","id":"c1","command":"ls"}}}',
            '{"method":"item/agentMessage/delta","params":{"itemId":"m1","delta":"ls"}}',
        ),
        (
            create_cli_runtime("opencode"),
            '{"type":"message.part.updated","properties":{"part":{"type":"tool","state":{"status":"running"}}}}',
            '{"type":"message.part.delta","properties":{"partID":"p1","field":"text","delta":"ls"}}',
        ),
    ],
    ids=SUPPORTED_PROVIDERS,
)
def test_in_a_live_session_too(runtime: CLIRuntimeBase, call: str, words: str) -> None:
    dialect = runtime.new_live_dialect()
    assert dialect is not None
    assert (dialect.may_run_tool(call.encode()), dialect.may_run_tool(words.encode())) == (True, False)


@pytest.mark.parametrize("provider", ["claude", "codex", "gemini"])
def test_no_line_of_a_plain_answer_is_taken_for_one(provider: str) -> None:
    """Not even the list of the available tools."""
    runtime = create_cli_runtime(provider)
    paths = sorted(TRANSCRIPTS.glob(f"{provider}/*/plain.ndjson"))
    assert paths
    for line in b"\n".join(path.read_bytes() for path in paths).splitlines():
        assert not runtime.may_run_tool(line), line[:200]


@pytest.mark.parametrize("provider", SUPPORTED_PROVIDERS)
def test_no_line_that_only_says_something_is_taken_for_one(provider: str) -> None:
    seen = 0
    for runtime, line, events in recorded(provider):
        if events and all(isinstance(event, AgentTextEvent | AgentThinkingEvent) for event in events):
            seen += 1
            assert not runtime.may_run_tool(line), line[:200]
    assert seen
