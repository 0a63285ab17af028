"""Flask under gunicorn's gevent worker, where all requests are greenlets of one thread."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.fakes import wait_until
from tests.web.servers import Server, Visitor, get_json, gunicorn_on_gevent, needs
from tests.web.streams import check_whole

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is left of a visitor is read from /proc")

SHORT = 0.9  # A heartbeat in seconds: long enough for a busy machine, short enough for a test.


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    needs("flask", "gunicorn", "gevent")
    with gunicorn_on_gevent("flask_site", tmp_path_factory.mktemp("site")) as server:
        yield server


def test_an_answer_arrives_whole(site: Server) -> None:
    with Visitor(site, "/ask", prompt="hi") as visitor:
        check_whole(visitor.rest())
    assert site.is_clean()


def test_a_run_that_waits_for_its_agent_does_not_keep_others_from_being_served(site: Server) -> None:
    """The first agent says a word and hangs; meanwhile the second visitor's agent starts, answers and ends."""
    with Visitor(site, "/ask", prompt="demo:hang", heartbeat=SHORT) as first:
        assert first.frame().event == "thinking"
        with Visitor(site, "/ask", prompt="hi") as second:
            check_whole(second.rest())
        assert site.agents(), "the first one is still there"
        while not first.block().startswith(b":"):
            pass
    assert site.is_clean()


def test_another_request_aborts_a_run(site: Server) -> None:
    with Visitor(site, "/ask", prompt="demo:hang", heartbeat=SHORT) as visitor:
        visitor.frame()
        get_json(site, f"/abort/{visitor.response.headers['X-Run-ID']}", "POST")
        *_, error, done = visitor.rest()
    assert (error.data["code"], done.data["result"]["aborted"]) == ("ABORTED", True)
    assert site.is_clean()


def test_a_visitor_who_leaves_takes_the_agent_along(site: Server) -> None:
    with Visitor(site, "/ask", prompt="demo:hang", heartbeat=SHORT) as visitor:
        visitor.frame()
        assert site.agents()
    assert wait_until(lambda: not site.agents())
    assert site.is_clean()


def test_twenty_visitors_at_once_get_their_answers(site: Server) -> None:
    visitors = [Visitor(site, "/ask", prompt="hi") for _ in range(20)]
    for visitor in visitors:
        with visitor:
            check_whole(visitor.rest())
    assert site.is_clean()
