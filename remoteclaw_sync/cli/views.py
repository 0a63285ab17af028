"""How events are shown: as text for people, or as JSON lines for programs."""

from __future__ import annotations

import sys
from typing import Any, Protocol

from .._json import dump
from ..errors import ABORTED, SURVIVABLE
from ..types import (
    AgentDoneEvent,
    AgentErrorEvent,
    AgentEvent,
    AgentPermissionEvent,
    AgentRunResult,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
)
from .status_line import Progress, Screen
from .terminal_text import clean, one_line, shorten

# The fields of a tool's input that people want to see, most interesting first.
TELLING_INPUTS = ("command", "cmd", "file_path", "path", "pattern", "query", "url", "description", "prompt")
MESSAGE_LIMIT = 4_000  # Characters of an error that are shown.


class View(Protocol):
    """Shows every event of a run. `stop` is called when the reader is gone, otherwise `close`."""

    def show(self, event: AgentEvent) -> None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...


class JsonView:
    """Prints each event as a line of JSON on stdout, flushed."""

    def show(self, event: AgentEvent) -> None:
        """Print the event."""
        # UTF-8 on any terminal, because it is JSON. A lone surrogate becomes \\udXXX, which means the same in JSON.
        line = dump(event.to_dict()).encode("utf-8", "backslashreplace")
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()

    def stop(self) -> None:
        """Do nothing: nothing is pending."""

    def close(self) -> None:
        """Do nothing: nothing is pending."""


class TextView:
    """The answer on stdout; on a terminal also tools, thinking and a live status on stderr; a summary at the end."""

    def __init__(
        self,
        *,
        resume_command: str | None = None,
        quiet: bool = False,
        screen: Screen | None = None,
        names_session: bool = True,
        hint: str = "",
    ) -> None:
        self._quiet = quiet
        self._resume_command = resume_command
        self._names_session = names_session
        self._progress = Progress(hint)
        self._screen = screen or Screen(sys.stdout, sys.stderr)
        if not quiet:
            self._screen.begin(self._progress)
        self._chatty = self._screen.on_terminal and not quiet
        self._thinking = False
        self._tools: dict[str, str] = {}

    def show(self, event: AgentEvent) -> None:
        """Show the event."""
        if not isinstance(event, AgentThinkingEvent):
            self._end_thinking()
        match event:
            case AgentTextEvent():
                self._progress.doing = "answering"
                self._progress.heard(event.text)
                self._screen.answer(event.text)
            case AgentThinkingEvent():
                self._think(event.text)
            case AgentToolUseEvent():
                self._call(event)
            case AgentToolResultEvent():
                self._result(event)
            case AgentPermissionEvent():
                self._progress.doing = f"asking for {one_line(event.request.tool_name) or 'permission'}"
            case AgentErrorEvent() if event.code != ABORTED:
                self._complain(event)
            case AgentDoneEvent():
                self._screen.close()
                if not self._quiet:
                    self._summarise(event.result)

    def is_stopping(self) -> None:
        """Show that in the status. For a signal handler: takes no lock."""
        self._progress.doing = "stopping"

    def stop(self) -> None:
        """Erase the status and write nothing more to stdout."""
        self._screen.stop()

    def close(self) -> None:
        """Leave the terminal clean."""
        self._screen.close()

    def _think(self, text: str) -> None:
        self._progress.heard(text)
        self._progress.doing = "thinking"
        if self._chatty:
            if not self._thinking:
                self._screen.begin_line()
            self._thinking = True
            self._screen.aside(text)

    def _end_thinking(self) -> None:
        if self._thinking:
            self._thinking = False
            self._screen.begin_line()

    def _call(self, event: AgentToolUseEvent) -> None:
        name = one_line(event.tool_name) or "tool"
        self._tools[event.tool_id] = self._progress.doing = name
        if self._chatty:
            style = self._screen.style
            said = shorten(one_line(_telling(event.input)), self._screen.room() - len(name) - 4, style.ellipsis)
            self._screen.note(f"{style.dim(style.call)} {style.bold(name)} {style.dim(said)}".rstrip())

    def _result(self, event: AgentToolResultEvent) -> None:
        self._tools.pop(event.tool_id, None)
        self._progress.doing = next(reversed(self._tools.values()), "working")
        if self._chatty:
            style = self._screen.style
            lines = clean(event.output).strip().splitlines()
            more = f" (+{len(lines) - 1} lines)" if len(lines) > 1 else ""
            first = shorten(one_line(lines[0]) if lines else "", self._screen.room() - len(more) - 12, style.ellipsis)
            sign = style.red(style.failed) if event.is_error else style.green(style.ok)
            self._screen.note(f"  {sign} {style.dim(first + more)}".rstrip())

    def _complain(self, event: AgentErrorEvent) -> None:
        style = self._screen.style
        warning = event.code in SURVIVABLE
        if warning and self._quiet:
            return
        label = style.yellow("warning:") if warning else style.red("error:")
        code = f" [{one_line(event.code)}]" if event.code else ""
        self._screen.note(f"{label} {clean(event.message[:MESSAGE_LIMIT]).strip()}{code}")

    def _summarise(self, result: AgentRunResult) -> None:
        style = self._screen.style
        if result.ok:
            parts = [style.green(style.ok) + f" {_seconds(result.duration_ms)}"]
        else:
            kind = "interrupted" if result.aborted else f"failed ({result.error_subtype})"
            parts = [style.red(style.failed) + f" {kind}", _seconds(result.duration_ms)]
        usage = result.usage
        if usage is not None:
            cached = usage.cache_read_tokens + usage.cache_write_tokens
            more = f" (+{cached:,} cached)" if cached else ""
            parts.append(f"{usage.input_tokens:,} tokens in{more}, {usage.output_tokens:,} out")
        if result.total_cost_usd is not None:
            parts.append(f"${result.total_cost_usd:.4f}")
        if not self._names_session:
            pass
        elif result.session_id and self._resume_command:
            parts.append(f"to continue: {self._resume_command} --resume {one_line(result.session_id)}")
        elif result.session_id:
            parts.append(f"session {one_line(result.session_id)}")
        self._screen.note(f" {style.dot} ".join(parts))


def _telling(tool_input: Any) -> str:
    """What the call is about, in one string."""
    for key in TELLING_INPUTS:
        value = tool_input.get(key)
        if isinstance(value, str) and value:
            return value
    return dump(dict(tool_input)) if tool_input else ""


def _seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.1f} s"
