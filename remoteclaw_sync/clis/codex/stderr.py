"""What Codex says outside its stream of events: error bodies of the API, its log, and its last words on stderr."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import attrs

from ...wire.fields import mapping, text
from ..shared import without_colours

LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT\S+ +(?:ERROR|WARN|INFO|DEBUG|TRACE) ")
REFUSED_CALL = re.compile(r"\S+ +ERROR codex_core::tools::router: error=(?P<reason>.*)")
DENIAL = re.compile(r"rejected|reject command|not permitted|blocked by", re.IGNORECASE)
NOISE = re.compile(r"Reading (?:prompt|additional input) from stdin|WARNING: ")
# What the app server puts around an error: "thread/resume: thread/resume failed: ... (code -32600), data: {...}".
RPC_HEAD = re.compile(r"^(?:\w+/\w+: )?(?:\w+/\w+ failed: )?")
RPC_TAIL = re.compile(r" \(code -?\d+\)(?:, data: \{.*\})?$")
NO_BUBBLEWRAP = re.compile(r"Codex could not find (?:system )?bubblewrap")  # It then uses its own.
CONFIG_ERROR = "Error loading config"
CODE_EXCERPT = re.compile(r"\s*\d*\s*\|")
CAUSE_NUMBER = re.compile(r"^\s*(?:\d+: )?")
PANIC = re.compile(r"thread '.*' (?:\(\d+\) )?panicked at ")


@attrs.frozen
class RefusedCall:
    """A tool call by the model that has no item. `tool` is the type its item would have had."""

    tool: str
    reason: str

    @property
    def is_denial(self) -> bool:
        """Whether it was refused for lack of permission, rather than as invalid."""
        return DENIAL.search(self.reason) is not None


def unpack_api_error(message: str) -> tuple[str, str | None]:
    """The vendor's message and code: for an HTTP 400, Codex passes on the whole JSON body as its message."""
    try:
        body = json.loads(message) if message.startswith("{") else None
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        return message, None
    error = mapping(body, "error") or body
    code = text(error, "code") or text(error, "type")
    return text(error, "message") or text(body, "detail") or message, code or None


def refused_calls(stderr: str) -> Iterator[RefusedCall]:
    """The refused calls in the log, each once."""
    seen = set()
    for line in without_colours(stderr).splitlines():
        found = REFUSED_CALL.match(line)
        if found is None or found["reason"] in seen:
            continue
        reason = found["reason"]
        seen.add(reason)
        yield RefusedCall("file_change" if "patch" in reason else "command_execution", reason)


def readable(stderr: str) -> str:
    """The text without colours, without a hint that explains no failure, and without the line that Codex quotes from a
    configuration file it cannot read: that line may contain a key."""
    stderr = without_colours(stderr)
    if NO_BUBBLEWRAP.search(stderr):
        stderr = "".join(line for line in stderr.splitlines(keepends=True) if not NO_BUBBLEWRAP.search(line))
    if CONFIG_ERROR not in stderr:
        return stderr
    return "".join(line for line in stderr.splitlines(keepends=True) if not CODE_EXCERPT.match(line))


def last_words(stderr: str) -> str | None:
    """The sentence that says why Codex gave up: no log, no stack trace, no excerpt of a configuration file."""
    lines = [line.rstrip() for line in without_colours(stderr).splitlines()]
    lines = [line for line in lines if not LOG_LINE.match(line) and not NOISE.match(line)]
    for number, line in enumerate(lines):
        rest = lines[number + 1 :]
        if line.startswith(CONFIG_ERROR):
            # The place and an excerpt follow it.
            return " ".join([line, *_until_blank_or_excerpt(rest)])
        if line.startswith("Error: "):
            sentence = RPC_TAIL.sub("", RPC_HEAD.sub("", line.removeprefix("Error: ")))
            return ": ".join([sentence, *_causes(rest)])
        if line.startswith("error: "):
            return " ".join([line.removeprefix("error: "), *map(str.strip, _until_blank_or_excerpt(rest))])
        if PANIC.match(line):
            return " ".join(["codex crashed:", *rest[:1]])
    return next((line for line in reversed(lines) if line.strip()), None)


def _until_blank_or_excerpt(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if not line.strip() or CODE_EXCERPT.match(line):
            return
        yield line


def _causes(lines: list[str]) -> Iterator[str]:
    """The chain below "Caused by:"."""
    if "Caused by:" not in lines[:2]:
        return
    for line in lines[lines.index("Caused by:") + 1 :]:
        if not line.startswith(" "):
            return
        yield CAUSE_NUMBER.sub("", line)
