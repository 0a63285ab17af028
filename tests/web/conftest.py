"""Fixtures for the web tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from remoteclaw_sync.web import Runs

pytest.register_assert_rewrite("tests.web.streams", "tests.web.servers", "tests.web.client")


@pytest.fixture
def registry(tmp_path: Path) -> Runs:
    """A registry of the test's own."""
    return Runs(tmp_path / "runs")
