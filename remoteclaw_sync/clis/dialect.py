"""What the runtimes of the known CLIs share. Each has its own dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self, get_args

from ..engine.dialect import Dialect, Extracted
from ..engine.outcome import Closing, Ended
from ..errors import UnsupportedOperationError
from ..runtime import CLIRuntimeBase
from ..types import AgentExecuteParams

McpConfigMode = Literal["inject", "merge-restore"]


class DialectRuntime(CLIRuntimeBase):
    """A runtime that leaves the lines to a `Dialect` and only defines how the CLI is started."""

    DIALECT: ClassVar[type[Dialect]]
    expects_terminal_event = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.reset_state()
        self.dialect = self.DIALECT()
        self.outcome = self.dialect.outcome

    def extract_event(self, line: str) -> Extracted:
        """What a line of this CLI means, given what came before it."""
        return self.dialect.extract(line)

    def new_dialect(self, params: AgentExecuteParams) -> Dialect:
        """A new dialect for each start, unless a subclass reads the lines itself."""
        reads_lines_itself = type(self).extract_event is not DialectRuntime.extract_event
        self.dialect = (self.new_live_dialect() if self.is_live else None) or self.DIALECT()
        self.outcome = self.dialect.outcome
        return super().new_dialect(params) if reads_lines_itself else self.dialect

    def live_copy(self) -> Self:
        if type(self).extract_event is not DialectRuntime.extract_event:
            raise UnsupportedOperationError("a runtime with an extract_event of its own has no live sessions")
        return super().live_copy()

    # A subclass that reads the lines itself gets everything it does not define from the dialect.

    def is_life(self, chunk: bytes) -> bool:
        return self.dialect.is_life(chunk)

    def may_run_tool(self, chunk: bytes) -> bool:
        return self.dialect.may_run_tool(chunk)

    def runs_tool(self) -> bool:
        return self.dialect.runs_tool()

    def recall(self, facts: Mapping[str, Any]) -> None:
        self.dialect.recall(facts)

    def presentable(self, stderr: str) -> str:
        return self.dialect.presentable(stderr)

    def at_exit(self, ended: Ended) -> Closing:
        return self.dialect.at_exit(ended)


def check_mcp_config(mode: str) -> None:
    """Raise ValueError for an unknown way of passing MCP servers."""
    if mode not in get_args(McpConfigMode):
        raise ValueError(f"mcp_config must be one of {', '.join(map(repr, get_args(McpConfigMode)))}, not {mode!r}")
