"""The place where a real-CLI test runs: no network, no user, no key, a scripted model."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.real_clis.clis import ALL_CLIS, Claude, Codex, Gemini, OpenCode, RealCli
from tests.real_clis.install import bin_folder, search_path
from tests.real_clis.model_server import ModelServer, refused_url
from tests.real_clis.namespace import loopback_namespace, require_loopback_only, unavailable_reason

# The bin folder that `python -m tests.real_clis.install --latest` printed, to test other versions.
BIN_VARIABLE = "REMOTECLAW_SYNC_CLI_BIN"
REQUIRE_VARIABLE = "REMOTECLAW_SYNC_REQUIRE_REAL_CLIS"

MCP_SERVER = Path(__file__).with_name("mcp_server.py")

# A killed process needs a moment to vanish; a leaked one does not vanish.
LEFTOVER_GRACE_SECONDS = 2.0
LEFTOVER_POLL_SECONDS = 0.05
RUN_TIMEOUT_SECONDS = 90.0


class LeftoverProcesses(AssertionError):
    """A test ended while processes it had started were still alive. The message names them."""


@dataclass(frozen=True)
class RawRun:
    """What one raw run of a CLI printed, without our library in between."""

    argv: list[str]
    returncode: int
    stdout: bytes
    stderr: bytes

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The NDJSON lines of stdout."""
        return [json.loads(line) for line in self.stdout.split(b"\n") if line.strip()]


class Bench:
    """A fresh HOME and workdir, the model server, and the four CLIs configured for it.

    For use inside `open_bench` only: `run` refuses to start a CLI where it could reach a network.
    """

    def __init__(self, root: Path, bin_dir: Path, server: ModelServer) -> None:
        self.root = root
        self.home = root / "home"
        self.workdir = root / "work"
        self.tmp = root / "tmp"
        self.bin_dir = bin_dir
        self.server = server
        self.clis: dict[str, RealCli] = dict(ALL_CLIS)
        self.claude = Claude()
        self.gemini = Gemini()
        self.codex = Codex()
        self.opencode = OpenCode()
        self.env: dict[str, str] = {}
        self._exported = False
        for folder in (self.home, self.workdir, self.tmp):
            folder.mkdir(parents=True)
        self.point_at(server.url)

    def point_at(self, url: str) -> None:
        """Rewrite all four configurations for another address; changes `env` too."""
        self.env = {
            "PATH": search_path(self.bin_dir),
            "HOME": str(self.home),
            "TMPDIR": str(self.tmp),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
        }
        for cli in self.clis.values():
            self.env.update(cli.configure(self.home, url))
        if self._exported:
            _replace_environ(self.env)

    @contextlib.contextmanager
    def exported(self) -> Iterator[None]:
        """Make `env` the whole of os.environ for a while, because our library inherits os.environ."""
        before = dict(os.environ)
        self._exported = True
        _replace_environ(self.env)
        try:
            yield
        finally:
            self._exported = False
            _replace_environ(before)

    def mcp_command(self, *arguments: str) -> list[str]:
        """The command line of our stdio MCP server."""
        return [sys.executable, str(MCP_SERVER), *arguments]

    def run(
        self,
        cli: RealCli,
        prompt: str | bytes,
        *extra: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = RUN_TIMEOUT_SECONDS,
    ) -> RawRun:
        """Run a CLI to its end with the prompt on stdin; raises TimeoutExpired after killing it."""
        return self.run_argv(cli.argv(*extra), prompt, cwd=cwd, env=env, timeout=timeout)

    def run_argv(
        self,
        argv: list[str],
        prompt: str | bytes = b"",
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = RUN_TIMEOUT_SECONDS,
    ) -> RawRun:
        """Run one command line of a CLI to its end."""
        require_loopback_only()
        folder = cwd or self.workdir
        # OpenCode takes its folder from $PWD, not from the real working directory.
        environment = {**self.env, "PWD": str(folder), **(env or {})}
        executable = shutil.which(argv[0], path=environment["PATH"]) or argv[0]
        # Files, not pipes: three of the CLIs exit without flushing a full pipe.
        with tempfile.TemporaryFile(dir=self.tmp) as out, tempfile.TemporaryFile(dir=self.tmp) as err:
            child = subprocess.Popen(
                [executable, *argv[1:]],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )
            try:
                child.communicate(prompt.encode() if isinstance(prompt, str) else prompt, timeout)
            except BaseException:
                os.killpg(child.pid, signal.SIGKILL)
                child.communicate()
                raise
            return RawRun(argv, child.returncode, _whole(out), _whole(err))

    def processes(self) -> dict[int, str]:
        """Living processes that carry this test's HOME: pid to command line."""
        return processes_with_home(self.home)


@contextlib.contextmanager
def open_bench(root: Path, bin_dir: Path) -> Iterator[Bench]:
    """Enter the namespace, start the model server, scrub os.environ, and leave nothing behind.

    Raises LeftoverProcesses (after killing them) if processes with this HOME are alive at the end, and
    NamespaceUnavailable if no namespace can be created.
    """
    _refuse_git_repository(root)
    with loopback_namespace(), ModelServer() as server:
        bench = Bench(root, bin_dir, server)
        with bench.exported():
            try:
                yield bench
            finally:
                _end_leftovers(bench)


def missing_reason(bin_dir: Path) -> str | None:
    """Why real-CLI tests cannot run here, or None."""
    if shutil.which("node") is None:
        return "node is not on PATH"
    absent = [name for name in ALL_CLIS if not (bin_dir / name).exists()]
    if absent:
        return f"{', '.join(absent)} not installed: run python -m tests.real_clis.install"
    return unavailable_reason()


def wanted_bin_folder() -> Path:
    """The bin folder the tests use: the pinned versions, or the one the caller names."""
    chosen = os.environ.get(BIN_VARIABLE)
    return Path(chosen) if chosen else bin_folder()


def processes_with_home(home: Path) -> dict[int, str]:
    """Living processes that were started with this HOME: pid to command line."""
    marker = b"HOME=" + os.fsencode(home)
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # ended meanwhile, or not ours to read
            if marker in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = _command_line(entry)
    return found


def _whole(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _command_line(entry: Path) -> str:
    return (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()


def _end_leftovers(bench: Bench) -> None:
    deadline = time.monotonic() + LEFTOVER_GRACE_SECONDS
    while (left := bench.processes()) and time.monotonic() < deadline:
        time.sleep(LEFTOVER_POLL_SECONDS)
    if not left:
        return
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    names = "\n".join(f"  {pid}: {command:.300}" for pid, command in left.items())
    raise LeftoverProcesses(f"still alive at the end of the test (now killed):\n{names}")


def _replace_environ(wanted: Mapping[str, str]) -> None:
    # pytest sets and removes its own variables and fails if they are gone.
    kept = {name: value for name, value in os.environ.items() if name.startswith("PYTEST_")}
    os.environ.clear()
    os.environ.update({**wanted, **kept})


def _refuse_git_repository(root: Path) -> None:
    # A file (a worktree's) or a folder with a HEAD. The sandbox of a Codex next to us briefly creates an empty folder.
    marks = (".git/HEAD", ".git")
    inside = [folder for folder in (root, *root.parents) if any((folder / mark).is_file() for mark in marks)]
    if inside:
        raise RuntimeError(f"the bench must not lie inside a git repository: {inside[0]}")


__all__ = [
    "BIN_VARIABLE",
    "Bench",
    "LeftoverProcesses",
    "RawRun",
    "REQUIRE_VARIABLE",
    "missing_reason",
    "open_bench",
    "processes_with_home",
    "refused_url",
    "wanted_bin_folder",
]
