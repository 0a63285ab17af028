"""What a run makes outside its process: made and taken away by the thread that looks after its child.

Not by the consumer's, in which a KeyboardInterrupt, the exception of a signal handler or one that a time limit raises
into it may come between any two steps: between a folder and the note that it is to be removed, or in the middle of
removing it.
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
from ..types import AgentErrorEvent, AgentExecuteParams
from .agent import Agent
from .dialect import Dialect
from .python_tools import with_gateway
from .resources import GivenUp, RunResources

logger = logging.getLogger(__name__)

# Kept, for the `finally` of a context manager runs when it is collected.
_left_to_the_original: list[RunResources] = []


class RunSetup:
    """The setup (see process.launch.Setup) of one start of an agent.

    The agent's hooks run in another thread than the consumer's, but in the context (contextvars) of that one.
    """

    def __init__(
        self,
        agent: Agent,
        params: AgentExecuteParams,
        dialect: Dialect,
        remedied: AgentErrorEvent | None,
        due: float | None,
    ) -> None:
        self._agent = agent
        self._params = params
        self._dialect = dialect
        self._remedied = remedied
        self._due = due
        self._recorder: Recorder | None = None
        self._context = contextvars.copy_context()
        self._resources: RunResources | None = None

    @property
    def abort_signal(self) -> threading.Event | None:
        return self._params.abort_signal

    @property
    def failure(self) -> str | None:
        """What could not be cleaned up, in words."""
        return None if self._resources is None else self._resources.failure

    def prepare(self, ending: EndLatch) -> Launch | None:
        self._resources = RunResources(ending, self._due)
        try:
            return self._context.run(self._prepare, self._resources)
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
        files.temporary_folder()  # Each run tidies up there, also one that puts nothing into it.
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

    def _recorded(self, recorder: Recorder, launch: Launch, facts: dict[str, Any], resources: RunResources) -> Launch:
        resources.callback(recorder.close)
        self._recorder = recorder
        self._dialect.learn = recorder.learned
        if self._remedied is not None:
            facts["remedied"] = self._remedied.to_dict()
        if facts:
            recorder.learned(facts)
        return attrs.evolve(launch, observer=recorder)

    def heard_all(self) -> None:
        """The consumer is done with what this start of the agent said."""
        if self._recorder is not None:
            self._recorder.heard()

    def clean_up(self) -> None:
        if self._resources is not None:
            self._context.run(self._resources.close)

    def forget_after_fork(self) -> None:
        if self._resources is not None:
            for loan in self._resources.loans:
                loan.forget_after_fork()
            _left_to_the_original.append(self._resources)
