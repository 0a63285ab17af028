"""Merging into the text of a config and removing it again: fixed cases and 1,000 random ones per format."""

from __future__ import annotations

import json
import random
import re
import string
import tomllib
from typing import Any

import pytest
import tomli_w

from remoteclaw_sync.config_files import jsonc
from remoteclaw_sync.config_files.config_edit import ConfigError, add_entries, remove_entries

OURS = {"ours": {"command": "server", "args": ["--x"], "env": {"TOKEN": "s3cr3t"}}}
COMMENTED = (
    '// settings\n{\n  "theme": "dark", /* mine */\n  "mcpServers": {\n    "mine": {"command": "m"}, // keep\n  },\n}\n'
)


def test_comments_and_layout_of_a_json_config_survive_the_merge() -> None:
    edit = add_entries(COMMENTED, "json", "mcpServers", OURS)
    assert edit.text.replace(edit.inserted, "") == COMMENTED
    assert jsonc.parse(edit.text) == {"theme": "dark", "mcpServers": {**OURS, "mine": {"command": "m"}}}


def test_comments_of_a_toml_config_survive_the_merge() -> None:
    config = '# mine\nmodel = "gpt" # why\n\n[mcp_servers.mine]\ncommand = "m"\n'
    edit = add_entries(config, "toml", "mcp_servers", OURS)
    assert edit.text.startswith(config)
    assert tomllib.loads(edit.text)["mcp_servers"] == {"mine": {"command": "m"}, **OURS}


def test_an_inline_toml_table_is_merged_too() -> None:
    edit = add_entries('mcp_servers = {mine = {command = "m"}}', "toml", "mcp_servers", OURS)
    assert tomllib.loads(edit.text) == {"mcp_servers": {"mine": {"command": "m"}, **OURS}}


@pytest.mark.parametrize("text", ["", "  \n", "\ufeff", "// only a comment\n{}"])
def test_an_empty_json_config_counts_as_no_settings(text: str) -> None:
    assert jsonc.parse(add_entries(text, "json", "mcpServers", OURS).text) == {"mcpServers": OURS}


def test_a_server_of_the_same_name_is_replaced_for_the_run_and_comes_back() -> None:
    config = '{"mcpServers": {"ours": {"command": "theirs"}, "mine": {"command": "m"}}}'
    edit = add_entries(config, "json", "mcpServers", OURS)
    assert jsonc.parse(edit.text)["mcpServers"] == {**OURS, "mine": {"command": "m"}}
    edited = edit.text.replace('"command": "m"', '"command": "n"')
    restored = remove_entries(edited, "json", "mcpServers", OURS, config, edit.inserted)
    assert json.loads(restored)["mcpServers"] == {"ours": {"command": "theirs"}, "mine": {"command": "n"}}


@pytest.mark.parametrize(
    "text", ["", "{}", "// c\n{ /* c */ }", COMMENTED, '{"$schema": "mine"}', '{"mcpServers": {},}']
)
def test_defaults_are_added_where_the_user_has_none(text: str) -> None:
    before = jsonc.parse(text) if text else {}
    edit = add_entries(text, "json", "mcpServers", OURS, {"$schema": "theirs"})
    servers = {**OURS, **before.get("mcpServers", {})}
    assert jsonc.parse(edit.text) == {"$schema": "theirs", **before, "mcpServers": servers}
    assert all(line in edit.text for line in re.findall(r"//.*|/\*.*?\*/", text))


def test_an_edit_made_meanwhile_is_kept_with_its_comments() -> None:
    edit = add_entries(COMMENTED, "json", "mcpServers", OURS)
    edited = edit.text.replace('"dark"', '"light"')
    restored = remove_entries(edited, "json", "mcpServers", OURS, COMMENTED, edit.inserted)
    assert restored == COMMENTED.replace('"dark"', '"light"')


def test_an_edit_of_our_own_entry_made_meanwhile_is_kept() -> None:
    edit = add_entries("{}", "json", "mcpServers", OURS)
    edited = edit.text.replace("--x", "--y")
    restored = remove_entries(edited, "json", "mcpServers", OURS, "{}", edit.inserted)
    assert json.loads(restored)["mcpServers"]["ours"]["args"] == ["--y"]


@pytest.mark.parametrize(
    ("text", "format", "why"),
    [
        ("{", "json", "not valid JSON"),
        ('{"a": 1} x', "json", "not valid JSON"),
        ("[1]", "json", "not an object"),
        ('{"mcpServers": []}', "json", "not a table"),
        ("a = ", "toml", "not valid TOML"),
        ("mcp_servers = 3", "toml", "not a table"),
        ("[" * 100_000, "json", "not valid JSON"),
    ],
)
def test_a_config_that_cannot_be_merged_is_refused_with_the_reason(text: str, format: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        add_entries(text, format, "mcp_servers" if format == "toml" else "mcpServers", OURS)


def test_the_reason_does_not_quote_the_config() -> None:
    with pytest.raises(ConfigError) as caught:
        add_entries('{"apiKey": "sk-very-secret" oops}', "json", "mcpServers", OURS)
    assert "sk-very-secret" not in str(caught.value)


# --- random configs ---------------------------------------------------------------------------------------------

ALPHABET = string.ascii_letters + string.digits + " _-.:/\\\"'${}[]#,=\t\n\x7f\u2028\x85äß漢🎉"
EXAMPLES = 1_000


def random_text(rng: random.Random, most: int = 12) -> str:
    return "".join(rng.choice(ALPHABET) for _ in range(rng.randint(1, most)))


def random_value(rng: random.Random, depth: int = 0) -> Any:
    kinds = ["text", "number", "flag"] + (["list", "table"] if depth < 3 else [])
    kind = rng.choice(kinds)
    if kind == "text":
        return random_text(rng, 20)
    if kind == "number":
        return rng.randint(-(2**40), 2**40)
    if kind == "flag":
        return rng.random() < 0.5
    if kind == "list":
        return [random_text(rng) for _ in range(rng.randint(0, 3))]
    return {random_text(rng): random_value(rng, depth + 1) for _ in range(rng.randint(0, 3))}


def random_entries(rng: random.Random) -> dict[str, Any]:
    return {
        random_text(rng): {
            "command": random_text(rng),
            "args": [random_text(rng) for _ in range(rng.randint(0, 3))],
            "env": {random_text(rng): random_text(rng) for _ in range(rng.randint(0, 3))},
        }
        for _ in range(rng.randint(1, 3))
    }


def random_config(rng: random.Random, key: str) -> dict[str, Any]:
    config = {random_text(rng): random_value(rng) for _ in range(rng.randint(0, 4))}
    if rng.random() < 0.6:
        config[key] = random_entries(rng) if rng.random() < 0.8 else {}
    return config


def as_commented_json(rng: random.Random, config: dict[str, Any]) -> str:
    text = json.dumps(config, indent=rng.choice([None, 2, "\t"]), ensure_ascii=rng.random() < 0.5)
    text = rng.choice(["", "// a comment {\n", "/* { [ */ ", "\ufeff", "\n\n"]) + text
    return text[:-1] + rng.choice(["}", "}\n// end }", "/* } */}", "\n}"])


@pytest.mark.slow
@pytest.mark.parametrize("format", ["json", "toml"])
def test_random_configs_merge_and_come_back_unchanged(format: Any) -> None:
    key = "mcpServers" if format == "json" else "mcp_servers"
    for seed in range(EXAMPLES):
        rng = random.Random(seed)
        config, entries = random_config(rng, key), random_entries(rng)
        text = as_commented_json(rng, config) if format == "json" else tomli_w.dumps(config)
        edit = add_entries(text, format, key, entries)
        merged = jsonc.parse(edit.text) if format == "json" else tomllib.loads(edit.text)
        assert merged == {**config, key: {**config.get(key, {}), **entries}}, f"seed {seed}"
        restored = remove_entries(edit.text, format, key, entries, text, edit.inserted)
        back = jsonc.parse(restored) if format == "json" else tomllib.loads(restored)
        assert back == config, f"seed {seed}"
        if edit.inserted:
            assert restored == text, f"seed {seed}"
