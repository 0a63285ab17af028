"""Two thousand turns on twenty sessions of two pools, with everything that can happen to a process in between.

The seed is printed; SOAK_SEED repeats the choices (the order in which the threads run still varies).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest

from remoteclaw_sync import AgentDoneEvent, AgentEvent, AgentTextEvent, CodexCliRuntime, SessionPool
from tests.conftest import _descriptors
from tests.engine.live import runtime, steps

LIVE_CODEX = Path(__file__).with_name("live_codex.py")
SESSIONS, TURNS, ROUNDS = 20, 2000, 4  # Memory is measured after each round.
MOST_NEW_OBJECTS = 1500  # There are some 2,000 that the tests did not freeze; a single turn makes hundreds.
MOST_NEW_KILOBYTES = 16_000


@attrs.define
class Talker:
    """One conversation: what was said to it, and what it has to remember in the end."""

    number: int
    pool: SessionPool
    random: random.Random
    dies_alone: bool  # Otherwise a process that dies takes others' turns with it.
    session_id: str | None = None
    sent: list[str] = attrs.field(factory=list)
    answered: list[str] = attrs.field(factory=list)
    turns: int = 0
    crashes: int = 0

    def talk(self, turns: int) -> None:
        for _ in range(turns):
            self.turns += 1
            with self.pool.session(self.session_id) as session:
                if self.random.random() < 0.03 and self.dies_alone and session.pid is not None:
                    with contextlib.suppress(ProcessLookupError):  # The pool has just released the process.
                        os.kill(session.pid, signal.SIGKILL)
                kinds, weights = zip(*KINDS.items(), strict=True)
                (kind,) = self.random.choices(kinds, weights)
                getattr(self, f"turn_that_{kind}")(session, f"{self.number}/{self.turns}")
                assert self.session_id in (None, session.session_id)
                self.session_id = session.session_id

    def turn_that_is_answered(self, session: Any, words: str) -> None:
        self.check(list(self.noted(words, session.start(words))), words, f"re: {words}", None)

    def turn_that_is_aborted(self, session: Any, words: str) -> None:
        prompt = steps(["text", words], ["hang"])
        run = session.start(prompt)
        events = []
        for event in self.noted(prompt, run):
            events.append(event)
            run.abort()
        self.check(events, prompt, words, "aborted")

    def turn_that_is_left(self, session: Any, words: str) -> None:
        prompt = steps(["text", words], ["hang"])
        with session.start(prompt) as run:
            first = next(self.noted(prompt, run))
            assert first == AgentTextEvent(words) or isinstance(first, AgentDoneEvent) or not self.dies_alone

    def turn_that_is_late(self, session: Any, words: str) -> None:
        prompt = steps(["text", words], ["hang"])
        events = list(self.noted(prompt, session.start(prompt, deadline=0.2)))
        self.check(events, prompt, words, "timeout")

    def turn_that_dies(self, session: Any, words: str) -> None:
        prompt = steps(["text", words], ["die"] if self.dies_alone else ["exit"])
        self.check(list(self.noted(prompt, session.start(prompt))), prompt, words, "crash")

    def noted(self, prompt: str, run: Any) -> Iterator[AgentEvent]:
        self.sent.append(prompt)
        return iter(run)

    def check(self, events: list[AgentEvent], prompt: str, words: str, subtype: str | None) -> None:
        """Exactly one `done`, at the end; no word from another turn; and the expected end."""
        *others, last = events
        assert isinstance(last, AgentDoneEvent)
        assert not any(isinstance(event, AgentDoneEvent) for event in others)
        result = last.result
        said = "".join(event.text for event in others if isinstance(event, AgentTextEvent))
        assert said == result.text
        assert words.startswith(said), (words, said)
        if result.error_subtype == "crash" and not self.dies_alone:
            self.crashes += 1
        elif result.error_subtype == "timeout":
            assert subtype == "timeout", events
        else:
            assert (result.error_subtype, said) == (subtype, words), events
        if subtype is None and result.ok:
            self.answered.append(prompt)


KINDS = {"is_answered": 84, "is_aborted": 8, "is_left": 4, "is_late": 1, "dies": 3}


def talkers(claude: SessionPool, codex: SessionPool, seed: int) -> list[Talker]:
    half = SESSIONS // 2
    pools = [claude] * half + [codex] * half
    return [
        Talker(number, pool, random.Random(seed * 1000 + number), dies_alone=pool is claude)
        for number, pool in enumerate(pools)
    ]


def state() -> tuple[int, int, int, int]:
    """Objects, kilobytes, descriptors and threads of this process."""
    gc.collect()
    kilobytes = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    return len(gc.get_objects()), kilobytes, len(_descriptors()), threading.active_count()


@pytest.mark.slow
@pytest.mark.timeout(900)  # It takes half a minute; on a machine with twenty times the load, much longer.
def test_two_thousand_turns_on_twenty_sessions_lose_mix_and_leave_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("SOAK_SEED") or random.randrange(1_000_000))
    print(f"SOAK_SEED={seed}")
    folders = [tmp_path / name for name in ("claude", "codex", "home")]
    for folder in folders:
        folder.mkdir()
    command = [sys.executable, "-I", "-S", str(LIVE_CODEX), str(folders[1])]
    env = {"CODEX_HOME": str(folders[2]), "CODEX_API_KEY": ""}
    with (
        SessionPool(runtime(folders[0]), max_warm=8, idle_timeout=0.5, working_directory=folders[0]) as claude,
        SessionPool(
            CodexCliRuntime(command), max_warm=2, idle_timeout=0.5, working_directory=tmp_path, env=env
        ) as codex,
        ThreadPoolExecutor(SESSIONS) as threads,
    ):
        people = talkers(claude, codex, seed)
        states = []
        for _ in range(ROUNDS):
            for _ in threads.map(lambda one: one.talk(TURNS // SESSIONS // ROUNDS), people):
                pass
            for one in people:
                if one.session_id is not None:
                    one.pool.cool(one.session_id)
            states.append(state())
        assert sum(one.turns for one in people) == TURNS
        known = [memory(claude, one) for one in people if one.pool is claude]
    for one, words in zip(people, known, strict=False):
        told = iter(one.sent)
        assert all(word in told for word in words), f"{one.number} knows what it was not told, or in another order"
        assert set(one.answered) <= set(words)
    print(states, sum(one.crashes for one in people))
    (objects, kilobytes, descriptors, running), last = states[1], states[-1]
    assert last[0] - objects < MOST_NEW_OBJECTS
    assert last[1] - kilobytes < MOST_NEW_KILOBYTES
    assert (last[2], last[3]) <= (descriptors, running)


def memory(pool: SessionPool, one: Talker) -> list[str]:
    """What the agent remembers of the conversation."""
    with pool.session(one.session_id) as session:
        words: list[str] = json.loads(session.run(steps(["memory"])).text)
        return words
