"""What OpenCode 1.18.33 writes to stderr: failures before there is a session, and causes that stdout does not show.

If OpenCode cannot read a config, it prints the whole file there, including any keys.
"""

from __future__ import annotations

import json
import re

from ..shared import without_colours

LOG_LINE = re.compile(r"^timestamp=\S+ level=\w+ .*$", re.MULTILINE)
WARNING_LINE = re.compile(r"^timestamp=\S+ level=WARN .*\n?", re.MULTILINE)
# These enclose the text of a config that is not JSON, and the errors found in it, which quote the text again.
DUMP_BEGIN, DUMP_END = "--- JSONC Input ---", "--- End ---"
WRONG_PLACE = re.compile(r"^(\w+ at line \d+, column \d+)$", re.MULTILINE)
# A config of the wrong shape: `Expected string | undefined, got 5 model`, the value and then its place.
WRONG_VALUE = re.compile(r"(?<=, got ).+(?= \S+$)", re.MULTILINE)
OMITTED = "[omitted]"

ERROR_PREFIX = "Error: "
UNEXPECTED = "Unexpected error"
HELP = re.compile(r"^\s*opencode run \[message", re.MULTILINE)
REFUSED_ARGUMENTS = "opencode was given an unknown argument, or one with a wrong value (see extra_args)"
WRONG_SETTINGS = (
    "Config",
    REFUSED_ARGUMENTS,
    "Directory ",
    "Failed to change directory",
    "File not found",
    "Model not",
)
# When several first runs create OpenCode's database at once, all but one of them fail (1.18.33).
DATABASE_RACE = re.compile(r"CREATE TABLE|CREATE (?:UNIQUE )?INDEX|ALTER TABLE|database is locked|SQLITE_BUSY")
PORT_TAKEN = re.compile(r"ServeError|EADDRINUSE|port \d+ in use")
PERMISSION = re.compile(r"permission requested: (.+); auto-rejecting")


def without_secrets(stderr: str) -> str:
    """The text without colours and without what it quotes from a config."""
    return WRONG_VALUE.sub(OMITTED, _without_dump(without_colours(stderr)))


def without_warnings(stderr: str) -> str:
    """The text without the log's many warnings."""
    return WARNING_LINE.sub("", stderr)


def failure(stderr: str) -> str | None:
    """OpenCode's own message about giving up at the start; None if there is none."""
    text = LOG_LINE.sub("", without_secrets(stderr))
    _, found, message = text.partition(ERROR_PREFIX)
    if not found:
        return REFUSED_ARGUMENTS if HELP.search(text) else text.strip() or None
    place = WRONG_PLACE.search(without_colours(stderr))
    message = message.replace(f": \n{OMITTED}", f" ({place.group(1)})" if place else "")
    return message.strip().removeprefix(UNEXPECTED).strip() or UNEXPECTED


def is_about_settings(message: str) -> bool:
    """Whether such a message blames the configuration or the arguments."""
    return message.startswith(WRONG_SETTINGS)


def refused_arguments(said: str) -> bool:
    """Whether OpenCode printed its help instead of running."""
    return HELP.search(without_colours(said)) is not None


def lists_flag(help_text: str, flag: str) -> bool:
    """Whether OpenCode's help lists this flag, if only as another name of one."""
    pattern = rf"^\s*(?:--?[\w-]+,\s*)*{re.escape(flag)}(?![\w-])"
    return re.search(pattern, without_colours(help_text), re.MULTILINE) is not None


def is_database_race(stderr: str) -> bool:
    """Whether OpenCode gave up because another of its processes was creating or changing its database."""
    return DATABASE_RACE.search(stderr) is not None


def is_port_taken(stderr: str) -> bool:
    """Whether OpenCode's server gave up because another program had the port."""
    return PORT_TAKEN.search(stderr) is not None


def rejected_permissions(stderr: str) -> list[str]:
    """The requests rejected because nobody was there to answer, such as `external_directory (/etc/*)`."""
    return PERMISSION.findall(without_colours(stderr))


def logged_cause(stderr: str, ref: str) -> str | None:
    """What the log says about a failure for which stdout has only a number."""
    found = re.search(rf'\bref={re.escape(ref)} error=("(?:[^"\\]|\\.)*"|\S+)', stderr)
    if found is None:
        return None
    value = found.group(1)
    try:
        cause = str(json.loads(value)) if value.startswith('"') else value
    except ValueError:
        return None
    return without_secrets(cause).strip() or None


def _without_dump(text: str) -> str:
    begin, end = text.find(DUMP_BEGIN), text.rfind(DUMP_END)
    if begin < 0 and end < 0:
        return text
    # Either mark may be missing: only the last 64 KiB of stderr are kept, and OpenCode may be cut short.
    before = text[:begin] if begin >= 0 else ""
    after = text[end + len(DUMP_END) :] if end > begin else ""
    return f"{before}{OMITTED}{after}"
