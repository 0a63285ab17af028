"""Escapes a prompt so that Gemini CLI passes it to the model as written.

Headless Gemini CLI 0.61.0 reads syntax in a prompt: `/name` at its start runs a command, and any `@name` that it can
find (a file or folder of the workspace, a file whose name merely contains it, a sub-agent, an MCP resource) makes it
append that content and rewrite the text around it. Neither can be turned off.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from ...files import read_regular

# The CLI's own pattern for `@name` (atCommandProcessor.ts): a backslash before the @ is its escape.
_AT_NAME = re.compile(r'(?<!\\)@((?:"[^"]*"|\\.|[^ \t\n\r,;!?()\[\]{}.]|\.(?!\Z|[ \t\n\r]))+)')
_MCP_RESOURCE = re.compile(r"[^:]+:[A-Za-z][A-Za-z0-9+.-]*:")  # server:scheme:...
_PLAIN_IN_PATH = re.compile(r"[^A-Za-z0-9/._-]")
_AGENT_NAME = re.compile(r"^name:\s*[\"']?([\w-]+)", re.MULTILINE)
_BUILT_IN_AGENTS = frozenset({"codebase_investigator", "cli_help", "generalist", "browser_agent"})

# What the CLI's file search skips.
_UNSEARCHED_FOLDERS = frozenset({"node_modules", ".git", "bower_components", ".svn", ".hg"})
# Files looked at (about 0.1 s) before every @name counts as one that might be found.
MAX_FILES_SEARCHED = 20_000
# Different names looked up in one prompt, a few milliseconds each, before the same applies.
MAX_NAMES_LOOKED_UP = 100
MAX_AGENT_BYTES = 1024 * 1024  # A larger sub-agent definition is skipped.


def without_command(prompt: str) -> str:
    """The prompt, with a space before it if it would run a command: the CLI looks at the very first character."""
    if not prompt.startswith("/") or prompt.startswith(("//", "/*")):
        return prompt
    words = prompt[1:].split(maxsplit=1)
    # A command's name contains no slash: "/etc/hosts is ..." can stay.
    return prompt if words and "/" in words[0] else " " + prompt


def escape_at_names(text: str, would_expand: Callable[[str], bool]) -> str:
    """The text with a backslash before each `@name` that would be expanded; all others stay as they are."""
    kept: list[str] = []
    start = position = 0
    while (found := _AT_NAME.search(text, position)) is not None:
        position = found.end()
        if would_expand(_unescaped(found[1])):
            kept += [text[start : found.start()], "\\"]
            start = found.start()
            position = start + 1  # Even if its first @ is escaped, the rest of "@a@b" may be a name.
    return "".join([*kept, text[start:]])


def mention(path: str) -> str:
    """`@path`, so that the CLI reads this file."""
    return "@" + _PLAIN_IN_PATH.sub(lambda found: "\\" + found[0], path)


class Workspace:
    """What `@name` can find from here: a guess from the file system that errs on the safe side."""

    def __init__(self, folders: Sequence[str], gemini_home: str) -> None:
        self._folders = folders
        self._gemini_home = gemini_home
        self._known: dict[str, bool] = {}

    def would_expand(self, name: str) -> bool:
        """Whether the CLI would replace this name with something."""
        if name not in self._known:
            if len(self._known) >= MAX_NAMES_LOOKED_UP:
                return True
            self._known[name] = self._look_up(name)
        return self._known[name]

    def _look_up(self, name: str) -> bool:
        return bool(_MCP_RESOURCE.match(name)) or name in self._agents or self._exists(name) or self._is_found(name)

    def _exists(self, name: str) -> bool:
        """Whether there is a file of this name that the CLI reads: in one of the folders, or among its own files."""
        try:
            paths = [os.path.realpath(os.path.join(folder, name)) for folder in self._folders]
            return any(self._is_readable(path) and os.path.exists(path) for path in paths)
        except ValueError:  # NUL bytes: not a path
            return False

    def _is_readable(self, path: str) -> bool:
        roots = [*self._folders, os.path.join(self._gemini_home, ".gemini")]
        return any(Path(path).is_relative_to(os.path.realpath(root)) for root in roots)

    @functools.cached_property
    def _agents(self) -> frozenset[str]:
        return _BUILT_IN_AGENTS | frozenset(_agent_names(self._agent_folders()))

    def _agent_folders(self) -> Iterator[Path]:
        settings = Path(self._gemini_home, ".gemini")
        yield settings / "agents"
        yield from settings.glob("extensions/*/agents")
        for folder in self._folders:
            yield Path(folder, ".gemini", "agents")

    @functools.cached_property
    def _files(self) -> str | None:
        """The paths of all files, one per line, in lower case; None if there are too many."""
        paths = [path.lower() for folder in self._folders for path in _files_below(folder)]
        return None if len(paths) > MAX_FILES_SEARCHED else "\n".join(paths)

    def _is_found(self, name: str) -> bool:
        """The CLI's second try is a search for `**/*name*` in all folders, ignoring case."""
        if self._files is None:
            return True
        return re.search(f"{_as_regex(name.lower())}[^/\n]*$", self._files, re.MULTILINE) is not None


def _unescaped(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name)


def _as_regex(glob: str) -> str:
    return "".join(".*?" if part.startswith("*") else re.escape(part) for part in re.split(r"(\*+)", glob))


def _files_below(folder: str) -> Iterator[str]:
    """Paths of the files in a folder, relative to it; at most MAX_FILES_SEARCHED + 1 of them."""
    seen = 0
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _UNSEARCHED_FOLDERS]
        below = os.path.relpath(root, folder)
        for name in files:
            yield name if below == "." else f"{below.replace(os.sep, '/')}/{name}"
            seen += 1
            if seen > MAX_FILES_SEARCHED:
                return


def _agent_names(folders: Iterable[Path]) -> Iterator[str]:
    for folder in folders:
        for definition in folder.glob("*.md"):
            try:
                # It comes from the repository: it may be a link to a device, or a FIFO.
                data = read_regular(definition, MAX_AGENT_BYTES, follow=True)
            except OSError:
                continue
            yield from _AGENT_NAME.findall(data.decode(errors="replace"))
