"""`run` and `demo` in a pipeline: what goes to which stream, and which exit status the shell gets."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from remoteclaw_sync import AgentDoneEvent, AgentErrorEvent, event_from_dict
from remoteclaw_sync.cli import main
from remoteclaw_sync.testing import FakeAnswer, ToolCall, write_fake_cli
from tests.cli.shell import MODULE, cli, environment, start
from tests.fakes import PATIENCE


def path_with(folder: Path) -> dict[str, str]:
    """An environment in which only this folder is on PATH."""
    return environment(PATH=str(folder))


def events(stdout: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in stdout.decode().splitlines()]


def test_the_answer_alone_goes_to_stdout(tmp_path: Path) -> None:
    (tmp_path / "some.txt").touch()
    done = cli("demo", "What is here?", cwd=tmp_path)
    text = done.stdout.decode()
    assert done.returncode == 0
    assert text.startswith("Hello! This is the demo agent. You asked: “What is here?”\n")
    assert "1 entry there: some.txt." in text
    assert text.endswith("prints what they say.\n")


def test_off_a_terminal_stderr_has_the_summary_and_nothing_else(tmp_path: Path) -> None:
    (line,) = cli("demo", "Hi", cwd=tmp_path).stderr.decode().splitlines()
    assert line.startswith("✓ ")
    for part in (" s · ", " tokens in, ", " out · ", "$0.0000", "run --provider demo --resume de300000-"):
        assert part in line


@pytest.mark.slow
def test_the_command_in_the_last_line_resumes_the_session(tmp_path: Path) -> None:
    first = cli("run", "--provider", "demo", "--cwd", str(tmp_path), "Hi").stderr.decode().splitlines()[-1]
    command = shlex.split(first.partition("to continue: ")[2])
    assert command[:3] == ["python", "-m", "remoteclaw_sync"]
    second = cli(*command[3:], "And now?")
    assert second.stdout.decode().startswith("Welcome back")
    assert command[-1] in second.stderr.decode()


def test_quiet_leaves_the_answer_alone(tmp_path: Path) -> None:
    done = cli("demo", "-q", "Hi", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_the_prompt_may_come_on_stdin(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = cli("run", "-p", "demo", *arguments, stdin="Grüße\naus der Pipe", cwd=tmp_path)
    assert "“Grüße aus der Pipe”" in done.stdout.decode()


def test_an_answer_without_a_final_newline_gets_one(tmp_path: Path) -> None:
    write_fake_cli(tmp_path, "claude", "two words")
    assert cli("run", "-p", "claude", "Hi", env=path_with(tmp_path)).stdout == b"two words\n"


def test_a_pipe_gets_the_text_as_it_is(tmp_path: Path) -> None:
    text = "\x1b[31mred\x1b[0m\ttab\r\n\x07日本語\n"
    write_fake_cli(tmp_path, "claude", text)
    assert cli("run", "-p", "claude", "Hi", env=path_with(tmp_path)).stdout.decode() == text


# --- which CLI ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_without_a_provider_the_first_installed_one_is_taken_and_named(tmp_path: Path) -> None:
    codex = write_fake_cli(tmp_path, "codex", "I am Codex")
    write_fake_cli(tmp_path, "opencode", "I am OpenCode")
    done = cli("run", "Hi", env=path_with(tmp_path))
    assert done.stdout == b"I am Codex\n"
    assert f"using codex ({codex.path})" in done.stderr.decode()


def test_with_nothing_installed_it_says_how_to_install_each_and_that_the_demo_works(tmp_path: Path) -> None:
    done = cli("run", "Hi", env=path_with(tmp_path))
    said = done.stderr.decode()
    assert (done.returncode, done.stdout) == (1, b"")
    for package in ("@anthropic-ai/claude-code", "@google/gemini-cli", "@openai/codex", "opencode-ai"):
        assert f"npm install -g {package}" in said
    assert "remoteclaw_sync demo" in said


@pytest.mark.slow
def test_a_named_cli_that_is_missing_fails_the_run(tmp_path: Path) -> None:
    done = cli("run", "-p", "gemini", "Hi", env=path_with(tmp_path))
    assert done.returncode == 1
    assert "npm install -g @google/gemini-cli" in done.stderr.decode()


# --- options --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_options_and_what_follows_the_dashes_reach_the_cli(tmp_path: Path) -> None:
    claude = write_fake_cli(tmp_path, "claude", "OK")
    (tmp_path / "work").mkdir()
    arguments = ["-C", str(tmp_path / "work"), "-m", "opus", "-r", "abc", "--permission-mode", "accept-edits"]
    done = cli("run", "-p", "claude", *arguments, "Do it", "--", "--max-turns", "3", "--", env=path_with(tmp_path))
    assert done.returncode == 0
    (call,) = claude.calls
    assert {"--model=opus", "--resume=abc", "--permission-mode=acceptEdits"} <= set(call.argv)
    assert call.argv[-3:] == ("--max-turns", "3", "--")
    assert (call.stdin, call.cwd) == ("Do it", str(tmp_path / "work"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "-p", "gpt", "Hi"), "unknown provider 'gpt'; known are: claude, gemini, codex, opencode"),
        (("run", "-p", "gpt", "Hi"), '"demo" works without a CLI'),
        (("run", "-p", "demo", "--timeout", "-1", "Hi"), "timeout must be a positive number"),
        (("run", "-p", "demo", "--deadline", "nan", "Hi"), "deadline must be a positive number"),
        (("run", "-p", "demo", "--resume=-x", "Hi"), "session_id must not start with '-'"),
        (("run", "-p", "demo", "--resume", "", "Hi"), "session_id must not be empty"),
        (("run", "-p", "demo", "--permission-mode", "yolo", "Hi"), "invalid choice: 'yolo'"),
        (("run", "-p", "demo", "--no-such-option", "Hi"), "unrecognized arguments: --no-such-option"),
        (("run", "-p", "demo", "--mcp", "nonsense", "Hi"), "--mcp takes NAME=COMMAND or NAME=URL, not 'nonsense'"),
        (("run", "-p", "demo", "--mcp-file", "/no/such", "Hi"), "--mcp-file /no/such: No such file"),
        (("run", "-p", "demo"), "no prompt: there was nothing on stdin"),
        (("run", "-p", "demo", ""), "prompt must not be empty"),
        (("replay", "/no/such"), "cannot read /no/such: No such file"),
        (("doctor", "--", "x"), "only run, demo and chat take arguments for the CLI"),
        ((), "the following arguments are required: COMMAND"),
    ],
)
def test_a_mistake_on_the_command_line_is_named_with_exit_code_2(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    try:
        code: object = main(arguments)
    except SystemExit as error:  # argparse's way
        code = error.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert said in err


# --- JSON -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_json_prints_our_events_and_nothing_else(tmp_path: Path) -> None:
    done = cli("demo", "--json", "Hi", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    found = [event_from_dict(data) for data in events(done.stdout)]
    kinds = [event.type for event in found]
    assert set(kinds) == {"thinking", "tool_use", "tool_result", "text", "done"}
    assert kinds.count("done") == 1
    assert isinstance(found[-1], AgentDoneEvent)
    assert found[-1].result.ok


@pytest.mark.slow
def test_json_can_be_piped_into_a_program_that_reads_json(tmp_path: Path) -> None:
    """jq if it is installed, otherwise Python's own parser."""
    by_python = f"{sys.executable} -c 'import json, sys; [print(json.loads(line)[\"type\"]) for line in sys.stdin]'"
    reader = "jq -r .type" if shutil.which("jq") else by_python
    command = f"{sys.executable} -m remoteclaw_sync demo --json Hi | {reader}"
    done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "done"
    assert "tool_use" in done.stdout.splitlines()


@pytest.mark.slow
def test_json_lines_come_as_they_happen_and_ctrl_c_still_ends_with_done(tmp_path: Path) -> None:
    with start("demo", "--json", "demo:hang", cwd=tmp_path) as process:
        assert process.stdout is not None
        while json.loads(process.stdout.readline())["type"] != "tool_result":
            pass  # It hangs after that: if the line had been held back, we would wait for ever.
        process.send_signal(signal.SIGINT)
        rest = [event_from_dict(json.loads(line)) for line in process.stdout]
        assert process.wait(PATIENCE) == 130
    assert isinstance(rest[-2], AgentErrorEvent)
    assert rest[-2].code == "ABORTED"
    assert isinstance(rest[-1], AgentDoneEvent)
    assert rest[-1].result.aborted


@pytest.mark.slow
def test_json_stays_json_whatever_the_agent_says(tmp_path: Path) -> None:
    message = {"id": "m", "content": [{"type": "text", "text": "\ud83d half \x1b[2J\u2028é"}]}
    nan = '{"type": "tool_use", "id": "t", "name": "x", "input": {"n": NaN, "l": [Infinity, 1.5]}}'
    lines = [
        json.dumps({"type": "assistant", "message": message}),
        f'{{"type": "assistant", "message": {{"id": "m2", "content": [{nan}]}}}}',
        json.dumps({"type": "result", "subtype": "success", "is_error": False}),
    ]
    write_fake_cli(tmp_path, "claude", FakeAnswer(lines=lines))
    for encoding in ("utf-8", "ascii"):
        env = {**path_with(tmp_path), "PYTHONIOENCODING": encoding}
        done = cli("run", "-p", "claude", "--json", "Hi", env=env)
        assert (done.returncode, done.stderr) == (0, b"")
        parsed = [json.loads(line, parse_constant=pytest.fail) for line in done.stdout.splitlines()]
        assert parsed[0]["text"] == "\ud83d half \x1b[2J\u2028é"
        assert parsed[1]["input"] == {"n": None, "l": [None, 1.5]}


@pytest.mark.slow
def test_text_that_the_encoding_lacks_does_not_stop_the_answer(tmp_path: Path) -> None:
    write_fake_cli(tmp_path, "claude", FakeAnswer("Grüße \ud83d und 日本", tools=[ToolCall("日本", output="é")]))
    done = cli("run", "-p", "claude", "Hi", env={**path_with(tmp_path), "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stdout) == (0, rb"Gr\xfc\xdfe \ud83d und \u65e5\u672c" + b"\n")
    assert done.stderr.startswith(b"ok ")


# --- how it ends ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_failed_run_is_told_on_stderr_with_exit_code_1(tmp_path: Path) -> None:
    done = cli("demo", "demo:fail", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, b"")
    error, summary = done.stderr.decode().splitlines()
    assert error.startswith("error: API Error: 529 Overloaded")
    assert summary.startswith("✗ failed (overloaded)")


@pytest.mark.slow
def test_an_unknown_session_fails_the_run(tmp_path: Path) -> None:
    done = cli("demo", "--resume", "nobody-knows", "Hi", cwd=tmp_path)
    assert done.returncode == 1
    assert "failed (session_not_found)" in done.stderr.decode()


@pytest.mark.parametrize("option", ["--timeout", pytest.param("--deadline", marks=pytest.mark.slow)])
def test_a_run_out_of_time_ends_with_exit_code_124(option: str, tmp_path: Path) -> None:
    write_fake_cli(tmp_path, "claude", FakeAnswer("never said", hang=True))
    done = cli("run", "-p", "claude", option, "0.5", "Hi", env=path_with(tmp_path))
    assert done.returncode == 124
    assert "failed (timeout)" in done.stderr.decode()


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_the_agent_and_says_how_to_go_on(number: signal.Signals, code: int, tmp_path: Path) -> None:
    with start("demo", "Hi", cwd=tmp_path, env=environment(REMOTECLAW_DEMO_PACE="0.05")) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert os.read(process.stdout.fileno(), 5) == b"Hello"
        process.send_signal(number)
        said = process.stderr.read().decode()
        assert process.wait(PATIENCE) == code
        assert process.stdout.read().endswith(b"\n")
    (line,) = said.splitlines()
    assert line.startswith("✗ interrupted")
    assert "--resume de300000-" in line


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("demo", "Hi"), ("demo", "--json", "Hi")])
def test_a_reader_that_leaves_ends_the_run_without_a_word(arguments: tuple[str, ...], tmp_path: Path) -> None:
    with start(*arguments, cwd=tmp_path, env=environment(REMOTECLAW_DEMO_PACE="0.01")) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE) == 141


@pytest.mark.slow
def test_head_gets_its_line(tmp_path: Path) -> None:
    with start("demo", "Hi", cwd=tmp_path, env=environment(REMOTECLAW_DEMO_PACE="0.01")) as process:
        head = subprocess.run(["head", "-n", "1"], stdin=process.stdout, capture_output=True, timeout=PATIENCE)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert head.stdout.decode() == "Hello! This is the demo agent. You asked: “Hi”\n"


def test_a_closed_stdout_does_not_stop_the_run(tmp_path: Path) -> None:
    command = 'exec "$@" >&-'
    script = ["/bin/sh", "-c", command, "sh", *MODULE, "demo", "Hi"]
    done = subprocess.run(script, cwd=tmp_path, env=environment(), capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0
    assert done.stderr.decode().startswith("✓ ")


# --- recordings -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_recorded_run_is_replayed_word_for_word(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    cassette = str(tmp_path / "run.jsonl")
    first = cli("demo", "--json", "--record", cassette, "Hi", cwd=tmp_path / "work")
    second = cli("replay", "--json", cassette)
    assert second.returncode == 0
    recorded, replayed = events(first.stdout), events(second.stdout)
    for last in (recorded[-1], replayed[-1]):
        assert isinstance(last["result"], dict)
        del last["result"]["duration_ms"]
    assert replayed == recorded


@pytest.mark.slow
def test_the_replay_of_a_failed_run_fails(tmp_path: Path) -> None:
    cassette = str(tmp_path / "run.jsonl")
    cli("demo", "--record", cassette, "demo:fail", cwd=tmp_path)
    done = cli("replay", cassette)
    assert done.returncode == 1
    assert "529 Overloaded" in done.stderr.decode()


def schema_in(folder: Path, schema: object) -> str:
    path = folder / "schema.json"
    path.write_text(json.dumps(schema))
    return str(path)


NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}


@pytest.mark.slow
def test_with_a_schema_the_value_alone_is_printed(tmp_path: Path) -> None:
    write_fake_cli(tmp_path, "gemini", 'It is this:\n```json\n{"number": 7}\n```')
    done = cli("run", "-p", "gemini", "--schema", schema_in(tmp_path, NUMBER), "Which?", env=path_with(tmp_path))
    assert (done.returncode, json.loads(done.stdout), done.stderr) == (0, {"number": 7}, b"")


@pytest.mark.slow
def test_with_a_schema_and_no_value_nothing_is_printed_and_the_exit_code_is_1(tmp_path: Path) -> None:
    write_fake_cli(tmp_path, "gemini", "I would rather not.")
    done = cli("run", "-p", "gemini", "--schema", schema_in(tmp_path, NUMBER), "Which?", env=path_with(tmp_path))
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"[invalid_output]" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("content", ["[1]", "{", None])
def test_a_schema_that_cannot_be_used_is_a_mistake_on_the_command_line(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    if content is not None:
        path.write_text(content)
    done = cli("run", "-p", "demo", "--schema", str(path), "Which?")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"--schema: " in done.stderr


def test_a_limit_ends_the_run_with_exit_code_1(tmp_path: Path) -> None:
    done = cli("demo", "--max-tool-calls=1", "--max-tokens=1", "Hi", cwd=tmp_path)
    assert done.returncode == 1
    assert b"max_t" in done.stderr
