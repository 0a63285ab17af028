"""What a live session costs and saves, measured on the real CLIs: the table in README.md.

    python -m tests.real_clis.live_floors [--readme] [--cli claude] [--rounds 7]

Ratios and differences are of medians, measured alternately in one run, because the machine may be busy.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from remoteclaw_sync import AgentSession, ClaudeCliRuntime, PermissionRequest
from tests.fakes import children, wait_until
from tests.real_clis.bench import Bench, missing_reason, open_bench, wanted_bin_folder
from tests.real_clis.live_bare import BARE
from tests.real_clis.live_clis import LIVE_CLIS, LiveCli
from tests.real_clis.model_server import ModelServer
from tests.real_clis.script import Hang, Hold, Turn

README = Path(__file__).with_name("README.md")
FAKES = {name: Path(__file__).parents[1] / f"live_{name}.py" for name in ("claude", "codex")}
FAKE_TURNS, FAKE_LONG_TURNS = 200, 20
SERVE = "--serve"  # Run as the model server of another process.
BEGIN, END = "<!-- live floors:begin -->", "<!-- live floors:end -->"
MANY_EVENTS = 2_000
SESSIONS = 20
IDLE_SESSIONS = 50
IDLE_SECONDS = 20.0
THREADS_A_PROCESS, THREADS_A_TURN = 2, 2
SHARING = ("codex", "gemini")  # CLIs whose sessions share a process.


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    measured: float
    unit: str
    floor: float
    note: str = ""

    def __str__(self) -> str:
        verdict = "ok" if self.measured <= self.floor else "missed"
        return f"| {self.what} | {self.measured:.2f} | {self.unit} | <= {self.floor:g} | {verdict} | {self.note} |"


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


@contextlib.contextmanager
def bench() -> Iterator[Bench]:
    with tempfile.TemporaryDirectory() as folder, open_bench(Path(folder) / "bench", wanted_bin_folder()) as opened:
        yield opened


@contextlib.contextmanager
def quiet_bench() -> Iterator[Bench]:
    """A bench whose model is in a separate process: otherwise it would compete with the clients for the interpreter."""
    with bench() as place:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.real_clis.live_floors", SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        try:
            assert server.stdout is not None
            place.point_at(server.stdout.readline().decode().strip())
            yield place
        finally:
            server.communicate()


def serve() -> None:
    """Serve the model until stdin is closed."""
    short, long = Turn(text=["Hello, ", "world."]), Turn(text=[f"{number} " for number in range(MANY_EVENTS)])
    with ModelServer() as server:
        server.respond(lambda request: long if request.prompt == "many" else short)
        print(server.url, flush=True)
        sys.stdin.read()


def first_text(events: Iterator[object]) -> float:
    """Seconds to the first text; reads to the end."""
    began, first = time.monotonic(), 0.0
    for event in events:
        if not first and getattr(event, "type", "") == "text":
            first = time.monotonic()
    return first - began


def second_turns(live: LiveCli, rounds: int) -> list[Row]:
    """The second turn of a session, and a one-shot run of the same CLI."""
    one_shot, second = [], []
    with quiet_bench() as place:
        runtime = live.runtime()
        runtime.run("make the database", working_directory=place.workdir)
        for _ in range(rounds):
            one_shot.append(first_text(runtime.execute("hello", working_directory=place.workdir)))
            with runtime.open_session(working_directory=place.workdir) as session:
                session.run("hello")
                second.append(first_text(session.execute("hello")))
    note = f"{median(second) * 1000:.0f} ms and {median(one_shot) * 1000:.0f} ms"
    ratio = median(second) / median(one_shot)
    return [Row(f"{live.name}: second turn to first text", ratio, "x one-shot", 0.4, note)]


def on_top(live: LiveCli, rounds: int) -> list[Row]:
    """Whole turns of ours and of a bare client, alternately, with two texts and with many: the median of the
    differences."""
    with quiet_bench() as place:
        bare = BARE[live.name](place.workdir)
        try:
            with live.runtime().open_session(working_directory=place.workdir) as session:
                few = _pairs(lambda: session.run("few"), lambda: bare.turn("few"), 10 * rounds)
                many = _pairs(lambda: session.run("many"), lambda: bare.turn("many"), rounds)
        finally:
            bare.close()
    turn = median([ours - theirs for ours, theirs in few])
    event = (median([ours - theirs for ours, theirs in many]) - turn) / MANY_EVENTS
    note = f"{median([ours for ours, _ in few]) * 1000:.0f} ms a turn, {len(few)} pairs"
    total = f"{median([ours for ours, _ in many]) * 1000:.0f} ms a turn of {MANY_EVENTS:,} events, {len(many)} pairs"
    return [
        Row(f"{live.name}: a turn", turn * 1000, "ms over a bare client", 3.0, note),
        Row(f"{live.name}: an event", event * 1e6, "µs over a bare client", 80.0, total),
    ]


def _pairs(ours: Callable[[], object], theirs: Callable[[], object], count: int) -> list[tuple[float, float]]:
    """The seconds that each takes, one right after the other."""
    found = []
    for number in range(count + 2):
        taken = {}
        for turn in (ours, theirs) if number % 2 else (theirs, ours):
            began = time.monotonic()
            turn()
            taken[turn] = time.monotonic() - began
        if number >= 2:  # The first ones are for warming up.
            found.append((taken[ours], taken[theirs]))
    return found


def memory(live: LiveCli, rounds: int) -> list[Row]:
    """The memory of the process tree, with one session and with many."""
    if live.name not in SHARING:
        return []
    with bench() as place, contextlib.ExitStack() as stack:
        place.server.script([], then=Turn(text="Hello."))
        runtime = live.runtime()
        sessions = [stack.enter_context(runtime.open_session(working_directory=place.workdir)) for _ in range(SESSIONS)]
        sessions[0].run("hello")
        one = memory_of_tree(sessions[0].pid)
        for session in sessions[1:]:
            session.run("hello")
        many = sum(memory_of_tree(pid) for pid in {session.pid for session in sessions})
    note = f"{one / 1024:.0f} MB and {many / 1024:.0f} MB"
    return [Row(f"{live.name}: memory of {SESSIONS} sessions", many / one, "x one session", 2.0, note)]


def memory_of_tree(pid: int | None) -> int:
    """Kilobytes, each page counted once."""
    total = 0
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total + sum(memory_of_tree(child) for child in children(pid or 0))


def aborts(live: LiveCli, rounds: int) -> list[Row]:
    """From `abort()` to `done`: the slowest of several, with a further turn after each."""
    times: dict[str, list[float]] = {"text": [], "a shell tool": [], "a hang": [], "an open approval": []}
    with bench() as place:
        started = place.workdir / "started"
        aborted_at = [0.0]

        def approve(request: PermissionRequest) -> bool:
            if "touch never" in str(dict(request.input)):
                aborted_at[0] = time.monotonic()
                run.abort()
            return True

        with live.runtime().open_session(working_directory=place.workdir, approve=approve) as session:
            session.warm()
            pid = session.pid
            for state in [*times] * min(rounds, 3):
                hold = Hold()
                started.unlink(missing_ok=True)
                before = len(place.server.requests)
                tool = live.shell(f"touch {started}; sleep 1000", f"call_{before}")
                never = live.shell("touch never", f"call_{before}")
                situations: dict[str, tuple[Turn | Hang, Callable[[], object]]] = {
                    "text": (Turn(text=["Half", hold, "."]), lambda: hold.reached.wait(30)),  # noqa: B023
                    "a shell tool": (Turn(tool_calls=[tool]), lambda: wait_until(started.exists)),
                    "a hang": (Hang(), lambda: place.server.wait_for_requests(before + 1)),  # noqa: B023
                    "an open approval": (Turn(tool_calls=[never]), lambda: None),
                }
                reply, happens = situations[state]
                place.server.script([reply, Turn(text="Still here.")])
                run = session.start(state)

                def abort(happens: Callable[[], object] = happens) -> None:
                    if happens():
                        time.sleep(0.1)  # So that the turn reaches that state.
                        aborted_at[0] = time.monotonic()
                        run.abort()  # noqa: B023

                thread = threading.Thread(target=abort)
                thread.start()
                *_, last = run
                times[state].append(time.monotonic() - aborted_at[0])
                thread.join()
                assert last.type == "done"
                assert last.result.aborted
                if session.run("and now?").text != "Still here." or session.pid != pid:
                    raise AssertionError(f"{live.name}: the process was not kept after an abort in {state}")
    return [
        Row(f"{live.name}: abort to `done` in {state}", max(taken) * 1000, "ms", 1000.0, "process kept")
        for state, taken in times.items()
    ]


def on_a_fake() -> list[Row]:
    """The same with a fake CLI, which answers in a millisecond: this shows how much of the difference is ours."""
    rows = []
    words = json.dumps([["text", "word "]] * MANY_EVENTS)
    for name, fake in FAKES.items():
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-I", "-S", str(fake), folder]
            bare_class = type("BareFake", (BARE[name],), {"argv": [*command, *BARE[name].argv[1:]]})
            bare = bare_class(Path(folder))
            try:
                with LIVE_CLIS[name].runtime(command=command).open_session(working_directory=folder) as session:
                    few = _pairs(lambda: session.run("few"), lambda: bare.turn("few"), FAKE_TURNS)  # noqa: B023
                    many = _pairs(lambda: session.run(words), lambda: bare.turn(words), FAKE_LONG_TURNS)  # noqa: B023
            finally:
                bare.close()
        turn = median([ours - theirs for ours, theirs in few])
        event = (median([ours - theirs for ours, theirs in many]) - turn) / MANY_EVENTS
        note = f"{median([ours for ours, _ in few]) * 1000:.1f} ms a turn, {len(few)} pairs"
        total = f"{median([ours for ours, _ in many]) * 1000:.0f} ms a turn of {MANY_EVENTS:,} texts, {len(many)} pairs"
        rows.append(Row(f"{name}, a fake: a turn", turn * 1000, "ms over a bare client", 3.0, note))
        rows.append(Row(f"{name}, a fake: an event", event * 1e6, "µs over a bare client", 80.0, total))
    return rows


def idle() -> list[Row]:
    """Sessions that do nothing, on a fake that itself costs nothing."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        runtime = ClaudeCliRuntime([sys.executable, "-I", "-S", str(FAKES["claude"]), folder])
        threads = threading.active_count()
        sessions: list[AgentSession] = []
        for _ in range(IDLE_SESSIONS):
            sessions.append(stack.enter_context(runtime.open_session(working_directory=folder)))
            sessions[-1].run("hello")
        per_process = (threading.active_count() - threads) / IDLE_SESSIONS
        began, used = time.monotonic(), sum(os.times()[:2])
        time.sleep(IDLE_SECONDS)
        share = (sum(os.times()[:2]) - used) / (time.monotonic() - began) * 100
        run = stack.enter_context(sessions[0].start('[["sleep", 30]]'))
        reader = threading.Thread(target=lambda: [*run])
        before = threading.active_count()
        reader.start()
        time.sleep(1.0)
        per_turn = threading.active_count() - before - 1
        run.abort()
        reader.join()
    return [
        Row(f"{IDLE_SESSIONS} idle sessions: CPU of the host", share, "% of a core", 1.0, "processes are fakes"),
        Row("threads of ours a warm process", per_process, "threads", THREADS_A_PROCESS),
        Row("further threads a running turn", per_turn, "threads", THREADS_A_TURN),
    ]


def measure(clis: Sequence[str], rounds: int) -> list[Row]:
    rows: list[Row] = []
    for what in (second_turns, on_top, memory, aborts):
        for name in clis:
            found = what(LIVE_CLIS[name], rounds)
            print(*found, sep="\n", flush=True)
            rows += found
    return rows + on_a_fake() + idle()


def table(rows: Sequence[Row]) -> str:
    head = ["| what | measured | unit | floor | | |", "|---|--:|---|---|---|---|"]
    day = datetime.date.today().isoformat()
    source = f"Measured on {day}; `python -m tests.real_clis.live_floors --readme` measures it again."
    return "\n".join([*head, *map(str, rows), "", source])


def with_table(page: str, rows: Sequence[Row]) -> str:
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{README.name} has no place for the table ({BEGIN} ... {END})")
    return f"{before}{BEGIN}\n{table(rows)}\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 if a floor is missed."""
    if (arguments or sys.argv[1:]) == [SERVE]:
        serve()
        return 0
    parser = argparse.ArgumentParser(prog="python -m tests.real_clis.live_floors", description=__doc__)
    parser.add_argument("--readme", action="store_true", help="put the table into README instead of printing it")
    parser.add_argument("--cli", action="append", choices=list(LIVE_CLIS), help="only this one")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(arguments)
    reason = missing_reason(wanted_bin_folder())
    if reason is not None:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    rows = measure(options.cli or list(LIVE_CLIS), options.rounds)
    if options.readme:
        README.write_text(with_table(README.read_text(encoding="utf-8"), rows), encoding="utf-8")
    else:
        print(table(rows))
    return 1 if any(row.measured > row.floor for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
