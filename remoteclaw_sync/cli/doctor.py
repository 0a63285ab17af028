"""`doctor`: what is installed, whether it can run here, and what earlier crashes have left behind."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import threading
from typing import Any

import attrs

from .._version import __version__
from ..clis.facts import CliFacts
from ..clis.registry import all_facts, facts_of
from ..factory import DEMO
from ..versions import Standing, standing, support_of
from . import probe
from .dispatch import UsageError
from .leftovers import Leftover, find_leftovers
from .probe import Installed, Program, too_old
from .terminal_text import Style, one_line


def command(options: argparse.Namespace) -> int:
    """Check and report; exit code 1 if no CLI can run."""
    folder = os.path.abspath(options.cwd or os.getcwd())
    if not os.path.isdir(folder):
        raise UsageError(f"{folder} is not a folder")
    installed = _probe_all()
    leftovers = find_leftovers(folder, repair=options.repair)
    if options.json:
        print(json.dumps(_report(folder, installed, leftovers)))
    else:
        _print_report(folder, installed, leftovers)
    return 0 if any(one.can_run for one in installed) else 1


def _probe_all() -> list[Installed]:
    """Probe all CLIs in parallel, because each may take seconds to print its version."""
    found: dict[str, Installed] = {}

    def look(cli: CliFacts) -> None:
        found[cli.name] = probe.probe(cli)

    threads = [threading.Thread(target=look, args=(cli,), daemon=True) for cli in all_facts()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[cli.name] for cli in all_facts()]


def _report(folder: str, installed: list[Installed], leftovers: list[Leftover]) -> dict[str, Any]:
    return {
        "remoteclaw_sync": __version__,
        "python": platform.python_version(),
        "platform": sys.platform,
        "ok": any(one.can_run for one in installed),
        "providers": [
            {
                **attrs.asdict(one),
                "can_run": one.can_run,
                "standing": one.standing,
                "tested_version": one.support.tested,
                "needed_version": one.support.floor,
                "tested": one.tested,
            }
            for one in installed
        ],
        "folder": {"path": folder, "git": probe.is_in_git(folder), "trusted_by": probe.trusted_by(folder)},
        "leftovers": [attrs.asdict(leftover) for leftover in leftovers],
    }


def _print_report(folder: str, installed: list[Installed], leftovers: list[Leftover]) -> None:
    style = Style.of(sys.stdout)
    print(f"remoteclaw-sync {__version__}, Python {platform.python_version()} on {sys.platform}\n")
    for one in installed:
        _print_provider(one, style)
    print(f"{DEMO:<10}built in, needs no CLI\n")
    git = "in a git repository" if probe.is_in_git(folder) else "not in a git repository"
    trust = ", ".join(f"{name} {'yes' if yes else 'no'}" for name, yes in probe.trusted_by(folder).items())
    print(f"folder    {folder}, {git}; on the CLI's own trust list: {trust}")
    print("          (runs work here either way: you trust a folder by naming it for a run)")
    if not leftovers:
        print(f"leftovers {style.green('none')}")
    for leftover in leftovers:
        print(f"leftover  {_describe(leftover, style)}")
    if any(leftover.repaired is None for leftover in leftovers):
        print("          repair with: remoteclaw-sync doctor --repair")
    if not any(one.can_run for one in installed):
        print("\nNo agent CLI can run. Try the built-in agent: remoteclaw-sync demo")


def _print_provider(one: Installed, style: Style) -> None:
    cli = facts_of(one.provider)
    if one.path is None:
        absent = "not on PATH" if one.elsewhere else f"not installed: {cli.install}"
        print(f"{one.provider:<10}{style.dim(absent)}")
    else:
        words = _standing(cli, one.version, one.problem, style)
        print(f"{one.provider:<10}{one.version or '?'} ({words}), {one.path}")
        if one.problem is not None and one.standing is not Standing.TOO_OLD:
            print(f"          {style.red(one_line(one.problem))}")
        if one.version is not None and len(cli.support) > 1:
            print(f"          {cli.title} {one.version.partition('.')[0]} ({one.support.package} on npm)")
        print(f"          login: {one.login or style.yellow('none found')}")
    for other in one.others:
        print(f"          also on PATH: {_program(one, other, style)}")
    for other in one.elsewhere:
        print(f"          not on PATH: {_program(one, other, style)}")
    if one.elsewhere and not one.can_run:
        print(f"          put {os.path.dirname(one.elsewhere[0].path)} on PATH, or pass the path as `command`")


def _program(one: Installed, other: Program, style: Style) -> str:
    words = _standing(facts_of(one.provider), other.version, other.problem, style)
    used = "; runs use this one" if other.path == one.started else ""
    return f"{other.path}, {other.version or '?'} ({words}){used}"


def _standing(cli: CliFacts, version: str | None, problem: str | None, style: Style) -> str:
    """How a version compares with the tested ones, as coloured text."""
    support = support_of(cli, version)
    match standing(cli, version):
        case Standing.TOO_OLD:
            return style.red(too_old(support))
        case _ if problem is not None:
            return style.red("cannot run")
        case Standing.TESTED:
            return style.green("tested")
        case Standing.IN_RANGE:
            return style.green(f"in the tested range, {support.tested_from} to {support.tested}")
        case Standing.GAPS:
            return style.yellow(f"too old for {support.gaps}, needs >= {support.floor}")
        case Standing.OLDER:
            return style.yellow(f"older than tested, {support.tested_from} to {support.tested}")
        case Standing.UNTESTED:
            return style.yellow(f"not tested: {support.package}")
        case Standing.NEWER:
            return style.yellow(f"newer than tested, {support.tested}")
    return style.yellow(f"tested with {support.tested}")


def _describe(leftover: Leftover, style: Style) -> str:
    what = one_line(leftover.what)
    label = {
        "process": f"process {what} of a host that is gone",
        "config": f"{what} still has the servers of a run whose host is gone",
        "file": f"{what} of a host that is gone",
    }[leftover.kind]
    if leftover.problem is not None:
        return f"{label}: {style.red(one_line(leftover.problem))}"
    if leftover.repaired is None:
        return style.yellow(label)
    return f"{label}: {style.green('repaired') if leftover.repaired else style.red('still there')}"
