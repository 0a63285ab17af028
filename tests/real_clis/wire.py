"""What the four vendor wires have in common: their shape and the SSE framing."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tests.real_clis.script import Cut, HttpError, Pause, Turn

Json = dict[str, Any]
Frame = bytes | Pause

_numbers = itertools.count(1)


@dataclass(frozen=True)
class ToolResult:
    """The result of a tool call as the model received it."""

    id: str
    text: str
    is_error: bool | None = None
    name: str | None = None


@dataclass(frozen=True)
class Conversation:
    """A model request in vendor-neutral terms.

    `user_texts` are all user texts in order, including those that the CLI adds; `prompt` is the last text of the user;
    `prompt_is_new` says that the request was made for that prompt and not for tool results after it; `tool_results` are
    those since the model's last answer.
    """

    model: str
    system: str
    prompt: str | None
    prompt_is_new: bool
    user_texts: tuple[str, ...]
    assistant_texts: tuple[str, ...]
    tool_results: tuple[ToolResult, ...]
    all_tool_results: tuple[ToolResult, ...]
    tools: tuple[str, ...]
    stream: bool


class Wire(Protocol):
    """One vendor's API: a module of these functions."""

    def matches(self, path: str) -> bool:
        """Whether the path (without query) is this vendor's model request."""

    def read(self, path: str, body: Json) -> Conversation:
        """The CLI's request, in neutral terms."""

    def side_reply(self, path: str, body: Json, conversation: Conversation) -> Turn | Json | None:
        """The answer to a request that the CLI makes for itself; None for one that belongs to the conversation."""

    def stream(self, turn: Turn, model: str) -> Iterator[Frame]:
        """The turn as server-sent events, with its pauses."""

    def whole(self, turn: Turn, model: str) -> Json:
        """The turn as one JSON answer."""

    def error(self, error: HttpError) -> Json:
        """The body of a failed request."""


def unique(prefix: str) -> str:
    """An id that no other answer of this process has."""
    return f"{prefix}{next(_numbers):08d}"


def sse(data: Mapping[str, Any] | str, event: str | None = None) -> bytes:
    """One server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data)
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {text}\n\n".encode()


def then_end(error_event: bytes) -> Iterator[Frame]:
    """An error event and the end of the stream, as servers send them."""
    yield error_event
    yield Cut(clean=True)


def minimal_instance(schema: Mapping[str, Any]) -> Any:
    """The smallest value of a JSON schema; the first choice of an enum."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = str(schema.get("type", "object")).lower()
    if kind == "object":
        return {name: minimal_instance(part) for name, part in schema.get("properties", {}).items()}
    plain: dict[str, Any] = {"array": [], "string": "x", "number": 0, "integer": 0, "boolean": False}
    return plain.get(kind)


def text_of(content: Any) -> str:
    """Join what vendors write as a string or as a list of text blocks."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(text_of(block) for block in content)
    if isinstance(content, dict):
        return str(content.get("text", "")) if "text" in content else text_of(content.get("content", ""))
    return ""
