"""The chat page's conversations with agents: which prompts were sent, and in which session of which CLI.

One JSON file per conversation, in a private folder. It does not contain the agents' output, which is in the files of
the runs (see `journal`).
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs

from ..errors import RemoteClawError, SessionBusyError
from ..types import AgentEvent, AgentRunResult
from .background import end

logger = logging.getLogger(__name__)

SUFFIX = ".chat"
CHAT_ID = re.compile(r"[0-9a-f]{16}")
TITLE_LENGTH = 80


class UnknownConversationError(RemoteClawError, LookupError):
    """There is no such conversation, or it was deleted."""


@attrs.define
class AskedTurn:
    """A prompt, and what the stream of its run does not contain.

    Args:
        further: the words added while the agent worked, each with the number of events there were by then.
        answers: what was decided, by the ids of the requests.
        tools: when each tool call began and ended, in seconds since the turn began.
    """

    prompt: str
    provider: str
    images: list[str] = attrs.field(factory=list)
    run_id: str = ""  # While it is empty, the turn is not shown.
    began: float = attrs.field(factory=time.time)
    further: list[tuple[int, str]] = attrs.field(factory=list)
    answers: dict[str, str] = attrs.field(factory=dict)
    tools: dict[str, list[float]] = attrs.field(factory=dict)


@attrs.define
class Conversation:
    """Turns with one agent, or with several in alternation: each CLI knows only its own session."""

    id: str
    title: str
    provider: str
    model: str | None = None
    permission_mode: str = "default"
    changed: float = attrs.field(factory=time.time)
    sessions: dict[str, str] = attrs.field(factory=dict)
    turns: list[AskedTurn] = attrs.field(factory=list)
    is_running: bool = False

    def summary(self) -> dict[str, Any]:
        """What a list of conversations shows, plus the run of the last turn."""
        found = attrs.asdict(self, filter=lambda attribute, _: attribute.name not in ("turns", "sessions"))
        return {**found, "run_id": self.turns[-1].run_id if self.turns else ""}


class Conversations:
    """All conversations. Thread-safe."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.RLock()
        os.makedirs(folder, 0o700, exist_ok=True)
        self._known = {one.id: one for one in self._stored()}

    def list(self) -> list[dict[str, Any]]:
        """The summaries of all conversations, the most recent first."""
        with self._lock:
            return [one.summary() for one in sorted(self._known.values(), key=lambda one: one.changed, reverse=True)]

    def details(self, conversation_id: str) -> dict[str, Any]:
        """Everything about a conversation, as JSON values. Raises UnknownConversationError."""
        with self._lock:
            found = attrs.asdict(self._find(conversation_id))
            return {**found, "turns": [turn for turn in found["turns"] if turn["run_id"]]}

    def session_id(self, conversation_id: str, provider: str) -> str | None:
        """The session that the CLI resumes."""
        with self._lock:
            return self._find(conversation_id).sessions.get(provider)

    def begin(self, conversation_id: str | None, turn: AskedTurn, **settings: Any) -> str:
        """Add a turn to a conversation (None: a new one). Raises SessionBusyError, UnknownConversationError."""
        with self._lock:
            if conversation_id is None:
                title = " ".join(turn.prompt.split())[:TITLE_LENGTH]
                conversation = Conversation(secrets.token_hex(8), title, **settings)
            else:
                conversation = self._find(conversation_id)
            if conversation.is_running:
                raise SessionBusyError("the agent is still at work in this conversation")
            conversation.is_running = True
            conversation.turns.append(turn)
            self._known[conversation.id] = conversation
            self._set(conversation, settings)
            return conversation.id

    def began(self, conversation_id: str, turn: AskedTurn, run_id: str) -> None:
        """Note the run of a turn."""

        def note(_: Conversation) -> None:
            turn.run_id = run_id

        self._change(conversation_id, note)

    def not_begun(self, conversation_id: str) -> None:
        """Undo `begin`: the run could not be started. A conversation without any turn is forgotten."""
        with self._lock:
            conversation = self._find(conversation_id)
            conversation.is_running = False
            conversation.turns.pop()
            if not conversation.turns:
                del self._known[conversation_id]

    def change(self, conversation_id: str, **settings: Any) -> None:
        """Change settings, or the title."""
        self._change(conversation_id, lambda one: self._set(one, settings))

    def delete(self, conversation_id: str) -> Conversation:
        """Forget a conversation; returns what was known about it."""
        with self._lock:
            conversation = self._find(conversation_id)
            del self._known[conversation_id]
            try:
                os.unlink(self._path(conversation_id))
            except FileNotFoundError:
                pass
            return conversation

    def note_answer(self, run_id: str, request_id: str, answer: str) -> None:
        """Store a decision, to show it when the conversation is opened later."""
        self._note(run_id, lambda turn: turn.answers.update({request_id: answer}))

    def note_further(self, run_id: str, events: int, text: str) -> None:
        """Store words that were added while the agent worked, for the same purpose."""
        self._note(run_id, lambda turn: turn.further.append((events, text)))

    def watch(self, conversation_id: str, turn: AskedTurn, run: Iterable[AgentEvent]) -> WatchedRun:
        """Wrap the run, so that the session's id, the end and the times of tool calls are recorded here."""

        def ended(result: AgentRunResult | None) -> None:
            def note(conversation: Conversation) -> None:
                conversation.is_running = False
                if result is not None and result.session_id is not None:
                    conversation.sessions[turn.provider] = result.session_id

            try:
                self._change(conversation_id, note)
            except UnknownConversationError:
                pass  # Deleted meanwhile.

        return WatchedRun(run, turn, ended)

    # --- internals ------------------------------------------------------------------------------------------

    def _find(self, conversation_id: str) -> Conversation:
        try:
            return self._known[conversation_id]
        except KeyError:
            raise UnknownConversationError("there is no such conversation") from None

    def _set(self, conversation: Conversation, settings: dict[str, Any]) -> None:
        for name, value in settings.items():
            setattr(conversation, name, value)

    def _change(self, conversation_id: str, change: Callable[[Conversation], object]) -> None:
        with self._lock:
            conversation = self._find(conversation_id)
            change(conversation)
            conversation.changed = time.time()
            self._store(conversation)

    def _note(self, run_id: str, change: Callable[[AskedTurn], object]) -> None:
        with self._lock:
            for conversation in self._known.values():
                for turn in conversation.turns:
                    if turn.run_id == run_id:
                        change(turn)
                        self._store(conversation)
                        return

    def _path(self, conversation_id: str) -> str:
        return os.path.join(self._folder, conversation_id + SUFFIX)

    def _store(self, conversation: Conversation) -> None:
        """Write the file, as a whole or not at all. A full disk costs the stored list, but not the run."""
        path = self._path(conversation.id)
        try:
            with open(os.open(path + ".new", os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600), "w") as file:
                json.dump(attrs.asdict(conversation), file)
            os.replace(path + ".new", path)
        except OSError as error:
            logger.warning("a conversation cannot be stored: %s", error.strerror)

    def _stored(self) -> Iterator[Conversation]:
        for name in os.listdir(self._folder):
            stem, suffix = os.path.splitext(name)
            if suffix != SUFFIX or CHAT_ID.fullmatch(stem) is None:
                continue
            try:
                with open(os.path.join(self._folder, name), encoding="utf-8") as file:
                    found = json.load(file)
                turns = [AskedTurn(**turn) for turn in found.pop("turns")]
                yield Conversation(**{**found, "turns": turns, "is_running": False})
            except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
                logger.warning("a stored conversation cannot be read: %s", type(error).__name__)


class WatchedRun(Iterator[AgentEvent]):
    """A run that reports its end, once, and records the times of its tool calls. Otherwise it behaves like the run."""

    def __init__(
        self,
        run: Iterable[AgentEvent],
        turn: AskedTurn,
        ended: Callable[[AgentRunResult | None], None],
    ) -> None:
        self._run = run
        self._events = iter(run)
        self._turn = turn
        self._ended: Callable[[AgentRunResult | None], None] | None = ended
        self._began = time.monotonic()

    def __next__(self) -> AgentEvent:
        try:
            event = next(self._events)
        except BaseException:
            self._end(None)
            raise
        if event.type == "tool_use":
            self._note_time(event.tool_id, [])
        elif event.type == "tool_result" and len(began := self._turn.tools.get(event.tool_id, ())) == 1:
            self._note_time(event.tool_id, began)
        elif event.type == "done":
            self._end(event.result)
        return event

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def close(self) -> None:
        end(self._run)
        self._end(None)

    def _note_time(self, tool_id: str, times: Sequence[float]) -> None:
        elapsed = round(time.monotonic() - self._began, 3)
        self._turn.tools = {**self._turn.tools, tool_id: [*times, elapsed]}  # A new one: others may be reading it.

    def _end(self, result: AgentRunResult | None) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(result)
