"""What a program's file reveals."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

import pytest

from remoteclaw_sync.process.program import defect_of, programs_on_path
from tests.installs import STUBS, npm_install, put_program


def elf(machine: int) -> bytes:
    return b"\x7fELF\x02\x01\x01" + bytes(11) + machine.to_bytes(2, "little") + bytes(44)


@pytest.mark.parametrize(
    "head",
    [b"#!/bin/sh\n", b"#! /usr/bin/env sh\n", b"#!/usr/bin/env -S A=b sh -e\n", elf(0), b"\xcf\xfa\xed\xfe", b"MZ"],
)
def test_a_program_of_a_known_format_has_no_defect(head: bytes, tmp_path: Path) -> None:
    assert defect_of(str(put_program(tmp_path / "cli", head)), "/usr/bin:/bin") is None


@pytest.mark.parametrize(
    ("line", "words", "skipped"),
    [
        ("#!/usr/bin/env node", "needs Node.js: 'node'", False),
        ("#!/usr/bin/env -S node --no-warnings=DEP0040", "needs Node.js: 'node'", False),
        ("#!/usr/bin/env -Snode", "needs Node.js: 'node'", False),
        ("#!/usr/bin/env NODE_ENV=production node", "needs Node.js: 'node'", False),
        ("#!/usr/bin/env node\r", "'node\\r'", False),
        ("#!/opt/gone/bin/node", "needs Node.js: '/opt/gone/bin/node'", True),
        ("#!/opt/gone/bin/bun run", "needs Bun", True),
        ("#!/opt/gone/python3", "needs `python3`", True),
    ],
)
def test_a_missing_interpreter_is_named(line: str, words: str, skipped: bool, tmp_path: Path) -> None:
    defect = defect_of(str(put_program(tmp_path / "cli", f"{line}\nrest\n")), str(tmp_path))
    assert defect is not None
    assert words in defect.message
    assert defect.skipped is skipped


@pytest.mark.parametrize("provider", STUBS)
def test_npms_placeholder_names_the_script_that_was_not_run(provider: str, tmp_path: Path) -> None:
    script, stub = STUBS[provider]
    link = npm_install(tmp_path, provider, "9.9.9", stub)
    defect = defect_of(str(link), "")
    assert defect is not None
    assert f"run: node {link.resolve().parent.parent / script}" in defect.message


def test_a_placeholder_outside_of_its_package_says_what_it_says_itself(tmp_path: Path) -> None:
    defect = defect_of(str(put_program(tmp_path / "claude", STUBS["claude"][1])), "")
    assert defect is not None
    assert "run: node node_modules/@anthropic-ai/claude-code/install.cjs" in defect.message


def test_a_launcher_without_the_program_it_starts_cannot_run(tmp_path: Path) -> None:
    link = npm_install(tmp_path, "codex", "0.169.0", "#!/bin/sh\n")
    package = link.resolve().parent.parent
    wanted = {f"@openai/codex-{machine}": "npm:@openai/codex@0.169.0" for machine in ("linux-x64", "darwin-arm64")}
    manifest = {"name": "@openai/codex", "version": "0.169.0", "optionalDependencies": {**wanted, "keytar": "1"}}
    (package / "package.json").write_text(json.dumps(manifest))
    defect = defect_of(str(link), "")
    assert defect is not None
    assert "npm install -g --include=optional @openai/codex" in defect.message
    beside, inside = package.parent / "codex-linux-x64", package / "node_modules" / "@openai" / "codex-linux-x64"
    for place in (beside, inside, package / "vendor"):
        place.mkdir(parents=True)
        assert defect_of(str(link), "") is None
        place.rmdir()


@pytest.mark.parametrize("content", [b"", b"\x00\x01\x02", b"echo hello\n"])
def test_a_file_of_no_known_format_cannot_run(content: bytes, tmp_path: Path) -> None:
    defect = defect_of(str(put_program(tmp_path / "cli", content)), "")
    assert defect is not None
    assert "is not a program this system can run" in defect.message


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the two machines that npm has CLIs for")
def test_a_program_for_another_machine_cannot_run(tmp_path: Path) -> None:
    number, name = (183, "aarch64") if platform.machine() == "x86_64" else (62, "x86_64")
    if os.path.exists(f"/proc/sys/fs/binfmt_misc/qemu-{name}"):
        pytest.skip(f"this machine emulates {name}")
    defect = defect_of(str(put_program(tmp_path / "cli", elf(number))), "")
    assert defect is not None
    assert f"another kind of machine ({name}" in defect.message


def test_programs_are_listed_in_the_order_of_path_and_each_once(tmp_path: Path) -> None:
    first, second = (put_program(tmp_path / name / "cli", "#!/bin/sh\n") for name in ("a", "b"))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "cli").symlink_to(first)
    folders = [tmp_path / name for name in ("a", "none", "b", "c", "a")]
    assert programs_on_path("cli", ":".join(map(str, folders))) == [str(first), str(second)]
