"""What live sessions promise on every CLI that has them, tested once for all of them. (What is different on one CLI is
tested in that CLI's file.)"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest

from remoteclaw_sync import (
    AgentDoneEvent,
    AgentEvent,
    AgentPermissionEvent,
    AgentRun,
    AgentRunError,
    AgentRunResult,
    AgentSession,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    Allow,
    Deny,
    McpServerConfig,
    PermissionRequest,
    Recording,
    ReplayRuntime,
    SessionBusyError,
    SessionFields,
)
from remoteclaw_sync.engine.live_session import INTERRUPT_PATIENCE
from remoteclaw_sync.files import PREFIX
from remoteclaw_sync.tool_server.server import SERVER_NAME as TOOLS_SERVER
from tests.fakes import codes, done, finished, start_host, wait_until
from tests.real_clis.bench import Bench, refused_url
from tests.real_clis.live_clis import LIVE_CLIS, LiveCli
from tests.real_clis.script import Cut, Delay, Drop, Hang, Hold, Reply, StreamError, Turn, Usage, in_pieces, long_text

pytestmark = pytest.mark.timeout(300)  # On a busy machine a start of OpenCode takes 15 s, and sixteen take 100 s.

SESSIONS_AT_ONCE = 16
UNICODE = 'é \U0001f980 \u2028 \u0000\x1b[31m \ufeff \r\n\t \'"\\ </s> {"type": "result"}'


@pytest.fixture
def bench(cli_bench: Bench, live: LiveCli, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Where the CLI works: not a git repository, and a folder that it has never seen. None of our files may remain."""
    for name, value in live.env.items():
        monkeypatch.setenv(name, value)
    live.prepare(cli_bench)
    yield cli_bench
    left = glob.glob(f"{cli_bench.tmp}/**/*{PREFIX}*", recursive=True)
    assert [path for path in left if not path.endswith("-sessions")] == []  # A folder that killed hosts leave.


# Sessions of OpenCode start so slowly that its cases would take as long as all others together.
@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] * (name == "opencode")) for name in LIVE_CLIS])
def live(request: pytest.FixtureRequest) -> LiveCli:
    """Each CLI with live sessions in turn."""
    return LIVE_CLIS[request.param]


@pytest.fixture
def session(live: LiveCli, bench: Bench) -> Iterator[AgentSession]:
    """A session without anything special."""
    with live.runtime().open_session(working_directory=bench.workdir) as session:
        yield session


def of(events: Iterable[AgentEvent], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def made_by(request: PermissionRequest) -> str:
    """Which file the command in question would touch. (Not all CLIs keep the ids that the model gave.)"""
    found = re.search(r"touch (?:[^\s\"']*/)?(\w+)", json.dumps(dict(request.input)))
    assert found is not None
    return found[1]


def there(bench: Bench, fields: SessionFields) -> SessionFields:
    return {**fields, "working_directory": bench.workdir}


def kill(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def sleeping(bench: Bench, seconds: int) -> bool:
    return any(f"sleep {seconds}" in command for command in bench.processes().values())


@contextlib.contextmanager
def in_a_thread(*work: Callable[[], object]) -> Iterator[None]:
    """Run these one after another in the meantime."""
    thread = threading.Thread(target=lambda: [one() for one in work])
    thread.start()
    try:
        yield
    finally:
        thread.join()


# --- what is said -----------------------------------------------------------------------------------------------------


def test_words_arrive_while_the_model_speaks_and_are_the_result(
    live: LiveCli, bench: Bench, session: AgentSession
) -> None:
    hold = Hold()
    bench.server.script([Turn(thinking=["Hm", "."], text=["One ", hold, "two ", UNICODE])])
    heard: list[str] = []
    with session.start("go") as run:
        for event in run:
            if isinstance(event, AgentTextEvent):
                heard.append(event.text)
                hold.release.set()  # So the first words arrived before the others were said.
    assert run.result is not None
    assert run.result.ok
    assert heard[0] == "One "
    assert "".join(heard) == run.result.text == f"One two {UNICODE}"


def test_usage_and_cost_are_those_of_the_turn(live: LiveCli, bench: Bench, session: AgentSession) -> None:
    call = live.shell("true", "call_1")
    bench.server.script(
        [
            Turn(text="One.", usage=Usage(1000, 200)),
            Turn(tool_calls=[call], usage=Usage(30, 4)),
            Turn(text="Two.", usage=Usage(50, 6)),
            Turn(text="Three.", usage=Usage(70, 8)),
        ]
    )
    results = [session.run(words) for words in ("one", "two", "three")]
    assert [(result.usage.input_tokens, result.usage.output_tokens) for result in results if result.usage] == [
        (1000, 200),
        (80, 10),
        (70, 8),
    ]
    if live.tells_cost:
        costs = [result.total_cost_usd for result in results]
        assert None not in costs
        assert costs[0] > costs[1] > 0  # type: ignore[operator]


def test_a_turn_without_words_leaves_the_session_usable(live: LiveCli, bench: Bench) -> None:
    bench.server.script([], then=Turn())
    with live.runtime().open_session(**there(bench, live.few_retries)) as session:
        empty = session.run("say nothing", check=False)
        assert (empty.text, empty.aborted) == ("", False)
        bench.server.script([], then=Turn(thinking="Only a thought."))
        events, thought = finished(session.execute("think"))
        assert (thought.text, thought.aborted) == ("", False)
        bench.server.script([Turn(text="Words.")])
        assert session.run("speak").text == "Words."


def test_several_calls_in_one_message_are_each_told_once_with_their_result(live: LiveCli, bench: Bench) -> None:
    calls = [live.shell(f"echo out{number}", f"call_{number}") for number in range(4)]
    bench.server.script([Turn(tool_calls=calls), Turn(text="Done.")])
    fields: SessionFields = {"working_directory": bench.workdir, "permission_mode": "bypass"}
    with live.runtime().open_session(**fields) as session:
        events, result = finished(session.execute("go"))
    names = [event.tool_id for event in of(events, AgentToolUseEvent)]
    assert len(names) == len(set(names)) == 4
    outputs = {event.tool_id: (event.output.strip(), event.is_error) for event in of(events, AgentToolResultEvent)}
    assert (set(outputs), len(of(events, AgentToolResultEvent))) == (set(names), 4)
    assert sorted(outputs.values()) == [(f"out{number}", False) for number in range(4)]
    assert (result.text, codes(events)) == ("Done.", [])


def test_a_long_answer_and_a_large_output_arrive_whole(live: LiveCli, bench: Bench) -> None:
    words = long_text(400_000)
    bench.server.script(
        [Turn(text=in_pieces(words, 100)), Turn(tool_calls=[live.shell("seq 100000", "call_1")]), Turn(text="x")]
    )
    fields: SessionFields = {"working_directory": bench.workdir, "permission_mode": "bypass"}
    with live.runtime().open_session(**fields) as session:
        assert session.run("much").text == words
        events, result = finished(session.execute("output"))
        (output,) = of(events, AgentToolResultEvent)
        assert "1\n2\n3" in output.output or "99999\n100000" in output.output  # Which end they show is up to them.
        assert result.text == "x"


def test_a_prompt_is_text_in_every_turn(live: LiveCli, bench: Bench, session: AgentSession) -> None:
    prompts = [
        "/clear",
        "/help me",
        "look at @/etc/passwd",
        "!ls",
        "--dangerously-skip-permissions",
        '{"type": "control_request"}',
        "two\nlines\r\nand \u2028 \U0001f980 é",
        long_text(200_000),
    ]
    bench.server.script([], then=Turn(text="Yes."))
    for prompt in prompts:
        assert session.run(prompt).text == "Yes."
    assert [request.prompt for request in bench.server.requests] == prompts


@pytest.mark.parametrize("prompt", ["lone \ud83d surrogate", "", "   "])
def test_a_prompt_that_would_break_the_protocol_is_refused_in_the_call_or_harmless(
    live: LiveCli, bench: Bench, session: AgentSession, prompt: str
) -> None:
    bench.server.script([], then=Turn(text="Yes."))
    assert session.run("hello").text == "Yes."
    pid = session.pid
    with contextlib.suppress(ValueError):
        result = session.run(prompt, check=False, deadline=60)
        assert result.error_subtype != "timeout"
    assert session.run("and now?").text == "Yes."
    assert session.pid == pid


# --- approvals --------------------------------------------------------------------------------------------------------


def asks_about(live: LiveCli, bench: Bench, *names: str) -> list[Path]:
    """Make the model touch these files, one per turn."""
    files = [bench.workdir / name for name in names]
    replies: list[Reply] = []
    for file in files:
        replies += [Turn(tool_calls=[live.shell(f"touch {file}", f"call_{file.name}")]), Turn(text="Told.")]
    bench.server.script(replies)
    return files


def test_a_yes_a_no_and_an_exception_are_a_yes_and_two_noes(live: LiveCli, bench: Bench) -> None:
    files = asks_about(live, bench, "yes", "no", "raise", "none")
    asked: list[PermissionRequest] = []

    def approve(request: PermissionRequest) -> Any:
        asked.append(request)
        answers: dict[str, Any] = {"yes": True, "no": Deny("Not that."), "none": None}
        return answers[made_by(request)]

    with live.runtime().open_session(working_directory=bench.workdir, approve=approve) as session:
        results = []
        for name in ("yes", "no", "raise", "none"):
            events, result = finished(session.execute(name))
            (told,) = of(events, AgentPermissionEvent)
            assert told.request == asked[-1]
            assert [event.is_error for event in of(events, AgentToolResultEvent)] == [name != "yes"]
            results.append(result)
    assert [file.exists() for file in files] == [True, False, False, False]
    assert [result.text for result in results] == ["Told."] * 4
    refused = [[denial.tool_id for denial in result.permission_denials] for result in results]
    assert refused == [[], *([request.tool_id] for request in asked[1:])]
    assert results[1].permission_denials[0].reason == "Not that."
    assert {request.session_id for request in asked} == {session.session_id}
    assert (b"Not that." in bench.server.requests[3].raw) is live.takes_reasons  # The model learns why.


def test_a_remembered_yes_is_for_this_command_and_this_session(live: LiveCli, bench: Bench) -> None:
    asked: list[str] = []

    def approve(request: PermissionRequest) -> Allow:
        asked.append(made_by(request))
        return Allow(remember=True)

    runtime = live.runtime()
    for _ in range(2):
        calls = [
            live.shell(command, f"call_{number}") for number, command in enumerate(("touch a", "touch a", "touch b"))
        ]
        bench.server.script([*(Turn(tool_calls=[call]) for call in calls), Turn(text="Done.")])
        with runtime.open_session(working_directory=bench.workdir, approve=approve) as session:
            assert session.run("go").text == "Done."
    assert asked == ["a", "b"] * 2


def test_changed_arguments_are_used_or_the_call_is_refused_and_told(live: LiveCli, bench: Bench) -> None:
    (file,) = asks_about(live, bench, "asked")
    other = bench.workdir / "other"

    def approve(request: PermissionRequest) -> Allow:
        key = "command" if "command" in request.input else "cmd"
        return Allow({**request.input, key: f"touch {other}"})

    with live.runtime().open_session(working_directory=bench.workdir, approve=approve) as session:
        events, result = finished(session.execute("go"))
    assert (result.text, file.exists(), other.exists()) == ("Told.", False, live.changes_input)
    assert codes(events) == ([] if live.changes_input else ["CLI_WARNING"])
    assert bool(result.permission_denials) is not live.changes_input


def test_an_approval_may_take_longer_than_the_silence_that_ends_a_turn(live: LiveCli, bench: Bench) -> None:
    (file,) = asks_about(live, bench, "late")

    def approve(request: PermissionRequest) -> bool:
        time.sleep(16.0)  # This is about the clock that would run out in the meantime.
        return True

    with live.runtime(timeout=15.0).open_session(working_directory=bench.workdir, approve=approve) as session:
        session.warm()
        assert session.run("go").text == "Told."
    assert file.exists()


def test_a_deadline_that_passes_during_an_approval_is_a_no(live: LiveCli, bench: Bench) -> None:
    (file,) = asks_about(live, bench, "late")

    def approve(request: PermissionRequest) -> bool:
        assert wait_until(lambda: run.is_ending)
        return True

    with live.runtime().open_session(working_directory=bench.workdir, approve=approve) as session:
        session.warm()
        run = session.start("go", deadline=4)
        events, result = finished(run)
        assert (codes(events), result.error_subtype) == (["DEADLINE_EXCEEDED"], "timeout")
        bench.server.script([Turn(text="Still here.")])
        assert session.run("and now?").text == "Still here."
    assert not file.exists()


def test_several_calls_that_are_asked_about_are_each_decided(live: LiveCli, bench: Bench) -> None:
    calls = [live.shell(f"touch {name}", f"call_{name}") for name in ("a", "b", "c")]
    bench.server.script([Turn(tool_calls=calls), Turn(text="Done.")])

    def approve(request: PermissionRequest) -> bool:
        return made_by(request) != "b"

    with live.runtime().open_session(working_directory=bench.workdir, approve=approve) as session:
        events, result = finished(session.execute("go"))
    assert [(bench.workdir / name).exists() for name in ("a", "b", "c")] == [True, False, True]
    requests = {made_by(event.request): event.request for event in of(events, AgentPermissionEvent)}
    assert sorted(requests) == ["a", "b", "c"]
    assert [denial.tool_id for denial in result.permission_denials] == [requests["b"].tool_id]
    assert result.text == "Done."


def test_a_sub_agents_call_is_asked_about_too(live: LiveCli, bench: Bench) -> None:
    inner = Turn(tool_calls=[live.shell("touch inner", "call_inner")])
    outer = live.delegating(bench, inner)
    bench.server.respond(
        lambda request: Turn(text="inner answer") if _is_answered(request, "call_inner") else outer(request)
    )
    asked: list[PermissionRequest] = []

    def approve(request: PermissionRequest) -> bool:
        asked.append(request)
        return True

    with live.runtime().open_session(working_directory=bench.workdir, approve=approve) as session:
        result = session.run("delegate", deadline=90)
    assert (bench.workdir / "inner").exists() is live.asks_for_agents
    if not live.asks_for_agents:
        assert (asked, len(result.permission_denials), result.text) == ([], 1, "outer answer")
        return
    assert "call_inner" in [request.tool_id for request in asked]
    assert result.text == "outer answer"


def _is_answered(request: Any, call_id: str) -> bool:
    return any(result.id == call_id for result in request.tool_results)


# --- permission modes -------------------------------------------------------------------------------------------------


def test_modes_are_kept_and_changed_between_turns(live: LiveCli, bench: Bench) -> None:
    files = [bench.workdir / str(number) for number in range(3)]
    replies: list[Reply] = []
    for file in files:
        replies += [Turn(tool_calls=[live.cli.write_file_call(file, "x", f"call_{file.name}")]), Turn(text="Done.")]
    bench.server.script(replies)
    fields: SessionFields = {"working_directory": bench.workdir, "permission_mode": "read-only"}
    with live.runtime().open_session(**fields) as session:
        session.run("words 0")
        session.set_permission_mode("accept-edits")
        session.run("words 1")
        session.set_permission_mode("bypass")
        events, result = finished(session.execute("words 2"))
    assert [file.exists() for file in files] == [False, True, True]
    assert (result.permission_denials, codes(events)) == ((), [])
    assert [bench.server.requests[-1].occurrences(f"words {number}") for number in range(3)] == [1, 1, 1]


def test_another_model_is_asked_from_the_next_turn_on(live: LiveCli, bench: Bench) -> None:
    bench.server.script([], then=Turn(text="Yes."))
    with live.runtime().open_session(**there(bench, live.other_fields)) as session:
        session.run("first")
        pid = session.pid
        session.set_model(live.other_model)
        events, _ = finished(session.execute("second"))
        assert (codes(events), session.pid) == ([], pid)
        assert live.other_model.rpartition("/")[2] in bench.server.requests[-1].model
        session.set_model(None)
        session.run("third")
    assert bench.server.requests[-1].model == bench.server.requests[0].model


# --- the end of a turn ------------------------------------------------------------------------------------------------


def test_an_abort_ends_text_tools_hangs_and_approvals_at_once_and_keeps_process_and_session(
    live: LiveCli, bench: Bench
) -> None:
    hold, started = Hold(), bench.workdir / "started"
    bench.server.script(
        [
            Turn(text=["Half", hold, " an answer"]),
            Turn(tool_calls=[live.shell(f"touch {started}; sleep 1000", "call_sleep")]),
            Hang(),
            Hang(after_headers=True),
            Turn(tool_calls=[live.shell("touch never", "call_never")]),
            Turn(text="Still here."),
        ]
    )

    def approve(request: PermissionRequest) -> bool:
        if made_by(request) == "never":
            run.abort()
        return True

    happened: dict[str, Callable[[], object]] = {
        "text": lambda: hold.reached.wait(30),
        "tool": lambda: wait_until(started.exists),
        "hang": lambda: bench.server.wait_for_requests(3),
        "stream": lambda: bench.server.wait_for_requests(4),
        "approval": lambda: None,
    }
    with live.runtime().open_session(working_directory=bench.workdir, approve=approve) as session:
        session.warm()
        pid = session.pid
        for prompt, happens in happened.items():
            run = session.start(prompt)

            def abort(run: AgentRun = run, happens: Callable[[], object] = happens) -> None:
                if happens():
                    run.abort()
                    run.abort()

            with in_a_thread(abort):
                events, result = finished(run)
            assert (result.aborted, result.error_subtype, codes(events)) == (True, "aborted", ["ABORTED"])
            assert session.pid == pid, prompt
        assert session.run("and now?").text == "Still here."
        assert session.pid == pid
        assert wait_until(lambda: not sleeping(bench, 1000))
    assert not (bench.workdir / "never").exists()


def test_an_abort_ends_what_has_left_the_shell_and_keeps_the_process(live: LiveCli, bench: Bench) -> None:
    started = bench.workdir / "started"
    quiet = "</dev/null >/dev/null 2>&1"
    command = f"(setsid sleep 1001 {quiet} &); setsid sleep 1002 {quiet} & touch {started}; sleep 1000"
    bench.server.script([Turn(text="One."), Turn(tool_calls=[live.shell(command, "call_1")]), Turn(text="Three.")])
    with live.runtime().open_session(working_directory=bench.workdir, permission_mode="bypass") as session:
        session.run("first words")
        pid = session.pid
        run = session.start("second words")
        with in_a_thread(lambda: wait_until(started.exists), run.abort):
            assert done(run).aborted
        assert wait_until(lambda: not any(sleeping(bench, seconds) for seconds in (1000, 1001, 1002)))
        assert session.run("third words").text == "Three."
        assert session.pid == pid


def test_an_abort_ends_sub_agents_and_their_shells(live: LiveCli, bench: Bench) -> None:
    started = bench.workdir / "started"
    inner = Turn(tool_calls=[live.shell(f"touch {started}; sleep 1000", "call_inner")])
    bench.server.respond(live.delegating(bench, inner))
    with live.runtime().open_session(working_directory=bench.workdir, permission_mode="bypass") as session:
        run = session.start("delegate")

        with in_a_thread(lambda: wait_until(started.exists), run.abort):
            assert done(run).aborted
        requests = len(bench.server.requests)
        assert wait_until(lambda: not sleeping(bench, 1000))
        assert session.run("and now?").text == "outer answer"
        assert [request.prompt for request in bench.server.requests[requests:]] == ["and now?"]


@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
def test_an_abort_right_after_the_start_ends_the_turn(live: LiveCli, bench: Bench, is_warm: bool) -> None:
    bench.server.script([], then=Turn(text="Yes."))
    with live.runtime().open_session(working_directory=bench.workdir) as session:
        if is_warm:
            session.run("first words")
        for delay in (0.0, 0.0, 0.01, 0.05, 0.2):
            run = session.start("in vain?")
            timer = threading.Timer(delay, run.abort)
            timer.start()
            events, result = finished(run)
            timer.join()
            assert (result.aborted, result.ok) in ((True, False), (False, True))
            assert codes(events) == (["ABORTED"] if result.aborted else [])
        run = session.start("never begun")
        run.abort()
        assert done(run).aborted
        assert session.run("and now?").text == "Yes."


def test_an_abort_signal_ends_the_turn_and_not_the_process(live: LiveCli, bench: Bench, session: AgentSession) -> None:
    bench.server.script([Turn(text="One."), Hang(after_headers=True), Turn(text="Three.")])
    session.run("first words")
    pid, stop = session.pid, threading.Event()
    with in_a_thread(lambda: bench.server.wait_for_requests(2), stop.set):
        assert done(session.execute("second words", abort_signal=stop)).aborted
    assert session.run("third words").text == "Three."
    assert session.pid == pid


def test_a_consumer_who_is_late_to_hear_of_the_abort_does_not_cost_the_process(
    live: LiveCli, bench: Bench, session: AgentSession
) -> None:
    bench.server.script([Turn(text=["Half", Hold(), "."]), Turn(text="Whole.")])
    with session.start("first words") as run:
        for event in run:
            if event.type == "text":
                pid = session.pid
                run.abort()
                time.sleep(INTERRUPT_PATIENCE + 1.0)
    assert session.pid == pid
    assert session.run("second words").text == "Whole."
    assert session.pid == pid


def test_a_turn_that_its_consumer_leaves_is_ended_and_the_next_one_begins_at_once(
    live: LiveCli, bench: Bench, session: AgentSession
) -> None:
    bench.server.script([Turn(text=["Half", Hold(), "."]), Turn(text="Whole.")])
    for event in session.execute("first words"):
        if event.type == "text":
            break
    pid = session.pid
    assert session.run("second words").text == "Whole."
    assert session.pid == pid


def test_closing_the_session_ends_the_turn_in_another_thread(live: LiveCli, bench: Bench) -> None:
    hold = Hold()
    bench.server.script([Turn(text=["Half", hold, "."]), Turn(text="Once more.")])
    session = live.runtime().open_session(working_directory=bench.workdir)
    with in_a_thread(lambda: hold.reached.wait(60), session.close):
        events, result = finished(session.execute("first words"))
    assert (result.aborted, codes(events)) == (True, ["ABORTED"])
    assert bench.processes() == {}
    with pytest.raises(RuntimeError, match="closed"):
        session.run("second words")


def test_a_second_turn_meanwhile_is_refused_in_the_call(live: LiveCli, bench: Bench, session: AgentSession) -> None:
    hold = Hold()
    bench.server.script([Turn(text=["One", hold, "."]), Turn(text="Two.")])
    results: list[AgentRunResult] = []
    with in_a_thread(lambda: results.append(session.run("first words"))):
        assert hold.reached.wait(60)
        with pytest.raises(SessionBusyError):
            session.start("second words")
        with pytest.raises(SessionBusyError):
            session.warm()
        hold.release.set()
    assert results[0].text == "One."
    with ThreadPoolExecutor(1) as pool:  # Any thread may run the next turn.
        assert pool.submit(session.run, "third words").result().text == "Two."


# --- words in between -------------------------------------------------------------------------------------------------


def test_words_that_come_in_a_tool_call_or_in_text_are_answered_in_the_same_run(live: LiveCli, bench: Bench) -> None:
    hold, gate = Hold(), bench.workdir / "gate"
    wait = live.shell(f"while [ ! -e {gate} ]; do sleep 0.05; done", "call_wait")
    replies: list[Reply] = [
        Turn(tool_calls=[wait]),
        Turn(text="Two."),
        Turn(text=["Three", hold, "."]),
        Turn(text="Four."),
    ]
    bench.server.script([*replies, Turn(text="Five.")])
    with live.runtime().open_session(working_directory=bench.workdir, permission_mode="bypass") as session:
        with session.start("first words") as run:
            for event in run:
                if event.type == "tool_use":
                    run.steer("more words", interrupt=not live.takes_words)
                    gate.touch()
        assert run.result is not None
        assert (run.result.ok, run.result.text) == (True, "Two.")
        assert b"more words" in bench.server.requests[1].raw
        with session.start("second words") as run:
            for event in run:
                if event.type == "text" and event.text == "Three":
                    run.steer("even more words", interrupt=not live.takes_words)
                    hold.release.set()
        assert run.result is not None
        assert run.result.ok
        assert run.result.text.endswith("Four.")
        assert b"even more words" in bench.server.requests[3].raw
        assert session.run("third words").text == "Five."


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kinds"),
    [
        (400, {"unknown", "config"}),
        (401, {"auth"}),
        (403, {"auth", "permission"}),
        (404, {"config", "unknown"}),
        (429, {"rate_limit"}),
        (500, {"overloaded"}),
        (529, {"overloaded"}),
    ],
)
def test_an_api_error_fails_its_turn_with_its_cause_and_the_next_turn_works(
    live: LiveCli, bench: Bench, status: int, kinds: set[str]
) -> None:
    bench.server.script([], then=live.failing(status))
    with live.runtime().open_session(**there(bench, live.few_retries)) as session:
        events, result = finished(session.execute("first words"))
        assert (result.ok, result.aborted, result.text) == (False, False, "")
        assert result.error_subtype in (kinds if status not in live.vague else {"overloaded"})
        assert [code for code in codes(events) if code != "CLI_WARNING"] != []
        pid = session.pid
        bench.server.script([Turn(text="Better.")])
        assert session.run("second words").text == "Better."
        assert session.pid == pid is not None


@pytest.mark.parametrize(
    "broken",
    [
        Turn(text=["Half an ", Cut()]),
        Turn(text=["Half an ", Cut(clean=True)]),
        Drop(),
        Turn(text=["Half an ", StreamError()]),
    ],
    ids=["dropped", "cut", "no_answer", "error_in_stream"],
)
def test_a_stream_that_breaks_is_asked_for_again(live: LiveCli, bench: Bench, broken: Reply) -> None:
    """Each CLI does that by itself; text that was taken back is marked."""
    bench.server.script([broken], then=Turn(text="Half an answer."))
    with live.runtime().open_session(**there(bench, live.few_retries)) as session:
        events, result = finished(session.execute("first words"))
        if result.ok:
            assert result.text.endswith("Half an answer.") or result.text == "Half an answer."
            if result.text != "Half an answer." and live.marks_retries:
                assert "CLI_WARNING" in codes(events)
        else:
            assert result.error_subtype in ("overloaded", "network", "incomplete")
        pid = session.pid
        bench.server.script([Turn(text="Whole.")])
        assert session.run("second words").text == "Whole."
        assert session.pid == pid is not None


def test_a_model_that_speaks_slowly_is_not_silent(live: LiveCli, bench: Bench) -> None:
    words = [piece for number in range(8) for piece in (f"{number} ", Delay(2.0))]
    bench.server.script([Turn(text="Warm."), Turn(text=words)])
    with live.runtime(timeout=12.0).open_session(working_directory=bench.workdir) as session:
        session.warm()
        session.run("first words")
        assert session.run("slowly").text == "0 1 2 3 4 5 6 7 "


@pytest.mark.parametrize("after_headers", [False, True], ids=["silent", "open_stream"])
def test_a_model_that_hangs_is_noticed_and_the_conversation_goes_on(
    live: LiveCli, bench: Bench, after_headers: bool
) -> None:
    bench.server.script([Turn(text="One."), Hang(after_headers=after_headers)], then=Turn(text="Three."))
    with live.runtime(timeout=12.0).open_session(working_directory=bench.workdir) as session:
        session.warm()
        session.run("first words")
        events, result = finished(session.execute("second words"))
        assert (codes(events), result.error_subtype) == (["WATCHDOG_TIMEOUT"], "timeout")
        assert session.run("third words").text == "Three."
        assert bench.server.requests[-1].occurrences("first words") == 1


def test_a_refused_connection_fails_the_turn(live: LiveCli, bench: Bench) -> None:
    bench.point_at(refused_url())
    live.prepare(bench)  # Its settings have changed.
    runtime = live.runtime(timeout=100.0, **live.gives_up)
    with runtime.open_session(**there(bench, live.few_retries)) as session:
        result = done(session.execute("first words"))
        assert (result.error_subtype, result.aborted) == ("network", False)


def test_an_unknown_session_fails_every_turn_and_its_id_is_kept(live: LiveCli, bench: Bench) -> None:
    fields: SessionFields = {"working_directory": bench.workdir, "session_id": live.unknown_session}
    with live.runtime().open_session(**fields) as session:
        for _ in range(2):
            with pytest.raises(AgentRunError) as caught:
                session.run("hello?")
            assert caught.value.result.error_subtype == "session_not_found"
        assert session.session_id == live.unknown_session


def test_a_process_that_is_killed_is_replaced_and_only_a_running_turn_fails(live: LiveCli, bench: Bench) -> None:
    started = bench.workdir / "started"
    bench.server.script(
        [
            Turn(text="One."),
            Turn(text="Two."),
            Turn(tool_calls=[live.shell(f"touch {started}; sleep 1000", "call_1")]),
        ]
    )
    with live.runtime().open_session(working_directory=bench.workdir, permission_mode="bypass") as session:
        session.run("first words")
        kill(session.pid)
        assert session.run("second words").text == "Two."
        with in_a_thread(lambda: wait_until(started.exists), lambda: kill(session.pid)):
            result = done(session.execute("third words"))
        assert (result.error_subtype, result.aborted) == ("crash", False)
        assert wait_until(lambda: not sleeping(bench, 1000))
        bench.server.script([Turn(text="Four.")])
        assert session.run("fourth words").text == "Four."
        assert bench.server.requests[-1].occurrences("first words") == 1


def test_a_turn_whose_model_was_silent_when_the_process_died_fails_and_is_not_asked_again(
    live: LiveCli, bench: Bench, session: AgentSession
) -> None:
    bench.server.script([Turn(text="One."), Hang(), Turn(text="Three.")])
    session.run("first words")
    with in_a_thread(lambda: bench.server.wait_for_requests(2), lambda: kill(session.pid)):
        result = done(session.execute("second words"))
    assert (result.error_subtype, result.aborted) == ("crash", False)
    assert session.run("third words").text == "Three."
    assert [request.prompt for request in bench.server.requests] == ["first words", "second words", "third words"]


HOST = """
import sys
from remoteclaw_sync import create_cli_runtime
session = create_cli_runtime(sys.argv[1]).open_session(permission_mode="bypass")
for words in sys.argv[2:]:
    print(session.run(words).text, flush=True)
"""


@pytest.mark.parametrize("in_a_turn", [False, True], ids=["idle", "in_a_tool"])
def test_a_killed_host_takes_process_and_tools_with_it(live: LiveCli, bench: Bench, in_a_turn: bool) -> None:
    started = bench.workdir / "started"
    bench.server.script([Turn(text="One."), Turn(tool_calls=[live.shell(f"touch {started}; sleep 1000", "call_1")])])
    prompts = ("first", "second") if in_a_turn else ("first",)
    code = HOST if in_a_turn else HOST + "\nimport time\ntime.sleep(1000)\n"
    with start_host(code, live.name, *prompts, cwd=bench.workdir) as host:
        try:
            assert host.stdout is not None
            assert host.stdout.readline() == "One.\n"
            if in_a_turn:
                assert wait_until(started.exists)
        finally:
            host.kill()
    assert wait_until(lambda: bench.processes() == {})


def test_a_host_that_exits_without_closing_leaves_nothing(live: LiveCli, bench: Bench) -> None:
    bench.server.script([], then=Turn(text="Yes."))
    with start_host(HOST, live.name, "first", "second", cwd=bench.workdir) as host:
        out, err = host.communicate(timeout=60)
    assert (host.returncode, out, err) == (0, "Yes.\nYes.\n", "")
    assert bench.processes() == {}


def test_a_session_that_is_dropped_lets_its_process_go(live: LiveCli, bench: Bench) -> None:
    bench.server.script([], then=Turn(text="Yes."))
    session: AgentSession | None = live.runtime().open_session(working_directory=bench.workdir)
    assert session is not None
    session.run("first")
    assert bench.processes() != {}
    session = None
    assert wait_until(lambda: bench.processes() == {})


# --- a conversation and its processes ---------------------------------------------------------------------------------


def test_an_idle_process_is_let_go_and_the_conversation_goes_on(live: LiveCli, bench: Bench) -> None:
    bench.server.script([Turn(text="One."), Turn(text="Two.")])
    with live.runtime().open_session(working_directory=bench.workdir, idle_timeout=0.5) as session:
        session.run("first words")
        assert wait_until(lambda: session.pid is None)
        assert wait_until(lambda: bench.processes() == {})
        assert session.run("second words").text == "Two."
    assert bench.server.requests[1].occurrences("first words") == 1


def test_there_is_one_writer_and_both_modes_take_up_each_others_conversations(live: LiveCli, bench: Bench) -> None:
    bench.server.script([Turn(text=f"{number}.") for number in range(4)])
    runtime = live.runtime()
    first = runtime.run("words 0", working_directory=bench.workdir)
    fields: SessionFields = {"working_directory": bench.workdir, "session_id": first.session_id}
    with runtime.open_session(**fields) as session:
        assert session.run("words 1").text == "1."
        with pytest.raises(SessionBusyError), runtime.open_session(**fields) as other:
            other.warm()
        refused = runtime.run("no", working_directory=bench.workdir, session_id=first.session_id, check=False)
        assert refused.error_subtype == "session_busy"
        assert len(bench.server.requests) == 2
    third = runtime.run("words 2", working_directory=bench.workdir, session_id=first.session_id)
    with runtime.open_session(**fields) as session:
        fourth = session.run("words 3")
    assert (third.text, fourth.text) == ("2.", "3.")
    assert first.session_id == third.session_id == fourth.session_id
    last = bench.server.requests[-1]
    assert [last.occurrences(f"words {number}") for number in range(4)] == [1] * 4


def test_sixteen_sessions_at_once_mix_nothing(live: LiveCli, bench: Bench) -> None:
    bench.server.respond(lambda request: Turn(text=in_pieces(f"re: {request.prompt}", 2)))
    runtime = live.runtime()
    runtime.run("make the database", working_directory=bench.workdir)  # OpenCode's first start needs it to itself.

    def talk(number: int) -> list[str]:
        folder = bench.workdir / str(number)
        folder.mkdir()
        with runtime.open_session(working_directory=folder) as session:
            return [session.run(f"{number}.{turn}").text for turn in range(2)]

    with ThreadPoolExecutor(SESSIONS_AT_ONCE) as pool:
        said = list(pool.map(talk, range(SESSIONS_AT_ONCE)))
    assert said == [[f"re: {number}.{turn}" for turn in range(2)] for number in range(SESSIONS_AT_ONCE)]


# --- tools ------------------------------------------------------------------------------------------------------------


def test_python_functions_and_mcp_servers_are_tools_in_every_turn_and_gone_afterwards(
    live: LiveCli, bench: Bench
) -> None:
    def add(one: int, two: int) -> int:
        """The sum of two numbers."""
        return one + two

    command, *arguments = bench.mcp_command()
    servers = {"lab": McpServerConfig(command=command, args=arguments, env={"LAB_TOKEN": "top-secret-value"})}
    replies: list[Reply] = []
    for number in range(2):
        call = live.cli.mcp_call(TOOLS_SERVER, "add", {"one": 2, "two": number}, f"call_add{number}")
        echo = live.cli.mcp_call("lab", "echo", {"text": "hé"}, f"call_echo{number}")
        replies += [Turn(tool_calls=[call]), Turn(tool_calls=[echo]), Turn(text="Done.")]
    bench.server.script(replies)
    fields: SessionFields = {"working_directory": bench.workdir, "mcp_servers": servers, "tools": [add]}
    with live.runtime().open_session(**fields) as session:
        for number in range(2):
            events, result = finished(session.execute(f"turn {number}"))
            outputs = [(event.output, event.is_error) for event in of(events, AgentToolResultEvent)]
            (added, add_failed), (echoed, echo_failed) = outputs
            assert (added, "hé" in echoed, add_failed, echo_failed) == (str(2 + number), True, False, False)
            assert result.text == "Done."
        assert not [command for command in bench.processes().values() if "top-secret-value" in command]
    assert bench.processes() == {}


def test_a_recorded_session_is_played_again(live: LiveCli, bench: Bench, tmp_path: Path) -> None:
    """With a yes, a no and a process that was killed. A replay knows nothing of folder and servers."""
    asks_about(live, bench, "yes", "no")

    def taped(session: AgentSession, prompt: str) -> list[AgentEvent]:
        events, result = finished(session.execute(prompt))
        return [*events, AgentDoneEvent(attrs.evolve(result, duration_ms=0, stderr=""))]

    command, *arguments = bench.mcp_command()
    recording = Recording(tmp_path / "session.jsonl", redact=False)
    with live.runtime(record=recording).open_session(
        working_directory=bench.workdir,
        mcp_servers={"lab": McpServerConfig(command, tuple(arguments))},
        approve=lambda request: made_by(request) == "yes" or Deny("Not that."),
    ) as session:
        before = [taped(session, prompt) for prompt in ("yes", "no")]
        kill(session.pid)
        bench.server.script([Turn(text=["Af", "ter."])])
        before.append(taped(session, "after"))
    assert [events[-1].result.text for events in before] == ["Told.", "Told.", "After."]  # type: ignore[union-attr]
    with ReplayRuntime(tmp_path / "session.jsonl").open_session() as session:
        assert [taped(session, prompt) for prompt in ("yes", "no", "after")] == before


def test_a_single_run_over_a_live_connection_is_like_any_run(live: LiveCli, bench: Bench) -> None:
    call = live.shell("echo out", "call_1")
    bench.server.script([Turn(thinking="Hm.", text="One ", tool_calls=[call]), Turn(text=["t", "wo."])])
    run = live.runtime(transport="live").start("go", working_directory=bench.workdir, permission_mode="bypass")
    with run:
        events, result = finished(run)
    kinds = [event.type for event in events]
    assert kinds == ["thinking", "text", "tool_use", "tool_result", "text", "text"]
    assert (result.ok, result.text.replace("\n", ""), codes(events)) == (True, "One two.", [])
    assert of(events, AgentThinkingEvent)[0].text == "Hm."
    assert bench.processes() == {}
