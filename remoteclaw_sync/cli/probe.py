"""What can be learned about an installed CLI without asking a model: its version, its login, the folders it trusts."""

from __future__ import annotations

import os
from collections.abc import Mapping

import attrs

from ..clis.facts import CliFacts, Environment, Support
from ..clis.registry import all_facts, facts_of
from ..config_files.borrowed import checkout_of
from ..engine.startup import missing_program
from ..process.child import ChildProcess
from ..process.host import host_identity
from ..process.launch import Launch, Limits
from ..process.program import defect_of, programs_on_path
from ..runtime import MARKER_PREFIX
from ..versions import VERSION, Standing, found_elsewhere, installation, standing, support_of
from .terminal_text import one_line

PROBE_SECONDS = 15.0  # Some CLIs take 2 to 5 s.
MAX_ANSWER = 64 * 1024
QUOTED_WORDS = 500  # Characters to quote of output that has no version.


@attrs.frozen(kw_only=True)
class Program:
    """One file with the name of a CLI."""

    path: str
    version: str | None = None
    package: str | None = None
    problem: str | None = None
    skipped: bool = False  # A run skips it and starts the next one on PATH.


@attrs.frozen(kw_only=True)
class Installed:
    """One CLI as found here: `path` is the first on PATH, `others` come after it."""

    provider: str
    path: str | None = None
    version: str | None = None
    package: str | None = None
    login: str | None = None
    problem: str | None = None
    others: tuple[Program, ...] = ()
    elsewhere: tuple[Program, ...] = ()  # Not on PATH. Searched only if nothing on PATH can run.
    started: str | None = None  # The program that a run starts.

    @property
    def can_run(self) -> bool:
        """Whether runs would start a program that works."""
        if self.started is None:
            return False
        if self.started == self.path:
            return self.problem is None
        return any(other.path == self.started and other.problem is None for other in self.others)

    @property
    def standing(self) -> Standing:
        """How its version compares with the tested ones."""
        return standing(facts_of(self.provider), self.version)

    @property
    def support(self) -> Support:
        """What works in the range of versions that this one belongs to."""
        return support_of(facts_of(self.provider), self.version)

    @property
    def tested(self) -> bool:
        """Whether this is the version that the package was tested with."""
        return self.standing is Standing.TESTED


def probe(cli: CliFacts) -> Installed:
    """Examine one CLI. It is started (with --version) only if its files do not show the version."""
    search_path = os.environ.get("PATH", os.defpath)
    programs = [_look_at(cli, path, search_path) for path in programs_on_path(cli.name, search_path)]
    started = next((program for program in programs if not program.skipped), None)
    elsewhere: list[Program] = []
    if started is None or started.problem is not None:
        known = {os.path.realpath(program.path) for program in programs}
        places = found_elsewhere(cli.name, os.environ, cli.program_folders)
        elsewhere = [_look_at(cli, path, search_path) for path in places if os.path.realpath(path) not in known]
    if not programs:
        return Installed(provider=cli.name, elsewhere=tuple(elsewhere))
    first, *others = programs
    return Installed(
        provider=cli.name,
        path=first.path,
        version=first.version,
        package=first.package,
        login=login_of(cli, os.environ),
        problem=first.problem,
        others=tuple(others),
        elsewhere=tuple(elsewhere),
        started=started.path if started else None,
    )


def _look_at(cli: CliFacts, path: str, search_path: str) -> Program:
    defect = defect_of(path, search_path)
    installed = installation(cli, path)
    version, package = (installed.version, installed.package) if installed else (None, None)
    problem = None if defect is None else f"{path} {defect.message}"
    if version is None and defect is None:
        version, problem = ask_version(path, cli.version_env)
    if problem is None and standing(cli, version) is Standing.TOO_OLD:
        problem = too_old(support_of(cli, version))
    return Program(
        path=path,
        version=version,
        package=package,
        problem=problem,
        skipped=defect is not None and defect.skipped,
    )


def too_old(support: Support) -> str:
    """The message for a version that cannot be used."""
    return f"too old, needs >= {support.floor}"


def ask_version(path: str, env: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The version that `--version` prints, or what is wrong."""
    marker = MARKER_PREFIX + os.urandom(8).hex()
    child = ChildProcess(
        Launch(
            argv=(path, "--version"),
            env={**os.environ, **env, "NO_COLOR": "1", marker: host_identity()},
            cwd="/",
            stdin=b"",
            marker=marker,
            limits=Limits(wall_clock=PROBE_SECONDS),
            linger=1.0,
            max_pending_bytes=MAX_ANSWER,
        )
    )
    child.start()
    try:
        answer = b""
        while (chunk := child.receive()) is not None:
            answer = (answer + chunk)[:MAX_ANSWER]
    finally:
        child.close()
    if child.failure is not None:
        return None, child.failure.message
    found = VERSION.search(answer.decode(errors="replace"))
    missing = missing_program(path, child.exit_code, child.diagnostics)
    if missing is not None:
        return None, missing.message
    if found is None or child.exit_code != 0:
        words = one_line(child.diagnostics)[:QUOTED_WORDS]
        said = f": {words}" if words else ""
        return None, f"`{path} --version` printed no version (exit code {child.exit_code}){said}"
    return found.group(), None


def login_of(cli: CliFacts, env: Environment) -> str | None:
    """Where a login or key seems to be; its value is not read. None if none was found."""
    for name in cli.key_variables:
        if env.get(name):
            return f"{name} is set"
    return next((path for path in cli.login_files(env) if _has_content(path)), None)


def _has_content(path: str) -> bool:
    try:
        return os.stat(path).st_size > len("{}\n")
    except OSError:
        return False


# --- the folder ----------------------------------------------------------------------------------------------


def is_in_git(folder: str) -> bool:
    """Whether the folder belongs to a git repository."""
    return checkout_of(folder) is not None


def trusted_by(folder: str) -> dict[str, bool]:
    """Whether this folder is on each CLI's trust list, for the CLIs that have one."""
    return {cli.name: cli.trusts(os.environ, folder) for cli in all_facts() if cli.trusts is not None}
