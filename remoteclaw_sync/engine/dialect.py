"""How a CLI's output is read. A dialect is fed; it is never connected to anything.

It has no thread, no clock and no process. Tests and recordings feed it exactly as a run does.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Protocol

from .. import errors
from ..types import AgentErrorEvent, AgentEvent
from ..wire.fields import Message
from ..wire.json_lines import LineReader, decode, is_strict_json, lines_of, parse_line, warn_no_object
from .outcome import Closing, Ended, RunOutcome

logger = logging.getLogger(__name__)

Extracted = AgentEvent | Iterable[AgentEvent] | None  # What a hook returns for a line.
Found = AgentEvent | list[AgentEvent] | None  # The same: one event, which is the usual case, or any number.


def each_of(found: Found) -> list[AgentEvent]:
    """The events, whether there is one or any number."""
    return found if type(found) is list else [found] if isinstance(found, AgentEvent) else []


class Dialect:
    """One CLI's side of a session: what its lines mean, given the lines before, and what its end means.

    A subclass names a method for each type of line (`{"type": ..., ...}`). Types without a method are skipped: a newer
    CLI may have added them.
    """

    # Line type -> name of the method that takes the parsed line.
    HANDLERS: ClassVar[Mapping[str, str]] = {}
    # The methods themselves, unbound: bound ones would make a cycle, which would keep a run's output alive after it.
    _by_type: ClassVar[Mapping[str, Callable[[Any, Any], Extracted]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._by_type = {kind: getattr(cls, name) for kind, name in cls.HANDLERS.items()}

    def __init__(self) -> None:
        self.outcome = RunOutcome()
        self.parse: Callable[[bytes], list[Any]] | None = None  # The items of whole lines; None: their JSON values.
        self.learn: Callable[[Mapping[str, Any]], None] | None = None  # Adds facts to the recording.

    @property
    def owner(self) -> str:
        """The class whose hooks these are, for the log."""
        return type(self).__name__

    # --- from lines to events -------------------------------------------------------------------------------

    def events(self, block: bytes) -> list[AgentEvent]:
        """The events in these lines."""
        items = LineReader(self.parse).feed(block + b"\n")
        return [event for item in items for event in each_of(self.read(item))]

    def read(self, item: Any) -> Found:
        """The events in an item. An exception in a hook becomes an event too, because the run goes on."""
        handler = None
        if type(item) is dict and type(kind := item.get("type")) is str:
            handler = self._by_type.get(kind)
        try:
            extracted = self._read_odd(item) if handler is None else handler(self, item)
        except Exception as error:  # noqa: BLE001 - whatever a hook raises
            return hook_failure(self.owner, error)
        if extracted is None or type(extracted) is list or isinstance(extracted, AgentEvent):
            return extracted
        return _checked(self.owner, extracted)

    def extract(self, line: str) -> Extracted:
        """The events in one line."""
        message = parse_line(line)
        return None if message is None else self._read(message)

    def _read(self, message: Message) -> Extracted:
        kind = message.get("type")
        if type(kind) is str and kind in self._by_type:
            return self._by_type[kind](self, message)
        logger.debug("%s: skipped a line of type %r", self.owner, kind)
        return None

    def _read_odd(self, item: Any) -> Extracted:
        """An object of a type that has no handler, another value, or a line that could not be parsed."""
        if type(item) is bytes:
            return self.extract(decode(item))  # The parser logs what is wrong with it.
        if type(item) is dict:
            return self._read(item)
        warn_no_object(item)
        return None

    # --- what the clocks ask, in their own threads ------------------------------------------------------------

    def is_life(self, chunk: bytes) -> bool:
        """Whether these whole lines (all that came at once) are a sign of life for the watchdog."""
        return True

    def may_run_tool(self, chunk: bytes) -> bool:
        """Whether output that the consumer has not read yet may be a tool call; if so, `tool_timeout` is the limit."""
        return b'"tool' in chunk

    def runs_tool(self) -> bool:
        """Whether a tool is running that the CLI has not reported. Asked only when a clock is about to run out."""
        return False

    # --- what lines do not say --------------------------------------------------------------------------------

    def recall(self, facts: Mapping[str, Any]) -> None:
        """Take facts that reading the lines depends on and that are not in them (the requested session, names of MCP
        servers)."""

    def presentable(self, stderr: str) -> str:
        """The part of stderr that people are shown, in `result.stderr` and in error messages."""
        return stderr

    def at_exit(self, ended: Ended) -> Closing:
        """What the end of the CLI's process means. Must not change the dialect."""
        return Closing()


class Hooks(Protocol):
    """What a runtime written by the user provides. `CLIRuntimeBase` documents the members."""

    outcome: RunOutcome

    def extract_event(self, line: str, /) -> Extracted: ...
    def is_life(self, chunk: bytes, /) -> bool: ...
    def may_run_tool(self, chunk: bytes, /) -> bool: ...
    def runs_tool(self) -> bool: ...
    def recall(self, facts: Mapping[str, Any], /) -> None: ...
    def presentable(self, stderr: str, /) -> str: ...
    def at_exit(self, ended: Ended, /) -> Closing: ...


class HookDialect(Dialect):
    """A dialect made from the hooks of a runtime. Lines that are not JSON objects are logged and skipped."""

    def __init__(self, hooks: Hooks) -> None:
        super().__init__()
        self.parse = lines_of
        self._hooks = hooks
        self.outcome = hooks.outcome

    @property
    def owner(self) -> str:
        return type(self._hooks).__name__

    def _read_odd(self, item: bytes) -> Extracted:
        line = decode(item)
        if parse_line(line) is None:
            return None
        try:
            found = self._hooks.extract_event(line.strip())
            return found if found is None or isinstance(found, AgentEvent) else _checked(self.owner, found)
        except json.JSONDecodeError:
            # Our parser accepts raw control characters inside strings. If a hook's parser does not, treat the line like
            # any other malformed one.
            if is_strict_json(line):
                raise
            return None

    def is_life(self, chunk: bytes) -> bool:
        return self._hooks.is_life(chunk)

    def may_run_tool(self, chunk: bytes) -> bool:
        return self._hooks.may_run_tool(chunk)

    def runs_tool(self) -> bool:
        return self._hooks.runs_tool()

    def recall(self, facts: Mapping[str, Any]) -> None:
        self._hooks.recall(facts)

    def presentable(self, stderr: str) -> str:
        return self._hooks.presentable(stderr)

    def at_exit(self, ended: Ended) -> Closing:
        return self._hooks.at_exit(ended)


def _checked(owner: str, extracted: Iterable[AgentEvent]) -> list[AgentEvent]:
    """The events as a list. Those that the iterable yields before an exception are kept."""
    events: list[AgentEvent] = []
    try:
        if isinstance(extracted, str | bytes | Mapping):
            raise TypeError(f"a {type(extracted).__name__} is not an event")
        for event in extracted:
            if not isinstance(event, AgentEvent):
                raise TypeError(f"a {type(event).__name__} is not an event")
            events.append(event)
    except Exception as error:  # noqa: BLE001 - whatever a hook's generator raises
        events.append(hook_failure(owner, error))
    return events


def hook_failure(owner: str, error: Exception) -> AgentErrorEvent:
    """The event that reports a mistake in `extract_event`."""
    logger.warning("extract_event of %s raised %s", owner, type(error).__name__)
    return AgentErrorEvent(f"extract_event raised {type(error).__name__}: {error}", errors.EXTRACT_EVENT_FAILED)
