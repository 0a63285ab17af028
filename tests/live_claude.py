"""A fake Claude Code that stays: it speaks as much of the real one's control protocol as its client may rely on.

    python -I -S live_claude.py <folder> [the arguments of the real one]

A prompt that is a JSON list holds the steps of the turn; any other prompt is answered with "re: " and the prompt,
unless the folder has the steps of that prompt (`<prompt>.steps`). The fake stores its conversations in the folder, one
file each, so that another process can resume them. It also keeps there everything it was sent (`<pid>.in`) and how it
was started (`<pid>.start`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

COST = 0.25  # Dollars per turn.


class Interrupted(Exception):
    """The turn has to end."""


class Claude:
    """One process."""

    def __init__(self, folder: str, arguments: list[str]) -> None:
        self.folder = folder
        self.arguments = arguments
        self.options = dict(part.split("=", 1) for part in arguments if part.startswith("--") and "=" in part)
        self.session = self.options.get("--resume") or str(uuid.uuid4())
        self.model = self.options.get("--model", "fake-default")
        self.mode = self.options.get("--permission-mode", "default")
        self.out = threading.Lock()
        self.news = threading.Condition()
        self.interrupted = False
        self.answers: dict[str, Any] = {}
        self.waiting: list[tuple[str, str]] = []  # Prompts: id and text.
        self.turns = 0
        self.deaf = False  # Ignores interrupts.
        self.gone = False
        self.old = "FAKE_OLD" in os.environ  # 2.1.197 and before, which report less.

    def say(self, **line: Any) -> None:
        with self.out:
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()

    def note(self, kind: str, words: str) -> None:
        with open(os.path.join(self.folder, f"{os.getpid()}.{kind}"), "a") as file:
            file.write(words)

    @property
    def memory(self) -> str:
        return os.path.join(self.folder, f"{self.session}.session")

    def remembered(self) -> list[str]:
        if not os.path.exists(self.memory):
            return []
        with open(self.memory) as file:
            words: list[str] = json.loads(file.read())
        return words

    def remember(self, words: str) -> None:
        with open(self.memory + ".new", "w") as file:
            json.dump([*self.remembered(), words], file)
        os.replace(self.memory + ".new", self.memory)

    # --- in -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self.note("start", json.dumps({"argv": self.arguments, "env": dict(os.environ)}))
        if "--resume" in self.options and not os.path.exists(self.memory):
            message = f"No conversation found with session ID: {self.session}"
            self.say(type="result", subtype="error_during_execution", is_error=True, errors=[message])
            sys.exit(1)
        threading.Thread(target=self.work, daemon=True).start()
        for line in sys.stdin:
            self.note("in", line)
            self.take(json.loads(line))
        with self.news:
            self.gone = True
            self.news.notify_all()
            while not hasattr(self, "left"):
                self.news.wait()

    def take(self, line: dict[str, Any]) -> None:
        if line["type"] == "user":
            content = line["message"]["content"]
            words = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
            with self.news:
                self.waiting.append((line["uuid"], words))
                self.news.notify_all()
        elif line["type"] == "control_response":
            with self.news:
                self.answers[line["response"]["request_id"]] = line["response"]
                self.news.notify_all()
        elif line["type"] == "control_request":
            self.control(line["request_id"], line["request"])

    def control(self, number: str, request: dict[str, Any]) -> None:
        subtype = request["subtype"]
        if subtype == "interrupt" and self.deaf:
            return
        if subtype == "end_session":
            sys.stdout.flush()
            os._exit(0)
        refused = None
        if subtype == "interrupt":
            with self.news:
                self.interrupted = True
                self.waiting.clear()
                self.news.notify_all()
        elif subtype == "set_model":
            self.model = request["model"] or "fake-default"
            refused = "no such model" if self.model == "refused" else None
        elif subtype == "set_permission_mode":
            self.mode = request["mode"]
        elif subtype != "initialize":
            refused = f"unknown {subtype}"
        if refused is None:
            answer: dict[str, Any] = {"subtype": "success", "request_id": number, "response": {}}
        else:
            answer = {"subtype": "error", "request_id": number, "error": refused}
        self.say(type="control_response", response=answer)

    # --- out ------------------------------------------------------------------------------------------------------

    def work(self) -> None:
        while True:
            with self.news:
                self.news.wait_for(lambda: self.waiting or self.gone)
                if not self.waiting:
                    self.left = True
                    self.news.notify_all()
                    return
                uuids, words = [self.waiting[0][0]], self.waiting.pop(0)[1]
                self.interrupted = False
            self.turn(uuids, words)

    def turn(self, uuids: list[str], words: str) -> None:
        self.turns += 1
        self.said: list[str] = []
        self.denials: list[dict[str, Any]] = []
        self.uuids = uuids
        self.say(type="system", subtype="init", session_id=self.session, model=self.model, permissionMode=self.mode)
        self.remember(words)  # At once, like the real one: a turn that dies leaves its prompt.
        if self.old:
            self.say(type="user", isReplay=True, uuid=uuids[0], message={"role": "user", "content": words})
        ended: dict[str, Any] = {"subtype": "success", "is_error": False, "terminal_reason": "completed"}
        try:
            for name, *arguments in self.steps(words):
                getattr(self, f"do_{name}")(*arguments)
        except Interrupted:
            ended = {"subtype": "error_during_execution", "is_error": True, "terminal_reason": "aborted_streaming"}
        newer = {} if self.old else {"user_message_uuids": self.uuids}
        self.say(
            type="result",
            result="".join(self.said),
            session_id=self.session,
            num_turns=1,
            total_cost_usd=COST * self.turns,
            duration_api_ms=100 * self.turns,
            usage={"input_tokens": 10, "output_tokens": 1},
            modelUsage={self.model: {"inputTokens": 10 * self.turns, "outputTokens": self.turns}},
            permission_denials=self.denials,
            **newer,
            **ended,
        )

    def steps(self, words: str) -> list[Any]:
        path = os.path.join(self.folder, words + ".steps")
        if os.path.exists(path):
            with open(path) as file:
                words = file.read()
        try:
            steps = json.loads(words)
        except ValueError:
            steps = None
        return steps if isinstance(steps, list) else [["text", f"re: {words}"]]

    def wait_for(self, condition: Callable[[], Any], timeout: float | None = None) -> None:
        with self.news:
            self.news.wait_for(lambda: condition() or self.interrupted, timeout)
            if self.interrupted:
                raise Interrupted

    def do_text(self, words: str) -> None:
        self.said.append(words)
        message = {"id": f"msg_{time.monotonic_ns()}", "content": [{"type": "text", "text": words}]}
        self.say(type="assistant", message=message, parent_tool_use_id=None, session_id=self.session)

    def do_memory(self) -> None:
        self.do_text(json.dumps(self.remembered()[:-1]))

    def do_state(self) -> None:
        self.do_text(json.dumps({"model": self.model, "mode": self.mode, "pid": os.getpid()}))

    def do_length(self, words: str) -> None:
        self.do_text(str(len(words)))

    def do_hang(self) -> None:
        self.wait_for(lambda: False)

    def do_sleep(self, seconds: float) -> None:
        self.wait_for(lambda: False, seconds)

    def do_deaf(self) -> None:
        self.deaf = True

    def do_exit(self, code: int) -> None:
        sys.stdout.flush()
        os._exit(code)

    def do_die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def do_call(self, tool_id: str, name: str, arguments: dict[str, Any], parent: str | None = None) -> None:
        call = {"type": "tool_use", "id": tool_id, "name": name, "input": arguments}
        self.say(type="assistant", message={"id": f"msg_{tool_id}", "content": [call]}, parent_tool_use_id=parent)

    def do_result(self, tool_id: str, output: str, is_error: bool = False) -> None:
        result = {"type": "tool_result", "tool_use_id": tool_id, "content": output, "is_error": is_error}
        self.say(type="user", message={"role": "user", "content": [result]}, parent_tool_use_id=None)

    def do_shell(self, tool_id: str) -> None:
        """A shell tool that runs until the turn is interrupted."""
        self.do_call(tool_id, "Bash", {"command": "sleep 1000"})
        try:
            self.wait_for(lambda: False)
        except Interrupted:
            self.do_result(tool_id, "The user doesn't want to proceed with this tool use.", True)
            raise

    def do_ask(self, tool_id: str, name: str, arguments: dict[str, Any], **more: Any) -> None:
        """A tool call that needs permission; what it runs becomes its output."""
        self.do_call(tool_id, name, arguments)
        answer = self.request(subtype="can_use_tool", tool_name=name, input=arguments, tool_use_id=tool_id, **more)
        decision = answer.get("response", {"behavior": "deny", "message": answer.get("error")})
        if decision["behavior"] == "allow":
            self.do_result(tool_id, json.dumps(decision["updatedInput"]))
        else:
            self.denials.append({"tool_name": name, "tool_use_id": tool_id})
            self.do_result(tool_id, decision["message"], True)
            if decision.get("interrupt"):
                raise Interrupted

    def do_control(self, subtype: str) -> None:
        """Send a request that no client knows; the answer becomes text."""
        self.do_text(json.dumps(self.request(subtype=subtype)["subtype"]))

    def do_both(self, subtype: str, tool_id: str, name: str) -> None:
        """Such a request and one for permission, in a single write."""
        asked = {"subtype": "can_use_tool", "tool_name": name, "input": {}, "tool_use_id": tool_id}
        requests = {str(uuid.uuid4()): request for request in ({"subtype": subtype}, asked)}
        lines = [
            json.dumps({"type": "control_request", "request_id": number, "request": request}) + "\n"
            for number, request in requests.items()
        ]
        with self.out:
            sys.stdout.write("".join(lines))
            sys.stdout.flush()
        self.wait_for(lambda: all(number in self.answers for number in requests))

    def request(self, **request: Any) -> dict[str, Any]:
        number = str(uuid.uuid4())
        self.say(type="control_request", request_id=number, request=request)
        try:
            self.wait_for(lambda: number in self.answers)
        except Interrupted:
            self.say(type="control_cancel_request", request_id=number)
            raise
        answer: dict[str, Any] = self.answers[number]
        return answer

    def do_take_in(self) -> None:
        """Wait for further words, which become part of this turn."""
        self.wait_for(lambda: self.waiting)
        with self.news:
            name, words = self.waiting.pop(0)
        self.uuids.append(name)
        if self.old:
            self.say(type="user", isReplay=True, uuid=name, message={"role": "user", "content": words})
        self.do_text(f"took in: {words}")

    def do_await_further(self) -> None:
        """Wait for further words, which are left to the next turn."""
        self.wait_for(lambda: self.waiting)

    def do_helper(self, path: str) -> None:
        """Start a process that is the CLI's own, not a tool's; its pid is written to the file."""
        self.note_process(subprocess.Popen(["sleep", "1000"]).pid, path)

    def do_daemon(self, path: str) -> None:
        """The shell tool starts a process that leaves its group and its parent; its pid is written to the file."""
        script = "setsid sleep 1000 >/dev/null 2>&1 & echo $!"
        self.note_process(int(subprocess.check_output(["sh", "-c", script])), path)

    def do_server(self, path: str) -> None:
        """The same, with a server that can start a worker: see `do_fork`."""
        script = 'until [ -e "$0.go" ]; do sleep 0.02; done; sleep 1000 & echo $! > "$0.worker"; wait'
        launch = 'setsid sh -c "$1" "$0" >/dev/null 2>&1 & echo $!'
        self.note_process(int(subprocess.check_output(["sh", "-c", launch, path, script])), path)

    def do_fork(self, path: str) -> None:
        """Have that server start a worker; its pid is written to `<path>.worker`."""
        self.do_touch(f"{path}.go")
        while not os.path.exists(f"{path}.worker") or not os.path.getsize(f"{path}.worker"):
            time.sleep(0.005)

    def note_process(self, pid: int, path: str) -> None:
        with open(path, "w") as file:
            file.write(str(pid))

    def do_touch(self, path: str) -> None:
        with open(path, "w"):
            pass


if __name__ == "__main__":
    Claude(sys.argv[1], sys.argv[2:]).run()
