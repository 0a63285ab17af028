"""Runs of the real Gemini CLI, each of which shows one thing; see scenarios.py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

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
from tests.real_clis.script import Cut, Reply, ToolCall, Turn, Usage

LIST_FOLDER = ToolCall("list_directory", {"dir_path": "."})


def gemini(
    bench: Bench, *arguments: str, prompt: str = PROMPT, model: str | None = None, trusted: bool = True
) -> RawRun:
    """The command line of our runtime, without our runtime."""
    flags = ["--output-format=stream-json", f"--model={model or bench.gemini.model}"]
    env = {"GEMINI_CLI_TRUST_WORKSPACE": "true"} if trusted else {}
    return bench.run_argv(["gemini", *flags, *arguments], prompt, env=env)


def settings(bench: Bench, **sections: Mapping[str, Any]) -> None:
    """Change the user's settings."""
    path = bench.home / ".gemini" / "settings.json"
    whole = json.loads(path.read_text())
    for name, section in sections.items():
        whole[name] = {**whole.get(name, {}), **section}
    path.write_text(json.dumps(whole))


def answered(*replies: Reply, arguments: tuple[str, ...] = (), model: str | None = None) -> Scenario:
    """A run in which the model gives these replies."""
    return scripted(lambda bench: gemini(bench, *arguments, model=model), *replies)


def attempting(times: int) -> Scenario:
    """A run in which the CLI makes this many attempts; by default it makes ten, which takes minutes."""

    def scenario(bench: Bench) -> RawRun:
        settings(bench, general={"maxAttempts": times})
        return gemini(bench)

    return scenario


def failed(reply: Reply) -> Scenario:
    """A run in which every request gets this reply."""
    return scripted(attempting(1), then=reply)


def survived(failure: Reply) -> Scenario:
    """A run whose second request succeeds."""
    return scripted(attempting(2), failure, Turn(text="Fine now."))


def _tools(bench: Bench) -> RawRun:
    cli = bench.gemini
    parallel = [
        cli.shell_call("echo out; echo err >&2"),
        cli.shell_call("echo gone; exit 3"),
        cli.shell_call("exit 3"),
        cli.write_file_call(bench.workdir / "note.txt", "one\n"),
    ]
    further = [LIST_FOLDER, ToolCall("read_file", {"file_path": "missing.txt"}), ToolCall("no_such_tool", {"a": 1})]
    bench.server.script([Turn(text="Wait.", tool_calls=parallel), Turn(tool_calls=further), Turn(text="Done.")])
    return gemini(bench, "--approval-mode=yolo")


def delegate(request: ModelRequest) -> Turn:
    """The model gives a task to a sub-agent, which does it."""
    if any("the inner task" in text for text in request.conversation.user_texts):
        done = ToolCall("complete_task", {"result": {"response": "inner result"}})
        return Turn(text="Inner words.", tool_calls=[done])
    if request.tool_results:
        return Turn(text="Outer answer.")
    return Turn(tool_calls=[ToolCall("invoke_agent", {"agent_name": "generalist", "prompt": "the inner task"})])


def _denied(bench: Bench) -> RawRun:
    write = bench.gemini.write_file_call(bench.workdir / "a.txt", "x")
    calls = [bench.gemini.shell_call("ls"), write, ToolCall("mcp_lab_echo", {"text": "x"}), ToolCall("no_such_tool")]
    bench.server.script([Turn(tool_calls=calls), Turn(text="Nothing worked.")])
    return gemini(bench)


def _max_turns(bench: Bench) -> RawRun:
    settings(bench, model={"maxSessionTurns": 1})
    bench.server.script([Turn(tool_calls=[LIST_FOLDER])])
    return gemini(bench)


def _resumed(bench: Bench) -> RawRun:
    bench.server.script([Turn(text="First.", usage=Usage(100, 7, 20, 0, 3)), Turn(text="Second.")])
    first = gemini(bench)
    return gemini(bench, f"--resume={first.lines[0]['session_id']}")


def _no_auth_method(bench: Bench) -> RawRun:
    (bench.home / ".gemini" / "settings.json").write_text("{}")
    return gemini(bench)


def _bad_settings(bench: Bench) -> RawRun:
    (bench.home / ".gemini" / "settings.json").write_text('{ "mcpServers": {"a": {"env": {"TOKEN": "s3cret"}}} ')
    return gemini(bench)


SCENARIOS: Mapping[str, Scenario] = {
    "plain": answered(Turn(thinking="Let me see.", text=["Hel", "lo, ", "world"], usage=Usage(100, 7, 20, 0, 3))),
    "routed_model": answered(Turn(text="Hello.", usage=Usage(100, 7)), model="auto"),
    "tools": _tools,
    "sub_agent": responding(lambda bench: gemini(bench, "--approval-mode=yolo"), lambda: delegate),
    "denied": _denied,
    "denied_by_policy": answered(
        Turn(tool_calls=[ToolCall("invoke_agent", {"agent_name": "generalist", "prompt": "x"})]),
        Turn(text="No."),
        arguments=("--approval-mode=plan",),
    ),
    "loop": failed(Turn(text=["Same sentence again. "] * 60)),  # It is asked once to stop.
    "stream_cut": answered(Turn(text=["Half an ", Cut(clean=True)]), Turn(text="A whole answer.")),
    "connection_lost": answered(Turn(text=["Half an ", Cut()])),
    "survived_retry": survived(complaint(500)),
    "survived_rate_limit": survived(complaint(429, retry_after=1.0)),
    "resumed": _resumed,
    "empty_answer": failed(Turn()),
    "thoughts_only": failed(Turn(thinking="Hm.")),
    "max_turns": _max_turns,
    "second_request_fails": answered(Turn(text="First.", tool_calls=[LIST_FOLDER]), complaint(400)),
    "http_400": failed(complaint(400)),
    "http_400_key": failed(complaint(400, "API key not valid. Please pass a valid API key.")),
    "http_400_too_long": failed(complaint(400, "The input token count (2000000) exceeds the maximum number allowed.")),
    "http_401": failed(complaint(401)),
    "http_403": failed(complaint(403)),
    "http_404": failed(complaint(404)),
    "http_429": failed(complaint(429)),
    "http_500": failed(complaint(500)),
    "http_503": failed(complaint(503)),
    "http_529": failed(complaint(529)),
    "refused_connection": refused_connection(attempting(1)),
    "command": lambda bench: gemini(bench, prompt="/quit"),
    "unknown_session": lambda bench: gemini(bench, "--resume=01a1eb00-15c6-7ed1-bb4b-e9131945d2e9"),
    "unknown_flag": lambda bench: gemini(bench, "--no-such-flag"),
    "bad_value": lambda bench: gemini(bench, "--approval-mode=whatever"),
    "untrusted": lambda bench: gemini(bench, trusted=False),
    "no_key": without_variable("GEMINI_API_KEY", gemini),
    "no_auth_method": _no_auth_method,
    "bad_settings": _bad_settings,
}
