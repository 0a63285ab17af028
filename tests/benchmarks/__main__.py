"""`python -m tests.benchmarks [--quick] [--json] [--readme] [SCENARIO ...]`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from pathlib import Path

import attrs

from .fake import build_fake_cli
from .scenarios import SCENARIOS
from .table import Bench, Row

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- benchmarks:begin -->", "<!-- benchmarks:end -->"


def main() -> int:
    """Run the scenarios and print a table; exit code 1 if a floor does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("scenario", nargs="*", help=f"of {', '.join(SCENARIOS)} (default: all)")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--quick", action="store_true", help="fewer lines and pairs")
    parser.add_argument("--readme", action="store_true", help="put the table into README.md")
    options = parser.parse_args()
    unknown = set(options.scenario) - set(SCENARIOS)
    if unknown:
        parser.error(f"unknown scenario: {', '.join(sorted(unknown))}")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="remoteclaw-bench-") as name:
        folder = Path(name)
        lines, pair_count = (40_000, 3) if options.quick else (200_000, 4)
        bench = Bench(folder, build_fake_cli(folder), lines, pair_count)
        for scenario in options.scenario or SCENARIOS:
            for row in SCENARIOS[scenario](bench):
                rows.append(row)
                if not options.json:
                    print(_as_text(row), flush=True)
    if options.json:
        print(json.dumps([{**attrs.asdict(row), "holds": row.holds} for row in rows], indent=2))
    else:
        print(f"\n{_legend()}")
    if options.readme:
        _put_into_readme(_as_markdown(rows))
    return 0 if all(row.holds for row in rows) else 1


def _legend() -> str:
    cores = os.cpu_count()
    return (
        "(a) is `for line in proc.stdout: json.loads(line)`, by turns with ours in one process; in brackets the middle "
        f"half of the pairs. Python {platform.python_version()}, {cores} cores."
    )


def _as_text(row: Row) -> str:
    low, high = row.spread
    value = f"{row.what:40} {row.value:8.2f} [{low:.2f}..{high:.2f}] {row.unit:20}"
    return value if row.floor is None else f"{value} floor {_floor(row)}  {'ok' if row.holds else 'BELOW THE FLOOR'}"


def _floor(row: Row) -> str:
    return f"{'>=' if row.better == 'higher' else '<='} {row.floor:g}"


def _as_markdown(rows: list[Row]) -> str:
    lines = ["| what | measured | spread | unit | floor | |", "|---|--:|---|---|---|---|"]
    for row in rows:
        low, high = row.spread
        spread = "" if low == high else f"{low:.2f}–{high:.2f}"
        floor, verdict = ("", "") if row.floor is None else (_floor(row), "ok" if row.holds else "missed")
        lines.append(f"| {row.what} | {row.value:.2f} | {spread} | {row.unit} | {floor} | {verdict} |")
    return "\n".join([*lines, "", _legend()])


def _put_into_readme(table: str) -> None:
    """Put it between the markers; it is printed if there are none."""
    readme = README.read_text(encoding="utf-8") if README.exists() else ""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and end:
        README.write_text(f"{before}{begin}\n{table}\n{end}{after}", encoding="utf-8")
    else:
        print(f"no {BEGIN} ... {END} in {README.name}:\n\n{table}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
