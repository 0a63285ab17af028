"""The verdict on a run, from everything that is known about it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from remoteclaw_sync import AgentErrorEvent
from remoteclaw_sync.engine.outcome import RunOutcome, TurnEnd
from remoteclaw_sync.engine.verdict import Evidence, judge
from remoteclaw_sync.process.ending import EndReason
from remoteclaw_sync.process.launch import SpawnFailure


def evidence(**known: Any) -> Evidence:
    """The evidence of an ordinary end, except for what is given: fields of the evidence, of the turn's end and of the
    agent."""
    agent: Any = SimpleNamespace(
        program="agent",
        timeout=300.0,
        expects_terminal_event=known.pop("expects_terminal", False),
        cli_facts=SimpleNamespace(exit_codes=known.pop("exit_codes", {})),
    )
    own: dict[str, Any] = {"finished_in_time": True, "answered": True, "errors_seen": (), "deadline": 60.0}
    own |= {name: known.pop(name) for name in [*known] if name in own}
    return Evidence(agent=agent, end=TurnEnd(**{"reason": EndReason.EXITED, "exit_code": 0, **known}), **own)


SUCCESS = RunOutcome(terminal="success")
FAILURE = RunOutcome(terminal="failure")
LIMIT = RunOutcome(terminal="failure", error_subtype="max_turns")
TOLD = AgentErrorEvent("429 rate limit", "x")
WARNED = AgentErrorEvent("careful", "CLI_WARNING")
EXPLAINED = AgentErrorEvent("no login", "AUTH")


@pytest.mark.parametrize(
    ("known", "code", "subtype"),
    [
        # Success needs evidence.
        ({}, None, None),
        ({"outcome": SUCCESS}, None, None),
        ({"outcome": SUCCESS, "answered": False}, None, None),
        ({"answered": False}, "CLI_INCOMPLETE", "incomplete"),
        ({"expects_terminal": True}, "CLI_INCOMPLETE", "incomplete"),
        ({"exit_code": None}, None, None),
        ({"exit_code": None, "answered": False}, "CLI_INCOMPLETE", "incomplete"),
        # The CLI's last word outranks exit code and clocks.
        ({"outcome": SUCCESS, "exit_code": 1}, None, None),
        ({"outcome": SUCCESS, "exit_code": -9, "reason": EndReason.LINGERED}, None, None),
        ({"outcome": SUCCESS, "reason": EndReason.WATCHDOG}, None, None),
        ({"outcome": SUCCESS, "reason": EndReason.DEADLINE}, None, None),
        ({"outcome": SUCCESS, "finished_in_time": False}, None, None),
        # Unless that word came only after the CLI was told to end.
        (
            {"outcome": SUCCESS, "reason": EndReason.WATCHDOG, "finished_in_time": False},
            "WATCHDOG_TIMEOUT",
            "timeout",
        ),
        (
            {"outcome": SUCCESS, "reason": EndReason.DEADLINE, "finished_in_time": False},
            "DEADLINE_EXCEEDED",
            "timeout",
        ),
        ({"outcome": FAILURE}, "CLI_ERROR", "unknown"),
        ({"outcome": LIMIT}, "CLI_ERROR", "max_turns"),
        ({"outcome": FAILURE, "errors_seen": (TOLD,)}, None, "rate_limit"),
        ({"outcome": LIMIT, "errors_seen": (TOLD,)}, None, "max_turns"),
        # What we did to the CLI.
        ({"reason": EndReason.ABORTED, "exit_code": -15}, "ABORTED", "aborted"),
        ({"reason": EndReason.ABORTED, "outcome": SUCCESS}, "ABORTED", "aborted"),
        ({"reason": EndReason.CLOSED}, None, "aborted"),
        ({"reason": EndReason.WATCHDOG, "exit_code": -15}, "WATCHDOG_TIMEOUT", "timeout"),
        ({"reason": EndReason.WATCHDOG, "exit_code": 0}, "WATCHDOG_TIMEOUT", "timeout"),
        ({"reason": EndReason.DEADLINE, "exit_code": -9}, "DEADLINE_EXCEEDED", "timeout"),
        ({"reason": EndReason.LINGERED, "exit_code": -15}, "CLI_INCOMPLETE", "incomplete"),
        # The exit, if nothing explains the end better.
        ({"answered": False, "exit_code": 41, "exit_codes": {41: "auth"}}, "CLI_EXIT_ERROR", "auth"),
        ({"exit_code": 1}, "CLI_EXIT_ERROR", "crash"),
        ({"exit_code": -11}, "CLI_EXIT_ERROR", "crash"),
        ({"exit_code": 1, "shown": "401 Unauthorized"}, "CLI_EXIT_ERROR", "auth"),
        ({"exit_code": 1, "cause": EXPLAINED}, "AUTH", "crash"),
        ({"exit_code": 1, "errors_seen": (TOLD,)}, None, "rate_limit"),
        ({"exit_code": 1, "errors_seen": (WARNED,)}, "CLI_EXIT_ERROR", "crash"),
        ({"exit_code": 0, "answered": False, "errors_seen": (TOLD,)}, None, "rate_limit"),
        ({"exit_code": 0, "answered": False, "errors_seen": (WARNED,)}, "CLI_INCOMPLETE", "incomplete"),
        # It never started.
        ({"failure": SpawnFailure("CLI_NOT_FOUND", "gone")}, "CLI_NOT_FOUND", "cli_missing"),
        ({"failure": SpawnFailure("CLI_NOT_EXECUTABLE", "x")}, "CLI_NOT_EXECUTABLE", "cli_missing"),
        (
            {"failure": SpawnFailure("WORKING_DIRECTORY_NOT_FOUND", "x")},
            "WORKING_DIRECTORY_NOT_FOUND",
            "config",
        ),
        ({"failure": SpawnFailure("SPAWN_FAILED", "x")}, "SPAWN_FAILED", "crash"),
    ],
    ids=lambda value: ",".join(map(str, value)) if isinstance(value, dict) else str(value),
)
def test_the_verdict(known: dict[str, Any], code: str | None, subtype: str | None) -> None:
    verdict = judge(evidence(**known))
    assert (verdict.error.code if verdict.error else None, verdict.error_subtype) == (code, subtype)


def test_a_message_quotes_the_end_of_a_long_stderr_only() -> None:
    verdict = judge(evidence(exit_code=1, shown="x" * 100_000 + "the end"))
    assert verdict.error is not None
    assert verdict.error.message.endswith("the end")
    assert len(verdict.error.message) < 3000


def test_a_signal_is_told_by_name() -> None:
    verdict = judge(evidence(exit_code=-11))
    assert verdict.error is not None
    assert "SIGSEGV" in verdict.error.message
