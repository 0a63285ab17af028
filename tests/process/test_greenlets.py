"""Hosts that gevent or eventlet has patched, each in a separate process, because patches are permanent."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import Gate, alive, run_host

GateMaker = Callable[[], Gate]


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed (extra `test-web`)")


GEVENT = """
import gevent.monkey
gevent.monkey.patch_all()
import gc, itertools, os, pathlib, signal, sys, threading
import gevent, gevent.event
from tests.fakes import FakeRuntime, Gate, alive, codes, done, finished
"""


def gevent_host(code: str, *arguments: str, **options: Any) -> list[str]:
    """The lines that such a program prints."""
    needs("gevent")
    lines = "\n".join(line.removeprefix("        ") for line in code.split("\n"))
    return run_host(GEVENT + lines, *arguments, **options).splitlines()


def test_other_greenlets_run_while_one_waits_for_its_agent(gate: GateMaker) -> None:
    """The agent continues only when another greenlet lets it."""
    assert gevent_host(
        """
        def let_it_go_on():
            with open(sys.argv[1], "wb") as gate:
                gate.write(b"!")
        steps = (["text", "a"], ["wait", sys.argv[1]], ["text", "b"], ["raw", "note", 2], ["exit", 3])
        run = FakeRuntime(*steps).start("hi")
        events = [next(run)]
        gevent.spawn(let_it_go_on)
        result = done([*events, *run])
        print(result.text, result.exit_code, result.stderr)
        """,
        gate().path,
    ) == ["ab 3 note"]


def test_forty_greenlets_run_forty_agents_at_once() -> None:
    """All exist at the same time: each waits until the last has said its first word."""
    out = gevent_host(
        """
        ready, all_there = [], gevent.event.Event()
        def ask(word):
            run = FakeRuntime(command=["sh", "-c", 'read -r word; echo "$word"; exec cat']).start(
                '{"type":"text","text":"%s"}\\n' % word)
            events = [next(run)]
            ready.append(word)
            if len(ready) == 40:
                all_there.set()
            all_there.wait()
            return done([*events, *run]).text
        jobs = [gevent.spawn(ask, f"word{number}") for number in range(40)]
        gevent.joinall(jobs)
        print([job.value for job in jobs] == [f"word{number}" for number in range(40)])
        print([thread for thread in threading.enumerate() if thread.name.startswith("remoteclaw")])
        """
    )
    assert out == ["True", "[]"]


@pytest.mark.parametrize(
    "event",
    ["threading.Event()", "gevent.monkey.get_original('threading', 'Event')()", "multiprocessing.Event()"],
    ids=["patched", "not patched", "multiprocessing"],
)
def test_an_event_that_another_greenlet_sets_ends_the_run(event: str) -> None:
    assert gevent_host(
        f"""
        import multiprocessing
        event = {event}
        run = FakeRuntime(["text", "a"], ["hang"]).start("hi", abort_signal=event)
        next(run)
        gevent.spawn_later(0.1, event.set)
        print([event.type for event in run], run.result.aborted)
        """
    ) == ["['error', 'done'] True"]


def test_the_clocks_end_a_run_while_its_greenlet_waits() -> None:
    assert gevent_host(
        """
        print(codes(finished(FakeRuntime(["text", "a"], ["hang"], timeout=0.5).execute("hi"))[0]))
        print(codes(finished(FakeRuntime(["text", "a"], ["hang"]).execute("hi", deadline=0.5))[0]))
        """
    ) == ["['WATCHDOG_TIMEOUT']", "['DEADLINE_EXCEEDED']"]


def test_a_command_that_cannot_be_started_is_told_and_a_big_prompt_does_not_block() -> None:
    assert gevent_host(
        """
        print(codes(finished(FakeRuntime(command="no-such-agent-cli").execute("hi"))[0]))
        print(done(FakeRuntime(["read_stdin"], ["text", "a"]).execute("x" * 3_000_000)).ok)
        print(done(FakeRuntime(["text", "a"]).execute("x" * 3_000_000)).ok)
        """
    ) == ["['CLI_NOT_FOUND']", "True", "True"]


@pytest.mark.parametrize("pidfd", [True, False], ids=["with pidfd", "without pidfd"])
def test_whatever_the_way_out_no_process_and_no_descriptor_is_left(pidfd: bool, gate: GateMaker) -> None:
    there = gate()
    out = gevent_host(
        f"""
        if not {pidfd}:
            def no_pidfd(*args):
                raise PermissionError
            os.pidfd_open = no_pidfd
        there, numbers = sys.argv[1], itertools.count()
        def descriptors():
            gevent.sleep(0.1)  # gevent closes them when it next has the time.
            return len(os.listdir("/proc/self/fd"))
        def use(leave):
            with Gate(pathlib.Path(f"{{there}}.{{next(numbers)}}")) as ready:
                orphan = ["fork", [["notify", there], ["notify", ready.path], ["hang"]], True, True]
                steps = (["fork", [orphan, ["exit", 0]]], ["notify", there], ["wait", ready.path], ["text", "a"])
                run = FakeRuntime(*steps, ["hang"]).start("hi")
                next(run)
                leave(run)
        use(lambda run: run.close())
        before = descriptors()
        for _ in range(3):
            use(lambda run: run.close())
            use(lambda run: (run.abort(), list(run)))
            use(lambda run: os.kill(run.pid, signal.SIGKILL) or list(run))
            use(lambda run: None)
            gc.collect()
        print(descriptors() - before, threading.active_count())
        """,
        there.path,
    )
    assert out == ["0 1"]
    assert not any(alive(there.wait()) for _ in range(2 * 13))


def test_a_run_that_is_forgotten_in_the_event_loop_is_ended(gate: GateMaker) -> None:
    """Waiting for its end there would stop every greenlet, and gevent forbids it."""
    there = gate()
    out = gevent_host(
        """
        runs = [FakeRuntime(["notify", sys.argv[1]], ["text", "a"], ["hang"]).start("hi")]
        next(runs[0])
        pid = runs[0].pid
        gevent.get_hub().loop.run_callback(runs.clear)
        while alive(pid):
            gevent.sleep(0.01)
        print("ended")
        """,
        there.path,
    )
    assert out == ["ended"]


def test_a_forked_copy_leaves_the_run_to_the_original(gate: GateMaker) -> None:
    """Unlike threads, greenlets continue in the copy, including the run's supervisor."""
    more = gate()
    out = gevent_host(
        """
        run = FakeRuntime(["text", "a"], ["wait", sys.argv[1]], ["text", "b"]).start("hi")
        events = [next(run)]
        copy = os.fork()
        if copy == 0:
            os.close(2)  # gevent has words (a KeyError) for every Thread that ends in a copy.
            gevent.sleep(0.3)
            print(list(run), flush=True)
            run.abort()
            run.close()
            gevent.sleep(0.3)
            os._exit(0)
        print(os.waitpid(copy, 0)[1], alive(run.pid))
        with open(sys.argv[1], "wb") as gate:
            gate.write(b"!")
        print(done([*events, *run]).text)
        """,
        more.path,
    )
    assert out == ["[]", "0 True", "ab"]


def test_runs_work_where_gevent_closes_descriptors_at_once() -> None:
    """As all versions before 25.8.1 do, and later ones that leave `os` unpatched. A fork by gevent's Popen is not a
    copy of the host, and must not release the pipes that it is given."""
    needs("gevent")
    out = run_host(
        """
        import gevent.monkey
        gevent.monkey.patch_all(os=False)
        from tests.fakes import FakeRuntime, done
        result = done(FakeRuntime(["read_stdin"], ["sleep", 0.1], ["text", "a"], ["raw", "note", 2]).execute("hi"))
        print(result.text, result.stderr, result.exit_code)
        """
    )
    assert out == "a note 0\n"


def test_in_a_thread_of_gevents_pool_a_run_is_refused() -> None:
    (line,) = gevent_host(
        """
        def refused():
            try:
                FakeRuntime(["text", "a"]).run("hi")
            except RuntimeError as error:
                return str(error)
        print(gevent.get_hub().threadpool.spawn(refused).get())
        """
    )
    assert line.startswith("gevent starts processes in its main thread only")


def test_a_first_event_that_is_asked_for_in_a_pools_thread_is_refused_too() -> None:
    assert gevent_host(
        """
        run = FakeRuntime(["text", "a"]).start("hi")
        (error,), result = gevent.get_hub().threadpool.spawn(finished, run).get()
        print(error.code, "main thread only" in error.message, result.ok)
        """
    ) == ["SPAWN_FAILED True False"]


REFUSING = """
import threading
from remoteclaw_sync import create_cli_runtime
runtime = create_cli_runtime("demo")
for verb in (runtime.execute, runtime.start, runtime.run):
    try:
        verb("hi")
    except RuntimeError as error:
        print(error)
print(threading.active_count())
"""


def test_gevent_without_its_threads_is_refused_in_the_call() -> None:
    needs("gevent")
    *lines, threads = run_host(f"import gevent.monkey\ngevent.monkey.patch_all(thread=False)\n{REFUSING}").splitlines()
    assert len(lines) == 3
    assert all("patch_all() without thread=False" in line for line in lines)
    assert threads == "1"


@pytest.mark.parametrize("patched", ["", "os=True", "select=True", "socket=True", "thread=True", "time=True"])
def test_eventlet_is_refused_in_the_call(patched: str) -> None:
    needs("eventlet")
    *lines, threads = run_host(f"import eventlet\neventlet.monkey_patch({patched})\n{REFUSING}").splitlines()
    assert lines == ["runs do not work after eventlet.monkey_patch(): use real threads, or gevent"] * 3
    assert threads == "1"


@pytest.mark.parametrize("imported", ["gevent", "gevent.monkey", "eventlet"])
def test_to_import_one_of_them_changes_nothing(imported: str) -> None:
    needs(imported.partition(".")[0])
    out = run_host(
        f"""
        import {imported}
        from tests.fakes import FakeRuntime, done
        print(done(FakeRuntime(["text", "a"], ["exit", 3]).execute("hi")).exit_code)
        """
    )
    assert out == "3\n"


def test_a_tool_that_waits_in_its_greenlet_lets_other_runs_call_theirs(tmp_path: Path) -> None:
    """Each of two calls returns only after the other has started."""
    out = gevent_host(
        """
        from remoteclaw_sync import ClaudeCliRuntime
        begun = {1: gevent.event.Event(), 2: gevent.event.Event()}
        def look_up(number: int) -> str:
            begun[number].set()
            return f"{number} after {3 - number}: {begun[3 - number].wait(20)}"
        runtime = ClaudeCliRuntime([sys.executable, sys.argv[1]])
        fields = {"tools": [look_up], "working_directory": sys.argv[2]}
        jobs = [gevent.spawn(runtime.run, f"Look up {number}", **fields) for number in (1, 2)]
        gevent.joinall(jobs)
        for job in jobs:
            print(job.value.text)
        """,
        str(Path(__file__).parent.parent / "readme" / "claude_with_tools.py"),
        str(tmp_path),
    )
    assert [line.partition(": ")[2] for line in out] == ["1 after 2: True", "2 after 1: True"]
