"""The bench itself: raw runs of the real CLIs, and what the bench promises to its users."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.real_clis.bench import Bench, LeftoverProcesses, open_bench, processes_with_home
from tests.real_clis.clis import RealCli
from tests.real_clis.install import says_version
from tests.real_clis.model_server import ModelServer, refused_url
from tests.real_clis.namespace import (
    NamespaceUnavailable,
    interfaces,
    loopback_namespace,
    require_loopback_only,
    unavailable_reason,
)
from tests.real_clis.script import (
    Cut,
    Drop,
    Hang,
    Hold,
    HttpError,
    StreamError,
    Turn,
    Usage,
    in_pieces,
    long_text,
)

# An address that is documented as never routed.
OUTSIDE = ("192.0.2.1", 80)
NASTY_PROMPT = "--help \"quoted\" 'single' $HOME `id`\n\ttab\r\nemoji \U0001f469\u200d\U0001f4bb end \n"

needs_namespace = pytest.mark.skipif(unavailable_reason() is not None, reason=f"namespace: {unavailable_reason()}")


# The four CLIs, raw.


def test_a_plain_answer_arrives_and_the_prompt_reached_the_model_byte_for_byte(cli_bench: Bench, cli: RealCli) -> None:
    cli_bench.server.script([Turn(text=["Hel", "lo, ", "world"])])
    run = cli_bench.run(cli, NASTY_PROMPT)
    assert (run.returncode, cli.answer(run.lines)) == (0, "Hello, world"), run
    assert cli_bench.server.received_prompts() == [NASTY_PROMPT]
    (request,) = cli_bench.server.requests
    assert request.vendor == cli.vendor
    assert request.occurrences(NASTY_PROMPT) == 1
    assert request.system
    assert cli.shell_tool in request.tools


def test_tool_calls_run_and_their_results_reach_the_model(cli_bench: Bench, cli: RealCli) -> None:
    written = cli_bench.workdir / "note.txt"
    calls = [cli.shell_call("echo forty-$PPID-two | tr -d 0-9"), cli.write_file_call(written, "one\ntwo\n")]
    cli_bench.server.script([Turn(text="Wait.", tool_calls=calls), Turn(text="Done.")])
    run = cli_bench.run(cli, "use your tools")
    assert run.returncode == 0, run
    first, second = cli_bench.server.requests
    assert first.tool_results == ()
    assert len(second.tool_results) == 2
    assert "forty--two" in second.tool_results[0].text
    assert written.read_text() == "one\ntwo\n"
    assert cli_bench.server.received_prompts() == ["use your tools"]


def test_an_http_400_surfaces(cli_bench: Bench, cli: RealCli) -> None:
    cli_bench.server.script([HttpError(status=400, message="the scripted complaint")])
    run = cli_bench.run(cli, "hello")
    assert run.returncode != 0
    assert b"the scripted complaint" in run.stdout
    # Claude 2.1.326 asks several times, each time for less; the others accept the first answer.
    assert (len(cli_bench.server.requests) == 1) == (cli.name != "claude")


def test_our_mcp_server_is_callable(cli_bench: Bench, cli: RealCli) -> None:
    extra, env = mcp_settings(cli_bench, cli, "lab", cli_bench.mcp_command(), {"LAB_SECRET": "s3cret"})
    call = cli.mcp_call("lab", "env", {"name": "LAB_SECRET"})
    cli_bench.server.script([Turn(tool_calls=[call]), Turn(text="Done.")])
    run = cli_bench.run(cli, "call it", *extra, env=env)
    assert run.returncode == 0, run
    (result,) = cli_bench.server.requests[1].tool_results
    assert "s3cret" in result.text


def test_a_sub_agent_of_claude_is_routed_by_the_content_of_its_request(cli_bench: Bench) -> None:
    claude = cli_bench.claude

    def respond(request: Any) -> Turn:
        if request.prompt == "the inner task":
            return Turn(text="inner answer")
        if request.tool_results:
            return Turn(text="outer answer")
        return Turn(tool_calls=[claude.agent_call("the inner task")])

    cli_bench.server.respond(respond)
    run = cli_bench.run(claude, "delegate")
    assert (run.returncode, claude.answer(run.lines)) == (0, "outer answer")
    assert "inner answer" in cli_bench.server.requests[-1].tool_results[0].text


def mcp_settings(
    bench: Bench, cli: RealCli, name: str, command: list[str], variables: dict[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Extra arguments and environment that give a CLI one trusted stdio MCP server."""
    program, *arguments = command
    stdio = {"command": program, "args": arguments, "env": variables}
    if cli.name == "claude":
        config = json.dumps({"mcpServers": {name: stdio}})
        return [f"--mcp-config={config}", f"--allowedTools=mcp__{name}"], {"MCP_CONNECTION_NONBLOCKING": "0"}
    if cli.name == "gemini":
        path = bench.home / ".gemini" / "settings.json"
        settings = json.loads(path.read_text())
        path.write_text(json.dumps({**settings, "mcpServers": {name: {**stdio, "trust": True}}}))
        return [], {}
    if cli.name == "codex":
        table = ",".join(f"{key}={json.dumps(value)}" for key, value in variables.items())
        server = f"command={json.dumps(program)},args={json.dumps(arguments)},env={{{table}}}"
        policy = 'required=true,default_tools_approval_mode="approve"'
        return ["-c", f'mcp_servers={{"{name}"={{{server},{policy}}}}}'], {}
    local = {"type": "local", "command": command, "environment": variables}
    return [], {"OPENCODE_CONFIG_CONTENT": json.dumps({"mcp": {name: local}})}


# The place.


def test_there_is_no_network_but_loopback_and_no_variable_of_the_user(cli_bench: Bench) -> None:
    assert interfaces() == ["lo"]
    with socket.socket() as outside, pytest.raises(OSError) as failure:
        outside.connect(OUTSIDE)
    assert failure.value.errno == errno.ENETUNREACH
    child = subprocess.run(
        [sys.executable, "-c", "print(open('/proc/self/net/dev').read())"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert [line.split(":")[0].strip() for line in child.stdout.splitlines()[2:] if line] == ["lo"]
    own = {name for name in os.environ if not name.startswith("PYTEST_")}
    assert own == set(cli_bench.env)
    assert Path.home() == cli_bench.home


@needs_namespace
def test_the_thread_is_back_in_its_own_namespace_afterwards() -> None:
    before = os.readlink("/proc/thread-self/ns/net")
    with loopback_namespace():
        assert os.readlink("/proc/thread-self/ns/net") != before
        inherited: list[str] = []
        thread = threading.Thread(target=lambda: inherited.extend(interfaces()))
        thread.start()
        thread.join()
        assert inherited == ["lo"]
    assert os.readlink("/proc/thread-self/ns/net") == before


@needs_namespace
def test_a_cli_is_never_started_outside_the_namespace(tmp_path: Path) -> None:
    with open_bench(tmp_path / "bench", tmp_path) as bench:
        escaped = bench
    if interfaces() == ["lo"]:
        pytest.skip("this machine itself has no network but loopback")
    with pytest.raises(NamespaceUnavailable):
        require_loopback_only()
    with pytest.raises(NamespaceUnavailable):
        escaped.run_argv([sys.executable, "-c", "pass"])


@pytest.mark.slow
@needs_namespace
def test_a_process_left_behind_is_named_and_killed(tmp_path: Path) -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    with contextlib.ExitStack() as stack:
        bench = stack.enter_context(open_bench(tmp_path / "bench", tmp_path))
        child = subprocess.Popen(sleeper, start_new_session=True)
        with pytest.raises(LeftoverProcesses, match="import time"):
            stack.close()
    assert child.wait(5) == -signal.SIGKILL
    assert processes_with_home(bench.home) == {}


# The model server's faults, seen by a plain HTTP client.


def test_errors_have_the_vendors_shape_and_the_last_fault_repeats() -> None:
    with ModelServer() as server:
        server.script([Turn(text="fine"), HttpError(status=429, message="slow down", retry_after=3)])
        assert b"fine" in post(server, "/v1/chat/completions", CHAT).body
        for _ in range(2):
            answer = post(server, "/v1/messages", ANTHROPIC)
            assert (answer.status, answer.headers["retry-after"]) == (429, "3")
            assert json.loads(answer.body)["error"] == {"type": "rate_limit_error", "message": "slow down"}
        assert server.problems == []


def test_a_request_nobody_scripted_is_a_problem() -> None:
    with ModelServer() as server:
        server.script([])
        assert post(server, "/v1/messages", ANTHROPIC).status == 400
        assert "no reply scripted" in server.problems[0]


def test_a_held_stream_goes_on_when_the_test_says_so() -> None:
    hold = Hold()
    with ModelServer() as server:
        server.script([Turn(text=["first", hold, "second"])])
        with posted(server, "/v1/messages", ANTHROPIC) as connection, connection.getresponse() as answer:
            assert hold.reached.wait(5)
            assert b"second" not in answer.read1()
            hold.release.set()
            assert b"second" in answer.read()


@pytest.mark.parametrize("reply", [Drop(), Turn(text=["half", Cut(), "never"])], ids=["drop", "cut"])
def test_a_connection_can_be_cut(reply: Drop | Turn) -> None:
    with ModelServer() as server:
        server.script([reply])
        with pytest.raises(http.client.HTTPException):  # RemoteDisconnected, IncompleteRead
            post(server, "/v1/responses", RESPONSES)


@pytest.mark.parametrize("end", [Cut(clean=True), StreamError("it broke")], ids=["cut", "error"])
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
def test_a_stream_can_end_too_early_without_a_dropped_connection(path: str, end: Cut | StreamError) -> None:
    with ModelServer() as server:
        server.script([Turn(text=["half", end, "never"])])
        body = post(server, path, ANTHROPIC).body
        assert b"half" in body
        assert b"never" not in body
        assert (b"it broke" in body) == isinstance(end, StreamError)


@pytest.mark.parametrize("after_headers", [False, True])
def test_a_hanging_answer_notices_that_the_client_went(after_headers: bool) -> None:
    with ModelServer() as server:
        server.script([Hang(after_headers=after_headers)])
        with posted(server, "/v1/messages", ANTHROPIC):
            (request,) = server.wait_for_requests(1)
            assert not request.disconnected.is_set()
        assert request.disconnected.wait(5)


def test_stopping_ends_a_hanging_answer_and_all_threads() -> None:
    before = set(threading.enumerate())
    server = ModelServer().start()
    server.script([Hang()])
    with posted(server, "/v1/messages", ANTHROPIC):
        server.wait_for_requests(1)
        server.stop()
    assert set(threading.enumerate()) == before


def test_a_huge_answer_and_usage_arrive_on_every_wire() -> None:
    text = long_text(2_000_000)
    usage = Usage(input=100, output=20, cache_read=30, cache_write=0, reasoning=4)
    pieces = in_pieces(text, 100_000)
    turn = Turn(text=pieces, usage=usage)
    expected = {
        "/v1/messages": b'"output_tokens": 24',
        "/v1beta/models/m:streamGenerateContent": b'"promptTokenCount": 130',
        "/v1/responses": b'"cached_tokens": 30',
        "/v1/chat/completions": b'"completion_tokens": 24',
    }
    bodies = dict(zip(expected, [ANTHROPIC, GEMINI, RESPONSES, CHAT], strict=True))
    with ModelServer() as server:
        server.script([], then=turn)
        for path, counted in expected.items():
            data = post(server, path, bodies[path]).body
            assert len(data) > len(text)
            assert all(json.dumps(piece).encode() in data for piece in pieces)
            assert counted in data
        assert server.received_prompts() == ["hi"] * 4


def test_side_requests_use_up_no_scripted_turn() -> None:
    system = {"role": "system", "content": "You are a title generator."}
    title = {**CHAT, "messages": [system, *CHAT["messages"]]}
    choice = {"type": "object", "properties": {"model_choice": {"type": "string", "enum": ["flash", "pro"]}}}
    router = {**GEMINI, "generationConfig": {"responseJsonSchema": choice}}
    with ModelServer() as server:
        server.script([Turn(text="main")])
        assert post(server, "/v1/chat/completions", title).status == 200
        routed = json.loads(post(server, "/v1beta/models/m:generateContent", router).body)
        assert "flash" in routed["candidates"][0]["content"]["parts"][0]["text"]
        assert post(server, "/v1/messages/count_tokens", ANTHROPIC).status == 200
        assert b"main" in post(server, "/v1/messages", ANTHROPIC).body
        assert (len(server.requests), len(server.side_requests)) == (1, 3)


def test_nobody_listens_at_the_refused_address() -> None:
    port = int(refused_url().rsplit(":", 1)[1])
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", port))


ANTHROPIC: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
CHAT: dict[str, Any] = ANTHROPIC
GEMINI: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
RESPONSES: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
}


@dataclass(frozen=True)
class Answer:
    """A complete HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def post(server: ModelServer, path: str, body: dict[str, Any]) -> Answer:
    """One request, and its complete answer."""
    with posted(server, path, body) as connection, connection.getresponse() as response:
        return Answer(response.status, dict(response.headers), response.read())


@contextlib.contextmanager
def posted(server: ModelServer, path: str, body: dict[str, Any]) -> Iterator[http.client.HTTPConnection]:
    """A request that has been sent but not yet answered."""
    port = int(server.url.rsplit(":", 1)[1])
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("POST", path, json.dumps(body))
        yield connection


@pytest.mark.parametrize(
    ("printed", "is_it"),
    [
        ("2.1.32 (Claude Code)\n", True),
        ("codex-cli 2.1.32\n", True),
        ("opencode v2.1.32\n", True),
        ("2.1.326 (Claude Code)\n", False),
        ("12.1.32\n", False),
        ("2.1.32-beta.1\n", False),
        ("", False),
    ],
)
def test_an_installed_version_is_not_taken_for_another_that_begins_like_it(printed: str, is_it: bool) -> None:
    assert says_version(printed, "2.1.32") is is_it
