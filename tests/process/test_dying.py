"""What can be seen of a child's death before the kernel reports that it has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial

import pytest

from remoteclaw_sync.process.sweep import is_dying
from tests.fakes import wait_until

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="only /proc tells")


@pytest.mark.parametrize("threads", [0, 3])
def test_a_child_that_was_killed_is_dying_before_anybody_has_waited_for_it(threads: int) -> None:
    wait = "threading.Thread(target=threading.Event().wait).start()"
    code = f"import threading\nfor _ in range({threads}): {wait}\nprint()\ninput()"
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) as child:
            assert child.stdout is not None
            child.stdout.readline()
            assert not is_dying(child.pid)
            os.kill(child.pid, signal.SIGKILL)
            # For an instant nothing shows it: the signal has been taken, but the exit has not begun.
            assert wait_until(partial(is_dying, child.pid))
        assert is_dying(child.pid)  # It is gone.


def test_of_a_process_that_has_not_been_started_nothing_is_known() -> None:
    assert not is_dying(None)
