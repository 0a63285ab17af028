"""Recordings: what is in them, what is not, and that a replay is the same run again."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from remoteclaw_sync import (
    AgentDoneEvent,
    AgentEvent,
    AgentExecuteParams,
    AgentRuntime,
    AgentTextEvent,
    McpServerConfig,
    Recording,
    ReplayRuntime,
    create_cli_runtime,
)
from remoteclaw_sync.recording.cassette import CassetteError
from remoteclaw_sync.redaction import Scrubber
from remoteclaw_sync.testing import FakeAnswer, ToolCall, write_fake_cli
from tests.fakes import FakeRuntime, Gate, codes, done, finished, is_guarded, start_host, wait_until

TEXT_LINE = b'{"type": "text", "text": "x"}'


def same(event: AgentEvent) -> AgentEvent:
    """The event without what differs from run to run."""
    return AgentDoneEvent(attrs.evolve(event.result, duration_ms=0)) if isinstance(event, AgentDoneEvent) else event


def replayed(path: Path, runtime: FakeRuntime) -> list[AgentEvent]:
    return list(map(same, ReplayRuntime(path, runtime=runtime).execute()))


def recorded(path: Path, *steps: list[Any], **fields: Any) -> tuple[list[AgentEvent], FakeRuntime]:
    """A run of the fake CLI, recorded."""
    runtime = FakeRuntime(*steps, record=path, **{key: fields.pop(key) for key in ("timeout",) if key in fields})
    return list(map(same, runtime.execute("Hi", **fields))), runtime


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- a replay is the run again --------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", ["claude", "gemini", "codex", "opencode"])
@pytest.mark.parametrize(
    "answer",
    [
        FakeAnswer("Hello!", tools=[ToolCall("bash", {"command": "ls"}, "a.txt")]),
        FakeAnswer(error="429 too many requests"),
        FakeAnswer(lines=[], stderr="it broke", exit_code=9),
    ],
    ids=["answer", "error", "crash"],
)
def test_a_replay_gives_the_events_and_the_result_of_the_run(provider: str, answer: FakeAnswer, tmp_path: Path) -> None:
    fake = write_fake_cli(tmp_path, provider, answer)
    cassette = tmp_path / "run.jsonl"
    runtime = create_cli_runtime(provider, command=fake.path, record=cassette)
    first = list(map(same, runtime.execute("Hi", working_directory=tmp_path)))
    replay = ReplayRuntime(cassette)
    assert isinstance(replay, AgentRuntime)
    assert replay.provider == provider
    assert list(map(same, replay.execute("anything"))) == first


@pytest.mark.parametrize(
    "steps",
    [
        [["text", "a"], ["text", "b"]],
        [["raw", '{"type": "text", "text": "no newline"}']],
        [["raw", '\xff\xfe{"type": "text"}\n{"type": "text", "text": "\xff\xed\xa0\x80"}\r\n\n']],
        [["text", "a"], ["raw", "stderr says\xff", 2], ["exit", 3]],
        [["text", "a"], ["die", "SIGKILL"]],
        [],
    ],
    ids=["lines", "no newline", "bad bytes", "exit code", "killed", "nothing"],
)
def test_bytes_and_exits_of_any_kind_survive(steps: list[Any], tmp_path: Path) -> None:
    first, runtime = recorded(tmp_path / "run.jsonl", *steps)
    assert replayed(tmp_path / "run.jsonl", runtime) == first


def test_a_cli_that_was_missing_is_missing_again(tmp_path: Path) -> None:
    runtime = FakeRuntime(command="/no/such/cli", record=tmp_path / "run.jsonl")
    first = list(map(same, runtime.execute("Hi")))
    assert codes(first) == ["CLI_NOT_FOUND"]
    assert replayed(tmp_path / "run.jsonl", runtime) == first


def test_a_run_that_was_too_silent_is_so_again_at_once(tmp_path: Path) -> None:
    first, runtime = recorded(tmp_path / "run.jsonl", ["text", "a"], ["hang"], timeout=0.3)
    assert codes(first) == ["WATCHDOG_TIMEOUT"]
    assert replayed(tmp_path / "run.jsonl", runtime) == first


def test_an_aborted_run_ends_after_all_that_was_said(tmp_path: Path) -> None:
    runtime = FakeRuntime(["text", "a"], ["text", "b"], ["hang"], record=tmp_path / "run.jsonl")
    run = runtime.start("Hi")
    first = [next(run), next(run)]
    run.abort()
    first += map(same, run)
    assert codes(first) == ["ABORTED"]
    for _ in range(20):  # It must not matter whether the consumer or the replay is faster.
        assert replayed(tmp_path / "run.jsonl", runtime) == first


def test_a_run_whose_consumer_left_is_an_aborted_one_for_the_next(tmp_path: Path) -> None:
    runtime = FakeRuntime(["text", "a"], ["hang"], record=tmp_path / "run.jsonl")
    with runtime.start("Hi") as run:
        next(run)
    events, result = finished(ReplayRuntime(tmp_path / "run.jsonl", runtime=runtime).execute())
    assert (codes(events), result.text, result.aborted) == (["ABORTED"], "a", True)


def test_the_recorded_duration_is_reported(tmp_path: Path) -> None:
    runtime = FakeRuntime(["text", "a"], ["sleep", 0.3], record=tmp_path / "run.jsonl")
    assert done(runtime.execute("Hi")).duration_ms >= 300
    assert ReplayRuntime(tmp_path / "run.jsonl", runtime=runtime).run().duration_ms >= 300


def test_speed_keeps_the_recorded_pauses(tmp_path: Path) -> None:
    cassette = tmp_path / "run.jsonl"
    lines = [{"cassette": 1, "provider": None}, {"t": 30.0, "line": '{"type": "text", "text": "late"}'}]
    lines.append({"t": 30.0, "end": {"reason": "EXITED", "exit_code": 0, "stderr": ""}})
    cassette.write_text("".join(json.dumps(line) + "\n" for line in lines))
    runtime = FakeRuntime()
    events, result = finished(ReplayRuntime(cassette, speed=1.0, runtime=runtime).execute(deadline=0.2))
    assert (codes(events), result.text) == (["DEADLINE_EXCEEDED"], "")
    assert ReplayRuntime(cassette, speed=1000.0, runtime=runtime).run().text == "late"
    assert ReplayRuntime(cassette, runtime=runtime).run(deadline=20.0).text == "late"


def test_a_replay_in_its_pauses_can_be_aborted_and_left(tmp_path: Path) -> None:
    cassette = tmp_path / "run.jsonl"
    lines = [{"cassette": 1, "provider": None}, {"t": 0.0, "line": TEXT_LINE.decode()}]
    lines.append({"t": 600.0, "line": TEXT_LINE.decode()})
    cassette.write_text("".join(json.dumps(line) + "\n" for line in lines))
    replay = ReplayRuntime(cassette, speed=1.0, runtime=FakeRuntime())
    signal_ = threading.Event()
    events = []
    for event in replay.execute(abort_signal=signal_):
        events.append(event)
        signal_.set()
    assert codes(events) == ["ABORTED"]
    with replay.start() as run:
        assert next(run) == AgentTextEvent("x")


def test_one_replay_serves_many_threads(tmp_path: Path) -> None:
    _, runtime = recorded(tmp_path / "run.jsonl", *(["text", f"{number} "] for number in range(50)))
    replay = ReplayRuntime(tmp_path / "run.jsonl", runtime=runtime)
    texts: list[str] = []
    threads = [threading.Thread(target=lambda: texts.append(replay.run().text)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [" ".join(map(str, range(50))) + " "] * 8


@pytest.mark.parametrize("provider", ["claude", "gemini"])
def test_an_mcp_server_that_failed_fails_again(provider: str, tmp_path: Path) -> None:
    if provider == "claude":
        init = {
            "type": "system",
            "subtype": "init",
            "session_id": "s",
            "mcp_servers": [{"name": "s", "status": "failed"}],
        }
        answer = FakeAnswer(lines=[init, {"type": "result", "subtype": "success", "result": "x"}])
    else:
        answer = FakeAnswer("x", stderr="MCP issues detected. Run /mcp list for status.")
    fake = write_fake_cli(tmp_path, provider, answer)
    runtime = create_cli_runtime(provider, command=fake.path, record=tmp_path / "run.jsonl")
    servers = {"s": McpServerConfig("server", env={"KEY": "sk-0123456789"})}
    first = list(map(same, runtime.execute("Hi", working_directory=tmp_path, mcp_servers=servers)))
    assert "MCP_SERVER_FAILED" in codes(first)
    assert list(map(same, ReplayRuntime(tmp_path / "run.jsonl").execute())) == first


def test_a_run_that_had_to_be_started_twice_plays_with_the_warning_that_told_so(tmp_path: Path) -> None:
    refusal = "Error: required MCP servers failed to initialize: s: no such program"
    first_try = FakeAnswer(lines=[], stderr=refusal, exit_code=1)
    fake = write_fake_cli(tmp_path, "codex", first_try, FakeAnswer("fine"))
    runtime = create_cli_runtime("codex", command=fake.path, record=tmp_path / "run.jsonl")
    home = tmp_path / "home"
    home.mkdir()
    servers = {"s": McpServerConfig("server")}
    first = list(map(same, runtime.execute("Hi", env={"CODEX_HOME": str(home)}, mcp_servers=servers)))
    assert codes(first) == ["MCP_SERVER_FAILED"]
    assert list(map(same, ReplayRuntime(tmp_path / "run.jsonl").execute())) == first


def test_a_recording_made_before_there_were_facts_is_played(tmp_path: Path) -> None:
    cassette = tmp_path / "run.jsonl"
    lines = [{"cassette": 1, "provider": None}, {"t": 0.1, "line": '{"type": "text", "text": "old"}'}]
    lines.append({"t": 0.2, "end": {"reason": "EXITED", "exit_code": 0, "stderr": ""}})
    cassette.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert ReplayRuntime(cassette, runtime=FakeRuntime()).run().text == "old"


# --- the file -------------------------------------------------------------------------------------------------


def test_a_cassette_has_header_lines_with_times_and_the_end(tmp_path: Path) -> None:
    cassette = tmp_path / "run.jsonl"
    recorded(cassette, ["raw", "to stderr", 2], ["text", "a"], ["exit", 4])
    header, line, end = entries(cassette)
    assert (header["cassette"], header["provider"]) == (1, None)
    assert header["remoteclaw_sync"]
    assert line["line"] == '{"type": "text", "text": "a"}'
    assert 0 <= line["t"] <= end["t"]
    assert end["end"] == {"reason": "EXITED", "exit_code": 4, "stderr": "to stderr"}
    assert stat.S_IMODE(cassette.stat().st_mode) == 0o600


def test_prompts_arguments_and_values_of_variables_are_not_in_it(tmp_path: Path) -> None:
    cassette = tmp_path / "run.jsonl"
    secrets = ["my secret prompt", "be a secret pirate", "token-of-the-server", "value-of-mine", "sk-in-an-argument"]
    prompt, system_prompt, token, value, key = secrets
    echo = [{"type": "message", "role": "user", "content": prompt}, {"type": "x", "all": " | ".join(secrets[:4])}]
    script = tmp_path / "script.json"
    script.write_text(json.dumps([["line", line] for line in echo] + [["raw", f"stderr: {value}", 2]]))
    runtime = FakeRuntime(command=[sys.executable, str(Path(__file__).with_name("fake_cli.py")), f"@{script}"])
    runtime.record = Recording(cassette)
    done(
        runtime.execute(
            prompt,
            system_prompt=system_prompt,
            env={"MINE": value},
            mcp_servers={"s": McpServerConfig("x", env={"T": token})},
            extra_args=(f"--api-key={key}", key, "--flag", prompt),
        )
    )
    written = cassette.read_text()
    for secret in secrets:
        assert secret not in written
    header = entries(cassette)[0]
    hidden = "[redacted]"
    assert header["argv"][1:] == [hidden, hidden, f"--api-key={hidden}", hidden, "--flag", hidden]
    assert header["env"]["MINE"] == "[redacted]"


def test_without_redaction_everything_is_in_it(tmp_path: Path) -> None:
    cassette = tmp_path / "run.jsonl"
    runtime = FakeRuntime(["text", "a"], record=Recording(cassette, redact=False))
    done(runtime.execute("my secret prompt", env={"MINE": "value"}))
    header = entries(cassette)[0]
    assert (header["prompt"], header["env"]["MINE"]) == ("my secret prompt", "value")


@pytest.mark.parametrize(
    ("line", "clean"),
    [
        ('{"type": "text", "text": "the long prompt here"}', '{"type": "text", "text": "[redacted]***** here"}'),
        ('{"role": "user", "content": "yes"}', '{"role": "user", "content": "***"}'),
        ('{"role": "assistant", "content": "yes"}', '{"role": "assistant", "content": "yes"}'),
        ('{"type":"yes",  "x":1}', '{"type":"yes",  "x":1}'),
        ("not JSON: the long prompt", "not JSON: [redacted]*****"),
        ('{"the long prompt": 1}', '{"[redacted]*****": 1}'),
    ],
)
def test_redaction_keeps_a_line_readable_and_as_long(line: str, clean: str) -> None:
    assert Scrubber(["the long prompt", "yes"], [])(line) == clean


def test_what_is_spelled_otherwise_in_json_is_found() -> None:
    secret = 'a "quoted"\nsecret\u00e9'
    for line in (json.dumps({"x": secret}), json.dumps({"x": secret}, ensure_ascii=False)):
        assert secret not in json.loads(Scrubber([], [secret])(line))["x"]


def test_what_became_of_the_prompt_on_its_way_to_the_cli_is_not_in_it(tmp_path: Path) -> None:
    """Gemini repeats the prompt as it received it: with a backslash before each @ that it would have expanded."""
    (tmp_path / "notes.txt").touch()
    echo = {"type": "message", "role": "user", "content": "Read \\@notes.txt and log in with password hunter2-hunter2"}
    init = {"type": "init", "session_id": "5e9c8a3e-0000-4000-8000-000000000001", "model": "m"}
    fake = write_fake_cli(tmp_path, "gemini", FakeAnswer(lines=[init, echo]))
    runtime = create_cli_runtime("gemini", command=fake.path, record=tmp_path / "run.jsonl")
    done(runtime.execute("Read @notes.txt and log in with password hunter2-hunter2", working_directory=tmp_path))
    written = (tmp_path / "run.jsonl").read_text()
    assert "hunter2" not in written
    assert "notes" not in written


def test_a_prompt_that_a_runtime_sends_in_other_words_is_not_in_it(tmp_path: Path) -> None:
    class Shouting(FakeRuntime):
        def stdin_data(self, params: AgentExecuteParams) -> bytes:
            return params.prompt.upper().encode()

    echo = {"type": "x", "heard": "LOG IN WITH PASSWORD HUNTER2"}
    runtime = Shouting(["line", echo], ["text", "a"], record=tmp_path / "run.jsonl")
    done(runtime.execute("log in with password hunter2"))
    assert "HUNTER2" not in (tmp_path / "run.jsonl").read_text()


def test_an_echo_that_the_cli_dies_in_is_not_in_it(tmp_path: Path) -> None:
    prompt = 'say "yes"\r\nto hunter2-hunter2\tand go'
    script = tmp_path / "script.json"
    script.write_text(json.dumps([["raw", json.dumps({"text": prompt})[:-6]], ["raw", json.dumps(prompt)[:-6], 2]]))
    command = [sys.executable, str(Path(__file__).with_name("fake_cli.py")), f"@{script}"]
    done(FakeRuntime(command=command, record=tmp_path / "run.jsonl").execute(prompt))
    assert "hunter2" not in (tmp_path / "run.jsonl").read_text()


@pytest.mark.parametrize(
    "lines",
    [
        ["login:", "hunter2", "then pray!"],
        ["LOGIN: HUNTER2 THEN PRAY!"],
        ["1: login:", "2: hunter2 then pray!"],
        ["login: hun", "ter2 then pray!"],
    ],
)
@pytest.mark.parametrize("as_json", [True, False])
def test_an_echo_line_by_line_is_not_in_it(lines: list[str], as_json: bool, tmp_path: Path) -> None:
    said = [json.dumps({"type": "x", "all": [line]}) if as_json else line for line in lines]
    runtime = FakeRuntime(["raw", "\n".join([*said, ""])], ["text", "a"], record=tmp_path / "run.jsonl")
    done(runtime.execute("login:\nhunter2\nthen pray!"))
    written = (tmp_path / "run.jsonl").read_text()
    assert "hunter2" not in written.lower()
    assert "ter2" not in written


def test_an_argument_that_the_cli_repeats_is_not_in_it(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps([["line", {"type": "x", "all": "/srv/hidden-place, my-profile"}], ["text", "a"]]))
    command = [sys.executable, str(Path(__file__).with_name("fake_cli.py")), f"@{script}"]
    runtime = FakeRuntime(command=command, record=tmp_path / "run.jsonl")
    done(runtime.execute("Hi", extra_args=("--dir=/srv/hidden-place", "--profile", "my-profile")))
    written = (tmp_path / "run.jsonl").read_text()
    assert "hidden-place" not in written
    assert "my-profile" not in written


def test_an_echo_in_two_lines_is_not_in_it_and_the_rest_plays_as_it_was(tmp_path: Path) -> None:
    steps = [["text", "You said: my sec"], ["text", "ret prompt. Well, my"], ["text", " answer"]]
    runtime = FakeRuntime(*steps, record=tmp_path / "run.jsonl")
    done(runtime.execute("my secret prompt"))
    written = (tmp_path / "run.jsonl").read_text()
    assert "my sec" not in written
    assert "ret prompt" not in written
    text = ReplayRuntime(tmp_path / "run.jsonl", runtime=runtime).run().text
    assert text == "You said: ******[redacted]. Well, my answer"


def test_a_secret_is_not_in_it_as_a_key_a_status_or_without_its_scheme(tmp_path: Path) -> None:
    line = {"type": "x", "status": "sk-0123456789", "sk-0123456789": 1, "said": ["key sk-0123456789"]}
    runtime = FakeRuntime(["line", line], ["text", "a"], record=tmp_path / "run.jsonl")
    server = McpServerConfig(url="https://h/mcp", headers={"Authorization": "Bearer sk-0123456789"})
    done(runtime.execute("Hi", mcp_servers={"s": server}))
    assert "0123456789" not in (tmp_path / "run.jsonl").read_text()


def test_a_folder_gets_a_file_for_each_run(tmp_path: Path) -> None:
    runtime = FakeRuntime(["text", "a"], record=tmp_path)
    done(runtime.execute("Hi"))
    done(runtime.execute("Hi"))
    cassettes = list(tmp_path.iterdir())
    assert len(cassettes) == 2
    for cassette in cassettes:
        assert ReplayRuntime(cassette, runtime=runtime).run().text == "a"


def test_of_two_runs_on_one_path_neither_spoils_the_other(tmp_path: Path, gate: Callable[[], Gate]) -> None:
    cassette = tmp_path / "run.jsonl"
    wait = gate()
    slow = FakeRuntime(["text", "slow"], ["wait", wait.path], ["text", "slow"], record=cassette).start("Hi")
    next(slow)
    fast = FakeRuntime(["text", "fast"], record=cassette)
    done(fast.execute("Hi"))
    wait.open()
    list(slow)
    assert ReplayRuntime(cassette, runtime=fast).run().text == "fast"


def test_a_fifo_that_nobody_reads_fails_the_run_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    events, result = finished(FakeRuntime(["text", "a"], record=tmp_path / "fifo").execute("Hi"))
    assert codes(events) == ["RECORD_FAILED"]
    assert "nobody reads" in events[0].to_dict()["message"]


def test_a_fifo_that_somebody_reads_gets_the_recording(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert FakeRuntime(["text", "a"], record=tmp_path / "fifo").run("Hi").text == "a"
        assert b'"EXITED"' in os.read(reader, 65536)
    finally:
        os.close(reader)


@pytest.mark.slow
def test_a_fifo_whose_reader_has_stopped_reading_holds_up_neither_run_nor_abort(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    try:
        flood = ["repeat", '{"type": "text", "text": "' + "x" * 1000 + '"}\n', 500]
        run = FakeRuntime(flood, ["text", "end"], ["hang"], record=tmp_path / "fifo").start("Hi")
        for event in run:
            if event == AgentTextEvent("end"):
                run.abort()
        assert run.result is not None
        assert run.result.aborted
    finally:
        os.close(reader)


@pytest.mark.parametrize("place", ["missing/run.jsonl", "file/run.jsonl"])
def test_a_place_that_cannot_be_written_fails_the_run_before_it_costs_anything(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    marker = tmp_path / "ran"
    runtime = FakeRuntime(["record", str(marker)], record=tmp_path / place)
    events, result = finished(runtime.execute("Hi"))
    assert codes(events) == ["RECORD_FAILED"]
    assert not result.ok
    assert not marker.exists()


def test_a_full_disk_stops_the_recording_and_not_the_run(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    assert FakeRuntime(["text", "a"], record="/dev/full").run("Hi").text == "a"


def test_a_record_option_that_is_no_path_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="^record must be a str or a path"):
        FakeRuntime(record=7)
    with pytest.raises(ValueError, match="^record must not be empty"):
        FakeRuntime(record="")


def test_a_host_that_is_killed_leaves_a_beginning_that_can_be_played(tmp_path: Path) -> None:
    cassette = tmp_path / "run.jsonl"
    code = """
        import sys
        from tests.fakes import FakeRuntime
        for event in FakeRuntime(["text", "said before"], ["hang"], record=sys.argv[1]).execute("Hi"):
            print(event.type, flush=True)
    """
    with start_host(code, str(cassette)) as host:
        assert host.stdout is not None
        host.stdout.readline()
        assert wait_until(lambda: is_guarded(host.pid))
        host.send_signal(signal.SIGKILL)
    events, result = finished(ReplayRuntime(cassette, runtime=FakeRuntime()).execute())
    assert events[0] == AgentTextEvent("said before")
    assert not any("end" in entry for entry in entries(cassette))
    with open(cassette, "a") as file:
        file.write('{"t": 1.0, "line": "cut of')
    assert ReplayRuntime(cassette, runtime=FakeRuntime()).run(check=False).text == "said before"


@pytest.mark.parametrize(
    "content",
    [
        '{"cassette": 1, "provider": "claude"}\n{"t": 0, "facts": {"remedied": 1}}',
        "",
        "not JSON",
        "[]",
        '{"type": "init"}',
        '{"cassette": 99}',
        '{"cassette": 1}\n{"end": {}}',
        '{"cassette": 1}',
    ],
)
def test_a_file_that_is_no_cassette_is_refused_by_name(content: str, tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    path.write_text(content)
    with pytest.raises(CassetteError, match="file.jsonl"):
        ReplayRuntime(path)


def test_a_cassette_of_an_unknown_provider_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    path.write_text('{"cassette": 1, "provider": "gpt"}')
    with pytest.raises(CassetteError, match="unknown provider 'gpt'"):
        ReplayRuntime(path)


def make_giant(path: Path) -> None:
    path.touch()
    os.truncate(path, 100 * 1024**3)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), make_giant])
def test_what_only_has_the_name_of_a_recording_neither_fills_the_memory_nor_is_waited_for(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """The file may come with a repository."""
    make(tmp_path / "run.jsonl")
    with pytest.raises(OSError, match="not a regular file|larger than"):
        ReplayRuntime(tmp_path / "run.jsonl")


def test_a_missing_file_is_an_oserror() -> None:
    with pytest.raises(FileNotFoundError):
        ReplayRuntime("/no/such/file")
