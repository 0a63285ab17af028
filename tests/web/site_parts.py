"""What the test sites have in common: approvals and further words, as a site's own views would handle them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from remoteclaw_sync.web import NotAskedError, UnknownRunError, Visitor, runs


def approver(query: Mapping[str, Any]) -> Visitor | None:
    """The visitor, if they want to be asked."""
    if "approval_timeout" not in query:
        return None
    return Visitor(approval_timeout=float(query["approval_timeout"]))


def answered(run_id: str, query: Mapping[str, Any]) -> dict[str, Any]:
    """Answer, unless another worker is to do it."""
    here: dict[str, Any] = {"worker": os.getpid()}
    if query.get("elsewhere") and runs.local(run_id) is not None:
        return {**here, "said": "not here"}
    try:
        runs.get(run_id).answer(query["request_id"], query["allow"] == "yes", message=query.get("message", ""))
    except (NotAskedError, UnknownRunError) as error:
        return {**here, "said": type(error).__name__}
    return {**here, "said": "answered"}


def steered(run_id: str, query: Mapping[str, Any]) -> dict[str, Any]:
    """Pass on further words, unless another worker is to do it."""
    if query.get("elsewhere") and runs.local(run_id) is not None:
        return {"worker": os.getpid(), "said": "not here"}
    runs.get(run_id).steer(query["text"])
    return {"worker": os.getpid(), "said": "passed on"}
