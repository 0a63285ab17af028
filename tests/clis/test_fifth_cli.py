"""A fifth CLI is its folder and one line: made from the recipes in a copy of the package, and known throughout it."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import remoteclaw_sync
from tests.fakes import PATIENCE, Container
from tests.installs import put_program
from tests.test_readme import recipes

PACKAGE = Path(remoteclaw_sync.__file__).parent
LAST_LINE = '    "opencode",\n'
NEW_LINE = '    "acme",\n'
HOOKS_FROM, HOOKS_TO = "    expects_terminal_event", "\n\nfor event in "


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with Acme added."""
    package = tmp_path_factory.mktemp("source") / PACKAGE.name
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    folder = package / "clis" / "acme"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "facts.py").write_text(recipes()["acme_facts"])
    (folder / "fake.py").write_text(recipes()["acme_fake"])
    (folder / "runtime.py").write_text(runtime_module())
    (folder / "README.md").write_text("# Acme\n")
    registry = package / "clis" / "registry.py"
    source = registry.read_text()
    assert source.count(LAST_LINE) == 1
    registry.write_text(source.replace(LAST_LINE, LAST_LINE + NEW_LINE))
    return package


def runtime_module() -> str:
    """The recipe for the folder, with the hooks of the recipe for a class."""
    whole, frame = recipes()["fifth"], recipes()["acme_runtime"]
    imports = whole.partition("\n\n\nclass ")[0]
    hooks = whole[whole.index(HOOKS_FROM) : whole.index(HOOKS_TO)]
    return f"{imports}\n{frame}".replace("    ...  # The hooks.\n", hooks)


class Machine:
    """A separate home, PATH and project, with the copy of the package to import."""

    def __init__(self, root: Path, package: Path) -> None:
        self.bin, self.home, self.project = (root / name for name in ("bin", "home", "project"))
        for folder in (self.bin, self.home, self.project):
            folder.mkdir()
        self.env = {"PATH": f"{self.bin}{os.pathsep}{os.defpath}", "HOME": str(self.home), "TMPDIR": str(root)}
        self.env["PYTHONPATH"] = str(package.parent)
        self.inside: list[str] = []  # Put before a command; see `Container`.

    def python(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self.inside, sys.executable, *arguments],
            cwd=self.project,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.stderr == ""
        return done.stdout

    def says(self, script: str) -> Any:
        """What this script assigns to `answer`."""
        check = f"import remoteclaw_sync; assert remoteclaw_sync.__path__[0].startswith({self.env['PYTHONPATH']!r})\n"
        return json.loads(
            self.python("-c", f"{check}{textwrap.dedent(script)}\nimport json; print(json.dumps(answer))")
        )

    def report(self, *arguments: str) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self.python("-m", "remoteclaw_sync", *arguments, "--json"))
        return report

    def acme(self) -> dict[str, Any]:
        """What doctor says about Acme."""
        (found,) = (one for one in self.report("doctor")["providers"] if one["provider"] == "acme")
        return dict(found)


@pytest.fixture
def machine(tmp_path: Path, copy: Path) -> Machine:
    return Machine(tmp_path, copy)


def test_one_line_outside_its_folder_is_all_that_was_added(copy: Path) -> None:
    def differences(compared: filecmp.dircmp[str]) -> set[str]:
        here = {str(Path(compared.right, name)) for name in (*compared.diff_files, *compared.right_only)}
        return here.union(*map(differences, compared.subdirs.values()))

    changed = differences(filecmp.dircmp(PACKAGE, copy, ignore=["__pycache__"]))
    assert changed == {str(copy / "clis" / "registry.py"), str(copy / "clis" / "acme")}
    before = (PACKAGE / "clis" / "registry.py").read_text().splitlines(keepends=True)
    after = (copy / "clis" / "registry.py").read_text().splitlines(keepends=True)
    after.remove(NEW_LINE)
    assert after == before


@pytest.mark.slow
def test_the_factory_makes_its_runtime_and_lists_it(machine: Machine) -> None:
    answer = machine.says("""
        from remoteclaw_sync import SUPPORTED_PROVIDERS, create_cli_runtime
        runtime = create_cli_runtime(" Acme ", timeout=7.0)
        answer = [type(runtime).__name__, runtime.command, runtime.timeout, SUPPORTED_PROVIDERS[-1]]
    """)
    assert answer == ["AcmeCliRuntime", ["acme"], 7.0, "acme"]


@pytest.mark.slow
def test_a_fake_of_it_answers_calls_tools_fails_and_resumes(machine: Machine) -> None:
    answer = machine.says("""
        import os
        from remoteclaw_sync import create_cli_runtime
        from remoteclaw_sync.testing import FakeAnswer, ToolCall, write_fake_cli
        tools = [ToolCall("shell", {"command": "ls"}, "a.py")]
        fake = write_fake_cli(os.environ["PATH"].split(":")[0], "acme", FakeAnswer("Hello!", tools=tools),
                              FakeAnswer("Again."), FakeAnswer(error="HTTP 429: too many requests"))
        runtime = create_cli_runtime("acme")
        events = [event.type for event in runtime.execute("Hi")]
        resumed = runtime.run("And now?", session_id="s-9")
        failed = runtime.run("And now?", check=False)
        answer = [events, resumed.text, resumed.session_id, failed.error_subtype, fake.calls[0].stdin]
    """)
    assert answer == [["tool_use", "tool_result", "text", "done"], "Again.", "s-9", "rate_limit", "Hi"]


def test_its_exit_code_means_what_its_facts_say_in_a_run_and_for_anyone_who_asks(machine: Machine) -> None:
    put_program(machine.bin / "acme", "#!/bin/sh\nexit 7\n")
    answer = machine.says("""
        from remoteclaw_sync import classify_error, create_cli_runtime
        failed = create_cli_runtime("acme").run("Hi", check=False)
        answer = [failed.error_subtype, classify_error(exit_code=7, provider="acme").error_subtype]
    """)
    assert answer == ["billing", "billing"]


@pytest.mark.slow
def test_a_run_without_it_says_how_to_install_it_or_where_it_is(machine: Machine) -> None:
    script = """
        from remoteclaw_sync import AgentRunError, create_cli_runtime
        try:
            create_cli_runtime("acme").run("Hi")
        except AgentRunError as error:
            answer = error.errors[0].message
    """
    assert "install it with: npm install -g acme-cli" in machine.says(script)
    program = put_program(machine.home / ".acme" / "bin" / "acme", "#!/bin/sh\n")
    assert f"it is installed as {program}" in machine.says(script)


@pytest.mark.slow
def test_doctor_looks_for_it_for_its_version_its_login_and_its_trust(machine: Machine) -> None:
    assert machine.acme()["can_run"] is False
    put_program(machine.bin / "acme", "#!/bin/sh\necho acme 3.2.1\n")
    login = machine.home / ".acme" / "login.json"
    login.parent.mkdir()
    login.write_text('{"token": "x"}')
    found = machine.acme()
    assert (found["version"], found["standing"], found["login"]) == ("3.2.1", "tested", str(login))
    assert found["can_run"] is True
    (machine.project / ".acme").mkdir()
    (machine.project / ".acme" / "trusted").touch()
    assert machine.report("doctor")["folder"]["trusted_by"]["acme"] is True


@pytest.mark.slow
def test_a_version_of_it_that_is_too_old_is_read_from_its_files_and_refused(machine: Machine) -> None:
    package = machine.home / "node_modules" / "acme-cli"
    program = put_program(package / "bin" / "acme", "#!/bin/sh\nexit 1\n")
    (package / "package.json").write_text('{"name": "acme-cli", "version": "2.4.9"}')
    (machine.bin / "acme").symlink_to(program)
    found = machine.acme()
    assert (found["version"], found["problem"]) == ("2.4.9", "too old, needs >= 3.0.0")


@pytest.mark.slow
def test_its_config_is_restored_after_a_host_that_died_with_it(machine: Machine, container: Container) -> None:
    machine.inside = container.inside  # `--repair` could end processes outside that are not ours.
    config = machine.project / ".acme" / "config.json"
    config.parent.mkdir()
    config.write_text('{"theme": "dark"}')
    machine.python(
        "-c",
        "import os\n"
        "from remoteclaw_sync.config_files.borrowed import BorrowedConfig, ConfigFile\n"
        f"file = ConfigFile({str(config)!r}, 'json', 'servers', {{'ours': {{'command': 'x'}}}})\n"
        "BorrowedConfig(file).take(print)\n"
        "os._exit(0)\n",
    )
    assert "ours" in config.read_text()
    (leftover,) = machine.report("doctor", "--repair")["leftovers"]
    assert (leftover["kind"], leftover["what"], leftover["repaired"]) == ("config", str(config), True)
    assert config.read_text() == '{"theme": "dark"}'


@pytest.mark.slow
def test_the_command_line_lists_it_and_has_its_page(machine: Machine) -> None:
    providers = {one["provider"]: one["install"] for one in machine.report("providers")["providers"]}
    assert providers["acme"] == "npm install -g acme-cli"
    assert machine.python("-m", "remoteclaw_sync", "help", "acme") == "# Acme\n"
    assert "Acme" in machine.python("-m", "remoteclaw_sync", "--help")
    assert "acme" in machine.python("-m", "remoteclaw_sync", "completion", "bash")
