"""What a scripted model answers, in vendor-neutral terms.

A test lists replies; the wire modules turn each into the vendor's own bytes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Usage:
    """Token counts of one model request; the four parts never overlap.

    Vendors add them up differently (OpenAI and Gemini count cache reads as input, OpenAI and Anthropic count reasoning
    as output): the wire modules do that.
    """

    input: int = 10
    output: int = 5
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0


@dataclass(frozen=True)
class ToolCall:
    """One tool call of the model.

    `input` is the arguments; a string is sent as it is (free-form tools, or arguments that are not valid JSON).
    `namespace` is Codex's group of MCP tools. `item` is the vendor's own item, which is sent as it is instead (OpenAI's
    server-side tools).
    """

    name: str
    input: Mapping[str, Any] | str = field(default_factory=dict)
    id: str | None = None
    namespace: str | None = None
    freeform: bool = False
    item: Mapping[str, Any] | None = None

    def arguments_json(self) -> str:
        """The arguments as the JSON text a model would stream."""
        return self.input if isinstance(self.input, str) else json.dumps(self.input)


@dataclass(frozen=True)
class Hold:
    """Stop the stream here until the test sets `release`; `reached` is set when the stream gets here."""

    release: threading.Event = field(default_factory=threading.Event)
    reached: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Delay:
    """Stop the stream here for some seconds."""

    seconds: float


@dataclass(frozen=True)
class Cut:
    """End the stream here, in the middle of the answer.

    The connection drops, or (`clean`) the HTTP body ends as if the answer were complete; the CLIs treat the two
    differently.
    """

    clean: bool = False


@dataclass(frozen=True)
class StreamError:
    """The vendor's error event ends a stream that started with HTTP 200."""

    message: str = "scripted stream error"
    kind: str = "overloaded_error"


Pause = Hold | Delay | Cut
Piece = str | Hold | Delay | Cut | StreamError


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One answer of the model: thinking, then text, then tool calls.

    `text` and `thinking` are a string or a sequence of deltas, with Hold, Delay, Cut and StreamError allowed between
    them. `stop` is "end_turn", "tool_use", "max_tokens" or "refusal"; if empty, it follows from the tool calls. `cut`
    ends the stream after the whole answer, but before the event that marks its end (OpenAI Responses only).
    """

    text: str | Sequence[Piece] = ()
    thinking: str | Sequence[Piece] = ()
    tool_calls: Sequence[ToolCall] = ()
    usage: Usage = Usage()
    stop: str = ""
    delay_between: float = 0.0
    cut: Cut | None = None

    @property
    def stop_reason(self) -> str:
        """Why the model stopped, even if the script does not say."""
        return self.stop or ("tool_use" if self.tool_calls else "end_turn")

    def text_pieces(self) -> Iterator[Piece]:
        """The text deltas with the pauses between them."""
        return self._pieces(self.text)

    def thinking_pieces(self) -> Iterator[Piece]:
        """The thinking deltas with the pauses between them."""
        return self._pieces(self.thinking)

    def whole_text(self) -> str:
        """All text deltas joined."""
        return _joined(self.text)

    def whole_thinking(self) -> str:
        """All thinking deltas joined."""
        return _joined(self.thinking)

    def _pieces(self, content: str | Sequence[Piece]) -> Iterator[Piece]:
        pieces: Sequence[Piece] = ([content] if content else []) if isinstance(content, str) else content
        for number, piece in enumerate(pieces):
            if number and self.delay_between:
                yield Delay(self.delay_between)
            yield piece


@dataclass(frozen=True, kw_only=True)
class HttpError:
    """The request fails with this status and a body in the vendor's format.

    `details` are further fields of the error (OpenAI Responses only).
    """

    status: int
    message: str = "scripted failure"
    retry_after: float | None = None
    kind: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Hang:
    """No answer, ever: not even headers, or (`after_headers`) an empty open stream."""

    after_headers: bool = False


@dataclass(frozen=True)
class Drop:
    """The connection is closed without a byte of answer."""


Reply = Turn | HttpError | Hang | Drop


def long_text(size: int) -> str:
    """A text of `size` characters that never repeats itself (Gemini CLI stops a model that does)."""
    words = (f"word{number} " for number in range(size // 5 + 1))
    return "".join(words)[:size]


def in_pieces(text: str, size: int) -> list[Piece]:
    """Cut a long text into deltas of `size` characters."""
    return [text[start : start + size] for start in range(0, len(text), size)]


def _joined(content: str | Sequence[Piece]) -> str:
    if isinstance(content, str):
        return content
    return "".join(piece for piece in content if isinstance(piece, str))
