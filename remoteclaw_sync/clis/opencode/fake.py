"""The lines that OpenCode would print, for its fake (see `remoteclaw_sync.testing`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..fake import TOKENS_IN, TOKENS_OUT, Fake, Line, Script


def _lines(script: Script) -> Iterator[Line]:
    # A step (one answer of the model) is a message; OpenCode continues after one that has called tools.
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


FAKE = Fake(session_id="ses_44444444444444444444444444", resumed=r"--session=([^\0]+)", lines=_lines)
