"""Cassettes: what a CLI said in one run, in a file that `ReplayRuntime` can replay.

A cassette is JSON lines: a header, then each raw line of the CLI with its time, then how the run ended. It is written
during the run (mode 0600), so if the host dies, the beginning is readable. It does not contain prompts or the values of
environment variables and arguments, even if the CLI repeats them in some form (see redaction/). It does contain
everything else that the agent says and its tools print: look at a cassette before you share it.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from .. import errors
from .._values import check_path
from .._version import __version__
from ..process.ending import EndReason
from ..process.environment import host_environment
from ..process.launch import Launch, SpawnFailure
from ..redaction import MASK, Scrubber, Secret, Sieve, secrets_of_run
from ..redaction.scrubber import USER_TEXT_KEYS
from ..types import AgentExecuteParams
from .file import create
from .writer import CassetteWriter

FORMAT = 1
FLAG = re.compile(r"--?[A-Za-z][\w-]*")


@attrs.frozen
class Recording:
    """Where to record, and whether to keep secrets out (`redact`). In a folder, each run gets a new file."""

    path: str | os.PathLike[str]
    redact: bool = True

    def start(
        self, params: AgentExecuteParams, launch: Launch, provider: str | None, cli_version: str | None
    ) -> Recorder:
        """A recorder that has written its header. Raises RunSetupError if the file cannot be written."""
        scrub = Scrubber(*to_hide(params, launch)) if self.redact else None
        return Recorder(self.new_writer(provider), _header(params, launch, provider, cli_version, self.redact), scrub)

    def new_writer(self, provider: str | None) -> CassetteWriter:
        """A writer for one recording. Raises RunSetupError if the file cannot be written."""
        try:
            return CassetteWriter(create(os.fsdecode(self.path), provider or "run"))
        except OSError as error:
            message = f"cannot record to {os.fspath(self.path)!r}: {error.strerror or type(error).__name__}"
            raise errors.RunSetupError(errors.RECORD_FAILED, message) from error


def as_recording(record: str | os.PathLike[str] | Recording | None) -> Recording | None:
    """The value of the constructor option `record` as a Recording."""
    if record is None or isinstance(record, Recording):
        return record
    check_path("record", record)
    return Recording(record)


class Recorder:
    """Writes one cassette. Never raises, never stops the run.

    The run's supervisor passes it the CLI's output, and the consumer, which may lag behind, adds what the parser
    needs. The file is closed when both are done.
    """

    def __init__(self, writer: CassetteWriter, header: Mapping[str, Any], scrub: Scrubber | None) -> None:
        self._writer = writer
        self._lock = threading.Lock()
        self._scrub = scrub
        self._sieve: Sieve[dict[str, float]] | None = None if scrub is None else Sieve(scrub)
        self._unfinished: list[bytes] = []
        self._has_ended = False
        self._is_heard = False
        writer.write([header])

    def said(self, chunk: bytes) -> None:
        """Record the lines that this chunk completes, with the time."""
        head, newline, rest = chunk.rpartition(b"\n")
        if newline:
            lines = b"".join((*self._unfinished, head)).split(b"\n")
            self._unfinished = []
            now = self._writer.now()
            said = [({"t": now}, decoded(line)) for line in lines]
            if self._sieve is not None:
                said = [ready for entry, line in said for ready in self._sieve.push(entry, line)]
            self._writer.write([{**entry, "line": line} for entry, line in said])
        if rest:
            self._unfinished.append(rest)

    def learned(self, facts: Mapping[str, Any]) -> None:
        """Record something that the parser needs but the CLI did not print. For the consumer's thread."""
        kept = json.dumps(facts)
        if self._scrub is not None:
            kept = self._scrub(kept)
        self._writer.write([{"t": self._writer.now(), "facts": json.loads(kept)}])

    def ended(self, reason: EndReason, exit_code: int | None, diagnostics: str, failure: SpawnFailure | None) -> None:
        """Record how the run ended."""
        now = self._writer.now()
        held = [] if self._sieve is None else self._sieve.flush()
        entries = [{**entry, "line": line} for entry, line in held]
        if self._unfinished:
            entries.append({"t": now, "rest": self._plain(decoded(b"".join(self._unfinished)))})
        end: dict[str, Any] = {"reason": reason.name, "exit_code": exit_code, "stderr": self._plain(diagnostics)}
        if failure is not None:
            end["failure"] = {"code": failure.code, "message": self._plain(failure.message)}
        self._writer.write([*entries, {"t": now, "end": end}])

    def watching(self, launch: Launch) -> Launch:
        """The launch, with this recorder as the child's observer."""
        return attrs.evolve(launch, observer=self)

    def close(self) -> None:
        """The CLI is gone, whether or not its end was recorded. A second call does nothing."""
        self._part_is_over(ended=True)

    def heard(self) -> None:
        """The consumer will read no more."""
        self._part_is_over(heard=True)

    def _part_is_over(self, *, ended: bool = False, heard: bool = False) -> None:
        with self._lock:
            self._has_ended |= ended
            self._is_heard |= heard
            over = self._has_ended and self._is_heard
        if over:
            self._writer.close()

    def _plain(self, text: str) -> str:
        return text if self._scrub is None else self._scrub.plain(text)


def decoded(line: bytes) -> str:
    """The line as text. Bytes that are not UTF-8 become lone surrogates, which JSON can carry; they can be undone."""
    return line.decode("utf-8", "surrogateescape")


def _header(
    params: AgentExecuteParams, launch: Launch, provider: str | None, cli_version: str | None, redact: bool
) -> dict[str, Any]:
    return {
        **about_recording(FORMAT, provider),
        **about_launch(launch, cli_version, redact),
        "prompt": MASK if redact else params.prompt,
        "deadline": params.deadline,
        "timeout": launch.limits.silence,
    }


def about_recording(version: int, provider: str | None) -> dict[str, Any]:
    """The fields that every header begins with."""
    return {
        "cassette": version,
        "remoteclaw_sync": __version__,
        "provider": provider,
        "recorded_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def about_launch(launch: Launch, cli_version: str | None, redact: bool) -> dict[str, Any]:
    """How a CLI was started."""
    before = host_environment()  # Not os.environ, which fails for names that the locale cannot encode.
    changed = {name: value for name, value in launch.env.items() if before.get(name) != value}
    changed.pop(launch.marker, None)
    env = {**changed, **{name: None for name in before if name not in launch.env}}
    arguments = launch.argv[1:]
    return {
        "cli_version": cli_version,
        "argv": [os.path.basename(launch.argv[0]), *(map(_redact_argument, arguments) if redact else arguments)],
        "env": {name: value and MASK for name, value in env.items()} if redact else env,
    }


def _redact_argument(argument: str) -> str:
    """Keep only the names of flags: a value may be a prompt, a path or a key."""
    flag, equals, _ = argument.partition("=")
    if argument in ("-", "--"):
        return argument
    if not FLAG.fullmatch(flag):
        return MASK
    return flag + equals + (MASK if equals else "")


def to_hide(params: AgentExecuteParams, launch: Launch) -> tuple[list[str], list[Secret]]:
    """The texts and the secrets that a recording of this run must not contain."""
    texts = [params.prompt, params.system_prompt or "", *texts_in(launch.stdin)]
    return texts, [*secrets_of_run(params, lambda: launch.env, launch.argv, every_value=True)]


def texts_in(stdin: bytes) -> Iterator[str]:
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
