"""How a runtime reads what its CLI writes: three steps that the engine takes for each block of whole lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import attrs

from ..types import AgentEvent

Extracted = AgentEvent | Iterable[AgentEvent] | None


def no_short_cut(item: Any) -> str | None:
    """For runtimes that have none."""
    return None


@attrs.frozen
class Interpreter:
    """From a block of lines to items, one for each; from an item to the text that is all it says, or else to events.

    `parse` knows nothing of the run; the others are called for one item after the other, when its turn has come.
    """

    parse: Callable[[bytes], list[Any]]
    extract: Callable[[Any], Extracted]
    piece_of: Callable[[Any], str | None] = no_short_cut
