"""The consumer leaves, one way or another, and nothing of the run is left (the fixture of all tests counts)."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import AgentEvent, AgentExecuteParams
from tests.fakes import FakeRuntime, Gate, alive, is_guarded, quick_command, start_host, wait_until

GateMaker = Callable[[], Gate]


def tree(gate: GateMaker) -> tuple[FakeRuntime, Gate]:
    """A CLI with a grandchild in its own session; both report their pids, then hang."""
    there, ready = gate(), gate()
    grandchild = [["notify", there.path], ["notify", ready.path], ["hang"]]
    steps = (["fork", grandchild, True], ["notify", there.path], ["wait", ready.path], ["text", "a"], ["hang"])
    return FakeRuntime(*steps), there


def both(there: Gate) -> list[int]:
    return [there.wait(), there.wait()]


def test_close_ends_the_tree(gate: GateMaker) -> None:
    runtime, there = tree(gate)
    events = runtime.execute("hi")
    next(events)
    pids = both(there)
    events.close()
    assert not any(map(alive, pids))
    assert list(events) == []


def test_break_ends_the_tree(gate: GateMaker) -> None:
    runtime, there = tree(gate)
    for _ in runtime.execute("hi"):
        pids = both(there)
        break
    gc.collect()
    assert not any(map(alive, pids))


def test_an_exception_in_the_loop_ends_the_tree_and_goes_on(gate: GateMaker) -> None:
    runtime, there = tree(gate)

    def consume() -> None:
        with runtime.start("hi") as run:
            for _ in run:
                pids.extend(both(there))
                raise LookupError("mine")

    pids: list[int] = []
    with pytest.raises(LookupError, match="mine"):
        consume()
    assert not any(map(alive, pids))


def test_an_exception_thrown_into_the_generator_comes_out_again(gate: GateMaker) -> None:
    runtime, there = tree(gate)
    events = runtime.execute("hi")
    next(events)
    pids = both(there)
    with pytest.raises(LookupError, match="mine"):
        events.throw(LookupError("mine"))
    assert not any(map(alive, pids))


@pytest.mark.slow
def test_an_exception_raised_into_the_consumers_thread_arrives_while_the_agent_is_silent(gate: GateMaker) -> None:
    """As Dramatiq does at its time limit. The interpreter raises the exception when the thread next runs Python
    code."""

    class TimeLimit(Exception):
        pass

    runtime, there = tree(gate)
    raised: list[BaseException] = []
    waiting = threading.Event()

    def consume() -> None:
        try:
            with runtime.start("hi") as run:
                next(run)
                waiting.set()
                next(run)
        except TimeLimit as error:
            raised.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    pids = both(there)
    assert waiting.wait(30)
    assert consumer.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(consumer.ident), ctypes.py_object(TimeLimit))
    consumer.join(30)
    assert len(raised) == 1
    assert not any(map(alive, pids))


@pytest.mark.parametrize("verb", ["execute", "start"])
def test_dropping_the_last_reference_ends_the_tree(verb: str, gate: GateMaker) -> None:
    runtime, there = tree(gate)
    events: Any = getattr(runtime, verb)("hi")
    next(events)
    pids = both(there)
    del events
    gc.collect()
    assert not any(map(alive, pids))


def test_a_half_consumed_run_in_a_reference_cycle_is_collected(gate: GateMaker) -> None:
    runtime, there = tree(gate)

    class Node:
        pass

    node = Node()
    node.events = runtime.execute("hi")  # type: ignore[attr-defined]
    node.itself = node  # type: ignore[attr-defined]
    next(node.events)  # type: ignore[attr-defined]
    pids = both(there)
    gone = weakref.ref(node)
    del node
    gc.collect()
    assert gone() is None
    assert not any(map(alive, pids))


def test_a_run_in_a_cycle_may_be_collected_in_another_thread(gate: GateMaker) -> None:
    runtime, there = tree(gate)
    gc.disable()
    try:
        cycle: list[Any] = [runtime.execute("hi")]
        cycle.append(cycle)
        next(cycle[0])
        pids = both(there)
        del cycle
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
    finally:
        gc.enable()
    assert not any(map(alive, pids))


def test_close_from_another_thread_while_the_consumer_waits(gate: GateMaker) -> None:
    runtime, there = tree(gate)
    run = runtime.start("hi")
    seen: list[AgentEvent] = []
    consumer = threading.Thread(target=lambda: seen.extend(run))
    consumer.start()
    pids = both(there)
    assert wait_until(lambda: seen)
    run.close()
    assert not any(map(alive, pids))
    consumer.join(30)
    assert not consumer.is_alive()
    assert [event.type for event in seen] == ["text"]
    assert run.result is not None
    assert run.result.aborted


def test_close_from_another_thread_of_a_generator_that_is_not_running(gate: GateMaker) -> None:
    runtime, there = tree(gate)
    events = runtime.execute("hi")
    next(events)
    pids = both(there)
    closer = threading.Thread(target=events.close)
    closer.start()
    closer.join(30)
    assert not any(map(alive, pids))


@pytest.mark.slow
def test_closing_a_handle_races_with_its_consumer_without_an_exception() -> None:
    """The consumer is sometimes inside the generator, sometimes outside."""
    for _ in range(30):
        run = FakeRuntime(command=["sh", "-c", """yes '{"type":"text","text":"x"}'"""]).start("hi")
        problems: list[BaseException] = []

        def consume(run: Any = run, problems: list[BaseException] = problems) -> None:
            try:
                for _ in run:
                    pass
            except BaseException as error:
                problems.append(error)

        next(run)
        consumer = threading.Thread(target=consume)
        consumer.start()
        run.close()
        consumer.join(30)
        assert not consumer.is_alive()
        assert not problems


def test_two_threads_may_take_turns_at_one_handle() -> None:
    run = FakeRuntime(["repeat", '{"type":"text","text":"x"}\n', 2000]).start("hi")
    seen: list[AgentEvent] = []
    problems: list[BaseException] = []

    def consume() -> None:
        try:
            for event in run:
                seen.append(event)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert sorted(event.type for event in seen) == ["done"] + ["text"] * 2000


def test_close_twice_and_from_many_threads_is_one_close(gate: GateMaker) -> None:
    runtime, there = tree(gate)
    run = runtime.start("hi")
    next(run)
    pids = both(there)
    threads = [threading.Thread(target=run.close) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.close()
    assert not any(map(alive, pids))


def test_a_handle_that_was_never_iterated_needs_no_end() -> None:
    with FakeRuntime(["hang"]).start("hi") as run:
        assert run.pid is None
    assert list(run) == []


def test_everything_is_given_back_before_done_is_seen(tmp_path: Path) -> None:
    """Consumers stop at `done` and keep the generator."""

    class Borrower(FakeRuntime):
        def enter_run(self, params: AgentExecuteParams, resources: Any) -> None:
            borrowed.touch()
            resources.callback(borrowed.unlink)

    borrowed = tmp_path / "borrowed"
    events = Borrower(command=quick_command(["text", "a"], ["hang"]), timeout=0.3).execute("hi")
    assert next(events).type == "text"
    assert borrowed.exists()
    assert next(events).type == "error"
    assert not borrowed.exists()
    assert next(events).type == "done"
    events.close()


@pytest.mark.parametrize("leave", ["close", "throw"])
def test_what_was_borrowed_is_given_back_when_the_consumer_leaves(leave: str, tmp_path: Path) -> None:
    class Borrower(FakeRuntime):
        def enter_run(self, params: AgentExecuteParams, resources: Any) -> None:
            borrowed.touch()
            resources.callback(borrowed.unlink)

    borrowed = tmp_path / "borrowed"
    events = Borrower(["text", "a"], ["hang"]).execute("hi")
    next(events)
    if leave == "close":
        events.close()
    else:
        with pytest.raises(LookupError):
            events.throw(LookupError())
    assert not borrowed.exists()


# --- the host script ends ----------------------------------------------------------------------------------

HOST = """
import os, signal, sys, threading, time
from tests.fakes import FakeRuntime, is_guarded, wait_until
there, ready = sys.argv[1:]
grandchild = [["notify", there], ["notify", ready], ["hang"]]
steps = (["fork", grandchild, True], ["notify", there], ["wait", ready], ["text", "a"], ["hang"])
runtime = FakeRuntime(*steps, timeout=None)
"""


@pytest.fixture
def host(gate: GateMaker) -> Iterator[Callable[..., tuple[Any, list[int]]]]:
    """Starts a host with a CLI and a grandchild; both are running when it returns."""
    hosts = []

    def start(code: str) -> tuple[Any, list[int]]:
        there, ready = gate(), gate()
        process = start_host(HOST + code, there.path, ready.path)
        hosts.append(process)
        return process, both(there)

    yield start
    for process in hosts:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("verb", ["start", "execute"])
def test_a_signal_handler_that_asks_for_the_next_event_gets_a_value_error(verb: str, host: Any) -> None:
    """It has interrupted the thread that would have to produce the event. Closing the run is allowed, even from
    there."""
    process, pids = host(
        f"""
run = runtime.{verb}("hi")
events = getattr(run, "_events", run)

def handler(*args):
    if not events.gi_running:  # Too early.
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        return
    try:
        next(run)
    except ValueError as error:
        print(error, flush=True)
    if run is events:
        raise KeyboardInterrupt
    run.close()

next(run)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.05)
try:
    print(list(run), run.result.aborted)
except KeyboardInterrupt:
    print("left")
"""
    )
    out, err = process.communicate(timeout=30)
    assert err == ""
    assert out == "generator already executing\n" + {"start": "[] True\n", "execute": "left\n"}[verb]
    assert not any(map(alive, pids))


def test_ctrl_c_in_the_host_ends_the_tree(host: Any) -> None:
    process, pids = host("for event in runtime.execute('hi'): print(event.type, flush=True)")
    assert process.stdout.readline() == "text\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert not any(map(alive, pids))


def test_ctrl_c_twice_ends_the_tree_too(host: Any) -> None:
    process, pids = host("for event in runtime.execute('hi'): print(event.type, flush=True)")
    assert process.stdout.readline() == "text\n"
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert wait_until(lambda: not any(map(alive, pids)))


def test_the_end_of_the_interpreter_ends_the_tree_of_a_daemon_thread(host: Any) -> None:
    process, pids = host(
        """
def consume():
    for event in runtime.execute('hi'):
        print(event.type, flush=True)
threading.Thread(target=consume, daemon=True).start()
while not os.path.exists(there + ".go"):
    time.sleep(0.01)
"""
    )
    assert process.stdout.readline() == "text\n"
    Path(process.args[-2] + ".go").touch()
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")
    assert not any(map(alive, pids))


def test_the_end_of_the_interpreter_ends_the_tree_of_a_generator_that_is_kept(host: Any) -> None:
    process, pids = host("events = runtime.execute('hi')\nprint(next(events).type)")
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "text\n", "")
    assert not any(map(alive, pids))


def test_sys_exit_inside_the_loop_ends_the_tree(host: Any) -> None:
    process, pids = host("for event in runtime.execute('hi'): sys.exit(4)")
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (4, "")
    assert not any(map(alive, pids))


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGKILL, id="SIGKILL"), pytest.param(signal.SIGTERM, id="SIGTERM")],
)
def test_a_host_that_is_killed_takes_its_cli_along(number: int, host: Any) -> None:
    """Both are silent, so a broken pipe would not end them; the guard process does."""
    process, pids = host("for event in runtime.execute('hi'): print(event.type, flush=True)")
    assert process.stdout.readline() == "text\n"
    assert wait_until(lambda: is_guarded(process.pid))
    process.send_signal(number)
    process.communicate(timeout=30)
    assert wait_until(lambda: not any(map(alive, pids)))


@pytest.mark.slow
def test_a_host_that_is_killed_after_a_while_takes_its_cli_along(host: Any) -> None:
    process, pids = host(
        """
events = runtime.execute('hi')
next(events)
assert wait_until(lambda: is_guarded(os.getpid()))
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    process.communicate(timeout=30)
    assert wait_until(lambda: not any(map(alive, pids)))


@pytest.mark.slow
def test_a_forked_copy_of_the_host_leaves_the_run_to_the_original(host: Any, tmp_path: Path) -> None:
    """The copy ends the generator in every way, and exits; the original's run continues and its files stay."""
    process, pids = host(
        """
import pathlib
borrowed = pathlib.Path(there + ".borrowed")
def enter_run(params, resources):
    borrowed.touch()
    resources.callback(borrowed.unlink)
run = runtime.start("hi")
runtime.enter_run = enter_run
events = runtime.execute("hi")
next(events), next(run)
copy = os.fork()
if copy == 0:
    assert list(run) == []
    run.abort()
    run.close()
    events.close()
    del events, run
    sys.exit(0)
assert os.waitpid(copy, 0)[1] == 0
assert borrowed.exists()
print("copy is gone", flush=True)
run.close()
os.kill(os.getpid(), signal.SIGSTOP)
events.close()
"""
    )
    assert process.stdout.readline() == "copy is gone\n", process.communicate()
    assert wait_until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    os.kill(process.pid, signal.SIGCONT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    assert not any(map(alive, pids))


@pytest.mark.slow
def test_a_forked_copy_does_not_keep_the_pipes_open(host: Any) -> None:
    """The guard must notice the original's death even if a worker process lives on."""
    process, pids = host(
        """
events = runtime.execute("hi")
next(events)
assert wait_until(lambda: is_guarded(os.getpid()))
if os.fork() == 0:
    os.close(1), os.close(2)
    open(there + ".worker", "w").write(str(os.getpid()))
    signal.pause()
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    process.communicate(timeout=30)
    assert wait_until(lambda: not any(map(alive, pids)))
    worker = Path(process.args[-2] + ".worker")
    assert wait_until(lambda: worker.exists() and worker.read_text())
    os.kill(int(worker.read_text()), signal.SIGKILL)


def test_a_cli_is_not_killed_by_the_end_of_the_thread_that_started_it(gate: GateMaker) -> None:
    """PR_SET_PDEATHSIG is tied to the thread that forked."""
    more = gate()
    events = FakeRuntime(["text", "a"], ["wait", more.path], ["text", "b"]).execute("hi")
    starter = threading.Thread(target=next, args=(events,))
    starter.start()
    starter.join()
    more.open()
    assert [event.type for event in events] == ["text", "done"]
