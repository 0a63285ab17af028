"""What is sent to a child while it runs: on a stage, and to a real process with both backends."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from remoteclaw_sync.process.backend import NewBackend
from remoteclaw_sync.process.child import ChildProcess
from remoteclaw_sync.process.ending import EndReason
from remoteclaw_sync.process.fallback import PortableBackend
from remoteclaw_sync.process.launch import Exit, Limits, Phase, UnreadInputError
from remoteclaw_sync.process.posix import PosixBackend
from tests.process.staged import PATIENCE, Stage, make_launch

ECHO = "import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(line.upper()); sys.stdout.buffer.flush()"
DIGEST = "import hashlib, sys\nfor line in sys.stdin.buffer: print(hashlib.sha256(line).hexdigest(), flush=True)"
DEAF = "import time\nprint('here', flush=True)\ntime.sleep(1000)"
CLOSES_STDIN = "import os, time\nos.close(0)\nprint('closed', flush=True)\ntime.sleep(1000)"

BACKENDS = pytest.mark.parametrize("backend", [PosixBackend, PortableBackend])


def sent(stage: Stage) -> bytes:
    stage.backend.settle()
    return b"".join(stage.backend.input)


def test_what_is_sent_arrives_in_its_order_after_what_was_there_first() -> None:
    with Stage(stdin=b"first ") as stage:
        for number in range(100):
            stage.child.send(b"%d " % number)
        assert sent(stage) == b"first " + b"".join(b"%d " % number for number in range(100))
        assert not stage.backend.input_ended


def test_what_is_sent_before_the_start_waits_for_it() -> None:
    stage = Stage(start=False, stdin=b"first ")
    stage.child.send(b"second")
    with stage:
        stage.start()
        assert sent(stage) == b"first second"


def test_many_threads_may_send_and_each_keeps_its_order() -> None:
    together = threading.Barrier(8)
    with Stage() as stage:

        def send(name: int) -> None:
            together.wait(PATIENCE)
            for number in range(200):
                stage.child.send(b"%d:%d " % (name, number))

        threads = [threading.Thread(target=send, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        words = sent(stage).split()
    for name in range(8):
        assert [word for word in words if word.startswith(b"%d:" % name)] == [b"%d:%d" % (name, n) for n in range(200)]
    assert len(words) == 1600


def test_the_last_closes_stdin_and_nothing_comes_after_it() -> None:
    with Stage() as stage:
        stage.child.send(b"a")
        stage.child.send(b"b", last=True)
        stage.child.send(b"c")
        assert sent(stage) == b"ab"
        assert stage.backend.input_ended


def test_a_child_whose_stdin_is_written_once_takes_nothing_more() -> None:
    with Stage(stdin=b"all", stdin_stays_open=False) as stage:
        stage.child.send(b"more")
        assert sent(stage) == b"all"
        assert stage.backend.input_ended


def test_to_send_to_a_child_that_is_gone_does_nothing() -> None:
    with Stage() as stage:
        stage.backend.exits()
        assert stage.child.receive() is None
        stage.child.send(b"x" * (1 << 27))
        assert b"".join(stage.backend.input) == b""


def test_what_a_child_does_not_read_is_kept_up_to_a_limit_and_then_refused_with_a_reason() -> None:
    with Stage(max_unsent_bytes=100) as stage:
        stage.backend.reads_input = False
        stage.child.send(b"x" * 60)
        stage.backend.settle()
        with pytest.raises(UnreadInputError, match="60 bytes wait for a CLI that does not read its stdin"):
            stage.child.send(b"x" * 41)
        stage.child.send(b"x" * 40)
        assert stage.child.exit is None


def test_what_is_not_bytes_is_refused_where_it_is_sent() -> None:
    data: Any = "text"
    with Stage() as stage:
        with pytest.raises(TypeError):
            stage.child.send(data)
        assert stage.child.exit is None


@contextmanager
def real_child(backend: NewBackend, code: str, **fields: Any) -> Iterator[ChildProcess]:
    argv = (sys.executable, "-I", "-S", "-c", code)
    child = ChildProcess(make_launch(argv=argv, env=dict(os.environ), **fields), backend)
    child.start()
    try:
        yield child
    finally:
        child.close()


def said_by(child: ChildProcess, lines: int = 1) -> bytes:
    """What the child says in this many lines, which is all it says before it receives more."""
    said = b""
    while said.count(b"\n") < lines:
        chunk = child.receive(PATIENCE)
        assert chunk is not None, child.exit
        said += chunk
    return said


@BACKENDS
def test_a_real_child_serves_many_turns_and_exits_when_its_stdin_ends(backend: NewBackend) -> None:
    with real_child(backend, ECHO, stdin=b"hello\n") as child:
        assert said_by(child) == b"HELLO\n"
        for number in range(20):
            child.begin_phase(Phase.TURN, Limits(silence=PATIENCE))
            child.send(b"turn %d\n" % number)
            assert said_by(child) == b"TURN %d\n" % number
            child.begin_phase(Phase.IDLE, Limits())
        child.send(b"bye\n", last=True)
        assert said_by(child) == b"BYE\n"
        assert child.receive(PATIENCE) is None
        assert child.exit == Exit(0, EndReason.EXITED, "", None)


@BACKENDS
def test_a_long_prompt_arrives_whole_and_in_its_place(backend: NewBackend) -> None:
    prompts = [os.urandom(6_000_000).hex().encode() + b"\n", b"short\n", b"y" * 200_000 + b"\n"]
    with real_child(backend, DIGEST) as child:
        for prompt in prompts:
            child.send(prompt)
        digests = said_by(child, len(prompts)).decode().split()
    assert digests == [hashlib.sha256(prompt).hexdigest() for prompt in prompts]


@BACKENDS
def test_a_child_that_never_reads_blocks_nobody(backend: NewBackend) -> None:
    with real_child(backend, DEAF, max_unsent_bytes=1 << 20) as child:
        assert said_by(child) == b"here\n"
        child.send(b"x" * 900_000)
        with pytest.raises(UnreadInputError):
            child.send(b"x" * 900_000)
        assert child.exit is None
        assert child.close().reason is EndReason.CLOSED


@BACKENDS
def test_a_child_that_has_closed_its_stdin_is_no_error_for_who_sends(backend: NewBackend) -> None:
    with real_child(backend, CLOSES_STDIN, max_unsent_bytes=1 << 20) as child:
        assert said_by(child) == b"closed\n"
        for _ in range(100):
            child.send(b"x" * 1000)
        assert child.exit is None
        child.request_end(EndReason.ABORTED)
        assert child.receive(PATIENCE) is None
        assert child.exit is not None
        assert child.exit.reason is EndReason.ABORTED
