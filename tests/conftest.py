"""Fixtures for all tests: a test fails if it leaks anything."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.fakes")

from remoteclaw_sync import files  # noqa: E402
from remoteclaw_sync.engine import one_writer  # noqa: E402
from tests.fakes import Container, Gate, wait_until  # noqa: E402 - only after the line above are its asserts rewritten
from tests.redis_server import RedisServer, need_redis  # noqa: E402

TEST_VARIABLE = "REMOTECLAW_SYNC_TEST_ID"  # Inherited by everything a test starts, so that it can be found.
VOLATILE_VARIABLES = {"PYTEST_CURRENT_TEST", TEST_VARIABLE, "TMPDIR"}
LEAK_PATIENCE = 8.0  # Seconds for what ends by itself: a polling thread takes one, a guard process two.
LONG = ("slow", "real_cli")
TESTS = Path(__file__).resolve().parent
A_MOMENT = 0.1  # Seconds for a thread that is just ending; a garbage collection takes longer.
HAS_PROC = os.path.exists("/proc/self/environ")


def pytest_configure() -> None:
    """A shell script starts programs with `&` with SIGINT ignored, and the programs that the tests start would inherit
    that. But Ctrl-C is one of the things they test."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the whole suite, run only the quick tests, unless `-m` is given. A file that is named runs completely."""
    if config.option.markexpr or not _whole_suite_is_asked_for(config):
        return
    long = {item for item in items if any(item.get_closest_marker(name) for name in LONG)}
    config.hook.pytest_deselected(items=list(long))
    items[:] = [item for item in items if item not in long]


def pytest_collection_finish() -> None:
    """Keep each `gc.collect()` from looking through what pytest has collected: hundreds of thousands of objects."""
    gc.freeze()


def _whole_suite_is_asked_for(config: pytest.Config) -> bool:
    asked_for = (config.invocation_params.dir / argument.partition("::")[0] for argument in config.args)
    return any(TESTS.is_relative_to(path.resolve()) for path in asked_for)


@pytest.fixture(scope="session", autouse=True)
def bytecode(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """If no bytecode may be written beside the sources, each Python that a test starts would compile everything it
    imports again, which takes two thirds of its time. So they get a folder for it."""
    with pytest.MonkeyPatch.context() as patch:
        if sys.dont_write_bytecode:
            patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
            patch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("bytecode")))
        yield


@pytest.fixture(scope="session")
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by all tests, one after the other: each has to leave it empty."""
    return tmp_path_factory.mktemp("tmp")


@pytest.fixture(autouse=True)
def nothing_leaks(request: pytest.FixtureRequest, temporary_folder: Path) -> Iterator[None]:
    """Fails a test that leaves a thread, a process, a zombie, a file descriptor, a temporary file or a variable.

    It is set up before all other fixtures of a test and torn down after them, so they may start things that they end
    themselves.
    """
    if request.node.get_closest_marker("redis"):
        request.getfixturevalue("redis_url")  # Shared by all tests, so it is not a leak of this one.
    # Real CLIs leave caches in the temporary folder; their bench gives them their own.
    in_own_tmp = "real_clis" not in request.path.parts
    identity = uuid.uuid4().hex
    env_before = _environment()
    borrowed = {name: os.environ.get(name) for name in ("TMPDIR", TEST_VARIABLE)}
    tempdir_before = tempfile.tempdir
    os.environ[TEST_VARIABLE] = identity
    if in_own_tmp:
        os.environ["TMPDIR"] = tempfile.tempdir = str(temporary_folder)
    look = LeakLook(identity)
    try:
        yield
        leaks = look.leaks()
        files.remove_user_folder(one_writer.FOLDER)  # It stays until the process exits, but it must be empty.
        left = sorted(os.listdir(temporary_folder))
        env_after = _environment()
    finally:
        tempfile.tempdir = tempdir_before
        for name, value in borrowed.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
    if left:
        shutil.rmtree(temporary_folder)
        temporary_folder.mkdir()
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
    """For tests of code that looks at, or ends, any process of this user."""
    try:
        made = Container()
    except OSError as error:
        pytest.skip(f"namespace: none for processes can be made here: {error}")
    with made:
        yield made


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The URL of a server that all tests share, each with its own prefix."""
    server = RedisServer(need_redis())
    yield server.url
    server.close()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in VOLATILE_VARIABLES}


class LeakLook:
    """A snapshot from before a test, to compare with what there is after it.

    Only processes that are new on the machine are looked at, and only children of this process and those whose
    environment has the test's variable are counted.
    """

    def __init__(self, identity: str) -> None:
        self._needle = f"{TEST_VARIABLE}={identity}".encode()
        self._numbers_before = _numbers()
        self._before = _threads() | _descriptors()

    def leaks(self, patience: float = LEAK_PATIENCE) -> set[str]:
        """Everything that must not outlive a test, described in words, after waiting for what ends by itself."""
        if wait_until(lambda: not self._found(), A_MOMENT):
            return set()
        gc.collect()
        wait_until(lambda: not self._found(), patience)
        return self._found()

    def _found(self) -> set[str]:
        return (_threads() | _descriptors()) - self._before | self._processes()

    def _processes(self) -> set[str]:
        """Children of this process, dead or alive, and everything a test or its children started."""
        return {
            description
            for number in _numbers() - self._numbers_before
            if (description := self._describe(number)) is not None
        }

    def _describe(self, number: str) -> str | None:
        """None for a process that is not the test's."""
        try:
            stat = Path(f"/proc/{number}/stat").read_text(errors="replace")
            is_child = int(stat.rpartition(")")[2].split()[1]) == os.getpid()
            if not is_child and self._needle not in Path(f"/proc/{number}/environ").read_bytes():
                return None
        except (OSError, ValueError):
            return None  # It has ended, or belongs to another user.
        return f"process {number} {stat[stat.index('(') : stat.rindex(')') + 1]}"


def _threads() -> set[str]:
    return {f"thread {thread.name} ({thread.ident})" for thread in threading.enumerate()}


def _descriptors() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd") if HAS_PROC else ():
        try:
            found.add(f"descriptor {name} ({os.readlink(f'/proc/self/fd/{name}')})")
        except OSError:
            pass  # The descriptor of listdir() itself.
    return found


def _numbers() -> set[str]:
    """The ids of all processes on this machine."""
    return {name for name in os.listdir("/proc") if name.isdigit()} if HAS_PROC else set()
