"""Finds the session that an ACP agent's line is for, and does the handshake that all sessions share."""

from __future__ import annotations

import re

from ..._version import __version__
from ...engine.switchboard import EVERYONE, Address, Switchboard, asked_by
from ...wire.fields import Message, mapping, text
from ...wire.jsonrpc import METHOD_NOT_FOUND, Answered, Failed, RequestId

INITIALIZE = "initialize"  # Also the id under which all sessions get its answer.
PERMISSION = "session/request_permission"
VERSION = 1
# The parts of a Peer's lines that we need: which conversation it asks for, and which request it answers.
NAMED = re.compile(
    rb'\{"jsonrpc": "2\.0", "id": (\d+), "method": "session/(load|resume|prompt)", "params": \{"sessionId": "([^"\\]+)"'
)
ANSWER = re.compile(rb'\{"jsonrpc": "2\.0", "id": (\d+|"[^"\\]*"), "result"')

CANCELLED = {"outcome": {"outcome": "cancelled"}}


class AcpSwitchboard(Switchboard):
    """Routes by `sessionId`."""

    def __init__(self) -> None:
        super().__init__()
        self._is_broken = False
        self._closes = False  # The agent can be told to forget a session.
        self._is_open = False
        self._sessions: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._wanted: dict[tuple[int, int], str] = {}  # By session and request: the conversation to resume.
        self._prompts: dict[int, set[int]] = {}  # Requests without an answer yet, by session.
        self._asked: dict[RequestId, int] = {}  # The agent's open requests, and who has to answer.
        self._leaving: set[int] = set()

    # --- the handshake ----------------------------------------------------------------------------------------

    @property
    def is_usable(self) -> bool:
        return not self._is_broken

    def opening(self) -> bytes:
        # We offer no files and no terminals: agents would use ours for some of their tools, and not for others.
        capabilities = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
        about_us = {"name": "remoteclaw_sync", "title": "remoteclaw_sync", "version": __version__}
        given = {"protocolVersion": VERSION, "clientCapabilities": capabilities, "clientInfo": about_us}
        self.peer.request(INITIALIZE, given, self._on_initialized)
        return self.take()

    def _on_initialized(self, answer: Answered | Failed) -> None:
        self._is_open = True
        result = answer.result if isinstance(answer, Answered) and isinstance(answer.result, dict) else {}
        self._is_broken = result.get("protocolVersion") != VERSION
        can = mapping(mapping(result, "agentCapabilities"), "sessionCapabilities")
        self._closes = can.get("close") is not None

    # --- whose a line is --------------------------------------------------------------------------------------

    def route(self, message: Message) -> Address:
        method, name = text(message, "method"), text(mapping(message, "params"), "sessionId")
        if not method:
            return self._route_answer(message)
        session = self._sessions.get(name)
        number = message.get("id")
        if session is not None and session not in self._leaving:
            if method == PERMISSION and isinstance(number, int | str):
                self._asked[number] = session
            return session
        if isinstance(number, int | str):  # Always answer, or the agent would wait forever.
            if method == PERMISSION:
                self.peer.answer(number, CANCELLED)
            else:
                self.peer.refuse(number, METHOD_NOT_FOUND, f"this client does not know {method!r}")
            return None
        return name if name and session is None else None

    def _route_answer(self, message: Message) -> Address:
        number = message.get("id")
        if type(number) is not int:
            return None
        session, own = asked_by(number)
        if session == 0:
            is_handshake = not self._is_open
            heard = self.peer.feed(message)
            if heard is None or not is_handshake:
                return None
            message["id"] = heard.method
            return EVERYONE
        message["id"] = own
        wanted = self._wanted.pop((session, own), "")
        name = text(mapping(message, "result"), "sessionId") or ("" if "error" in message else wanted)
        if name and session not in self._names:
            self._claim(name, session)
        self._prompts.get(session, set()).discard(own)
        if session in self._leaving:
            self._see_off(session)
        return session

    def _claim(self, name: str, session: int) -> None:
        self._names[session] = name
        self._sessions[name] = session
        self.claimed.append((name, session))

    def passed_on(self, session: int, line: bytes) -> None:
        if (named := NAMED.match(line)) is not None:
            if named[2] == b"prompt":
                self._prompts.setdefault(session, set()).add(int(named[1]))
            else:
                self._wanted[session, int(named[1])] = named[3].decode()
        elif (answer := ANSWER.match(line)) is not None:
            number = answer[1].decode()
            self._asked.pop(number[1:-1] if number.startswith('"') else int(number), None)

    # --- a session that leaves --------------------------------------------------------------------------------

    def knows(self, session: int) -> bool:
        return session in self._names

    def release(self, session: int) -> None:
        """Cancel the turn. Then ask the agent to forget the session, if it can."""
        self._leaving.add(session)
        name = self._names.get(session)
        if name is None:
            return  # It is being opened: see `_route_answer`.
        if self._prompts.get(session):
            self.peer.notify("session/cancel", {"sessionId": name})
        for number in [number for number, owner in self._asked.items() if owner == session]:
            del self._asked[number]
            self.peer.answer(number, CANCELLED)
        self._see_off(session)

    def _see_off(self, session: int) -> None:
        if self._prompts.get(session):
            return
        name = self._names.pop(session, None)
        self._sessions = {known: owner for known, owner in self._sessions.items() if owner != session}
        if name is None or not self._closes:
            self.released.add(session)
            return
        self.peer.request("session/close", {"sessionId": name}, lambda answer: self.released.add(session))
