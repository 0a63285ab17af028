"""What the agent's own messages and cron jobs leave on record."""

from __future__ import annotations

import threading

import pytest

from remoteclaw_sync.tool_server.messaging import CronJob, GatewayTools, OutgoingMessage
from remoteclaw_sync.tool_server.tools import Tool
from remoteclaw_sync.types import McpMessageTarget, McpSideEffects


def by_name(tools: GatewayTools) -> dict[str, Tool]:
    return {one.name: one for one in tools.tools()}


def test_there_is_a_tool_for_each_function_that_was_given() -> None:
    assert set(by_name(GatewayTools())) == set()
    assert set(by_name(GatewayTools(send_message=print))) == {"message"}
    assert set(by_name(GatewayTools(send_message=print, add_cron=print))) == {"message", "cron"}


def test_what_the_tools_did_is_drained_once() -> None:
    sent: list[OutgoingMessage] = []
    jobs: list[CronJob] = []
    tools = GatewayTools(sent.append, jobs.append, provider="slack", to="C1", thread_id="T1", account_id="A")
    message, cron = by_name(tools)["message"], by_name(tools)["cron"]
    assert message({"text": "here"}) == "sent"
    assert message({"text": "there", "to": "C2", "media_urls": ["http://x/1"]}) == "sent"
    assert message({"media_urls": ["http://x/2"], "provider": "telegram", "to": "C1"}) == "sent"
    assert cron({"schedule": "@daily", "prompt": "news?", "name": "news"}) == "added"
    assert tools.texts_sent_here() == ("here",)
    assert tools.drain() == McpSideEffects(
        sent_texts=("here", "there"),
        sent_media_urls=("http://x/1", "http://x/2"),
        sent_targets=(
            McpMessageTarget("message", "slack", "A", "C1"),
            McpMessageTarget("message", "slack", "A", "C2"),
            McpMessageTarget("message", "telegram", "A", "C1"),
        ),
        cron_adds=1,
    )
    assert tools.drain() == McpSideEffects()
    assert [one.thread_id for one in sent] == ["T1", None, None]
    assert jobs == [CronJob(schedule="@daily", prompt="news?", name="news", provider="slack", to="C1", thread_id="T1")]


def test_what_could_not_be_sent_is_not_on_record() -> None:
    def fail(message: OutgoingMessage) -> None:
        raise ConnectionError("no line")

    tools = GatewayTools(send_message=fail)
    with pytest.raises(ConnectionError):
        by_name(tools)["message"]({"text": "hello"})
    with pytest.raises(ValueError, match="nothing to send"):
        by_name(tools)["message"]({"text": "  "})
    assert tools.drain() == McpSideEffects()


def test_each_conversation_has_a_record_of_its_own() -> None:
    tools = GatewayTools(send_message=lambda message: f"to {message.to}")
    ann, bob = tools.bind(provider="slack", to="ann"), tools.bind(provider="slack", to="bob")
    assert by_name(ann)["message"]({"text": "hi"}) == "to ann"
    assert by_name(bob)["message"]({"text": "ho"}) == "to bob"
    assert (ann.drain().sent_texts, bob.drain().sent_texts, tools.drain().sent_texts) == (("hi",), ("ho",), ())


def test_calls_from_many_threads_are_all_on_record() -> None:
    tools = GatewayTools(send_message=lambda message: None)
    message = by_name(tools)["message"]
    threads = [threading.Thread(target=message, args=({"text": f"{n}"},)) for n in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(tools.drain().sent_texts, key=int) == [str(n) for n in range(50)]
