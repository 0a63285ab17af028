"""OpenCode's permission rules, as it applies them itself (1.18.33): the last one that matches wins."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from ...wire.fields import items, text

Rule = tuple[str, str, str]  # Permission, pattern, action.


def read_rules(given: Any) -> list[Rule]:
    """Those of an agent, as its server tells of them."""
    found = items(given, "permission") if isinstance(given, dict) else []
    rules = [rule for rule in found if isinstance(rule, dict)]
    return [(text(rule, "permission"), text(rule, "pattern"), text(rule, "action")) for rule in rules]


def matches(value: str, pattern: str) -> bool:
    """`*` is anything, `?` one character, and `ls *` is also `ls` alone."""
    escaped = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    if escaped.endswith(r"\ .*"):
        escaped = escaped.removesuffix(r"\ .*") + r"(\ .*)?"
    return re.fullmatch(escaped, value, re.DOTALL) is not None


def action(rules: Iterable[Rule], permission: str, pattern: str) -> str | None:
    """What these rules say; None if nothing."""
    found = None
    for name, scope, what in rules:
        if matches(permission, name) and matches(pattern, scope):
            found = what
    return found


def denies(rules: Sequence[Rule], permission: str, patterns: Iterable[str]) -> bool:
    """Whether they rule this out."""
    return any(action(rules, permission, pattern) == "deny" for pattern in patterns)
