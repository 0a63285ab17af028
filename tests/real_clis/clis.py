"""How each real CLI is pointed at the model server and started, and what its tools are called."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tests.real_clis.script import ToolCall

# Looks like a key to the CLIs, but cannot be one.
FAKE_KEY = "sk-fake-key-of-the-test-bench-0000000000000000"


class RealCli(ABC):
    """One CLI: its configuration, a plain headless command line, its tool calls."""

    name: ClassVar[str]
    vendor: ClassVar[str]
    model: ClassVar[str]
    shell_tool: ClassVar[str]

    @abstractmethod
    def configure(self, home: Path, url: str) -> dict[str, str]:
        """Write the files in HOME that point the CLI at `url`; return the environment."""

    @abstractmethod
    def argv(self, *extra: str) -> list[str]:
        """A headless run with NDJSON output and all tools allowed; the prompt goes to stdin."""

    @abstractmethod
    def shell_call(self, command: str, id: str | None = None) -> ToolCall:
        """The model runs a shell command."""

    @abstractmethod
    def write_file_call(self, path: Path, text: str, id: str | None = None) -> ToolCall:
        """The model writes a file."""

    @abstractmethod
    def mcp_call(self, server: str, tool: str, arguments: Mapping[str, Any], id: str | None = None) -> ToolCall:
        """The model calls a tool of an MCP server."""

    @abstractmethod
    def answer(self, lines: list[dict[str, Any]]) -> str:
        """The model's text in the NDJSON lines of a run."""


class Claude(RealCli):
    """Claude Code 2.1.326."""

    name = "claude"
    vendor = "anthropic"
    model = "claude-sonnet-4-5"
    shell_tool = "Bash"

    def configure(self, home: Path, url: str) -> dict[str, str]:
        return {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": FAKE_KEY,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        }

    def argv(self, *extra: str) -> list[str]:
        output = ["--output-format", "stream-json", "--verbose", "--include-partial-messages"]
        return ["claude", "-p", *output, "--model", self.model, "--allowedTools=Bash,Write,Edit,Read", *extra]

    def shell_call(self, command: str, id: str | None = None) -> ToolCall:
        return ToolCall("Bash", {"command": command, "description": "run it"}, id)

    def write_file_call(self, path: Path, text: str, id: str | None = None) -> ToolCall:
        return ToolCall("Write", {"file_path": str(path), "content": text}, id)

    def agent_call(self, prompt: str, id: str | None = None, background: bool = False) -> ToolCall:
        """The model starts a sub-agent."""
        arguments = {"description": "a sub task", "prompt": prompt, "subagent_type": "general-purpose"}
        return ToolCall("Agent", {**arguments, "run_in_background": background}, id)

    def mcp_call(self, server: str, tool: str, arguments: Mapping[str, Any], id: str | None = None) -> ToolCall:
        return ToolCall(f"mcp__{server}__{tool}", arguments, id)

    def answer(self, lines: list[dict[str, Any]]) -> str:
        events = [line["event"] for line in lines if line["type"] == "stream_event"]
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        return "".join(delta["text"] for delta in deltas if delta["type"] == "text_delta")


class Gemini(RealCli):
    """Gemini CLI 0.61.0."""

    name = "gemini"
    vendor = "gemini"
    model = "gemini-2.5-flash"
    shell_tool = "run_shell_command"

    def configure(self, home: Path, url: str) -> dict[str, str]:
        settings = {
            # A base URL alone is not enough: without this, the CLI exits with 41.
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            # Not the older `disable...` names: the CLI would rewrite the file.
            "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
            "privacy": {"usageStatisticsEnabled": False},
            "telemetry": {"enabled": False},
        }
        _write(home / ".gemini" / "settings.json", json.dumps(settings, indent=2))
        return {
            "GEMINI_API_KEY": FAKE_KEY,
            "GOOGLE_GEMINI_BASE_URL": url,
            # The launcher costs a second process and swallows signals.
            "GEMINI_CLI_NO_RELAUNCH": "true",
        }

    def argv(self, *extra: str) -> list[str]:
        flags = ["--output-format", "stream-json", "--skip-trust", "--approval-mode", "yolo"]
        return ["gemini", *flags, "-m", self.model, *extra]

    def shell_call(self, command: str, id: str | None = None) -> ToolCall:
        return ToolCall("run_shell_command", {"command": command}, id)

    def write_file_call(self, path: Path, text: str, id: str | None = None) -> ToolCall:
        return ToolCall("write_file", {"file_path": str(path), "content": text}, id)

    def mcp_call(self, server: str, tool: str, arguments: Mapping[str, Any], id: str | None = None) -> ToolCall:
        return ToolCall(f"mcp_{server}_{tool}", arguments, id)

    def answer(self, lines: list[dict[str, Any]]) -> str:
        messages = [line for line in lines if line["type"] == "message"]
        return "".join(line["content"] for line in messages if line["role"] == "assistant")


class Codex(RealCli):
    """Codex 0.169.0."""

    name = "codex"
    vendor = "responses"
    # It is in the CLI's own model list, so there is no warning and apply_patch is offered.
    model = "gpt-5.5"
    shell_tool = "exec_command"

    def configure(self, home: Path, url: str) -> dict[str, str]:
        lines = [
            f'model = "{self.model}"',
            'model_provider = "bench"',
            "check_for_update_on_startup = false",
            # Either of these two keeps the process alive 5 s after its last line,
            # waiting for hosts that do not exist here.
            "analytics = { enabled = false }",
            "features = { plugins = false }",
            "[model_providers.bench]",
            'name = "bench"',
            f'base_url = "{url}/v1"',
            'wire_api = "responses"',
            'env_key = "BENCH_API_KEY"',
        ]
        _write(home / ".codex" / "config.toml", "\n".join(lines) + "\n")
        return {"BENCH_API_KEY": FAKE_KEY}

    def argv(self, *extra: str) -> list[str]:
        flags = ["--json", "--color", "never", "--skip-git-repo-check"]
        return ["codex", "exec", *flags, "--dangerously-bypass-approvals-and-sandbox", *extra, "--", "-"]

    def shell_call(self, command: str, id: str | None = None) -> ToolCall:
        return ToolCall("exec_command", {"cmd": command, "yield_time_ms": 30_000}, id)

    def write_file_call(self, path: Path, text: str, id: str | None = None) -> ToolCall:
        added = "".join(f"+{line}\n" for line in text.splitlines())
        patch = f"*** Begin Patch\n*** Add File: {path}\n{added}*** End Patch\n"
        return ToolCall("apply_patch", patch, id, freeform=True)

    def mcp_call(self, server: str, tool: str, arguments: Mapping[str, Any], id: str | None = None) -> ToolCall:
        return ToolCall(tool, arguments, id, namespace=f"mcp__{server}")

    def answer(self, lines: list[dict[str, Any]]) -> str:
        items = [line["item"] for line in lines if line["type"] == "item.completed"]
        return "".join(item["text"] for item in items if item["type"] == "agent_message")


class OpenCode(RealCli):
    """OpenCode 1.18.33."""

    name = "opencode"
    vendor = "chat"
    model = "bench/scripted"
    shell_tool = "bash"

    # Dollars per million tokens; round numbers make a cost easy to check.
    prices: ClassVar[dict[str, float]] = {"input": 1.0, "output": 10.0, "cache_read": 0.1, "cache_write": 2.0}

    def configure(self, home: Path, url: str) -> dict[str, str]:
        model = {
            "name": "Scripted",
            "tool_call": True,
            "reasoning": True,
            "attachment": True,
            "cost": self.prices,
            "limit": {"context": 1_000_000, "output": 32_000},
        }
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "bench",
            "options": {"baseURL": f"{url}/v1", "apiKey": FAKE_KEY},
            "models": {"scripted": model},
        }
        config = {
            "$schema": "https://opencode.ai/config.json",  # OpenCode itself adds this if it is missing
            "autoupdate": False,
            "share": "disabled",
            "model": self.model,
            "small_model": self.model,
            "provider": {"bench": provider},
        }
        _write(home / ".config" / "opencode" / "opencode.json", json.dumps(config, indent=2))
        return {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}

    def argv(self, *extra: str) -> list[str]:
        return ["opencode", "run", "--format", "json", "-m", self.model, *extra]

    def shell_call(self, command: str, id: str | None = None) -> ToolCall:
        return ToolCall("bash", {"command": command, "description": "run it"}, id)

    def write_file_call(self, path: Path, text: str, id: str | None = None) -> ToolCall:
        return ToolCall("write", {"filePath": str(path), "content": text}, id)

    def mcp_call(self, server: str, tool: str, arguments: Mapping[str, Any], id: str | None = None) -> ToolCall:
        return ToolCall(f"{server}_{tool}", arguments, id)

    def answer(self, lines: list[dict[str, Any]]) -> str:
        return "".join(line["part"]["text"] for line in lines if line["type"] == "text")


class OpenCode2(OpenCode):
    """OpenCode 2.0.15, which reads the configuration of OpenCode 1."""

    shell_tool = "shell"

    def argv(self, *extra: str) -> list[str]:
        return ["opencode", "run", "--standalone", "--format", "json", "-m", self.model, *extra]

    def shell_call(self, command: str, id: str | None = None) -> ToolCall:
        return ToolCall("shell", {"command": command, "description": "run it"}, id)


ALL_CLIS: dict[str, RealCli] = {cli.name: cli for cli in (Claude(), Gemini(), Codex(), OpenCode())}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
