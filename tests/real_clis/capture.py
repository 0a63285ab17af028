"""Run the scenarios on the real CLIs and keep what they print: `python -m tests.real_clis.capture`.

Writes tests/transcripts/<cli>/<version>/<scenario>.ndjson (stdout) and .end.json (exit code and stderr), without what
belongs to this machine, and prints what differs from the transcripts of the pinned version. With `--check` nothing is
written, and a difference gives exit status 1: together with `--latest`, that is the alarm for a new CLI version.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.real_clis import scenarios_claude, scenarios_codex, scenarios_gemini, scenarios_opencode
from tests.real_clis.bench import LeftoverProcesses, missing_reason, open_bench, wanted_bin_folder
from tests.real_clis.drift import Drift, compare, read_transcripts
from tests.real_clis.install import PACKAGE_OF_CLI, InstallError, install, latest_versions, wanted_versions
from tests.real_clis.scenarios import Scenario, neutral

TRANSCRIPTS = Path(__file__).parents[1] / "transcripts"
SCENARIOS: Mapping[str, Mapping[str, Scenario]] = {
    "claude": scenarios_claude.SCENARIOS,
    "gemini": scenarios_gemini.SCENARIOS,
    "codex": scenarios_codex.SCENARIOS,
    "opencode": scenarios_opencode.SCENARIOS,
}


class CaptureError(RuntimeError):
    """A scenario did not run as it is written."""


def capture(cli: str, name: str, bin_dir: Path, folder: Path) -> None:
    """Run one scenario and write its two files. Raises CaptureError."""
    with tempfile.TemporaryDirectory() as root:
        try:
            with open_bench(Path(root, "bench"), bin_dir) as bench:
                run = SCENARIOS[cli][name](bench)
                stdout, stderr = (neutral(output.decode(), bench) for output in (run.stdout, run.stderr))
                problems = bench.server.problems
        except subprocess.TimeoutExpired as error:
            raise CaptureError(f"{name}: did not end in {error.timeout:.0f} s") from error
        except (LeftoverProcesses, ValueError) as error:
            raise CaptureError(f"{name}: {_first_words(error)}") from error
    if problems:
        raise CaptureError(f"{name}: {_first_words(problems[0])}")
    (folder / f"{name}.ndjson").write_text(stdout, encoding="utf-8")
    end = {"exit_code": run.returncode, "stderr": stderr}
    (folder / f"{name}.end.json").write_text(json.dumps(end, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def installed_version(cli: str, bin_dir: Path) -> str:
    """The version of a CLI in a bin folder of `install`; the CLI is not started."""
    manifest = bin_dir.parent / PACKAGE_OF_CLI[cli] / "package.json"
    return str(json.loads(manifest.read_text(encoding="utf-8"))["version"])


def stored_folder(cli: str, version: str | None = None) -> Path:
    """The folder with the transcripts of a version, by default of the pinned one."""
    return TRANSCRIPTS / cli / (version or wanted_versions()[PACKAGE_OF_CLI[cli]])


def store(captured: Path, folder: Path, *, all_scenarios: bool) -> None:
    """Put captured files into their folder, and remove files of scenarios that no longer exist if all were captured."""
    folder.mkdir(parents=True, exist_ok=True)
    if all_scenarios:
        for path in folder.iterdir():
            path.unlink()
    for path in captured.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())


def capture_cli(cli: str, names: Sequence[str], bin_dir: Path, *, check: bool) -> tuple[Drift, list[str]]:
    """Capture, compare and (unless `check`) store scenarios of one CLI: the differences, and what went wrong.

    If something went wrong, the scenarios that did run are still stored, and no others are removed.
    """
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in names:
            try:
                capture(cli, name, bin_dir, folder)
            except CaptureError as error:
                failures.append(str(error))
        drift = compare(read_transcripts(stored_folder(cli)), read_transcripts(folder))
        if not check:
            complete = not failures and set(names) == set(SCENARIOS[cli])
            store(folder, stored_folder(cli, installed_version(cli, bin_dir)), all_scenarios=complete)
    return drift, failures


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; exit status 1 if a scenario failed, or with --check if something differs."""
    options = _parser().parse_args(arguments)
    try:
        chosen = _chosen_scenarios(options.cli, options.scenario)
        bin_dir = install(latest_versions()) if options.latest else options.bin or wanted_bin_folder()
    except (InstallError, ValueError, OSError) as error:
        return _refused(error)
    reason = missing_reason(bin_dir)
    if reason is not None:
        return _refused(reason)
    alarm = False
    for cli, names in chosen.items():
        version = installed_version(cli, bin_dir)
        drift, failures = capture_cli(cli, names, bin_dir, check=options.check)
        print(f"{cli} {version}, {len(names)} scenarios, compared with {stored_folder(cli).name}:", flush=True)
        findings = [*(f"FAILED {failure}" for failure in failures), *drift.findings]
        print("\n".join(f"  {finding}" for finding in findings) if findings else "  no difference", flush=True)
        alarm = alarm or bool(failures) or (options.check and bool(drift))
    return 1 if alarm else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.real_clis.capture", description=__doc__)
    parser.add_argument("--cli", action="append", choices=sorted(SCENARIOS), help="only this one (again for more)")
    parser.add_argument("--scenario", action="append", metavar="NAME", help="only this one (again for more)")
    parser.add_argument("--check", action="store_true", help="compare only: write nothing, 1 if anything differs")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--bin", type=Path, metavar="FOLDER", help="the CLIs in this bin folder of `install`")
    which.add_argument("--latest", action="store_true", help="install and run the newest published versions")
    return parser


def _chosen_scenarios(clis: Sequence[str] | None, names: Sequence[str] | None) -> dict[str, list[str]]:
    """The wanted scenarios by CLI; a name that several CLIs have selects all of them. Raises ValueError."""
    wanted = {cli: SCENARIOS[cli] for cli in clis or SCENARIOS}
    if names is None:
        return {cli: list(known) for cli, known in wanted.items()}
    unknown = set(names).difference(*wanted.values())
    if unknown:
        raise ValueError(f"no such scenario: {', '.join(sorted(unknown))}")
    chosen = {cli: [name for name in known if name in names] for cli, known in wanted.items()}
    return {cli: known for cli, known in chosen.items() if known}


def _first_words(reason: object) -> str:
    return "\n".join(str(reason).splitlines()[:2])[:300]


def _refused(reason: object) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
