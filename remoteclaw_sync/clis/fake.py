"""What a fake CLI does, whatever its dialect. `clis/<name>/fake.py` turns it into the lines of that CLI."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

Line = dict[str, Any]
TOKENS_IN, TOKENS_OUT = 12, 34


@attrs.frozen
class ToolCall:
    """A tool that the agent calls, and its result."""

    name: str = "bash"
    input: Mapping[str, Any] = attrs.field(factory=dict)
    output: str = ""
    is_error: bool = False


@attrs.frozen(kw_only=True)
class Script:
    """What an agent does in one run."""

    text: str = ""
    tools: tuple[ToolCall, ...] = ()
    error: str | None = None
    session_id: str


@attrs.frozen(kw_only=True)
class Fake:
    """How a CLI is imitated.

    Args:
        session_id: used unless the test asks for another.
        resumed: a pattern with one group, the resumed session, for the CLI's arguments joined by NUL characters.
        lines: the lines that it prints for a script, including the final one.
        stays: the argument that makes it stay and answer one prompt after another; "": there is none.
    """

    session_id: str
    resumed: str
    lines: Callable[[Script], Iterator[Line]]
    stays: str = ""
