"""Compares a line that is sent now with the one that was sent in the recording.

What is random or specific to the machine may differ: ids that we make up, versions, folders, keys, MCP servers. Where
text is left out of the recording, any text matches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..redaction import MASK

# Not compared, at any depth: specific to the machine or to this package's version, or made up for each run.
WILD = frozenset(
    {
        "apiKey",
        "clientInfo",
        "config",
        "cwd",
        "directory",
        "env",
        "headers",
        "mcp",
        "mcpServers",
        "mcp_servers",
        "projects",
    }
    | {"password", "version"}
)
# Ids that we make up: a UUID, or letters and digits after a prefix, as in `msg_0192f1c2e4b8`.
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
RANDOM = re.compile(rf"{UUID}|\b[a-z]{{2,6}}_[0-9A-Za-z]{{12,}}|\b[0-9a-f]{{16,}}\b", re.IGNORECASE)
PATH = re.compile(r"(?:[A-Za-z]:)?(?:[\\/][^\s\\/\"':,;?&=]+){2,}")
FOLDER = re.compile(r"(?<=[?&]directory=)[^&\s]*")  # In the path of a request.
MASKED = re.compile(rf"{re.escape(MASK)}\**|\*{{3,}}")


def kind_of(line: Mapping[str, Any]) -> str:
    """What kind of line it is, in words for people. Reveals nothing of its content."""
    request, response = line.get("request"), line.get("response")
    if isinstance(request, dict):
        return f"{line.get('type')} {request.get('subtype')}"
    if isinstance(response, dict):
        answer = response.get("response")
        return f"{line.get('type')} {answer.get('behavior', '') if isinstance(answer, dict) else ''}".strip()
    method = line.get("method")
    if method is not None:
        path = line.get("path")
        return FOLDER.sub("*", f"{method} {RANDOM.sub('*', path)}" if isinstance(path, str) else str(method))
    return str(line.get("type") or ("an error" if "error" in line else "an answer"))


class Names:
    """Ids that we have made up: the recorded value of each, and the value that it has now."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.numbers: dict[int, int | None] = {}  # Of our requests; None: that request was not sent this time.


def difference(recorded: Any, sent: Any, names: Names) -> str | None:
    """The first difference, in words; None if there is none."""
    return _compare(recorded, sent, "", names)


def note_ids(recorded: Mapping[str, Any], sent: Mapping[str, Any] | None, names: Names) -> None:
    """Both are the same request of ours: its recorded answer must get its present id (`sent` is None: not sent)."""
    number = recorded.get("id")
    if "method" in recorded and type(number) is int:
        now = None if sent is None else sent.get("id")
        names.numbers[number] = now if type(now) is int else None
    before = recorded.get("request_id")
    if recorded.get("type") == "control_request" and isinstance(before, str):
        after = "-" if sent is None else sent.get("request_id")
        if isinstance(after, str) and after != before:
            names.texts[f'"{before}"'] = f'"{after}"'


def _compare(recorded: Any, sent: Any, where: str, names: Names) -> str | None:
    if isinstance(recorded, dict) and isinstance(sent, dict):
        return _compare_objects(recorded, sent, where, names)
    if isinstance(recorded, list) and isinstance(sent, list):
        if len(recorded) != len(sent):
            return f"{where or 'it'} has {len(sent)} items instead of {len(recorded)}"
        pairs = enumerate(zip(recorded, sent, strict=True))
        return _first([_compare(one, other, f"{where}[{index}]", names) for index, (one, other) in pairs])
    if isinstance(recorded, str) and isinstance(sent, str):
        return None if _same_text(recorded, sent, names) else f"{where or 'it'} has another value"
    same = recorded == sent and type(recorded) is type(sent)
    return None if same else f"{where or 'it'} has another value"


def _compare_objects(recorded: Mapping[str, Any], sent: Mapping[str, Any], where: str, names: Names) -> str | None:
    compared = {name for name in {*recorded, *sent} if name not in WILD and not MASKED.search(name)}
    if not where:
        compared -= {"id"} if "method" in recorded else set()
        compared -= {"request_id"} if recorded.get("type") == "control_request" else set()
    found: list[str | None] = []
    for name in sorted(compared):
        place = f"{where}.{name}" if where else name
        if name in sent and name in recorded:
            found.append(_compare(recorded[name], sent[name], place, names))
        elif not any(MASKED.search(other) for other in recorded):  # The field may be one whose name is hidden.
            found.append(f"{place} is {'missing' if name not in sent else 'new'}")
    return _first(found)


def _first(found: list[str | None]) -> str | None:
    """The first difference. All places were compared, because each may contain an id that has changed."""
    return next((words for words in found if words is not None), None)


def _same_text(recorded: str, sent: str, names: Names) -> bool:
    if recorded == sent:
        return True
    pattern = "(?s:.*)".join(re.escape(_plain(part)) for part in MASKED.split(recorded))
    if re.fullmatch(pattern, _plain(sent)) is None:
        return False
    before, after = RANDOM.findall(recorded), RANDOM.findall(sent)
    if len(before) == len(after):
        names.texts.update({one: other for one, other in zip(before, after, strict=True) if one != other})
    return True


def _plain(text: str) -> str:
    """The text without the parts that differ each time."""
    return PATH.sub("<path>", RANDOM.sub("<id>", FOLDER.sub("<folder>", text)))
