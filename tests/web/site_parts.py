"""What the test sites have in common: approvals and further words, as a site's own views would take them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from remoteclaw_sync.web import NotAskedError, UnknownRunError, Visitor, runs


def approver(query: Mapping[str, Any]) -> Visitor | None:
    """Who is asked, if the visitor wants to be."""
    if "approval_timeout" not in query:
        return None
    return Visitor(approval_timeout=float(query["approval_timeout"]))


def answered(run_id: str, query: Mapping[str, Any]) -> dict[str, Any]:
    """Answer, unless it is to be another worker that does."""
    here: dict[str, Any] = {"worker": os.getpid()}
    if query.get("elsewhere") and runs.local(run_id) is not None:
        return {**here, "said": "not here"}
    try:
        runs.get(run_id).answer(query["request_id"], query["allow"] == "yes", message=query.get("message", ""))
    except (NotAskedError, UnknownRunError) as error:
        return {**here, "said": type(error).__name__}
    return {**here, "said": "answered"}


def steered(run_id: str, query: Mapping[str, Any]) -> dict[str, Any]:
    """Further words, unless it is to be another worker that passes them on."""
    if query.get("elsewhere") and runs.local(run_id) is not None:
        return {"worker": os.getpid(), "said": "not here"}
    runs.get(run_id).steer(query["text"])
    return {"worker": os.getpid(), "said": "passed on"}
