"""`doctor`: what it finds, what it puts right, and what it leaves alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync.mcp.borrowed import BorrowedConfig, ConfigFile
from remoteclaw_sync.process.identity import host_identity, host_is_gone
from remoteclaw_sync.runtimes.base import MARKER_PREFIX
from remoteclaw_sync.testing import write_fake_cli
from remoteclaw_sync.versions import PACKAGES, installed_version
from tests.cli.shell import cli, environment
from tests.fakes import alive, run_host

BENCH_PACKAGE = Path(__file__).parent.parent / "real_clis" / "package.json"


class Machine:
    """A home, a PATH and a project of their own."""

    def __init__(self, root: Path) -> None:
        self.bin, self.home, self.project = (root / name for name in ("bin", "home", "project"))
        for folder in (self.bin, self.home, self.project):
            folder.mkdir()
        unset = (name for name in os.environ if name.endswith(("_API_KEY", "_TOKEN", "_HOME")))
        self.env = environment(**dict.fromkeys(unset), PATH=str(self.bin), HOME=str(self.home))

    def doctor(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return cli("doctor", *arguments, cwd=self.project, env=self.env)

    def report(self, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.doctor("--json", *arguments).stdout)
        return found

    def provider(self, name: str) -> dict[str, Any]:
        (found,) = (one for one in self.report()["providers"] if one["provider"] == name)
        return dict(found)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# --- what is installed ----------------------------------------------------------------------------------------


def test_with_nothing_installed_it_fails_and_says_what_to_do(machine: Machine) -> None:
    done = machine.doctor()
    said = done.stdout.decode()
    assert done.returncode == 1
    assert "not installed: npm install -g @openai/codex" in said
    assert "remoteclaw-sync demo" in said


def test_a_cli_is_found_with_its_version_which_is_compared_with_the_tested_one(machine: Machine) -> None:
    fake = write_fake_cli(machine.bin, "codex")
    done = machine.doctor()
    assert done.returncode == 0
    assert f"{PACKAGES['codex'][1]} (tested), {fake.path}" in done.stdout.decode()
    found = machine.provider("codex")
    assert (found["path"], found["tested"], found["problem"]) == (fake.path, True, None)


def test_another_version_is_called_untested(machine: Machine) -> None:
    program = machine.bin / "claude"
    program.write_text("#!/bin/sh\necho '9.8.7 (Claude Code)'\n")
    program.chmod(0o755)
    found = machine.provider("claude")
    assert (found["version"], found["tested"], found["tested_version"]) == ("9.8.7", False, PACKAGES["claude"][1])


def test_a_program_that_cannot_say_its_version_cannot_run(machine: Machine) -> None:
    program = machine.bin / "gemini"
    program.write_text("#!/bin/sh\necho broken >&2\nexit 7\n")
    program.chmod(0o755)
    assert machine.doctor().returncode == 1
    assert "exit code 7" in machine.provider("gemini")["problem"]


def test_an_npm_package_tells_its_version_without_being_started(tmp_path: Path) -> None:
    package = tmp_path / "lib" / "node_modules" / "@google" / "gemini-cli"
    (package / "bundle").mkdir(parents=True)
    (package / "package.json").write_text('{"name": "@google/gemini-cli", "version": "0.99.1"}')
    program = package / "bundle" / "gemini.js"
    program.write_text("#!/nonexistent\n")
    program.chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gemini").symlink_to(program)
    assert installed_version("gemini", "gemini", str(tmp_path / "bin")) == "0.99.1"
    assert installed_version("claude", "gemini", str(tmp_path / "bin")) is None


def test_claudes_own_installer_puts_the_version_into_the_path(tmp_path: Path) -> None:
    program = tmp_path / "share" / "claude" / "versions" / "2.1.5"
    program.parent.mkdir(parents=True)
    program.write_text("")
    program.chmod(0o755)
    (tmp_path / "claude").symlink_to(program)
    assert installed_version("claude", str(tmp_path / "claude")) == "2.1.5"


def test_the_tested_versions_are_those_of_the_bench() -> None:
    pinned = json.loads(BENCH_PACKAGE.read_text())["dependencies"]
    assert dict(PACKAGES.values()) == pinned


def test_a_login_is_found_but_never_shown(machine: Machine) -> None:
    write_fake_cli(machine.bin, "claude")
    write_fake_cli(machine.bin, "codex")
    machine.env["ANTHROPIC_API_KEY"] = "sk-very-secret"
    (machine.home / ".codex").mkdir()
    (machine.home / ".codex" / "auth.json").write_text('{"token": "very-secret"}')
    for arguments in ((), ("--json",)):
        said = machine.doctor(*arguments).stdout.decode()
        assert "very-secret" not in said
        assert "ANTHROPIC_API_KEY is set" in said
        assert str(machine.home / ".codex" / "auth.json") in said
    assert machine.provider("codex")["login"] is not None


def test_no_login_is_told(machine: Machine) -> None:
    write_fake_cli(machine.bin, "gemini")
    assert machine.provider("gemini")["login"] is None
    assert "login: none found" in machine.doctor().stdout.decode()


def test_git_and_trust_of_the_folder_are_told(machine: Machine) -> None:
    assert machine.report()["folder"]["git"] is False
    (machine.project / ".git").mkdir()
    (machine.home / ".gemini").mkdir()
    (machine.home / ".gemini" / "trustedFolders.json").write_text(json.dumps({str(machine.project): "TRUST_FOLDER"}))
    (machine.home / ".codex").mkdir()
    (machine.home / ".codex" / "config.toml").write_text(f'[projects."{machine.project}"]\ntrust_level = "trusted"\n')
    folder = machine.report()["folder"]
    assert (folder["git"], folder["trusted_by"]) == (True, {"gemini": True, "codex": True})


# --- what was left behind -------------------------------------------------------------------------------------


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process of a run whose host is gone."""
    identity = run_host("from remoteclaw_sync.process.identity import *; print(host_identity())").strip()
    assert host_is_gone(identity)
    with start_sleeper(identity) as process:
        yield process
        process.kill()


def start_sleeper(identity: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, f"{MARKER_PREFIX}0123456789abcdef": identity}
    code = "print(flush=True); import time; time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_an_orphan_is_found_and_ended_on_request_only(machine: Machine, sleeper: subprocess.Popen[bytes]) -> None:
    said = machine.doctor().stdout.decode()
    assert f"process {sleeper.pid} (python" in said
    assert "doctor --repair" in said
    assert alive(sleeper.pid)
    (leftover,) = machine.report("--repair")["leftovers"]
    assert (leftover["kind"], leftover["repaired"]) == ("process", True)
    assert not alive(sleeper.pid)
    assert machine.report()["leftovers"] == []


@pytest.mark.parametrize("identity", [host_identity(), "1", "77-1-1", "nonsense"])
def test_a_process_whose_host_lives_or_is_not_known_is_left_alone(machine: Machine, identity: str) -> None:
    with start_sleeper(identity) as process:
        assert machine.report("--repair")["leftovers"] == []
        assert process.poll() is None
        process.kill()


def borrow(path: Path) -> BorrowedConfig:
    config = ConfigFile(str(path), "json", "mcpServers", {"ours": {"command": "x", "env": {"TOKEN": "very-secret"}}})
    loan = BorrowedConfig(config)
    loan.take(lambda seconds: pytest.fail("the file is in use"))
    return loan


def test_a_config_that_a_dead_host_borrowed_is_found_and_restored(machine: Machine) -> None:
    settings = machine.project / ".gemini" / "settings.json"
    settings.parent.mkdir()
    settings.write_text('{"theme": "dark"}')
    borrow(settings).forget_after_fork()  # Lets go of the lock without giving the file back, as death does.
    assert "very-secret" in settings.read_text()
    (leftover,) = machine.report()["leftovers"]
    assert (leftover["kind"], leftover["what"], leftover["repaired"]) == ("config", str(settings), None)
    assert "very-secret" in settings.read_text()
    (leftover,) = machine.report("--repair")["leftovers"]
    assert leftover["repaired"] is True
    assert settings.read_text() == '{"theme": "dark"}'
    assert [path.name for path in settings.parent.iterdir()] == ["settings.json"]
    assert machine.report()["leftovers"] == []


def test_a_config_that_a_live_host_has_borrowed_is_left_alone(machine: Machine) -> None:
    settings = machine.project / ".gemini" / "settings.json"
    settings.parent.mkdir()
    settings.write_text('{"theme": "dark"}')
    loan = borrow(settings)
    assert machine.report("--repair")["leftovers"] == []
    assert "very-secret" in settings.read_text()
    loan.give_back()
    assert settings.read_text() == '{"theme": "dark"}'


def test_a_damaged_journal_is_told_and_nothing_is_touched(machine: Machine) -> None:
    settings = machine.project / ".gemini" / "settings.json"
    settings.parent.mkdir()
    settings.write_text("{}")
    journal = settings.with_name("settings.json.remoteclaw-journal")
    journal.write_text("{")
    (leftover,) = machine.report("--repair")["leftovers"]
    assert leftover["repaired"] is False
    assert "damaged journal" in leftover["problem"]
    assert (settings.read_text(), journal.read_text()) == ("{}", "{")
