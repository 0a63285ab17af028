"""`providers`: the CLIs that this package knows, and where they are."""

from __future__ import annotations

import argparse
import json
import shutil

from ..clis.registry import all_facts
from ..factory import DEMO
from .run import absence, places_of


def command(options: argparse.Namespace) -> int:
    """List the CLIs without starting any."""
    found = [(cli, shutil.which(cli.name)) for cli in all_facts()]
    if options.json:
        rows = [
            {
                "provider": cli.name,
                "path": path,
                "elsewhere": [] if path else places_of(cli),
                "install": cli.install,
            }
            for cli, path in found
        ]
        print(json.dumps({"providers": [*rows, {"provider": DEMO, "path": None, "elsewhere": [], "install": ""}]}))
        return 0
    for cli, path in found:
        print(f"{cli.name:<9} {path or absence(cli)}")
    print(f"{DEMO:<9} built in")
    return 0
