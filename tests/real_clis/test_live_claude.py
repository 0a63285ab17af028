"""Live sessions on the real Claude Code."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

from remoteclaw_sync import (
    AgentPermissionEvent,
    AgentRunResult,
    AgentSession,
    AgentToolResultEvent,
    AgentUsage,
    Allow,
    ClaudeCliRuntime,
    Deny,
    PermissionRequest,
    SessionFields,
)
from tests.fakes import codes, done, finished, wait_until
from tests.real_clis.bench import Bench
from tests.real_clis.scenarios_claude import shell
from tests.real_clis.script import Hang, Hold, HttpError, ToolCall, Turn, Usage


@pytest.fixture
def bench(cli_bench: Bench) -> Bench:
    """Where Claude works: not a git repository, and a folder that it has never seen."""
    return cli_bench


def test_the_second_turn_is_served_by_the_same_process_which_knows_the_first(bench: Bench) -> None:
    first, second = Usage(100, 20, 30, 40), Usage(7, 3, 1, 2)
    bench.server.script([Turn(text=["Hel", "lo"], usage=first), Turn(text="Again.", usage=second)])
    with ClaudeCliRuntime().open_session(working_directory=bench.workdir) as session:
        assert session.pid is None
        one = session.run("first words")
        pid = session.pid
        two = session.run("second words")
        assert session.pid == pid is not None
        assert session.session_id == one.session_id == two.session_id is not None
    assert (one.text, two.text) == ("Hello", "Again.")
    assert (one.usage, two.usage) == (AgentUsage(100, 20, 30, 40), AgentUsage(7, 3, 1, 2))
    assert one.total_cost_usd is not None
    assert two.total_cost_usd is not None
    assert 0 < two.total_cost_usd < one.total_cost_usd
    assert (one.num_turns, two.num_turns) == (1, 1)
    assert bench.server.requests[1].occurrences("first words") == 1
    assert session.pid is None


def test_a_tool_call_is_made_or_not_as_approve_says(bench: Bench) -> None:
    files = {name: bench.workdir / name for name in ("yes", "no", "other")}
    calls = [[shell(f"touch {files[name]}", f"toolu_{name}")] for name in ("yes", "no")]
    bench.server.script(
        [
            Turn(tool_calls=calls[0]),
            Turn(text="Done."),
            Turn(tool_calls=calls[1]),
            Turn(text="Pity."),
            Turn(tool_calls=[shell("touch nothing", "toolu_other")]),
            Turn(text="Changed."),
        ]
    )
    asked: list[PermissionRequest] = []

    def approve(request: PermissionRequest) -> bool | Allow | Deny:
        asked.append(request)
        if request.tool_id == "toolu_no":
            return Deny("Not this one.")
        if request.tool_id == "toolu_other":
            return Allow({**request.input, "command": f"touch {files['other']}"})
        return True

    with ClaudeCliRuntime().open_session(working_directory=bench.workdir, approve=approve) as session:
        events, allowed = finished(session.execute("do it"))
        assert [event.request.tool_id for event in events if isinstance(event, AgentPermissionEvent)] == ["toolu_yes"]
        assert (allowed.text, allowed.permission_denials, files["yes"].exists()) == ("Done.", (), True)
        events, denied = finished(session.execute("and this"))
        (result,) = (event for event in events if isinstance(event, AgentToolResultEvent))
        assert (result.is_error, "Not this one." in result.output, files["no"].exists()) == (True, True, False)
        assert denied.ok
        (denial,) = denied.permission_denials
        assert (denial.tool, denial.reason, denial.tool_id) == ("Bash", "Not this one.", "toolu_no")
        assert session.run("last").text == "Changed."
        assert (files["other"].exists(), (bench.workdir / "nothing").exists()) == (True, False)
    assert [request.tool_name for request in asked] == ["Bash"] * 3
    assert asked[0].input["command"] == f"touch {files['yes']}"
    assert asked[0].session_id == session.session_id


def test_an_interrupt_ends_text_tools_hangs_and_open_approvals_and_keeps_the_process(bench: Bench) -> None:
    hold, started = Hold(), bench.workdir / "started"
    bench.server.script(
        [
            Turn(text=["Half", hold, " an answer"]),
            Turn(tool_calls=[shell(f"touch {started}; sleep 1000", "toolu_sleep")]),
            Hang(after_headers=True),
            Turn(tool_calls=[shell("touch never", "toolu_touch")]),
            Turn(text="Still here."),
        ]
    )
    aborts: list[Callable[[], None]] = []

    def approve(request: PermissionRequest) -> bool:
        if request.tool_id == "toolu_touch":
            aborts[-1]()
        return True

    def abort_when(something_has_happened: Callable[[], object]) -> None:
        if something_has_happened():
            aborts[-1]()

    waits: dict[str, Callable[[], object]] = {
        "text": lambda: hold.reached.wait(30),
        "tool": lambda: wait_until(started.exists),
        "hang": lambda: bench.server.wait_for_requests(3),
    }
    results: list[AgentRunResult] = []
    with ClaudeCliRuntime().open_session(working_directory=bench.workdir, approve=approve) as session:
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
    assert [(result.aborted, result.error_subtype) for result in results] == [(True, "aborted")] * 4
    assert not (bench.workdir / "never").exists()
    assert not [command for command in bench.processes().values() if "sleep 1000" in command]


def test_one_shot_runs_and_sessions_take_up_each_others_conversations(bench: Bench) -> None:
    bench.server.script([Turn(text=word) for word in ("One.", "Two.", "Three.")])
    runtime = ClaudeCliRuntime()
    one = runtime.run("first words", working_directory=bench.workdir)
    with runtime.open_session(working_directory=bench.workdir, session_id=one.session_id) as session:
        two = session.run("second words")
        assert session.session_id == one.session_id
    three = runtime.run("third words", working_directory=bench.workdir, session_id=session.session_id)
    assert (two.text, three.text, three.session_id) == ("Two.", "Three.", one.session_id)
    last = bench.server.requests[-1]
    assert [last.occurrences(words) for words in ("first words", "second words", "third words")] == [1, 1, 1]
    assert two.usage == one.usage
    assert two.total_cost_usd == pytest.approx(one.total_cost_usd, rel=0.5)


def test_words_that_come_while_it_works_are_answered_in_the_same_run(bench: Bench) -> None:
    hold, gate = Hold(), bench.workdir / "gate"
    bench.server.script(
        [
            Turn(text=["One", hold, "."]),
            Turn(text="Two."),
            Turn(tool_calls=[shell(f"while [ ! -e {gate} ]; do sleep 0.05; done", "toolu_wait")]),
            Turn(text="Three."),
            Turn(text="Four."),
        ]
    )
    with ClaudeCliRuntime().open_session(working_directory=bench.workdir, approve=lambda request: True) as session:
        with session.start("first words") as run:
            for event in run:
                if event.type == "text" and event.text == "One":
                    run.steer("more words")  # No tool follows, so Claude answers them in a separate turn.
                    hold.release.set()
        assert run.result is not None
        assert (run.result.ok, run.result.text) == (True, "One.\n\nTwo.")
        assert bench.server.requests[1].occurrences("more words") == 1
        with session.start("second words") as run:
            for event in run:
                if event.type == "tool_use":
                    run.steer("even more words")  # A tool follows, so they become part of the turn.
                    gate.touch()
        assert run.result is not None
        assert (run.result.ok, run.result.text) == (True, "Three.")
        assert b"even more words" in bench.server.requests[3].raw  # Claude wraps them in words of its own.
        assert session.run("third words").text == "Four."


def test_a_killed_process_is_replaced_by_one_that_knows_the_conversation(bench: Bench) -> None:
    bench.server.script([Turn(text="One."), Turn(text="Two."), Hang(after_headers=True)], then=Turn(text="Three."))
    with ClaudeCliRuntime().open_session(working_directory=bench.workdir) as session:
        session.run("first words")
        first = kill(session)
        assert session.run("second words").text == "Two."
        assert bench.server.requests[1].occurrences("first words") == 1
        assert session.pid != first
        with session.start("third words") as run:
            killer = threading.Thread(target=lambda: bench.server.wait_for_requests(3) and kill(session))
            killer.start()
            result = done(run)
            killer.join()
        assert (result.error_subtype, result.exit_code, result.aborted) == ("crash", -9, False)
        bench.server.script([Turn(text="Three.")])
        assert session.run("fourth words").text == "Three."
        assert bench.server.requests[-1].occurrences("second words") == 1


def kill(session: AgentSession) -> int:
    assert session.pid is not None
    pid = session.pid
    os.kill(pid, signal.SIGKILL)
    return pid


def test_model_and_mode_change_between_turns(bench: Bench) -> None:
    file = bench.workdir / "made"
    bench.server.script([Turn(text="One."), Turn(tool_calls=[shell(f"touch {file}", "toolu_a")]), Turn(text="Two.")])
    with ClaudeCliRuntime().open_session(working_directory=bench.workdir, model="claude-sonnet-4-5") as session:
        session.run("first words")
        pid = session.pid
        session.set_model("claude-haiku-4-5")
        session.set_permission_mode("accept-edits")
        events, result = finished(session.execute("second words"))
        assert codes(events) == []
        assert (result.text, result.permission_denials, file.exists(), session.pid) == ("Two.", (), True, pid)
    models = [request.model for request in bench.server.requests]
    assert models[0].startswith("claude-sonnet-4-5")
    assert models[1].startswith("claude-haiku-4-5")


def test_a_single_run_with_approve_is_asked_and_leaves_nothing(bench: Bench) -> None:
    bench.server.script([Turn(tool_calls=[shell("touch made", "toolu_a")]), Turn(text="Done.", usage=Usage(5, 6))])
    result = ClaudeCliRuntime().run("do it", working_directory=bench.workdir, approve=lambda request: True)
    assert (result.text, result.ok, (bench.workdir / "made").exists()) == ("Done.", True, True)
    assert bench.processes() == {}


def test_python_tools_and_servers_work_in_every_turn(bench: Bench) -> None:
    call = ToolCall("mcp__remoteclaw__lookup", {"number": 17}, "toolu_a")
    again = ToolCall("mcp__remoteclaw__lookup", {"number": 18}, "toolu_b")
    bench.server.script([Turn(tool_calls=[call]), Turn(text="One."), Turn(tool_calls=[again]), Turn(text="Two.")])
    seen: list[int] = []

    def lookup(number: int) -> str:
        """The state of an order."""
        seen.append(number)
        return "shipped"

    with ClaudeCliRuntime().open_session(working_directory=bench.workdir, tools=[lookup]) as session:
        assert [session.run(words).text for words in ("first", "second")] == ["One.", "Two."]
    assert seen == [17, 18]


def test_an_api_error_fails_its_turn_and_the_next_one_works(bench: Bench) -> None:
    bench.server.script([HttpError(status=403, message="no access"), Turn(text="Better.")])
    with ClaudeCliRuntime().open_session(working_directory=bench.workdir) as session:
        failed = session.run("first", check=False)
        pid = session.pid
        assert failed.error_subtype == "auth"
        assert session.run("second").text == "Better."
        assert session.pid == pid


def test_a_session_that_is_not_there_is_told_as_in_a_one_shot_run(bench: Bench) -> None:
    missing = "00000000-0000-4000-8000-000000000000"
    with ClaudeCliRuntime().open_session(working_directory=bench.workdir, session_id=missing) as session:
        result = session.run("hello", check=False)
        assert result.error_subtype == "session_not_found"
        assert session.session_id == missing


def test_a_prompt_is_text_in_every_turn(bench: Bench) -> None:
    bench.server.script([Turn(text="One."), Turn(text="Two."), Turn(text="Three.")])
    prompts = ("/clear", "look at @/etc/passwd", "  -- é\n\u2028 \U0001f980")
    with ClaudeCliRuntime().open_session(working_directory=bench.workdir) as session:
        for prompt in prompts:
            assert session.run(prompt).ok
    assert [request.prompt for request in bench.server.requests] == list(prompts)


def test_a_question_of_the_model_is_answered_by_approve(bench: Bench) -> None:
    options = [{"label": "Blue", "description": "cold"}, {"label": "Red", "description": "warm"}]
    question = {"question": "Which colour?", "header": "Colour", "multiSelect": False, "options": options}
    call = ToolCall("AskUserQuestion", {"questions": [question]}, "toolu_q")
    bench.server.script([Turn(tool_calls=[call]), Turn(text="Blue it is.")])
    asked: list[PermissionRequest] = []

    def approve(request: PermissionRequest) -> Allow:
        asked.append(request)
        return Allow(answers={"Which colour?": "Blue"})

    with ClaudeCliRuntime().open_session(working_directory=bench.workdir, approve=approve) as session:
        assert session.run("ask me").text == "Blue it is."
    assert [one["question"] for one in asked[0].questions] == ["Which colour?"]
    (answer,) = bench.server.requests[1].tool_results
    assert "Blue" in answer.text


def test_deny_and_stop_ends_the_turn_and_keeps_the_process(bench: Bench) -> None:
    bench.server.script([Turn(tool_calls=[shell("touch never", "toolu_a")]), Turn(text="Still here.")])
    fields: SessionFields = {"working_directory": bench.workdir, "approve": lambda request: Deny("Enough.", stop=True)}
    with ClaudeCliRuntime().open_session(**fields) as session:
        result = done(session.execute("do it"))
        pid = session.pid
        assert (result.aborted, result.permission_denials[0].reason) == (True, "Enough.")
        assert session.run("and now?").text == "Still here."
        assert session.pid == pid
    assert not (bench.workdir / "never").exists()


def test_without_approve_a_call_that_needs_permission_is_refused_and_told(bench: Bench) -> None:
    bench.server.script([Turn(tool_calls=[shell("touch never", "toolu_a")]), Turn(text="Pity.")])
    with ClaudeCliRuntime(transport="live").start("do it", working_directory=bench.workdir) as run:
        result = done(run)
    assert (result.ok, result.text) == (True, "Pity.")
    assert [denial.tool_id for denial in result.permission_denials] == ["toolu_a"]
    assert not (bench.workdir / "never").exists()


def test_read_only_is_as_strict_as_in_a_one_shot_run(bench: Bench) -> None:
    bench.server.script([Turn(tool_calls=[shell("touch never", "toolu_a")]), Turn(text="Pity.")])
    fields: SessionFields = {
        "working_directory": bench.workdir,
        "permission_mode": "read-only",
        "approve": lambda request: True,
    }
    with ClaudeCliRuntime().open_session(**fields) as session:
        result = session.run("do it")
    assert [denial.tool for denial in result.permission_denials] == ["Bash"]
    assert "Bash" not in bench.server.requests[0].tools
    assert not (bench.workdir / "never").exists()


def test_an_idle_process_is_let_go_and_the_conversation_goes_on(bench: Bench) -> None:
    bench.server.script([Turn(text="One."), Turn(text="Two.")])
    with ClaudeCliRuntime().open_session(working_directory=bench.workdir, idle_timeout=0.3) as session:
        session.run("first words")
        assert wait_until(lambda: session.pid is None)
        assert wait_until(lambda: bench.processes() == {})
        assert session.run("second words").text == "Two."
    assert bench.server.requests[1].occurrences("first words") == 1


def test_a_generator_that_is_left_in_mid_turn_leaves_the_process_usable(bench: Bench) -> None:
    hold = Hold()
    bench.server.script([Turn(text=["Half", hold, "."]), Turn(text="Whole.")])
    with ClaudeCliRuntime().open_session(working_directory=bench.workdir) as session:
        events = session.execute("first words")
        while next(events).type != "text":
            pass
        pid = session.pid
        events.close()
        assert session.run("second words").text == "Whole."
        assert session.pid == pid


def test_a_conversation_that_claude_begins_anew_is_followed(bench: Bench) -> None:
    bench.server.script([Turn(text="One."), Turn(text="Two."), Turn(text="Three.")])
    with ClaudeCliRuntime().open_session(working_directory=bench.workdir) as session:
        session.run("first words")
        first = session.session_id
        cleared = session.run("/clear", prompt_syntax="cli", check=False)
        assert not cleared.aborted
        assert session.run("second words").text == "Two."
        assert session.session_id != first
        assert bench.server.requests[1].occurrences("first words") == 0
        kill(session)
        assert session.run("third words").text == "Three."
        assert bench.server.requests[2].occurrences("second words") == 1


def test_a_turn_that_runs_out_of_time_ends_its_process_and_not_the_conversation(bench: Bench) -> None:
    bench.server.script([Turn(text="One."), Hang(after_headers=True)])
    with ClaudeCliRuntime().open_session(working_directory=bench.workdir) as session:
        session.run("first words")
        events, result = finished(session.execute("second words", deadline=2))
        assert (codes(events), result.error_subtype) == (["DEADLINE_EXCEEDED"], "timeout")
        bench.server.script([Turn(text="Three.")])
        assert session.run("third words").text == "Three."
        assert bench.server.requests[-1].occurrences("first words") == 1
