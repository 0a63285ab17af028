"""The fake CLI, compiled once, and runtimes that run it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from remoteclaw_sync import AgentExecuteParams, CLIRuntimeBase, create_cli_runtime

SOURCE = Path(__file__).with_name("fake_cli.c")


def build_fake_cli(folder: Path) -> str:
    """Compile the fake CLI; exits with a message if there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit("the benchmarks need a C compiler (cc): a fake CLI in Python would be what is measured")
    program = folder / "fake-cli"
    subprocess.run([compiler, "-O2", "-o", str(program), str(SOURCE)], check=True)
    return str(program)


def fake_runtime(provider: str, argv: list[str], **options: Any) -> CLIRuntimeBase:
    """A runtime for `provider` whose CLI is `argv`, without the arguments that the runtime would add."""
    runtime = create_cli_runtime(provider, command=argv, **options)

    class Faked(type(runtime)):  # type: ignore[misc]
        def build_args(self, params: AgentExecuteParams) -> list[str]:
            return []

    runtime.__class__ = Faked
    return runtime
