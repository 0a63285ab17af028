"""Asks a person at a terminal about a tool call, for `chat` and for `run --approve`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .._json import dump
from ..types import Allow, Deny, PermissionRequest
from .keyboard import Lines, News, never
from .status_line import Screen
from .terminal_text import visible

PROMPT = "  allow? y / n / always / why > "
HELP = "  y: this once. n: no. always: {always}. why: all that is known. Other words: no, and the agent is told them."
SHOWN_LINES = 16  # Of a call's arguments; `why` shows the rest.
SHOWN_CHARACTERS = 2_000
NOBODY = "Nobody answered."
NO_ANSWER = "The user did not answer."
COMMAND_KEYS = ("command", "cmd")  # The names under which a shell gets its command.


class Asker:
    """An `approve` function. Anything that is not a clear yes is a no.

    Args:
        screen: where the question is shown.
        lines: where the answer comes from.
    """

    def __init__(self, screen: Screen, lines: Lines) -> None:
        self._screen = screen
        self._lines = lines
        self.is_over: Callable[[], bool] = never  # Whether the run no longer waits for the answer.

    def __call__(self, request: PermissionRequest) -> Allow | Deny:
        """Blocks until there is an answer."""
        return self._put_questions(request) if request.questions else self._ask(request)

    def _ask(self, request: PermissionRequest) -> Allow | Deny:
        style, name = self._screen.style, visible(request.tool_name) or "a tool"
        whose = "A sub-agent" if request.parent_tool_use_id else "The agent"
        self._screen.note(f"{style.yellow('?')} {whose} wants to use {style.bold(name)}:")
        self._say(_shortened(list(_about(request.input))))
        while True:
            answer = self._lines.read(PROMPT, self.is_over)
            if isinstance(answer, News):
                return Deny(NOBODY)
            match answer.strip().lower():
                case "y" | "yes":
                    return Allow()
                case "a" | "always":
                    return Allow(remember=True)
                case "n" | "no":
                    return Deny()
                case "w" | "why":
                    self._explain(request)
                case "" | "?" | "h" | "help":
                    self._screen.note(HELP.format(always=_what_always_means(request)))
                case _:
                    return Deny(answer.strip())

    def _explain(self, request: PermissionRequest) -> None:
        reason = visible(request.reason or "") or "the CLI gives no reason"
        self._say([f"why: {line}" for line in reason.splitlines()])
        self._say(list(_about(request.input)))
        known = {"tool": request.tool_name, "call": request.tool_id, "session": request.session_id}
        self._say([f"{name}: {visible(value)}" for name, value in known.items() if value])

    def _say(self, lines: list[str]) -> None:
        for line in lines:
            self._screen.note("    " + line)

    # --- questions that the agent asks the user ---------------------------------------------------------------

    def _put_questions(self, request: PermissionRequest) -> Allow | Deny:
        answers: dict[str, Any] = {}
        for question in request.questions:
            given = self._put(question)
            if given is None:
                return Deny(NOBODY)
            if given:
                answers[str(question.get("question"))] = given
        return Allow(answers=answers) if answers else Deny(NO_ANSWER)

    def _put(self, question: Mapping[str, Any]) -> str | list[str] | None:
        """The answer; empty if the user gave none, None if there is nobody to give one."""
        style = self._screen.style
        self._screen.note(f"{style.yellow('?')} {style.bold(visible(str(question.get('question'))))}")
        labels = []
        options = question.get("options")
        for option in options if isinstance(options, list) else []:
            if isinstance(option, Mapping):
                labels.append(str(option.get("label")))
                more = visible(str(option.get("description") or ""))
                self._screen.note(f"  {len(labels)}. {visible(labels[-1])}" + (f": {more}" if more else ""))
        several = bool(question.get("multiSelect") or question.get("multiple"))
        how = "numbers, or your own words" if several else "a number, or your own words"
        answer = self._lines.read(f"  {how if labels else 'your answer'} > ", self.is_over)
        return None if isinstance(answer, News) else _chosen(answer.strip(), labels, several)


def _chosen(answer: str, labels: list[str], several: bool) -> str | list[str]:
    """The labels with these numbers; any other text is returned as it is."""
    numbers = answer.replace(",", " ").split()
    if not numbers or not all(one.isascii() and one.isdigit() and 1 <= int(one) <= len(labels) for one in numbers):
        return answer
    chosen = [labels[int(one) - 1] for one in numbers]
    if several:
        return chosen
    return chosen[0] if len(chosen) == 1 else answer


def _what_always_means(request: PermissionRequest) -> str:
    if any(key in request.input for key in COMMAND_KEYS):
        return "this same command, until the session is closed"
    return f"any call of {visible(request.tool_name)}, until the session is closed"


def _about(arguments: Mapping[str, Any]) -> Iterator[str]:
    """The arguments of a call, each on its own lines. A shell's command comes first and without its name."""
    for key in sorted(arguments, key=lambda key: key not in COMMAND_KEYS):
        value = arguments[key]
        text = visible(value if isinstance(value, str) else dump(value))
        lines = text.split("\n")
        if key in COMMAND_KEYS:
            yield from lines
        elif len(lines) == 1:
            yield f"{visible(key)}: {text}"
        else:
            yield f"{visible(key)}:"
            yield from (f"  {line}" for line in lines)


def _shortened(lines: list[str]) -> list[str]:
    """Few enough lines to be read. If something is left out, the last line says so."""
    shown: list[str] = []
    left = SHOWN_CHARACTERS
    for line in lines[:SHOWN_LINES]:
        shown.append(line[:left])
        left -= len(line)
        if left < 0:
            break
    hidden = sum(map(len, lines)) - sum(map(len, shown))
    if hidden or len(shown) < len(lines):
        shown.append(f"[{len(lines) - len(shown)} more lines, {hidden} more characters: “why” shows all]")
    return shown
