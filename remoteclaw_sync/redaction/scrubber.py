"""Removes prompts and secrets from recorded lines in such a way that a parser still reads the same events."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import attrs

from .known import Secret
from .letters import Letters
from .prompts import MOST_JOINED, Prompts
from .secrets import MASK, Secrets, Span, joined, replaced

# Keys and values that parsers depend on. If a password is one of these words, hiding it here would only give it away.
PROTOCOL_WORDS = frozenset(
    re.findall(
        r"\S+",
        """
        agent_message api_error_status arguments assistant attachments cached callID collab_tool_call
        command_execution completed content content_block content_block_delta content_block_start content_block_stop
        cost default delta duration duration_ms error errors event failed file_change index init input
        input_json_delta input_tokens is_error item item.completed item.started item.updated items mcp_servers
        mcp_tool_call message message_delta message_start message_stop messageID messages metadata model models
        modelUsage num_turns output output_tokens parameters parent_tool_use_id part partial_json parts permission
        permission_denials reason reasoning result role running session session.error session_id sessionID severity
        signature signature_delta source started state stats status step_finish step_start stop_reason stream_event
        string structured_output subtype success synthetic system text text_delta thinking thinking_delta
        thread.started timestamp todo_list tokens tool tool-calls tool_id tool_name tool_result tool_use tool_use_id
        total_cost_usd turn.completed turn.failed turn.started type usage user warning web_search

        agentMessage allow behavior can_use_tool changes command commandExecution control_cancel_request
        control_request control_response cwd deny fileChange id initialize initialized input interrupt itemId
        item/agentMessage/delta item/completed item/started jsonrpc mcpToolCall method optionId options outcome params
        request request_id response selected sessionId sessionUpdate session/new session/prompt session/update
        stopReason thread threadId thread/resume thread/start thread/started tokenUsage toolCall toolCallId
        tool_call tool_call_update turn turnId turn/completed turn/start turn/started update updatedInput userMessage
        uuid user_message_chunk agent_message_chunk agent_thought_chunk
        """,
    )
)
PROTOCOL_KEYS = frozenset({"type", "subtype", "role", "status", "method", "sessionUpdate", "behavior"})
USER_KINDS = frozenset({"user", "user_message", "user_message_chunk", "user_input", "user_prompt", "userMessage"})
USER_TEXT_KEYS = frozenset({"content", "text", "message", "prompt", "parts"})
TEXT_BLOCKS = frozenset({"text", "input_text", *USER_KINDS})
SAID_BY_USER = re.compile(r'"role"\s*:\s*"user"(?P<words>.*)')

# A line that may contain the beginning of a quotation waits for the next piece, and all later lines wait behind it.
MOST_LINES_WAITING = 200

Path = tuple[str, ...]  # The keys that lead to a string.
Tag = TypeVar("Tag")


def mask(text: str) -> str:
    """A mask as long as the text: parsers compare the length of a whole message with that of its pieces."""
    return (MASK if len(text) >= len(MASK) else "").ljust(len(text), "*")


@attrs.define(eq=False)
class Slot:
    """A string in a parsed line, and which parts of it to hide."""

    holder: Any  # The dict or list that it is in,
    key: Any  # and its key or index there.
    path: Path
    text: str
    spans: list[Span] = attrs.field(factory=list)

    def hide(self) -> None:
        """Write the mask into the line."""
        if self.spans:
            self.holder[self.key] = replaced(self.text, self.spans, mask)


@attrs.define(eq=False)
class Line:
    """A line on its way to the file. `value` is [the parsed line], or [the text] if it is not JSON."""

    text: str
    value: list[Any]
    is_json: bool = True
    slots: list[Slot] = attrs.field(factory=list)
    rewritten: bool = False
    waits: int = 0  # How many of its slots may contain a quotation that continues in a later line.

    def clean(self) -> str:
        """The line as it may be recorded."""
        for slot in self.slots:
            slot.hide()
        # Rewritten only if necessary: otherwise it stays exactly as the CLI wrote it.
        if not self.rewritten and not any(slot.spans for slot in self.slots):
            return self.text
        return json.dumps(self.value[0], ensure_ascii=False) if self.is_json else str(self.value[0])


class Scrubber:
    """Removes prompts and secrets from lines and other texts. A line of JSON stays JSON."""

    def __init__(self, texts: Iterable[str], secrets: Iterable[Secret | str]) -> None:
        self._prompts: list[Prompts] = []
        self._known: set[Secret | str] = set()
        self._secrets = Secrets(())
        self.learn(texts, secrets)

    def learn(self, texts: Iterable[str], secrets: Iterable[Secret | str] = ()) -> None:
        """Hide these as well, from now on."""
        prompts = Prompts(texts)
        new = {*secrets, *prompts.few_letters} - self._known
        if new:
            self._known |= new
            self._secrets = Secrets(self._known)
        while prompts.size and self._prompts and _are_alike(self._prompts[-1], prompts):
            prompts = self._prompts.pop().joined_with(prompts)
        if prompts.size:
            self._prompts.append(prompts)

    def __call__(self, line: str) -> str:
        """Clean one line, independently of the lines before it."""
        return self.read(line).clean()

    def plain(self, text: str) -> str:
        """Clean a text that nobody parses. Even a few words that it shares with a prompt are removed."""
        return replaced(text, self._spans_in_plain(text), mask)

    def _spans_in_plain(self, text: str) -> list[Span]:
        view = Letters(text)
        spans = [*self._secrets.spans(text, view), *self._quotations(text, view, every_run=True)]
        for said in SAID_BY_USER.finditer(text):
            spans.append(said.span("words"))
        return [*spans, *self._secrets.cut_spans(text)]

    def read(self, line: str) -> Line:
        """Parse a line, and find everything to hide in it, independently of other lines."""
        try:
            read = Line(line, [json.loads(line, strict=False)])
            self._walk(read, read.value, 0, (), by_user=False)
        except (ValueError, RecursionError):
            value = [line]
            return Line(line, value, is_json=False, slots=[Slot(value, 0, (), line, self._spans_in_plain(line))])
        if not read.rewritten and not any(slot.spans for slot in read.slots):
            read.rewritten = bool(self._secrets.spans(line)) and _has_double_keys(line)
        return read

    def spans(self, text: str) -> list[Span]:
        """Where a string in a line contains a secret or quotes a prompt."""
        view = Letters(text)
        return [*self._secrets.spans(text, view), *self._quotations(text, view, every_run=False)]

    def _quotations(self, text: str, view: Letters, *, every_run: bool) -> Iterator[Span]:
        for prompts in self._prompts:
            yield from prompts.spans(text, view, every_run=every_run)

    def pending(self, text: str) -> int:
        """How many letters at the end of a string may be the beginning of something to hide."""
        letters = Letters(text).letters
        return max([self._secrets.pending(letters), *(prompts.pending(letters) for prompts in self._prompts)])

    def _walk(self, line: Line, holder: Any, key: Any, path: Path, *, by_user: bool) -> None:
        value = holder[key]
        if isinstance(value, str):
            if not value.strip() or (key in PROTOCOL_KEYS and value in PROTOCOL_WORDS):
                return
            spans = [(0, len(value))] if by_user else self.spans(value)
            line.slots.append(Slot(holder, key, path, value, spans))
        elif isinstance(value, list):
            for index in range(len(value)):
                self._walk(line, value, index, path, by_user=by_user)
        elif isinstance(value, dict):
            self._clean_keys(line, value)
            texts = _texts_of_user(value, by_user=by_user)
            for name in value:
                self._walk(line, value, name, (*path, name), by_user=name in texts)
        elif isinstance(value, int | float) and not isinstance(value, bool) and str(value) in self._secrets.literals:
            holder[key], line.rewritten = 0, True

    def _clean_keys(self, line: Line, value: dict[str, Any]) -> None:
        names = {name: replaced(name, self.spans(name), mask) for name in value if name not in PROTOCOL_WORDS}
        if all(name == clean for name, clean in names.items()):
            return
        line.rewritten = True
        items = list(value.items())
        value.clear()
        for name, item in items:
            clean = names.get(name, name)
            while clean in value:
                clean += "*"
            value[clean] = item


def _are_alike(earlier: Prompts, later: Prompts) -> bool:
    """Whether to join them. If n texts arrive one by one, each is joined log(n) times, and log(n) groups are left."""
    return earlier.size <= 2 * later.size and earlier.size + later.size <= MOST_JOINED


def _has_double_keys(line: str) -> bool:
    """Whether an object has the same key twice, so that the parser has dropped one of the values."""
    doubles: list[bool] = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        doubles.append(len({key for key, _ in pairs}) < len(pairs))

    json.loads(line, strict=False, object_pairs_hook=note)
    return any(doubles)


def _texts_of_user(value: dict[str, Any], *, by_user: bool) -> frozenset[str]:
    """The fields of an object that hold the user's own words, which are hidden entirely, however the CLI has changed
    them.

    Tool results are also attributed to the user, but are not the user's words.
    """
    if by_user:
        return USER_TEXT_KEYS if value.get("type", "text") in TEXT_BLOCKS else frozenset()
    kinds = (value.get("type"), value.get("sessionUpdate"))
    if value.get("role") == "user" or any(isinstance(kind, str) and kind in USER_KINDS for kind in kinds):
        return USER_TEXT_KEYS
    return frozenset()


class Sieve(Generic[Tag]):
    """Passes lines on in order, each as soon as nothing in it can turn out to be half of a quotation."""

    def __init__(self, scrub: Scrubber) -> None:
        self._scrub = scrub
        self._lines: deque[tuple[Tag, Line]] = deque()
        self._open: dict[Path, list[tuple[Line, Slot]]] = {}  # By path: strings that may continue in a later line.

    def push(self, tag: Tag, text: str) -> list[tuple[Tag, str]]:
        """Add a line. Returns the lines that may be recorded now, with their tags."""
        line = self._scrub.read(text)
        self._lines.append((tag, line))
        for slot in line.slots:
            if slot.spans != [(0, len(slot.text))]:
                self._join(line, slot)
        if len(self._lines) > MOST_LINES_WAITING:
            return self.flush()
        return self._ready()

    def _ready(self) -> list[tuple[Tag, str]]:
        ready = []
        while self._lines and not self._lines[0][1].waits:
            tag, line = self._lines.popleft()
            ready.append((tag, line.clean()))
        return ready

    def follow(self, tag: Tag, text: str) -> list[tuple[Tag, str]]:
        """The same for a text with nothing to hide: it only waits for the lines before it."""
        self._lines.append((tag, Line(text, [text], is_json=False)))
        return self._ready()

    def flush(self) -> list[tuple[Tag, str]]:
        """All lines that are still waiting."""
        ready = [(tag, line.clean()) for tag, line in self._lines]
        self._lines.clear()
        self._open.clear()
        return ready

    def _join(self, line: Line, slot: Slot) -> None:
        pieces = [*self._open.pop(slot.path, ()), (line, slot)]
        whole = "".join(piece.text for _, piece in pieces)
        if len(pieces) > 1:
            _distribute(self._scrub.spans(whole), [piece for _, piece in pieces])
            for held, _ in pieces[:-1]:
                held.waits -= 1
        pending = self._scrub.pending(whole) or self._scrub.pending(slot.text)
        kept: list[tuple[Line, Slot]] = []
        while pending > 0 and pieces:
            kept.insert(0, pieces.pop())
            pending -= len(Letters(kept[0][1].text).letters)
        if kept:
            for held, _ in kept:
                held.waits += 1
            self._open[slot.path] = kept


def _distribute(spans: Iterable[Span], pieces: Iterable[Slot]) -> None:
    """Hide in each piece its share of these spans, which are places in all pieces joined."""
    spans = joined(spans)
    at = 0
    for piece in pieces:
        end = at + len(piece.text)
        piece.spans += [
            (max(start, at) - at, min(stop, end) - at) for start, stop in spans if start < end and stop > at
        ]
        at = end
