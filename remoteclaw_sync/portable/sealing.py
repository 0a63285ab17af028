"""Seals stored data with the caller's key: access to the store, its disk or its backups is not enough to read it."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Sequence
from typing import Any, Protocol

from ..errors import RemoteClawError

KEY_BYTES = 32
NONCE_BYTES = 12  # Random: safe for four billion messages with one key.
SEALED = b"\x01"  # First byte of sealed data. JSON, which is what is kept without a key, never begins with it.

Key = str | bytes


class SealError(RemoteClawError, ValueError):
    """The data was sealed with another key, was changed, or is not in its own place."""


class Sealer(Protocol):
    """Turns stored data into something that only holders of the key can read, and back."""

    def seal(self, data: bytes, place: str) -> bytes:
        """`place` names where the data will be kept; sealed data cannot be opened as something from another place."""

    def open(self, data: bytes, place: str) -> bytes:
        """Raises SealError."""


class Unsealed:
    """Without a key: everything is kept as it is."""

    def seal(self, data: bytes, place: str) -> bytes:
        return data

    def open(self, data: bytes, place: str) -> bytes:
        if data[:1] == SEALED:
            raise SealError("this was sealed, and no key was given: pass the key that the other machines have")
        return data


class Sealed:
    """AES-256-GCM (extra `seal`: cryptography).

    Args:
        keys: the first one seals, any of them opens, so that a new key can be introduced while the old one is in use.
    """

    def __init__(self, keys: Sequence[Key]) -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise ModuleNotFoundError(
                "a key needs the package cryptography: pip install remoteclaw_sync[seal]"
            ) from None
        self._invalid = InvalidTag
        self._ciphers: list[Any] = [AESGCM(_key_bytes(key)) for key in keys]
        if not self._ciphers:
            raise ValueError("key must be one key or a sequence of them: new_key() makes one")

    def seal(self, data: bytes, place: str) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        sealed: bytes = self._ciphers[0].encrypt(nonce, data, place.encode())
        return SEALED + nonce + sealed

    def open(self, data: bytes, place: str) -> bytes:
        nonce, sealed = data[1 : 1 + NONCE_BYTES], data[1 + NONCE_BYTES :]
        if data[:1] == SEALED and len(nonce) == NONCE_BYTES:
            for cipher in self._ciphers:
                try:
                    opened: bytes = cipher.decrypt(nonce, sealed, place.encode())
                except self._invalid:
                    continue
                return opened
        raise SealError("this was not sealed with any of our keys: all machines need the same key")


def sealer(key: Key | Sequence[Key] | None) -> Sealer:
    """A sealer for one key, several, or none."""
    if key is None:
        return Unsealed()
    return Sealed([key] if isinstance(key, str | bytes) else key)


def new_key() -> str:
    """A key, as text for a settings file or an environment variable."""
    return base64.urlsafe_b64encode(os.urandom(KEY_BYTES)).decode()


def _key_bytes(key: Key) -> bytes:
    # The message never quotes the key.
    wrong = f"key must be {KEY_BYTES} bytes, or those in base64 as new_key() makes them"
    if isinstance(key, bytes) and len(key) == KEY_BYTES:
        return key
    try:
        decoded = base64.urlsafe_b64decode(key)
    except (binascii.Error, ValueError, TypeError):
        raise ValueError(wrong) from None
    if len(decoded) != KEY_BYTES:
        raise ValueError(wrong)
    return decoded
