"""Runs of the real Codex, each of which shows one thing; see scenarios.py."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tests.real_clis.bench import Bench, RawRun
from tests.real_clis.model_server import ModelRequest
from tests.real_clis.scenarios import (
    PROMPT,
    Scenario,
    complaint,
    refused_connection,
    responding,
    scripted,
    without_variable,
)
from tests.real_clis.script import Cut, HttpError, Reply, StreamError, ToolCall, Turn, Usage

FEW_RETRIES = (
    "--config=model_providers.bench.stream_max_retries=1",
    "--config=model_providers.bench.request_max_retries=0",
)
AGENTS = "multi_agent_v1"  # This group of tools is found only by a search, but can be called without one.
INNER_TASK = "the inner task"


def codex(bench: Bench, *arguments: str, prompt: str = PROMPT, resume: str | None = None) -> RawRun:
    """The command line of our runtime, without our runtime."""
    flags = ["--json", "--color=never", "--skip-git-repo-check", *arguments]
    ending = ["--", "-"] if resume is None else ["resume", "--", resume, "-"]
    return bench.run_argv(["codex", "exec", *flags, *ending], prompt)


def answered(*replies: Reply, arguments: Sequence[str] = ()) -> Scenario:
    """A run in which the model gives these replies."""
    return scripted(lambda bench: codex(bench, *arguments), *replies)


def failed(reply: Reply) -> Scenario:
    """A run in which every request gets this reply."""
    return scripted(lambda bench: codex(bench, *FEW_RETRIES), then=reply)


def shell(command: str, **fields: object) -> ToolCall:
    """A shell command with settings other than the bench's own."""
    return ToolCall("exec_command", {"cmd": command, **fields})


def mcp_server(bench: Bench, approval: str = "") -> str:
    """The override that adds our MCP server."""
    program, *arguments = bench.mcp_command()
    entry = f"command={json.dumps(program)},args={json.dumps(arguments)},required=true{approval}"
    return f"--config=mcp_servers={{lab={{{entry}}}}}"


def _tools(bench: Bench) -> RawRun:
    cli = bench.codex
    calls = [cli.shell_call("echo out; echo err >&2"), cli.shell_call("echo gone; exit 3")]
    change = cli.write_file_call(bench.workdir / "note.txt", "one\n")
    bench.server.script([Turn(text="Wait.", tool_calls=calls), Turn(tool_calls=[change]), Turn(text="Done.")])
    return codex(bench, "--sandbox=workspace-write")


def _refused_calls(bench: Bench) -> RawRun:
    calls = [
        shell("ls", sandbox_permissions="require_escalated", justification="I want it"),
        ToolCall("no_such_tool", {}),
        ToolCall("exec_command", "{not json"),
        bench.codex.write_file_call(bench.workdir / "note.txt", "one\n"),
    ]
    bench.server.script([Turn(tool_calls=calls), Turn(text="Nothing worked.")])
    return codex(bench, "--sandbox=read-only")


def _mcp(bench: Bench) -> RawRun:
    names = {"echo": "h\u00e9", "fail": "bad", "rpc_fail": "worse"}
    calls = [bench.codex.mcp_call("lab", name, {"text": text}) for name, text in names.items()]
    bench.server.script([Turn(tool_calls=calls), Turn(text="Called.")])
    return codex(bench, mcp_server(bench, ',default_tools_approval_mode="approve"'))


def _mcp_unapproved(bench: Bench) -> RawRun:
    bench.server.script([Turn(tool_calls=[bench.codex.mcp_call("lab", "echo", {"text": "x"})]), Turn(text="No.")])
    return codex(bench, mcp_server(bench))


def _plan(bench: Bench) -> RawRun:
    def update(*statuses: str) -> Turn:
        plan = [{"step": f"step {number}", "status": status} for number, status in enumerate(statuses, 1)]
        return Turn(tool_calls=[ToolCall("update_plan", {"plan": plan})])

    bench.server.script([update("in_progress", "pending"), update("completed", "in_progress"), Turn(text="Planned.")])
    return codex(bench, "--config=tools.update_plan.enabled=true")


def delegate(request: ModelRequest) -> Turn:
    """The model starts a sub-agent, waits for it and answers."""
    if request.prompt == INNER_TASK:
        return Turn(text="inner answer")
    if not request.tool_results:
        return Turn(tool_calls=[ToolCall("spawn_agent", {"message": INNER_TASK}, namespace=AGENTS)])
    return wait_for_agent(request)


def wait_for_agent(request: ModelRequest) -> Turn:
    """The model waits for the sub-agent that it started, and then answers."""
    (result,) = request.tool_results  # Only those of the last request.
    if "inner answer" in result.text:
        return Turn(text="outer answer")
    wait = {"targets": [json.loads(result.text)["agent_id"]], "timeout_ms": 30_000}
    return Turn(tool_calls=[ToolCall("wait_agent", wait, namespace=AGENTS)])


def _resumed(bench: Bench) -> RawRun:
    bench.server.script([Turn(text="First.", usage=Usage(100, 7, 20, 0, 3)), Turn(text="Second.")])
    first = codex(bench)
    return codex(bench, resume=first.lines[0]["thread_id"])


def _bad_config(bench: Bench) -> RawRun:
    config = bench.home / ".codex" / "config.toml"
    config.write_text(config.read_text() + 'experimental_bearer_token = "sk-a-secret" and more\n')
    return codex(bench)


WEB_SEARCH = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {"type": "search", "query": "weather"},
}

SCENARIOS: Mapping[str, Scenario] = {
    "plain": answered(Turn(thinking="Let me see.", text=["Hel", "lo, ", "world"], usage=Usage(100, 7, 20, 0, 3))),
    "several_messages": answered(
        Turn(text="All tests pass; here is more.", tool_calls=[shell("true")]), Turn(text="Short.")
    ),
    "empty_answer": answered(Turn()),
    "tools": _tools,
    "refused_calls": _refused_calls,
    "mcp": _mcp,
    "mcp_unapproved": _mcp_unapproved,
    "plan": _plan,
    "sub_agent": responding(codex, lambda: delegate),
    "web_search": answered(
        Turn(tool_calls=[ToolCall("web_search", item=WEB_SEARCH)]), arguments=['--config=web_search="live"']
    ),
    "left_running": answered(
        Turn(tool_calls=[shell("sleep 600", yield_time_ms=300)]), Turn(text="It is still running.")
    ),
    "warning": answered(Turn(text="All the same."), arguments=["--model=no-such-model"]),
    "stream_cut": answered(
        Turn(thinking="Hm.", text="Hello.", cut=Cut()),
        Turn(thinking="Hm.", text="Hello. Again."),
        arguments=FEW_RETRIES,
    ),
    "resumed": _resumed,
    "http_400": failed(complaint(400)),
    "http_401": failed(complaint(401)),
    "http_403": failed(complaint(403)),
    "http_404": failed(complaint(404)),
    "http_429": failed(complaint(429)),
    "http_500": failed(complaint(500)),
    "http_529": failed(complaint(529)),
    "usage_limit": failed(HttpError(status=429, kind="usage_limit_reached")),
    "quota": failed(Turn(text=[StreamError("no money", "insufficient_quota")])),
    "context_window": failed(Turn(text=[StreamError("too long", "context_length_exceeded")])),
    "at_capacity": failed(Turn(text=[StreamError("busy", "server_is_overloaded")])),
    "rate_limit_in_stream": failed(Turn(text=[StreamError("slow down", "rate_limit_exceeded")])),
    "stream_error": failed(Turn(text=[StreamError("it broke", "other")])),
    "max_output_tokens": failed(Turn(text="cut off", stop="max_tokens")),
    "refused_connection": refused_connection(
        lambda bench: codex(bench, *FEW_RETRIES, "--config=features.unbounded_connection_retries=false")
    ),
    "no_key": without_variable("BENCH_API_KEY", codex),
    "unknown_session": lambda bench: codex(bench, resume="01a1eb00-15c6-7ed1-bb4b-e9131945d2e9"),
    "unknown_flag": lambda bench: codex(bench, "--no-such-flag"),
    "bad_config": _bad_config,
    "bad_value": lambda bench: codex(bench, '--config=sandbox_mode="whatever"'),
    "prompt_too_long": lambda bench: codex(bench, prompt="x" * 1_048_577),
}
