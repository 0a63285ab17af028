"""A recorded live session, turn by turn."""

from __future__ import annotations

from collections import deque

import attrs

from ..engine.live_session import LiveSession
from ..engine.outcome import TurnEnd
from ..engine.setup import RunSetup
from ..engine.transport import Transport
from ..errors import REPLAY_MISMATCH
from ..process.ending import EndReason
from ..process.launch import Exit, SpawnFailure
from ..redaction import MASK
from ..types import AgentExecuteParams, Allow, Deny, PermissionRequest
from .cassette import LiveCassette, Process, Words
from .played import Played
from .player import LivePlayer
from .session_recorder import check_of

NOT_RECORDED = "this was not asked for in the recording"


def recorded_approver(cassette: LiveCassette) -> RecordedApprover | None:
    """Decides as the recorded caller did; None if the recorded caller had no `approve`."""
    return RecordedApprover(cassette) if cassette.header.get("approver") else None


class RecordedApprover:
    """An `approve` function that returns the recorded decisions."""

    def __init__(self, cassette: LiveCassette) -> None:
        self._decisions = cassette.decisions
        self.turn = 0

    def __call__(self, request: PermissionRequest) -> Allow | Deny:
        said = self._decisions.get((self.turn, request.id))
        if said is None:
            return Deny(NOT_RECORDED)
        if said["allow"]:
            return Allow(said.get("input"), bool(said.get("remember")), said.get("answers"))
        return Deny(str(said.get("message") or ""), bool(said.get("stop")))


class PlayedSession(LiveSession):
    """A live session whose processes are recorded ones.

    With `checks`, the prompts and everything that is sent must match the recording. Without, it is only shown, with the
    recorded prompts, and what the recorded caller did happens automatically.
    """

    def __init__(
        self,
        agent: LivePlayer,
        fields: AgentExecuteParams,
        cassette: LiveCassette,
        *,
        speed: float | None,
        one_turn: bool,
        checks: bool,
    ) -> None:
        super().__init__(agent, fields, idle_timeout=None, one_turn=one_turn)
        self._cassette = cassette
        self._speed = speed
        self._checks = checks
        self._processes = deque(process for process in cassette.processes if process.serves)
        self._player = agent
        self._played: Played | None = None
        self._turn_number = 0
        self._mismatch: str | None = None

    def prepare(self, params: AgentExecuteParams) -> None:
        turns, number = self._cassette.turns, self._turn_number
        self._turn_number += 1
        if self._mismatch is None and self._played is not None:
            self._mismatch = self._played.mismatch
        if self._mismatch is None and number >= len(turns):
            self._mismatch = f"the recording has no more than {len(turns)} turns"
        elif self._mismatch is None and self._checks and not self._is_prompt(params.prompt, turns[number]):
            self._mismatch = f"turn {number + 1} has another prompt than in the recording"
        if isinstance(params.approve, RecordedApprover):
            params.approve.turn = self._turn_number
        super().prepare(params)

    def _is_prompt(self, prompt: str, recorded: Words) -> bool:
        if recorded.text != MASK:
            return recorded.text == prompt
        salt = str(self._cassette.header.get("salt", ""))
        return (len(prompt), check_of(prompt, salt)) == (recorded.length, recorded.check)

    def warm(self) -> None:
        """Do nothing: a recorded process need not be started."""
        with self._lock:
            self._check_free()

    def way_to(self, setup: RunSetup) -> Transport:
        self._player.process = process = self._processes.popleft() if self._processes else Process()
        self._played = Played(
            setup,
            process,
            self._speed,
            checks=self._checks,
            on_abort=self._abort_as_recorded,
            on_steer=None if self._checks else self._steer_as_recorded,
        )
        return self._played

    def open(self, due: float | None) -> Transport:
        transport = super().open(due)
        if self._mismatch is not None:
            self._failure = self._as_failure(self._mismatch)
        elif self._played is not None:
            self._played.begin_turn(self._turn_number)
        return transport

    def _abort_as_recorded(self) -> None:
        """Abort where the recorded turn was aborted or its consumer left: the present consumer wants a `done`."""
        super().request_end(EndReason.ABORTED)

    def _steer_as_recorded(self, text: str) -> None:
        self.steer(text, interrupt=True)  # `interrupt` makes no difference where the CLI takes further words.

    def request_end(self, reason: EndReason) -> None:
        with self._lock:
            played, is_first = self._played, self._latch.reason is None
            if is_first and self._begun and played is not None and not played.was_aborted():
                self._latch.claim(reason)
                played.request_end(reason)  # The recorded turn continued, so the recording has no interrupt.
                self._mismatch = f"turn {self._turn_number} was ended early"
            super().request_end(reason)

    def close(self) -> Exit:
        exit, played = super().close(), self._played
        if played is not None and played.mismatch is not None and exit.failure is None:
            self._mismatch = self._mismatch or played.mismatch
            return attrs.evolve(exit, failure=self._as_failure(played.mismatch))
        return exit

    def _as_failure(self, words: str) -> SpawnFailure:
        return SpawnFailure(REPLAY_MISMATCH, f"this is not what was recorded: {words}")

    @property
    def was_not_heard(self) -> bool:
        has_mismatch = self._played is not None and self._played.mismatch is not None
        return bool(self._processes) and not has_mismatch and super().was_not_heard

    def finish(self) -> TurnEnd:
        number, durations = self._turn_number - 1, self._cassette.durations
        return attrs.evolve(super().finish(), seconds=durations[number] if number < len(durations) else None)
