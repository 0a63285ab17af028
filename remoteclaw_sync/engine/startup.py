"""Explains runs that failed before the CLI's first line by how the CLI is installed."""

from __future__ import annotations

import os
import re

import attrs

from .. import errors
from ..clis.facts import CliFacts
from ..process.launch import SpawnFailure
from ..process.program import needed
from ..types import AgentErrorEvent, AgentExecuteParams
from ..versions import what_is_needed

NO_SUCH_PROGRAM = 127  # What shells and `env` exit with.
# "env: 'node': No such file or directory", "env: can't execute 'node': ...", "sh: 1: exec: node: not found".
MISSING_PROGRAM = re.compile(
    r"(?:^|[ :‘'\"])(?P<name>[^\s:‘’'\"]+)[’'\"]?: (?:No such file or directory|(?:command )?not found)", re.MULTILINE
)
# Kinds of failure that may be caused by an old CLI. A refused login or an unknown session is not.
MAY_BE_AGE = frozenset({"config", "crash", "incomplete", "unknown"})


def missing_program(program: str, exit_code: int | None, said: str) -> AgentErrorEvent | None:
    """An error saying that the CLI's interpreter (Node.js) is missing, if a shell or `env` reported that."""
    found = MISSING_PROGRAM.search(said) if exit_code == NO_SUCH_PROGRAM else None
    if found is None:
        return None
    name = found["name"]
    message = f"{program} {needed(name)}, and {os.path.basename(name)!r} is not on PATH: install it, or add its folder"
    return AgentErrorEvent(message, errors.CLI_NOT_EXECUTABLE)


def with_place(failure: SpawnFailure, places: list[str], install_hint: str | None) -> SpawnFailure:
    """The failure; if the command was not found, with where it is after all, or else how to install it."""
    if failure.code != errors.CLI_NOT_FOUND:
        return failure
    hint = install_hint
    if places:
        folder = os.path.dirname(places[0])
        hint = f"it is installed as {places[0]}: put {folder} on PATH, or pass command={places[0]!r}"
    return attrs.evolve(failure, message=f"{failure.message}; {hint}") if hint else failure


def with_needed_version(
    error: AgentErrorEvent, cli: CliFacts, version: str | None, params: AgentExecuteParams
) -> AgentErrorEvent:
    """The error; if the CLI is too old, with its version and the one that is needed."""
    prompt = ("system_prompt",) if params.system_prompt is not None else ()
    sentence = what_is_needed(cli, version, (*prompt, params.permission_mode))
    return error if sentence is None else attrs.evolve(error, message=f"{error.message}; {sentence}")
