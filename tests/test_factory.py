"""From a provider's name to its runtime."""

from __future__ import annotations

import pytest

from remoteclaw_sync import (
    SUPPORTED_PROVIDERS,
    AgentRuntime,
    ClaudeCliRuntime,
    CLIRuntimeBase,
    CodexCliRuntime,
    GeminiCliRuntime,
    OpenCodeCliRuntime,
    UnknownProviderError,
    create_cli_runtime,
)

CLASSES: dict[str, type[CLIRuntimeBase]] = {
    "claude": ClaudeCliRuntime,
    "gemini": GeminiCliRuntime,
    "codex": CodexCliRuntime,
    "opencode": OpenCodeCliRuntime,
}

each_provider = pytest.mark.parametrize("provider", CLASSES)


def test_the_supported_providers_are_these_four() -> None:
    assert set(SUPPORTED_PROVIDERS) == set(CLASSES)


@each_provider
def test_a_provider_gets_its_runtime(provider: str) -> None:
    runtime = create_cli_runtime(provider)
    assert type(runtime) is CLASSES[provider]
    assert isinstance(runtime, AgentRuntime)
    assert runtime.provider == provider


@each_provider
def test_case_and_surrounding_space_do_not_matter(provider: str) -> None:
    for spelling in (provider.upper(), provider.title(), f"  {provider}\n"):
        assert type(create_cli_runtime(spelling)) is CLASSES[provider]


@each_provider
def test_a_runtime_runs_the_program_of_its_name_for_300_seconds_of_silence(provider: str) -> None:
    runtime = create_cli_runtime(provider)
    assert (runtime.command, runtime.timeout) == ((provider,), 300.0)


@each_provider
def test_options_reach_the_constructor(provider: str) -> None:
    runtime = create_cli_runtime(provider, command=["npx", provider], timeout=7.0, tool_timeout=None)
    assert (runtime.command, runtime.timeout, runtime.tool_timeout) == (("npx", provider), 7.0, None)


@each_provider
def test_a_wrong_option_is_refused_by_name(provider: str) -> None:
    with pytest.raises(TypeError, match="timeot"):
        create_cli_runtime(provider, timeot=7.0)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="^timeout must be a positive number"):
        create_cli_runtime(provider, timeout=-1)


@each_provider
def test_the_classes_take_the_command_first(provider: str) -> None:
    assert CLASSES[provider]("/opt/agent").command == ("/opt/agent",)


@pytest.mark.parametrize("provider", ["", "gpt", "claude-code", "cla ude", None, 3, ["claude"], b"claude"])
def test_an_unknown_provider_is_refused_with_the_known_ones(provider: object) -> None:
    with pytest.raises(UnknownProviderError) as caught:
        create_cli_runtime(provider)  # type: ignore[call-overload]
    assert caught.value.provider == provider
    assert caught.value.known == SUPPORTED_PROVIDERS
    for known in CLASSES:
        assert known in str(caught.value)
