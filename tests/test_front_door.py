"""Misspelt and wrong arguments fail in the call, with a message that names them, on every runtime."""

from __future__ import annotations

from typing import Any

import pytest

from remoteclaw_sync import SUPPORTED_PROVIDERS, create_cli_runtime
from remoteclaw_sync.types import AgentExecuteParams, RunFields

PROVIDERS = (*SUPPORTED_PROVIDERS, "demo")
each_provider = pytest.mark.parametrize("provider", PROVIDERS)


@each_provider
@pytest.mark.parametrize("verb", ["execute", "start", "run"])
def test_a_misspelt_field_is_named_with_the_one_that_was_meant(provider: str, verb: str) -> None:
    runtime = create_cli_runtime(provider)
    with pytest.raises(TypeError, match="'permision_mode'; did you mean 'permission_mode'"):
        getattr(runtime, verb)("hi", permision_mode="read-only")


@each_provider
def test_a_field_that_is_like_no_other_is_answered_with_a_list(provider: str) -> None:
    fields: Any = {"zzz": 1}
    with pytest.raises(TypeError, match="'zzz'; known are: session_id, "):
        create_cli_runtime(provider).run(AgentExecuteParams("hi"), **fields)


@each_provider
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"deadline": "soon"}, "deadline must be a number"),
        ({"permission_mode": "readonly"}, "permission_mode must be one of"),
        ({"prompt_syntax": "bogus"}, "prompt_syntax must be one of"),
        ({"images": 3}, "images must be a sequence"),
        ({"tools": 3}, "tools must be a sequence"),
        ({"output_type": 3}, "output_type: 3 cannot be passed as JSON"),
    ],
)
def test_a_wrong_value_of_a_field_is_named(provider: str, fields: dict[str, Any], named: str) -> None:
    with pytest.raises((TypeError, ValueError), match=named):
        create_cli_runtime(provider).start("hi", **fields)


@each_provider
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"timeot": 3}, "timeot"),
        ({"timeout": "soon"}, "timeout must be a number"),
        ({"prompt_syntax": "bogus"}, "prompt_syntax must be one of 'text', 'cli'"),
        ({"command": 3}, "command must be a program or a sequence"),
        ({"linger": None}, "linger must be a number"),
    ],
)
def test_a_wrong_option_is_named(provider: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises((TypeError, ValueError), match=named):
        create_cli_runtime(provider, **options)


@pytest.mark.parametrize(
    ("provider", "option"),
    [("gemini", "trust_workspace"), ("codex", "wait_for_network"), ("opencode", "generate_title")],
)
def test_no_is_not_taken_for_true(provider: str, option: str) -> None:
    options: dict[str, Any] = {option: "no"}
    with pytest.raises(TypeError, match=f"{option} must be True or False"):
        create_cli_runtime(provider, **options)


@each_provider
def test_no_is_not_taken_for_a_wish_to_check(provider: str) -> None:
    check: Any = "no"
    with pytest.raises(TypeError, match="check must be True or False"):
        create_cli_runtime(provider).run("hi", check=check)


def test_the_typed_keywords_are_the_fields_of_the_params() -> None:
    fields = [field.name for field in AgentExecuteParams.__attrs_attrs__]
    assert set(RunFields.__annotations__) == set(fields) - {"prompt"}
