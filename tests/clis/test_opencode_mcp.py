"""The caller's MCP servers on their way to OpenCode, without OpenCode: what it is given, and what is left of it."""

from __future__ import annotations

import json
import os
import random
import re
import stat
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import AgentExecuteParams, McpServerConfig, OpenCodeCliRuntime, errors
from remoteclaw_sync.clis.opencode import mcp as opencode_mcp
from remoteclaw_sync.config_files import jsonc
from remoteclaw_sync.config_files.borrowed import BorrowedConfig, ConfigFile
from tests.clis.test_opencode import PLAIN, Played, error_messages
from tests.config_files.test_config_edit import EXAMPLES, random_text
from tests.fakes import codes, finished

LAB = McpServerConfig("server", ["--flag"], {"TOKEN": "s3cr3t-value"})
REMOTE = McpServerConfig(url="https://example.test/mcp", headers={"X-Token": "s3cr3t-value"})
PIECES = ("{env:HOME}", "{file:/etc/passwd}", "{env:", "{", "}", "\\", '"', "\n", "\u2028", "\U0001f389", "\\u007b")

# Prints what it finds where OpenCode looks for servers, and does to a project what OpenCode does.
READER = """
import json, os, sys, time
folder = ".opencode"
found = {"env": dict(os.environ), "files": {}}
for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
    path = os.path.join(folder, name)
    found["files"][name] = [os.stat(path).st_mode, open(path, encoding="utf-8").read()]
if found["files"]:
    open(os.path.join(folder, ".gitignore"), "w").close()
print(json.dumps({"type": "text", "part": {"id": "1", "text": json.dumps(found)}}), flush=True)
if "LATE" in os.environ:
    while os.path.exists(folder):
        time.sleep(0.005)
    os.makedirs(os.path.join(folder, "node_modules", "x"))
print(json.dumps({"type": "step_finish", "part": {"id": "2", "reason": "stop"}}))
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project of a user without settings."""
    for name in [name for name in os.environ if name.startswith(("OPENCODE", "XDG_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    project = tmp_path / "project"
    project.mkdir()
    return project


def content(servers: Mapping[str, McpServerConfig], env: Mapping[str, str] | None = None) -> str:
    """OPENCODE_CONFIG_CONTENT of a run with these servers."""
    params = AgentExecuteParams("hi", mcp_servers=servers, env=env or {})
    return OpenCodeCliRuntime().build_env(params)["OPENCODE_CONFIG_CONTENT"] or ""


def as_opencode_reads(text: str, env: Mapping[str, str]) -> Any:
    """What 1.18.33 makes of a config: it inserts variables into the text as they are, then files, and then parses
    it."""
    text = re.sub(r"\{env:([^}]+)\}", lambda found: env.get(found[1], ""), text)
    return jsonc.parse(re.sub(r"\{file:[^}]+\}", "THE FILE", text))


def read_by_cli(project: Path, servers: Mapping[str, McpServerConfig], **fields: Any) -> Any:
    """What a CLI finds in a run with mcp_config="merge-restore"."""
    command = [sys.executable, "-I", "-S", "-c", READER]
    runtime = OpenCodeCliRuntime(command, timeout=60.0, mcp_config="merge-restore")
    events, result = finished(runtime.execute("hi", working_directory=project, mcp_servers=servers, **fields))
    assert result.ok, codes(events)
    return json.loads(result.text)


# --- in the variable --------------------------------------------------------------------------------------------------


def test_servers_go_into_a_variable_and_no_file_is_touched(tmp_path: Path, project: Path) -> None:
    played = Played(tmp_path, PLAIN)
    _, result = played.run(mcp_servers={"lab": LAB, "web": REMOTE}, working_directory=project)
    assert result.ok
    started = played.started
    assert json.loads(started["env"]["OPENCODE_CONFIG_CONTENT"])["mcp"] == {
        "lab": {
            "type": "local",
            "command": ["server", "--flag"],
            "environment": {"TOKEN": "s3cr3t-value"},
            "enabled": True,
        },
        "web": {
            "type": "remote",
            "url": "https://example.test/mcp",
            "headers": {"X-Token": "s3cr3t-value"},
            "enabled": True,
        },
    }
    assert "s3cr3t-value" not in " ".join(started["argv"])
    assert list(project.iterdir()) == []


@pytest.mark.slow
def test_random_names_and_values_reach_opencode_as_they_are() -> None:
    for seed in range(EXAMPLES):
        rng = random.Random(seed)

        def nasty(rng: random.Random = rng) -> str:
            return random_text(rng, 4) + "".join(rng.choice(PIECES) for _ in range(rng.randint(0, 4)))

        value, argument, mine = nasty(), nasty(), nasty()
        name = "".join(char for char in nasty() if char.isprintable()).strip() + "x"
        servers = {name.lstrip("-"): McpServerConfig("server", [argument], {"TOKEN": value})}
        ((name, _),) = servers.items()
        # What is already set may have references of its own, and text that looks like references: both stay.
        already = (
            json.dumps({"username": mine, "model": "@"}).replace("{env", "\\u007benv").replace("{file", "\\u007bfile")
        )
        text = content(servers, {"OPENCODE_CONFIG_CONTENT": already.replace("@", "{env:MODEL}")})
        read = as_opencode_reads(text, {"HOME": "the home", "MODEL": "a/b"})
        assert read["mcp"][name]["command"][1] == argument, f"seed {seed}"
        assert read["mcp"][name]["environment"]["TOKEN"] == value, f"seed {seed}"
        assert (read["username"], read["model"]) == (mine, "a/b"), f"seed {seed}"


def test_a_server_of_the_same_name_in_the_variable_is_replaced_and_others_stay() -> None:
    mine = {"type": "remote", "url": "https://mine.test", "headers": {"Authorization": "mine"}}
    text = content({"lab": LAB}, {"OPENCODE_CONFIG_CONTENT": json.dumps({"mcp": {"lab": mine, "mine": mine}})})
    servers = json.loads(text)["mcp"]
    assert servers["mine"] == mine
    assert "url" not in servers["lab"]


def test_trusted_servers_and_no_others_are_allowed_after_all_rules_of_the_users() -> None:
    servers = {"my lab": LAB, "other": McpServerConfig("server", trust=False)}
    permission = '{"my_lab_*": "deny", "*": "ask"}'
    params = AgentExecuteParams("hi", mcp_servers=servers, env={"OPENCODE_PERMISSION": permission})
    env = OpenCodeCliRuntime().build_env(params)
    rules = json.loads(env["OPENCODE_PERMISSION"] or "")
    assert list(rules.items()) == [("my_lab_*", "deny"), ("*", "ask"), ("my_lab_**", "allow")]
    settings = json.loads(env["OPENCODE_CONFIG_CONTENT"] or "")
    assert settings["agent"] == {"build": {"permission": {"my_lab_**": "allow"}}}


def test_untrusted_servers_add_no_rule() -> None:
    params = AgentExecuteParams("hi", mcp_servers={"lab": McpServerConfig("server", trust=False)})
    env = OpenCodeCliRuntime().build_env(params)
    assert "OPENCODE_PERMISSION" not in env
    assert "agent" not in json.loads(env["OPENCODE_CONFIG_CONTENT"] or "")


def test_read_only_and_trust_go_together() -> None:
    params = AgentExecuteParams("hi", mcp_servers={"lab": LAB}, permission_mode="read-only")
    env = OpenCodeCliRuntime().build_env(params)
    expected = {"e?it": "deny", "bas?": "deny", "tas?": "deny", "lab_**": "allow"}
    assert json.loads(env["OPENCODE_PERMISSION"] or "") == expected
    settings = json.loads(env["OPENCODE_CONFIG_CONTENT"] or "")
    assert settings["agent"]["build"]["permission"] == expected


@pytest.mark.parametrize(("tool_timeout", "expected"), [(1800.0, 1_800_000), (None, 2**31 - 1), (1e9, 2**31 - 1)])
def test_a_tool_call_may_take_as_long_as_the_runtime_allows(tool_timeout: float | None, expected: int) -> None:
    runtime = OpenCodeCliRuntime(tool_timeout=tool_timeout)
    env = runtime.build_env(AgentExecuteParams("hi", mcp_servers={"lab": LAB}))
    assert json.loads(env["OPENCODE_CONFIG_CONTENT"] or "")["experimental"] == {"mcp_timeout": expected}


@pytest.mark.parametrize(
    "servers",
    [
        {"a.b": LAB, "a_b": LAB},
        {"lab": LAB, "lab_2": McpServerConfig("server", trust=False)},
    ],
)
def test_names_that_opencode_would_mix_up_are_refused_when_the_call_is_made(servers: Any) -> None:
    with pytest.raises(ValueError, match="rename one"):
        OpenCodeCliRuntime().execute("hi", mcp_servers=servers)


def test_names_of_which_one_begins_with_the_other_are_fine_if_both_are_trusted() -> None:
    OpenCodeCliRuntime().execute("hi", mcp_servers={"lab": LAB, "lab_2": LAB}).close()


def test_an_unknown_way_of_injection_is_refused() -> None:
    with pytest.raises(ValueError, match="mcp_config"):
        OpenCodeCliRuntime(mcp_config="merge")  # type: ignore[arg-type]


# --- in the project's file --------------------------------------------------------------------------------------------


def test_merge_restore_puts_servers_into_a_private_file_that_is_gone_afterwards(project: Path) -> None:
    nasty = "".join(PIECES)
    servers = {"lab": McpServerConfig("server", [nasty], {"TOKEN": nasty, "{env:HOME}": "x"}), "{env:HOME}": LAB}
    found = read_by_cli(project, servers)
    mode, text = found["files"]["opencode.json"]
    assert stat.S_IMODE(mode) == 0o600
    read = as_opencode_reads(text, found["env"])
    assert list(read["mcp"]) == ["lab", "{env:HOME}"]
    assert read["mcp"]["lab"]["command"] == ["server", nasty]
    assert read["mcp"]["lab"]["environment"] == {"TOKEN": nasty, "{env:HOME}": "x"}
    assert "mcp" not in json.loads(found["env"]["OPENCODE_CONFIG_CONTENT"])
    # Not even the folder, into which OpenCode has put a file.
    assert list(project.iterdir()) == []


def test_what_opencode_puts_into_a_folder_of_ours_after_the_file_is_back_goes_too(project: Path) -> None:
    read_by_cli(project, {"lab": LAB}, env={"LATE": "1"})
    assert list(project.iterdir()) == []


@pytest.mark.parametrize("name", ["opencode.json", "opencode.jsonc"])
def test_merge_restore_borrows_the_file_that_is_there_and_gives_it_back(project: Path, name: str) -> None:
    original = '// mine\n{"mcp": {"mine": {"type": "local", "command": ["{env:MINE}"]}}, /* last */ }\n'
    folder = project / ".opencode"
    folder.mkdir()
    (folder / name).write_text(original)
    found = read_by_cli(project, {"lab": LAB})
    (read,) = [jsonc.parse(text) for file, (_, text) in found["files"].items() if file == name]
    assert read["mcp"]["mine"]["command"] == ["{env:MINE}"]
    assert read["mcp"]["lab"]["environment"] == {"TOKEN": "s3cr3t-value"}
    # Otherwise OpenCode writes this into the file itself, and then we could not take the file back.
    assert read["$schema"]
    assert (folder / name).read_text() == original
    assert {path.name for path in folder.iterdir()} == {name, ".gitignore"}


def test_of_two_files_the_one_that_opencode_reads_last_is_borrowed(project: Path) -> None:
    folder = project / ".opencode"
    folder.mkdir()
    (folder / "opencode.json").write_text("{}")
    (folder / "opencode.jsonc").write_text("{}")
    found = read_by_cli(project, {"lab": LAB})
    assert "lab" in found["files"]["opencode.jsonc"][1]
    assert found["files"]["opencode.json"][1] == "{}"


def test_a_project_file_that_is_no_json_ends_the_run_and_is_left_alone(tmp_path: Path, project: Path) -> None:
    folder = project / ".opencode"
    folder.mkdir()
    (folder / "opencode.json").write_text('{"key": "sk-secret-in-it",')
    played = Played(tmp_path, PLAIN, mcp_config="merge-restore")
    events, result = played.run(mcp_servers={"lab": LAB}, working_directory=project)
    ((message, code),) = error_messages(events)
    assert code == errors.MCP_CONFIG_ERROR
    assert "opencode.json" in message
    assert "sk-secret-in-it" not in message
    assert result.error_subtype == "config"
    assert not played.was_started
    assert (folder / "opencode.json").read_text() == '{"key": "sk-secret-in-it",'


def test_the_next_run_repairs_what_a_killed_host_left_also_if_it_borrows_nothing(tmp_path: Path, project: Path) -> None:
    path = project / ".opencode" / "opencode.json"
    dead = BorrowedConfig(ConfigFile(str(path), "json", "mcp", {"dead": {}}, litter=opencode_mcp.LITTER))
    dead.take(time.sleep)
    (path.parent / ".gitignore").touch()
    dead.forget_after_fork()  # As the kernel does when a process dies: the lock is free, the file is not restored.
    assert path.exists()
    _, result = Played(tmp_path, PLAIN).run(working_directory=project)
    assert result.ok
    assert list(project.iterdir()) == []


def test_where_opencode_ignores_project_files_the_servers_go_into_the_variable(project: Path) -> None:
    found = read_by_cli(project, {"lab": LAB}, env={"OPENCODE_DISABLE_PROJECT_CONFIG": "true"})
    assert found["files"] == {}
    assert "lab" in json.loads(found["env"]["OPENCODE_CONFIG_CONTENT"])["mcp"]


# --- what the log says ------------------------------------------------------------------------------------------------

LOG = """\
timestamp=2026-11-17T20:25:55.326Z level=WARN run=e04f67f8 message="server unavailable" key=bad type=local status=failed
timestamp=2026-11-17T20:25:55.612Z level=WARN run=e04f67f8 message="server unavailable" key="br \\"o.k{en" type=local status=failed
timestamp=2026-11-17T20:25:55.661Z level=WARN run=e04f67f8 message="server unavailable" key=web type=remote status=needs_auth
timestamp=2026-11-17T20:25:55.661Z level=WARN run=e04f67f8 message="server unavailable" key=mine type=remote status=failed
timestamp=2026-11-17T20:25:56.661Z level=WARN run=e04f67f8 message="MCP connection closed" server=lab
timestamp=2026-11-17T20:25:56.661Z level=WARN run=e04f67f8 message="MCP connection closed" server=bad
"""  # noqa: E501 - lines of OpenCode 1.18.33


def test_servers_of_the_callers_that_failed_are_warnings_and_the_log_is_not_shown(tmp_path: Path) -> None:
    servers = {"lab": LAB, "bad": LAB, 'br "o.k{en': LAB, "web": REMOTE, "good": LAB}
    played = Played(tmp_path, PLAIN, LOG)
    events, result = played.run(mcp_servers=servers)
    assert error_messages(events) == [
        ("MCP server 'bad' could not be used (failed)", errors.MCP_SERVER_FAILED),
        ("MCP server 'br \"o.k{en' could not be used (failed)", errors.MCP_SERVER_FAILED),
        ("MCP server 'web' could not be used (needs auth)", errors.MCP_SERVER_FAILED),
        ("MCP server 'lab' closed its connection during the run", errors.MCP_SERVER_FAILED),
    ]
    assert result.ok
    assert result.stderr == ""
    assert played.started["env"]["OPENCODE_LOG_LEVEL"] == "WARN"


def test_without_servers_the_log_is_as_quiet_as_before(tmp_path: Path) -> None:
    played = Played(tmp_path, PLAIN)
    played.run()
    assert played.started["env"]["OPENCODE_LOG_LEVEL"] == "ERROR"


@pytest.mark.parametrize("exit_code", [0, 1])
def test_warnings_of_the_log_do_not_stand_in_error_messages(tmp_path: Path, exit_code: int) -> None:
    events, result = Played(tmp_path, "", LOG, exit_code).run(mcp_servers={"good": LAB})
    ((message, _),) = error_messages(events)
    assert "timestamp" not in message
    assert not result.ok


def test_a_cut_log_line_is_no_failure() -> None:
    assert opencode_mcp.failures('message="server unavail', {"lab": LAB}) == {}
