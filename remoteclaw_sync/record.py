"""Cassettes: what a CLI said in one run, kept in a file that `ReplayRuntime` plays again.

A cassette is JSON lines: a header, then each raw line of the CLI with its time, then how it ended. It is written while
the run goes on (mode 0600), so a host that dies leaves a readable beginning. Prompts, the values of environment
variables and of arguments are not in it, nor is their echo in what the CLI says; what the agent answers and
what its tools print is. Look at a cassette before you share it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from . import errors
from ._values import check_path
from ._version import __version__
from .process.ending import EndReason
from .process.launch import Launch, SpawnFailure
from .redaction import MASK, SHORTEST_SECRET, secret_values
from .types import AgentExecuteParams
from .versions import installed_version

logger = logging.getLogger(__name__)

FORMAT = 1
# A shorter prompt ("yes") is taken out only where the CLI repeats it as the user's: elsewhere it is an ordinary word.
SHORTEST_PROMPT_PART = 12
PROTOCOL_KEYS = frozenset({"type", "subtype", "role", "status"})  # What the parser goes by, whatever the prompt says.
FLAG = re.compile(r"--?[A-Za-z][\w-]*")


@attrs.frozen
class Recording:
    """Where to record, and whether to keep secrets out (`redact`). A folder gets a new file for each run."""

    path: str | os.PathLike[str]
    redact: bool = True

    def start(self, params: AgentExecuteParams, launch: Launch, provider: str | None) -> Recorder:
        """A recorder that has written its header. Raises RunSetupError if the file cannot be written."""
        scrub = _scrubber(params, launch) if self.redact else None
        header = _header(params, launch, provider, redact=self.redact)
        try:
            return Recorder(_create(os.fspath(self.path), provider), header, scrub)
        except OSError as error:
            message = f"cannot record to {os.fspath(self.path)!r}: {error.strerror or type(error).__name__}"
            raise errors.RunSetupError(errors.RECORD_FAILED, message) from error


def as_recording(record: str | os.PathLike[str] | Recording | None) -> Recording | None:
    """What the constructor option `record` means."""
    if record is None or isinstance(record, Recording):
        return record
    check_path("record", record)
    return Recording(record)


class Recorder:
    """Writes one cassette. Belongs to the run's supervisor thread; never raises, never stops the run."""

    def __init__(self, fd: int, header: Mapping[str, Any], scrub: Scrubber | None) -> None:
        self._fd = fd
        # Between the supervisor and a consumer that is tired of waiting for it: a closed number may be reused.
        self._lock = threading.Lock()
        self._scrub = scrub
        self._started_at = time.monotonic()
        self._unfinished: list[bytes] = []
        self._write([header])

    def said(self, chunk: bytes) -> None:
        """Keep the lines that this chunk completes, with the time."""
        head, newline, rest = chunk.rpartition(b"\n")
        if newline:
            lines = b"".join((*self._unfinished, head)).split(b"\n")
            self._unfinished = []
            now = self._now()
            self._write([{"t": now, "line": self._text(line)} for line in lines])
        if rest:
            self._unfinished.append(rest)

    def ended(self, reason: EndReason, exit_code: int | None, diagnostics: str, failure: SpawnFailure | None) -> None:
        """Keep the end, and close the file."""
        now = self._now()
        if self._unfinished:
            self._write([{"t": now, "rest": self._text(b"".join(self._unfinished))}])
        stderr = diagnostics if self._scrub is None else self._scrub(diagnostics)
        end: dict[str, Any] = {"reason": reason.name, "exit_code": exit_code, "stderr": stderr}
        if failure is not None:
            end["failure"] = {"code": failure.code, "message": failure.message}
        self._write([{"t": now, "end": end}])
        self.close()

    def close(self) -> None:
        """Close the file, whether or not the end is in it. Does nothing the second time."""
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd != -1:
                os.close(fd)

    def _now(self) -> float:
        return round(time.monotonic() - self._started_at, 4)

    def _text(self, line: bytes) -> str:
        # Bytes that are not UTF-8 become lone surrogates, which JSON can carry and which turn back into these bytes.
        text = line.decode("utf-8", "surrogateescape")
        return text if self._scrub is None else self._scrub(text)

    def _write(self, entries: Iterable[Mapping[str, Any]]) -> None:
        data = memoryview("".join(json.dumps(entry) + "\n" for entry in entries).encode())
        try:
            with self._lock:
                while data and self._fd != -1:
                    data = data[os.write(self._fd, data) :]
        except OSError as error:
            logger.warning("recording stopped: %s", error.strerror)
            self.close()


def _create(path: str, provider: str | None) -> int:
    """A file of its own for this run: of two runs that record to one path, the one that started last has the name."""
    if os.path.isdir(path):
        stamp = time.strftime("%Y%m%d-%H%M%S")
        return tempfile.mkstemp(dir=path, prefix=f"{provider or 'run'}-{stamp}-", suffix=".jsonl")[0]
    if os.path.exists(path) and not os.path.isfile(path):
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # A FIFO, /dev/null.
    target = os.path.realpath(path)
    fd, temporary = tempfile.mkstemp(dir=os.path.dirname(target), prefix=".remoteclaw-")
    try:
        os.replace(temporary, target)
    except BaseException:
        os.close(fd)
        os.unlink(temporary)
        raise
    return fd


def _header(params: AgentExecuteParams, launch: Launch, provider: str | None, *, redact: bool) -> dict[str, Any]:
    changed = {name: value for name, value in launch.env.items() if os.environ.get(name) != value}
    changed.pop(launch.marker, None)
    unset = {name: None for name in os.environ if name not in launch.env}
    header: dict[str, Any] = {
        "cassette": FORMAT,
        "remoteclaw_sync": __version__,
        "provider": provider,
        "cli_version": installed_version(provider or "", launch.argv[0], launch.env.get("PATH")),
        "recorded_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "argv": [os.path.basename(launch.argv[0]), *launch.argv[1:]],
        "env": {**changed, **unset},
        "prompt": params.prompt,
        "deadline": params.deadline,
        "timeout": launch.timeout,
    }
    if redact:
        header["argv"] = [header["argv"][0], *map(_redact_argument, launch.argv[1:])]
        header["env"] = {name: value and MASK for name, value in header["env"].items()}
        header["prompt"] = MASK
    return header


def _redact_argument(argument: str) -> str:
    """Only names of flags stay: a value may be a prompt, a path or a key."""
    flag, equals, _ = argument.partition("=")
    if argument in ("-", "--"):
        return argument
    if not FLAG.fullmatch(flag):
        return MASK
    return flag + equals + (MASK if equals else "")


def _scrubber(params: AgentExecuteParams, launch: Launch) -> Scrubber:
    secrets = [*secret_values(launch.env), *(value for value in params.env.values() if value)]
    for server in params.mcp_servers.values():
        secrets += [*server.env.values(), *server.headers.values()]
    return Scrubber([params.prompt, params.system_prompt or ""], secrets)


class Scrubber:
    """Takes texts and secrets out of a line. A line of JSON stays JSON, and its keys stay as they are."""

    def __init__(self, texts: Iterable[str], secrets: Iterable[str]) -> None:
        texts = [text.strip() for text in texts if text.strip()]
        parts = {text for text in texts if len(text) >= SHORTEST_PROMPT_PART}
        parts |= {secret for secret in secrets if len(secret) >= SHORTEST_SECRET}
        self._whole = frozenset(texts)
        self._parts = _any_of(parts)
        self._suspect = _any_of({form for text in {*texts, *parts} for form in _forms_in_json(text)})

    def __call__(self, line: str) -> str:
        if self._suspect is None or not self._suspect.search(line):
            return line
        try:
            value = json.loads(line, strict=False)
        except (ValueError, RecursionError):
            return self._take_out(line)
        clean = self._clean(value, by_user=False)
        # Rewritten only if need be: another spelling of the same JSON is not what the CLI wrote.
        return line if clean == value else json.dumps(clean, ensure_ascii=False)

    def _clean(self, value: Any, *, by_user: bool) -> Any:
        if isinstance(value, str):
            return _mask(value) if by_user and value.strip() in self._whole else self._take_out(value)
        if isinstance(value, list):
            return [self._clean(item, by_user=by_user) for item in value]
        if isinstance(value, dict):
            by_user = by_user or value.get("role") == "user"
            return {
                key: item if key in PROTOCOL_KEYS else self._clean(item, by_user=by_user) for key, item in value.items()
            }
        return value

    def _take_out(self, text: str) -> str:
        return text if self._parts is None else self._parts.sub(lambda found: _mask(found.group()), text)


def _mask(text: str) -> str:
    """As long as what it hides: parsers compare the length of a whole message with that of its pieces."""
    return (MASK if len(text) >= len(MASK) else "").ljust(len(text), "*")


def _any_of(texts: Iterable[str]) -> re.Pattern[str] | None:
    # Longest first: one secret may be the beginning of another.
    known = sorted(set(texts), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, known))) if known else None


def _forms_in_json(text: str) -> set[str]:
    return {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}


# --- reading -------------------------------------------------------------------------------------------------


class CassetteError(errors.RemoteClawError, ValueError):
    """The file is no cassette that this version can play."""


@attrs.frozen
class Said:
    """A line with its end (the last one may lack it), so many seconds after the start."""

    at: float
    data: bytes


@attrs.frozen(kw_only=True)
class Cassette:
    """A recorded run. Without an end (the host died) `reason` is None."""

    header: Mapping[str, Any]
    said: tuple[Said, ...] = ()
    ended_at: float = 0.0
    reason: EndReason | None = None
    exit_code: int | None = None
    stderr: str = ""
    failure: SpawnFailure | None = None

    @property
    def provider(self) -> str | None:
        """Whose dialect it is."""
        provider = self.header.get("provider")
        return provider if isinstance(provider, str) else None


def read_cassette(path: str | os.PathLike[str]) -> Cassette:
    """The recording in this file. Raises OSError, or CassetteError if it is none."""
    with open(path, encoding="utf-8", errors="replace") as file:
        header, *entries = [*_entries(file)] or [{}]
    if header.get("cassette") != FORMAT:
        found = f"format {header['cassette']!r}" if "cassette" in header else "no header"
        raise CassetteError(f"{os.fspath(path)!r} is not a recording this version can play ({found})")
    said: list[Said] = []
    end: dict[str, Any] = {}
    at = 0.0
    try:
        for entry in entries:
            at = float(entry["t"])
            if "line" in entry:
                said.append(Said(at, _raw(entry["line"]) + b"\n"))
            elif "rest" in entry:
                said.append(Said(at, _raw(entry["rest"])))
            elif "end" in entry:
                end = entry["end"]
        failure = end.get("failure")
        return Cassette(
            header=header,
            said=tuple(said),
            ended_at=at,
            reason=EndReason[end["reason"]] if end else None,
            exit_code=end.get("exit_code"),
            stderr=end.get("stderr", ""),
            failure=SpawnFailure(failure["code"], failure["message"]) if failure else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CassetteError(f"{os.fspath(path)!r} is a damaged recording ({error!r})") from error


def _entries(lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    """Up to the first line that is not whole: the host may have died while it wrote it."""
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            return
        if not isinstance(entry, dict):
            return
        yield entry


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
