"""Fails when a test was skipped for a reason that is not among those given.

    python check_skips.py report.xml [--allow REGEX]...

Reads pytest's JUnit report. A skipped test is a claim that nobody checked: each reason has to be expected here.
"""

from __future__ import annotations

import argparse
import re
import sys
import xml.etree.ElementTree as ElementTree


def main() -> int:
    """Print what was skipped and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("report")
    parser.add_argument("--allow", action="append", default=[], metavar="REGEX", help="an expected reason")
    options = parser.parse_args()
    cases = list(ElementTree.parse(options.report).iter("testcase"))
    if not cases:
        print("no test was run", file=sys.stderr)
        return 1
    skips = [(case, skip.get("message") or "") for case in cases for skip in case.iter("skipped")]
    surprises = [(case, why) for case, why in skips if not any(re.search(allowed, why) for allowed in options.allow)]
    print(f"{len(cases)} tests, {len(skips)} skipped, {len(surprises)} of them without an expected reason")
    for case, why in surprises:
        print(f"  {case.get('classname')}::{case.get('name')}: {why}", file=sys.stderr)
    return 1 if surprises else 0


if __name__ == "__main__":
    raise SystemExit(main())
