"""Streams as the four CLIs print them, of any length. Shapes are those of tests/transcripts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SESSION = "5b1f3e3c-6d0e-4a55-9a53-0f7f5b2c9c11"
STAMP = "@" * 20  # Replaced by the fake CLI with the time of writing.
PROVIDERS = ("claude", "gemini", "codex", "opencode")

Line = dict[str, Any]


def write_stream(path: Path, provider: str, lines: int, *, text: str | None = None) -> Path:
    """A stream of about that many lines that ends well; `text` is what every piece says."""
    with path.open("w") as file:
        for line in _STREAMS[provider](lines, text):
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
    return path


def write_very_long_stream(path: Path, lines: int) -> Path:
    """Claude's, written in a hundredth of the time: the same thousand pieces again and again."""
    pieces = [json.dumps(line, separators=(",", ":")) + "\n" for line in _claude(1000, None)]
    with path.open("w") as file:
        file.writelines(pieces[:3])
        for _ in range(lines // 1000):
            file.writelines(pieces[3:-2])
        file.writelines(pieces[-2:])
    return path


def write_long_line(path: Path, provider: str, size: int) -> Path:
    """A stream with one line of `size` bytes."""
    return write_stream(path, provider, 1, text="x" * size)


def _piece(index: int, text: str | None) -> str:
    return f"word {index} and a few more " if text is None else text


def _claude(lines: int, text: str | None) -> Iterator[Line]:
    common = {"session_id": SESSION, "parent_tool_use_id": None, "uuid": "0f7f5b2c-6d0e-4a55-9a53-5b1f3e3c6d0e"}
    yield {"type": "system", "subtype": "init", "model": "m", "tools": [], "mcp_servers": [], **common}
    start = {"type": "message_start", "message": {"id": "msg_1", "role": "assistant", "content": []}}
    yield {"type": "stream_event", "event": start, **common}
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    yield {"type": "stream_event", "event": block, **common}
    for index in range(lines):
        delta = {"type": "text_delta", "text": _piece(index, text)}
        event = {"type": "content_block_delta", "index": 0, "delta": delta}
        yield {"type": "stream_event", "event": event, **common}
    yield {"type": "stream_event", "event": {"type": "content_block_stop", "index": 0}, **common}
    usage = {"input_tokens": 10, "output_tokens": lines}
    counts = {"duration_ms": 1, "duration_api_ms": 1, "num_turns": 1, "total_cost_usd": 0.0, "usage": usage}
    yield {"type": "result", "subtype": "success", "is_error": False, "result": "", **counts, **common}


def _gemini(lines: int, text: str | None) -> Iterator[Line]:
    stamp = {"timestamp": "2026-01-01T00:00:00.000Z"}
    yield {"type": "init", **stamp, "session_id": SESSION, "model": "auto"}
    for index in range(lines):
        piece = _piece(index, text)
        yield {"type": "message", **stamp, "role": "assistant", "content": piece, "delta": True}
    stats = {"total_tokens": 2, "input_tokens": 1, "output_tokens": 1, "cached": 0, "duration_ms": 1, "tool_calls": 0}
    yield {"type": "result", **stamp, "status": "success", "stats": stats}


def _codex(lines: int, text: str | None) -> Iterator[Line]:
    yield {"type": "thread.started", "thread_id": SESSION}
    yield {"type": "turn.started"}
    for index in range(lines):
        item = {"id": f"item_{index}", "type": "agent_message", "text": _piece(index, text)}
        yield {"type": "item.completed", "item": item}
    usage = {"input_tokens": 22, "cached_input_tokens": 10, "output_tokens": 26, "reasoning_output_tokens": 4}
    yield {"type": "turn.completed", "usage": usage}


def _opencode(lines: int, text: str | None) -> Iterator[Line]:
    session = {"timestamp": 1767225600000, "sessionID": "ses_1"}
    part = {"messageID": "msg_1", "sessionID": "ses_1"}
    yield {"type": "step_start", **session, "part": {"id": "prt_s", **part, "type": "step-start"}}
    for index in range(lines):
        time = {"start": 1, "end": 2}
        body = {"id": f"prt_{index}", **part, "type": "text", "text": _piece(index, text), "time": time}
        yield {"type": "text", **session, "part": body}
    tokens = {"total": 2, "input": 1, "output": 1, "reasoning": 0, "cache": {"read": 0, "write": 0}}
    finish = {"id": "prt_f", **part, "type": "step-finish", "reason": "stop", "tokens": tokens, "cost": 0}
    yield {"type": "step_finish", **session, "part": finish}


_STREAMS = {"claude": _claude, "gemini": _gemini, "codex": _codex, "opencode": _opencode}
