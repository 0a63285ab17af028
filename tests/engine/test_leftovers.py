"""What a CLI leaves behind is ended, however it got away and whatever ended the CLI."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync.process import sweep
from tests.fakes import FakeRuntime, Gate, alive, start_host, wait_until

GateMaker = Callable[[], Gate]
Who = Callable[[Gate], int]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who belongs to a run")

# How a process got away, and thus the only mark that is left of it: arguments of the step `fork`, first steps.
ESCAPES: dict[str, tuple[list[bool], list[Any]]] = {
    "group alone": ([False, True], [["drop_tag"]]),
    "session alone": ([False, True], [["drop_tag"], ["own_group"]]),
    "variable alone": ([True, False], [["drop_tag"]]),
    "tag alone": ([True, True], []),
}
ESCAPE = pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES)


def refuse_pidfd(number: int) -> Callable[..., int]:
    def refuse(*args: Any) -> int:
        raise OSError(number, os.strerror(number))

    return refuse


PIDFD_REFUSALS = ("EPERM", "no such function", "ENOSYS", "EMFILE", "sending EPERM", "sending ENOSYS")


@pytest.fixture(
    params=[
        "pidfd",
        *PIDFD_REFUSALS[:2],
        *(pytest.param(other, marks=pytest.mark.slow) for other in PIDFD_REFUSALS[2:]),
    ]
)
def pidfd(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "no such function":
        monkeypatch.delattr(os, "pidfd_open")
    elif request.param.startswith("sending "):
        number = getattr(errno, request.param.removeprefix("sending "))
        monkeypatch.setattr(signal, "pidfd_send_signal", refuse_pidfd(number))
    elif request.param != "pidfd":
        monkeypatch.setattr(os, "pidfd_open", refuse_pidfd(getattr(errno, request.param)))


@pytest.fixture
def who() -> Iterator[Who]:
    """Waits for a process to come to a gate; kills the processes that survive the test."""
    pids: list[int] = []

    def wait(there: Gate) -> int:
        pids.append(there.wait())
        return pids[-1]

    yield wait
    for pid in filter(alive, pids):
        os.kill(pid, signal.SIGKILL)


def away(escape: tuple[list[bool], list[Any]], *steps: Any) -> list[Any]:
    """The step that starts such a process: its parent has exited, so init is its parent now."""
    how, first = escape
    return ["fork", [["fork", [*first, *steps], *how], ["exit", 0]]]


def leave_in_order(run: Any, leave: Gate) -> None:
    leave.open()
    assert list(run)[-1].result.ok


def abort(run: Any, leave: Gate) -> None:
    run.abort()
    assert [event.type for event in run] == ["error", "done"]


def close(run: Any, leave: Gate) -> None:
    run.close()


def kill(run: Any, leave: Gate) -> None:
    os.kill(run.pid, signal.SIGKILL)
    assert list(run)[-1].type == "done"


@ESCAPE
@pytest.mark.parametrize("end", [leave_in_order, abort, close, kill])
@pytest.mark.usefixtures("pidfd")
def test_nothing_is_left_of_what_got_away(
    escape: tuple[list[bool], list[Any]], end: Callable[[Any, Gate], None], gate: GateMaker, who: Who
) -> None:
    there, ready, leave = gate(), gate(), gate()
    got_away = away(escape, ["notify", there.path], ["notify", ready.path], ["hang"])
    steps = (got_away, ["wait", ready.path], ["text", "a"], ["wait", leave.path], ["line", {"type": "done"}])
    with FakeRuntime(*steps, timeout=None).start("hi") as run:
        next(run)
        pid = who(there)
        assert alive(pid)
        end(run, leave)
        assert not alive(pid)


@ESCAPE
@pytest.mark.parametrize(
    "pidfd", ["pidfd", *(pytest.param(refusal, marks=pytest.mark.slow) for refusal in PIDFD_REFUSALS)], indirect=True
)
@pytest.mark.usefixtures("pidfd")
def test_one_that_ignores_sigterm_and_has_children_is_ended_with_them(
    escape: tuple[list[bool], list[Any]], gate: GateMaker, who: Who
) -> None:
    there, ready = gate(), gate()
    stubborn = [["ignore", "SIGTERM"], ["notify", there.path]]
    got_away = away(escape, *stubborn, ["fork", [*stubborn, ["notify", ready.path], ["hang"]]], ["hang"])
    with FakeRuntime(got_away, ["wait", ready.path], ["text", "a"], ["hang"], timeout=None).start("hi") as run:
        next(run)
        pids = [who(there), who(there)]
    assert not any(map(alive, pids))


def test_a_process_that_is_none_of_the_runs_is_left_alone() -> None:
    """Even a process with another run's tag, or one in its own session and without the variable."""
    other = FakeRuntime(["text", "a"], ["hang"]).start("hi")
    with other, subprocess.Popen(["sleep", "1000"], start_new_session=True) as stranger:
        next(other)
        with FakeRuntime(["text", "a"], ["hang"]).start("hi") as run:
            next(run)
        assert alive(other.pid or 0)
        assert alive(stranger.pid)
        stranger.kill()


# A shell that does its work before it has read its prompt can finish before the tag is set (see process/tag.py).
PROMPT_READ = "cat > /dev/null"


def test_a_daemon_that_a_shell_script_sends_away_is_ended(gate: GateMaker, who: Who) -> None:
    """As people write it: `env -i setsid ... &`, with all streams redirected."""
    there = gate()
    daemon = f"echo $$ > {there.path}; exec sleep 1000"
    script = f"{PROMPT_READ}; (env -i setsid sh -c '{daemon}' < /dev/null > /dev/null 2>&1 &); exec sleep 1000"
    with FakeRuntime(command=["sh", "-c", script]).start("hi", deadline=60) as run:
        consumer = threading.Thread(target=list, args=(run,))
        consumer.start()
        pid = who(there)
        assert alive(pid)
        run.close()
        consumer.join()
    assert not alive(pid)


def test_what_a_daemon_starts_when_it_is_told_to_end_is_ended_too(
    gate: GateMaker, who: Who, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "GONE_SECONDS", 60.0)  # Enough time, however busy the machine is.
    ready, heir = gate(), gate()
    daemon, child, told = tmp_path / "daemon", tmp_path / "child", tmp_path / "told"
    os.mkfifo(told)
    # A process that a shell with a trap has only just forked may lose its SIGTERM. So the trap is set after the fork,
    # and the shell exits once the other program is running.
    child.write_text(f"echo $$ > {heir.path}; echo > {told}; exec sleep 1000")
    daemon.write_text(f"sleep 1000 & trap 'sh {child} & read told < {told}; exit' TERM\necho $$ > {ready.path}; wait\n")
    script = f"{PROMPT_READ}; (setsid sh {daemon} < /dev/null > /dev/null 2>&1 &); exec sleep 1000"
    with FakeRuntime(command=["sh", "-c", script]).start("hi", deadline=60) as run:
        consumer = threading.Thread(target=list, args=(run,))
        consumer.start()
        who(ready)
        run.close()
        consumer.join()
    assert not alive(who(heir))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_daemon_that_has_become_another_user_is_ended(gate: GateMaker, who: Who) -> None:
    """As with `gosu` or `su` in a container whose root may not read the limits of other users' processes."""
    there = gate()
    become = "import os; os.setgroups([]); os.setgid(65534); os.setuid(65534); os.setsid(); "
    start = "os.execve('/bin/sh', ['sh', '-c', 'echo \\$\\$; exec sleep 1000'], {})"
    script = f'{PROMPT_READ}; ("{sys.executable}" -I -S -c "{become}{start}" > {there.path} &); exec sleep 1000'
    with FakeRuntime(command=["sh", "-c", script]).start("hi", deadline=60) as run:
        consumer = threading.Thread(target=list, args=(run,))
        consumer.start()
        pid = who(there)
        run.close()
        consumer.join()
    assert not alive(pid)


# --- the host dies ---------------------------------------------------------------------------------------------------

HOST = """
import json, sys
from tests.fakes import FakeRuntime
for event in FakeRuntime(*json.loads(sys.argv[1]), timeout=None).execute("hi"):
    print(event.type, flush=True)
"""


@pytest.fixture
def killed_host() -> Iterator[Callable[..., None]]:
    hosts = []

    def kill_host(*steps: Any) -> None:
        host = start_host(HOST, json.dumps(steps))
        hosts.append(host)
        assert host.stdout is not None
        assert host.stdout.readline() == "text\n"
        host.kill()
        host.wait()

    yield kill_host
    for host in hosts:
        host.kill()
        host.communicate()


@pytest.mark.slow
@ESCAPE
def test_the_guard_of_a_killed_host_ends_what_got_away(
    escape: tuple[list[bool], list[Any]], gate: GateMaker, who: Who, killed_host: Callable[..., None]
) -> None:
    there, ready = gate(), gate()
    got_away = away(escape, ["ignore", "SIGTERM"], ["notify", there.path], ["notify", ready.path], ["hang"])
    killed_host(got_away, ["wait", ready.path], ["sleep", 0.3], ["text", "a"], ["hang"])
    pid = who(there)
    assert wait_until(lambda: not alive(pid))


@pytest.mark.slow
def test_a_run_inside_a_run_is_ended_by_its_own_guard_when_the_outer_one_is_aborted(gate: GateMaker, who: Who) -> None:
    """The inner host dies with the outer run; its guard must not be taken for a leftover of the outer run."""
    there, ready = gate(), gate()
    got_away = away(ESCAPES["tag alone"], ["notify", there.path], ["notify", ready.path], ["hang"])
    inner = f"""
import sys
sys.path[:] = {sys.path!r}
from tests.fakes import FakeRuntime
steps = ({got_away!r}, ["wait", {ready.path!r}], ["sleep", 0.3], ["text", "inner"], ["hang"])
for event in FakeRuntime(*steps, timeout=None).execute("hi"):
    print('{{"type": "text", "text": "inner"}}', flush=True)
"""
    with FakeRuntime(command=[sys.executable, "-c", inner], timeout=None).start("hi") as run:
        next(run)
        pid = who(there)
    assert wait_until(lambda: not alive(pid))


# --- the host is process 1 --------------------------------------------------------------------------------------------

AS_PROCESS_1 = ["unshare", "--pid", "--fork", "--mount-proc"]

ZOMBIES = """
import os, pathlib, sys
sys.path[:] = {path!r}
from remoteclaw_sync.process import sweep
from tests.fakes import FakeRuntime, done
assert os.getpid() == 1
orphan = ["fork", [["fork", [["hang"]], {setsid}, {clear_env}], ["exit", 0]]]
own = os.posix_spawn("/bin/true", ["true"], {{}})
for _ in range(3):
    with FakeRuntime(orphan, orphan, ["sleep", 0.3], ["text", "a"], ["hang"], timeout=None).start("hi") as run:
        next(run)
    assert done(FakeRuntime(orphan, ["sleep", 0.3], ["text", "a"]).execute("hi")).ok
states = [path.read_text() for path in pathlib.Path("/proc").glob("[0-9]*/stat")]
print(len(states), os.waitpid(own, 0) == (own, 0))
"""


@pytest.mark.slow
@pytest.mark.parametrize("setsid", [False, True])
@pytest.mark.parametrize("clear_env", [False, True])
def test_a_host_that_is_process_1_is_left_no_zombies_and_keeps_its_own_children(setsid: bool, clear_env: bool) -> None:
    """As in a container without an init, where orphans become the host's children."""
    if subprocess.run([*AS_PROCESS_1, "true"], capture_output=True).returncode:
        pytest.skip("namespace: unshare cannot make one for process numbers here")
    code = ZOMBIES.format(path=sys.path, setsid=setsid, clear_env=clear_env)
    out = subprocess.run([*AS_PROCESS_1, sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (out.stdout, out.stderr) == ("2 True\n", "")
