"""Works out the kind of a failure from what a CLI said and how it exited.

There is one table, in order: the first row that matches wins. Numbers are matched as words ("line 14290" is not a 429).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

from ..types import ErrorSubtype

# Characters searched at each end of a message: searching all of one that fills a line (64 MiB) takes over a minute.
TEXT_END = 16_384

# Failures that may not happen again if the caller retries a little later.
RETRYABLE: frozenset[ErrorSubtype] = frozenset({"rate_limit", "overloaded", "network"})


@attrs.frozen
class ErrorClass:
    """The kind of a failure, and whether the same request may succeed later."""

    error_subtype: ErrorSubtype
    retryable: bool


# error_subtype -> patterns to search the message for, case-insensitive.
_PATTERNS: tuple[tuple[ErrorSubtype, tuple[str, ...]], ...] = (
    (
        "session_not_found",
        (
            r"no conversation found",
            r"session not found",
            r"no rollout found",
            r"thread not found",
            r"(?:invalid|unknown) session (?:id|identifier)",
            r"no previous sessions? found",
            r"error resuming session",
            r"does not match any session",
            r"session .{1,80} (?:does not exist|was not found)",
        ),
    ),
    (
        "untrusted_directory",
        (
            r"not (?:inside|in|running in) a trusted (?:directory|folder|workspace)",
            r"untrusted (?:folder|directory|workspace)",
            r"(?:folder|directory|workspace) is not trusted",
        ),
    ),
    (
        "context_window",
        (
            r"prompt is too long",
            r"context[ _-](?:window|length)",
            r"maximum context",
            r"input (?:token count|exceeds the maximum length|is too long)",
            r"too many (?:input )?tokens",
            r"request (?:entity )?too large",
            r"request_too_large",
        ),
    ),
    (
        "billing",
        (
            r"credit balance",
            r"billing",
            r"insufficient[ _](?:quota|funds|credits?)",
            r"quota exceeded\. check your plan",
            r"exceeded your current quota",
            r"payment required",
            r"\b402\b",
        ),
    ),
    (
        "rate_limit",
        (
            r"\b429\b",
            r"rate[ _-]?limit",
            r"too many requests",
            r"resource[ _]exhausted",
            r"usage limit",
            r"hit your (?:\w+ )?limit",
            r"quota",
        ),
    ),
    (
        "overloaded",
        (
            r"\b(?:500|502|503|504|529)\b",
            r"overloaded",
            r"high demand",
            r"at capacity",
            r"internal server error",
            r"service unavailable",
            r"bad gateway",
            r"\binternal error\b",
            r"server[ _]error",
            r"try again later",
        ),
    ),
    (
        "auth",
        (
            r"\b(?:401|403)\b",
            r"unauthori[sz]ed",
            r"authentication",
            r"not logged in",
            r"please (?:run )?/?log ?in",
            r"(?:invalid|incorrect|missing|expired|no) (?:x-)?(?:api|auth)[ _-]?(?:key|token|method)",
            r"invalid auth method",
            r"api[ _]key not (?:valid|found)",
            r"missing environment variable: `?\w*(?:key|token)",
            r"set an auth method",
            r"oauth",
            r"ineligibletier|unsupported_client|code assist for individuals",
        ),
    ),
    (
        "permission",
        (
            r"permission (?:denied|requested)",
            r"requires approval",
            r"rejected permission",
            r"cannot be used with root",
        ),
    ),
    (
        "network",
        (
            r"econn(?:refused|reset|aborted)",
            r"enotfound|etimedout|eai_again|epipe",
            r"connection (?:refused|reset|error|closed|failed)",
            r"unable to connect",
            r"(?:failed to connect|could not connect)",
            r"fetch failed",
            r"network error",
            r"socket (?:hang up|connection)",
            r"stream disconnected",
            r"error sending request",
            r"dns (?:error|lookup)",
            r"waiting for network",
        ),
    ),
    ("max_turns", (r"max(?:imum)?[ _](?:number of )?(?:session )?turns", r"error_max_turns", r"max_budget")),
    # What the stub prints that npm puts in place of a program until the package's install script has run.
    ("cli_missing", (r"native binary not installed", r"postinstall script was not run")),
    (
        "config",
        (
            r"error loading config",
            r"invalid (?:config|settings|configuration)",
            r"(?:config|settings)[\w./-]* (?:is|has) (?:invalid|malformed)",
            r"unexpected argument",
            r"unknown (?:option|argument|flag)",
            r"config profile .{1,80} not found",
            r"model.{0,60}(?:not found|does not exist|not supported)",
            r"\b(?:400|404)\b",
            r"invalid[ _]request",
        ),
    ),
)

_TABLE = tuple((subtype, re.compile("|".join(patterns), re.IGNORECASE)) for subtype, patterns in _PATTERNS)

# HTTP statuses that mean the same everywhere.
HTTP_STATUSES: dict[int, ErrorSubtype] = {
    400: "config",
    401: "auth",
    402: "billing",
    403: "auth",
    404: "config",
    408: "network",
    413: "context_window",
    429: "rate_limit",
    500: "overloaded",
    502: "overloaded",
    503: "overloaded",
    504: "overloaded",
    529: "overloaded",
}


def classify_error(
    message: str = "",
    *,
    code: str | None = None,
    exit_code: int | None = None,
    status: int | None = None,
    exit_codes: Mapping[int, ErrorSubtype] | None = None,
) -> ErrorClass:
    """The kind of a failure: "unknown" if nothing is recognised. Looks at the message (then the code), the HTTP status,
    and the meaning of this CLI's exit codes."""
    subtype = _from_text(message) or _from_text((code or "").replace("_", " "))
    if subtype == "permission" and status in (401, 403):
        subtype = "auth"  # The account was refused, not a tool.
    if subtype is None and status is not None:
        subtype = HTTP_STATUSES.get(status) or ("overloaded" if status >= 500 else None)
    if subtype is None and exit_code is not None and exit_codes is not None:
        subtype = exit_codes.get(exit_code)
    subtype = subtype or "unknown"
    return ErrorClass(subtype, subtype in RETRYABLE)


def _from_text(text: str) -> ErrorSubtype | None:
    if len(text) > 2 * TEXT_END:
        text = f"{text[:TEXT_END]}\n{text[-TEXT_END:]}"
    for subtype, pattern in _TABLE:
        if pattern.search(text):
            return subtype
    return None
