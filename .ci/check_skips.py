"""Fails when a test was skipped for a reason that is not among those given.

    python check_skips.py report.xml [--allow REGEX]...

Reads pytest's JUnit report. A skipped test is a claim that nobody checked: each reason has to be expected here.
"""

from __future__ import annotations

import argparse
import re
import sys
import xml.etree.ElementTree as ElementTree


def reason_of(skip: ElementTree.Element) -> str:
    """Why. Of a whole module that was skipped, only the text tells: `('file', 20, 'Skipped: the reason')`."""
    message = skip.get("message") or ""
    if message != "collection skipped":
        return message
    return (skip.text or "").partition("Skipped: ")[2].rstrip("'\")")


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
    skips = [(case, reason_of(skip)) for case in cases for skip in case.iter("skipped")]
    surprises = [(case, why) for case, why in skips if not any(re.search(allowed, why) for allowed in options.allow)]
    print(f"{len(cases)} tests, {len(skips)} skipped, {len(surprises)} of them without an expected reason")
    for case, why in surprises:
        print(f"  {case.get('classname')}::{case.get('name')}: {why}", file=sys.stderr)
    return 1 if surprises else 0


if __name__ == "__main__":
    raise SystemExit(main())
