"""Turns items of Codex's app server into those of `codex exec --json`: one table (`items.TOOL_ITEMS`) reads both."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ...wire.fields import Message, items, mapping, text

CAPITAL = re.compile(r"(?<=[a-z0-9])([A-Z])")


def snake_case(name: str) -> str:
    """commandExecution -> command_execution."""
    return CAPITAL.sub(r"_\1", name).lower()


def _command(item: Message) -> Message:
    return {"command": item.get("command")}


def _changes(item: Message) -> Message:
    changes = [change for change in items(item, "changes") if isinstance(change, dict)]
    return {"changes": [_change(change) for change in changes]}


def _change(change: Message) -> dict[str, Any]:
    kind = mapping(change, "kind")
    moved = {"move_path": kind["move_path"]} if kind.get("move_path") else {}
    return {"path": text(change, "path"), "kind": text(kind, "type"), **moved, "diff": text(change, "diff")}


def _mcp_call(item: Message) -> Message:
    result = mapping(item, "result")
    structured = result.get("structuredContent")
    called = {name: item.get(name) for name in ("server", "tool", "arguments", "error")}
    return {**called, "result": {"content": result.get("content"), "structured_content": structured}}


def _search(item: Message) -> Message:
    return {"query": item.get("query"), "action": item.get("action")}


def _agent_call(item: Message) -> Message:
    return {
        "tool": snake_case(text(item, "tool")),
        "prompt": item.get("prompt"),
        "receiver_thread_ids": item.get("receiverThreadIds"),
        "agents_states": item.get("agentsStates"),
    }


KINDS: Mapping[str, tuple[str, Callable[[Message], Message]]] = {
    "commandExecution": ("command_execution", _command),
    "fileChange": ("file_change", _changes),
    "mcpToolCall": ("mcp_tool_call", _mcp_call),
    "webSearch": ("web_search", _search),
    "collabAgentToolCall": ("collab_tool_call", _agent_call),
}


def as_exec_item(item: Message) -> Message | None:
    """The same tool call as `codex exec` would print it; None for an item that is not a tool call."""
    known = KINDS.get(text(item, "type"))
    if known is None:
        return None
    kind, fields = known
    return {
        "id": text(item, "id"),
        "type": kind,
        "status": snake_case(text(item, "status")),
        "aggregated_output": item.get("aggregatedOutput"),
        "exit_code": item.get("exitCode"),
        **fields(item),
    }
