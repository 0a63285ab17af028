"""Codex's own record of a thread: `$CODEX_HOME/sessions/<y>/<m>/<d>/rollout-<time>-<thread id>.jsonl`.

Read before a thread is resumed, for what the stream does not contain. The format is internal to the CLI (0.166.0), so
anything that cannot be read or understood is treated as unknown.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import attrs

from ...files import open_regular
from ...types import AgentUsage
from ...wire.fields import Message, integer, items, mapping, text

logger = logging.getLogger(__name__)

BLOCK_BYTES = 1 << 20
HEAD_BYTES = 4 << 20  # A thread's instructions are among its first lines, after at most a few 100 KB.


@attrs.frozen
class ThreadRecord:
    """What the record says. `tokens_so_far` is None and `instructions` empty if it says nothing."""

    tokens_so_far: AgentUsage | None = None
    instructions: tuple[str, ...] = ()

    def began_with(self, system_prompt: str | None) -> bool:
        """Whether this is among the instructions the thread began with; None always is."""
        return system_prompt is None or system_prompt.strip() in map(str.strip, self.instructions)


def read_record(codex_home: Path, thread_id: str) -> ThreadRecord:
    """What is recorded about a thread so far. Never raises, even if the file is missing or damaged."""
    try:
        path = _find(codex_home, thread_id)
        if path is None:
            return ThreadRecord()
        with open_regular(path, follow=True) as file:
            return ThreadRecord(_last_total(file), tuple(_instructions(file)))
    except OSError as error:
        logger.debug("the record of the thread cannot be read: %s", type(error).__name__)
        return ThreadRecord()


class ThreadCounter:
    """Counts a thread's tokens while its run goes on; the lines of the run report them only at the end."""

    def __init__(self, codex_home: Path) -> None:
        self._home = codex_home
        self._path: Path | None = None

    def total(self, thread_id: str) -> AgentUsage | None:
        """Tokens of the whole thread; None if they are not known (yet). Never raises."""
        try:
            self._path = self._path or _find(self._home, thread_id)
            if self._path is None:
                return None
            with open_regular(self._path, follow=True) as file:
                return _last_total(file)
        except OSError as error:
            logger.debug("the record of the thread cannot be read: %s", type(error).__name__)
            return None


def usage_of(counts: Mapping[str, int]) -> AgentUsage:
    """Codex's token counts: input includes cached tokens, output includes reasoning."""
    return AgentUsage(
        input_tokens=integer(counts, "input_tokens"),
        output_tokens=integer(counts, "output_tokens"),
        cache_read_tokens=integer(counts, "cached_input_tokens"),
        cache_write_tokens=integer(counts, "cache_write_input_tokens"),
    )


def _find(codex_home: Path, thread_id: str) -> Path | None:
    # Only the plain form: Codex may pack old records (.jsonl.zst), which the standard library cannot read.
    found = sorted((codex_home / "sessions").glob(f"*/*/*/rollout-*-{thread_id}.jsonl"))
    return found[-1] if found else None


def _last_total(file: BinaryIO) -> AgentUsage | None:
    for line in _lines_backwards(file):
        if b'"total_token_usage"' not in line:
            continue
        payload = mapping(_parse(line), "payload")
        total = mapping(mapping(payload, "info"), "total_token_usage")
        # The words may also be part of something that was said in the thread.
        if text(payload, "type") == "token_count" and total:
            return usage_of(total)
    return AgentUsage()  # Nothing has been counted in this thread yet.


def _instructions(file: BinaryIO) -> Iterator[str]:
    file.seek(0)
    for line in file.read(HEAD_BYTES).split(b"\n"):
        payload = mapping(_parse(line), "payload") if b'"developer"' in line else {}
        if text(payload, "role") == "developer":
            yield from (text(part, "text") for part in items(payload, "content") if isinstance(part, dict))


def _lines_backwards(file: BinaryIO) -> Iterator[bytes]:
    """The lines, last one first: a thread's record may have hundreds of megabytes."""
    position = file.seek(0, os.SEEK_END)
    rest = b""
    while position > 0:
        size = min(BLOCK_BYTES, position)
        position -= size
        file.seek(position)
        rest, *lines = (file.read(size) + rest).split(b"\n")
        yield from reversed(lines)
    yield rest


def _parse(line: bytes) -> Message:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}  # A run that was killed leaves half a line.
    return value if isinstance(value, dict) else {}
