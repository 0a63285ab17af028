"""Live sessions: many turns on a process that stays, and on the one that replaces it when it is gone."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import (
    AgentDoneEvent,
    AgentErrorEvent,
    AgentEvent,
    AgentExecuteParams,
    AgentRun,
    AgentRunResult,
    AgentSession,
    AgentUsage,
    CLIRuntimeBase,
    SessionBusyError,
    UnsupportedOperationError,
    create_cli_runtime,
)
from remoteclaw_sync.process.sweep import CAN_SWEEP, boot_ticks, stat_of
from tests.engine.live import FAKE, command, heard_by, open_session, runtime, starts, steps
from tests.fakes import PATIENCE, FakeRuntime, alive, codes, done, finished, run_host, start_host, wait_until

sweeps = pytest.mark.skipif(not CAN_SWEEP, reason="leftovers can be found on Linux only")
CRASH = ("crash", -signal.SIGKILL)


def kill(session: AgentSession) -> int:
    assert session.pid is not None
    pid = session.pid
    os.kill(pid, signal.SIGKILL)
    return pid


def remembered(session: AgentSession) -> list[str]:
    """What the fake remembers of the conversation."""
    words: list[str] = json.loads(session.run(steps(["memory"])).text)
    return words


def rest(events: Iterable[AgentEvent]) -> AgentRunResult:
    """The result of a turn whose first events were already taken."""
    *_, last = events
    assert isinstance(last, AgentDoneEvent)
    return last.result


# --- turns ----------------------------------------------------------------------------------------------------


def test_six_turns_are_served_by_one_process_each_with_its_own_usage_and_cost(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        assert (session.pid, session.session_id) == (None, None)
        results = [session.run(f"prompt {number}") for number in range(6)]
        assert alive(session.pid or 0)
        assert session.session_id is not None
    assert [result.text for result in results] == [f"re: prompt {number}" for number in range(6)]
    assert {result.session_id for result in results} == {session.session_id}
    assert {(result.usage, result.total_cost_usd, result.api_duration_ms) for result in results} == {
        (AgentUsage(10, 1), 0.25, 100)
    }
    assert len(starts(tmp_path)) == 1
    assert session.pid is None


def test_a_turn_has_the_events_and_the_one_done_of_a_run(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        for _ in range(2):
            events, result = finished(session.execute(steps(["text", "a"], ["text", "b"])))
            assert [event.type for event in events] == ["text", "text"]
            assert (result.ok, result.text, result.exit_code) == (True, "ab", None)


def test_the_process_is_started_for_a_conversation_and_not_for_a_prompt(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"model": "large", "permission_mode": "accept-edits", "extra_args": ["--extra=1"]}
    with open_session(tmp_path, env={"MINE": "1"}, system_prompt="Be brief.", **fields) as session:
        session.run("hello")
    (start,) = starts(tmp_path)
    assert {"--input-format=stream-json", "--permission-prompt-tool=stdio", "--model=large", "--extra=1"} <= {
        *start["argv"]
    }
    assert "--permission-mode=acceptEdits" in start["argv"]
    assert any(part.startswith("--append-system-prompt-file=") for part in start["argv"])
    assert start["env"]["CLAUDE_CODE_DISABLE_BACKGROUND_TASKS"] == "1"
    assert (start["env"]["ENABLE_TOOL_SEARCH"], start["env"]["MINE"]) == ("false", "1")


def test_the_process_is_asked_to_exit_by_its_own_protocol(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        session.run("hello")
    assert heard_by(tmp_path)[-1]["request"] == {"subtype": "end_session"}


@pytest.mark.slow
def test_a_prompt_of_three_megabytes_arrives_whole(tmp_path: Path) -> None:
    long = "é" * 1_500_000
    with open_session(tmp_path) as session:
        assert session.run("short").ok
        assert session.run(steps(["length", long])).text == str(len(long))
        assert session.run(long).text == f"re: {long}"
        assert len(starts(tmp_path)) == 1


def test_nothing_is_started_before_the_first_event_is_asked_for(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        events = session.execute("hello")
        assert (session.pid, starts(tmp_path)) == (None, [])
        assert done(events).ok


def test_warm_starts_the_process_and_waits_until_it_is_ready(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        session.warm()
        pid = session.pid
        assert alive(pid or 0)
        session.warm()
        assert session.run("hello").ok
        assert session.pid == pid


def test_a_start_that_fails_is_told_by_every_turn(tmp_path: Path) -> None:
    with create_cli_runtime("claude", command=str(tmp_path / "nothing")).open_session() as session:
        session.warm()
        for _ in range(2):
            events, result = finished(session.execute("hello"))
            assert (codes(events), result.error_subtype) == (["CLI_NOT_FOUND"], "cli_missing")


def test_an_image_that_is_gone_fails_its_turn_and_no_other(tmp_path: Path) -> None:
    image = tmp_path / "image.png"
    image.write_bytes(b"\x89PNG\r\n\x1a\n0000")
    with open_session(tmp_path) as session:
        events = session.execute("look", images=[image])
        image.unlink()
        told, result = finished(events)
        assert (codes(told), result.ok) == (["SPAWN_FAILED"], False)
        assert session.run("hello").ok


def test_two_threads_have_two_sessions_of_one_runtime(tmp_path: Path) -> None:
    shared = runtime(tmp_path)
    told: dict[str, list[str]] = {"a": [], "b": []}

    def talk(name: str) -> None:
        with shared.open_session(working_directory=tmp_path) as session:
            told[name] = [session.run(f"{name}{number}").text for number in range(20)]

    threads = [threading.Thread(target=talk, args=(name,)) for name in told]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert told == {name: [f"re: {name}{number}" for number in range(20)] for name in told}
    assert len(starts(tmp_path)) == 2


def test_a_request_that_nobody_knows_is_answered_with_an_error(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        assert session.run(steps(["control", "something new"])).text == '"error"'


def test_requests_are_answered_in_their_order_even_if_they_come_at_once(tmp_path: Path) -> None:
    """A recording is replayed line by line, and must find the same order."""
    with open_session(tmp_path, approve=lambda request: True) as session:
        session.run(steps(["both", "something new", "t1", "Bash"]))
    answers = [line["response"]["subtype"] for line in heard_by(tmp_path) if line["type"] == "control_response"]
    assert answers == ["error", "success"]


# --- one turn at a time ---------------------------------------------------------------------------------------


def test_a_second_turn_is_refused_in_the_call_until_the_first_is_over(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        first = session.execute(steps(["text", "a"], ["text", "b"]))
        for verb in (session.execute, session.start, session.run):
            with pytest.raises(SessionBusyError, match="not over"):
                verb("too early")
        next(first)
        with pytest.raises(SessionBusyError):
            session.warm()
        assert rest(first).ok
        assert session.run("now").ok


def test_a_turn_that_was_never_begun_does_not_keep_the_session(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        session.execute("dropped")
        closed = session.execute("closed")
        closed.close()
        with session.start("left"):
            pass
        assert session.run("hello").ok
        del closed


def test_a_consumer_that_stops_at_done_does_not_keep_the_session(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        events = session.execute("hello")
        assert [event.type for event, _ in zip(events, range(2), strict=False)] == ["text", "done"]
        assert session.run("again").ok
        events.close()


@pytest.mark.parametrize("field", ["session_id", "model", "working_directory", "approve", "mcp_servers"])
def test_what_belongs_to_the_session_is_refused_in_a_turn(field: str, tmp_path: Path) -> None:
    values: dict[str, Any] = {"session_id": "s", "model": "m", "working_directory": "."}
    values |= {"approve": print, "mcp_servers": {}}
    with open_session(tmp_path) as session:
        with pytest.raises(ValueError, match=f"{field} belongs to the session"):
            session.run("hello", **{field: values[field]})
        with pytest.raises(ValueError, match="model belongs to the session"):
            session.run(AgentExecuteParams("hello", model="m"))
        assert session.run(AgentExecuteParams("hello", deadline=60)).ok


@pytest.mark.parametrize("field", ["prompt", "images", "deadline", "abort_signal", "prompt_syntax", "sesion_id"])
def test_what_belongs_to_a_turn_is_refused_by_the_session(field: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=field):
        open_session(tmp_path, **{field: None})


def test_a_closed_session_takes_no_turn(tmp_path: Path) -> None:
    session = open_session(tmp_path)
    session.run("hello")
    session.close()
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        session.run("again")


# --- abort ----------------------------------------------------------------------------------------------------


def aborted_in(session: AgentSession, prompt: str, is_time: Callable[[AgentRun, Any], bool]) -> AgentRunResult:
    with session.start(prompt) as run:
        told = []
        for event in run:
            told.append(event)
            if is_time(run, event):
                run.abort()
    assert run.result is not None
    assert told[-1].type == "done"
    assert codes(told) == ["ABORTED"]
    assert (run.result.aborted, run.result.error_subtype) == (True, "aborted")
    return run.result


def interrupts_in(folder: Path) -> int:
    requests = [line["request"] for line in heard_by(folder) if line["type"] == "control_request"]
    return [request["subtype"] for request in requests].count("interrupt")


@pytest.mark.parametrize(
    ("step", "kind"),
    [(["hang"], "text"), (["shell", "t1"], "tool_use"), (["ask", "t1", "Bash", {"command": "ls"}], "permission")],
)
def test_abort_ends_the_turn_and_keeps_process_and_conversation(step: list[Any], kind: str, tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        session.run("first")
        pid = session.pid
        result = aborted_in(session, steps(["text", "a"], step, ["text", "b"]), lambda run, event: event.type == kind)
        assert result.text == "a"
        assert session.run("next").text == "re: next"
        assert session.pid == pid
        assert remembered(session)[0] == "first"


@sweeps
def test_abort_ends_what_the_turns_tools_left_behind_and_nothing_else(tmp_path: Path) -> None:
    """But not a server from an earlier turn, nor what it has started since, nor what the CLI started for itself."""
    files = [tmp_path / name for name in ("server", "server.worker", "helper", "stray")]
    with open_session(tmp_path) as session:
        session.run(steps(["server", str(files[0])]))
        server = stat_of(int(files[0].read_text()))
        assert server is not None
        assert wait_until(lambda: boot_ticks() > int(server.started))  # So that it is older than the turn.
        # The stray comes last: when it is gone, the others have been looked at.
        work = (["fork", str(files[0])], ["helper", str(files[2])], ["daemon", str(files[3])])
        run = session.start(steps(*work, ["text", "x"], ["hang"]))
        for event in run:
            if event.type == "text":
                run.abort()
        pids = [int(file.read_text()) for file in files]
        assert wait_until(lambda: not alive(pids[3]))
        assert [alive(pid) for pid in pids] == [True, True, True, False]
        assert session.run("and now?").ok
    assert not any(map(alive, pids))


def test_abort_while_the_consumer_waits_and_while_it_does_not(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        signal_ = threading.Event()
        events = session.execute(steps(["text", "a"], ["hang"]), abort_signal=signal_)
        assert next(events).type == "text"
        threading.Timer(0.1, signal_.set).start()
        assert rest(events).aborted
        pid = session.pid
        events = session.execute(steps(["text", "a"], ["hang"]), abort_signal=(again := threading.Event()))
        assert next(events).type == "text"
        again.set()
        assert wait_until(lambda: interrupts_in(tmp_path) == 2)  # Although nobody iterates.
        assert rest(events).aborted
        assert session.run("next").ok
        assert session.pid == pid


def test_an_event_that_is_set_already_ends_the_turn_before_it_begins(tmp_path: Path) -> None:
    event = threading.Event()
    event.set()
    with open_session(tmp_path) as session:
        assert done(session.execute("hello", abort_signal=event)).aborted
        assert starts(tmp_path) == []


def test_a_cli_that_ignores_the_interrupt_is_ended_and_the_next_turn_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remoteclaw_sync.engine.live_session.INTERRUPT_PATIENCE", 0.2)
    with open_session(tmp_path) as session:
        session.run("first")
        pid = session.pid
        aborted_in(session, steps(["deaf"], ["text", "a"], ["hang"]), lambda run, event: event.type == "text")
        assert not alive(pid or 0)
        assert remembered(session)[0] == "first"
        assert session.pid != pid


def test_a_generator_that_is_closed_in_mid_turn_interrupts_and_leaves_the_session_usable(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        events = session.execute(steps(["text", "a"], ["hang"]))
        next(events)
        pid = session.pid
        events.close()
        assert session.run("next").text == "re: next"
        for _ in session.execute(steps(["text", "a"], ["hang"])):
            break
        gc.collect()
        with session.start(steps(["text", "a"], ["hang"])) as run:
            next(run)
        assert session.run("last").text == "re: last"
        assert session.pid == pid


def test_ctrl_c_in_mid_turn_leaves_the_session_usable(tmp_path: Path) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with open_session(tmp_path) as session:
            session.run("first")
            pid = session.pid
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                session.run(steps(["text", "a"], ["hang"]))
            assert session.run("next").text == "re: next"
            assert session.pid == pid
    finally:
        signal.signal(signal.SIGALRM, before)


def test_abort_of_a_turn_that_is_over_does_not_touch_the_next(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        run = session.start("first")
        assert done(run).ok
        with session.start(steps(["text", "a"], ["sleep", 0.2], ["text", "b"])) as second:
            next(second)
            run.abort()
            run.close()
            assert rest(second).ok


# --- steering -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", [{}, {"FAKE_OLD": "1"}], ids=["2.1.326", "2.1.197"])
@pytest.mark.parametrize(
    ("step", "answer"), [("take_in", "atook in: more"), ("await_further", "a\n\nre: more")], ids=["same", "own turn"]
)
def test_a_steered_run_goes_on_until_the_further_words_are_answered(
    step: str, answer: str, env: dict[str, str], tmp_path: Path
) -> None:
    with open_session(tmp_path, env=env) as session:
        with session.start(steps(["text", "a"], [step])) as run:
            for event in run:
                if event.type == "text" and event.text == "a":
                    run.steer("more")
        assert run.result is not None
        assert (run.result.ok, run.result.text) == (True, answer)
        assert session.run("next").text == "re: next"


def test_a_run_that_does_not_work_cannot_be_steered(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        run = session.start("hello")
        with pytest.raises(UnsupportedOperationError, match="no running turn"):
            run.steer("too early")
        assert done(run).ok
        with pytest.raises(UnsupportedOperationError, match="no running turn"):
            run.steer("too late")
        with pytest.raises(ValueError, match="text must not be empty"):
            run.steer("")
    with FakeRuntime(["text", "a"]).start("hello") as one_shot:
        with pytest.raises(UnsupportedOperationError, match="one-shot"):
            one_shot.steer("never")


def test_abort_drops_words_that_have_not_been_answered(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        with session.start(steps(["text", "a"], ["hang"])) as run:
            next(run)
            run.steer("dropped")
            run.abort()
            assert rest(run).aborted
        assert session.run("next").text == "re: next"


# --- model and mode -------------------------------------------------------------------------------------------


def state_of(session: AgentSession) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(session.run(steps(["state"])).text)
    return state


def test_model_and_mode_are_changed_in_the_running_process_and_kept_for_the_next(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        before = state_of(session)
        session.set_model("large")
        session.set_permission_mode("accept-edits")
        after = state_of(session)
        assert (after["model"], after["mode"], after["pid"]) == ("large", "acceptEdits", before["pid"])
        kill(session)
        resumed = state_of(session)
        assert (resumed["model"], resumed["mode"]) == ("large", "acceptEdits")


@pytest.mark.parametrize("mode", ["read-only", "bypass"])
def test_a_mode_that_is_a_matter_of_the_start_takes_another_process(mode: Any, tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        session.run("first")
        pid = session.pid
        session.set_permission_mode(mode)
        assert not alive(pid or 0)
        assert remembered(session) == ["first"]
        events = session.execute(steps(["text", "a"], ["text", "b"]))
        next(events)
        with pytest.raises(SessionBusyError):
            session.set_permission_mode("default")
        assert rest(events).ok
    first, second = starts(tmp_path)
    assert first["argv"] != second["argv"]
    assert any("--tools=" in part or "bypass" in part for part in second["argv"])


def test_a_change_that_the_cli_refuses_is_a_warning_in_the_next_turn(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        session.run("first")
        session.set_model("refused")
        events, result = finished(session.execute(steps(["text", "a"])))
        (warning,) = (event for event in events if isinstance(event, AgentErrorEvent))
        assert (warning.code, "no such model" in warning.message, result.ok) == ("CLI_WARNING", True, True)
        with pytest.raises(ValueError, match="mode must be one of"):
            session.set_permission_mode("readonly")  # type: ignore[arg-type]


# --- the process goes -----------------------------------------------------------------------------------------


def test_a_process_that_is_killed_between_turns_is_not_missed(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        session.run("first")
        for number in range(3):
            pid = kill(session)  # Nobody waits until this has been noticed.
            assert session.run(f"further {number}").ok
            assert session.pid != pid
        assert remembered(session) == ["first", "further 0", "further 1", "further 2"]


def test_what_a_process_said_before_it_was_killed_is_not_taken_for_the_turn(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        session.run("first")
        for number in range(5):
            session.set_model(f"model {number}")
            assert wait_until(lambda: "set_model" in str(heard_by(tmp_path)[-1:]))
            kill(session)  # The answer may still be in the pipe.
            assert session.run("next").ok


def test_only_the_turn_that_was_running_fails_when_the_process_dies(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        session.run("first")
        events, result = finished(session.execute(steps(["text", "a"], ["die"])))
        assert (result.error_subtype, result.exit_code) == CRASH
        assert (codes(events), result.text, result.aborted) == (["CLI_EXIT_ERROR"], "a", False)
        assert remembered(session)[0] == "first"


def test_a_process_that_exits_in_a_turn_has_crashed_whatever_its_exit_code(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        events, result = finished(session.execute(steps(["text", "a"], ["exit", 0])))
        assert (result.error_subtype, result.exit_code, result.text) == ("crash", 0, "a")
        assert codes(events) == ["CLI_EXIT_ERROR"]
        assert session.run("next").ok


def test_an_idle_process_is_let_go_and_the_next_turn_resumes(tmp_path: Path) -> None:
    with open_session(tmp_path, idle_timeout=0.2) as session:
        session.run("first")
        pid = session.pid or 0
        assert wait_until(lambda: session.pid is None)
        assert not alive(pid)
        assert heard_by(tmp_path)[-1]["request"] == {"subtype": "end_session"}
        assert remembered(session) == ["first"]


def test_a_conversation_is_taken_up_by_another_session_of_that_id(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        session.run("first")
    with open_session(tmp_path, session_id=session.session_id) as later:
        assert remembered(later) == ["first"]
        assert later.session_id == session.session_id


def test_a_conversation_that_is_not_there_fails_its_turn(tmp_path: Path) -> None:
    with open_session(tmp_path, session_id="nowhere") as session:
        for _ in range(2):
            assert session.run("hello", check=False).error_subtype == "session_not_found"


def test_a_deadline_holds_for_one_turn_alone(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        session.run("first")
        events, result = finished(session.execute(steps(["text", "a"], ["hang"]), deadline=0.2))
        assert (codes(events), result.error_subtype, result.text) == (["DEADLINE_EXCEEDED"], "timeout", "a")
        assert remembered(session)[0] == "first"


@pytest.mark.slow
def test_aborts_and_kills_at_any_time_lose_no_done_and_mix_nothing(tmp_path: Path) -> None:
    chance = random.Random(14)
    with open_session(tmp_path) as session:
        session.run("first")
        for number in range(60):
            words = f"{number}"
            trouble = chance.choice(["none", "none", "abort", "kill", "close"])
            run = session.start(steps(["text", words], ["sleep", 0.005], ["text", words]))
            timer = threading.Timer(chance.random() * 0.02, {"abort": run.abort, "close": run.close}.get(trouble, int))
            timer.start()
            if trouble == "kill" and session.pid is not None:
                kill(session)
            told = list(run)
            timer.join()
            ends = [event.type for event in told].count("done")
            assert ends == 1 or (trouble == "close" and ends == 0)
            assert {event.text for event in told if event.type == "text"} <= {words, "\n\n" + words}
            if trouble in ("none", "kill"):
                assert rest(told).ok
        assert session.run("last").text == "re: last"
        assert remembered(session)[0] == "first"


# --- nothing is left ------------------------------------------------------------------------------------------


def test_a_session_that_is_closed_in_a_turn_aborts_it(tmp_path: Path) -> None:
    session = open_session(tmp_path)
    events = session.execute(steps(["text", "a"], ["hang"]))
    next(events)
    pid = session.pid or 0
    closer = threading.Thread(target=session.close)
    closer.start()
    assert rest(events).aborted
    closer.join(PATIENCE)
    assert not alive(pid)


def test_a_session_that_is_forgotten_ends_its_process(tmp_path: Path) -> None:
    session = open_session(tmp_path)
    session.run("hello")
    pid = session.pid or 0
    del session
    assert wait_until(lambda: not alive(pid))


def test_a_turn_outlives_the_name_of_its_session(tmp_path: Path) -> None:
    assert done(open_session(tmp_path).execute(steps(["text", "a"], ["sleep", 0.1], ["text", "b"]))).text == "ab"


HOST = """
import sys
from remoteclaw_sync import ClaudeCliRuntime

session = ClaudeCliRuntime(sys.argv[1:]).open_session()
session.run("hello")
print(session.pid, flush=True)
"""


def test_the_end_of_the_interpreter_is_that_of_the_process(tmp_path: Path) -> None:
    pid = int(run_host(HOST, *command(tmp_path)))
    assert not alive(pid)
    assert heard_by(tmp_path)[-1]["request"] == {"subtype": "end_session"}


def test_a_host_that_is_killed_leaves_no_process_and_its_session_can_be_taken_up(tmp_path: Path) -> None:
    code = f"{HOST}\nprint(session.session_id, flush=True)\nsys.stdin.read()"
    with start_host(code, *command(tmp_path), stdin=-1) as host:
        assert host.stdout is not None
        pid, session_id = int(host.stdout.readline()), host.stdout.readline().strip()
        host.kill()
    assert wait_until(lambda: not alive(pid))
    with open_session(tmp_path, session_id=session_id) as session:
        assert session.run("again").session_id == session_id


# --- single runs, and CLIs without -----------------------------------------------------------------------------


def test_a_single_live_run_ends_its_process(tmp_path: Path) -> None:
    with runtime(tmp_path, transport="live").start("hello") as run:
        assert next(run).type == "text"
        pid = run.pid or 0
        assert alive(pid)
        assert rest(run).exit_code == 0
    assert not alive(pid)


def test_a_cli_without_live_sessions_says_so_in_the_call() -> None:
    class OneShot(CLIRuntimeBase):
        def build_args(self, params: AgentExecuteParams) -> list[str]:
            return []

        def build_env(self, params: AgentExecuteParams) -> dict[str, str | None]:
            return {}

        def extract_event(self, line: str) -> None:
            return None

    for ask in (
        OneShot("acme").open_session,
        lambda: OneShot("acme").run("hello", approve=lambda request: True),
        lambda: OneShot("acme", transport="live").run("hello"),
    ):
        with pytest.raises(UnsupportedOperationError, match="^acme has no live sessions"):
            ask()


def test_what_cannot_go_together_is_refused_in_the_call(tmp_path: Path) -> None:
    one_shot: CLIRuntimeBase = runtime(tmp_path, transport="oneshot")
    for ask in (one_shot.open_session, lambda: one_shot.run("hello", approve=lambda request: True)):
        with pytest.raises(UnsupportedOperationError, match="oneshot"):
            ask()
    with pytest.raises(ValueError, match="transport must be one of"):
        runtime(tmp_path, transport="warm")
    with pytest.raises(TypeError, match="approve must be a function"):
        open_session(tmp_path, approve="yes")
    assert FAKE.exists()
