"""CLIs that are older than the flags we use, or not installed properly: what a run does, and what it says.

Their messages are those of the versions named in the tests.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any, Literal

import pytest

from remoteclaw_sync import (
    AgentErrorEvent,
    AgentEvent,
    AgentRunResult,
    McpServerConfig,
    ReplayRuntime,
    create_cli_runtime,
)
from remoteclaw_sync.clis.fake import Line, Script, ToolCall
from remoteclaw_sync.clis.registry import fake_of
from tests.fakes import codes, finished
from tests.installs import STUBS, TESTED_VERSIONS, npm_install, put_program, python_program, refusing

GEMINI_HELP = "Usage: gemini [options] [command]\n\nGemini CLI - Defaults to interactive mode."
# Shortened. 1.17.11 lists the long flag, 1.2.11 neither of them.
OPENCODE_HELP = """\
opencode run [message..]

run opencode with a message

Positionals:
  message  message to send  [array] [default: []]

Options:
  -h, --help         show help  [boolean]
  -m, --model        model to use in the format of provider/model  [string]
      --format       format: default (formatted) or json (raw JSON events)
{more}      --thinking     show thinking blocks  [boolean]
"""
OLD_FLAG = "      --dangerously-skip-permissions  auto-approve permissions that are not explicitly denied  [boolean]\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without settings, whose environment names no CLI's folder."""
    prefixes = ("OPENCODE", "CODEX", "GEMINI", "CLAUDE", "XDG_", "npm_config", "NPM_CONFIG", "PNPM")
    for name in [name for name in os.environ if name.startswith(prefixes)]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


def lines_of(provider: str, *tools: ToolCall) -> list[Line]:
    """What this CLI prints for an answer."""
    fake = fake_of(provider)
    return list(fake.lines(Script(text="hello", tools=tools, session_id=fake.session_id)))


def answering(provider: str, *tools: ToolCall) -> str:
    """Python code that prints it."""
    lines = [json.dumps(line) for line in lines_of(provider, *tools)]
    return f"for line in {lines!r}:\n    print(line)\n"


def run(
    provider: str, command: Path | str | list[str], tmp_path: Path, **fields: Any
) -> tuple[list[AgentErrorEvent], AgentRunResult]:
    options = {"record": fields.pop("record")} if "record" in fields else {}
    runtime = create_cli_runtime(provider, command=command, timeout=60.0, **options)
    project = tmp_path / "project"
    project.mkdir(exist_ok=True)
    events, result = finished(runtime.execute("hi", working_directory=project, **fields))
    return errors_of(events), result


def errors_of(events: list[AgentEvent]) -> list[AgentErrorEvent]:
    return [event for event in events if isinstance(event, AgentErrorEvent)]


# --- the version is named -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider", "version", "flag", "words", "needed"),
    [
        (
            "claude",
            "1.0.100",
            "--include-partial-messages",
            "error: unknown option '--include-partial-messages'",
            "2.0.34",
        ),
        (
            "gemini",
            "0.10.0",
            "--output-format",
            f'Invalid values:\n  Argument: output-format, Given: "stream-json"\n{GEMINI_HELP}',
            "0.47.0",
        ),
        ("codex", "0.20.0", "--color", "error: unexpected argument '--color' found", "0.134.0"),
        ("opencode", "1.0.61", "--thinking", OPENCODE_HELP.format(more=""), "1.17.18"),
    ],
)
def test_a_run_that_an_old_cli_refuses_says_which_version_it_is_and_which_is_needed(
    provider: str, version: str, flag: str, words: str, needed: str, tmp_path: Path
) -> None:
    cli = npm_install(tmp_path, provider, version, refusing(flag, words))
    (error,), result = run(provider, cli, tmp_path)
    assert error.message.endswith(f"; this is {provider} {version}; {needed} or newer is needed")
    assert (error.code, result.error_subtype) == ("CLI_EXIT_ERROR", "config")


@pytest.mark.parametrize(
    ("fields", "flag", "option"),
    [
        ({"system_prompt": "be brief"}, "--append-system-prompt-file", "system_prompt came with 2.0.34"),
        ({"permission_mode": "read-only"}, "--tools", "read-only came with 2.0.31"),
    ],
)
def test_an_option_that_came_later_is_named(fields: dict[str, Any], flag: str, option: str, tmp_path: Path) -> None:
    program = refusing(flag, f"error: unknown option '{flag}'", otherwise=answering("claude"))
    cli = npm_install(tmp_path, "claude", "2.0.14", program)
    (error,), result = run("claude", cli, tmp_path, **fields)
    assert f"this is claude 2.0.14; 2.0.34 or newer is needed ({option})" in error.message
    assert result.error_subtype == "config"
    assert run("claude", cli, tmp_path)[1].ok


def test_a_newer_cli_that_fails_is_not_called_old(tmp_path: Path) -> None:
    cli = npm_install(tmp_path, "claude", "9.9.9", refusing("-p", "error: unknown option '-p'"))
    (error,), _ = run("claude", cli, tmp_path)
    assert error.message == "error: unknown option '-p'"


@pytest.mark.parametrize(
    "words", ["Invalid API key · Please run /login", "No conversation found with session ID: x", "fetch failed"]
)
def test_a_failure_that_has_nothing_to_do_with_its_age_is_left_as_it_is(words: str, tmp_path: Path) -> None:
    cli = npm_install(tmp_path, "claude", "2.0.14", refusing("-p", words))
    (error,), _ = run("claude", cli, tmp_path)
    assert error.message == words


def test_an_old_cli_that_has_spoken_is_not_blamed(tmp_path: Path) -> None:
    line = json.dumps({"type": "thread.started", "thread_id": fake_of("codex").session_id})
    cli = npm_install(tmp_path, "codex", "0.60.0", python_program(f"print({line!r})\nsys.exit('Error: no')\n"))
    (error,), _ = run("codex", cli, tmp_path)
    assert error.message == "no"


def test_a_replayed_failure_names_the_recorded_version(tmp_path: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    cli = npm_install(tmp_path, "claude", "1.0.100", refusing("-p", "error: unknown option '-p'"))
    recorded, _ = run("claude", cli, tmp_path, record=tape)
    cli.unlink()
    events, _ = finished(ReplayRuntime(tape).execute("hi"))
    assert [event.message for event in errors_of(events)] == [event.message for event in recorded]


# --- Codex before 0.134 ---------------------------------------------------------------------------------------

CODEX_0_133 = """\
home = os.environ["CODEX_HOME"]
profile = [argument.partition("=")[2] for argument in argv if argument.startswith("--profile=")]
if profile:
    sys.exit(f"Error: config profile `{profile[0]}` not found")
with open(os.path.join(home, "config.toml")) as file:
    config = file.read()
with open(os.path.join(home, "seen"), "a") as file:
    file.write(config)
if "broken" in config:
    sys.exit("Error: thread/start: thread/start failed: required MCP servers failed to initialize: "
             "broken: connection closed")
"""


@pytest.fixture
def codex_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = home / ".codex"
    folder.mkdir()
    (folder / "config.toml").write_text('model = "mine"\n')
    monkeypatch.setenv("CODEX_HOME", str(folder))
    return folder


def test_a_codex_without_profile_files_gets_secret_servers_by_way_of_its_config(
    tmp_path: Path, codex_home: Path
) -> None:
    cli = npm_install(tmp_path, "codex", "0.133.0", python_program(CODEX_0_133 + answering("codex")))
    server = McpServerConfig("a-server", env={"KEY": "a-very-secret-value"})
    (warning,), result = run("codex", cli, tmp_path, mcp_servers={"mine": server})
    assert result.ok
    assert (warning.code, "0.134.0" in warning.message) == ("CLI_WARNING", True)
    seen = tomllib.loads((codex_home / "seen").read_text())
    assert seen["model"] == "mine"
    assert seen["mcp_servers"]["mine"]["env"] == {"KEY": "a-very-secret-value"}
    assert (codex_home / "config.toml").read_text() == 'model = "mine"\n'
    assert sorted(path.name for path in codex_home.iterdir() if "lock" not in path.name) == ["config.toml", "seen"]


def test_a_codex_without_profile_files_takes_python_functions_as_tools(tmp_path: Path, codex_home: Path) -> None:
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    cli = npm_install(tmp_path, "codex", "0.101.0", python_program(CODEX_0_133 + answering("codex")))
    (warning,), result = run("codex", cli, tmp_path, tools=[add])
    assert (result.ok, warning.code) == (True, "CLI_WARNING")


def test_a_codex_without_profile_files_is_started_once_more_without_a_server_that_fails(
    tmp_path: Path, codex_home: Path
) -> None:
    cli = npm_install(tmp_path, "codex", "0.133.0", python_program(CODEX_0_133 + answering("codex")))
    servers = {"broken": McpServerConfig("x", env={"K": "secret-one"}), "good": McpServerConfig("y")}
    warnings, result = run("codex", cli, tmp_path, mcp_servers=servers)
    assert result.ok
    assert codes(warnings) == ["CLI_WARNING", "MCP_SERVER_FAILED"]


def test_a_profile_of_the_users_that_is_missing_is_a_mistake_in_the_settings(tmp_path: Path, codex_home: Path) -> None:
    cli = npm_install(tmp_path, "codex", TESTED_VERSIONS["codex"], python_program(CODEX_0_133))
    (error,), result = run("codex", cli, tmp_path, extra_args=["--profile=work"])
    assert (error.message, result.error_subtype) == ("config profile `work` not found", "config")


# --- OpenCode before 1.17.18 ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_refused_flag_is_no_crash_whichever_stream_opencode_prints_its_help_on(stream: str, tmp_path: Path) -> None:
    program = refusing("--nonsense", OPENCODE_HELP.format(more=""), stream=stream)
    cli = npm_install(tmp_path, "opencode", TESTED_VERSIONS["opencode"], program)
    (error,), result = run("opencode", cli, tmp_path, extra_args=["--nonsense"])
    assert (error.code, result.error_subtype) == ("CLI_EXIT_ERROR", "config")
    assert "unknown argument" in error.message


def test_words_before_the_first_event_are_not_lost_when_nothing_else_is_said(tmp_path: Path) -> None:
    cli = put_program(tmp_path / "claude", python_program("print('out of luck')\nsys.exit(9)\n"))
    (error,), result = run("claude", cli, tmp_path)
    assert "out of luck" in error.message
    assert (result.error_subtype, result.stderr) == ("crash", "")


NOTE = """\
with open("started", "a") as file:
    file.write(json.dumps([argv, os.environ.get("OPENCODE_PERMISSION")]) + "\\n")
"""


def starts(tmp_path: Path) -> list[tuple[list[str], dict[str, Any]]]:
    """The arguments and rules of each start."""
    lines = (tmp_path / "project" / "started").read_text().splitlines()
    return [(argv, json.loads(rules or "{}")) for argv, rules in map(json.loads, lines)]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_bypass_goes_by_the_older_flag_where_opencode_has_no_auto(stream: str, tmp_path: Path) -> None:
    refuse = refusing("--auto", OPENCODE_HELP.format(more=OLD_FLAG), stream=stream, otherwise=answering("opencode"))
    cli = npm_install(tmp_path, "opencode", "1.17.11", refuse.replace("if any", NOTE + "if any", 1))
    (warning,), result = run("opencode", cli, tmp_path, permission_mode="bypass")
    assert result.ok
    assert (warning.code, "--dangerously-skip-permissions" in warning.message) == ("CLI_WARNING", True)
    (first, _), (second, _) = starts(tmp_path)
    assert "--auto" in first
    assert "--auto" not in second
    assert "--dangerously-skip-permissions" in second


def test_bypass_goes_by_rules_where_opencode_has_no_flag_for_it(tmp_path: Path) -> None:
    refuse = refusing("--auto", OPENCODE_HELP.format(more=""), stream="stdout", otherwise=answering("opencode"))
    cli = npm_install(tmp_path, "opencode", "1.2.11", refuse.replace("if any", NOTE + "if any", 1))
    (warning,), result = run("opencode", cli, tmp_path, permission_mode="bypass")
    assert (result.ok, warning.code) == (True, "CLI_WARNING")
    (_, before), (second, rules) = starts(tmp_path)
    assert before == {}
    assert not any(argument in second for argument in ("--auto", "--dangerously-skip-permissions"))
    assert rules == {"external_directory": {"*": "allow"}, "doom_loop": "allow"}


def test_a_flag_of_the_callers_that_is_refused_does_not_change_the_way_of_bypass(tmp_path: Path) -> None:
    more = "      --auto  auto-approve permissions that are not explicitly denied  [boolean]\n"
    cli = npm_install(tmp_path, "opencode", "1.18.33", refusing("--nonsense", OPENCODE_HELP.format(more=more)))
    errors, result = run("opencode", cli, tmp_path, permission_mode="bypass", extra_args=["--nonsense"])
    assert (codes(errors), result.error_subtype) == (["CLI_EXIT_ERROR"], "config")


# --- Gemini before 0.47 ---------------------------------------------------------------------------------------

NO_POLICY = f"Unknown arguments: admin-policy, adminPolicy\n{GEMINI_HELP}"


def test_a_gemini_known_to_be_too_old_is_refused_instead_of_run_without_our_policy(tmp_path: Path) -> None:
    program = refusing("--admin-policy", NO_POLICY, otherwise=answering("gemini"))
    cli = npm_install(tmp_path, "gemini", "0.20.2", program)
    (error,), result = run("gemini", cli, tmp_path)
    assert error.message.endswith("this is gemini 0.20.2; 0.47.0 or newer is needed")
    assert (error.code, result.error_subtype, result.text) == ("CLI_EXIT_ERROR", "config", "")


def test_a_gemini_without_policies_is_not_given_images_that_it_would_lose(tmp_path: Path) -> None:
    image = tmp_path / "image.png"
    image.write_bytes(b"\x89PNG\r\n\x1a\n")
    cli = put_program(tmp_path / "gemini", refusing("--admin-policy", NO_POLICY, otherwise=answering("gemini")))
    (error,), result = run("gemini", cli, tmp_path, images=[image])
    assert (error.code, result.error_subtype) == ("CLI_EXIT_ERROR", "config")
    assert codes(run("gemini", cli, tmp_path)[0]) == ["CLI_WARNING"]


SHELL_CALL = ToolCall("run_shell_command", {"command": "false"}, "")


@pytest.mark.parametrize(("version", "warned"), [("0.43.0", True), ("0.47.0", False), ("0.61.0", False)])
def test_a_gemini_that_keeps_the_output_of_commands_to_itself_is_a_warning(
    version: str, warned: bool, tmp_path: Path
) -> None:
    lines = lines_of("gemini", SHELL_CALL)
    for line in lines:
        line.pop("output", None)
    program = python_program(f"for line in {[json.dumps(line) for line in lines]!r}:\n    print(line)\n")
    cli = npm_install(tmp_path, "gemini", version, program)
    warnings, result = run("gemini", cli, tmp_path)
    assert result.ok
    assert [f"gemini {version} does not report" in warning.message for warning in warnings] == [True] * warned


CLOSED = (
    "Error authenticating: IneligibleTierError: This client is no longer supported for Gemini Code Assist for "
    "individuals. To continue using Gemini, please migrate to the Antigravity suite of products: "
    "https://antigravity.google\n    at _doSetupUser (file:///x/setup.js:155:15) {\n"
    "  ineligibleTiers: [ { reasonCode: 'UNSUPPORTED_CLIENT', tierId: 'free-tier' } ]\n}"
)
EXITS = f"print({CLOSED!r}, file=sys.stderr)\nsys.exit(%d)\n"
REFUSES_THE_SESSION = f"""
import json
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "initialize":
        print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], "result": {{"protocolVersion": 1}}}}), flush=True)
    elif "id" in asked:
        error = {{"code": -32000, "message": "Authentication required", "data": {{"details": {CLOSED!r}}}}}
        print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], "error": error}}), flush=True)
"""


@pytest.mark.parametrize(
    ("transport", "program"),
    [("oneshot", EXITS % 1), ("oneshot", EXITS % 41), ("live", EXITS % 41), ("live", REFUSES_THE_SESSION)],
    ids=["exit-1", "exit-41", "live-exit", "live-refusal"],
)
def test_an_account_that_gemini_is_closed_to_is_told_what_works_instead(
    transport: Literal["oneshot", "live"], program: str, tmp_path: Path
) -> None:
    cli = npm_install(tmp_path, "gemini", "0.61.0", python_program(program))
    runtime = create_cli_runtime("gemini", command=cli, timeout=60.0, transport=transport)
    events, result = finished(runtime.execute("hi", working_directory=tmp_path))
    (error,) = errors_of(events)
    assert result.error_subtype == "auth"
    assert "no longer supported" in error.message
    assert "set GEMINI_API_KEY, or use Vertex AI" in error.message
    assert "log in" not in error.message


# --- installs that are not whole, or not on PATH --------------------------------------------------------------


@pytest.mark.parametrize("folder", [".local/bin", ".opencode/bin"])
def test_a_cli_that_is_installed_but_not_on_path_is_named_with_its_path(
    folder: str, tmp_path: Path, home: Path
) -> None:
    program = put_program(home / folder / "opencode", python_program(answering("opencode")))
    (error,), result = run("opencode", "opencode", tmp_path, env={"PATH": str(tmp_path)})
    assert (error.code, result.error_subtype) == ("CLI_NOT_FOUND", "cli_missing")
    assert f"command={str(program)!r}" in error.message
    assert run("opencode", program, tmp_path)[1].ok


def test_a_cli_that_is_nowhere_is_told_how_to_install(tmp_path: Path) -> None:
    (error,), _ = run("opencode", "opencode", tmp_path, env={"PATH": str(tmp_path)})
    assert error.message.endswith("install it with: npm install -g opencode-ai")


@pytest.mark.parametrize(
    "program", ["#!/usr/bin/env node\n", '#!/bin/sh\nexec node "$0.js"\n', "#!/bin/sh\nnode x\n"], ids=str.strip
)
def test_a_cli_that_needs_node_says_so_where_there_is_none(program: str, tmp_path: Path) -> None:
    cli = npm_install(tmp_path, "gemini", "0.61.0", program)
    path = tmp_path / "path"
    path.mkdir()
    (error,), result = run("gemini", cli, tmp_path, env={"PATH": str(path)})
    assert (error.code, result.error_subtype) == ("CLI_NOT_EXECUTABLE", "cli_missing")
    assert "needs Node" in error.message


def test_a_cli_whose_first_line_names_a_node_that_is_gone_is_missing_too(tmp_path: Path) -> None:
    cli = npm_install(tmp_path, "gemini", "0.61.0", "#!/opt/gone/bin/node\n")
    (error,), result = run("gemini", cli, tmp_path)
    assert (error.code, result.error_subtype) == ("SPAWN_FAILED", "cli_missing")
    assert "needs Node" in error.message


@pytest.mark.parametrize("provider", STUBS)
def test_a_placeholder_of_npms_is_not_executable_and_the_script_to_run_is_named(provider: str, tmp_path: Path) -> None:
    script, stub = STUBS[provider]
    cli = npm_install(tmp_path, provider, TESTED_VERSIONS[provider], stub)
    (error,), result = run(provider, cli, tmp_path)
    assert (error.code, result.error_subtype) == ("CLI_NOT_EXECUTABLE", "cli_missing")
    assert f"run: node {cli.resolve().parent.parent / script}" in error.message


def test_a_placeholder_behind_a_wrapper_is_a_missing_cli_too(tmp_path: Path) -> None:
    stub = npm_install(tmp_path, "claude", TESTED_VERSIONS["claude"], STUBS["claude"][1])
    cli = put_program(tmp_path / "wrapper", f'#!/bin/sh\nexec {stub} "$@"\n')
    (error,), result = run("claude", cli, tmp_path)
    assert result.error_subtype == "cli_missing"
    assert "node node_modules/@anthropic-ai/claude-code/install.cjs" in error.message


def test_the_version_of_a_cli_is_known_where_its_interpreter_is_the_command(tmp_path: Path) -> None:
    cli = npm_install(tmp_path, "claude", "1.0.100", refusing("-p", "error: unknown option '-p'"))
    (error,), _ = run("claude", [sys.executable, "-IS", str(cli.resolve())], tmp_path)
    assert "this is claude 1.0.100; 2.0.34 or newer is needed" in error.message
