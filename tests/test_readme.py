"""README says what the code does: its examples run, and its tables are compared with the code."""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_args

import attrs
import pytest

import remoteclaw_sync
from remoteclaw_sync import AgentEvent, AgentExecuteParams, CLIRuntimeBase, errors
from remoteclaw_sync.classify import ERROR_SUBTYPES, RETRYABLE

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
SOURCE = Path(remoteclaw_sync.__file__).parents[1]

# Prints what Claude Code 2 prints for a prompt without tools: no token deltas, whole messages.
FAKE_CLAUDE = """#!{python}
import json, sys
sys.stdin.read()
session = "0b5c1f1e-0000-4000-8000-000000000001"
usage = {{"input_tokens": 3, "output_tokens": 5, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}}
answer = "A test fails on Tuesdays."
message = {{"id": "msg_1", "type": "message", "role": "assistant", "content": [{{"type": "text", "text": answer}}],
            "stop_reason": "end_turn", "usage": usage}}
for line in (
    {{"type": "system", "subtype": "init", "session_id": session, "model": "m", "tools": [], "mcp_servers": []}},
    {{"type": "assistant", "message": message, "parent_tool_use_id": None, "session_id": session}},
    {{"type": "result", "subtype": "success", "is_error": False, "result": answer, "session_id": session,
      "duration_ms": 5, "duration_api_ms": 4, "num_turns": 1, "total_cost_usd": 0.25, "usage": usage,
      "permission_denials": []}},
):
    print(json.dumps(line), flush=True)
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def command(name: str) -> str:
    """A command that `.ci/run` takes from README too."""
    found = re.search(rf"^<!-- ci: {name} -->\n```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert found, name
    return found[1]


def table(first_heading: str) -> dict[str, list[str]]:
    """The rows of the table with this first heading: first cell (without backticks) to the other cells."""
    found = re.search(rf"^\| {re.escape(first_heading)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", README, re.MULTILINE)
    assert found, first_heading
    rows = [[cell.strip() for cell in row[1:-1].split("|")] for row in found[1].splitlines()]
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0].replace("`", ""): row[1:] for row in rows}


def run_script(script: str, tmp_path: Path, *path: Path) -> str:
    """What this script prints, run as a user would run it."""
    file = tmp_path / "script.py"
    file.write_text(script, encoding="utf-8")
    search_path = os.pathsep.join([*map(str, path), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, "-W", "error", str(file)],
        cwd=tmp_path,
        env={**os.environ, "PATH": search_path, "PYTHONPATH": str(SOURCE), "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.fixture
def claude_on_path(tmp_path: Path) -> Path:
    """A folder with a `claude` that needs no account."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "claude"
    program.write_text(FAKE_CLAUDE.format(python=sys.executable), encoding="utf-8")
    program.chmod(0o755)
    return folder


# --- examples ------------------------------------------------------------------------------------------------


def test_readme_opens_with_an_example() -> None:
    assert README.splitlines()[2] == "```python"


def test_the_opening_example_prints_the_answer(tmp_path: Path, claude_on_path: Path) -> None:
    printed = run_script(blocks("python")[0], tmp_path, claude_on_path)
    assert printed.startswith("A test fails on Tuesdays.\nok=True, ")


def test_the_example_of_run_prints_answer_usage_and_cost(tmp_path: Path, claude_on_path: Path) -> None:
    printed = run_script(blocks("python")[1], tmp_path, claude_on_path)
    assert printed.count("A test fails on Tuesdays.") == 2
    assert "output_tokens=5" in printed
    assert "0.25" in printed
    assert "failed" not in printed


def test_the_example_of_run_says_why_where_the_cli_is_missing(tmp_path: Path) -> None:
    elsewhere = blocks("python")[1].replace('"claude",', '"claude", command="no-such-claude",')
    printed = run_script(elsewhere, tmp_path)
    assert printed.startswith("failed: cli_missing ")
    assert "CLI_NOT_FOUND command 'no-such-claude' was not found on PATH" in printed


@pytest.mark.skipif(not hasattr(signal, "SIGTERM"), reason="SIGTERM is POSIX's")
def test_the_example_of_start_ends_with_the_result(tmp_path: Path, claude_on_path: Path) -> None:
    printed = run_script(blocks("python")[2], tmp_path, claude_on_path).splitlines()
    assert "'type': 'done'" in printed[-2]
    assert printed[-1] == "True None"


def test_the_opening_example_works_with_the_demo_agent_too(tmp_path: Path) -> None:
    printed = run_script(blocks("python")[0].replace('"claude"', '"demo"'), tmp_path)
    assert "demo agent" in printed
    assert "\nok=True, " in printed


def test_there_is_a_test_here_for_every_example() -> None:
    assert len(blocks("python")) == 4


def test_the_example_of_a_cli_of_ones_own_yields_its_events(tmp_path: Path) -> None:
    printed = run_script(blocks("python")[3], tmp_path).splitlines()
    words = ("HELLO", "FROM", "A", "REAL", "SUBPROCESS")
    assert printed[:-1] == [f"{{'type': 'text', 'text': '{word} '}}" for word in words]
    assert "'type': 'done'" in printed[-1]
    assert "'error_subtype': None" in printed[-1]


def test_each_of_the_two_commands_does_its_own_set_up() -> None:
    for name in ("demo", "test"):
        assert command(name).startswith("python3 -m venv .venv && .venv/bin/pip install -q ")
    assert command("demo").endswith(".venv/bin/remoteclaw-sync demo\n")
    assert command("test").endswith(".venv/bin/python -m pytest -q tests\n")


# --- tables --------------------------------------------------------------------------------------------------


def test_the_table_of_error_codes_is_that_of_the_code() -> None:
    codes = {value for name, value in vars(errors).items() if name.isupper() and isinstance(value, str)}
    assert set(table("code")) == codes


def test_the_table_says_which_errors_a_run_survives() -> None:
    survived = {code for code, (meaning,) in table("code").items() if re.search("the run goes on|survived", meaning)}
    assert survived == errors.SURVIVABLE


def test_the_table_of_subtypes_is_that_of_the_code() -> None:
    rows = table("error_subtype")
    assert set(rows) == ERROR_SUBTYPES
    assert {name for name, (_, again) in rows.items() if again == "later"} == RETRYABLE


def test_the_table_of_events_is_that_of_the_code() -> None:
    documented = {kind: re.findall(r"`(\w+)`", " ".join(cells)) for kind, cells in table("`event.type`").items()}
    assert documented == {
        event.type: [event.__name__, *(field.name for field in attrs.fields(event))] for event in get_args(AgentEvent)
    }


def test_the_table_of_params_is_that_of_the_code() -> None:
    assert list(table("field of `AgentExecuteParams`")) == [field.name for field in attrs.fields(AgentExecuteParams)]


def test_the_defaults_in_the_tables_are_those_of_the_code() -> None:
    options = inspect.signature(CLIRuntimeBase).parameters
    mebibytes = {name: f"{options[name].default // 2**20} MiB" for name in ("max_pending_bytes", "max_line_bytes")}
    seconds = {name: f"{options[name].default:g} s" for name in ("timeout", "tool_timeout", "linger")}
    limits = {name: cells[0] for name, cells in table("option of a runtime").items()}
    assert limits.items() >= {**mebibytes, **seconds}.items()
    endings = {cells[0].replace("`", ""): cells[1] for cells in table("what").values()}
    assert endings.items() >= seconds.items()


def test_every_option_of_the_base_is_in_readme() -> None:
    for name in set(inspect.signature(CLIRuntimeBase).parameters) - {"command"}:
        assert f"`{name}`" in README, name


def test_every_name_in_backticks_that_looks_like_ours_exists() -> None:
    names = set(re.findall(r"`((?:Agent|Mcp|CLI|Claude|Gemini|Codex|OpenCode)[A-Za-z]+)`", README))
    assert "CLIRuntimeBase" in names
    assert names - set(remoteclaw_sync.__all__) == set()
