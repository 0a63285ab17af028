"""The other commands, MCP options, and what starting the program costs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import remoteclaw_sync
from remoteclaw_sync import McpServerConfig
from remoteclaw_sync.cli import main
from remoteclaw_sync.cli.dispatch import UsageError
from remoteclaw_sync.cli.help import TOPICS
from remoteclaw_sync.cli.mcp_options import mcp_servers
from tests.cli.shell import cli
from tests.fakes import PATIENCE


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"remoteclaw-sync {remoteclaw_sync.__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["demo", "--help"], ["chat", "--help"]])
def test_help_has_examples(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert "\nexamples:\n  remoteclaw-sync " in capsys.readouterr().out


def test_the_module_runs() -> None:
    done = cli("--version")
    assert (done.returncode, done.stderr) == (0, b"")


def test_providers_lists_where_each_cli_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "codex").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["providers"]) == 0
    claude, gemini, codex, opencode, demo = capsys.readouterr().out.splitlines()
    assert claude == "claude    not installed: npm install -g @anthropic-ai/claude-code"
    assert codex.split() == ["codex", str(tmp_path / "codex")]
    assert demo.split() == ["demo", "built", "in"]
    assert main(["providers", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["providers"]
    assert [row["path"] for row in listed] == [None, None, str(tmp_path / "codex"), None, None]


@pytest.mark.parametrize("topic", TOPICS)
def test_help_prints_the_page_of_a_topic(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", topic]) == 0
    assert capsys.readouterr().out.startswith("# ")


def test_help_lists_a_topic_for_every_page_that_is_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    root = Path(remoteclaw_sync.__file__).parent
    assert {page.parent for page in root.rglob("README.md")} == {root / TOPICS[topic][0] for topic in listed}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_knows_commands_and_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("run", "chat", "approve", "doctor", "permission-mode", "opencode"):
        assert word in script


@pytest.mark.parametrize(
    ("typed", "completed"),
    [("run --prov", "--provider"), ("serve --keep tal", "talks"), ("run --schema fie", "field.json")],
)
def test_bash_completes_with_it(typed: str, completed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "talks").mkdir()
    (tmp_path / "field.json").touch()
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    main(["completion", "bash"])
    words = f"COMP_WORDS=(remoteclaw-sync {typed}); COMP_CWORD={len(typed.split())}; _remoteclaw_sync\n"
    script = capsys.readouterr().out + words + 'echo "${COMPREPLY[@]}"'
    done = subprocess.run([bash, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.stdout, done.stderr) == (f"{completed}\n", "")


# --- MCP ------------------------------------------------------------------------------------------------------


def test_an_mcp_server_is_a_command_line_or_a_url() -> None:
    servers = mcp_servers(["files=npx -y 'a server' --root=/x", "web=https://host/mcp?a=b"], [])
    assert servers == {
        "files": McpServerConfig("npx", ("-y", "a server", "--root=/x")),
        "web": McpServerConfig(url="https://host/mcp?a=b"),
    }


def test_an_mcp_file_has_the_usual_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "secret")
    path = tmp_path / "mcp.json"
    entries = {
        "a": {"type": "stdio", "command": "run", "args": ["--x"], "env": {"T": "${MY_TOKEN}"}, "trust": False},
        "b": {"url": "https://${HOST_NAME:-localhost}/", "headers": {"Authorization": "Bearer ${MY_TOKEN}"}},
    }
    path.write_text(json.dumps({"mcpServers": entries}))
    assert mcp_servers(["b=other"], [str(path)]) == {
        "a": McpServerConfig("run", ("--x",), {"T": "secret"}, False),
        "b": McpServerConfig("other"),
    }
    assert mcp_servers([], [str(path)])["b"] == McpServerConfig(
        url="https://localhost/", headers={"Authorization": "Bearer secret"}
    )


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_an_mcp_file_that_is_no_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """The file may come with a repository."""
    make(tmp_path / ".mcp.json")
    with pytest.raises(UsageError, match="not a regular file"):
        mcp_servers([], [str(tmp_path / ".mcp.json")])


def test_an_mcp_file_may_be_what_the_shell_has_opened() -> None:
    reader, writer = os.pipe()
    try:
        os.write(writer, b'{"mcpServers": {"s": {"command": "x"}}}')
        os.close(writer)
        assert mcp_servers([], [f"/dev/fd/{reader}"])["s"].command == "x"
    finally:
        os.close(reader)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON"),
        ("[]", 'has no {"mcpServers": {...}}'),
        ('{"mcpServers": {"a": 1}}', "server 'a' is not an object"),
        ('{"mcpServers": {"a": {}}}', "server 'a': McpServerConfig needs either command or url"),
        (
            '{"mcpServers": {"a": {"command": "${NOT_SET_ANYWHERE}"}}}',
            "needs the environment variable NOT_SET_ANYWHERE",
        ),
    ],
)
def test_a_wrong_mcp_file_is_refused_by_name(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(content)
    with pytest.raises(UsageError) as caught:
        mcp_servers([], [str(path)])
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
