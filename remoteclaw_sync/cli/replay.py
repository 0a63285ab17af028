"""`replay`: shows a recording as the run was shown."""

from __future__ import annotations

import argparse

from ..recording.replay import ReplayRuntime
from .dispatch import UsageError
from .show import present
from .views import JsonView, TextView


def command(options: argparse.Namespace) -> int:
    """Replay a recording; returns the exit code that the run would have had."""
    try:
        run = ReplayRuntime(options.file, speed=options.speed).start()
    except OSError as error:
        raise UsageError(f"cannot read {options.file}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    return present(run, JsonView() if options.json else TextView(quiet=options.quiet))
