"""Live sessions on the real OpenCode."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from remoteclaw_sync import (
    AgentEvent,
    AgentRunResult,
    AgentSession,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    AgentUsage,
    Allow,
    Deny,
    McpServerConfig,
    OpenCodeCliRuntime,
    PermissionRequest,
    SessionFields,
)
from remoteclaw_sync.tool_server.server import SERVER_NAME as TOOLS_SERVER
from remoteclaw_sync.types import PermissionMode
from tests.fakes import codes, done, finished, wait_until
from tests.real_clis.bench import Bench
from tests.real_clis.scenarios_opencode import AT_ONCE, delegating, read
from tests.real_clis.script import Cut, Hang, Hold, HttpError, Reply, ToolCall, Turn, Usage, long_text

ROOT = str(Path(__file__).parents[2])
SESSIONS_AT_ONCE = 16
SEES_IMAGES = {
    "provider": {"bench": {"models": {"scripted": {"modalities": {"input": ["text", "image"], "output": ["text"]}}}}}
}
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def tool_results(events: Iterable[AgentEvent]) -> list[AgentToolResultEvent]:
    return [event for event in events if isinstance(event, AgentToolResultEvent)]


@pytest.fixture
def bench(cli_bench: Bench) -> Bench:
    """Where OpenCode works: not a git repository, and a folder that it has never seen."""
    return cli_bench


def test_the_second_turn_is_served_by_the_same_process_which_knows_the_first(bench: Bench) -> None:
    call = bench.opencode.shell_call("echo out; exit 3", "call_1")
    bench.server.script(
        [
            Turn(thinking=["Let me ", "see."], text=["Hel", "lo"], usage=Usage(100, 7, 20, 0, 3)),
            Turn(tool_calls=[call], usage=Usage(10, 5, 0, 0)),
            Turn(text="Again.", usage=Usage(7, 3, 1, 0)),
        ]
    )
    with OpenCodeCliRuntime().open_session(
        working_directory=bench.workdir, system_prompt="Be brief, zebra."
    ) as session:
        assert session.pid is None
        events, one = finished(session.execute("first words"))
        pid = session.pid
        assert [event.text for event in events if isinstance(event, AgentThinkingEvent)] == ["Let me ", "see."]
        assert [event.text for event in events if isinstance(event, AgentTextEvent)] == ["Hel", "lo"]
        events, two = finished(session.execute("second words"))
        assert session.pid == pid is not None
        assert session.session_id == one.session_id == two.session_id is not None
    assert events == [
        AgentToolUseEvent("bash", "call_1", dict(call.input)),
        AgentToolResultEvent("call_1", "out\n", is_error=True),
        AgentTextEvent("Again."),
    ]
    assert (one.text, two.text, codes(events)) == ("Hello", "Again.", [])
    assert (one.usage, two.usage) == (AgentUsage(100, 7, 20, 0), AgentUsage(17, 8, 1, 0))
    assert one.total_cost_usd == pytest.approx((100 + 10 * 10 + 20 * 0.1) / 1e6)
    assert two.total_cost_usd == pytest.approx((17 + 8 * 10 + 0.1) / 1e6)
    assert (one.num_turns, two.num_turns) == (1, 2)
    requests = bench.server.requests
    assert requests[1].occurrences("first words") == 1
    assert [b"zebra" in request.raw for request in requests] == [True, True, True]
    assert bench.server.side_requests == []  # No request for a title: it would not be counted in any usage.
    assert session.pid is None


def test_a_tool_call_is_made_or_not_as_approve_says(bench: Bench) -> None:
    files = {name: bench.workdir / name for name in ("yes", "no", "other")}
    replies: list[Reply] = []
    for name in files:
        call = bench.opencode.shell_call(f"touch {files[name]}", f"call_{name}")
        replies += [Turn(tool_calls=[call]), Turn(text=f"Told {name}.")]
    bench.server.script(replies)
    asked: list[PermissionRequest] = []

    def approve(request: PermissionRequest) -> bool | Allow | Deny:
        asked.append(request)
        if request.tool_id == "call_no":
            return Deny("Not this one.")
        if request.tool_id == "call_other":
            return Allow({**request.input, "command": "true"})
        return True

    with OpenCodeCliRuntime().open_session(working_directory=bench.workdir, approve=approve) as session:
        events, allowed = finished(session.execute("do it"))
        assert [event.type for event in events] == ["tool_use", "permission", "tool_result", "text"]
        assert (allowed.text, allowed.permission_denials, files["yes"].exists()) == ("Told yes.", (), True)
        events, denied = finished(session.execute("and this"))
        (result,) = tool_results(events)
        assert (result.is_error, denied.ok, denied.text, files["no"].exists()) == (True, True, "Told no.", False)
        (denial,) = denied.permission_denials
        assert (denial.tool, denial.reason, denial.tool_id) == ("bash", "Not this one.", "call_no")
        assert b"Not this one." in bench.server.requests[3].raw  # The model learns why.
        events, changed = finished(session.execute("last"))
        assert (codes(events), files["other"].exists()) == (["CLI_WARNING"], False)
        assert [denial.tool_id for denial in changed.permission_denials] == ["call_other"]
    assert [request.tool_name for request in asked] == ["bash"] * 3
    assert asked[0].input["command"] == f"touch {files['yes']}"
    assert asked[0].session_id == session.session_id


def test_of_calls_made_together_each_is_decided_by_itself_and_the_model_hears_why(bench: Bench) -> None:
    made = [bench.workdir / name for name in ("a", "b", "c")]
    calls = [bench.opencode.shell_call(f"touch {file}", f"call_{file.name}") for file in made]
    bench.server.script([Turn(tool_calls=calls), Turn(text="One."), Turn(tool_calls=calls[:2]), Turn(text="Two.")])

    def approve(request: PermissionRequest) -> bool | Deny:
        return request.tool_id != "call_a" or Deny("Never that one.")

    with OpenCodeCliRuntime().open_session(working_directory=bench.workdir, approve=approve) as session:
        # OpenCode treats a refusal as one of all open calls.
        result = session.run("first")
        assert (result.text, [file.exists() for file in made]) == ("One.", [False, True, True])
        assert [denial.tool_id for denial in result.permission_denials] == ["call_a"]
        made[1].unlink()
        assert b"Never that one." in bench.server.requests[1].raw
    with OpenCodeCliRuntime().open_session(
        working_directory=bench.workdir, approve=lambda request: Deny(f"Because of {request.tool_id}.")
    ) as session:
        result = session.run("second")
        assert (result.ok, result.text, made[1].exists()) == (True, "Two.", False)
        assert [denial.tool_id for denial in result.permission_denials] == ["call_a", "call_b"]
    assert b"Because of call_a." in bench.server.requests[3].raw
    assert b"Because of call_b." in bench.server.requests[3].raw


def test_a_no_leaves_a_call_alone_whose_request_comes_later_and_the_model_has_the_last_word(bench: Bench) -> None:
    """The first command of a process is asked about a second after an edit, and a refusal applies to all open calls."""
    shell = bench.opencode.shell_call(f"touch {bench.workdir / 'made'}", "call_shell")
    edit = bench.opencode.write_file_call(bench.workdir / "edited", "x", "call_edit")
    bench.server.script([Turn(tool_calls=[edit, shell]), Turn(text="Done.")])
    with OpenCodeCliRuntime().open_session(
        working_directory=bench.workdir, approve=lambda request: request.tool_name == "bash"
    ) as session:
        result = session.run("go")
    assert [(bench.workdir / name).exists() for name in ("made", "edited")] == [True, False]
    assert [denial.tool_id for denial in result.permission_denials] == ["call_edit"]
    assert result.text == "Done."


def test_a_sub_agent_asks_too_and_its_words_are_not_the_answer(bench: Bench) -> None:
    inner = Turn(text="inner words", tool_calls=[bench.opencode.shell_call("touch made", "call_in")], usage=Usage(7, 2))
    bench.server.respond(delegating(inner, Turn(text="inner answer", usage=Usage(5, 1))))
    asked: list[PermissionRequest] = []

    def approve(request: PermissionRequest) -> bool:
        asked.append(request)
        return True

    with OpenCodeCliRuntime().open_session(working_directory=bench.workdir, approve=approve) as session:
        events, result = finished(session.execute("go"))
    uses = {event.tool_name: event for event in events if isinstance(event, AgentToolUseEvent)}
    assert (result.text, list(uses)) == ("outer answer", ["task", "bash"])
    assert uses["bash"].parent_tool_use_id == uses["task"].tool_id
    (request,) = asked
    assert (request.tool_id, request.parent_tool_use_id) == ("call_in", uses["task"].tool_id)
    assert request.session_id != session.session_id
    assert (bench.workdir / "made").exists()
    assert result.usage == AgentUsage(10 + 7 + 5 + 10, 5 + 2 + 1 + 5, 0, 0)
    assert result.num_turns == 2
    assert tool_results(events)[-1].tool_id == uses["task"].tool_id


def test_without_approve_a_request_is_refused_and_the_turn_goes_on(bench: Bench) -> None:
    outside = bench.root / "outside.txt"
    outside.write_text("zebra stripes")
    bench.server.script([Turn(tool_calls=[read(str(outside))]), Turn(text="Pity.")])
    with OpenCodeCliRuntime().open_session(working_directory=bench.workdir) as session:
        result = session.run("do it")
    assert (result.ok, result.text) == (True, "Pity.")
    assert [denial.tool for denial in result.permission_denials] == ["external_directory"]
    assert b"zebra" not in bench.server.requests[1].raw


def test_a_yes_that_is_remembered_is_for_this_session_and_command_alone(bench: Bench) -> None:
    def call(command: str, number: int) -> Turn:
        return Turn(tool_calls=[bench.opencode.shell_call(command, f"call_{number}")])

    said = Turn(text="Done.")
    bench.server.script([call("true", 1), call("true", 2), call("true 2", 3), said, call("true", 4), said])
    asked: list[str] = []

    def approve(request: PermissionRequest) -> Allow:
        asked.append(request.tool_id)
        return Allow(remember=True)

    runtime = OpenCodeCliRuntime()
    for _ in range(2):
        with runtime.open_session(working_directory=bench.workdir, approve=approve) as session:
            assert session.run("do it").text == "Done."
    assert asked == ["call_1", "call_3", "call_4"]


def test_what_the_users_configuration_denies_is_refused_though_approve_would_allow_it(bench: Bench) -> None:
    settings = json.dumps({"permission": {"bash": {"rm *": "deny"}}})
    victim = bench.workdir / "victim"
    victim.touch()
    calls = [bench.opencode.shell_call(f"rm {victim}", "call_rm"), bench.opencode.shell_call("true", "call_true")]
    asked: list[str] = []

    def approve(request: PermissionRequest) -> bool:
        asked.append(request.tool_id)
        return True

    fields: SessionFields = {
        "working_directory": bench.workdir,
        "env": {"OPENCODE_CONFIG_CONTENT": settings},
        "approve": approve,
    }
    modes: tuple[PermissionMode, ...] = ("default", "bypass")
    for mode in modes:
        bench.server.script([Turn(tool_calls=[calls[0]]), Turn(tool_calls=[calls[1]]), Turn(text="Done.")])
        with OpenCodeCliRuntime().open_session(**fields) as session:
            session.set_permission_mode(mode)
            result = session.run("do it")
        assert (result.text, victim.exists()) == ("Done.", True)
        assert [denial.tool_id for denial in result.permission_denials] == ["call_rm"]
    assert asked == ["call_true"]


def test_an_mcp_tool_that_the_user_denies_is_refused_though_approve_would_allow_it(bench: Bench) -> None:
    command, *arguments = bench.mcp_command()
    settings = json.dumps({"permission": {"wild_echo": "deny"}})
    call = bench.opencode.mcp_call("wild", "echo", {"text": "ho"})
    bench.server.script([Turn(tool_calls=[call]), Turn(text="Done.")])
    asked: list[str] = []

    def approve(request: PermissionRequest) -> bool:
        asked.append(request.tool_name)
        return True

    result = OpenCodeCliRuntime().run(
        "do it",
        working_directory=bench.workdir,
        env={"OPENCODE_CONFIG_CONTENT": settings},
        mcp_servers={"wild": McpServerConfig(command=command, args=arguments, trust=False)},
        approve=approve,
    )
    assert (result.text, asked) == ("Done.", [])
    assert [denial.tool for denial in result.permission_denials] == ["wild_echo"]


def test_the_model_and_the_permission_mode_change_between_turns(bench: Bench) -> None:
    files = [bench.workdir / str(number) for number in range(4)]
    replies: list[Reply] = []
    for file in files:
        call = bench.opencode.write_file_call(file, "x", f"call_{file.name}")
        replies += [Turn(tool_calls=[call]), Turn(text="Done.")]
    bench.server.script(replies)
    asked: list[str] = []

    def approve(request: PermissionRequest) -> bool:
        asked.append(request.tool_id)
        return False

    with OpenCodeCliRuntime().open_session(working_directory=bench.workdir, approve=approve) as session:
        session.run("write")
        pid = session.pid
        session.set_permission_mode("accept-edits")
        session.run("write")
        session.set_permission_mode("bypass")
        session.run("write")
        assert session.pid == pid
        session.set_permission_mode("read-only")  # Tools are removed, which requires another process.
        session.run("write")
        assert session.pid != pid
        assert (asked, [file.exists() for file in files]) == (["call_0"], [False, True, True, False])
        assert "write" not in bench.server.requests[-1].tools
        assert bench.server.requests[-1].occurrences("write") == 4

        bench.server.script([], then=Turn(text="Hm."))
        session.set_model("bench/no-such-model")
        for _ in range(2):
            events, result = finished(session.execute("who are you?"))
            assert (result.error_subtype, "no-such-model" in str(events[-1])) == ("config", True)
        session.set_model(None)  # OpenCode would keep the one that does not exist.
        assert session.run("who are you?").text == "Hm."
    assert bench.server.requests[-1].model == "scripted"


def test_read_only_is_as_strict_as_in_a_one_shot_run_and_for_sub_agents(bench: Bench) -> None:
    bench.server.script([Turn(tool_calls=[bench.opencode.shell_call("touch never", "call_a")]), Turn(text="Pity.")])
    fields: SessionFields = {
        "working_directory": bench.workdir,
        "permission_mode": "read-only",
        "approve": lambda request: True,
    }
    with OpenCodeCliRuntime().open_session(**fields) as session:
        session.run("do it")
    assert not {"bash", "edit", "write", "task"} & set(bench.server.requests[0].tools)
    assert not (bench.workdir / "never").exists()


def test_an_interrupt_ends_text_tools_hangs_retries_and_open_approvals_and_keeps_the_process(bench: Bench) -> None:
    hold, started = Hold(), bench.workdir / "started"
    bench.server.script(
        [
            Turn(text=["Half", hold, " an answer"]),
            Turn(tool_calls=[bench.opencode.shell_call(f"touch {started}; sleep 1000", "call_sleep")]),
            Hang(after_headers=True),
            HttpError(status=529, retry_after=500.0),
            Turn(tool_calls=[bench.opencode.shell_call("touch never", "call_touch")]),
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

    waits: dict[str, Callable[[], object]] = {
        "text": lambda: hold.reached.wait(30),
        "tool": lambda: wait_until(started.exists),
        "hang": lambda: bench.server.wait_for_requests(3),
    }
    results: list[AgentRunResult] = []
    with OpenCodeCliRuntime().open_session(working_directory=bench.workdir, approve=approve) as session:
        session.warm()
        pid = session.pid
        for prompt in ("text", "tool", "hang", "retry", "approval"):
            with session.start(prompt) as run:
                aborts.append(run.abort)
                aborter = threading.Thread(target=abort_when, args=(waits.get(prompt, lambda: False),))
                aborter.start()
                for event in run:
                    if event.type == "error" and event.code == "CLI_WARNING" and prompt == "retry":
                        run.abort()
                aborter.join()
                assert run.result is not None
                results.append(run.result)
            assert session.pid == pid
        assert session.run("and now?").text == "Still here."
        assert session.pid == pid
        assert wait_until(lambda: not [it for it in bench.processes().values() if "sleep 1000" in it])
    assert [(result.aborted, result.error_subtype) for result in results] == [(True, "aborted")] * 5
    assert not (bench.workdir / "never").exists()


def test_words_that_come_while_it_works_are_answered_in_the_same_run(bench: Bench) -> None:
    hold, gate = Hold(), bench.workdir / "gate"
    wait = bench.opencode.shell_call(f"while [ ! -e {gate} ]; do sleep 0.05; done", "call_wait")
    bench.server.script([Turn(text=["One", hold, "."])], then=Turn(text="Two."))
    with OpenCodeCliRuntime().open_session(working_directory=bench.workdir) as session:
        with session.start("first words") as run:
            for event in run:
                if event.type == "text" and event.text == "One":
                    run.steer("more words")
                    run.steer("and more")
                    hold.release.set()
        assert run.result is not None
        # OpenCode asks its model once or twice, depending on whether it has both by the end of the first request.
        assert (run.result.ok, run.result.text.replace("Two.Two.", "Two.")) == (True, "One.Two.")
        assert [bench.server.requests[-1].occurrences(words) for words in ("more words", "and more")] == [1, 1]
        bench.server.script([Turn(tool_calls=[wait])], then=Turn(text="Three."))
        with session.start("second words") as run:
            for event in run:
                if event.type == "tool_use":
                    run.steer("even more words")
                    gate.touch()
        assert run.result is not None
        assert run.result.ok
        assert session.run("third words").ok
        assert bench.server.requests[-1].occurrences("even more words") == 1


def test_one_shot_runs_and_sessions_take_up_each_others_conversations(bench: Bench) -> None:
    bench.server.script([Turn(text=word, usage=Usage(10, 5, 0, 0)) for word in ("One.", "Two.", "Three.")])
    runtime = OpenCodeCliRuntime()
    one = runtime.run("first words", working_directory=bench.workdir)
    fields: SessionFields = {
        "working_directory": bench.workdir,
        "session_id": one.session_id,
        "approve": lambda request: True,
    }
    with runtime.open_session(**fields) as session:
        two = session.run("second words")
        assert session.session_id == one.session_id
    three = runtime.run("third words", working_directory=bench.workdir, session_id=session.session_id)
    assert (two.text, three.text, three.session_id) == ("Two.", "Three.", one.session_id)
    last = bench.server.requests[-1]
    assert [last.occurrences(words) for words in ("first words", "second words", "third words")] == [1, 1, 1]
    assert one.usage == two.usage == three.usage


def test_a_conversation_that_began_live_goes_on_without_rules_and_questions_in_a_one_shot_run(bench: Bench) -> None:
    made = bench.workdir / "made"
    call = bench.opencode.shell_call(f"touch {made}", "call_1")
    bench.server.script([Turn(text="One."), Turn(tool_calls=[call]), Turn(text="Two.")])
    fields: SessionFields = {"working_directory": bench.workdir, "approve": lambda request: False}
    with OpenCodeCliRuntime().open_session(**fields) as session:
        session.run("first words")
        assert "question" in bench.server.requests[0].tools
    two = OpenCodeCliRuntime().run("second words", working_directory=bench.workdir, session_id=session.session_id)
    assert (two.text, made.exists()) == ("Two.", True)
    assert "question" not in bench.server.requests[1].tools  # It would wait for ever.


def test_a_killed_process_is_replaced_by_one_that_knows_the_conversation(bench: Bench) -> None:
    bench.server.script([Turn(text="One."), Turn(text="Two."), Hang(after_headers=True)], then=Turn(text="Three."))
    with OpenCodeCliRuntime().open_session(working_directory=bench.workdir) as session:
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


def test_a_killed_host_takes_the_process_and_its_tools_with_it(bench: Bench) -> None:
    started = bench.workdir / "started"
    bench.server.script([Turn(tool_calls=[bench.opencode.shell_call(f"touch {started}; sleep 1000", "call_1")])])
    source = "from remoteclaw_sync import OpenCodeCliRuntime\nOpenCodeCliRuntime().open_session().run('go')\n"
    host = subprocess.Popen([sys.executable, "-c", source], cwd=bench.workdir, env={**os.environ, "PYTHONPATH": ROOT})
    try:
        assert wait_until(started.exists, 60)
    finally:
        host.kill()
        host.wait()
    assert wait_until(lambda: bench.processes() == {})


@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_an_api_error_fails_the_turn_as_it_fails_a_one_shot_run_and_the_session_goes_on(
    bench: Bench, status: int
) -> None:
    bench.server.script([], then=HttpError(status=status, retry_after=AT_ONCE))
    runtime = OpenCodeCliRuntime()
    _, one_shot = finished(runtime.execute("hello", working_directory=bench.workdir))
    with runtime.open_session(working_directory=bench.workdir) as session:
        events, live = finished(session.execute("hello"))
        pid = session.pid
        bench.server.script([], then=Turn(text="Fine."))
        assert session.run("again").text == "Fine."
        assert session.pid == pid
    assert one_shot.error_subtype is not None
    assert live.error_subtype == one_shot.error_subtype
    assert [code for code in codes(events) if code != "CLI_WARNING"] != []


def test_an_answer_that_is_cut_off_again_and_again_is_given_up(bench: Bench) -> None:
    bench.server.script([], then=Turn(text=["Half", Cut(clean=True)]))
    with OpenCodeCliRuntime().open_session(working_directory=bench.workdir) as session:
        events, result = finished(session.execute("hello"))
        assert (result.error_subtype, codes(events)) == ("network", ["CLI_WARNING", "APIError"])
        assert len(bench.server.requests) <= 4  # OpenCode by itself would make a hundred in twenty seconds.
        bench.server.script([], then=Turn(text="Whole."))
        assert session.run("again").text == "Whole."


def test_a_hung_model_is_noticed_though_the_server_is_alive(bench: Bench) -> None:
    bench.server.script([Turn(text="One."), Hang(after_headers=True)])
    with OpenCodeCliRuntime(timeout=15.0).open_session(working_directory=bench.workdir) as session:
        session.run("first words")
        events, result = finished(session.execute("second words"))  # Its heartbeats arrive every ten seconds.
        assert (codes(events), result.error_subtype) == (["WATCHDOG_TIMEOUT"], "timeout")
        bench.server.script([Turn(text="Three.")])
        assert session.run("third words").text == "Three."
        assert bench.server.requests[-1].occurrences("first words") == 1


def test_a_turn_that_runs_out_of_time_ends_its_process_and_not_the_conversation(bench: Bench) -> None:
    bench.server.script([Turn(text="One."), Hang(after_headers=True)])
    with OpenCodeCliRuntime().open_session(working_directory=bench.workdir) as session:
        session.run("first words")
        events, result = finished(session.execute("second words", deadline=2))
        assert (codes(events), result.error_subtype) == (["DEADLINE_EXCEEDED"], "timeout")
        bench.server.script([Turn(text="Three.")])
        assert session.run("third words").text == "Three."
        assert bench.server.requests[-1].occurrences("first words") == 1


def test_an_unknown_session_fails_the_turn(bench: Bench) -> None:
    unknown = "ses_e14fae195ffeXzp9W5IzXZ1jnA"
    with OpenCodeCliRuntime().open_session(working_directory=bench.workdir, session_id=unknown) as session:
        for _ in range(2):
            events, result = finished(session.execute("hello?"))
            assert (result.error_subtype, codes(events)) == ("session_not_found", ["SESSION_NOT_FOUND"])
        assert session.session_id == unknown


def test_a_prompt_is_text_in_every_turn(bench: Bench) -> None:
    prompts = ("/init x", "/etc/passwd is what?", "look at @secret.txt", "!ls", " -- é\r\n\u2028 \U0001f980\x1b\ufeff")
    (bench.workdir / "secret.txt").write_text("top secret")
    bench.server.script([], then=Turn(text="Yes."))
    with OpenCodeCliRuntime().open_session(working_directory=bench.workdir) as session:
        for prompt in prompts:
            assert session.run(prompt).ok
        long = long_text(600_000)
        assert session.run(long).ok
    assert [request.prompt for request in bench.server.requests] == [*prompts, long]
    assert b"top secret" not in bench.server.requests[-1].raw


def test_python_functions_and_mcp_servers_are_tools_of_a_session(bench: Bench) -> None:
    def add(one: int, two: int) -> int:
        """The sum of two numbers."""
        return one + two

    command, *arguments = bench.mcp_command()
    secret = "top-secret-{file:/etc/passwd}-value"
    servers = {
        "lab": McpServerConfig(command=command, args=arguments, env={"LAB_TOKEN": secret}, trust=True),
        "wild": McpServerConfig(command=command, args=arguments, trust=False),
        "gone": McpServerConfig(command="/no/such/server"),
    }
    bench.server.script(
        [
            Turn(tool_calls=[bench.opencode.mcp_call(TOOLS_SERVER, "add", {"one": 2, "two": 3}, "call_add")]),
            Turn(tool_calls=[bench.opencode.mcp_call("lab", "echo", {"text": "hé"}, "call_echo")]),
            Turn(tool_calls=[bench.opencode.mcp_call("wild", "echo", {"text": "ho"}, "call_wild")]),
            Turn(text="Five."),
            Turn(tool_calls=[bench.opencode.mcp_call(TOOLS_SERVER, "add", {"one": 2, "two": 4}, "call_again")]),
            Turn(text="Six."),
        ]
    )
    asked: list[PermissionRequest] = []

    def approve(request: PermissionRequest) -> bool:
        asked.append(request)
        return True

    fields: SessionFields = {
        "working_directory": bench.workdir,
        "mcp_servers": servers,
        "tools": [add],
        "approve": approve,
    }
    with OpenCodeCliRuntime().open_session(**fields) as session:
        session.warm()
        shown = [command for command in bench.processes().values() if "acp" in command]
        assert shown
        assert not [command for command in shown if "top-secret" in command]
        events, result = finished(session.execute("add"))
        assert session.run("again").text == "Six."
    assert codes(events) == ["MCP_SERVER_FAILED"]
    assert [(event.tool_id, event.is_error) for event in tool_results(events)] == [
        ("call_add", False),
        ("call_echo", False),
        ("call_wild", False),
    ]
    assert [(request.tool_name, dict(request.input)) for request in asked] == [("wild_echo", {"text": "ho"})]
    assert (result.ok, result.text) == (True, "Five.")
    assert bench.processes() == {}


def test_a_question_of_the_model_is_answered_by_approve_or_not(bench: Bench) -> None:
    options = [{"label": "Blue", "description": "cold"}, {"label": "Red", "description": "warm"}]
    question = {"question": "Which colour?", "header": "Colour", "options": options}
    calls = [[ToolCall("question", {"questions": [question]}, f"call_{number}")] for number in range(2)]
    bench.server.script(
        [Turn(tool_calls=calls[0]), Turn(text="Blue it is."), Turn(tool_calls=calls[1]), Turn(text="Later then.")]
    )
    asked: list[PermissionRequest] = []

    def approve(request: PermissionRequest) -> Allow | Deny:
        asked.append(request)
        return Allow(answers={"Which colour?": "Blue"}) if len(asked) == 1 else Deny("Ask me tomorrow.")

    with OpenCodeCliRuntime().open_session(working_directory=bench.workdir, approve=approve) as session:
        assert session.run("ask me").text == "Blue it is."
        assert session.run("ask me again").text == "Later then."
    assert [one["question"] for one in asked[0].questions] == ["Which colour?"]
    (answer,) = bench.server.requests[1].tool_results
    assert "Blue" in answer.text
    assert b"Ask me tomorrow." in bench.server.requests[3].raw


def test_deny_and_stop_ends_the_turn_and_keeps_the_process(bench: Bench) -> None:
    call = bench.opencode.shell_call("touch never", "call_a")
    bench.server.script([Turn(tool_calls=[call]), Turn(text="Still here.")])
    fields: SessionFields = {"working_directory": bench.workdir, "approve": lambda request: Deny("Enough.", stop=True)}
    with OpenCodeCliRuntime().open_session(**fields) as session:
        result = done(session.execute("do it"))
        pid = session.pid
        assert (result.aborted, result.permission_denials[0].reason) == (True, "Enough.")
        assert session.run("and now?").text == "Still here."
        assert session.pid == pid
    assert not (bench.workdir / "never").exists()


def test_an_idle_process_is_let_go_and_a_single_run_leaves_nothing(bench: Bench) -> None:
    bench.server.script([Turn(text="One."), Turn(text="Two."), Turn(text="Three.")])
    with OpenCodeCliRuntime().open_session(working_directory=bench.workdir, idle_timeout=0.3) as session:
        session.run("first words")
        assert wait_until(lambda: session.pid is None)
        assert wait_until(lambda: bench.processes() == {})
        assert session.run("second words").text == "Two."
    assert bench.server.requests[1].occurrences("first words") == 1
    assert OpenCodeCliRuntime(transport="live").run("third", working_directory=bench.workdir).text == "Three."
    assert bench.processes() == {}


def test_a_generator_that_is_left_in_mid_turn_leaves_the_process_usable(bench: Bench) -> None:
    hold = Hold()
    bench.server.script([Turn(text=["Half", hold, "."]), Turn(text="Whole.")])
    with OpenCodeCliRuntime().open_session(working_directory=bench.workdir) as session:
        events = session.execute("first words")
        while next(events).type != "text":
            pass
        pid = session.pid
        events.close()
        assert session.run("second words").text == "Whole."
        assert session.pid == pid


def test_an_image_is_shown_to_the_model(bench: Bench) -> None:
    picture = bench.workdir / "dot.png"
    picture.write_bytes(PNG)
    bench.server.script([Turn(text="A dot.")])
    settings = {"OPENCODE_CONFIG_CONTENT": json.dumps(SEES_IMAGES)}
    with OpenCodeCliRuntime().open_session(working_directory=bench.workdir, env=settings) as session:
        assert session.run("what is it?", images=[picture]).text == "A dot."
    assert base64.b64encode(PNG) in bench.server.requests[0].raw


def test_nobody_else_can_talk_to_the_server(bench: Bench) -> None:
    # A user's configuration may make it listen to the whole network, on a well-known port.
    settings = {"OPENCODE_CONFIG_CONTENT": json.dumps({"server": {"hostname": "0.0.0.0", "port": 5555, "mdns": True}})}
    bench.server.script([Turn(text="Hello.")])
    with OpenCodeCliRuntime().open_session(working_directory=bench.workdir, env=settings) as session:
        assert session.run("hello").text == "Hello."
        (command,) = [command for command in bench.processes().values() if " acp " in command]
        port = int(command.partition("--port=")[2].split()[0])
        listening = {line.split()[1] for line in Path("/proc/thread-self/net/tcp").read_text().splitlines()[1:]}
        assert f"0100007F:{port:04X}" in listening
        assert not [address for address in listening if address.endswith(f":{5555:04X}")]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/session", timeout=10)


def test_sixteen_sessions_at_once_keep_their_words_apart(bench: Bench) -> None:
    bench.server.respond(lambda request: Turn(text=[f"re: {request.prompt}"]))
    runtime = OpenCodeCliRuntime()
    runtime.run("make the database", working_directory=bench.workdir)

    def talk(number: int) -> list[str]:
        with runtime.open_session(working_directory=bench.workdir) as session:
            return [session.run(f"{number}.{turn}").text for turn in range(2)]

    with ThreadPoolExecutor(SESSIONS_AT_ONCE) as pool:
        said = list(pool.map(talk, range(SESSIONS_AT_ONCE)))
    assert said == [[f"re: {number}.{turn}" for turn in range(2)] for number in range(SESSIONS_AT_ONCE)]
    assert bench.processes() == {}
