"""The `error` object of OpenCode's lines: `{"name": ..., "data": {"message", "statusCode", "responseBody", ...}}`."""

from __future__ import annotations

import json

from ..classify import classify_error
from ..types import AgentErrorEvent
from .dialect import Message, integer, mapping, text

# After these it always gives up. Others it may survive: it compacts a conversation that has become too long, and goes
# on without a file it could not read.
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
SUBTYPES = {"ContextOverflowError": "context_window", "ProviderAuthError": "auth", "BadRequest": "config"}


def is_fatal(error: Message) -> bool:
    """Whether OpenCode is sure to end after it."""
    return name_of(error) in FATAL_ERRORS


def name_of(error: Message) -> str:
    """OpenCode's name for it; what its own server refuses has only a tag."""
    return text(error, "name") or text(error, "_tag")


def message_of(error: Message) -> str:
    """The vendor's words, or what there is."""
    data = mapping(error, "data")
    return text(data, "message") or text(error, "message") or name_of(error) or "opencode reported an error"


def code_of(error: Message) -> str:
    """The provider's own code, else its HTTP status, else OpenCode's name for the error."""
    data = mapping(error, "data")
    status = integer(data, "statusCode")
    return _provider_code(text(data, "responseBody")) or (str(status) if status else "") or name_of(error)


def _provider_code(response_body: str) -> str:
    try:
        body = json.loads(response_body)
    except (ValueError, RecursionError):
        return ""
    error = mapping(body, "error") if isinstance(body, dict) else {}
    return text(error, "code") or text(error, "type")


def subtype_of(error: Message, event: AgentErrorEvent) -> str:
    """What kind of failure it is."""
    known = SUBTYPES.get(name_of(error))
    if known is not None:
        return known
    status = integer(mapping(error, "data"), "statusCode") or None
    return classify_error(event.message, code=event.code, status=status, provider="opencode").error_subtype
