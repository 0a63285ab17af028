"""What can be seen from a program's file: whether this system can start it, and if not, what to do about it.

Only reads files. A program without a visible defect may still fail to start.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import stat
from typing import Any

import attrs

from .._json import read_object

HEAD_BYTES = 4_096
ELF = b"\x7fELF"
# ELF, Mach-O (both byte orders, 32 and 64 bit, fat), and PE, which WSL and wine start.
MAGIC = (
    ELF,
    b"\xfe\xed\xfa\xce",
    b"\xfe\xed\xfa\xcf",
    b"\xce\xfa\xed\xfe",
    b"\xcf\xfa\xed\xfe",
    b"\xca\xfe\xba\xbe",
    b"\xbe\xba\xfe\xca",
    b"MZ",
)
ELF_MACHINES = {3: "i686", 40: "armv7l", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
PRODUCTS = {"node": "Node.js", "bun": "Bun", "deno": "Deno"}  # Products whose program has another name.
# Found in the stub that an npm package has in place of its program until its install script has run.
INSTALL_SCRIPT = re.compile(r"[\w./@-]*\binstall\.(?:cjs|mjs|js)|[\w./@-]*\bpostinstall\.(?:cjs|mjs|js)")
NODE_SCRIPT = re.compile(r"\s*node\s+(?:\./)?([\w.-]+)\s*")
PACKAGE_PARENTS = 3  # Folders from a program up to its package.json.
IN_FIRST_LINE = "in its #! line, does not exist"


@attrs.frozen
class Defect:
    """Why a program cannot run: a phrase to put after its path, and whether `exec` then tries the next one on PATH."""

    message: str
    skipped: bool


def programs_on_path(command: str, search_path: str | None) -> list[str]:
    """All executable files of this name on PATH, each once, in the order they are tried."""
    if os.path.dirname(command):
        return [command] if shutil.which(command) else []
    found: dict[str, str] = {}
    for folder in (os.defpath if search_path is None else search_path).split(os.pathsep):
        path = shutil.which(command, path=folder or os.curdir)
        if path is not None:
            found.setdefault(os.path.realpath(path), path)
    return list(found.values())


def defect_of(path: str, search_path: str | None) -> Defect | None:
    """What is wrong with an existing program; None if its file shows nothing."""
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            return Defect("is not a file", skipped=True)
        if not os.access(path, os.X_OK):
            return Defect("is not executable", skipped=True)
        with open(path, "rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return None  # It may be a program that can be run but not read.
    if head.startswith(b"#!"):
        return _defect_of_script(head, search_path) or _defect_of_launcher(path)
    if not head.startswith(MAGIC):
        return Defect(_no_program(path, head), skipped=True)
    return _defect_of_machine(head)


def _defect_of_script(head: bytes, search_path: str | None) -> Defect | None:
    line = os.fsdecode(head[2:].partition(b"\n")[0]).strip(" \t")
    interpreter, _, arguments = line.partition(" ")
    if os.path.isabs(interpreter) and not os.path.exists(interpreter):
        return Defect(f"{needed(interpreter)}: {interpreter!r}, {IN_FIRST_LINE}", skipped=True)
    if os.path.basename(interpreter) != "env":
        return None
    name = _started_by_env(arguments)
    if name is None or shutil.which(name, path=search_path) is not None:
        return None
    return Defect(f"{needed(name)}: {name!r}, which its #! line asks for, is not on PATH", skipped=False)


def _started_by_env(arguments: str) -> str | None:
    """`node` in `-S NAME=value node --flag`."""
    words = arguments.strip(" \t").split(" ")
    for word in words:
        word = word.removeprefix("-S")
        if word and not word.startswith("-") and "=" not in word:
            return word
    return None


def _defect_of_launcher(path: str) -> Defect | None:
    """An npm script that starts a program from a separate package for each kind of machine (Codex)."""
    folder = os.path.dirname(os.path.realpath(path))
    for _ in range(PACKAGE_PARENTS):
        package = _package_in(folder)
        name, optional = package.get("name"), package.get("optionalDependencies")
        if isinstance(name, str) and isinstance(optional, dict):
            wanted = [dependency for dependency in optional if dependency.startswith(f"{name}-")]
            if not wanted or any(_is_installed(dependency, folder) for dependency in wanted):
                return None
            if os.path.isdir(os.path.join(folder, "vendor")):
                return None
            why = "its program for this kind of machine is missing (npm's omit=optional?)"
            return Defect(f"is only a launcher: {why}; run: npm install -g --include=optional {name}", skipped=False)
        folder = os.path.dirname(folder)
    return None


def _is_installed(package: str, folder: str) -> bool:
    """Whether Node.js would find this package from that folder."""
    while not os.path.isdir(os.path.join(folder, "node_modules", package)):
        parent = os.path.dirname(folder)
        if parent == folder:
            return False
        folder = parent
    return True


def needed(program: str) -> str:
    """A phrase that says what to install, by its product name."""
    name = os.path.basename(program).strip()
    return f"needs {PRODUCTS.get(name, f'`{name}`')}"


def _no_program(path: str, head: bytes) -> str:
    step = _install_step(path, head)
    if step is not None:
        return f"is only a placeholder: npm did not run its package's install script; run: {step}"
    return "is not a program this system can run (no #! line, or for another machine)"


def _install_step(path: str, head: bytes) -> str | None:
    """The command that installs the real program, if this is a package's stub."""
    real = os.path.realpath(path)
    named = INSTALL_SCRIPT.search(head.decode(errors="replace"))
    folder = os.path.dirname(real)
    for _ in range(PACKAGE_PARENTS):
        script = _install_script_of(folder) or (os.path.basename(named.group()) if named else None)
        if script is not None and os.path.isfile(os.path.join(folder, script)):
            return f"node {shlex.quote(os.path.join(folder, script))}"
        folder = os.path.dirname(folder)
    return f"node {named.group()}" if named else None


def _install_script_of(folder: str) -> str | None:
    scripts = _package_in(folder).get("scripts")
    script = scripts.get("postinstall") if isinstance(scripts, dict) else None
    found = NODE_SCRIPT.fullmatch(script) if isinstance(script, str) else None
    return found.group(1) if found else None


def _package_in(folder: str) -> dict[str, Any]:
    return read_object(os.path.join(folder, "package.json"))


def _defect_of_machine(head: bytes) -> Defect | None:
    if not head.startswith(ELF) or len(head) < 20:
        return None
    machine = ELF_MACHINES.get(int.from_bytes(head[18:20], "big" if head[5] == 2 else "little"))
    here = platform.machine()
    known = here in ELF_MACHINES.values() and machine is not None
    # 64-bit machines run 32-bit programs too (x86_64: i686), and registered emulators (qemu) run anything.
    if not known or machine == here or machine in ("i686", "armv7l") or _is_emulated(machine):
        return None
    return Defect(f"is made for another kind of machine ({machine}, this is {here})", skipped=True)


def _is_emulated(machine: str | None) -> bool:
    return os.path.exists(f"/proc/sys/fs/binfmt_misc/qemu-{machine}")
