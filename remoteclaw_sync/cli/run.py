"""`run` and `demo`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from ..clis.facts import CliFacts
from ..clis.registry import all_facts
from ..errors import AgentRunError, UnsupportedOperationError
from ..factory import DEMO, create_cli_runtime
from ..runtime import CLIRuntimeBase
from ..types import AgentExecuteParams
from ..versions import found_elsewhere
from .asking import Asker
from .dispatch import UsageError
from .keyboard import CAN_ASK, AskedLines
from .mcp_options import mcp_servers
from .show import FAILED, OK, exit_code, present
from .status_line import Screen
from .views import JsonView, TextView

DEMO_PROMPT = "Show me what you can do."


def command(options: argparse.Namespace) -> int:
    """Run an agent; returns the exit code."""
    provider = choose_provider(options)
    if provider is None:
        return FAILED
    prompt = _prompt(options)
    screen = Screen(sys.stdout, sys.stderr)
    with _asker(screen) if options.approve else contextlib.nullcontext() as asker:
        try:
            runtime = create_cli_runtime(provider, **runtime_options(options))
            params = attrs.evolve(_params(options, prompt), approve=asker)
            if params.output_type is not None and not options.json:
                if asker is not None and params.deadline is not None:
                    asker.is_over = _over_in(params.deadline)  # There is no one run to ask: a repair is a second one.
                return _print_value(runtime, params)
            run = runtime.start(params)
        except (ValueError, TypeError, UnsupportedOperationError) as error:  # It names the field, or what is missing.
            raise UsageError("; ".join([str(error), *getattr(error, "__notes__", ())])) from None
        if asker is not None:
            asker.is_over = lambda: run.is_ending
        if options.json:
            return present(run, JsonView())
        resume = _resume_command(runtime.provider or provider, options)
        return present(run, TextView(resume_command=resume, quiet=options.quiet, screen=screen))


def _over_in(seconds: float) -> Callable[[], bool]:
    due = time.monotonic() + seconds
    return lambda: time.monotonic() >= due


def _print_value(runtime: CLIRuntimeBase, params: AgentExecuteParams) -> int:
    """Print the answer as JSON and nothing else; if there is none, print why."""
    try:
        result = runtime.run(params)
    except AgentRunError as error:
        print(f"remoteclaw-sync: {error}", file=sys.stderr)
        return exit_code(error.result, None)
    print(json.dumps(result.to_dict()["output"], ensure_ascii=False, indent=2))
    return OK


@contextlib.contextmanager
def _asker(screen: Screen) -> Iterator[Asker]:
    """Asks on the terminal, even if stdin or stdout is something else."""
    try:
        if not CAN_ASK:
            raise OSError
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        raise UsageError("--approve needs a terminal to ask on; --permission-mode decides without one") from None
    try:
        yield Asker(screen, AskedLines(terminal, screen))
    finally:
        os.close(terminal)


def choose_provider(options: argparse.Namespace) -> str | None:
    """The provider that was asked for, else the first whose CLI is on PATH. Prints which one it is, or what to do if
    there is none."""
    if options.provider is not None:
        return str(options.provider)
    for cli in all_facts():
        path = shutil.which(cli.name)
        if path is not None:
            print(f"remoteclaw-sync: using {cli.name} ({path})", file=sys.stderr)
            return cli.name
    lines = ["remoteclaw-sync: no agent CLI was found on PATH. Install one of these:"]
    lines += [f"  {cli.name:<9} {cli.install}" for cli in all_facts()]
    lines.append(f"or try the built-in agent, which needs none of them: {program()} {DEMO}")
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
        return as_typed(options.prompt)
    if options.prompt is None and options.command == DEMO:
        return DEMO_PROMPT  # Does not read stdin, which in a script may be a pipe that nobody closes.
    if sys.stdin is None or (options.prompt is None and sys.stdin.isatty()):
        raise UsageError("no prompt: give one as an argument or on stdin")
    prompt = sys.stdin.buffer.read().decode("utf-8", "replace")
    if not prompt.strip():
        raise UsageError("no prompt: there was nothing on stdin")
    return prompt


def as_typed(argument: str) -> str:
    """Text from the command line as UTF-8. In an ASCII locale Python cannot decode the bytes of an `é`."""
    return os.fsencode(argument).decode("utf-8", "replace")


def runtime_options(options: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments for the runtime."""
    chosen = {"timeout": options.timeout, "record": options.record}
    return {name: value for name, value in chosen.items() if value is not None}


def _params(options: argparse.Namespace, prompt: str) -> AgentExecuteParams:
    return AgentExecuteParams(
        prompt,
        session_id=options.resume,
        mcp_servers=mcp_servers(options.mcp, options.mcp_file),
        working_directory=options.cwd,
        system_prompt=None if options.system_prompt is None else as_typed(options.system_prompt),
        model=options.model,
        permission_mode=options.permission_mode,
        images=tuple(options.image),
        extra_args=tuple(options.extra_args),
        deadline=options.deadline,
        output_type=None if options.schema is None else _schema(options.schema),
        max_turns=options.max_turns,
        max_tool_calls=options.max_tool_calls,
        max_tokens=options.max_tokens,
        max_cost_usd=options.max_cost,
    )


def _schema(path: str) -> dict[str, Any]:
    """The schema in a file. Raises UsageError."""
    try:
        with open(path, encoding="utf-8") as file:
            schema = json.load(file)
    except OSError as error:
        raise UsageError(f"--schema: {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--schema: {path} is not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise UsageError(f"--schema: {path} must hold a JSON object")
    return schema


def _resume_command(provider: str, options: argparse.Namespace) -> str:
    """The command for another turn; it includes the folder, because sessions belong to a folder."""
    folder = f" --cwd {shlex.quote(options.cwd)}" if options.cwd else ""
    return f"{program()} run --provider {provider}{folder}"


def program() -> str:
    """How this program was called."""
    if os.path.basename(sys.argv[0]) == "__main__.py":
        return "python -m remoteclaw_sync"
    return "remoteclaw-sync"
