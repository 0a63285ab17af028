"""Finds the session that a line of `codex app-server` (0.169.0) is for, and does the handshake that all share.

A session has its own thread and those of its sub-agents, whose turns name the session's turn they belong to.
"""

from __future__ import annotations

import re

import attrs

from ... import errors
from ..._version import __version__
from ...engine.switchboard import EVERYONE, Address, Switchboard, asked_by
from ...types import ErrorSubtype
from ...versions import is_below
from ...wire.fields import Message, mapping, text
from ...wire.jsonrpc import METHOD_NOT_FOUND, Answered, Failed
from .facts import FACTS

NEEDED = FACTS.support[0].least  # Older ones have an app server with another protocol, or none.

USER_AGENT = re.compile(r"[^/]+/(\d+(?:\.\d+)+)")

INITIALIZE, LOGIN = "initialize", "account/login/start"  # Also the ids under which all sessions get the answers.
# These concern all sessions, if they name no thread.
FOR_EVERYONE = frozenset({"warning", "configWarning", "deprecationNotice"})


class CodexSwitchboard(Switchboard):
    """Routes by `threadId`.

    Args:
        api_key: the key to log in with, which the app server does not read from its environment.
    """

    def __init__(self, api_key: str | None) -> None:
        super().__init__(envelope=False)
        self._api_key = api_key
        self._is_broken = False
        self._is_open = False  # The handshake is over.
        self._sessions: dict[str, int] = {}  # By thread, including those of sub-agents.
        self._threads: dict[int, str] = {}  # The session's own thread.
        self._roots: dict[int, str] = {}  # The session's last turn.
        self._running: dict[str, str] = {}  # By thread: its running turn.
        self._leaving: set[int] = set()
        self._dismissed: set[int] = set()  # Sessions whose thread was released.

    # --- the handshake ----------------------------------------------------------------------------------------

    @property
    def is_usable(self) -> bool:
        return not self._is_broken

    def opening(self) -> bytes:
        about_us = {"name": "remoteclaw_sync", "title": None, "version": __version__}
        capabilities = {"experimentalApi": True, "optOutNotificationMethods": ["account/rateLimits/updated"]}
        self.peer.request(INITIALIZE, {"clientInfo": about_us, "capabilities": capabilities}, self._on_initialized)
        return self.take()

    def _on_initialized(self, answer: Answered | Failed) -> None:
        self._is_broken = refusal(answer) is not None
        if self._is_broken:
            return
        self.peer.notify("initialized")
        if self._api_key is None:
            self._is_open = True
            return
        self.peer.request(LOGIN, {"type": "apiKey", "apiKey": self._api_key}, self._on_login)

    def _on_login(self, answer: Answered | Failed) -> None:
        self._is_broken = isinstance(answer, Failed)
        self._is_open = True

    # --- whose a line is --------------------------------------------------------------------------------------

    def route(self, message: Message) -> Address:
        method, params = text(message, "method"), mapping(message, "params")
        if not method:
            return self._route_answer(message)
        thread = text(params, "threadId")
        session = self._sessions.get(thread)
        if method == "turn/started":
            session = self._on_turn_begun(thread, mapping(params, "turn"), session)
        elif method == "turn/completed":
            self._on_turn_over(thread)
        elif method == "thread/closed":
            self._on_closed(thread)
        if session is not None and session not in self._leaving:
            return session
        number = message.get("id")
        if isinstance(number, int | str):  # Always answer, or Codex would wait forever.
            self.peer.refuse(number, METHOD_NOT_FOUND, "nobody listens to this thread any more")
            return None
        if not thread:
            return EVERYONE if method in FOR_EVERYONE else None
        return thread if session is None else None

    def _route_answer(self, message: Message) -> Address:
        number = message.get("id")
        if type(number) is not int:
            return None
        session, own = asked_by(number)
        if session == 0:
            return self._route_own(message)
        message["id"] = own
        result = mapping(message, "result")
        if (thread := text(mapping(result, "thread"), "id")) and session not in self._threads:
            self._threads[session] = thread
            self._claim(thread, session)
            if session in self._leaving:
                self.release(session)
        elif session in self._leaving and session not in self._threads:
            self.released.add(session)  # Codex refused it a thread.
        if turn := text(mapping(result, "turn"), "id"):
            self._roots[session] = turn
        return session

    def _route_own(self, message: Message) -> Address:
        is_handshake = not self._is_open
        heard = self.peer.feed(message)
        if heard is None or not is_handshake:
            return None
        message["id"] = heard.method
        return EVERYONE

    def _claim(self, thread: str, session: int) -> None:
        self._sessions[thread] = session
        self.claimed.append((thread, session))

    def _on_turn_begun(self, thread: str, turn: Message, session: int | None) -> int | None:
        if session is None:
            root = text(turn, "rootTurnId")
            session = next((known for known, last in self._roots.items() if last == root), None)
            if session is None:
                return None
            self._claim(thread, session)
        self._running[thread] = text(turn, "id")
        if thread == self._threads.get(session):
            self._roots[session] = text(turn, "id")
        if session in self._leaving:
            self._stop(thread, session)
        return session

    def _on_turn_over(self, thread: str) -> None:
        self._running.pop(thread, None)
        session = self._sessions.get(thread)
        if session is not None and session in self._leaving and thread == self._threads.get(session):
            self._let_go_of(session)

    # --- a session that leaves --------------------------------------------------------------------------------

    def knows(self, session: int) -> bool:
        return session in self._threads

    def release(self, session: int) -> None:
        """End the turn, the sub-agents and the commands; after that another process can use the thread."""
        self._leaving.add(session)
        if session in self._threads:  # Otherwise it is being opened: see `_route_answer`.
            for thread in self._threads_of(session):
                self._stop(thread, session)

    def _threads_of(self, session: int) -> list[str]:
        return [thread for thread, owner in self._sessions.items() if owner == session]

    def _stop(self, thread: str, session: int) -> None:
        # "" stands for any turn, even one that has not begun yet and whose id Codex would refuse.
        def stopped(answer: Answered | Failed) -> None:
            if thread == self._threads.get(session) and thread not in self._running:
                self._let_go_of(session)

        self.peer.request("turn/interrupt", {"threadId": thread, "turnId": self._running.get(thread, "")}, stopped)
        self.peer.request("thread/backgroundTerminals/clean", {"threadId": thread})

    def _let_go_of(self, session: int) -> None:
        own = self._threads.get(session)
        if own is None or session in self._dismissed:
            return
        self._dismissed.add(session)
        for thread in self._threads_of(session):
            self.peer.request("thread/backgroundTerminals/clean", {"threadId": thread})

        def let_go(answer: Answered | Failed) -> None:
            if isinstance(answer, Failed):
                self._forget(session)  # Before 0.118 Codex cannot do this, and keeps the thread until it exits.
            else:
                self.promised.add(session)

        self.peer.request("thread/unsubscribe", {"threadId": own}, let_go)

    def _on_closed(self, thread: str) -> None:
        session = self._sessions.get(thread)
        if session is not None and session in self._leaving and thread == self._threads.get(session):
            self._forget(session)

    def _forget(self, session: int) -> None:
        self._sessions = {thread: owner for thread, owner in self._sessions.items() if owner != session}
        self._threads.pop(session, None)
        self._roots.pop(session, None)
        self.released.add(session)


@attrs.frozen
class Refusal:
    """Why no session is possible."""

    message: str
    code: str
    kind: ErrorSubtype | None = None


def refusal(answer: Answered | Failed) -> Refusal | None:
    """What is wrong with the answer to a handshake; None if nothing is."""
    if isinstance(answer, Failed):
        if answer.method == LOGIN:
            return Refusal(f"codex did not take the API key: {answer.message}", errors.CLI_ERROR, "auth")
        return Refusal(f"codex app-server: {answer.message}", errors.CLI_ERROR)
    found = USER_AGENT.match(text(answer.result, "userAgent")) if isinstance(answer.result, dict) else None
    if found is not None and is_below(found[1], NEEDED):
        message = f"live sessions need Codex {NEEDED} or newer, and this is {found[1]}"
        return Refusal(message, errors.UNSUPPORTED_OPTION, "config")
    return None
