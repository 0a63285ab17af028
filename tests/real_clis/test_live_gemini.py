"""Live sessions on the real Gemini CLI, over ACP."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import (
    AgentErrorEvent,
    AgentPermissionEvent,
    AgentRunResult,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    AgentUsage,
    Allow,
    Deny,
    GeminiCliRuntime,
    McpServerConfig,
    PermissionRequest,
    SessionFields,
    UnsupportedOperationError,
)
from remoteclaw_sync.tool_server.server import SERVER_NAME as TOOLS_SERVER
from tests.fakes import codes, done, finished, wait_until
from tests.real_clis.bench import Bench
from tests.real_clis.scenarios_gemini import settings
from tests.real_clis.script import Cut, Hang, Hold, HttpError, Turn, Usage


@pytest.fixture
def bench(cli_bench: Bench) -> Bench:
    """Where Gemini works: not a git repository, and a folder that it has never seen."""
    return cli_bench


def results(events: Iterable[Any]) -> list[AgentToolResultEvent]:
    return [event for event in events if isinstance(event, AgentToolResultEvent)]


def uses(events: Iterable[Any]) -> list[AgentToolUseEvent]:
    return [event for event in events if isinstance(event, AgentToolUseEvent)]


def test_the_second_turn_is_served_by_the_same_process_which_knows_the_first(bench: Bench) -> None:
    first = Turn(thinking="**Plan**\nFirst this.", text=["Hel", "lo"], usage=Usage(100, 20))
    bench.server.script([first, Turn(text="Again.", usage=Usage(7, 3))])
    fields: SessionFields = {"working_directory": bench.workdir, "system_prompt": "Be brief, zebra."}
    with GeminiCliRuntime().open_session(**fields) as session:
        assert session.pid is None
        events, one = finished(session.execute("first words"))
        pid = session.pid
        two = session.run("second words")
        assert session.pid == pid is not None
        assert session.session_id == one.session_id == two.session_id is not None
    assert [event.text for event in events if isinstance(event, AgentTextEvent)] == ["Hel", "lo"]
    assert "First this." in "".join(event.text for event in events if isinstance(event, AgentThinkingEvent))
    assert (one.text, two.text, codes(events)) == ("Hello", "Again.", [])
    assert (one.usage, two.usage) == (AgentUsage(100, 20), AgentUsage(7, 3))
    assert bench.server.requests[1].occurrences("first words") == 1
    assert bench.server.requests[0].raw.count(b"zebra") == 1
    assert bench.server.requests[1].raw.count(b"zebra") == 1
    assert session.pid is None


def test_trap_shell_output_and_input_are_told_though_the_cli_has_no_fields_for_them(bench: Bench) -> None:
    calls = [bench.gemini.shell_call("echo out; echo err >&2"), bench.gemini.shell_call("exit 3")]
    bench.server.script([Turn(tool_calls=calls), Turn(text="Done.")])
    fields: SessionFields = {"working_directory": bench.workdir, "permission_mode": "bypass"}
    with GeminiCliRuntime().open_session(**fields) as session:
        events, result = finished(session.execute("go"))
    assert [(use.tool_name, dict(use.input)) for use in uses(events)] == [
        ("run_shell_command", {"command": "echo out; echo err >&2"}),
        ("run_shell_command", {"command": "exit 3"}),
    ]
    assert "out" in results(events)[0].output
    assert [one.is_error for one in results(events)] == [False, True]
    assert (result.text, result.permission_denials) == ("Done.", ())


def test_a_tool_call_is_made_or_not_as_approve_says(bench: Bench) -> None:
    files = {name: bench.workdir / name for name in ("yes", "no", "other")}
    replies = []
    for name in files:
        replies += [Turn(tool_calls=[bench.gemini.shell_call(f"touch {files[name]}")]), Turn(text=f"Told {name}.")]
    bench.server.script(replies)
    asked: list[PermissionRequest] = []

    def approve(request: PermissionRequest) -> bool | Allow | Deny:
        asked.append(request)
        if "no" in request.input["command"].rpartition("/")[2]:
            return Deny("Not this one.")
        if request.input["command"].endswith("other"):
            return Allow({"command": "true"})
        return True

    with GeminiCliRuntime().open_session(working_directory=bench.workdir, approve=approve) as session:
        events, allowed = finished(session.execute("do it"))
        assert [type(event) for event in events][:3] == [
            AgentToolUseEvent,
            AgentPermissionEvent,
            AgentToolResultEvent,
        ]
        assert (allowed.text, allowed.permission_denials, files["yes"].exists()) == ("Told yes.", (), True)
        events, denied = finished(session.execute("and this"))
        assert [one.is_error for one in results(events)] == [True]
        assert (denied.ok, files["no"].exists(), codes(events)) == (True, False, ["CLI_WARNING"])
        (denial,) = denied.permission_denials
        assert (denial.tool, denial.reason) == ("run_shell_command", "Not this one.")
        events, changed = finished(session.execute("last"))
        assert (codes(events), files["other"].exists()) == (["CLI_WARNING"], False)
        assert len(changed.permission_denials) == 1
    assert [request.tool_name for request in asked] == ["run_shell_command"] * 3
    assert asked[0].input == {"command": f"touch {files['yes']}"}
    assert asked[0].session_id == session.session_id


def test_without_approve_a_request_is_refused_and_the_turn_goes_on(bench: Bench) -> None:
    made = bench.workdir / "made"
    bench.server.script([Turn(tool_calls=[bench.gemini.write_file_call(made, "x")]), Turn(text="Pity.")])
    with GeminiCliRuntime().open_session(working_directory=bench.workdir) as session:
        events, result = finished(session.execute("do it"))
    assert (result.ok, result.text, made.exists()) == (True, "Pity.", False)
    assert [denial.tool for denial in result.permission_denials] == ["write_file"]
    assert dict(uses(events)[0].input) == {"file_path": str(made), "content": "x"}
    assert [one.is_error for one in results(events)] == [True]


def test_what_is_remembered_is_not_asked_again_in_this_session_and_is_in_another(bench: Bench) -> None:
    command = bench.gemini.shell_call("touch made")
    other = bench.gemini.shell_call("touch second")
    bench.server.script(
        [
            *(Turn(tool_calls=[command]), Turn(text="One.")),
            *(Turn(tool_calls=[command]), Turn(text="Two.")),
            *(Turn(tool_calls=[other]), Turn(text="Three.")),
            *(Turn(tool_calls=[command]), Turn(text="Four.")),
        ]
    )
    asked: list[str] = []

    def approve(request: PermissionRequest) -> Allow:
        asked.append(request.input["command"])
        return Allow(remember=True)

    runtime = GeminiCliRuntime()
    with runtime.open_session(working_directory=bench.workdir, approve=approve) as session:
        for words in ("one", "two", "three"):
            assert session.run(words).ok
        assert asked == ["touch made", "touch second"]
        with runtime.open_session(working_directory=bench.workdir, approve=approve) as second:
            assert second.run("four").ok
            assert second.pid == session.pid
    assert asked == ["touch made", "touch second", "touch made"]


def test_an_interrupt_ends_text_tools_hangs_and_open_approvals_and_keeps_the_process(bench: Bench) -> None:
    hold = Hold()
    bench.server.script(
        [
            Turn(text=["Half", hold, " an answer"]),
            Turn(tool_calls=[bench.gemini.shell_call("sleep 1000")]),
            Hang(after_headers=True),
            Turn(tool_calls=[bench.gemini.shell_call("touch never")]),
            Turn(text="Still here."),
        ]
    )
    aborts: list[Callable[[], None]] = []

    def approve(request: PermissionRequest) -> bool:
        if request.input["command"] == "touch never":
            aborts[-1]()
        return True

    def abort_when(something_has_happened: Callable[[], object]) -> None:
        if something_has_happened():
            aborts[-1]()

    def sleeping() -> bool:
        return any("sleep 1000" in command for command in bench.processes().values())

    waits: dict[str, Callable[[], object]] = {
        "text": lambda: hold.reached.wait(30),
        "tool": lambda: wait_until(sleeping),
        "hang": lambda: bench.server.wait_for_requests(3),
    }
    outcomes: list[AgentRunResult] = []
    with GeminiCliRuntime().open_session(working_directory=bench.workdir, approve=approve) as session:
        session.warm()
        pid = session.pid
        for prompt in ("text", "tool", "hang", "approval"):
            with session.start(prompt) as run:
                aborts.append(run.abort)
                aborter = threading.Thread(target=abort_when, args=(waits.get(prompt, lambda: False),))
                aborter.start()
                outcomes.append(done(run))
                aborter.join()
            assert session.pid == pid
        assert session.run("and now?").text == "Still here."
        assert session.pid == pid
        wait_until(lambda: not sleeping())
    assert [(result.aborted, result.error_subtype) for result in outcomes] == [(True, "aborted")] * 4
    assert not (bench.workdir / "never").exists()


def test_one_shot_runs_and_sessions_take_up_each_others_conversations_and_lose_nothing(bench: Bench) -> None:
    """Within one minute, `session/load` would reset the conversation, and the next start would delete it."""
    words = ["One.", "Two.", "Three.", "Other.", "Four."]
    bench.server.script([Turn(text=word, usage=Usage(10, 5)) for word in words])
    runtime = GeminiCliRuntime()
    one = runtime.run("first words", working_directory=bench.workdir)
    with runtime.open_session(working_directory=bench.workdir, session_id=one.session_id) as session:
        two = session.run("second words")
        assert session.session_id == one.session_id
    three = runtime.run("third words", working_directory=bench.workdir, session_id=session.session_id)
    runtime.run("another conversation", working_directory=bench.workdir)
    with runtime.open_session(working_directory=bench.workdir, session_id=one.session_id) as session:
        four = session.run("fourth words")
    assert (two.text, three.text, three.session_id, four.text) == ("Two.", "Three.", one.session_id, "Four.")
    last = bench.server.requests[-1]
    asked = ("first words", "second words", "third words", "fourth words")
    assert [last.occurrences(words) for words in asked] == [1, 1, 1, 1]
    assert two.usage == AgentUsage(10, 5)


def test_a_killed_process_is_replaced_by_one_that_knows_the_conversation(bench: Bench) -> None:
    bench.server.script([Turn(text="One."), Turn(text="Two."), Turn(text="Three.")])
    with GeminiCliRuntime().open_session(working_directory=bench.workdir) as session:
        session.run("first words")
        name, first = session.session_id, session.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        assert session.run("second words").text == "Two."
        assert session.pid != first
        assert session.run("third words").text == "Three."
        assert session.session_id == name
        assert bench.server.requests[2].occurrences("first words") == 1


def test_words_for_a_running_turn_need_an_interrupt_and_are_answered_in_the_same_run(bench: Bench) -> None:
    """A cancelled turn vanishes from Gemini's history, so the first words are sent again."""
    hold = Hold()
    bench.server.script([Turn(text=["One", hold, "."]), Turn(text="Two.")])
    with GeminiCliRuntime().open_session(working_directory=bench.workdir) as session:
        with session.start("first words") as run:
            for event in run:
                if event.type == "text" and event.text == "One":
                    with pytest.raises(UnsupportedOperationError):
                        run.steer("more words")
                    run.steer("more words", interrupt=True)
        assert run.result is not None
        assert (run.result.ok, run.result.text) == (True, "OneTwo.")
    last = bench.server.requests[-1]
    assert (last.occurrences("first words"), last.occurrences("more words")) == (1, 1)


def test_an_unknown_session_fails_the_turn(bench: Bench) -> None:
    unknown = "0fd5cc6d-0000-4000-8000-000000000000"
    with GeminiCliRuntime().open_session(working_directory=bench.workdir, session_id=unknown) as session:
        for _ in range(2):
            events, result = finished(session.execute("hello?"))
            assert (result.error_subtype, codes(events)) == ("session_not_found", ["SESSION_NOT_FOUND"])


@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_an_api_error_fails_the_turn_as_it_fails_a_one_shot_run_and_the_session_goes_on(
    bench: Bench, status: int
) -> None:
    settings(bench, general={"maxAttempts": 1})
    bench.server.script([], then=HttpError(status=status, retry_after=7.0 if status == 429 else None))
    runtime = GeminiCliRuntime()
    _, one_shot = finished(runtime.execute("hello", working_directory=bench.workdir))
    with runtime.open_session(working_directory=bench.workdir) as session:
        live_events, live = finished(session.execute("hello"))
        bench.server.script([], then=Turn(text="Fine."))
        assert session.run("again").text == "Fine."
    assert one_shot.error_subtype is not None
    assert (live.ok, live.error_subtype, live.retry_after) == (False, one_shot.error_subtype, one_shot.retry_after)
    assert (live.retry_after == 7.0) is (status == 429)
    assert len([event for event in live_events if isinstance(event, AgentErrorEvent)]) == 1


def test_trap_an_empty_and_a_cut_answer_are_no_success_though_the_cli_says_end_turn(bench: Bench) -> None:
    settings(bench, general={"maxAttempts": 1})
    with GeminiCliRuntime().open_session(working_directory=bench.workdir) as session:
        bench.server.script([], then=Turn(text="Good."))
        assert session.run("first").ok
        bench.server.script([], then=Turn(text=""))
        events, empty = finished(session.execute("second"))
        bench.server.script([], then=Turn(text=["Half", Cut()]))
        events, cut = finished(session.execute("third"))
        bench.server.script([], then=Turn(text="Good again."))
        assert session.run("fourth").text == "Good again."
    assert (empty.ok, empty.error_subtype) == (False, "incomplete")
    assert not cut.ok


def test_the_model_and_the_permission_mode_change_between_turns(bench: Bench) -> None:
    """And the notice of the new mode, which Gemini sends as an answer, is not treated as one."""
    written = bench.workdir / "written"
    call = bench.gemini.write_file_call(written, "x")
    bench.server.script(
        [Turn(tool_calls=[call]), Turn(text="No."), Turn(tool_calls=[call]), Turn(text="Yes.")],
        then=Turn(text="More."),
    )
    with GeminiCliRuntime().open_session(working_directory=bench.workdir, permission_mode="read-only") as session:
        assert session.run("write").text == "No."
        assert not written.exists()
        session.set_permission_mode("bypass")
        pid = session.pid
        assert session.run("write now").text == "Yes."
        assert written.exists()
        session.set_model("gemini-2.5-pro")
        assert session.run("who are you?").text == "More."
        assert "gemini-2.5-pro" in bench.server.requests[-1].path
        assert session.pid == pid


def test_python_functions_and_mcp_servers_are_tools_of_a_session_in_every_mode(bench: Bench) -> None:
    def add(one: int, two: int) -> int:
        """The sum of two numbers."""
        return one + two

    command, *arguments = bench.mcp_command()
    servers = {
        "lab": McpServerConfig(command=command, args=arguments, env={"LAB_TOKEN": "a$HOME-${PATH}-secret"}),
        "gone": McpServerConfig(command="/no/such/server"),
    }
    call_add = bench.gemini.mcp_call(TOOLS_SERVER, "add", {"one": 2, "two": 3})
    call_echo = bench.gemini.mcp_call("lab", "echo", {"text": "hé"})
    bench.server.script(
        [
            *(Turn(tool_calls=[call_add]), Turn(tool_calls=[call_echo]), Turn(text="Five.")),
            *(Turn(tool_calls=[call_add]), Turn(text="Again.")),
        ]
    )
    fields: SessionFields = {"working_directory": bench.workdir, "mcp_servers": servers, "tools": [add]}
    with GeminiCliRuntime().open_session(**fields) as session:
        session.warm()
        assert not [command for command in bench.processes().values() if "-secret" in command]
        events, result = finished(session.execute("add"))
        assert codes(events) == ["MCP_SERVER_FAILED"]
        assert [(one.is_error, one.output) for one in results(events)] == [(False, "5"), (False, "echo: hé")]
        assert dict(uses(events)[1].input) == {"text": "hé"}
        assert (result.ok, result.text, result.permission_denials) == (True, "Five.", ())
        session.set_permission_mode("read-only")
        events, result = finished(session.execute("again"))
        assert [(one.is_error, one.output) for one in results(events)] == [(False, "5")]


def test_an_untrusted_mcp_tool_is_asked_for(bench: Bench) -> None:
    command, *arguments = bench.mcp_command()
    call = bench.gemini.mcp_call("lab", "echo", {"text": "hi"})
    bench.server.script([Turn(tool_calls=[call]), Turn(text="Yes."), Turn(tool_calls=[call]), Turn(text="No.")])
    asked: list[PermissionRequest] = []

    def approve(request: PermissionRequest) -> bool:
        asked.append(request)
        return len(asked) == 1

    servers = {"lab": McpServerConfig(command=command, args=arguments, trust=False)}
    fields: SessionFields = {"working_directory": bench.workdir, "mcp_servers": servers, "approve": approve}
    with GeminiCliRuntime().open_session(**fields) as session:
        events, allowed = finished(session.execute("echo"))
        assert [event.is_error for event in results(events)] == [False]
        events, denied = finished(session.execute("again"))
        assert [event.is_error for event in results(events)] == [True]
    assert (allowed.permission_denials, len(denied.permission_denials)) == ((), 1)
    assert [request.tool_name for request in asked] == ["mcp_lab_echo"] * 2
    assert asked[0].input == {"text": "hi"}


@pytest.mark.parametrize(
    "prompt", ["/help me", "$help", "  /memory show", "\ufeff/init", "@f.txt is what?", "\u2028x\u0085\U0001f600"]
)
def test_trap_what_looks_like_a_command_reaches_the_model_as_text(prompt: str, bench: Bench) -> None:
    (bench.workdir / "f.txt").write_text("secret content")
    bench.server.script([Turn(text="Read.")])
    with GeminiCliRuntime().open_session(working_directory=bench.workdir) as session:
        assert session.run(prompt).text == "Read."
    assert bench.server.requests[0].occurrences(prompt) == 1
    assert b"secret content" not in bench.server.requests[0].raw


def test_many_sessions_share_a_process_and_mix_nothing(bench: Bench) -> None:
    bench.server.script([], then=Turn(text="Fine."))
    runtime = GeminiCliRuntime()
    sessions = [runtime.open_session(working_directory=bench.workdir) for _ in range(6)]
    try:
        sessions[0].warm()

        def work(number: int) -> None:
            for turn in range(3):
                assert sessions[number].run(f"words {number} {turn}").text == "Fine."

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({session.pid for session in sessions}) == 1
        assert len({session.session_id for session in sessions}) == 6
        last = [request for request in bench.server.requests if request.occurrences("words 3 2")]
        assert [request.occurrences("words 3 0") for request in last] == [1]
        assert [request.occurrences("words 2 0") for request in last] == [0]
        other = Path(bench.workdir, "other")
        other.mkdir()
        with runtime.open_session(working_directory=other) as apart:
            apart.warm()
            assert apart.pid != sessions[0].pid
    finally:
        for session in sessions:
            session.close()


def test_images_reach_the_model(bench: Bench, tmp_path: Path) -> None:
    image = tmp_path / "a.png"
    image.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))
    bench.server.script([Turn(text="A picture.")])
    with GeminiCliRuntime().open_session(working_directory=bench.workdir) as session:
        assert session.run("what is it?", images=[image]).text == "A picture."
    assert b"image/png" in bench.server.requests[0].raw


def test_a_single_run_can_be_live(bench: Bench) -> None:
    bench.server.script([Turn(text=["Hel", "lo"])])
    result = GeminiCliRuntime(transport="live").run("hello", working_directory=bench.workdir)
    assert (result.ok, result.text) == (True, "Hello")


def test_nothing_is_left_of_a_session_that_is_closed_while_a_shell_runs(bench: Bench) -> None:
    bench.server.script([Turn(tool_calls=[bench.gemini.shell_call("sleep 1000")])])
    session = GeminiCliRuntime().open_session(working_directory=bench.workdir, permission_mode="bypass")
    for event in session.execute("sleep"):
        if event.type == "tool_use":
            wait_until(lambda: any("sleep 1000" in command for command in bench.processes().values()))
            break
    session.close()
    assert not bench.processes()


def test_a_missing_key_is_an_error_that_says_what_to_do_and_changes_no_settings(bench: Bench) -> None:
    path = bench.home / ".gemini" / "settings.json"
    before = path.read_bytes()
    with GeminiCliRuntime().open_session(working_directory=bench.workdir, env={"GEMINI_API_KEY": None}) as session:
        events, result = finished(session.execute("hello"))
    assert result.error_subtype == "auth"
    (error,) = (event for event in events if isinstance(event, AgentErrorEvent))
    assert "GEMINI_API_KEY" in error.message
    assert path.read_bytes() == before
