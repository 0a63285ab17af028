"""OpenCode 2 without OpenCode 2: a program that accepts its arguments and prints its lines, according to its source."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import (
    AgentErrorEvent,
    AgentEvent,
    AgentRunResult,
    AgentToolResultEvent,
    AgentToolUseEvent,
    AgentUsage,
    OpenCodeCliRuntime,
    errors,
)
from remoteclaw_sync.clis.opencode import two as opencode_two
from remoteclaw_sync.clis.opencode.store import SessionStore
from tests.fakes import finished

SESSION = "ses_2f1a"

# Prints what is in the files next to it, and writes down how it was started.
PROGRAM = """#!{python} -IS
import json, os, sys
folder = {folder!r}
with open(folder + "/starts", "a") as file:
    file.write(json.dumps({{"argv": sys.argv[1:], "cwd": os.getcwd(), "PWD": os.environ.get("PWD")}}) + "\\n")
sys.stdin.read()
if any(argument.startswith("--dir") for argument in sys.argv):
    print("DESCRIPTION\\n  Run OpenCode with a message\\n\\nUSAGE\\n  opencode run [flags] [<message...>]")
    print("\\nERROR\\n  Unrecognized flag: --dir in command opencode run", file=sys.stderr)
    sys.exit(1)
for name, stream in ("stdout", sys.stdout), ("stderr", sys.stderr):
    with open(folder + "/" + name) as file:
        stream.write(file.read())
sys.exit(int(open(folder + "/code").read()))
"""


class OpenCodeTwo:
    """An installed OpenCode 2."""

    def __init__(self, folder: Path, program: Path) -> None:
        self.folder = folder
        self.program = program
        program.parent.mkdir(parents=True)
        program.write_text(PROGRAM.format(python=sys.executable, folder=str(folder)))
        program.chmod(0o755)
        self.says()

    def says(self, *lines: dict[str, Any], stderr: str = "", code: int = 0) -> None:
        whole = [{"timestamp": 1, "sessionID": SESSION, **line} for line in lines or answer("Hello.")]
        (self.folder / "stdout").write_text("".join(f"{json.dumps(line)}\n" for line in whole))
        (self.folder / "stderr").write_text(stderr)
        (self.folder / "code").write_text(str(code))

    def run(self, **fields: Any) -> tuple[list[AgentEvent], AgentRunResult]:
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        runtime = OpenCodeCliRuntime(self.program, timeout=60.0)
        return finished(runtime.execute("hi", working_directory=work, **fields))

    @property
    def starts(self) -> list[dict[str, Any]]:
        path = self.folder / "starts"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def part(kind: str, **fields: Any) -> dict[str, Any]:
    return {"part": {"sessionID": SESSION, "messageID": "msg_1", "type": kind, **fields}}


def answer(words: str, reason: str = "stop") -> list[dict[str, Any]]:
    tokens = {"input": 10, "output": 5, "reasoning": 0, "cache": {"read": 1, "write": 2}}
    return [
        {"type": "step_start", **part("step-start", id="prt_0")},
        {"type": "text", **part("text", id=f"prt_{words}", text=words, time={"start": 1, "end": 2})},
        {"type": "step_finish", **part("step-finish", id=f"prt_e{words}", reason=reason, cost=0.5, tokens=tokens)},
    ]


def tool(tool: str, id: str, **state: Any) -> dict[str, Any]:
    """The `id` is the call's: some models start numbering their calls again in each message."""
    fields = {"messageID": "msg_0", "partID": f"prt_{tool}{len(str(state))}", "id": id, "tool": tool, "state": state}
    return {"type": "tool_use", **part("tool", **fields)}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith(("OPENCODE", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def two(tmp_path: Path) -> OpenCodeTwo:
    """As npm installs it."""
    package = tmp_path / "lib" / "node_modules" / "@opencode" / "cli"
    installed = OpenCodeTwo(tmp_path, package / "bin" / "opencode.exe")
    (package / "package.json").write_text('{"name": "@opencode/cli", "version": "2.0.15"}')
    return installed


@pytest.fixture
def unknown(tmp_path: Path) -> OpenCodeTwo:
    """As a single file, with nothing to identify it."""
    return OpenCodeTwo(tmp_path, tmp_path / "bin" / "opencode")


def told(events: list[AgentEvent]) -> list[tuple[str, str | None]]:
    return [(event.message, event.code) for event in events if isinstance(event, AgentErrorEvent)]


def test_it_is_known_by_its_files_and_started_in_the_folder_without_leaving_a_server(two: OpenCodeTwo) -> None:
    events, result = two.run(model="a/b", session_id=SESSION)
    assert (result.ok, result.text, result.session_id, told(events)) == (True, "Hello.", SESSION, [])
    assert (result.usage, result.total_cost_usd) == (AgentUsage(10, 5, 1, 2), 0.5)
    (start,) = two.starts
    assert start["cwd"] == start["PWD"] == str(two.folder / "work")
    assert start["argv"] == [
        "run",
        "--standalone",
        "--model=a/b",
        f"--session={SESSION}",
        "--thinking",
        "--format=json",
    ]


def test_one_that_is_not_known_beforehand_is_started_again_with_its_own_arguments(unknown: OpenCodeTwo) -> None:
    events, result = unknown.run()
    assert (result.ok, result.text) == (True, "Hello.")
    assert told(events) == [(opencode_two.STARTED_AGAIN, errors.CLI_WARNING)]
    assert ["--standalone" in start["argv"] for start in unknown.starts] == [False, True]


@pytest.mark.parametrize(
    ("path", "package", "expected"),
    [
        ("lib/node_modules/@opencode/cli/bin/opencode.exe", "@opencode/cli", True),
        ("lib/node_modules/@opencode/cli-linux-x64/bin/opencode", "@opencode/cli-linux-x64", True),
        ("opencode/versions/2.0.15/opencode", None, True),
        ("lib/node_modules/opencode-ai/bin/opencode.exe", "opencode-ai", False),
        ("opencode/versions/1.18.33/opencode", None, False),
        ("python/2.7.18/bin/opencode", None, False),
        ("bin/opencode", None, False),
    ],
)
def test_which_opencode_it_is(tmp_path: Path, path: str, package: str | None, expected: bool) -> None:
    program = tmp_path / path
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    if package is not None:
        (program.parent.parent / "package.json").write_text(json.dumps({"name": package, "version": "0.0.0"}))
    (tmp_path / "on_path").mkdir()
    (tmp_path / "on_path" / "opencode").symlink_to(program)
    assert opencode_two.is_installed("opencode", str(tmp_path / "on_path")) is expected
    assert opencode_two.is_installed(str(program), None) is expected


@pytest.mark.parametrize("contents", [b"{", b"[]", b"\xff", b'{"name": 5}', b"[" * 100_000])
def test_a_strange_package_file_is_no_version_two(tmp_path: Path, contents: bytes) -> None:
    program = tmp_path / "bin" / "opencode"
    program.parent.mkdir()
    program.write_text("")
    program.chmod(0o755)
    (tmp_path / "package.json").write_bytes(contents)
    assert opencode_two.is_installed(str(program), None) is False


def test_tool_calls_have_the_calls_own_ids_and_commands_that_fail_have_failed(two: OpenCodeTwo) -> None:
    def ran(code: int) -> dict[str, Any]:
        return {"metadata": {"exit": code}, "content": [], "providerCall": {"executed": False}}

    two.says(
        tool("shell", "call_1", status="completed", input={"command": "true"}, output="fine", metadata=ran(0)),
        tool("shell", "call_2", status="completed", input={"command": "false"}, output="broken", metadata=ran(3)),
        tool("read", "call_1", status="error", input={}, error="File not found", metadata={}),
        *answer("Done."),
    )
    events, result = two.run()
    uses = [(event.tool_name, event.tool_id) for event in events if isinstance(event, AgentToolUseEvent)]
    assert uses == [("shell", "call_1"), ("shell", "call_2"), ("read", "call_1")]
    outcomes = [(event.output, event.is_error) for event in events if isinstance(event, AgentToolResultEvent)]
    assert outcomes == [("fine", False), ("broken", True), ("File not found", True)]
    assert (result.ok, result.text) == (True, "Done.")


def test_a_permission_nobody_can_grant_is_a_failure_though_it_exits_with_0(two: OpenCodeTwo) -> None:
    """The turn is interrupted: there is text, but no end of the step."""
    asked = "\x1b[93m! \x1b[0mpermission requested: external_directory (/etc/*); auto-rejecting\n"
    declined = "The user declined this tool call"
    for lines in ([], [tool("read", "call_1", status="error", input={}, error=declined, metadata={})]):
        two.says(*answer("I look.")[:2], *lines, stderr=asked)
        events, result = two.run()
        assert (result.ok, result.error_subtype) == (False, "permission")
        ((message, _),) = told(events)
        assert "external_directory (/etc/*)" in message
        assert [denial.tool_id for denial in result.permission_denials] == ["call_1"] * len(lines)


def test_a_call_that_a_rule_forbids_is_a_denial_and_the_run_goes_on(two: OpenCodeTwo) -> None:
    state = {"status": "error", "input": {}, "error": "Permission denied: edit", "metadata": {}}
    two.says(tool("write", "call_1", **state), *answer("I may not."))
    _, result = two.run()
    assert (result.ok, [denial.tool for denial in result.permission_denials]) == (True, ["write"])


@pytest.mark.parametrize(
    ("error", "code", "subtype"),
    [
        ({"type": "provider.auth", "message": "no key", "status": 401}, "401", "auth"),
        ({"type": "provider.rate-limit", "message": "slowly", "status": 429}, "429", "rate_limit"),
        ({"type": "provider.quota", "message": "pay"}, "provider.quota", "billing"),
        ({"type": "provider.internal", "message": "oh", "status": 529}, "529", "overloaded"),
        ({"type": "provider.transport", "message": "cannot connect"}, "provider.transport", "network"),
        ({"type": "provider.invalid-request", "message": "bad", "status": 400}, "400", "config"),
        ({"type": "provider.no-route", "message": "Model not found"}, "provider.no-route", "config"),
        ({"type": "unknown", "message": "Session not found: ses_x"}, "unknown", "session_not_found"),
    ],
)
def test_an_error_is_told_once_with_its_kind(two: OpenCodeTwo, error: dict[str, Any], code: str, subtype: str) -> None:
    two.says({"type": "error", "error": error}, {"type": "error", "error": error}, code=1)
    events, result = two.run()
    assert told(events) == [(error["message"], code)]
    assert (result.ok, result.error_subtype) == (False, subtype)


def test_read_only_is_refused_because_nothing_would_keep_it(two: OpenCodeTwo) -> None:
    events, result = two.run(permission_mode="read-only")
    assert told(events) == [(opencode_two.NO_READ_ONLY, errors.UNSUPPORTED_OPTION)]
    assert not result.ok
    assert two.starts == []


def test_read_only_is_not_started_again_without_its_rules(unknown: OpenCodeTwo) -> None:
    events, result = unknown.run(permission_mode="read-only")
    assert told(events) == [(opencode_two.NO_READ_ONLY, errors.UNSUPPORTED_OPTION)]
    assert (result.ok, len(unknown.starts)) == (False, 1)


def test_its_store_tells_a_sessions_folder_and_whether_a_tool_runs(tmp_path: Path) -> None:
    folder = tmp_path / ".local" / "share" / "opencode"
    folder.mkdir(parents=True)
    with sqlite3.connect(folder / "opencode.db") as database:
        database.execute("CREATE TABLE session_v2 (id TEXT, directory TEXT)")
        database.execute("CREATE TABLE session_message (id TEXT, data TEXT)")
        database.execute("INSERT INTO session_v2 VALUES (?, '/its/folder')", (SESSION,))
        for id, status in ("msg_1", "running"), ("msg_2", "completed"):
            data = {"content": [{"type": "text", "text": "x"}, {"type": "tool", "state": {"status": status}}]}
            database.execute("INSERT INTO session_message VALUES (?, ?)", (id, json.dumps(data)))
    database.close()
    store = SessionStore({"HOME": str(tmp_path)})
    assert store.directory_of(SESSION) == "/its/folder"
    assert (store.runs_tool("msg_1"), store.runs_tool("msg_2")) == (True, False)
