"""The chat page, in a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.web.browser import Browser, browser, needs_browser
from tests.web.servers import Server

pytestmark = pytest.mark.timeout(180)

ENTER, SHIFT_ENTER, ESCAPE, TAB = "\ue007", "\ue008\ue007\ue008", "\ue00c", "\ue004"
EVIL = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script> [link](javascript:alert(1))"

Opener = Callable[..., Browser]
Starter = Callable[..., Server]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Starter]:
    """Starts `remoteclaw-sync serve` in a folder of its own."""
    needs_browser()
    with ExitStack() as stack:

        def start(pace: float = 0.0, cwd: Path | None = None) -> Server:
            folder = cwd or tmp_path / "work"
            folder.mkdir(exist_ok=True)
            command = ("-m", "remoteclaw_sync", "serve", "--port", "0", "--provider", "demo", "--cwd", str(folder))
            server = Server(*command, folder=tmp_path / "server", REMOTECLAW_DEMO_PACE=str(pace))
            return stack.enter_context(server)

        yield start


@pytest.fixture
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opener]:
    """Opens a server's page in a new browser."""
    with ExitStack() as stack:

        def open_page(server: Server, **size: int) -> Browser:
            # Not the test's own folder, whose name is too long for the socket that Chromium puts into it.
            opened = stack.enter_context(browser(tmp_path_factory.mktemp("b"), **size))
            opened.open(server.address)
            return opened

        yield open_page


def test_text_streams_in_with_thinking_a_tool_call_and_the_cost(serve: Starter, page: Opener) -> None:
    chat = page(serve(pace=0.05))
    chat.screenshot("1-empty")
    assert chat.driver.current_url.endswith("/"), "the token is out of the address bar"
    chat.type("What is here?" + ENTER)
    chat.until(lambda: chat.count(".agent.busy .text") and "Hello" in chat.text(".agent .text"))
    early = chat.text(".agent .text")
    chat.screenshot("2-streaming")
    assert chat.shows("#stop")
    chat.turns_done(1)
    assert chat.text(".agent .text").startswith(early)
    assert len(chat.text(".agent .text")) > len(early)
    assert not chat.shows("#stop")
    assert chat.text(".me") == "What is here?"
    assert "A look at the folder first" in chat.text("details.thinking")
    assert "tokens in" in chat.text(".cost")
    assert "$0.0000" in chat.text(".cost")
    assert not chat.shows("details.tool pre"), "a tool call is folded"
    chat.click("details.tool summary")
    assert chat.shows("details.tool pre.input")
    assert (chat.text("details.tool b"), chat.text("details.tool .output")) == ("LS", "(empty)")
    chat.screenshot("3-tool-call-open")
    assert chat.complaints() == []


def test_stop_ends_the_agent_and_the_next_turn_continues_its_session(serve: Starter, page: Opener) -> None:
    server = serve()
    chat = page(server)
    chat.type("demo:hang" + ENTER)
    chat.until(lambda: "done" in chat.text("details.tool summary") if chat.count("details.tool") else False)
    assert server.agents()
    chat.click("#stop")
    chat.turns_done(1)
    assert "Stopped." in chat.text(".agent .error")
    assert server.agents() == set()
    chat.screenshot("4-stopped")
    chat.type("Are you there?" + ENTER)
    chat.turns_done(2)
    assert "Welcome back: this is our session, resumed." in chat.text()
    chat.screenshot("5-second-turn")


def test_a_reload_in_the_middle_goes_on_and_loses_nothing(serve: Starter, page: Opener) -> None:
    server = serve(pace=0.04)
    chat = page(server)
    chat.type("Once more" + ENTER)
    chat.until(lambda: chat.count(".agent .text") and "Hello" in chat.text(".agent .text"))
    chat.reload()
    chat.until(lambda: chat.count(".agent .text") and "Hello" in chat.text(".agent .text"))
    chat.screenshot("6-reloaded-while-streaming")
    assert chat.count(".agent.busy") == 1
    chat.turns_done(1)
    whole = chat.text(".agent .text")
    assert whole.startswith("Hello! This is the demo agent. You asked: “Once more”")
    assert whole.endswith("the same loop prints what they say.\n")
    assert whole.count("Hello!") == 1
    chat.type("And now?" + ENTER)
    chat.turns_done(2)
    chat.reload()
    chat.turns_done(2)
    assert "Welcome back" in chat.text()
    assert chat.complaints() == []


def test_what_is_said_is_never_markup(serve: Starter, page: Opener, tmp_path: Path) -> None:
    """In the prompt, the answer (which quotes it), a tool's output (a file's name) and its input."""
    folder = tmp_path / "evil"
    folder.mkdir()
    (folder / "<img src=x onerror=document.title='owned'>").touch()
    chat = page(serve(cwd=folder))
    chat.type(EVIL + ENTER)
    chat.turns_done(1)
    assert chat.text(".me") == EVIL
    assert "<img src=x onerror=document.title='owned'>" in chat.text(".agent .text")
    assert "<img src=x" in chat.text("details.tool .output")
    assert chat.count("#log img, #log script, #log a") == 0
    assert chat.driver.title == "remoteclaw-sync"
    chat.click("details.tool summary")
    chat.screenshot("7-markup-is-text")


def test_the_keyboard_is_enough(serve: Starter, page: Opener) -> None:
    chat = page(serve())
    focused = chat.driver.switch_to.active_element
    assert focused.get_attribute("id") == "prompt"
    chat.type("one" + SHIFT_ENTER + "two")
    assert focused.get_attribute("value") == "one\ntwo"
    assert chat.count(".me") == 0
    focused.clear()
    chat.type("demo:hang" + ENTER)
    chat.until(lambda: chat.count("details.tool .output"))
    chat.type(ESCAPE, "body")
    chat.turns_done(1)
    assert "Stopped." in chat.text(".agent .error")
    chat.type(TAB)
    assert chat.driver.switch_to.active_element.get_attribute("id") == "send"


def test_dark_mode_stays_after_a_reload_and_uninstalled_agents_cannot_be_chosen(serve: Starter, page: Opener) -> None:
    chat = page(serve())
    before = chat.find("body").value_of_css_property("background-color")
    chat.click("#theme")
    dark = chat.find("body").value_of_css_property("background-color")
    assert dark != before
    chat.reload()
    assert chat.find("body").value_of_css_property("background-color") == dark
    chat.type("Hello" + ENTER)
    chat.turns_done(1)
    chat.screenshot("8-dark")
    options = {option.get_attribute("value"): option for option in chat.driver.find_elements("css selector", "option")}
    assert set(options) == {"claude", "gemini", "codex", "opencode", "demo"}
    assert options["demo"].is_enabled()
    chat.click("#fresh")
    chat.until(lambda: chat.count("#provider option") and chat.count(".agent") == 0)
    assert chat.shows("#hint")


def test_on_a_phone_nothing_is_wider_than_the_screen(serve: Starter, page: Opener) -> None:
    chat = page(serve(), width=500, height=800)
    chat.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 375, "height": 667, "deviceScaleFactor": 2, "mobile": True}
    )
    chat.type("w" * 300 + ENTER)
    chat.turns_done(1)
    chat.click("details.tool summary")
    wide, visible = chat.driver.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide <= visible == 375
    for selector in ("#send", "#provider", "#theme"):
        assert chat.find(selector).size["height"] >= 44, "large enough for a finger"
    chat.screenshot("9-phone")
