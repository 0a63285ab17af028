"""What Codex's sandbox leaves in a folder: we remove only what is empty and was not there before."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from remoteclaw_sync.clis.codex.litter import NAMES, absent_folders, remove_empty


def test_an_empty_folder_that_came_with_the_session_is_removed(tmp_path: Path) -> None:
    absent = absent_folders(str(tmp_path))
    for name in NAMES:
        (tmp_path / name).mkdir()
    remove_empty(absent)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_before_and_one_with_something_in_it_stay(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    absent = absent_folders(str(tmp_path))
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "config.toml").write_text('model = "mine"\n')
    remove_empty(absent)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".codex", ".git"]
    assert (tmp_path / ".codex" / "config.toml").read_text() == 'model = "mine"\n'


def test_a_folder_that_a_running_sandbox_protects_stays_until_that_has_ended(tmp_path: Path) -> None:
    absent = absent_folders(str(tmp_path))
    folder = tmp_path / ".git"
    folder.mkdir()
    script = 'mount --bind "$0" "$0" && echo ready && read end'
    command = ["unshare", "--mount", "sh", "-c", script, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sandbox:
        assert sandbox.stdout is not None
        if sandbox.stdout.readline() != b"ready\n":
            pytest.skip("namespace: no folder can be mounted in one of our own")
        remove_empty(absent)
        assert folder.exists()
    remove_empty(absent)
    assert not folder.exists()
