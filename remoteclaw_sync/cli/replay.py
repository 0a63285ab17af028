"""`replay`: shows a recording the way the run was shown."""

from __future__ import annotations

import argparse

from ..recording.replay import ReplayRuntime
from .dispatch import UsageError
from .show import present
from .views import JsonView, TextView

INTERRUPTED = 128  # This and above are the exit codes of runs that a signal has ended.


def command(options: argparse.Namespace) -> int:
    """Replay a recording; returns the exit code that the run, or the last turn, would have had."""
    try:
        replay = ReplayRuntime(options.file, speed=options.speed)
    except OSError as error:
        raise UsageError(f"cannot read {options.file}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    code = 0
    for run in replay.turns():
        code = present(run, JsonView() if options.json else TextView(quiet=options.quiet))
        if code >= INTERRUPTED:
            break
    return code
