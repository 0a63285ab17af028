"""A host that is killed in the middle of a run (SIGKILL): the next run, or the doctor, removes what it left."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import create_cli_runtime
from remoteclaw_sync.testing import FakeAnswer, FakeCli, write_fake_cli
from tests.cli.shell import cli, environment
from tests.fakes import Container, start_host, wait_until

HOST = """
    import json, sys
    from remoteclaw_sync import McpServerConfig, create_cli_runtime
    provider, command, project, options = sys.argv[1:]
    def lookup(order: int) -> str: return "order"
    runtime = create_cli_runtime(provider, command=command, **json.loads(options))
    runtime.run(
        "hi",
        tools=[lookup],
        mcp_servers={"other": McpServerConfig("server", env={"TOKEN": "very-secret"})},
        system_prompt="a secret plan",
        images=[f"{project}/a,b.png"],
        working_directory=project,
    )
"""

CASES: list[tuple[str, dict[str, Any]]] = [
    ("claude", {}),
    ("gemini", {}),
    ("codex", {}),
    ("codex", {"mcp_config": "merge-restore"}),
    ("opencode", {}),
    ("opencode", {"mcp_config": "merge-restore"}),
]
NAMES = ["-".join((provider, *options.values())) for provider, options in CASES]


class Machine:
    """A user's home and project, and a CLI that says nothing the first time."""

    def __init__(self, root: Path, provider: str) -> None:
        self.provider = provider
        self.inside: list[str] = []
        self.kill: Callable[[subprocess.Popen[str]], None] = subprocess.Popen.kill
        self.root = root
        self.home, self.project, self.clis = root / "home", root / "project", root / "bin"
        for folder in (self.home / ".codex", self.project, self.clis):
            folder.mkdir(parents=True)
        (self.home / ".codex" / "config.toml").write_text('model = "mine"\n')
        (self.project / "a,b.png").write_bytes(b"\x89PNG\r\n\x1a\n")
        self.cli: FakeCli = write_fake_cli(self.clis, provider, FakeAnswer(lines=[], hang=True), "OK")

    def files(self) -> dict[str, bytes | None]:
        folders = (self.home, self.project, Path(tempfile.gettempdir()))
        paths = sorted(path for folder in folders for path in folder.rglob("*"))
        return {str(path): path.read_bytes() if path.is_file() else None for path in paths}

    def kill_a_host(self, options: dict[str, Any]) -> None:
        """Kill it once its CLI is running, which has not read its configuration and never will."""
        arguments = (self.provider, self.cli.path, str(self.project), json.dumps(options))
        with start_host(HOST, *arguments, env={"HOME": str(self.home)}, inside=self.inside) as host:
            assert wait_until(lambda: self.cli.calls)
            self.kill(host)

    def doctor(self, *options: str) -> list[dict[str, Any]]:
        env = environment(HOME=str(self.home), PATH=str(self.clis))
        done = cli("doctor", "--json", *options, cwd=self.project, env=env, inside=self.inside)
        return list(json.loads(done.stdout)["leftovers"])


@pytest.fixture
def machine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path, request.param)
    monkeypatch.setenv("HOME", str(machine.home))
    monkeypatch.delenv("CODEX_HOME", raising=False)
    return machine


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "options"), CASES, ids=NAMES, indirect=["machine"])
def test_nothing_of_a_killed_host_stays_after_the_next_run(machine: Machine, options: dict[str, Any]) -> None:
    before = machine.files()
    machine.kill_a_host(options)
    assert machine.files() != before
    # Without any of the options that the first run had: a run tidies up, whatever it needs itself.
    runtime = create_cli_runtime(machine.provider, command=machine.cli.path)
    assert runtime.run("hi", working_directory=machine.project).text == "OK"
    assert machine.files() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "options"),
    [
        pytest.param(*case, id=name, marks=() if name == "codex-merge-restore" else pytest.mark.slow)
        for case, name in zip(CASES, NAMES, strict=True)
    ],
    indirect=["machine"],
)
def test_the_doctor_finds_and_removes_what_a_killed_host_left(
    machine: Machine, options: dict[str, Any], container: Container
) -> None:
    # The doctor ends what any dead host of this user has left, so it must see nothing but ours.
    machine.inside, machine.kill = container.inside, container.kill
    before = machine.files()
    machine.kill_a_host(options)
    left = machine.files()
    found = [leftover for leftover in machine.doctor() if leftover["kind"] != "process"]
    assert found
    assert machine.files() == left
    assert all(leftover["repaired"] for leftover in machine.doctor("--repair"))
    assert machine.files() == before
