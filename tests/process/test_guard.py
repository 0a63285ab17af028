"""The one guard of a host: it ends all agents of a host that is killed, and exits with the last of them."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from tests.fakes import alive, children, start_host, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")

# Starts and ends the agents that it is told to.
HOST = """
    import sys
    from remoteclaw_sync.process.guard import guard
    from tests.fakes import FakeRuntime, wait_until
    runs = []
    for order in sys.stdin:
        if order == "start\\n":
            runs.append(FakeRuntime(["text", "a"], ["hang"]).start("hi"))
            next(runs[-1])
            assert wait_until(lambda: len(guard._runs) == len(runs))  # It hears of a run some moments after its start.
            print(runs[-1].pid, flush=True)
        else:
            runs.pop().close()
            print(0, flush=True)
"""


class Host:
    """Another process with its own agents."""

    def __init__(self) -> None:
        self.process = start_host(HOST, stdin=-1)
        self.agents: list[int] = []

    def order(self, what: str) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def start(self, number: int = 1) -> None:
        self.agents += [self.order("start") for _ in range(number)]

    def guards(self) -> list[int]:
        return [child for child in children(self.process.pid) if child not in self.agents]

    def guard(self) -> int:
        assert wait_until(lambda: len(self.guards()) == 1)
        return self.guards()[0]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.slow
def test_one_guard_ends_all_agents_of_a_host_that_is_killed() -> None:
    host = Host()
    host.start(3)
    guard = host.guard()
    host.kill()
    assert wait_until(lambda: not any(map(alive, host.agents)))
    assert wait_until(lambda: not alive(guard))


def test_an_agent_that_has_ended_is_off_the_guards_list_and_the_others_are_not() -> None:
    host = Host()
    host.start(3)
    guard = host.guard()
    host.order("end")
    assert alive(guard)
    assert [alive(agent) for agent in host.agents] == [True, True, False]
    host.kill()
    assert wait_until(lambda: not any(map(alive, host.agents)))


def test_the_guard_goes_with_the_last_agent() -> None:
    host = Host()
    host.start(2)
    host.guard()
    host.order("end")
    host.order("end")
    assert wait_until(lambda: children(host.process.pid) == [])
    host.kill()


def test_a_guard_that_somebody_has_killed_is_replaced_and_knows_the_agents_of_before() -> None:
    host = Host()
    host.start(2)
    first = host.guard()
    os.kill(first, signal.SIGKILL)
    assert wait_until(lambda: not alive(first))
    host.start()
    assert wait_until(lambda: [guard for guard in host.guards() if alive(guard)] not in ([], [first]))
    host.kill()
    assert wait_until(lambda: not any(map(alive, host.agents)))
