"""A prompt as the content blocks of ACP."""

from __future__ import annotations

import base64
import mimetypes
import os
import re
from collections.abc import Sequence

from ... import files
from ...wire.fields import Message
from ..shared import image_type
from .profiles import Profile

SYSTEM_PROMPT = "<system_instructions>\n{instructions}\n</system_instructions>\n\n"
# Agents look at the first character that is not blank (Gemini CLI trims as JavaScript does). This one is not blank.
NOT_BLANK = "\u200b"
FIRST_WORD = re.compile(r"[\s\ufeff]*(\S+)")  # In JavaScript a byte order mark is blank too.
AT_NAME = re.compile(r"(?<![\w\u200b])@(?=\S)")
MAX_IMAGE_BYTES = 20 * 1024 * 1024


def blocks(
    prompt: str, profile: Profile, *, as_text: bool, images: Sequence[str | os.PathLike[str]] = ()
) -> list[Message]:
    """A prompt's blocks, at least one because some agents need it. Raises OSError and ValueError for an image."""
    words = _guarded(prompt, profile) if as_text else prompt
    said = [words]
    if as_text and is_command(prompt, profile):
        said = [NOT_BLANK + words] if profile.looks_at_last_block else [NOT_BLANK, words]
    return [*map(_text, said), *map(_image, images)]


def instruction_block(instructions: str, profile: Profile) -> Message:
    """A block to put before the prompt, for an agent that takes instructions in no other way."""
    return _text(SYSTEM_PROMPT.format(instructions=_guarded(instructions, profile)))


def is_command(prompt: str, profile: Profile) -> bool:
    """Whether the agent might take this for one of its commands. (A command's name contains no slash.)"""
    first = FIRST_WORD.match(prompt)
    if first is None or first[1][0] not in profile.opening:
        return False
    return profile.takes_paths or "/" not in first[1][1:]


def _guarded(words: str, profile: Profile) -> str:
    return AT_NAME.sub(f"@{NOT_BLANK}", words) if profile.expands_at else words


def _text(words: str) -> Message:
    return {"type": "text", "text": words}


def _image(path: str | os.PathLike[str]) -> Message:
    data = files.read_regular(path, MAX_IMAGE_BYTES, follow=True)
    return {"type": "image", "mimeType": media_type(path), "data": base64.b64encode(data).decode()}


def media_type(path: str | os.PathLike[str]) -> str:
    """The type of an image, by its first bytes, or by its name if they are unknown (HEIC). Raises ValueError."""
    try:
        return image_type("images", path)
    except ValueError:
        guessed, _ = mimetypes.guess_type(os.fspath(path))
        if guessed is None or not guessed.startswith("image/"):
            raise
        return guessed
