"""The client of the demo agent: Claude Code's stream-json and control protocol, from the CLI's side."""

from __future__ import annotations

import json
import os
import sys
import threading
import uuid
from collections.abc import Callable
from typing import Any

MODEL = "demo"
NOBODY = "This tool call needs permission, and nobody is there to ask."


class Interrupted(Exception):
    """The turn has to end."""


class Client:
    """Whoever talks to us: lines out from any thread; prompts, answers and interrupts in, if the agent stays."""

    def __init__(self, session_id: str, options: dict[str, str], pace: float) -> None:
        self.session_id = session_id
        self.stays = "--permission-prompt-tool" in options
        self.model = options.get("--model") or MODEL
        self.mode = options.get("--permission-mode") or "default"
        self.read_only = "--tools" in options
        self.pace = pace
        self.turns = 1 if "--resume" in options else 0
        self._out = threading.Lock()
        self._news = threading.Condition()
        self._prompts: list[tuple[str, str]] = []  # Their ids and texts.
        self._answers: dict[str, Any] = {}
        self._interrupted = False
        self._gone = False

    def say(self, kind: str, **fields: Any) -> None:
        # Written as bytes: the terminal's encoding and newlines are not part of the protocol.
        line = json.dumps({"type": kind, **fields, "session_id": self.session_id, "uuid": str(uuid.uuid4())})
        with self._out:
            sys.stdout.buffer.write(line.encode() + b"\n")
            sys.stdout.buffer.flush()

    # --- input, read in a separate thread -----------------------------------------------------------------------

    def listen(self) -> None:
        """Read lines until the client is gone."""
        for line in sys.stdin.buffer:
            self._take(json.loads(line))
        with self._news:
            self._gone = True
            self._news.notify_all()

    def _take(self, line: dict[str, Any]) -> None:
        kind = line.get("type")
        if kind == "control_request":
            self._control(line["request_id"], line["request"])
            return
        with self._news:
            if kind == "user":
                self._prompts.append((line.get("uuid") or "", words_of(line)))
            elif kind == "control_response":
                self._answers[line["response"]["request_id"]] = line["response"]
            self._news.notify_all()

    def _control(self, number: str, request: dict[str, Any]) -> None:
        subtype = request["subtype"]
        response: dict[str, Any] = {"subtype": "success", "request_id": number, "response": {}}
        with self._news:
            if subtype == "interrupt":
                self._interrupted = True
                self._prompts.clear()
            elif subtype == "set_model":
                self.model = request.get("model") or MODEL
            elif subtype == "set_permission_mode":
                self.mode = request["mode"]
            elif subtype == "end_session":
                os._exit(0)
            elif subtype != "initialize":
                response = {"subtype": "error", "request_id": number, "error": f"the demo knows no {subtype}"}
            self._news.notify_all()
        self.say("control_response", response=response)

    # --- for a turn ---------------------------------------------------------------------------------------------

    def next_prompt(self) -> tuple[str, str] | None:
        """Waits for the next prompt; None if there will be no more."""
        with self._news:
            self._news.wait_for(lambda: self._prompts or self._gone)
            self._interrupted = False
            self.turns += 1
            return self._prompts.pop(0) if self._prompts else None

    def further_words(self) -> list[tuple[str, str]]:
        """The words that were added since the last call."""
        with self._news:
            found, self._prompts = self._prompts, []
            return found

    def wait(self, condition: Callable[[], object], seconds: float | None = None) -> None:
        """Wait until the condition holds, or for this many seconds. Raises Interrupted."""
        with self._news:
            self._news.wait_for(lambda: self._interrupted or condition(), seconds)
            if self._interrupted:
                raise Interrupted

    def wait_for_words(self) -> None:
        self.wait(lambda: self._prompts or self._gone or not self.stays)

    def pause(self) -> None:
        self.wait(lambda: False, self.pace)

    def ask(self, tool: str, tool_id: str, arguments: dict[str, Any], reason: str) -> dict[str, Any]:
        """The client's decision on a tool call."""
        if not self.stays:
            return {"behavior": "deny", "message": NOBODY}
        number = str(uuid.uuid4())
        asked = {"subtype": "can_use_tool", "tool_name": tool, "tool_use_id": tool_id, "input": arguments}
        self.say("control_request", request_id=number, request={**asked, "decision_reason": reason})
        try:
            self.wait(lambda: number in self._answers or self._gone)
        except Interrupted:
            self.say("control_cancel_request", request_id=number)
            raise
        answer = self._answers.pop(number, {})
        decision: dict[str, Any] = answer.get("response") or {"behavior": "deny", "message": NOBODY}
        return decision


def words_of(line: dict[str, Any]) -> str:
    """The prompt in a line of `--input-format=stream-json`, and how many images came with it."""
    content = line["message"]["content"]
    if isinstance(content, str):
        return content
    words = "\n".join(block["text"] for block in content if block.get("type") == "text")
    images = sum(block.get("type") == "image" for block in content)
    return f"{words}\n[{images} image{'s' if images > 1 else ''}]" if images else words
