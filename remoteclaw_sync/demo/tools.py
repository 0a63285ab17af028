"""What the demo agent's tools do, once they are permitted."""

from __future__ import annotations

import os
from typing import Any

COMMAND_SECONDS = 60.0


def shell(arguments: dict[str, Any]) -> str:
    """The output of a command."""
    import subprocess  # Only here, because importing it takes longer than running everything else.

    try:
        done = subprocess.run(
            ["/bin/sh", "-c", arguments["command"]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"(ended after {COMMAND_SECONDS:.0f} s)"
    return done.stdout.decode(errors="replace") or f"(no output, exit code {done.returncode})"


def write(arguments: dict[str, Any]) -> str:
    """Write a file, or replace part of one."""
    path = arguments["file_path"]
    content = arguments.get("content")
    if content is None:
        with open(path, encoding="utf-8") as file:
            before = file.read()
        if arguments["old_string"] not in before:
            raise ValueError("old_string was not found")
        content = arguments["new_string"].join(before.rsplit(arguments["old_string"], 1))
    with open(path, "w", encoding="utf-8") as file:
        file.write(content)
    return "The file has been written."


def answers_in(arguments: dict[str, Any]) -> str:
    """The user's answers to the questions."""
    return "; ".join(f"{question} {answer}" for question, answer in (arguments.get("answers") or {}).items())


def list_folder() -> list[str]:
    """The names in the working directory; folders end with a slash."""
    with os.scandir(".") as entries:
        return sorted(entry.name + ("/" if entry.is_dir() else "") for entry in entries if entry.name[0] != ".")
