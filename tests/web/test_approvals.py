"""Approvals and further words on real servers, with real HTTP clients, in whichever worker they arrive."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.fakes import wait_until
from tests.web.servers import Server, Visitor, get_json, gunicorn, needs, waitress
from tests.web.streams import Frame, text_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is left of a visitor is read from /proc")

SITES: dict[str, tuple[str, str, Callable[[str, Path], Server]]] = {
    "flask on waitress": ("flask", "waitress", waitress),
    "flask on gunicorn": ("flask", "gunicorn", gunicorn),
    "django on gunicorn": ("django", "gunicorn", gunicorn),
}
SHORT = 0.9  # A heartbeat in seconds.
LONG = 300  # Seconds to wait for an answer.
WORK = "run a command"
RAN = "The command was run."
FORGED = "0" * 32


def begin(which: str, folder: Path) -> Server:
    framework, program, start = SITES[which]
    needs(framework, program)
    return start(f"{framework}_site", folder)


@pytest.fixture(scope="module", params=SITES)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with begin(request.param, tmp_path_factory.mktemp("site")) as server:
        yield server


def ask(site: Server, prompt: str = WORK, **query: Any) -> Visitor:
    return Visitor(site, "/ask", prompt=prompt, **{"heartbeat": SHORT, "approval_timeout": LONG, **query})


def run_of(visitor: Visitor) -> str:
    return visitor.response.headers["X-Run-ID"]


def request_of(visitor: Visitor) -> Frame:
    """The event in which the agent asks."""
    while (found := visitor.frame()).event != "permission":
        pass
    return found


def post(site: Server, path: str, **query: Any) -> str:
    said: str = get_json(site, f"{path}?{urlencode(query)}", "POST")["said"]
    return said


def answer(site: Server, run_id: str, request_id: str, allow: bool, **query: Any) -> str:
    return post(site, f"/answer/{run_id}", request_id=request_id, allow="yes" if allow else "no", **query)


def by_another_worker(site: Server, attempt: Callable[[str], str]) -> str:
    """What a worker other than the run's own says, if the site has several; the kernel chooses who gets a request."""
    elsewhere = "yes" if len(site.workers()) > 1 else ""
    said: list[str] = []

    def once() -> bool:
        said.append(attempt(elsewhere))
        return said[-1] != "not here"

    assert wait_until(once)
    return said[-1]


@pytest.mark.parametrize("allow", [True, False])
def test_another_worker_takes_the_answer(site: Server, allow: bool) -> None:
    with ask(site) as visitor:
        asked = request_of(visitor).data["request"]
        assert (asked["tool_name"], "pwd" in asked["input"]["command"]) == ("Bash", True)
        query = {"run_id": run_of(visitor), "request_id": asked["id"], "allow": allow, "message": "Not now."}
        assert by_another_worker(site, lambda elsewhere: answer(site, **query, elsewhere=elsewhere)) == "answered"
        rest = visitor.rest()
    assert (RAN in text_of(rest)) == allow
    denials = rest[-1].data["result"]["permission_denials"]
    assert [denial["reason"] for denial in denials] == ([] if allow else ["Not now."])
    assert site.is_clean()


def test_an_answer_counts_once_and_for_its_own_run_and_request_only(site: Server) -> None:
    with ask(site, detach=1) as one, ask(site, detach=1) as other:
        mine, theirs = request_of(one).data["request"]["id"], request_of(other).data["request"]["id"]
        assert answer(site, run_of(one), theirs, True) == "NotAskedError"
        assert answer(site, run_of(one), "forged", True) == "NotAskedError"
        assert answer(site, FORGED, mine, True) == "UnknownRunError"
        assert answer(site, f"x/..%2F{run_of(one)}", mine, True) == "UnknownRunError"
        assert answer(site, run_of(one), mine, False) == "answered"
        assert {answer(site, run_of(one), mine, True) for _ in range(8)} == {"NotAskedError"}  # From either worker.
        assert get_json(site, f"/open/{run_of(other)}")["open"] == [theirs]
        found = one.rest()
        get_json(site, f"/abort/{run_of(other)}", "POST")
        assert other.rest()[-1].data["result"]["aborted"]
    assert len(found[-1].data["result"]["permission_denials"]) == 1
    assert RAN not in text_of(found)
    assert site.is_clean()


def test_what_nobody_answers_is_refused(site: Server) -> None:
    with ask(site, approval_timeout=0.3) as visitor:
        found = visitor.rest()
    (denial,) = found[-1].data["result"]["permission_denials"]
    assert denial["reason"] == "Nobody answered in time."
    assert RAN not in text_of(found)
    (asked,) = (one.data["request"]["id"] for one in found if one.event == "permission")
    assert answer(site, run_of(visitor), asked, True) in ("NotAskedError", "UnknownRunError")
    assert site.is_clean()


def test_of_a_visitor_who_leaves_while_a_request_is_open_nothing_is_left(site: Server) -> None:
    visitor = ask(site)
    asked = request_of(visitor).data["request"]["id"]
    visitor.leave()
    assert site.is_clean()
    assert answer(site, run_of(visitor), asked, True) == "UnknownRunError"
    assert not list(site.runs_folder.glob("*.asks"))


def test_a_visitor_who_comes_back_sees_the_open_request_and_answers_it(site: Server) -> None:
    with ask(site, detach=1) as visitor:
        asked = request_of(visitor)
    for _ in range(3):  # From either worker.
        with Visitor(site, "/ask", {"Last-Event-ID": asked.id}) as again:
            found = again.frame()
            assert (found.event, found.data["request"]["id"]) == ("permission", asked.data["request"]["id"])
    with Visitor(site, "/ask", {"Last-Event-ID": asked.id}) as again:
        assert answer(site, run_of(again), asked.data["request"]["id"], True) == "answered"
        assert RAN in text_of(again.rest())
    assert site.is_clean()


def test_another_worker_takes_further_words(site: Server) -> None:
    with ask(site, "demo:wait") as visitor:
        words = ""
        while "further words." not in words:
            words += visitor.frame().data.get("text", "")
        path = f"/steer/{run_of(visitor)}"
        said = by_another_worker(site, lambda elsewhere: post(site, path, text="only the tests", elsewhere=elsewhere))
        assert said == "passed on"
        assert "You added: “only the tests”" in text_of(visitor.rest())
    assert site.is_clean()


@pytest.mark.parametrize("which", SITES)
def test_after_a_restart_the_run_has_ended_and_takes_no_answer(which: str, tmp_path: Path) -> None:
    with begin(which, tmp_path) as site:
        with ask(site, detach=1) as visitor:
            asked = request_of(visitor)
        run_id = run_of(visitor)
        site.stop()
        assert wait_until(lambda: not site.agents())
    with begin(which, tmp_path) as again:
        assert get_json(again, f"/open/{run_id}")["open"] == []
        assert answer(again, run_id, asked.data["request"]["id"], True) == "NotAskedError"
        with Visitor(again, "/ask", {"Last-Event-ID": asked.id}) as later:
            found = later.rest()
    assert found[-1].data["result"]["error_subtype"] in ("crash", "aborted")
    assert "permission" not in [one.event for one in found]
    assert RAN not in text_of(found)


def test_a_worker_that_is_killed_while_it_asks_leaves_no_agent_and_no_open_request(tmp_path: Path) -> None:
    with begin("flask on gunicorn", tmp_path) as site, ask(site, detach=1) as visitor:
        asked = request_of(visitor)
        run_id = run_of(visitor)
        os.kill(site.worker_of_the_agent(), signal.SIGKILL)
        assert wait_until(lambda: not site.agents())
        assert get_json(site, f"/open/{run_id}")["open"] == []
        assert answer(site, run_id, asked.data["request"]["id"], True) == "NotAskedError"
        with Visitor(site, "/ask", {"Last-Event-ID": asked.id}) as later:
            found = later.rest()
    assert [one.data.get("code") for one in found] == ["WORKER_DIED", None]
