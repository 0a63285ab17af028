"""`remoteclaw_sync.testing`, used as its users do: their code finds a CLI on PATH and does not know that it is a
fake."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from remoteclaw_sync import SUPPORTED_PROVIDERS, AgentToolResultEvent, AgentToolUseEvent, create_cli_runtime
from remoteclaw_sync.testing import FakeAnswer, FakeCli, ToolCall, fake_cli, write_fake_cli
from tests.fakes import codes, finished, run_host

assert fake_cli  # The import above is all that a user's conftest.py needs.

Put = Callable[..., FakeCli]
each_provider = pytest.mark.parametrize("provider", SUPPORTED_PROVIDERS)
RESUMABLE = "7d444840-9dc0-41d1-b245-5ffdce74fad2"


def ask(provider: str, prompt: str, folder: Path) -> str:
    """A user's code."""
    return create_cli_runtime(provider).run(prompt, working_directory=folder).text


@each_provider
def test_a_fake_answers_in_the_dialect_of_its_cli(provider: str, fake_cli: Put, tmp_path: Path) -> None:
    fake = fake_cli(provider, "Grüße!")
    assert ask(provider, "Hallo?", tmp_path) == "Grüße!"
    (call,) = fake.calls
    assert "Hallo?" in call.stdin
    assert call.cwd == str(tmp_path)


@each_provider
def test_tools_results_tokens_and_session_are_those_of_a_run(provider: str, fake_cli: Put, tmp_path: Path) -> None:
    tools = [ToolCall("bash", {"command": "ls"}, "a.txt"), ToolCall("bash", {"command": "rm"}, "denied", is_error=True)]
    fake_cli(provider, FakeAnswer("Done.", tools=tools))
    events, result = finished(create_cli_runtime(provider).execute("Hi", working_directory=tmp_path))
    calls = [event for event in events if isinstance(event, AgentToolUseEvent)]
    results = [event for event in events if isinstance(event, AgentToolResultEvent)]
    assert [call.input["command"] for call in calls] == ["ls", "rm"]
    assert [(event.tool_id, event.is_error) for event in results] == [
        (call.tool_id, failed) for call, failed in zip(calls, (False, True), strict=True)
    ]
    assert result.ok
    assert result.session_id is not None
    assert result.usage is not None
    assert (result.usage.input_tokens, result.usage.output_tokens) == (12, 34)


@each_provider
def test_a_failure_is_classified_as_a_real_one(provider: str, fake_cli: Put, tmp_path: Path) -> None:
    fake_cli(provider, FakeAnswer(error="HTTP 429: too many requests"))
    events, result = finished(create_cli_runtime(provider).execute("Hi", working_directory=tmp_path))
    assert result.error_subtype == "rate_limit"
    assert len(codes(events)) == 1


def test_each_run_gives_the_next_answer_and_the_last_is_repeated(fake_cli: Put, tmp_path: Path) -> None:
    fake = fake_cli("claude", "one", "two")
    assert [ask("claude", f"{number}", tmp_path) for number in range(3)] == ["one", "two", "two"]
    assert [call.stdin for call in fake.calls] == ["0", "1", "2"]


@pytest.mark.parametrize("provider", ["claude", "gemini"])
def test_a_resumed_run_keeps_its_session(provider: str, fake_cli: Put, tmp_path: Path) -> None:
    fake_cli(provider, "again")
    result = create_cli_runtime(provider).run("Hi", session_id=RESUMABLE, working_directory=tmp_path)
    assert result.session_id == RESUMABLE


@pytest.mark.slow
def test_a_fake_can_hang_crash_and_talk_nonsense(fake_cli: Put, tmp_path: Path) -> None:
    fake_cli(
        "claude",
        FakeAnswer("half", hang=True),
        FakeAnswer(lines=["not JSON", {"type": "unheard-of"}], stderr="boom", exit_code=3),
    )
    claude = create_cli_runtime("claude", timeout=0.5)
    hung = claude.run("Hi", check=False, working_directory=tmp_path)
    assert (hung.text, hung.error_subtype) == ("half", "timeout")
    crashed = claude.run("Hi", check=False, working_directory=tmp_path)
    assert (crashed.exit_code, crashed.error_subtype, crashed.stderr) == (3, "crash", "boom")


@pytest.mark.slow
def test_several_runs_at_once_are_told_apart(fake_cli: Put, tmp_path: Path) -> None:
    fake = fake_cli("claude", FakeAnswer("same", delay=0.05))
    runs = [create_cli_runtime("claude").start(f"prompt {number}", working_directory=tmp_path) for number in range(4)]
    for run in runs:
        next(run)
    for run in runs:
        assert list(run)[-1].type == "done"
    assert sorted(call.stdin for call in fake.calls) == [f"prompt {number}" for number in range(4)]


def test_a_fake_says_a_version(tmp_path: Path) -> None:
    fake = write_fake_cli(tmp_path, "codex")
    done = subprocess.run([fake.path, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip()
    assert fake.calls == []


def test_a_folder_with_a_space_and_a_quote_will_do(tmp_path: Path) -> None:
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    fake = write_fake_cli(folder, "claude", "OK", name="my-claude")
    assert create_cli_runtime("claude", command=fake.path).run("Hi", working_directory=tmp_path).text == "OK"


def test_an_unknown_provider_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="provider must be one of claude, gemini, codex, opencode, not 'gpt'"):
        write_fake_cli(tmp_path, "gpt")


def test_all_but_the_fixture_works_without_pytest(tmp_path: Path) -> None:
    code = """
        import sys
        sys.modules["pytest"] = None
        from remoteclaw_sync import create_cli_runtime
        from remoteclaw_sync.testing import write_fake_cli
        fake = write_fake_cli(sys.argv[1], "claude", "OK")
        print(create_cli_runtime("claude", command=fake.path).run("Hi").text)
    """
    assert run_host(code, str(tmp_path)) == "OK\n"


@pytest.mark.slow
def test_a_users_test_suite_passes_with_the_fixture_imported_in_its_conftest(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from remoteclaw_sync.testing import fake_cli\n")
    (tmp_path / "app.py").write_text(
        "from remoteclaw_sync import create_cli_runtime\n"
        "def view(question):\n"
        "    for event in create_cli_runtime('gemini').execute(question):\n"
        "        if event.type == 'text':\n"
        "            yield event.text\n"
    )
    (tmp_path / "test_app.py").write_text(
        "from app import view\n"
        "def test_view(fake_cli):\n"
        "    gemini = fake_cli('gemini', 'Hello!')\n"
        "    assert ''.join(view('Hi')) == 'Hello!'\n"
        "    assert len(gemini.calls) == 1\n"
    )
    code = """
        import sys, pytest
        suite, temporary = sys.argv[1:]
        sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "--basetemp", temporary, "--rootdir", suite, suite]))
    """
    assert "1 passed" in run_host(code, str(tmp_path), str(tmp_path / "temporary"))


def test_a_fake_claude_serves_a_live_session(tmp_path: Path) -> None:
    claude = write_fake_cli(tmp_path, "claude", "One.", FakeAnswer("Two.", tools=[ToolCall("bash", {}, "out")]))
    runtime = create_cli_runtime("claude", command=claude.path)
    with runtime.open_session(session_id="mine") as session:
        results = [session.run(words) for words in ("first", "second", "third")]
    assert [(result.text, result.session_id) for result in results] == [
        ("One.", "mine"),
        ("Two.", "mine"),
        ("Two.", "mine"),
    ]
    assert [call.stdin for call in claude.calls] == ["first", "second", "third"]
