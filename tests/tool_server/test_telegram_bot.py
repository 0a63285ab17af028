"""A bot built on a library that uses threads (pyTelegramBotAPI), against a loopback stand-in for Telegram's API."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from remoteclaw_sync.chat.bridge import ChannelBridge
from remoteclaw_sync.types import ChannelMessage
from tests.fakes import PATIENCE
from tests.tool_server.agents import FakeAgent, journal

telebot = pytest.importorskip("telebot", reason="pyTelegramBotAPI is not installed (extra `test-bots`)")

CHATS, TURNS = 40, 3


class Telegram:
    """People in chats: each says something, waits for the answer, and continues."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.updates: list[dict[str, Any]] = []
        self.answers: dict[int, list[str]] = {}
        for chat in range(CHATS):
            self.say(chat, 0)

    def say(self, chat: int, turn: int) -> None:
        sender = {"id": chat, "is_bot": False, "first_name": f"user{chat}"}
        message = {
            "message_id": chat * 100 + turn,
            "date": 0,
            "chat": {"id": chat, "type": "private"},
            "from": sender,
            "text": f"chat{chat} {turn}",
        }
        with self.lock:
            self.updates.append({"update_id": len(self.updates) + 1, "message": message})
            self.lock.notify_all()

    def get_updates(self, offset: int) -> list[dict[str, Any]]:
        with self.lock:
            self.lock.wait_for(lambda: len(self.updates) >= offset or self.finished, timeout=1)
            return self.updates[max(0, offset - 1) :]

    def answer(self, chat: int, text: str) -> None:
        with self.lock:
            answers = self.answers.setdefault(chat, [])
            answers.append(text)
            self.lock.notify_all()
        if len(answers) < TURNS:
            self.say(chat, len(answers))

    @property
    def finished(self) -> bool:
        return sum(map(len, self.answers.values())) >= CHATS * TURNS

    def wait(self) -> bool:
        with self.lock:
            return self.lock.wait_for(lambda: self.finished, timeout=2 * PATIENCE)


@pytest.fixture
def telegram() -> Iterator[tuple[Telegram, str]]:
    state = Telegram()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            path, _, query = self.path.partition("?")
            values = {name: items[0] for name, items in {**parse_qs(query), **parse_qs(body)}.items()}
            result: Any = True
            if path.endswith("/getUpdates"):
                result = state.get_updates(int(values.get("offset", 1)))
            elif path.endswith("/getMe"):
                result = {"id": 1, "is_bot": True, "first_name": "bot", "username": "bot"}
            elif path.endswith("/sendMessage"):
                chat = int(values["chat_id"])
                state.answer(chat, values["text"])
                result = {"message_id": 1, "date": 0, "chat": {"id": chat, "type": "private"}, "text": values["text"]}
            data = json.dumps({"ok": True, "result": result}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield state, f"http://127.0.0.1:{server.server_port}/bot{{0}}/{{1}}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # The library leaves its HTTP connections to the GC.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_forty_chats_of_a_threaded_bot_are_answered_in_order_each_in_its_own_session(
    telegram: tuple[Telegram, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    people, url = telegram
    monkeypatch.setattr(telebot.apihelper, "API_URL", url)
    state = tmp_path / "state"
    state.mkdir()
    bot = telebot.TeleBot("1:token", threaded=True, num_threads=CHATS)
    with ChannelBridge(FakeAgent(state), session_map=tmp_path / "sessions.db", workspace_dir=tmp_path) as bridge:

        def on_message(incoming: Any) -> None:
            sender, chat = str(incoming.from_user.id), str(incoming.chat.id)
            result = bridge.handle(ChannelMessage(incoming.text, provider="telegram", channel_id=chat, sender=sender))
            for payload in result.payloads:
                bot.send_message(incoming.chat.id, payload.text)

        bot.register_message_handler(on_message, func=lambda incoming: True)
        polling = threading.Thread(target=bot.infinity_polling, kwargs={"timeout": 1, "long_polling_timeout": 1})
        polling.start()
        try:
            assert people.wait()
        finally:
            bot.stop_bot()
            polling.join(PATIENCE)
            telebot.apihelper._get_req_session(reset=True).close()
    expected = {chat: [f"{turn + 1}: chat{chat} {turn}" for turn in range(TURNS)] for chat in range(CHATS)}
    assert people.answers == expected
    sessions = {prompt.split()[0]: set[str]() for _, _, prompt in journal(state)}
    for _, session, prompt in journal(state):
        sessions[prompt.split()[0]].add(session)
    assert len(sessions) == CHATS
    assert all(len(found) == 1 for found in sessions.values())
