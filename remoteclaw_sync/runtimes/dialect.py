"""What the runtimes of known CLIs share: a table from line type to method, and careful access to fields."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal, get_args

from ..ndjson import fast_parser, parse_line, scan_line
from ..types import AgentEvent, AgentTextEvent
from .base import CLIRuntimeBase
from .engine import Extracted, LineExtractor

logger = logging.getLogger(__name__)

Message = dict[str, Any]
McpConfigMode = Literal["inject", "merge-restore"]


class DialectRuntime(CLIRuntimeBase):
    """A runtime whose lines are `{"type": ..., ...}`. A type without a handler is skipped: a newer CLI may have it."""

    # Line type -> name of the method that takes the parsed line and returns what `extract_event` returns.
    HANDLERS: ClassVar[Mapping[str, str]] = {}
    STREAMED: ClassVar[str] = ""  # The type of the many lines that carry the answer; see streamed_text().
    expects_terminal_event = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.reset_state()

    def extract_event(self, line: str) -> AgentEvent | Iterable[AgentEvent] | None:
        """What a line of this CLI means, given what came before it."""
        return self._dialect_extractor()(line)

    def line_extractor(self) -> LineExtractor:
        """Parses each line once, unless a subclass wants the text."""
        if type(self).extract_event is not DialectRuntime.extract_event:
            return super().line_extractor()
        return self._dialect_extractor()

    def streamed_text(self, message: Message) -> str | None:
        """A short cut for lines of the type STREAMED: the text, if this one is nothing but a further piece of the
        answer, which counts as told then. None: nothing has been done, and the line's handler has to take it."""
        return None

    def _dialect_extractor(self) -> LineExtractor:
        fast = fast_parser()
        return self._standard_extractor() if fast is None else self._fast_extractor(fast)

    def _standard_extractor(self) -> LineExtractor:
        streamed, streamed_text, dispatch = self.STREAMED, self.streamed_text, self._dispatcher()
        new_object, set_text = object.__new__, _set_text

        # All in one frame, by the short cut. With parse_line(), look-up and handler a line takes (us): Claude
        # 2.8 instead of 2.0, Gemini 2.1 instead of 1.5, Codex 4.7 instead of 1.6, OpenCode 3.1 instead of 2.3.
        def extract(line: str) -> Extracted:
            try:
                message, end = scan_line(line, 0)
                kind = message["type"]
            except Exception:  # noqa: BLE001 - what is wrong with it, the careful way finds out
                return dispatch(parse_line(line))
            if end != len(line) and not line[end:].isspace():
                return dispatch(parse_line(line))
            if kind == streamed and (piece := streamed_text(message)) is not None:
                event = new_object(AgentTextEvent)
                set_text(event, piece)
                return event
            return dispatch(message)

        return extract

    def _fast_extractor(self, parse: Callable[[str], Any]) -> LineExtractor:
        """With a parser that must not be trusted with anything but text: integers over 64 bits become floats."""
        streamed, streamed_text = self.STREAMED, self.streamed_text
        standard = self._standard_extractor()
        new_object, set_text = object.__new__, _set_text

        def extract(line: str) -> Extracted:
            try:
                message = parse(line)
                if message["type"] == streamed and (piece := streamed_text(message)) is not None:
                    event = new_object(AgentTextEvent)
                    set_text(event, piece)
                    return event
            except Exception:  # noqa: BLE001 - refused, or no object: the careful way finds out
                pass
            return standard(line)

        return extract

    def _dispatcher(self) -> Callable[[Message | None], Extracted]:
        handlers = {kind: getattr(self, name) for kind, name in self.HANDLERS.items()}

        def dispatch(message: Message | None) -> Extracted:
            if message is None:
                return None
            kind = message.get("type")
            handler = handlers.get(kind) if isinstance(kind, str) else None
            if handler is None:
                logger.debug("%s: skipped a line of type %r", self.provider, kind)
                return None
            return handler(message)  # type: ignore[no-any-return]

        return dispatch


# AgentTextEvent(piece) takes 0.29 us, most of it for being frozen; a bare object and its one slot 0.18.
_set_text = AgentTextEvent.__dict__["text"].__set__


def check_mcp_config(mode: str) -> None:
    """Raise ValueError for a way of MCP injection that does not exist."""
    if mode not in get_args(McpConfigMode):
        raise ValueError(f"mcp_config must be one of {', '.join(map(repr, get_args(McpConfigMode)))}, not {mode!r}")


# --- fields of lines that another program wrote: each may be missing, null or of another type ------------------


def text(source: Mapping[str, Any], key: str) -> str:
    """That field if it is a str, else ""."""
    value = source.get(key)
    return value if isinstance(value, str) else ""


def mapping(source: Mapping[str, Any], key: str) -> Message:
    """That field if it is an object, else {}."""
    value = source.get(key)
    return value if isinstance(value, dict) else {}


def items(source: Mapping[str, Any], key: str) -> list[Any]:
    """That field if it is an array, else []."""
    value = source.get(key)
    return value if isinstance(value, list) else []


def integer(source: Mapping[str, Any], key: str) -> int:
    """That field if it is a whole number, else 0."""
    value = source.get(key)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0


def number(source: Mapping[str, Any], key: str) -> float | None:
    """That field if it is a number, else None."""
    value = source.get(key)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def plain_text(content: Any) -> str:
    """The readable form of a tool's output: a str, a list of content blocks, or anything else as JSON."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list):
        return "\n".join(_block_text(block) for block in content)
    return json.dumps(content, ensure_ascii=False)


def _block_text(block: Any) -> str:
    if isinstance(block, dict):
        if isinstance(block.get("text"), str):
            return str(block["text"])
        if block.get("type") in ("image", "audio"):
            return f"[{block['type']}]"
    return plain_text(block)
