"""Pools of live sessions and warm bridges, on the real Claude Code and Codex."""

from __future__ import annotations

from typing import Any

import pytest

from remoteclaw_sync import (
    AskInChat,
    ChannelBridge,
    ChannelMessage,
    ChatQuestion,
    ClaudeCliRuntime,
    CLIRuntimeBase,
    CodexCliRuntime,
    GatewayTools,
    OutgoingMessage,
    SessionPool,
)
from tests.fakes import alive, wait_until
from tests.real_clis.bench import Bench
from tests.real_clis.model_server import ModelRequest
from tests.real_clis.scenarios_claude import shell
from tests.real_clis.script import ToolCall, Turn

RUNTIMES = (ClaudeCliRuntime, CodexCliRuntime)
live = pytest.mark.parametrize("kind", RUNTIMES, ids=lambda kind: kind.provider)


@pytest.fixture
def bench(cli_bench: Bench) -> Bench:
    return cli_bench


def echo(request: ModelRequest) -> Turn:
    return Turn(text=f"re: {request.prompt}")


def message(text: str, chat: str = "c1") -> ChannelMessage:
    return ChannelMessage(text, provider="telegram", channel_id=chat, sender="ann")


@live
def test_a_pool_of_two_processes_serves_four_conversations_which_forget_nothing(
    kind: type[CLIRuntimeBase], bench: Bench
) -> None:
    bench.server.respond(echo)
    fields: dict[str, Any] = {"working_directory": bench.workdir, "permission_mode": "read-only"}
    runtime = kind(share_process=False)  # type: ignore[call-arg]
    with SessionPool(runtime, max_warm=2, **fields) as pool:
        names: list[str | None] = [None] * 4
        pids: set[int] = set()
        for turn in range(2):
            for number in range(4):
                with pool.session(names[number]) as session:
                    words = f"words {turn} of {number}."
                    assert session.run(words).text == f"re: {words}"
                    names[number] = names[number] or session.session_id
                    assert session.session_id == names[number]
                    assert session.pid is not None
                    pids.add(session.pid)
                    asked = bench.server.requests[-1]
                    for other in range(4):
                        for before in range(2):
                            told = other == number and before <= turn
                            assert (asked.occurrences(f"words {before} of {other}.") > 0) is told
                assert sum(map(alive, pids)) <= 2
        assert len(set(names)) == 4
    assert wait_until(lambda: bench.processes() == {})


@live
def test_a_chats_second_message_is_answered_by_the_process_of_the_first(
    kind: type[CLIRuntimeBase], bench: Bench
) -> None:
    bench.server.respond(echo)
    runtime = kind()  # type: ignore[call-arg]
    with ChannelBridge(runtime, session_map=":memory:", workspace_dir=bench.workdir, warm=2) as bridge:
        first = bridge.handle(message("first words"))
        before = set(bench.processes())
        second = bridge.handle(message("second words"))
        assert (first.run.text, second.run.text) == ("re: first words", "re: second words")
        assert first.run.session_id == second.run.session_id
        assert bench.server.requests[-1].occurrences("first words") > 0
        assert before & set(bench.processes())
    assert wait_until(lambda: bench.processes() == {})


def test_a_process_that_was_started_ahead_takes_a_new_conversation_and_can_be_resumed(bench: Bench) -> None:
    bench.server.respond(echo)
    with SessionPool(ClaudeCliRuntime(), spare=1, max_warm=2, working_directory=bench.workdir) as pool:
        assert wait_until(lambda: any(door.seat and not door.is_used for _, door in pool._seats._spares))
        (ahead,) = (seat.doors[0].live for seat in pool._seats._seats)
        assert ahead is not None
        pid = ahead.pid
        with pool.session() as session:
            assert session.run("first words").text == "re: first words"
            assert session.pid == pid
        assert session.session_id is not None
        pool.cool(session.session_id)
        with pool.session(session.session_id) as session:
            session.run("second words")
            assert session.pid != pid
        assert bench.server.requests[-1].occurrences("first words") > 0


def test_tools_and_approvals_work_in_every_message_of_a_warm_chat(bench: Bench) -> None:
    files = [bench.workdir / name for name in ("yes", "no")]
    texts = [f"Message {number}." for number in (1, 2)]
    say = [ToolCall("mcp__remoteclaw__message", {"text": text}, f"toolu_{text[-2]}") for text in texts]
    calls = [shell(f"touch {file}", f"toolu_{file.name}") for file in files]
    script = [one for pair in zip(say, calls, strict=True) for one in pair]
    turns = [Turn(tool_calls=[one]) for one in script]
    bench.server.script([*turns[:2], Turn(text="Done."), *turns[2:], Turn(text="Not done.")])
    sent: list[OutgoingMessage] = []
    labels = ["Allow", "Deny"]

    def ask(question: ChatQuestion) -> None:
        assert f"touch {files[2 - len(labels)]}" in (question.payloads[-1].text or "")
        label = labels.pop(0)
        (data,) = [button.data for button in question.payloads[-1].buttons if button.label == label]
        assert not bridge.answer(data, "eve")
        assert bridge.answer(data, "ann")

    options: dict[str, Any] = {"session_map": ":memory:", "workspace_dir": bench.workdir, "warm": 1}
    options |= {"tools": [GatewayTools(send_message=sent.append)], "ask_in_chat": AskInChat(ask)}
    with ChannelBridge(ClaudeCliRuntime(), **options) as bridge:
        results = [bridge.handle(message(words)) for words in ("first", "second")]
    assert [result.run.text for result in results] == ["Done.", "Not done."]
    assert [result.mcp.sent_texts for result in results] == [(text,) for text in texts]
    assert [file.exists() for file in files] == [True, False]
    assert [len(result.run.permission_denials) for result in results] == [0, 1]
