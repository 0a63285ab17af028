"""The lines that Codex would print, for its fake (see `remoteclaw_sync.testing`)."""

from __future__ import annotations

from collections.abc import Iterator

from ..fake import TOKENS_IN, TOKENS_OUT, Fake, Line, Script


def _lines(script: Script) -> Iterator[Line]:
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


FAKE = Fake(session_id="33333333-3333-7333-8333-333333333333", resumed=r"resume\0(?:--[^\0]*\0)*([^\0]+)", lines=_lines)
