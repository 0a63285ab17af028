"""Runs of the real OpenCode that show one thing each; their output is kept in tests/transcripts/opencode/<version>/.

`python -m tests.real_clis.scenarios_opencode [name...]` writes them anew.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.real_clis.bench import Bench, RawRun, open_bench, refused_url, wanted_bin_folder
from tests.real_clis.clis import OpenCode
from tests.real_clis.install import PACKAGE_OF_CLI, wanted_versions
from tests.real_clis.model_server import ModelRequest
from tests.real_clis.script import Cut, HttpError, Reply, ToolCall, Turn, Usage

TRANSCRIPTS = Path(__file__).parents[1] / "transcripts" / "opencode"
PROMPT = "do what the script says"
AT_ONCE = 0.05  # Seconds between retries, by the server's wish: OpenCode's own are 2, 4, 8, 17 and 37.
LOGS = {"OPENCODE_PRINT_LOGS": "1", "OPENCODE_LOG_LEVEL": "ERROR"}
SECRET = "sk-a-secret-in-a-config"
BROKEN_CONFIG = f'{{"provider": {{"x": {{"options": {{"apiKey": "{SECRET}" oops'
RULED_OUT = {"permission": {"bash": {"*": "allow", "rm *": "deny"}}}
SMALL_MODEL = {"provider": {"bench": {"models": {"scripted": {"limit": {"context": 50_000, "output": 1_000}}}}}}

Scenario = Callable[[Bench], RawRun]
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

    def scenario(bench: Bench) -> RawRun:
        bench.server.script(replies)
        return opencode(bench, *arguments, config=config)

    return scenario


def failed(status: int, message: str = "the scripted complaint", kind: str | None = None) -> Scenario:
    """A run whose requests all fail."""
    return answered(HttpError(status=status, message=message, kind=kind, retry_after=AT_ONCE))


def read(path: str) -> ToolCall:
    """The model reads a file."""
    return ToolCall("read", {"filePath": path})


def task(prompt: str) -> ToolCall:
    """The model starts a sub-agent."""
    return ToolCall("task", {"description": "a sub task", "prompt": prompt, "subagent_type": "general"})


def delegating(inner: Turn, then: Turn | None = None) -> Callable[[ModelRequest], Reply]:
    """A model that gives a task to a sub-agent, which answers so."""

    def respond(request: ModelRequest) -> Reply:
        if request.prompt == "the inner task":
            return then if then is not None and request.tool_results else inner
        return Turn(text="outer answer") if request.tool_results else Turn(tool_calls=[task("the inner task")])

    return respond


def overflowing(first: Turn | HttpError) -> Callable[[ModelRequest], Reply]:
    """A model whose first answer fills its context window; it is asked for a summary, and then goes on."""
    asked = iter([first])

    def respond(request: ModelRequest) -> Reply:
        if not request.tools:
            return Turn(thinking="what was it", text="THE SUMMARY")
        return next(asked, Turn(text="the rest"))

    return respond


def _responding(responder: Callable[[], Callable[[ModelRequest], Reply]], config: Any = None) -> Scenario:
    def scenario(bench: Bench) -> RawRun:
        bench.server.respond(responder())
        return opencode(bench, config=config)

    return scenario


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


def _refused_connection(bench: Bench) -> RawRun:
    bench.point_at(refused_url())
    return opencode(bench)


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
    "sub_agent": _responding(lambda: delegating(Turn(text="inner answer"))),
    "sub_agent_denied": _responding(lambda: delegating(Turn(tool_calls=[read("/etc/hostname")]))),
    "permission_rejected": answered(Turn(text="I look.", tool_calls=[read("/etc/hostname")])),
    "permission_ruled_out": answered(
        Turn(tool_calls=[opencode_cli.shell_call("rm -rf x")]), Turn(text="I may not."), config=RULED_OUT
    ),
    "compacted": _responding(
        lambda: overflowing(
            Turn(text="the start", tool_calls=[opencode_cli.shell_call("true")], usage=Usage(60_000, 10))
        ),
        config=SMALL_MODEL,
    ),
    "context_overflow": _responding(
        lambda: overflowing(
            HttpError(status=400, message="maximum context length is 8192", kind="context_length_exceeded")
        )
    ),
    "context_overflow_without_compaction": answered(
        HttpError(status=400, message="maximum context length is 8192 tokens", kind="context_length_exceeded"),
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
    "refused_connection": _refused_connection,
    "unknown_session": lambda bench: opencode(bench, "--session=ses_e14fae195ffeXzp9W5IzXZ1jnA", title=False),
    "unknown_flag": lambda bench: opencode(bench, "--no-such-flag"),
    "unknown_model": lambda bench: opencode(bench, "--model=bench/no-such-model"),
    "bad_config": lambda bench: opencode(bench, config=BROKEN_CONFIG),
    "bad_value": lambda bench: opencode(bench, config={"provider": SECRET}),
}


def neutral(text: str, bench: Bench) -> str:
    """Without what belongs to this machine."""
    places = {
        str(bench.workdir): "/work/project",
        str(bench.workdir).lstrip("/"): "work/project",  # Titles are relative to the root of no repository.
        str(bench.home): "/home/user",
        str(bench.tmp): "/tmp/user",
        str(bench.bin_dir.parents[1]): "/opt/clis",
        str(Path(__file__).parents[2]): "/opt/tests",
    }
    for place, name in places.items():
        text = text.replace(place, name)
    return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8080", text)


def capture(name: str, bench: Bench, folder: Path) -> None:
    """Run one scenario and write its stdout (`<name>.ndjson`) and the rest (`<name>.end.json`)."""
    run = SCENARIOS[name](bench)
    (folder / f"{name}.ndjson").write_text(neutral(run.stdout.decode(), bench), encoding="utf-8")
    end = {"exit_code": run.returncode, "stderr": neutral(run.stderr.decode(), bench)}
    (folder / f"{name}.end.json").write_text(json.dumps(end, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main(names: Sequence[str]) -> None:
    """Capture these scenarios, or all, with the pinned version."""
    folder = TRANSCRIPTS / wanted_versions()[PACKAGE_OF_CLI["opencode"]]
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or SCENARIOS:
        with tempfile.TemporaryDirectory() as root, open_bench(Path(root, "bench"), wanted_bin_folder()) as bench:
            capture(name, bench, folder)
            assert not bench.server.problems, (name, bench.server.problems)


if __name__ == "__main__":
    main(sys.argv[1:])
