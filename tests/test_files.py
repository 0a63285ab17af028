"""Temporary files: private, named after their owner, swept up after its death. And reading files with care."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from remoteclaw_sync import files
from remoteclaw_sync.process import host as identity
from remoteclaw_sync.process.host import has_lasted, host_identity
from tests.fakes import PATIENCE, run_host, start_host


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "folder"
    path.mkdir()
    return path


def dead_identity() -> str:
    return run_host("from remoteclaw_sync.process.host import *; print(host_identity())").strip()


def left_by(owner: str, folder: Path, name: str = "remoteclaw-{}-01234567.txt") -> Path:
    path = folder / name.format(owner)
    path.write_text("secret")
    return path


# --- making and removing -----------------------------------------------------------------------------------------


def test_what_is_made_is_private_whatever_the_umask(folder: Path) -> None:
    before = os.umask(0)
    try:
        paths: list[str | Path] = [files.new_file(str(folder), ".txt", b"secret"), files.new_folder(str(folder))]
        files.replace_file(str(folder / "config"), b"secret")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(os.stat(path).st_mode) for path in [*paths, folder / "config"]] == [0o600, 0o700, 0o600]


def test_a_file_that_cannot_be_written_to_its_end_is_not_left_there(folder: Path) -> None:
    """As on a full disk; here the write runs into a size limit."""
    code = """
        import os, resource, sys
        from remoteclaw_sync import files
        from remoteclaw_sync.config_files.private_file import PrivateFile
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        folder, data = sys.argv[1], b"x" * 100_000
        attempts = [
            lambda: PrivateFile(folder, ".mcp.json", data, b""),
            lambda: files.new_file(folder, ".txt", data, durable=True),
            lambda: files.replace_file(os.path.join(folder, "config"), data),
        ]
        for attempt in attempts:
            try:
                attempt()
            except OSError:
                print(os.listdir(folder))
    """
    assert run_host(code, str(folder)) == "[]\n" * 3


def test_a_forked_copy_of_the_host_does_not_remove_the_original_s(folder: Path) -> None:
    path = files.new_file(str(folder), "", b"")
    pid = os.fork()
    if pid == 0:
        files.remove(path)
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.path.exists(path)
    files.remove(path)
    files.remove(path)
    assert not os.path.exists(path)


# --- after a host that is gone -------------------------------------------------------------------------------------


def test_what_a_dead_host_left_is_swept_up_and_what_a_living_one_owns_is_not(folder: Path) -> None:
    code = """
        import sys
        from remoteclaw_sync import files
        print(files.new_file(sys.argv[1], ".txt", b""), files.new_folder(sys.argv[1], hidden=True), flush=True)
        input()
    """
    with start_host(code, str(folder), stdin=-1) as living, start_host(code, str(folder), stdin=-1) as dead:
        assert living.stdout is not None
        assert dead.stdout is not None
        kept, gone = living.stdout.readline().split(), dead.stdout.readline().split()
        own = files.new_file(str(folder), "", b"")
        dead.kill()
        dead.wait()
        assert sorted(files.abandoned(str(folder))) == sorted(gone)
        files.sweep(str(folder))
        assert set(map(str, folder.iterdir())) == {own, *kept}
        living.communicate("\n", timeout=PATIENCE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "remoteclaw-sync-2024-11-18.md",
        "remoteclaw-sync-2024-x.mcp.json",
        "remoteclaw-2024-11-18.txt",
        "remoteclaw-notes",
        "remoteclaw-{}.txt",
        "remoteclaw-{}-0123456.txt",
        "remoteclaw-{}-01234567.txt~",
        "my-remoteclaw-{}-01234567.txt",
    ],
)
def test_a_user_s_file_is_not_taken_for_ours_by_its_name(folder: Path, name: str) -> None:
    path = left_by(dead_identity(), folder, name)
    os.utime(path, (0, 0))
    assert files.abandoned(str(folder)) == []
    files.sweep(str(folder))
    assert path.exists()


def test_neither_a_link_nor_a_file_of_another_user_is_swept_up(folder: Path) -> None:
    owner = dead_identity()
    (folder / f"remoteclaw-{owner}-00000000").symlink_to(folder)
    expected = []
    if os.getuid() == 0:
        theirs = left_by(owner, folder)
        os.chown(theirs, 65534, 65534)
        expected.append(theirs)
    files.sweep(str(folder))
    assert sorted(folder.iterdir()) == sorted([folder / f"remoteclaw-{owner}-00000000", *expected])


def test_the_file_of_an_owner_that_cannot_be_seen_from_here_is_kept_for_a_day(folder: Path) -> None:
    """Its owner is in another container or boot: there, the pid means another process than here."""
    young, old = (left_by(owner, folder) for owner in ("1-77-00000000", "2-77-00000000"))
    yesterday = time.time() - files.UNSEEN_OWNER_SECONDS - 60
    os.utime(old, (yesterday, yesterday))
    files.sweep(str(folder))
    assert list(folder.iterdir()) == [young]


@pytest.mark.slow
def test_a_large_folder_is_looked_through_seldom(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run sweeps, and the temporary folder of a busy machine may have 100,000 names."""
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    for number in range(2_000):
        (folder / str(number)).touch()
    owner = dead_identity()
    looks = 0
    for _ in range(100):
        left_by(owner, folder)
        files.sweep(str(folder))
        looks += not any(folder.glob("remoteclaw-*"))
        clock[0] += 0.01
    assert looks == 5  # At 0, 0.2, 0.4 s and so on.


def test_the_identity_of_a_process_tells_whether_it_is_still_there() -> None:
    assert has_lasted(host_identity()) is True
    assert has_lasted(dead_identity()) is False
    pid, started, place = host_identity().split("-")
    assert has_lasted(f"{pid}-{int(started) + 1}-{place}") is False  # Another process with the pid of a dead one.
    for unknown in (f"{pid}-{started}-00000000", "1", "", "nonsense", f"x-{started}-{place}", "77-1-1"):
        assert has_lasted(unknown) is None


def test_without_proc_the_number_of_a_process_tells_whether_it_is_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = open

    def no_proc(path: object, *args: object, **options: object) -> object:
        if str(path).startswith("/proc"):
            raise FileNotFoundError(path)
        return real_open(path, *args, **options)  # type: ignore[call-overload]

    def nothing_exists(path: str) -> bool:
        return False

    dead = dead_identity().split("-")[0]
    monkeypatch.setattr("builtins.open", no_proc)
    monkeypatch.setattr(os.path, "exists", nothing_exists)
    identity._identity_of.cache_clear()
    identity._place_of.cache_clear()
    try:
        pid, started, place = host_identity().split("-")
        assert (pid, started) == (str(os.getpid()), "0")
        assert has_lasted(host_identity()) is True
        assert has_lasted(f"{dead}-0-{place}") is False
        assert has_lasted(f"0-0-{place}") is False
    finally:
        identity._identity_of.cache_clear()
        identity._place_of.cache_clear()


# --- reading what somebody else may have put there ------------------------------------------------------------------


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_device_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def make_folder(path: Path) -> None:
    path.mkdir()


def make_giant(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10**12)  # A hole: it takes no space on the disk.


def make_loop(path: Path) -> None:
    path.symlink_to(path)


ODD_FILES = [make_fifo, make_device_link, make_socket, make_folder, make_giant, make_loop]


@pytest.mark.parametrize("make", ODD_FILES)
@pytest.mark.parametrize("follow", [False, True])
def test_what_is_no_regular_file_of_bounded_size_is_refused_at_once(make: Callable[[Path], None], follow: bool) -> None:
    with tempfile.TemporaryDirectory() as short:  # The path of a socket must be short.
        make(Path(short, "x"))
        with pytest.raises(OSError):
            files.read_regular(Path(short, "x"), 1000, follow=follow)


def test_a_link_to_a_regular_file_is_followed_only_if_that_was_asked_for(folder: Path) -> None:
    (folder / "file").write_bytes(b"content")
    (folder / "link").symlink_to("file")
    assert files.read_regular(folder / "link", 7, follow=True) == b"content"
    with pytest.raises(OSError, match="symbolic link"):
        files.read_regular(folder / "link", 7)
