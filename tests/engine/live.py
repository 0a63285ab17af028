"""Helpers for tests of live sessions: sessions with the fake Claude that stays (tests/live_claude.py)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from remoteclaw_sync import AgentSession, ClaudeCliRuntime

FAKE = Path(__file__).parents[1] / "live_claude.py"


def command(folder: Path) -> list[str]:
    """The command of the fake, which keeps its conversations in this folder."""
    return [sys.executable, "-I", "-S", str(FAKE), str(folder)]


def runtime(folder: Path, **options: Any) -> ClaudeCliRuntime:
    return ClaudeCliRuntime(command(folder), **{"timeout": 60.0, **options})


def open_session(folder: Path, **fields: Any) -> AgentSession:
    return runtime(folder).open_session(working_directory=folder, **fields)


def steps(*steps: list[Any]) -> str:
    """A prompt that makes the fake do these steps."""
    return json.dumps(steps)


def heard_by(folder: Path) -> list[dict[str, Any]]:
    """All lines that fakes in this folder have received."""
    files = sorted(folder.glob("*.in"), key=lambda file: file.stat().st_mtime_ns)
    lines = (line for file in files for line in file.read_text().splitlines())
    return [json.loads(line) for line in lines]


def starts(folder: Path) -> list[dict[str, Any]]:
    """How fakes in this folder were started: their arguments and environments, in order."""
    files = sorted(folder.glob("*.start"), key=lambda file: file.stat().st_mtime_ns)
    return [json.loads(file.read_text()) for file in files]
