"""This process's environment variables."""

from __future__ import annotations

import os
from typing import Any

# The bytes that were decoded last, and what they are. One value, so that two threads cannot mix theirs.
_decoded: tuple[dict[Any, Any] | None, dict[str, str]] = (None, {})


def host_environment() -> dict[str, str]:
    """A copy of `os.environ`.

    To decode 35 variables takes 25 us (100 when the caches are cold, as they are after a start); to see that they are
    the same as last time takes 1.
    """
    global _decoded
    current = getattr(os.environ, "_data", None)
    if not isinstance(current, dict):
        return dict(os.environ)
    raw, decoded = _decoded
    if raw != current:
        raw = dict(current)  # First, and then only this: another thread may be changing the original.
        decoded = {os.fsdecode(name): os.fsdecode(value) for name, value in raw.items()}
        _decoded = (raw, decoded)
    return dict(decoded)
