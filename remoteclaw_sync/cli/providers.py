"""`providers`: the CLIs this package knows, and where they are."""

from __future__ import annotations

import argparse
import json
import os
import shutil

from ..factory import DEMO, SUPPORTED_PROVIDERS
from ..versions import found_elsewhere
from .run import absence, install_command


def command(options: argparse.Namespace) -> int:
    """List them; starts nothing."""
    found = {provider: shutil.which(provider) for provider in SUPPORTED_PROVIDERS}
    if options.json:
        rows = [
            {
                "provider": provider,
                "path": path,
                "elsewhere": [] if path else found_elsewhere(provider, os.environ),
                "install": install_command(provider),
            }
            for provider, path in found.items()
        ]
        print(json.dumps({"providers": [*rows, {"provider": DEMO, "path": None, "elsewhere": [], "install": ""}]}))
        return 0
    for provider, path in found.items():
        print(f"{provider:<9} {path or absence(provider)}")
    print(f"{DEMO:<9} built in")
    return 0
