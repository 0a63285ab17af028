"""The leak check that every test relies on: what it finds, and whose leaks it counts."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import TEST_VARIABLE, LeakLook
from tests.fakes import Gate, alive, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who belongs to a test")


@pytest.fixture
def gates(gate: Callable[[], Gate]) -> tuple[Gate, Gate]:
    """Opened before the check, so that their descriptors do not count as leaks."""
    return gate(), gate()


@pytest.fixture
def look(gates: tuple[Gate, Gate]) -> LeakLook:
    return LeakLook(os.environ[TEST_VARIABLE])


@contextmanager
def orphan(gates: tuple[Gate, Gate], **variables: str) -> Iterator[int]:
    """A process in its own session whose parent has exited; yields its pid."""
    there, leave = gates
    script = f"setsid sh -c 'echo $$ >{there.path}; read -r line <{leave.path}' >/dev/null 2>&1 &"
    subprocess.run(["sh", "-c", script], env={**os.environ, **variables}, check=True)
    pid = there.wait()
    try:
        yield pid
    finally:
        Path(leave.path).write_text("\n")
        assert wait_until(lambda: not alive(pid))  # It may not have opened its side yet.


def test_a_descriptor_that_stays_open_is_found(look: LeakLook) -> None:
    with open("/dev/null") as file:
        assert look.leaks(patience=0) == {f"descriptor {file.fileno()} (/dev/null)"}
    assert look.leaks() == set()


def test_a_thread_that_goes_on_is_found(look: LeakLook) -> None:
    leave = threading.Event()
    thread = threading.Thread(target=leave.wait, name="stays")
    thread.start()
    assert look.leaks(patience=0) == {f"thread stays ({thread.ident})"}
    leave.set()
    thread.join()
    assert look.leaks() == set()


def test_a_child_that_nobody_has_waited_for_is_found(look: LeakLook) -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert look.leaks(patience=0) == {f"process {pid} (true)"}
    os.waitpid(pid, 0)
    assert look.leaks() == set()


def test_a_process_that_has_left_its_session_and_lost_its_parent_is_found(
    look: LeakLook, gates: tuple[Gate, Gate]
) -> None:
    with orphan(gates) as pid:
        assert look.leaks(patience=0) == {f"process {pid} (sh)"}
    assert look.leaks() == set()


def test_a_process_of_another_copy_of_the_tests_is_not_ours(look: LeakLook, gates: tuple[Gate, Gate]) -> None:
    with orphan(gates, **{TEST_VARIABLE: "another"}):
        assert look.leaks(patience=0) == set()
