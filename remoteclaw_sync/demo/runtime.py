"""The demo agent as a runtime, to try the package without an account, a CLI or a network."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Unpack

from ..clis.claude.runtime import ClaudeCliRuntime
from ..portable.local import LocalSessions
from ..runtime import DEFAULT_TIMEOUT, CliOptions, RuntimeOptions
from ..types import AgentExecuteParams, PromptSyntax
from .agent import PACE_VARIABLE

# The agent is a folder of the package, but runs without the rest of it (and without its dependencies).
FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAM = "import sys; sys.path.append(sys.argv.pop(1)); from demo.agent import run; run()"


class DemoOptions(CliOptions, total=False):
    """Keyword arguments of the constructor."""

    pace: float | None


class DemoRuntime(ClaudeCliRuntime):
    """Runs the agent that comes with this package, which prints what Claude Code would.

    Args:
        command: another program with the same input and output.
        pace: seconds between words (None: the agent's own); 0 for tests.
        options: those of `ClaudeCliRuntime`.
    """

    provider = "demo"

    def __init__(
        self,
        command: str | os.PathLike[str] | Sequence[str] | None = None,
        *,
        pace: float | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        prompt_syntax: PromptSyntax = "text",
        **options: Unpack[RuntimeOptions],
    ) -> None:
        self.pace = pace
        # Isolated: neither the user's site-packages nor a module in the working directory can interfere.
        super().__init__(
            command or (sys.executable, "-I", "-S", "-c", PROGRAM, FOLDER),
            timeout=timeout,
            prompt_syntax=prompt_syntax,
            **options,
        )

    def local_sessions(self, params: AgentExecuteParams) -> LocalSessions | None:
        return None  # The agent stores no sessions.

    def build_env(self, params: AgentExecuteParams) -> dict[str, str | None]:
        env = super().build_env(params)
        if self.pace is not None:
            env[PACE_VARIABLE] = str(self.pace)
        return env
