"""`python -m tests.benchmarks [--json] [--quick] [SCENARIO ...]`."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from pathlib import Path

import attrs

from .fake import build_fake_cli
from .scenarios import SCENARIOS, Bench, Row


def main() -> int:
    """Run the scenarios and print a table; exit code 1 if a floor does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("scenario", nargs="*", help=f"of {', '.join(SCENARIOS)} (default: all)")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--quick", action="store_true", help="fewer lines and pairs")
    options = parser.parse_args()
    unknown = set(options.scenario) - set(SCENARIOS)
    if unknown:
        parser.error(f"unknown scenario: {', '.join(sorted(unknown))}")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="remoteclaw-bench-") as name:
        folder = Path(name)
        lines, pair_count = (40_000, 3) if options.quick else (200_000, 6)
        bench = Bench(folder, build_fake_cli(folder), lines, pair_count)
        for scenario in options.scenario or SCENARIOS:
            for row in SCENARIOS[scenario](bench):
                rows.append(row)
                if not options.json:
                    print(_as_text(row), flush=True)
    if options.json:
        print(json.dumps([{**attrs.asdict(row), "holds": row.holds} for row in rows], indent=2))
    else:
        print(f"\n(a) = for line in proc.stdout: json.loads(line). Python {platform.python_version()}.")
    return 0 if all(row.holds for row in rows) else 1


def _as_text(row: Row) -> str:
    verdict = "ok" if row.holds else "BELOW THE FLOOR"
    sign = ">=" if row.better == "higher" else "<="
    low, high = row.spread
    return f"{row.what:40} {row.value:8.2f} [{low:.2f}..{high:.2f}] {row.unit:16} floor {sign} {row.floor:g}  {verdict}"


if __name__ == "__main__":
    sys.exit(main())
