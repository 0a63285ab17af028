"""Records a live session: both directions, turn by turn, from its first process to its last.

Format 2. After the header each entry has its time and one of these:

    start     a process: how it was started, and what is needed to read its lines
    in        a line that was sent to it
    out       a line that it wrote
    rest      what it wrote at its end without a newline
    facts     further things that are needed to read its lines
    turn      a prompt, as the caller gave it
    steer     further words, after the line that carried them; or beside the interrupt, if they need one
    decision  the caller's answer to a request for permission
    abort     the turn was told to end
    over      the turn has ended
    end       how the process ended

As in format 1, prompts and secrets are left out, in both directions. Of a prompt, only its length and one byte of a
checksum are kept: enough for a replay to notice most changes, and too little to guess the prompt.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

import attrs

from ..process.ending import EndReason
from ..process.launch import Exit, Launch
from ..redaction import MASK, Scrubber, Sieve
from ..redaction.scrubber import USER_TEXT_KEYS
from ..types import AgentExecuteParams, Allow, Deny, PermissionRequest
from .recorder import Recording, about_launch, about_recording, decoded, texts_in, to_hide
from .writer import FIFO_PATIENCE, CassetteWriter

FORMAT = 2
# In lines that we send, everything under these keys comes from the caller: words, images, paths of images.
OURS = USER_TEXT_KEYS | {"data", "developerInstructions", "instructions", "path", "system", "uri", "url"}

MOST_BEFORE_START = 100

Entry = dict[str, Any]


def check_of(text: str, salt: str) -> int:
    """One byte that depends on the whole text."""
    return hashlib.sha256((salt + text).encode(errors="surrogatepass")).digest()[0]


@attrs.define(eq=False)
class _Note:
    """An entry waiting to be written. `raw` is its line, which is checked for secrets, and `key` its name there."""

    at: float
    entry: Entry
    key: str = ""
    raw: str = ""


class SessionRecorder:
    """Writes one cassette of format 2. Once it has begun, it never raises and never stops a turn. Thread-safe.

    The file is created when the first process is about to be started: only then is it known what is secret.
    """

    def __init__(self, recording: Recording, *, is_session: bool, has_approver: bool, timeout: float | None) -> None:
        self._recording = recording
        self._about: Entry = {"session": is_session, "approver": has_approver, "timeout": timeout}
        self._salt = secrets.token_hex(8)
        self._writer: CassetteWriter | None = None
        self._scrub: Scrubber | None = None
        self._sieve: Sieve[_Note] | None = None
        # A thread that finds the lock free writes all waiting notes, including those that others add meanwhile. So
        # nobody waits, and a signal handler that interrupts the writing only adds a note.
        self._notes: deque[_Note] = deque()
        self._lock = threading.Lock()
        self._unfinished: list[bytes] = []

    # --- processes --------------------------------------------------------------------------------------------

    def start(
        self, params: AgentExecuteParams, launch: Launch, provider: str | None, cli_version: str | None
    ) -> ProcessRecorder:
        """Record that a process is about to be started. Raises RunSetupError if the file cannot be written."""
        with self._lock:
            self._learn(params, launch)
            if self._writer is None:
                self._writer = self._recording.new_writer(provider)
                header = {**about_recording(FORMAT, provider), **self._about, "salt": self._salt}
                self._writer.write([header])
        self._note({"start": about_launch(launch, cli_version, self._recording.redact)})
        self.sent(launch.stdin)
        return ProcessRecorder(self)

    def _learn(self, params: AgentExecuteParams, launch: Launch) -> None:
        if not self._recording.redact:
            return
        texts, hidden = to_hide(params, launch)
        if self._scrub is None:
            self._scrub = Scrubber(texts, hidden)
            self._sieve = Sieve(self._scrub)
        else:
            self._scrub.learn(texts, hidden)

    def sent(self, data: bytes) -> None:
        """Record lines that are sent to the process."""
        for line in data.split(b"\n"):
            if line.strip():
                self._note({}, "in", decoded(line))

    def said(self, chunk: bytes) -> None:
        """Record bytes that came from the process and reach the consumer now."""
        head, newline, rest = chunk.rpartition(b"\n")
        if newline:
            for line in b"".join((*self._unfinished, head)).split(b"\n"):
                self._note({}, "out", decoded(line))
            self._unfinished = []
        if rest:
            self._unfinished.append(rest)

    def learned(self, facts: Mapping[str, Any]) -> None:
        """Record something that is needed to read the process's lines but is not in them."""
        self._note({}, "facts", json.dumps(facts))

    def ended(self, exit: Exit) -> None:
        """Record that the process is gone."""
        rest, self._unfinished = b"".join(self._unfinished), []
        if rest:
            self._note({}, "rest", decoded(rest))
        end: Entry = {"reason": exit.reason.name, "exit_code": exit.code}
        if exit.failure is not None:
            end["failure"] = {"code": exit.failure.code}
        self._note({"end": end, "failure": exit.failure and exit.failure.message}, "stderr", exit.diagnostics)

    # --- turns ------------------------------------------------------------------------------------------------

    def turn(self, params: AgentExecuteParams) -> None:
        """Record that a turn begins."""
        self._note({}, "turn", params.prompt)

    def steered(self, text: str) -> None:
        """Record that the turn was given further words."""
        self._note({}, "steer", text)

    def decided(self, request: PermissionRequest, decision: Allow | Deny, *, has_reason: bool) -> None:
        """Record the caller's answer. `has_reason`: the message is the caller's own and not the substitute for a
        missing one. Some CLIs are told only the caller's own, so a replay has to know the substitute."""
        if isinstance(decision, Allow):
            said: Entry = {"id": request.id, "allow": True, "remember": decision.remember}
            given = {"input": decision.input, "answers": decision.answers}
            said |= {name: dict(value) for name, value in given.items() if value is not None}
        else:
            message = MASK if has_reason and self._recording.redact else decision.message
            said = {"id": request.id, "allow": False, "stop": decision.stop, "message": message}
        self._note({}, "decision", json.dumps(said))

    def aborted(self, reason: EndReason) -> None:
        """Record that the turn was told to end."""
        self._note({"abort": reason.name})

    def over(self) -> None:
        """Record that the turn has ended."""
        self._note({"over": True})

    def close(self) -> None:
        """The session is closed. A second call does nothing."""
        writer = self._writer
        # The wait is limited: a signal handler may have interrupted the writing. Then the writer closes itself.
        if writer is None or not self._lock.acquire(timeout=FIFO_PATIENCE):
            return
        try:
            self._write_out(writer)
            writer.close()
        finally:
            self._lock.release()

    # --- writing ----------------------------------------------------------------------------------------------

    def _note(self, entry: Entry, key: str = "", raw: str = "") -> None:
        self._notes.append(_Note(0.0 if self._writer is None else self._writer.now(), entry, key, raw))
        while self._writer is None and len(self._notes) > MOST_BEFORE_START:
            self._notes.popleft()  # It belongs to a turn that never had a process.
        while self._notes and self._writer is not None and self._lock.acquire(blocking=False):
            try:
                self._write_out(self._writer)
            finally:
                self._lock.release()

    def _write_out(self, writer: CassetteWriter) -> None:
        ready: list[Entry] = []
        while self._notes:
            note = self._notes.popleft()
            ready += [_complete(done, text) for done, text in self._look_through(note)]
        writer.write(ready)

    def _look_through(self, note: _Note) -> list[tuple[_Note, str]]:
        """The notes that may be written now that this one has arrived, each with its text."""
        scrub, sieve = self._scrub, self._sieve
        if note.key in ("turn", "steer"):
            if scrub is not None:
                scrub.learn([note.raw])
            note.entry[note.key] = self._about_words(note.raw)
            note.key = note.raw = ""
        if scrub is None or sieve is None:
            return [(note, note.raw)]
        if note.key == "out":
            return sieve.push(note, note.raw)
        if note.key == "in":
            line = _parsed(note.raw)
            if line.get("type") == "user" or "method" in line:  # Not an answer, which may repeat what the CLI said.
                scrub.learn(texts_in(note.raw.encode(errors="surrogateescape")))
            return sieve.follow(note, scrub(json.dumps(_hidden(line, by_caller=False))))
        if note.key in ("stderr", "rest"):
            failure = note.entry.get("failure")
            if failure:
                note.entry["failure"] = scrub.plain(failure)
            return [*sieve.flush(), (note, scrub.plain(note.raw))]
        if note.key == "decision":
            return sieve.follow(note, scrub(_without_answers(note.raw)))
        if "over" in note.entry:
            return [*sieve.flush(), (note, "")]
        return sieve.follow(note, scrub(note.raw) if note.key else "")

    def _about_words(self, words: str) -> Entry:
        kept = MASK if self._recording.redact else words
        return {"text": kept, "length": len(words), "check": check_of(words, self._salt)}


class ProcessRecorder:
    """The recorder that `RunSetup` holds for one process. The lines come from the transport, which sees both
    directions."""

    def __init__(self, session: SessionRecorder) -> None:
        self._session = session

    def watching(self, launch: Launch) -> Launch:
        """Do nothing: the transport records the lines."""
        return launch

    def learned(self, facts: Mapping[str, Any]) -> None:
        """Record something the parser needs that the CLI did not print."""
        self._session.learned(facts)

    def close(self) -> None:
        """Do nothing: the session continues."""

    def heard(self) -> None:
        """Do nothing: the session continues."""


def _complete(note: _Note, text: str) -> Entry:
    entry: Entry = {"t": note.at, **note.entry}
    if note.key in ("decision", "facts"):
        entry[note.key] = json.loads(text)
    elif note.key == "stderr":
        failure = entry.pop("failure")
        entry["end"]["stderr"] = text
        if failure is not None:
            entry["end"]["failure"]["message"] = failure
    elif note.key:
        entry[note.key] = text
    return entry


def _parsed(line: str) -> Entry:
    """The JSON object in a line that we send."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    return message if isinstance(message, dict) else {"message": line}


def _hidden(value: Any, *, by_caller: bool) -> Any:
    """The value without what the caller says in it."""
    if isinstance(value, dict):
        is_request = "method" in value  # Then `path` belongs to the protocol.
        return {
            name: _all_hidden(item)
            if name == "answers"
            else _hidden(item, by_caller=name in OURS and not (is_request and name == "path"))
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_hidden(item, by_caller=by_caller) for item in value]
    return MASK if by_caller and isinstance(value, str) and value else value


def _without_answers(decision: str) -> str:
    said = json.loads(decision)
    if said.get("answers"):
        said["answers"] = _all_hidden(said["answers"])
    return json.dumps(said)


def _all_hidden(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _all_hidden(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_all_hidden(item) for item in value]
    return MASK if isinstance(value, str) else value
