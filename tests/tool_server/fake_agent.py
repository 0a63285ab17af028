"""An agent CLI in miniature: keeps sessions in files, starts MCP servers, calls their tools. Run under `python -I -S`.

Usage: fake_agent.py STATE [--session=ID] < prompt. A prompt is echoed with its number in the session, or is a command:

    call NAME JSON      call a tool of the MCP servers in FAKE_MCP
    calls JSON          several at once: a list of [name, arguments]
    tools               list them
    fail MESSAGE        report an error and exit 1
    say-and-fail ...    say something first
    hang                say "working" and wait to be ended
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any


def emit(kind: str, **fields: Any) -> None:
    os.write(1, json.dumps({"type": kind, **fields}).encode() + b"\n")


def append(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, text.encode())
    os.close(fd)


class McpClient:
    """One MCP server: started, greeted, and asked."""

    def __init__(self, config: dict[str, Any]) -> None:
        command = [config["command"], *config["args"]]
        env = {**os.environ, **config["env"]}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        self.last_id = 0
        self.ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "fake"}})
        self.write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def write(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def send(self, method: str, params: dict[str, Any]) -> int:
        self.last_id += 1
        self.write({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params})
        return self.last_id

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the MCP server is gone")
        return dict(json.loads(line))

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        ident = self.send(method, params)
        answer = self.read()
        assert answer["id"] == ident, answer
        return answer.get("result", answer.get("error"))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def servers() -> list[McpClient]:
    return [McpClient(config) for config in json.loads(os.environ.get("FAKE_MCP", "{}")).values()]


def call_tools(calls: list[list[Any]]) -> str:
    (client,) = servers()
    for number, (name, arguments) in enumerate(calls):
        emit("tool_use", id=f"t{number}", name=name, input=arguments)
    idents = [client.send("tools/call", {"name": name, "arguments": arguments}) for name, arguments in calls]
    answers = {}
    for _ in idents:
        answer = client.read()
        answers[answer["id"]] = answer
    client.close()
    texts = []
    for number, ident in enumerate(idents):
        result = answers[ident].get("result") or {"content": [answers[ident]["error"]], "isError": True}
        block = result["content"][0]
        texts.append(block.get("text", block.get("message")))
        emit("tool_result", id=f"t{number}", output=texts[-1], is_error=result["isError"])
    return "\n".join(texts)


def main() -> None:
    state, *options = sys.argv[1:]
    prompt = sys.stdin.buffer.read().decode()
    session = options[0].removeprefix("--session=") if options else ""
    if session and not os.path.exists(os.path.join(state, session)):
        emit("error", message=f"No conversation found with session ID: {session}")
        os._exit(1)
    command, _, rest = prompt.partition(" ")
    if command == "fail":
        emit("error", message=rest)
        os._exit(1)
    session = session or f"s{os.getpid()}"
    append(os.path.join(state, "journal"), json.dumps(["start", session, prompt]) + "\n")
    append(os.path.join(state, session), json.dumps(prompt) + "\n")
    emit("session", id=session)
    if command == "hang":
        emit("text", text="working")
        signal.pause()
    elif command == "say-and-fail":
        emit("text", text="well, ")
        emit("error", message=rest)
        os._exit(1)
    elif command == "call":
        name, _, arguments = rest.partition(" ")
        emit("text", text=call_tools([[name, json.loads(arguments)]]))
    elif command == "calls":
        emit("text", text=call_tools(json.loads(rest)))
    elif command == "tools":
        (client,) = servers()
        emit("text", text=json.dumps(client.ask("tools/list", {})["tools"]))
        client.close()
    else:
        with open(os.path.join(state, session)) as file:
            number = len(file.readlines())
        for part in (f"{number}: ", prompt):
            emit("text", text=part)
    append(os.path.join(state, "journal"), json.dumps(["end", session, prompt]) + "\n")
    emit("done")


if __name__ == "__main__":
    main()
