"""The command line: `remoteclaw-sync` and `python -m remoteclaw_sync`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ._version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="remoteclaw-sync", description="Run AI agent CLIs, one event stream.")
    parser.add_argument("--version", action="version", version=f"remoteclaw-sync {__version__}")
    parser.parse_args(argv)
    parser.print_help()
    return 0
