"""Sessions that are moved: what a capsule is, and what is refused."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import ClaudeCliRuntime, SessionBusyError, SessionTransferError, UnsupportedOperationError
from remoteclaw_sync.demo.runtime import DemoRuntime
from remoteclaw_sync.engine.one_writer import hold
from remoteclaw_sync.portable.capsule import Capsule
from tests.portable.sessions import ID, KEPT_IN_FILES, Machine

Machines = Callable[[str], tuple[Machine, Machine]]


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return lambda provider: (Machine(tmp_path / "one", provider), Machine(tmp_path / "two", provider))


def packed(files: dict[str, bytes], **changes: Any) -> bytes:
    """A capsule as somebody may have made it without our code; its digests are correct."""
    listed = [{"name": name, "size": len(data), "sha256": _digest(data)} for name, data in files.items()]
    header = {"provider": "claude", "session_id": ID, "cli_version": None, "files": listed, **changes}
    body = zlib.compress(json.dumps(header).encode() + b"\n" + b"".join(files.values()))
    return b"remoteclaw-session 1 " + _digest(body).encode() + b"\n" + body


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def refused(machine: Machine, data: bytes) -> str:
    with pytest.raises(SessionTransferError) as caught:
        machine.take(data)
    return caught.value.reason


@pytest.mark.parametrize("provider", KEPT_IN_FILES)
def test_a_session_goes_to_another_machine_and_folder_and_back_with_what_was_said_since(
    provider: str, machines: Machines
) -> None:
    one, two = machines(provider)
    one.say("first")
    assert two.take(one.export()) == ID
    two.say("second")
    assert one.take(two.export()) == ID
    assert one.words() == two.words() == ["first", "second"]
    assert str(two.log).startswith(str(two.home))
    assert (two.log.stat().st_mode & 0o777) == 0o600


@pytest.mark.parametrize("provider", KEPT_IN_FILES)
def test_what_was_said_here_since_is_not_overwritten_unless_the_caller_wants_it(
    provider: str, machines: Machines
) -> None:
    one, two = machines(provider)
    one.say("first")
    data = one.export()
    one.say("second")
    assert refused(one, data) == "local_newer"
    two.take(data)
    two.say("other")
    assert refused(one, two.export()) == "diverged"
    assert one.words() == ["first", "second"]
    one.take(two.export(), replace=True)
    assert one.words() == ["first", "other"]


@pytest.mark.parametrize("provider", ["claude", "gemini"])
def test_what_a_cli_writes_at_its_exit_is_not_something_that_was_said(provider: str, machines: Machines) -> None:
    """A process of Claude 2.1.326 that stays does its bookkeeping when it ends, after the last turn was exported."""
    one, two = machines(provider)
    one.say("first")
    two.take(one.export())
    with one.log.open("a", encoding="utf-8") as file:
        file.write('{"type": "cost-state", "$set": {}}\n')
    two.say("second")
    one.take(two.export())
    assert one.words() == ["first", "second"]


@pytest.mark.parametrize("provider", KEPT_IN_FILES)
def test_a_session_that_the_cli_does_not_have_is_not_found(provider: str, machines: Machines) -> None:
    one, _ = machines(provider)
    for session_id in (ID, "../../etc/passwd", "*"):
        with pytest.raises(SessionTransferError, match="no session") as caught:
            one.runtime.export_session(session_id, working_directory=one.cwd, env=one.env)
        assert caught.value.reason == "not_found"


@pytest.mark.parametrize("provider", KEPT_IN_FILES)
def test_a_session_that_somebody_writes_to_is_busy(provider: str, machines: Machines) -> None:
    one, _ = machines(provider)
    one.say("first")
    data = one.export()
    store = one.runtime.session_store(one.runtime.checked("x", {"env": one.env}))
    assert store is not None
    held = hold(store, ID)
    assert held is not None
    try:
        for attempt in (one.export, lambda: one.take(data)):
            with pytest.raises(SessionBusyError, match="in use"):
                attempt()
    finally:
        held.release()
    assert one.take(data) == ID


def test_the_records_of_sub_agents_and_long_outputs_go_with_a_claude_session(machines: Machines) -> None:
    one, two = machines("claude")
    one.say("first")
    beside = one.log.with_suffix("")
    for name in ("subagents/agent-1.jsonl", "subagents/agent-1.meta.json", "tool-results/b.txt"):
        path = beside / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name, encoding="utf-8")
    (beside / "subagents" / "link.jsonl").symlink_to("/etc/passwd")
    two.take(one.export())
    copied = two.log.with_suffix("")
    found = sorted(str(path.relative_to(copied)) for path in copied.rglob("*") if path.is_file())
    assert found == ["subagents/agent-1.jsonl", "subagents/agent-1.meta.json", "tool-results/b.txt"]
    assert (copied / "tool-results" / "b.txt").read_text(encoding="utf-8") == "tool-results/b.txt"


def test_damage_is_found_wherever_it_is(machines: Machines) -> None:
    one, two = machines("claude")
    one.say("first", "second")
    data = one.export()
    for place in range(0, len(data), 7):
        harmed = bytearray(data)
        harmed[place] ^= 1
        assert refused(two, bytes(harmed)) in ("damaged", "newer_format")
    for broken in (b"", data[:-1], data + b"x", b"{}", packed({})):
        assert refused(two, broken) == "damaged"
    assert not list(two.home.rglob("*"))


def test_a_capsule_of_a_newer_format_another_cli_or_a_newer_version_is_refused(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "claude")
    package = tmp_path / "claude-code"
    package.mkdir()
    (package / "package.json").write_text('{"name": "@anthropic-ai/claude-code", "version": "2.1.300"}')
    (package / "claude").write_text("#!/bin/sh\n")
    (package / "claude").chmod(0o755)
    machine.env["PATH"] = str(package)
    files = {"session.jsonl": b"{}\n"}
    assert refused(machine, packed(files).replace(b"session 1", b"session 2", 1)) == "newer_format"
    assert refused(machine, packed(files, provider="codex")) == "other_provider"
    with pytest.raises(SessionTransferError, match=r"claude 2\.1\.326, and 2\.1\.300 is installed here") as caught:
        machine.take(packed(files, cli_version="2.1.326"))
    assert caught.value.reason == "newer_cli"
    assert machine.take(packed(files, cli_version="2.1.300")) == ID


@pytest.mark.parametrize(
    "name",
    [
        "../x.jsonl",
        "/etc/cron.d/x",
        "subagents/../../../x",
        "subagents/./x",
        "subagents//x",
        ".bashrc",
        "a\\b",
        "x\0y",
        "settings.json",
        "subagents/.hidden",
        "",
    ],
)
def test_a_file_that_no_session_has_is_written_nowhere(name: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path, "claude")
    assert refused(machine, packed({"session.jsonl": b"{}\n", name: b"evil"})) == "unsafe"
    assert not list(machine.home.rglob("*"))


@pytest.mark.parametrize("session_id", ["../x", "a/b", "", "-x", "x" * 200, ".", 7])
def test_an_id_that_no_cli_gives_is_refused(session_id: object, tmp_path: Path) -> None:
    machine = Machine(tmp_path, "claude")
    assert refused(machine, packed({"session.jsonl": b"{}\n"}, session_id=session_id)) == "unsafe"


@pytest.mark.parametrize("at_folder", [False, True])
@pytest.mark.parametrize("provider", KEPT_IN_FILES)
def test_a_link_in_the_store_leads_nowhere(provider: str, at_folder: bool, machines: Machines, tmp_path: Path) -> None:
    one, two = machines(provider)
    one.say("first")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("mine", encoding="utf-8")
    two.say("x")
    two.log.unlink()
    if at_folder:
        two.log.parent.rmdir()
        two.log.parent.symlink_to(outside)
    else:
        two.log.symlink_to(outside / "victim")
    if provider == "gemini" and not at_folder:  # A Gemini session may have any name: it takes another one.
        two.take(one.export())
    else:
        assert refused(two, one.export()) == "unsafe"
    assert [(path.name, path.read_text(encoding="utf-8")) for path in outside.iterdir()] == [("victim", "mine")]


def test_a_session_that_is_too_large_is_refused_on_both_sides(machines: Machines) -> None:
    one, two = machines("claude")
    one.say("x" * 1000)
    with pytest.raises(SessionTransferError, match="too large"):
        one.runtime.export_session(ID, working_directory=one.cwd, env=one.env, max_bytes=500)
    bomb = Capsule(provider="claude", session_id=ID, cli_version=None, files={"session.jsonl": bytes(1 << 24)}).pack()
    assert len(bomb) < 100_000
    with pytest.raises(SessionTransferError, match="too large"):
        two.runtime.import_session(bomb, working_directory=two.cwd, env=two.env, max_bytes=1 << 20)


def test_a_runtime_whose_sessions_cannot_be_moved_says_so() -> None:
    with pytest.raises(UnsupportedOperationError, match="cannot be moved"):
        DemoRuntime().export_session(ID)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(TypeError, match="data must be bytes"):
        ClaudeCliRuntime().import_session("x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_bytes"):
        ClaudeCliRuntime().export_session(ID, max_bytes=0)
