"""What a run makes outside its process: made and taken away by the thread that looks after its child.

Not by the consumer's, in which a KeyboardInterrupt, the exception of a signal handler or one that a time limit raises
into it may come between any two steps: between a folder and the note that it is to be removed, or in the middle of
removing it.
"""

from __future__ import annotations

import contextvars
import logging
import threading

from .. import errors, files
from ..process.ending import EndLatch
from ..process.launch import Launch, SpawnError
from ..types import AgentExecuteParams
from .adapter import Adapter
from .python_tools import with_gateway
from .resources import GivenUp, RunResources

logger = logging.getLogger(__name__)

# Kept, for the `finally` of a context manager runs when it is collected.
_left_to_the_original: list[RunResources] = []


class RunSetup:
    """The setup (see process.launch.Setup) of one start of a runtime's CLI.

    The runtime's hooks run in another thread than the consumer's, but in the context (contextvars) of that one.
    """

    def __init__(self, runtime: Adapter, params: AgentExecuteParams, due: float | None) -> None:
        self._runtime = runtime
        self._params = params
        self._due = due
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
            logger.error("preparing a run of %s failed: %s", type(self._runtime).__name__, kind)
            raise SpawnError(errors.SPAWN_FAILED, f"preparing the run failed: {kind}: {error}") from None

    def _prepare(self, resources: RunResources) -> Launch:
        files.temporary_folder()  # Each run tidies up there, also one that puts nothing into it.
        return self._runtime.prepare(with_gateway(self._params, resources), resources)

    def clean_up(self) -> None:
        if self._resources is not None:
            self._context.run(self._resources.close)

    def forget_after_fork(self) -> None:
        if self._resources is not None:
            for loan in self._resources.loans:
                loan.forget_after_fork()
            _left_to_the_original.append(self._resources)
