"""An agent CLI that needs no account: speaks Claude Code's stream-json, thinks, lists the folder it works in, answers.

A separate program (`python agent.py`), started like a real CLI, that knows nothing about this package. It stores no
files: all it knows about an earlier turn is the session id.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any

SESSION_PREFIX = "de300000-"
MODEL = "demo"
PACE_VARIABLE = "REMOTECLAW_DEMO_PACE"
DEFAULT_PACE = 0.03  # Seconds from word to word.
FILES_NAMED = 4
QUOTE_LENGTH = 60

# Words in a prompt that show what a failure looks like.
FAIL = "demo:fail"
HANG = "demo:hang"
CRASH = "demo:crash"


class Agent:
    """One turn of a conversation."""

    def __init__(self, prompt: str, session_id: str, resumed: bool, pace: float) -> None:
        self.prompt = prompt
        self.session_id = session_id
        self.resumed = resumed
        self.pace = pace
        self.started_at = time.monotonic()
        self.messages = 0
        self.message_id = ""
        self.blocks = 0
        self.open_message = False
        self.words_out = 0

    def work(self) -> int:
        """Say everything; returns the exit code."""
        self.line("system", subtype="init", cwd=os.getcwd(), tools=["LS"], mcp_servers=[], model=MODEL)
        if self.prompt == FAIL:
            return self.fail()
        if self.prompt == CRASH:
            print("demo: something broke, as you asked", file=sys.stderr)
            return 3
        files = self.look_around()
        while self.prompt == HANG:
            time.sleep(3600)
        answer = self.answer(files)
        self.message("text", answer)
        self.result(subtype="success", is_error=False, result=answer, stop_reason="end_turn", num_turns=2)
        return 0

    def look_around(self) -> list[str]:
        """Think, call the tool, and show what it gave."""
        self.message("thinking", "A look at the folder first, then an answer that is worth reading. ", close=False)
        tool_id = f"toolu_demo_{uuid.uuid4().hex[:8]}"
        self.message("tool_use", "", block={"id": tool_id, "name": "LS", "input": {}}, tool_input={"path": "."})
        try:
            files, failed = list_folder(), False
            output = "\n".join(files) or "(empty)"
        except OSError as error:
            files, failed, output = [], True, str(error)
        result = {"type": "tool_result", "tool_use_id": tool_id, "content": output, "is_error": failed}
        self.line("user", message={"role": "user", "content": [result]}, parent_tool_use_id=None)
        return files

    def answer(self, files: list[str]) -> str:
        hello = "Welcome back: this is our session, resumed." if self.resumed else "Hello! This is the demo agent."
        found = "It is empty."
        if files:
            more = len(files) - FILES_NAMED
            names = ", ".join(files[:FILES_NAMED]) + (f" and {more} more" if more > 0 else "")
            found = f"I see {len(files)} {'entry' if len(files) == 1 else 'entries'} there: {names}."
        return (
            f"{hello} You asked: {quote(self.prompt)}\n\n"
            f"I looked at the folder I was started in, by a tool call. {found}\n\n"
            "No model is behind me, but the way to you is the real one: a subprocess, its pipes and threads, the line "
            "framer, the parser, the events. Put `claude`, `gemini`, `codex` or `opencode` in the place of `demo` and "
            "the same loop prints what they say.\n"
        )

    def message(
        self,
        kind: str,
        content: str,
        *,
        block: dict[str, Any] | None = None,
        tool_input: dict[str, Any] | None = None,
        close: bool = True,
    ) -> None:
        """One content block: streamed piece by piece, then whole, as Claude does it."""
        if not self.open_message:
            self.messages += 1
            self.blocks = 0
            self.message_id = f"msg_demo_{self.messages}"
            self.stream(type="message_start", message={"id": self.message_id, "model": MODEL, "content": []})
        index, self.blocks = self.blocks, self.blocks + 1
        start = {"type": kind, **(block if block is not None else {kind: ""})}
        self.stream(type="content_block_start", index=index, content_block=start)
        if tool_input is not None:
            delta = {"type": "input_json_delta", "partial_json": json.dumps(tool_input)}
            self.stream(type="content_block_delta", index=index, delta=delta)
            whole = {**start, "input": tool_input}
        else:
            for word in words(content):
                self.words_out += 1
                self.stream(type="content_block_delta", index=index, delta={"type": f"{kind}_delta", kind: word})
                time.sleep(self.pace)
            whole = {"type": kind, kind: content}
        message = {"id": self.message_id, "type": "message", "role": "assistant", "model": MODEL, "content": [whole]}
        self.line("assistant", message=message, parent_tool_use_id=None)
        self.stream(type="content_block_stop", index=index)
        self.open_message = not close
        if close:
            self.stream(type="message_stop")

    def fail(self) -> int:
        error = "API Error: 529 Overloaded (you asked the demo to fail)"
        self.result(subtype="success", is_error=True, api_error_status=529, result=error, num_turns=1)
        return 1

    def result(self, **fields: Any) -> None:
        elapsed = int((time.monotonic() - self.started_at) * 1000)
        usage = {"input_tokens": len(self.prompt) // 4 + 12, "output_tokens": self.words_out * 4 // 3}
        self.line("result", duration_ms=elapsed, duration_api_ms=elapsed, total_cost_usd=0.0, usage=usage, **fields)

    def stream(self, **event: Any) -> None:
        self.line("stream_event", event=event, parent_tool_use_id=None)

    def line(self, kind: str, **fields: Any) -> None:
        # Written as bytes: the terminal's encoding and newlines are not part of the protocol.
        line = json.dumps({"type": kind, **fields, "session_id": self.session_id, "uuid": str(uuid.uuid4())})
        sys.stdout.buffer.write(line.encode() + b"\n")
        sys.stdout.buffer.flush()


def words(content: str) -> Iterator[str]:
    """Word by word, each with the space after it."""
    return (match.group() for match in re.finditer(r"\s*\S+\s*|\s+", content))


def quote(prompt: str) -> str:
    """The beginning of the prompt on one line."""
    one_line = " ".join(prompt.split())
    return f"“{one_line[:QUOTE_LENGTH]}{'…' if len(one_line) > QUOTE_LENGTH else ''}”"


def list_folder() -> list[str]:
    """The names in the working directory, folders with a slash."""
    with os.scandir(".") as entries:
        return sorted(entry.name + ("/" if entry.is_dir() else "") for entry in entries if entry.name[0] != ".")


def prompt_on_stdin(structured: bool) -> str:
    """The prompt, as text or (with `--input-format=stream-json`) as a JSON line."""
    text = sys.stdin.buffer.read().decode(errors="replace")
    if not structured:
        return text
    content = json.loads(text)["message"]["content"]
    if isinstance(content, str):
        return content
    return "\n".join(block["text"] for block in content if block.get("type") == "text")


def main(arguments: list[str]) -> int:
    """Takes the arguments of `claude -p`; flags that mean nothing here are ignored."""
    if "--version" in arguments:
        print("0.0.0 (demo)")
        return 0
    options = dict(argument.partition("=")[::2] for argument in arguments)
    prompt = prompt_on_stdin("--input-format" in options).strip()
    session_id = options.get("--resume")
    agent = Agent(
        prompt,
        session_id or SESSION_PREFIX + str(uuid.uuid4())[len(SESSION_PREFIX) :],
        resumed=session_id is not None,
        pace=float(os.environ.get(PACE_VARIABLE, DEFAULT_PACE)),
    )
    if session_id is not None and not session_id.startswith(SESSION_PREFIX):
        message = f"No conversation found with session ID: {session_id}"
        agent.result(subtype="error_during_execution", is_error=True, errors=[message], num_turns=0)
        return 1
    return agent.work()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
