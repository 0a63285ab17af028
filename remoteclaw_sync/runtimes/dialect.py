"""What the runtimes of known CLIs share: a table from line type to method, and careful access to fields."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal, get_args

from ..ndjson import (
    FastBlocks,
    decode,
    fast_parser,
    may_have_lost_digits,
    parse_block,
    parse_line,
    warn_no_object,
)
from ..types import AgentEvent
from .base import CLIRuntimeBase
from .interpreter import Extracted, Interpreter, Piece

logger = logging.getLogger(__name__)

Message = dict[str, Any]
McpConfigMode = Literal["inject", "merge-restore"]


class DialectRuntime(CLIRuntimeBase):
    """A runtime whose lines are `{"type": ..., ...}`. A type without a handler is skipped: a newer CLI may have it."""

    # Line type -> name of the method that takes the parsed line and returns what `extract_event` returns.
    HANDLERS: ClassVar[Mapping[str, str]] = {}
    # Line type -> where such a line quotes JSON of the model's making (arguments of a tool call), whose numbers must
    # reach the caller as they are.
    QUOTED: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    expects_terminal_event = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.reset_state()

    def extract_event(self, line: str) -> AgentEvent | Iterable[AgentEvent] | None:
        """What a line of this CLI means, given what came before it."""
        message = parse_line(line)
        return None if message is None else self._extractor()(message)

    def interpreter(self) -> Interpreter:
        """Parses each line once, unless a subclass wants the text."""
        if type(self).extract_event is not DialectRuntime.extract_event:
            return super().interpreter()
        fast = fast_parser()
        if fast is None:
            return Interpreter(parse_block, self._extractor(), self.piece_of)
        blocks = FastBlocks(fast)
        return Interpreter(blocks.parse, self._extractor(blocks.exact), self.piece_of)

    def piece_of(self, message: Any) -> Piece:
        """A short cut for the many lines that are nothing but a further piece of the answer (a str) or of the model's
        thinking, which counts as told then. None: nothing has been done, and the line's handler has to take it.

        With look-up and handler instead a line takes 0.6 (Gemini) to 4 us (Codex) more.
        """
        return None

    def _extractor(self, exact: Callable[[Message], Message] | None = None) -> Callable[[Any], Extracted]:
        handlers = {kind: getattr(self, name) for kind, name in self.HANDLERS.items()}
        quoted = self.QUOTED

        def extract(item: Any) -> Extracted:
            message = item
            if type(item) is bytes:
                message = parse_line(decode(item))  # Says what is wrong with it.
                if message is None:
                    return None
            elif type(item) is not dict:
                warn_no_object(item)
                return None
            kind = message.get("type")
            handler = handlers.get(kind) if type(kind) is str else None
            if handler is None:
                logger.debug("%s: skipped a line of type %r", self.provider, kind)
                return None
            if exact is not None and kind in quoted and may_have_lost_digits(_part(message, quoted[kind])):
                message = exact(message)
            return handler(message)  # type: ignore[no-any-return]

        return extract


def _part(message: Message, path: tuple[str, ...]) -> Any:
    part: Any = message
    for key in path:
        part = part.get(key) if type(part) is dict else None
    return part


def check_mcp_config(mode: str) -> None:
    """Raise ValueError for a way of MCP injection that does not exist."""
    if mode not in get_args(McpConfigMode):
        raise ValueError(f"mcp_config must be one of {', '.join(map(repr, get_args(McpConfigMode)))}, not {mode!r}")


# --- fields of lines that another program wrote: each may be missing, null or of another type ------------------


def text(source: Mapping[str, Any], key: str) -> str:
    """That field if it is a str, else ""."""
    value = source.get(key)
    return value if type(value) is str else ""


def mapping(source: Mapping[str, Any], key: str) -> Message:
    """That field if it is an object, else {}."""
    value = source.get(key)
    return value if type(value) is dict else {}


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
