"""What the items of a Codex thread mean: names, inputs and outputs of tool calls, and the text of messages."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from ...wire.fields import Message, items, mapping, plain_text, text

DECLINED = "declined"
NEEDS_APPROVAL = "requires approval"


class Utterance:
    """A growing message, of which Codex prints the whole text each time; `grow` returns what is new in it.

    `repeats` is what an earlier attempt already said: if a stream was cut off, Codex prints the message of the new
    attempt as another item, and the repeated words must not appear twice in the answer.
    """

    def __init__(self, repeats: str = "") -> None:
        self._repeats = repeats
        self._said = ""

    def grow(self, whole: str, *, is_final: bool) -> str:
        """The part of this text that was not there before."""
        if self._repeats:
            if not is_final and self._repeats.startswith(whole):
                return ""  # We cannot know yet whether it continues like the earlier one.
            if whole.startswith(self._repeats):
                self._said = self._repeats
            self._repeats = ""
        said = self._said
        if said.startswith(whole):
            return ""
        self._said = whole
        # Text that was sent cannot be taken back: if it changed in the middle, we send the changed end.
        known = len(said) if whole.startswith(said) else len(os.path.commonprefix((said, whole)))
        return whole[known:]


@attrs.frozen
class ToolItem:
    """How one type of item reads as a tool call."""

    name: Callable[[Message], str]
    input: Callable[[Message], Mapping[str, Any]]
    output: Callable[[Message], str]

    def failed(self, item: Message) -> bool:
        """Whether the finished call went wrong."""
        return text(item, "status") in ("failed", DECLINED) or item.get("exit_code") not in (0, None)


def denial_reason(item: Message) -> str | None:
    """Why the finished call was not allowed to run; None if it was."""
    if text(item, "status") == DECLINED:
        return "declined by the approval policy"
    message = text(mapping(item, "error"), "message")
    return message if NEEDS_APPROVAL in message else None


def _named(name: str) -> Callable[[Message], str]:
    return lambda item: name


def _fields(*names: str) -> Callable[[Message], Mapping[str, Any]]:
    return lambda item: {name: item[name] for name in names if item.get(name) is not None}


def _command_output(item: Message) -> str:
    output = text(item, "aggregated_output")
    if output:
        return output
    if text(item, "status") == DECLINED:
        return DECLINED
    return f"exit code {item['exit_code']}" if item.get("exit_code") not in (0, None) else ""


def _changes_output(item: Message) -> str:
    changes = [change for change in items(item, "changes") if isinstance(change, dict)]
    return "\n".join(f"{text(change, 'kind')} {text(change, 'path')}" for change in changes)


def _mcp_name(item: Message) -> str:
    return f"mcp__{text(item, 'server')}__{text(item, 'tool')}"


def _mcp_input(item: Message) -> Mapping[str, Any]:
    arguments = item.get("arguments")
    if isinstance(arguments, dict):
        return arguments
    return {} if arguments is None else {"arguments": arguments}


def _mcp_output(item: Message) -> str:
    result = mapping(item, "result")
    # If the tool itself failed, the message is in `result`; if the call never got there, it is in `error`.
    shown = plain_text(result.get("content")) or plain_text(result.get("structured_content"))
    return shown or text(mapping(item, "error"), "message")


def _collab_output(item: Message) -> str:
    states = [state for state in mapping(item, "agents_states").values() if isinstance(state, dict)]
    return "\n".join(text(state, "message") or text(state, "status") for state in states)


def todo_output(item: Message) -> str:
    """A plan as a list with boxes."""
    steps = [step for step in items(item, "items") if isinstance(step, dict)]
    return "\n".join(f"[{'x' if step.get('completed') else ' '}] {text(step, 'text')}" for step in steps)


TOOL_ITEMS: Mapping[str, ToolItem] = {
    "command_execution": ToolItem(_named("command_execution"), _fields("command"), _command_output),
    "file_change": ToolItem(_named("file_change"), _fields("changes"), _changes_output),
    "mcp_tool_call": ToolItem(_mcp_name, _mcp_input, _mcp_output),
    "web_search": ToolItem(_named("web_search"), _fields("query", "action"), _named("")),
    # Sub-agents: what they say and use does not appear in the stream, only these calls do.
    "collab_tool_call": ToolItem(
        lambda item: text(item, "tool") or "collab_tool_call", _fields("prompt", "receiver_thread_ids"), _collab_output
    ),
}
