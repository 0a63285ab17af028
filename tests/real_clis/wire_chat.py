"""OpenAI chat completions, as OpenCode's openai-compatible provider speaks it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.real_clis.script import HttpError, Piece, StreamError, ToolCall, Turn
from tests.real_clis.wire import Conversation, Frame, Json, ToolResult, sse, text_of, then_end, unique

COMPLETIONS = "/v1/chat/completions"
FINISH_REASONS: dict[str, str] = {
    "end_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "refusal": "content_filter",
}
ERROR_KINDS: dict[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_exceeded",
}


def matches(path: str) -> bool:
    """Whether the path is a model request."""
    return path == COMPLETIONS


def read(path: str, body: Json) -> Conversation:
    """The CLI's request, in neutral terms."""
    messages = body.get("messages", [])
    last_answer = max((n for n, m in enumerate(messages) if m["role"] == "assistant"), default=-1)
    by_role: dict[str, list[str]] = {"system": [], "user": [], "assistant": []}
    results: list[tuple[int, ToolResult]] = []
    prompt: str | None = None
    prompt_at = -1
    for number, message in enumerate(messages):
        role = "system" if message["role"] == "developer" else message["role"]
        if role == "tool":
            results.append((number, ToolResult(message["tool_call_id"], text_of(message["content"]))))
            continue
        texts = _texts(message.get("content"))
        by_role[role] += texts
        if role == "user" and texts:
            prompt, prompt_at = texts[-1], number
    return Conversation(
        model=str(body.get("model", "")),
        system="\n".join(by_role["system"]),
        prompt=prompt,
        prompt_is_new=prompt_at > last_answer,
        user_texts=tuple(by_role["user"]),
        assistant_texts=tuple(by_role["assistant"]),
        tool_results=tuple(result for number, result in results if number > last_answer),
        all_tool_results=tuple(result for _, result in results),
        tools=tuple(tool["function"]["name"] for tool in body.get("tools", [])),
        stream=bool(body.get("stream")),
    )


def side_reply(path: str, body: Json, conversation: Conversation) -> Turn | Json | None:
    """OpenCode 1.18.33 asks for a title for every new session."""
    if not conversation.tools and "title generator" in conversation.system.lower():
        return Turn(text="A title")
    return None


def stream(turn: Turn, model: str) -> Iterator[Frame]:
    """The turn as chat completion chunks."""
    base: Json = {"id": unique("chatcmpl-"), "object": "chat.completion.chunk", "created": 0, "model": model}
    yield _chunk(base, {"role": "assistant", "content": ""})
    yield from _deltas(base, turn.thinking_pieces(), "reasoning_content")
    yield from _deltas(base, turn.text_pieces(), "content")
    for index, call in enumerate(turn.tool_calls):
        yield _chunk(base, {"tool_calls": [{"index": index, **_tool_call(call)}]})
    yield _chunk(base, {}, FINISH_REASONS[turn.stop_reason])
    yield sse({**base, "choices": [], "usage": _usage(turn)})
    yield sse("[DONE]")


def whole(turn: Turn, model: str) -> Json:
    """The turn as one chat completion."""
    message: Json = {"role": "assistant", "content": turn.whole_text()}
    if turn.thinking:
        message["reasoning_content"] = turn.whole_thinking()
    if turn.tool_calls:
        message["tool_calls"] = [_tool_call(call) for call in turn.tool_calls]
    choice = {"index": 0, "message": message, "finish_reason": FINISH_REASONS[turn.stop_reason]}
    head = {"id": unique("chatcmpl-"), "object": "chat.completion", "created": 0, "model": model}
    return {**head, "choices": [choice], "usage": _usage(turn)}


def error(error: HttpError) -> Json:
    """The body of a failed request."""
    kind = error.kind or ERROR_KINDS.get(error.status, "server_error")
    return {"error": {"message": error.message, "type": kind, "param": None, "code": kind}}


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [block["text"] for block in content or [] if "text" in block]


def _deltas(base: Json, pieces: Iterator[Piece], field: str) -> Iterator[Frame]:
    for piece in pieces:
        if isinstance(piece, str):
            yield _chunk(base, {field: piece})
        elif isinstance(piece, StreamError):
            error = {"message": piece.message, "type": piece.kind, "code": piece.kind}
            yield from then_end(sse({"error": error}))
        else:
            yield piece


def _chunk(base: Json, delta: Json, finish: str | None = None) -> bytes:
    return sse({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def _tool_call(call: ToolCall) -> Json:
    function = {"name": call.name, "arguments": call.arguments_json()}
    return {"id": call.id or unique("call_"), "type": "function", "function": function}


def _usage(turn: Turn) -> Json:
    usage = turn.usage
    prompt = usage.input + usage.cache_read + usage.cache_write
    output = usage.output + usage.reasoning
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
