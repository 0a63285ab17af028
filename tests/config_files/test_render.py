"""Entries in each CLI's format, in which no name or value can break out of its place."""

from __future__ import annotations

import random
import tomllib

from remoteclaw_sync import McpServerConfig
from remoteclaw_sync.clis.claude.mcp import claude_entries
from remoteclaw_sync.clis.codex.mcp import codex_entries, inline_toml
from remoteclaw_sync.clis.gemini.mcp import gemini_entries, live_entries
from remoteclaw_sync.clis.mcp_entries import EnvReferences, tool_prefix_name
from remoteclaw_sync.clis.opencode.mcp import opencode_entries
from remoteclaw_sync.tool_server import relay
from remoteclaw_sync.tool_server.server import Gateway

from .test_config_edit import EXAMPLES, random_text

STDIO = McpServerConfig("server", ["--flag"], {"TOKEN": "s3cr3t"})
REMOTE = McpServerConfig(url="https://example.test/mcp", headers={"Authorization": "Bearer s3cr3t"}, trust=False)


def echo(value: str) -> str:
    return value


def as_is(value: str) -> str:
    return value


def test_claude_entries() -> None:
    headers = {"Authorization": "Bearer s3cr3t"}
    assert claude_entries({"s": STDIO, "r": REMOTE}, as_is) == {
        "s": {
            "type": "stdio",
            "command": "server",
            "args": ["--flag"],
            "env": {"TOKEN": "s3cr3t"},
            "alwaysLoad": True,
        },
        "r": {"type": "http", "url": "https://example.test/mcp", "headers": headers, "alwaysLoad": True},
    }


def test_gemini_entries_trust_exactly_the_trusted() -> None:
    entries = gemini_entries({"s": STDIO, "r": REMOTE}, as_is)
    assert entries["s"] == {"command": "server", "args": ["--flag"], "env": {"TOKEN": "s3cr3t"}, "trust": True}
    assert entries["r"] == {"httpUrl": "https://example.test/mcp", "headers": {"Authorization": "Bearer s3cr3t"}}


def test_python_functions_are_told_that_gemini_needs_objects_and_other_servers_are_left_alone() -> None:
    with Gateway([echo]) as gateway:
        servers = {"ours": gateway.mcp_server(), "s": STDIO}
    once, live = gemini_entries(servers, as_is), {entry["name"]: entry for entry in live_entries(servers)}
    assert once["ours"]["env"][relay.OBJECTS_VARIABLE] == "1"
    assert {"name": relay.OBJECTS_VARIABLE, "value": "1"} in live["ours"]["env"]
    assert (once["s"]["env"], live["s"]["env"]) == ({"TOKEN": "s3cr3t"}, [{"name": "TOKEN", "value": "s3cr3t"}])


def test_opencode_entries_hold_the_whole_command_in_one_list() -> None:
    entries = opencode_entries({"s": STDIO, "r": REMOTE}, as_is)
    assert entries["s"]["type"] == "local"
    assert entries["s"]["command"] == ["server", "--flag"]
    assert entries["s"]["environment"] == {"TOKEN": "s3cr3t"}
    assert entries["r"]["type"] == "remote"


def test_codex_entries_approve_exactly_the_trusted() -> None:
    entries = codex_entries({"s": STDIO, "r": REMOTE}, required=True)
    assert entries["s"]["default_tools_approval_mode"] == "approve"
    assert entries["s"]["required"] is True
    assert "default_tools_approval_mode" not in entries["r"]
    assert entries["r"]["http_headers"] == {"Authorization": "Bearer s3cr3t"}


def test_codex_makes_calls_at_once_and_waits_for_them_as_long_as_it_is_told() -> None:
    entry = codex_entries({"s": STDIO}, required=True, tool_timeout=1800)["s"]
    assert entry["supports_parallel_tool_calls"] is True
    assert entry["tool_timeout_sec"] == 1800.0
    assert "tool_timeout_sec" not in codex_entries({"s": STDIO}, required=True)["s"]


def test_random_names_and_values_stay_in_their_place_in_inline_toml() -> None:
    for seed in range(EXAMPLES):
        rng = random.Random(seed)
        env = {random_text(rng): random_text(rng) for _ in range(3)}
        value = {random_text(rng): {"command": random_text(rng), "args": [random_text(rng)], "env": env, "on": True}}
        line = inline_toml(value)
        assert "\n" not in line, f"seed {seed}"
        assert tomllib.loads(f"mcp_servers = {line}") == {"mcp_servers": value}, f"seed {seed}"


def test_values_that_a_cli_would_expand_are_moved_to_variables() -> None:
    hide = EnvReferences("$", "${{{}}}")
    server = McpServerConfig("run", ["$HOME", "plain"], {"PASSWORD": "pa$$word"})
    entry = gemini_entries({"s": server}, hide)["s"]
    assert entry["args"] == ["${REMOTECLAW_SYNC_MCP_0}", "plain"]
    assert entry["env"] == {"PASSWORD": "${REMOTECLAW_SYNC_MCP_1}"}
    # Gemini expands values in `env` a second time, with a backslash as the escape character.
    assert hide.variables == {"REMOTECLAW_SYNC_MCP_0": "$HOME", "REMOTECLAW_SYNC_MCP_1": r"pa\$\$word"}


def test_tool_prefixes_hold_only_what_tool_names_may() -> None:
    assert tool_prefix_name("my server.v2") == "my_server_v2"
