"""The command line: `remoteclaw-sync` and `python -m remoteclaw_sync`.

Exit codes: 0 success, 1 the run failed, 2 wrong usage, 124 timeout, 130 Ctrl-C; 128 + n after signal n (141: a closed
pipe).
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Usage errors and --help raise SystemExit, as argparse does."""
    # Imported here, because Ctrl-C may be pressed during the import.
    try:
        from .dispatch import dispatch

        code = dispatch(sys.argv[1:] if argv is None else argv)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _point_to_nowhere(1, 2)
        return 141
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        _point_to_nowhere(1, 2)  # The terminal is gone, which SIGHUP also reports.
        return 129


def _point_to_nowhere(*descriptors: int) -> None:
    """Redirect the descriptors to /dev/null, so that the flush at interpreter exit cannot fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
