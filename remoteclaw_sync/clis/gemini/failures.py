"""What Gemini CLI says when something goes wrong: on its `error` and `result` lines, and on stderr."""

from __future__ import annotations

import json
import re
from typing import Any

import attrs

from ... import errors
from ...engine.classify import classify_error
from ...types import AgentErrorEvent, ErrorSubtype
from ...wire.fields import Message, integer, mapping, text, wording
from ..shared import without_colours

# Errors of every kind are wrapped in "[API Error: ...]"; after some of them there is advice.
_API_ERROR = re.compile(r"\[API Error: (?P<cause>.*?)\](?:\n(?P<advice>[^\]]*))?", re.DOTALL)
_STACK_LINE = re.compile(r"\s+at |\s*file://|\s+(?:status|code|cause|retryDelayMs): |[{}\s]+$")
_HTTP_STATUS = re.compile(r"^\s*(?:status|code): (\d{3}),?$", re.MULTILINE)
_RETRY = re.compile(r"(Attempt \d+ failed[^\n]*?)\.*(?:\n[^\n]*?)?\.* Retrying (?:with backoff|after \d+ms)")
_UNKNOWN_POLICY_FLAG = re.compile(r"Unknown arguments?: [^\n]*admin-?policy", re.IGNORECASE)
_POLICY_IGNORED = "Ignoring --admin-policy"
# Since June 2026 logging in with an individual Google account is refused.
_ACCOUNT_REFUSED = re.compile(r"IneligibleTier|UNSUPPORTED_CLIENT|Gemini Code Assist for individuals")
ACCOUNT_HINT = (
    "Gemini CLI no longer works with individual Google accounts: set GEMINI_API_KEY, or use Vertex AI or an account "
    "with a Code Assist licence"
)
# Also printed by successful runs, or next to what matters.
_NOISE = re.compile(
    r"Warning: |Ripgrep is not available|\[STARTUP\]|YOLO mode is enabled|Loaded cached credentials|\(node:\d+\)|"
    r"Fatal error: Failed to relaunch|Searched for sessions in|Use --list-sessions|Attempt \d+ failed|Suggested retry|"
    r"Error executing tool|Keychain initialization|Using FileKeychain",
)
_NOISE_INDENTED = re.compile(r"\s*(?:Searched for sessions in|Use --list-sessions)")
_USAGE = re.compile(r"^Usage: gemini", re.MULTILINE)
_ERROR_CLASS = re.compile(r"^(?:Fatal\w*Error|Error): ")

# The CLI's own errors (`error.type` of a `result` line), where the name says more than the message.
_ERROR_TYPES: dict[str, ErrorSubtype] = {
    "FatalAuthenticationError": "auth",
    "FatalInputError": "config",
    "FatalSandboxError": "config",
    "FatalConfigError": "config",
    "FatalTurnLimitedError": "max_turns",
    "FatalToolExecutionError": "crash",
    "FatalUntrustedWorkspaceError": "untrusted_directory",
    "FatalCancellationError": "aborted",
}
_LOST_CONNECTION = "terminated"  # All that node reports when a connection breaks during an answer.
_NOT_FOUND = re.compile(r"\bnot found\b|\bdoes not exist\b", re.IGNORECASE)
_VAGUE_CODES = frozenset({"", "unknown", "UNKNOWN"})
# The answer was empty, cut at the output limit, or withheld: no other kind of failure fits.
_NO_ANSWER = re.compile(r"(?:the )?model re(?:turned|sponse)|invalid stream", re.IGNORECASE)


@attrs.frozen
class Failure:
    """A failure in the vendor's words. `subtype` is None if only the exit code shows it."""

    message: str
    code: str = errors.CLI_ERROR
    subtype: ErrorSubtype | None = None

    @property
    def event(self) -> AgentErrorEvent:
        """The failure as the consumer sees it."""
        return AgentErrorEvent(self.message, self.code)


# If the conversation is too long, the run ends before the model is asked, as a success without an answer.
NOT_ASKED = Failure(
    "gemini ended without asking the model: the conversation is too long for it", subtype="context_window"
)


def failure_of_error_line(message: str) -> Failure:
    """The failure that an `error` line of severity "error" reports."""
    message = with_account_hint(message)
    if _NO_ANSWER.match(message):
        return Failure(message, subtype="incomplete")
    return Failure(message, subtype=_known(classify_error(message).error_subtype))


def failure_of_result(error: Any) -> Failure:
    """The failure in the `error` of a `result` line; `error.message` may be the API's JSON, wrapped once or twice."""
    error = error if isinstance(error, dict) else {"message": error}
    words = wording({key: part for key, part in error.items() if key != "type"})
    kind, message = text(error, "type"), with_account_hint(words)
    found = _API_ERROR.fullmatch(message)
    if found is None:
        return Failure(message or "the run failed", _code(kind), _subtype(kind, message))
    cause, advice = found["cause"], found["advice"]
    body = _api_body(cause)
    sentence = wording(body.get("message")) or cause.strip() or message
    whole = f"{sentence}\n{advice}" if advice else sentence
    return Failure(
        whole, _code(text(body, "status"), kind), _subtype(kind, whole, status=integer(body, "code") or None)
    )


def failure_of_prompt(message: str, code: int) -> Failure:
    """The failure that answers a prompt of a live session: the HTTP status, and the API's JSON or text."""
    body = _api_body(message)
    sentence = wording(body.get("message")) or message.strip() or "the turn failed"
    status = integer(body, "code") or (code if 400 <= code < 600 else 0)
    if code == 500 and not body and _NOT_FOUND.search(sentence):
        status = 404  # Gemini has no status for this failure, and says 500.
    return Failure(sentence, _code(text(body, "status")), _subtype("", sentence, status=status or None))


def subtype_from_stderr(stderr: str) -> ErrorSubtype | None:
    """The kind of an API error, from the HTTP status in the stack trace: the messages of 404 and 503 lack it."""
    found = _HTTP_STATUS.findall(stderr)
    return _known(classify_error(status=int(found[-1])).error_subtype) if found else None


def readable_stderr(stderr: str) -> str:
    """The text of stderr without colours, stack traces, the help text and lines that successful runs print too."""
    said = without_colours(stderr)
    usage = _USAGE.search(said)
    if usage is not None:
        said = said[: usage.start()]
    lines = [line.rstrip() for line in said.splitlines()]
    kept = [line for line in lines if line and not _is_noise(line)]
    return "\n".join(_ERROR_CLASS.sub("", line) for line in kept)


def with_account_hint(message: str) -> str:
    """The message, with advice if Gemini CLI is closed to the account."""
    return f"{message.rstrip()}\n{ACCOUNT_HINT}" if account_is_refused(message) else message


def account_is_refused(message: str) -> bool:
    """Whether Gemini CLI is closed to the account, so that logging in again would not help."""
    return _ACCOUNT_REFUSED.search(message) is not None


def is_wrong_usage(stderr: str) -> bool:
    """Whether an argument was refused, in which case stderr has the help text."""
    return _USAGE.search(stderr) is not None


def retry_warning(stderr: str) -> AgentErrorEvent | None:
    """A warning if requests to the model had to be repeated, which stdout does not show."""
    retries = _RETRY.findall(without_colours(stderr))
    if not retries:
        return None
    times = "once" if len(retries) == 1 else f"{len(retries)} times"
    return AgentErrorEvent(f"gemini repeated a request {times}: {retries[-1]}", errors.CLI_WARNING)


def policy_was_ignored(stderr: str) -> bool:
    """Whether the machine has policies of an administrator, which override ours."""
    return _POLICY_IGNORED in stderr


def policy_flag_is_unknown(stderr: str) -> bool:
    """Whether this CLI is too old for `--admin-policy`."""
    return _UNKNOWN_POLICY_FLAG.search(stderr) is not None


def _is_noise(line: str) -> bool:
    return bool(_NOISE.match(line) or _NOISE_INDENTED.match(line) or _STACK_LINE.match(line))


def _api_body(cause: str) -> Message:
    """The innermost `{"error": {...}}` of the API: the SDK puts the body of one error into another's message."""
    body: Message = {}
    for _ in range(3):
        try:
            parsed = json.loads(cause) if cause.lstrip().startswith("{") else None
        except (ValueError, RecursionError):
            break
        inner = mapping(parsed, "error") if isinstance(parsed, dict) else {}
        if not inner:
            break
        body, cause = inner, text(inner, "message")
    return body


def _code(*candidates: str) -> str:
    return next((code for code in candidates if code not in _VAGUE_CODES), errors.CLI_ERROR)


def _subtype(kind: str, message: str, status: int | None = None) -> ErrorSubtype | None:
    if message == _LOST_CONNECTION:
        return "network"
    return _ERROR_TYPES.get(kind) or _known(classify_error(message, status=status).error_subtype)


def _known(subtype: ErrorSubtype) -> ErrorSubtype | None:
    return None if subtype == "unknown" else subtype
