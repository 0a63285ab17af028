"""What each CLI would print for a given answer: the lines that fake CLIs say (see testing.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

Line = dict[str, Any]
SESSION_IDS = {
    "claude": "11111111-1111-4111-8111-111111111111",
    "gemini": "22222222-2222-4222-8222-222222222222",
    "codex": "33333333-3333-7333-8333-333333333333",
    "opencode": "ses_44444444444444444444444444",
}
TOKENS_IN, TOKENS_OUT = 12, 34


@attrs.frozen
class ToolCall:
    """A tool that the agent calls, and what that gives."""

    name: str = "bash"
    input: Mapping[str, Any] = attrs.field(factory=dict)
    output: str = ""
    is_error: bool = False


@attrs.frozen(kw_only=True)
class Script:
    """What an agent does in one run."""

    text: str = ""
    tools: tuple[ToolCall, ...] = ()
    error: str | None = None
    session_id: str


def lines_of(provider: str, script: Script) -> list[Line]:
    """The lines by which this CLI tells it, its last word included."""
    return list(_DIALECTS[provider](script))


def _claude(script: Script) -> Iterator[Line]:
    common = {"session_id": script.session_id, "parent_tool_use_id": None}
    yield {"type": "system", "subtype": "init", "model": "fake", "tools": [], "mcp_servers": [], **common}
    for number, tool in enumerate(script.tools):
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": tool.name, "input": dict(tool.input)}
        yield {"type": "assistant", "message": {"id": f"msg_{number}", "content": [call]}, **common}
        result: Line = {"type": "tool_result", "tool_use_id": f"toolu_{number}"}
        result |= {"content": tool.output, "is_error": tool.is_error}
        yield {"type": "user", "message": {"role": "user", "content": [result]}, **common}
    if script.text:
        answer = {"id": "msg_answer", "content": [{"type": "text", "text": script.text}]}
        yield {"type": "assistant", "message": answer, **common}
    yield {
        "type": "result",
        "subtype": "success",
        "is_error": script.error is not None,
        "result": script.text if script.error is None else script.error,
        "num_turns": len(script.tools) + 1,
        "total_cost_usd": 0.0,
        "usage": {"input_tokens": TOKENS_IN, "output_tokens": TOKENS_OUT},
        "session_id": script.session_id,
    }


def _gemini(script: Script) -> Iterator[Line]:
    yield {"type": "init", "session_id": script.session_id, "model": "fake"}
    for number, tool in enumerate(script.tools):
        yield {
            "type": "tool_use",
            "tool_name": tool.name,
            "tool_id": f"call_{number}",
            "parameters": dict(tool.input),
        }
        result: Line = {"type": "tool_result", "tool_id": f"call_{number}", "status": "success", "output": tool.output}
        if tool.is_error:
            result |= {"status": "error", "error": {"type": "tool_error", "message": tool.output}}
        yield result
    if script.text:
        yield {"type": "message", "role": "assistant", "content": script.text, "delta": True}
    end: Line = {"type": "result", "status": "success"}
    if script.error is not None:
        end |= {"status": "error", "error": {"type": "unknown", "message": script.error}}
    yield {**end, "stats": {"input_tokens": TOKENS_IN, "input": TOKENS_IN, "output_tokens": TOKENS_OUT, "cached": 0}}


def _codex(script: Script) -> Iterator[Line]:
    yield {"type": "thread.started", "thread_id": script.session_id}
    yield {"type": "turn.started"}
    for number, tool in enumerate(script.tools):
        item = {"id": f"item_{number}", "type": "command_execution"}
        item["command"] = str(tool.input.get("command", tool.name))
        started = {"aggregated_output": "", "exit_code": None, "status": "in_progress"}
        yield {"type": "item.started", "item": {**item, **started}}
        status = "failed" if tool.is_error else "completed"
        ended = {"aggregated_output": tool.output, "exit_code": int(tool.is_error), "status": status}
        yield {"type": "item.completed", "item": {**item, **ended}}
    if script.text:
        yield {"type": "item.completed", "item": {"id": "item_answer", "type": "agent_message", "text": script.text}}
    if script.error is not None:
        yield {"type": "error", "message": script.error}
        yield {"type": "turn.failed", "error": {"message": script.error}}
        return
    usage = {"input_tokens": TOKENS_IN, "cached_input_tokens": 0, "output_tokens": TOKENS_OUT}
    yield {"type": "turn.completed", "usage": usage}


def _opencode(script: Script) -> Iterator[Line]:
    # A step (one answer of the model) is a message: OpenCode goes on after one that has called tools.
    for number, tool in enumerate(script.tools):
        state: Line = {"status": "completed", "input": dict(tool.input), "output": tool.output}
        if tool.is_error:
            state = {"status": "error", "input": dict(tool.input), "error": tool.output}
        yield _part(script, number, "step_start", type="step-start")
        yield _part(script, number, "tool_use", type="tool", tool=tool.name, callID=f"call_{number}", state=state)
        yield _part(script, number, "step_finish", type="step-finish", reason="tool-calls", tokens={}, cost=0.0)
    last = len(script.tools)
    yield _part(script, last, "step_start", type="step-start")
    if script.text:
        yield _part(script, last, "text", type="text", text=script.text)
    if script.error is not None:
        error = {"name": "APIError", "data": {"message": script.error}}
        yield {"type": "error", "timestamp": 0, "sessionID": script.session_id, "error": error}
        return
    tokens = {"input": TOKENS_IN, "output": TOKENS_OUT, "reasoning": 0, "cache": {"read": 0, "write": 0}}
    yield _part(script, last, "step_finish", type="step-finish", reason="stop", tokens=tokens, cost=0.0)


def _part(script: Script, message: int, kind: str, **part: Any) -> Line:
    ids = {"id": f"prt_{message}_{kind}", "messageID": f"msg_{message}", "sessionID": script.session_id}
    return {"type": kind, "timestamp": 0, "sessionID": script.session_id, "part": {**ids, **part}}


_DIALECTS: Mapping[str, Callable[[Script], Iterator[Line]]] = {
    "claude": _claude,
    "gemini": _gemini,
    "codex": _codex,
    "opencode": _opencode,
}
