"""Gemini generateContent, as Gemini CLI speaks it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from tests.real_clis.script import HttpError, StreamError, ToolCall, Turn
from tests.real_clis.wire import Conversation, Frame, Json, ToolResult, minimal_instance, sse, then_end, unique

PATH = re.compile(r"^/v1(?:beta|alpha)?/models/(?P<model>[^:/]+):(?P<method>\w+)$")
METHODS = ("streamGenerateContent", "generateContent", "countTokens", "embedContent")

FINISH_REASONS: dict[str, str] = {"max_tokens": "MAX_TOKENS", "refusal": "SAFETY"}
ERROR_KINDS: dict[int, str] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}

# Gemini CLI 0.61.0 starts every conversation with its own message.
NOTE_PREFIX = "<session_context>"


def matches(path: str) -> bool:
    """Whether the path is a model request."""
    found = PATH.match(path)
    return found is not None and found["method"] in METHODS


def read(path: str, body: Json) -> Conversation:
    """The CLI's request, in neutral terms."""
    found = PATH.match(path)
    assert found is not None
    contents = body.get("contents", [])
    last_answer = max((n for n, c in enumerate(contents) if c.get("role") == "model"), default=-1)
    user_texts: list[str] = []
    assistant_texts: list[str] = []
    results: list[tuple[int, ToolResult]] = []
    prompt: str | None = None
    prompt_at = -1
    for number, content in enumerate(contents):
        for part in content.get("parts", []):
            if "functionResponse" in part:
                results.append((number, _tool_result(part["functionResponse"])))
            elif "text" in part and content.get("role") == "model":
                assistant_texts.append(part["text"])
            elif "text" in part:
                user_texts.append(part["text"])
                if not part["text"].lstrip().startswith(NOTE_PREFIX):
                    prompt, prompt_at = part["text"], number
    return Conversation(
        model=found["model"],
        system="".join(part.get("text", "") for part in body.get("systemInstruction", {}).get("parts", [])),
        prompt=prompt,
        prompt_is_new=prompt_at > last_answer,
        user_texts=tuple(user_texts),
        assistant_texts=tuple(assistant_texts),
        tool_results=tuple(result for number, result in results if number > last_answer),
        all_tool_results=tuple(result for _, result in results),
        tools=tuple(
            declaration["name"]
            for tool in body.get("tools", [])
            for declaration in tool.get("functionDeclarations", [])
        ),
        stream=found["method"] == "streamGenerateContent",
    )


def side_reply(path: str, body: Json, conversation: Conversation) -> Turn | Json | None:
    """Token counts, embeddings, and the questions of the router and the checkers, which want JSON."""
    if path.endswith(":countTokens"):
        return {"totalTokens": 10}
    if path.endswith(":embedContent"):
        return {"embedding": {"values": [0.0]}}
    wanted = body.get("generationConfig", {})
    schema = wanted.get("responseJsonSchema") or wanted.get("responseSchema")
    if schema:
        return Turn(text=json.dumps(minimal_instance(schema)))
    if path.endswith(":generateContent"):
        return Turn(text="side answer")
    return None


def stream(turn: Turn, model: str) -> Iterator[Frame]:
    """The turn as one response object per delta."""
    response = unique("gemini-")
    for piece in turn.thinking_pieces():
        if isinstance(piece, str):
            yield _chunk(response, model, [{"text": piece, "thought": True}])
        elif isinstance(piece, StreamError):
            yield from then_end(_stream_error(piece))
        else:
            yield piece
    for piece in turn.text_pieces():
        if isinstance(piece, str):
            yield _chunk(response, model, [{"text": piece}])
        elif isinstance(piece, StreamError):
            yield from then_end(_stream_error(piece))
        else:
            yield piece
    parts = [_function_call(call) for call in turn.tool_calls]
    yield _chunk(response, model, parts, turn=turn)


def whole(turn: Turn, model: str) -> Json:
    """The turn as one response object."""
    parts: list[Json] = []
    if turn.thinking:
        parts.append({"text": turn.whole_thinking(), "thought": True})
    if turn.text:
        parts.append({"text": turn.whole_text()})
    parts += [_function_call(call) for call in turn.tool_calls]
    return _response(unique("gemini-"), model, parts, turn)


def error(error: HttpError) -> Json:
    """The body of a failed request."""
    kind = error.kind or ERROR_KINDS.get(error.status, "UNKNOWN")
    body: Json = {"error": {"code": error.status, "message": error.message, "status": kind}}
    if error.retry_after is not None:
        # Gemini CLI 0.61.0 looks for the delay in the body, not in a header.
        info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{error.retry_after}s"}
        body["error"]["details"] = [info]
    return body


def _tool_result(response: Json) -> ToolResult:
    answer = response.get("response", {})
    failed = "error" in answer
    value = answer.get("error") if failed else answer.get("output", answer)
    text = value if isinstance(value, str) else json.dumps(value)
    return ToolResult(str(response.get("id", "")), text, failed, response.get("name"))


def _function_call(call: ToolCall) -> Json:
    function: Json = {"name": call.name, "args": call.input}
    if call.id:
        function["id"] = call.id
    return {"functionCall": function}


def _chunk(response: str, model: str, parts: list[Json], turn: Turn | None = None) -> bytes:
    return sse(_response(response, model, parts, turn))


def _stream_error(piece: StreamError) -> bytes:
    return sse({"error": {"code": 503, "message": piece.message, "status": "UNAVAILABLE"}})


def _response(response: str, model: str, parts: list[Json], turn: Turn | None) -> Json:
    candidate: Json = {"content": {"role": "model", "parts": parts}, "index": 0}
    body: Json = {"candidates": [candidate], "modelVersion": model, "responseId": response}
    if turn is not None:
        candidate["finishReason"] = FINISH_REASONS.get(turn.stop_reason, "STOP")
        body["usageMetadata"] = _usage(turn)
    return body


def _usage(turn: Turn) -> Json:
    usage = turn.usage
    prompt = usage.input + usage.cache_read + usage.cache_write
    return {
        "promptTokenCount": prompt,
        "cachedContentTokenCount": usage.cache_read,
        "candidatesTokenCount": usage.output,
        "thoughtsTokenCount": usage.reasoning,
        "totalTokenCount": prompt + usage.output + usage.reasoning,
    }
