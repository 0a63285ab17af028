"""Claude."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ..types import AgentExecuteParams
from .base import DEFAULT_TIMEOUT
from .dialect import DialectRuntime


class ClaudeCliRuntime(DialectRuntime):
    """Runs the `claude` CLI."""

    provider = "claude"

    def __init__(
        self,
        command: str | os.PathLike[str] | Sequence[str] = "claude",
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        **options: Any,
    ) -> None:
        super().__init__(command, timeout, **options)

    def build_args(self, params: AgentExecuteParams) -> list[str]:
        return []

    def build_env(self, params: AgentExecuteParams) -> dict[str, str | None]:
        return {}
