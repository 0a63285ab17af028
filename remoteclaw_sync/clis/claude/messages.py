"""What Claude's lines contain, independent of the run: prompts, streamed blocks, usage, failures."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from ... import errors
from ...engine.classify import classify_error
from ...files import read_regular
from ...types import AgentErrorEvent, AgentExecuteParams, AgentUsage, ErrorSubtype
from ...wire.fields import Message, integer, items, mapping, number, text, wording
from ..shared import image_type, without_colours

# --- in: a prompt that is text, and images ---------------------------------------------------------------------

MAX_IMAGE_BYTES = 32 * 1024 * 1024  # The largest request that the API takes, including everything in it.


def image_media_type(path: str | os.PathLike[str]) -> str:
    """The media type of an image file. Raises ValueError naming `images` if Claude cannot take it."""
    media_type = image_type("images", path)
    if os.path.getsize(path) > MAX_IMAGE_BYTES:
        shown = os.fspath(path)
        raise ValueError(f"images: {shown!r} is larger than {MAX_IMAGE_BYTES} bytes, which no request to Claude may be")
    return media_type


def looks_like_syntax(prompt: str) -> bool:
    """Whether Claude would take something in the prompt for a /command or a @file."""
    return prompt.startswith("/") or "@" in prompt


def user_line(
    prompt: str, images: Iterable[str | os.PathLike[str]], *, as_text: bool, uuid: str | None = None
) -> bytes:
    """One line of `--input-format stream-json`. The `uuid` identifies it in later lines.

    Claude (2.1.197) looks for a /command and for @files only in the last block. So, as text, a prompt that has any is
    not the last block: images follow it, or an empty text, which Claude drops before it asks the model. (2.1.48 does
    not drop it, and the API does not accept empty texts, so other prompts get none.)
    """
    said: Message = {"type": "text", "text": prompt}
    shown = [_image_block(path) for path in images]
    content = [said, *shown] if as_text else [*shown, said]
    if as_text and not shown and looks_like_syntax(prompt):
        content.append({"type": "text", "text": ""})
    line: Message = {"type": "user", "message": {"role": "user", "content": content}}
    if uuid is not None:
        line |= {"parent_tool_use_id": None, "uuid": uuid}
    return json.dumps(line).encode() + b"\n"


def _image_block(path: str | os.PathLike[str]) -> Message:
    media_type = image_media_type(path)
    data = base64.b64encode(read_regular(path, MAX_IMAGE_BYTES, follow=True)).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


def answer_schema(params: AgentExecuteParams) -> Message | None:
    """The schema that Claude checks the answer against, if any."""
    schema: Message | None = None if params.output_type is None else params.output_type.native
    return schema


# --- out: blocks that arrive in pieces -----------------------------------------------------------------------------


class StreamedBlock:
    """One content block of the message that is being streamed."""

    __slots__ = ("kind", "length", "told_whole", "input_parts", "start")

    def __init__(self, kind: str, start: Message) -> None:
        self.kind = kind
        self.start = start
        self.length = 0  # How many of its characters the consumer has.
        self.told_whole = False  # Its `assistant` line has arrived.
        self.input_parts: list[str] = []

    def tool_input(self) -> Message:
        """The arguments of a tool call; {} if the model sent none, or something that is not a JSON object."""
        try:
            value = json.loads("".join(self.input_parts))
        except ValueError:
            return mapping(self.start, "input")
        return value if isinstance(value, dict) else {}


# --- out: the result line ------------------------------------------------------------------------------------------


@attrs.frozen
class Totals:
    """What a process has used since its start, according to its last `result` line."""

    usage: AgentUsage = AgentUsage()
    cost: float = 0.0
    api_duration: float = 0.0


@attrs.frozen(kw_only=True)
class Account:
    """What a `result` line says about usage, cost and time."""

    of_turn: AgentUsage  # The main thread of one turn. Zero after a fallback to no streaming, and after a budget abort.
    total: AgentUsage  # All that this process has used so far, sub-agents and fallbacks included.
    # Since the process's last `result` line, if it is reported (in 2.1.326, not in 2.1.197). If it is, the totals of a
    # resumed session include its earlier runs.
    recent: AgentUsage | None
    recent_cost: float
    cost: float | None  # In USD. Of the whole process, like the duration.
    api_duration: float | None
    num_turns: int
    stop_reason: str


def usage_of(message: Message) -> AgentUsage:
    """The API's own token counts, in the `usage` of a message or line."""
    counts = mapping(message, "usage")
    return AgentUsage(
        input_tokens=integer(counts, "input_tokens"),
        output_tokens=integer(counts, "output_tokens"),
        cache_read_tokens=integer(counts, "cache_read_input_tokens"),
        cache_write_tokens=integer(counts, "cache_creation_input_tokens"),
    )


def account_of(result: Message) -> Account:
    """Read the account from a `result` line."""
    of_turn, models = usage_of(result), mapping(result, "modelUsage")
    recent = result.get("model_usage_since_last_result")  # Empty if the line before has counted everything.
    return Account(
        of_turn=of_turn,
        cost=number(result, "total_cost_usd"),
        api_duration=number(result, "duration_api_ms"),
        num_turns=integer(result, "num_turns"),
        stop_reason=text(result, "stop_reason"),
        total=_usage_of_models(models) if models else AgentUsage(),
        recent=_usage_of_models(recent) if isinstance(recent, dict) else None,
        recent_cost=_cost_of_models(recent) if isinstance(recent, dict) else 0.0,
    )


def _usage_of_models(models: Message) -> AgentUsage:
    total = AgentUsage()
    for usage in models.values():
        if isinstance(usage, dict):
            total += AgentUsage(
                input_tokens=integer(usage, "inputTokens"),
                output_tokens=integer(usage, "outputTokens"),
                cache_read_tokens=integer(usage, "cacheReadInputTokens"),
                cache_write_tokens=integer(usage, "cacheCreationInputTokens"),
            )
    return total


def _cost_of_models(models: Message) -> float:
    return sum(number(usage, "costUSD") or 0.0 for usage in models.values() if isinstance(usage, dict))


# `error` of the synthetic message that stands for an API error. Not here: "unknown", "invalid_request" and
# "server_error" (also used for a refused connection), for which the status and the message say more.
KIND_SUBTYPES: Mapping[str, ErrorSubtype] = {
    "authentication_failed": "auth",
    "oauth_org_not_allowed": "auth",
    "billing_error": "billing",
    "rate_limit": "rate_limit",
    "overloaded": "overloaded",
    "model_not_found": "config",
    "max_output_tokens": "incomplete",
}
RESULT_SUBTYPES: Mapping[str, ErrorSubtype] = {
    "error_max_turns": "max_turns",
    "error_max_budget_usd": "max_turns",
    "error_max_structured_output_retries": "invalid_output",
}
# Lines that Claude logs for its own developers along with the real error.
DIAGNOSTIC_PREFIX = "[ede_diagnostic]"


def failure_message(result: Message) -> str:
    """What went wrong, in Claude's words: `result` of an API error, `errors[]` of the others."""
    said = wording(result.get("result")).strip()
    if said:
        return said
    errors_told = items(result, "errors") or [result.get("errors")]
    listed = [wording(error).strip().partition("\n")[0] for error in errors_told]
    real = [error for error in listed if error and not error.startswith(DIAGNOSTIC_PREFIX)]
    return "; ".join(dict.fromkeys(real)) or f"claude ended with {text(result, 'subtype') or 'an error'}"


def failure_code(result: Message, kind: str) -> str:
    """Claude's own name for the failure, if it has a meaningful one."""
    subtype = text(result, "subtype")
    if subtype.startswith("error_"):
        return subtype
    return kind if kind not in ("", "unknown") else errors.CLI_ERROR


def failure_subtype(result: Message, kind: str, message: str) -> ErrorSubtype:
    """Which of our kinds of failure this is."""
    subtype, reason = text(result, "subtype"), text(result, "terminal_reason")
    known = RESULT_SUBTYPES.get(subtype) or KIND_SUBTYPES.get(kind)
    if reason == "prompt_too_long":
        return "context_window"
    if reason.startswith("aborted"):
        return "aborted"
    status = integer(result, "api_error_status")
    if known is None and status not in (0, 400):
        # A 400 may be anything from a wrong parameter to an empty account: its message says what.
        known = classify_error(status=status).error_subtype
    return known or classify_error(message, status=status or None).error_subtype


def retry_warning(line: Message) -> AgentErrorEvent:
    """A warning for a `system/api_retry` line."""
    status = integer(line, "error_status")
    cause = f"HTTP {status}, {text(line, 'error')}" if status else "no connection"
    delay = (number(line, "retry_delay_ms") or 0.0) / 1000
    which = f"retry {integer(line, 'attempt')} of {integer(line, 'max_retries')}"
    return AgentErrorEvent(f"the API request failed ({cause}); {which} in {delay:.1f} s", errors.CLI_WARNING)


# --- out: stderr ---------------------------------------------------------------------------------------------------

# Stack frames, and the source lines with a caret below them that Bun prints above the frames.
_STACK = re.compile(r"^\s+at |^\s*\d+ \| |^\s*\^\s*$")
MAX_EXPLANATION = 1_000


def readable_stderr(stderr: str) -> str:
    """What stderr says to people: no colours, no stack trace."""
    lines = (without_colours(line).rstrip() for line in stderr.split("\n"))
    return "\n".join(line for line in lines if line and not _STACK.match(line))[:MAX_EXPLANATION]


def is_failed_server_result(content: Any) -> bool:
    """Whether the result of a tool that runs at the API (web search) is an error."""
    return isinstance(content, dict) and text(content, "type").endswith("_error")
