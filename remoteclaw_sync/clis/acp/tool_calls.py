"""Tool calls of an ACP agent, put together from all that is said about them. Pure: values in, values out.

An agent reports a call in pieces, each with some of its fields: `tool_call`, any number of `tool_call_update`, and
`session/request_permission`, in any order. It may never report how a call ended.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from ...types import AgentEvent, AgentToolResultEvent, AgentToolUseEvent
from ...wire.fields import Message, mapping, objects, plain_text, text
from .profiles import Profile

ENDS = ("completed", "failed")
LONGEST_DIFF = 100_000  # Characters of both sides; comparing longer ones takes seconds.
UNFINISHED = "The turn ended before this call did."


@attrs.define
class Call:
    """What is known about one call."""

    id: str
    kind: str = ""
    title: str = ""
    first_title: str = ""
    status: str = ""
    stated_name: str = ""
    raw_input: Message = attrs.field(factory=dict)
    raw_output: Any = None
    content: list[Message] = attrs.field(factory=list)
    locations: list[Message] = attrs.field(factory=list)
    printed: str = ""  # What its terminal has shown so far.
    parent: str | None = None
    is_announced: bool = False
    is_over: bool = False

    def merge(self, said: Message) -> None:
        """Add another piece."""
        meta = mapping(said, "_meta")
        self.title = text(said, "title") or self.title
        self.first_title = self.first_title or self.title
        self.kind = text(said, "kind") or self.kind
        self.status = text(said, "status") or self.status
        self.stated_name = text(said, "name") or _name_in(meta) or self.stated_name
        self.parent = text(mapping(meta, "claudeCode"), "parentToolUseId") or self.parent
        self.raw_input = mapping(said, "rawInput") or self.raw_input
        if said.get("rawOutput") is not None:
            self.raw_output = said["rawOutput"]
        if isinstance(said.get("content"), list) and (said["content"] or not self.content):
            self.content = objects(said, "content")
        self.locations = objects(said, "locations") or self.locations
        self.printed += text(mapping(meta, "terminal_output_delta"), "data")
        self.printed = text(mapping(meta, "terminal_output"), "data") or self.printed

    def name(self, profile: Profile) -> str:
        """The tool's name."""
        if self.stated_name:
            return self.stated_name
        found = profile.name_in_id.fullmatch(self.id) if profile.name_in_id is not None else None
        if found is not None:
            return str(found["name"] or found["named"])
        return (self.first_title if profile.title_is_name else "") or self.kind or "tool"

    def input(self) -> Message:
        """The arguments; if the agent does not report them, what can be inferred."""
        if self.raw_input:
            return self.raw_input
        if self.kind == "execute":
            return {"command": self.title}
        diffs = [part for part in self.content if text(part, "type") == "diff"]
        if diffs:
            changed = [{"file_path": text(diff, "path"), **_sides(diff)} for diff in diffs]
            return changed[0] if len(changed) == 1 else {"changes": changed}
        found = _arguments(self.words())
        if found is not None:
            return found
        paths = [text(place, "path") for place in self.locations if text(place, "path")]
        where: Message = {"file_path": paths[0]} if len(paths) == 1 else {"paths": paths} if paths else {}
        return {**where, **({"title": self.title} if self.title else {})}

    def words(self) -> str:
        """The text of its content."""
        blocks = [mapping(part, "content") for part in self.content if text(part, "type") == "content"]
        return plain_text(blocks)

    def output(self) -> str:
        """The call's output."""
        raw = self.raw_output
        if isinstance(raw, Mapping):
            raw = next(
                (raw[key] for key in ("output", "error", "formatted_output") if isinstance(raw.get(key), str)), raw
            )
        if isinstance(raw, str) and raw:
            return raw
        diffs = (_rendered(part) for part in self.content if text(part, "type") == "diff")
        found = "\n".join(filter(None, (self.words(), *diffs)))
        return found or self.printed or ("" if raw is None else plain_text(raw))


class ToolCalls:
    """The calls of one turn. Each is announced once and ended once."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._calls: dict[str, Call] = {}

    def __bool__(self) -> bool:
        return any(call.is_announced for call in self._calls.values())

    def get(self, name: str) -> Call | None:
        return self._calls.get(name)

    @property
    def has_held_back(self) -> bool:
        """Whether there are calls that have not been announced."""
        return any(not call.is_announced for call in self._calls.values())

    @property
    def open(self) -> list[Call]:
        """Calls that have begun and not ended; for any thread."""
        return [call for call in list(self._calls.values()) if call.is_announced and not call.is_over]

    def told(self, said: Message, is_first: bool) -> Iterator[AgentEvent]:
        """Take in a piece about a call; `is_first` if it is of the kind that begins one."""
        call = self.merged(said, begins=is_first and text(said, "status") not in ENDS)
        if call is None:
            return
        has_input = bool(mapping(said, "rawInput")) and not is_first
        if call.status in ("in_progress", *ENDS) or has_input:
            yield from self.announced(call)
        if call.status in ENDS and not call.is_over:
            output = call.output()
            failed = self._profile.failed
            has_failed = failed is not None and call.kind == "execute" and failed.fullmatch(output) is not None
            yield from self.ended(call, output, has_failed or call.status == "failed")

    def merged(self, said: Message, *, begins: bool = False) -> Call | None:
        """The call that this piece is about; None if the call has ended or has no id.

        Not every model's API uses new ids in each message: a new call may have the id of one that has ended.
        """
        name = text(said, "toolCallId")
        if not name:
            return None
        call = self._calls.get(name)
        if call is None or (call.is_over and begins):
            call = self._calls[name] = Call(name)
        if call.is_over:
            return None
        call.merge(said)
        return call

    def announced(self, call: Call) -> Iterator[AgentEvent]:
        """Announce this call, unless that was done before."""
        if not call.is_announced:
            call.is_announced = True
            yield AgentToolUseEvent(call.name(self._profile), call.id, call.input(), call.parent)

    def ended(self, call: Call, output: str, is_error: bool) -> Iterator[AgentEvent]:
        """Report how the call ended."""
        call.is_over = True
        yield AgentToolResultEvent(call.id, output, is_error, call.parent)

    def announce_all(self) -> Iterator[AgentEvent]:
        """The agent goes on, so nothing more will be said about these calls: announce them."""
        for call in self._calls.values():
            yield from self.announced(call)

    def end_all(self) -> Iterator[AgentEvent]:
        """The turn is over: end the calls that are still open."""
        yield from self.announce_all()
        for call in self.open:
            yield from self.ended(call, call.output() or UNFINISHED, True)


def _name_in(meta: Message) -> str:
    goose = mapping(mapping(meta, "goose"), "toolCall")
    in_its_own_part = text(mapping(meta, "claudeCode"), "toolName") or text(goose, "toolName")
    return in_its_own_part or text(meta, "toolName") or text(meta, "tool_name")


def _sides(diff: Message) -> Message:
    old, new = text(diff, "oldText"), text(diff, "newText")
    return {"old_text": old, "new_text": new} if old else {"content": new}


def _arguments(words: str) -> Message | None:
    """A JSON object in a text: an MCP tool's arguments."""
    if not words.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(words)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _rendered(diff: Message) -> str:
    path, old, new = text(diff, "path"), text(diff, "oldText"), text(diff, "newText")
    if len(old) + len(new) > LONGEST_DIFF:
        return f"changed {path}"
    return "\n".join(difflib.unified_diff(old.splitlines(), new.splitlines(), path, path, lineterm=""))
