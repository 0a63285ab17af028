"""Exceptions and error codes."""

from __future__ import annotations

import copy
import pickle

import pytest

from remoteclaw_sync import (
    AgentErrorEvent,
    AgentRunError,
    AgentRunResult,
    ErrorSubtype,
    RemoteClawError,
    UnknownProviderError,
    create_cli_runtime,
    errors,
)

CODES = {name: value for name, value in vars(errors).items() if name.isupper() and isinstance(value, str)}


def test_every_code_is_named_like_its_value() -> None:
    assert "CLI_NOT_FOUND" in CODES
    assert {name for name, value in CODES.items() if name != value} == set()


def test_what_a_run_survives_are_codes_and_the_verdict_agrees() -> None:
    assert set(CODES) >= errors.SURVIVABLE


def test_all_exceptions_have_one_base() -> None:
    assert issubclass(AgentRunError, RemoteClawError)
    assert issubclass(UnknownProviderError, RemoteClawError)
    assert issubclass(UnknownProviderError, ValueError)
    assert not issubclass(AgentRunError, ValueError)


def run_error(*reported: AgentErrorEvent, subtype: ErrorSubtype | None = "auth") -> AgentRunError:
    return AgentRunError(AgentRunResult(text="so far", error_subtype=subtype), reported)


def test_a_failed_run_carries_its_result_and_all_its_errors() -> None:
    reported = (AgentErrorEvent("retrying", "CLI_WARNING"), AgentErrorEvent("401", "CLI_ERROR"))
    error = run_error(*reported)
    assert (error.result.text, error.errors) == ("so far", reported)


def test_the_message_is_the_cause_and_not_a_warning_around_it() -> None:
    error = run_error(
        AgentErrorEvent("model metadata not found", errors.CLI_WARNING),
        AgentErrorEvent("reconnecting 1/5", errors.CLI_ERROR),
        AgentErrorEvent("401 Unauthorized", errors.CLI_ERROR),
        AgentErrorEvent("skipped a line", errors.LINE_TOO_LONG),
    )
    assert str(error) == "401 Unauthorized [auth]"


def test_the_message_takes_a_warning_where_there_is_nothing_else() -> None:
    assert str(run_error(AgentErrorEvent("skipped a line", errors.LINE_TOO_LONG))) == "skipped a line [auth]"


def test_the_message_does_without_error_events() -> None:
    assert str(run_error(subtype=None)) == "the run failed [unknown]"


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_exceptions_survive_copies_and_pickle(duplicate: object) -> None:
    assert callable(duplicate)
    failed = duplicate(run_error(AgentErrorEvent("401", "CLI_ERROR")))
    assert (str(failed), failed.result.error_subtype, failed.errors[0].code) == ("401 [auth]", "auth", "CLI_ERROR")
    unknown = duplicate(UnknownProviderError("cloud", ["claude", "codex"]))
    assert (str(unknown), unknown.provider, unknown.known) == (
        "unknown provider 'cloud'; known are: claude, codex",
        "cloud",
        ("claude", "codex"),
    )


def test_an_unknown_provider_can_be_caught_as_a_value_error() -> None:
    with pytest.raises(ValueError, match="unknown provider 'cloud'"):
        create_cli_runtime("cloud")
