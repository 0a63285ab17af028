"""Borrowing a config file: threads, processes, crashes, edits, and files we must not touch."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync.config_files.borrowed import BorrowedConfig, ConfigFile, checkout_of, repair
from remoteclaw_sync.errors import MCP_CONFIG_ERROR, RunSetupError

ORIGINAL = '// mine\n{"theme": "dark", "mcpServers": {"mine": {"command": "m"}}}\n'


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "project" / ".gemini" / "settings.json"
    path.parent.mkdir(parents=True)
    path.write_text(ORIGINAL)
    return path


def loan(path: Path, name: str = "ours", command: str = "server") -> BorrowedConfig:
    return BorrowedConfig(ConfigFile(str(path), "json", "mcpServers", {name: {"command": command}}))


def snapshot(folder: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(folder)): (
            os.readlink(path) if path.is_symlink() else None,
            path.read_bytes() if path.is_file() else None,
            stat.S_IMODE(path.lstat().st_mode),
            path.lstat().st_mtime_ns if path.is_file() else None,
        )
        for path in sorted(folder.rglob("*"))
    }


def project_loan(path: Path, name: str = "ours") -> BorrowedConfig:
    entries = {name: {"command": "server"}}
    return BorrowedConfig(ConfigFile(str(path), "json", "mcpServers", entries, project=str(path.parent.parent)))


def refused(path: Path, loan: Callable[[Path], BorrowedConfig] = loan) -> str:
    with pytest.raises(RunSetupError) as caught:
        loan(path).take(time.sleep)
    assert caught.value.code == MCP_CONFIG_ERROR
    return str(caught.value)


def test_the_user_s_servers_stay_available_during_the_loan_and_everything_comes_back(settings: Path) -> None:
    settings.chmod(0o640)
    before = snapshot(settings.parent.parent)
    borrowed = loan(settings)
    borrowed.take(time.sleep)
    merged = settings.read_text()
    assert '"mine"' in merged
    assert '"ours"' in merged
    borrowed.give_back()
    borrowed.give_back()
    assert snapshot(settings.parent.parent) == before


def test_the_borrowed_file_is_private_while_it_holds_our_secrets(settings: Path) -> None:
    settings.chmod(0o644)
    borrowed = loan(settings)
    borrowed.take(time.sleep)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in settings.parent.iterdir()}
    borrowed.give_back()
    assert modes.pop("settings.json.remoteclaw-backup") == 0o644
    assert set(modes.values()) == {0o600}


def test_created_files_and_folders_go_and_others_stay(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    borrowed = loan(project / ".gemini" / "settings.json")
    borrowed.take(time.sleep)
    assert (project / ".gemini" / "settings.json").exists()
    borrowed.give_back()
    assert list(project.iterdir()) == []


def test_a_folder_that_somebody_else_used_meanwhile_stays(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    borrowed = loan(project / ".gemini" / "settings.json")
    borrowed.take(time.sleep)
    (project / ".gemini" / "GEMINI.md").write_text("theirs")
    borrowed.give_back()
    assert [path.name for path in (project / ".gemini").iterdir()] == ["GEMINI.md"]


def test_a_user_s_own_symlinked_config_stays_a_symlink(settings: Path, tmp_path: Path) -> None:
    target = tmp_path / "dotfiles" / "gemini.json"
    target.parent.mkdir()
    settings.rename(target)
    settings.symlink_to(target)
    before = snapshot(tmp_path)
    borrowed = loan(settings)
    borrowed.take(time.sleep)
    assert '"ours"' in settings.read_text()
    borrowed.give_back()
    assert snapshot(tmp_path) == before


def make_checkout(folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main")


def test_an_empty_folder_that_a_sandbox_has_left_makes_no_checkout_of_the_folder_above(tmp_path: Path) -> None:
    project = tmp_path / "folder" / "project"
    project.mkdir(parents=True)
    make_checkout(tmp_path)
    (tmp_path / "folder" / ".git").mkdir()
    assert checkout_of(str(project)) == str(tmp_path)


def test_a_project_s_config_may_be_linked_to_another_file_of_the_project(settings: Path) -> None:
    project = settings.parent.parent
    make_checkout(project)
    (project / "shared").mkdir()
    settings.rename(project / "shared" / "gemini.json")
    settings.symlink_to("../shared/gemini.json")
    before = snapshot(project)
    borrowed = project_loan(settings)
    borrowed.take(time.sleep)
    assert '"ours"' in settings.read_text()
    borrowed.give_back()
    assert snapshot(project) == before


def test_outside_of_a_checkout_a_project_s_config_may_be_linked_to_the_user_s_home(
    settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "home" / "dotfiles" / "gemini.json"
    target.parent.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    settings.rename(target)
    settings.symlink_to(target)
    before = snapshot(tmp_path)
    borrowed = project_loan(settings)
    borrowed.take(time.sleep)
    assert '"ours"' in settings.read_text()
    borrowed.give_back()
    assert snapshot(tmp_path) == before
    make_checkout(settings.parent.parent)
    assert "leads out of the project" in refused(settings, project_loan)


def link_file(settings: Path, elsewhere: Path) -> None:
    settings.rename(elsewhere / "settings.json")
    settings.symlink_to(elsewhere / "settings.json")


def link_folder(settings: Path, elsewhere: Path) -> None:
    settings.rename(elsewhere / "settings.json")
    settings.parent.rmdir()
    settings.parent.symlink_to(elsewhere)


def link_to_nothing(settings: Path, elsewhere: Path) -> None:
    settings.unlink()
    settings.parent.rmdir()
    settings.parent.symlink_to(elsewhere / "new")


@pytest.mark.parametrize("link", [link_file, link_folder, link_to_nothing])
@pytest.mark.parametrize("in_git", [True, False])
def test_a_link_that_leads_out_of_the_project_is_refused_and_its_target_untouched(
    settings: Path, tmp_path: Path, link: Callable[[Path, Path], None], in_git: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    if in_git:
        (settings.parent.parent / ".git").write_text("gitdir: elsewhere")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link(settings, elsewhere)
    before = snapshot(tmp_path)
    assert "leads out of the project" in refused(settings, project_loan)
    assert snapshot(tmp_path) == before


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_a_link_to_another_user_s_file_is_refused(settings: Path) -> None:
    project = settings.parent.parent
    settings.rename(project / "theirs.json")
    os.chown(project / "theirs.json", 65534, 65534)
    settings.symlink_to("../theirs.json")
    assert "another user" in refused(settings, project_loan)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a link of another user")
@pytest.mark.parametrize("where", ["file", "folder"])
@pytest.mark.parametrize("project_is_theirs", [True, False])
def test_a_link_that_another_user_has_put_into_a_project_is_not_followed_out_of_it(
    settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, project_is_theirs: bool
) -> None:
    """The project is not a checkout, so one of the user's own links may lead to the home folder."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    link = settings if where == "file" else settings.parent
    (link_file if where == "file" else link_folder)(settings, home)
    os.chown(link, 65534, 65534, follow_symlinks=False)
    if project_is_theirs:
        os.chown(settings.parent.parent, 65534, 65534)
    before = snapshot(tmp_path)
    assert "belongs to another user" in refused(settings, project_loan)
    assert snapshot(tmp_path) == before


def make_device_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_sparse_giant(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10**12)


def make_regular_link(path: Path) -> None:
    (path.parent / "target").write_text("{}")
    path.symlink_to("target")


@pytest.mark.parametrize("make", [make_device_link, os.mkfifo, Path.mkdir, make_sparse_giant, make_regular_link])
@pytest.mark.parametrize("suffix", ["journal", "backup"])
def test_a_journal_or_backup_that_is_no_ordinary_file_is_refused_at_once(
    settings: Path, make: Callable[[Path], None], suffix: str
) -> None:
    """Git stores links, so a repository may contain any of these."""
    odd = settings.with_name(f"settings.json.remoteclaw-{suffix}")
    make(odd)
    if suffix == "backup":
        write_journal(settings, {})
    before = status_of_all(settings.parent)
    assert odd.name in refused(settings, project_loan)
    assert status_of_all(settings.parent) == before


def status_of_all(folder: Path) -> dict[str, tuple[int, ...]]:
    """Everything but the time of the last access."""
    found = {path.name: path.lstat() for path in folder.iterdir()}
    return {name: (one.st_ino, one.st_mode, one.st_size, one.st_mtime_ns) for name, one in found.items()}


def test_a_backup_without_a_journal_is_none_of_ours_and_stays(settings: Path) -> None:
    settings.with_name("settings.json.remoteclaw-backup").write_text('{"theirs": 1}')
    before = snapshot(settings.parent)
    assert "in the way" in refused(settings)
    assert snapshot(settings.parent) == before


def write_journal(settings: Path, changes: dict[str, Any]) -> None:
    journal = {
        "existed": True,
        "created_folder": False,
        "litter": [],
        "format": "json",
        "key": "mcpServers",
        "merged_sha256": "0",
        "entries": {"dead": {"command": "d"}},
        "inserted": "",
        **changes,
    }
    whole = {name: value for name, value in journal.items() if value is not ...}
    settings.with_name("settings.json.remoteclaw-journal").write_text(json.dumps(whole))


@pytest.mark.parametrize(
    "changes",
    [
        *({name: ...} for name in ("existed", "created_folder", "litter", "format", "key", "merged_sha256", "entries")),
        {"inserted": ...},
        {"format": "yaml"},
        {"format": []},
        {"entries": []},
        {"key": None},
        {"litter": 5},
        {"litter": [5]},
        {"litter": ["settings.json", "settings.json.remoteclaw-backup", "../precious"]},
        {"litter": ["settings.json", "settings.json.remoteclaw-backup", "/etc"]},
        {"litter": ["settings.json", "settings.json.remoteclaw-backup", ".."]},
        {"merged_sha256": 5},
        {"existed": "yes"},
    ],
)
def test_a_forged_or_partial_journal_is_an_error_that_names_it_and_nothing_is_touched(
    settings: Path, changes: dict[str, Any]
) -> None:
    write_journal(settings, changes)
    settings.with_name("settings.json.remoteclaw-backup").write_text("{}")
    before = snapshot(settings.parent)
    assert "damaged journal" in refused(settings)
    assert snapshot(settings.parent) == before


def test_a_journal_of_a_repositorys_making_deletes_nothing_outside_its_folder(settings: Path) -> None:
    precious = settings.parent.parent.parent / "precious"
    precious.mkdir()
    path_to_it = os.path.relpath(precious, settings.parent)
    write_journal(settings, {"created_folder": True, "litter": ["settings.json", path_to_it]})
    assert "damaged journal" in refused(settings)
    repair(str(settings), str(settings.parent.parent))
    assert precious.is_dir()


def test_a_config_nested_deeper_than_a_parser_goes_is_refused(settings: Path) -> None:
    settings.write_text('{"a":' * 100_000)
    assert "not valid JSON" in refused(settings)


STEPS = ("rename", "replace", "link", "unlink", "mkdir", "rmdir", "open", "chmod")


@pytest.mark.slow
@pytest.mark.parametrize("existed", [True, False])
def test_a_host_that_is_killed_at_any_step_of_a_loan_leaves_nothing_after_the_next(
    settings: Path, existed: bool
) -> None:
    project = settings.parent.parent
    if not existed:
        settings.unlink()
        settings.parent.rmdir()
    before = snapshot(project)
    step, killed = 0, True
    while killed:
        step += 1
        pid = os.fork()
        if pid == 0:
            die_at_step(step, settings)
        killed = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
        borrowed = project_loan(settings)
        borrowed.take(time.sleep)
        assert '"dead"' not in settings.read_text()
        borrowed.give_back()
        assert snapshot(project) == before, f"killed at step {step}"
    assert step > 10


def die_at_step(last: int, settings: Path) -> None:
    """In a forked copy: lend the file and take it back, but die before this step."""
    steps = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == last:
                os._exit(1)
            return real(*args, **options)

        return call

    try:
        for name in STEPS:
            setattr(os, name, counted(getattr(os, name)))
        borrowed = project_loan(settings, "dead")
        borrowed.take(time.sleep)
        borrowed.give_back()
        os._exit(0)
    finally:
        os._exit(2)


def test_the_mode_of_a_file_that_was_edited_during_the_loan_is_kept(settings: Path) -> None:
    settings.chmod(0o640)
    borrowed = loan(settings)
    borrowed.take(time.sleep)
    settings.write_text(settings.read_text().replace("dark", "light"))
    borrowed.give_back()
    assert stat.S_IMODE(settings.stat().st_mode) == 0o640
    assert settings.read_text() == ORIGINAL.replace("dark", "light")


def test_an_edit_during_the_loan_is_kept(settings: Path) -> None:
    borrowed = loan(settings)
    borrowed.take(time.sleep)
    settings.write_text(settings.read_text().replace("dark", "light"))
    borrowed.give_back()
    assert settings.read_text() == ORIGINAL.replace("dark", "light")


def test_a_file_that_became_unreadable_json_during_the_loan_is_left_to_its_editor(settings: Path) -> None:
    borrowed = loan(settings)
    borrowed.take(time.sleep)
    settings.write_text("half an edi")
    borrowed.give_back()
    assert settings.read_text() == "half an edi"


def test_each_of_many_threads_sees_its_own_server_under_the_same_name(settings: Path) -> None:
    before = settings.read_bytes()
    seen: dict[int, str] = {}

    def work(number: int) -> None:
        borrowed = loan(settings, command=f"server-{number}")
        borrowed.take(time.sleep)
        try:
            text = settings.read_text().partition("\n")[2]
            seen[number] = json.loads(text)["mcpServers"]["ours"]["command"]
        finally:
            borrowed.give_back()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {number: f"server-{number}" for number in range(16)}
    assert settings.read_bytes() == before


HOLDER = """
import sys, time
from remoteclaw_sync.config_files.borrowed import BorrowedConfig, ConfigFile
borrowed = BorrowedConfig(ConfigFile(sys.argv[1], "json", "mcpServers", {"dead": {"command": "d"}}))
borrowed.take(time.sleep)
print("taken", flush=True)
sys.stdin.readline()
borrowed.give_back()
print("given back", flush=True)
"""


def start_holder(path: Path) -> subprocess.Popen[str]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "taken\n"
    return holder


def test_a_second_process_waits_for_the_first(settings: Path) -> None:
    with start_holder(settings) as holder:
        assert holder.stdin is not None
        waited = threading.Event()

        def let_go_while_we_wait(seconds: float) -> None:
            if not waited.is_set():
                waited.set()
                holder.stdin.write("\n")  # type: ignore[union-attr]
                holder.stdin.flush()  # type: ignore[union-attr]
            time.sleep(seconds)

        borrowed = loan(settings)
        borrowed.take(let_go_while_we_wait)
        merged = settings.read_text()
        borrowed.give_back()
    assert waited.is_set()
    assert '"dead"' not in merged
    assert settings.read_text() == ORIGINAL


@pytest.mark.parametrize("existed", [True, False])
def test_the_next_run_repairs_what_a_killed_host_left(settings: Path, existed: bool) -> None:
    project = settings.parent.parent
    if not existed:
        settings.unlink()
        settings.parent.rmdir()
    before = snapshot(project)
    with start_holder(settings) as holder:
        holder.kill()
    assert '"dead"' in settings.read_text()
    borrowed = loan(settings)
    borrowed.take(time.sleep)
    assert '"dead"' not in settings.read_text()
    borrowed.give_back()
    assert snapshot(project) == before


def test_waiting_for_the_file_can_be_given_up(settings: Path) -> None:
    class GiveUp(Exception):
        pass

    def give_up(seconds: float) -> None:
        raise GiveUp

    first, second = loan(settings), loan(settings)
    first.take(time.sleep)
    with pytest.raises(GiveUp):
        second.take(give_up)
    second.give_back()
    first.give_back()
    assert settings.read_text() == ORIGINAL


def test_a_forked_copy_of_the_host_does_not_restore(settings: Path) -> None:
    borrowed = loan(settings)
    borrowed.take(time.sleep)
    pid = os.fork()
    if pid == 0:
        borrowed.give_back()
        os._exit(0)
    os.waitpid(pid, 0)
    during = settings.read_text()
    borrowed.give_back()
    assert '"ours"' in during
    assert settings.read_text() == ORIGINAL


def damage_nothing(path: Path) -> None:
    path.write_text("{ not json")


def make_read_only(path: Path) -> None:
    path.chmod(0o444)


def make_unreadable(path: Path) -> None:
    path.chmod(0o000)


def make_enormous(path: Path) -> None:
    with path.open("ab") as file:
        file.truncate(11 * 1024 * 1024)


def make_dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere.json")


def make_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (damage_nothing, "not valid JSON"),
        (make_read_only, "read-only"),
        (make_unreadable, "not readable"),
        (make_enormous, "larger than"),
        (make_dangling, "does not exist"),
        (make_a_folder, "not a regular file"),
        (make_a_fifo, "not a regular file"),
    ],
)
def test_a_config_we_must_not_touch_is_refused_and_stays_as_it_is(
    settings: Path, damage: Callable[[Path], None], words: str
) -> None:
    damage(settings)
    before = {path.name: path.lstat() for path in settings.parent.iterdir()}
    assert words in refused(settings)
    assert {path.name: path.lstat() for path in settings.parent.iterdir()} == before


def test_a_missing_parent_folder_is_an_error_not_a_crash(tmp_path: Path) -> None:
    assert "cannot be used" in refused(tmp_path / "no" / "such" / "settings.json")
