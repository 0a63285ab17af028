"""What several CLIs need for the same reason: colours on stderr, byte order marks, image files, totals of usage."""

from __future__ import annotations

import os
import re

from ..files import open_regular
from ..types import AgentUsage

ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07")

BOM = "\ufeff"

# The formats that the models' APIs accept, by their first bytes: a suffix may be wrong, and the API would refuse that.
IMAGE_SIGNATURES: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
)
SIGNATURE_BYTES = 12


def without_colours(text: str) -> str:
    """The text without terminal control sequences."""
    return ANSI.sub("", text)


def prompt_with_its_bom(prompt: str) -> bytes:
    """Double a leading byte order mark, for a CLI that removes one."""
    return (BOM + prompt if prompt.startswith(BOM) else prompt).encode()


def image_type(field: str, path: str | os.PathLike[str]) -> str:
    """The media type of an image file. Raises a ValueError that names the field."""
    try:
        with open_regular(path, follow=True) as file:
            head = file.read(SIGNATURE_BYTES)
    except OSError as error:
        raise ValueError(f"{field}: cannot read {os.fspath(path)!r}: {error.strerror}") from None
    for signature, media_type in IMAGE_SIGNATURES:
        if signature.match(head):
            return media_type
    raise ValueError(f"{field}: {os.fspath(path)!r} is not a PNG, JPEG, GIF or WebP image")


def check_is_file(field: str, path: str | os.PathLike[str]) -> None:
    """Raise a ValueError that names the field, unless this is a regular file."""
    if not os.path.isfile(path):
        what = "is not a regular file" if os.path.exists(path) else "does not exist"
        raise ValueError(f"{field}: {os.fspath(path)!r} {what}")


def used_since(before: AgentUsage | None, total: AgentUsage) -> AgentUsage | None:
    """What was used since `before`. None if it is not known how much of the total is older."""
    if before is None:
        return None
    used = AgentUsage(
        total.input_tokens - before.input_tokens,
        total.output_tokens - before.output_tokens,
        total.cache_read_tokens - before.cache_read_tokens,
        total.cache_write_tokens - before.cache_write_tokens,
    )
    return used if min(used.to_dict().values()) >= 0 else None
