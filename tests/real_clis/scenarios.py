"""What the scenarios of the four CLIs have in common.

A scenario is a run of a real CLI that shows one thing. Each CLI's scenarios are in scenarios_<cli>.py, and capture.py
stores what they print.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.real_clis.bench import Bench, RawRun, refused_url
from tests.real_clis.model_server import ModelRequest
from tests.real_clis.script import HttpError, Reply

PROMPT = "do what the script says"
COMPLAINT = "the scripted complaint"
SOURCE = Path(__file__).parents[2]

Scenario = Callable[[Bench], RawRun]
Responder = Callable[[ModelRequest], Reply]


def scripted(run: Scenario, *replies: Reply, then: Reply | None = None) -> Scenario:
    """A run in which the model gives these replies, and then always `then`."""

    def scenario(bench: Bench) -> RawRun:
        bench.server.script(replies, then)
        return run(bench)

    return scenario


def responding(run: Scenario, new_responder: Callable[[], Responder]) -> Scenario:
    """A run whose model looks at each request; each run has a new model."""

    def scenario(bench: Bench) -> RawRun:
        bench.server.respond(new_responder())
        return run(bench)

    return scenario


def refused_connection(run: Scenario) -> Scenario:
    """A run whose model cannot be reached."""

    def scenario(bench: Bench) -> RawRun:
        bench.point_at(refused_url())
        return run(bench)

    return scenario


def without_variable(name: str, run: Scenario) -> Scenario:
    """A run that lacks an environment variable."""

    def scenario(bench: Bench) -> RawRun:
        del bench.env[name]
        return run(bench)

    return scenario


def complaint(
    status: int, message: str = COMPLAINT, kind: str | None = None, retry_after: float | None = None
) -> HttpError:
    """An HTTP error of the API."""
    return HttpError(status=status, message=message, kind=kind, retry_after=retry_after)


def neutral(text: str, bench: Bench) -> str:
    """The text without what belongs to this machine; raises ValueError if some of that remains."""
    places = {bench.workdir: "/home/user/project", bench.home: "/home/user", bench.tmp: "/tmp/user"}
    for place, name in places.items():
        text = text.replace(str(place), name)
        # Claude names folders after a path, with a dash for every other character.
        text = text.replace(_dashed(str(place)), _dashed(name))
        # OpenCode's titles are relative to the root if there is no repository.
        text = text.replace(str(place).lstrip("/"), name.lstrip("/"))
    text = text.replace(str(bench.bin_dir.parents[1]), "/opt/clis").replace(str(SOURCE), "/opt/tests")
    for form in (str(bench.root), _dashed(str(bench.root)), str(SOURCE)):
        if form in text:
            raise ValueError(f"{form!r} is left in what the CLI printed")
    return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8080", text)


def _dashed(path: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "-", path)
