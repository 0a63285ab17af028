"""`remoteclaw-sync serve`: where it listens, what it prints, what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync.cli import main
from remoteclaw_sync.cli.dispatch import UsageError
from remoteclaw_sync.cli.leftovers import find_leftovers
from remoteclaw_sync.cli.serve import checked_host, counts_cache_as_input, own_names
from remoteclaw_sync.cli.server_folder import abandoned_folders
from remoteclaw_sync.factory import DEMO, SUPPORTED_PROVIDERS
from remoteclaw_sync.web.exchange import MAX_BODY
from remoteclaw_sync.web.uploads import MAX_IMAGE
from tests.cli.shell import cli, environment
from tests.fakes import PATIENCE, Container, wait_until
from tests.web.servers import Server, needs

HANG = '{"provider": "demo", "prompt": "demo:hang"}'
JSON = {"Content-Type": "application/json"}
SERVE = ("-m", "remoteclaw_sync", "serve", "--port", "0", "--provider", "demo")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "8.8.8.8", "[::]"])
def test_other_machines_are_let_in_only_if_that_is_said_twice(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--host", host]) == 2
    assert "--allow-remote" in capsys.readouterr().err
    assert checked_host(host, allow_remote=True) == host.strip("[]")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_loopback_needs_no_second_word(host: str) -> None:
    assert checked_host(host, allow_remote=False) in (host, "127.0.0.1")


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("host", ["example.com", "", "localhost.evil.example", "127.0.0.1.nip.io"])
def test_a_name_could_point_anywhere_and_is_no_address(host: str, allowed: bool) -> None:
    with pytest.raises(UsageError, match="--host must be an address"):
        checked_host(host, allowed)


def test_the_names_that_mean_us_have_the_port() -> None:
    assert own_names("::1", 80) == {"127.0.0.1:80", "localhost:80", "[::1]:80"}


def test_the_page_is_told_whose_input_tokens_include_those_from_a_cache() -> None:
    """As `AgentUsage` documents it for each CLI."""
    assert {name for name in (*SUPPORTED_PROVIDERS, DEMO) if counts_cache_as_input(name)} == {"gemini", "codex"}


def test_without_waitress_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "waitress", None)
    assert main(["serve"]) == 2
    assert "pip install 'remoteclaw_sync[web]'" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--provider", "nobody"], ["--cwd", "/nonexistent"]])
def test_what_cannot_work_is_said_at_the_start(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    needs("waitress")
    assert main(["serve", "--port", "0", *arguments]) == 2
    assert arguments[0] in capsys.readouterr().err


def test_a_port_in_use_is_said(tmp_path: Path) -> None:
    needs("waitress")
    with Server(*SERVE, folder=tmp_path / "server") as server:
        command = [sys.executable, "-m", "remoteclaw_sync", "serve", "--port", str(server.port)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), os.getcwd()])}
        second = subprocess.run(command, capture_output=True, text=True, env=env, timeout=PATIENCE)
    assert (second.returncode, second.stdout) == (2, "")
    assert "cannot listen on 127.0.0.1" in second.stderr


def test_the_printed_address_has_a_new_token_each_time_and_opens_the_page(tmp_path: Path) -> None:
    needs("waitress")
    tokens = set()
    for _ in range(2):
        with Server(*SERVE, folder=tmp_path / "server") as server:
            found = re.fullmatch(r"http://127\.0\.0\.1:\d+/#token=([\w-]{32})", server.address)
            assert found is not None
            tokens.add(found[1])
            assert request(server, "GET", "/")[0] == 200
            assert request(server, "GET", "/api/providers")[0] == 403
            assert request(server, "GET", "/api/providers", session(server))[0] == 200
    assert len(tokens) == 2


def test_when_a_link_has_been_used_the_next_one_is_printed(tmp_path: Path) -> None:
    needs("waitress")
    with Server(*SERVE, folder=tmp_path / "server") as server:
        mine = session(server)
        assert wait_until(lambda: server.output.count("#token=") == 2)
        first, second = re.findall(r"#token=(\S+)", server.output)
        assert request(server, "POST", "/api/session", first)[0] == 403
        assert request(server, "POST", "/api/session", second)[0] == 201
        assert request(server, "GET", "/api/providers", mine)[0] == 200, "the first tab stays in"


def test_somebody_who_is_let_in_need_not_care_that_the_terminal_is_gone(tmp_path: Path) -> None:
    """There is nowhere to print the next link."""
    needs("waitress")
    command = [sys.executable, *SERVE]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), os.getcwd()]), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env) as process:
        assert process.stdout is not None
        found = re.search(r":(\d+)/#token=(\S+)", process.stdout.readline())
        assert found is not None
        process.stdout.close()
        connection = HTTPConnection("127.0.0.1", int(found[1]), timeout=PATIENCE)
        connection.request("POST", "/api/session", headers={"Authorization": f"Bearer {found[2]}"})
        assert connection.getresponse().status == 201
        connection.close()
        process.terminate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_at_the_end_of_the_server_its_agents_end_and_its_files_go(number: signal.Signals, tmp_path: Path) -> None:
    """While a visitor is listening. A terminal sends SIGHUP when it is closed."""
    needs("waitress")
    with Server(*SERVE, folder=tmp_path / "server") as server:
        headers = {"Authorization": f"Bearer {session(server)}", "Content-Type": "application/json"}
        connection = HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        connection.request("POST", "/api/runs", HANG, headers)
        run_id = re.findall(rb"[0-9a-f]{32}", connection.getresponse().read())[0].decode()
        connection.request("GET", f"/api/runs/{run_id}/events", headers=headers)
        stream = connection.getresponse()
        assert stream.readline() == b"retry: 1000\n"
        assert wait_until(server.agents)
        assert server.stop(number) in (0, 130)
        assert server.agents() == set()
        assert b'"code":"ABORTED"' in stream.read()
        connection.close()
    assert os.listdir(tmp_path / "server") == []


def test_what_a_killed_server_leaves_is_seen_by_doctor_and_goes_with_the_next_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("waitress")
    folder = tmp_path / "server"
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with Server(*SERVE, folder=folder) as living:
        with Server(*SERVE, folder=folder) as killed:
            assert abandoned_folders() == []
            killed.stop(signal.SIGKILL)
        (left,) = abandoned_folders()
        assert [one.what for one in find_leftovers(str(tmp_path), repair=False) if "serve" in one.what] == [left]
        with Server(*SERVE, folder=folder):
            assert not os.path.exists(left)
        assert len(os.listdir(folder)) == 1, "that of the living one"
        assert request(living, "GET", "/")[0] == 200


def test_doctor_repairs_what_a_killed_server_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, container: Container
) -> None:
    needs("waitress")
    folder = tmp_path / "server"
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with Server(*SERVE, folder=folder) as server:
        server.stop(signal.SIGKILL)
    (left,) = abandoned_folders()
    env = environment(TMPDIR=str(folder), HOME=str(tmp_path))
    report = json.loads(cli("doctor", "--json", "--repair", cwd=tmp_path, env=env, inside=container.inside).stdout)
    assert [(one["what"], one["repaired"]) for one in report["leftovers"]] == [(left, True)]
    assert os.listdir(folder) == []


def test_so_many_agents_at_once_as_the_command_line_says(tmp_path: Path) -> None:
    needs("waitress")
    with Server(*SERVE, "--max-runs", "3", folder=tmp_path / "server") as server:
        mine = session(server)
        statuses = [request(server, "POST", "/api/runs", mine, HANG)[0] for _ in range(5)]
        assert statuses == [201, 201, 201, 429, 429]
        assert "3 agents are at work" in request(server, "POST", "/api/runs", mine, HANG)[1]["error"]


@pytest.mark.parametrize("number", ["0", "-1"])
def test_a_server_for_no_agent_is_refused(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    needs("waitress")
    assert main(["serve", "--max-runs", number]) == 2
    assert "--max-runs" in capsys.readouterr().err


# --- strangers: whoever can reach the port -----------------------------------------------------------------------

HALVES = {
    "nothing": b"",
    "half of a header": b"POST /api/runs HTTP/1.1\r\nHost: 127.0.0.1",
    "half of a body": b"POST /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{",
    "half of a chunk": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{",
}


@pytest.mark.parametrize("half", HALVES)
def test_hundreds_of_half_sent_requests_do_not_keep_the_owner_out(half: str, tmp_path: Path) -> None:
    needs("waitress")
    with Server(*SERVE, folder=tmp_path / "server") as server, ExitStack() as stack:
        for _ in range(600):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE))
            stranger.sendall(HALVES[half])
        mine = session(server)
        assert request(server, "POST", "/api/runs", mine, HANG)[0] == 201


def test_more_strangers_than_there_are_places_make_room_for_the_owner(tmp_path: Path) -> None:
    """With few descriptors, so there are few places."""
    needs("waitress")
    with Server("-c", FEW_PLACES, *SERVE[2:], folder=tmp_path / "server") as server, ExitStack() as stack:
        mine = session(server)
        with connected(server) as listener:
            listener.request("POST", "/api/runs", HANG, {"Authorization": f"Bearer {mine}", **JSON})
            run_id = json.loads(listener.getresponse().read())["run_id"]
            listener.request("GET", f"/api/runs/{run_id}/events", headers={"Authorization": f"Bearer {mine}"})
            stream = listener.getresponse()
            for _ in range(300):
                stranger = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE))
                stranger.sendall(HALVES["half of a body"])
            assert request(server, "POST", f"/api/runs/{run_id}/abort", mine, "{}")[0] == 200
            assert b'"code":"ABORTED"' in stream.read(), "one who is being served keeps the place"


@pytest.mark.parametrize("how", ["with its length", "in chunks", "after a 100-continue"])
def test_a_strangers_body_is_not_kept(how: str, tmp_path: Path) -> None:
    """Neither in a file (in this server's temporary folder, including deleted files) nor in memory."""
    needs("waitress")
    with Server(*SERVE, folder=tmp_path / "server") as server:
        length = "Transfer-Encoding: chunked" if how == "in chunks" else f"Content-Length: {MAX_BODY}"
        expect = "Expect: 100-continue\r\n" if "100" in how else ""
        head = f"POST /api/runs HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n{expect}{length}\r\n\r\n"
        before = memory_kb(server.pid)
        with ExitStack() as stack:
            for _ in range(60):
                stranger = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE))
                stranger.sendall(head.encode() + (b"fffff\r\n" if how == "in chunks" else b""))
                stranger.sendall(b"x" * (MAX_BODY - 100_000))
            assert wait_until(lambda: all_is_read(server.port))
            assert open_files(server.pid) == []
            assert memory_kb(server.pid) - before < 20_000


@pytest.mark.parametrize("length", [MAX_IMAGE + 100_000, 400_000_000, 10**15])
def test_a_giant_body_is_refused_at_its_first_byte(length: int, tmp_path: Path) -> None:
    needs("waitress")
    with Server(*SERVE, folder=tmp_path / "server") as server:
        for shown in ("", f"Authorization: Bearer {session(server)}\r\n"):
            with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as stranger:
                head = f"POST /api/runs HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n{shown}"
                stranger.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode())
                answer = stranger.makefile("rb").read()
            assert answer.startswith(b"HTTP/1.1 413 ")


def test_a_stranger_with_a_body_is_told_why_not(tmp_path: Path) -> None:
    needs("waitress")
    with Server(*SERVE, folder=tmp_path / "server") as server:
        status, answer = request(server, "POST", "/api/runs", "wrong", json.dumps({"prompt": "x" * (MAX_BODY - 20)}))
        assert status == 403
        assert "newest link" in answer["error"]


def test_the_owners_longest_prompt_arrives(tmp_path: Path) -> None:
    needs("waitress")
    with Server(*SERVE, folder=tmp_path / "server") as server:
        head = '{"provider": "demo", "prompt": "'
        body = head + "x" * (MAX_BODY - len(head) - 2) + '"}'
        assert len(body) == MAX_BODY
        mine = session(server)
        assert request(server, "POST", "/api/runs", mine, body)[0] == 201
        assert request(server, "POST", "/api/runs", mine, body + " ")[0] == 413


FEW_PLACES = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from remoteclaw_sync.cli import main, strangers
strangers.IDLE_SECONDS = 3600  # So it is not by waiting that there is room.
raise SystemExit(main())
"""


def session(server: Server) -> str:
    """Exchange the server's first link."""
    status, answer = request(server, "POST", "/api/session", server.address.rpartition("=")[2])
    assert status == 201
    return str(answer["session"])


def request(server: Server, method: str, path: str, token: str = "", body: str | None = None) -> tuple[int, Any]:
    """The status and the decoded JSON (None if it is not JSON)."""
    with connected(server) as connection:
        connection.request(method, path, body, {"Authorization": f"Bearer {token}", **JSON})
        response = connection.getresponse()
        data = response.read()
        return response.status, json.loads(data) if response.headers["Content-Type"] == "application/json" else None


@contextmanager
def connected(server: Server) -> Iterator[HTTPConnection]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    try:
        yield connection
    finally:
        connection.close()


def open_files(pid: int) -> list[str]:
    """The regular files that a process has open in its temporary folder, including deleted ones, except its lock."""
    folder = dict(pair.split("=", 1) for pair in Path(f"/proc/{pid}/environ").read_text().split("\0") if pair)["TMPDIR"]
    links = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            links.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            pass  # It has been closed.
    return [link for link in links if link.startswith(folder) and not link.endswith("server.lock")]


def all_is_read(port: int) -> bool:
    """Whether nothing that was sent to this port is still waiting in the kernel."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return all(row[4].endswith(":00000000") for row in rows if int(row[1].partition(":")[2], 16) == port)


def memory_kb(pid: int) -> int:
    return int(re.findall(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0])
