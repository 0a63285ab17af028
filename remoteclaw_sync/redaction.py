"""Keeping secrets out of what we pass on: stderr tails and error messages quote configs and environments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

MASK = "[redacted]"
SHORTEST_SECRET = 6  # Shorter values would hide ordinary words.
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|AUTH|CREDENTIAL|COOKIE", re.IGNORECASE)


def secret_values(env: Mapping[str, str | None]) -> list[str]:
    """The values of those variables whose name says that they are secret."""
    return [value for name, value in env.items() if value and _SECRET_NAME.search(name)]


class Redactor:
    """Replaces known secrets in a text."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # Longest first: one secret may be the beginning of another.
        known = sorted({value for value in secrets if len(value) >= SHORTEST_SECRET}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, known))) if known else None

    def __call__(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(MASK, text)
