"""Flask and Django on real servers, with real HTTP clients."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fakes import wait_until
from tests.web.servers import Server, Visitor, get_json, gunicorn, needs, waitress
from tests.web.streams import check_whole, text_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is left of a visitor is read from /proc")

SITES = {
    "flask on waitress": ("flask", "waitress"),
    "flask on gunicorn": ("flask", "gunicorn"),
    "django on gunicorn": ("django", "gunicorn"),
}
SHORT = 0.9  # A heartbeat in seconds: long enough for a busy machine, short enough for a test.
VISITORS = 100
LEAVERS = 10


@pytest.fixture(scope="module", params=SITES)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    framework, program = SITES[request.param]
    needs(framework, program)
    start = {"waitress": waitress, "gunicorn": gunicorn}[program]
    with start(f"{framework}_site", tmp_path_factory.mktemp("site")) as server:
        yield server


def test_the_first_byte_comes_before_the_agent_has_finished(site: Server) -> None:
    with Visitor(site, "/ask", prompt="demo:hang", heartbeat=SHORT) as visitor:
        assert visitor.response.status == 200
        assert visitor.response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert visitor.response.headers["Cache-Control"] == "no-cache, no-store, no-transform"
        assert visitor.response.headers["X-Accel-Buffering"] == "no"
        first = visitor.frame()
        assert (first.event, first.number) == ("thinking", 1)
        assert first.id.startswith(visitor.response.headers["X-Run-ID"])
        assert site.agents(), "the agent is still there"
    assert site.is_clean()


def test_a_silent_agent_is_heard_by_heartbeats(site: Server) -> None:
    with Visitor(site, "/ask", prompt="demo:hang", heartbeat=SHORT) as visitor:
        beats = 0
        while beats < 3:
            beats += visitor.block().startswith(b":")
    assert site.is_clean()


def test_ndjson_comes_line_by_line(site: Server) -> None:
    with Visitor(site, "/ask", prompt="hi", format="ndjson") as visitor:
        lines = [json.loads(line) for line in visitor.response.read().splitlines()]
    assert lines[0]["type"] == "thinking"
    assert lines[-1]["type"] == "done"


def test_a_hundred_visitors_each_get_their_answer(site: Server) -> None:
    def visit(number: int) -> str:
        with Visitor(site, "/ask", prompt=f"visitor {number}") as visitor:
            found = visitor.rest()
        check_whole(found)
        return text_of(found)

    with ThreadPoolExecutor(VISITORS) as pool:
        answers = list(pool.map(visit, range(VISITORS)))
    for number, answer in enumerate(answers):
        assert f"“visitor {number}”" in answer
    assert site.is_clean()


def test_of_ten_who_leave_in_the_middle_nothing_is_left(site: Server) -> None:
    """Five while the agent talks, five while it is silent."""
    talking = [Visitor(site, "/ask", prompt="hi", pace=0.2, heartbeat=SHORT) for _ in range(LEAVERS // 2)]
    silent = [Visitor(site, "/ask", prompt="demo:hang", heartbeat=SHORT) for _ in range(LEAVERS // 2)]
    for visitor in [*talking, *silent]:
        visitor.frame()
    assert wait_until(lambda: len(site.agents()) == LEAVERS)
    for visitor in [*talking, *silent]:
        visitor.leave()
    assert site.is_clean()
    assert not list(site.runs_folder.glob("*.live"))


def test_last_event_id_goes_on_without_gap_or_repeat(site: Server) -> None:
    """On gunicorn, either of the two workers may answer."""
    with Visitor(site, "/ask", prompt="hi", pace=0.005, detach=1) as visitor:
        seen = [visitor.frame() for _ in range(5)]
    for _ in range(4):
        with Visitor(site, "/ask", {"Last-Event-ID": seen[-1].id}) as visitor:
            seen += [visitor.frame() for _ in range(5)]
    with Visitor(site, "/ask", {"Last-Event-ID": seen[-1].id}) as visitor:
        seen += visitor.rest()
    check_whole(seen)
    assert seen[-1].data["result"]["error_subtype"] is None
    assert site.is_clean()


def test_another_request_aborts_a_run_also_in_another_worker(site: Server) -> None:
    """On gunicorn either of the two workers may get the second request."""
    with Visitor(site, "/ask", prompt="demo:hang", heartbeat=SHORT) as visitor:
        visitor.frame()
        workers = get_json(site, f"/abort/{visitor.response.headers['X-Run-ID']}", "POST")
        assert workers["worker"] in site.workers()
        *_, error, done = visitor.rest()
    assert (error.data["code"], done.data["result"]["aborted"]) == ("ABORTED", True)
    assert site.is_clean()
