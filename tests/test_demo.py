"""The built-in agent: a stranger's first run, and a stand-in for a real CLI."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from remoteclaw_sync import (
    SUPPORTED_PROVIDERS,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    CLIRuntimeBase,
    create_cli_runtime,
)
from tests.fakes import codes, finished


@pytest.fixture
def demo() -> CLIRuntimeBase:
    return create_cli_runtime("demo", pace=0)


def test_the_demo_is_found_by_its_name_however_it_is_written() -> None:
    assert type(create_cli_runtime(" Demo ")) is type(create_cli_runtime("demo"))


def test_it_thinks_lists_the_folder_by_a_tool_and_answers_word_by_word(demo: CLIRuntimeBase, tmp_path: Path) -> None:
    (tmp_path / "one.txt").touch()
    (tmp_path / "two").mkdir()
    events, result = finished(demo.execute("What is here?", working_directory=tmp_path))
    assert result.ok
    assert result.usage is not None
    assert result.usage.output_tokens > 0
    thought = "".join(event.text for event in events if isinstance(event, AgentThinkingEvent))
    assert thought.startswith("A look at the folder")
    (call,) = (event for event in events if isinstance(event, AgentToolUseEvent))
    (given,) = (event for event in events if isinstance(event, AgentToolResultEvent))
    assert (call.tool_name, call.input, call.tool_id) == ("LS", {"path": "."}, given.tool_id)
    assert given.output == "one.txt\ntwo/"
    assert "“What is here?”" in result.text
    assert len([event for event in events if event.type == "text"]) > 50


def test_a_session_can_be_resumed_and_keeps_its_id(demo: CLIRuntimeBase, tmp_path: Path) -> None:
    first = demo.run("Hi", working_directory=tmp_path)
    assert first.session_id is not None
    second = demo.run("And now?", session_id=first.session_id, working_directory=tmp_path)
    assert second.session_id == first.session_id
    assert second.text.startswith("Welcome back")
    assert demo.run("Hi", working_directory=tmp_path).session_id != first.session_id


def test_a_session_that_is_not_its_own_is_not_found(demo: CLIRuntimeBase) -> None:
    assert demo.run("Hi", session_id="another", check=False).error_subtype == "session_not_found"


@pytest.mark.parametrize("prompt", ["/clear", "@/etc/passwd", "--help", "-", "line\nbreak", "“quotes” \\ 日本 🎉"])
def test_any_prompt_reaches_it_as_text(demo: CLIRuntimeBase, prompt: str, tmp_path: Path) -> None:
    result = demo.run(prompt, working_directory=tmp_path)
    assert f"You asked: “{' '.join(prompt.split())}”" in result.text


@pytest.mark.slow
def test_failures_can_be_asked_for(demo: CLIRuntimeBase) -> None:
    assert demo.run("demo:fail", check=False).error_subtype == "overloaded"
    crashed = demo.run("demo:crash", check=False)
    assert (crashed.error_subtype, crashed.exit_code) == ("crash", 3)
    assert "something broke" in crashed.stderr
    events, result = finished(demo.execute("demo:hang", deadline=0.5))
    assert (codes(events), result.error_subtype) == (["DEADLINE_EXCEEDED"], "timeout")


def test_it_needs_nothing_of_its_surroundings(demo: CLIRuntimeBase, tmp_path: Path) -> None:
    """Neither a module in the working directory nor one on PYTHONPATH gets into it."""
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')")
    env = dict.fromkeys(os.environ) | {"PYTHONPATH": str(tmp_path)}
    assert demo.run("Hi", working_directory=tmp_path, env=env).ok


def test_it_is_no_cli_that_this_package_supports() -> None:
    assert "demo" not in SUPPORTED_PROVIDERS
