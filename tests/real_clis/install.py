"""Install the real CLIs into a cache outside the tree: `python -m tests.real_clis.install`.

The cache folder is named after the wanted versions, so another package.json (or `--latest`) is installed next to the
pinned set and never replaces it.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.real_clis.namespace import loopback_namespace

PINNED_PACKAGE_JSON = Path(__file__).with_name("package.json")
# A separate set, because both OpenCodes call their program `opencode`.
OPENCODE_2_PACKAGE_JSON = Path(__file__).with_name("package_opencode2.json")
ACP_PACKAGE_JSON = Path(__file__).with_name("package_acp.json")
CACHE_VARIABLE = "REMOTECLAW_SYNC_CLI_CACHE"

PACKAGE_OF_CLI: dict[str, str] = {
    "claude": "@anthropic-ai/claude-code",
    "gemini": "@google/gemini-cli",
    "codex": "@openai/codex",
    "opencode": "opencode-ai",
}
OPENCODE_2 = "@opencode/cli"
PROGRAMS = {
    **{package: cli for cli, package in PACKAGE_OF_CLI.items()},
    OPENCODE_2: "opencode",
    "@aaif/goose": "goose",
    "@qwen-code/qwen-code": "qwen",
    "@agentclientprotocol/claude-agent-acp": "claude-agent-acp",
    "@agentclientprotocol/codex-acp": "codex-acp",
}
# Adapters that start a conversation at `--version`, or report the version of something else.
SILENT = {"claude-agent-acp", "codex-acp", "goose"}

VIBE = "mistral-vibe==3.0.2"  # From PyPI.

# The packages are about 1.1 GB unpacked; a slow mirror is not an error.
NPM_TIMEOUT_SECONDS = 1200.0
# The first start of a 200 MB binary from a cold disk has taken 10 s.
SCRIPT_TIMEOUT_SECONDS = 120.0
PARTIAL_PREFIX = ".installing-"


class InstallError(RuntimeError):
    """The CLIs could not be installed, or do not run. The message says which and why."""


def cache_root() -> Path:
    """The folder that holds all installed sets of CLIs."""
    override = os.environ.get(CACHE_VARIABLE)
    if override:
        return Path(override).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "remoteclaw-sync", "real-clis").absolute()


def wanted_versions(package_json: Path = PINNED_PACKAGE_JSON) -> dict[str, str]:
    """The npm packages and versions that a package.json asks for."""
    versions = json.loads(package_json.read_text())["dependencies"]
    return dict(sorted(versions.items()))


def install_folder(versions: Mapping[str, str]) -> Path:
    """Where this set of versions is, or will be, installed."""
    digest = hashlib.sha256(json.dumps(versions, sort_keys=True).encode()).hexdigest()
    return cache_root() / digest[:16]


def bin_folder(versions: Mapping[str, str] | None = None) -> Path:
    """The folder with the four executables, whether or not they are installed yet."""
    return install_folder(versions or wanted_versions()) / "node_modules" / ".bin"


def install(versions: Mapping[str, str] | None = None) -> Path:
    """Install a set of versions unless it is already there; return the bin folder.

    Blocks while another process installs. The set gets its final name only after all its CLIs have answered
    `--version`. Raises InstallError.
    """
    versions = versions or wanted_versions()
    folder = install_folder(versions)
    with _only_installer(folder.parent):
        if not folder.exists():
            _install_into(folder, versions)
    return bin_folder(versions)


def vibe_bin_folder() -> Path:
    """The folder with vibe-acp, whether or not it is installed yet."""
    return cache_root() / VIBE.replace("==", "-") / "bin"


def install_vibe(python: str) -> Path:
    """Install mistral-vibe with this Python unless it is already there; return the bin folder."""
    folder = vibe_bin_folder().parent
    # The programs contain the path of their folder, so the folder cannot be renamed once it is complete.
    complete = folder / "complete"
    with _only_installer(folder.parent):
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            pip = [str(folder / "bin" / "python"), "-m", "pip"]
            for command in ([python, "-m", "venv", str(folder)], [*pip, "install", "-q", VIBE]):
                if subprocess.run(command, stdin=subprocess.DEVNULL, timeout=NPM_TIMEOUT_SECONDS).returncode != 0:
                    raise InstallError(f"{VIBE} cannot be installed with {python}")
            complete.touch()
    return folder / "bin"


def latest_versions() -> dict[str, str]:
    """The newest published version of each CLI, for a drift check."""
    return {package: _newest_version(package) for package in sorted(PACKAGE_OF_CLI.values())}


def main(arguments: list[str] | None = None) -> int:
    """Command line: installs, prints the bin folder on stdout."""
    parser = argparse.ArgumentParser(prog="python -m tests.real_clis.install", description=__doc__)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--latest", action="store_true", help="the newest published versions")
    choice.add_argument("--package-json", type=Path, default=PINNED_PACKAGE_JSON)
    choice.add_argument("--opencode2", action="store_true", help="OpenCode 2, for test_opencode2.py")
    choice.add_argument("--acp", action="store_true", help="agents that speak ACP, for test_acp_agents.py")
    choice.add_argument("--vibe", metavar="PYTHON", help="mistral-vibe, with this Python (3.12 or newer)")
    options = parser.parse_args(arguments)
    wanted = OPENCODE_2_PACKAGE_JSON if options.opencode2 else options.package_json
    wanted = ACP_PACKAGE_JSON if options.acp else wanted
    try:
        if options.vibe:
            print(install_vibe(options.vibe))
            return 0
        versions = latest_versions() if options.latest else wanted_versions(wanted)
        print(install(versions))
    except (InstallError, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


@contextlib.contextmanager
def _only_installer(root: Path) -> Iterator[None]:
    root.mkdir(parents=True, exist_ok=True)
    with open(root / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Whoever holds the lock is the only installer, so an unfinished installation here is dead.
        for leftover in root.glob(PARTIAL_PREFIX + "*"):
            shutil.rmtree(leftover, ignore_errors=True)
        yield


def _install_into(folder: Path, versions: Mapping[str, str]) -> None:
    partial = Path(tempfile.mkdtemp(prefix=PARTIAL_PREFIX, dir=folder.parent))
    try:
        manifest = {"private": True, "dependencies": dict(versions)}
        (partial / "package.json").write_text(json.dumps(manifest, indent=2) + "\n")
        # Without scripts: opencode's postinstall starts the CLI itself, which must not happen outside the namespace.
        # And always an exact version: for a range or a tag npm silently takes the newest version that supports this
        # Node, which on Node 20 is a Claude Code that is months old.
        _npm("install", "--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund", cwd=partial)
        _finish_offline(partial, versions)
        partial.chmod(0o755)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _finish_offline(folder: Path, versions: Mapping[str, str]) -> None:
    """Run the CLIs' own postinstall scripts and `--version`, offline, in a temporary HOME."""
    with loopback_namespace(), tempfile.TemporaryDirectory(prefix="cli-install-") as home:
        for package in versions:
            _run_postinstall(folder / "node_modules" / package, home)
        for package, version in versions.items():
            _check_package(folder / "node_modules" / package, version)
            if PROGRAMS[package] not in SILENT:
                _check_version(folder / "node_modules" / ".bin" / PROGRAMS[package], version, home)


def _run_postinstall(package_folder: Path, home: str) -> None:
    manifest = json.loads((package_folder / "package.json").read_text())
    script = manifest.get("scripts", {}).get("postinstall")
    if script:
        _run_offline(["/bin/sh", "-c", script], home, cwd=package_folder)


def _check_package(package_folder: Path, version: str) -> None:
    got = json.loads((package_folder / "package.json").read_text())["version"]
    if got != version:
        raise InstallError(f"npm installed {package_folder.name} {got} instead of {version}")


def _check_version(executable: Path, version: str, home: str) -> None:
    printed = _run_offline([str(executable), "--version"], home, cwd=Path(home))
    if not says_version(printed, version):
        raise InstallError(f"{executable.name} --version printed {printed!r}, expected {version}")


def says_version(printed: str, version: str) -> bool:
    """Whether a CLI printed exactly this version, not one whose number only begins with it."""
    return re.search(rf"(?<![\w.]){re.escape(version)}(?![\w.+-])", printed.replace("v", " ")) is not None


def _run_offline(command: list[str], home: str, cwd: Path) -> str:
    environment = {"PATH": search_path(), "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8", "TERM": "dumb"}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SCRIPT_TIMEOUT_SECONDS,
    )
    if done.returncode != 0:
        raise InstallError(f"{' '.join(command)} exited with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def search_path(*first: Path) -> str:
    """A PATH of the given folders, the folder of node, and the system's folders."""
    folders = [str(folder) for folder in first]
    node = shutil.which("node")
    if node:
        folders.append(os.path.dirname(node))
    folders += ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"]
    return os.pathsep.join(dict.fromkeys(folders))


def _newest_version(package: str) -> str:
    with tempfile.TemporaryDirectory() as neutral:
        return _npm("view", package, "version", cwd=Path(neutral)).strip()


def _npm(*arguments: str, cwd: Path) -> str:
    npm = shutil.which("npm")
    if npm is None:
        raise InstallError("npm is not on PATH")
    done = subprocess.run(
        [npm, *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=NPM_TIMEOUT_SECONDS,
    )
    if done.returncode != 0:
        raise InstallError(f"npm {' '.join(arguments)} exited with {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    raise SystemExit(main())
