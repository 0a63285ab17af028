"""Runs of the real OpenCode, each of which shows one thing; see scenarios.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.real_clis.bench import Bench, RawRun
from tests.real_clis.clis import OpenCode
from tests.real_clis.model_server import ModelRequest
from tests.real_clis.scenarios import (
    COMPLAINT,
    PROMPT,
    Responder,
    Scenario,
    complaint,
    refused_connection,
    responding,
    scripted,
)
from tests.real_clis.script import Cut, HttpError, Reply, ToolCall, Turn, Usage

AT_ONCE = 0.05  # Seconds between retries, as the server requests; OpenCode's own are 2, 4, 8, 17 and 37.
LOGS = {"OPENCODE_PRINT_LOGS": "1", "OPENCODE_LOG_LEVEL": "ERROR"}
SECRET = "sk-a-secret-in-a-config"
BROKEN_CONFIG = f'{{"provider": {{"x": {{"options": {{"apiKey": "{SECRET}" oops'
RULED_OUT = {"permission": {"bash": {"*": "allow", "rm *": "deny"}}}
SMALL_MODEL = {"provider": {"bench": {"models": {"scripted": {"limit": {"context": 50_000, "output": 1_000}}}}}}

opencode_cli = OpenCode()


def opencode(bench: Bench, *arguments: str, prompt: str = PROMPT, config: Any = None, title: bool = True) -> RawRun:
    """The command line of our runtime, without our runtime."""
    settings = (
        {} if config is None else {"OPENCODE_CONFIG_CONTENT": config if isinstance(config, str) else json.dumps(config)}
    )
    flags = [f"--dir={bench.workdir}", *(["--title="] if title else []), *arguments, "--thinking", "--format=json"]
    return bench.run_argv(["opencode", "run", *flags], prompt, env={**LOGS, **settings}, timeout=110)


def answered(*replies: Reply, arguments: Sequence[str] = (), config: Any = None) -> Scenario:
    """A run in which the model gives these replies."""
    return scripted(lambda bench: opencode(bench, *arguments, config=config), *replies)


def failed(status: int, message: str = COMPLAINT, kind: str | None = None) -> Scenario:
    """A run whose requests all fail."""
    return answered(complaint(status, message, kind, retry_after=AT_ONCE))


def read(path: str) -> ToolCall:
    """The model reads a file."""
    return ToolCall("read", {"filePath": path})


def task(prompt: str) -> ToolCall:
    """The model starts a sub-agent."""
    return ToolCall("task", {"description": "a sub task", "prompt": prompt, "subagent_type": "general"})


def delegating(inner: Turn, then: Turn | None = None) -> Responder:
    """A model that gives a task to a sub-agent, which gives this answer."""

    def respond(request: ModelRequest) -> Reply:
        if request.prompt == "the inner task":
            return then if then is not None and request.tool_results else inner
        return Turn(text="outer answer") if request.tool_results else Turn(tool_calls=[task("the inner task")])

    return respond


def overflowing(first: Turn | HttpError) -> Responder:
    """A model whose first answer fills its context window; it is asked for a summary, and then continues."""
    asked = iter([first])

    def respond(request: ModelRequest) -> Reply:
        if not request.tools:
            return Turn(thinking="what was it", text="THE SUMMARY")
        return next(asked, Turn(text="the rest"))

    return respond


def asked(new_responder: Callable[[], Responder], config: Any = None) -> Scenario:
    """A run whose model looks at each request."""
    return responding(lambda bench: opencode(bench, config=config), new_responder)


def _tools(bench: Bench) -> RawRun:
    cli = bench.opencode
    calls = [
        cli.shell_call("sleep 0.3; echo out; echo err >&2", "call_works"),
        cli.shell_call("echo gone; exit 3", "call_fails"),
        cli.write_file_call(bench.workdir / "note.txt", "one\n", "call_write"),
        ToolCall("no_such_tool", {"a": 1}, "call_unknown"),
        ToolCall("bash", "{not json", "call_garbled"),
        ToolCall("read", {"path": 5}, "call_misfit"),
        ToolCall("read", {"filePath": str(bench.workdir / "missing")}, "call_missing"),
    ]
    bench.server.script([Turn(text="Wait.", tool_calls=calls), Turn(text="Done.")])
    return opencode(bench)


def _timed_out_tool(bench: Bench) -> RawRun:
    call = ToolCall("bash", {"command": "sleep 60", "timeout": 200, "description": "sleep"}, "call_slow")
    bench.server.script([Turn(tool_calls=[call]), Turn(text="It took too long.")])
    return opencode(bench)


def _mcp(bench: Bench) -> RawRun:
    server = {"type": "local", "command": bench.mcp_command()}
    names = {"echo": "h\u00e9", "fail": "bad", "rpc_fail": "worse"}
    calls = [bench.opencode.mcp_call("lab", name, {"text": text}, f"call_{name}") for name, text in names.items()]
    bench.server.script([Turn(tool_calls=calls), Turn(text="Called.")])
    return opencode(bench, config={"mcp": {"lab": server}})


def _resumed(bench: Bench) -> RawRun:
    bench.server.script([Turn(text="First.", usage=Usage(100, 7, 20, 0, 3)), Turn(text="Second.")])
    first = opencode(bench)
    return opencode(bench, f"--session={first.lines[0]['sessionID']}", title=False)


SCENARIOS: Mapping[str, Scenario] = {
    "plain": answered(Turn(thinking="Let me see.", text=["Hel", "lo, ", "world"], usage=Usage(100, 7, 20, 0, 3))),
    "empty_answer": answered(Turn()),
    "tools": _tools,
    "timed_out_tool": _timed_out_tool,
    "mcp": _mcp,
    "stop_after_tools": answered(
        Turn(text="Calling.", tool_calls=[opencode_cli.shell_call("true")], stop="end_turn"), Turn(text="Called.")
    ),
    "stream_cut": answered(Turn(text=["half", Cut(clean=True)]), Turn(text="whole")),
    "max_output_tokens": answered(Turn(text="cut off", stop="max_tokens")),
    "refusal": answered(Turn(text="I will", stop="refusal")),
    "sub_agent": asked(lambda: delegating(Turn(text="inner answer"))),
    "sub_agent_denied": asked(lambda: delegating(Turn(tool_calls=[read("/etc/hostname")]))),
    "permission_rejected": answered(Turn(text="I look.", tool_calls=[read("/etc/hostname")])),
    "permission_ruled_out": answered(
        Turn(tool_calls=[opencode_cli.shell_call("rm -rf x")]), Turn(text="I may not."), config=RULED_OUT
    ),
    "compacted": asked(
        lambda: overflowing(
            Turn(text="the start", tool_calls=[opencode_cli.shell_call("true")], usage=Usage(60_000, 10))
        ),
        config=SMALL_MODEL,
    ),
    "context_overflow": asked(
        lambda: overflowing(complaint(400, "maximum context length is 8192", "context_length_exceeded"))
    ),
    "context_overflow_without_compaction": answered(
        complaint(400, "maximum context length is 8192 tokens", "context_length_exceeded"),
        config={"compaction": {"auto": False}},
    ),
    "resumed": _resumed,
    "http_400": failed(400),
    "http_401": failed(401),
    "http_403": failed(403),
    "http_404": failed(404),
    "http_429": failed(429),
    "quota": failed(429, "You exceeded your current quota", "insufficient_quota"),
    "http_500": failed(500),
    "http_529": failed(529),
    "refused_connection": refused_connection(opencode),
    "unknown_session": lambda bench: opencode(bench, "--session=ses_e14fae195ffeXzp9W5IzXZ1jnA", title=False),
    "unknown_flag": lambda bench: opencode(bench, "--no-such-flag"),
    "unknown_model": lambda bench: opencode(bench, "--model=bench/no-such-model"),
    "bad_config": lambda bench: opencode(bench, config=BROKEN_CONFIG),
    "bad_value": lambda bench: opencode(bench, config={"provider": SECRET}),
}
