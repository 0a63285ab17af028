"""OpenCode's permission requests, without an OpenCode: answers that arrive when their turn is over."""

from __future__ import annotations

from typing import Any

from remoteclaw_sync import AgentPermissionEvent, Allow, Deny
from remoteclaw_sync.clis.opencode.live_asks import Asks
from remoteclaw_sync.engine.outcome import RunOutcome
from remoteclaw_sync.wire.jsonrpc import Answered


class Server:
    """What is sent, and the answers that it still owes."""

    def __init__(self) -> None:
        self.owed: list[tuple[str, Any]] = []
        self.asks = Asks(self.take, {}, lambda event: None)
        self.asks.root = "s"

    def take(self, method: str, then: Any = None, body: Any = None, limit: float | None = None) -> None:
        self.owed.append((method, then))

    def ask(self, name: str, decision: Allow | Deny) -> None:
        properties = {"id": name, "sessionID": "s", "permission": "bash"}
        (event,) = self.asks.on_asked(properties, "", lambda call: None, is_wanted=True)
        assert isinstance(event, AgentPermissionEvent)
        self.asks.answer(event.request, decision)

    def answer(self, part: str) -> None:
        """The oldest request with these words in it."""
        method, then = next(owed for owed in self.owed if part in owed[0])
        self.owed.remove((method, then))
        then(Answered(1, method, {"status": 200}))


def test_a_late_answer_about_an_old_turn_does_not_hold_back_a_refusal() -> None:
    server = Server()
    server.asks.begin_turn(RunOutcome())
    server.ask("one", Allow())
    server.asks.begin_turn(RunOutcome())
    server.ask("two", Allow())
    server.answer("one")
    server.answer("two")
    server.ask("three", Deny("No."))
    server.answer("WAIT")
    assert any("three" in method for method, _ in server.owed)
