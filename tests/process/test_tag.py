"""The tag that a process and its descendants carry."""

from __future__ import annotations

import subprocess
import sys

import pytest

from remoteclaw_sync.process.tag import new_tag, put_tag, tag_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there are tags on Linux only")


def test_a_child_and_an_orphan_that_were_quicker_than_the_tag_get_it_too() -> None:
    script = "sleep 1000 & echo $!; (sleep 1000 & echo $!); exec sleep 1000"
    tag = new_tag()
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True, text=True) as leader:
        assert leader.stdout is not None
        pids = [leader.pid, int(leader.stdout.readline()), int(leader.stdout.readline())]
        try:
            put_tag(leader.pid, tag)
            assert [tag_of(pid) for pid in pids] == [tag] * 3
        finally:
            for pid in pids[1:]:
                subprocess.run(["kill", str(pid)], check=True)
            leader.kill()


def test_a_process_of_another_session_is_given_no_tag() -> None:
    with (
        subprocess.Popen(["sleep", "1000"], start_new_session=True) as leader,
        subprocess.Popen(["sleep", "1000"], start_new_session=True) as stranger,
    ):
        before = tag_of(stranger.pid)
        put_tag(leader.pid, new_tag())
        assert tag_of(stranger.pid) == before
        leader.kill()
        stranger.kill()
