"""`chat`: a conversation in the terminal, on a real pseudo-terminal and without one."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from remoteclaw_sync.cli import main
from remoteclaw_sync.cli.keyboard import Keyboard
from remoteclaw_sync.cli.status_line import Screen
from remoteclaw_sync.demo.texts import MARKDOWN
from tests.cli.shell import Terminal, cli, environment, start
from tests.engine.live import command as live_claude
from tests.engine.live import steps
from tests.fakes import PATIENCE, wait_until

ENTER, CTRL_C, CTRL_D = "\r", "\x03", "\x04"
ALLOW = "allow? y / n / always / why > "


def chat(*arguments: str, folder: Path, **env: str | None) -> Terminal:
    """A chat with the demo agent, working in this folder."""
    return Terminal("chat", "-p", "demo", *arguments, cwd=folder, env=environment(**env))


def ends_with(terminal: Terminal, words: str) -> None:
    """Wait until this is the last thing to be seen."""
    terminal.read_until(lambda output: terminal.screen.endswith(words.rstrip()))


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """A folder in which `claude` is the fake that stays."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (tmp_path / "memory").mkdir()
    program, *arguments = live_claude(tmp_path / "memory")
    script = folder / "claude"
    script.write_text(f'#!/bin/sh\nexec "{program}" {" ".join(arguments)} "$@"\n')
    script.chmod(0o755)
    return folder


def on_fake(fake: Path, *arguments: str, **env: str | None) -> Terminal:
    path = f"{fake}{os.pathsep}{os.environ['PATH']}"
    return Terminal("chat", "-p", "claude", *arguments, cwd=fake.parent, env=environment(PATH=path, **env), columns=200)


# --- on a terminal ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_conversation_with_an_approval_ends_as_it_began(tmp_path: Path) -> None:
    with chat(folder=tmp_path) as terminal:
        before = terminal.modes
        ends_with(terminal, "\n>")
        terminal.type("run a command" + ENTER)
        ends_with(terminal, ALLOW)
        terminal.type("y" + ENTER)
        terminal.read_until(lambda output: "The command was run." in output)
        ends_with(terminal, "\n>")
        terminal.type("edit it" + ENTER)
        ends_with(terminal, ALLOW)
        terminal.type("not today" + ENTER)
        terminal.read_until(lambda output: "I was told: “not today”" in output)
        ends_with(terminal, "\n>")
        terminal.type(CTRL_D)
        assert terminal.finish() == 0
        assert terminal.modes == before
        assert "\x1b[?2004l" in terminal.output
        lines = terminal.screen.splitlines()
    assert "> run a command" in lines
    assert "    echo 'The demo agent ran this, in:' && pwd" in lines
    assert "  allow? y / n / always / why > y" in lines
    assert "  allow? y / n / always / why > not today" in lines
    assert not (tmp_path / "demo-note.txt").exists()
    assert "to continue: " in lines[-2]


@pytest.mark.slow
def test_always_is_not_asked_again_for_the_same_command(tmp_path: Path) -> None:
    with chat(folder=tmp_path) as terminal:
        ends_with(terminal, "\n>")
        terminal.type("run a command" + ENTER)
        ends_with(terminal, ALLOW)
        terminal.type("always" + ENTER)
        terminal.read_until(lambda output: output.count("The command was run.") == 1)
        ends_with(terminal, "\n>")
        terminal.type("run a command" + ENTER)
        terminal.read_until(lambda output: output.count("The command was run.") == 2)
        terminal.type(CTRL_D)
        assert terminal.finish() == 0
        assert terminal.screen.count("allow?") == 1


@pytest.mark.slow
def test_ctrl_c_stops_the_turn_and_keeps_the_session_and_a_second_one_leaves(tmp_path: Path) -> None:
    with chat("demo:hang", folder=tmp_path) as terminal:
        before = terminal.modes
        terminal.read_until(lambda output: "working" in output)
        terminal.type(CTRL_C)
        terminal.read_until(lambda output: "interrupted" in output)
        ends_with(terminal, "Ctrl-C once more leaves.\n>")
        terminal.type("Hello" + ENTER)
        terminal.read_until(lambda output: "This is turn 2 of our session." in output)
        ends_with(terminal, "\n>")
        terminal.type("half a line" + CTRL_C)
        ends_with(terminal, "Ctrl-C once more leaves.\n>")
        terminal.type(CTRL_C)
        assert terminal.finish() == 130
        assert terminal.modes == before
        assert "half a line" not in terminal.screen
    assert "Traceback" not in terminal.output


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait_for_an_agent_that_does_not_stop(fake: Path) -> None:
    with on_fake(fake, steps(["deaf"], ["text", "deaf now\n"], ["hang"])) as terminal:
        terminal.read_until(lambda output: "deaf now" in output)
        terminal.type(CTRL_C)
        terminal.read_until(lambda output: "stopping" in output)
        terminal.type(CTRL_C)
        assert terminal.finish() == 130
        assert "Traceback" not in terminal.output


@pytest.mark.slow
def test_ctrl_c_at_a_question_is_a_no_and_stops_the_turn(tmp_path: Path) -> None:
    with chat("edit", folder=tmp_path) as terminal:
        ends_with(terminal, ALLOW)
        terminal.type("y" + CTRL_C)
        terminal.read_until(lambda output: "interrupted" in output)
        ends_with(terminal, "\n>")
        terminal.type(CTRL_D)
        assert terminal.finish() == 0
    assert not (tmp_path / "demo-note.txt").exists()


@pytest.mark.slow
def test_what_is_typed_while_the_agent_works_reaches_it_and_is_not_cut_by_its_words(tmp_path: Path) -> None:
    with chat("demo:wait", folder=tmp_path) as terminal:
        terminal.read_until(lambda output: "I wait for further words." in output)
        terminal.type("only the")
        ends_with(terminal, "> only the")
        terminal.type(" tests" + ENTER)
        terminal.read_until(lambda output: "You added: “only the tests”" in output)
        ends_with(terminal, "\n>")
        terminal.type(CTRL_D)
        assert terminal.finish() == 0
        assert "\n> only the tests\n" in terminal.screen


@pytest.mark.slow
def test_the_agents_words_wait_while_a_line_is_typed_and_come_whole(tmp_path: Path) -> None:
    with chat("Tell me.", folder=tmp_path, REMOTECLAW_DEMO_PACE="0.02") as terminal:
        terminal.read_until(lambda output: "You asked:" in output)
        terminal.type("x")
        ends_with(terminal, "\n> x")
        assert wait_until(lambda: terminal.screen.endswith("\n> x"))
        terminal.type("\x7f")
        terminal.read_until(lambda output: "not the conversation." in output)
        ends_with(terminal, "\n>")
        terminal.type(CTRL_D)
        assert terminal.finish() == 0
        joined = terminal.screen.replace("\n", "")
    assert "the same loop prints what they say." in joined
    assert joined.count("Hello! This is the demo agent.") == 1


def test_a_line_that_is_begun_before_a_question_is_no_answer_to_it() -> None:
    master, slave = pty.openpty()
    meanwhile: list[str] = []
    answers: list[object] = []
    with os.fdopen(slave, "w") as terminal, os.fdopen(master, "rb", 0) as far_end:
        with Keyboard(slave, Screen(terminal, terminal), meanwhile.append) as keyboard:
            os.write(master, b"y")
            assert wait_until(lambda: keyboard.is_typing)
            asker = threading.Thread(target=lambda: answers.append(keyboard.read("allow? ", lambda: False)))
            asker.start()
            os.write(master, b"\r")
            assert wait_until(lambda: meanwhile)
            shown = b""
            while b"allow?" not in shown:
                shown += far_end.read(1024)
            os.write(master, b"n\r")
            asker.join()
        assert far_end.read(1)
    assert (meanwhile, answers) == (["y"], ["n"])


@pytest.mark.slow
def test_markdown_is_shown_as_the_agent_wrote_it(tmp_path: Path) -> None:
    with chat("markdown please", folder=tmp_path) as terminal:
        ends_with(terminal, "\n>")
        terminal.type(CTRL_D)
        terminal.finish()
        screen = terminal.screen
    assert MARKDOWN in screen


@pytest.mark.slow
def test_an_agent_cannot_command_the_terminal_in_a_conversation(fake: Path) -> None:
    nasty = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[?2004l\x9b5A\rwrite\x1bc end"
    with on_fake(fake, steps(["text", nasty], ["ask", "t1", nasty, {"command": nasty}]), NO_COLOR="1") as terminal:
        ends_with(terminal, ALLOW)
        assert "red5Awrite end" in terminal.screen  # `screen` fails on any sequence that it does not know.
        assert r"\x1b]0;owned\x07\x1b[2J" in terminal.screen
        terminal.type("n" + ENTER + CTRL_D)
        terminal.finish()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)])
@pytest.mark.parametrize("when", ["idle", "working", "asking"])
def test_a_signal_ends_the_agent_and_restores_the_terminal(
    number: signal.Signals, code: int, when: str, tmp_path: Path
) -> None:
    prompt = {"idle": "Hello", "working": "demo:hang", "asking": "edit"}[when]
    sign = {"idle": "\n>", "working": "to stop", "asking": ALLOW}[when]
    with chat(prompt, folder=tmp_path) as terminal:
        before = terminal.modes
        if when == "working":
            terminal.read_until(lambda output: "working" in output)
        else:
            ends_with(terminal, sign)
        terminal.process.send_signal(number)
        assert terminal.finish() == code
        assert terminal.modes == before
        assert "Traceback" not in terminal.output
    assert not (tmp_path / "demo-note.txt").exists()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["idle", "working", "asking"])
def test_a_lost_connection_ends_it_all(when: str, tmp_path: Path) -> None:
    prompt = {"idle": "Hello", "working": "demo:hang", "asking": "edit"}[when]
    with chat(prompt, folder=tmp_path) as terminal:
        if when == "working":
            terminal.read_until(lambda output: "working" in output)
        else:
            ends_with(terminal, ALLOW if when == "asking" else "\n>")
        terminal.hang_up()
        assert terminal.process.wait(PATIENCE) == 129


@pytest.mark.slow
def test_a_pasted_text_is_one_message(tmp_path: Path) -> None:
    with chat(folder=tmp_path) as terminal:
        ends_with(terminal, "\n>")
        terminal.type("\x1b[200~line one\nline two\n\x1b[201~" + ENTER)
        terminal.read_until(lambda output: "You asked: “line one line two”" in output)
        terminal.type(CTRL_D)
        assert terminal.finish() == 0


@pytest.mark.slow
def test_a_line_of_more_rows_than_the_terminal_has_is_not_drawn_over_and_over(tmp_path: Path) -> None:
    with chat(folder=tmp_path) as terminal:
        ends_with(terminal, "\n>")
        terminal.resize(20, rows=6)
        terminal.type("word " * 40 + "end")
        terminal.read_until(lambda output: "word end" in output)
        terminal.type("!")
        terminal.read_until(lambda output: "end!" in output)
        ups = [int(rows) for rows in re.findall(r"\x1b\[(\d+)A", terminal.output)]
        assert max(ups) < 6  # No cursor can move beyond the upper edge.
        terminal.type(ENTER)
        terminal.read_until(lambda output: "You asked:" in output)
        terminal.type(CTRL_D)
        assert terminal.finish() == 0


@pytest.mark.slow
def test_of_a_long_text_that_was_entered_it_is_told_how_much_is_not_shown(tmp_path: Path) -> None:
    with chat(folder=tmp_path) as terminal:
        ends_with(terminal, "\n>")
        terminal.type("\x1b[200~" + "\n".join(f"line {number}" for number in range(30)) + "\x1b[201~" + ENTER)
        terminal.read_until(lambda output: "You asked:" in output)
        terminal.type(CTRL_D)
        assert terminal.finish() == 0
        assert "> line 0\n" in terminal.screen
        assert "  line 11\n  [18 more lines]\n" in terminal.screen


@pytest.mark.slow
def test_commands_change_the_session_and_other_slashes_go_to_the_agent(tmp_path: Path) -> None:
    with chat(folder=tmp_path) as terminal:
        ends_with(terminal, "\n>")
        terminal.type("/help" + ENTER)
        ends_with(terminal, "\n>")
        terminal.type("/mode yolo" + ENTER)
        terminal.read_until(lambda output: "/mode: mode must be one of" in output)
        terminal.type("/mode bypass" + ENTER)
        terminal.read_until(lambda output: "permission mode: bypass" in output)
        terminal.type("run a command" + ENTER)
        terminal.read_until(lambda output: "The command was run." in output)
        ends_with(terminal, "\n>")
        terminal.type("/clear" + ENTER)
        terminal.read_until(lambda output: "You asked: “/clear”" in output)
        ends_with(terminal, "\n>")
        terminal.type("/exit" + ENTER)
        assert terminal.finish() == 0
        assert "allow?" not in terminal.screen


@pytest.mark.slow
def test_a_dumb_terminal_gets_plain_lines_and_no_escape_at_all(tmp_path: Path) -> None:
    with chat(folder=tmp_path, TERM="dumb") as terminal:
        before = terminal.modes
        terminal.read_until(lambda output: output.endswith("> "))
        terminal.type("run a command\n")
        terminal.read_until(lambda output: output.endswith(ALLOW))
        terminal.type("y\n")
        terminal.read_until(lambda output: "The command was run." in output and output.endswith("\n> "))
        terminal.type(CTRL_D)
        assert terminal.finish() == 0
        assert terminal.modes == before
        assert "\x1b" not in terminal.output


@pytest.mark.slow
def test_no_color_means_no_colour_in_a_conversation(tmp_path: Path) -> None:
    with chat("edit", folder=tmp_path, NO_COLOR="1") as terminal:
        ends_with(terminal, ALLOW)
        terminal.type("n" + ENTER)
        ends_with(terminal, "\n>")
        terminal.type(CTRL_D)
        terminal.finish()
        assert not re.search(r"\x1b\[[0-9;]*m", terminal.output)


@pytest.mark.slow
def test_the_command_in_the_last_line_takes_the_conversation_up_again(fake: Path) -> None:
    with on_fake(fake, "remember me") as terminal:
        terminal.read_until(lambda output: "re: remember me" in output)
        ends_with(terminal, "\n>")
        terminal.type(CTRL_D)
        terminal.finish()
        found = re.search(
            r"to continue: remoteclaw-sync (.*)|to continue: python -m remoteclaw_sync (.*)", terminal.screen
        )
        assert found
        resume = (found[1] or found[2]).split()
    assert resume[:3] == ["chat", "--provider", "claude"]
    with on_fake(fake, *resume[3:], "again") as terminal:
        terminal.read_until(lambda output: "re: again" in output)
        terminal.type(CTRL_D)
        assert terminal.finish() == 0


# --- without a terminal ----------------------------------------------------------------------------------------------


def test_without_a_terminal_each_line_is_a_message_or_an_answer(tmp_path: Path) -> None:
    done = cli("chat", "-p", "demo", stdin="run a command\ny\n\nedit\nnot this\n", cwd=tmp_path)
    said, told = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == 0, told
    assert "The command was run." in said
    assert "I was told: “not this”" in said
    assert "\x1b" not in said + told
    assert "wants to use Bash:\n    echo 'The demo agent ran this, in:' && pwd\n" in told
    assert not (tmp_path / "demo-note.txt").exists()


@pytest.mark.slow
def test_the_lines_of_a_pipe_are_for_the_agent_and_never_for_us(tmp_path: Path) -> None:
    done = cli("chat", "-p", "demo", stdin="/mode bypass\nedit\n", cwd=tmp_path)
    assert "You asked: “/mode bypass”" in done.stdout.decode()
    assert not (tmp_path / "demo-note.txt").exists()  # The end of the lines is not a yes.


@pytest.mark.slow
def test_the_exit_code_of_a_script_is_that_of_its_last_turn(tmp_path: Path) -> None:
    assert cli("chat", "-p", "demo", stdin="demo:fail\n", cwd=tmp_path).returncode == 1
    assert cli("chat", "-p", "demo", stdin="demo:crash\nHello\n", cwd=tmp_path).returncode == 0


@pytest.mark.slow
def test_a_signal_ends_a_script_too(tmp_path: Path) -> None:
    process = start("chat", "-p", "demo", stdin=subprocess.PIPE, cwd=tmp_path)
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"Hello\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith(b"Hello!")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 143


def test_a_mistake_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull) as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        assert main(["chat", "-p", "demo", "--resume", ""]) == 2
        assert "session_id must not be empty" in capsys.readouterr().err
        assert main(["chat", "-p", "gpt"]) == 2
        assert "unknown provider 'gpt'" in capsys.readouterr().err


# --- run --approve ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_run_asks_on_the_terminal_in_the_same_way(tmp_path: Path) -> None:
    with Terminal("demo", "--approve", "run a command", cwd=tmp_path) as terminal:
        before = terminal.modes
        ends_with(terminal, ALLOW)
        terminal.type("y" + ENTER)
        assert terminal.finish() == 0
        assert terminal.modes == before
        assert "The command was run." in terminal.screen
        assert terminal.screen.count("allow?") == 1


@pytest.mark.slow
def test_run_asks_there_also_if_stdin_and_stdout_are_pipes(tmp_path: Path) -> None:
    script = 'echo edit | "$0" -m remoteclaw_sync run -p demo --approve --json | tail -n 1 >last.json'
    with Terminal(cwd=tmp_path, program=("/bin/sh", "-c", script, sys.executable)) as terminal:
        ends_with(terminal, ALLOW)
        terminal.type("n" + ENTER)
        assert terminal.finish() == 0
    last = json.loads((tmp_path / "last.json").read_text())
    assert [denial["tool"] for denial in last["result"]["permission_denials"]] == ["Write"]


@pytest.mark.slow
def test_ctrl_c_at_a_question_of_run_ends_the_run(tmp_path: Path) -> None:
    with Terminal("demo", "--approve", "edit", cwd=tmp_path) as terminal:
        before = terminal.modes
        ends_with(terminal, ALLOW)
        terminal.type(CTRL_C)
        assert terminal.finish() == 130
        assert terminal.modes == before
    assert not (tmp_path / "demo-note.txt").exists()


def test_run_with_nobody_to_ask_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    process = start("demo", "--approve", "edit", cwd=tmp_path, start_new_session=True)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert b"--approve needs a terminal to ask on" in said
