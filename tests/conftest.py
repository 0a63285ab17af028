"""Fixtures for all tests: whatever a test leaks fails it."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.fakes")

from tests.fakes import Container, Gate, wait_until  # noqa: E402 - its asserts are rewritten only if that was asked for before

TEST_VARIABLE = "REMOTECLAW_SYNC_TEST_ID"  # Inherited by whatever a test starts, so that it can be found.
VOLATILE_VARIABLES = {"PYTEST_CURRENT_TEST", TEST_VARIABLE, "TMPDIR"}
LEAK_PATIENCE = 8.0  # Seconds for what ends by itself: a polling thread a second, a guard process two.
HAS_PROC = os.path.exists("/proc/self/environ")


@pytest.fixture(autouse=True)
def nothing_leaks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fails a test that leaves a thread, a process, a zombie, a file descriptor, a temporary file or a variable.

    Set up before and torn down after all other fixtures of a test, so those may start what they end.
    """
    # Real CLIs leave caches in the temporary folder; their bench gives them one of its own.
    in_own_tmp = "real_clis" not in request.path.parts
    tmp = tmp_path_factory.mktemp("tmp")
    identity = uuid.uuid4().hex
    env_before = _environment()
    borrowed = {name: os.environ.get(name) for name in ("TMPDIR", TEST_VARIABLE)}
    tempdir_before = tempfile.tempdir
    os.environ[TEST_VARIABLE] = identity
    if in_own_tmp:
        os.environ["TMPDIR"] = tempfile.tempdir = str(tmp)
    before = _resources(identity)
    try:
        yield
        leaks = _leaks(before, identity)
        left = sorted(path.name for path in tmp.rglob("*"))
        env_after = _environment()
    finally:
        tempfile.tempdir = tempdir_before
        for name, value in borrowed.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
    assert not leaks, f"left behind: {leaks}"
    assert not left, f"temporary files left behind: {left}"
    assert env_after == env_before, "environment variables changed"


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Callable[[], Gate]]:
    """Makes gates that are closed after the test."""
    gates: list[Gate] = []

    def make() -> Gate:
        gates.append(Gate(tmp_path / f"gate{len(gates)}"))
        return gates[-1]

    yield make
    for one in gates:
        one.close()


@pytest.fixture
def container() -> Iterator[Container]:
    """For tests of what looks at, or ends, any process of this user."""
    try:
        made = Container()
    except OSError as error:
        pytest.skip(f"namespace: none for processes can be made here: {error}")
    with made:
        yield made


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in VOLATILE_VARIABLES}


def _leaks(before: set[str], identity: str) -> set[str]:
    if _resources(identity) <= before:
        return set()
    gc.collect()
    wait_until(lambda: not _resources(identity) - before, LEAK_PATIENCE)
    return _resources(identity) - before


def _resources(identity: str) -> set[str]:
    """All that must not outlive a test, each described in words."""
    threads = {f"thread {thread.name} ({thread.ident})" for thread in threading.enumerate()}
    if not HAS_PROC:
        return threads
    return threads | _descriptors() | _processes(identity)


def _descriptors() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"descriptor {name} ({os.readlink(f'/proc/self/fd/{name}')})")
        except OSError:
            pass  # The one of listdir() itself.
    return found


def _processes(identity: str) -> set[str]:
    """Children of this process, dead or alive, and whatever a test or its children started."""
    found = set()
    needle = f"{TEST_VARIABLE}={identity}".encode()
    me = os.getpid()
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            parent = stat.rpartition(")")[2].split()[1]
            if int(parent) == me or (pid != me and needle in Path(f"/proc/{pid}/environ").read_bytes()):
                found.add(f"process {pid} {stat[stat.index('(') : stat.rindex(')') + 1]}")
        except (OSError, ValueError):
            pass  # Gone meanwhile, or another user's.
    return found
