"""README's table of behaviours is made from the stored result of the real-CLI suite, and from nothing else."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from tests.real_clis.behaviours import (
    BEGIN,
    FAILED,
    NO,
    NOT_SHOWN,
    PASSED,
    README,
    RESULT,
    SKIPPED,
    SUITE,
    CliResult,
    cell,
    full_name,
    of_cli,
    read_junit,
    region,
    store,
    stored_results,
    table,
    with_table,
)
from tests.real_clis.behaviours_table import BEHAVIOURS, CLIS, Shown, by
from tests.real_clis.install import PACKAGE_OF_CLI, wanted_versions

REPORT = """<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite>
<testcase classname="tests.real_clis.test_codex" name="test_a[400-x]" time="1"/>
<testcase classname="tests.real_clis.test_codex" name="test_a[500-x]"><failure message="m">t</failure></testcase>
<testcase classname="tests.real_clis.test_codex" name="test_b" time="1"/>
<testcase classname="tests.real_clis.test_codex" name="test_b"><error message="m">t</error></testcase>
<testcase classname="tests.real_clis.test_codex" name="test_c" time="1"><skipped message="why"/></testcase>
<testcase classname="tests.real_clis.test_mcp" name="test_d[abort-codex]" time="1"/>
<testcase classname="tests.real_clis.test_mcp" name="test_d[abort-claude]" time="1"/>
<testcase classname="tests.real_clis.test_all_clis" name="test_an_agent_of_codex_works" time="1"/>
<testcase classname="tests.real_clis.test_claude" name="test_e" time="1"/>
</testsuite></testsuites>"""


def results(tests: dict[str, str]) -> dict[str, CliResult]:
    return {"codex": CliResult("1.2.3", "2026-01-02", tests)}


# --- the machinery -------------------------------------------------------------------------------------------------


def test_a_report_becomes_the_outcomes_of_one_cli() -> None:
    assert of_cli(read_junit([REPORT]), "codex") == {
        "test_codex.py::test_a[400-x]": PASSED,
        "test_codex.py::test_a[500-x]": FAILED,
        "test_codex.py::test_b": FAILED,
        "test_codex.py::test_c": SKIPPED,
        "test_mcp.py::test_d[abort-codex]": PASSED,
        "test_all_clis.py::test_an_agent_of_codex_works": PASSED,
    }


@pytest.mark.parametrize(
    ("shown", "says"),
    [
        (by("test_a[400", "test_mcp.py::test_d", says="well"), "well"),
        (by("test_a"), NO),
        (by("test_b"), NO),
        (by("test_c"), NOT_SHOWN),
        (by("test_gone"), NOT_SHOWN),
        (by("test_a[400", "test_gone"), NOT_SHOWN),
        (by("test"), NOT_SHOWN),
    ],
)
def test_a_cell_says_yes_only_if_all_its_tests_passed(shown: Shown, says: str) -> None:
    assert cell(results(of_cli(read_junit([REPORT]), "codex")), "codex", shown) == says


def test_a_cli_without_a_result_has_shown_nothing() -> None:
    assert cell({}, "codex", by("test_a")) == NOT_SHOWN


def test_results_are_stored_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    stored = results({"test_codex.py::test_b": PASSED, "test_codex.py::test_a": FAILED})
    store(stored, path)
    assert stored_results(path) == stored


def test_the_table_replaces_what_is_between_the_markers_and_no_more() -> None:
    stored = stored_results()
    once = with_table(f"before\n{BEGIN}\nold\n<!-- behaviours:end -->\nafter\n", stored)
    assert once == f"before\n{region(stored)}\nafter\n"
    assert with_table(once, stored) == once
    with pytest.raises(ValueError, match="behaviours:begin"):
        with_table("no markers", stored)


# --- what is stored ------------------------------------------------------------------------------------------------


def names_in_the_suite() -> set[str]:
    names = set()
    for path in SUITE.glob("test_*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                names.add(f"{path.name}::{node.name}")
    return names


def test_each_cell_names_tests_that_exist() -> None:
    named = {
        full_name(test, cli).partition("[")[0]
        for behaviour in BEHAVIOURS.values()
        for cli, shown in behaviour.items()
        for test in shown.tests
    }
    assert named <= names_in_the_suite()
    assert all(set(behaviour) == set(CLIS) for behaviour in BEHAVIOURS.values())


def test_the_stored_result_is_of_the_pinned_versions_and_of_tests_that_exist() -> None:
    stored = stored_results()
    assert {cli: result.version for cli, result in stored.items()} == {
        cli: wanted_versions()[PACKAGE_OF_CLI[cli]] for cli in CLIS
    }
    assert {name.partition("[")[0] for result in stored.values() for name in result.tests} <= names_in_the_suite()


def test_every_behaviour_has_been_tried_on_every_cli() -> None:
    cells = {
        (behaviour, cli): cell(stored_results(), cli, shown[cli])
        for behaviour, shown in BEHAVIOURS.items()
        for cli in CLIS
    }
    assert {where: says for where, says in cells.items() if says == NOT_SHOWN} == {}


def test_the_stored_result_tells_nothing_of_the_machine() -> None:
    text = RESULT.read_text(encoding="utf-8")
    assert not re.search(r'"/|\d:\d\d:', text)
    assert set(json.loads(text)["claude"]) == {"version", "day", "tests"}


def test_the_table_has_one_row_for_each_behaviour() -> None:
    _, _, *rows = table(stored_results()).splitlines()
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == list(BEHAVIOURS)
    assert {row.count(" | ") for row in rows} == {len(CLIS)}


@pytest.mark.skipif(BEGIN not in README.read_text(encoding="utf-8"), reason="README has no place for the table")
def test_readme_has_the_table_of_the_stored_result() -> None:
    readme = README.read_text(encoding="utf-8")
    assert with_table(readme, stored_results()) == readme
