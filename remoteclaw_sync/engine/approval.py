"""Asking the caller about a tool call. It fails closed: anything but a clear yes is a no."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from ..types import Allow, Approve, Deny, PermissionRequest

logger = logging.getLogger(__name__)

NOBODY_TO_ASK = "Nobody is there to approve this tool call."
REFUSED = "The user does not want this tool call."
FAILED = "The approval of this tool call failed."
STOCK_WORDS = (REFUSED, NOBODY_TO_ASK, FAILED)  # Used when the caller gave no reason.
# The arguments in which shell tools get their command. "Remember" must not allow any other command.
COMMAND_KEYS = ("command", "cmd")


def decide(approve: Approve | None, request: PermissionRequest) -> Allow | Deny:
    """The caller's decision. A refusal always gives the agent a reason."""
    if approve is None:
        return Deny(NOBODY_TO_ASK)
    try:
        decision = approve(request)
    except Exception as error:  # noqa: BLE001 - whatever the caller's function raises
        logger.warning("approve raised %s; the tool call is refused", type(error).__name__)
        return Deny(FAILED)
    if decision is True:
        return Allow()
    if isinstance(decision, Allow):
        return decision if _is_json(decision) else Deny(FAILED)
    if isinstance(decision, Deny):
        return Deny(str(decision.message) or REFUSED, bool(decision.stop))
    if decision is not False:
        logger.warning("approve returned a %s; the tool call is refused", type(decision).__name__)
        return Deny(FAILED)
    return Deny(REFUSED)


def what_is_remembered(request: PermissionRequest) -> tuple[str, str] | None:
    """The key of a request for `Allow(remember=True)`; None if it cannot be remembered (a question to the user)."""
    commands = [request.input[key] for key in COMMAND_KEYS if key in request.input]
    if request.questions or not all(isinstance(command, str) for command in commands):
        return None
    return request.tool_name, "\0".join(commands)


def _is_json(decision: Allow) -> bool:
    for part in (decision.input, decision.answers):
        if part is None:
            continue
        try:
            json.dumps(dict(part) if isinstance(part, Mapping) else 1 / 0)
        except (TypeError, ValueError, ZeroDivisionError, RecursionError):
            logger.warning("approve returned an input or answers that are not JSON objects; the tool call is refused")
            return False
    return True
