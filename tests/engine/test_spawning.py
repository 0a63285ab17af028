"""What can go wrong before the CLI says anything, and how the prompt gets there."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import AgentErrorEvent, AgentEvent, AgentExecuteParams, AgentRunError
from tests.fakes import FakeRuntime, Gate, codes, done, fake_command, finished, run_host

BIG = "é" * 2_500_000  # 5 MB in UTF-8: many times what a pipe holds.


def the_error(events: list[AgentEvent]) -> AgentErrorEvent:
    (event,) = events
    assert isinstance(event, AgentErrorEvent)
    return event


def failing_start(command: Any, **fields: Any) -> tuple[AgentErrorEvent, str | None]:
    events, result = finished(FakeRuntime(command=command).execute("hi", **fields))
    assert not result.ok
    assert result.text == ""
    assert result.exit_code is None
    return the_error(events), result.error_subtype


def test_a_missing_command_is_told_by_name() -> None:
    error, subtype = failing_start("no-such-agent-cli")
    assert (error.code, subtype) == ("CLI_NOT_FOUND", "cli_missing")
    assert "no-such-agent-cli" in error.message


def test_a_missing_path_is_told(tmp_path: Path) -> None:
    error, subtype = failing_start(tmp_path / "gone")
    assert (error.code, subtype) == ("CLI_NOT_FOUND", "cli_missing")


def test_the_install_hint_is_part_of_the_message() -> None:
    class WithHint(FakeRuntime):
        install_hint = "install it with: magic"

    events, _ = finished(WithHint(command="no-such-agent-cli").execute("hi"))
    assert "install it with: magic" in the_error(events).message


def test_a_link_to_nowhere_is_a_missing_command(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone")
    error, _ = failing_start(link)
    assert error.code == "CLI_NOT_FOUND"


def test_a_file_without_the_x_bit_is_not_executable(tmp_path: Path) -> None:
    script = tmp_path / "cli"
    script.write_text("#!/bin/sh\n")
    error, subtype = failing_start(script)
    assert (error.code, subtype) == ("CLI_NOT_EXECUTABLE", "cli_missing")
    assert "chmod" in error.message


def test_a_file_on_the_path_without_the_x_bit_is_named(tmp_path: Path) -> None:
    (tmp_path / "my-agent-cli").write_text("#!/bin/sh\n")
    error, _ = failing_start("my-agent-cli", env={"PATH": str(tmp_path)})
    assert error.code == "CLI_NOT_EXECUTABLE"
    assert str(tmp_path / "my-agent-cli") in error.message


def test_a_folder_is_not_executable(tmp_path: Path) -> None:
    error, _ = failing_start(tmp_path)
    assert error.code == "CLI_NOT_EXECUTABLE"
    assert "folder" in error.message


def test_a_program_of_no_known_format_is_not_executable(tmp_path: Path) -> None:
    script = tmp_path / "cli"
    script.write_bytes(b"\x00\x01\x02")
    script.chmod(0o755)
    error, _ = failing_start(script)
    assert error.code == "CLI_NOT_EXECUTABLE"


def test_a_missing_interpreter_is_told(tmp_path: Path) -> None:
    script = tmp_path / "cli"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    error, _ = failing_start(script)
    assert error.code == "SPAWN_FAILED"
    assert "#!" in error.message


def test_a_missing_working_directory_is_told(tmp_path: Path) -> None:
    error, subtype = failing_start(fake_command(), working_directory=tmp_path / "gone")
    assert (error.code, subtype) == ("WORKING_DIRECTORY_NOT_FOUND", "config")
    assert str(tmp_path / "gone") in error.message


def test_a_file_as_working_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error, _ = failing_start(fake_command(), working_directory=tmp_path / "file")
    assert error.code == "WORKING_DIRECTORY_NOT_FOUND"


def test_a_host_whose_own_directory_is_gone_is_told() -> None:
    out = run_host(
        """
        import os, tempfile
        from tests.fakes import FakeRuntime, codes, finished
        folder = tempfile.mkdtemp()
        os.chdir(folder)
        os.rmdir(folder)
        print(codes(finished(FakeRuntime().execute("hi"))[0]))
        """
    )
    assert out == "['WORKING_DIRECTORY_NOT_FOUND']\n"


def test_run_raises_for_a_missing_command_and_carries_everything() -> None:
    with pytest.raises(AgentRunError) as caught:
        FakeRuntime(command="no-such-agent-cli").run("hi")
    assert caught.value.result.error_subtype == "cli_missing"
    assert codes(caught.value.errors) == ["CLI_NOT_FOUND"]


def test_an_instance_can_run_again_after_a_failed_start(tmp_path: Path) -> None:
    runtime = FakeRuntime(["text", "hello"])
    done(runtime.execute("hi", working_directory=tmp_path / "gone"))
    assert done(runtime.execute("hi")).text == "hello"


def test_nothing_is_started_before_the_first_event_is_asked_for(tmp_path: Path) -> None:
    record = tmp_path / "record"
    events = FakeRuntime(["record", str(record)], ["text", "a"]).execute("hi")
    events.close()
    run = FakeRuntime(["record", str(record)], ["text", "a"]).start("hi")
    assert run.pid is None
    run.close()
    assert list(run) == []
    assert not record.exists()


def test_bad_arguments_raise_when_the_call_is_made() -> None:
    runtime = FakeRuntime()
    for verb in (runtime.execute, runtime.start, runtime.run):
        with pytest.raises(ValueError, match="prompt"):
            verb("")
        with pytest.raises(TypeError, match="params"):
            verb(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"timeout": -1.0}, {"timeout": 0}, {"linger": float("nan")}, {"tool_timeout": -1}])
def test_bad_limits_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        FakeRuntime(**options)


# --- file descriptors -------------------------------------------------------------------------------------


@pytest.fixture
def few_descriptors() -> Iterator[Callable[[int], None]]:
    """Sets how many more files this process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def allow(more: int) -> None:
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        holes = highest + 1 - len(os.listdir("/proc/self/fd"))
        fillers.extend(os.open("/dev/null", os.O_RDONLY) for _ in range(holes))
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + more, hard))

    fillers: list[int] = []
    yield allow
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for fd in fillers:
        os.close(fd)


@pytest.mark.parametrize("more", range(16))
def test_running_out_of_file_descriptors_leaks_none(more: int, few_descriptors: Callable[[int], None]) -> None:
    """Whichever call is the one that fails (the fixture of all tests counts)."""
    runtime = FakeRuntime(["text", "hello"])
    before = len(os.listdir("/proc/self/fd"))
    few_descriptors(more)
    _, result = finished(runtime.execute("hi"))
    assert result.ok or result.error_subtype == "crash"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    assert done(runtime.execute("hi")).text == "hello"
    assert before <= len(os.listdir("/proc/self/fd"))


def test_descriptors_over_1024_work() -> None:
    """`select()` only works below that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1200:
        pytest.skip(f"this machine allows only {hard} file descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    fillers = [os.open("/dev/null", os.O_RDONLY) for _ in range(1050)]
    try:
        assert done(FakeRuntime(["text", "hello"]).execute("hi")).text == "hello"
    finally:
        for fd in fillers:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_cli_inherits_no_descriptor_but_its_three_streams(tmp_path: Path) -> None:
    record = tmp_path / "record"
    inheritable = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(inheritable, True)
    try:
        done(FakeRuntime(["record", str(record)]).execute("hi"))
    finally:
        os.close(inheritable)
    assert json.loads(record.read_text())["fds"] == [0, 1, 2]


def test_a_host_without_standard_streams_can_run_a_cli(tmp_path: Path) -> None:
    """A daemon has closed 0, 1 and 2, so our pipes get these numbers."""
    answer = tmp_path / "answer"
    run_host(
        """
        import os, sys
        from tests.fakes import FakeRuntime, done
        for fd in (0, 1, 2):
            os.close(fd)
        result = done(FakeRuntime(["read_stdin"], ["text", "hello"], ["raw", "note", 2]).execute("hi"))
        with open(sys.argv[1], "w") as file:
            file.write(f"{result.ok} {result.text} {result.stderr}")
        os._exit(0)
        """,
        str(answer),
    )
    assert answer.read_text() == "True hello note"


# --- the prompt --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prompt", ["hi", "--help\n- ' \" \\ $HOME `x` \u2028 🦞\r\n", BIG], ids=["short", "nasty", "5 MB"]
)
def test_a_prompt_arrives_on_stdin_byte_for_byte_and_stdin_ends(prompt: str, tmp_path: Path) -> None:
    record = tmp_path / "record"
    result = done(FakeRuntime(["read_stdin"], ["record", str(record)], ["text", "got it"]).execute(prompt))
    assert result.ok
    received = json.loads(record.read_text())
    assert received["stdin"] == prompt
    assert received["argv"] == []


def test_a_big_prompt_to_a_cli_that_never_reads_does_not_block_its_answer() -> None:
    result = done(FakeRuntime(["text", "unasked"]).execute(BIG))
    assert result.ok
    assert result.text == "unasked"


def test_a_big_prompt_to_a_cli_that_exits_at_once_is_its_exit_that_counts() -> None:
    events, result = finished(FakeRuntime(["exit", 3]).execute(BIG))
    assert codes(events) == ["CLI_EXIT_ERROR"]
    assert result.exit_code == 3


def test_a_big_prompt_to_a_cli_that_closes_stdin_is_no_error() -> None:
    assert done(FakeRuntime(["read_stdin", 10], ["close", 0], ["text", "enough"]).execute(BIG)).ok


def test_a_big_prompt_and_a_big_answer_cross_without_deadlock() -> None:
    line = json.dumps({"type": "text", "text": "x" * 990}) + "\n"
    steps = (["repeat", line, 3000], ["read_stdin"], ["repeat", line, 3000])
    assert len(done(FakeRuntime(*steps).execute(BIG)).text) == 6000 * 990


def test_a_cli_that_waits_for_the_end_of_stdin_gets_it(gate: Callable[[], Gate]) -> None:
    reached = gate()
    run = FakeRuntime(["read_stdin"], ["notify", reached.path], ["text", "ok"]).start("hi")
    with run:
        assert next(run).type == "text"
        reached.wait()


class PromptInArguments(FakeRuntime):
    @property
    def supports_stdin_prompt(self) -> bool:
        return False

    def build_args(self, params: AgentExecuteParams) -> list[str]:
        return [params.prompt]


def test_a_runtime_without_stdin_has_the_prompt_in_its_arguments_and_nothing_on_stdin(tmp_path: Path) -> None:
    record = tmp_path / "record"
    done(PromptInArguments(["read_stdin"], ["record", str(record)]).execute("hello there"))
    received = json.loads(record.read_text())
    assert received["argv"] == ["hello there"]
    assert received["stdin"] == ""


def test_a_prompt_too_long_for_an_argument_is_a_clear_error() -> None:
    events, result = finished(PromptInArguments().execute(BIG))
    error = the_error(events)
    assert error.code == "SPAWN_FAILED"
    assert "stdin" in error.message
    assert len(error.message) < 1000
    assert not result.ok
