"""The lines that Gemini CLI would print, for its fake (see `remoteclaw_sync.testing`)."""

from __future__ import annotations

from collections.abc import Iterator

from ..fake import TOKENS_IN, TOKENS_OUT, Fake, Line, Script


def _lines(script: Script) -> Iterator[Line]:
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


FAKE = Fake(session_id="22222222-2222-4222-8222-222222222222", resumed=r"--resume=([^\0]+)", lines=_lines)
