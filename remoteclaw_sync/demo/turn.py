"""One turn of the demo agent: from a prompt to its result line."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from . import texts
from .client import MODEL, Client, Interrupted
from .tools import answers_in, list_folder, shell, write

FILES_NAMED = 4
QUOTE_LENGTH = 60

# Prompts that show what a failure looks like.
FAIL = "demo:fail"
HANG = "demo:hang"
CRASH = "demo:crash"
WAIT = "demo:wait"

# What a prompt says if it wants something other than a look around.
WANTS_COMMAND = re.compile(r"\brun\b.*\bcommand\b", re.IGNORECASE | re.DOTALL)
WANTS_EDIT = re.compile(r"\b(edit|write)\b", re.IGNORECASE)
WANTS_QUESTION = re.compile(r"\bask me\b", re.IGNORECASE)
WANTS_MARKDOWN = re.compile(r"\bmarkdown\b", re.IGNORECASE)

NOTE = "demo-note.txt"
COMMAND = "echo 'The demo agent ran this, in:' && pwd"
NOT_THERE = "No such tool available in this permission mode."
QUESTION_TOOL = "AskUserQuestion"


class Turn:
    """A prompt and everything that follows from it."""

    def __init__(self, client: Client, prompt: str, uuid: str = "") -> None:
        self.client = client
        self.prompt = prompt.strip()
        self.uuids = [uuid]
        self.number = client.turns
        self.started_at = time.monotonic()
        self.message_id = ""
        self.blocks = 0
        self.open_message = False
        self.words_out = 0
        self.said: list[str] = []
        self.denials: list[dict[str, Any]] = []

    def work(self) -> int:
        """Say everything; returns the exit code for a single turn."""
        client = self.client
        tools = ["LS"] if client.read_only else ["LS", "Bash", "Write", "Edit"]
        init = {"subtype": "init", "cwd": os.getcwd(), "tools": tools, "mcp_servers": []}
        client.say("system", **init, model=client.model, permissionMode=client.mode)
        if self.prompt == FAIL:
            return self.fail()
        if self.prompt == CRASH:
            print("demo: something broke, as you asked", file=sys.stderr, flush=True)
            os._exit(3)
        try:
            self.answer_prompt()
            self.answer_further_words()
        except Interrupted:
            self.result(subtype="error_during_execution", is_error=True, terminal_reason="aborted_streaming")
            return 1
        self.result(subtype="success", is_error=False, result="".join(self.said), stop_reason="end_turn", num_turns=2)
        return 0

    def answer_prompt(self) -> None:
        prompt = self.prompt
        if WANTS_QUESTION.search(prompt):
            self.put_question()
        elif WANTS_COMMAND.search(prompt):
            self.run_command()
        elif WANTS_EDIT.search(prompt):
            self.edit()
        elif WANTS_MARKDOWN.search(prompt):
            self.text(texts.MARKDOWN)
        else:
            files = self.look_around()
            if prompt == HANG:
                self.client.wait(lambda: False)
            if prompt == WAIT:
                self.text("I wait for further words.\n")
                self.client.wait_for_words()
            else:
                self.text(self.answer(files))

    def answer_further_words(self) -> None:
        while further := self.client.further_words():
            self.uuids += [name for name, _ in further]
            for _, words in further:
                self.text(f"\nYou added: {quote(words)} I have taken it in.\n")

    # --- tools --------------------------------------------------------------------------------------------------

    def look_around(self) -> list[str]:
        """Think, call the tool, and return the names it found."""
        self.message("thinking", "A look at the folder first, then an answer that is worth reading. ", close=False)
        tool_id = self.call("LS", {"path": "."})
        try:
            files, failed = list_folder(), False
            output = "\n".join(files) or "(empty)"
        except OSError as error:
            files, failed, output = [], True, str(error)
        self.tool_result(tool_id, output, failed)
        return files

    def run_command(self) -> None:
        self.message("thinking", "A shell command, then. It needs permission. ", close=False)
        arguments = {"command": COMMAND, "description": "Say where the demo agent works"}
        output = self.permitted("Bash", arguments, self.runs_free("Bash"), shell, "shell commands need permission")
        if output is not None:
            self.text(f"The command was run. It printed:\n\n```\n{output.rstrip()}\n```\n")

    def edit(self) -> None:
        self.message("thinking", "A file is to be changed. That needs permission. ", close=False)
        path = os.path.abspath(NOTE)
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                before = file.read()
        except OSError:
            tool, arguments = "Write", {"file_path": path, "content": texts.FIRST_NOTE}
        else:
            line = before.splitlines()[-1] if before else ""
            arguments = {"file_path": path, "old_string": line, "new_string": f"{line}\nAnd here it was again."}
            tool = "Edit"
        output = self.permitted(tool, arguments, self.runs_free(tool), write, f"{NOTE} is to be changed")
        if output is not None:
            self.text(f"{output} Have a look at `{NOTE}`.\n")

    def put_question(self) -> None:
        arguments = {"questions": texts.QUESTIONS}
        given = self.permitted(QUESTION_TOOL, arguments, False, answers_in, "the user is asked")
        if given is not None:
            self.text(f"You answered: {given}\n" if given else "You did not answer.\n")

    def runs_free(self, tool: str) -> bool:
        """Whether this tool needs no permission now."""
        mode = self.client.mode
        return mode == "bypassPermissions" or (mode == "acceptEdits" and tool != "Bash")

    def permitted(
        self, tool: str, arguments: dict[str, Any], free: bool, use: Callable[[dict[str, Any]], str], reason: str
    ) -> str | None:
        """Call a tool if that is permitted. Returns its output; None if it was not called."""
        tool_id = self.call(tool, arguments)
        if self.client.read_only and tool != QUESTION_TOOL:
            self.tool_result(tool_id, NOT_THERE, True)
            self.text("I cannot do that: this permission mode has only tools that read.\n")
            return None
        if not free:
            decision = self.client.ask(tool, tool_id, arguments, reason)
            if decision.get("behavior") != "allow":
                self.refused(tool, tool_id, str(decision.get("message") or "No."), bool(decision.get("interrupt")))
                return None
            arguments = decision.get("updatedInput") or arguments
        try:
            output, failed = use(arguments), False
        except (OSError, KeyError, ValueError) as error:
            output, failed = f"{type(error).__name__}: {error}", True
        self.tool_result(tool_id, output, failed)
        return output

    def refused(self, tool: str, tool_id: str, message: str, stop: bool) -> None:
        self.denials.append({"tool_name": tool, "tool_use_id": tool_id})
        self.tool_result(tool_id, message, True)
        if stop:
            raise Interrupted
        self.text(f"I was not allowed to do that, so I did not. I was told: {quote(message)}\n")

    def call(self, tool: str, arguments: dict[str, Any]) -> str:
        tool_id = f"toolu_demo_{uuid.uuid4().hex[:8]}"
        self.message("tool_use", "", block={"id": tool_id, "name": tool, "input": {}}, tool_input=arguments)
        return tool_id

    def tool_result(self, tool_id: str, output: str, failed: bool) -> None:
        result = {"type": "tool_result", "tool_use_id": tool_id, "content": output, "is_error": failed}
        self.client.say("user", message={"role": "user", "content": [result]}, parent_tool_use_id=None)

    # --- words --------------------------------------------------------------------------------------------------

    def answer(self, files: list[str]) -> str:
        found = "It is empty."
        if files:
            more = len(files) - FILES_NAMED
            names = ", ".join(files[:FILES_NAMED]) + (f" and {more} more" if more > 0 else "")
            found = f"I see {len(files)} {'entry' if len(files) == 1 else 'entries'} there: {names}."
        looked = f"I looked at the folder I was started in, by a tool call. {found}\n"
        asked = f"You asked: {quote(self.prompt)}\n\n"
        if self.client.stays and self.number > 1:
            return f"This is turn {self.number} of our session. {asked}{looked}"
        hello = "Hello! This is the demo agent." if self.number == 1 else "Welcome back: this is our session, resumed."
        hint = f"\n{texts.HINT}" if self.client.stays else ""
        return (
            f"{hello} {asked}{looked}\n"
            "No model is behind me, but the way to you is the real one: a subprocess, its pipes and threads, the line "
            "framer, the parser, the events. Put `claude`, `gemini`, `codex` or `opencode` in the place of `demo` and "
            f"the same loop prints what they say.\n{hint}"
        )

    def text(self, words: str) -> None:
        self.said.append(words)
        self.message("text", words)

    def message(
        self,
        kind: str,
        content: str,
        *,
        block: dict[str, Any] | None = None,
        tool_input: dict[str, Any] | None = None,
        close: bool = True,
    ) -> None:
        """One content block: streamed piece by piece, then as a whole, as Claude does it."""
        if not self.open_message:
            self.blocks = 0
            self.message_id = f"msg_demo_{uuid.uuid4().hex[:12]}"
            self.stream(type="message_start", message={"id": self.message_id, "model": MODEL, "content": []})
        index, self.blocks = self.blocks, self.blocks + 1
        start = {"type": kind, **(block if block is not None else {kind: ""})}
        self.stream(type="content_block_start", index=index, content_block=start)
        if tool_input is not None:
            delta = {"type": "input_json_delta", "partial_json": json.dumps(tool_input)}
            self.stream(type="content_block_delta", index=index, delta=delta)
            whole = {**start, "input": tool_input}
        else:
            for word in split_words(content):
                self.words_out += 1
                self.stream(type="content_block_delta", index=index, delta={"type": f"{kind}_delta", kind: word})
                self.client.pause()
            whole = {"type": kind, kind: content}
        message = {"id": self.message_id, "type": "message", "role": "assistant", "model": MODEL, "content": [whole]}
        self.client.say("assistant", message=message, parent_tool_use_id=None)
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
        fields |= {"permission_denials": self.denials, "user_message_uuids": [name for name in self.uuids if name]}
        self.client.say(
            "result", duration_ms=elapsed, duration_api_ms=elapsed, total_cost_usd=0.0, usage=usage, **fields
        )

    def stream(self, **event: Any) -> None:
        self.client.say("stream_event", event=event, parent_tool_use_id=None)


def split_words(content: str) -> Iterator[str]:
    """Word by word, each with the white space after it."""
    return (match.group() for match in re.finditer(r"\s*\S+\s*|\s+", content))


def quote(prompt: str) -> str:
    """The beginning of the prompt on one line."""
    one_line = " ".join(prompt.split())
    return f"“{one_line[:QUOTE_LENGTH]}{'…' if len(one_line) > QUOTE_LENGTH else ''}”"
