"""The chat page for everybody: names for screen readers, contrast, phone and desktop, light and dark; a lot at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.web.browser import ENTER, Browser, Opener, Starter, browser, needs_browser
from tests.web.servers import Server

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

CONTRAST = Path(__file__).with_name("contrast.js").read_text(encoding="utf-8")
STRUCTURE = Path(__file__).with_name("structure.js").read_text(encoding="utf-8")
NEED_NAMES = {"button", "combobox", "textbox", "checkbox", "radio", "link", "img", "region", "group", "article", "form"}


def nameless(page: Browser) -> list[Any]:
    """What a screen reader would meet without a name, according to the browser."""
    nodes = page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    return [
        node["role"]["value"]
        for node in nodes
        if not node.get("ignored")
        and node["role"]["value"] in NEED_NAMES
        and not node.get("name", {}).get("value", "").strip()
    ]


def check_all(page: Browser, name: str) -> None:
    """Check the page in both themes."""
    for theme in ("light", "dark"):
        page.script("document.documentElement.dataset.theme = arguments[0]", theme)
        page.screenshot(f"{name}-{theme}")
        assert page.script(CONTRAST) == [], f"contrast, {theme}"
    assert page.script(STRUCTURE) == []
    assert nameless(page) == []
    wide, visible = page.script("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide <= visible


@pytest.mark.parametrize("phone", [False, True], ids=["desk", "phone"])
def test_everything_on_the_page_has_a_name_contrast_and_room(phone: bool, serve: Starter, page: Opener) -> None:
    chat = page(serve())
    if phone:
        chat.on_a_phone()
    name = "phone" if phone else "desk"
    check_all(chat, f"40-{name}-empty")
    for number, prompt in enumerate(("What is here?", "Show markdown", "demo:fail"), 1):
        chat.type(prompt + ENTER)
        chat.turns_done(number)
    chat.script("for (const one of document.querySelectorAll('details')) one.open = true")
    check_all(chat, f"41-{name}-turns")
    chat.type("Please edit a file" + ENTER)
    chat.until(lambda: chat.count(".card .allow"))
    chat.type("Later" + "\ue009" + ENTER + "\ue009")
    check_all(chat, f"42-{name}-card")
    chat.click(".card .allow")
    chat.turns_done(5)
    chat.type("ask me" + ENTER)
    chat.until(lambda: chat.count(".card .allow"))
    check_all(chat, f"43-{name}-question")
    if phone:
        chat.click("#menu")
        chat.until(lambda: chat.shows("#sidebar"))
        check_all(chat, f"44-{name}-list")
    chat.click("#fresh")
    chat.until(lambda: chat.count("#conversations .asks") and chat.count("#menu.asks"))
    check_all(chat, f"45-{name}-asks-elsewhere")


# --- a lot at once ---------------------------------------------------------------------------------------------------

LONGEST_TASK = 200.0  # Milliseconds.
DONE = {"type": "done", "result": {"session_id": "s", "text": "", "duration_ms": 1.0}}
PIECE = (
    "Some **bold** words and `code`, with a [link](https://example.org/) in a sentence that goes on and on.\n\n"
    "- one\n- two\n\n```python\ndef f(x):\n    return x\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
)


def two_megabytes() -> Iterator[dict[str, Any]]:
    whole = PIECE * (2_000_000 // len(PIECE) + 1)
    return ({"type": "text", "text": whole[at : at + 60]} for at in range(0, len(whole), 60))


def five_hundred_calls() -> Iterator[dict[str, Any]]:
    edit = {"file_path": "a.py", "old_string": "a\nb\nc", "new_string": "a\nx\nc"}
    for number in range(500):
        arguments = edit if number % 2 else {"command": f"make {number}"}
        yield {
            "type": "tool_use",
            "tool_name": "Edit" if number % 2 else "Bash",
            "tool_id": f"t{number}",
            "input": arguments,
        }
        yield {"type": "tool_result", "tool_id": f"t{number}", "output": "out\n" * 200}
        yield {"type": "text", "text": f"Step {number}.\n"}


COUNT_FRAMES = "window.frames_seen = 0; (function count() { window.frames_seen += 1; requestAnimationFrame(count); })()"
LOOK = "return [window.frames_seen, document.querySelector('.agent')?.getAttribute('aria-busy') !== null]"


def work(page: Browser) -> tuple[float, int, bool]:
    """Milliseconds of processor time of the page's main thread (unlike the durations of long tasks, this does not count
    what else the machine does), frames so far, and whether the turn is still running. This is called all the time, so
    it has to be cheap."""
    metrics = page.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    spent = next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")
    return spent * 1000, *page.script(LOOK)


@pytest.mark.parametrize("what", [two_megabytes, five_hundred_calls], ids=["2 MB", "500 tool calls"])
def test_the_page_stays_smooth_while_a_lot_streams_in(what: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No frame of the page may ever take longer than a long task may."""
    needs_browser()
    folder = tmp_path_factory.mktemp("s")
    (folder / "script").write_text("\n".join(json.dumps(event) for event in (*what(), DONE)), encoding="utf-8")
    with (
        Server("-m", "tests.web.scripted_site", str(folder), folder=folder / "server") as server,
        browser(tmp_path_factory.mktemp("b")) as page,
    ):
        page.open(server.address)
        page.driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        page.script(COUNT_FRAMES)
        spent, frames, _ = work(page)
        page.type("script" + ENTER)
        per_frame = []
        is_busy = True
        while is_busy:
            spent_now, frames_now, is_busy = work(page)
            if frames_now > frames:
                per_frame.append((spent_now - spent) / (frames_now - frames))
                spent, frames = spent_now, frames_now
        assert max(per_frame) < LONGEST_TASK
        shown = page.script(
            "return ['code', 'tool'].map((name) => document.querySelectorAll(`.agent .${name}`).length)"
        )
        assert shown in ([2_000_000 // len(PIECE) + 1, 0], [0, 500])
