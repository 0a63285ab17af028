"""Anthropic Messages, as Claude Code speaks it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.real_clis.script import HttpError, Piece, StreamError, ToolCall, Turn
from tests.real_clis.wire import Conversation, Frame, Json, ToolResult, sse, text_of, then_end, unique

MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"

ERROR_KINDS: dict[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}

# Claude Code 2.1.197 puts its own notes into the user message, each in this tag.
NOTE_PREFIX = "<system-reminder>"


def matches(path: str) -> bool:
    """Whether the path is a model request."""
    return path in (MESSAGES, COUNT_TOKENS)


def read(path: str, body: Json) -> Conversation:
    """The CLI's request, in neutral terms."""
    messages = body.get("messages", [])
    last_answer = max((n for n, m in enumerate(messages) if m["role"] == "assistant"), default=-1)
    user_texts: list[str] = []
    assistant_texts: list[str] = []
    results: list[tuple[int, ToolResult]] = []
    prompt: str | None = None
    prompt_at = -1
    for number, message in enumerate(messages):
        for block in _blocks(message["content"]):
            if block["type"] == "text" and message["role"] == "assistant":
                assistant_texts.append(block["text"])
            elif block["type"] == "text" and message["role"] == "user":
                user_texts.append(block["text"])
                if not block["text"].startswith(NOTE_PREFIX):
                    prompt, prompt_at = block["text"], number
            elif block["type"] == "tool_result":
                results.append((number, _tool_result(block)))
    return Conversation(
        model=str(body.get("model", "")),
        system=_system(body, messages),
        prompt=prompt,
        prompt_is_new=prompt_at > last_answer,
        user_texts=tuple(user_texts),
        assistant_texts=tuple(assistant_texts),
        tool_results=tuple(result for number, result in results if number > last_answer),
        all_tool_results=tuple(result for _, result in results),
        tools=tuple(tool["name"] for tool in body.get("tools", [])),
        stream=bool(body.get("stream")),
    )


def side_reply(path: str, body: Json, conversation: Conversation) -> Turn | Json | None:
    """Token counts, the quota probe and small-model requests without tools (titles, summaries)."""
    if path == COUNT_TOKENS:
        return {"input_tokens": 10}
    if body.get("max_tokens") == 1 or ("haiku" in conversation.model and not conversation.tools):
        return Turn(text="side answer")
    return None


def stream(turn: Turn, model: str) -> Iterator[Frame]:
    """The turn as Messages stream events."""
    yield _event({"type": "message_start", "message": _message(turn, model, content=[], started=True)})
    yield _event({"type": "ping"})
    index = 0
    if turn.thinking:
        yield from _block(index, {"type": "thinking", "thinking": "", "signature": ""}, _thinking_deltas(turn))
        index += 1
    if turn.text:
        yield from _block(index, {"type": "text", "text": ""}, _text_deltas(turn))
        index += 1
    for number, call in enumerate(turn.tool_calls):
        yield from _block(index, _tool_use(call, number, {}), _input_deltas(call))
        index += 1
    delta = {"stop_reason": turn.stop_reason, "stop_sequence": None}
    yield _event({"type": "message_delta", "delta": delta, "usage": _usage(turn)})
    yield _event({"type": "message_stop"})


def whole(turn: Turn, model: str) -> Json:
    """The turn as one Messages answer."""
    content: list[Json] = []
    if turn.thinking:
        content.append({"type": "thinking", "thinking": turn.whole_thinking(), "signature": "c2lnbmVk"})
    if turn.text:
        content.append({"type": "text", "text": turn.whole_text()})
    content += [_tool_use(call, number, call.input) for number, call in enumerate(turn.tool_calls)]
    return _message(turn, model, content=content)


def error(error: HttpError) -> Json:
    """The body of a failed request."""
    kind = error.kind or ERROR_KINDS.get(error.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}, "request_id": unique("req_")}


def _blocks(content: Any) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _system(body: Json, messages: list[Json]) -> str:
    inline = [text_of(message["content"]) for message in messages if message["role"] == "system"]
    return "\n".join([text_of(body.get("system", "")), *inline])


def _tool_result(block: Json) -> ToolResult:
    return ToolResult(block["tool_use_id"], text_of(block.get("content", "")), bool(block.get("is_error")))


def _event(data: Json) -> bytes:
    return sse(data, event=data["type"])


def _block(index: int, start: Json, deltas: Iterator[Json | Piece]) -> Iterator[Frame]:
    yield _event({"type": "content_block_start", "index": index, "content_block": start})
    for delta in deltas:
        if isinstance(delta, StreamError):
            error = {"type": delta.kind, "message": delta.message}
            yield from then_end(_event({"type": "error", "error": error}))
        elif isinstance(delta, dict):
            yield _event({"type": "content_block_delta", "index": index, "delta": delta})
        elif not isinstance(delta, str):
            yield delta
    yield _event({"type": "content_block_stop", "index": index})


def _text_deltas(turn: Turn) -> Iterator[Json | Piece]:
    for piece in turn.text_pieces():
        yield {"type": "text_delta", "text": piece} if isinstance(piece, str) else piece


def _thinking_deltas(turn: Turn) -> Iterator[Json | Piece]:
    for piece in turn.thinking_pieces():
        yield {"type": "thinking_delta", "thinking": piece} if isinstance(piece, str) else piece
    yield {"type": "signature_delta", "signature": "c2lnbmVk"}


def _input_deltas(call: ToolCall) -> Iterator[Json | Piece]:
    text = call.arguments_json()
    if text == "{}":
        return  # the real API sends no delta for empty arguments
    half = len(text) // 2
    for part in (text[:half], text[half:]):
        yield {"type": "input_json_delta", "partial_json": part}


def _tool_use(call: ToolCall, number: int, arguments: Any) -> Json:
    return {
        "type": "tool_use",
        "id": call.id or unique(f"toolu_{number}_"),
        "name": call.name,
        "input": arguments,
    }


def _message(turn: Turn, model: str, content: list[Json], started: bool = False) -> Json:
    usage = _usage(turn)
    if started:
        usage["output_tokens"] = 1  # a placeholder, as the real API sends it
    return {
        "id": unique("msg_"),
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": None if started else turn.stop_reason,
        "stop_sequence": None,
        "usage": usage,
    }


def _usage(turn: Turn) -> Json:
    usage = turn.usage
    return {
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.output + usage.reasoning,
    }
