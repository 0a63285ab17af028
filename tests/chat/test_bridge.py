"""From a message to an answer: sessions, order, callbacks, what is tried again, and forty chats at once."""

from __future__ import annotations

import functools
import json
import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from remoteclaw_sync import (
    AgentDoneEvent,
    AgentErrorEvent,
    AgentEvent,
    AgentPermissionEvent,
    AgentRunResult,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    BridgeCallbacks,
    Budget,
    ChannelMessage,
    CodexCliRuntime,
    ErrorSubtype,
    McpMessageTarget,
    PermissionRequest,
    ReplyPayload,
)
from remoteclaw_sync.chat.bridge import ChannelBridge, RetryPolicy, Route
from remoteclaw_sync.chat.sessions import SessionMap
from remoteclaw_sync.testing import FakeCli, fake_cli  # noqa: F401 - a fixture
from remoteclaw_sync.tool_server.messaging import CronJob, GatewayTools, OutgoingMessage
from tests.fakes import PATIENCE, start_host, wait_until
from tests.tool_server.agents import FakeAgent, ScriptedRuntime, journal

QUICK = RetryPolicy(attempts=3, first_delay=0.001, longest_delay=0.002)


def message(text: str, chat: str = "c1", **fields: Any) -> ChannelMessage:
    return ChannelMessage(text, provider="telegram", channel_id=chat, sender="u1", **fields)


def ok(text: str = "", session: str | None = "s1", **fields: Any) -> list[AgentEvent | Exception]:
    done = AgentDoneEvent(AgentRunResult(text=text, session_id=session, **fields))
    return [AgentTextEvent(text), done] if text else [done]


def failed(kind: ErrorSubtype, words: str = "it broke", session: str | None = None) -> list[AgentEvent | Exception]:
    return [AgentErrorEvent(words), AgentDoneEvent(AgentRunResult(error_subtype=kind, session_id=session))]


@pytest.fixture
def sessions() -> Iterator[SessionMap]:
    with SessionMap(":memory:") as opened:
        yield opened


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    return folder


@pytest.fixture
def make(sessions: SessionMap, tmp_path: Path) -> Any:
    def bridge(runtime: Any, **options: Any) -> ChannelBridge:
        return ChannelBridge(runtime, **{"session_map": sessions, "workspace_dir": tmp_path, **options})

    return bridge


def stored(bridge: ChannelBridge, provider: str = "scripted", chat: str = "c1") -> str | None:
    return bridge.session_map.get(provider, bridge.conversation(message("", chat)))


# --- answers and sessions ------------------------------------------------------------------------------------


def test_a_message_is_answered_and_the_next_one_continues_its_session(make: Any, state: Path) -> None:
    bridge = make(FakeAgent(state))
    first, second = bridge.handle(message("hello")), bridge.handle(message("again"))
    assert first.payloads == (ReplyPayload("1: hello"),)
    assert second.payloads == (ReplyPayload("2: again"),)
    assert first.run.session_id == second.run.session_id
    assert (first.error, first.run.ok) == (None, True)


@pytest.mark.parametrize("warm", [0, 1])
def test_a_bot_whose_budget_is_used_up_answers_nobody_until_the_next_day(
    make: Any,
    fake_cli: Callable[..., FakeCli],  # noqa: F811
    warm: int,
) -> None:
    now = [1_795_000_000.0]
    day = Budget(max_runs=2, period="day", clock=lambda: now[0])
    fake = fake_cli("claude", "fine")
    with make("claude", budget=day, warm=warm) as bridge:
        assert bridge.handle(message("one")).payloads == (ReplyPayload("fine"),)
        assert bridge.handle(message("two", chat="c2")).payloads == (ReplyPayload("fine"),)
        refused = bridge.handle(message("three"))
        assert (refused.payloads, refused.run.error_subtype) == ((), "limit")
        assert "used up" in refused.error
        assert len(fake.calls) == 2
        now[0] += 86_400
        assert bridge.handle(message("four")).payloads == (ReplyPayload("fine"),)
    assert day.spent.runs == 1


@pytest.mark.parametrize("warm", [0, 1])
def test_a_bot_whose_agent_goes_over_a_limit_delivers_what_was_said(
    make: Any,
    fake_cli: Callable[..., FakeCli],  # noqa: F811
    warm: int,
) -> None:
    fake_cli("claude", "I looked.")
    with make("claude", max_tokens=1, fallbacks=[ScriptedRuntime(ok("never asked"))], warm=warm) as bridge:
        delivered = bridge.handle(message("one"))
    assert delivered.run.error_subtype == "limit"
    assert delivered.payloads == (ReplyPayload("I looked."),)


def test_an_answer_without_text_has_no_payload(make: Any) -> None:
    assert make(ScriptedRuntime(ok(""))).handle(message("hi")).payloads == ()


def test_a_long_answer_comes_in_chunks(make: Any) -> None:
    result = make(ScriptedRuntime(ok("word " * 30)), chunk_limit=50).handle(message("hi"))
    assert len(result.payloads) == 3
    assert "".join(payload.text for payload in result.payloads) == "word " * 30 == result.run.text


def test_the_run_gets_what_the_bridge_was_given(make: Any, tmp_path: Path) -> None:
    runtime = ScriptedRuntime(ok("fine"))
    options = {"system_prompt": "be nice", "model": "m", "permission_mode": "read-only", "deadline": 9.0}
    options |= {"max_turns": 3, "max_tool_calls": 4, "max_tokens": 5, "max_cost_usd": 6.0, "budget": Budget()}
    bridge = make(runtime, env={"A": "1"}, extra_args=["--x"], **options)
    bridge.handle(message("hi", extra_context="From: Ann", media_urls=["http://x/1.png"]))
    (params,) = runtime.seen
    assert params.prompt == "From: Ann\n\nhi\n\n[attached: http://x/1.png]"
    assert {name: getattr(params, name) for name in options} == options
    assert (params.env, params.extra_args, params.working_directory) == ({"A": "1"}, ("--x",), str(tmp_path))


def test_bad_arguments_raise_when_they_are_given(make: Any) -> None:
    with pytest.raises(ValueError, match="prompt"):
        make(ScriptedRuntime()).handle(message(""))
    with pytest.raises(ValueError, match="known are: claude"):
        make("cloud")
    with pytest.raises(ValueError, match="limit"):
        make(ScriptedRuntime(), chunk_limit=0)
    with pytest.raises(TypeError, match="AgentRuntime"):
        make(object())
    with pytest.raises(ValueError, match="deadline"):
        make(ScriptedRuntime(), deadline=-1)
    with pytest.raises(ValueError, match="max_tokens must be at least 1"):
        make(ScriptedRuntime(), max_tokens=0)
    with pytest.raises(ValueError, match="codex does not tell what a run costs; give the runtime prices="):
        make(ScriptedRuntime(), fallbacks=[CodexCliRuntime()], budget=Budget(max_cost_usd=1.0))
    with pytest.raises(TypeError, match="message must be a ChannelMessage"):
        make(ScriptedRuntime()).handle("hi")
    for name in ("model", "call_timeout", "retry", "session_map", "tools", "extra_args"):
        with pytest.raises(TypeError, match=name):
            make(ScriptedRuntime(), **{name: object()})


def test_a_session_the_cli_no_longer_knows_is_forgotten_and_the_message_answered_in_a_new_one(
    make: Any, state: Path
) -> None:
    bridge = make(FakeAgent(state))
    old = bridge.handle(message("hello")).run.session_id
    (state / old).unlink()
    result = bridge.handle(message("still there?"))
    assert result.payloads == (ReplyPayload("1: still there?"),)
    assert result.error is None
    assert bridge.handle(message("good")).run.session_id == result.run.session_id != old


def test_a_lost_session_is_not_replaced_twice_for_one_message(make: Any) -> None:
    runtime = ScriptedRuntime(ok("a"), failed("session_not_found"), failed("session_not_found", "still lost"))
    bridge = make(runtime)
    bridge.handle(message("hi"))
    assert bridge.handle(message("hi")).error == "still lost"
    assert [params.session_id for params in runtime.seen] == [None, "s1", None]


def test_a_lost_session_is_not_replaced_after_something_was_said(make: Any) -> None:
    runtime = ScriptedRuntime(ok("a"), [AgentTextEvent("b"), *failed("session_not_found", "lost")])
    bridge = make(runtime)
    bridge.handle(message("hi"))
    result = bridge.handle(message("hi"))
    assert (result.payloads, result.error) == ((ReplyPayload("b"),), "lost")
    assert len(runtime.seen) == 2


@pytest.mark.parametrize("kind", ["timeout", "aborted", "max_turns"])
def test_the_session_is_kept_after_a_run_that_failed_in_it(make: Any, kind: ErrorSubtype) -> None:
    bridge = make(ScriptedRuntime(failed(kind, session="s7")))
    assert bridge.handle(message("hi")).error == "it broke"
    assert stored(bridge) == "s7"


def test_the_session_is_kept_after_a_warning(make: Any) -> None:
    bridge = make(ScriptedRuntime([AgentErrorEvent("careful", "CLI_WARNING"), *ok("fine")]))
    result = bridge.handle(message("hi"))
    assert (result.error, result.payloads) == (None, (ReplyPayload("fine"),))
    assert stored(bridge) == "s1"


def test_a_run_that_failed_before_it_had_a_session_changes_nothing(make: Any) -> None:
    bridge = make(ScriptedRuntime(ok("a"), failed("auth")))
    bridge.handle(message("hi"))
    bridge.handle(message("hi"))
    assert stored(bridge) == "s1"


def test_a_forgotten_conversation_starts_afresh(make: Any) -> None:
    runtime = ScriptedRuntime(ok("a"), ok("b", "s2"))
    bridge = make(runtime)
    bridge.handle(message("hi"))
    bridge.forget(message("hi"))
    bridge.handle(message("hi"))
    assert [params.session_id for params in runtime.seen] == [None, None]


def test_a_conversation_that_is_forgotten_while_it_is_answered_starts_afresh(make: Any) -> None:
    runtime = ScriptedRuntime(ok("a"), ok("b", "s2"))
    bridge = make(runtime)
    bridge.handle(message("hi"), BridgeCallbacks(on_partial_reply=lambda reply: bridge.forget(message("hi"))))
    bridge.handle(message("hi"))
    assert [params.session_id for params in runtime.seen] == [None, None]
    assert stored(bridge) == "s2"


def test_a_runtime_that_raises_is_a_failed_run_with_what_it_said_so_far(make: Any) -> None:
    bridge = make(ScriptedRuntime([AgentTextEvent("half"), RuntimeError("oops")]))
    result = bridge.handle(message("hi"))
    assert (result.payloads, result.error) == ((ReplyPayload("half"),), "RuntimeError: oops")
    assert result.run.error_subtype == "crash"


def test_a_runtime_that_raises_before_its_first_event_is_a_failed_run(make: Any) -> None:
    class Unreachable:
        def execute(self, params: Any, /) -> Iterator[AgentEvent]:
            raise ConnectionError("nobody there")

    result = make(Unreachable()).handle(message("hi"))
    assert (result.payloads, result.error) == ((), "ConnectionError: nobody there")
    assert result.run.error_subtype == "crash"


def test_a_runtime_that_refuses_its_arguments_is_told_to_the_caller(make: Any) -> None:
    class Strict:
        def execute(self, params: Any, /) -> Iterator[AgentEvent]:
            raise ValueError("no such model")

    with pytest.raises(ValueError, match="no such model"):
        make(Strict()).handle(message("hi"))


def test_a_runtime_that_fails_when_it_is_closed_costs_no_answer(make: Any) -> None:
    class Stubborn:
        def __init__(self) -> None:
            self._events = iter(ok("fine"))

        def execute(self, params: Any, /) -> Any:
            return self

        def __iter__(self) -> Any:
            return self._events

        def close(self) -> None:
            raise OSError("disk full")

    result = make(Stubborn()).handle(message("hi"))
    assert (result.payloads, result.error) == ((ReplyPayload("fine"),), None)


def test_a_runtime_that_ends_without_done_is_a_failed_run(make: Any) -> None:
    result = make(ScriptedRuntime([AgentTextEvent("half")])).handle(message("hi"))
    assert (result.run.text, result.run.error_subtype) == ("half", "incomplete")
    assert result.error is not None


# --- callbacks -----------------------------------------------------------------------------------------------


def recorder() -> tuple[list[tuple[str, str | None, bool]], BridgeCallbacks]:
    told: list[tuple[str, str | None, bool]] = []

    def note(kind: str) -> Any:
        return lambda payload: told.append((kind, payload.text, payload.is_error))

    return told, BridgeCallbacks(note("partial"), note("block"), note("tool"))


TALK: list[AgentEvent | Exception] = [
    AgentThinkingEvent("hmm"),
    AgentTextEvent("Let me "),
    AgentTextEvent("look."),
    AgentToolUseEvent("shell", "t1"),
    AgentPermissionEvent(PermissionRequest("r1", "shell", "t1")),
    AgentToolResultEvent("t1", "no such file", True),
    AgentTextEvent("It is gone."),
    AgentDoneEvent(AgentRunResult(text="Let me look.It is gone.", session_id="s1")),
]


def test_callbacks_are_told_in_the_order_things_happened(make: Any) -> None:
    told, callbacks = recorder()
    result = make(ScriptedRuntime(TALK)).handle(message("hi"), callbacks)
    assert told == [
        ("partial", "Let me ", False),
        ("partial", "look.", False),
        ("block", "Let me look.", False),
        ("tool", "no such file", True),
        ("partial", "It is gone.", False),
        ("block", "It is gone.", False),
    ]
    assert result.payloads == (ReplyPayload("Let me look.It is gone."),)


def test_a_block_is_told_as_soon_as_a_message_is_full_with_its_code_block_closed(make: Any) -> None:
    code = [f"line {number}\n" for number in range(12)]
    pieces = ["```py\n", *code, "```\n"]
    run: list[AgentEvent | Exception] = [*map(AgentTextEvent, pieces), *ok("")]
    told, callbacks = recorder()
    make(ScriptedRuntime(run), chunk_limit=60).handle(message("hi"), callbacks)
    blocks = [text for kind, text, _ in told if kind == "block"]
    assert len(blocks) > 1
    assert told.index(("block", blocks[0], False)) < len(told) - 2
    assert all(text is not None and text.startswith("```py\n") and text.count("```") == 2 for text in blocks)
    assert [line for text in blocks for line in (text or "").splitlines(True) if "line" in line] == code


def test_a_callback_that_raises_neither_ends_the_run_nor_loses_the_answer(make: Any) -> None:
    def explode(payload: ReplyPayload) -> None:
        raise RuntimeError("the channel is down")

    result = make(ScriptedRuntime(TALK)).handle(message("hi"), BridgeCallbacks(explode, explode, explode))
    assert (result.error, result.payloads) == (None, (ReplyPayload("Let me look.It is gone."),))


# --- tried again ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["rate_limit", "overloaded", "network"])
def test_nothing_is_tried_again_by_default(make: Any, kind: ErrorSubtype) -> None:
    runtime = ScriptedRuntime(failed(kind))
    assert make(runtime).handle(message("hi")).error == "it broke"
    assert len(runtime.seen) == 1


@pytest.mark.parametrize("kind", ["rate_limit", "overloaded", "network"])
def test_with_a_policy_a_passing_failure_is_tried_again(make: Any, kind: ErrorSubtype) -> None:
    runtime = ScriptedRuntime(failed(kind), failed(kind), ok("at last"))
    result = make(runtime, retry=QUICK).handle(message("hi"))
    assert (result.error, result.payloads) == (None, (ReplyPayload("at last"),))


def test_it_is_tried_as_often_as_the_policy_says(make: Any) -> None:
    runtime = ScriptedRuntime(failed("network"), failed("network"), failed("network", "for good"))
    assert make(runtime, retry=QUICK).handle(message("hi")).error == "for good"


@pytest.mark.parametrize("kind", ["auth", "permission", "context_window", "config"])
def test_a_failure_that_will_not_pass_is_not_tried_again(make: Any, kind: ErrorSubtype) -> None:
    runtime = ScriptedRuntime(failed(kind))
    make(runtime, retry=QUICK).handle(message("hi"))
    assert len(runtime.seen) == 1


@pytest.mark.parametrize("sign", [AgentTextEvent("so"), AgentToolUseEvent("shell", "t1")])
def test_nothing_is_tried_again_once_the_agent_has_said_or_done_something(make: Any, sign: AgentEvent) -> None:
    runtime = ScriptedRuntime([sign, *failed("rate_limit")])
    other = ScriptedRuntime(provider="other")
    bridge = make(runtime, retry=QUICK, env_alternatives=[{"KEY": "b"}], fallbacks=[other])
    assert bridge.handle(message("hi")).error == "it broke"
    assert (len(runtime.seen), other.seen) == (1, [])


def test_words_that_steered_a_run_are_part_of_its_next_try(make: Any) -> None:
    class SteeredRuntime(ScriptedRuntime):
        def _events(self, run: list[AgentEvent | Exception]) -> Any:
            if len(self.seen) == 1:
                (job,) = bridge._jobs.of(bridge.conversation(message("")))
                job.run = SimpleNamespace(steer=lambda words: None, is_ending=False)
                assert job.steer("And be quick.")
            yield from super()._events(run)

    runtime = SteeredRuntime(failed("overloaded"), ok("both"))
    bridge = make(runtime, retry=QUICK)
    assert bridge.handle(message("hi")).run.text == "both"
    assert [params.prompt for params in runtime.seen] == ["hi", "hi\n\nAnd be quick."]


def test_waiting_for_another_try_ends_with_the_abort(make: Any) -> None:
    runtime = ScriptedRuntime(failed("network"))
    bridge = make(runtime, retry=RetryPolicy(first_delay=3600.0, longest_delay=3600.0))
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(bridge.handle, message("hi"))
        assert wait_until(lambda: runtime.seen)
        assert bridge.abort(message("hi")) == 1
        result = future.result(PATIENCE)
    assert result.run.aborted
    assert result.error is not None


@pytest.mark.parametrize("kind", ["auth", "billing", "rate_limit"])
def test_another_key_is_tried_when_one_is_refused_or_used_up(make: Any, kind: ErrorSubtype) -> None:
    runtime = ScriptedRuntime(failed(kind), failed(kind), ok("with c"))
    bridge = make(runtime, env={"KEY": "a", "X": "1"}, env_alternatives=[{"KEY": "b"}, {"KEY": "c"}])
    assert bridge.handle(message("hi")).payloads == (ReplyPayload("with c"),)
    assert [params.env for params in runtime.seen] == [{"KEY": key, "X": "1"} for key in "abc"]


def test_another_provider_answers_in_a_session_of_its_own_when_the_first_is_down(make: Any) -> None:
    first = ScriptedRuntime(ok("a", "s1"), failed("overloaded"))
    second = ScriptedRuntime(ok("b", "s2"), provider="other")
    bridge = make(first, model="big", fallbacks=[Route(second, model="small", env={"K": "v"})])
    bridge.handle(message("hi"))
    assert bridge.handle(message("hi")).payloads == (ReplyPayload("b"),)
    (params,) = second.seen
    assert (params.session_id, params.model, params.env) == (None, "small", {"K": "v"})
    assert (stored(bridge), stored(bridge, "other")) == ("s1", "s2")


def test_another_provider_is_no_cure_for_a_refused_permission(make: Any) -> None:
    other = ScriptedRuntime(provider="other")
    assert make(ScriptedRuntime(failed("permission")), fallbacks=[other]).handle(message("hi")).error == "it broke"
    assert other.seen == []


# --- order, abort, limits ------------------------------------------------------------------------------------


def test_abort_ends_the_run_and_keeps_its_session(make: Any, state: Path) -> None:
    bridge = make(FakeAgent(state))
    told = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(bridge.handle, message("hang"), BridgeCallbacks(lambda payload: told.set()))
        assert told.wait(PATIENCE)
        assert bridge.abort(message("hang", "another chat")) == 0
        assert bridge.abort(message("hang")) == 1
        result = future.result(PATIENCE)
    assert (result.run.aborted, result.run.error_subtype) == (True, "aborted")
    assert result.payloads == (ReplyPayload("working"),)
    assert bridge.handle(message("hello")).payloads == (ReplyPayload("2: hello"),)


def test_the_callers_signal_ends_the_run_and_also_the_waiting_for_it(make: Any, state: Path) -> None:
    bridge = make(FakeAgent(state))
    told, stop, stop_waiting = threading.Event(), threading.Event(), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(bridge.handle, message("hang"), BridgeCallbacks(lambda payload: told.set()), stop)
        assert told.wait(PATIENCE)
        waiting = pool.submit(bridge.handle, message("never"), None, stop_waiting)
        stop_waiting.set()
        result = waiting.result(PATIENCE)
        assert (result.run.aborted, result.payloads, running.done()) == (True, (), False)
        stop.set()
        assert running.result(PATIENCE).run.aborted
    assert [prompt for _, _, prompt in journal(state)] == ["hang"]


def test_no_more_runs_at_once_than_allowed_and_the_others_follow(make: Any) -> None:
    lock, running, most = threading.Lock(), 0, 0
    two_inside = threading.Barrier(2)

    class Counting:
        def execute(self, params: Any, /) -> Iterator[AgentEvent]:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            two_inside.wait(PATIENCE)
            with lock:
                running -= 1
            yield AgentTextEvent(params.prompt)
            yield AgentDoneEvent(AgentRunResult(text=params.prompt))

    bridge = make(Counting(), max_concurrent_runs=2)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: bridge.handle(message(f"m{n}", f"chat{n}")), range(8)))
    assert [result.run.text for result in results] == [f"m{n}" for n in range(8)]
    assert most == 2


def test_who_waits_for_a_free_place_gets_it_in_the_order_in_which_they_came(make: Any) -> None:
    order: list[str] = []
    may_end = threading.Event()

    class Slow:
        def execute(self, params: Any, /) -> Iterator[AgentEvent]:
            order.append(params.prompt)
            assert may_end.wait(PATIENCE)
            yield AgentDoneEvent(AgentRunResult())

    bridge = make(Slow(), max_concurrent_runs=1)

    def waiting(so_many: int) -> bool:
        return len(bridge._slots._line) == so_many

    with ThreadPoolExecutor(6) as pool:
        for number in range(6):
            pool.submit(bridge.handle, message(str(number), f"chat{number}"))
            assert wait_until(functools.partial(waiting, number + 1))
        assert order == ["0"]
        may_end.set()
    assert order == [str(number) for number in range(6)]


def test_who_waits_for_a_free_place_can_be_aborted(make: Any, state: Path) -> None:
    bridge = make(FakeAgent(state), max_concurrent_runs=1)
    told = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(bridge.handle, message("hang", "a"), BridgeCallbacks(lambda payload: told.set()))
        assert told.wait(PATIENCE)
        second = pool.submit(bridge.handle, message("never", "b"))
        assert wait_until(lambda: bridge.abort(message("never", "b")))
        assert second.result(PATIENCE).run.aborted
        bridge.abort(message("hang", "a"))
        first.result(PATIENCE)
    assert bridge.handle(message("free again", "c")).error is None


def check_chats(state: Path, chats: int, turns: int) -> None:
    """Check that each chat had one session, and that its messages arrived in order and never two at once."""
    lines = journal(state)
    by_chat: dict[str, list[tuple[str, str, int]]] = {}
    for what, session, prompt in lines:
        chat, number = prompt.split()
        by_chat.setdefault(chat, []).append((what, session, int(number)))
    assert len(by_chat) == chats
    for entries in by_chat.values():
        assert [(what, number) for what, _, number in entries] == [
            (what, number) for number in range(turns) for what in ("start", "end")
        ]
        assert len({session for _, session, _ in entries}) == 1


@pytest.mark.slow
def test_forty_chats_at_once_are_answered_in_order_and_each_in_its_own_session(make: Any, state: Path) -> None:
    bridge = make(FakeAgent(state))
    chats, turns = 40, 3

    def chat(number: int) -> list[str | None]:
        texts = []
        for turn in range(turns):
            result = bridge.handle(message(f"chat{number} {turn}", f"chat{number}"))
            texts += [payload.text for payload in result.payloads]
        return texts

    with ThreadPoolExecutor(chats) as pool:
        answers = list(pool.map(chat, range(chats)))
    assert answers == [[f"{turn + 1}: chat{number} {turn}" for turn in range(turns)] for number in range(chats)]
    check_chats(state, chats, turns)


def test_messages_of_one_chat_that_come_at_once_are_answered_one_by_one_in_order_of_arrival(
    make: Any, state: Path
) -> None:
    bridge = make(FakeAgent(state))
    messages = [message(f"chat {number}") for number in range(8)]
    turns = [bridge.arrive(one) for one in messages]
    with ThreadPoolExecutor(8) as pool:
        # The threads start in the wrong order.
        futures = [pool.submit(bridge.handle, messages[n], turn=turns[n]) for n in reversed(range(8))]
        answers = [future.result(PATIENCE).run.text for future in reversed(futures)]
    assert answers == [f"{number + 1}: chat {number}" for number in range(8)]
    check_chats(state, 1, 8)


def test_a_turn_is_given_up_when_the_message_cannot_be_handled(make: Any) -> None:
    bridge = make(ScriptedRuntime(ok("fine")))
    first, second = bridge.arrive(message("")), bridge.arrive(message("hi"))
    with pytest.raises(ValueError, match="prompt"):
        bridge.handle(message(""), turn=first)
    assert bridge.handle(message("hi"), turn=second).error is None
    with pytest.raises(ValueError, match="another conversation"):
        bridge.handle(message("hi", "other chat"), turn=second)


WORKER = """
    import sys
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path
    from remoteclaw_sync import ChannelMessage
    from remoteclaw_sync.chat.bridge import ChannelBridge
    from tests.tool_server.agents import FakeAgent

    state, path = Path(sys.argv[1]), sys.argv[2]
    with ChannelBridge(FakeAgent(state), session_map=path, workspace_dir=state) as bridge:
        def handle(line):
            chat, number = line.split()
            message = ChannelMessage(line, provider="telegram", channel_id=chat, sender="u1")
            result = bridge.handle(message)
            print(result.run.text, flush=True)
        for line in sys.stdin:
            handle(line.strip())
"""


@pytest.mark.slow
def test_four_worker_processes_share_a_session_map_without_losing_or_mixing_anything(
    state: Path, tmp_path: Path
) -> None:
    """A dispatcher gives each message of forty chats to a random worker, and the next one of a chat after its
    answer."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    path = tmp_path / "sessions.db"
    workers = [start_host(WORKER, str(state), str(path), stdin=-1, cwd=os.getcwd()) for _ in range(4)]
    locks = [threading.Lock() for _ in workers]
    chats, turns = 40, 3
    choices = [[rng.randrange(4) for _ in range(turns)] for _ in range(chats)]

    def chat(number: int) -> list[str]:
        answers = []
        for turn in range(turns):
            chosen = choices[number][turn]
            worker = workers[chosen]
            assert worker.stdin is not None
            assert worker.stdout is not None
            with locks[chosen]:
                worker.stdin.write(f"chat{number} {turn}\n")
                worker.stdin.flush()
                answers.append(worker.stdout.readline().strip())
        return answers

    with ThreadPoolExecutor(chats) as pool:
        answers = list(pool.map(chat, range(chats)))
    for worker in workers:
        with worker:
            _, err = worker.communicate(timeout=PATIENCE)
            assert (worker.returncode, err) == (0, "")
    assert answers == [[f"{turn + 1}: chat{number} {turn}" for turn in range(turns)] for number in range(chats)], seed
    check_chats(state, chats, turns)


@pytest.mark.slow
def test_two_processes_never_run_one_conversation_at_once(state: Path, tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    workers = [start_host(WORKER, str(state), str(path), stdin=-1, cwd=os.getcwd()) for _ in range(3)]
    for number, worker in enumerate(workers):
        assert worker.stdin is not None
        worker.stdin.write("".join(f"chat {number * 4 + turn}\n" for turn in range(4)))
        worker.stdin.close()
        worker.stdin = None
    for worker in workers:
        with worker:
            _, err = worker.communicate(timeout=PATIENCE)
            assert (worker.returncode, err) == (0, "")
    lines = journal(state)
    assert [what for what, _, _ in lines] == ["start", "end"] * 12
    assert len({session for _, session, _ in lines}) == 1
    assert sorted(prompt for what, _, prompt in lines if what == "end") == sorted(f"chat {n}" for n in range(12))


# --- tools ---------------------------------------------------------------------------------------------------


def test_a_python_function_is_a_tool_of_the_agent(make: Any, state: Path) -> None:
    def lookup_order(number: int) -> dict[str, Any]:
        """Where an order is."""
        return {"number": number, "where": "München"}

    bridge = make(FakeAgent(state), tools=[lookup_order])
    told, callbacks = recorder()
    result = bridge.handle(message('call lookup_order {"number": 17}'), callbacks)
    assert json.loads(result.run.text) == {"number": 17, "where": "München"}
    assert [kind for kind, _, _ in told] == ["tool", "partial", "block"]


def test_tools_that_cannot_be_served_are_a_failed_run(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this test, because an embedded interpreter has no Python to start the relay with."""
    monkeypatch.setattr("sys.executable", "")
    runtime = ScriptedRuntime()
    result = make(runtime, tools=[len_of]).handle(message("hi"))
    assert result.error is not None
    assert "no Python to start the relay with" in result.error
    assert (result.run.error_subtype, runtime.seen) == ("crash", [])


def len_of(text: str) -> int:
    """How long it is."""
    return len(text)


def gateway_tools() -> tuple[list[OutgoingMessage], list[CronJob], GatewayTools]:
    sent: list[OutgoingMessage] = []
    jobs: list[CronJob] = []
    return sent, jobs, GatewayTools(send_message=sent.append, add_cron=jobs.append)


def test_what_the_agent_sent_itself_is_reported_and_not_delivered_again(make: Any, state: Path) -> None:
    """The miniature agent ends with what its tools returned: here with exactly the words that it has sent."""
    sent: list[OutgoingMessage] = []

    def send(outgoing: OutgoingMessage) -> str:
        sent.append(outgoing)
        return outgoing.text

    told, callbacks = recorder()
    bridge = make(FakeAgent(state), tools=[GatewayTools(send_message=send)])
    result = bridge.handle(message('call message {"text": "Your order has shipped."}', thread_id="t9"), callbacks)
    assert sent == [OutgoingMessage(text="Your order has shipped.", provider="telegram", to="c1", thread_id="t9")]
    assert result.run.text == "Your order has shipped."
    assert result.payloads == ()
    assert result.mcp.sent_texts == ("Your order has shipped.",)
    assert result.mcp.sent_targets == (McpMessageTarget("message", "telegram", None, "c1"),)
    assert [kind for kind, _, _ in told] == ["tool", "partial"]


def test_what_was_sent_to_somebody_else_is_still_delivered_here(make: Any, state: Path) -> None:
    tools = GatewayTools(send_message=lambda outgoing: outgoing.text)
    result = make(FakeAgent(state), tools=[tools]).handle(message('call message {"text": "Hi Bob, hi.", "to": "bob"}'))
    assert result.payloads == (ReplyPayload("Hi Bob, hi."),)
    assert result.mcp.sent_targets == (McpMessageTarget("message", "telegram", None, "bob"),)


def test_side_effects_are_reported_when_the_run_fails_or_is_aborted(make: Any) -> None:
    """With a runtime that calls the tool itself, so that the run can end right after it."""
    sent, jobs, tools = gateway_tools()
    stop = threading.Event()

    class Failing:
        def execute(self, params: Any, /) -> Iterator[AgentEvent]:
            (server,) = params.mcp_servers.values()
            call_tool(server, "cron", {"schedule": "0 9 * * *", "prompt": "wake up"})
            call_tool(server, "message", {"text": "hello", "media_urls": ["http://x/1.png"]})
            stop.set()
            yield from failed("aborted" if params.abort_signal.is_set() else "crash")  # type: ignore[misc]

    for signal in (None, stop):
        stop.clear()
        result = make(Failing(), tools=[tools]).handle(message("hi"), None, signal)
        assert result.error == "it broke"
        assert (result.mcp.sent_texts, result.mcp.sent_media_urls) == (("hello",), ("http://x/1.png",))
        assert result.mcp.cron_adds == 1
        assert result.mcp.did_send_via_mcp_tool
    assert jobs[0] == CronJob(schedule="0 9 * * *", prompt="wake up", provider="telegram", to="c1")
    assert len(sent) == 2


def test_nothing_is_tried_again_after_a_tool_was_called_even_if_the_cli_did_not_say_so(make: Any) -> None:
    """Codex does not report some tool calls at all."""
    sent, _, tools = gateway_tools()
    runs = 0

    class Silent:
        def execute(self, params: Any, /) -> Iterator[AgentEvent]:
            nonlocal runs
            runs += 1
            (server,) = params.mcp_servers.values()
            call_tool(server, "message", {"text": "hello"})
            yield from failed("network")  # type: ignore[misc]

    make(Silent(), tools=[tools], retry=QUICK).handle(message("hi"))
    assert (runs, len(sent)) == (1, 1)


def call_tool(server: Any, name: str, arguments: dict[str, Any]) -> Any:
    from tests.tool_server.fake_agent import McpClient

    client = McpClient({"command": server.command, "args": server.args, "env": server.env})
    result = client.ask("tools/call", {"name": name, "arguments": arguments})
    client.process.stdout.close() if client.process.stdout else None
    client.close()
    return result
