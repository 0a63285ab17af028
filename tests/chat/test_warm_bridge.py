"""A bridge whose agents stay warm, and what happens to messages that arrive while one works (tests/live_claude.py)."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import (
    AgentDeliveryResult,
    BridgeCallbacks,
    ChannelBridge,
    ChannelMessage,
    GatewayTools,
    OutgoingMessage,
)
from tests.engine.live import heard_by, runtime, starts, steps
from tests.fakes import alive, wait_until
from tests.tool_server.agents import ScriptedRuntime

Make = Callable[..., ChannelBridge]
MEMORY = steps(["memory"])


def message(text: str, chat: object = "c1", **fields: Any) -> ChannelMessage:
    return ChannelMessage(text, provider="telegram", channel_id=str(chat), sender="u1", **fields)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes bridges to the fake Claude and closes them after the test."""
    bridges: list[ChannelBridge] = []

    def make(warm: int = 2, **options: Any) -> ChannelBridge:
        where: dict[str, Any] = {"session_map": tmp_path / "sessions.db", "workspace_dir": tmp_path}
        bridges.append(ChannelBridge(runtime(tmp_path), warm=warm, **where, **options))
        return bridges[-1]

    yield make
    for bridge in bridges:
        bridge.close()


def remembered(bridge: ChannelBridge, chat: object = "c1") -> list[str]:
    """What the agent remembers of a conversation."""
    words: list[str] = json.loads(bridge.handle(message(MEMORY, chat)).run.text)
    return [word for word in words if not word.startswith("[[")]


class Background:
    """A message that is being handled in another thread, up to its first words."""

    def __init__(self, bridge: ChannelBridge, text: str) -> None:
        self._thread = ThreadPoolExecutor(1)
        self.says = threading.Event()
        self.result: Future[AgentDeliveryResult] = self._thread.submit(
            bridge.handle, message(text), BridgeCallbacks(on_partial_reply=lambda payload: self.says.set())
        )

    def __enter__(self) -> Background:
        assert self.says.wait(30)
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown()


# --- warm -----------------------------------------------------------------------------------------------------


def test_the_second_message_of_a_chat_is_answered_by_the_process_of_the_first(make: Make, tmp_path: Path) -> None:
    bridge = make()
    first, second = bridge.handle(message("hello")), bridge.handle(message("again"))
    assert [first.payloads[0].text, second.payloads[0].text] == ["re: hello", "re: again"]
    assert first.run.session_id == second.run.session_id
    assert len(starts(tmp_path)) == 1
    assert remembered(bridge) == ["hello", "again"]


@pytest.mark.slow
def test_forty_chats_on_eight_warm_processes_lose_and_mix_nothing(make: Make, tmp_path: Path) -> None:
    bridge = make(warm=8, max_concurrent_runs=16)
    most: list[int] = []

    def chat(number: int) -> list[str]:
        said = []
        for turn in range(3):
            said += [payload.text or "" for payload in bridge.handle(message(f"{number}/{turn}", number)).payloads]
            most.append(sum(alive(int(file.stem)) for file in tmp_path.glob("*.start")))
        return [*said, *remembered(bridge, number)]

    with ThreadPoolExecutor(40) as threads:
        answers = list(threads.map(chat, range(40)))
    for number, answer in enumerate(answers):
        said = [f"{number}/{turn}" for turn in range(3)]
        assert answer == [*(f"re: {words}" for words in said), *said]
    assert max(most) <= 8


@pytest.mark.slow
def test_a_process_that_dies_between_messages_costs_nothing_and_in_a_run_only_that_run(make: Make) -> None:
    bridge = make()
    state = json.loads(bridge.handle(message(steps(["state"]))).run.text)
    os.kill(state["pid"], signal.SIGKILL)
    assert bridge.handle(message("hello")).error is None
    assert bridge.handle(message(steps(["text", "a"], ["die"]))).run.error_subtype == "crash"
    assert remembered(bridge) == ["hello"]


@pytest.mark.slow
def test_a_second_bridge_on_the_same_map_goes_on_when_the_first_is_closed(make: Make) -> None:
    first = make()
    first.handle(message("hello"))
    first.close()
    assert remembered(make()) == ["hello"]


def test_a_closed_bridge_says_so_and_starts_nothing(make: Make, tmp_path: Path) -> None:
    bridge = make()
    bridge.close()
    told = bridge.handle(message("hello"))
    assert (told.error, told.run.aborted, told.payloads) == ("the bridge is closed", True, ())
    assert starts(tmp_path) == []


@pytest.mark.slow
def test_a_forgotten_conversation_lets_its_process_go(make: Make, tmp_path: Path) -> None:
    bridge = make()
    bridge.handle(message("hello"))
    bridge.forget(message(""))
    assert not any(alive(int(file.stem)) for file in tmp_path.glob("*.start"))
    assert remembered(bridge) == []


@pytest.mark.slow
def test_tools_stay_with_the_process_and_each_message_has_its_own_record(make: Make, tmp_path: Path) -> None:
    sent: list[OutgoingMessage] = []
    bridge = make(tools=[GatewayTools(send_message=sent.append)], call_timeout=7.0)
    told = bridge.handle(message("hello"))
    assert bridge._warm is not None
    box, tools = bridge._warm.toolbox(bridge.conversation(message("")), message(""))
    assert [(tool.name, tool.timeout) for tool in tools] == [("message", 7.0)]
    tools[0]({"text": "on my way"})
    assert (box.calls_made, sent[0].to) == (1, "c1")
    assert (told.mcp.sent_texts, bridge.handle(message("more")).mcp.sent_texts) == ((), ("on my way",))
    assert bridge.handle(message("once more")).mcp.sent_texts == ()
    assert len(starts(tmp_path)) == 1


@pytest.mark.slow
def test_abort_interrupts_the_run_and_the_warm_process_stays(make: Make, tmp_path: Path) -> None:
    bridge = make()
    with Background(bridge, steps(["text", "working"], ["hang"])) as run:
        assert bridge.abort(message("")) == 1
        assert run.result.result().run.aborted
    assert bridge.handle(message("still there?")).error is None
    assert len(starts(tmp_path)) == 1


def test_only_a_cli_with_live_sessions_can_stay_warm(tmp_path: Path) -> None:
    where: dict[str, Any] = {"session_map": ":memory:", "workspace_dir": tmp_path}
    with pytest.raises(TypeError, match="warm needs a runtime of an agent CLI"):
        ChannelBridge(ScriptedRuntime(), warm=1, **where)
    with pytest.raises(ValueError, match="warm"):
        ChannelBridge("claude", warm=-1, **where)
    with pytest.raises(ValueError, match="while_busy must be one of 'queue', 'steer', 'interrupt', 'reject'"):
        ChannelBridge("claude", while_busy="drop", **where)  # type: ignore[arg-type]


# --- a message while the agent works --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_message_that_is_queued_waits_for_the_run_before_it(make: Make) -> None:
    bridge = make(while_busy="queue")
    with Background(bridge, steps(["text", "working"], ["take_in"])) as run, ThreadPoolExecutor(1) as thread:
        later = thread.submit(bridge.handle, message("later"))
        assert wait_until(lambda: len(bridge._jobs.of(bridge.conversation(message("")))) == 2)
        next(iter(job for job in bridge._jobs.of(bridge.conversation(message(""))) if job.run)).steer("go on")
        assert run.result.result().run.text == "workingtook in: go on"
        assert later.result().payloads[0].text == "re: later"


def test_a_message_that_steers_is_covered_by_the_answer_to_the_first(make: Make) -> None:
    bridge = make(while_busy="steer")
    with Background(bridge, steps(["text", "working"], ["take_in"])) as run:
        steering = bridge.handle(message("and be quick"))
        assert (steering.handled_as, steering.payloads, steering.error) == ("steered", (), None)
        first = run.result.result()
    assert (first.run.text, first.handled_as) == ("workingtook in: and be quick", "turn")
    assert bridge.handle(message("next")).handled_as == "turn"


@pytest.mark.slow
def test_a_message_that_cannot_steer_waits(make: Make) -> None:
    """A one-shot run accepts no further words."""
    bridge = make(warm=0, while_busy="steer")
    conversation = bridge.conversation(message(""))
    with bridge.session_map.turn(conversation), ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(bridge.handle, message("hello"), abort_signal=(stop := threading.Event()))
        assert wait_until(lambda: len(bridge._jobs.of(conversation)) == 1)
        stop.set()
        assert waiting.result().run.aborted


@pytest.mark.slow
def test_a_message_does_not_steer_past_one_that_came_before_it(make: Make, tmp_path: Path) -> None:
    bridge = make(while_busy="steer")
    with Background(bridge, steps(["text", "working"], ["take_in"])) as run, ThreadPoolExecutor(1) as thread:
        earlier = bridge.arrive(message("earlier"))
        later = thread.submit(bridge.handle, message("later"))
        assert wait_until(lambda: len(bridge._jobs.of(bridge.conversation(message("")))) == 2)
        assert bridge.handle(message("earlier"), turn=earlier).handled_as == "steered"
        assert run.result.result().run.text == "workingtook in: earlier"
        assert (later.result().handled_as, later.result().run.text) == ("turn", "re: later")


def test_a_message_that_interrupts_ends_the_run_and_is_answered_next(make: Make, tmp_path: Path) -> None:
    bridge = make(while_busy="interrupt")
    with Background(bridge, steps(["text", "working"], ["hang"])) as run:
        assert bridge.handle(message("stop that")).payloads[0].text == "re: stop that"
        first = run.result.result()
    assert (first.run.aborted, first.run.text, first.payloads[0].text) == (True, "working", "working")
    assert len(starts(tmp_path)) == 1


def test_a_message_that_is_rejected_reaches_no_agent(make: Make, tmp_path: Path) -> None:
    bridge = make(while_busy="reject")
    with Background(bridge, steps(["text", "working"], ["hang"])) as run:
        refused = bridge.handle(message("me too"))
        assert (refused.handled_as, refused.run.error_subtype) == ("rejected", "session_busy")
        assert refused.error == "the agent is still working on an earlier message"
        bridge.abort(message(""))
        assert run.result.result().run.aborted
    assert bridge.handle(message("now")).error is None
    assert "me too" not in json.dumps(heard_by(tmp_path))
