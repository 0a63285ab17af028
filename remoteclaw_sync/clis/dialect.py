"""What the runtimes of known CLIs share: a table from line type to method."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

from ..engine.interpreter import Extracted, Interpreter
from ..runtime import CLIRuntimeBase
from ..wire.fields import Message, text
from ..wire.json_lines import decode, fast_parser, parse_block, parse_line, warn_no_object

logger = logging.getLogger(__name__)

McpConfigMode = Literal["inject", "merge-restore"]


class DialectRuntime(CLIRuntimeBase):
    """A runtime whose lines are `{"type": ..., ...}`. A type without a handler is skipped: a newer CLI may have it."""

    # Line type -> name of the method that takes the parsed line and returns what `extract_event` returns.
    HANDLERS: ClassVar[Mapping[str, str]] = {}
    expects_terminal_event = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.reset_state()

    def extract_event(self, line: str) -> Extracted:
        """What a line of this CLI means, given what came before it."""
        message = parse_line(line)
        return None if message is None else self._read(message)

    def interpreter(self) -> Interpreter:
        """Parses each line once, unless a subclass wants the text."""
        if type(self).extract_event is not DialectRuntime.extract_event:
            return super().interpreter()
        fast = fast_parser()
        handlers = {kind: getattr(self, name) for kind, name in self.HANDLERS.items()}
        return Interpreter(type(self).__name__, lambda block: parse_block(block, fast), self._read_odd, handlers)

    def _read(self, message: Message) -> Extracted:
        kind = text(message, "type")
        if kind not in self.HANDLERS:
            logger.debug("%s: skipped a line of type %r", self.provider, message.get("type"))
            return None
        return getattr(self, self.HANDLERS[kind])(message)  # type: ignore[no-any-return]

    def _read_odd(self, item: Any) -> Extracted:
        """An object of a type that has no handler, another value, or a line that could not be parsed."""
        if type(item) is bytes:
            return self.extract_event(decode(item))  # The parser says what is wrong with it.
        if type(item) is dict:
            return self._read(item)
        warn_no_object(item)
        return None


def check_mcp_config(mode: str) -> None:
    """Raise ValueError for a way of MCP injection that does not exist."""
    if mode not in get_args(McpConfigMode):
        raise ValueError(f"mcp_config must be one of {', '.join(map(repr, get_args(McpConfigMode)))}, not {mode!r}")
