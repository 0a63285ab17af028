"""One side of a JSON-RPC conversation: what it sends, and what it makes of what it receives."""

from __future__ import annotations

import json
from typing import Any

import pytest

from remoteclaw_sync.wire.jsonrpc import Answered, Called, Failed, Peer, Told


def sent(peer: Peer) -> list[dict[str, Any]]:
    return [json.loads(line) for line in peer.take().splitlines()]


def test_an_answer_finds_the_one_who_asked() -> None:
    peer = Peer()
    heard: list[Answered | Failed] = []
    first = peer.request("one", {"a": 1}, heard.append)
    second = peer.request("two")
    assert sent(peer) == [
        {"jsonrpc": "2.0", "id": first, "method": "one", "params": {"a": 1}},
        {"jsonrpc": "2.0", "id": second, "method": "two"},
    ]
    assert peer.waiting_for == ["one", "two"]
    assert peer.feed({"id": second, "result": None}) == Answered(second, "two", None)
    assert peer.feed({"id": first, "result": [7]}) == Answered(first, "one", [7])
    assert heard == [Answered(first, "one", [7])]
    assert peer.waiting_for == []


def test_an_error_is_the_answer_of_the_request_it_names() -> None:
    peer = Peer()
    heard: list[Answered | Failed] = []
    number = peer.request("one", then=heard.append)
    peer.feed({"id": number, "error": {"code": -32600, "message": "no", "data": {"why": "so"}}})
    assert heard == [Failed(number, "one", -32600, "no", {"why": "so"})]


@pytest.mark.parametrize("error", ["no", {}, {"code": "x", "message": None}, [1]])
def test_an_error_of_any_shape_has_words(error: Any) -> None:
    peer = Peer()
    heard = peer.feed({"id": peer.request("one"), "error": error})
    assert isinstance(heard, Failed)
    assert heard.message


def test_the_other_sides_requests_have_numbers_of_their_own() -> None:
    peer = Peer(envelope=False)
    number = peer.request("ours")
    assert peer.feed({"id": number, "method": "theirs", "params": {"x": 1}}) == Called(number, "theirs", {"x": 1})
    assert peer.feed({"id": "a", "method": "theirs"}) == Called("a", "theirs", {})
    peer.answer(number, {"ok": True})
    peer.refuse("a", -32601, "unknown")
    assert sent(peer)[1:] == [
        {"id": number, "result": {"ok": True}},
        {"id": "a", "error": {"code": -32601, "message": "unknown"}},
    ]
    assert peer.waiting_for == ["ours"]


def test_what_has_no_number_is_told() -> None:
    peer = Peer()
    assert peer.feed({"jsonrpc": "2.0", "method": "news", "params": {"x": 1}}) == Told("news", {"x": 1})
    assert peer.feed({"method": "news", "params": [1]}) == Told("news", {})
    peer.notify("initialized")
    assert sent(peer) == [{"jsonrpc": "2.0", "method": "initialized"}]


@pytest.mark.parametrize("message", [{}, {"id": 9, "result": 1}, {"id": [], "result": 1}, {"result": 1}, {"id": True}])
def test_what_answers_nothing_is_nothing(message: dict[str, Any]) -> None:
    peer = Peer()
    peer.request("one")
    assert peer.feed(message) is None
    assert peer.waiting_for == ["one"]


def test_every_message_is_one_line_of_ascii() -> None:
    peer = Peer()
    peer.notify("say", {"text": "a\nb\u2028\ud83d\x00ü"})
    said = peer.take()
    assert said.isascii()
    assert said.count(b"\n") == 1
    assert peer.take() == b""
    assert json.loads(said)["params"]["text"] == "a\nb\u2028\ud83d\x00ü"


def test_a_signal_handler_may_ask_while_the_clocks_of_other_requests_are_looked_at() -> None:
    peer = Peer()
    peer.request("one")

    class Interrupted(float):
        """A number whose use lets a handler run in between."""

        def __rsub__(self, other: float) -> float:
            peer.request("interrupt")
            return other - float(self)

    left, overdue = peer.waits(Interrupted(0.0))
    assert (left is not None, overdue) == (True, None)
    assert [message["method"] for message in sent(peer)] == ["one", "interrupt"]
    assert peer.waiting_for == ["one", "interrupt"]
