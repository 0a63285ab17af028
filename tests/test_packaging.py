"""What is shipped: metadata, files, the console script. `.ci/run` repeats all tests on the built wheel."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path, PurePosixPath

import pytest

import remoteclaw_sync
from remoteclaw_sync.cli import main

PROJECT = Path(__file__).parents[1]  # In a copy of the tests, README.md and setup.cfg are next to them.
PACKAGE = Path(remoteclaw_sync.__file__).parent
EXTRAS = {
    "celery",
    "cluster",
    "seal",
    "test-cluster",
    "test",
    "test-bots",
    "test-mcp",
    "test-web",
    "dev",
    "speed",
    "web",
    "bench",
}
# A new one must be added to package_data, too. Those of the chat page are in a separate folder.
DATA_FILES = {"py.typed", "README.md"}
PAGE = PACKAGE / "web" / "static"


@pytest.fixture(scope="module")
def config() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string((PROJECT / "setup.cfg").read_text(encoding="utf-8"))
    return parser


@pytest.fixture(scope="module")
def distribution() -> metadata.Distribution:
    for found in metadata.distributions(name="remoteclaw_sync"):
        # Not an .egg-info: a build leaves one in the source tree, where it is found first.
        if any(PurePosixPath(file).parts[0].endswith(".dist-info") for file in found.files or []):
            return found
    pytest.skip("remoteclaw_sync is not installed, only importable")


def names_required(lines: list[str]) -> set[str]:
    return {re.split(r"[<>=!~; \[]", line.strip(), maxsplit=1)[0].lower() for line in lines if line.strip()}


# --- the source ----------------------------------------------------------------------------------------------


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


def test_every_folder_with_modules_is_a_package_so_that_the_wheel_has_it() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert {folder.name for folder in folders} >= {"process", "claude"}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_nothing_but_modules_and_the_known_data_files_is_needed_at_run_time() -> None:
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {path.name for path in files if path.suffix != ".py" and path.parent != PAGE} == DATA_FILES
    assert {path.suffix for path in PAGE.iterdir()} == {".css", ".html", ".js", ".svg"}


def test_few_things_are_required(config: configparser.ConfigParser) -> None:
    assert config["options"]["python_requires"] == ">=3.11"
    assert names_required(config["options"]["install_requires"].splitlines()) == {"attrs", "tomli-w"}
    assert set(config["options.extras_require"]) == EXTRAS


def test_setup_py_only_calls_setup() -> None:
    setup = PROJECT / "setup.py"
    if not setup.exists():
        pytest.skip("setup.py is not copied with the tests")
    assert setup.read_text(encoding="utf-8") == "from setuptools import setup\n\nsetup()\n"


def test_a_warning_fails_a_test(config: configparser.ConfigParser) -> None:
    assert config["tool:pytest"]["filterwarnings"].strip() == "error"


# --- the installed distribution --------------------------------------------------------------------------------


def test_the_installed_version_is_that_of_the_package(distribution: metadata.Distribution) -> None:
    assert distribution.version == remoteclaw_sync.__version__


def test_the_installed_metadata_says_what_it_needs(distribution: metadata.Distribution) -> None:
    assert distribution.metadata["Requires-Python"] == ">=3.11"
    assert set(distribution.metadata.get_all("Provides-Extra") or []) == EXTRAS
    always = [line for line in distribution.requires or [] if "extra ==" not in line]
    assert names_required(always) == {"attrs", "tomli-w"}


def test_the_installed_metadata_has_a_description_and_a_licence(distribution: metadata.Distribution) -> None:
    assert distribution.metadata["Description-Content-Type"] == "text/markdown"
    text = distribution.metadata.get_payload()  # type: ignore[attr-defined]
    assert "# remoteclaw_sync" in text
    assert "MIT" in (distribution.metadata["License"] or distribution.metadata["License-Expression"])
    assert any(file.name == "LICENSE" for file in distribution.files or [])


def test_every_source_file_is_installed(distribution: metadata.Distribution) -> None:
    source = {
        PurePosixPath("remoteclaw_sync", *path.relative_to(PACKAGE).parts)
        for path in PACKAGE.rglob("*")
        if path.suffix == ".py" or path.name in DATA_FILES
    }
    assert source - {PurePosixPath(file) for file in distribution.files or []} == set()


def test_nothing_beside_the_package_is_installed(distribution: metadata.Distribution) -> None:
    top = {PurePosixPath(file).parts[0] for file in distribution.files or []}
    assert {name for name in top if not name.endswith(".dist-info")} - {".."} == {"remoteclaw_sync"}


def test_the_console_script_is_our_main(distribution: metadata.Distribution) -> None:
    (script,) = distribution.entry_points.select(group="console_scripts")
    assert script.name == "remoteclaw-sync"
    assert script.load() is main


def test_the_installed_console_script_runs(distribution: metadata.Distribution) -> None:
    program = Path(sys.executable).with_name("remoteclaw-sync")
    done = subprocess.run([program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert done.stdout == f"remoteclaw-sync {remoteclaw_sync.__version__}\n"


# --- the command line, as far as there is one ------------------------------------------------------------------


def test_the_module_runs_like_the_console_script() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "remoteclaw_sync", "--version"],
        cwd=PACKAGE.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"remoteclaw-sync {remoteclaw_sync.__version__}\n"


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["no-such-command"])
    assert caught.value.code == 2
    assert "no-such-command" in capsys.readouterr().err
