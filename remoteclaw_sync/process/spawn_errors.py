"""Turns what `Popen` raised into a sentence that says what to do."""

from __future__ import annotations

import errno
import os
import shutil

from .. import errors
from .launch import Launch, SpawnError
from .program import IN_FIRST_LINE, defect_of

NO_INTERPRETER = "is the interpreter in its #! line, or its dynamic loader, installed?"


def explain_spawn_failure(error: Exception, launch: Launch) -> SpawnError:
    """Popen raises the same "No such file" for a missing program, folder or interpreter. Find out which it is."""
    if not os.path.isdir(launch.cwd):
        kind = "is not a folder" if os.path.exists(launch.cwd) else "does not exist"
        return SpawnError(errors.WORKING_DIRECTORY_NOT_FOUND, f"working directory {launch.cwd!r} {kind}")
    command = launch.argv[0]
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC, errno.EISDIR):
        return _explain_command(error, command, launch)
    if number == errno.E2BIG:
        return SpawnError(
            errors.SPAWN_FAILED,
            f"cannot start {command!r}: the arguments and the environment are longer than this system allows; "
            "pass long text on stdin (supports_stdin_prompt)",
        )
    # Only the type of a ValueError is shown: its text may quote an argument.
    reason = os.strerror(number) if number is not None else type(error).__name__ + " in its arguments"
    return SpawnError(errors.SPAWN_FAILED, f"cannot start {command!r}: {reason}")


def _explain_command(error: Exception, command: str, launch: Launch) -> SpawnError:
    path = launch.env.get("PATH", os.defpath)
    found: str | None
    if os.path.dirname(command):
        found = os.path.join(launch.cwd, command)
        missing = f"command {command!r} does not exist"
    else:
        found = _first_on_path(command, path)
        missing = f"command {command!r} was not found on PATH"
    if not found or not os.path.lexists(found):
        return SpawnError(errors.CLI_NOT_FOUND, missing)
    if os.path.isdir(found):
        return SpawnError(errors.CLI_NOT_EXECUTABLE, f"command {command!r} is a folder ({found}), not a program")
    if not os.path.exists(found):
        return SpawnError(errors.CLI_NOT_FOUND, f"command {command!r} ({found}) is a link to a file that is gone")
    if not os.access(found, os.X_OK):
        return SpawnError(
            errors.CLI_NOT_EXECUTABLE, f"command {command!r} ({found}) is not executable; try: chmod +x {found}"
        )
    defect = defect_of(found, path)
    if isinstance(error, OSError) and error.errno == errno.ENOEXEC:
        why = defect.message if defect else "is not a program this system can run (no #! line, or for another machine)"
        return SpawnError(errors.CLI_NOT_EXECUTABLE, f"command {command!r} ({found}) {why}")
    reason = error.strerror if isinstance(error, OSError) else error
    why = f"it {defect.message}" if defect else NO_INTERPRETER
    return SpawnError(errors.SPAWN_FAILED, f"cannot start {command!r} ({found}): {reason}; {why}")


def lacks_interpreter(message: str) -> bool:
    """Whether a start failed because the program's interpreter is missing."""
    return NO_INTERPRETER in message or IN_FIRST_LINE in message


def _first_on_path(command: str, path: str) -> str | None:
    """Where the command is, executable or not: a file that only lacks its x bit should be named in the message."""
    return shutil.which(command, path=path) or shutil.which(command, mode=os.F_OK, path=path)
