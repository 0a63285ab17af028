"""CLIs as npm and the vendors' installers lay them out, with any program in place of the real one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from remoteclaw_sync.clis.registry import all_facts

# Provider -> the npm package it comes from, and the tested version.
PACKAGES = {cli.name: (cli.support[0].package, cli.tested) for cli in all_facts()}
TESTED_VERSIONS = {cli.name: cli.tested for cli in all_facts()}

STUBS = {
    "claude": (
        "install.cjs",
        'echo "Error: claude native binary not installed." >&2\n'
        'echo "Run the postinstall manually (adjust path for local vs global install):" >&2\n'
        'echo "  node node_modules/@anthropic-ai/claude-code/install.cjs" >&2\n'
        "exit 1\n",
    ),
    "opencode": (
        "postinstall.mjs",
        'echo "Error: opencode-ai\'s postinstall script was not run." >&2\n'
        'echo "To fix this, run the postinstall script manually:" >&2\n'
        'echo "  cd node_modules/opencode-ai && node postinstall.mjs" >&2\n'
        "exit 1\n",
    ),
}


def npm_install(prefix: Path, provider: str, version: str, program: str | bytes, *, package: str | None = None) -> Path:
    """What `npm install -g` of that package into a prefix makes; returns the link in the prefix's bin folder."""
    name = package or PACKAGES[provider][0]
    folder = prefix / "lib" / "node_modules" / name
    (folder / "bin").mkdir(parents=True)
    manifest: dict[str, object] = {"name": name, "version": version, "bin": {provider: "bin/program"}}
    if provider in STUBS and program == STUBS[provider][1]:
        script = STUBS[provider][0]
        manifest["scripts"] = {"postinstall": f"node ./{script}"}
        (folder / script).write_text("// puts the real program there\n")
    (folder / "package.json").write_text(json.dumps(manifest))
    put_program(folder / "bin" / "program", program)
    (prefix / "bin").mkdir(exist_ok=True)
    link = prefix / "bin" / provider
    link.symlink_to(folder / "bin" / "program")
    return link


def put_program(path: Path, program: str | bytes) -> Path:
    """Write an executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(program.encode() if isinstance(program, str) else program)
    path.chmod(0o755)
    return path


def python_program(code: str) -> str:
    """A Python program. Its arguments are in `argv`."""
    return f"#!{sys.executable} -IS\nimport json, os, sys\nargv = sys.argv[1:]\n{code}"


def refusing(flag: str, words: str, *, stream: str = "stderr", otherwise: str = "") -> str:
    """A program that prints these words and exits with 1 if it is given this flag."""
    return python_program(
        f"if any(argument.split('=')[0] == {flag!r} for argument in argv):\n"
        f"    print({words!r}, file=sys.{stream})\n"
        f"    sys.exit(1)\n"
        f"{otherwise}"
    )
