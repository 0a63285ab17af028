"""From a provider's name to its runtime."""

from __future__ import annotations

import importlib
from typing import Any

from .errors import UnknownProviderError
from .runtimes.base import CLIRuntimeBase

# Imported when asked for: a program that talks to one CLI does not pay for the others.
RUNTIMES = {
    "claude": ("claude", "ClaudeCliRuntime"),
    "gemini": ("gemini", "GeminiCliRuntime"),
    "codex": ("codex", "CodexCliRuntime"),
    "opencode": ("opencode", "OpenCodeCliRuntime"),
}

SUPPORTED_PROVIDERS: tuple[str, ...] = tuple(RUNTIMES)


def create_cli_runtime(provider: str, **options: Any) -> CLIRuntimeBase:
    """The runtime for a provider; case and surrounding space do not matter, options go to its constructor.

    Raises UnknownProviderError (a ValueError) that lists the known ones.
    """
    name = provider.strip().lower() if isinstance(provider, str) else ""
    if name not in RUNTIMES:
        raise UnknownProviderError(provider, SUPPORTED_PROVIDERS)
    module_name, class_name = RUNTIMES[name]
    module = importlib.import_module(f".runtimes.{module_name}", __package__)
    runtime: CLIRuntimeBase = getattr(module, class_name)(**options)
    return runtime
