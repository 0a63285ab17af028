"""Python functions as tools of the four real CLIs, and a bridge on one of them."""

from __future__ import annotations

import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from remoteclaw_sync import (
    AgentEvent,
    AgentRunResult,
    AgentToolResultEvent,
    AgentToolUseEvent,
    ChannelBridge,
    ChannelMessage,
    GatewayTools,
    OutgoingMessage,
    create_cli_runtime,
    files,
)
from remoteclaw_sync.engine import one_writer
from remoteclaw_sync.files import PREFIX
from tests.fakes import PATIENCE, finished, wait_until
from tests.real_clis.bench import Bench
from tests.real_clis.clis import RealCli
from tests.real_clis.script import Hang, ToolCall, Turn
from tests.real_clis.test_mcp import is_offered

SERVER = "remoteclaw"
UNICODE = 'Ünïcødé 🎉 👩\u200d💻 \u2028 "q" \\ {env:HOME} $HOME\n\ttab'

# Claude makes one call after another, unless a tool is annotated as read-only.
CALLS_AT_ONCE = ("gemini", "codex", "opencode")

# No model gets a big result in full. Claude shows 2 KB of its beginning, Gemini 8 KB of its beginning and 32 KB of its
# end, Codex 48 KB of both, OpenCode whole lines of its beginning (so nothing of one long line). All but Codex name a
# file with the rest.
BIG = "".join(f"line {number:5} {'x' * 88}\n" for number in range(3_000))
LONGEST_SHOWN = 60_000
EVENT_HAS_ALL = ("gemini", "codex")


@pytest.fixture
def gateways(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which gateways create theirs; its path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="rc-", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def call(cli: RealCli, tool: str, **arguments: Any) -> ToolCall:
    return cli.mcp_call(SERVER, tool, arguments)


def run(bench: Bench, cli: RealCli, tools: list[Any]) -> tuple[list[AgentEvent], AgentRunResult]:
    model = cli.model if cli.name == "opencode" else None
    runtime = create_cli_runtime(cli.name, timeout=60)
    return finished(runtime.execute("use the tools", working_directory=bench.workdir, tools=tools, model=model))


def results(events: list[AgentEvent]) -> dict[str, list[AgentToolResultEvent]]:
    """The results by the function that was called; each CLI names tools in its own way."""
    names = {event.tool_id: event.tool_name for event in events if isinstance(event, AgentToolUseEvent)}
    found: dict[str, list[AgentToolResultEvent]] = {}
    for event in events:
        if isinstance(event, AgentToolResultEvent):
            found.setdefault(names[event.tool_id].removeprefix("mcp_").strip("_"), []).append(event)
    return {name.removeprefix(SERVER).strip("_"): of_tool for name, of_tool in found.items()}


def shown_to_model(bench: Bench, words: str) -> str:
    """The tool result with which these words reached the model."""
    texts = [result.text for request in bench.server.requests for result in request.tool_results]
    return next(text for text in texts if words in text)


def test_functions_are_called_with_their_arguments_and_the_model_gets_what_they_return(
    cli: RealCli, cli_bench: Bench, gateways: Path
) -> None:
    received: list[dict[str, Any]] = []
    surroundings: list[tuple[int, int]] = []
    both_called = threading.Barrier(2)

    def order(
        number: int,
        price: float,
        urgent: bool,
        tags: list[str],
        amounts: dict[str, int],
        where: Literal["home", "work"] = "home",
        note: str | None = None,
    ) -> dict[str, Any]:
        """Place an order."""
        values = {"number": number, "price": price, "urgent": urgent, "tags": tags, "amounts": amounts}
        received.append({**values, "where": where, "note": note})
        (folder,) = (path.parent for path in gateways.glob(f"{PREFIX}*/s"))
        surroundings.append((stat.S_IMODE(folder.stat().st_mode), stat.S_IMODE((folder / "s").stat().st_mode)))
        return {"note": note, "number": number + 1}

    def fail(code: int) -> None:
        """Always fails."""
        raise LookupError(f"no order {code} – ü")

    def meet(name: str) -> str:
        """Comes back when it has been called twice."""
        if cli.name in CALLS_AT_ONCE:
            both_called.wait(PATIENCE)
        return f"{name} was here"

    def big() -> str:
        """Returns a lot."""
        return BIG

    arguments: dict[str, Any] = {
        "number": 2**40,
        "price": 9.5,
        "urgent": True,
        "tags": ["a", UNICODE],
        "amounts": {"ä": 1},
        "note": UNICODE,
    }
    cli_bench.server.script(
        [
            Turn(tool_calls=[call(cli, "order", **arguments)]),
            Turn(tool_calls=[call(cli, "fail", code=17)]),
            Turn(tool_calls=[call(cli, "meet", name="ann"), call(cli, "meet", name="bob")]),
            Turn(tool_calls=[call(cli, "big")]),
            Turn(text="all done"),
        ]
    )
    events, result = run(cli_bench, cli, [order, fail, meet, big])
    assert (result.ok, result.text) == (True, "all done")
    assert is_offered(cli_bench, SERVER, "order")
    outcomes = results(events)

    assert received == [{**arguments, "where": "home"}]
    assert surroundings == [(0o700, 0o600)]
    assert '"number": 1099511627777' in shown_to_model(cli_bench, "Ünïcødé 🎉 👩\u200d💻")

    (failure,) = outcomes["fail"]
    assert failure.is_error
    assert "no order 17 – ü" in failure.output
    assert "LookupError: no order 17 – ü" in shown_to_model(cli_bench, "no order 17")

    assert sorted(met.output for met in outcomes["meet"]) == ["ann was here", "bob was here"]

    shown = shown_to_model(cli_bench, "line     0")
    assert len(shown) < LONGEST_SHOWN
    (told,) = outcomes["big"]
    assert (told.output == BIG) == (cli.name in EVENT_HAS_ALL)
    assert not told.is_error

    assert wait_until(lambda: not cli_bench.processes())
    assert list(gateways.iterdir()) == []
    assert list(cli_bench.workdir.iterdir()) == []


def test_nothing_is_left_of_a_run_that_is_aborted_while_a_function_runs(
    cli: RealCli, cli_bench: Bench, gateways: Path
) -> None:
    called, release, ended = threading.Event(), threading.Event(), threading.Event()

    def wait() -> str:
        """Waits."""
        called.set()
        release.wait(2 * PATIENCE)
        ended.set()
        return "too late"

    cli_bench.server.script([Turn(tool_calls=[call(cli, "wait")]), Hang()])
    abort = threading.Event()

    def abort_when_called() -> None:
        called.wait(2 * PATIENCE)
        abort.set()

    aborter = threading.Thread(target=abort_when_called)
    aborter.start()
    model = cli.model if cli.name == "opencode" else None
    _, result = finished(
        create_cli_runtime(cli.name, timeout=60).execute(
            "go", working_directory=cli_bench.workdir, tools=[wait], abort_signal=abort, model=model
        )
    )
    aborter.join()
    assert result.aborted
    assert called.is_set()
    assert wait_until(lambda: not cli_bench.processes())
    assert list(gateways.iterdir()) == []
    assert list(cli_bench.workdir.iterdir()) == []
    release.set()
    assert ended.wait(PATIENCE)


def test_a_conversation_over_a_bridge_is_resumed_and_its_side_effects_are_told(
    cli_bench: Bench, gateways: Path, tmp_path: Path
) -> None:
    cli = cli_bench.claude
    sent: list[OutgoingMessage] = []

    def stock(article: str) -> int:
        """How many there are."""
        return {"tea": 7}[article]

    cli_bench.server.script(
        [
            Turn(tool_calls=[call(cli, "stock", article="tea")]),
            Turn(text="Seven.\n\nAnything else?"),
            Turn(tool_calls=[call(cli, "message", text="Tea is on its way 🎉", to="warehouse")]),
            Turn(tool_calls=[call(cli, "message", text="Done, I told them.")]),
            Turn(text="Done, I told them."),
        ]
    )
    chat: dict[str, Any] = {"provider": "telegram", "channel_id": "chat-1", "sender": "ann"}
    with ChannelBridge(
        "claude",
        session_map=tmp_path / "sessions.db",
        workspace_dir=cli_bench.workdir,
        tools=[stock, GatewayTools(send_message=sent.append)],
    ) as bridge:
        first = bridge.handle(ChannelMessage("how much tea?", **chat))
        second = bridge.handle(ChannelMessage("send it", **chat))
    assert (first.error, second.error) == (None, None)
    assert [payload.text for payload in first.payloads] == ["Seven.\n\nAnything else?"]
    assert first.mcp.sent_texts == ()

    assert second.run.session_id == first.run.session_id
    resumed = cli_bench.server.requests[2].conversation
    assert "how much tea?" in " ".join(resumed.user_texts)
    assert "Seven." in " ".join(resumed.assistant_texts)
    assert resumed.prompt == "send it"

    assert [(message.text, message.provider, message.to) for message in sent] == [
        ("Tea is on its way 🎉", "telegram", "warehouse"),
        ("Done, I told them.", "telegram", "chat-1"),
    ]
    assert second.mcp.sent_texts == ("Tea is on its way 🎉", "Done, I told them.")
    assert [target.to for target in second.mcp.sent_targets] == ["warehouse", "chat-1"]
    # It was already sent to this conversation.
    assert second.payloads == ()
    files.remove_user_folder(one_writer.FOLDER)  # It stays until the process exits, but it must be empty.
    assert list(gateways.iterdir()) == []
    assert os.listdir(cli_bench.workdir) == []
