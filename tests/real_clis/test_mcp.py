"""The caller's MCP servers on the four real CLIs: they work, they are private, and they leave no trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import (
    AgentEvent,
    AgentRun,
    AgentRunResult,
    CLIRuntimeBase,
    McpServerConfig,
    create_cli_runtime,
    errors,
)
from remoteclaw_sync.files import PREFIX
from tests.fakes import codes, finished, wait_until
from tests.real_clis.bench import Bench
from tests.real_clis.clis import RealCli
from tests.real_clis.mcp_server import HttpMcpServer
from tests.real_clis.script import Hang, Turn

# Everything that a config format, a shell or a variable expansion might interpret.
NASTY = "s3cr3t \"quoted\" 'single' \\back $HOME ${HOME} {env:HOME} {file:/etc/hostname} %PATH% ünïcødé 🎉 #;=[]{}"
SECRET = "the-secret-that-nobody-may-see-4711"

USER_FILES = {
    "claude": ".mcp.json",
    "gemini": ".gemini/settings.json",
    "codex": None,
    "opencode": ".opencode/opencode.json",
}


def runtime_of(cli: RealCli, **options: Any) -> CLIRuntimeBase:
    return create_cli_runtime(cli.name, timeout=60, **options)


def run(
    bench: Bench, cli: RealCli, servers: dict[str, McpServerConfig], **fields: Any
) -> tuple[list[AgentEvent], AgentRunResult]:
    """One run in the bench's folder with these servers."""
    options = fields.pop("options", {})
    model = cli.model if cli.name == "opencode" else None
    events = runtime_of(cli, **options).execute(
        "call the tool", working_directory=bench.workdir, mcp_servers=servers, model=model, **fields
    )
    return finished(events)


def server(bench: Bench, *args: str, env: dict[str, str] | None = None, trust: bool = True) -> McpServerConfig:
    command, *rest = bench.mcp_command(*args)
    return McpServerConfig(command, rest, env or {}, trust)


def call_then_say_what_came(cli: RealCli, name: str, tool: str, arguments: dict[str, Any]) -> Callable[[Any], Turn]:
    """A model that calls one tool and then answers with the tool's result, for any number of runs at once."""

    def respond(request: Any) -> Turn:
        if not request.tool_results:
            return Turn(tool_calls=[cli.mcp_call(name, tool, arguments)])
        return Turn(text="it said: " + request.tool_results[-1].text)

    return respond


def tool_results(events: list[AgentEvent]) -> list[tuple[str, bool]]:
    return [(event.output, event.is_error) for event in events if event.type == "tool_result"]


def everything_in(folder: Path) -> dict[str, tuple[int, bytes | None]]:
    """Names, modes and bytes below a folder."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_mode, path.read_bytes() if path.is_file() else None)
        for path in folder.rglob("*")
    }


def config_files(bench: Bench, cli: RealCli) -> dict[str, bytes]:
    """The user's own configuration, in the project and at home."""
    home = {"claude": ".claude.json", "gemini": ".gemini/settings.json", "codex": ".codex/config.toml"}
    paths = [bench.home / home.get(cli.name, ".config/opencode/opencode.json")]
    if USER_FILES[cli.name] is not None:
        paths.append(bench.workdir / str(USER_FILES[cli.name]))
    found = {str(path): path.read_bytes() for path in paths if path.is_file()}
    if cli.name == "claude":
        found.pop(str(bench.home / ".claude.json"), None)  # Claude's own state, which it rewrites in every run.
    return found


@pytest.fixture
def nothing_left(cli: RealCli, cli_bench: Bench) -> Iterator[None]:
    """Afterwards, the project and the user's configuration must be what they were before."""
    project, config = everything_in(cli_bench.workdir), config_files(cli_bench, cli)
    yield
    assert without_cli_s_own(everything_in(cli_bench.workdir)) == project
    assert config_files(cli_bench, cli) == config
    assert list(cli_bench.tmp.rglob("remoteclaw*")) == []
    assert list(cli_bench.home.rglob("remoteclaw*")) == []


def without_cli_s_own(files: dict[str, Any]) -> dict[str, Any]:
    """OpenCode itself puts these into a project's .opencode folder."""
    own = (".opencode/.gitignore", ".opencode/node_modules", ".opencode/package.json", ".opencode/bun.lock")
    return {name: value for name, value in files.items() if not name.startswith(own)}


@pytest.mark.usefixtures("nothing_left")
def test_a_stdio_server_is_called_with_its_environment_and_its_errors_come_back(cli: RealCli, cli_bench: Bench) -> None:
    calls = [
        cli.mcp_call("lab", "env", {"name": "TOKEN"}),
        cli.mcp_call("lab", "fail", {"text": "no such order"}),
    ]
    cli_bench.server.script([Turn(tool_calls=calls), Turn(text="both came back")])
    events, result = run(cli_bench, cli, {"lab": server(cli_bench, env={"TOKEN": NASTY})})
    assert result.ok, result
    assert result.text == "both came back"
    (value, value_failed), (failure, failure_failed) = sorted(tool_results(events), key=lambda found: found[1])
    assert NASTY in value
    assert not value_failed
    assert "no such order" in failure
    assert failure_failed


@pytest.mark.usefixtures("nothing_left")
def test_a_server_that_is_slow_to_start_is_there_in_the_first_request(cli: RealCli, cli_bench: Bench) -> None:
    cli_bench.server.respond(call_then_say_what_came(cli, "lab", "echo", {"text": "hi"}))
    events, result = run(cli_bench, cli, {"lab": server(cli_bench, "--start-delay", "3")})
    assert result.ok, result
    assert is_offered(cli_bench, "lab", "echo")
    assert "echo: hi" in result.text
    assert errors.MCP_SERVER_FAILED not in codes(events)


def is_offered(bench: Bench, server: str, tool: str) -> bool:
    """Whether the model could know about a tool in the very first request."""
    offered = bench.server.requests[0].tools
    # Codex keeps MCP tools behind the vendor's search tool if the model has one, and this cannot be turned off.
    return "tool_search" in offered or any(server in name and name.endswith(tool) for name in offered)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("broken", ["missing", "handshake"])
def test_a_server_that_cannot_be_used_is_a_warning_and_the_others_work(
    cli: RealCli, cli_bench: Bench, broken: str
) -> None:
    bad = McpServerConfig("/no/such/program") if broken == "missing" else server(cli_bench, "--broken")
    cli_bench.server.respond(call_then_say_what_came(cli, "good", "echo", {"text": "hi"}))
    events, result = run(cli_bench, cli, {"bad": bad, "good": server(cli_bench)})
    assert result.ok, result
    assert "echo: hi" in result.text
    warnings = [event for event in events if event.type == "error" and event.code == errors.MCP_SERVER_FAILED]
    assert len(warnings) == 1
    assert "bad" in warnings[0].message


def test_an_untrusted_server_is_left_to_the_cli_s_own_policy(cli: RealCli, cli_bench: Bench) -> None:
    cli_bench.server.respond(call_then_say_what_came(cli, "lab", "echo", {"text": "hi"}))
    events, _ = run(cli_bench, cli, {"lab": server(cli_bench, trust=False)})
    called = any("echo: hi" in output for output, _ in tool_results(events))
    assert called == (cli.name == "opencode")  # OpenCode does not ask for approval of MCP tools; the others refuse.


@pytest.mark.usefixtures("nothing_left")
def test_a_remote_server_gets_its_headers(cli: RealCli, cli_bench: Bench) -> None:
    with HttpMcpServer() as remote:
        cli_bench.server.respond(call_then_say_what_came(cli, "web", "header", {"name": "x-token"}))
        events, result = run(cli_bench, cli, {"web": McpServerConfig(url=remote.url, headers={"X-Token": SECRET})})
    assert result.ok, result
    assert any(SECRET in output for output, _ in tool_results(events))


def command_lines() -> str:
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lines.append((entry / "cmdline").read_bytes().decode(errors="replace"))
            except OSError:
                continue
    return "\n".join(lines)


def files_below(folder: Path) -> list[Path]:
    """Path.rglob() raises if a folder is removed while it looks; os.walk() skips it."""
    return [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]


@pytest.mark.usefixtures("nothing_left")
def test_a_secret_stands_in_no_command_line_log_or_readable_file(
    cli: RealCli, cli_bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    seen: list[str] = []
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            if SECRET in command_lines():
                seen.append("command line")
            for path in [*files_below(cli_bench.workdir), *files_below(cli_bench.tmp)]:
                try:
                    readable = path.is_file() and path.stat().st_mode & 0o044
                    if readable and SECRET.encode() in path.read_bytes():
                        seen.append(str(path))
                except OSError:
                    continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        cli_bench.server.respond(call_then_say_what_came(cli, "lab", "env", {"name": "TOKEN"}))
        events, result = run(cli_bench, cli, {"lab": server(cli_bench, env={"TOKEN": SECRET})})
    finally:
        over.set()
        watcher.join()
    assert any(SECRET in output for output, _ in tool_results(events))
    assert seen == []
    assert SECRET not in caplog.text
    assert SECRET not in result.stderr


def modes(cli: RealCli) -> list[dict[str, Any]]:
    return [{}, {"mcp_config": "merge-restore"}] if cli.name in ("codex", "opencode") else [{}]


@pytest.mark.usefixtures("nothing_left")
def test_eight_runs_at_once_in_one_folder_each_see_their_own_server(cli: RealCli, cli_bench: Bench) -> None:
    cli_bench.server.respond(call_then_say_what_came(cli, "lab", "env", {"name": "TOKEN"}))

    def one(number: int) -> AgentRunResult:
        return run(cli_bench, cli, {"lab": server(cli_bench, env={"TOKEN": f"token-{number}-of-8"})})[1]

    with in_this_namespace(8) as pool:
        results = list(pool.map(one, range(8)))
    for number, result in enumerate(results):
        assert result.ok, result
        assert f"token-{number}-of-8" in result.text


def in_this_namespace(workers: int) -> ThreadPoolExecutor:
    """Threads started here are in the test's network namespace, like the test itself."""
    return ThreadPoolExecutor(workers)


def add_own_server(bench: Bench, cli: RealCli) -> None:
    """The user has a server `mine` in a file of the project (or, for Codex, at home)."""
    command, *args = bench.mcp_command()
    quoted = ", ".join(f'"{arg}"' for arg in args)
    texts = {
        "claude": f'{{"mcpServers": {{"mine": {{"command": "{command}", "args": [{quoted}]}}}}}}',
        "gemini": f'// mine\n{{"mcpServers": {{"mine": {{"command": "{command}", "args": [{quoted}], '
        '"trust": true}}}',
        "opencode": f'{{"$schema": "https://opencode.ai/config.json", /* mine */ "mcp": {{"mine": '
        f'{{"type": "local", "command": ["{command}", {quoted}]}}}}}}',
    }
    if cli.name == "codex":
        with (bench.home / ".codex" / "config.toml").open("a") as file:
            file.write(
                f'\n# mine\n[mcp_servers.mine]\ncommand = "{command}"\nargs = [{quoted}]\n'
                'default_tools_approval_mode = "approve"\n'
            )
        return
    path = bench.workdir / str(USER_FILES[cli.name])
    path.parent.mkdir(exist_ok=True)
    path.write_text(texts[cli.name])


def test_the_user_s_own_server_stays_callable_and_its_file_comes_back(cli: RealCli, cli_bench: Bench) -> None:
    add_own_server(cli_bench, cli)
    before = config_files(cli_bench, cli)
    extra = ["--allowedTools=mcp__mine"] if cli.name == "claude" else []
    for options in modes(cli):
        calls = [cli.mcp_call("lab", "echo", {"text": "lab"}), cli.mcp_call("mine", "echo", {"text": "mine"})]
        cli_bench.server.script([Turn(tool_calls=calls), Turn(text="done")])
        events, result = run(cli_bench, cli, {"lab": server(cli_bench)}, extra_args=extra, options=options)
        assert result.ok, result
        outputs = " ".join(output for output, _ in tool_results(events))
        assert "echo: lab" in outputs
        assert "echo: mine" in outputs
        assert config_files(cli_bench, cli) == before, options


def end_by(way: str, handle: AgentRun) -> None:
    if way == "abort":
        handle.abort()
    elif way == "close":
        handle.close()
    else:
        assert handle.pid is not None
        os.kill(handle.pid, signal.SIGKILL)


@pytest.mark.parametrize("way", ["abort", "close", "crash"])
def test_nothing_is_left_when_the_run_is_cut_short(cli: RealCli, cli_bench: Bench, way: str) -> None:
    add_own_server(cli_bench, cli)
    project, before = everything_in(cli_bench.workdir), config_files(cli_bench, cli)
    for options in modes(cli):
        cli_bench.server.script([Hang()])
        model = cli.model if cli.name == "opencode" else None
        handle = runtime_of(cli, **options).start(
            "hang", working_directory=cli_bench.workdir, mcp_servers={"lab": server(cli_bench)}, model=model
        )
        asked = len(cli_bench.server.requests)
        consumer = threading.Thread(target=lambda handle=handle: [None for _ in handle])
        consumer.start()
        cli_bench.server.wait_for_requests(asked + 1, timeout=60)
        end_by(way, handle)
        consumer.join(timeout=10)
        assert not consumer.is_alive()
        assert config_files(cli_bench, cli) == before
        assert without_cli_s_own(everything_in(cli_bench.workdir)) == project
        assert wait_until(lambda: not cli_bench.processes())


HOST = """
import sys
from remoteclaw_sync import McpServerConfig, create_cli_runtime
provider, folder, model, command, *args = sys.argv[1:]
options = {"mcp_config": "merge-restore"} if provider in ("codex", "opencode") else {}
servers = {"lab": McpServerConfig(command, args, {"TOKEN": "x"})}
fields = {"model": model} if provider == "opencode" else {}
runtime = create_cli_runtime(provider, **options)
for event in runtime.execute("go", working_directory=folder, mcp_servers=servers, **fields):
    print(event.type, flush=True)
"""


def waiting_servers(bench: Bench) -> list[str]:
    return [line for line in bench.processes().values() if "--start-delay" in line and " -c " not in line]


def test_the_next_run_repairs_what_a_killed_host_left(cli: RealCli, cli_bench: Bench) -> None:
    add_own_server(cli_bench, cli)
    project, before = everything_in(cli_bench.workdir), config_files(cli_bench, cli)
    cli_bench.server.script([Hang()])
    # A server that is slow to start keeps the CLI from having read all of its configuration.
    command = cli_bench.mcp_command("--start-delay", "600")
    arguments = [cli.name, str(cli_bench.workdir), cli.model, *command]
    borrowed = cli_bench.workdir if cli.name != "codex" else cli_bench.home / ".codex"
    with subprocess.Popen(
        [sys.executable, "-c", HOST, *arguments], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ) as host:
        try:
            if cli.name != "claude":  # Claude has its servers in a file of ours; the user's is not touched.
                assert wait_until(lambda: any(borrowed.rglob("*.remoteclaw-journal")), timeout=30)
            else:
                assert wait_until(lambda: any(cli_bench.tmp.rglob(f"{PREFIX}*.mcp.json")), timeout=30)
            # The CLI is in the middle of starting: it waits for the server.
            assert wait_until(lambda: waiting_servers(cli_bench), timeout=30)
        finally:
            host.kill()
    assert wait_until(lambda: not cli_bench.processes(), timeout=30), "the CLI lives on after its host"
    cli_bench.server.respond(call_then_say_what_came(cli, "lab", "echo", {"text": "hi"}))
    options = {"mcp_config": "merge-restore"} if cli.name in ("codex", "opencode") else {}
    _, result = run(cli_bench, cli, {"lab": server(cli_bench)}, options=options)
    assert result.ok, result
    assert config_files(cli_bench, cli) == before
    assert without_cli_s_own(everything_in(cli_bench.workdir)) == project
