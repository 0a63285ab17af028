"""Fixtures of the real-CLI tests; bench.py describes what they hold."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real_clis.bench import REQUIRE_VARIABLE, Bench, missing_reason, open_bench, wanted_bin_folder
from tests.real_clis.clis import ALL_CLIS, RealCli

BUSY_TEST_SECONDS = 300  # A start of OpenCode takes 4 s of work, and 30 s if the machine is busy.


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need the real CLIs; tests of the bench alone do not."""
    for item in items:
        if "real_cli_bin" in getattr(item, "fixturenames", ()):
            item.add_marker("real_cli")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(BUSY_TEST_SECONDS))


@pytest.fixture(scope="session")
def real_cli_bin() -> Path:
    """The folder of the installed CLIs; skips the test if they or a namespace are missing.

    With REMOTECLAW_SYNC_REQUIRE_REAL_CLIS=1 it fails instead, so that a build cannot pass without having run them.
    """
    folder = wanted_bin_folder()
    reason = missing_reason(folder)
    if reason is None:
        return folder
    if os.environ.get(REQUIRE_VARIABLE) == "1":
        pytest.fail(f"real CLIs are required ({REQUIRE_VARIABLE}=1): {reason}", pytrace=False)
    pytest.skip(f"real CLIs: {reason}")


@pytest.fixture
def cli_bench(real_cli_bin: Path, tmp_path: Path) -> Iterator[Bench]:
    """A bench just for this test; at the end nothing may be left over, and no unscripted request may have been made."""
    with open_bench(tmp_path / "bench", real_cli_bin) as bench:
        yield bench
        problems = bench.server.problems
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


@pytest.fixture(params=list(ALL_CLIS))
def cli(request: pytest.FixtureRequest, cli_bench: Bench) -> RealCli:
    """Each of the four CLIs in turn."""
    return cli_bench.clis[request.param]
