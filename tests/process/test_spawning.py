"""From what Popen raises to what a person can act on."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync.process.launch import Launch
from remoteclaw_sync.process.spawn_errors import explain_spawn_failure


def launch(command: str, cwd: Path, **env: str) -> Launch:
    return Launch(
        argv=(command, "an argument with a secret"),
        env=env,
        cwd=str(cwd),
        stdin=b"",
        marker="M",
        linger=1.0,
        max_pending_bytes=1,
    )


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (os_error(errno.ENOENT), "CLI_NOT_FOUND", "not found on PATH"),
        (os_error(errno.E2BIG), "SPAWN_FAILED", "stdin"),
        (os_error(errno.EMFILE), "SPAWN_FAILED", "open files"),
        (os_error(errno.EAGAIN), "SPAWN_FAILED", "unavailable"),
        (os_error(errno.ENOMEM), "SPAWN_FAILED", "memory"),
        (ValueError("embedded null byte in secret"), "SPAWN_FAILED", "ValueError"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_each_error_has_its_code_and_its_words(error: Exception, code: str, words: str, tmp_path: Path) -> None:
    failure = explain_spawn_failure(error, launch("no-such-agent-cli", tmp_path)).failure
    assert failure.code == code
    assert words in failure.message
    assert "no-such-agent-cli" in failure.message
    assert "secret" not in failure.message


@pytest.mark.parametrize("error", [os_error(errno.ENOENT), os_error(errno.ENOTDIR), os_error(errno.EACCES)])
def test_a_missing_working_directory_is_what_is_told_first(error: Any, tmp_path: Path) -> None:
    failure = explain_spawn_failure(error, launch("sh", tmp_path / "gone")).failure
    assert failure.code == "WORKING_DIRECTORY_NOT_FOUND"


def test_the_path_that_counts_is_the_childs(tmp_path: Path) -> None:
    (tmp_path / "my-cli").write_text("")
    failure = explain_spawn_failure(
        os_error(errno.EACCES), launch("my-cli", tmp_path, PATH=f"/nowhere:{tmp_path}")
    ).failure
    assert failure.code == "CLI_NOT_EXECUTABLE"
    assert str(tmp_path / "my-cli") in failure.message


def test_a_relative_path_is_looked_for_in_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "cli").write_text("")
    failure = explain_spawn_failure(os_error(errno.EACCES), launch("./cli", tmp_path)).failure
    assert failure.code == "CLI_NOT_EXECUTABLE"
