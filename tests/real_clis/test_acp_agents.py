"""AcpRuntime with real agents that speak ACP: those that can be installed without an account."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import pytest

from remoteclaw_sync import AcpRuntime, AgentToolResultEvent, AgentToolUseEvent, AgentUsage
from tests.fakes import done, finished, wait_until
from tests.real_clis.bench import Bench, open_bench
from tests.real_clis.clis import FAKE_KEY
from tests.real_clis.install import ACP_PACKAGE_JSON, bin_folder, vibe_bin_folder, wanted_versions
from tests.real_clis.model_server import ModelRequest
from tests.real_clis.script import ToolCall, Turn, Usage

pytestmark = [pytest.mark.real_cli, pytest.mark.timeout(300)]  # Agents take long to start on a busy machine.


@attrs.frozen
class Lab:
    """An agent on its bench."""

    bench: Bench
    name: str
    runtime: AcpRuntime
    shell: str
    env: Mapping[str, str]

    def shell_call(self, command: str) -> ToolCall:
        more = {"description": "run it", "is_background": False} if self.name == "qwen" else {}
        if self.name == "codex-acp":
            return ToolCall("exec_command", {"cmd": command, "yield_time_ms": 30_000})
        return ToolCall(self.shell, {"command": command, **more})

    def script_call(self, call: ToolCall, prompt: str, then: str) -> None:
        """Script one call, in answer to the request that has this prompt and offers tools. Agents also make their own
        requests: some offer no tools, and some are about the previous turn and arrive late."""
        left = [Turn(tool_calls=[call])]

        def answer(request: ModelRequest) -> Turn:
            return left.pop() if left and request.tools and request.occurrences(prompt) else Turn(text=then)

        self.bench.server.respond(answer)

    def fields(self, **more: Any) -> Any:
        return {"working_directory": self.bench.workdir, "env": self.env, **more}


SHELLS = {
    "opencode": "bash",
    "qwen": "run_shell_command",
    "goose": "developer__shell",
    "claude-agent-acp": "Bash",
    "codex-acp": "exec_command",
    "vibe-acp": "bash",
}
VIBE_SETTINGS = """
active_model = "scripted"
enable_telemetry = false
enable_update_checks = false

[[providers]]
name = "lab"
api_base = "{url}/v1"

[[models]]
name = "scripted"
provider = "lab"
"""


def environment(name: str, bench: Bench) -> dict[str, str]:
    """What points the agent at the model server, in addition to what the bench has for the four CLIs."""
    url = bench.server.url
    if name == "qwen":
        settings = {"security": {"auth": {"selectedType": "openai"}}, "privacy": {"usageStatisticsEnabled": False}}
        (bench.home / ".qwen").mkdir()
        (bench.home / ".qwen" / "settings.json").write_text(json.dumps(settings))
        return {"OPENAI_API_KEY": FAKE_KEY, "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_MODEL": "scripted"}
    if name == "goose":
        return {
            "GOOSE_PROVIDER": "openai",
            "GOOSE_MODEL": "gpt-4o",
            "OPENAI_HOST": url,
            "OPENAI_API_KEY": FAKE_KEY,
            "GOOSE_DISABLE_KEYRING": "1",
        }
    if name == "claude-agent-acp":
        return {"CLAUDE_CODE_EXECUTABLE": str(bench.bin_dir / "claude")}
    if name == "vibe-acp":
        (bench.home / ".vibe").mkdir()
        (bench.home / ".vibe" / "config.toml").write_text(VIBE_SETTINGS.format(url=url))
    return {}


@pytest.fixture(params=list(SHELLS))
def lab(request: pytest.FixtureRequest, real_cli_bin: Path, tmp_path: Path) -> Iterator[Lab]:
    name = request.param
    elsewhere = {"opencode": real_cli_bin, "vibe-acp": vibe_bin_folder()}
    folder = elsewhere.get(name) or bin_folder(wanted_versions(ACP_PACKAGE_JSON))
    if not (folder / name).exists():
        how = "--vibe PYTHON (3.12 or newer)" if name == "vibe-acp" else "--acp"
        pytest.skip(f"{name} is not installed: run python -m tests.real_clis.install {how}")
    with open_bench(tmp_path / "bench", real_cli_bin) as bench:
        program = str(folder / name)
        arguments = {"opencode": ["acp"], "goose": ["acp"], "qwen": ["--acp"]}.get(name, [])
        runtime = AcpRuntime([program, *arguments], timeout=240.0)
        assert runtime.profile.name == name
        yield Lab(bench, name, runtime, SHELLS[name], environment(name, bench))


def test_an_agent_answers_turn_after_turn_in_one_process(lab: Lab) -> None:
    lab.bench.server.script([], then=Turn(text=["Hel", "lo"], usage=Usage(10, 5)))
    with lab.runtime.open_session(**lab.fields()) as session:
        one = session.run("first words")
        assert (one.ok, one.text) == (True, "Hello")
        pid = session.pid
        two = session.run("second words")
        assert (two.text, session.pid) == ("Hello", pid)
    # Some agents have a title made, with a separate request.
    both = ("first words", "second words")
    assert any(all(map(request.occurrences, both)) for request in lab.bench.server.requests)


def test_a_command_is_run_and_told(lab: Lab) -> None:
    with lab.runtime.open_session(**lab.fields(permission_mode="bypass")) as session:
        lab.bench.server.script([], then=Turn(text="First."))
        assert session.run("first words").text == "First."  # Along with whatever else an agent asks for at its start.
        made = lab.shell_call("echo made > made; cat made")
        lab.script_call(made, prompt="make the file", then="Done.")
        result_events, result = finished(session.execute("make the file"))
    (use,) = (event for event in result_events if isinstance(event, AgentToolUseEvent))
    (end,) = (event for event in result_events if isinstance(event, AgentToolResultEvent))
    assert "echo made > made" in json.dumps(dict(use.input))
    assert ("made" in end.output, end.is_error) == (True, False)
    assert (result.text, (lab.bench.workdir / "made").exists()) == ("Done.", True)


# Goose is known to hang at its next prompt; claude-agent-acp does not run the scripted command.
@pytest.mark.parametrize("lab", ["opencode", "qwen", "codex-acp", "vibe-acp"], indirect=True)
def test_an_abort_ends_the_command_and_keeps_the_session(lab: Lab) -> None:
    began = lab.bench.workdir / "began"

    def sleeping() -> bool:
        pid = began.read_text().strip() if began.exists() else ""
        return bool(pid) and Path("/proc", pid).exists()

    with lab.runtime.open_session(**lab.fields(permission_mode="bypass")) as session:
        lab.bench.server.script([], then=Turn(text="First."))
        assert session.run("first words").text == "First."
        sleep = lab.shell_call(f"echo $$ > {began}; sleep 1000")
        lab.script_call(sleep, prompt="go to sleep", then="On.")
        with session.start("go to sleep") as run:
            for event in run:
                if event.type == "tool_use":
                    assert wait_until(sleeping)
                    run.abort()
            assert run.result is not None
            assert run.result.error_subtype == "aborted"
        assert wait_until(lambda: not sleeping())
        assert session.run("go on").text == "On."


def test_what_looks_like_a_command_reaches_the_model(lab: Lab) -> None:
    lab.bench.server.script([], then=Turn(text="Read."))
    with lab.runtime.open_session(**lab.fields()) as session:
        assert done(session.execute("/help me")).text == "Read."
    assert any(request.occurrences("/help me") for request in lab.bench.server.requests)


@pytest.mark.parametrize("lab", ["vibe-acp"], indirect=True)
def test_usage_is_that_of_the_turn_also_after_the_session_was_taken_up(lab: Lab) -> None:
    lab.bench.server.script([], then=Turn(text="Fine.", usage=Usage(10, 5)))
    with lab.runtime.open_session(**lab.fields()) as session:
        used = [session.run(words).usage for words in ("first words", "second words")]
    with lab.runtime.open_session(**lab.fields(session_id=session.session_id)) as again:
        used.append(again.run("third words").usage)
    assert used == [AgentUsage(10, 5)] * 3


@pytest.mark.parametrize("lab", ["opencode"], indirect=True)
def test_a_path_at_the_beginning_reaches_the_model(lab: Lab) -> None:
    """OpenCode takes it for an unknown command, and ends the turn."""
    lab.bench.server.script([], then=Turn(text="Read."))
    with lab.runtime.open_session(**lab.fields()) as session:
        assert done(session.execute("/etc/passwd is a file")).text == "Read."


@pytest.mark.parametrize("lab", ["opencode"], indirect=True)
def test_a_port_that_an_agent_opens_is_closed_to_everybody_else(lab: Lab) -> None:
    public = {"OPENCODE_CONFIG_CONTENT": json.dumps({"server": {"hostname": "0.0.0.0", "port": 5555}})}
    lab.bench.server.script([], then=Turn(text="Hello."))
    with lab.runtime.open_session(**lab.fields(env={**lab.env, **public})) as session:
        assert session.run("hello").text == "Hello."
        lines = [line.split() for line in Path("/proc/thread-self/net/tcp").read_text().splitlines()[1:]]
        listening = {line[1] for line in lines if line[3] == "0A"}
        ours = f":{urlsplit(lab.bench.server.url).port:04X}"
        (agents,) = (address for address in listening if not address.endswith(ours))
        host, port = agents.split(":")
        assert host == "0100007F"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"http://127.0.0.1:{int(port, 16)}/session", timeout=30)


def test_a_session_is_taken_up_by_another_process(lab: Lab) -> None:
    lab.bench.server.script([], then=Turn(text="Fine."))
    with lab.runtime.open_session(**lab.fields()) as session:
        assert session.run("first words").ok
    with lab.runtime.open_session(**lab.fields(session_id=session.session_id)) as again:
        assert again.run("second words").text == "Fine."
    both = ("first words", "second words")
    assert any(all(map(request.occurrences, both)) for request in lab.bench.server.requests)
