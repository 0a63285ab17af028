"""`ReplayRuntime`: replays a recorded run through the same threads, framer and parser as a real one."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import Unpack

import attrs

from .._values import check_known, check_seconds
from ..engine.agent_run import AgentRun
from ..engine.turn import Turn
from ..errors import RemoteClawError, UnsupportedOperationError
from ..factory import create_cli_runtime
from ..runtime import NO_PROMPT, CLIRuntimeBase
from ..session import AgentSession
from ..types import AgentEvent, AgentExecuteParams, AgentRunResult, RunFields, SessionFields
from ..verbs import Verbs
from .cassette import CassetteError, LiveCassette, read_cassette
from .played_run import PlayedRun
from .played_session import PlayedSession, recorded_approver
from .player import LivePlayer, RunPlayer

DEFAULT_PROMPT = "(replay)"


class ReplayRuntime(Verbs):
    """Replays a cassette (see the runtimes' `record=`). Needs no CLI, no account and no network.

    It gives the events and the result of the recorded run, whatever the prompt; abort, deadline and leaving early work
    as in a real run. The recording of a live run or session also contains what was sent to the CLI, so there the
    prompts must be the recorded ones (a run without a prompt is not checked). Thread-safe.

    Args:
        path: the cassette. Raises OSError or CassetteError (a ValueError) if it cannot be read.
        speed: None replays without pauses, 1.0 with the recorded pauses, 2.0 twice as fast.
        runtime: parses the lines, for your own CLI; by default the recorded provider's runtime.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, speed: float | None = None, runtime: CLIRuntimeBase | None = None
    ) -> None:
        check_seconds("speed", speed)
        self.cassette = read_cassette(path)
        if runtime is None:
            if self.cassette.provider is None:
                raise CassetteError(f"{os.fspath(path)!r} is of a CLI of your own: pass its `runtime`")
            try:
                runtime = create_cli_runtime(self.cassette.provider)
            except RemoteClawError as error:
                raise CassetteError(f"{os.fspath(path)!r}: {error}") from error
        self._runtime = runtime
        self._speed = speed

    @property
    def provider(self) -> str | None:
        """The recorded provider."""
        return self._runtime.provider

    def execute(
        self, params: AgentExecuteParams | str = DEFAULT_PROMPT, **fields: Unpack[RunFields]
    ) -> Generator[AgentEvent, None, None]:
        """Like `CLIRuntimeBase.execute`."""
        return super().execute(params, **fields)

    def start(self, params: AgentExecuteParams | str = DEFAULT_PROMPT, **fields: Unpack[RunFields]) -> AgentRun:
        """Like `CLIRuntimeBase.start`."""
        return super().start(params, **fields)

    def run(
        self,
        params: AgentExecuteParams | str = DEFAULT_PROMPT,
        *,
        check: bool = True,
        repairs: int = 0,
        **fields: Unpack[RunFields],
    ) -> AgentRunResult:
        """Like `CLIRuntimeBase.run`. A recorded answer cannot be repaired."""
        return super().run(params, check=check, repairs=repairs, **fields)

    def new_turn(self, params: AgentExecuteParams | str, fields: RunFields) -> Turn:
        params = self._runtime.checked(params, fields)
        cassette = self.cassette
        if not isinstance(cassette, LiveCassette):
            return Turn(PlayedRun(RunPlayer(self._runtime.private_copy(), cassette, self._speed), cassette), params)
        if cassette.is_session:
            raise UnsupportedOperationError("this is the recording of a session: use open_session() or turns()")
        return self._play(cassette, params, checks=params.prompt != DEFAULT_PROMPT).new_turn(params)

    def open_session(self, **fields: Unpack[SessionFields]) -> AgentSession:
        """Replay the recorded session: its turns must be started with the recorded prompts, in order.

        A turn whose prompt or anything else that is sent to the CLI differs ends with `REPLAY_MISMATCH`. Without
        `approve` the recorded decisions are used. Raises UnsupportedOperationError for the recording of a run.
        """
        check_known("a session has no field", fields, SessionFields.__annotations__)
        cassette = self.cassette
        if not isinstance(cassette, LiveCassette) or not cassette.is_session:
            raise UnsupportedOperationError("this is the recording of a run, and not of a session")
        fields.pop("idle_timeout", None)
        run_fields: RunFields = {**fields}  # type: ignore[typeddict-item]
        params = self._runtime.checked(NO_PROMPT, run_fields)
        return AgentSession(self._play(cassette, params, checks=True))

    def turns(self) -> Iterator[AgentRun]:
        """Everything that was recorded, for display: the run, or the turns of the session one after the other.

        What the recorded caller did (approve, steer, abort) happens automatically.
        """
        cassette = self.cassette
        if not isinstance(cassette, LiveCassette):
            yield self.start()
            return
        session = self._play(cassette, self._runtime.checked(DEFAULT_PROMPT, {}), checks=False)
        try:
            for words in cassette.turns:
                yield AgentSession(session).start(words.text)
        finally:
            session.shut()

    def _play(self, cassette: LiveCassette, params: AgentExecuteParams, *, checks: bool) -> PlayedSession:
        if params.approve is None:
            params = attrs.evolve(params, approve=recorded_approver(cassette))
        player = LivePlayer(self._runtime.live_copy(), cassette)
        one_turn = not cassette.is_session
        return PlayedSession(player, params, cassette, speed=self._speed, one_turn=one_turn, checks=checks)
