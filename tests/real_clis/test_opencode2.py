"""OpenCodeCliRuntime with the real OpenCode 2: what has to work on it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import (
    AgentErrorEvent,
    AgentEvent,
    AgentRunResult,
    AgentToolResultEvent,
    AgentUsage,
    McpServerConfig,
    OpenCodeCliRuntime,
    errors,
)
from tests.fakes import finished, wait_until
from tests.real_clis.bench import Bench, open_bench
from tests.real_clis.clis import OpenCode2
from tests.real_clis.install import OPENCODE_2_PACKAGE_JSON, bin_folder, wanted_versions
from tests.real_clis.namespace import unavailable_reason
from tests.real_clis.scenarios_opencode import AT_ONCE
from tests.real_clis.script import Hang, HttpError, Turn, Usage
from tests.real_clis.test_opencode import png

pytestmark = pytest.mark.real_cli

GONE_WITHIN = 3.0  # Seconds within which everything that a run started must be gone.
CLI = OpenCode2()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Bench]:
    """A bench on which `opencode` is OpenCode 2. (Not every registry has it, so it is not required.)"""
    folder = bin_folder(wanted_versions(OPENCODE_2_PACKAGE_JSON))
    if not (folder / "opencode").exists():
        pytest.skip("OpenCode 2 is not installed: run python -m tests.real_clis.install --opencode2")
    reason = unavailable_reason()
    if reason is not None:
        pytest.skip(f"real CLIs: {reason}")
    with open_bench(tmp_path / "bench", folder) as bench:
        yield bench
        problems = bench.server.problems
    assert problems == []


def run(bench: Bench, prompt: str = "hello", **fields: Any) -> tuple[list[AgentEvent], AgentRunResult]:
    runtime = OpenCodeCliRuntime(timeout=60.0)
    return finished(runtime.execute(prompt, **{"working_directory": bench.workdir, "model": CLI.model, **fields}))


def told(events: list[AgentEvent]) -> list[str | None]:
    return [event.code for event in events if isinstance(event, AgentErrorEvent)]


def results(events: list[AgentEvent]) -> dict[str, AgentToolResultEvent]:
    return {event.tool_id: event for event in events if isinstance(event, AgentToolResultEvent)}


def test_an_answer_comes_with_its_usage_and_no_server_stays(two: Bench) -> None:
    two.server.script([Turn(text="Hello, world", usage=Usage(100, 20))])
    events, result = run(two, system_prompt="Mind the \u00e9.")
    assert (result.ok, result.text, told(events)) == (True, "Hello, world", [])
    assert result.usage == AgentUsage(100, 20)
    (request,) = two.server.requests
    assert request.prompt == "hello"
    assert "Mind the \u00e9." in request.system
    assert wait_until(lambda: not two.processes(), GONE_WITHIN)


def test_a_session_is_resumed_and_the_model_sees_the_earlier_turn(two: Bench) -> None:
    two.server.script([Turn(text="Nice."), Turn(text="Seven.", usage=Usage(10, 1))])
    first = run(two, "My number is 7.")[1]
    second = run(two, "Which number?", session_id=first.session_id)[1]
    assert (second.ok, second.text, second.session_id) == (True, "Seven.", first.session_id)
    assert two.server.requests[-1].conversation.user_texts == ("My number is 7.", "Which number?")
    assert second.usage == AgentUsage(10, 1)


def test_an_unknown_session_is_an_error_and_no_new_one(two: Bench) -> None:
    two.server.script([])
    assert run(two, session_id="ses_e14fae195ffeXzp9W5IzXZ1jnA")[1].error_subtype == "session_not_found"


def test_commands_run_in_the_folder_and_those_that_fail_have_failed(two: Bench) -> None:
    calls = [CLI.shell_call("pwd", "call_works"), CLI.shell_call("echo gone; exit 3", "call_fails")]
    two.server.script([Turn(tool_calls=calls), Turn(text="Done.")])
    events, result = run(two)
    assert (result.ok, result.text) == (True, "Done.")
    outcomes = results(events)
    assert str(two.workdir) in outcomes["call_works"].output
    assert (outcomes["call_works"].is_error, outcomes["call_fails"].is_error) == (False, True)


@pytest.mark.parametrize(("status", "subtype"), [(400, "config"), (401, "auth"), (429, "rate_limit")])
def test_an_api_error_is_told_once_with_its_kind(two: Bench, status: int, subtype: str) -> None:
    two.server.script([HttpError(status=status, message="the complaint", retry_after=AT_ONCE)])
    events, result = run(two)
    assert (len(told(events)), result.ok, result.error_subtype) == (1, False, subtype)


def test_abort_ends_a_run_whose_model_hangs_and_its_server(two: Bench) -> None:
    two.server.script([Hang()])
    signal = threading.Event()

    def abort_when_asked() -> None:
        two.server.wait_for_requests(1)
        signal.set()

    waiter = threading.Thread(target=abort_when_asked)
    waiter.start()
    events, result = run(two, abort_signal=signal)
    waiter.join()
    assert (result.aborted, told(events)) == (True, [errors.ABORTED])
    assert wait_until(lambda: not two.processes(), GONE_WITHIN)


def test_a_permission_nobody_can_grant_is_a_failure_and_bypass_grants_it(two: Bench) -> None:
    turns = [Turn(text="I look.", tool_calls=[CLI.shell_call("cat /etc/hostname", "call_cat")]), Turn(text="Seen.")]
    two.server.script(turns)
    _, result = run(two)
    assert (result.ok, result.error_subtype) == (False, "permission")
    two.server.script(turns)
    _, result = run(two, permission_mode="bypass")
    assert (result.ok, result.text) == (True, "I look.Seen.")


def test_read_only_is_refused(two: Bench) -> None:
    two.server.script([])
    events, result = run(two, permission_mode="read-only")
    assert (result.ok, told(events)) == (False, [errors.UNSUPPORTED_OPTION])


def test_an_mcp_server_is_called_and_gets_its_environment(two: Bench) -> None:
    command, *arguments = two.mcp_command()
    call = CLI.mcp_call("lab", "env", {"name": "TOKEN"}, "call_env")
    two.server.script([Turn(tool_calls=[call]), Turn(text="Done.")])
    events, result = run(two, mcp_servers={"lab": McpServerConfig(command, arguments, {"TOKEN": "t-4711"})})
    assert (result.ok, "t-4711" in results(events)["call_env"].output) == (True, True)


def test_an_image_reaches_the_model(two: Bench, tmp_path: Path) -> None:
    image = tmp_path / "square.png"
    image.write_bytes(png())
    two.server.script([Turn(text="A square.")])
    assert run(two, "What is this?", images=[os.fspath(image)])[1].text == "A square."
    assert b"data:image/png;base64" in two.server.requests[0].raw
