"""OpenAI Responses, as Codex speaks it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.real_clis.script import HttpError, Piece, StreamError, ToolCall, Turn
from tests.real_clis.wire import Conversation, Frame, Json, ToolResult, sse, text_of, then_end, unique

RESPONSES = "/v1/responses"
ERROR_KINDS: dict[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_exceeded",
}
TOOL_OUTPUTS = ("function_call_output", "custom_tool_call_output")
MODEL_ITEMS = ("function_call", "custom_tool_call", "reasoning", "local_shell_call")

# Codex 0.166.0 starts a thread with its own user messages, each in such a tag.
NOTE_PREFIXES = ("<environment_context>", "<user_instructions>", "# AGENTS.md", "<skills_instructions>")


def matches(path: str) -> bool:
    """Whether the path is a model request."""
    return path == RESPONSES


def read(path: str, body: Json) -> Conversation:
    """The CLI's request, in neutral terms."""
    items = body.get("input", [])
    last_answer = max((n for n, item in enumerate(items) if _is_of_model(item)), default=-1)
    user_texts: list[str] = []
    assistant_texts: list[str] = []
    system = [str(body.get("instructions") or "")]
    results: list[tuple[int, ToolResult]] = []
    prompt: str | None = None
    prompt_at = -1
    for number, item in enumerate(items):
        kind = item.get("type", "message")
        if kind in TOOL_OUTPUTS:
            results.append((number, ToolResult(item["call_id"], text_of(item.get("output", "")))))
        elif kind == "message" and item["role"] in ("developer", "system"):
            system.append(text_of(item["content"]))
        elif kind == "message" and item["role"] == "assistant":
            assistant_texts.append(text_of(item["content"]))
        elif kind == "message":
            texts = [block["text"] for block in item["content"] if "text" in block]
            user_texts += texts
            own = [text for text in texts if not text.startswith(NOTE_PREFIXES)]
            if own:
                prompt, prompt_at = own[-1], number
    return Conversation(
        model=str(body.get("model", "")),
        system="\n".join(system),
        prompt=prompt,
        prompt_is_new=prompt_at > last_answer,
        user_texts=tuple(user_texts),
        assistant_texts=tuple(assistant_texts),
        tool_results=tuple(result for number, result in results if number > last_answer),
        all_tool_results=tuple(result for _, result in results),
        tools=tuple(_tool_names(body.get("tools", []))),
        stream=bool(body.get("stream")),
    )


def side_reply(path: str, body: Json, conversation: Conversation) -> Turn | Json | None:
    """None: Codex 0.166.0 makes no model requests for itself."""
    return None


def stream(turn: Turn, model: str) -> Iterator[Frame]:
    """The turn as Responses stream events."""
    response = {"id": unique("resp_"), "object": "response", "model": model, "status": "in_progress"}
    yield _event({"type": "response.created", "response": response})
    output: list[Json] = []
    if turn.thinking:
        yield from _reasoning(turn, len(output))
        output.append(_reasoning_item(turn.whole_thinking()))
    if turn.text:
        yield from _message(turn, len(output))
        output.append(_message_item(turn.whole_text()))
    for call in turn.tool_calls:
        item = _call_item(call)
        yield _event({"type": "response.output_item.added", "output_index": len(output), "item": item})
        yield _event({"type": "response.output_item.done", "output_index": len(output), "item": item})
        output.append(item)
    if turn.cut is not None:
        yield turn.cut
    yield _event(_last_event(turn, {**response, "output": output, "usage": _usage(turn)}))


def whole(turn: Turn, model: str) -> Json:
    """The turn as one Responses answer."""
    output: list[Json] = []
    if turn.thinking:
        output.append(_reasoning_item(turn.whole_thinking()))
    if turn.text:
        output.append(_message_item(turn.whole_text()))
    output += [_call_item(call) for call in turn.tool_calls]
    last = _last_event(turn, {"id": unique("resp_"), "object": "response", "model": model, "output": output})
    answer: Json = last["response"]
    return {**answer, "usage": _usage(turn)}


def error(error: HttpError) -> Json:
    """The body of a failed request."""
    kind = error.kind or ERROR_KINDS.get(error.status, "server_error")
    return {"error": {"message": error.message, "type": kind, "param": None, "code": kind, **error.details}}


def _is_of_model(item: Json) -> bool:
    return item.get("type") in MODEL_ITEMS or item.get("role") == "assistant"


def _tool_names(tools: list[Json]) -> Iterator[str]:
    for tool in tools:
        if tool.get("type") == "namespace":
            # Codex groups the tools of one MCP server; a call names group and tool.
            yield from (f"{tool['name']}.{name}" for name in _tool_names(tool.get("tools", [])))
        else:
            yield str(tool.get("name") or tool["type"])


def _event(data: Json) -> bytes:
    return sse(data, event=data["type"])


def _deltas(pieces: Iterator[Piece], event: Json) -> Iterator[Frame]:
    for piece in pieces:
        if isinstance(piece, str):
            yield _event({**event, "delta": piece})
        elif isinstance(piece, StreamError):
            failed = {"id": unique("resp_"), "status": "failed", "error": _stream_error(piece)}
            yield from then_end(_event({"type": "response.failed", "response": failed}))
        else:
            yield piece


def _stream_error(piece: StreamError) -> Json:
    return {"code": piece.kind, "message": piece.message}


def _message(turn: Turn, index: int) -> Iterator[Frame]:
    item = _message_item("")
    place = {"item_id": item["id"], "output_index": index, "content_index": 0}
    yield _event({"type": "response.output_item.added", "output_index": index, "item": {**item, "content": []}})
    yield from _deltas(turn.text_pieces(), {"type": "response.output_text.delta", **place})
    done = {**item, "content": [{"type": "output_text", "text": turn.whole_text(), "annotations": []}]}
    yield _event({"type": "response.output_item.done", "output_index": index, "item": done})


def _reasoning(turn: Turn, index: int) -> Iterator[Frame]:
    item = _reasoning_item("")
    place = {"item_id": item["id"], "output_index": index, "summary_index": 0}
    yield _event({"type": "response.output_item.added", "output_index": index, "item": {**item, "summary": []}})
    yield _event({"type": "response.reasoning_summary_part.added", **place})
    yield from _deltas(turn.thinking_pieces(), {"type": "response.reasoning_summary_text.delta", **place})
    done = {**item, "summary": [{"type": "summary_text", "text": turn.whole_thinking()}]}
    yield _event({"type": "response.output_item.done", "output_index": index, "item": done})


def _message_item(text: str) -> Json:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {
        "id": unique("msg_"),
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": content,
    }


def _reasoning_item(text: str) -> Json:
    return {"id": unique("rs_"), "type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}


def _call_item(call: ToolCall) -> Json:
    if call.item is not None:
        return dict(call.item)
    item: Json = {"call_id": call.id or unique("call_"), "name": call.name}
    if call.namespace:
        item["namespace"] = call.namespace
    if call.freeform:
        return {**item, "id": unique("ctc_"), "type": "custom_tool_call", "input": call.input}
    return {**item, "id": unique("fc_"), "type": "function_call", "arguments": call.arguments_json()}


def _last_event(turn: Turn, response: Json) -> Json:
    reasons: dict[str, Any] = {"max_tokens": "max_output_tokens", "refusal": "content_filter"}
    reason = reasons.get(turn.stop_reason)
    if reason is None:
        return {"type": "response.completed", "response": {**response, "status": "completed"}}
    details = {"status": "incomplete", "incomplete_details": {"reason": reason}}
    return {"type": "response.incomplete", "response": {**response, **details}}


def _usage(turn: Turn) -> Json:
    usage = turn.usage
    prompt = usage.input + usage.cache_read + usage.cache_write
    output = usage.output + usage.reasoning
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": usage.cache_read},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": prompt + output,
    }
