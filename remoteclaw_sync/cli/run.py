"""`run` and `demo`."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from typing import Any

from ..clis.facts import CliFacts
from ..clis.registry import all_facts
from ..factory import DEMO, create_cli_runtime
from ..types import AgentExecuteParams
from ..versions import found_elsewhere
from .dispatch import UsageError
from .mcp_options import mcp_servers
from .show import FAILED, present
from .views import JsonView, TextView

DEMO_PROMPT = "Show me what you can do."


def command(options: argparse.Namespace) -> int:
    """Run an agent; returns the exit code."""
    if options.provider is None:
        options.provider = _detect()
        if options.provider is None:
            return FAILED
    prompt = _prompt(options)
    try:
        runtime = create_cli_runtime(options.provider, **_runtime_options(options))
        run = runtime.start(_params(options, prompt))
    except (ValueError, TypeError) as error:  # They name the field. (An unknown provider is a ValueError, too.)
        raise UsageError("; ".join([str(error), *getattr(error, "__notes__", ())])) from None
    if options.json:
        return present(run, JsonView())
    resume = _resume_command(runtime.provider or options.provider, options)
    return present(run, TextView(resume_command=resume, quiet=options.quiet))


def _detect() -> str | None:
    """The first provider whose CLI is on PATH. Prints which one, or what to do if there is none."""
    for cli in all_facts():
        path = shutil.which(cli.name)
        if path is not None:
            print(f"remoteclaw-sync: using {cli.name} ({path})", file=sys.stderr)
            return cli.name
    lines = ["remoteclaw-sync: no agent CLI was found on PATH. Install one of these:"]
    lines += [f"  {cli.name:<9} {cli.install}" for cli in all_facts()]
    lines.append(f"or try the built-in agent, which needs none of them: {_program()} {DEMO}")
    there = [places_of(cli) for cli in all_facts()]
    lines += [f"Found {places[0]}: put its folder on PATH to use it." for places in there if places]
    print("\n".join(lines), file=sys.stderr)
    return None


def places_of(cli: CliFacts) -> list[str]:
    """Where a CLI that is not on PATH is installed."""
    return found_elsewhere(cli.name, os.environ, cli.program_folders)


def absence(cli: CliFacts) -> str:
    """What to print about a CLI that is not on PATH."""
    places = places_of(cli)
    return f"not on PATH: {places[0]}" if places else f"not installed: {cli.install}"


def _prompt(options: argparse.Namespace) -> str:
    if options.prompt is not None and options.prompt != "-":
        return _as_typed(options.prompt)
    if options.prompt is None and options.command == DEMO:
        return DEMO_PROMPT  # Without reading stdin, which in a script may be a pipe that nobody closes.
    if sys.stdin is None or (options.prompt is None and sys.stdin.isatty()):
        raise UsageError("no prompt: give one as an argument or on stdin")
    prompt = sys.stdin.buffer.read().decode("utf-8", "replace")
    if not prompt.strip():
        raise UsageError("no prompt: there was nothing on stdin")
    return prompt


def _as_typed(argument: str) -> str:
    """Text from the command line. In an ASCII locale Python cannot decode the bytes of an `é`."""
    return os.fsencode(argument).decode("utf-8", "replace")


def _runtime_options(options: argparse.Namespace) -> dict[str, Any]:
    chosen = {"timeout": options.timeout, "record": options.record}
    return {name: value for name, value in chosen.items() if value is not None}


def _params(options: argparse.Namespace, prompt: str) -> AgentExecuteParams:
    return AgentExecuteParams(
        prompt,
        session_id=options.resume,
        mcp_servers=mcp_servers(options.mcp, options.mcp_file),
        working_directory=options.cwd,
        system_prompt=None if options.system_prompt is None else _as_typed(options.system_prompt),
        model=options.model,
        permission_mode=options.permission_mode,
        images=tuple(options.image),
        extra_args=tuple(options.extra_args),
        deadline=options.deadline,
    )


def _resume_command(provider: str, options: argparse.Namespace) -> str:
    """The command for another turn; it includes the folder, because sessions belong to one."""
    folder = f" --cwd {shlex.quote(options.cwd)}" if options.cwd else ""
    return f"{_program()} run --provider {provider}{folder}"


def _program() -> str:
    """How this program was called."""
    if os.path.basename(sys.argv[0]) == "__main__.py":
        return "python -m remoteclaw_sync"
    return "remoteclaw-sync"
