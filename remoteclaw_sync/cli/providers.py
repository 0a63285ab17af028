"""`providers`: the CLIs this package knows, and where they are."""

from __future__ import annotations

import argparse
import json
import shutil

from ..factory import DEMO, SUPPORTED_PROVIDERS
from .run import install_command


def command(options: argparse.Namespace) -> int:
    """List them; starts nothing."""
    found = {provider: shutil.which(provider) for provider in SUPPORTED_PROVIDERS}
    if options.json:
        rows = [
            {"provider": provider, "path": path, "install": install_command(provider)}
            for provider, path in found.items()
        ]
        print(json.dumps({"providers": [*rows, {"provider": DEMO, "path": None, "install": ""}]}))
        return 0
    for provider, path in found.items():
        print(f"{provider:<9} {path or f'not installed: {install_command(provider)}'}")
    print(f"{DEMO:<9} built in")
    return 0
