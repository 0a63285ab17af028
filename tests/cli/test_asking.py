"""How a person at a terminal is asked about a tool call."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

from remoteclaw_sync import Allow, Deny, PermissionRequest
from remoteclaw_sync.cli.asking import Asker
from remoteclaw_sync.cli.keyboard import News, never
from remoteclaw_sync.cli.status_line import Screen

COMMAND = PermissionRequest("r1", "Bash", "t1", {"command": "make\nrm -r out"}, "shell commands need permission", "s1")


class Said:
    """Lines that were prepared in advance."""

    def __init__(self, *lines: str) -> None:
        self._lines = list(lines)

    def read(self, prompt: str, is_over: Callable[[], bool] = never) -> str | News:
        return self._lines.pop(0) if self._lines and not is_over() else News.END

    def tell(self, news: News) -> None:
        raise AssertionError

    def clear(self) -> bool:
        raise AssertionError


def asked(request: PermissionRequest, *lines: str) -> tuple[Allow | Deny, str]:
    """The decision, and what was shown."""
    shown = io.StringIO()
    said = Said(*lines)
    decision = Asker(Screen(io.StringIO(), shown), said)(request)
    assert not said._lines, "it was asked for less than was said"
    return decision, shown.getvalue()


@pytest.mark.parametrize(
    ("lines", "decision"),
    [
        (["y"], Allow()),
        (["YES "], Allow()),
        (["always"], Allow(remember=True)),
        (["a"], Allow(remember=True)),
        (["n"], Deny()),
        (["no"], Deny()),
        (["", "", "y"], Allow()),
        (["why", "n"], Deny()),
        (["Use the other folder."], Deny("Use the other folder.")),
        (["yes!"], Deny("yes!")),
        (["why"], Deny("Nobody answered.")),
        ([], Deny("Nobody answered.")),
    ],
)
def test_only_a_clear_yes_is_one(lines: list[str], decision: Allow | Deny) -> None:
    assert asked(COMMAND, *lines)[0] == decision


def test_a_run_that_has_ended_gets_a_no() -> None:
    asker = Asker(Screen(io.StringIO(), io.StringIO()), Said("y"))
    asker.is_over = lambda: True
    assert asker(COMMAND) == Deny("Nobody answered.")


def test_the_whole_command_is_shown_and_why_tells_the_rest() -> None:
    _, shown = asked(COMMAND, "n")
    assert "wants to use Bash:\n    make\n    rm -r out\n" in shown
    assert "need permission" not in shown
    _, shown = asked(COMMAND, "why", "n")
    assert "    why: shell commands need permission\n" in shown
    assert "    session: s1\n" in shown


def test_what_always_means_is_told() -> None:
    assert "always: this same command, until" in asked(COMMAND, "?", "n")[1]
    edit = PermissionRequest("r1", "Edit", "t1", {"file_path": "a.py"})
    assert "always: any call of Edit, until" in asked(edit, "?", "n")[1]


@pytest.mark.parametrize(
    ("hidden", "spelled"),
    [
        ("\x1b[2K\rls", r"\x1b[2K\rls"),
        ("rm -r / #\x08\x08", r"rm -r / #\x08\x08"),
        ("ls \u202e/ r- mr", r"ls \u202e/ r- mr"),
        ("ls\u200b", r"ls\u200b"),
        ("ls\u2028rm", r"ls\u2028rm"),
        ("\x9b1A", r"\x9b1A"),
    ],
)
def test_nothing_in_a_command_can_hide(hidden: str, spelled: str) -> None:
    for place in ({"command": hidden}, {"path": hidden}, {hidden: "x"}, {"list": [hidden]}):
        request = PermissionRequest("r1", "Ba" + hidden, "t1", place, hidden)
        _, shown = asked(request, "why", "n")
        assert hidden not in shown
        assert shown.replace("\n", "").isprintable()
    assert f"    {spelled}\n" in asked(PermissionRequest("r", "Bash", "t", {"command": hidden}), "n")[1]


@pytest.mark.parametrize("command", ["true;" + "\n" * 300 + "rm -r .", "true;" + " " * 3_000 + "rm -r ."])
def test_a_long_command_says_that_there_is_more_of_it(command: str) -> None:
    request = PermissionRequest("r1", "Bash", "t1", {"command": command})
    _, shown = asked(request, "n")
    assert "rm -r ." not in shown
    assert "“why” shows all]" in shown
    assert "rm -r ." in asked(request, "why", "n")[1]


def test_a_sub_agent_is_named_as_one() -> None:
    request = PermissionRequest("r1", "Bash", "t1", {"command": "ls"}, parent_tool_use_id="t0")
    assert "A sub-agent wants to use Bash" in asked(request, "n")[1]


def question(**fields: Any) -> PermissionRequest:
    options = [{"label": "Blue", "description": "calm"}, {"label": "Red"}]
    return PermissionRequest("r1", "Ask", "t1", {}, questions=[{"question": "Which?", "options": options, **fields}])


@pytest.mark.parametrize(
    ("answer", "several", "given"),
    [
        ("1", False, "Blue"),
        ("2", False, "Red"),
        ("3", False, "3"),
        ("green, please", False, "green, please"),
        ("1, 2", True, ["Blue", "Red"]),
        ("2", True, ["Red"]),
    ],
)
def test_a_question_is_answered_by_number_or_in_words(answer: str, several: bool, given: Any) -> None:
    decision, shown = asked(question(multiSelect=several), answer)
    assert decision == Allow(answers={"Which?": given})
    assert "? Which?\n  1. Blue: calm\n  2. Red\n" in shown


def test_a_question_that_nobody_answers_is_refused() -> None:
    assert asked(question(), "")[0] == Deny("The user did not answer.")
    assert asked(question())[0] == Deny("Nobody answered.")
