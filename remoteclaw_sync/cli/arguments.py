"""The command line's grammar."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import get_args

from .._version import __version__
from ..clis.registry import all_facts
from ..factory import DEMO, SUPPORTED_PROVIDERS
from ..types import PermissionMode
from .help import TOPICS

PROGRAM = "remoteclaw-sync"
SHELLS = ("bash", "zsh", "fish")  # Those with a completion script.

EXAMPLES = """
examples:
  remoteclaw-sync demo                                  see what it is like, without an account
  remoteclaw-sync run "Why is the build red?"           ask the first CLI that is installed
  git diff | remoteclaw-sync run --provider codex       the prompt comes on stdin
  remoteclaw-sync run --resume ID "And now?"            continue a conversation
  remoteclaw-sync run --json "List the TODOs" | jq      events, one JSON object per line
  remoteclaw-sync chat                                  a conversation; it asks before the agent acts
  remoteclaw-sync doctor                                what is installed, and what is wrong
"""

RUN_EXAMPLES = """
The answer goes to stdout as it arrives, everything else to stderr. Without PROMPT (or with -) the prompt is read from
stdin. Everything after -- is passed to the CLI unchanged.

examples:
  remoteclaw-sync run --provider claude --model opus "Explain this folder"
  remoteclaw-sync run --mcp 'files=npx -y @modelcontextprotocol/server-filesystem .' "What is in here?"
  remoteclaw-sync run --permission-mode read-only --deadline 120 "Review the last commit" > review.md
  remoteclaw-sync run --record run.jsonl "Hello" && remoteclaw-sync replay run.jsonl
  remoteclaw-sync run --provider claude "Hello" -- --max-turns 3
  git diff | remoteclaw-sync run --approve "Fix what is wrong here"

exit codes: 0 success, 1 the run failed, 2 wrong usage, 124 timeout, 130 Ctrl-C
"""

CHAT_EXAMPLES = """
Enter sends a message. What is typed while the agent works is given to it at once, or asked next if its CLI takes no
further words. Ctrl-C stops the agent and keeps the session; a second one leaves, and so does Ctrl-D. Before the agent
uses a tool that needs permission, it asks: y (yes), n (no), always (not again in this session), why (tell me more), or
other words, which are a no that the agent is told. Without a terminal, each line of stdin is a message, and answers are
lines too. Everything after -- is passed to the CLI unchanged.

examples:
  remoteclaw-sync chat --provider demo                  without an account
  remoteclaw-sync chat -p claude "Why is the build red?"
  remoteclaw-sync chat -p codex --resume ID             continue a conversation
  remoteclaw-sync chat -p demo < questions.txt

exit codes: 0 somebody left, 1 the last turn failed (without a terminal), 2 wrong usage, 130 Ctrl-C
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options; `module` names the module to run. Raises SystemExit for --help and for mistakes."""
    arguments = list(argv)
    extra: list[str] = []
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, extra = arguments[:cut], arguments[cut + 1 :]
    parser = build_parser()
    options = parser.parse_args(arguments)
    if extra and options.module not in ("run", "chat"):
        parser.error("only run, demo and chat take arguments for the CLI after --")
    options.extra_args = extra
    return options


def build_parser() -> argparse.ArgumentParser:
    """All commands with all their options."""
    parser = _new(argparse.ArgumentParser, prog=PROGRAM, epilog=EXAMPLES)
    parser.description = f"Run AI agent CLIs ({', '.join(cli.title for cli in all_facts())}): one event stream."
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    run = _command(commands, "run", "run", "run an agent", RUN_EXAMPLES)
    providers = ", ".join((*SUPPORTED_PROVIDERS, DEMO))
    which = f"{providers} (default: the first that is installed)"
    run.add_argument("-p", "--provider", metavar="NAME", help=which)
    _add_run_options(run)

    chat = _command(commands, "chat", "chat", "talk with an agent in the terminal", CHAT_EXAMPLES)
    chat.add_argument("-p", "--provider", metavar="NAME", help=which)
    chat.add_argument("prompt", metavar="PROMPT", nargs="?", help="the first message")
    _add_agent_options(chat)
    chat.add_argument("--deadline", metavar="SECONDS", type=float, help="stop a turn after this much time")
    chat.add_argument("-q", "--quiet", action="store_true", help="only the answers, questions and errors")

    demo = _command(commands, "demo", "run", "run the built-in agent: no account, no network", RUN_EXAMPLES)
    demo.set_defaults(provider=DEMO)
    _add_run_options(demo)

    replay = _command(commands, "replay", "replay", "replay a recording made with --record")
    replay.add_argument("file", metavar="FILE", help="the recording")
    replay.add_argument("--speed", type=float, default=None, help="1 keeps the recorded pauses (default: no pauses)")
    _add_view_options(replay)

    _add_serve_options(_command(commands, "serve", "serve", "serve a chat page on this machine only"))

    doctor = _command(commands, "doctor", "doctor", "show what is installed, what can run, what was left behind")
    doctor.add_argument("-C", "--cwd", metavar="DIR", help="the folder to check (default: this one)")
    doctor.add_argument("--json", action="store_true", help="as one JSON object")
    doctor.add_argument("--repair", action="store_true", help="stop orphaned processes, restore borrowed config files")

    listing = _command(commands, "providers", "providers", "list the agent CLIs and where they are")
    listing.add_argument("--json", action="store_true", help="as one JSON object")

    pages = _command(commands, "help", "help", "print a page of the documentation")
    pages.add_argument("topic", metavar="TOPIC", nargs="?", choices=tuple(TOPICS), help="(default: list them)")

    shell = _command(commands, "completion", "completion", "print a completion script for your shell")
    shell.add_argument("shell", choices=SHELLS)
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, module: str, help: str, epilog: str = ""
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = _new(commands.add_parser, name, help=help, description=help, epilog=epilog)
    parser.set_defaults(module=module)
    return parser


def _new(make: object, *args: object, **options: object) -> argparse.ArgumentParser:
    # No abbreviations: the meaning of `--per` would change with the next option we add.
    formatter = argparse.RawDescriptionHelpFormatter
    parser = make(*args, allow_abbrev=False, formatter_class=formatter, **options)  # type: ignore[operator]
    assert isinstance(parser, argparse.ArgumentParser)
    return parser


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("prompt", metavar="PROMPT", nargs="?", help="what to ask (default: read from stdin)")
    _add_agent_options(parser)
    add("--image", metavar="FILE", action="append", default=[], help="an image to show to the model (repeatable)")
    add("--deadline", metavar="SECONDS", type=float, help="stop the run after this much time")
    add("--schema", metavar="FILE", help="a JSON schema; print the answer as JSON that fits it, and nothing else")
    add("--max-turns", metavar="N", type=int, help="stop the run when the model has been asked this often")
    add("--max-tool-calls", metavar="N", type=int, help="stop the run after this many tool calls")
    add("--max-tokens", metavar="N", type=int, help="stop the run after this many tokens")
    add("--max-cost", metavar="USD", type=float, help="stop the run when it has cost this much")
    add("--approve", action="store_true", help="ask on the terminal before the agent uses a tool that needs permission")
    _add_view_options(parser)


def _add_agent_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-C", "--cwd", metavar="DIR", help="where the agent works (default: here)")
    add("-r", "--resume", metavar="ID", help="continue this session")
    add("-m", "--model", metavar="NAME", help="a model as the CLI knows it")
    add("--permission-mode", choices=get_args(PermissionMode), default="default", help="(default: the CLI's own)")
    add("--system-prompt", metavar="TEXT", help="instructions on top of the CLI's own")
    add("--mcp", metavar="NAME=COMMAND", action="append", default=[], help="an MCP server: a command, or a URL")
    add("--mcp-file", metavar="FILE", action="append", default=[], help='MCP servers as {"mcpServers": {...}}')
    add("--timeout", metavar="SECONDS", type=float, help="stop the agent after this much silence (default: 300)")
    add("--record", metavar="FILE", help="write what the CLI says to a file, for replay")


def _add_serve_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-p", "--provider", metavar="NAME", help="the agent that is selected at first")
    add("-C", "--cwd", metavar="DIR", help="where agents work (default: here)")
    add("-m", "--model", metavar="NAME", help="a model as the CLI knows it")
    add("--permission-mode", choices=get_args(PermissionMode), default="default", help="(default: the CLI's own)")
    add("--timeout", metavar="SECONDS", type=float, help="stop a run after this much silence (default: 300)")
    add("--max-runs", metavar="N", type=int, default=16, help="how many agents may work at once (default: 16)")
    add("--keep", metavar="DIR", help="keep conversations there (default: they go when the server stops)")
    add("--port", type=int, default=8788, help="(default: 8788; 0 takes a free one)")
    add("--host", metavar="ADDRESS", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)")
    add("--allow-remote", action="store_true", help="allow a --host that other machines can reach")


def _add_view_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print events as JSON lines, and nothing else")
    parser.add_argument("-q", "--quiet", action="store_true", help="only the answer and errors")
