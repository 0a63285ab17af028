"""Other libraries on the same stream, if they are installed: `pip install remoteclaw_sync[bench]`.

Each runs the fake CLI under a name and with an environment that make the library take it for the real one.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from .fake import fake_runtime
from .measure import Sample, pairs, ratio, sample
from .table import Bench, Row, consume, parser, row, speed_row


@attrs.frozen
class Peer:
    """A library, its dialect, and by what factor we mean to be faster."""

    module: str
    name: str
    provider: str
    floor: float | None
    run: Callable[[str], int]


def claude_agent_sdk(cli: str) -> int:
    import claude_agent_sdk as sdk

    async def run() -> int:
        options = sdk.ClaudeAgentOptions(cli_path=cli, include_partial_messages=True)
        return len([None async for _ in sdk.query(prompt="go", options=options)])

    return asyncio.run(run())


def openai_codex_sdk(cli: str) -> int:
    import openai_codex_sdk as sdk

    async def run() -> int:
        thread = sdk.Codex({"codex_path_override": cli}).start_thread()
        turn = await thread.run_streamed("go")
        return len([None async for _ in turn.events])

    return asyncio.run(run())


def agentshim(cli: str) -> int:
    import agentshim as shim

    seen = 0

    class Counter(shim.EventHandlerBase):  # type: ignore[misc, name-defined, unused-ignore]
        def on_event(self, event: Any) -> None:
            nonlocal seen
            seen += 1

    agent = shim.CliAgent("codex", env=dict(os.environ), event_handler=Counter())
    if agent.binary_path != cli:
        raise RuntimeError("not the fake CLI")
    agent.run("go", cwd=os.getcwd())
    return seen


PEERS = (
    Peer("claude_agent_sdk", "claude-agent-sdk", "claude", 4.0, claude_agent_sdk),
    Peer("openai_codex_sdk", "openai-codex-sdk", "codex", 8.0, openai_codex_sdk),
    Peer("agentshim", "agentshim", "codex", None, agentshim),
)


def peers(bench: Bench) -> Iterator[Row]:
    """How many times as fast as the others we are, with the standard parser, and what it costs to import them."""
    for peer in PEERS:
        if importlib.util.find_spec(peer.module) is None:
            print(f"{peer.name} is not installed: left out", file=sys.stderr)
            continue
        measured = _side_by_side(bench, peer)
        speed = ratio([theirs.wall / ours.wall for ours, theirs in measured])
        cpu = ratio([ours.cpu / theirs.cpu for ours, theirs in measured])
        yield speed_row(f"throughput, {peer.provider}", speed, f"x {peer.name}", peer.floor)
        yield row(f"CPU per line, {peer.provider}", cpu, f"x {peer.name}")
        yield _import_row(peer)


def remoteclaw(bench: Bench) -> Iterator[Row]:
    """RemoteClaw itself, if REMOTECLAW_BUNDLE names its Claude runtime, bundled as an ES module for Node."""
    bundle = os.environ.get("REMOTECLAW_BUNDLE")
    if not bundle:
        print("REMOTECLAW_BUNDLE is not set: RemoteClaw (Node) is left out", file=sys.stderr)
        return
    stream = str(bench.stream("claude", bench.lines))
    cli = _as_named(bench, "claude")
    runtime = fake_runtime("claude", [cli])
    with parser("json"), _environment(FAKE_STREAM=stream, PATH=f"{Path(cli).parent}:{os.environ['PATH']}"):
        with _Node(bundle) as node:
            for _ in range(2):  # Its compiler has to warm up.
                node.run(bench.lines)
            measured = []
            for index in range(bench.pair_count):
                if index % 2:
                    measured.append((node.run(bench.lines), sample(lambda: consume(runtime))))
                else:
                    ours = sample(lambda: consume(runtime))
                    measured.append((node.run(bench.lines), ours))
    speed = ratio([theirs.wall / ours.wall for theirs, ours in measured])
    cpu = ratio([ours.cpu / theirs.cpu for theirs, ours in measured])
    yield speed_row("throughput, claude", speed, "x RemoteClaw (Node)", 1.2)
    yield row("CPU per line, claude", cpu, "x RemoteClaw (Node)")


class _Node:
    """A process that stays and does a run each time it is asked, as in a server."""

    def __init__(self, bundle: str) -> None:
        script = str(Path(__file__).with_name("remoteclaw.mjs"))
        program = [os.environ.get("REMOTECLAW_NODE", "node"), script, bundle]
        self._process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> _Node:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()

    def run(self, lines: int) -> Sample:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline() or "null")
        if answer is None or answer["events"] < lines:
            raise RuntimeError("RemoteClaw did not take the stream")
        return Sample(answer["wall"], answer["cpu"])


def _side_by_side(bench: Bench, peer: Peer) -> list[tuple[Sample, Sample]]:
    lines = bench.lines // 10
    stream = str(bench.stream(peer.provider, lines))
    cli = _as_named(bench, peer.provider)
    runtime = fake_runtime(peer.provider, [cli])
    with parser("json"), _environment(FAKE_STREAM=stream, PATH=f"{Path(cli).parent}:{os.environ['PATH']}"):
        if peer.run(cli) < lines:
            raise RuntimeError(f"{peer.name} did not take the stream")
        return pairs(lambda: consume(runtime), lambda: peer.run(cli), 5)


def _import_row(peer: Peer) -> Row:
    def importing(module: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", f"import {module}"], check=True)

    bare = statistics.median([sample(importing("sys")).wall for _ in range(5)])
    measured = pairs(importing("remoteclaw_sync"), importing(peer.module), 3)
    taken = ratio([(ours.wall - bare) / max(theirs.wall - bare, 1e-6) for ours, theirs in measured])
    return row("import", taken, f"x {peer.name}")


def _as_named(bench: Bench, name: str) -> str:
    """The fake CLI under the name that a library looks for."""
    folder = bench.folder / "bin"
    folder.mkdir(exist_ok=True)
    link = folder / name
    if not link.exists():
        link.symlink_to(bench.fake_cli)
    return str(link)


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables, CLAUDE_AGENT_SDK_SKIP_VERSION_CHECK="1")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
