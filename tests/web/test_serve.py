"""`remoteclaw-sync serve`: where it listens, what it says, what it leaves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path

import pytest

from remoteclaw_sync.cli import main
from remoteclaw_sync.cli.commands import UsageError
from remoteclaw_sync.cli.serve import checked_host, own_names
from tests.fakes import PATIENCE, wait_until
from tests.web.servers import Server, needs

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
            found = re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=([\w-]{32})", server.address)
            assert found is not None
            tokens.add(found[1])
            assert status(server, f"/?token={found[1]}") == 200
            assert status(server, "/") == 403
    assert len(tokens) == 2


def test_at_the_end_of_the_server_its_agents_end_and_its_files_go(tmp_path: Path) -> None:
    """While a visitor is listening."""
    needs("waitress")
    with Server(*SERVE, folder=tmp_path / "server") as server:
        token = server.address.rpartition("=")[2]
        cookie = {"Cookie": f"remoteclaw-sync-{server.port}={token}", "Content-Type": "application/json"}
        connection = HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        connection.request("POST", "/api/runs", '{"provider": "demo", "prompt": "demo:hang"}', cookie)
        run_id = re.findall(rb"[0-9a-f]{32}", connection.getresponse().read())[0].decode()
        connection.request("GET", f"/api/runs/{run_id}/events", headers=cookie)
        stream = connection.getresponse()
        assert stream.readline() == b"retry: 1000\n"
        assert wait_until(server.agents)
        assert server.stop() in (0, 130)
        assert server.agents() == set()
        assert b'"code":"ABORTED"' in stream.read()
        connection.close()
    assert os.listdir(tmp_path / "server") == []


def status(server: Server, path: str) -> int:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()
