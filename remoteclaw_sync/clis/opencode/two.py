"""What is different in OpenCode 2 (npm `@opencode/cli`; as of 2.0.15, and according to its source code).

`run` takes its folder from $PWD and has no `--dir`; without `--standalone` it leaves a server running. Its lines are
those of OpenCode 1, except for the ids of tool calls, the place of a command's exit code, and errors. It ignores
OPENCODE_PERMISSION.
"""

from __future__ import annotations

import os
import re
import shutil

from ..._json import read_object
from ...types import AgentExecuteParams, ErrorSubtype
from ...wire.fields import Message, integer, mapping, text
from .facts import PACKAGE_OF_TWO

PARENTS = 5  # Folders from the program up to its package.json.
OWN_FOLDERS = frozenset({"opencode", ".opencode"})
VERSION_FOLDER = re.compile(r"2\.\d+\.\d+(?:[-_+][\w.]+)?")

# The answer to `opencode run --dir=x`; the quotes and the surrounding words differ with the parser's version.
REFUSED_DIR = re.compile(r"(?:unrecognized|unknown|unexpected|invalid)\b[^\n]*--dir\b", re.IGNORECASE)
REFUSED_FLAG = re.compile(
    r"(?:unrecognized|unknown|unexpected|invalid)\b[^\n]*--(?:mdns|hostname|port)\b", re.IGNORECASE
)
STARTED_AGAIN = "opencode was started again: it is OpenCode 2, which takes other arguments"

NO_READ_ONLY = (
    'permission_mode="read-only" is not offered on OpenCode 2: it does not read the rules by which OpenCode 1 is kept '
    "from writing. Use OpenCode 1 (npm install -g opencode-ai), or deny edits and commands in its own configuration"
)

NO_LIVE_SESSIONS = (
    "live sessions are not offered on OpenCode 2, whose server speaks in other words: use OpenCode 1 "
    "(npm install -g opencode-ai), or runs without approve and without a session"
)

DECLINED = "declined this tool call"  # Nobody could answer: OpenCode ends the turn.
BLOCKED = "Permission denied: "  # A rule in the user's config: the turn goes on.
SHELLS = ("bash", "shell")

SUBTYPES: dict[str, ErrorSubtype] = {
    "provider.auth": "auth",
    "provider.rate-limit": "rate_limit",
    "provider.quota": "billing",
    "provider.transport": "network",
    "provider.internal": "overloaded",
    "provider.no-route": "config",
    "permission.rejected": "permission",
}


def is_installed(program: str, search_path: str | None) -> bool:
    """Whether this program is OpenCode 2, judging by its files. Starts nothing, does not raise."""
    try:
        found = shutil.which(program, path=search_path)
    except ValueError:
        return False
    if found is None:
        return False
    path = os.path.realpath(found)
    for _ in range(PARENTS):
        path, name = os.path.split(path)
        if VERSION_FOLDER.fullmatch(name) and not OWN_FOLDERS.isdisjoint(path.split(os.sep)[-2:]):
            return True
        package = _package_name(path)
        if package is not None:
            return package == PACKAGE_OF_TWO or package.startswith(f"{PACKAGE_OF_TWO}-")
    return False


def _package_name(folder: str) -> str | None:
    return text(read_object(os.path.join(folder, "package.json")), "name") or None


def refuses_dir(stderr: str) -> bool:
    """Whether a start failed because this is OpenCode 2 after all."""
    return REFUSED_DIR.search(stderr) is not None


def refuses_live(stderr: str) -> bool:
    """Whether a start for live sessions failed because this is OpenCode 2 after all."""
    return REFUSED_FLAG.search(stderr) is not None


def place_args(params: AgentExecuteParams, *, is_two: bool) -> list[str]:
    """The arguments that say where to work."""
    # OpenCode 2 takes the folder from the working directory and $PWD, which are already set.
    return ["--standalone"] if is_two else [f"--dir={os.path.abspath(params.working_directory or os.getcwd())}"]


# --- lines --------------------------------------------------------------------------------------------------


def part_id(part: Message) -> str:
    """What identifies a part: on OpenCode 2 the `id` of a tool's part is that of its call."""
    found = part.get("partID") or part.get("id")
    return found if type(found) is str else text(part, "partID") or text(part, "id")


def call_id(part: Message) -> str:
    """The id of a tool call."""
    return text(part, "callID") or text(part, "id")


def exit_code(part: Message, state: Message) -> tuple[bool, object]:
    """Whether this was a command that reported how it ended, and its exit code."""
    metadata = mapping(state, "metadata")
    told = metadata if "exit" in metadata else mapping(metadata, "metadata")
    return text(part, "tool") in SHELLS and "exit" in told, told.get("exit")


def is_provider_executed(part: Message, state: Message) -> bool:
    """Whether the provider ran the tool itself."""
    there = mapping(mapping(state, "metadata"), "providerCall").get("executed")
    return bool(there or mapping(part, "metadata").get("providerExecuted"))


def is_error(error: Message) -> bool:
    """Whether an `error` object has the shape `{"type", "message", "status"}`, after which OpenCode always gives up."""
    return "type" in error and "name" not in error and "_tag" not in error


def code_of(error: Message) -> str:
    """The HTTP status, else OpenCode's name for the error."""
    status = integer(error, "status")
    return str(status) if status else text(error, "type")
