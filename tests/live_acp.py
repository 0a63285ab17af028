"""A fake agent that speaks ACP 1: as much of it as its client may rely on, and some of what agents do differently.

    python -I -S live_acp.py <folder> [arguments]

A prompt that is a JSON list holds the steps of the turn; any other prompt is answered with "re: " and the prompt. The
agent keeps in the folder everything it was sent (`<pid>.in`), how it was started (`<pid>.start`) and its sessions.
`FAKE_AGENT` in its environment is a JSON object that changes what it says: answers by method, and `quirks`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import uuid
from collections.abc import Callable
from typing import Any

CAPABILITIES = {
    "loadSession": True,
    "promptCapabilities": {"image": True},
    "mcpCapabilities": {"http": False},
}
MODES = {
    "currentModeId": "default",
    "availableModes": [{"id": name} for name in ("default", "plan", "autoEdit", "yolo")],
}
MODELS = {"currentModelId": "own-model", "availableModels": [{"modelId": "own-model"}]}


class Cancelled(Exception):
    """The turn has to end."""


class Agent:
    """One process, with any number of sessions."""

    def __init__(self, folder: str, arguments: list[str]) -> None:
        self.folder, self.arguments = folder, arguments
        self.changed = json.loads(os.environ.get("FAKE_AGENT", "{}"))
        self.quirks = self.changed.get("quirks", [])
        self.out = threading.Lock()
        self.news = threading.Condition()
        self.numbers = iter(range(10**6))
        self.answers: dict[int, Any] = {}
        self.sessions: dict[str, Session] = {}

    def say(self, **message: Any) -> None:
        with self.out:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            sys.stdout.flush()

    def note(self, kind: str, words: str) -> None:
        with open(os.path.join(self.folder, f"{os.getpid()}.{kind}"), "a") as file:
            file.write(words)

    def run(self) -> None:
        self.note("start", json.dumps({"argv": self.arguments, "env": dict(os.environ)}))
        if "exits" in self.quirks:
            sys.stderr.write("unknown argument: --acp\n")
            sys.exit(2)
        for line in sys.stdin:
            self.note("in", line)
            message = json.loads(line)
            if "method" not in message:
                with self.news:
                    self.answers[message["id"]] = message
                    self.news.notify_all()
            else:
                self.take(message.get("id"), message["method"], message.get("params", {}))

    def take(self, number: int | None, method: str, params: dict[str, Any]) -> None:
        session = self.sessions.get(params.get("sessionId", ""))
        if method == "session/cancel":
            if session is not None:
                session.cancel()
        elif method == "session/prompt" and session is not None:
            threading.Thread(target=session.work, args=(number, params["prompt"]), daemon=True).start()
        elif method in self.changed:
            self.begin(self.changed[method].get("result", {}).get("sessionId", ""))
            self.say(id=number, **self.changed[method])
        else:
            handler = getattr(self, "on_" + method.replace("/", "_"), None)
            result = None if handler is None else handler(params)
            if result is None:
                self.say(id=number, error={"code": -32601, "message": "Method not found"})
            else:
                self.say(id=number, **(result if "error" in result else {"result": result}))
            if method == "session/load" and "replays late" in self.quirks:
                self.replay(params["sessionId"])

    def on_initialize(self, params: dict[str, Any]) -> Any:
        return {
            "protocolVersion": 1,
            "agentCapabilities": CAPABILITIES,
            "authMethods": [{"id": "key", "name": "A key"}],
        }

    def on_session_new(self, params: dict[str, Any]) -> Any:
        return {"sessionId": self.begin(str(uuid.uuid4())), "modes": MODES, "models": MODELS}

    def on_session_load(self, params: dict[str, Any]) -> Any:
        if not os.path.exists(os.path.join(self.folder, params["sessionId"])):
            return {"error": {"code": -32603, "message": "Internal error", "data": {"details": "No such session"}}}
        self.begin(params["sessionId"])
        if "replays late" not in self.quirks:
            self.replay(params["sessionId"])
        if "tells usage" in self.quirks:
            told = {"promptTokens": 40, "completionTokens": 20}
            self.sessions[params["sessionId"]].tell("usage_update", _meta=told)
        return {"modes": MODES, "models": MODELS}

    def begin(self, name: str) -> str:
        self.sessions[name] = Session(self, name)
        return name

    def replay(self, name: str) -> None:
        for kind in ("user_message_chunk", "agent_message_chunk"):
            self.sessions[name].tell(kind, content={"type": "text", "text": "of history"})
        self.sessions[name].tell("tool_call", toolCallId="old", title="old", status="completed")

    def on_session_set_mode(self, params: dict[str, Any]) -> Any:
        self.sessions[params["sessionId"]].settings["mode"] = params["modeId"]
        return {}

    def on_session_set_model(self, params: dict[str, Any]) -> Any:
        self.sessions[params["sessionId"]].settings["model"] = params["modelId"]
        return {}

    def on_session_set_config_option(self, params: dict[str, Any]) -> Any:
        self.sessions[params["sessionId"]].settings[params["configId"]] = params["value"]
        return {"configOptions": []}


class Session:
    """A conversation."""

    def __init__(self, agent: Agent, name: str) -> None:
        self.agent, self.name = agent, name
        self.settings = {"mode": "default", "model": "own-model"}
        self.cancelled = self.is_deaf = False
        self.result: dict[str, Any] = {}

    def tell(self, kind: str, /, **update: Any) -> None:
        self.agent.say(
            method="session/update", params={"sessionId": self.name, "update": {"sessionUpdate": kind, **update}}
        )

    def cancel(self) -> None:
        with self.agent.news:
            self.cancelled = not self.is_deaf
            self.agent.news.notify_all()

    def work(self, number: int, prompt: list[dict[str, Any]]) -> None:
        with open(os.path.join(self.agent.folder, self.name), "a"):
            pass
        self.cancelled, self.result = False, {"stopReason": "end_turn"}
        words = prompt[-1].get("text", "") if prompt else ""
        error = None
        try:
            try:
                steps = json.loads(words)
            except ValueError:
                steps = [["text", "re: " + "|".join(block.get("text", block["type"]) for block in prompt)]]
            for name, *arguments in steps:
                getattr(self, f"do_{name}")(*arguments)
        except Cancelled:
            self.result["stopReason"] = "end_turn" if "ends cancelled turns well" in self.agent.quirks else "cancelled"
        except RuntimeError as failure:
            error = failure.args[0]
        self.agent.say(id=number, **({"result": self.result} if error is None else {"error": error}))

    def wait_for(self, condition: Callable[[], Any]) -> None:
        with self.agent.news:
            self.agent.news.wait_for(lambda: condition() or self.cancelled)
            if self.cancelled and not condition():
                raise Cancelled

    # --- what a turn is made of ---------------------------------------------------------------------------------

    def do_text(self, words: str, **more: Any) -> None:
        self.tell("agent_message_chunk", content={"type": "text", "text": words}, **more)

    def do_update(self, kind: str, update: dict[str, Any]) -> None:
        self.tell(kind, **update)

    def do_answer(self, result: dict[str, Any]) -> None:
        """What the prompt is answered with."""
        self.result |= result

    def do_fail(self, error: dict[str, Any]) -> None:
        raise RuntimeError(error)

    def do_settings(self) -> None:
        self.do_text(json.dumps(self.settings))

    def do_hang(self, call_id: str = "", until_second: bool = False) -> None:
        """Until the turn is cancelled, which this call is then said to have failed by."""
        try:
            self.wait_for(lambda: False)
        finally:
            if call_id:
                self.tell("tool_call_update", toolCallId=call_id, status="failed")
            if until_second:
                self.cancelled = False
                self.wait_for(lambda: False)

    def do_deafen(self) -> None:
        """Ignore all further cancels."""
        self.is_deaf = True

    def do_exit(self) -> None:
        os._exit(1)

    def do_ask(self, call: dict[str, Any], kinds: list[str]) -> None:
        """Ask for permission; the answer becomes text."""
        options = [{"optionId": f"id_of_{kind}", "name": "allow everything", "kind": kind} for kind in kinds]
        self.do_request("session/request_permission", {"toolCall": call, "options": options})

    def do_request(self, method: str, params: dict[str, Any]) -> None:
        """Send a request that no cancel releases; the answer becomes text."""
        number = next(self.agent.numbers)
        self.agent.say(id=number, method=method, params={"sessionId": self.name, **params})
        with self.agent.news:
            self.agent.news.wait_for(lambda: number in self.agent.answers)
        answer = self.agent.answers.pop(number)
        if self.cancelled:
            self.agent.note("late", json.dumps(answer))
            raise Cancelled
        if "keeps quiet" not in self.agent.quirks:
            self.do_text(json.dumps(answer["result"]["outcome"] if "result" in answer else answer["error"]["code"]))


if __name__ == "__main__":
    Agent(sys.argv[1], sys.argv[2:]).run()
