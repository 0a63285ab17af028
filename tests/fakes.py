"""Building blocks for tests of the engine: a runtime for the fake CLI, gates between test and CLI, bounded waiting."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from remoteclaw_sync import (
    AgentDoneEvent,
    AgentErrorEvent,
    AgentEvent,
    AgentExecuteParams,
    AgentRunResult,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    CLIRuntimeBase,
)
from remoteclaw_sync.clis.dialect import DialectRuntime
from remoteclaw_sync.engine.dialect import Dialect
from remoteclaw_sync.process.child import ChildProcess
from remoteclaw_sync.process.launch import Setup

FAKE_CLI = Path(__file__).with_name("fake_cli.py")
PATIENCE = 30.0  # Seconds a busy machine may take for what normally takes milliseconds.
LONGEST_ARGUMENT = 100_000  # Bytes; the kernel's limit for one argument is 128 KiB.

Step = list[Any]


def fake_command(*steps: Step, script_file: Path | None = None) -> list[str]:
    """The command line of a fake CLI that does these steps."""
    script = json.dumps(steps)
    if script_file is not None or len(script) > LONGEST_ARGUMENT:
        assert script_file is not None, "a script this long needs a file"
        script_file.write_text(script)
        script = f"@{script_file}"
    return [sys.executable, "-I", "-S", str(FAKE_CLI), script]


def quick_command(*steps: Step) -> list[str]:
    """The simplest steps as a shell script, which starts in 2 ms where Python needs 30 (and half a second on a busy
    machine): for tests of clocks that run from the start."""
    return ["/bin/sh", "-c", "\n".join(_in_shell(*step) for step in steps) or ":"]


def _in_shell(name: str, *arguments: Any) -> str:
    match name, arguments:
        case "text", (text,):
            return _in_shell("line", {"type": "text", "text": text})
        case "line", (value,):
            return f"printf '%s\\n' {shlex.quote(json.dumps(value))}"
        case "notify", (fifo,):
            return f"echo $$ >{shlex.quote(fifo)}"
        case "sleep", (seconds,):
            return f"sleep {seconds}"
        case "ignore", (signal_name,):
            return f"trap '' {signal_name.removeprefix('SIG')}"
        case "stop", ():
            return "kill -STOP $$"
        case "exit", (code,):
            return f"exit {code}"
        case "hang", ():
            return "exec sleep 1000"
    raise ValueError(f"no shell knows the step {name}")


# Steps that a shell can do. (It sleeps with the help of a child, which may outlive it.)
SIMPLE_STEPS = {"text", "line", "notify", "exit", "hang"}


def _command(*steps: Step) -> list[str]:
    """The command line of the quickest program that can do these steps."""
    simple = all(name in SIMPLE_STEPS and len(arguments) <= 1 for name, *arguments in steps)
    if simple and len(json.dumps(steps)) < LONGEST_ARGUMENT:
        return quick_command(*steps)
    return fake_command(*steps)


class FakeRuntime(CLIRuntimeBase):
    """Maps `{"type": "text", "text": ...}` and so on to the event of that type."""

    def __init__(self, *steps: Step, command: Any = None, timeout: float | None = 60.0, **options: Any) -> None:
        super().__init__(command or _command(*steps), timeout, **options)
        self.stream: Literal["stdout", "stderr"] = "stdout"

    @property
    def ndjson_stream(self) -> Literal["stdout", "stderr"]:
        return self.stream

    def build_args(self, params: AgentExecuteParams) -> list[str]:
        return list(params.extra_args)

    def build_env(self, params: AgentExecuteParams) -> dict[str, str | None]:
        return {}

    def extract_event(self, line: str) -> AgentEvent | Iterable[AgentEvent] | None:
        message = json.loads(line, strict=False)  # As in the engine: raw control characters are allowed.
        match message.get("type"):
            case "text":
                return AgentTextEvent(message["text"])
            case "thinking":
                return AgentThinkingEvent(message["text"])
            case "tool_use":
                return AgentToolUseEvent(message.get("name", "shell"), message["id"], message.get("input", {}))
            case "tool_result":
                return AgentToolResultEvent(message["id"], message.get("output", ""), message.get("is_error", False))
            case "error":
                return AgentErrorEvent(message["message"], message.get("code"))
            case "done":
                return AgentDoneEvent(AgentRunResult(error_subtype=message.get("error_subtype")))
            case "reopen":
                self.outcome.reopen()
        return None


def quick(*steps: Step, **options: Any) -> FakeRuntime:
    """A runtime for these steps as a shell script."""
    return FakeRuntime(command=quick_command(*steps), **options)


def done(events: Iterable[AgentEvent]) -> AgentRunResult:
    """The result of a complete run; checks that there was exactly one `done`, at the end."""
    return finished(events)[1]


def finished(events: Iterable[AgentEvent]) -> tuple[list[AgentEvent], AgentRunResult]:
    """All events of a complete run before its `done`, and the result; checks that there was exactly one `done`, at the
    end."""
    *others, last = list(events)
    assert isinstance(last, AgentDoneEvent)
    assert not any(isinstance(event, AgentDoneEvent) for event in others)
    assert last.result.text == "".join(event.text for event in others if isinstance(event, AgentTextEvent))
    return others, last.result


def dialect_of(runtime: CLIRuntimeBase) -> Dialect:
    """How a runtime of a known CLI reads its lines."""
    assert isinstance(runtime, DialectRuntime)
    return runtime.dialect


def events_from(runtime: CLIRuntimeBase, *lines: str | Mapping[str, Any]) -> list[AgentEvent]:
    """The events that this runtime makes of these lines, read as in its runs."""
    sources = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    return dialect_of(runtime).events("\n".join(sources).encode())


def codes(events: Iterable[AgentEvent]) -> list[str | None]:
    """The codes of the errors among these events."""
    return [event.code for event in events if isinstance(event, AgentErrorEvent)]


def wait_until(predicate: Callable[[], Any], timeout: float = PATIENCE) -> bool:
    """Whether this became true in time. For changes in the kernel that nobody is notified of."""
    deadline = time.monotonic() + timeout
    while not predicate():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


class PassingTime:
    """The clock of a runtime's runs, which can be put forward: silence without waiting."""

    def __init__(self, runtime: CLIRuntimeBase) -> None:
        self._ahead = 0.0
        self._children: list[ChildProcess] = []
        setattr(runtime, "connect", self._connect)  # noqa: B010 - mypy knows it as a method

    def _connect(self, setup: Setup) -> ChildProcess:
        self._children.append(ChildProcess(setup, clock=self))
        return self._children[-1]

    def __call__(self) -> float:
        return time.monotonic() + self._ahead

    def put_forward(self, seconds: float) -> None:
        self._ahead += seconds
        for child in self._children:
            child.wake()


class Gate:
    """A FIFO between a test and a fake CLI: one side waits, the other opens it."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # Both ends, so that opening it does not block.

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._fd)

    def open(self) -> None:
        """Let one waiter pass."""
        os.write(self._fd, b"!")

    def wait(self) -> int:
        """Wait (bounded) for one `notify`; returns the pid of the process that sent it."""
        data = b""
        while not data.endswith(b"\n"):
            ready, _, _ = select.select([self._fd], [], [], PATIENCE)
            assert ready, f"nobody came to {self.path}"
            data += os.read(self._fd, 1)
        return int(data)


def alive(pid: int) -> bool:
    """Whether this process exists and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in (b"Z", b"X")


def children(pid: int) -> list[int]:
    """The children of all threads of this process."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # The thread has ended since.
            found += map(int, path.read_text().split())
    return found


def is_guarded(host: int) -> bool:
    """Whether this host has a CLI and, some milliseconds later, the guard that ends the CLI if the host is killed."""
    return len(children(host)) == 2


def is_kept_waiting(pid: int) -> bool:
    """Whether this process is blocked on writing to a full pipe."""
    return "pipe_write" in Path(f"/proc/{pid}/wchan").read_text()


class Container:
    """A place whose processes see only each other: for tests of code that looks at all processes of this user.

    Other programs, and other copies of these tests, are neither visible nor touched from inside. Raises OSError where
    it cannot be created.
    """

    def __init__(self) -> None:
        rootless = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        unshare, enter = shutil.which("unshare"), shutil.which("nsenter")
        if unshare is None or enter is None:
            raise FileNotFoundError("no unshare, no nsenter")
        process_1 = ["sh", "-c", "echo ready; exec cat"]
        self._process_1 = subprocess.Popen(
            [unshare, *rootless, "--pid", "--fork", "--mount-proc", "--kill-child", *process_1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        made = self._process_1.pid
        where = [*rootless[:1], f"--target={made}", "--mount", f"--pid=/proc/{made}/ns/pid_for_children"]
        self.inside = ["/bin/sh", "-c", f'exec {shlex.join([enter, *where])} --wdns="$PWD" "$@"', "inside"]
        """Put before a command, it runs that command in there, in the same folder."""
        assert self._process_1.stdout is not None
        if not self._process_1.stdout.readline():
            raise OSError(self.close())

    def __enter__(self) -> Container:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> str:
        """End everything in there. Returns what `unshare` complained about."""
        return self._process_1.communicate(timeout=PATIENCE)[1].strip()

    def kill(self, process: subprocess.Popen[Any]) -> None:
        """Send SIGKILL to what was started with `inside`, if it is still running. `process`, outside, only waits for
        it."""
        if process.poll() is None:
            for pid in children(process.pid):
                os.kill(pid, signal.SIGKILL)
        process.wait(PATIENCE)


def start_host(code: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start a user's Python program in a separate process. Its stdout is a pipe. `inside`: a command that starts it."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **options.pop("env", {})}
    return subprocess.Popen(
        [
            *options.pop("inside", ()),
            sys.executable,
            "-X",
            "dev",
            "-W",
            "ignore",
            "-c",
            textwrap.dedent(code),
            *arguments,
        ],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": env, **options},
    )


def run_host(code: str, *arguments: str, **options: Any) -> str:
    """What such a program prints; it must exit with 0 and print nothing on stderr."""
    with start_host(code, *arguments, **options) as host:
        try:
            out, err = host.communicate(timeout=3 * PATIENCE)  # It does much more than one thing.
        finally:
            host.kill()
    assert (host.returncode, err) == (0, "")
    return out
