"""Runs of the real Claude Code, each of which shows one thing; see scenarios.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.real_clis.bench import Bench, RawRun
from tests.real_clis.clis import Claude
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
    without_variable,
)
from tests.real_clis.script import Cut, Delay, Drop, Reply, ToolCall, Turn, Usage

PARTIALS = "--include-partial-messages"
ALLOW_ALL = "--allowedTools=Bash,Write,Edit,Read"
READ_ONLY = ("--permission-mode=default", "--tools=Read,Glob,Grep,WebFetch,WebSearch,Agent,Skill")

claude_cli = Claude()


def claude(bench: Bench, *arguments: str, prompt: str = PROMPT, partials: bool = True, retries: int = 1) -> RawRun:
    """The command line of our runtime, without our runtime."""
    flags = ["-p", "--output-format=stream-json", "--verbose", *([PARTIALS] if partials else [])]
    argv = ["claude", *flags, f"--model={claude_cli.model}", *arguments]
    return bench.run_argv(argv, prompt, env={"CLAUDE_CODE_MAX_RETRIES": str(retries)})


def answered(*replies: Reply, then: Reply | None = None, arguments: Sequence[str] = (ALLOW_ALL,)) -> Scenario:
    """A run in which the model gives these replies."""
    return scripted(lambda bench: claude(bench, *arguments), *replies, then=then)


def failed(status: int, message: str = COMPLAINT) -> Scenario:
    """A run whose requests all fail."""
    return answered(complaint(status, message))


def asked(responder: Responder) -> Scenario:
    """A run whose model looks at each request."""
    return responding(lambda bench: claude(bench, ALLOW_ALL), lambda: responder)


def shell(command: str, id: str, background: bool = False) -> ToolCall:
    """The model runs a shell command."""
    extra = {"run_in_background": True} if background else {}
    return ToolCall("Bash", {"command": command, "description": "run it", **extra}, id)


def _whole_messages_only(bench: Bench) -> RawRun:
    first = Turn(thinking="hm", text="Wait.", tool_calls=[shell("echo ok", "toolu_a")])
    bench.server.script([first, Turn(text="Done.")])
    return claude(bench, ALLOW_ALL, partials=False)


def is_notified(request: ModelRequest) -> bool:
    """Whether this reports the end of a background task: as the prompt (2.1.197) or in a system reminder (2.1.326)."""
    return any("<task-notification>" in text for text in request.conversation.user_texts)


def delegate(request: ModelRequest, background: bool = False) -> Turn:
    """The model starts two sub-agents; each runs a shell command and says something."""
    if request.prompt in ("inner A", "inner B"):
        name = request.prompt[-1]
        if request.tool_results:
            return Turn(thinking="the sub-agent thinks", text=f"answer of {name}")
        # The second agent ends later, so that its end starts a separate turn.
        delay = {"A": 0.3, "B": 1.3}[name] if background else 0
        return Turn(
            text="the sub-agent talks", tool_calls=[shell(f"sleep {delay}; echo {name}", f"toolu_inner_{name}")]
        )
    if is_notified(request):
        return Turn(text="Noted.", usage=Usage(input=7, output=3))
    if request.tool_results:
        return Turn(text="Delegated.")
    calls = [claude_cli.agent_call(f"inner {name}", f"toolu_{name}", background) for name in "AB"]
    return Turn(text="Wait.", tool_calls=calls, usage=Usage(input=100, output=50))


def delegate_to_background(request: ModelRequest) -> Turn:
    """The same with agents that the main thread does not wait for."""
    return delegate(request, background=True)


def leave_shells(request: ModelRequest) -> Turn:
    """The model leaves two shells in the background; one ends soon, the other is killed by Claude after 5 s (2.1.197).

    2.1.326 waits for both, however long they take.
    """
    if is_notified(request):
        return Turn(text="Noted.")
    if request.tool_results:
        return Turn(text="Left running.")
    calls = [shell("sleep 2.5; echo end", "toolu_short", True), shell("sleep 15", "toolu_long", True)]
    return Turn(text="Wait.", tool_calls=calls)


def _permission_denied(bench: Bench) -> RawRun:
    fetch = ToolCall("WebFetch", {"url": "http://127.0.0.1/", "prompt": "x"}, "toolu_web")
    # Long, so that the path is in one streamed piece, where `neutral` finds it.
    write = bench.claude.write_file_call(bench.workdir / "note.txt", "x" * 300, "toolu_write")
    bench.server.script([Turn(tool_calls=[fetch, write]), Turn(text="I could not.")])
    return claude(bench)


def _interrupted(bench: Bench) -> RawRun:
    """The shell tool sends the Ctrl-C to Claude itself."""
    bench.server.script([Turn(text="Wait.", tool_calls=[shell("kill -INT $PPID; sleep 60", "toolu_kill")])])
    return claude(bench, ALLOW_ALL)


def _resumed(bench: Bench) -> RawRun:
    bench.server.script([Turn(text="Noted.", usage=Usage(500, 50)), Turn(text="Seven.", usage=Usage(20, 2))])
    first = claude(bench)
    return claude(bench, f"--resume={first.lines[0]['session_id']}")


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
        # The delay lets Claude read that half: when a connection is reset, unread data is lost.
        Turn(text=["half ", "of it", Delay(0.5), Cut()]),
        Turn(text="The real answer.", usage=Usage(33, 11)),
    ),
    "resumed": _resumed,
    "two_sub_agents": asked(delegate),
    "background_agents": asked(delegate_to_background),
    "background_shells": asked(leave_shells),
    "permission_denied": _permission_denied,
    "read_only": answered(
        Turn(tool_calls=[shell("touch note.txt", "toolu_bash"), ToolCall("Glob", {"pattern": "*"}, "toolu_glob")]),
        Turn(text="I could not."),
        arguments=READ_ONLY,
    ),
    "slash_command": lambda bench: claude(bench, prompt="/context"),
    # 2.1.326 treats it as a prompt.
    "unknown_slash_command": scripted(
        lambda bench: claude(bench, prompt="/no-such-command x"), then=Turn(text="What?")
    ),
    "interrupted": _interrupted,
    "http_400": failed(400),
    "http_401": failed(401),
    "http_403": failed(403),
    "http_404": failed(404),
    "http_413": failed(413),
    "http_429": failed(429),
    "http_500": failed(500),
    "http_529": failed(529),
    "prompt_too_long": failed(400, "prompt is too long: 209000 tokens > 200000 maximum"),
    "no_credit": failed(400, "Your credit balance is too low to access the Anthropic API."),
    "max_output_tokens": answered(then=Turn(text="cut.", stop="max_tokens")),
    "refusal": answered(then=Turn(text="no", stop="refusal")),
    "dropped_connection": answered(Drop()),
    "refused_connection": refused_connection(claude),
    "not_logged_in": without_variable("ANTHROPIC_API_KEY", claude),
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
