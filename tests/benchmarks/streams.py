"""Streams as the four CLIs print them, of any length. Their format is that of tests/transcripts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SESSION = "5b1f3e3c-6d0e-4a55-9a53-0f7f5b2c9c11"
STAMP = "@" * 20  # Replaced by the fake CLI with the time of writing.
PROVIDERS = ("claude", "gemini", "codex", "opencode")
AT_WORK = "claude at work"

NUMBER = "#NUMBER#"

Line = dict[str, Any]


def write_stream(path: Path, provider: str, lines: int, *, text: str | None = None) -> Path:
    """A stream of about that many lines that ends successfully; `text` is the text of every piece."""
    with path.open("w") as file:
        for line in _STREAMS[provider](lines, text):
            file.write(line if isinstance(line, str) else _as_json(line))
    return path


def _as_json(line: Line) -> str:
    return json.dumps(line, separators=(",", ":")) + "\n"


def _numbered(lines: int, line: Line) -> Iterator[str]:
    """This many copies of the line, each with its number: in a tenth of the time that json.dumps() would take."""
    template = _as_json(line)
    return (template.replace(NUMBER, str(number)) for number in range(lines))


def write_very_long_stream(path: Path, lines: int) -> Path:
    """Claude's stream, written in a hundredth of the time: the same thousand pieces again and again."""
    pieces = [line if isinstance(line, str) else _as_json(line) for line in _claude(1000, None)]
    with path.open("w") as file:
        file.writelines(pieces[:3])
        for _ in range(lines // 1000):
            file.writelines(pieces[3:-2])
        file.writelines(pieces[-2:])
    return path


def write_long_line(path: Path, provider: str, size: int) -> Path:
    """A stream with one line of `size` bytes."""
    return write_stream(path, provider, 1, text="x" * size)


def _piece(number: object, text: str | None) -> str:
    return f"word {number} and a few more " if text is None else text


def _claude(lines: int, text: str | None) -> Iterator[Line | str]:
    common = {"session_id": SESSION, "parent_tool_use_id": None, "uuid": "0f7f5b2c-6d0e-4a55-9a53-5b1f3e3c6d0e"}
    yield {"type": "system", "subtype": "init", "model": "m", "tools": [], "mcp_servers": [], **common}
    start = {"type": "message_start", "message": {"id": "msg_1", "role": "assistant", "content": []}}
    yield {"type": "stream_event", "event": start, **common}
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    yield {"type": "stream_event", "event": block, **common}
    delta = {"type": "text_delta", "text": _piece(NUMBER, text)}
    event = {"type": "content_block_delta", "index": 0, "delta": delta}
    yield from _numbered(lines, {"type": "stream_event", "event": event, **common})
    yield {"type": "stream_event", "event": {"type": "content_block_stop", "index": 0}, **common}
    usage = {"input_tokens": 10, "output_tokens": lines}
    counts = {"duration_ms": 1, "duration_api_ms": 1, "num_turns": 1, "total_cost_usd": 0.0, "usage": usage}
    yield {"type": "result", "subtype": "success", "is_error": False, "result": "", **counts, **common}


def _claude_at_work(lines: int, text: str | None) -> Iterator[Line | str]:
    """Turns of thinking, text and a tool call, as a working agent prints them: 12 of 40 lines are text."""
    common = {"session_id": SESSION, "parent_tool_use_id": None, "uuid": "0f7f5b2c-6d0e-4a55-9a53-5b1f3e3c6d0e"}
    yield {"type": "system", "subtype": "init", "model": "m", "tools": [], "mcp_servers": [], **common}
    turn = "".join(map(_as_json, _turn_at_work(common, text)))
    yield from (turn.replace(NUMBER, str(number)) for number in range(lines // 40))
    counts = {"duration_ms": 1, "duration_api_ms": 1, "num_turns": 1, "total_cost_usd": 0.0}
    yield {"type": "result", "subtype": "success", "is_error": False, "result": "", **counts, **common}


def _turn_at_work(common: Line, text: str | None) -> Iterator[Line]:
    message = {"id": f"msg_{NUMBER}", "type": "message", "role": "assistant", "model": "m"}
    call = {"type": "tool_use", "id": f"toolu_{NUMBER}", "name": "Bash", "input": {}}
    deltas = {
        "thinking": [{"type": "thinking_delta", "thinking": _piece(n, text)} for n in range(10)],
        "text": [{"type": "text_delta", "text": _piece(n, text)} for n in range(12)],
        "tool_use": [{"type": "input_json_delta", "partial_json": part} for part in ('{"comm', 'and":', '"ls"}')],
    }
    starts: tuple[dict[str, Any], ...] = ({"type": "thinking", "thinking": ""}, {"type": "text", "text": ""}, call)
    yield {
        "type": "stream_event",
        "event": {"type": "message_start", "message": {**message, "content": []}},
        **common,
    }
    for index, start in enumerate(starts):
        kind = start["type"]
        event = {"type": "content_block_start", "index": index, "content_block": start}
        yield {"type": "stream_event", "event": event, **common}
        for delta in deltas[kind]:
            event = {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "stream_event", "event": event, **common}
        said = "".join(str(delta.get(kind, "")) for delta in deltas[kind])
        whole = {**call, "input": {"command": "ls"}} if kind == "tool_use" else {"type": kind, kind: said}
        yield {"type": "assistant", "message": {**message, "content": [whole]}, **common}
        yield {"type": "stream_event", "event": {"type": "content_block_stop", "index": index}, **common}
    yield {
        "type": "stream_event",
        "event": {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        **common,
    }
    yield {"type": "stream_event", "event": {"type": "message_stop"}, **common}
    output = {"type": "tool_result", "tool_use_id": f"toolu_{NUMBER}", "content": "a\nb\nc"}
    yield {"type": "user", "message": {"role": "user", "content": [output]}, **common}


def _gemini(lines: int, text: str | None) -> Iterator[Line | str]:
    stamp = {"timestamp": "2026-01-01T00:00:00.000Z"}
    yield {"type": "init", **stamp, "session_id": SESSION, "model": "auto"}
    piece = _piece(NUMBER, text)
    yield from _numbered(lines, {"type": "message", **stamp, "role": "assistant", "content": piece, "delta": True})
    stats = {"total_tokens": 2, "input_tokens": 1, "output_tokens": 1, "cached": 0, "duration_ms": 1, "tool_calls": 0}
    yield {"type": "result", **stamp, "status": "success", "stats": stats}


def _codex(lines: int, text: str | None) -> Iterator[Line | str]:
    yield {"type": "thread.started", "thread_id": SESSION}
    yield {"type": "turn.started"}
    item = {"id": f"item_{NUMBER}", "type": "agent_message", "text": _piece(NUMBER, text)}
    yield from _numbered(lines, {"type": "item.completed", "item": item})
    usage = {"input_tokens": 22, "cached_input_tokens": 10, "output_tokens": 26, "reasoning_output_tokens": 4}
    yield {"type": "turn.completed", "usage": usage}


def _opencode(lines: int, text: str | None) -> Iterator[Line | str]:
    session = {"timestamp": 1767225600000, "sessionID": "ses_1"}
    part = {"messageID": "msg_1", "sessionID": "ses_1"}
    yield {"type": "step_start", **session, "part": {"id": "prt_s", **part, "type": "step-start"}}
    time = {"start": 1, "end": 2}
    body = {"id": f"prt_{NUMBER}", **part, "type": "text", "text": _piece(NUMBER, text), "time": time}
    yield from _numbered(lines, {"type": "text", **session, "part": body})
    tokens = {"total": 2, "input": 1, "output": 1, "reasoning": 0, "cache": {"read": 0, "write": 0}}
    finish = {"id": "prt_f", **part, "type": "step-finish", "reason": "stop", "tokens": tokens, "cost": 0}
    yield {"type": "step_finish", **session, "part": finish}


_STREAMS = {"claude": _claude, AT_WORK: _claude_at_work, "gemini": _gemini, "codex": _codex, "opencode": _opencode}
