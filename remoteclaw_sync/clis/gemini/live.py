"""Live sessions on Gemini CLI: `gemini --acp`, as of 0.61.0. The protocol itself is in `clis/acp`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs

from ...engine.outcome import Closing, Ended
from ...types import ErrorSubtype, PromptSyntax
from ...versions import is_below
from ...wire.fields import text
from ...wire.jsonrpc import Failed
from ..acp.dialect import AcpDialect
from ..acp.profiles import GEMINI
from .facts import FACTS
from .failures import ACCOUNT_HINT, Failure, account_is_refused, failure_of_prompt, readable_stderr, with_account_hint
from .record import ChatRecord

NEEDED = FACTS.support[0].least
# When Gemini refuses a request, it prints all of it on stderr, including the prompt, and then its answer.
REQUEST_DUMP = re.compile(
    r"^Error handling (?:request|notification) \{.*?^\}(?: \{$.*?^\})?[^\n]*\n?", re.MULTILINE | re.DOTALL
)


class GeminiLiveDialect(AcpDialect):
    """Talks to one session of `gemini --acp`."""

    def __init__(self, prompt_syntax: PromptSyntax = "text") -> None:
        super().__init__(GEMINI, FACTS.name, prompt_syntax)
        self.record: ChatRecord | None = None

    def on_asked(self, session_id: str) -> None:
        if self.is_limited and self.record is not None:
            self.record.begin(session_id)

    def count(self) -> None:
        # An answer is recorded before its tools are called. So neither count is too high; each may be too low.
        if self.is_limited and self.record is not None:
            self.outcome.so_far = self.record.used()
            self.outcome.requests = max(self.outcome.requests, self.record.requests)

    def refuse_version(self, version: str) -> str | None:
        if version and is_below(version, NEEDED):
            return f"live sessions need Gemini CLI {NEEDED} or newer, and this is {version}"
        return None

    def needs(self) -> str:
        return f" (a live session needs `gemini --acp`, of Gemini CLI {NEEDED} or newer)"

    def login_after(self, message: str) -> str:
        return ACCOUNT_HINT if account_is_refused(message) else super().login_after(message)

    def at_exit(self, ended: Ended) -> Closing:
        closing = super().at_exit(ended)
        if closing.cause is None:
            return closing
        return attrs.evolve(
            closing, cause=attrs.evolve(closing.cause, message=with_account_hint(closing.cause.message))
        )

    def presentable(self, stderr: str) -> str:
        return readable_stderr(REQUEST_DUMP.sub("", stderr))

    def words_of(self, failed: Failed) -> str:
        return _failure(failed).message

    def code_of(self, failed: Failed) -> str:
        return _failure(failed).code

    def kind_of(self, failed: Failed) -> ErrorSubtype | None:
        if "untrusted folder" in with_details(failed):
            return "untrusted_directory"
        return _failure(failed).subtype or super().kind_of(failed)


def _failure(failed: Failed) -> Failure:
    return failure_of_prompt(with_account_hint(failed.message), failed.code)


def with_details(failed: Failed) -> str:
    """The message and its details."""
    data: Mapping[str, Any] = failed.data if isinstance(failed.data, dict) else {}
    return f"{failed.message} {text(data, 'details')}"
