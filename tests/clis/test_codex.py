"""Codex without Codex: lines of its real runs, read by the runtime and printed by a fake CLI."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs
import pytest

from remoteclaw_sync import (
    AgentErrorEvent,
    AgentEvent,
    AgentExecuteParams,
    AgentRunResult,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    AgentUsage,
    CodexCliRuntime,
    McpServerConfig,
    ReplayRuntime,
    create_cli_runtime,
    errors,
)
from remoteclaw_sync.clis.codex.dialect import UNFINISHED
from remoteclaw_sync.clis.codex.mcp import inline_toml
from remoteclaw_sync.clis.codex.rollout import ThreadRecord, read_record
from remoteclaw_sync.clis.codex.runtime import OUTER_RUN_VARIABLES
from remoteclaw_sync.clis.codex.stderr import last_words, readable
from tests.fakes import done, events_from, fake_command, finished

TRANSCRIPTS = Path(__file__).parents[1] / "transcripts" / "codex" / "0.166.0"
THREAD = "01a1eb00-15c6-7ed1-bb4b-e9131945d2e8"
FLAGS = ["--json", "--color=never", "--skip-git-repo-check"]
PNG = b"\x89PNG\r\n\x1a\n"
COMPLAINT = "the scripted complaint"
URL = "url: http://127.0.0.1:8080/v1/responses"


def line(type: str, **fields: Any) -> str:
    return json.dumps({"type": type, **fields})


def item(step: str, id: str, type: str, **fields: Any) -> str:
    return line(f"item.{step}", item={"id": id, "type": type, **fields})


def message(step: str, id: str, text: str) -> str:
    return item(step, id, "agent_message", text=text)


def usage(input: int = 1, cached: int = 0, written: int = 0, output: int = 1) -> dict[str, int]:
    return {
        "input_tokens": input,
        "cached_input_tokens": cached,
        "cache_write_input_tokens": written,
        "output_tokens": output,
        "reasoning_output_tokens": 0,
    }


STARTED = [line("thread.started", thread_id=THREAD), line("turn.started")]
COMPLETED = line("turn.completed", usage=usage())


def extract(*lines: str, runtime: CodexCliRuntime | None = None) -> list[AgentEvent]:
    """What these lines of one run become."""
    return events_from(runtime or CodexCliRuntime(), *lines)


def texts(events: Iterable[AgentEvent]) -> list[str]:
    return [event.text for event in events if isinstance(event, AgentTextEvent)]


def printing(*lines: str, stderr: str = "", exit_code: int = 0, **options: Any) -> CodexCliRuntime:
    """A runtime whose CLI prints these lines and exits."""
    output = "".join(f"{each}\n" for each in lines).encode().decode("latin-1")
    steps: list[list[Any]] = [["raw", output], ["raw", stderr.encode().decode("latin-1"), 2], ["exit", exit_code]]
    return CodexCliRuntime(fake_command(*steps), **options)


def run(runtime: CodexCliRuntime, prompt: str = "hi", **fields: Any) -> tuple[list[AgentEvent], AgentRunResult]:
    return finished(runtime.execute(prompt, **fields))


def args(prompt: str = "hi", runtime: CodexCliRuntime | None = None, **fields: Any) -> list[str]:
    return (runtime or CodexCliRuntime()).build_args(AgentExecuteParams(prompt, **fields))


# --- transcripts of the real CLI ---------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Expected:
    """What a caller gets from a captured run."""

    text: str = ""
    thinking: str = ""
    calls: tuple[tuple[str, str, bool], ...] = ()  # Tool name, output, whether it failed.
    error: str | None = None
    code: str | None = errors.CLI_ERROR
    subtype: str | None = None
    warnings: int = 0
    denied: tuple[str, ...] = ()
    usage: tuple[int, int, int] | None = None  # Input, output, read from the cache.


NOTE = "/home/user/project/note.txt"
EXPECTED = {
    "plain": Expected(text="Hello, world", thinking="Let me see.", usage=(120, 10, 20)),
    "several_messages": Expected(
        text="All tests pass; here is more.Short.", calls=(("command_execution", "", False),), usage=(20, 10, 0)
    ),
    "empty_answer": Expected(usage=(10, 5, 0)),
    "tools": Expected(
        text="Wait.Done.",
        calls=(
            ("command_execution", "gone\n", True),
            ("command_execution", "out\nerr\n", False),
            ("file_change", f"add {NOTE}", False),
        ),
        usage=(30, 15, 0),
    ),
    "refused_calls": Expected(
        text="Nothing worked.", warnings=4, denied=("command_execution", "file_change"), usage=(20, 10, 0)
    ),
    "mcp": Expected(
        text="Called.",
        calls=(
            ("mcp__lab__echo", "echo: hé", False),
            ("mcp__lab__fail", "bad", True),
            (
                "mcp__lab__rpc_fail",
                "tool call error: tool call failed for `lab/rpc_fail`\n\nCaused by:\n    Mcp error: -32603: worse",
                True,
            ),
        ),
        usage=(20, 10, 0),
    ),
    "mcp_unapproved": Expected(
        text="No.",
        calls=(("mcp__lab__echo", "MCP tool call requires approval, but approval policy is never", True),),
        denied=("mcp__lab__echo",),
        usage=(20, 10, 0),
    ),
    "plan": Expected(
        text="Planned.",
        calls=(("todo_list", "[ ] step 1\n[ ] step 2", False), ("todo_list", "[x] step 1\n[ ] step 2", False)),
        usage=(30, 15, 0),
    ),
    "sub_agent": Expected(
        text="outer answer",
        calls=(("spawn_agent", "pending_init", False), ("wait", "inner answer", False)),
        usage=(30, 15, 0),
    ),
    "web_search": Expected(calls=(("web_search", "", False),), usage=(10, 5, 0)),
    "left_running": Expected(
        text="It is still running.", calls=(("command_execution", UNFINISHED, True),), usage=(20, 10, 0)
    ),
    "warning": Expected(text="All the same.", warnings=1, usage=(10, 5, 0)),
    "stream_cut": Expected(text="Hello. Again.", thinking="Hm.", warnings=1, usage=(10, 5, 0)),
    "resumed": Expected(text="Second.", usage=(130, 15, 20)),
    "http_400": Expected(error=COMPLAINT, code="invalid_request_error", subtype="config"),
    "http_401": Expected(error=f"unexpected status 401 Unauthorized: {COMPLAINT}, {URL}", subtype="auth", warnings=1),
    "http_403": Expected(error=f"unexpected status 403 Forbidden: {COMPLAINT}, {URL}", subtype="auth", warnings=1),
    "http_404": Expected(error=f"unexpected status 404 Not Found: {COMPLAINT}, {URL}", subtype="config", warnings=1),
    "http_429": Expected(error="exceeded retry limit, last status: 429 Too Many Requests", subtype="rate_limit"),
    "http_500": Expected(
        error="We’re currently experiencing high demand, which may cause temporary errors.",  # noqa: RUF001
        subtype="overloaded",
        warnings=1,
    ),
    "http_529": Expected(
        error=f"unexpected status 529 <unknown status code>: {COMPLAINT}, {URL}", subtype="overloaded", warnings=1
    ),
    "usage_limit": Expected(error="You’ve hit your usage limit. Try again later.", subtype="rate_limit"),  # noqa: RUF001
    "quota": Expected(error="Quota exceeded. Check your plan and billing details.", subtype="billing"),
    "context_window": Expected(
        error="Codex ran out of room in the model's context window. Start a new thread or clear earlier history before "
        "retrying.",
        subtype="context_window",
    ),
    "at_capacity": Expected(error="Selected model is at capacity. Please try a different model.", subtype="overloaded"),
    "rate_limit_in_stream": Expected(error="rate limit exceeded: slow down", subtype="rate_limit", warnings=1),
    "stream_error": Expected(error="stream disconnected before completion: it broke", subtype="network", warnings=1),
    "max_output_tokens": Expected(
        text="cut off", error="Incomplete response returned, reason: max_output_tokens", subtype="incomplete"
    ),
    "refused_connection": Expected(error="Connection failed: error sending request", subtype="network", warnings=1),
    "no_key": Expected(error="Missing environment variable: `BENCH_API_KEY`.", subtype="auth"),
    "unknown_session": Expected(
        error="no rollout found for thread id 01a1eb00-15c6-7ed1-bb4b-e9131945d2e9",
        code=errors.CLI_EXIT_ERROR,
        subtype="session_not_found",
    ),
    "unknown_flag": Expected(
        error="unexpected argument '--no-such-flag' found", code=errors.CLI_EXIT_ERROR, subtype="config"
    ),
    "bad_config": Expected(
        error="Error loading config.toml: /home/user/.codex/config.toml:11:43: unexpected key or value, expected "
        "newline, `#`",
        code=errors.CLI_EXIT_ERROR,
        subtype="config",
    ),
    "bad_value": Expected(
        error="Error loading config.toml: unknown variant `whatever`, expected one of `read-only`, `workspace-write`, "
        "`danger-full-access` in `sandbox_mode`",
        code=errors.CLI_EXIT_ERROR,
        subtype="config",
    ),
    "prompt_too_long": Expected(
        error="Input exceeds the maximum length of 1048576 characters.",
        code=errors.CLI_EXIT_ERROR,
        subtype="context_window",
    ),
}


def test_every_transcript_has_an_expectation() -> None:
    assert {path.stem for path in TRANSCRIPTS.glob("*.ndjson")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_captured_run_tells_its_story_once(name: str) -> None:
    """Source: tests/transcripts/codex."""
    end = json.loads((TRANSCRIPTS / f"{name}.end.json").read_text(encoding="utf-8"))
    lines = (TRANSCRIPTS / f"{name}.ndjson").read_text(encoding="utf-8").split("\n")[:-1]
    events, result = run(printing(*lines, stderr=end["stderr"], exit_code=end["exit_code"]))
    told = [event for event in events if isinstance(event, AgentErrorEvent)]
    fatal = [(event.message, event.code) for event in told if event.code != errors.CLI_WARNING]
    used = result.usage
    expected = EXPECTED[name]
    assert expected == Expected(
        text=result.text,
        thinking="".join(event.text for event in events if isinstance(event, AgentThinkingEvent)),
        calls=calls_in(events),
        error=fatal[0][0] if fatal else None,
        code=fatal[0][1] if fatal else errors.CLI_ERROR,
        subtype=result.error_subtype,
        warnings=len(told) - len(fatal),
        denied=tuple(denial.tool for denial in result.permission_denials),
        usage=(used.input_tokens, used.output_tokens, used.cache_read_tokens) if used else None,
    )
    assert len(fatal) <= 1
    assert result.ok == (expected.subtype is None)
    assert result.session_id == (json.loads(lines[0])["thread_id"] if lines else None)


def calls_in(events: Iterable[AgentEvent]) -> tuple[tuple[str, str, bool], ...]:
    """Each call with its result; checks that each has exactly one of each, in this order."""
    open_calls: dict[str, str] = {}
    calls: list[tuple[str, str, bool]] = []
    seen = set()
    for event in events:
        if isinstance(event, AgentToolUseEvent):
            assert event.tool_id not in seen
            seen.add(event.tool_id)
            open_calls[event.tool_id] = event.tool_name
        elif isinstance(event, AgentToolResultEvent):
            calls.append((open_calls.pop(event.tool_id), event.output, event.is_error))
    assert not open_calls
    return tuple(sorted(calls))  # Parallel calls end in any order.


# --- text --------------------------------------------------------------------------------------------------


def test_growing_text_comes_as_what_is_new_each_time() -> None:
    events = extract(
        message("started", "item_0", ""),
        message("updated", "item_0", "Hel"),
        message("updated", "item_0", "Hello"),
        message("updated", "item_0", "Hello"),
        message("completed", "item_0", "Hello world"),
    )
    assert texts(events) == ["Hel", "lo", " world"]


def test_completed_messages_alone_are_whole_and_each_is_told_once() -> None:
    """A known mistake of others: the second message loses as many characters as the first has."""
    first, second = "All tests pass; here is the summary.", "Short."
    lines = (message("completed", "item_0", first), message("completed", "item_1", second))
    assert texts(extract(*lines)) == [first, second]
    assert texts(extract(*lines, *lines)) == [first, second]


def test_interleaved_messages_do_not_mix() -> None:
    events = extract(
        message("updated", "item_0", "one"),
        message("updated", "item_1", "two"),
        message("updated", "item_0", "one more"),
        message("completed", "item_1", "two more"),
        message("completed", "item_0", "one more"),
    )
    assert texts(events) == ["one", "two", " more", " more"]


def test_a_text_that_changes_in_the_middle_goes_on_from_where_it_changed() -> None:
    events = extract(message("updated", "item_0", "the cat"), message("completed", "item_0", "the dog barks"))
    assert texts(events) == ["the cat", "dog barks"]


def test_a_text_that_shrinks_and_grows_again_is_not_doubled() -> None:
    updates = (message("updated", "item_0", text) for text in ("Hello wor", "Hello", "Hello world"))
    assert "".join(texts(extract(*updates))) == "Hello world"


def test_the_next_turn_may_use_the_same_item_ids() -> None:
    events = extract(
        message("completed", "item_0", "same"), line("turn.started"), message("completed", "item_0", "same")
    )
    assert texts(events) == ["same", "same"]


RETRY = line("error", message="Reconnecting... 1/5 (stream disconnected before completion)")


@pytest.mark.parametrize(
    ("after", "told"),
    [
        ([message("completed", "item_1", "Hello.")], ["Hello."]),
        ([message("completed", "item_1", "Hello. More.")], ["Hello.", " More."]),
        ([message("completed", "item_1", "Other words.")], ["Hello.", "Other words."]),
        ([message("completed", "item_1", "Hel")], ["Hello.", "Hel"]),
        ([message("updated", "item_1", "Hel"), message("completed", "item_1", "Hello. More.")], ["Hello.", " More."]),
        ([message("updated", "item_1", "Hel"), message("completed", "item_1", "Help!")], ["Hello.", "Help!"]),
    ],
)
def test_a_new_attempt_that_repeats_the_cut_message_does_not_double_it(after: list[str], told: list[str]) -> None:
    """Source: 0.166.0 prints the message of the cut-off attempt and that of the next one as two items."""
    assert texts(extract(message("completed", "item_0", "Hello."), RETRY, *after)) == told


def test_the_same_words_after_a_tool_are_said_again() -> None:
    tool = item("completed", "item_1", "command_execution", command="true", exit_code=0, status="completed")
    events = extract(message("completed", "item_0", "Hm."), RETRY, tool, message("completed", "item_2", "Hm."))
    assert texts(events) == ["Hm.", "Hm."]


# --- tools -------------------------------------------------------------------------------------------------


def test_parallel_commands_keep_their_own_ids() -> None:
    running = {"aggregated_output": "", "exit_code": None, "status": "in_progress"}
    events = extract(
        item("started", "item_0", "command_execution", command="a", **running),
        item("started", "item_1", "command_execution", command="b", **running),
        item("completed", "item_1", "command_execution", command="b", aggregated_output="B", exit_code=0),
        item("completed", "item_0", "command_execution", command="a", aggregated_output="A", exit_code=1),
    )
    assert events == [
        AgentToolUseEvent("command_execution", "item_0", {"command": "a"}),
        AgentToolUseEvent("command_execution", "item_1", {"command": "b"}),
        AgentToolResultEvent("item_1", "B", False),
        AgentToolResultEvent("item_0", "A", True),
    ]


def test_a_declined_command_is_a_failed_call_and_a_denial() -> None:
    runtime = CodexCliRuntime()
    declined = item("completed", "item_0", "command_execution", command="rm x", exit_code=None, status="declined")
    use, result = extract(declined, runtime=runtime)
    assert use == AgentToolUseEvent("command_execution", "item_0", {"command": "rm x"})
    assert result == AgentToolResultEvent("item_0", "declined", True)
    (denial,) = runtime.outcome.permission_denials
    assert (denial.tool, denial.tool_id) == ("command_execution", "item_0")


def test_a_failed_file_change_is_a_failed_call() -> None:
    changes = [{"path": "/x", "kind": "update"}, {"path": "/y", "kind": "delete"}]
    events = extract(item("completed", "item_0", "file_change", changes=changes, status="failed"))
    assert events == [
        AgentToolUseEvent("file_change", "item_0", {"changes": changes}),
        AgentToolResultEvent("item_0", "update /x\ndelete /y", True),
    ]


def test_a_sub_agent_is_a_call_whose_answer_is_not_the_agents() -> None:
    common: dict[str, Any] = {"tool": "wait", "sender_thread_id": "a", "receiver_thread_ids": ["b"], "prompt": None}
    states = {"b": {"status": "completed", "message": "the inner answer"}}
    events = extract(
        item("started", "item_0", "collab_tool_call", **common, agents_states={}, status="in_progress"),
        item("completed", "item_0", "collab_tool_call", **common, agents_states=states, status="completed"),
    )
    assert events == [
        AgentToolUseEvent("wait", "item_0", {"receiver_thread_ids": ["b"]}),
        AgentToolResultEvent("item_0", "the inner answer", False),
    ]


def test_structured_content_is_shown_where_there_is_no_other() -> None:
    result = {"content": [], "structured_content": {"degrees": 21}}
    call = item("completed", "item_0", "mcp_tool_call", server="s", tool="t", result=result, status="completed")
    assert extract(call)[1] == AgentToolResultEvent("item_0", '{"degrees": 21}', False)


def test_calls_left_open_are_closed_when_the_turn_fails() -> None:
    running = item("started", "item_0", "command_execution", command="sleep 9", status="in_progress")
    events = extract(running, line("turn.failed", error={"message": "boom"}))
    assert events[1:] == [AgentToolResultEvent("item_0", UNFINISHED, True), AgentErrorEvent("boom", errors.CLI_ERROR)]


@pytest.mark.parametrize(
    "odd",
    [
        line("item.completed"),
        line("item.completed", item=None),
        line("item.completed", item=[]),
        line("item.completed", item={"type": "something_new", "id": "item_0"}),
        line("item.completed", item={"type": ["agent_message"]}),
        line("item.completed", item={"type": "agent_message", "id": 7, "text": None}),
        line("item.started", item={"type": "todo_list", "items": "none"}),
        line("item.completed", item={"type": "mcp_tool_call", "arguments": "x", "result": 3, "error": "y"}),
        line("item.completed", item={"type": "collab_tool_call", "agents_states": ["z"]}),
        line("something.new"),
        line("thread.started", thread_id=None),
        line("turn.failed", error="plain"),
        line("error", message=None),
    ],
)
def test_lines_of_another_shape_than_expected_are_survived(odd: str) -> None:
    events, result = run(printing(*STARTED, odd, message("completed", "item_9", "fine"), COMPLETED))
    assert result.ok
    assert result.text == "fine"
    assert errors.EXTRACT_EVENT_FAILED not in [getattr(event, "code", None) for event in events]


# --- how a run ends ----------------------------------------------------------------------------------------


def test_a_retry_is_a_warning_and_the_run_succeeds() -> None:
    events, result = run(printing(*STARTED, RETRY, message("completed", "item_0", "fine"), COMPLETED))
    assert [event.code for event in events if isinstance(event, AgentErrorEvent)] == [errors.CLI_WARNING]
    assert result.ok


def test_an_error_without_a_failed_turn_is_the_cause_of_the_exit() -> None:
    complaint = line("error", message='{"detail":"The model is not supported when using this account."}')
    events, result = run(printing(*STARTED, complaint, exit_code=1))
    words = "The model is not supported when using this account."
    assert events == [AgentErrorEvent(words, errors.CLI_ERROR)]
    assert result.error_subtype == "config"


def test_words_on_stderr_do_not_change_what_a_failed_turn_said() -> None:
    failed = line("turn.failed", error={"message": "Incomplete response returned, reason: max_output_tokens"})
    _, result = run(printing(*STARTED, failed, stderr="Error: Missing optional dependency\n", exit_code=1))
    assert result.error_subtype == "incomplete"


def test_a_run_without_its_last_line_is_incomplete_whatever_the_exit_code() -> None:
    _, result = run(printing(*STARTED, message("completed", "item_0", "half")))
    assert (result.error_subtype, result.text) == ("incomplete", "half")


@pytest.mark.slow
def test_retries_alone_do_not_keep_the_watchdog_quiet() -> None:
    """Without is_life this run would continue for as long as the CLI prints its retries."""
    waiting = '{"type":"error","message":"Reconnecting... waiting for network (Connection failed)"}\n'
    steps: list[list[Any]] = [["raw", "".join(f"{each}\n" for each in STARTED)], ["beat", 0.1, 100_000, waiting]]
    events, result = run(CodexCliRuntime(fake_command(*steps), timeout=1.0))
    assert result.error_subtype == "timeout"
    assert isinstance(events[-1], AgentErrorEvent)
    assert events[-1].code == errors.WATCHDOG_TIMEOUT


@pytest.mark.parametrize(
    ("chunk", "is_life"),
    [
        (b'{"type":"error","message":"Reconnecting... 1/5 (x)"}\n', False),
        (
            b'{"type":"error","message":"Reconnecting... 1/5"}\n{"type":"error","message":"Reconnecting... 2/5"}\n',
            False,
        ),
        (b'{"type":"error","message":"Reconnecting... 1/5"}\n{"type":"turn.started"}\n', True),
        (b'{"type":"error","message":"something else"}\n', True),
        (b'{"type":"item.completed","item":{"text":"Reconnecting..."}}\n', True),
    ],
)
def test_what_counts_as_life(chunk: bytes, is_life: bool) -> None:
    assert CodexCliRuntime().is_life(chunk) is is_life


def test_an_excerpt_of_the_configuration_reaches_neither_the_message_nor_the_result() -> None:
    end = json.loads((TRANSCRIPTS / "bad_config.end.json").read_text())
    events, result = run(printing(stderr=end["stderr"], exit_code=1))
    assert "sk-a-secret" in end["stderr"]
    assert "sk-a-secret" not in repr((events, result))


@pytest.mark.parametrize(
    ("stderr", "sentence"),
    [
        ("\x1b[31mError:\x1b[0m this\n\nCaused by:\n    0: deeper\n    1: deepest\n", "this: deeper: deepest"),
        ("file:///x/codex.js:9\n  throw new Error(\n    ^\n\nError: Missing optional dependency @openai/x.\n    at y\n",
         "Missing optional dependency @openai/x."),
        ("thread 'main' (7) panicked at src/main.rs:1:2:\nno more\nnote: run with `RUST_BACKTRACE=1`\n",
         "codex crashed: no more"),
        ("2026-11-17T19:37:42.3Z ERROR core: noise\nReading prompt from stdin...\nNo prompt provided via stdin.\n",
         "No prompt provided via stdin."),
        ("2026-11-17T19:37:42.3Z ERROR codex_core: noise\n", None),
        ("", None),
    ],
)  # fmt: skip
def test_the_last_words_on_stderr_are_one_sentence(stderr: str, sentence: str | None) -> None:
    assert last_words(stderr) == sentence


def test_what_is_shown_of_stderr_has_no_colours() -> None:
    assert readable("\x1b[2m2026-11-18\x1b[0m \x1b[31mERROR\x1b[0m core: no\n") == "2026-11-18 ERROR core: no\n"


def test_an_npm_package_without_its_program_is_a_missing_cli() -> None:
    stderr = "Error: Missing optional dependency @openai/codex-linux-x64. Reinstall Codex: npm install\n"
    assert run(printing(stderr=stderr, exit_code=1))[1].error_subtype == "cli_missing"


# --- threads -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("session_id", ["my session", "1234", THREAD + "0", "x" * 36, THREAD.replace("-", "")])
def test_a_malformed_session_id_fails_before_anything_is_started(session_id: str, tmp_path: Path) -> None:
    """Codex would start a new thread and exit 0."""
    runtime = CodexCliRuntime(fake_command(["record", str(tmp_path / "started")]))
    events, result = run(runtime, session_id=session_id)
    (error,) = events
    assert isinstance(error, AgentErrorEvent)
    assert (error.code, result.error_subtype) == (errors.SESSION_NOT_FOUND, "session_not_found")
    assert session_id in error.message
    assert not (tmp_path / "started").exists()


def test_another_thread_than_the_asked_one_is_a_failure_and_its_answer_is_not_told(tmp_path: Path) -> None:
    other = line("thread.started", thread_id="01a1eb00-15c6-7ed1-bb4b-000000000000")
    runtime = printing(other, line("turn.started"), message("completed", "item_0", "wrong"), COMPLETED)
    events, result = run(runtime, session_id=THREAD, env={"CODEX_HOME": str(tmp_path)})
    assert [getattr(event, "code", event) for event in events] == [errors.SESSION_NOT_FOUND]
    assert (result.error_subtype, result.text, result.session_id) == ("session_not_found", "", None)


def record_thread(codex_home: Path, *lines: Any) -> Path:
    """A record of the thread as Codex writes it; a str is written as it is."""
    path = codex_home / "sessions" / "2026" / "11" / "17" / f"rollout-2026-11-17T19-33-33-{THREAD}.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(each if isinstance(each, str) else json.dumps(each) + "\n" for each in lines))
    return path


def token_count(**counts: int) -> dict[str, Any]:
    payload = {"type": "token_count", "info": {"total_token_usage": usage(**counts), "last_token_usage": usage()}}
    return {"type": "event_msg", "payload": payload}


QUOTED = {"type": "response_item", "payload": {"type": "message", "content": '{"total_token_usage": 1}'}}
NO_COUNT = {"type": "event_msg", "payload": {"type": "token_count", "info": None}}


@pytest.mark.parametrize(
    ("recorded", "used"),
    [
        (
            [token_count(input=90), token_count(input=100, cached=10, written=2, output=20), NO_COUNT, QUOTED],
            (30, 6, 5, 1),
        ),
        ([token_count(input=100, cached=10, written=2, output=20), '{"type": "event_m'], (30, 6, 5, 1)),
        ([{"type": "session_meta"}], (130, 26, 15, 3)),
        ([token_count(input=131)], None),
        (None, None),
    ],
    ids=["the last count", "half a line at the end", "nothing counted yet", "less than before", "no record"],
)
def test_a_resumed_run_reports_its_own_usage_or_none(
    recorded: list[Any] | None, used: tuple[int, ...] | None, tmp_path: Path
) -> None:
    """Source: 0.166.0 counts from the beginning of the thread."""
    if recorded is not None:
        record_thread(tmp_path, *recorded)
    completed = line("turn.completed", usage=usage(input=130, cached=15, written=3, output=26))
    result = done(printing(*STARTED, completed).execute("hi", session_id=THREAD, env={"CODEX_HOME": str(tmp_path)}))
    assert result.ok
    assert result.usage == (used and AgentUsage(*used))


def test_the_record_is_looked_for_where_the_cli_of_the_run_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_thread(tmp_path / "home" / ".codex", token_count(input=100, output=0))
    completed = line("turn.completed", usage=usage(input=130, output=0))
    runtime = printing(*STARTED, completed)
    monkeypatch.delenv("CODEX_HOME", raising=False)
    for fields in (
        {"env": {"HOME": str(tmp_path / "home")}},
        {"env": {"CODEX_HOME": "home/.codex"}, "working_directory": tmp_path},
    ):
        result = done(runtime.execute("hi", session_id=THREAD, **fields))
        assert result.usage == AgentUsage(30, 0)


def test_a_record_of_any_size_is_read_from_its_end(tmp_path: Path) -> None:
    filler = {"type": "response_item", "payload": {"text": "x" * 3_000_000}}
    record_thread(tmp_path, token_count(input=1), token_count(input=7, output=0), filler, filler)
    assert read_record(tmp_path, THREAD).tokens_so_far == AgentUsage(7, 0)


def test_a_record_that_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    assert read_record(tmp_path / "nowhere", THREAD) == ThreadRecord()
    (tmp_path / "sessions").write_text("a file")
    assert read_record(tmp_path, THREAD) == ThreadRecord()


@pytest.mark.parametrize(("system_prompt", "warnings"), [("Be brief.\n", 0), ("Be kind.", 1), (None, 0)])
def test_a_system_prompt_that_a_resumed_thread_ignores_is_a_warning(
    system_prompt: str | None, warnings: int, tmp_path: Path
) -> None:
    """Source: 0.166.0 sends the instructions that the thread started with."""
    parts = [{"type": "input_text", "text": "Be brief."}, {"type": "input_text", "text": "<skills>"}]
    developer = {"type": "response_item", "payload": {"type": "message", "role": "developer", "content": parts}}
    record_thread(tmp_path, {"type": "session_meta"}, developer)
    runtime = printing(*STARTED, message("completed", "item_0", "fine"), COMPLETED)
    events, result = run(runtime, session_id=THREAD, system_prompt=system_prompt, env={"CODEX_HOME": str(tmp_path)})
    assert result.ok
    assert [event.code for event in events if isinstance(event, AgentErrorEvent)] == [errors.CLI_WARNING] * warnings


def test_a_recorded_run_of_a_resumed_thread_plays_without_the_threads_record(tmp_path: Path) -> None:
    parts = [{"type": "input_text", "text": "Be brief."}]
    developer = {"type": "response_item", "payload": {"type": "message", "role": "developer", "content": parts}}
    thread = record_thread(tmp_path, developer, token_count(input=100, output=20))
    runtime = printing(*STARTED, line("turn.completed", usage=usage(input=130, output=26)), record=tmp_path / "run")
    events, result = run(runtime, session_id=THREAD, system_prompt="Be kind.", env={"CODEX_HOME": str(tmp_path)})
    thread.unlink()
    events_again, result_again = finished(ReplayRuntime(tmp_path / "run").execute())
    assert events_again == events != []
    assert result_again.usage == result.usage == AgentUsage(30, 6)


# --- the command -------------------------------------------------------------------------------------------


def test_the_plain_command() -> None:
    assert args() == ["exec", *FLAGS, "--", "-"]


def test_a_resumed_thread_gets_all_options_before_the_subcommand() -> None:
    command = args(session_id=THREAD.upper(), model="m", permission_mode="accept-edits", system_prompt="s")
    options = ["--model=m", "--sandbox=workspace-write", '--config=developer_instructions="s"']
    assert command == ["exec", *FLAGS, *options, "resume", "--", THREAD, "-"]


@pytest.mark.parametrize(
    ("mode", "flags"),
    [
        ("default", []),
        ("read-only", ["--sandbox=read-only"]),
        ("accept-edits", ["--sandbox=workspace-write"]),
        ("bypass", ["--dangerously-bypass-approvals-and-sandbox"]),
    ],
)
def test_permission_modes(mode: Any, flags: list[str]) -> None:
    assert args(permission_mode=mode) == ["exec", *FLAGS, *flags, "--", "-"]


def test_no_value_becomes_an_argument_of_its_own() -> None:
    nasty = "--dangerously-bypass-approvals-and-sandbox"
    command = args(nasty, model=nasty, system_prompt=nasty)
    assert command == ["exec", *FLAGS, f"--model={nasty}", f'--config=developer_instructions="{nasty}"', "--", "-"]


def test_extra_arguments_stand_where_a_variadic_one_swallows_nothing() -> None:
    assert args(extra_args=["-i", "x.png"])[:4] == ["exec", "-i", "x.png", "--json"]


def test_not_waiting_for_the_network_is_a_setting_of_codex() -> None:
    override = "--config=features.unbounded_connection_retries=false"
    assert override in args(runtime=CodexCliRuntime(wait_for_network=False))
    assert override not in args()


@pytest.mark.parametrize(
    "value", ['say "hi"', "back\\slash", "a\nb\r\n\tc", "\x7f\x01\x1b", "👩‍💻 é ' = [x]", "${HOME}"]
)
def test_a_system_prompt_survives_toml(value: str) -> None:
    assert tomllib.loads(f"key = {inline_toml(value)}") == {"key": value}


def test_the_prompt_is_written_as_it_is_and_a_byte_order_mark_twice() -> None:
    """Source: 0.166.0 removes one byte order mark."""
    runtime = CodexCliRuntime()
    for prompt in ("-", "--help", "/clear", "@/etc/passwd", " two\nlines\n\n", "emoji 👩‍💻"):
        assert runtime.stdin_data(AgentExecuteParams(prompt)) == prompt.encode()
    assert runtime.stdin_data(AgentExecuteParams("\ufeffhi")) == "\ufeff\ufeffhi".encode()


def test_the_variables_of_an_outer_codex_do_not_reach_an_inner_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in OUTER_RUN_VARIABLES:
        monkeypatch.setenv(name, "outer")
    runtime = CodexCliRuntime(fake_command(["record", str(tmp_path / "started")]))
    list(runtime.execute("hi", working_directory=tmp_path))
    assert not set(json.loads((tmp_path / "started").read_text())["env"]) & set(OUTER_RUN_VARIABLES)


@pytest.mark.parametrize(
    ("name", "complaint"), [("nothing.png", "No such file"), (".", "directory"), ("text", "not a PNG")]
)
def test_an_image_that_cannot_be_shown_is_refused_when_the_call_is_made(
    name: str, complaint: str, tmp_path: Path
) -> None:
    """Source: 0.166.0 tells the model, and only the model, that the content was omitted."""
    (tmp_path / "good").write_bytes(PNG)
    (tmp_path / "text").write_text("no image")
    with pytest.raises(ValueError, match=rf"images\[1\].*{complaint}"):
        CodexCliRuntime().execute("hi", images=[tmp_path / "good", tmp_path / name])


def test_an_image_whose_name_has_a_comma_is_handed_over_by_another_name(tmp_path: Path) -> None:
    """Source: `--image` takes a list with commas."""
    image, plain = tmp_path / "a,b.png", tmp_path / "plain.png"
    image.write_bytes(PNG)
    plain.write_bytes(PNG)
    runtime = CodexCliRuntime(fake_command(["record", str(tmp_path / "started")]))
    list(runtime.execute("hi", images=[image, plain], working_directory=tmp_path))
    first, second = [
        argument for argument in json.loads((tmp_path / "started").read_text())["argv"] if "--image" in argument
    ]
    assert "," not in first
    assert first.endswith(".png")
    assert second == f"--image={plain}"


def test_the_factory_makes_one_and_a_missing_codex_says_how_to_install_it() -> None:
    runtime = create_cli_runtime("codex", command="no-such-codex", timeout=5.0)
    assert isinstance(runtime, CodexCliRuntime)
    (error,), result = finished(runtime.execute("hi"))
    assert isinstance(error, AgentErrorEvent)
    assert "npm install -g @openai/codex" in error.message
    assert result.error_subtype == "cli_missing"


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/mcp?api_key=sk-0123456789",
        "https://user:sk-0123456789@example.com/mcp",
        "https://sk-0123456789@example.com/mcp",
        "https://example.com/mcp#sk-0123456789",
        "https://example.com/mcp/sk-0123456789abcdef",
    ],
)
def test_a_key_in_the_url_of_an_mcp_server_is_in_no_argument(url: str, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    (tmp_path / "codex").mkdir()
    runtime = CodexCliRuntime(fake_command(["record", str(seen)]))
    servers = {"web": McpServerConfig(url=url)}
    done(runtime.execute("hi", mcp_servers=servers, env={"CODEX_HOME": str(tmp_path / "codex")}))
    arguments = json.loads(seen.read_text())["argv"]
    assert not any("0123456789" in argument for argument in arguments)
    assert any(argument.startswith("--profile=") for argument in arguments)


def test_a_server_without_secrets_is_in_the_arguments(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    servers = {"web": McpServerConfig(url="https://example.com/mcp")}
    runtime = CodexCliRuntime(fake_command(["record", str(seen)]))
    done(runtime.execute("hi", mcp_servers=servers, env={"CODEX_HOME": str(tmp_path / "codex")}))
    assert any("https://example.com/mcp" in argument for argument in json.loads(seen.read_text())["argv"])
