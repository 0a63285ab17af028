"""How a runtime reads what its CLI writes: three steps that the engine takes for each block of whole lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import attrs

from ..types import AgentEvent, AgentThinkingEvent

Extracted = AgentEvent | Iterable[AgentEvent] | None
Piece = str | AgentThinkingEvent | None  # A str is a piece of the answer.


def no_short_cut(item: Any) -> Piece:
    """For runtimes that have none."""
    return None


@attrs.frozen
class Interpreter:
    """From a block of lines to items, one for each; from an item to the piece that is all it says, or else to events.

    `parse` knows nothing of the run; the others are called for one item after the other, when its turn has come.
    """

    parse: Callable[[bytes], list[Any]]
    extract: Callable[[Any], Extracted]
    piece_of: Callable[[Any], Piece] = no_short_cut
