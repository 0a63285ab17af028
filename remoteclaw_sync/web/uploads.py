"""Images that were pasted or dropped on the chat page, as private files that can be shown to a CLI."""

from __future__ import annotations

import os
import re
import secrets

from ..clis.shared import image_type
from ..errors import RemoteClawError

MAX_IMAGE = 10 << 20  # Bytes. The vendors accept 5 to 20 MB.
SUFFIXES = {"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp"}
NAME = re.compile(r"[0-9a-f]{32}\.(?:png|jpg|gif|webp)")


class UnknownImageError(RemoteClawError, LookupError):
    """There is no such image, or it was deleted."""


class Uploads:
    """A folder of images."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        os.makedirs(folder, 0o700, exist_ok=True)

    def add(self, data: bytes) -> str:
        """Keep an image; returns its name. The type is read from its bytes. Raises ValueError for unsupported types."""
        stem = os.path.join(self._folder, secrets.token_hex(16))
        with open(os.open(stem, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
        try:
            path = stem + SUFFIXES[image_type("image", stem)]
        except ValueError:
            os.unlink(stem)
            raise ValueError("that is not a PNG, JPEG, GIF or WebP image") from None
        os.rename(stem, path)
        return os.path.basename(path)

    def path(self, name: str) -> str:
        """The path of an image. The name comes from the network: raises UnknownImageError if it is not one of ours."""
        path = os.path.join(self._folder, name)
        if NAME.fullmatch(name) is None or not os.path.isfile(path):
            raise UnknownImageError("there is no such image")
        return path

    def read(self, name: str) -> tuple[str, bytes]:
        """The type and the bytes of an image. Raises UnknownImageError."""
        with open(self.path(name), "rb") as file:
            data = file.read()
        suffix = os.path.splitext(name)[1]
        return next(kind for kind, one in SUFFIXES.items() if one == suffix), data

    def delete(self, name: str) -> None:
        """Delete an image, if it exists."""
        try:
            os.unlink(self.path(name))
        except (UnknownImageError, FileNotFoundError):
            pass
