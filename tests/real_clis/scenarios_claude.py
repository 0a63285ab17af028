"""Runs of the real Claude Code that show one thing each; their output is kept in tests/transcripts/claude/<version>/.

`python -m tests.real_clis.scenarios_claude [name...]` writes them anew.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.real_clis.bench import Bench, RawRun, open_bench, refused_url, wanted_bin_folder
from tests.real_clis.clis import Claude
from tests.real_clis.install import PACKAGE_OF_CLI, wanted_versions
from tests.real_clis.model_server import ModelRequest
from tests.real_clis.script import Cut, Delay, Drop, HttpError, Reply, ToolCall, Turn, Usage

TRANSCRIPTS = Path(__file__).parents[1] / "transcripts" / "claude"
PARTIALS = "--include-partial-messages"
ALLOW_ALL = "--allowedTools=Bash,Write,Edit,Read"
READ_ONLY = ("--permission-mode=default", "--tools=Read,Glob,Grep,WebFetch,WebSearch,Agent,Skill")
PROMPT = "do what the script says"

Scenario = Callable[[Bench], RawRun]
claude_cli = Claude()


def claude(bench: Bench, *arguments: str, prompt: str = PROMPT, partials: bool = True, retries: int = 1) -> RawRun:
    """The command line of our runtime, without our runtime."""
    flags = ["-p", "--output-format=stream-json", "--verbose", *([PARTIALS] if partials else [])]
    argv = ["claude", *flags, f"--model={claude_cli.model}", *arguments]
    return bench.run_argv(argv, prompt, env={"CLAUDE_CODE_MAX_RETRIES": str(retries)})


def answered(*replies: Reply, then: Reply | None = None, arguments: Sequence[str] = (ALLOW_ALL,)) -> Scenario:
    """A run in which the model gives these replies."""

    def scenario(bench: Bench) -> RawRun:
        bench.server.script(replies, then)
        return claude(bench, *arguments)

    return scenario


def failed(status: int, message: str) -> Scenario:
    """A run whose requests all fail."""
    return answered(HttpError(status=status, message=message))


def shell(command: str, id: str, background: bool = False) -> ToolCall:
    """The model runs a shell command."""
    extra = {"run_in_background": True} if background else {}
    return ToolCall("Bash", {"command": command, "description": "run it", **extra}, id)


def _whole_messages_only(bench: Bench) -> RawRun:
    first = Turn(thinking="hm", text="Wait.", tool_calls=[shell("echo ok", "toolu_a")])
    bench.server.script([first, Turn(text="Done.")])
    return claude(bench, ALLOW_ALL, partials=False)


def delegate(request: ModelRequest, background: bool = False) -> Turn:
    """The model starts two sub-agents; each runs a shell command and says something."""
    if request.prompt in ("inner A", "inner B"):
        name = request.prompt[-1]
        if request.tool_results:
            return Turn(thinking="the sub-agent thinks", text=f"answer of {name}")
        # The second agent ends later, so that its end begins a turn of its own.
        delay = {"A": 0.3, "B": 1.3}[name] if background else 0
        return Turn(
            text="the sub-agent talks", tool_calls=[shell(f"sleep {delay}; echo {name}", f"toolu_inner_{name}")]
        )
    if request.prompt and request.prompt.startswith("<task-notification>"):
        return Turn(text="Noted.", usage=Usage(input=7, output=3))
    if request.tool_results:
        return Turn(text="Delegated.")
    calls = [claude_cli.agent_call(f"inner {name}", f"toolu_{name}", background) for name in "AB"]
    return Turn(text="Wait.", tool_calls=calls, usage=Usage(input=100, output=50))


def delegate_to_background(request: ModelRequest) -> Turn:
    """The same with agents that the main thread does not wait for."""
    return delegate(request, background=True)


def leave_shells(request: ModelRequest) -> Turn:
    """The model leaves two shells in the background; one ends while Claude still waits, one does not."""
    if request.prompt and request.prompt.startswith("<task-notification>"):
        return Turn(text="Noted.")
    if request.tool_results:
        return Turn(text="Left running.")
    calls = [shell("sleep 2.5; echo end", "toolu_short", True), shell("sleep 600", "toolu_long", True)]
    return Turn(text="Wait.", tool_calls=calls)


def responding(respond: Callable[[ModelRequest], Turn]) -> Scenario:
    """A run whose model looks at what it is asked."""

    def scenario(bench: Bench) -> RawRun:
        bench.server.respond(respond)
        return claude(bench, ALLOW_ALL)

    return scenario


def _refused_connection(bench: Bench) -> RawRun:
    bench.point_at(refused_url())
    return claude(bench)


def _not_logged_in(bench: Bench) -> RawRun:
    del bench.env["ANTHROPIC_API_KEY"]
    return claude(bench)


def _permission_denied(bench: Bench) -> RawRun:
    fetch = ToolCall("WebFetch", {"url": "http://127.0.0.1/", "prompt": "x"}, "toolu_web")
    # Long, so that the path lies whole in one streamed piece, where `neutral` finds it.
    write = bench.claude.write_file_call(bench.workdir / "note.txt", "x" * 300, "toolu_write")
    bench.server.script([Turn(tool_calls=[fetch, write]), Turn(text="I could not.")])
    return claude(bench)


def _interrupted(bench: Bench) -> RawRun:
    """The shell tool sends Claude itself the Ctrl-C."""
    bench.server.script([Turn(text="Wait.", tool_calls=[shell("kill -INT $PPID; sleep 60", "toolu_kill")])])
    return claude(bench, ALLOW_ALL)


SCENARIOS: Mapping[str, Scenario] = {
    "plain": answered(Turn(text=["Hel", "lo, ", "world"], usage=Usage(100, 20, 30, 40))),
    "thinking_and_parallel_tools": answered(
        Turn(
            thinking=["think ", "hard"],
            text="Wait.",
            tool_calls=[
                shell("sleep 0.5; echo ok", "toolu_slow"),
                shell("echo bad >&2; exit 3", "toolu_bad"),
                ToolCall("TaskList", {}, "toolu_empty"),
            ],
            usage=Usage(100, 10),
        ),
        Turn(text="Done.", usage=Usage(200, 20)),
    ),
    "whole_messages_only": _whole_messages_only,
    "stream_cut": answered(
        # The delay lets Claude read the half: a reset connection loses what was not read.
        Turn(text=["half ", "of it", Delay(0.5), Cut()]),
        Turn(text="The real answer.", usage=Usage(33, 11)),
    ),
    "two_sub_agents": responding(delegate),
    "background_agents": responding(delegate_to_background),
    "background_shells": responding(leave_shells),
    "permission_denied": _permission_denied,
    "read_only": answered(
        Turn(tool_calls=[shell("touch note.txt", "toolu_bash"), ToolCall("Glob", {"pattern": "*"}, "toolu_glob")]),
        Turn(text="I could not."),
        arguments=READ_ONLY,
    ),
    "slash_command": lambda bench: claude(bench, prompt="/context"),
    "unknown_slash_command": lambda bench: claude(bench, prompt="/no-such-command x"),
    "interrupted": _interrupted,
    "http_400": failed(400, "the scripted complaint"),
    "http_401": failed(401, "the scripted complaint"),
    "http_403": failed(403, "the scripted complaint"),
    "http_404": failed(404, "the scripted complaint"),
    "http_413": failed(413, "the scripted complaint"),
    "http_429": failed(429, "the scripted complaint"),
    "http_500": failed(500, "the scripted complaint"),
    "http_529": failed(529, "the scripted complaint"),
    "prompt_too_long": failed(400, "prompt is too long: 209000 tokens > 200000 maximum"),
    "no_credit": failed(400, "Your credit balance is too low to access the Anthropic API."),
    "max_output_tokens": answered(then=Turn(text="cut.", stop="max_tokens")),
    "refusal": answered(then=Turn(text="no", stop="refusal")),
    "dropped_connection": answered(Drop()),
    "refused_connection": _refused_connection,
    "not_logged_in": _not_logged_in,
    "max_turns": answered(then=Turn(tool_calls=[shell("echo x", "toolu_x")]), arguments=(ALLOW_ALL, "--max-turns=1")),
    "max_budget": answered(
        then=Turn(tool_calls=[shell("echo x", "toolu_x")], usage=Usage(100_000, 5_000)),
        arguments=(ALLOW_ALL, "--max-budget-usd=0.01"),
    ),
    "unknown_session": lambda bench: claude(bench, "--resume=00000000-0000-4000-8000-000000000000"),
    "unknown_session_title": lambda bench: claude(bench, "--resume=nonsense"),
    "bypass_as_root": lambda bench: claude(bench, "--permission-mode=bypassPermissions"),
    "unknown_flag": lambda bench: claude(bench, "--no-such-flag"),
}


def neutral(text: str, bench: Bench) -> str:
    """Without what belongs to this machine."""
    places = {
        bench.workdir: "/work/project",
        bench.home: "/home/user",
        bench.tmp: "/tmp/user",
        bench.bin_dir.parents[1]: "/opt/clis",
    }
    for place, name in places.items():
        # Claude names folders after the working directory, with a dash for every other character.
        text = text.replace(str(place), name).replace(_dashed(str(place)), _dashed(name))
    return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8080", text)


def _dashed(path: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "-", path)


def capture(name: str, bench: Bench, folder: Path) -> None:
    """Run one scenario and write its stdout (`<name>.ndjson`) and the rest (`<name>.end.json`)."""
    run = SCENARIOS[name](bench)
    lines = neutral(run.stdout.decode(), bench)
    assert str(bench.root) not in lines, name
    (folder / f"{name}.ndjson").write_text(lines, encoding="utf-8")
    end = {"exit_code": run.returncode, "stderr": neutral(run.stderr.decode(), bench)}
    (folder / f"{name}.end.json").write_text(json.dumps(end, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main(names: Sequence[str]) -> None:
    """Capture scenarios of the pinned version: those named, or all."""
    folder = TRANSCRIPTS / wanted_versions()[PACKAGE_OF_CLI["claude"]]
    if not names:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or SCENARIOS:
        with tempfile.TemporaryDirectory() as root, open_bench(Path(root, "bench"), wanted_bin_folder()) as bench:
            capture(name, bench, folder)
            assert not bench.server.problems, (name, bench.server.problems)


if __name__ == "__main__":
    main(sys.argv[1:])
