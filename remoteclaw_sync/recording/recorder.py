"""Cassettes: what a CLI said in one run, in a file that `ReplayRuntime` can replay.

A cassette is JSON lines: a header, then each raw line of the CLI with its time, then how it ended. It is written during
the run (mode 0600), so if the host dies, the beginning is readable. It does not contain prompts or the values of
environment variables and arguments, even if the CLI repeats them in some form (see redaction/). It does contain
everything else that the agent says and its tools print: look at a cassette before you share it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import select
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from .. import errors
from .._values import check_path
from .._version import __version__
from ..files import read_named
from ..process.ending import EndReason
from ..process.environment import host_environment
from ..process.launch import Launch, SpawnFailure
from ..redaction import MASK, Scrubber, Sieve, secrets_of_run
from ..redaction.scrubber import USER_TEXT_KEYS
from ..types import AgentErrorEvent, AgentExecuteParams
from .file import create

logger = logging.getLogger(__name__)

FORMAT = 1
MAX_CASSETTE_BYTES = 1024 * 1024 * 1024
MOST_UNWRITTEN = 16 * 1024 * 1024  # Buffered for the slow reader of a FIFO.
FIFO_PATIENCE = 1.0  # Seconds that the end of a run waits for that reader.
FLAG = re.compile(r"--?[A-Za-z][\w-]*")


@attrs.frozen
class Recording:
    """Where to record, and whether to keep secrets out (`redact`). A folder gets a new file for each run."""

    path: str | os.PathLike[str]
    redact: bool = True

    def start(
        self, params: AgentExecuteParams, launch: Launch, provider: str | None, cli_version: str | None
    ) -> Recorder:
        """A recorder that has written its header. Raises RunSetupError if the file cannot be written."""
        scrub = _scrubber(params, launch) if self.redact else None
        header = _header(params, launch, provider, cli_version, redact=self.redact)
        try:
            return Recorder(create(os.fsdecode(self.path), provider or "run"), header, scrub)
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
    """Writes one cassette. Never raises, never stops the run.

    The run's supervisor gives it the CLI's output, and the consumer, which may lag behind, adds what the parser
    needs. The file is closed when both are done.
    """

    def __init__(self, fd: int, header: Mapping[str, Any], scrub: Scrubber | None) -> None:
        self._fd = fd
        # Guards against a consumer that stops waiting for the supervisor: a closed descriptor's number may be reused.
        self._lock = threading.Lock()
        self._scrub = scrub
        self._sieve: Sieve[dict[str, float]] | None = None if scrub is None else Sieve(scrub)
        self._unwritten = b""  # What a FIFO has no room for yet.
        self._started_at = time.monotonic()
        self._unfinished: list[bytes] = []
        self._has_ended = False
        self._is_heard = False
        self._write([header])

    def said(self, chunk: bytes) -> None:
        """Record the lines that this chunk completes, with the time."""
        head, newline, rest = chunk.rpartition(b"\n")
        if newline:
            lines = b"".join((*self._unfinished, head)).split(b"\n")
            self._unfinished = []
            now = self._now()
            said = [({"t": now}, _decoded(line)) for line in lines]
            if self._sieve is not None:
                said = [ready for entry, line in said for ready in self._sieve.push(entry, line)]
            self._write([{**entry, "line": line} for entry, line in said])
        if rest:
            self._unfinished.append(rest)

    def learned(self, facts: Mapping[str, Any]) -> None:
        """Record something the parser needs that the CLI did not print. For the consumer's thread."""
        kept = json.dumps(facts)
        if self._scrub is not None:
            kept = self._scrub(kept)
        self._write([{"t": self._now(), "facts": json.loads(kept)}])

    def ended(self, reason: EndReason, exit_code: int | None, diagnostics: str, failure: SpawnFailure | None) -> None:
        """Record how it ended."""
        now = self._now()
        held = [] if self._sieve is None else self._sieve.flush()
        entries = [{**entry, "line": line} for entry, line in held]
        if self._unfinished:
            entries.append({"t": now, "rest": self._plain(_decoded(b"".join(self._unfinished)))})
        end: dict[str, Any] = {"reason": reason.name, "exit_code": exit_code, "stderr": self._plain(diagnostics)}
        if failure is not None:
            end["failure"] = {"code": failure.code, "message": self._plain(failure.message)}
        self._write([*entries, {"t": now, "end": end}])

    def close(self) -> None:
        """The CLI is gone, whether or not its end was recorded. A second call does nothing."""
        give_up_at = time.monotonic() + FIFO_PATIENCE
        with self._lock:
            while self._unwritten and self._fd != -1 and (left := give_up_at - time.monotonic()) > 0:
                select.select([], [self._fd], [], left)
                self._drain()
            self._has_ended = True
            if self._is_heard:
                self._give_up()

    def heard(self) -> None:
        """The consumer will not read any more."""
        with self._lock:
            self._is_heard = True
            if self._has_ended:
                self._give_up()

    def __del__(self) -> None:
        self._give_up()  # A consumer that was interrupted never called `heard`.

    def _now(self) -> float:
        return round(time.monotonic() - self._started_at, 4)

    def _plain(self, text: str) -> str:
        return text if self._scrub is None else self._scrub.plain(text)

    def _write(self, entries: Iterable[Mapping[str, Any]]) -> None:
        data = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
        with self._lock:
            if self._fd != -1:
                self._unwritten += data
                self._drain()

    def _drain(self) -> None:
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[os.write(self._fd, self._unwritten) :]
        except BlockingIOError:
            if len(self._unwritten) > MOST_UNWRITTEN:
                logger.warning("recording stopped: nobody reads it")
                self._give_up()
        except OSError as error:
            logger.warning("recording stopped: %s", error.strerror)
            self._give_up()

    def _give_up(self) -> None:
        fd, self._fd, self._unwritten = self._fd, -1, b""
        if fd != -1:
            os.close(fd)


def _decoded(line: bytes) -> str:
    # Bytes that are not UTF-8 become lone surrogates, which JSON can carry and which turn back into these bytes.
    return line.decode("utf-8", "surrogateescape")


def _header(
    params: AgentExecuteParams, launch: Launch, provider: str | None, cli_version: str | None, *, redact: bool
) -> dict[str, Any]:
    before = host_environment()  # Not os.environ, which fails for names that the locale cannot encode.
    changed = {name: value for name, value in launch.env.items() if before.get(name) != value}
    changed.pop(launch.marker, None)
    unset = {name: None for name in before if name not in launch.env}
    header: dict[str, Any] = {
        "cassette": FORMAT,
        "remoteclaw_sync": __version__,
        "provider": provider,
        "cli_version": cli_version,
        "recorded_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "argv": [os.path.basename(launch.argv[0]), *launch.argv[1:]],
        "env": {**changed, **unset},
        "prompt": params.prompt,
        "deadline": params.deadline,
        "timeout": launch.limits.silence,
    }
    if redact:
        header["argv"] = [header["argv"][0], *map(_redact_argument, launch.argv[1:])]
        header["env"] = {name: value and MASK for name, value in header["env"].items()}
        header["prompt"] = MASK
    return header


def _redact_argument(argument: str) -> str:
    """Keep only the names of flags: a value may be a prompt, a path or a key."""
    flag, equals, _ = argument.partition("=")
    if argument in ("-", "--"):
        return argument
    if not FLAG.fullmatch(flag):
        return MASK
    return flag + equals + (MASK if equals else "")


def _scrubber(params: AgentExecuteParams, launch: Launch) -> Scrubber:
    texts = [params.prompt, params.system_prompt or "", *_texts_in(launch.stdin)]
    return Scrubber(texts, secrets_of_run(params, lambda: launch.env, launch.argv, every_value=True))


def _texts_in(stdin: bytes) -> Iterator[str]:
    """The prompt as it was sent to the CLI: escaped, wrapped, or inside a line of JSON."""
    sent = stdin.decode(errors="replace")
    try:
        messages = [json.loads(line) for line in sent.splitlines() if line.startswith("{")]
    except (ValueError, RecursionError):
        messages = []
    if messages:
        yield from _texts_of(messages)
    else:
        yield sent


def _texts_of(value: Any, key: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _texts_of(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from _texts_of(item, key)
    elif isinstance(value, str) and key in USER_TEXT_KEYS:
        yield value


# --- reading -------------------------------------------------------------------------------------------------


class CassetteError(errors.RemoteClawError, ValueError):
    """The file is not a cassette, or not one that this version can replay."""


@attrs.frozen
class Said:
    """A line with its newline (the last one may lack it), and the seconds since the start."""

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
    remedied: AgentErrorEvent | None = None  # See CLIRuntimeBase.
    facts: Mapping[str, Any] = attrs.field(factory=dict)  # What the parser needed and the CLI did not print.

    @property
    def provider(self) -> str | None:
        """Whose dialect it is."""
        provider = self.header.get("provider")
        return provider if isinstance(provider, str) else None


def read_cassette(path: str | os.PathLike[str]) -> Cassette:
    """The recording in this file. Raises OSError, or CassetteError if it is not a recording."""
    # Recordings live in repositories, which may contain a link to a device, a FIFO or a file of any size.
    lines = read_named(path, MAX_CASSETTE_BYTES).decode(errors="replace").split("\n")
    header, *entries = [*_entries(lines)] or [{}]
    if header.get("cassette") != FORMAT:
        found = f"format {header['cassette']!r}" if "cassette" in header else "no header"
        raise CassetteError(f"{os.fspath(path)!r} is not a recording this version can play ({found})")
    said: list[Said] = []
    end: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    at = ended_at = 0.0
    try:
        for entry in entries:
            at = float(entry["t"])
            if "line" in entry:
                said.append(Said(at, _raw(entry["line"]) + b"\n"))
            elif "rest" in entry:
                said.append(Said(at, _raw(entry["rest"])))
            elif "facts" in entry:
                facts.update(entry["facts"])
            elif "end" in entry:
                end, ended_at = entry["end"], at
        failure = end.get("failure")
        return Cassette(
            header=header,
            said=tuple(said),
            ended_at=ended_at if end else at,
            facts=facts,
            remedied=AgentErrorEvent.from_dict(facts["remedied"]) if "remedied" in facts else None,
            reason=EndReason[end["reason"]] if end else None,
            exit_code=end.get("exit_code"),
            stderr=end.get("stderr", ""),
            failure=SpawnFailure(failure["code"], failure["message"]) if failure else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CassetteError(f"{os.fspath(path)!r} is a damaged recording ({error!r})") from error


def _entries(lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    """Stops at the first incomplete line: the host may have died while writing it."""
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
