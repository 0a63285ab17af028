"""Runs of the real Codex that show one thing each; their output is kept in tests/transcripts/codex/<version>/.

`python -m tests.real_clis.scenarios_codex [name...]` writes them anew.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.real_clis.bench import Bench, RawRun, open_bench, refused_url, wanted_bin_folder
from tests.real_clis.install import PACKAGE_OF_CLI, wanted_versions
from tests.real_clis.script import Cut, HttpError, Reply, StreamError, ToolCall, Turn, Usage

TRANSCRIPTS = Path(__file__).parents[1] / "transcripts" / "codex"
FEW_RETRIES = (
    "--config=model_providers.bench.stream_max_retries=1",
    "--config=model_providers.bench.request_max_retries=0",
)
PROMPT = "do what the script says"

Scenario = Callable[[Bench], RawRun]


def codex(bench: Bench, *arguments: str, prompt: str = PROMPT, resume: str | None = None) -> RawRun:
    """The command line of our runtime, without our runtime."""
    flags = ["--json", "--color=never", "--skip-git-repo-check", *arguments]
    ending = ["--", "-"] if resume is None else ["resume", "--", resume, "-"]
    return bench.run_argv(["codex", "exec", *flags, *ending], prompt)


def answered(*replies: Reply, arguments: Sequence[str] = ()) -> Scenario:
    """A run in which the model gives these replies."""

    def scenario(bench: Bench) -> RawRun:
        bench.server.script(replies)
        return codex(bench, *arguments)

    return scenario


def failed(*replies: Reply) -> Scenario:
    """A run that is answered so again and again."""

    def scenario(bench: Bench) -> RawRun:
        bench.server.script(replies, then=replies[-1])
        return codex(bench, *FEW_RETRIES)

    return scenario


def shell(command: str, **fields: object) -> ToolCall:
    """A shell command with other settings than the bench's own."""
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


def _resumed(bench: Bench) -> RawRun:
    bench.server.script([Turn(text="First.", usage=Usage(100, 7, 20, 0, 3)), Turn(text="Second.")])
    first = codex(bench)
    return codex(bench, resume=first.lines[0]["thread_id"])


def _refused_connection(bench: Bench) -> RawRun:
    bench.point_at(refused_url())
    return codex(bench, *FEW_RETRIES, "--config=features.unbounded_connection_retries=false")


def _bad_config(bench: Bench) -> RawRun:
    config = bench.home / ".codex" / "config.toml"
    config.write_text(config.read_text() + 'experimental_bearer_token = "sk-a-secret" and more\n')
    return codex(bench)


def _no_key(bench: Bench) -> RawRun:
    del bench.env["BENCH_API_KEY"]
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
    "http_400": failed(HttpError(status=400, message="the scripted complaint")),
    "http_401": failed(HttpError(status=401, message="the scripted complaint")),
    "http_403": failed(HttpError(status=403, message="the scripted complaint")),
    "http_404": failed(HttpError(status=404, message="the scripted complaint")),
    "http_429": failed(HttpError(status=429, message="the scripted complaint")),
    "http_500": failed(HttpError(status=500, message="the scripted complaint")),
    "http_529": failed(HttpError(status=529, message="the scripted complaint")),
    "usage_limit": failed(HttpError(status=429, kind="usage_limit_reached")),
    "quota": failed(Turn(text=[StreamError("no money", "insufficient_quota")])),
    "context_window": failed(Turn(text=[StreamError("too long", "context_length_exceeded")])),
    "at_capacity": failed(Turn(text=[StreamError("busy", "server_is_overloaded")])),
    "rate_limit_in_stream": failed(Turn(text=[StreamError("slow down", "rate_limit_exceeded")])),
    "stream_error": failed(Turn(text=[StreamError("it broke", "other")])),
    "max_output_tokens": failed(Turn(text="cut off", stop="max_tokens")),
    "refused_connection": _refused_connection,
    "no_key": _no_key,
    "unknown_session": lambda bench: codex(bench, resume="01a1eb00-15c6-7ed1-bb4b-e9131945d2e9"),
    "unknown_flag": lambda bench: codex(bench, "--no-such-flag"),
    "bad_config": _bad_config,
    "bad_value": lambda bench: codex(bench, '--config=sandbox_mode="whatever"'),
    "prompt_too_long": lambda bench: codex(bench, prompt="x" * 1_048_577),
}


def neutral(text: str, bench: Bench) -> str:
    """Without what belongs to this machine."""
    places = {
        str(bench.workdir): "/work/project",
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
    """Capture these scenarios (or all) with the pinned version."""
    folder = TRANSCRIPTS / wanted_versions()[PACKAGE_OF_CLI["codex"]]
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or SCENARIOS:
        with tempfile.TemporaryDirectory() as root, open_bench(Path(root, "bench"), wanted_bin_folder()) as bench:
            capture(name, bench, folder)
            assert not bench.server.problems, (name, bench.server.problems)


if __name__ == "__main__":
    main(sys.argv[1:])
