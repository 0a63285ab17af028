"""A turn in a conversation, as its holder sees it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import TracebackType

from .conversation import Conversation
from .keeper import LOOK_AGAIN, Keeper
from .places import Place

# Seconds by which leaving may delay the answer. A row that could not be deleted in that time is deleted later.
LEAVE_PATIENCE = 1.0


class Turn:
    """A place in the queue of a conversation. It is your turn when everyone ahead of you has left or is dead.

    Others wait until it is left or dropped, or its process is dead.
    """

    def __init__(self, keeper: Keeper, conversation: Conversation) -> None:
        self.conversation = conversation
        self.taken_at = time.monotonic()
        self._keeper = keeper
        self._place = place = Place(self, keeper.inbox.put, conversation)
        try:
            keeper.call(lambda: keeper.line.take(place))
        except BaseException:
            self.leave()
            raise

    def __enter__(self) -> Turn:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()

    @property
    def number(self) -> int | None:
        """Its number in the session map's file; None if it could not be written there."""
        return self._place.number

    @property
    def fault(self) -> Exception | None:
        """Why this turn and those of other processes may not know of each other; None if all is well."""
        return self._place.fault

    @property
    def is_held(self) -> bool:
        """False once it has been left, and in a forked copy of the process that took it."""
        return not self._place.left and self._place.pid == os.getpid()

    @property
    def is_first(self) -> bool:
        """Whether it is our turn."""
        return self._place.granted

    def ahead(self) -> int:
        """How many turns of this process are ahead of us in the line."""
        return self._keeper.call(lambda: self._keeper.line.ahead(self._place))

    def wait(self, give_up: Callable[[], bool] = lambda: False) -> bool:
        """Block until it is our turn or `give_up()` is true (checked now and then, and after `wake()`)."""
        while self.is_held and not give_up():
            if self._place.granted:
                return True
            self._keeper.see_to_it()
            self._place.bell.wait(LOOK_AGAIN)
        return False

    def wake(self) -> None:
        """Make a waiting thread check `give_up()` now."""
        self._place.bell.ring()

    def leave(self) -> None:
        """Let the next one have its turn. File errors are never raised: such a row is deleted later."""
        if self.is_held:
            self._keeper.inbox.put(self._place)
            self._keeper.see_to_it()
            self._place.settled.wait(LEAVE_PATIENCE)
