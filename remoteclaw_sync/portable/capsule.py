"""A session as bytes: what one machine exports and another imports.

    remoteclaw-session 1 <SHA-256 of the rest>\\n
    zlib( <header, one line of JSON>\\n <the files, one after the other> )

The digest detects damage, not malice: a store that others can write to needs encryption (see sealing.py). So each name
is checked as if an attacker had chosen it, and nothing is unpacked beyond a limit. Which files are written where is up
to the CLI's own part (`clis/<name>/portable.py`), which accepts only names it would have written itself.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from ..errors import SessionTransferError

FORMAT = 1
MAGIC = b"remoteclaw-session "
FIRST_LINE = re.compile(rb"remoteclaw-session (\d{1,9}) ([0-9a-f]{64})\n")
MAX_CAPSULE_BYTES = 256 * 1024 * 1024  # All files together. The longest sessions seen had 100 MB.
MAX_HEADER_BYTES = 4 * 1024 * 1024
MAX_FILES = 10_000
SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
PLAIN_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,199}")  # Of a path: no leading dot, no separator, no device.


@attrs.frozen(kw_only=True)
class Capsule:
    """One session: its CLI, the version of the CLI that wrote it, and its files by relative name."""

    provider: str
    session_id: str
    cli_version: str | None
    files: Mapping[str, bytes] = attrs.field(repr=False)

    def pack(self, limit: int = MAX_CAPSULE_BYTES) -> bytes:
        """The capsule as bytes. Raises SessionTransferError if it is too large."""
        if sum(map(len, self.files.values())) > limit or len(self.files) > MAX_FILES:
            raise too_large(self.session_id, limit)
        listed = [
            {"name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in self.files.items()
        ]
        header = {
            "provider": self.provider,
            "session_id": self.session_id,
            "cli_version": self.cli_version,
            "files": listed,
        }
        packer = zlib.compressobj()
        parts = [packer.compress(json.dumps(header).encode() + b"\n")]
        parts += [packer.compress(data) for data in self.files.values()]
        body = b"".join([*parts, packer.flush()])
        return b"%s%d %s\n%s" % (MAGIC, FORMAT, hashlib.sha256(body).hexdigest().encode(), body)

    @classmethod
    def unpack(cls, data: bytes, limit: int = MAX_CAPSULE_BYTES) -> Capsule:
        """Read a capsule, whoever made it. Raises SessionTransferError if it is not complete and valid."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes, not {type(data).__name__}")
        content = _unpacked(bytes(data), limit)
        header, ended, rest = content.partition(b"\n")
        if not ended or len(header) > MAX_HEADER_BYTES:
            raise _damaged("it has no header")
        try:
            fields = json.loads(header)
            files = dict(_files(fields["files"], rest))
            provider, session_id, version = fields["provider"], fields["session_id"], fields["cli_version"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise _damaged("its header cannot be read") from None
        if not isinstance(provider, str) or not isinstance(version, str | None):
            raise _damaged("its header cannot be read")
        if not isinstance(session_id, str) or not SESSION_ID.fullmatch(session_id):
            raise SessionTransferError("unsafe", "the capsule's session id is not one that a CLI would give")
        return cls(provider=provider, session_id=session_id, cli_version=version, files=files)


def _unpacked(data: bytes, limit: int) -> bytes:
    line = FIRST_LINE.match(data)
    if line is None:
        raise _damaged("it does not begin like one")
    if int(line[1]) > FORMAT:
        message = (
            f"this session capsule has format {int(line[1])}, and this version of remoteclaw_sync reads {FORMAT}: "
            "update it on this machine"
        )
        raise SessionTransferError("newer_format", message)
    body = data[line.end() :]
    if hashlib.sha256(body).hexdigest().encode() != line[2]:
        raise _damaged("its checksum does not match")
    unpacker = zlib.decompressobj()
    try:
        content = unpacker.decompress(body, limit + MAX_HEADER_BYTES)
    except zlib.error:
        raise _damaged("it cannot be unpacked") from None
    if unpacker.unconsumed_tail:
        raise too_large("in the capsule", limit)
    if not unpacker.eof or unpacker.unused_data:
        raise _damaged("it is cut short, or something follows it")
    return content


def _files(listed: Any, rest: bytes) -> Iterator[tuple[str, bytes]]:
    if not isinstance(listed, list) or not 0 < len(listed) <= MAX_FILES:
        raise ValueError
    position = 0
    seen: set[str] = set()
    for entry in listed:
        name, size = entry["name"], entry["size"]
        if not isinstance(name, str) or not is_plain(name) or name.lower() in seen:
            raise SessionTransferError("unsafe", f"the capsule has a file with a name that it must not have: {name!r}")
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(rest) - position:
            raise ValueError
        data = rest[position : position + size]
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise _damaged(f"the checksum of {name} does not match")
        seen.add(name.lower())
        position += size
        yield name, data
    if position != len(rest):
        raise ValueError


def is_plain(name: str) -> bool:
    """Whether this is the relative name of a file that cannot lead outside its folder."""
    return len(name) < 1000 and all(map(PLAIN_PART.fullmatch, name.split("/")))


def check_session_id(session_id: str) -> None:
    """Raises SessionTransferError if this cannot be a session id: it becomes part of a file name."""
    if not SESSION_ID.fullmatch(session_id):
        raise SessionTransferError("not_found", "there is no session with that id: it is not one that a CLI would give")


def not_found(session_id: str, where: str) -> SessionTransferError:
    """For a session that the CLI does not have."""
    return SessionTransferError("not_found", f"there is no session {session_id} in {where}")


def too_large(session_id: str, limit: int) -> SessionTransferError:
    """For a session that does not fit into a capsule."""
    megabytes = limit / 1024 / 1024
    return SessionTransferError("too_large", f"session {session_id} is too large for a capsule ({megabytes:g} MB)")


def foreign(name: str, provider: str) -> SessionTransferError:
    """For a name that this CLI would not have given to a file."""
    return SessionTransferError("unsafe", f"the capsule has a file that is not one of a {provider} session: {name!r}")


def _damaged(why: str) -> SessionTransferError:
    return SessionTransferError("damaged", f"this is not a whole session capsule: {why}")
