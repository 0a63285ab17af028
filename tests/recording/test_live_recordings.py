"""Recordings of live sessions: both directions, what they leave out, and that a replay checks what it is sent."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from remoteclaw_sync import (
    AgentDoneEvent,
    AgentEvent,
    AgentSession,
    Allow,
    ClaudeCliRuntime,
    CodexCliRuntime,
    Deny,
    PermissionRequest,
    Recording,
    ReplayRuntime,
    UnsupportedOperationError,
)
from remoteclaw_sync.recording.matching import Names, difference, kind_of
from remoteclaw_sync.runtime import CLIRuntimeBase
from tests.engine import live
from tests.engine.live import steps
from tests.fakes import codes, finished

FAKE_CODEX = Path(__file__).parents[1] / "live_codex.py"
COMMAND_REQUEST = "item/commandExecution/requestApproval"
ASK_CLAUDE = steps(["ask", "t1", "Bash", {"command": "ls"}], ["text", "so be it"])
ASK_CODEX = steps(["ask", 7, COMMAND_REQUEST, {"itemId": "c1", "command": "ls", "cwd": "/"}], ["text", "so be it"])


def claude(folder: Path, **options: Any) -> ClaudeCliRuntime:
    return live.runtime(folder, **options)


def codex(folder: Path, **options: Any) -> CodexCliRuntime:
    return CodexCliRuntime([sys.executable, "-I", "-S", str(FAKE_CODEX), str(folder)], timeout=60.0, **options)


NewRuntime = Callable[..., CLIRuntimeBase]
each_cli = pytest.mark.parametrize("new_runtime", [claude, codex])


def same(event: AgentEvent) -> AgentEvent:
    """The event without what differs from run to run."""
    if not isinstance(event, AgentDoneEvent):
        return event
    return AgentDoneEvent(attrs.evolve(event.result, duration_ms=0, exit_code=None))


def played(session: AgentSession, *prompts: str) -> list[list[AgentEvent]]:
    return [list(map(same, session.execute(prompt))) for prompt in prompts]


def recorded(runtime: CLIRuntimeBase, folder: Path, *prompts: str, **fields: Any) -> list[list[AgentEvent]]:
    with runtime.open_session(working_directory=folder, **fields) as session:
        return played(session, *prompts)


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def message_of(events: list[AgentEvent]) -> str:
    return next(str(event.to_dict()["message"]) for event in events if event.type == "error")


def asks_by_itself(new_runtime: NewRuntime, folder: Path) -> str:
    """A prompt that does not mention the question it leads to, so that none of the question is masked in a
    recording."""
    (folder / "a zebra.steps").write_text(ASK_CLAUDE if new_runtime is claude else ASK_CODEX)
    return "a zebra"


# --- a replay is the session again ------------------------------------------------------------------------------


@each_cli
def test_a_session_of_many_turns_is_played_again(new_runtime: NewRuntime, tmp_path: Path) -> None:
    prompts = ["first prompt of all", steps(["text", "second"]), "third one, and then no more"]
    recording = Recording(tmp_path / "run.jsonl", redact=False)
    first = recorded(new_runtime(tmp_path, record=recording), tmp_path, *prompts)
    with ReplayRuntime(tmp_path / "run.jsonl").open_session(working_directory=tmp_path) as session:
        assert played(session, *prompts) == first
        assert session.session_id


@each_cli
def test_without_its_prompts_a_recording_is_still_the_session(new_runtime: NewRuntime, tmp_path: Path) -> None:
    prompts = [steps(["text", "one"]), steps(["text", "two"])]
    first = recorded(new_runtime(tmp_path, record=tmp_path / "run.jsonl"), tmp_path, *prompts)
    with ReplayRuntime(tmp_path / "run.jsonl").open_session() as session:
        assert played(session, *prompts) == first


@each_cli
def test_a_session_that_went_on_with_another_process_is_played_with_both(
    new_runtime: NewRuntime, tmp_path: Path
) -> None:
    end = steps(["text", "bye"], ["exit", 3] if new_runtime is claude else ["exit"])
    prompts = ["before it died", end, "after it died"]
    first = recorded(new_runtime(tmp_path, record=Recording(tmp_path / "run.jsonl", redact=False)), tmp_path, *prompts)
    assert codes(first[1]) == ["CLI_EXIT_ERROR"]
    assert sum("start" in entry for entry in entries(tmp_path / "run.jsonl")) == 2
    with ReplayRuntime(tmp_path / "run.jsonl").open_session() as session:
        assert played(session, *prompts) == first


@each_cli
@pytest.mark.parametrize("decision", [True, False, Deny("not today", stop=False)], ids=["yes", "no", "words"])
def test_an_approval_is_played_with_the_recorded_decision(
    new_runtime: NewRuntime, decision: bool | Deny, tmp_path: Path
) -> None:
    ask = ASK_CLAUDE if new_runtime is claude else ASK_CODEX
    recording = Recording(tmp_path / "run.jsonl", redact=False)
    first = recorded(new_runtime(tmp_path, record=recording), tmp_path, ask, approve=lambda request: decision)
    assert any(event.type == "permission" for event in first[0])
    with ReplayRuntime(tmp_path / "run.jsonl").open_session() as session:
        assert played(session, ask) == first
    asked: list[PermissionRequest] = []

    def approve(request: PermissionRequest) -> bool | Deny:
        asked.append(request)
        return decision

    with ReplayRuntime(tmp_path / "run.jsonl").open_session(approve=approve) as session:
        assert played(session, ask) == first
    assert len(asked) == 1


@each_cli
@pytest.mark.parametrize("decision", [False, Deny("not today")], ids=["no", "words"])
def test_a_refusal_is_played_without_the_words_of_the_caller(
    new_runtime: NewRuntime, decision: bool | Deny, tmp_path: Path
) -> None:
    """A CLI that has no field for a reason is told the reason in another way, but only if there was one."""
    ask = asks_by_itself(new_runtime, tmp_path)
    runtime = new_runtime(tmp_path, record=tmp_path / "run.jsonl")
    (first,) = recorded(runtime, tmp_path, ask, approve=lambda request: decision)
    with ReplayRuntime(tmp_path / "run.jsonl").open_session() as session:
        (again,) = played(session, ask)
    assert [event.type for event in again] == [event.type for event in first]
    assert codes(again) == codes(first) == []


@each_cli
def test_the_decisions_of_two_processes_are_not_taken_for_each_other(new_runtime: NewRuntime, tmp_path: Path) -> None:
    """Codex numbers its requests from 0 again in each process."""
    ask = asks_by_itself(new_runtime, tmp_path)
    end = steps(["text", "bye"], ["exit", 3] if new_runtime is claude else ["exit"])
    decisions = [True, False]
    runtime = new_runtime(tmp_path, record=tmp_path / "run.jsonl")
    first = recorded(runtime, tmp_path, ask, end, ask, approve=lambda request: decisions.pop(0))
    assert [len(events[-1].result.permission_denials) for events in first] == [0, 0, 1]  # type: ignore[union-attr]
    with ReplayRuntime(tmp_path / "run.jsonl").open_session() as session:
        assert played(session, ask, end, ask) == first


@each_cli
def test_another_decision_than_the_recorded_one_fails_the_turn(new_runtime: NewRuntime, tmp_path: Path) -> None:
    ask = ASK_CLAUDE if new_runtime is claude else ASK_CODEX
    recorded(new_runtime(tmp_path, record=tmp_path / "run.jsonl"), tmp_path, ask, approve=lambda request: True)
    with ReplayRuntime(tmp_path / "run.jsonl").open_session(approve=lambda request: False) as session:
        (events,) = played(session, ask)
    assert codes(events) == ["REPLAY_MISMATCH"]
    assert "recorded" in message_of(events)


def test_a_changed_input_is_played_and_another_one_is_noticed(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "run.jsonl")
    changed = Allow(input={"command": "pwd"})
    first = recorded(claude(tmp_path, record=recording), tmp_path, ASK_CLAUDE, approve=lambda request: changed)
    with ReplayRuntime(tmp_path / "run.jsonl").open_session() as session:
        assert played(session, ASK_CLAUDE) == first
    other = Allow(input={"command": "rm -r"})
    with ReplayRuntime(tmp_path / "run.jsonl").open_session(approve=lambda request: other) as session:
        (events,) = played(session, ASK_CLAUDE)
    assert codes(events) == ["REPLAY_MISMATCH"]
    assert "updatedInput.command" in message_of(events)


@each_cli
@pytest.mark.parametrize("by_caller", [True, False], ids=["aborted again", "by itself"])
def test_an_interrupt_is_played_and_the_session_goes_on(
    new_runtime: NewRuntime, by_caller: bool, tmp_path: Path
) -> None:
    prompts = [steps(["text", "a"], ["hang"]), steps(["text", "and on"])]

    def aborted(session: AgentSession, by_us: bool) -> list[AgentEvent]:
        run = session.start(prompts[0])
        events = []
        for event in run:
            events.append(same(event))
            if event.type == "text" and by_us:
                run.abort()
        return [*events, *played(session, prompts[1])[0]]

    with new_runtime(tmp_path, record=tmp_path / "run.jsonl").open_session(working_directory=tmp_path) as session:
        first = aborted(session, True)
    assert codes(first) == ["ABORTED"]
    with ReplayRuntime(tmp_path / "run.jsonl").open_session() as session:
        assert aborted(session, by_caller) == first


@each_cli
def test_further_words_are_played(new_runtime: NewRuntime, tmp_path: Path) -> None:
    prompt = steps(["text", "go"], ["take_in"], ["text", "!"])

    def steered(session: AgentSession) -> list[AgentEvent]:
        run = session.start(prompt)
        events = []
        for event in run:
            events.append(same(event))
            if event.to_dict().get("text") == "go":
                run.steer("further words")
        return events

    recording = Recording(tmp_path / "run.jsonl", redact=False)
    with new_runtime(tmp_path, record=recording).open_session(working_directory=tmp_path) as session:
        first = steered(session)
    assert codes(first) == []
    with ReplayRuntime(tmp_path / "run.jsonl").open_session() as session:
        assert steered(session) == first
    assert [list(map(same, run)) for run in ReplayRuntime(tmp_path / "run.jsonl").turns()] == [first]


@each_cli
def test_a_live_run_is_recorded_and_played(new_runtime: NewRuntime, tmp_path: Path) -> None:
    recording = Recording(tmp_path / "run.jsonl", redact=False)
    runtime = new_runtime(tmp_path, record=recording, transport="live")
    first = list(map(same, runtime.execute("Hello there, agent", working_directory=tmp_path)))
    replay = ReplayRuntime(tmp_path / "run.jsonl")
    assert list(map(same, replay.execute())) == first
    assert list(map(same, replay.execute("Hello there, agent"))) == first
    events, result = finished(replay.execute("Something else"))
    assert codes(events) == ["REPLAY_MISMATCH"]
    assert result.error_subtype == "config"


def test_a_live_run_that_was_aborted_is_so_again(tmp_path: Path) -> None:
    run = claude(tmp_path, record=tmp_path / "run.jsonl", transport="live").start(
        steps(["text", "a"], ["hang"]), working_directory=tmp_path
    )
    first = []
    for event in run:
        first.append(same(event))
        if event.type == "text":
            run.abort()
    assert codes(first) == ["ABORTED"]
    assert list(map(same, ReplayRuntime(tmp_path / "run.jsonl").execute())) == first


def test_a_model_that_was_changed_has_to_be_changed_again(tmp_path: Path) -> None:
    def talk(session: AgentSession, model: str | None) -> list[AgentEvent]:
        events = played(session, "first of all")[0]
        if model is not None:
            session.set_model(model)
        return [*events, *played(session, steps(["text", "x"]))[0]]

    recording = Recording(tmp_path / "run.jsonl", redact=False)
    with claude(tmp_path, record=recording).open_session(working_directory=tmp_path) as session:
        first = talk(session, "other-model")
    replay = ReplayRuntime(tmp_path / "run.jsonl")
    with replay.open_session() as session:
        assert talk(session, "other-model") == first
    for model in ("third-model", None):
        with replay.open_session() as session:
            assert codes(talk(session, model)) == ["REPLAY_MISMATCH"]


# --- what is not as it was --------------------------------------------------------------------------------------


@each_cli
@pytest.mark.parametrize("redact", [True, False])
def test_another_prompt_than_the_recorded_one_fails_the_turn(
    new_runtime: NewRuntime, redact: bool, tmp_path: Path
) -> None:
    recording = Recording(tmp_path / "run.jsonl", redact=redact)
    recorded(new_runtime(tmp_path, record=recording), tmp_path, "The first prompt", "The second prompt")
    with ReplayRuntime(tmp_path / "run.jsonl").open_session() as session:
        first, second, third = played(session, "The first prompt", "Not the second prompt", "The second prompt")
    assert codes(first) == []
    assert codes(second) == codes(third) == ["REPLAY_MISMATCH"]
    assert message_of(second) == "this is not what was recorded: turn 2 has another prompt than in the recording"


def test_a_turn_more_than_recorded_fails(tmp_path: Path) -> None:
    recorded(claude(tmp_path, record=tmp_path / "run.jsonl"), tmp_path, "The only prompt")
    with ReplayRuntime(tmp_path / "run.jsonl").open_session() as session:
        only, more = played(session, "The only prompt", "One more")
    assert codes(only) == []
    assert "no more than 1 turns" in message_of(more)


def test_another_permission_mode_than_recorded_is_noticed_on_the_wire(tmp_path: Path) -> None:
    recorded(codex(tmp_path, record=tmp_path / "run.jsonl"), tmp_path, "The only prompt", permission_mode="bypass")
    replay = ReplayRuntime(tmp_path / "run.jsonl")
    with replay.open_session(permission_mode="bypass") as session:
        assert codes(played(session, "The only prompt")[0]) == []
    with replay.open_session(permission_mode="read-only") as session:
        (events,) = played(session, "The only prompt")
    assert codes(events) == ["REPLAY_MISMATCH"]
    assert "'thread/start' was sent, and params." in message_of(events)


def test_ids_folders_and_versions_may_differ_and_words_may_not() -> None:
    line = {"id": 1, "method": "turn/start", "params": {"cwd": "/a", "version": "1", "file": "/home/a/x", "text": "hi"}}
    line["params"]["thread"] = "0192f1c2-0000-4000-8000-000000000001"  # type: ignore[index]
    other = json.loads(json.dumps(line).replace("/a", "/b").replace('"1"', '"2"').replace("000001", "000002"))
    other["id"] = 9
    names = Names()
    assert difference(line, other, names) is None
    assert names.texts == {"0192f1c2-0000-4000-8000-000000000001": "0192f1c2-0000-4000-8000-000000000002"}
    other["params"]["text"] = "ho"
    assert difference(line, other, names) == "params.text has another value"
    assert difference(line, {**line, "more": 1}, names) == "more is new"
    masked = json.loads(json.dumps(line).replace('"hi"', '"[redacted]"'))
    assert difference(masked, {**other, "params": {**other["params"], "text": "anything"}}, names) is None


def test_the_folder_in_the_path_of_a_request_may_differ_and_the_rest_of_it_may_not() -> None:
    line, other, another = (
        {"id": 1, "method": f"GET /session?directory={folder}&limit={limit}", "params": {}}
        for folder, limit in (("%2Fa%2Fb", 1), ("%2F", 1), ("%2F", 2))
    )
    assert difference(line, other, Names()) is None
    assert kind_of(line) == kind_of(other)
    assert difference(line, another, Names()) == "method has another value"
    assert kind_of(line) != kind_of(another)


def test_runs_and_sessions_are_not_taken_for_each_other(tmp_path: Path) -> None:
    recorded(claude(tmp_path, record=tmp_path / "session.jsonl"), tmp_path, "Hello there")
    claude(tmp_path, record=tmp_path / "run.jsonl", transport="live").run("Hello there", working_directory=tmp_path)
    with pytest.raises(UnsupportedOperationError, match="recording of a session"):
        ReplayRuntime(tmp_path / "session.jsonl").run()
    with pytest.raises(UnsupportedOperationError, match="recording of a run"):
        ReplayRuntime(tmp_path / "run.jsonl").open_session()


# --- the file ---------------------------------------------------------------------------------------------------


@each_cli
def test_prompts_and_secrets_are_in_neither_direction(new_runtime: NewRuntime, tmp_path: Path) -> None:
    secrets = ["my secret prompt", "yes", "be a secret pirate", "sk-0123456789abcdef", "hush-hush words"]
    prompt, short, system_prompt, key, words = secrets
    echo = steps(["text", f"You said {prompt}; the key is {key}"], ["take_in"])
    runtime = new_runtime(tmp_path, record=tmp_path / "run.jsonl")
    fields: dict[str, Any] = {"system_prompt": system_prompt, "env": {"OPENAI_API_KEY": key}}
    with runtime.open_session(working_directory=tmp_path, **fields) as session:
        session.run(prompt)
        session.run(short)
        run = session.start(echo)
        for event in run:
            if event.type == "text" and "You said" in event.text:
                run.steer(words)
    written = (tmp_path / "run.jsonl").read_text()
    for secret in (prompt, system_prompt, key, words):
        assert secret not in written
    sent = [entry["in"] for entry in entries(tmp_path / "run.jsonl") if "in" in entry]
    assert len(sent) >= 5
    assert not any('"yes"' in line for line in sent)
    assert stat.S_IMODE((tmp_path / "run.jsonl").stat().st_mode) == 0o600


def test_both_directions_are_in_it_in_order(tmp_path: Path) -> None:
    recorded(claude(tmp_path, record=Recording(tmp_path / "run.jsonl", redact=False)), tmp_path, "Hello there")
    header, *rest = entries(tmp_path / "run.jsonl")
    assert (header["cassette"], header["session"]) == (2, True)
    kinds = [next(key for key in entry if key != "t") for entry in rest]
    assert kinds == ["turn", "start", "in", "in", *["out"] * kinds.count("out"), "over", "end"]
    assert [entry["t"] for entry in rest] == sorted(entry["t"] for entry in rest)
    sent = [json.loads(entry["in"]) for entry in rest if "in" in entry]
    assert sent[0]["request"]["subtype"] == "initialize"
    assert sent[1]["message"]["content"][0]["text"] == "Hello there"


def test_a_place_that_cannot_be_written_fails_the_turn(tmp_path: Path) -> None:
    runtime = claude(tmp_path, record=tmp_path / "missing" / "run.jsonl")
    (events,) = recorded(runtime, tmp_path, "Hello there")
    assert codes(events) == ["RECORD_FAILED"]
    assert not list(tmp_path.glob("*.start"))


def test_each_session_has_a_file_of_its_own_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "tapes").mkdir()
    runtime = claude(tmp_path, record=tmp_path / "tapes")
    with (
        runtime.open_session(working_directory=tmp_path) as one,
        runtime.open_session(working_directory=tmp_path) as two,
    ):
        for number in range(2):
            assert one.run(steps(["text", f"one {number}"])).text == f"one {number}"
            assert two.run(steps(["text", f"two {number}"])).text == f"two {number}"
    found = set()
    for file in (tmp_path / "tapes").iterdir():
        found.add(
            tuple(event.result.text for run in ReplayRuntime(file).turns() for event in run if event.type == "done")
        )
    assert found == {("one 0", "one 1"), ("two 0", "two 1")}


def test_a_session_that_was_never_closed_can_be_played_as_far_as_it_went(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    first = recorded(claude(tmp_path, record=Recording(path, redact=False)), tmp_path, "Hello there", "And again")
    lines = path.read_text().splitlines(keepends=True)
    second_turn = [index for index, line in enumerate(lines) if '"turn"' in line][1]
    path.write_text("".join(lines[: second_turn + 2]) + '{"t": 1, "out": "cut of')
    with ReplayRuntime(path).open_session() as session:
        before, cut = played(session, "Hello there", "And again")
    assert before == first[0]
    assert codes(cut) == ["CLI_INCOMPLETE"]
