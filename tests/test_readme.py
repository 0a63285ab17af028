"""README describes what the code does: its examples run, and its tables are compared with the code."""

from __future__ import annotations

import ast
import contextlib
import inspect
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, get_args
from urllib.parse import parse_qs

import attrs
import pytest

import remoteclaw_sync
from remoteclaw_sync import AgentEvent, AgentExecuteParams, AgentRunResult, CLIRuntimeBase, errors
from remoteclaw_sync.cli.help import TOPICS
from remoteclaw_sync.engine.classify import RETRYABLE
from remoteclaw_sync.factory import SUPPORTED_PROVIDERS, runtime_class
from remoteclaw_sync.testing import FakeAnswer, FakeCli, write_fake_cli
from remoteclaw_sync.types import ErrorSubtype
from tests.fakes import PATIENCE
from tests.installs import TESTED_VERSIONS
from tests.readme import terminal_svg

ROOT = Path(__file__).parents[1]
PACKAGE = Path(remoteclaw_sync.__file__).parent
SOURCE = PACKAGE.parent
PAGES = [
    ROOT / "README.md",
    *sorted(PACKAGE.rglob("README.md")),
    *sorted((ROOT / ".github").glob("*.md")),
    *sorted((ROOT / "tests").glob("*/README.md")),
]
README = PAGES[0].read_text(encoding="utf-8")
DOCUMENTATION = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
MOST_LINES = 300  # What a newcomer reads in five minutes.
PROGRAMS = Path(__file__).parent / "readme"
LIVE_CLAUDE = Path(__file__).with_name("live_claude.py")
MCP_SERVER = Path(__file__).parent / "real_clis" / "mcp_server.py"


def recipes() -> dict[str, str]:
    """All Python examples, keyed by the name in the comment before each."""
    return dict(re.findall(r"^<!-- recipe: (\w+) -->\n```python\n(.*?)^```$", DOCUMENTATION, re.MULTILINE | re.DOTALL))


def command(name: str) -> str:
    """A command in README that `.ci/run` also uses."""
    found = re.search(rf"^<!-- ci: {name} -->\n```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert found, name
    return found[1]


def table(first_heading: str) -> dict[str, list[str]]:
    """The rows of the table with this first heading: first cell (without backticks) to the other cells."""
    return rows_of(DOCUMENTATION, first_heading)


def rows_of(page: str, first_heading: str) -> dict[str, list[str]]:
    found = re.search(rf"^\| {re.escape(first_heading)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert found, first_heading
    rows = [[cell.strip() for cell in row[1:-1].split("|")] for row in found[1].splitlines()]
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0].replace("`", ""): row[1:] for row in rows}


class Shop:
    """A folder where recipes are run, with fake CLIs on PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()

    def fake(self, provider: str, *answers: str | FakeAnswer) -> FakeCli:
        return write_fake_cli(self.bin, provider, *answers)

    def program(self, name: str, script: Path) -> None:
        """Put a Python script on PATH under this name."""
        path = self.bin / name
        words = shlex.join([sys.executable, "-I", "-S", str(script)])
        path.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
        path.chmod(0o755)

    def run(self, script: str, *arguments: str, module: str = "", **variables: str) -> str:
        """What this script prints when a user runs it."""
        file = self.folder / "script.py"
        file.write_text(script, encoding="utf-8")
        search_path = os.pathsep.join([str(self.bin), os.environ["PATH"]])
        runner = ["-m", module] if module else []
        env = {**os.environ, "PATH": search_path, "PYTHONPATH": str(SOURCE), "HOME": str(self.folder)}
        env |= {"REMOTECLAW_DEMO_PACE": "0", "REMOTECLAW_SYNC_RUNS": str(self.folder / "runs"), **variables}
        done = subprocess.run(
            [sys.executable, "-W", "error", *runner, str(file), *arguments],
            cwd=self.folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == ""
        return done.stdout


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


# --- recipes -------------------------------------------------------------------------------------------------


def test_every_python_example_is_a_named_recipe_and_every_recipe_is_run() -> None:
    assert DOCUMENTATION.count("```python\n") == len(recipes())
    others = ("clis/test_fifth_cli.py", "cluster/test_recipes.py")
    tests = [Path(__file__), *(Path(__file__).parent / name for name in others)]
    here = "".join(path.read_text(encoding="utf-8") for path in tests)
    assert [name for name in recipes() if f'recipes()["{name}"]' not in here] == []


def test_readme_opens_with_an_example_and_the_picture_of_a_run() -> None:
    lines = README.splitlines()
    assert lines[2:4] == ["<!-- recipe: opening -->", "```python"]
    picture = re.search(r"!\[.+\]\((.+\.svg)\)", README)
    assert picture
    assert picture[1] == terminal_svg.PICTURE.relative_to(terminal_svg.PICTURE.parents[1]).as_posix()
    assert picture.start() < README.index("## ")


def test_the_opening_example_prints_the_answer(shop: Shop) -> None:
    shop.fake("claude", "A test fails on Tuesdays.")
    assert shop.run(recipes()["opening"]).startswith("A test fails on Tuesdays.\nok=True, ")


def test_the_opening_example_works_with_the_demo_agent_too(shop: Shop) -> None:
    printed = shop.run(recipes()["opening"].replace('"claude")', '"demo")'))
    assert "\n[LS]\n" in printed
    assert "demo agent" in printed
    assert "\nok=True, " in printed


def test_the_script_prints_answer_and_usage(shop: Shop) -> None:
    claude = shop.fake("claude", "It runs CLIs.")
    printed = shop.run(recipes()["script"])
    assert printed.startswith("It runs CLIs.\nAgentUsage(")
    assert claude.calls[0].stdin == "Summarise README.md in one sentence."
    assert any(argument.startswith("--tools=Read,") for argument in claude.calls[0].argv)


def test_the_script_says_why_where_the_cli_is_missing(shop: Shop) -> None:
    printed = shop.run(recipes()["script"].replace('"claude",', '"claude", command="no-such-claude",'))
    assert printed.startswith("failed: cli_missing ")
    assert "CLI_NOT_FOUND command 'no-such-claude' was not found on PATH" in printed


def test_the_session_has_two_turns_on_one_process(shop: Shop) -> None:
    claude = shop.fake("claude", "test_sleep.", "Done.")
    assert shop.run(recipes()["session"]) == "test_sleep.\nDone.\n"
    first, second = claude.calls
    assert [first.stdin, second.stdin] == ["Which test is the slowest?", "Make it faster."]
    assert first.argv == second.argv
    assert not any("--resume" in part for part in second.argv)


def test_the_pool_answers_both_and_asks_each_once_more_in_its_own_conversation(shop: Shop) -> None:
    shop.fake("claude", "One.", "Two.", "Three.", "Four.")
    lines = shop.run(recipes()["pool"]).splitlines()
    assert sorted(word for line in lines for word in line.split(" / ")) == ["Four.", "One.", "Three.", "Two."]


def test_the_second_run_goes_on_with_the_session_of_the_first(shop: Shop) -> None:
    codex = shop.fake("codex", "test_load", "Done.")
    assert shop.run(recipes()["resume"]) == "Done.\n"
    first, second = codex.calls
    assert "resume" not in first.argv
    session = second.argv[second.argv.index("resume") + 2]
    assert re.fullmatch(r"[0-9a-f-]{36}", session)
    assert "--sandbox=workspace-write" in second.argv


def test_a_budget_counts_what_a_run_costs_by_the_prices_of_the_runtime(shop: Shop) -> None:
    shop.fake("codex", "Done.")
    said = shop.run(recipes()["budget"])
    assert re.fullmatch(r"None 0\.0\d+ BudgetSpent\(tokens=\d+, cost_usd=0\.0\d+, runs=1, .*\)\n", said)


def test_a_session_is_exported_imported_and_resumed(shop: Shop) -> None:
    codex = shop.fake("codex", "Done.")
    session_id = "0199a213-81c0-7800-8aa1-bbab2a035a53"
    record = shop.folder / f".codex/sessions/2026/11/18/rollout-2026-11-18T17-18-10-{session_id}.jsonl"
    record.parent.mkdir(parents=True)
    record.write_text("{}\n", encoding="utf-8")
    assert shop.run(recipes()["portable"]) == "Done.\n"
    assert session_id in codex.calls[0].argv


def test_an_answer_of_a_type_is_an_instance_of_it(shop: Shop) -> None:
    codex = shop.fake("codex", '{"value": [{"file": "parser.py", "line": 7, "severity": "high", "fix": null}]}')
    assert shop.run(recipes()["ask"]) == "parser.py 7 high\n"
    assert any(argument.startswith("--output-schema=") for argument in codex.calls[0].argv)


@pytest.mark.slow
def test_one_loop_asks_several_clis_and_says_which_failed(shop: Shop) -> None:
    for provider in SUPPORTED_PROVIDERS:
        answer = FakeAnswer(error="Quota exceeded, billing") if provider == "codex" else f"{provider} thinks so."
        shop.fake(provider, answer)
    lines = shop.run(recipes()["several"]).splitlines()
    expected = [f"{provider}: {provider} thinks so." for provider in SUPPORTED_PROVIDERS]
    expected[SUPPORTED_PROVIDERS.index("codex")] = "codex: (billing)"
    assert lines == expected


@pytest.mark.slow
def test_abort_from_a_thread_ends_a_cli_that_hangs(shop: Shop) -> None:
    shop.fake("gemini", FakeAnswer("Working", hang=True))
    *events, last = shop.run(recipes()["abort"]).splitlines()
    assert [ast.literal_eval(event)["type"] for event in events] == ["text", "error", "done"]
    assert ast.literal_eval(events[1])["code"] == errors.ABORTED
    assert last == "True aborted"


def test_an_mcp_server_is_called_and_its_secret_is_in_no_argument(shop: Shop) -> None:
    shop.program("claude", PROGRAMS / "claude_with_tools.py")
    (shop.folder / "ticket_server.py").write_bytes(MCP_SERVER.read_bytes())
    (shop.bin / "python3").symlink_to(sys.executable)
    printed = shop.run(recipes()["mcp"], TICKETS_TOKEN="t-secret-1")
    assert printed == "tickets says: echo: What is ticket 17 about?\n"
    argv = (shop.folder / "claude.argv").read_text(encoding="utf-8")
    assert "--allowedTools=mcp__tickets" in argv
    assert "t-secret-1" not in argv


def test_a_python_function_is_called_as_a_tool(shop: Shop) -> None:
    shop.program("claude", PROGRAMS / "claude_with_tools.py")
    assert shop.run(recipes()["tools"]) == "remoteclaw says: shipped on Monday\n"


FLASK_CLIENT = """
with app.test_client() as client:
    response = client.post("/ask", data={"question": "Hi"})
    assert response.status_code == 200
    print(response.text, end="")
"""

FLASK_VISITOR_WHO_LEAVES = """
import os
with app.test_client() as client:
    response = client.post("/ask", data={"question": "Hi"}, buffered=False)
    print(next(response.response))
    response.close()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no process is left")
"""

FLASK_STOP_BUTTON = """
with app.test_client() as client:
    response = client.post("/ask", data={"question": "Hi"}, buffered=False)
    stream = response.response
    print(next(stream))
    stopped = app.test_client().post(f"/stop/{response.headers['X-Run-ID']}")
    print(stopped.status_code, b"".join(stream))
"""


def test_the_flask_handler_streams_events(shop: Shop) -> None:
    pytest.importorskip("flask", reason="Flask is not installed (extra `test-web`)")
    claude = shop.fake("claude", "Hello from Flask.")
    printed = shop.run(recipes()["flask"] + FLASK_CLIENT)
    assert re.findall(r"^event: (.+)$", printed, re.MULTILINE) == ["text", "done"]
    assert '"text":"Hello from Flask."' in printed
    assert claude.calls[0].stdin == "Hi"


def test_a_visitor_who_leaves_the_flask_handler_ends_the_agent(shop: Shop) -> None:
    pytest.importorskip("flask", reason="Flask is not installed (extra `test-web`)")
    shop.fake("claude", FakeAnswer("Working", hang=True))
    printed = shop.run(recipes()["flask"] + FLASK_VISITOR_WHO_LEAVES)
    assert "Working" in printed
    assert printed.endswith("no process is left\n")


def test_another_request_stops_the_flask_handlers_run(shop: Shop) -> None:
    pytest.importorskip("flask", reason="Flask is not installed (extra `test-web`)")
    shop.fake("claude", FakeAnswer("Working", hang=True))
    printed = shop.run(recipes()["flask"] + FLASK_STOP_BUTTON)
    assert "\n204 " in printed
    assert '"code":"ABORTED"' in printed
    assert '"aborted":true' in printed


VISITORS = """
import json, re

def until_asked(response):
    for chunk in response.response:
        if b"event: permission" in chunk:
            return json.loads(re.search(rb"data: (.*)", chunk)[1])["request"]["id"]

visitor, stranger = app.test_client(), app.test_client()
asked = until_asked(visitor.post("/ask", data={"question": "run a command"}, buffered=False))
print(stranger.get("/again").status_code, stranger.post("/answer", data={"request_id": asked}).status_code)
again = visitor.get("/again", buffered=False)
print(until_asked(again) == asked)
print(visitor.post("/answer", data={"request_id": asked, "allow": "yes"}).status_code)
words = re.findall(rb'event: text\\ndata: (.*)', b"".join(again.response))
print("The command was run." in "".join(json.loads(word)["text"] for word in words))
(session_id,) = conversations.values()
print(visitor.post("/ask", data={"question": "Hello"}).get_data().count(b'"session_id":"%s"' % session_id.encode()))
with pool.session(session_id, approve=Visitor()) as same:
    print(same.run("Hello").text.split(".")[0], same.pid is not None)
pool.close()
"""


def test_a_visitor_who_reloads_finds_the_turn_its_request_and_the_conversation_again(shop: Shop) -> None:
    pytest.importorskip("flask", reason="Flask is not installed (extra `test-web`)")
    printed = shop.run(recipes()["visitors"].replace('"claude"', '"demo", pace=0') + VISITORS)
    assert printed.splitlines() == ["404 404", "True", "204", "True", "1", "This is turn 3 of our session True"]


DJANGO_CLIENT = """
import django
from django.conf import settings
settings.configure(ALLOWED_HOSTS=["*"])
django.setup()
from django.test import RequestFactory
"""


def test_the_django_view_streams_events(shop: Shop) -> None:
    pytest.importorskip("django", reason="Django is not installed (extra `test-web`)")
    claude = shop.fake("claude", "Hello from Django.")
    post = 'response = ask(RequestFactory().post("/ask", {"question": "Hi"}))\n'
    script = DJANGO_CLIENT + recipes()["django"] + post + 'print(b"".join(response).decode(), end="")\n'
    events = [json.loads(line) for line in shop.run(script).splitlines()]
    assert [event["type"] for event in events] == ["text", "done"]
    assert events[0]["text"] == "Hello from Django."
    assert claude.calls[0].stdin == "Hi"


class Telegram:
    """A stand-in for the API: somebody says something, waits for the answer, and says something else."""

    def __init__(self) -> None:
        self.answers: list[str] = []
        self.lock = threading.Condition()
        self.enough = threading.Event()

    def reply(self, method: str, values: dict[str, str]) -> Any:
        if method == "getMe":
            return {"id": 1, "is_bot": True, "first_name": "bot", "username": "bot"}
        if method == "getUpdates":
            return self.updates(int(values.get("offset") or 0))
        if method != "sendMessage":
            return True
        with self.lock:
            self.answers.append(values["text"])
            self.lock.notify_all()
        if len(self.answers) == 2:
            self.enough.set()
        return {"message_id": 9, "date": 0, "chat": {"id": 5, "type": "private"}, "text": values["text"]}

    def updates(self, offset: int) -> list[dict[str, Any]]:
        with self.lock:
            self.lock.wait_for(lambda: offset <= len(self.answers) + 1 or self.enough.is_set(), timeout=1)
            return [self.update(number) for number in (1, 2) if offset <= number <= len(self.answers) + 1]

    def update(self, number: int) -> dict[str, Any]:
        person = {"id": 5, "is_bot": False, "first_name": "Ann"}
        chat = {"id": 5, "type": "private"}
        message = {"message_id": number, "date": 0, "chat": chat, "from": person, "text": f"question {number}"}
        return {"update_id": number, "message": message}


@pytest.fixture
def telegram() -> Iterator[tuple[Telegram, str]]:
    state = Telegram()
    with served(state) as url:
        yield state, url


@contextlib.contextmanager
def served(state: Telegram) -> Iterator[str]:
    """Serves the stand-in; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            path, _, query = self.path.partition("?")
            values = {name: found[0] for name, found in {**parse_qs(query), **parse_qs(body)}.items()}
            result = state.reply(path.rpartition("/")[2], values)
            data = json.dumps({"ok": True, "result": result}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        state.enough.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def running_bot(
    recipe: str, shop: Shop, url: str, stop: signal.Signals = signal.SIGTERM, **variables: str
) -> Iterator[None]:
    set_up = f'import telebot.apihelper\ntelebot.apihelper.API_URL = "{url}/bot{{0}}/{{1}}"\n'
    search_path = os.pathsep.join([str(shop.bin), os.environ["PATH"]])
    bot = subprocess.Popen(
        [sys.executable, "-c", set_up + recipe],
        cwd=shop.folder,
        env={**os.environ, "PATH": search_path, "PYTHONPATH": str(SOURCE), "BOT_TOKEN": "1:token", **variables},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        bot.send_signal(stop)
        bot.wait(PATIENCE)


def test_the_bot_answers_both_messages_of_a_chat_in_one_session(shop: Shop, telegram: tuple[Telegram, str]) -> None:
    pytest.importorskip("telebot", reason="pyTelegramBotAPI is not installed (extra `test-bots`)")
    people, url = telegram
    claude = shop.fake("claude", "answer 1", "answer 2")
    with running_bot(recipes()["bot"], shop, url):
        assert people.enough.wait(PATIENCE)
    assert people.answers == ["answer 1", "answer 2"]
    first, second = claude.calls
    assert (first.stdin, second.stdin) == ("question 1", "question 2")
    assert any(argument.startswith("--resume=") for argument in second.argv)


class ApprovingTelegram(Telegram):
    """Ann asks for something that needs an approval; Eve and then the owner press the button that allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.pressed: list[str] = []  # What the people who pressed it were told.
        self.news: list[dict[str, Any]] = [{"message": self.update(1)["message"]}]
        call = ["ask", "t1", "Bash", {"command": "make clean"}]
        self.news[0]["message"]["text"] = json.dumps([call, ["text", "Clean now."]])

    def reply(self, method: str, values: dict[str, str]) -> Any:
        with self.lock:
            rows = json.loads(values.get("reply_markup") or "{}").get("inline_keyboard", [])
            for button in [button for row in rows for button in row if button["text"] == "Allow"]:
                for number, person in enumerate((6, 7)):  # Eve, and the owner.
                    sender = {"id": person, "is_bot": False, "first_name": "somebody"}
                    query = {"id": str(number), "from": sender, "chat_instance": "1", "data": button["callback_data"]}
                    self.news.append({"callback_query": query})
            if method == "answerCallbackQuery":
                self.pressed.append(values["text"])
            self.lock.notify_all()
        return super().reply(method, values)

    def updates(self, offset: int) -> list[dict[str, Any]]:
        with self.lock:
            # One at a time: the bot handles updates that arrive together in any order.
            self.lock.wait_for(lambda: max(offset, 1) <= min(len(self.news), 2 + len(self.pressed)), timeout=1)
            numbered = [{"update_id": number, **one} for number, one in enumerate(self.news, 1)]
            return numbered[max(offset - 1, 0) : 2 + len(self.pressed)]


@pytest.mark.slow
def test_the_bot_with_buttons_lets_the_owner_and_nobody_else_decide(shop: Shop) -> None:
    pytest.importorskip("telebot", reason="pyTelegramBotAPI is not installed (extra `test-bots`)")
    words = shlex.join([sys.executable, "-I", "-S", str(LIVE_CLAUDE), str(shop.folder)])
    (shop.bin / "claude").write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
    (shop.bin / "claude").chmod(0o755)
    people = ApprovingTelegram()
    recipe = recipes()["approvals_bot"]
    # Stopped as from a terminal, so that the bot can release its warm process.
    with served(people) as url, running_bot(recipe, shop, url, signal.SIGINT, OWNER_IDS="7,8"):
        assert people.enough.wait(PATIENCE)
    question, answer = people.answers
    assert question.startswith("The agent wants to use Bash:\n\ncommand: make clean")
    assert people.pressed == ["Too late, or not for you to decide.", "Thank you."]
    assert answer == "Clean now."


@pytest.mark.slow
def test_the_example_of_a_users_tests_passes(shop: Shop) -> None:
    printed = shop.run(recipes()["testing"], "-q", "-p", "no:cacheprovider", module="pytest", TMPDIR=str(shop.folder))
    assert "2 passed" in printed


def test_a_recording_is_played_again(shop: Shop) -> None:
    kinds = shop.run(recipes()["replay"]).splitlines()
    assert set(kinds) == {"thinking", "tool_use", "tool_result", "text", "done"}
    assert kinds[-1] == "done"


def test_the_fifth_runtime_is_complete_in_under_60_lines(shop: Shop) -> None:
    shop.program("acme", PROGRAMS / "acme.py")
    source = recipes()["fifth"]
    assert len(source.splitlines()) < 60
    events = [ast.literal_eval(line) for line in shop.run(source, "hello", "there").splitlines()]
    assert [event["type"] for event in events] == ["tool_use", "tool_result", "text", "text", "text", "done"]
    result = events[-1]["result"]
    assert result["text"] == "hello there --model=large "
    assert result["session_id"] == "s-7"
    assert result["usage"]["output_tokens"] == 5
    assert result["error_subtype"] is None


def test_the_fifth_runtime_tells_of_failures(shop: Shop) -> None:
    shop.program("acme", PROGRAMS / "acme.py")
    error, done = (ast.literal_eval(line) for line in shop.run(recipes()["fifth"], "break").splitlines())
    assert (error["code"], error["message"]) == ("NO_CREDIT", "out of credit")
    assert done["result"]["error_subtype"] is not None


# --- the two commands and the picture ------------------------------------------------------------------------


def test_readme_names_every_topic_of_help() -> None:
    _, _, more = README.partition("## More")
    listed = re.findall(r"`([\w-]+)`", "".join(re.findall(r"^\| (`[^|]*) \|", more.partition("\n## ")[0], re.M)))
    assert sorted(listed) == sorted(TOPICS)


def test_each_of_the_two_commands_does_its_own_set_up() -> None:
    for name in ("demo", "test"):
        assert command(name).startswith("python3 -m venv .venv && .venv/bin/pip install -q ")
    assert command("demo").endswith(".venv/bin/remoteclaw-sync demo\n")
    assert command("test").endswith(".venv/bin/python -m pytest -q tests\n")


def test_the_picture_shows_what_the_demo_prints_today() -> None:
    if not terminal_svg.PICTURE.exists():
        pytest.skip("the picture is not copied with the tests")
    volatile = re.compile(r"\d+\.\d s|de300000-[0-9a-f-]+")

    def shown(picture: str) -> list[str]:
        rows = ("".join(re.findall(r">([^<]+)</tspan>", row)) for row in picture.splitlines() if "<text" in row)
        return [volatile.sub("*", row) for row in rows]

    now = terminal_svg.svg(terminal_svg.screen(terminal_svg.run_demo(pace=0)))
    assert shown(terminal_svg.PICTURE.read_text(encoding="utf-8")) == shown(now)


def test_generated_tables_have_their_places() -> None:
    for name in ("behaviours", "benchmarks"):
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->\n"
        assert DOCUMENTATION.count(begin) == DOCUMENTATION.count(end) == 1
        assert DOCUMENTATION.index(begin) < DOCUMENTATION.index(end)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_within_a_page_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) - anchors == set()


def test_readme_takes_a_newcomer_five_minutes() -> None:
    assert len(README.splitlines()) <= MOST_LINES


# --- tables --------------------------------------------------------------------------------------------------


def test_the_table_of_error_codes_is_that_of_the_code() -> None:
    codes = {value for name, value in vars(errors).items() if name.isupper() and isinstance(value, str)}
    assert set(table("code")) == codes


def test_the_table_says_which_errors_a_run_survives() -> None:
    survived = {code for code, (meaning,) in table("code").items() if re.search("the run goes on|survived", meaning)}
    assert survived == errors.SURVIVABLE


def test_the_table_of_subtypes_is_that_of_the_code() -> None:
    rows = table("error_subtype")
    assert set(rows) == set(get_args(ErrorSubtype))
    assert {name for name, (_, again) in rows.items() if again == "later"} == RETRYABLE


def test_the_table_of_events_is_that_of_the_code() -> None:
    documented = {kind: re.findall(r"`(\w+)`", " ".join(cells)) for kind, cells in table("`event.type`").items()}
    assert documented == {
        event.type: [event.__name__, *(field.name for field in attrs.fields(event))] for event in get_args(AgentEvent)
    }


def test_the_table_of_params_is_that_of_the_code() -> None:
    assert list(table("field of `AgentExecuteParams`")) == [field.name for field in attrs.fields(AgentExecuteParams)]


def test_the_table_of_results_is_that_of_the_code() -> None:
    rows = table("field of `AgentRunResult`")
    documented = [name for cell in rows for name in cell.split(", ")]
    assert sorted(documented) == sorted([*(field.name for field in attrs.fields(AgentRunResult)), "ok"])


def test_the_defaults_in_the_tables_are_those_of_the_code() -> None:
    options = inspect.signature(CLIRuntimeBase).parameters
    mebibytes = {name: f"{options[name].default // 2**20} MiB" for name in ("max_pending_bytes", "max_line_bytes")}
    seconds = {name: f"{options[name].default:g} s" for name in ("timeout", "tool_timeout", "linger")}
    limits = {name: cells[0] for name, cells in table("option of a runtime").items()}
    assert limits.items() >= {**mebibytes, **seconds}.items()
    endings = {cells[0].replace("`", ""): cells[1] for cells in table("what").values()}
    assert endings.items() >= seconds.items()


def test_every_option_of_the_base_is_in_readme() -> None:
    for name in set(inspect.signature(CLIRuntimeBase).parameters) - {"command"}:
        assert f"`{name}`" in DOCUMENTATION, name


def test_every_name_in_backticks_that_looks_like_ours_exists() -> None:
    names = set(re.findall(r"`((?:Agent|Mcp|CLI|Claude|Gemini|Codex|OpenCode)[A-Za-z]+)`", DOCUMENTATION))
    assert "CLIRuntimeBase" in names
    assert names - set(remoteclaw_sync.__all__) == set()


def test_the_tested_versions_are_those_of_the_code() -> None:
    for version in TESTED_VERSIONS.values():
        assert version in README


def test_the_page_of_each_cli_names_its_own_options() -> None:
    shared = {"self", "command", "options", *inspect.signature(CLIRuntimeBase).parameters}
    for provider in SUPPORTED_PROVIDERS:
        page = (PACKAGE / "clis" / provider / "README.md").read_text(encoding="utf-8")
        (cell,) = rows_of(page, "option")["options of its own"]
        own = set(inspect.signature(runtime_class(provider)).parameters) - shared
        # A CLI whose prompts have no syntax accepts the option and ignores it.
        assert own - {"prompt_syntax"} == set(re.findall(r"`(\w+)`", cell)) - {"prompt_syntax"}, provider


def test_every_row_of_a_table_has_as_many_cells_as_its_heading() -> None:
    for found in re.findall(r"^\|.*\n\|[-|: ]+\n(?:\|.*\n)+", DOCUMENTATION, re.MULTILINE):
        rows = [len(re.findall(r"(?<!\\)\|", row)) for row in found.splitlines()]
        assert len(set(rows)) == 1, found.splitlines()[rows.index(max(rows))]


def test_no_page_names_a_machine() -> None:
    assert not re.search(r"(?<![\w.])/(?:root|home|work|opt)/", DOCUMENTATION)
    assert "localhost" not in DOCUMENTATION
