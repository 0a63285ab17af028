"""Which version is installed, what works with it, and where to find a CLI that is not on PATH."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from remoteclaw_sync import create_cli_runtime
from remoteclaw_sync.clis.registry import all_facts, facts_of
from remoteclaw_sync.testing import write_fake_cli
from remoteclaw_sync.versions import (
    Installation,
    Standing,
    as_numbers,
    found_elsewhere,
    installation,
    installed_version,
    standing,
    support_of,
    what_is_needed,
)
from tests.installs import PACKAGES, npm_install, put_program

STANDINGS = [
    ("claude", "1.0.100", Standing.TOO_OLD),
    ("claude", "2.0.13", Standing.TOO_OLD),
    ("claude", "2.0.14", Standing.GAPS),
    ("claude", "2.0.33", Standing.GAPS),
    ("claude", "2.0.34", Standing.OLDER),
    ("claude", "2.0.55", Standing.IN_RANGE),
    ("claude", "2.1.197", Standing.IN_RANGE),
    ("claude", "2.1.326", Standing.TESTED),
    ("claude", "2.1.1000", Standing.NEWER),
    ("claude", "10.0.0", Standing.NEWER),
    ("gemini", "0.10.0", Standing.TOO_OLD),
    ("gemini", "0.34.9", Standing.TOO_OLD),
    ("gemini", "0.43.0", Standing.GAPS),
    ("gemini", "0.47.0", Standing.OLDER),
    ("gemini", "0.62.0-nightly.20261101.abc", Standing.NEWER),
    ("codex", "0.100.0", Standing.TOO_OLD),
    ("codex", "0.133.0", Standing.GAPS),
    ("codex", "0.136.0", Standing.OLDER),
    ("codex", "0.169.0", Standing.TESTED),
    ("opencode", "1.0.61", Standing.TOO_OLD),
    ("opencode", "1.17.11", Standing.GAPS),
    ("opencode", "1.17.18", Standing.OLDER),
    ("opencode", "1.18.33", Standing.TESTED),
    ("opencode", "1.19.0", Standing.NEWER),
    ("opencode", "2.0.99", Standing.UNTESTED),
    ("opencode", None, Standing.UNKNOWN),
    ("opencode", "local", Standing.UNKNOWN),
]


@pytest.mark.parametrize(("provider", "version", "expected"), STANDINGS)
def test_a_version_stands_where_the_conformance_runs_put_it(
    provider: str, version: str | None, expected: Standing
) -> None:
    assert standing(facts_of(provider), version) is expected


def test_the_limits_of_each_line_are_in_order() -> None:
    for cli in all_facts():
        for line in cli.support:
            limits = [line.least, line.floor, line.tested_from, line.tested]
            assert sorted(limits, key=as_numbers) == limits


def test_opencode_2_is_measured_by_its_own_line() -> None:
    assert support_of(facts_of("opencode"), "2.0.15").package == "@opencode/cli"
    assert support_of(facts_of("opencode"), "1.18.33").package == "opencode-ai"
    assert support_of(facts_of("opencode"), "0.9.0").package == "opencode-ai"


@pytest.mark.parametrize(
    ("provider", "version", "options", "sentence"),
    [
        ("claude", "1.0.100", (), "this is claude 1.0.100; 2.0.34 or newer is needed"),
        (
            "claude",
            "2.0.20",
            ("system_prompt", "default"),
            "this is claude 2.0.20; 2.0.34 or newer is needed (system_prompt came with 2.0.34)",
        ),
        (
            "claude",
            "2.0.32",
            ("system_prompt", "read-only"),
            "this is claude 2.0.32; 2.0.34 or newer is needed (system_prompt came with 2.0.34)",
        ),
        ("gemini", "0.20.2", ("read-only",), "this is gemini 0.20.2; 0.47.0 or newer is needed"),
        ("codex", "0.133.0", (), "this is codex 0.133.0; 0.134.0 or newer is needed"),
        ("opencode", "1.17.18", ("bypass",), None),
        ("claude", "9.9.9", ("system_prompt",), None),
        ("claude", None, (), None),
    ],
)
def test_only_below_the_floor_a_sentence_says_what_is_needed(
    provider: str, version: str | None, options: tuple[str, ...], sentence: str | None
) -> None:
    assert what_is_needed(facts_of(provider), version, options) == sentence


# --- what the files tell --------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", PACKAGES)
def test_an_npm_package_names_itself_and_its_version(provider: str, tmp_path: Path) -> None:
    link = npm_install(tmp_path, provider, "3.2.1", "")
    assert installation(facts_of(provider), provider, str(link.parent)) == Installation(PACKAGES[provider][0], "3.2.1")


def test_opencode_2_is_told_from_1_by_its_package(tmp_path: Path) -> None:
    link = npm_install(tmp_path, "opencode", "2.0.3", "", package="@opencode/cli")
    assert installation(facts_of("opencode"), str(link)) == Installation("@opencode/cli", "2.0.3")


@pytest.mark.parametrize(
    ("provider", "path", "version"),
    [
        ("opencode", "Cellar/opencode/1.18.2_1/bin/opencode", "1.18.2"),
        ("claude", "Caskroom/claude-code@latest/2.1.300/claude", "2.1.300"),
        ("claude", "share/claude/versions/2.1.326", "2.1.326"),
        ("codex", ".codex/packages/standalone/releases/0.146.0-x86_64-unknown-linux-musl/bin/codex", "0.146.0"),
        ("codex", ".codex/packages/standalone/releases/0.170.0-alpha.3-aarch64-apple-darwin/codex", "0.170.0-alpha.3"),
    ],
)
def test_a_file_or_folder_that_an_installer_named_after_the_version_tells_it(
    provider: str, path: str, version: str, tmp_path: Path
) -> None:
    program = put_program(tmp_path / path, "")
    assert installation(facts_of(provider), str(program)) == Installation(None, version)


@pytest.mark.parametrize(
    "path", ["installs/node/22.1.0/bin/opencode", ".pyenv/versions/3.11.7/bin/opencode", "n/versions/22.1.0/opencode"]
)
def test_a_version_of_something_else_is_not_taken_for_the_clis(path: str, tmp_path: Path) -> None:
    assert installed_version(facts_of("opencode"), str(put_program(tmp_path / path, ""))) is None


@pytest.mark.parametrize("manifest", ["", "[]", "[" * 100_000, '{"name": "opencode-ai", "version": 5}', "\xff"])
def test_a_package_json_that_makes_no_sense_tells_nothing(manifest: str, tmp_path: Path) -> None:
    link = npm_install(tmp_path, "opencode", "1.0.0", "")
    (link.resolve().parent.parent / "package.json").write_text(manifest, encoding="latin-1")
    assert installation(facts_of("opencode"), str(link)) is None


# --- where else -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_package_json_that_is_no_file_is_not_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """The program may be part of a repository that was checked out."""
    make(tmp_path / "package.json")
    cli = write_fake_cli(tmp_path, "opencode", "OK")
    assert installed_version(facts_of("opencode"), cli.path, None) is None
    assert create_cli_runtime("opencode", command=cli.path).run("hi").text == "OK"


@pytest.mark.parametrize(
    "folder",
    [".local/bin", ".npm-global/bin", ".bun/bin", ".nvm/versions/node/v22.3.0/bin"],
)
def test_a_program_in_a_usual_place_is_found_though_it_is_not_on_path(folder: str, tmp_path: Path) -> None:
    program = put_program(tmp_path / folder / "an-agent-cli", "#!/bin/sh\n")
    assert found_elsewhere("an-agent-cli", {"HOME": str(tmp_path)}) == [str(program)]


@pytest.mark.parametrize(("provider", "folder"), [("opencode", ".opencode/bin"), ("claude", ".claude/local")])
def test_a_program_in_a_folder_of_its_own_installer_is_found(provider: str, folder: str, tmp_path: Path) -> None:
    program = put_program(tmp_path / folder / provider, "#!/bin/sh\n")
    own_folders = facts_of(provider).program_folders
    assert found_elsewhere(provider, {"HOME": str(tmp_path)}, own_folders) == [str(program)]


def test_where_vendors_install_now_goes_before_the_folders_they_have_left(tmp_path: Path) -> None:
    old = put_program(tmp_path / ".claude" / "local" / "claude", "#!/bin/sh\n")
    new = put_program(tmp_path / ".local" / "bin" / "claude", "#!/bin/sh\n")
    own_folders = facts_of("claude").program_folders
    assert found_elsewhere("claude", {"HOME": str(tmp_path)}, own_folders) == [str(new), str(old)]


@pytest.mark.parametrize("prefix", ["{home}/elsewhere", "~/elsewhere", "${{HOME}}/elsewhere", '"{home}/elsewhere"'])
def test_the_prefix_of_npm_is_one_of_the_places(prefix: str, tmp_path: Path) -> None:
    program = put_program(tmp_path / "elsewhere" / "bin" / "an-agent-cli", "#!/bin/sh\n")
    (tmp_path / ".npmrc").write_text(f"fund=false\nprefix = {prefix.format(home=tmp_path)}\n")
    assert found_elsewhere("an-agent-cli", {"HOME": str(tmp_path)}) == [str(program)]
    (tmp_path / ".npmrc").unlink()
    found = found_elsewhere("an-agent-cli", {"HOME": "/nowhere", "npm_config_prefix": str(tmp_path / "elsewhere")})
    assert found == [str(program)]


def test_a_file_that_may_not_be_executed_is_not_an_installed_program(tmp_path: Path) -> None:
    put_program(tmp_path / ".local" / "bin" / "an-agent-cli", "").chmod(0o644)
    assert found_elsewhere("an-agent-cli", {"HOME": str(tmp_path)}) == []
