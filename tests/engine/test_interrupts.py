"""Interrupts at random moments of a run, most of them while its files and tools are being prepared."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

RUNS = int(os.environ.get("REMOTECLAW_SYNC_INTERRUPTED_RUNS", "20"))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["sigint", "handler", "async"])
def test_an_interrupt_at_any_moment_leaves_no_thread_descriptor_file_or_process(way: str) -> None:
    """By Ctrl-C, by another exception from a signal handler, and by an exception raised into the consumer's thread."""
    # -B: an import that is interrupted while it writes bytecode leaves its descriptor open. Only Python could fix that.
    program = [sys.executable, "-B", "-W", "ignore", "-m", "tests.interrupted_runs", f"--way={way}", f"--runs={RUNS}"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    report = json.loads(subprocess.run(program, env=env, stdout=subprocess.PIPE).stdout)
    assert report["left"] == {"threads": [], "descriptors": [], "files": [], "processes": []}
    assert report["interrupted"] > RUNS // 2
