"""A program that acts like Claude Code and really calls MCP tools: the first tool of each server it was given.

It answers with what the tools returned. A whole number in the prompt becomes an integer argument. Standard library
only.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

SESSION = "0b5c1f1e-0000-4000-8000-000000000001"


def emit(kind: str, **fields: Any) -> None:
    print(json.dumps({"type": kind, "session_id": SESSION, "parent_tool_use_id": None, **fields}), flush=True)


class Server:
    """An MCP server, started as its entry in the config says."""

    def __init__(self, entry: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [entry["command"], *entry["args"]],
            env={**os.environ, **entry["env"]},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        client = {"name": "fake claude", "version": "1"}
        self.ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
        self.write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def write(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdout is not None
        self.write({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        result: dict[str, Any] = json.loads(self.process.stdout.readline())["result"]
        return result

    def call_first_tool(self, prompt: str) -> str:
        tool = self.ask("tools/list", {})["tools"][0]
        arguments: dict[str, Any] = {}
        for name, schema in tool["inputSchema"]["properties"].items():
            found = re.search(r"\d+", prompt)
            arguments[name] = int(found[0]) if schema.get("type") == "integer" and found else prompt
        answer = self.ask("tools/call", {"name": tool["name"], "arguments": arguments})
        return str(answer["content"][0]["text"])

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main() -> None:
    """One run."""
    prompt = sys.stdin.read()
    with open("claude.argv", "w", encoding="utf-8") as file:
        file.write("\n".join(sys.argv))
    (config,) = (arg.removeprefix("--mcp-config=") for arg in sys.argv if arg.startswith("--mcp-config="))
    with open(config, encoding="utf-8") as file:
        entries = json.load(file)["mcpServers"]
    servers = {name: Server(entry) for name, entry in entries.items()}
    emit("system", subtype="init", mcp_servers=[{"name": name, "status": "connected"} for name in servers])
    answer = "; ".join(f"{name} says: {server.call_first_tool(prompt)}" for name, server in servers.items())
    for server in servers.values():
        server.end()
    message = {"id": "msg_1", "content": [{"type": "text", "text": answer}]}
    emit("assistant", message=message)
    emit("result", subtype="success", is_error=False, result=answer, num_turns=1)


if __name__ == "__main__":
    main()
