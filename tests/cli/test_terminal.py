"""On a real pseudo-terminal: what a person sees during a run, and what is left of it afterwards."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from remoteclaw_sync import AgentPermissionEvent, AgentTextEvent, PermissionRequest
from remoteclaw_sync.cli.terminal_text import clean, shorten, width
from remoteclaw_sync.cli.views import TextView
from remoteclaw_sync.testing import FakeAnswer, ToolCall, write_fake_cli
from tests.cli.shell import SEQUENCE, Terminal, display_width, environment

SPINNER = re.compile("[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] ")
STATUS = re.compile("[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] [^\x1b\r\n]*")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.slow
def test_a_run_shows_thinking_tools_answer_and_summary_and_no_status_is_left(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    with Terminal("demo", "Hi", cwd=tmp_path, env=environment(REMOTECLAW_DEMO_PACE="0.02")) as terminal:
        assert terminal.finish() == 0
        assert SPINNER.search(terminal.output)
        assert not SPINNER.search(terminal.screen)
        lines = terminal.screen.splitlines()
    assert lines[:3] == [
        "A look at the folder first, then an answer that is worth reading.",
        "→ LS .",
        "  ✓ a.txt",
    ]
    assert lines[3] == "Hello! This is the demo agent. You asked: “Hi”"
    assert lines[4] == ""
    assert "".join(lines).count("✓") == 2


@pytest.mark.slow
def test_the_status_tells_what_the_agent_is_doing_and_for_how_long(tmp_path: Path) -> None:
    with Terminal("demo", "demo:hang", cwd=tmp_path) as terminal:
        output = terminal.read_until(lambda output: re.search(r"working · 1 s · ~\d+ tokens", output))
        terminal.type("\x03")
        terminal.finish()
    assert re.search(r"(starting|thinking) · 0 s", output)


@pytest.mark.slow
def test_ctrl_c_ends_the_agent_and_leaves_the_terminal_clean(tmp_path: Path) -> None:
    with Terminal("demo", "demo:hang", cwd=tmp_path) as terminal:
        terminal.read_until(lambda output: "working" in output)
        terminal.type("\x03")
        assert terminal.finish() == 130
        lines = terminal.screen.rstrip("\n").split("\n")
    assert not SPINNER.search("\n".join(lines))
    assert "Traceback" not in terminal.output
    summary = "".join(lines[lines.index("  ✓ (empty)") + 1 :])
    assert summary.startswith("✗ interrupted · ")
    assert "--resume de300000-" in summary


@pytest.mark.slow
def test_ctrl_c_in_the_middle_of_a_line_begins_a_new_one(tmp_path: Path) -> None:
    with Terminal("demo", "Hi", cwd=tmp_path, env=environment(REMOTECLAW_DEMO_PACE="0.05")) as terminal:
        terminal.read_until(lambda output: "Hello! " in output)
        terminal.type("\x03")
        assert terminal.finish() == 130
        lines = terminal.screen.split("\n")
    assert any(line.startswith("Hello! ") for line in lines)
    assert any(line.startswith("✗ interrupted") for line in lines)


@pytest.mark.slow
def test_after_a_resize_the_status_fits_and_what_was_folded_is_gone(tmp_path: Path) -> None:
    with Terminal("demo", "demo:hang", cwd=tmp_path) as terminal:
        terminal.read_until(lambda output: "working · 0 s" in output)
        before = len(terminal.output)
        terminal.resize(14)
        terminal.read_until(lambda output: len(STATUS.findall(output[before:])) > 5)
        terminal.type("\x03")
        terminal.finish()
    drawn = STATUS.findall(terminal.output[before:])[2:]  # One may already have been on its way.
    assert all(display_width(line) < 14 for line in drawn)
    assert any(line.endswith("…") for line in drawn)
    # The earlier status, of about 25 columns, now takes two rows of 14: the cursor goes up one.
    assert "\x1b[1A\x1b[J" in terminal.output[before:]


@pytest.mark.slow
def test_no_color_means_no_colour(tmp_path: Path) -> None:
    with Terminal("demo", "Hi", cwd=tmp_path) as terminal:
        terminal.finish()
        assert COLOUR.search(terminal.output)
    with Terminal("demo", "Hi", cwd=tmp_path, env=environment(NO_COLOR="1")) as terminal:
        terminal.finish()
        assert not COLOUR.search(terminal.output)
        assert "→ LS ." in terminal.screen


@pytest.mark.slow
def test_a_dumb_terminal_gets_no_escape_at_all(tmp_path: Path) -> None:
    with Terminal("demo", "Hi", cwd=tmp_path, env=environment(TERM="dumb")) as terminal:
        assert terminal.finish() == 0
        assert "\x1b" not in terminal.output
        assert "→ LS ." in terminal.output


@pytest.mark.slow
def test_an_agent_cannot_command_the_terminal(tmp_path: Path) -> None:
    nasty = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m \x9b5A\x08\x08over\rwrite\x1bc \x1b]52;c;aGk=\x1b\\end"
    tool = ToolCall(nasty, {"command": nasty}, nasty)
    write_fake_cli(tmp_path, "claude", FakeAnswer(nasty, tools=[tool], stderr=nasty))
    env = environment(PATH=str(tmp_path), NO_COLOR="1")
    with Terminal("run", "-p", "claude", "Hi", columns=200, env=env) as terminal:
        assert terminal.finish() == 0
        sent = {found.group() for found in SEQUENCE.finditer(terminal.output)}
        assert sent <= {"\x1b[J"}
        assert "red 5Aoverwrite end" in terminal.screen  # `screen` fails on any control character it does not know.
        assert "owned" not in terminal.output


def test_an_error_cannot_command_the_terminal_either(tmp_path: Path) -> None:
    write_fake_cli(tmp_path, "claude", FakeAnswer(error="bad \x1b[2Jthing\x07\nsecond line"))
    with Terminal("run", "-p", "claude", "Hi", env=environment(PATH=str(tmp_path), NO_COLOR="1")) as terminal:
        assert terminal.finish() == 1
        assert "error: bad thing\nsecond line" in terminal.screen


@pytest.mark.slow
def test_wide_characters_do_not_fold_a_tool_line(tmp_path: Path) -> None:
    tool = ToolCall("検索", {"query": "日本語" * 40}, "結果" * 60)
    write_fake_cli(tmp_path, "claude", FakeAnswer("OK", tools=[tool]))
    env = environment(PATH=str(tmp_path), NO_COLOR="1")
    with Terminal("run", "-p", "claude", "Hi", columns=40, env=env) as terminal:
        assert terminal.finish() == 0
        call, result, answer = terminal.screen.splitlines()[:3]
    assert call.startswith("→ 検索 日本語日本語")
    assert call.endswith("…")
    assert result.startswith("  ✓ 結果結果")
    assert answer == "OK"
    assert display_width(call) <= 40
    assert display_width(result) <= 40


@pytest.mark.slow
def test_with_stdout_elsewhere_the_terminal_shows_everything_but_the_answer(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    with (
        open(tmp_path / "answer.txt", "wb") as file,
        Terminal("demo", "Hi", cwd=tmp_path / "work", stdout=file.fileno()) as terminal,
    ):
        assert terminal.finish() == 0
        assert "→ LS ." in terminal.screen
        assert "Hello!" not in terminal.output
    assert (tmp_path / "answer.txt").read_text().endswith("prints what they say.\n")


@pytest.mark.slow
def test_a_status_is_never_drawn_over_what_the_next_program_in_the_pipe_prints(tmp_path: Path) -> None:
    tool = {"type": "tool_use", "id": "t", "name": "bash", "input": {}}
    lines: list[dict[str, object]] = [
        {"type": "assistant", "message": {"id": "a", "content": [{"type": "text", "text": "Hello"}]}},
        {"type": "assistant", "message": {"id": "b", "content": [tool]}},
        {"type": "result", "subtype": "success", "is_error": False},
    ]
    write_fake_cli(tmp_path, "claude", FakeAnswer(lines=lines, delay=0.3))
    env = environment(PATH=str(tmp_path), NO_COLOR="1")
    with Terminal("run", "-p", "claude", "Hi", stdout=subprocess.PIPE, env=env) as terminal:
        assert terminal.finish() == 0
        assert terminal.process.stdout is not None
        assert terminal.process.stdout.read() == b"Hello\n"
    doing = {line.split()[1] for line in STATUS.findall(terminal.output)}
    assert doing == {"starting"}
    assert "→ bash" in terminal.output


@pytest.mark.parametrize(
    ("raw", "harmless"),
    [
        ("plain", "plain"),
        ("tab\tand\nnewline", "tab\tand\nnewline"),
        ("crlf\r\n", "crlf\n"),
        ("\x1b[1;31mbold\x1b[0m", "bold"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1bP+q\x1b\\dcs", "dcs"),
        ("cut in two: \x1b", "cut in two: "),
        ("[31m", "[31m"),
        ("\x9b31mc1", "31mc1"),
        ("\x00\x07\x08\x0b\x7f\x85", ""),
        ("日本\u0301", "日本\u0301"),
    ],
)
def test_what_a_terminal_would_obey_is_taken_out(raw: str, harmless: str) -> None:
    assert clean(raw) == harmless


@pytest.mark.parametrize(
    ("text", "columns", "short"),
    [
        ("short", 10, "short"),
        ("exactly 10", 10, "exactly 10"),
        ("longer than ten", 10, "longer th…"),
        ("日本語日本語", 7, "日本語…"),
        ("日本語日本語", 6, "日本…"),
        ("e\u0301e\u0301e\u0301", 3, "e\u0301e\u0301e\u0301"),
    ],
)
def test_a_line_is_cut_by_columns_not_by_characters(text: str, columns: int, short: str) -> None:
    assert shorten(text, columns) == short
    assert width(short) <= columns


def test_a_request_for_permission_leaves_the_answer_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    view = TextView()
    asked = AgentPermissionEvent(PermissionRequest("r1", "Ba\x1bsh", "t1"))
    for event in (AgentTextEvent("a"), asked, AgentTextEvent("b")):
        view.show(event)
    view.close()
    assert capsys.readouterr().out.strip() == "ab"
