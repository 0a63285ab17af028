"""Runs of the real Gemini CLI that show one thing each; their output is kept in tests/transcripts/gemini/<version>/.

`python -m tests.real_clis.scenarios_gemini` writes them anew.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.real_clis.bench import Bench, RawRun, open_bench, refused_url, wanted_bin_folder
from tests.real_clis.install import PACKAGE_OF_CLI, wanted_versions
from tests.real_clis.script import Cut, HttpError, Reply, ToolCall, Turn, Usage

TRANSCRIPTS = Path(__file__).parents[1] / "transcripts" / "gemini"
PROMPT = "do what the script says"
LIST_FOLDER = ToolCall("list_directory", {"dir_path": "."})

Scenario = Callable[[Bench], RawRun]


def gemini(bench: Bench, *arguments: str, model: str | None = None, trusted: bool = True) -> RawRun:
    """The command line of our runtime, without our runtime."""
    flags = ["--output-format=stream-json", f"--model={model or bench.gemini.model}"]
    env = {"GEMINI_CLI_TRUST_WORKSPACE": "true"} if trusted else {}
    return bench.run_argv(["gemini", *flags, *arguments], PROMPT, env=env)


def settings(bench: Bench, **sections: Mapping[str, Any]) -> None:
    """Change the user's settings."""
    path = bench.home / ".gemini" / "settings.json"
    whole = json.loads(path.read_text())
    for name, section in sections.items():
        whole[name] = {**whole.get(name, {}), **section}
    path.write_text(json.dumps(whole))


def answered(*replies: Reply, arguments: tuple[str, ...] = (), model: str | None = None) -> Scenario:
    """A run in which the model gives these replies."""

    def scenario(bench: Bench) -> RawRun:
        bench.server.script(replies)
        return gemini(bench, *arguments, model=model)

    return scenario


def failed(*replies: Reply, attempts: int = 1) -> Scenario:
    """A run that is answered so again and again; by default the CLI asks ten times, which takes minutes."""

    def scenario(bench: Bench) -> RawRun:
        settings(bench, general={"maxAttempts": attempts})
        bench.server.script(replies, then=replies[-1])
        return gemini(bench)

    return scenario


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


def _sub_agent(bench: Bench) -> RawRun:
    def respond(request: Any) -> Turn:
        if any("the inner task" in text for text in request.conversation.user_texts):
            return Turn(
                text="Inner words.", tool_calls=[ToolCall("complete_task", {"result": {"response": "inner result"}})]
            )
        if request.tool_results:
            return Turn(text="Outer answer.")
        arguments = {"agent_name": "generalist", "prompt": "the inner task"}
        return Turn(tool_calls=[ToolCall("invoke_agent", arguments)])

    bench.server.respond(respond)
    return gemini(bench, "--approval-mode=yolo")


def _denied(bench: Bench) -> RawRun:
    write = bench.gemini.write_file_call(bench.workdir / "a.txt", "x")
    calls = [bench.gemini.shell_call("ls"), write, ToolCall("mcp_lab_echo", {"text": "x"}), ToolCall("no_such_tool")]
    bench.server.script([Turn(tool_calls=calls), Turn(text="Nothing worked.")])
    return gemini(bench)


def _max_turns(bench: Bench) -> RawRun:
    settings(bench, model={"maxSessionTurns": 1})
    bench.server.script([Turn(tool_calls=[LIST_FOLDER])])
    return gemini(bench)


def _survived_retry(bench: Bench) -> RawRun:
    settings(bench, general={"maxAttempts": 2})
    bench.server.script([HttpError(status=500, message="the scripted complaint"), Turn(text="Fine now.")])
    return gemini(bench)


def _survived_rate_limit(bench: Bench) -> RawRun:
    settings(bench, general={"maxAttempts": 2})
    refusal = HttpError(status=429, message="the scripted complaint", retry_after=1.0)
    bench.server.script([refusal, Turn(text="Fine now.")])
    return gemini(bench)


def _resumed(bench: Bench) -> RawRun:
    bench.server.script([Turn(text="First.", usage=Usage(100, 7, 20, 0, 3)), Turn(text="Second.")])
    first = gemini(bench)
    return gemini(bench, f"--resume={first.lines[0]['session_id']}")


def _refused_connection(bench: Bench) -> RawRun:
    bench.point_at(refused_url())
    settings(bench, general={"maxAttempts": 1})
    return gemini(bench)


def _no_key(bench: Bench) -> RawRun:
    del bench.env["GEMINI_API_KEY"]
    return gemini(bench)


def _no_auth_method(bench: Bench) -> RawRun:
    (bench.home / ".gemini" / "settings.json").write_text("{}")
    return gemini(bench)


def _bad_settings(bench: Bench) -> RawRun:
    (bench.home / ".gemini" / "settings.json").write_text('{ "mcpServers": {"a": {"env": {"TOKEN": "s3cret"}}} ')
    return gemini(bench)


def _command(bench: Bench) -> RawRun:
    argv = ["gemini", "--output-format=stream-json", f"--model={bench.gemini.model}"]
    return bench.run_argv(argv, "/quit", env={"GEMINI_CLI_TRUST_WORKSPACE": "true"})


def complaint(status: int, message: str = "the scripted complaint") -> HttpError:
    """An HTTP error of the API."""
    return HttpError(status=status, message=message)


SCENARIOS: Mapping[str, Scenario] = {
    "plain": answered(Turn(thinking="Let me see.", text=["Hel", "lo, ", "world"], usage=Usage(100, 7, 20, 0, 3))),
    "routed_model": answered(Turn(text="Hello.", usage=Usage(100, 7)), model="auto"),
    "tools": _tools,
    "sub_agent": _sub_agent,
    "denied": _denied,
    "denied_by_policy": answered(
        Turn(tool_calls=[ToolCall("invoke_agent", {"agent_name": "generalist", "prompt": "x"})]),
        Turn(text="No."),
        arguments=("--approval-mode=plan",),
    ),
    "loop": failed(Turn(text=["Same sentence again. "] * 60)),  # It is asked once to stop that.
    "stream_cut": answered(Turn(text=["Half an ", Cut(clean=True)]), Turn(text="A whole answer.")),
    "connection_lost": answered(Turn(text=["Half an ", Cut()])),
    "survived_retry": _survived_retry,
    "survived_rate_limit": _survived_rate_limit,
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
    "refused_connection": _refused_connection,
    "command": _command,
    "unknown_session": lambda bench: gemini(bench, "--resume=01a1eb00-15c6-7ed1-bb4b-e9131945d2e9"),
    "unknown_flag": lambda bench: gemini(bench, "--no-such-flag"),
    "bad_value": lambda bench: gemini(bench, "--approval-mode=whatever"),
    "untrusted": lambda bench: gemini(bench, trusted=False),
    "no_key": _no_key,
    "no_auth_method": _no_auth_method,
    "bad_settings": _bad_settings,
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


def main() -> None:
    """Capture all scenarios of the pinned version."""
    folder = TRANSCRIPTS / wanted_versions()[PACKAGE_OF_CLI["gemini"]]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in SCENARIOS:
        with tempfile.TemporaryDirectory() as root, open_bench(Path(root, "bench"), wanted_bin_folder()) as bench:
            capture(name, bench, folder)
            assert not bench.server.problems, (name, bench.server.problems)


if __name__ == "__main__":
    main()
