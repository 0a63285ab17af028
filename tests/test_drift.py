"""The drift alarm without a CLI: how two sets of transcripts differ, what is chosen, and what is stored."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync import (
    AgentErrorEvent,
    AgentEvent,
    AgentRunResult,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    AgentUsage,
    create_cli_runtime,
)
from tests.fakes import Step, fake_command, finished
from tests.real_clis import capture
from tests.real_clis.drift import Transcript, compare, line_type, read_transcripts, shapes

PLAIN: dict[str, Any] = {"type": "item", "item": {"type": "text", "text": "Hello"}, "usage": {"input": 1}}


def transcript(*lines: dict[str, Any] | str, exit_code: int = 0, stderr: str = "") -> Transcript:
    return Transcript(tuple(_as_line(line) for line in lines), exit_code, stderr)


def _as_line(line: dict[str, Any] | str) -> str:
    return line if isinstance(line, str) else json.dumps(line)


def findings(old: Transcript, new: Transcript) -> tuple[str, ...]:
    return compare({"plain": old}, {"plain": new}).findings


# --- comparison ----------------------------------------------------------------------------------------------------


def test_two_runs_with_other_values_do_not_differ() -> None:
    other = {"usage": {"input": 2.5}, "item": {"text": "", "type": "text"}, "type": "item"}
    assert not compare({"plain": transcript(PLAIN)}, {"plain": transcript(other, other)})


def test_a_new_and_a_missing_line_type_are_told_with_their_scenario() -> None:
    assert findings(transcript(PLAIN), transcript({"type": "system", "subtype": "news", "level": 1})) == (
        "new line type system/news: level, subtype, type",
        "missing line type item/text",
        "scenario plain: now also prints system/news",
        "scenario plain: no longer prints item/text",
    )


def test_new_missing_and_changed_fields_are_told_once_for_all_line_types() -> None:
    old = [{"type": kind, "gone": None, "number": 1} for kind in "ab"]
    new = [{"type": kind, "number": "1", "whole": {"part": [{"type": "x", "deep": True}]}} for kind in "ab"]
    assert findings(transcript(*old), transcript(*new)) == (
        "changed field number (number -> string) in a, b",
        "missing field gone (null) in a, b",
        "new field whole (object) in a, b",
    )


def test_a_field_inside_a_list_is_told_by_the_kind_of_its_element() -> None:
    old = {"type": "assistant", "content": [{"type": "text", "text": "x"}, {"type": "tool_use", "input": {}}]}
    new = {"type": "assistant", "content": [{"type": "text", "text": "x"}, {"type": "tool_use", "input": {"a": 1}}]}
    assert findings(transcript(old), transcript(new)) == ("new field content[tool_use].input.a (number) in assistant",)


def test_ids_and_paths_as_keys_are_one_field() -> None:
    ids = ["01a1eb34-abf3-7be3-8810-7670d65c07bb", "5f1d2c3b-0000-4000-8000-000000000001"]
    old, new = ({"type": "t", "states": {one: {"status": "done"}}, "files": {f"/{one}": 1}} for one in ids)
    assert findings(transcript(old), transcript(new)) == ()
    assert set(shapes([transcript(old)])["t"]) == {"type", "states", "states.*", "states.*.status", "files", "files.*"}


def test_another_exit_code_and_other_words_on_stderr_are_told_but_no_ids_times_and_stack_traces() -> None:
    old = transcript(stderr="12:00:01 run=58021c64 it failed\n    at a (chunk-1.js:1)\nNo such session: x\n")
    new = transcript(exit_code=2, stderr="13:30:59 run=7b021c64 it failed\n    at b (chunk-2.js:7)\nGone: x\n")
    assert findings(old, new) == (
        "scenario plain: exit code 0 -> 2",
        "scenario plain: stderr says anew: Gone: x",
        "scenario plain: stderr no longer says: No such session: x",
    )


def test_only_scenarios_that_were_run_are_compared_and_one_without_a_stored_run_is_told() -> None:
    stored = {"plain": transcript(PLAIN), "not_run": transcript({"type": "other"})}
    assert compare(stored, {"plain": transcript(PLAIN), "new": transcript(PLAIN)}).findings == (
        "scenario new: nothing stored to compare with",
    )


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ('{"type":"system","subtype":"init"}', "system/init"),
        (
            '{"type":"stream_event","event":{"type":"content_block_delta","delta":{"type":"text_delta"}}}',
            "stream_event/content_block_delta/text_delta",
        ),
        ('{"type":"item.completed","item":{"type":"agent_message"}}', "item.completed/agent_message"),
        ('{"type":"message","role":"user"}', "message/user"),
        ('{"type":"tool_use","part":{"type":"tool","tool":"bash"}}', "tool_use/tool"),
        ('{"no":"type"}', "(untyped)"),
        ("[1]", "(untyped)"),
        ("Loaded cached credentials.", "(not JSON)"),
    ],
)
def test_a_line_type_is_made_of_the_tags_in_the_line(line: str, kind: str) -> None:
    assert line_type(line) == kind


# --- the command ---------------------------------------------------------------------------------------------------


def test_an_unknown_scenario_is_refused_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert capture.main(["--cli", "codex", "--scenario", "slash_command", "--bin", "/nowhere"]) == 1
    assert "no such scenario: slash_command" in capsys.readouterr().err


def test_a_folder_without_the_clis_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert capture.main(["--scenario", "plain", "--bin", str(tmp_path)]) == 1
    assert "error: " in capsys.readouterr().err


def test_storing_all_scenarios_removes_what_they_no_longer_have_and_storing_some_does_not(tmp_path: Path) -> None:
    captured, folder = tmp_path / "captured", tmp_path / "stored" / "1.0"
    captured.mkdir()
    folder.mkdir(parents=True)
    (folder / "old.ndjson").write_text("old")
    (captured / "plain.ndjson").write_text("new")
    capture.store(captured, folder, all_scenarios=False)
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"old.ndjson": "old", "plain.ndjson": "new"}
    capture.store(captured, folder, all_scenarios=True)
    assert [path.name for path in folder.iterdir()] == ["plain.ndjson"]


# --- what is stored ------------------------------------------------------------------------------------------------

VERSIONS = sorted(path for cli in capture.SCENARIOS for path in (capture.TRANSCRIPTS / cli).iterdir())
OTHER_VERSIONS = [path for path in VERSIONS if path != capture.stored_folder(path.parent.name)]
MACHINE_PATH = re.compile(r"/tmp/(?!user|claude|\*|\$)\w+|/root/(?!chunk)|/home/(?!user\b)\w+|127\.0\.0\.1:(?!8080)\d")


@pytest.mark.parametrize("cli", capture.SCENARIOS)
def test_the_pinned_version_has_a_transcript_of_each_scenario(cli: str) -> None:
    assert set(read_transcripts(capture.stored_folder(cli))) == set(capture.SCENARIOS[cli])


@pytest.mark.parametrize("folder", VERSIONS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_no_stored_transcript_has_a_path_or_port_of_the_machine_it_was_made_on(folder: Path) -> None:
    found = {
        path.name: match[0]
        for path in folder.iterdir()
        if (match := MACHINE_PATH.search(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def replayed(cli: str, run: Transcript, folder: Path) -> tuple[list[AgentEvent], AgentRunResult]:
    """What our runtime makes of a captured run."""
    output = "".join(f"{line}\n" for line in run.lines)
    steps: list[Step] = [
        ["read_stdin"],
        ["raw", output.encode().decode("latin-1")],
        ["raw", run.stderr.encode().decode("latin-1"), 2],
        ["exit", run.exit_code],
    ]
    command = fake_command(*steps, script_file=folder / "steps.json")
    return finished(create_cli_runtime(cli, command=command).execute("hello", working_directory=folder))


def told(events: list[AgentEvent], result: AgentRunResult) -> dict[str, Any]:
    """What a user sees of a run, without the values that differ from run to run."""

    def of(kind: type[AgentEvent]) -> list[Any]:
        return [event for event in events if isinstance(event, kind)]

    return {
        # ^First lines only: below that of a /command are numbers that depend on the version. Blank lines between turns
        # are left out.
        "text": [line for event in of(AgentTextEvent) if (line := event.text.strip("\n").partition("\n")[0])],
        "thinking": [event.text for event in of(AgentThinkingEvent)],
        "tools": sorted(event.tool_name for event in of(AgentToolUseEvent)),
        "tool errors": sorted(event.is_error for event in of(AgentToolResultEvent)),
        "errors": sorted({str(event.code) for event in of(AgentErrorEvent)}),
        "denied": sorted(denial.tool for denial in result.permission_denials),
        "usage": result.usage,
        "subtype": result.error_subtype,
        "aborted": result.aborted,
    }


# What a user sees with another version but not with the pinned one, by scenario.
KNOWN_DIFFERENCES: dict[tuple[str, str], dict[str, Any]] = {
    ("claude", "2.1.197"): {
        # This version ends a shell 5 s after its last word; the pinned one waits for the shell.
        "background_shells": {"text": ["Wait.", "Left running.", "Noted."], "usage": AgentUsage(30, 15)},
        "refusal": {"text": ["no"], "usage": AgentUsage(10, 5)},  # The pinned one asks the model once more.
        "stream_cut": {"usage": AgentUsage(33, 11)},  # The pinned one also counts the answer that was cut off.
        "unknown_slash_command": {"text": ["Unknown command: /no-such-command"], "usage": AgentUsage()},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("folder", OTHER_VERSIONS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_another_version_of_a_cli_means_the_same_to_us(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # Codex's own records of its threads are looked for there.
    monkeypatch.delenv("CODEX_HOME", raising=False)
    cli = folder.parent.name
    pinned = read_transcripts(capture.stored_folder(cli))
    others = read_transcripts(folder)
    known = KNOWN_DIFFERENCES.get((cli, folder.name), {})
    differing = {
        name: {key: after[key] for key in after if after[key] != before[key]}
        for name, run in others.items()
        for before, after in [(told(*replayed(cli, pinned[name], tmp_path)), told(*replayed(cli, run, tmp_path)))]
        if after != before
    }
    assert differing == known
