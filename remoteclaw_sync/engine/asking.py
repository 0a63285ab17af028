"""Asking a hook about a run that has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


def ask(hook: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """What a hook says; None if it raises, because `done` must come whatever happens."""
    try:
        return hook(*args, **kwargs)
    except Exception as error:
        # Not the exception itself: its message may quote a value of the environment.
        logger.error("%s raised %s", hook.__qualname__, type(error).__name__)
        return None
