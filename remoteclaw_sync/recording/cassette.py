"""Reads recordings."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from .. import errors
from ..files import read_named
from ..process.ending import EndReason
from ..process.launch import SpawnFailure
from ..types import AgentErrorEvent
from .recorder import FORMAT
from .session_recorder import FORMAT as LIVE_FORMAT
from .writer import MAX_CASSETTE_BYTES


class CassetteError(errors.RemoteClawError, ValueError):
    """The file is not a cassette, or not one that this version can replay."""


@attrs.frozen
class Said:
    """A line with its newline (the last one may lack it), and its time in seconds since the start."""

    at: float
    data: bytes


@attrs.frozen(kw_only=True)
class Cassette:
    """A recorded run. If the recording has no end (the host died), `reason` is None."""

    header: Mapping[str, Any]
    said: tuple[Said, ...] = ()
    ended_at: float = 0.0
    reason: EndReason | None = None
    exit_code: int | None = None
    stderr: str = ""
    failure: SpawnFailure | None = None
    remedied: AgentErrorEvent | None = None  # See CLIRuntimeBase.
    facts: Mapping[str, Any] = attrs.field(factory=dict)  # What the parser needed but the CLI did not print.

    @property
    def provider(self) -> str | None:
        """The provider whose dialect the lines are in."""
        provider = self.header.get("provider")
        return provider if isinstance(provider, str) else None


@attrs.frozen
class Words:
    """A prompt, or further words. `text` is hidden in most recordings."""

    text: str
    length: int
    check: int


@attrs.frozen
class Step:
    """One entry of a live recording: `kind` is its name (see session_recorder.py)."""

    at: float
    kind: str
    value: Any
    turn: int  # The number of the last turn that had begun.


@attrs.define(eq=False)
class Process:
    """What was sent to and received from one process, and how it ended."""

    facts: dict[str, Any] = attrs.field(factory=dict)
    steps: list[Step] = attrs.field(factory=list)
    serves: bool = False  # Whether it had at least one turn; otherwise it was only kept warm.
    cli_version: str | None = None


@attrs.frozen(kw_only=True)
class LiveCassette:
    """A recorded session, or a live run of one turn."""

    header: Mapping[str, Any]
    processes: tuple[Process, ...]
    turns: tuple[Words, ...]
    durations: tuple[float, ...]  # Of the turns, in seconds.
    decisions: Mapping[tuple[int, str], Mapping[str, Any]]  # By turn and by the request's id in its process.

    @property
    def provider(self) -> str | None:
        """The provider whose dialect the lines are in."""
        provider = self.header.get("provider")
        return provider if isinstance(provider, str) else None

    @property
    def is_session(self) -> bool:
        """Whether there can be several turns."""
        return bool(self.header.get("session"))


def read_cassette(path: str | os.PathLike[str]) -> Cassette | LiveCassette:
    """The recording in this file. Raises OSError, or CassetteError if it is not a recording."""
    # Recordings are kept in repositories, which may contain a link to a device, a FIFO or a file of any size.
    lines = read_named(path, MAX_CASSETTE_BYTES).decode(errors="replace").split("\n")
    header, *entries = [*_entries(lines)] or [{}]
    reader = READERS.get(header["cassette"]) if type(header.get("cassette")) is int else None
    if reader is None:
        found = f"format {header['cassette']!r}" if "cassette" in header else "no header"
        raise CassetteError(f"{os.fspath(path)!r} is not a recording this version can play ({found})")
    try:
        return reader(header, entries)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CassetteError(f"{os.fspath(path)!r} is a damaged recording ({error!r})") from error


def _read_run(header: dict[str, Any], entries: list[dict[str, Any]]) -> Cassette:
    said: list[Said] = []
    end: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    at = ended_at = 0.0
    for entry in entries:
        at = float(entry["t"])
        if "line" in entry:
            said.append(Said(at, raw(entry["line"]) + b"\n"))
        elif "rest" in entry:
            said.append(Said(at, raw(entry["rest"])))
        elif "facts" in entry:
            facts.update(entry["facts"])
        elif "end" in entry:
            end, ended_at = entry["end"], at
    return Cassette(
        header=header,
        said=tuple(said),
        ended_at=ended_at if end else at,
        facts=facts,
        remedied=AgentErrorEvent.from_dict(facts["remedied"]) if "remedied" in facts else None,
        reason=EndReason[end["reason"]] if end else None,
        exit_code=end.get("exit_code"),
        stderr=end.get("stderr", ""),
        failure=failure_in(end),
    )


def failure_in(end: Mapping[str, Any]) -> SpawnFailure | None:
    """Why no process could be started."""
    failure = end.get("failure")
    return SpawnFailure(failure["code"], failure["message"]) if failure else None


def _read_session(header: dict[str, Any], entries: list[dict[str, Any]]) -> LiveCassette:
    processes: list[Process] = []
    turns: list[Words] = []
    begun: list[float] = []
    durations: list[float] = []
    decisions: dict[tuple[int, str], Mapping[str, Any]] = {}
    waiting: list[Step] = []  # The entry of a turn that needs a new process precedes the process's own.
    current: Process | None = None
    for entry in entries:
        at = float(entry.pop("t"))
        ((kind, value),) = entry.items()
        if kind == "turn":
            turns.append(Words(str(value["text"]), int(value["length"]), int(value["check"])))
            begun.append(at)
            durations.append(0.0)
        elif kind == "over" and turns:
            durations[-1] = at - begun[-1]
        elif kind == "decision":
            decisions[len(turns), str(value["id"])] = dict(value)
        elif kind == "end":
            EndReason[value["reason"]]
            failure_in(value)
        step = Step(at, kind, value, len(turns))
        if kind == "start":
            current = Process(cli_version=value.get("cli_version"))
            processes.append(current)
            current.steps += waiting
            current.serves = bool(waiting)
            waiting = []
        elif current is None:
            waiting += [step] if kind == "turn" else []
        elif kind == "facts":
            current.facts.update(value)
        else:
            current.steps.append(step)
            current.serves = current.serves or kind in ("turn", "over", "abort", "decision")
        if kind == "end":
            current = None
    return LiveCassette(
        header=header,
        processes=tuple(processes),
        turns=tuple(turns),
        durations=tuple(durations),
        decisions=decisions,
    )


READERS: Mapping[int, Callable[[dict[str, Any], list[dict[str, Any]]], Cassette | LiveCassette]] = {
    FORMAT: _read_run,
    LIVE_FORMAT: _read_session,
}


def _entries(lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    """The entries up to the first incomplete line: the host may have died while writing it."""
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            return
        if not isinstance(entry, dict):
            return
        yield entry


def raw(text: str) -> bytes:
    """The line's original bytes."""
    return text.encode("utf-8", "surrogateescape")
