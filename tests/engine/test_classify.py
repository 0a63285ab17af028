"""From a CLI's words, codes and exits to the kind of failure."""

from __future__ import annotations

from typing import get_args

import pytest

from remoteclaw_sync import classify_error
from remoteclaw_sync.clis.registry import all_facts
from remoteclaw_sync.engine import classify
from remoteclaw_sync.engine import verdict as outcome
from remoteclaw_sync.engine.classify import HTTP_STATUSES, RETRYABLE
from remoteclaw_sync.types import ErrorSubtype

MESSAGES = [
    ("API Error: 401 Invalid authentication credentials", "auth"),
    ("Not logged in. Please run /login", "auth"),
    ("Invalid API key", "auth"),
    ("API key not valid. Please pass a valid API key.", "auth"),
    ("API Error: 429 Rate limited", "rate_limit"),
    ("Too Many Requests", "rate_limit"),
    ("RESOURCE_EXHAUSTED", "rate_limit"),
    ("You've hit your usage limit.", "rate_limit"),
    ("API Error: 529 Overloaded", "overloaded"),
    ("503 Service Unavailable", "overloaded"),
    ("Internal server error", "overloaded"),
    ("Prompt is too long", "context_window"),
    ("This model's maximum context length is 128000 tokens", "context_window"),
    ("context_length_exceeded", "context_window"),
    ("Credit balance is too low", "billing"),
    ("402 Payment Required", "billing"),
    ("connect ECONNREFUSED 127.0.0.1:1", "network"),
    ("fetch failed", "network"),
    ("getaddrinfo ENOTFOUND api.example.org", "network"),
    ("stream disconnected before completion", "network"),
    ("No conversation found with session ID: 1234", "session_not_found"),
    ("Session not found", "session_not_found"),
    ('Invalid session identifier "x"', "session_not_found"),
    ("Not inside a trusted directory and --skip-git-repo-check was not specified.", "untrusted_directory"),
    ("Reached maximum number of turns (3)", "max_turns"),
    ("error: unexpected argument '--bogus' found", "config"),
    ("Error loading config.toml", "config"),
    ("Error: config profile `work` not found", "config"),
    ("Your current account is not eligible for Gemini Code Assist for individuals, the free version", "auth"),
    ("IneligibleTierError: UNSUPPORTED_CLIENT", "auth"),
    ("Error: claude native binary not installed.", "cli_missing"),
    ("Error: opencode-ai's postinstall script was not run.", "cli_missing"),
    ("MCP tool call requires approval, but approval policy is never", "permission"),
    ("something nobody has seen before", "unknown"),
    ("", "unknown"),
]


@pytest.mark.parametrize(("message", "subtype"), MESSAGES)
def test_a_message_says_what_kind_of_failure_it_is(message: str, subtype: str) -> None:
    assert classify_error(message).error_subtype == subtype
    assert classify_error(f"Error: {message.upper()}\n").error_subtype == subtype


@pytest.mark.parametrize(
    "message",
    [
        "SyntaxError in line 14290",
        "wrote 5003 files",
        "see network.py",
        "request id 4290a500f",
        "port 15029 is in use",
        "took 401ms",
    ],
)
def test_numbers_and_names_that_only_look_like_a_status_say_nothing(message: str) -> None:
    assert classify_error(message).error_subtype == "unknown"


def test_another_try_is_advised_only_where_it_may_help() -> None:
    assert {subtype for message, subtype in MESSAGES if classify_error(message).retryable} == RETRYABLE
    assert {"rate_limit", "overloaded", "network"} == RETRYABLE


def test_the_code_counts_where_the_message_says_nothing() -> None:
    assert classify_error("boom", code="rate_limit_error").error_subtype == "rate_limit"
    assert classify_error("Invalid API key", code="rate_limit_error").error_subtype == "auth"


@pytest.mark.parametrize(("status", "subtype"), [*HTTP_STATUSES.items(), (599, "overloaded"), (418, "unknown")])
def test_the_http_status_counts_where_no_words_do(status: int, subtype: str) -> None:
    assert classify_error("boom", status=status).error_subtype == subtype
    assert classify_error("Session not found", status=status).error_subtype == "session_not_found"


@pytest.mark.parametrize("status", [401, 403])
def test_an_account_that_has_no_permission_is_not_a_tool_that_was_refused(status: int) -> None:
    assert classify_error("Permission denied: the key has been suspended", status=status).error_subtype == "auth"
    assert classify_error("Permission denied", status=400).error_subtype == "permission"


def test_an_exit_code_means_something_on_its_own_cli_only() -> None:
    assert classify_error(exit_code=41, provider="gemini").error_subtype == "auth"
    assert classify_error(exit_code=41, provider="claude").error_subtype == "unknown"
    assert classify_error(exit_code=41).error_subtype == "unknown"
    assert classify_error("fetch failed", exit_code=41, provider="gemini").error_subtype == "network"


def test_no_table_names_a_kind_that_is_not_listed() -> None:
    by_text = {subtype for subtype, _ in classify._PATTERNS}
    by_exit = {subtype for cli in all_facts() for subtype in cli.exit_codes.values()}
    named = by_text | by_exit | set(HTTP_STATUSES.values()) | set(outcome.SPAWN_SUBTYPES.values()) | RETRYABLE
    assert named - set(get_args(ErrorSubtype)) == set()


@pytest.mark.slow
@pytest.mark.parametrize("filler", ["a", " ", "session ", "model ", "1", "max session "])
def test_a_message_as_long_as_a_line_can_be_does_not_hold_up_the_run(filler: str) -> None:
    """We chose to look at both ends only: all 64 MiB would take longer than a test may."""
    padding = filler * (64 * 1024 * 1024 // len(filler))
    assert classify_error(padding).error_subtype == "unknown"
    assert classify_error(f"401 Unauthorized {padding}").error_subtype == "auth"
    assert classify_error(f"{padding} 401 Unauthorized").error_subtype == "auth"
