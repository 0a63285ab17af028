"""A fake `codex app-server`: it speaks as much of the real one's protocol (0.169.0) as its client may rely on.

    python -I -S live_codex.py <folder> app-server [further arguments]

A prompt that is a JSON list holds the steps of the turn; any other prompt is answered with "re: " and the prompt,
unless the folder has the steps of that prompt (`<prompt>.steps`). The fake keeps in the folder everything it was sent
(`<pid>.in`), how it was started (`<pid>.start`) and its threads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from typing import Any


class Interrupted(Exception):
    """The turn has to end."""


class Codex:
    """One process, with any number of threads."""

    def __init__(self, folder: str, arguments: list[str]) -> None:
        self.folder, self.arguments = folder, arguments
        self.out = threading.Lock()
        self.news = threading.Condition()
        self.answers: dict[int, Any] = {}
        self.threads: dict[str, Thread] = {}

    def say(self, **message: Any) -> None:
        with self.out:
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()

    def note(self, kind: str, words: str) -> None:
        with open(os.path.join(self.folder, f"{os.getpid()}.{kind}"), "a") as file:
            file.write(words)

    def beside(self, prompt: str) -> str:
        """The steps that the folder has for this prompt, or else the prompt itself."""
        path = os.path.join(self.folder, prompt + ".steps")
        if not os.path.exists(path):
            return prompt
        with open(path) as file:
            return file.read()

    def run(self) -> None:
        self.note("start", json.dumps({"argv": self.arguments, "env": dict(os.environ)}))
        if "app-server" not in self.arguments or "FAKE_NO_SERVER" in os.environ:
            sys.stderr.write("error: unrecognized subcommand 'app-server'\n")
            sys.exit(2)
        for line in sys.stdin:
            self.note("in", line)
            message = json.loads(line)
            if "method" not in message:
                with self.news:
                    self.answers[message["id"]] = message
                    self.news.notify_all()
            elif "id" in message:
                self.take(message["id"], message["method"], message.get("params", {}))

    def take(self, number: int, method: str, params: dict[str, Any]) -> None:
        handler = getattr(self, "on_" + method.replace("/", "_"), None)
        thread = self.threads.get(params.get("threadId", ""))
        if handler is None and thread is not None:
            handler = getattr(thread, "on_" + method.replace("/", "_"), None)
        result = {} if handler is None else handler(params)
        if result is DEAF:
            return
        if isinstance(result, str):
            self.say(id=number, error={"code": -32600, "message": result})
        else:
            self.say(id=number, result=result)
        if method == "turn/start" and not isinstance(result, str) and thread is not None:
            threading.Thread(target=thread.work, args=(params["input"][0]["text"],), daemon=True).start()
        if method == "thread/unsubscribe" and thread is not None:
            del self.threads[thread.name]
            self.say(method="thread/closed", params={"threadId": thread.name})

    def on_initialize(self, params: dict[str, Any]) -> Any:
        return {"userAgent": f"remoteclaw_sync/{os.environ.get('FAKE_VERSION', '0.169.0')} (Fake)"}

    def on_thread_start(self, params: dict[str, Any]) -> Any:
        return self.begin(str(uuid.uuid4()), params)

    def on_thread_resume(self, params: dict[str, Any]) -> Any:
        if not os.path.exists(os.path.join(self.folder, params["threadId"])):
            return f"no rollout found for thread id {params['threadId']}"
        return self.begin(params["threadId"], params)

    def begin(self, name: str, params: dict[str, Any]) -> Any:
        broken = [name for name in params.get("config", {}).get("mcp_servers", {}) if name.startswith("broken")]
        if broken:
            return f"required MCP servers failed to initialize: {broken[0]}: no such file"
        if params.get("model") == "none that answers":
            return DEAF
        self.threads[name] = thread = Thread(self, name, params)
        if thread.settings["model"].startswith("early"):
            thread.tell("warning", message=f"words for {thread.settings['model']}")
        return {"thread": {"id": name}, "model": thread.settings["model"], "sandbox": {"type": "readOnly"}}


DEAF = object()  # No answer at all.


class Thread:
    """A conversation."""

    def __init__(self, codex: Codex, name: str, params: dict[str, Any]) -> None:
        self.codex, self.name, self.news, self.answers = codex, name, codex.news, codex.answers
        self.settings = {"model": "fake-default", **params}
        self.turn_id: str | None = None
        self.steered: list[str] = []
        self.interrupted = self.is_deaf = False
        self.total = 0

    def tell(self, method: str, **params: Any) -> None:
        self.codex.say(method=method, params={"threadId": self.name, "turnId": self.turn_id, **params})

    def on_turn_start(self, params: dict[str, Any]) -> Any:
        if params["input"][0]["text"] == "too long":
            return "input_too_large"
        with open(os.path.join(self.codex.folder, self.name), "a"):
            pass
        self.settings |= params
        self.interrupted, self.turn_id = False, str(uuid.uuid4())
        return {"turn": {"id": self.turn_id}}

    def on_turn_interrupt(self, params: dict[str, Any]) -> Any:
        with self.news:
            self.interrupted = not self.is_deaf
            self.news.notify_all()
        return DEAF if self.is_deaf else {}

    def on_turn_steer(self, params: dict[str, Any]) -> Any:
        if params["expectedTurnId"] != self.turn_id:
            return "no active turn to steer"
        with self.news:
            self.steered.append(params["input"][0]["text"])
            self.news.notify_all()
        return {"turnId": self.turn_id}

    # --- a turn ---------------------------------------------------------------------------------------------------

    def work(self, words: str) -> None:
        turn: dict[str, Any] = {"id": self.turn_id, "status": "completed", "error": None}
        self.tell("turn/started", turn=turn)
        try:
            try:
                steps = json.loads(self.codex.beside(words))
            except ValueError:
                steps = [["text", f"re: {words}"]]
            for name, *arguments in steps:
                getattr(self, f"do_{name}")(*arguments)
        except Interrupted:
            turn["status"] = "interrupted"
        except RuntimeError as error:
            turn |= {"status": "failed", "error": {"message": str(error)}}
        self.total += 10
        self.tell("thread/tokenUsage/updated", tokenUsage={"total": {"inputTokens": self.total, "outputTokens": 1}})
        name, self.turn_id = self.turn_id, None
        self.tell("turn/completed", turnId=name, turn=turn)

    def wait_for(self, condition: Callable[[], Any]) -> None:
        with self.news:
            self.news.wait_for(lambda: condition() or self.interrupted)
            if self.interrupted:
                raise Interrupted

    def do_text(self, words: str, item: str = "msg") -> None:
        self.do_delta(words, item)
        self.do_item("completed", {"type": "agentMessage", "id": item, "text": words})

    def do_delta(self, words: str, item: str = "msg") -> None:
        self.tell("item/agentMessage/delta", itemId=item, delta=words)

    def do_item(self, when: str, item: dict[str, Any], **more: Any) -> None:
        self.tell(f"item/{when}", item=item, **more)

    def do_late(self, item: dict[str, Any]) -> None:
        self.tell("item/completed", item=item, turnId=self.last_turn)

    def do_remember_turn(self) -> None:
        self.last_turn = self.turn_id

    def do_settings(self) -> None:
        self.do_text(json.dumps({key: value for key, value in self.settings.items() if key != "input"}))

    def do_tell(self, method: str, params: dict[str, Any]) -> None:
        self.tell(method, **params)

    def do_fail(self, message: str) -> None:
        self.tell("error", error={"message": message}, willRetry=False)
        raise RuntimeError(message)

    def do_hang(self) -> None:
        self.wait_for(lambda: False)

    def do_deafen(self) -> None:
        """Ignore all further interrupts."""
        self.is_deaf = True

    def do_count(self, words: str, number: int) -> None:
        for count in range(number):
            self.do_delta(f"{words}{count} ")

    def do_agent(self, call: str, *steps: list[Any]) -> None:
        """The call that starts a sub-agent, and the sub-agent's steps."""
        thread = str(uuid.uuid4())
        item = {"type": "collabAgentToolCall", "id": call, "tool": "spawnAgent", "prompt": "go"}
        self.tell("item/started", item={**item, "status": "inProgress", "receiverThreadIds": []})
        self.tell("item/completed", item={**item, "status": "completed", "receiverThreadIds": [thread]})
        self.do_child(*steps, thread=thread)

    def do_child(self, *steps: list[Any], thread: str | None = None) -> None:
        """A sub-agent that does these steps."""
        child = Thread(self.codex, thread or str(uuid.uuid4()), {})
        child.turn_id = str(uuid.uuid4())
        self.codex.threads[child.name] = child
        child.tell("thread/status/changed")
        turn = {"id": child.turn_id, "rootTurnId": self.turn_id, "status": "completed", "error": None}
        child.tell("turn/started", turn=turn)
        for name, *arguments in steps:
            getattr(child, f"do_{name}")(*arguments)
        child.tell("turn/completed", turn=turn)

    def do_folder(self, path: str) -> None:
        os.makedirs(path)

    def do_stderr(self, words: str) -> None:
        sys.stderr.write(words)
        sys.stderr.flush()

    def do_exit(self) -> None:
        os._exit(1)

    def do_ask(self, number: int, method: str, params: dict[str, Any]) -> None:
        """Send a request; the answer becomes text."""
        self.codex.say(id=number, method=method, params={"threadId": self.name, "turnId": self.turn_id, **params})
        self.wait_for(lambda: number in self.answers)
        answer = self.answers.pop(number)
        self.do_text(json.dumps(answer.get("result") or answer["error"]["code"]), f"answer_{number}")

    def do_daemon(self, path: str) -> None:
        """The shell tool starts a process that leaves its group and its parent; its pid is written to the file."""
        script = "setsid sleep 1000 >/dev/null 2>&1 & echo $!"
        env = {**os.environ, "CODEX_SESSION_ID": self.name}
        with open(path, "wb") as file:
            file.write(subprocess.check_output(["sh", "-c", script], env=env))

    def do_take_in(self) -> None:
        self.wait_for(lambda: self.steered)
        self.do_text(f"took in: {self.steered.pop(0)}", "steered")


if __name__ == "__main__":
    Codex(sys.argv[1], sys.argv[2:]).run()
