"""This process's environment variables."""

from __future__ import annotations

import os


def host_environment() -> dict[str, str]:
    """A copy of `os.environ`. If another thread is changing it, `dict(os.environ)` would raise KeyError."""
    return {name: value for name in list(os.environ) if (value := os.environ.get(name)) is not None}
