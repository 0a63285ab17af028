"""Shows one run on the command line and turns its end into an exit code."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from ..engine.agent_run import AgentRun
from ..types import AgentRunResult
from .views import View

OK, FAILED, TIMEOUT = 0, 1, 124
ENDING_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")  # By name: Windows lacks some.


def present(run: AgentRun, view: View) -> int:
    """Show a run to its end; returns the exit code. Ctrl-C stops the agent, and the summary is still shown."""
    with EndedBySignal(run) as ended:
        try:
            with run:
                for event in run:
                    view.show(event)
        except BrokenPipeError:
            view.stop()
            raise
        except BaseException:
            view.close()
            raise
        view.close()
        return exit_code(run.result, ended.by)


def exit_code(result: AgentRunResult | None, signal_number: int | None) -> int:
    """The exit code for a run's result."""
    if signal_number is not None and (result is None or result.aborted):
        return 128 + signal_number
    if result is not None and result.error_subtype == "timeout":
        return TIMEOUT
    return OK if result is not None and result.ok else FAILED


class EndedBySignal:
    """Inside the block, a signal that would end this process stops the run cleanly; a second one does not wait."""

    def __init__(self, run: AgentRun) -> None:
        self._run = run
        self._before: dict[int, Any] = {}
        self.by: int | None = None

    def __enter__(self) -> EndedBySignal:
        if threading.current_thread() is not threading.main_thread():
            return self
        for name in ENDING_SIGNALS:
            number = getattr(signal, name, None)
            # The process that started us ignores it (nohup, a script's background job), so we do too.
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.by is not None:
            raise KeyboardInterrupt
        self.by = number
        self._run.abort()
