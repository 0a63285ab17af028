"""The CLI's environment, what reaches the logs, and hosts with unusual habits."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import AgentErrorEvent, AgentExecuteParams, AgentRunError, McpServerConfig, create_cli_runtime
from remoteclaw_sync.engine.outcome import Closing, Ended
from remoteclaw_sync.process.environment import host_environment
from remoteclaw_sync.testing import FakeAnswer, write_fake_cli
from tests.fakes import FakeRuntime, codes, done, finished, run_host


class WithEnv(FakeRuntime):
    env: dict[str, str | None] = {}

    def build_env(self, params: AgentExecuteParams) -> dict[str, str | None]:
        return self.env


def recorded(tmp_path: Path, runtime_env: dict[str, str | None] | None = None, **fields: Any) -> dict[str, Any]:
    record = tmp_path / "record"
    runtime = WithEnv(["record", str(record)], ["text", "a"])
    runtime.env = runtime_env or {}
    assert done(runtime.execute("hi", **fields)).ok
    found: dict[str, Any] = json.loads(record.read_text())
    return found


def test_the_environment_is_the_hosts_then_the_runtimes_then_the_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOST_ONLY", "HOST_RUNTIME", "HOST_CALLER"):
        monkeypatch.setenv(name, "host")
    env = recorded(
        tmp_path,
        {"HOST_RUNTIME": "runtime", "HOST_CALLER": "runtime", "RUNTIME_CALLER": "runtime"},
        env={"HOST_CALLER": "caller", "RUNTIME_CALLER": "caller"},
    )["env"]
    assert env["HOST_ONLY"] == "host"
    assert env["HOST_RUNTIME"] == "runtime"
    assert env["HOST_CALLER"] == "caller"
    assert env["RUNTIME_CALLER"] == "caller"


def test_none_removes_a_variable_and_a_later_layer_may_set_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("A", "B", "C"):
        monkeypatch.setenv(name, "host")
    env = recorded(tmp_path, {"A": None, "B": None, "D": "runtime"}, env={"B": "caller", "C": None, "D": None})["env"]
    assert "A" not in env
    assert env["B"] == "caller"
    assert "C" not in env
    assert "D" not in env


def test_the_hosts_own_environment_is_left_alone(tmp_path: Path) -> None:
    before = dict(os.environ)
    recorded(tmp_path, {"NEW": "x", "HOME": None}, env={"OTHER": "y", "PATH": os.environ["PATH"]})
    assert dict(os.environ) == before


def test_each_run_has_the_environment_of_its_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHANGING", "one")
    assert recorded(tmp_path)["env"]["CHANGING"] == "one"
    monkeypatch.setenv("CHANGING", "two é")
    assert recorded(tmp_path)["env"]["CHANGING"] == "two é"
    monkeypatch.delenv("CHANGING")
    assert "CHANGING" not in recorded(tmp_path)["env"]
    monkeypatch.setattr(os, "environ", {**os.environ, "CHANGING": "three"})  # As some test tools do.
    assert recorded(tmp_path)["env"]["CHANGING"] == "three"


def test_what_one_run_adds_to_its_environment_reaches_no_other(tmp_path: Path) -> None:
    first = recorded(tmp_path, {"OF_THE_RUNTIME": "secret"}, env={"OF_THE_CALLER": "secret", "HOME": None})["env"]
    second = recorded(tmp_path)["env"]
    assert {"OF_THE_RUNTIME", "OF_THE_CALLER"} <= first.keys()
    assert not {"OF_THE_RUNTIME", "OF_THE_CALLER"} & second.keys()
    assert second["HOME"] == os.environ["HOME"]
    assert host_environment() is not host_environment()


def test_the_environment_can_be_copied_while_another_thread_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`dict(os.environ)` raises KeyError if a variable is removed between reading its name and its value."""

    class Changing(dict[str, str]):
        def __getitem__(self, name: str) -> str:
            raise KeyError(name)

        def get(self, name: str, default: Any = None) -> Any:
            return default if name == "GONE" else super().get(name)

    monkeypatch.setattr(os, "environ", Changing(GONE="x", STAYS="y"))
    copied = host_environment()
    monkeypatch.undo()
    assert copied == {"STAYS": "y"}


def test_the_working_directory_is_the_callers_and_pwd_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path / "work", "work"):
        found = recorded(tmp_path, working_directory=folder)
        assert found["cwd"] == str(tmp_path / "work")
        assert found["env"]["PWD"] == str(tmp_path / "work")


def test_without_a_working_directory_it_is_the_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", "/somewhere/else")
    found = recorded(tmp_path)
    assert found["cwd"] == found["env"]["PWD"] == str(tmp_path)


def test_the_cli_leads_a_session_of_its_own_and_has_no_signal_blocked(tmp_path: Path) -> None:
    found = recorded(tmp_path)
    assert found["session"] == found["pid"]
    assert found["blocked"] == []


# --- secrets -----------------------------------------------------------------------------------------------

KEY = "sk-test-1234567890"
TOKEN = "tok-abcdefghij"


def test_no_secret_reaches_an_error_a_result_or_a_log(caplog: pytest.LogCaptureFixture) -> None:
    steps = (
        ["read_stdin"],
        ["line", {"type": "error", "message": f"bad key {KEY}"}],
        ["raw", f"not json {KEY}\n"],
        ["raw", f"config: {KEY} {TOKEN}", 2],
        ["exit", 1],
    )
    params = AgentExecuteParams(
        f"a private question {KEY}",
        env={"MY_API_KEY": KEY, "PLAIN": "visible"},
        mcp_servers={"s": McpServerConfig("server", env={"ANY": TOKEN})},
    )
    with caplog.at_level(logging.DEBUG):
        with pytest.raises(AgentRunError) as caught:
            FakeRuntime(*steps).run(params)
    told = str(caught.value) + repr(caught.value.result) + repr(caught.value.errors)
    assert "[redacted]" in told
    for secret in (KEY, TOKEN):
        assert secret not in told
        assert secret not in caplog.text
    assert "private question" not in caplog.text + told
    assert caplog.records


def test_the_stderr_that_explains_an_exit_is_redacted() -> None:
    runtime = FakeRuntime(["raw", f"refused: {KEY}", 2], ["exit", 1])
    (error,), result = finished(runtime.execute("hi", env={"MY_TOKEN": KEY}))
    assert isinstance(error, AgentErrorEvent)
    assert error.message.endswith("refused: [redacted]")
    assert result.stderr == "refused: [redacted]"


@pytest.mark.parametrize("provider", ["claude", "gemini", "codex", "opencode"])
def test_the_bare_key_of_a_header_is_told_by_no_runtime(provider: str, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    fake = write_fake_cli(tmp_path, provider, FakeAnswer(lines=[], stderr=f"401: {KEY} is no key", exit_code=1))
    server = McpServerConfig(url="https://example.com/mcp", headers={"Authorization": f"Bearer {KEY}"})
    runtime = create_cli_runtime(provider, command=fake.path)
    env = {"CODEX_HOME": str(tmp_path / "home")}
    with pytest.raises(AgentRunError) as caught:
        runtime.run("hi", mcp_servers={"s": server}, working_directory=tmp_path, env=env)
    assert "401: [redacted] is no key" in caught.value.result.stderr
    assert KEY not in str(caught.value) + repr(caught.value.result) + repr(caught.value.errors)


@pytest.mark.parametrize("line_end", ["\n", " "], ids=["lines", "one line"])
def test_a_secret_that_the_kept_end_of_stderr_begins_in_is_not_told(line_end: str) -> None:
    key = "".join(f"{number:03}" for number in range(100))
    for kept in range(20, 300, 40):
        runtime = FakeRuntime(["raw", f"bad key {key}{line_end}", 2], ["flood", 65_535 - kept, 2, "y"], ["exit", 1])
        _, result = finished(runtime.execute("hi", env={"MY_TOKEN": key}))
        assert key[-20:] not in result.stderr
        assert "yyy" in result.stderr


def test_a_secret_that_a_warning_would_cut_is_not_told() -> None:
    class Cutting(FakeRuntime):
        def at_exit(self, ended: Ended) -> Closing:
            return Closing(warnings=(AgentErrorEvent(ended.stderr[:12]),))

    runtime = Cutting(["text", "a"], ["raw", f"bad {KEY}", 2])
    (_, warning), _ = finished(runtime.execute("hi", env={"MY_TOKEN": KEY}))
    assert isinstance(warning, AgentErrorEvent)
    assert KEY[:6] not in warning.message


def test_a_secret_in_the_code_of_an_error_is_not_told() -> None:
    steps = (["line", {"type": "error", "message": "no", "code": f"bad:{KEY}"}], ["text", "a"])
    events, _ = finished(FakeRuntime(*steps).execute("hi", env={"MY_TOKEN": KEY}))
    assert codes(events) == ["bad:[redacted]"]


def test_a_key_among_the_arguments_of_the_command_is_neither_told_nor_recorded(tmp_path: Path) -> None:
    script = "echo refused: $1 >&2; exit 3"
    command = ["/bin/sh", "-c", script, "sh", "sk-0123456789", "--api-key", "sk-0123456789"]
    events, result = finished(FakeRuntime(command=command, record=tmp_path / "run.jsonl").execute("Hi"))
    assert result.stderr == "refused: [redacted]\n"
    assert "sk-0123456789" not in repr(events) + (tmp_path / "run.jsonl").read_text()


def test_a_mistake_that_quotes_a_secret_is_redacted(caplog: pytest.LogCaptureFixture) -> None:
    class Quoting(FakeRuntime):
        def build_args(self, params: AgentExecuteParams) -> list[str]:
            raise ValueError(f"cannot use {KEY}")

    (error,), _ = finished(Quoting().execute("hi", env={"MY_TOKEN": KEY}))
    assert isinstance(error, AgentErrorEvent)
    assert KEY not in error.message
    assert KEY not in caplog.text


def test_the_repr_of_params_and_of_a_run_shows_no_secret() -> None:
    params = AgentExecuteParams(KEY, env={"A": KEY}, extra_args=(KEY,), system_prompt=KEY)
    assert KEY not in repr(params)


# --- exit codes and errors ---------------------------------------------------------------------------------


def test_an_error_the_cli_reported_is_not_followed_by_another() -> None:
    steps = (["line", {"type": "error", "message": "rate limit reached", "code": "429"}], ["exit", 1])
    events, result = finished(FakeRuntime(*steps).execute("hi"))
    assert codes(events) == ["429"]
    assert result.error_subtype == "rate_limit"


def test_an_error_the_cli_survives_does_not_fail_the_run() -> None:
    steps = (["line", {"type": "error", "message": "retrying"}], ["text", "a"], ["line", {"type": "done"}])
    events, result = finished(FakeRuntime(*steps).execute("hi"))
    assert codes(events) == [None]
    assert result.ok


def test_a_failing_exit_without_a_word_is_a_crash() -> None:
    events, result = finished(FakeRuntime(["text", "a"], ["exit", 42]).execute("hi"))
    assert codes(events) == ["CLI_EXIT_ERROR"]
    assert "42" in events[-1].to_dict()["message"]
    assert (result.ok, result.error_subtype, result.exit_code, result.text) == (False, "crash", 42, "a")


def test_a_failing_exit_is_classified_by_its_stderr() -> None:
    _, result = finished(FakeRuntime(["raw", "Error: 401 Unauthorized", 2], ["exit", 1]).execute("hi"))
    assert result.error_subtype == "auth"


def test_run_returns_the_result_of_a_failed_run_unless_it_is_to_check() -> None:
    result = FakeRuntime(["text", "a"], ["exit", 2]).run("hi", check=False)
    assert (result.ok, result.exit_code, result.text) == (False, 2, "a")


# --- hosts with habits -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "habit",
    [
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        "signal.signal(signal.SIGCHLD, reap)",
        pytest.param("signal.signal(signal.SIGPIPE, signal.SIG_DFL)", marks=pytest.mark.slow),
        pytest.param(
            "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE})",
            marks=pytest.mark.slow,
        ),
        pytest.param("sys.setrecursionlimit(200)", marks=pytest.mark.slow),
        pytest.param("os.umask(0o777)", marks=pytest.mark.slow),
        pytest.param("gc.set_threshold(1)", marks=pytest.mark.slow),
    ],
)
def test_a_host_may_have_its_habits(habit: str) -> None:
    out = run_host(
        f"""
        import gc, os, signal, sys, threading
        from tests.fakes import FakeRuntime, done
        def reap(*args):
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                pass
        {habit}
        for _ in range(5):
            result = done(FakeRuntime(["read_stdin", 10], ["close", 0], ["text", "a"]).execute("x" * 3_000_000))
            assert result.ok, result
        run = FakeRuntime(["text", "a"], ["hang"]).start("hi")
        next(run)
        run.abort()
        assert [event.type for event in run] == ["error", "done"]
        done(FakeRuntime(["exit", 3]).execute("x" * 3_000_000))
        assert threading.active_count() == 1, threading.enumerate()
        print("fine")
        """
    )
    assert out == "fine\n"


def test_a_host_that_ignores_sigchld_still_sees_a_failure_that_was_told() -> None:
    out = run_host(
        """
        import signal
        from tests.fakes import FakeRuntime, codes, finished
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        events, result = finished(FakeRuntime(["line", {"type": "error", "message": "no"}], ["exit", 3]).execute("hi"))
        print(codes(events), result.ok, result.exit_code)
        """
    )
    assert out == "[None] False None\n"


@pytest.mark.slow
def test_a_host_with_the_fork_start_method_may_run_clis_in_its_workers() -> None:
    out = run_host(
        """
        import multiprocessing
        from tests.fakes import FakeRuntime, done
        def work(number):
            return done(FakeRuntime(["text", str(number)]).execute("hi")).text
        keep = FakeRuntime(["text", "a"], ["hang"]).execute("hi")
        next(keep)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(pool.map(work, range(4)))
        keep.close()
        """
    )
    assert out == "['0', '1', '2', '3']\n"
