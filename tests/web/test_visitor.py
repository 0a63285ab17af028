"""Approvals and further words from other requests, threads and workers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from remoteclaw_sync import AgentRun, Allow, Deny, PermissionRequest, UnsupportedOperationError
from remoteclaw_sync.web import EventStream, NotAskedError, RunHandle, Runs, Visitor, sse
from remoteclaw_sync.web.handle import Registry
from tests.engine.live import runtime, steps
from tests.fakes import quick, wait_until
from tests.web.registries import Place
from tests.web.streams import frames

ASK = ["ask", "t1", "Bash", {"command": "ls"}]
WORK = steps(ASK, ["text", "so be it"])

WORKER = """
import sys
from pathlib import Path
from remoteclaw_sync.web import Visitor, sse
from tests.engine.live import runtime
from tests.web.registries import Place
run = runtime(Path(sys.argv[1])).start(sys.argv[2], approve=Visitor(), working_directory=sys.argv[1])
stream = sse(run, registry=Place.at(sys.argv[3]).open(), detach=True, heartbeat=0.3)
print(stream.run_id, flush=True)
for chunk in stream:
    pass
"""


def asking(folder: Path, prompt: str = WORK, **options: Any) -> AgentRun:
    """A run that asks its visitor for approval."""
    return runtime(folder).start(prompt, approve=Visitor(**options), working_directory=folder)


def the_request(handle: RunHandle) -> PermissionRequest:
    """The run's open request, as soon as there is one."""
    assert wait_until(lambda: handle.open_requests)
    (request,) = handle.open_requests
    return request


def ended(stream: EventStream) -> tuple[list[str], dict[str, Any]]:
    """The kinds of all events, and the result."""
    found = frames(stream)
    return [one.event for one in found], found[-1].data["result"]


@pytest.fixture
def worker(tmp_path: Path, place: Place, any_registry: Registry) -> Iterator[RunHandle]:
    """A run that asks for approval, in another process."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), os.getcwd()])}
    arguments = [str(tmp_path), WORK, place.address]
    process = subprocess.Popen([sys.executable, "-c", WORKER, *arguments], stdout=subprocess.PIPE, text=True, env=env)
    with process:
        assert process.stdout is not None
        yield any_registry.get(process.stdout.readline().strip())
    assert process.returncode == 0


@pytest.mark.parametrize("allow", [True, False])
def test_another_request_answers(allow: bool, tmp_path: Path, any_registry: Registry) -> None:
    stream = sse(asking(tmp_path), registry=any_registry, detach=True)
    handle = any_registry.get(stream.run_id)
    request = the_request(handle)
    assert (request.tool_name, request.input) == ("Bash", {"command": "ls"})
    handle.answer(request.id, allow, message="Not now.")
    kinds, result = ended(stream)
    assert kinds == ["tool_use", "permission", "tool_result", "text", "done"]
    assert [denial["reason"] for denial in result["permission_denials"]] == ([] if allow else ["Not now."])
    assert not handle.open_requests


def test_a_visitors_own_stream_can_be_answered_from_another_request(tmp_path: Path, any_registry: Registry) -> None:
    stream = sse(asking(tmp_path), registry=any_registry)
    seen: list[tuple[list[str], dict[str, Any]]] = []
    reader = threading.Thread(target=lambda: seen.append(ended(stream)))
    reader.start()
    handle = any_registry.get(stream.run_id)
    handle.answer(the_request(handle).id, True)
    reader.join()
    assert seen[0][1]["permission_denials"] == []


@pytest.mark.slow
def test_each_request_is_answered_once_and_nothing_else_is(tmp_path: Path, any_registry: Registry) -> None:
    stream = sse(asking(tmp_path), registry=any_registry, detach=True)
    handle = any_registry.get(stream.run_id)
    request = the_request(handle)
    other = any_registry.start(asking(tmp_path))
    theirs = the_request(other)
    with pytest.raises(NotAskedError):
        handle.answer("no such request", True)
    handle.answer(request.id, False)
    with pytest.raises(NotAskedError):
        handle.answer(request.id, True)  # A second tab, or the same request sent again.
    assert other.open_requests == [theirs]  # Its ids may be the same, and it has not been answered.
    _, result = ended(stream)
    other.abort()
    ended(sse(other))
    assert len(result["permission_denials"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("request_id", ["", None, [], {}])
def test_an_id_that_is_none_is_refused_as_such(request_id: Any, tmp_path: Path, any_registry: Registry) -> None:
    handle = any_registry.start(asking(tmp_path))
    request = the_request(handle)
    with pytest.raises((TypeError, ValueError), match="request_id"):
        handle.answer(request_id, True)
    assert handle.open_requests == [request]
    handle.abort()
    ended(sse(handle))


@pytest.mark.slow
@pytest.mark.parametrize("allow", ["true", 1, None])
def test_only_a_clear_yes_or_no_is_an_answer(allow: Any, tmp_path: Path, any_registry: Registry) -> None:
    handle = any_registry.start(asking(tmp_path))
    request = the_request(handle)
    with pytest.raises(TypeError, match="allow"):
        handle.answer(request.id, allow)
    assert handle.open_requests == [request]
    handle.abort()
    ended(sse(handle))


def test_what_nobody_answers_is_refused_when_the_time_is_over(tmp_path: Path, any_registry: Registry) -> None:
    kinds, result = ended(sse(asking(tmp_path, approval_timeout=0.05), registry=any_registry))
    assert kinds[-2:] == ["text", "done"]
    assert [denial["reason"] for denial in result["permission_denials"]] == ["Nobody answered in time."]


@pytest.mark.slow
def test_a_request_waits_300_seconds_unless_something_else_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    now, looks = 0.0, 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        return now

    monkeypatch.setattr("remoteclaw_sync.web.visitor.time", SimpleNamespace(monotonic=clock))
    visitor = Visitor()
    given: list[Allow | Deny] = []
    asker = threading.Thread(target=lambda: given.append(visitor(PermissionRequest("r1", "Bash"))))
    asker.start()
    assert wait_until(lambda: visitor.open_requests)
    now, looks = 299.0, 0
    assert wait_until(lambda: looks > 1)
    assert visitor.open_requests
    now = 300.0
    asker.join()
    assert given == [Deny("Nobody answered in time.")]


@pytest.mark.parametrize("how", ["abort", pytest.param("deadline", marks=pytest.mark.slow)])
def test_a_run_that_is_stopped_does_not_wait_for_its_answer(how: str, tmp_path: Path, any_registry: Registry) -> None:
    # The deadline runs from the start, and even on a busy machine the agent has to ask before it has passed.
    deadline = 8.0 if how == "deadline" else None
    run = runtime(tmp_path).start(WORK, approve=Visitor(), working_directory=tmp_path, deadline=deadline)
    handle = any_registry.start(run)
    the_request(handle)
    if how == "abort":
        handle.abort()
    kinds, result = ended(sse(handle))
    assert kinds[-2:] == ["error", "done"]
    assert result["error_subtype"] == ("aborted" if how == "abort" else "timeout")


def test_a_visitor_who_comes_back_sees_what_is_open(tmp_path: Path, any_registry: Registry) -> None:
    stream = sse(asking(tmp_path), registry=any_registry, detach=True)
    kinds = []
    last = ""
    for chunk in stream:
        (found,) = frames([chunk])
        kinds.append(found.event)
        last = found.id
        if found.event == "permission":
            break
    stream.close()
    again = sse(any_registry.resume(last))
    first = next(again)
    assert b"event: permission" in first
    assert b"id:" not in first  # The last event that was seen remains the last one.
    handle = any_registry.get(again.run_id)
    handle.answer(the_request(handle).id, True)
    kinds, result = ended(again)
    assert kinds == ["tool_result", "text", "done"]
    late = sse(any_registry.resume(last))
    assert b"event: permission" not in b"".join(late)


@pytest.mark.slow
def test_another_worker_answers(worker: RunHandle) -> None:
    request = the_request(worker)
    with pytest.raises(NotAskedError):
        worker.answer("forged", True)
    worker.answer(request.id, True)
    kinds, result = ended(sse(worker))
    assert kinds[-2:] == ["text", "done"]
    assert result["permission_denials"] == []


@pytest.mark.slow
def test_of_two_answers_by_other_workers_the_first_counts_and_the_second_is_told(worker: RunHandle) -> None:
    request = the_request(worker)
    worker.answer(request.id, False, message="the first")
    with pytest.raises(NotAskedError):
        worker.answer(request.id, True)  # Whether or not the first answer has arrived by now.
    _, result = ended(sse(worker))
    assert [denial["reason"] for denial in result["permission_denials"]] == ["the first"]


def test_an_answer_that_another_worker_has_left_comes_before_one_of_the_runs_own(
    tmp_path: Path, registry: Runs
) -> None:
    stream = sse(asking(tmp_path), registry=registry, detach=True)
    own = registry.get(stream.run_id)
    request = the_request(own)
    others = Runs(registry.folder.path).get(stream.run_id)
    assert wait_until(lambda: others.open_requests)
    others.answer(request.id, False, message="the first")
    with pytest.raises(NotAskedError):
        own.answer(request.id, True)
    _, result = ended(stream)
    assert [denial["reason"] for denial in result["permission_denials"]] == ["the first"]


@pytest.mark.slow
def test_another_worker_stops_a_run_that_waits_for_an_answer(worker: RunHandle) -> None:
    the_request(worker)
    worker.abort()
    _, result = ended(sse(worker))
    assert result["error_subtype"] == "aborted"


def test_a_run_that_asks_nobody_takes_no_answer(tmp_path: Path, any_registry: Registry) -> None:
    handle = any_registry.start(quick(["hang"]).start("hi"))
    with pytest.raises(NotAskedError):
        handle.answer("1", True)
    with pytest.raises(UnsupportedOperationError):
        handle.steer("more")
    handle.abort()
    ended(sse(handle))
    with pytest.raises(UnsupportedOperationError):
        handle.steer("more")


def test_a_visitor_gives_answers_and_input_on(tmp_path: Path) -> None:
    visitor = Visitor()
    request = PermissionRequest("r1", "Ask")
    given: list[Allow | Deny] = []
    asker = threading.Thread(target=lambda: given.append(visitor(request)))
    asker.start()
    assert wait_until(lambda: visitor.open_requests)
    visitor.answer("r1", Allow(answers={"Which?": "B"}))
    asker.join()
    assert given == [Allow(answers={"Which?": "B"})]
    assert visitor.open_requests == []
