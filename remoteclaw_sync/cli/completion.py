"""Completion scripts for shells, generated from the parser."""

from __future__ import annotations

import argparse
import shlex
from typing import get_args

from ..factory import DEMO, SUPPORTED_PROVIDERS
from ..types import PermissionMode
from .arguments import build_parser

BASH = """\
_remoteclaw_sync() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" command="${{COMP_WORDS[1]}}"
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{commands}" -- "$current")); return
    fi
    case "$previous" in
        -p|--provider) COMPREPLY=($(compgen -W "{providers}" -- "$current")); return ;;
        --permission-mode) COMPREPLY=($(compgen -W "{modes}" -- "$current")); return ;;
        {folders}) COMPREPLY=($(compgen -d -- "$current")); return ;;
        {files}) COMPREPLY=($(compgen -f -- "$current")); return ;;
    esac
    case "$command" in
{cases}
    esac
}}
complete -o default -F _remoteclaw_sync remoteclaw-sync
"""
CASE = '        {name}) COMPREPLY=($(compgen -W "{flags}" -- "$current")) ;;'


def command(options: argparse.Namespace) -> int:
    """Print the script for one shell."""
    parser = build_parser()
    words = _words(parser)
    providers = (*SUPPORTED_PROVIDERS, DEMO)
    if options.shell == "fish":
        print(_fish(words, providers), end="")
        return 0
    if options.shell == "zsh":
        print("autoload -Uz bashcompinit && bashcompinit")
    cases = "\n".join(CASE.format(name=name, flags=" ".join(flags)) for name, flags in words.items())
    script = BASH.format(
        commands=" ".join(words),
        providers=" ".join(providers),
        modes=" ".join(get_args(PermissionMode)),
        folders="|".join(_options_with("DIR", parser)),
        files="|".join(_options_with("FILE", parser)),
        cases=cases,
    )
    print(script, end="")
    return 0


def _words(parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """The commands, and the words that can follow each."""
    return {name: _flags(command) for name, command in _commands(parser).items()}


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(commands.choices)


def _options_with(metavar: str, parser: argparse.ArgumentParser) -> list[str]:
    """The options of all commands whose value is called this in the help."""
    actions = [action for command in _commands(parser).values() for action in command._actions]
    return sorted({option for action in actions if action.metavar == metavar for option in action.option_strings})


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    found = []
    for action in parser._actions:
        found += [flag for flag in action.option_strings if flag.startswith("--")]
        if not action.option_strings and action.choices:
            found += list(action.choices)
    return found


def _fish(words: dict[str, list[str]], providers: tuple[str, ...]) -> str:
    lines = [f"complete -c remoteclaw-sync -n __fish_use_subcommand -f -a {shlex.quote(' '.join(words))}"]
    for name, flags in words.items():
        seen = f"-n '__fish_seen_subcommand_from {name}'"
        lines += [f"complete -c remoteclaw-sync {seen} -l {flag[2:]}" for flag in flags if flag.startswith("--")]
        plain = [flag for flag in flags if not flag.startswith("--")]
        if plain:
            lines.append(f"complete -c remoteclaw-sync {seen} -f -a {shlex.quote(' '.join(plain))}")
    lines.append(
        "complete -c remoteclaw-sync -n '__fish_seen_subcommand_from run chat serve' "
        f"-s p -l provider -x -a {shlex.quote(' '.join(providers))}"
    )
    return "\n".join(lines) + "\n"
