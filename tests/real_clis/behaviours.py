"""The table of what works on which CLI: `python -m tests.real_clis.behaviours [--readme]`.

Prints the table, or puts it into README. It is made from the stored result of the real-CLI suite (behaviours.json),
which is written by `--run`, or by `--junit` from the report of a pytest run elsewhere. behaviours_table.py says which
tests show what; a cell that no test has shown says so.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.real_clis.behaviours_table import BEHAVIOURS, CLIS, Shown
from tests.real_clis.bench import REQUIRE_VARIABLE, wanted_bin_folder
from tests.real_clis.capture import installed_version

SUITE = Path(__file__).parent
SOURCE = SUITE.parents[1]
RESULT = SUITE / "behaviours.json"
README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- behaviours:begin -->", "<!-- behaviours:end -->"
# Files of the suite whose tests run every CLI, or name the one they run.
SHARED_FILES = ("test_all_clis.py", "test_mcp.py")

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
NO = "no"
NOT_SHOWN = "not shown"


@dataclass(frozen=True)
class CliResult:
    """The suite's result for one CLI: the outcome of each test, by file and name."""

    version: str
    day: str
    tests: Mapping[str, str]


# --- the table ----------------------------------------------------------------------------------------------


def table(results: Mapping[str, CliResult]) -> str:
    """The table in Markdown: a row for each behaviour, a column for each CLI."""
    head = ["behaviour", *(f"{name} {results[cli].version}" if cli in results else name for cli, name in CLIS.items())]
    rows = [[behaviour, *(cell(results, cli, shown[cli]) for cli in CLIS)] for behaviour, shown in BEHAVIOURS.items()]
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def cell(results: Mapping[str, CliResult], cli: str, shown: Shown) -> str:
    """What the table says; nothing that the tests have not shown."""
    result = results.get(cli)
    outcomes = [list(outcomes_of(test, cli, result.tests if result else {})) for test in shown.tests]
    if any(FAILED in cases for cases in outcomes):
        return NO
    return shown.says if all(set(cases) == {PASSED} for cases in outcomes) else NOT_SHOWN


def outcomes_of(test: str, cli: str, outcomes: Mapping[str, str]) -> Iterator[str]:
    """The outcomes of all cases of a test that is named as in behaviours_table.py."""
    wanted = full_name(test, cli)
    for name, outcome in outcomes.items():
        if name == wanted or name.startswith(wanted if "[" in wanted else f"{wanted}["):
            yield outcome


def full_name(test: str, cli: str) -> str:
    """The test's name with its file."""
    return test if "::" in test else f"test_{cli}.py::{test}"


def region(results: Mapping[str, CliResult]) -> str:
    """The part of README between the markers."""
    days = sorted({result.day for result in results.values()})
    origin = (
        "Each cell is shown by tests that run the real CLI (`tests/real_clis`), last on "
        f"{' and '.join(days)}; `python -m tests.real_clis.behaviours --run --readme` makes this table anew."
    )
    return f"{BEGIN}\n{table(results)}\n\n{origin}\n{END}"


def with_table(readme: str, results: Mapping[str, CliResult]) -> str:
    """README with the table between its markers; raises ValueError if they are missing."""
    if readme.count(BEGIN) != 1 or readme.count(END) != 1:
        raise ValueError(f"README has no {BEGIN} and {END}")
    before, _, rest = readme.partition(BEGIN)
    return before + region(results) + rest.partition(END)[2]


# --- the result ---------------------------------------------------------------------------------------------


def stored_results(path: Path = RESULT) -> dict[str, CliResult]:
    """The result of the last run of each CLI."""
    return {cli: CliResult(**fields) for cli, fields in json.loads(path.read_text(encoding="utf-8")).items()}


def store(results: Mapping[str, CliResult], path: Path = RESULT) -> None:
    """Write the results, in an order that keeps differences small."""
    whole = {cli: asdict(results[cli]) for cli in CLIS if cli in results}
    for fields in whole.values():
        fields["tests"] = dict(sorted(fields["tests"].items()))
    path.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_junit(reports: Iterable[str]) -> dict[str, str]:
    """The outcome of each test in pytest's JUnit reports; a test that failed in any of its phases has failed."""
    outcomes: dict[str, str] = {}
    for report in reports:
        for case in ElementTree.fromstring(report).iter("testcase"):
            file = case.get("classname", "").rpartition(".")[2] + ".py"
            name = f"{file}::{case.get('name')}"
            outcome = _outcome(case)
            outcomes[name] = outcome if outcomes.get(name) != FAILED else FAILED
    return outcomes


def of_cli(outcomes: Mapping[str, str], cli: str) -> dict[str, str]:
    """The outcomes that are about one CLI: those of its own file, and its cases in the files for all CLIs."""
    return {name: outcome for name, outcome in outcomes.items() if _is_about(name, cli)}


def _outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return FAILED
    return SKIPPED if case.find("skipped") is not None else PASSED


def _is_about(name: str, cli: str) -> bool:
    file, _, test = name.partition("::")
    if file in SHARED_FILES:
        return cli in re.split(r"[^a-z]+", test)
    return file == f"test_{cli}.py"


def _run_suite(cli: str) -> str:
    """The JUnit report of one CLI's tests. Raises CalledProcessError if there is none."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        files = [str(SUITE / name) for name in (f"test_{cli}.py", *SHARED_FILES)]
        command = [sys.executable, "-m", "pytest", "-q", f"-k={cli}", f"--junitxml={report}", *files]
        done = subprocess.run(command, cwd=SOURCE, env={**os.environ, REQUIRE_VARIABLE: "1"})
        if not report.exists():
            raise subprocess.CalledProcessError(done.returncode, command)
        return report.read_text(encoding="utf-8")


def take_in(results: Mapping[str, CliResult], cli: str, outcomes: Mapping[str, str]) -> dict[str, CliResult]:
    """The results, updated with those of a new run of one CLI."""
    version = installed_version(cli, wanted_bin_folder())
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {**results, cli: CliResult(version, day, of_cli(outcomes, cli))}


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; exit status 1 if a test failed in the results that were taken in, or README has no place for the
    table."""
    parser = argparse.ArgumentParser(prog="python -m tests.real_clis.behaviours", description=__doc__)
    parser.add_argument("--readme", action="store_true", help="put the table into README instead of printing it")
    parser.add_argument("--cli", action="append", choices=list(CLIS), help="take new results of this one only")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--run", action="store_true", help="run the suite first (a quarter of an hour)")
    source.add_argument("--junit", nargs="+", type=Path, metavar="FILE", help="take the results of these reports")
    options = parser.parse_args(arguments)
    results = stored_results() if RESULT.exists() else {}
    if options.run or options.junit:
        for cli in options.cli or CLIS:
            reports = [_run_suite(cli)] if options.run else [path.read_text() for path in options.junit]
            results = take_in(results, cli, read_junit(reports))
            store(results)
    if options.readme:
        try:
            README.write_text(with_table(README.read_text(encoding="utf-8"), results), encoding="utf-8")
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    else:
        print(table(results))
    failures = [name for result in results.values() for name, outcome in result.tests.items() if outcome == FAILED]
    for name in failures:
        print(f"failed: {name}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
