"""The runtime of the miniature agent (fake_agent.py)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from remoteclaw_sync import AgentEvent, AgentExecuteParams
from tests.fakes import FakeRuntime

FAKE_AGENT = Path(__file__).with_name("fake_agent.py")


class FakeAgent(FakeRuntime):
    """Sessions and a journal are in the folder `state`. Only the CLI knows which variables a run had."""

    def __init__(self, state: Path, **options: Any) -> None:
        super().__init__(command=[sys.executable, "-I", "-S", os.fspath(FAKE_AGENT), os.fspath(state)], **options)

    def build_args(self, params: AgentExecuteParams) -> list[str]:
        return [f"--session={params.session_id}"] if params.session_id else []

    def build_env(self, params: AgentExecuteParams) -> dict[str, str | None]:
        servers = {
            name: {"command": server.command, "args": list(server.args), "env": dict(server.env)}
            for name, server in params.mcp_servers.items()
        }
        return {"FAKE_MCP": json.dumps(servers)}

    def extract_event(self, line: str) -> Any:
        message = json.loads(line)
        if message["type"] == "session":
            self.outcome.session_id = message["id"]
            return None
        return super().extract_event(line)


def journal(state: Path) -> list[tuple[str, str, str]]:
    """What the agents did: ("start" or "end", session, prompt), in order."""
    return [tuple(json.loads(line)) for line in (state / "journal").read_text().splitlines()]


class ScriptedRuntime:
    """Somebody else's AgentRuntime: each run gives the next list of events; an exception in it is raised."""

    def __init__(self, *runs: list[AgentEvent | Exception], provider: str = "scripted") -> None:
        self.provider = provider
        self.seen: list[AgentExecuteParams] = []
        self._runs = list(runs)

    def execute(self, params: AgentExecuteParams, /) -> Any:
        self.seen.append(params)
        return self._events(self._runs.pop(0))

    def _events(self, run: list[AgentEvent | Exception]) -> Any:
        for event in run:
            if isinstance(event, Exception):
                raise event
            yield event
