"""OpenCode's permission rules, applied as OpenCode does (1.18.33): the last matching rule wins."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from ...wire.fields import items, text

Rule = tuple[str, str, str]  # Permission, pattern, action.


def read_rules(given: Any) -> list[Rule]:
    """An agent's rules, as OpenCode's server reports them."""
    found = items(given, "permission") if isinstance(given, dict) else []
    rules = [rule for rule in found if isinstance(rule, dict)]
    return [(text(rule, "permission"), text(rule, "pattern"), text(rule, "action")) for rule in rules]


def matches(value: str, pattern: str) -> bool:
    """`*` matches anything, `?` one character, and `ls *` also matches `ls` alone."""
    escaped = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    if escaped.endswith(r"\ .*"):
        escaped = escaped.removesuffix(r"\ .*") + r"(\ .*)?"
    return re.fullmatch(escaped, value, re.DOTALL) is not None


def action(rules: Iterable[Rule], permission: str, pattern: str) -> str | None:
    """The action that these rules give; None if none matches."""
    found = None
    for name, scope, what in rules:
        if matches(permission, name) and matches(pattern, scope):
            found = what
    return found


def denies(rules: Sequence[Rule], permission: str, patterns: Iterable[str]) -> bool:
    """Whether these rules deny any of the patterns."""
    return any(action(rules, permission, pattern) == "deny" for pattern in patterns)
