"""The chat page, in a browser."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.web.browser import ENTER, ESCAPE, SHIFT_ENTER, TAB, Browser, NewBrowser, Opener, Starter

pytestmark = pytest.mark.timeout(180)

EVIL = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script> [link](javascript:alert(1))"


def test_text_streams_in_with_thinking_a_tool_call_and_the_cost(serve: Starter, page: Opener) -> None:
    server = serve(pace=0.05)
    chat = page(server)
    chat.screenshot("1-empty")
    assert chat.driver.current_url == f"http://127.0.0.1:{server.port}/", "the token is out of the address bar"
    chat.type("What is here?" + ENTER)
    chat.until(lambda: chat.count(".agent.busy .text") and "Hello" in chat.text(".agent .text"))
    early = chat.text(".agent .text")
    chat.screenshot("2-streaming")
    assert chat.shows("#stop")
    chat.turns_done(1)
    assert chat.text(".agent .text").startswith(early)
    assert len(chat.text(".agent .text")) > len(early)
    assert not chat.shows("#stop")
    assert chat.text(".me .words") == "What is here?"
    assert "A look at the folder first" in chat.text("details.thinking")
    assert "tokens in" in chat.text(".cost")
    assert "$0.0000" in chat.text(".cost")
    assert "1 turn ·" in chat.text("#totals")
    assert chat.count("details.tool pre") == 0, "a tool call is folded"
    chat.click("details.tool summary")
    chat.until(lambda: chat.count("details.tool pre.output") and chat.shows("details.tool pre.input"))
    assert (chat.text("details.tool b"), chat.text("details.tool .output")) == ("LS", "(empty)")
    assert re.fullmatch(r"\d+\.\d s", chat.text("details.tool .time"))
    chat.screenshot("3-tool-call-open")
    assert chat.complaints() == []


def test_stop_ends_the_turn_and_keeps_the_session_with_its_process(serve: Starter, page: Opener) -> None:
    server = serve()
    chat = page(server)
    chat.type("demo:hang" + ENTER)
    chat.until(lambda: chat.count("details.tool[data-state=done]"))
    (agent,) = server.agents()
    chat.click("#stop")
    chat.turns_done(1)
    assert "Stopped." in chat.text(".agent .error")
    chat.screenshot("4-stopped")
    chat.type("Are you there?" + ENTER)
    chat.turns_done(2)
    assert "This is turn 2 of our session." in chat.text()
    assert server.agents() == {agent}
    chat.screenshot("5-second-turn")


def test_a_reload_in_the_middle_goes_on_and_loses_nothing(serve: Starter, page: Opener) -> None:
    server = serve(pace=0.04)
    chat = page(server)
    chat.type("demo:wait" + ENTER)
    chat.until(lambda: chat.count(".agent .text") and "I wait" in chat.text(".agent .text"))
    chat.reload()
    chat.until(lambda: chat.count(".agent .text") and "I wait" in chat.text(".agent .text"))
    chat.screenshot("6-reloaded-while-streaming")
    assert chat.count(".agent.busy") == 1
    chat.type("Once more" + ENTER)
    chat.turns_done(1)
    whole = chat.text(".agent")
    assert "A look at the folder first" in whole
    assert whole.count("I wait for further words.") == 1
    assert whole.count("You added: “Once more” I have taken it in.") == 1
    chat.type("And now?" + ENTER)
    chat.turns_done(2)
    chat.reload()
    chat.turns_done(2)
    assert "This is turn 2 of our session." in chat.text()
    assert chat.complaints() == []


def test_what_is_said_is_never_markup(serve: Starter, page: Opener, tmp_path: Path) -> None:
    """In the prompt, the answer (which quotes it), a tool's output (a file name) and its input."""
    folder = tmp_path / "evil"
    folder.mkdir()
    (folder / "<img src=x onerror=document.title='owned'>").touch()
    chat = page(serve(cwd=folder))
    chat.type(EVIL + ENTER)
    chat.turns_done(1)
    assert chat.text(".me .words") == EVIL
    assert "<img src=x onerror=document.title='owned'>" in chat.text(".agent .text")
    chat.click("details.tool summary")
    chat.until(lambda: chat.count("details.tool .output"))
    assert "<img src=x" in chat.text("details.tool .output")
    assert chat.count("#log img, #log script, #log a") == 0
    assert chat.driver.title == "remoteclaw-sync"
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
    chat.until(lambda: chat.count("details.tool[data-state=done]"))
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
    found = chat.driver.find_elements("css selector", "#provider option")
    options = {option.get_attribute("value"): option for option in found}
    assert set(options) == {"claude", "gemini", "codex", "opencode", "demo"}
    assert options["demo"].is_enabled()
    chat.click("#fresh")
    chat.until(lambda: chat.count(".agent") == 0)
    assert chat.shows("#hint")
    assert chat.text("#conversations .title") == "Hello", "the one before is in the list"


def test_on_a_phone_nothing_is_wider_than_the_screen(serve: Starter, page: Opener) -> None:
    chat = page(serve())
    chat.on_a_phone()
    chat.type("w" * 300 + ENTER)
    chat.turns_done(1)
    chat.click("details.tool summary")
    wide, visible = chat.driver.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide <= visible == 375
    for selector in ("#send", "#provider", "#theme"):
        assert chat.find(selector).size["height"] >= 44, "large enough for a finger"
    chat.screenshot("9-phone")


# --- who is let in ---------------------------------------------------------------------------------------------


@contextmanager
def another_server() -> Iterator[tuple[int, list[str]]]:
    """Somebody else's server, on another port of this host; with what it receives (requests and headers)."""
    heard: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(f"{self.path}\n{self.headers}")
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(
                b"<title>other</title><script>fetch('/steal').then(() => document.title = 'tried')</script>"
            )

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port, heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def secrets_of(chat: Browser) -> str:
    return str(chat.driver.execute_script("return sessionStorage.getItem('remoteclaw-sync-session')"))


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_another_server_on_this_host_gets_nothing_that_lets_it_in(name: str, serve: Starter, page: Opener) -> None:
    server = serve()
    chat = page(server)
    session = secrets_of(chat)
    assert len(session) == 32
    with another_server() as (port, heard):
        chat.driver.get(f"http://{name}:{port}/land")
        chat.until(lambda: chat.driver.title == "tried")
        seen = chat.driver.execute_script("return [document.cookie, JSON.stringify(sessionStorage), document.referrer]")
    assert seen == ["", "{}", ""]
    assert len(heard) >= 2
    assert not any(header.lower().startswith("cookie:") for request in heard for header in request.splitlines())
    for secret in (session, server.address.rpartition("=")[2]):
        assert not any(secret in request for request in heard)
    assert chat.driver.get_cookies() == []


def test_what_the_browser_remembers_of_the_link_lets_nobody_in(
    serve: Starter, page: Opener, new_browser: NewBrowser
) -> None:
    """An address stays in the browser's history, including its fragment, so it must be worthless."""
    server = serve()
    page(server)
    later = new_browser()
    later.driver.get(server.address)
    later.until(lambda: "not signed in" in later.text())
    assert "remoteclaw-sync serve" in later.text(), "it says where there is another link"
    assert not later.shows("#form")
    later.screenshot("10-used-link")
    assert server.address.rpartition("=")[2] not in later.driver.current_url


def test_a_tab_without_a_link_is_told_where_to_find_one_and_a_pasted_link_lets_it_in(
    serve: Starter, new_browser: NewBrowser
) -> None:
    server = serve()
    chat = new_browser()
    chat.driver.get(f"http://127.0.0.1:{server.port}/")
    chat.until(lambda: "newest link" in chat.text())
    chat.open(server.address)
    chat.type("Hello" + ENTER)
    chat.turns_done(1)
    assert [line for line in chat.complaints() if "403" not in line] == []


def test_a_second_tab_opens_with_the_next_link_and_the_first_stays(serve: Starter, page: Opener) -> None:
    server = serve()
    chat = page(server)
    first = chat.driver.current_window_handle
    chat.until(lambda: server.output.count("#token=") == 2)
    chat.driver.switch_to.new_window("tab")
    chat.open(re.findall(r"http://\S+", server.output)[-1])
    chat.type("From the second" + ENTER)
    chat.turns_done(1)
    chat.driver.switch_to.window(first)
    chat.type("From the first" + ENTER)
    chat.turns_done(1)
    chat.driver.get(server.address)  # The used link, in a tab that is already in.
    chat.reload()
    chat.turns_done(1)
    assert "From the first" in chat.text()


def test_a_lost_connection_is_said_and_a_server_that_has_started_anew_asks_for_its_own_link(
    serve: Starter, page: Opener
) -> None:
    server = serve()
    chat = page(server)
    chat.type("demo:hang" + ENTER)
    chat.until(lambda: chat.count("details.tool[data-state=done]"))
    server.stop(signal.SIGKILL)
    chat.until(lambda: chat.count(".lost"))
    chat.screenshot("11-lost")
    again = serve(port=server.port)
    chat.until(lambda: "not signed in" in chat.text())
    assert not chat.count(".busy")
    assert not chat.count(".lost")
    chat.screenshot("12-new-server")
    chat.driver.get(again.address)
    chat.until(lambda: chat.count("#provider option"))
    chat.type("Hello" + ENTER)
    chat.turns_done(1)
