"""A context manager for things that must be closed."""

from __future__ import annotations

import abc
from typing import Self


class Closeable(abc.ABC):
    """Closed at the end of a `with` block."""

    @abc.abstractmethod
    def close(self) -> None:
        """End it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
