"""Where a recording is written: never to a file that somebody else has put in its place."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from remoteclaw_sync.recording.file import create

NOBODY = 65534


def write(path: Path) -> None:
    fd = create(str(path), "run")
    try:
        os.write(fd, b"recorded")
    finally:
        os.close(fd)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder like /tmp."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of ours that others would like to see overwritten."""
    path = tmp_path / "home" / "bashrc"
    path.parent.mkdir()
    path.write_text("mine")
    return path


def foreign_link(path: Path, target: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a link of another user")
    path.symlink_to(target)
    os.lchown(path, NOBODY, NOBODY)


def test_a_foreign_link_is_not_followed(shared: Path, victim: Path) -> None:
    foreign_link(shared / "run.jsonl", victim)
    with pytest.raises(OSError, match="belongs to another user"):
        write(shared / "run.jsonl")
    assert victim.read_text() == "mine"
    assert sorted(os.listdir(victim.parent)) == ["bashrc"]


@pytest.mark.parametrize("below", ["", "run.jsonl"])
def test_a_foreign_link_to_a_folder_is_not_followed(below: str, shared: Path, victim: Path) -> None:
    foreign_link(shared / "recordings", victim.parent)
    with pytest.raises(OSError, match="belongs to another user"):
        write(shared / "recordings" / below)
    assert sorted(os.listdir(victim.parent)) == ["bashrc"]


def test_a_foreign_link_that_leads_nowhere_yet_is_not_followed(shared: Path, victim: Path) -> None:
    foreign_link(shared / "run.jsonl", victim.with_name("new"))
    with pytest.raises(OSError, match="belongs to another user"):
        write(shared / "run.jsonl")
    assert not victim.with_name("new").exists()


def test_a_foreign_link_behind_one_of_ours_is_not_followed(shared: Path, victim: Path) -> None:
    foreign_link(shared / "b", victim)
    (shared / "a").symlink_to("b")
    with pytest.raises(OSError, match="'b' belongs to another user"):
        write(shared / "a")
    assert victim.read_text() == "mine"


def test_a_link_of_ours_is_followed_and_stays(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real/../real/run.jsonl")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "run.jsonl").read_text() == "recorded"


def test_a_file_with_another_name_keeps_its_content_there(tmp_path: Path, victim: Path) -> None:
    os.link(victim, tmp_path / "run.jsonl")
    write(tmp_path / "run.jsonl")
    assert victim.read_text() == "mine"
    assert (tmp_path / "run.jsonl").read_text() == "recorded"


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="too many symbolic links"):
        write(tmp_path / "a")


def test_a_new_file_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write(tmp_path / "run.jsonl")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run.jsonl").stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["run.jsonl"]


def test_relative_paths_are_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    write(Path("run.jsonl"))
    write(Path("../other.jsonl"))
    assert (tmp_path / "below" / "run.jsonl").exists()
    assert (tmp_path / "other.jsonl").exists()


def test_another_users_fifo_is_refused(shared: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a FIFO of another user")
    os.mkfifo(shared / "fifo")
    os.chown(shared / "fifo", NOBODY, NOBODY)
    reader = os.open(shared / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(OSError, match="another user's FIFO"):
            write(shared / "fifo")
    finally:
        os.close(reader)


@pytest.mark.parametrize("device", ["/dev/random", "/dev/tty"])
def test_a_device_is_refused(device: str) -> None:
    if not os.path.exists(device):
        pytest.skip(f"there is no {device} here")
    with pytest.raises(OSError, match="is a device"):
        write(Path(device))


def test_the_null_device_is_a_place_to_record_to() -> None:
    write(Path(os.devnull))
