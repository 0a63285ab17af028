"""The gateway as a CLI sees it: through the relay, over the socket, with and without the token."""

from __future__ import annotations

import contextvars
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync.clis.mcp_entries import with_results_as_objects
from remoteclaw_sync.tool_server import relay
from remoteclaw_sync.tool_server.server import Gateway
from remoteclaw_sync.tool_server.tools import tool
from remoteclaw_sync.types import McpServerConfig
from tests.fakes import PATIENCE, alive, finished, start_host, wait_until
from tests.tool_server.agents import FakeAgent
from tests.tool_server.fake_agent import McpClient


@contextmanager
def client_of(server: McpServerConfig) -> Iterator[McpClient]:
    client = McpClient({"command": server.command, "args": server.args, "env": server.env})
    try:
        yield client
    finally:
        client.close()
        assert client.process.stdout is not None
        client.process.stdout.close()


def call(client: McpClient, name: str, **arguments: Any) -> tuple[str, bool]:
    result = client.ask("tools/call", {"name": name, "arguments": arguments})
    return result["content"][0]["text"], result["isError"]


def folder_of(server: McpServerConfig) -> Path:
    return Path(server.env[relay.SOCKET_VARIABLE]).parent


def echo(value: str) -> str:
    return value


# --- calls ---------------------------------------------------------------------------------------------------


def test_a_function_is_called_in_this_process_with_arguments_of_its_types() -> None:
    def describe(text: str, number: int, share: float, flag: bool, items: list[str], extra: dict[str, int]) -> str:
        return repr((text, number, share, flag, items, extra, os.getpid()))

    with Gateway([describe]) as gateway, client_of(gateway.mcp_server()) as client:
        arguments = {"text": "\u00e9\U0001f468\u200d\U0001f469", "number": 3, "share": 1, "flag": True}
        answer, is_error = call(client, "describe", **arguments, items=["a"], extra={"b": 1})
    assert not is_error
    assert answer == repr(("\u00e9\U0001f468\u200d\U0001f469", 3, 1.0, True, ["a"], {"b": 1}, os.getpid()))


def test_a_result_is_an_object_too_only_where_the_relay_was_told_that_the_cli_needs_it() -> None:
    def answer() -> list[int]:
        return [4, 2]

    with Gateway([answer]) as gateway:
        usual = gateway.mcp_server()
        (needy,) = with_results_as_objects({"ours": usual}).values()
        for server, structured in ((usual, None), (needy, {"result": [4, 2]})):
            with client_of(server) as client:
                result = client.ask("tools/call", {"name": "answer", "arguments": {}})
            assert (result["content"][0]["text"], result.get("structuredContent")) == ("[4, 2]", structured)


def test_an_exception_is_told_to_the_model_and_the_gateway_goes_on() -> None:
    def divide(a: int, b: int) -> float:
        return a / b

    def leave() -> None:
        sys.exit("bye")

    with Gateway([divide, leave]) as gateway, client_of(gateway.mcp_server()) as client:
        assert call(client, "divide", a=1, b=0) == ("ZeroDivisionError: division by zero", True)
        assert call(client, "divide", a=1) == ("wrong arguments for divide: missing: b", True)
        assert call(client, "leave") == ("SystemExit: bye", True)
        assert call(client, "divide", a=1, b=2) == ("0.5", False)


def test_a_result_of_ten_megabytes_arrives_whole() -> None:
    def big() -> str:
        return "\u00e9" * 5_000_000

    with Gateway([big]) as gateway, client_of(gateway.mcp_server()) as client:
        answer, _ = call(client, "big")
    assert answer == "\u00e9" * 5_000_000


def test_an_argument_of_ten_megabytes_arrives_whole() -> None:
    with Gateway([echo]) as gateway, client_of(gateway.mcp_server()) as client:
        assert call(client, "echo", value="x" * 10_000_000) == ("x" * 10_000_000, False)


def test_a_call_for_which_there_is_no_thread_is_answered_as_failed_and_the_next_one_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "remoteclaw-tool-echo":
            raise RuntimeError("can't start new thread")
        start(thread)

    with Gateway([echo]) as gateway, client_of(gateway.mcp_server()) as client:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            assert call(client, "echo", value="x") == ("echo was not called: can't start new thread", True)
        assert call(client, "echo", value="y") == ("y", False)


def test_two_calls_run_at_the_same_time() -> None:
    both = threading.Barrier(2)

    def meet(name: str) -> str:
        both.wait(PATIENCE)
        return name

    with Gateway([meet]) as gateway, client_of(gateway.mcp_server()) as client:
        idents = [client.send("tools/call", {"name": "meet", "arguments": {"name": name}}) for name in "ab"]
        answers = {answer["id"]: answer["result"]["content"][0]["text"] for answer in (client.read(), client.read())}
    assert answers == dict(zip(idents, "ab", strict=True))


def test_a_call_that_takes_too_long_is_answered_in_its_place_and_its_result_dropped() -> None:
    release = threading.Event()

    def slow() -> str:
        release.wait(PATIENCE)
        return "too late"

    with Gateway([tool(slow, timeout=0.05), echo]) as gateway, client_of(gateway.mcp_server()) as client:
        assert call(client, "slow") == ("slow did not return within 0.05 s", True)
        release.set()
        assert call(client, "echo", value="next") == ("next", False)


@pytest.mark.parametrize("seconds", [1e12, 1e300, float("inf")])
def test_a_time_limit_longer_than_any_clock_s_is_no_limit(seconds: float, capfd: pytest.CaptureFixture[str]) -> None:
    with Gateway([tool(echo, timeout=seconds)], call_timeout=seconds) as gateway:
        with client_of(gateway.mcp_server()) as client:
            assert call(client, "echo", value="x") == ("x", False)
    assert "OverflowError" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "\ud800", "arguments": {}}),
        ("\ud800", {}),
        ("tools/call", {"name": "echo", "arguments": {"value": "\ud800"}}),
        ("tools/call", {"name": "echo", "arguments": {"\udfff": 1}}),
    ],
)
def test_a_lone_surrogate_in_a_request_is_answered_and_the_connection_stays(
    method: str, params: dict[str, Any]
) -> None:
    with Gateway([echo]) as gateway, client_of(gateway.mcp_server()) as client:
        client.write({"jsonrpc": "2.0", "id": "id-\ud800", "method": method, "params": params})
        assert client.read()["id"] == "id-\ud800"
        assert call(client, "echo", value="next") == ("next", False)


def test_functions_see_the_context_the_gateway_was_opened_in() -> None:
    user = contextvars.ContextVar("user", default="nobody")

    def who() -> str:
        return user.get()

    token = user.set("ann")
    with Gateway([who]) as gateway, client_of(gateway.mcp_server()) as client:
        user.reset(token)
        assert call(client, "who") == ("ann", False)


def test_several_relays_can_be_connected_at_once() -> None:
    """Sub-agents and restarted servers connect again."""
    with Gateway([echo]) as gateway:
        server = gateway.mcp_server()
        with client_of(server) as one, client_of(server) as two:
            assert [call(one, "echo", value="1"), call(two, "echo", value="2")] == [("1", False), ("2", False)]
        assert gateway.calls_made == 2


def test_an_agent_calls_python_functions_in_a_run(tmp_path: Path) -> None:
    calls = [["echo", {"value": "\u00e9"}], ["echo", {}], ["nothing", {}]]
    with Gateway([echo]) as gateway:
        run = FakeAgent(tmp_path).execute(f"calls {json.dumps(calls)}", mcp_servers=gateway.mcp_servers())
        events, result = finished(run)
    assert result.ok
    assert result.text == "\u00e9\nwrong arguments for echo: missing: value\nunknown tool: nothing"
    assert [event.is_error for event in events if event.type == "tool_result"] == [False, True, True]


# --- nobody else ---------------------------------------------------------------------------------------------


def test_only_this_user_can_reach_the_socket() -> None:
    with Gateway([echo]) as gateway:
        server = gateway.mcp_server()
        assert stat.S_IMODE(folder_of(server).stat().st_mode) == 0o700
        assert stat.S_IMODE(os.stat(server.env[relay.SOCKET_VARIABLE]).st_mode) == 0o600


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_another_user_cannot_connect() -> None:
    code = (
        "import os, socket, sys; os.setgid(65534); os.setuid(65534); s = socket.socket(socket.AF_UNIX)\n"
        "try: s.connect(sys.argv[1])\n"
        "except PermissionError: print('refused')"
    )
    with Gateway([echo]) as gateway:
        path = gateway.mcp_server().env[relay.SOCKET_VARIABLE]
        # The folders above are opened to everybody, so only the gateway's own folder keeps them out.
        with reachable(Path(path).parent.parent):
            python = [sys.executable, "-I", "-S", "-c", code, path]
            assert subprocess.run(python, capture_output=True, text=True).stdout == "refused\n"


@contextmanager
def reachable(folder: Path) -> Iterator[None]:
    modes = {one: stat.S_IMODE(one.stat().st_mode) for one in (folder, *folder.parents)}
    try:
        for one, mode in modes.items():
            one.chmod(mode | 0o011)
        yield
    finally:
        for one, mode in modes.items():
            one.chmod(mode)


@pytest.mark.parametrize("hello", [b"wrong\n", b"\n", b"", b"x" * 5_000, b"\xff\xfe\n"])
def test_a_connection_without_the_token_is_closed_unheard(hello: bytes) -> None:
    with Gateway([echo]) as gateway:
        path = gateway.mcp_server().env[relay.SOCKET_VARIABLE]
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(PATIENCE)
            stranger.connect(path)
            stranger.sendall(hello + b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}\n')
            stranger.shutdown(socket.SHUT_WR)
            try:
                assert stranger.recv(100) == b""
            except ConnectionResetError:
                pass  # This is just as good: there was more to read than the server wanted.


def test_the_token_is_another_one_every_time_and_in_no_argument() -> None:
    with Gateway([echo]) as one, Gateway([echo]) as two:
        first, second = one.mcp_server(), two.mcp_server()
    token = first.env[relay.TOKEN_VARIABLE]
    assert len(token) >= 32
    assert token != second.env[relay.TOKEN_VARIABLE]
    assert not any(token in argument for argument in first.args)
    assert token not in repr(first)


def test_a_relay_with_a_wrong_token_says_so_and_exits() -> None:
    with Gateway([echo]) as gateway:
        server = gateway.mcp_server()
        assert server.command is not None
        env = {**server.env, relay.TOKEN_VARIABLE: "wrong"}
        process = subprocess.run([server.command, *server.args], env=env, stdin=subprocess.PIPE, capture_output=True)
    assert process.returncode in (0, 1)  # 0 if it first noticed that its own stdin was closed.
    assert process.stdout == b""


# --- nothing left --------------------------------------------------------------------------------------------


def test_afterwards_there_is_no_socket_no_folder_and_no_relay() -> None:
    with Gateway([echo]) as gateway:
        server = gateway.mcp_server()
        client = McpClient({"command": server.command, "args": server.args, "env": server.env})
        assert folder_of(server).is_dir()
    assert not folder_of(server).exists()
    assert client.process.wait(PATIENCE) == 1
    for pipe in (client.process.stdin, client.process.stdout):
        assert pipe is not None
        pipe.close()
    with pytest.raises(RuntimeError, match="not open"):
        gateway.mcp_server()


def test_the_relay_ends_when_the_cli_is_killed(tmp_path: Path) -> None:
    entered, release = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        release.wait(PATIENCE)

    with Gateway([wait]) as gateway:
        run = FakeAgent(tmp_path).start("call wait {}", mcp_servers=gateway.mcp_servers())
        with run:
            assert next(run).type == "tool_use"
            assert entered.wait(PATIENCE)
            assert run.pid is not None
            os.kill(run.pid, signal.SIGKILL)
            assert not list(run)[-1].result.ok  # type: ignore[union-attr]
        release.set()
        pids = relays(gateway.mcp_server())
        assert wait_until(lambda: not any(map(alive, pids)))


def relays(server: McpServerConfig) -> list[int]:
    """The processes that have this gateway's socket in their environment."""
    needle = server.env[relay.SOCKET_VARIABLE].encode()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if needle in Path(f"/proc/{name}/environ").read_bytes():
                found.append(int(name))
        except OSError:
            pass
    return found


def test_a_call_that_is_under_way_when_the_run_ends_may_finish() -> None:
    """Its side effects are then on record."""
    entered, done = threading.Event(), threading.Event()

    def send() -> None:
        entered.set()
        time.sleep(0.05)
        done.set()

    gateway = Gateway([send])
    with gateway, client_of(gateway.mcp_server()) as client:
        client.send("tools/call", {"name": "send", "arguments": {}})
        assert entered.wait(PATIENCE)
    assert done.is_set()


def test_a_host_that_exits_with_the_gateway_open_leaves_nothing_behind(tmp_path: Path) -> None:
    code = """
        import threading
        from remoteclaw_sync.tool_server.server import Gateway
        def echo(value: str) -> str: return value
        entered = threading.Event()
        def work():
            with Gateway([echo]):
                entered.set()
                threading.Event().wait()
        threading.Thread(target=work, daemon=True).start()
        entered.wait()
    """
    with start_host(code, env={"TMPDIR": str(tmp_path)}) as host:
        _, err = host.communicate(timeout=PATIENCE)
    assert (host.returncode, err) == (0, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_a_killed_host_left_is_swept_up_by_the_next_gateway_and_nothing_else_is() -> None:
    code = """
        from remoteclaw_sync.tool_server.server import Gateway
        def echo(value: str) -> str: return value
        with Gateway([echo]):
            print("open", flush=True)
            input()
    """
    base = Path(tempfile.gettempdir())
    with (
        start_host(code, stdin=subprocess.PIPE) as living,
        start_host(code, stdin=subprocess.PIPE) as dead,
        Gateway([echo]) as own,
    ):
        for host in (living, dead):
            assert host.stdout is not None
            assert host.stdout.readline() == "open\n"
        before = set(base.iterdir())
        dead.kill()
        dead.wait()
        with Gateway([echo]):
            left = before & set(base.iterdir())
            assert len(before - left) == 1
            assert folder_of(own.mcp_server()) in left
        living.communicate("\n", timeout=PATIENCE)


# --- the relay -----------------------------------------------------------------------------------------------


def test_the_relay_imports_next_to_nothing() -> None:
    with Gateway([echo]) as gateway:
        server = gateway.mcp_server()
        assert server.command is not None
        command = [server.command, "-X", "importtime", *server.args]
        process = subprocess.run(
            command, env=dict(server.env), stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    imported = {line.rpartition("|")[2].strip() for line in process.stderr.splitlines() if "import time:" in line}
    assert "_socket" in imported
    assert not imported & {
        "attr",
        "attrs",
        "json",
        "socket",
        "threading",
        "subprocess",
        "site",
        "re",
        "remoteclaw_sync",
    }


def test_the_relay_can_be_started_as_a_module_too() -> None:
    with Gateway([echo]) as gateway:
        server = gateway.mcp_server()
        config = {"command": sys.executable, "args": ["-m", "remoteclaw_sync.tool_server"], "env": server.env}
        client = McpClient(config)
        assert call(client, "echo", value="hi") == ("hi", False)
        client.close()
        assert client.process.stdout is not None
        client.process.stdout.close()
        assert client.process.returncode == 0


def test_a_relay_without_a_host_says_what_is_missing() -> None:
    script = [sys.executable, "-I", "-S", relay.__file__]
    lost = subprocess.run(script, env={}, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (lost.returncode, relay.SOCKET_VARIABLE in lost.stderr) == (2, True)
    env = {relay.SOCKET_VARIABLE: "/nowhere/s", relay.TOKEN_VARIABLE: "x"}
    refused = subprocess.run(script, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (refused.returncode, "cannot be reached" in refused.stderr) == (1, True)
    assert "Traceback" not in lost.stderr + refused.stderr
