"""What the runtimes read and create outside their CLI's process: odd files in a repository, homes that do not exist."""

from __future__ import annotations

import contextvars
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import AgentErrorEvent, AgentExecuteParams, CLIRuntimeBase, McpServerConfig, create_cli_runtime
from remoteclaw_sync.testing import FakeCli, write_fake_cli
from tests.fakes import FakeRuntime, finished

PROVIDERS = ["claude", "gemini", "codex", "opencode"]
SECRET_SERVER = {"other": McpServerConfig("server", env={"TOKEN": "very-secret"})}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "home"
    path.mkdir()
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.delenv("CODEX_HOME", raising=False)
    return path


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    return path


def fake(folder: Path, provider: str, **options: Any) -> tuple[CLIRuntimeBase, FakeCli]:
    cli = write_fake_cli(folder, provider, "OK")
    return create_cli_runtime(provider, command=cli.path, **options), cli


def lookup(order: int) -> str:
    return f"order {order}"


# --- Codex and its home ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"mcp_servers": SECRET_SERVER}, {"tools": [lookup]}], ids=["mcp", "tools"])
@pytest.mark.parametrize("named", [True, False])
def test_codex_gets_secrets_and_tools_where_it_has_never_run(
    tmp_path: Path, home: Path, project: Path, fields: dict[str, Any], named: bool
) -> None:
    """A new container with a key in its environment."""
    runtime, cli = fake(tmp_path, "codex")
    env = {"CODEX_HOME": str(home / "elsewhere")} if named else {}
    assert runtime.run("hi", working_directory=project, env=env, **fields).text == "OK"
    assert any(argument.startswith("--profile=") for argument in cli.calls[0].argv)
    assert list(home.iterdir()) == []


def test_a_home_that_codex_has_filled_meanwhile_stays(tmp_path: Path, home: Path) -> None:
    program = tmp_path / "codex"
    program.write_text("#!/bin/sh\ntouch $HOME/.codex/auth.json\nexit 1\n")
    program.chmod(0o755)
    create_cli_runtime("codex", command=str(program)).run("hi", check=False, mcp_servers=SECRET_SERVER)
    assert [path.name for path in (home / ".codex").iterdir()] == ["auth.json"]
    assert stat.S_IMODE((home / ".codex").stat().st_mode) == 0o700


def test_a_home_that_cannot_be_made_is_an_error_that_says_what_to_do(tmp_path: Path, home: Path) -> None:
    runtime, cli = fake(tmp_path, "codex")
    events, result = finished(runtime.execute("hi", mcp_servers=SECRET_SERVER, env={"HOME": str(home / "no" / "such")}))
    (error,) = (event for event in events if isinstance(event, AgentErrorEvent))
    assert (error.code, result.error_subtype) == ("MCP_CONFIG_ERROR", "config")
    assert "CODEX_HOME" in error.message
    assert "very-secret" not in error.message
    assert cli.calls == []
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_a_codex_config_that_is_no_file_is_not_waited_for(
    tmp_path: Path, home: Path, make: Callable[[Path], None]
) -> None:
    (home / ".codex").mkdir()
    make(home / ".codex" / "config.toml")
    runtime, _ = fake(tmp_path, "codex")
    assert runtime.run("hi", mcp_servers=SECRET_SERVER).text == "OK"


# --- what a repository may bring ------------------------------------------------------------------------------------


def make_device_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


ODD = pytest.mark.parametrize("make", [make_device_link, make_fifo])


@ODD
@pytest.mark.parametrize("name", ["settings.json", "settings.json.remoteclaw-journal"])
@pytest.mark.parametrize(("provider", "folder"), [("gemini", ".gemini"), ("opencode", ".opencode")])
def test_odd_files_of_a_repository_end_a_run_with_an_error_and_not_its_host(
    tmp_path: Path, home: Path, project: Path, make: Callable[[Path], None], name: str, provider: str, folder: str
) -> None:
    name = name.replace("settings", "opencode") if provider == "opencode" else name
    (project / folder).mkdir()
    make(project / folder / name)
    options = {"mcp_config": "merge-restore"} if provider == "opencode" else {}
    runtime, cli = fake(tmp_path, provider, **options)
    events, result = finished(runtime.execute("hi", mcp_servers=SECRET_SERVER, working_directory=project))
    assert [event.code for event in events if isinstance(event, AgentErrorEvent)] == ["MCP_CONFIG_ERROR"]
    assert cli.calls == []
    assert [path.name for path in (project / folder).iterdir()] == [name]


@ODD
def test_a_run_without_servers_is_not_disturbed_by_them(
    tmp_path: Path, home: Path, project: Path, make: Callable[[Path], None]
) -> None:
    for folder, name in ((".gemini", "settings"), (".opencode", "opencode")):
        (project / folder).mkdir()
        make(project / folder / f"{name}.json.remoteclaw-journal")
    for provider in ("gemini", "opencode"):
        runtime, _ = fake(tmp_path, provider)
        assert runtime.run("hi", working_directory=project).text == "OK"


@ODD
def test_a_sub_agent_of_the_repository_that_is_no_file_is_passed_over(
    tmp_path: Path, home: Path, project: Path, make: Callable[[Path], None]
) -> None:
    agents = project / ".gemini" / "agents"
    agents.mkdir(parents=True)
    make(agents / "odd.md")
    (agents / "real.md").write_text("name: helper\n")
    runtime, cli = fake(tmp_path, "gemini")
    assert runtime.run("ask @helper and @nobody", working_directory=project).text == "OK"
    assert cli.calls[0].stdin == "ask \\@helper and @nobody"


@ODD
@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_image_that_is_no_file_is_refused_in_the_call(
    tmp_path: Path, provider: str, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "odd.png")
    runtime, _ = fake(tmp_path, provider)
    with pytest.raises(ValueError, match=r"images.*not a regular file|images.*is not a regular file"):
        runtime.execute("hi", images=[tmp_path / "odd.png"])


def test_an_image_larger_than_any_request_is_refused_in_the_call(tmp_path: Path) -> None:
    with (tmp_path / "giant.png").open("wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        file.truncate(10**12)
    runtime, _ = fake(tmp_path, "claude")
    with pytest.raises(ValueError, match="larger than"):
        runtime.execute("hi", images=[tmp_path / "giant.png"])


# --- where the hooks run ---------------------------------------------------------------------------------------------


def test_hooks_of_the_start_see_the_consumer_s_context_and_cannot_be_interrupted_in_its_thread() -> None:
    user = contextvars.ContextVar("user", default="nobody")
    seen: list[tuple[str, bool]] = []

    class Watched(FakeRuntime):
        def build_args(self, params: AgentExecuteParams) -> list[str]:
            seen.append((user.get(), threading.current_thread() is consumer))
            return []

    consumer = threading.current_thread()
    token = user.set("ann")
    try:
        finished(Watched(["text", "hi"]).execute("hi"))
    finally:
        user.reset(token)
    assert seen == [("ann", False)]
