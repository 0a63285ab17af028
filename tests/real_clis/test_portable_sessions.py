"""Sessions that are started on one machine and continued on another, on the real CLIs. A machine is a HOME and a
working directory."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import (
    AgentRunResult,
    ChannelBridge,
    ChannelMessage,
    ClaudeCliRuntime,
    CLIRuntimeBase,
    FolderSessionStore,
    SessionBusyError,
    SessionPool,
    SessionTransferError,
    create_cli_runtime,
)
from tests.real_clis.bench import Bench
from tests.real_clis.clis import RealCli
from tests.real_clis.model_server import ModelRequest
from tests.real_clis.script import Turn

# An OpenCode command takes seconds, and ten times that on a busy machine; a chat needs a dozen of them.
pytestmark = pytest.mark.timeout(900)


class Machine:
    """Shares nothing with other machines: neither its sessions nor its path."""

    def __init__(self, bench: Bench, cli: RealCli, name: str) -> None:
        self.bench, self.name = bench, name
        self.home, self.cwd = bench.root / f"home-{name}", bench.root / name / "project"
        for folder in (self.home, self.cwd):
            folder.mkdir(parents=True)
        self.env: dict[str, str | None] = {"HOME": str(self.home), **cli.configure(self.home, bench.server.url)}
        self.runtime: CLIRuntimeBase = create_cli_runtime(cli.name)
        self.model: dict[str, Any] = {} if cli.name == "codex" else {"model": cli.model}

    @property
    def fields(self) -> dict[str, Any]:
        return {"env": self.env, "working_directory": self.cwd, **self.model}

    def run(self, prompt: str, session_id: str | None = None) -> AgentRunResult:
        return self.runtime.run(prompt, session_id=session_id, **self.fields)

    def export(self, session_id: str | None, *, held: bool = False) -> bytes:
        assert session_id is not None
        return self.runtime.export_session(session_id, working_directory=self.cwd, env=self.env, held=held)

    def take(self, data: bytes, *, replace: bool = False) -> str:
        return self.runtime.import_session(data, working_directory=self.cwd, env=self.env, replace=replace)


@pytest.fixture
def machines(cli_bench: Bench, cli: RealCli) -> tuple[Machine, Machine]:
    cli_bench.server.respond(answer)
    return Machine(cli_bench, cli, "one"), Machine(cli_bench, cli, "two")


def answer(request: ModelRequest) -> Turn:
    words = (request.prompt or "").splitlines() or [""]
    return Turn(text=f"re: {words[-1]}")


def seen(bench: Bench, *words: str) -> bool:
    """Whether the model's last request contained each of these, as its own words or the user's."""
    shown = bench.server.requests[-1].conversation
    texts = "\n".join((*shown.user_texts, *shown.assistant_texts))
    return all(word in texts for word in words)


def test_two_machines_alternate_in_one_conversation(machines: tuple[Machine, Machine], cli_bench: Bench) -> None:
    session_id, said = machines[0].run("turn-number-0").session_id, ["turn-number-0"]
    for number in range(1, 4):
        before, after = machines[(number - 1) % 2], machines[number % 2]
        begun = time.monotonic()
        data = before.export(session_id)
        packed = time.monotonic()
        assert after.take(data) == session_id
        taken = time.monotonic()
        print(f"hand-over: {len(data)} bytes, export {packed - begun:.3f} s, import {taken - packed:.3f} s")
        result = after.run(f"turn-number-{number}", session_id)
        assert result.session_id == session_id
        assert seen(cli_bench, *said, *(f"re: {words}" for words in said), f"turn-number-{number}")
        said.append(f"turn-number-{number}")


def test_a_session_is_resumed_by_a_live_one_and_goes_back_while_that_is_warm(
    machines: tuple[Machine, Machine], cli_bench: Bench
) -> None:
    one, two = machines
    if one.runtime.new_live_dialect() is None:
        pytest.skip("no live sessions on this CLI")
    session_id = one.run("turn-number-0").session_id
    two.take(one.export(session_id))
    with two.runtime.open_session(session_id=session_id, **two.fields) as session:
        assert session.run("turn-number-1").text == "re: turn-number-1"
        assert seen(cli_bench, "turn-number-0", "re: turn-number-0")
        with pytest.raises(SessionBusyError):
            two.export(session_id)
        data = two.export(session_id, held=True)  # Between two turns, by the one that holds the session.
    one.take(data)
    one.run("turn-number-2", session_id)
    assert seen(cli_bench, "turn-number-0", "turn-number-1", "re: turn-number-1")


def test_what_was_said_here_since_is_lost_only_if_the_caller_says_so(
    machines: tuple[Machine, Machine], cli_bench: Bench
) -> None:
    one, two = machines
    session_id = one.run("turn-number-0").session_id
    data = one.export(session_id)
    two.take(data)
    two.run("said-by-two", session_id)
    with pytest.raises(SessionTransferError) as caught:
        two.take(data)
    assert caught.value.reason == "local_newer"
    one.run("said-by-one", session_id)
    with pytest.raises(SessionTransferError) as caught:
        two.take(one.export(session_id))
    assert caught.value.reason == "diverged"
    two.take(one.export(session_id), replace=True)
    two.run("and-then", session_id)
    assert seen(cli_bench, "turn-number-0", "said-by-one")
    assert not seen(cli_bench, "said-by-two")


def test_an_unknown_session_is_not_found(machines: tuple[Machine, Machine]) -> None:
    one, _ = machines
    unknown = {"opencode": "ses_e103dc625ffeSJBPMpt135zkne"}
    with pytest.raises(SessionTransferError) as caught:
        one.export(unknown.get(str(one.runtime.provider), "0199a213-81c0-7800-8aa1-bbab2a035a53"))
    assert caught.value.reason == "not_found"


def test_the_records_of_sub_agents_go_with_a_claude_session(cli_bench: Bench) -> None:
    claude = cli_bench.claude

    def respond(request: ModelRequest) -> Turn:
        if (request.prompt or "").startswith("delegate") and not request.tool_results:
            return Turn(tool_calls=[claude.agent_call("the sub task")])
        return answer(request)

    cli_bench.server.respond(respond)
    one, two = Machine(cli_bench, claude, "one"), Machine(cli_bench, claude, "two")
    session_id = one.run("delegate this").session_id
    two.take(one.export(session_id))

    def records(home: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in home.glob(".claude/projects/*/*/subagents/*")}

    assert records(one.home)
    assert records(two.home) == records(one.home)
    assert isinstance(two.runtime, ClaudeCliRuntime)
    assert two.run("go on", session_id).ok
    assert seen(cli_bench, "delegate this")


def words(text: str) -> ChannelMessage:
    return ChannelMessage(text, provider="test", channel_id="c1", sender="u1")


@pytest.mark.parametrize("warm", [0, 1])
def test_a_chat_goes_on_on_another_machine_and_comes_back(
    warm: int, machines: tuple[Machine, Machine], cli_bench: Bench, tmp_path: Path
) -> None:
    if warm and machines[0].runtime.new_live_dialect() is None:
        pytest.skip("no live sessions on this CLI")
    store = FolderSessionStore(tmp_path / "store")
    with contextlib.ExitStack() as stack:
        bridges = [
            stack.enter_context(
                ChannelBridge(
                    machine.runtime,
                    session_map=":memory:",  # Not shared: only the store is.
                    session_store=store,
                    workspace_dir=machine.cwd,
                    env=machine.env,
                    warm=warm,
                    **machine.model,
                )
            )
            for machine in machines
        ]
        said: list[str] = []
        for number in (0, 0, 1, 0):
            result = bridges[number].handle(words(f"turn-number-{len(said)}"))
            assert (result.error, result.warnings) == (None, ())
            assert seen(cli_bench, *said)
            said.append(f"turn-number-{len(said)}")


def test_a_leased_session_goes_on_on_another_machine(
    machines: tuple[Machine, Machine], cli_bench: Bench, tmp_path: Path
) -> None:
    if machines[0].runtime.new_live_dialect() is None:
        pytest.skip("no live sessions on this CLI")
    store = FolderSessionStore(tmp_path / "store")
    with contextlib.ExitStack() as stack:
        one, two = (
            stack.enter_context(SessionPool(machine.runtime, session_store=store, **machine.fields))
            for machine in machines
        )
        with one.session() as session:
            session.run("turn-number-0")
            session_id = session.session_id
        with two.session(session_id) as session:
            with pytest.raises(SessionBusyError, match="leased already"):
                one.session(session_id)
            session.run("turn-number-1")
            assert seen(cli_bench, "turn-number-0")
        with one.session(session_id) as session:  # Its own process is warm, but behind.
            session.run("turn-number-2")
            assert seen(cli_bench, "turn-number-0", "turn-number-1")
