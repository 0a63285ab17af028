"""The CLIs this package knows: their names, and the facts about each."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from ..engine.classify import ErrorClass
from ..engine.classify import classify_error as _classify
from .facts import CliFacts

if TYPE_CHECKING:
    from ..runtime import CLIRuntimeBase
    from .fake import Fake

# Each is the name of a folder here with `facts.py`, `runtime.py` and `fake.py`. Doctor and `run` use this order.
NAMES: tuple[str, ...] = (
    "claude",
    "gemini",
    "codex",
    "opencode",
)


def facts_of(name: str) -> CliFacts:
    """The facts about this CLI. Imports neither its runtime nor another CLI."""
    facts: CliFacts = _module_of(name, "facts").FACTS
    return facts


def all_facts() -> list[CliFacts]:
    """The facts about all CLIs, in order."""
    return [facts_of(name) for name in NAMES]


def fake_of(name: str) -> Fake:
    """How this CLI is imitated in tests."""
    fake: Fake = _module_of(name, "fake").FAKE
    return fake


def runtime_class_of(name: str) -> type[CLIRuntimeBase]:
    """The class that runs this CLI. Imported on first use, so that using one CLI does not load the others."""
    found: type[CLIRuntimeBase] = getattr(_module_of(name, "runtime"), facts_of(name).runtime)
    return found


def _module_of(name: str, module: str) -> ModuleType:
    """A module from the folder of this CLI. Raises KeyError for an unknown CLI."""
    if name not in NAMES:
        raise KeyError(name)
    return importlib.import_module(f".{name}.{module}", __package__)


def classify_error(
    message: str = "",
    *,
    code: str | None = None,
    exit_code: int | None = None,
    status: int | None = None,
    provider: str | None = None,
) -> ErrorClass:
    """What kind of failure this is; "unknown" if it is not recognised. Uses the message (then the code), the HTTP
    status, and the meaning of the provider's exit code."""
    known = facts_of(provider).exit_codes if exit_code is not None and provider in NAMES else {}
    return _classify(message, code=code, exit_code=exit_code, status=status, exit_codes=known)
