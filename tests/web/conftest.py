"""Fixtures for the web tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from remoteclaw_sync.web import Runs
from remoteclaw_sync.web.handle import Registry

pytest.register_assert_rewrite("tests.web.streams", "tests.web.servers", "tests.web.client", "tests.web.browser")

from tests.web.browser import Browser, NewBrowser, Opener, Starter, browser, needs_browser  # noqa: E402
from tests.web.registries import Place, redis_place  # noqa: E402
from tests.web.servers import Server  # noqa: E402 - its asserts are rewritten only if that was asked for before


@pytest.fixture
def registry(tmp_path: Path) -> Runs:
    """A registry just for this test."""
    return Runs(tmp_path / "runs")


SEVERAL = pytest.param("several machines", marks=[pytest.mark.slow, pytest.mark.redis])


@pytest.fixture(params=["one machine", SEVERAL])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Where the runs of a test are kept: what holds on one machine must hold on several."""
    if request.param == "one machine":
        made = Place(str(tmp_path / "runs"))
    else:
        made = redis_place(request.getfixturevalue("redis_url"), tmp_path)
    yield made
    made.close()


@pytest.fixture
def any_registry(place: Place) -> Registry:
    """A registry just for this test, of either kind."""
    return place.open()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Starter]:
    """Starts `remoteclaw-sync serve` in its own folder."""
    needs_browser()
    with ExitStack() as stack:

        def start(*options: str, pace: float = 0.0, cwd: Path | None = None, port: int | None = None) -> Server:
            folder = cwd or tmp_path / "work"
            folder.mkdir(exist_ok=True)
            command = ("-m", "remoteclaw_sync", "serve", "--port", "0", "--provider", "demo", "--cwd", str(folder))
            more = () if port is None else ("--port", str(port))
            server = Server(*command, *more, *options, folder=tmp_path / "server", REMOTECLAW_DEMO_PACE=str(pace))
            return stack.enter_context(server)

        yield start


@pytest.fixture
def new_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewBrowser]:
    """Starts a browser."""
    with ExitStack() as stack:
        # Not the test's own folder, because its path is too long for the socket that Chromium puts into it.
        yield lambda: stack.enter_context(browser(tmp_path_factory.mktemp("b")))


@pytest.fixture(scope="module")
def kept_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests of a file, because it takes seconds to start."""
    needs_browser()
    with browser(tmp_path_factory.mktemp("b")) as kept:
        yield kept


@pytest.fixture
def page(kept_browser: Browser) -> Iterator[Opener]:
    """Opens a server's page in a new tab, which shares nothing with other tests' tabs: each server has its own
    origin."""
    (first,) = kept_browser.driver.window_handles
    opened: list[str] = []

    def open_page(server: Server) -> Browser:
        kept_browser.driver.switch_to.new_window("tab")
        opened.append(f"http://127.0.0.1:{server.port}")
        kept_browser.open(server.address)
        return kept_browser

    yield open_page
    kept_browser.close_tabs(but=first)
    kept_browser.forget(opened)
