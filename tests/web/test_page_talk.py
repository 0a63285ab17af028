"""The chat page in a browser: warm sessions, approvals, further words, settings, images. With the demo agent."""

from __future__ import annotations

import base64
import re
import time
from pathlib import Path

import pytest

from tests.fakes import wait_until
from tests.web.browser import ALT, CONTROL_ENTER, ENTER, SPACE, TAB, Browser, Opener, Starter

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
COMMAND = "Please run a command."
EDIT = "Please edit a file."


def ask(chat: Browser, prompt: str, turns: int) -> None:
    """Send a prompt and wait for the end of the turn, the nth."""
    chat.type(prompt + ENTER)
    chat.turns_done(turns)


def request(chat: Browser, prompt: str) -> None:
    """Send a prompt and wait until the agent asks."""
    chat.type(prompt + ENTER)
    chat.until(lambda: chat.count(".card .allow"))


# --- sessions ------------------------------------------------------------------------------------------------------


def test_a_warm_process_serves_the_turns_of_a_conversation(serve: Starter, page: Opener) -> None:
    server = serve()
    chat = page(server)
    ask(chat, "First", 1)
    agents = server.agents()
    assert len(agents) == 1
    ask(chat, "Second", 2)
    assert server.agents() == agents
    assert "This is turn 2 of our session." in chat.text()


def test_a_past_conversation_is_opened_from_the_list_and_goes_on(serve: Starter, page: Opener) -> None:
    server = serve()
    chat = page(server)
    ask(chat, "About apples", 1)
    chat.click("#fresh")
    ask(chat, "About pears", 1)
    assert "apples" not in chat.text()
    titles = "return [...document.querySelectorAll('#conversations .title')].map((one) => one.textContent)"
    chat.until(lambda: chat.script(titles) == ["About pears", "About apples"] and not chat.count("li.running"))
    chat.click("#conversations li:nth-child(2) .open")
    chat.until(lambda: "apples" in chat.text() and chat.count(".cost") == 1)
    assert "pears" not in chat.text()
    assert chat.text("#conversations [aria-current] .title") == "About apples"
    ask(chat, "More of them", 2)
    assert "This is turn 2 of our session." in chat.text()


def test_a_conversation_is_deleted_with_all_that_was_said(serve: Starter, page: Opener, tmp_path: Path) -> None:
    server = serve("--keep", str(tmp_path / "kept"))
    chat = page(server)
    ask(chat, "A secret thing", 1)
    assert server.agents()
    chat.click("#conversations .remove")
    assert chat.text("#conversations .remove") == "Delete?"
    assert chat.count(".agent") == 1, "not before it is said twice"
    chat.click("#conversations .remove")
    chat.until(lambda: chat.count("#conversations li") == 0 and chat.count(".agent") == 0)
    assert wait_until(lambda: not server.agents())
    assert [path for path in (tmp_path / "kept").rglob("*") if path.suffix in (".run", ".chat")] == []


def test_conversations_that_are_kept_are_resumed_with_the_next_server(
    serve: Starter, page: Opener, tmp_path: Path
) -> None:
    server = serve("--keep", str(tmp_path / "kept"))
    ask(page(server), "Remember me", 1)
    server.stop()
    chat = page(serve("--keep", str(tmp_path / "kept")))
    chat.click("#conversations .open")
    chat.until(lambda: chat.count(".cost") == 1)
    assert "You asked: “Remember me”" in chat.text(".agent .text")
    ask(chat, "Go on", 2)
    assert "This is turn 2 of our session." in chat.text()


# --- approvals -----------------------------------------------------------------------------------------------------


def test_an_approval_is_a_card_that_shows_the_command_and_allows_it(serve: Starter, page: Opener) -> None:
    chat = page(serve())
    request(chat, COMMAND)
    assert chat.text(".card h3") == "May demo use Bash?"
    assert "echo 'The demo agent ran this" in chat.text(".card pre")
    assert chat.driver.title.startswith("❓")
    assert chat.find("#prompt") == chat.driver.switch_to.active_element, "it does not take the focus"
    chat.screenshot("20-approval")
    chat.click(".card .allow")
    chat.turns_done(1)
    assert chat.text(".card .outcome") == "Allowed."
    assert "The command was run." in chat.text(".agent .text")
    chat.reload()
    chat.turns_done(1)
    assert chat.text(".card .outcome") == "Allowed.", "it is still known after a reload"
    assert chat.count(".card button") == 0


def test_a_refusal_tells_the_agent_why(serve: Starter, page: Opener) -> None:
    chat = page(serve())
    request(chat, COMMAND)
    chat.type("Not on a Friday.", ".card .why")
    chat.click(".card .deny")
    chat.turns_done(1)
    assert chat.text(".card .outcome") == "Denied."
    assert "I was told: “Not on a Friday.”" in chat.text(".agent .text")
    assert chat.count("details.tool[data-state=failed]") == 1


def test_allowing_for_this_session_asks_no_second_time(serve: Starter, page: Opener) -> None:
    chat = page(serve())
    request(chat, COMMAND)
    assert chat.text(".card .keys").startswith("“For this session” covers this same command.")
    chat.click(".card .remember")
    chat.turns_done(1)
    assert chat.text(".card .outcome") == "Allowed for this session."
    ask(chat, COMMAND, 2)
    assert chat.text().count("The command was run.") == 2
    request(chat, EDIT)
    assert chat.text(".card:not(.answered) .keys").startswith("“For this session” covers all further calls of Write.")


@pytest.mark.parametrize(
    ("keys", "outcome"),
    [(ALT + "y", "Allowed."), (ALT + "n", "Denied."), (ALT + "Y", "Allowed for this session.")],
    ids=["allow", "deny", "for this session"],
)
def test_an_approval_is_answered_by_a_chord_of_keys_and_never_by_typing(
    keys: str, outcome: str, serve: Starter, page: Opener
) -> None:
    chat = page(serve())
    request(chat, COMMAND)
    chat.type("yes, y, allow")
    assert chat.count(".card .allow") == 1
    if keys == ALT + "Y":
        keys = ALT + "\ue008" + "y"
    chat.press(keys)
    chat.turns_done(1)
    assert chat.text(".card .outcome") == outcome
    assert chat.find("#prompt").get_attribute("value") == "yes, y, allow"


def test_the_tab_key_reaches_the_buttons_of_a_card(serve: Starter, page: Opener) -> None:
    chat = page(serve())
    request(chat, COMMAND)
    chat.script("document.getElementById('main').focus()")
    for _ in range(12):
        chat.press(TAB)
        if "allow" in (chat.driver.switch_to.active_element.get_attribute("class") or ""):
            break
    assert chat.driver.switch_to.active_element.text == "Allow"
    chat.press(SPACE)
    chat.turns_done(1)
    assert chat.text(".card .outcome") == "Allowed."


def test_an_edit_is_shown_as_a_diff_before_it_is_allowed_and_after(
    serve: Starter, page: Opener, tmp_path: Path
) -> None:
    chat = page(serve())
    request(chat, EDIT)
    assert chat.text(".card .line.add").endswith("The demo agent wrote this, because somebody allowed it.")
    chat.click(".card .allow")
    chat.turns_done(1)
    request(chat, EDIT)
    assert chat.text(".card .line.add").endswith("And here it was again.")
    assert chat.text(".card .line:not(.add)").strip().startswith("The demo agent wrote this")
    chat.screenshot("21-edit")
    chat.click(".card:not(.answered) .allow")
    chat.turns_done(2)
    assert chat.count("details.tool.edit[open] .line.add") == 2
    assert (tmp_path / "work" / "demo-note.txt").read_text().endswith("And here it was again.\n")


def test_a_question_of_the_agent_is_answered_with_an_option_or_ones_own_words(serve: Starter, page: Opener) -> None:
    chat = page(serve())
    request(chat, "ask me")
    chat.screenshot("22-question")
    chat.click(".card input[value=Orange]")
    chat.click(".card .allow")
    chat.turns_done(1)
    assert "You answered: Which colour should the button have? Orange" in chat.text(".agent .text")
    request(chat, "ask me")
    chat.type("Plaid", ".card:not(.answered) .own")
    chat.click(".card .allow")
    chat.turns_done(2)
    assert "Plaid" in chat.text()


def test_a_request_is_still_open_after_a_reload_and_a_stop_withdraws_it(serve: Starter, page: Opener) -> None:
    chat = page(serve())
    request(chat, COMMAND)
    chat.reload()
    chat.until(lambda: chat.count(".card .allow"))
    chat.click("#stop")
    chat.turns_done(1)
    assert chat.text(".card .outcome") in ("Not answered.", "Answered elsewhere, or too late: nothing was sent.")
    assert chat.count(".card button") == 0
    ask(chat, "Still there?", 2)
    assert "This is turn 2 of our session." in chat.text()


def test_an_agent_that_asks_in_another_conversation_is_seen_and_answered(serve: Starter, page: Opener) -> None:
    chat = page(serve())
    request(chat, COMMAND)
    chat.click("#fresh")
    chat.until(lambda: chat.count("#conversations .asks"))
    assert "demo · asks you" in chat.text("#conversations .asks")
    assert chat.driver.title.startswith("❓")
    chat.until(lambda: chat.text("#status") == f"The agent asks you something, in another conversation: {COMMAND}")
    assert "waits for your answer" in chat.find("#menu").get_attribute("aria-label"), "on a phone the list is folded"
    chat.screenshot("25-asks-elsewhere")
    chat.click("#conversations .asks .open")
    chat.click(".card .deny")
    chat.turns_done(1)
    chat.until(lambda: chat.count("#conversations .asks") == 0)
    assert not chat.driver.title.startswith("❓")


def test_of_two_tabs_the_first_answer_counts(serve: Starter, page: Opener) -> None:
    server = serve()
    chat = page(server)
    request(chat, COMMAND)
    first = chat.driver.current_window_handle
    chat.until(lambda: server.output.count("#token=") == 2)
    chat.driver.switch_to.new_window("tab")
    chat.open(re.findall(r"http://\S+", server.output)[-1])
    chat.until(lambda: chat.count("#conversations .open"))
    chat.click("#conversations .open")
    chat.until(lambda: chat.count(".card .allow"))
    # As if this tab had not yet heard that the other one has answered.
    replay = chat.script("return sessionStorage.getItem('remoteclaw-sync-session')")
    chat.click(".card .deny")
    chat.turns_done(1)
    assert chat.text(".card .outcome") == "Denied."
    chat.driver.switch_to.window(first)
    chat.turns_done(1)
    assert chat.text(".card .outcome") == "Answered elsewhere, or too late: nothing was sent."
    assert "I was not allowed to do that" in chat.text()
    assert replay != chat.script("return sessionStorage.getItem('remoteclaw-sync-session')")


def test_a_turn_that_was_begun_in_another_tab_is_followed(serve: Starter, page: Opener) -> None:
    server = serve()
    chat = page(server)
    ask(chat, "Hello", 1)
    first = chat.driver.current_window_handle
    chat.until(lambda: server.output.count("#token=") == 2)
    chat.driver.switch_to.new_window("tab")
    chat.open(re.findall(r"http://\S+", server.output)[-1])
    chat.click("#conversations .open")
    chat.turns_done(1)
    second = chat.driver.current_window_handle
    chat.driver.switch_to.window(first)
    chat.type("demo:hang" + ENTER)
    chat.until(lambda: chat.count("details.tool[data-state=done]") == 2)
    chat.driver.switch_to.window(second)
    chat.type("At the same time" + ENTER)  # Too late, or passed on to the turn, if this tab has already seen it.
    chat.until(lambda: chat.count(".agent.busy") and "demo:hang" in chat.text())
    chat.click("#stop")
    chat.turns_done(2)
    chat.driver.switch_to.window(first)
    chat.turns_done(2)
    assert "Stopped." in chat.text(".agent .error")


def test_the_time_of_a_tool_call_is_its_own_also_if_somebody_began_to_look_later(serve: Starter, page: Opener) -> None:
    chat = page(serve())
    request(chat, COMMAND)
    began = time.monotonic()
    for _ in range(3):  # The reloads take some time, which must not be lost.
        chat.reload()
        chat.find(".card .allow")
    waited = time.monotonic() - began
    chat.click(".card .allow")
    chat.turns_done(1)
    shown = chat.text("details.tool .time")
    assert float(shown.removesuffix(" s")) > waited - (0.1 if "." in shown else 1), "it is shown with so few digits"


PRESS = """
    const key = { code: "KeyY", altKey: true, bubbles: true, repeat: arguments[0] };
    document.dispatchEvent(new KeyboardEvent("keydown", key));
"""


def test_a_key_that_is_held_down_does_not_answer_the_next_card(serve: Starter, page: Opener) -> None:
    chat = page(serve())
    request(chat, COMMAND)
    chat.script(PRESS, True)
    assert chat.count(".card.answered") == 0
    chat.script(PRESS, False)
    chat.turns_done(1)
    assert chat.count(".card.answered") == 1


# --- further words -------------------------------------------------------------------------------------------------


def test_words_sent_while_the_agent_works_are_taken_in_and_stay_where_they_were_said(
    serve: Starter, page: Opener
) -> None:
    chat = page(serve())
    chat.type("demo:wait" + ENTER)
    chat.until(lambda: "I wait for further words" in chat.text())
    chat.type("Only the tests, please." + ENTER)
    chat.turns_done(1)
    assert "You added: “Only the tests, please.”" in chat.text(".agent")
    assert chat.text(".me.further .words") == "Only the tests, please."
    order = "return [...document.querySelectorAll('.agent .stretch > *')].map((one) => one.className)"
    before = chat.script(order)
    chat.reload()
    chat.turns_done(1)
    assert chat.script(order) == before
    assert chat.text(".me.further .words") == "Only the tests, please."


SLOW_REPLY = """
    const fetched = window.fetch;
    window.fetch = async (where, ...rest) => {
      const reply = await fetched(where, ...rest);
      if (String(where).endsWith("/steer")) await new Promise((resolve) => setTimeout(resolve, 400));
      return reply;
    };
"""


def test_an_answer_that_is_quicker_than_the_reply_to_its_words_is_below_them(serve: Starter, page: Opener) -> None:
    chat = page(serve())
    chat.type("demo:wait" + ENTER)
    chat.until(lambda: "I wait for further words" in chat.text())
    chat.script(SLOW_REPLY)
    chat.type("Be brief." + ENTER)
    chat.turns_done(1)
    assert "You: Be brief.You added: “Be brief.”" in chat.text(".agent")


def test_a_queued_message_is_sent_after_the_turn(serve: Starter, page: Opener) -> None:
    chat = page(serve())
    chat.type("demo:wait" + ENTER)
    chat.until(lambda: "I wait for further words" in chat.text())
    chat.type("And then this" + CONTROL_ENTER)
    chat.until(lambda: "Next: And then this" in chat.text("#queued"))
    assert chat.count(".me") == 1
    chat.screenshot("23-queued")
    chat.type("Go on" + ENTER)
    chat.turns_done(2)
    assert "You asked: “And then this”" in chat.text()
    assert not chat.shows("#queued")


SLOW_START = """
    const fetched = window.fetch;
    window.fetch = async (where, ...rest) => {
      if (String(where).endsWith("/api/runs")) await new Promise((resolve) => setTimeout(resolve, 400));
      return fetched(where, ...rest);
    };
"""


def test_a_message_that_is_sent_while_a_new_conversation_begins_is_answered_in_it(serve: Starter, page: Opener) -> None:
    chat = page(serve())
    chat.script(SLOW_START)
    chat.type("One" + ENTER)
    chat.type("Two" + ENTER)
    chat.turns_done(2)
    assert "This is turn 2 of our session." in chat.text()
    assert not chat.shows("#queued")


def test_what_was_queued_comes_back_to_its_writer_when_the_turn_is_stopped(serve: Starter, page: Opener) -> None:
    chat = page(serve())
    chat.type("demo:hang" + ENTER)
    chat.until(lambda: chat.count("details.tool[data-state=done]"))
    chat.type("And then this")
    chat.click("#queue")
    chat.click("#stop")
    chat.turns_done(1)
    chat.until(lambda: chat.find("#prompt").get_attribute("value") == "And then this")
    assert not chat.shows("#queued")
    assert chat.count(".me") == 1


# --- settings, cost, images ----------------------------------------------------------------------------------------


def choose(chat: Browser, selector: str, value: str) -> None:
    chat.click(f"{selector} option[value={value}]")


def test_model_and_permission_mode_are_changed_in_place(serve: Starter, page: Opener) -> None:
    server = serve()
    chat = page(server)
    ask(chat, "Hi", 1)
    agents = server.agents()
    choose(chat, "#mode", "accept-edits")
    ask(chat, EDIT, 2)
    assert chat.count(".card") == 0, "an edit is not asked about any more"
    assert server.agents() == agents, "and it is the same process"
    choose(chat, "#mode", "bypass")
    ask(chat, COMMAND, 3)
    assert chat.count(".card") == 0, "nothing is asked any more"
    assert chat.find("#mode").get_attribute("class") == "danger"
    choose(chat, "#mode", "default")
    chat.type("demo-large" + TAB, "#model")
    request(chat, COMMAND)
    chat.click(".card .deny")
    chat.turns_done(4)
    chat.reload()
    chat.turns_done(4)
    assert chat.find("#model").get_attribute("value") == "demo-large"


def test_the_mode_is_changed_while_the_agent_works(serve: Starter, page: Opener) -> None:
    chat = page(serve())
    chat.type("demo:wait" + ENTER)
    chat.until(lambda: "I wait for further words" in chat.text())
    choose(chat, "#mode", "accept-edits")
    chat.until(lambda: chat.text("#status") == "The settings are changed.")
    chat.type("go" + ENTER)
    chat.turns_done(1)
    ask(chat, EDIT, 2)
    assert chat.count(".card") == 0


def test_tokens_cost_and_context_are_counted(serve: Starter, page: Opener) -> None:
    chat = page(serve())
    ask(chat, "One", 1)
    ask(chat, "Two", 2)
    assert re.search(r"\d+ tokens in, \d+ out · \$0\.0000 · \d+\.\d s", chat.text(".cost"))
    totals = chat.text("#totals")
    assert re.search(r"2 turns · \S+ tokens · \$0\.0000 · context about \d+", totals)


PASTE = """
const [target, kind, data] = arguments;
const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
const files = new DataTransfer();
files.items.add(new File([bytes], "a.png", { type: "image/png" }));
const event = kind === "paste"
  ? new ClipboardEvent("paste", { clipboardData: files, bubbles: true, cancelable: true })
  : new DragEvent("drop", { dataTransfer: files, bubbles: true, cancelable: true });
document.querySelector(target).dispatchEvent(event);
"""


@pytest.mark.parametrize("kind", ["paste", "drop"])
def test_an_image_is_pasted_or_dropped_shown_and_sent(kind: str, serve: Starter, page: Opener) -> None:
    chat = page(serve())
    chat.script(PASTE, "#prompt" if kind == "paste" else "#log", kind, base64.b64encode(PNG).decode())
    chat.until(lambda: chat.count("#images img"))
    chat.screenshot(f"24-{kind}")
    ask(chat, "What is on it?", 1)
    chat.until(lambda: chat.script("return document.querySelector('.me img').naturalWidth") == 1)
    assert chat.count("#images img") == 0
    assert "1 image" in chat.text(".agent .text")
    chat.reload()
    chat.until(lambda: chat.script("return document.querySelector('.me img')?.naturalWidth") == 1)
    assert chat.complaints() == []


def test_words_that_are_dragged_are_left_to_the_browser(serve: Starter, page: Opener) -> None:
    chat = page(serve())
    left = chat.script(
        """
        const words = new DataTransfer();
        words.setData("text/plain", "dragged");
        return ["dragover", "drop"].map((kind) => document.getElementById("prompt").dispatchEvent(
          new DragEvent(kind, { dataTransfer: words, bubbles: true, cancelable: true })));
        """
    )
    assert left == [True, True]


def test_a_file_that_is_no_image_is_not_taken(serve: Starter, page: Opener) -> None:
    chat = page(serve())
    chat.script(PASTE, "#prompt", "paste", base64.b64encode(b"<svg onload=alert(1)>").decode())
    chat.until(lambda: "not a PNG, JPEG, GIF or WebP image" in chat.text())
    assert chat.count("#images img") == 0
