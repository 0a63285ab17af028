"""The lines that Claude Code would print, for its fake (see `remoteclaw_sync.testing`)."""

from __future__ import annotations

from collections.abc import Iterator

from ..fake import TOKENS_IN, TOKENS_OUT, Fake, Line, Script


def _lines(script: Script) -> Iterator[Line]:
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


FAKE = Fake(
    session_id="11111111-1111-4111-8111-111111111111",
    resumed=r"--resume=([^\0]+)",
    lines=_lines,
    stays="--permission-prompt-tool=stdio",
)
