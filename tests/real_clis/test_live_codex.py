"""Live sessions on the real Codex."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

from remoteclaw_sync import (
    AgentPermissionEvent,
    AgentRunResult,
    AgentTextEvent,
    AgentToolResultEvent,
    AgentUsage,
    Allow,
    CodexCliRuntime,
    Deny,
    McpServerConfig,
    PermissionRequest,
    SessionFields,
)
from remoteclaw_sync.tool_server.server import SERVER_NAME as TOOLS_SERVER
from tests.fakes import codes, done, finished, wait_until
from tests.real_clis.bench import Bench
from tests.real_clis.scenarios_codex import FEW_RETRIES, shell
from tests.real_clis.script import Hang, Hold, HttpError, ToolCall, Turn, Usage

NEEDS_MORE = {"sandbox_permissions": "require_escalated", "justification": "it has to be"}


@pytest.fixture
def bench(cli_bench: Bench) -> Bench:
    """Where Codex works: not a git repository, and a folder that it has never seen."""
    return cli_bench


def asking(command: str, call_id: str) -> ToolCall:
    """A shell command that the sandbox would block."""
    return ToolCall("exec_command", {"cmd": command, **NEEDS_MORE}, call_id)


def test_the_second_turn_is_served_by_the_same_process_which_knows_the_first(bench: Bench) -> None:
    bench.server.script(
        [Turn(text=["Hel", "lo"], usage=Usage(100, 20, 30, 0)), Turn(text="Again.", usage=Usage(7, 3, 1, 0))]
    )
    with CodexCliRuntime().open_session(working_directory=bench.workdir, system_prompt="Be brief, zebra.") as session:
        assert session.pid is None
        events, one = finished(session.execute("first words"))
        pid = session.pid
        two = session.run("second words")
        assert session.pid == pid is not None
        assert session.session_id == one.session_id == two.session_id is not None
    assert [event.text for event in events if isinstance(event, AgentTextEvent)] == ["Hel", "lo"]
    assert (one.text, two.text, codes(events)) == ("Hello", "Again.", [])
    assert isinstance(one.usage, AgentUsage)
    assert isinstance(two.usage, AgentUsage)
    assert (one.usage.output_tokens, two.usage.output_tokens) == (20, 3)
    assert bench.server.requests[1].occurrences("first words") == 1
    assert b"zebra" in bench.server.requests[0].raw
    assert session.pid is None


def test_a_tool_call_is_made_or_not_as_approve_says(bench: Bench) -> None:
    files = {name: bench.workdir / name for name in ("yes", "no", "other")}
    replies = []
    for name in files:
        replies += [Turn(tool_calls=[asking(f"touch {files[name]}", f"call_{name}")]), Turn(text=f"Told {name}.")]
    bench.server.script(replies)
    asked: list[PermissionRequest] = []

    def approve(request: PermissionRequest) -> bool | Allow | Deny:
        asked.append(request)
        if request.tool_id == "call_no":
            return Deny("Not this one.")
        if request.tool_id == "call_other":
            return Allow({**request.input, "command": "true"})
        return True

    with CodexCliRuntime().open_session(working_directory=bench.workdir, approve=approve) as session:
        events, allowed = finished(session.execute("do it"))
        assert [event.request.tool_id for event in events if isinstance(event, AgentPermissionEvent)] == ["call_yes"]
        assert (allowed.text, allowed.permission_denials, files["yes"].exists()) == ("Told yes.", (), True)
        events, denied = finished(session.execute("and this"))
        (result,) = (event for event in events if isinstance(event, AgentToolResultEvent))
        assert (result.is_error, denied.ok, files["no"].exists()) == (True, True, False)
        (denial,) = denied.permission_denials
        assert (denial.tool, denial.reason, denial.tool_id) == ("command_execution", "Not this one.", "call_no")
        assert b"Not this one." in bench.server.requests[3].raw  # The model learns why.
        events, changed = finished(session.execute("last"))
        assert (codes(events), files["other"].exists()) == (["CLI_WARNING"], False)
        assert [denial.tool_id for denial in changed.permission_denials] == ["call_other"]
    assert [request.tool_name for request in asked] == ["command_execution"] * 3
    assert f"touch {files['yes']}" in asked[0].input["command"]
    assert (asked[0].reason, asked[0].session_id) == ("it has to be", session.session_id)


def test_without_approve_a_request_is_refused_and_the_turn_goes_on(bench: Bench) -> None:
    bench.server.script([Turn(tool_calls=[asking("touch made", "call_1")]), Turn(text="Pity.")])
    with CodexCliRuntime().open_session(working_directory=bench.workdir) as session:
        result = session.run("do it")
    assert (result.ok, result.text, (bench.workdir / "made").exists()) == (True, "Pity.", False)
    assert [denial.tool_id for denial in result.permission_denials] == ["call_1"]


def test_an_interrupt_ends_text_tools_hangs_and_open_approvals_and_keeps_the_process(bench: Bench) -> None:
    hold = Hold()
    bench.server.script(
        [
            Turn(text=["Half", hold, " an answer"]),
            Turn(tool_calls=[shell("sleep 1000", yield_time_ms=30_000)]),
            Hang(after_headers=True),
            Turn(tool_calls=[asking("touch never", "call_touch")]),
            Turn(text="Still here."),
        ]
    )
    aborts: list[Callable[[], None]] = []

    def approve(request: PermissionRequest) -> bool:
        if request.tool_id == "call_touch":
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
    results: list[AgentRunResult] = []
    with CodexCliRuntime().open_session(working_directory=bench.workdir, approve=approve) as session:
        session.warm()
        pid = session.pid
        for prompt in ("text", "tool", "hang", "approval"):
            with session.start(prompt) as run:
                aborts.append(run.abort)
                aborter = threading.Thread(target=abort_when, args=(waits.get(prompt, lambda: False),))
                aborter.start()
                results.append(done(run))
                aborter.join()
            assert session.pid == pid
        assert session.run("and now?").text == "Still here."
        assert session.pid == pid
        wait_until(lambda: not sleeping())
    assert [(result.aborted, result.error_subtype) for result in results] == [(True, "aborted")] * 4
    assert not (bench.workdir / "never").exists()


def test_one_shot_runs_and_sessions_take_up_each_others_conversations(bench: Bench) -> None:
    bench.server.script([Turn(text=word, usage=Usage(10, 5, 0, 0)) for word in ("One.", "Two.", "Three.")])
    runtime = CodexCliRuntime()
    one = runtime.run("first words", working_directory=bench.workdir)
    with runtime.open_session(working_directory=bench.workdir, session_id=one.session_id) as session:
        two = session.run("second words")
        assert session.session_id == one.session_id
    three = runtime.run("third words", working_directory=bench.workdir, session_id=session.session_id)
    assert (two.text, three.text, three.session_id) == ("Two.", "Three.", one.session_id)
    last = bench.server.requests[-1]
    assert [last.occurrences(words) for words in ("first words", "second words", "third words")] == [1, 1, 1]
    assert one.usage == two.usage == three.usage


def test_words_that_come_while_a_tool_runs_are_answered_in_the_same_run(bench: Bench) -> None:
    gate = bench.workdir / "gate"
    wait = shell(f"while [ ! -e {gate} ]; do sleep 0.05; done", yield_time_ms=30_000)
    bench.server.script([Turn(tool_calls=[wait]), Turn(text="Three."), Turn(text="Four.")])
    with CodexCliRuntime().open_session(working_directory=bench.workdir) as session:
        with session.start("first words") as run:
            for event in run:
                if event.type == "tool_use":
                    run.steer("more words")
                    gate.touch()
        assert run.result is not None
        assert (run.result.ok, run.result.text) == (True, "Three.")
        assert b"more words" in bench.server.requests[1].raw
        assert session.run("second words").text == "Four."


def test_an_unknown_session_fails_the_turn(bench: Bench) -> None:
    unknown = "019a0000-0000-7000-8000-000000000000"
    with CodexCliRuntime().open_session(working_directory=bench.workdir, session_id=unknown) as session:
        for _ in range(2):
            events, result = finished(session.execute("hello?"))
            assert (result.error_subtype, codes(events)) == ("session_not_found", ["SESSION_NOT_FOUND"])


@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_an_api_error_fails_the_turn_as_it_fails_a_one_shot_run_and_the_session_goes_on(
    bench: Bench, status: int
) -> None:
    bench.server.script([], then=HttpError(status=status))
    runtime = CodexCliRuntime()
    events, one_shot = finished(runtime.execute("hello", working_directory=bench.workdir, extra_args=FEW_RETRIES))
    with runtime.open_session(working_directory=bench.workdir, extra_args=FEW_RETRIES) as session:
        live_events, live = finished(session.execute("hello"))
        bench.server.script([], then=Turn(text="Fine."))
        assert session.run("again").text == "Fine."
    assert one_shot.error_subtype is not None
    assert (live.error_subtype, codes(live_events)) == (one_shot.error_subtype, codes(events))


def test_the_model_and_the_permission_mode_change_between_turns(bench: Bench) -> None:
    written = bench.workdir / "written"
    calls = [[bench.codex.write_file_call(written, "x", f"call_{number}")] for number in range(2)]
    bench.server.script(
        [Turn(tool_calls=calls[0]), Turn(text="No."), Turn(tool_calls=calls[1]), Turn(text="Yes.")],
        then=Turn(text="More."),
    )
    with CodexCliRuntime().open_session(working_directory=bench.workdir, permission_mode="read-only") as session:
        session.run("write")
        assert not written.exists()
        session.set_permission_mode("bypass")
        pid = session.pid
        session.run("write now")
        assert written.exists()
        assert session.pid == pid
        session.set_model("gpt-5.4")
        session.run("who are you?")
        assert b'"gpt-5.4"' in bench.server.requests[-1].raw
        assert session.pid == pid


def test_python_functions_and_mcp_servers_are_tools_of_a_session(bench: Bench) -> None:
    def add(one: int, two: int) -> int:
        """The sum of two numbers."""
        return one + two

    command, *arguments = bench.mcp_command()
    servers = {
        "lab": McpServerConfig(command=command, args=arguments, env={"LAB_TOKEN": "top-secret-value"}, trust=True),
        "gone": McpServerConfig(command="/no/such/server"),
    }
    bench.server.script(
        [
            Turn(tool_calls=[bench.codex.mcp_call(TOOLS_SERVER, "add", {"one": 2, "two": 3}, "call_add")]),
            Turn(tool_calls=[bench.codex.mcp_call("lab", "echo", {"text": "hé"}, "call_echo")]),
            Turn(text="Five."),
        ]
    )
    fields: SessionFields = {"working_directory": bench.workdir, "mcp_servers": servers, "tools": [add]}
    with CodexCliRuntime().open_session(**fields) as session:
        session.warm()
        shown = [command for command in bench.processes().values() if "app-server" in command]
        assert shown
        assert not [command for command in shown if "top-secret-value" in command]
        events, result = finished(session.execute("add"))
    assert codes(events) == ["MCP_SERVER_FAILED"]
    outputs = [(event.tool_id, event.is_error) for event in events if isinstance(event, AgentToolResultEvent)]
    assert outputs == [("call_add", False), ("call_echo", False)]
    assert (result.ok, result.text) == (True, "Five.")


def test_an_untrusted_mcp_tool_is_asked_for(bench: Bench) -> None:
    command, *arguments = bench.mcp_command()
    calls = [[bench.codex.mcp_call("lab", "echo", {"text": "hi"}, f"call_{number}")] for number in range(2)]
    bench.server.script(
        [Turn(tool_calls=calls[0]), Turn(text="Yes."), Turn(tool_calls=calls[1]), Turn(text="No.")],
    )
    asked: list[PermissionRequest] = []

    def approve(request: PermissionRequest) -> bool:
        asked.append(request)
        return len(asked) == 1

    servers = {"lab": McpServerConfig(command=command, args=arguments, trust=False)}
    fields: SessionFields = {"working_directory": bench.workdir, "mcp_servers": servers, "approve": approve}
    with CodexCliRuntime().open_session(**fields) as session:
        events, allowed = finished(session.execute("echo"))
        assert [event.is_error for event in events if isinstance(event, AgentToolResultEvent)] == [False]
        events, denied = finished(session.execute("again"))
        assert [event.is_error for event in events if isinstance(event, AgentToolResultEvent)] == [True]
    assert (allowed.permission_denials, len(denied.permission_denials)) == ((), 1)
    assert [(request.tool_name, request.tool_id) for request in asked] == [
        ("mcp__lab__echo", "call_0"),
        ("mcp__lab__echo", "call_1"),
    ]
    assert asked[0].input == {"text": "hi"}


def test_in_the_default_mode_approve_is_asked_for_every_command(bench: Bench) -> None:
    calls = [ToolCall("exec_command", {"cmd": command}, f"call_{command[0]}") for command in ("ls", "touch made")]
    bench.server.script([Turn(tool_calls=[calls[0]]), Turn(tool_calls=[calls[1]]), Turn(text="Done.")])
    asked: list[PermissionRequest] = []

    def approve(request: PermissionRequest) -> bool:
        asked.append(request)
        return True

    result = CodexCliRuntime().run("do it", working_directory=bench.workdir, approve=approve)
    assert [request.tool_id for request in asked] == ["call_l", "call_t"]
    assert (result.text, (bench.workdir / "made").exists()) == ("Done.", True)


def test_words_that_come_while_it_writes_have_it_begin_anew(bench: Bench) -> None:
    hold = Hold()
    bench.server.script([Turn(text=["One", hold, "."]), Turn(text="Two.")])
    with CodexCliRuntime().open_session(working_directory=bench.workdir) as session:
        events = []
        with session.start("first words") as run:
            for event in run:
                events.append(event)
                if event.type == "text" and event.text == "One":
                    run.steer("more words")
        assert run.result is not None
        assert (run.result.ok, run.result.text, codes(events)) == (True, "OneTwo.", ["CLI_WARNING"])
        assert bench.server.requests[1].occurrences("more words") == 1


def test_a_killed_process_is_replaced_by_one_that_knows_the_conversation(bench: Bench) -> None:
    bench.server.script([Turn(text="One."), Turn(text="Two.")])
    with CodexCliRuntime().open_session(working_directory=bench.workdir) as session:
        session.run("first words")
        first = session.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: session.pid is None)
        assert session.run("second words").text == "Two."
        assert session.pid != first
        assert bench.server.requests[1].occurrences("first words") == 1


def test_a_key_in_the_environment_is_used_and_never_written(bench: Bench) -> None:
    settings = (bench.home / ".codex" / "config.toml").read_text()
    settings = settings.replace('env_key = "BENCH_API_KEY"', "requires_openai_auth = true")
    (bench.home / ".codex" / "config.toml").write_text(settings)
    bench.server.script([Turn(text="Hello.")])
    key = "sk-fake-key-of-this-test-11111111111111111111"
    with CodexCliRuntime().open_session(working_directory=bench.workdir, env={"CODEX_API_KEY": key}) as session:
        assert session.run("hello").text == "Hello."
        assert not [command for command in bench.processes().values() if key in command]
    assert bench.server.requests[0].headers["authorization"] == f"Bearer {key}"
    assert not (bench.home / ".codex" / "auth.json").exists()


def test_a_prompt_with_the_name_of_a_skill_is_text_unless_syntax_is_wanted(bench: Bench) -> None:
    skill = bench.home / ".codex" / "skills" / "mine"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: mine\ndescription: a skill of the user\n---\nSing it.\n")
    bench.server.script([], then=Turn(text="Yes."))
    with CodexCliRuntime().open_session(working_directory=bench.workdir) as session:
        for prompt in ("$mine", "use $skill-creator and\n($mine)!"):
            session.run(prompt)
            assert bench.server.requests[-1].prompt == prompt
        run = session.start("wanted: $mine", prompt_syntax="cli")
        assert done(run).ok
    assert [request.raw.count(b"Sing it.") for request in bench.server.requests] == [0, 0, 1]
