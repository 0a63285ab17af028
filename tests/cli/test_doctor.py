"""`doctor`: what it finds, what it repairs, and what it leaves alone."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from remoteclaw_sync.cli import main
from remoteclaw_sync.clis.registry import facts_of
from remoteclaw_sync.config_files.borrowed import BorrowedConfig, ConfigFile
from remoteclaw_sync.process.host import host_identity
from remoteclaw_sync.runtime import MARKER_PREFIX
from remoteclaw_sync.testing import write_fake_cli
from remoteclaw_sync.versions import installed_version
from tests.cli.shell import cli, environment
from tests.fakes import PATIENCE, Container, run_host, start_host
from tests.installs import PACKAGES, STUBS, npm_install, put_program

BENCH_PACKAGE = Path(__file__).parent.parent / "real_clis" / "package.json"
TELL_IDENTITY = "from remoteclaw_sync.process.host import *; print(host_identity(), flush=True)"


class Machine:
    """A separate home, PATH and project."""

    def __init__(self, root: Path) -> None:
        self.bin, self.home, self.project = (root / name for name in ("bin", "home", "project"))
        for folder in (self.bin, self.home, self.project):
            folder.mkdir()
        unset = (name for name in os.environ if name.endswith(("_API_KEY", "_TOKEN", "_HOME")))
        self.env = environment(**dict.fromkeys(unset), PATH=str(self.bin), HOME=str(self.home))
        self.inside: list[str] = []

    def doctor(self, *arguments: str) -> tuple[int, str]:
        """Its exit code and what it prints."""
        if self.inside:
            done = cli("doctor", *arguments, cwd=self.project, env=self.env, inside=self.inside)
            return done.returncode, done.stdout.decode()
        # In this process, which takes a fifth of the time.
        with mock.patch.dict(os.environ, self.env, clear=True), contextlib.chdir(self.project):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                return main(["doctor", *arguments]), printed.getvalue()

    def report(self, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.doctor("--json", *arguments)[1])
        return found

    def provider(self, name: str) -> dict[str, Any]:
        (found,) = (one for one in self.report()["providers"] if one["provider"] == name)
        return dict(found)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# --- what is installed ----------------------------------------------------------------------------------------


def test_with_nothing_installed_it_fails_and_says_what_to_do(machine: Machine) -> None:
    code, said = machine.doctor()
    assert code == 1
    assert "not installed: npm install -g @openai/codex" in said
    assert "remoteclaw-sync demo" in said


def test_a_cli_is_found_with_its_version_which_is_compared_with_the_tested_one(machine: Machine) -> None:
    fake = write_fake_cli(machine.bin, "codex")
    code, said = machine.doctor()
    assert code == 0
    assert f"{PACKAGES['codex'][1]} (tested), {fake.path}" in said
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
    assert machine.doctor()[0] == 1
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
    assert installed_version(facts_of("gemini"), "gemini", str(tmp_path / "bin")) == "0.99.1"
    assert installed_version(facts_of("claude"), "gemini", str(tmp_path / "bin")) is None


def test_claudes_own_installer_puts_the_version_into_the_path(tmp_path: Path) -> None:
    program = tmp_path / "share" / "claude" / "versions" / "2.1.5"
    program.parent.mkdir(parents=True)
    program.write_text("")
    program.chmod(0o755)
    (tmp_path / "claude").symlink_to(program)
    assert installed_version(facts_of("claude"), str(tmp_path / "claude")) == "2.1.5"


def test_the_tested_versions_are_those_of_the_bench() -> None:
    pinned = json.loads(BENCH_PACKAGE.read_text())["dependencies"]
    assert dict(PACKAGES.values()) == pinned


# --- versions that were not tested, and installs that are not whole ---------------------------------------------


def says_version(version: str) -> str:
    return f"#!/bin/sh\necho '{version}'\n"


@pytest.mark.parametrize(
    ("provider", "version", "words"),
    [
        ("claude", "1.0.100", "too old, needs >= 2.0.34"),
        ("gemini", "0.20.2", "too old, needs >= 0.47.0"),
        ("codex", "0.55.0", "too old, needs >= 0.134.0"),
        ("opencode", "1.0.61", "too old, needs >= 1.17.18"),
    ],
)
@pytest.mark.parametrize("from_npm", [True, False], ids=["npm", "native"])
def test_a_version_that_is_too_old_cannot_run_and_the_needed_one_is_named(
    provider: str, version: str, words: str, from_npm: bool, machine: Machine, tmp_path: Path
) -> None:
    if from_npm:
        machine.env["PATH"] = str(npm_install(tmp_path / "npm", provider, version, "#!/bin/sh\n").parent)
    else:
        put_program(machine.bin / provider, says_version(version))
    code, said = machine.doctor()
    assert code == 1
    assert f"{version} ({words})" in said
    found = machine.provider(provider)
    assert (found["can_run"], found["standing"], found["problem"]) == (False, "too old", words)


@pytest.mark.parametrize(
    ("provider", "version", "words"),
    [
        ("claude", "2.0.20", "too old for system_prompt and read-only, needs >= 2.0.34"),
        ("claude", "2.0.40", f"older than tested, 2.0.55 to {PACKAGES['claude'][1]}"),
        ("claude", "2.1.197", f"in the tested range, 2.0.55 to {PACKAGES['claude'][1]}"),
        ("claude", "99.0.0", f"newer than tested, {PACKAGES['claude'][1]}"),
        ("gemini", "0.43.0", "too old for the output of shell commands, needs >= 0.47.0"),
        ("opencode", "1.99.0", f"newer than tested, {PACKAGES['opencode'][1]}"),
    ],
)
def test_a_version_is_told_how_it_stands_to_the_tested_ones(
    provider: str, version: str, words: str, machine: Machine
) -> None:
    put_program(machine.bin / provider, says_version(version))
    code, said = machine.doctor()
    assert code == 0
    assert f"{version} ({words})" in said


@pytest.mark.parametrize(
    ("version", "package", "said"),
    [
        ("2.0.15", "@opencode/cli", "OpenCode 2 (@opencode/cli on npm)"),
        ("1.18.33", "opencode-ai", "OpenCode 1 (opencode-ai on npm)"),
    ],
)
@pytest.mark.parametrize("from_npm", [True, False], ids=["npm", "native"])
def test_which_opencode_is_there_is_told(
    version: str, package: str, said: str, from_npm: bool, machine: Machine, tmp_path: Path
) -> None:
    if from_npm:
        link = npm_install(tmp_path / "npm", "opencode", version, "#!/bin/sh\n", package=package)
        machine.env["PATH"] = str(link.parent)
    else:
        put_program(machine.bin / "opencode", says_version(f"opencode v{version}"))
    assert said in machine.doctor()[1]
    found = machine.provider("opencode")
    assert (found["version"], found["package"]) == (version, package if from_npm else None)
    # Nothing of ours has been run on OpenCode 2.
    assert (found["can_run"], found["tested"]) == (True, package == "opencode-ai")


def test_a_cli_that_is_not_on_path_is_found_where_its_installer_put_it(machine: Machine) -> None:
    share = machine.home / ".local" / "share" / "claude" / "versions" / "2.1.300"
    put_program(share, "#!/bin/sh\n")
    link = machine.home / ".local" / "bin" / "claude"
    link.parent.mkdir()
    link.symlink_to(share)
    code, said = machine.doctor()
    assert code == 1
    assert f"not on PATH: {link}, 2.1.300" in said
    assert f"put {link.parent} on PATH" in said
    assert "@anthropic-ai/claude-code" not in said
    (place,) = machine.provider("claude")["elsewhere"]
    assert (place["path"], place["version"]) == (str(link), "2.1.300")
    assert f"claude    not on PATH: {link}" in cli("providers", env=machine.env).stdout.decode()


def test_a_second_install_on_path_is_listed_with_its_version(machine: Machine, tmp_path: Path) -> None:
    put_program(machine.bin / "codex", says_version("0.169.0"))
    second = npm_install(tmp_path / "npm", "codex", "0.150.0", "#!/bin/sh\n")
    machine.env["PATH"] = f"{machine.bin}:{second.parent}:{machine.bin}"
    assert f"also on PATH: {second}, 0.150.0 (in the tested range" in machine.doctor()[1]
    found = machine.provider("codex")
    assert (found["path"], found["started"]) == (str(machine.bin / "codex"), str(machine.bin / "codex"))
    assert [(other["path"], other["version"]) for other in found["others"]] == [(str(second), "0.150.0")]


def test_a_broken_install_before_a_good_one_is_named_and_the_good_one_is_what_runs_start(
    machine: Machine, tmp_path: Path
) -> None:
    broken = put_program(machine.bin / "claude", "#!/opt/gone/node\n")
    good = write_fake_cli(tmp_path / "good", "claude", "hello from the good one")
    machine.env["PATH"] = f"{machine.bin}:{good.folder}"
    code, said = machine.doctor()
    assert code == 0
    assert f"{broken} needs Node.js: '/opt/gone/node'" in said
    assert f"also on PATH: {good.path}, {PACKAGES['claude'][1]} (tested); runs use this one" in said
    ran = cli("run", "--provider", "claude", "hi", cwd=machine.project, env=machine.env)
    assert b"hello from the good one" in ran.stdout


def test_a_program_that_env_cannot_start_is_not_passed_over(machine: Machine, tmp_path: Path) -> None:
    put_program(machine.bin / "gemini", "#!/usr/bin/env node\n")
    good = write_fake_cli(tmp_path / "good", "gemini")
    machine.env["PATH"] = f"{machine.bin}:{good.folder}"
    assert machine.doctor()[0] == 1
    found = machine.provider("gemini")
    assert (found["can_run"], found["started"]) == (False, str(machine.bin / "gemini"))
    assert [other["path"] for other in found["others"]] == [good.path]


def test_npms_gemini_without_node_cannot_run_whatever_its_version(machine: Machine, tmp_path: Path) -> None:
    link = npm_install(tmp_path / "npm", "gemini", PACKAGES["gemini"][1], "#!/usr/bin/env node\n")
    machine.env["PATH"] = str(link.parent)
    code, said = machine.doctor()
    assert code == 1
    assert "(tested)" not in said
    assert "needs Node" in said
    put_program(machine.bin / "node", "#!/bin/sh\n")
    machine.env["PATH"] += f":{machine.bin}"
    assert machine.doctor()[0] == 0


def test_a_wrapper_that_finds_no_node_is_told_to_need_it(machine: Machine) -> None:
    put_program(machine.bin / "codex", '#!/bin/sh\nexec node "$0.js"\n')
    assert "needs Node" in machine.provider("codex")["problem"]


@pytest.mark.parametrize("provider", STUBS)
def test_a_placeholder_of_npms_cannot_run_and_the_script_to_run_is_named(
    provider: str, machine: Machine, tmp_path: Path
) -> None:
    script, stub = STUBS[provider]
    link = npm_install(tmp_path / "npm", provider, PACKAGES[provider][1], stub)
    machine.env["PATH"] = str(link.parent)
    code, said = machine.doctor()
    assert code == 1
    assert f"run: node {link.resolve().parent.parent / script}" in said
    assert f"{PACKAGES[provider][1]} (cannot run)" in said


def test_with_nothing_on_path_a_run_names_what_is_installed_elsewhere(machine: Machine) -> None:
    program = put_program(machine.home / ".opencode" / "bin" / "opencode", "#!/bin/sh\n")
    done = cli("run", "hi", cwd=machine.project, env=machine.env)
    assert done.returncode == 1
    assert f"{program}: put its folder on PATH" in done.stderr.decode()


def test_a_login_is_found_but_never_shown(machine: Machine) -> None:
    write_fake_cli(machine.bin, "claude")
    write_fake_cli(machine.bin, "codex")
    machine.env["ANTHROPIC_API_KEY"] = "sk-very-secret"
    (machine.home / ".codex").mkdir()
    (machine.home / ".codex" / "auth.json").write_text('{"token": "very-secret"}')
    for arguments in ((), ("--json",)):
        said = machine.doctor(*arguments)[1]
        assert "very-secret" not in said
        assert "ANTHROPIC_API_KEY is set" in said
        assert str(machine.home / ".codex" / "auth.json") in said
    assert machine.provider("codex")["login"] is not None


def test_no_login_is_told(machine: Machine) -> None:
    write_fake_cli(machine.bin, "gemini")
    assert machine.provider("gemini")["login"] is None
    assert "login: none found" in machine.doctor()[1]


def test_git_and_trust_of_the_folder_are_told(machine: Machine) -> None:
    assert machine.report()["folder"]["git"] is False
    (machine.project / ".git").mkdir()
    (machine.project / ".git" / "HEAD").write_text("ref: refs/heads/main")
    (machine.home / ".gemini").mkdir()
    (machine.home / ".gemini" / "trustedFolders.json").write_text(json.dumps({str(machine.project): "TRUST_FOLDER"}))
    (machine.home / ".codex").mkdir()
    (machine.home / ".codex" / "config.toml").write_text(f'[projects."{machine.project}"]\ntrust_level = "trusted"\n')
    folder = machine.report()["folder"]
    assert (folder["git"], folder["trusted_by"]) == (True, {"gemini": True, "codex": True})


# --- what was left behind -------------------------------------------------------------------------------------


@pytest.fixture
def contained(machine: Machine, container: Container) -> Machine:
    """Its processes are all that the doctor can see and end: those of the machine that runs the tests are not ours."""
    machine.inside = container.inside
    return machine


@contextlib.contextmanager
def sleeper(identity: str, container: Container) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A process of a run of that host, and its pid in the container. It leads a session, as a CLI does."""
    env = {**os.environ, f"{MARKER_PREFIX}0123456789abcdef": identity}
    code = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
    command = [*container.inside, sys.executable, "-c", code]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        try:
            yield process, pid
        finally:
            container.kill(process)


@pytest.mark.slow
def test_an_orphan_is_found_and_ended_on_request_only(contained: Machine, container: Container) -> None:
    dead_host = run_host(TELL_IDENTITY, inside=container.inside).strip()
    with sleeper(dead_host, container) as (process, pid):
        said = contained.doctor()[1]
        assert f"process {pid} (python" in said
        assert "doctor --repair" in said
        assert process.poll() is None
        (leftover,) = contained.report("--repair")["leftovers"]
        assert (leftover["kind"], leftover["repaired"]) == ("process", True)
        assert process.wait(PATIENCE) == -signal.SIGTERM
        assert contained.report()["leftovers"] == []


@pytest.mark.slow
def test_a_process_whose_host_lives_is_left_alone(contained: Machine, container: Container) -> None:
    with start_host(f"{TELL_IDENTITY}; input()", inside=container.inside, stdin=subprocess.PIPE) as host:
        assert host.stdout is not None
        with sleeper(host.stdout.readline().strip(), container) as (process, _):
            assert contained.report("--repair")["leftovers"] == []
            assert process.poll() is None
        container.kill(host)


@pytest.mark.slow
@pytest.mark.parametrize("identity", [host_identity(), "1", "77-1-1", "nonsense"], ids=["elsewhere", "1", "77", "word"])
def test_a_process_whose_host_is_not_known_is_left_alone(
    identity: str, contained: Machine, container: Container
) -> None:
    with sleeper(identity, container) as (process, _):
        assert contained.report("--repair")["leftovers"] == []
        assert process.poll() is None


def borrow(path: Path) -> BorrowedConfig:
    config = ConfigFile(str(path), "json", "mcpServers", {"ours": {"command": "x", "env": {"TOKEN": "very-secret"}}})
    loan = BorrowedConfig(config)
    loan.take(lambda seconds: pytest.fail("the file is in use"))
    return loan


@pytest.mark.slow
def test_a_config_that_a_dead_host_borrowed_is_found_and_restored(contained: Machine) -> None:
    settings = contained.project / ".gemini" / "settings.json"
    settings.parent.mkdir()
    settings.write_text('{"theme": "dark"}')
    borrow(settings).forget_after_fork()  # Releases the lock without restoring the file, as death does.
    assert "very-secret" in settings.read_text()
    (leftover,) = contained.report()["leftovers"]
    assert (leftover["kind"], leftover["what"], leftover["repaired"]) == ("config", str(settings), None)
    assert "very-secret" in settings.read_text()
    (leftover,) = contained.report("--repair")["leftovers"]
    assert leftover["repaired"] is True
    assert settings.read_text() == '{"theme": "dark"}'
    assert [path.name for path in settings.parent.iterdir()] == ["settings.json"]
    assert contained.report()["leftovers"] == []


def test_a_config_that_a_live_host_has_borrowed_is_left_alone(contained: Machine) -> None:
    settings = contained.project / ".gemini" / "settings.json"
    settings.parent.mkdir()
    settings.write_text('{"theme": "dark"}')
    loan = borrow(settings)
    assert contained.report("--repair")["leftovers"] == []
    assert "very-secret" in settings.read_text()
    loan.give_back()
    assert settings.read_text() == '{"theme": "dark"}'


def test_a_damaged_journal_is_told_and_nothing_is_touched(contained: Machine) -> None:
    settings = contained.project / ".gemini" / "settings.json"
    settings.parent.mkdir()
    settings.write_text("{}")
    journal = settings.with_name("settings.json.remoteclaw-journal")
    journal.write_text("{")
    (leftover,) = contained.report("--repair")["leftovers"]
    assert leftover["repaired"] is False
    assert "damaged journal" in leftover["problem"]
    assert (settings.read_text(), journal.read_text()) == ("{}", "{")


@pytest.mark.slow
@pytest.mark.parametrize("content", ['{"existed": true, "created_folder": false, "merged_sha256": "0"}', "[]", "null"])
def test_a_forged_or_partial_journal_is_told_and_the_rest_is_put_right(contained: Machine, content: str) -> None:
    settings = contained.project / ".gemini" / "settings.json"
    opencode = contained.project / ".opencode" / "opencode.json"
    for path in (settings, opencode):
        path.parent.mkdir()
        path.write_text("{}")
    settings.with_name("settings.json.remoteclaw-journal").write_text(content)
    settings.with_name("settings.json.remoteclaw-backup").write_text("{ }")
    borrow(opencode).forget_after_fork()
    damaged, put_right = contained.report("--repair")["leftovers"]
    assert (damaged["what"], damaged["repaired"]) == (str(settings), False)
    assert "damaged journal" in damaged["problem"]
    assert (put_right["what"], put_right["repaired"]) == (str(opencode), True)
    assert (settings.read_text(), opencode.read_text()) == ("{}", "{}")


def test_a_journal_that_is_a_link_to_a_device_is_told_and_not_read(contained: Machine) -> None:
    settings = contained.project / ".gemini" / "settings.json"
    settings.parent.mkdir()
    journal = settings.with_name("settings.json.remoteclaw-journal")
    journal.symlink_to("/dev/zero")
    (leftover,) = contained.report("--repair")["leftovers"]
    assert leftover["repaired"] is False
    assert journal.name in leftover["problem"]
    assert journal.is_symlink()


def test_a_user_s_own_file_in_the_temporary_folder_is_never_removed(contained: Machine) -> None:
    tmp = Path(tempfile.gettempdir())
    own = [tmp / name for name in ("remoteclaw-sync-2024-11-18.md", "remoteclaw-1-2-3.txt", "remoteclaw-gw-notes")]
    for path in own:
        path.write_text("mine")
        os.utime(path, (0, 0))
    try:
        assert contained.report("--repair")["leftovers"] == []
        assert all(path.read_text() == "mine" for path in own)
    finally:
        for path in own:
            path.unlink(missing_ok=True)
