"""The `error` object of OpenCode's lines: `{"name": ..., "data": {"message", "statusCode", "responseBody", ...}}`."""

from __future__ import annotations

import json

from ... import errors
from ...engine.classify import classify_error
from ...types import AgentErrorEvent, ErrorSubtype
from ...wire.fields import Message, integer, mapping, text, wording
from . import two as opencode_two

# After these OpenCode always gives up. It may survive others: it compacts a conversation that has become too long, and
# continues without a file it could not read.
FATAL_ERRORS = frozenset(
    {
        "APIError",
        "ContentFilterError",
        "MessageAbortedError",
        "MessageOutputLengthError",
        "ProviderAuthError",
        "StructuredOutputError",
        "BadRequest",
    }
)
SUBTYPES: dict[str, ErrorSubtype] = {
    "ContextOverflowError": "context_window",
    "ProviderAuthError": "auth",
    "BadRequest": "config",
}


def is_fatal(error: Message) -> bool:
    """Whether OpenCode always gives up after this error."""
    return name_of(error) in FATAL_ERRORS or opencode_two.is_error(error)


def name_of(error: Message) -> str:
    """OpenCode's name for the error; a refusal by its own server has only a tag."""
    return text(error, "name") or text(error, "_tag")


def message_of(error: Message) -> str:
    """The vendor's message, or the best substitute."""
    data = mapping(error, "data")
    said = wording(data.get("message")) or wording(error.get("message")) or name_of(error).strip()
    return said or "opencode reported an error without a message"


def code_of(error: Message) -> str:
    """The provider's own code, else its HTTP status, else OpenCode's name for the error, else ours."""
    if opencode_two.is_error(error):
        return opencode_two.code_of(error) or errors.CLI_ERROR
    data = mapping(error, "data")
    status = str(integer(data, "statusCode") or "")
    return _provider_code(text(data, "responseBody")) or status or name_of(error) or errors.CLI_ERROR


def _provider_code(response_body: str) -> str:
    try:
        body = json.loads(response_body)
    except (ValueError, RecursionError):
        return ""
    error = mapping(body, "error") if isinstance(body, dict) else {}
    return text(error, "code") or text(error, "type")


def subtype_of(error: Message, event: AgentErrorEvent) -> ErrorSubtype:
    """What kind of failure it is."""
    known = SUBTYPES.get(name_of(error)) or opencode_two.SUBTYPES.get(text(error, "type"))
    if known is not None:
        return known
    status = integer(mapping(error, "data"), "statusCode") or integer(error, "status") or None
    return classify_error(event.message, code=event.code, status=status).error_subtype
