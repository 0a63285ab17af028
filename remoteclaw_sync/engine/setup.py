"""What a run makes outside its process: made and removed by the thread that looks after its child.

The consumer's thread does not do it, because an exception may come there between any two steps (KeyboardInterrupt, from
a signal handler, or raised into the thread by a time limit): between creating a folder and noting that it must be
removed, or in the middle of removing it.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from typing import Any

import attrs

from .. import errors, files
from ..process.ending import EndLatch
from ..process.launch import Launch, SpawnError
from ..recording.recorder import Recorder
from ..recording.session_recorder import ProcessRecorder
from ..types import AgentErrorEvent, AgentExecuteParams
from .agent import Agent
from .dialect import Dialect
from .one_writer import Hold, hold
from .python_tools import with_gateway
from .resources import GivenUp, RunResources

logger = logging.getLogger(__name__)

# Kept alive in a forked copy, because the `finally` of a context manager runs when it is garbage-collected.
_left_to_the_original: list[RunResources] = []


@attrs.define(eq=False)
class RunSetup:
    """The setup (see process.launch.Setup) of one start of an agent.

    The agent's hooks do not run in the consumer's thread, but in its context (contextvars).
    """

    _agent: Agent
    _params: AgentExecuteParams
    _dialect: Dialect
    _remedied: AgentErrorEvent | None
    _due: float | None
    abort_signal: threading.Event | None = None
    resources: RunResources | None = attrs.field(init=False, default=None)
    recorder: Recorder | ProcessRecorder | None = attrs.field(init=False, default=None)
    _context: contextvars.Context = attrs.field(init=False, factory=contextvars.copy_context)
    _lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    _holds: dict[str, Hold | None] = attrs.field(init=False, factory=dict)  # By session.
    _is_over: bool = attrs.field(init=False, default=False)

    def prepare(self, ending: EndLatch) -> Launch | None:
        self.resources = RunResources(ending, self._due)
        try:
            return self._context.run(self._prepare, self.resources)
        except GivenUp as given_up:
            ending.claim(given_up.reason)
            return None
        except errors.RunSetupError as error:
            raise SpawnError(error.code, str(error)) from None
        except BaseException as error:
            # Not the exception itself: a hook may put a value of the environment into its message.
            kind = type(error).__name__
            logger.error("preparing a run of %s failed: %s", type(self._agent).__name__, kind)
            raise SpawnError(errors.SPAWN_FAILED, f"preparing the run failed: {kind}: {error}") from None

    def _prepare(self, resources: RunResources) -> Launch:
        files.temporary_folder()  # Each run tidies up there, even one that puts nothing into it.
        if self._params.session_id is not None:
            self.hold(self._params.session_id)
        params = with_gateway(self._params, resources)
        launch = self._agent.prepare(params, resources, self._dialect)
        facts = dict(self._agent.facts())
        self._dialect.recall(facts)
        if self._agent.record is None:
            return launch
        return self._recorded(
            self._agent.record.start(params, launch, self._agent.provider, self._agent.cli_version()),
            launch,
            facts,
            resources,
        )

    def _recorded(
        self, recorder: Recorder | ProcessRecorder, launch: Launch, facts: dict[str, Any], resources: RunResources
    ) -> Launch:
        resources.callback(recorder.close)
        self.recorder = recorder
        self._dialect.learn = recorder.learned
        if self._remedied is not None:
            facts["remedied"] = self._remedied.to_dict()
        if facts:
            recorder.learned(facts)
        return recorder.watching(launch)

    def hold(self, session_id: str) -> None:
        """Keep others from writing to this session until the CLI is gone. Raises RunSetupError if somebody has it."""
        store = self._agent.session_store(self._params)
        with self._lock:
            if store is not None and session_id not in self._holds and not self._is_over:
                self._holds[session_id] = hold(store, session_id)

    def interrupted(self) -> None:
        """Tidy up after a turn that was interrupted while the CLI stays."""
        for tidy_up in [] if self.resources is None else self.resources.after_interrupt:
            tidy_up()

    def heard_all(self) -> None:
        """The consumer has read all that this start of the agent said."""
        if self.recorder is not None:
            self.recorder.heard()

    def clean_up(self) -> None:
        if self.resources is not None:
            self._context.run(self.resources.close)
        with self._lock:
            self._is_over = True
            holds = [held for held in self._holds.values() if held is not None]
        for held in holds:
            held.release()

    def forget_after_fork(self) -> None:
        if self.resources is not None:
            for loan in self.resources.loans:
                loan.forget_after_fork()
            _left_to_the_original.append(self.resources)
