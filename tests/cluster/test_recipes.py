"""The recipes of the page `cluster`, run as a user would: real workers of Celery, RQ and Dramatiq."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remoteclaw_sync.cluster import Cluster, new_key
from remoteclaw_sync.testing import FakeAnswer
from remoteclaw_sync.web import sse
from tests.cluster.workers import descendants
from tests.fakes import PATIENCE, alive, children, wait_until
from tests.redis_server import RedisServer
from tests.test_readme import SOURCE, Shop, recipes
from tests.web.streams import Frame, check_whole, frames, next_frame, text_of

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(300)]

StartWorker = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
def variables(own_redis: RedisServer) -> dict[str, str]:
    broker = own_redis.url.replace("unix://", "redis+socket://", 1)
    return {"REDIS_URL": own_redis.url, "BROKER_URL": broker, "CLUSTER_KEY": new_key(), "C_FORCE_ROOT": "1"}


@pytest.fixture
def worker(shop: Shop, variables: dict[str, str]) -> Iterator[StartWorker]:
    """Starts a worker of the module `agents` in the shop."""
    started: list[tuple[subprocess.Popen[bytes], Any]] = []

    def start(*command: str) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(shop.bin), os.path.dirname(sys.executable), os.environ["PATH"]])
        home = shop.folder / f"machine{len(started)}"
        home.mkdir()
        env = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join([str(shop.folder), str(SOURCE)])}
        env |= {"HOME": str(home), "TMPDIR": str(home), **variables}
        log = (home / "worker.log").open("wb")
        made = subprocess.Popen(command, cwd=shop.folder, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        started.append((made, log))
        return made

    yield start
    for process, log in started:
        below = descendants(process.pid)
        process.kill()
        process.wait(PATIENCE)
        for pid in below:
            if alive(pid):
                os.kill(pid, 9)
        assert wait_until(functools.partial(all_gone, below))
        log.close()


def all_gone(pids: list[int]) -> bool:
    return not any(alive(pid) for pid in pids)


def module(shop: Shop, recipe: str, **changes: str) -> None:
    """Write the recipe to the module `agents`, as the page says."""
    for old, new in changes.items():
        assert old in recipe
        recipe = recipe.replace(old, new)
    (shop.folder / "agents.py").write_text(recipe, encoding="utf-8")


def codes(found: list[Frame]) -> list[Any]:
    return [one.data.get("code") for one in found if one.event == "error"]


DJANGO = """
import json, sys
import django
from django.conf import settings
settings.configure(ALLOWED_HOSTS=["*"])
django.setup()
from django.test import RequestFactory
import agents
web = RequestFactory()

def start():
    return json.loads(agents.start(web.post("/", {"question": "Why?"})).content)["run_id"]
"""

FOLLOW = """
run_id = start()
print(b"".join(agents.stream(web.get("/"), run_id)).decode(), end="")
first = f"{run_id}-1"
print("again", b"".join(agents.stream(web.get("/", headers={"Last-Event-ID": first}), run_id)).decode(), end="")
agents.cluster.close()
"""

STOP = """
run_id = start()
stream = iter(agents.stream(web.get("/"), run_id))
print(next(stream).decode())
print(agents.stop(web.post("/"), run_id).status_code)
print(b"".join(stream).decode())
agents.cluster.close()
"""


def test_the_django_views_start_stream_and_stop_a_run_on_a_celery_worker(
    shop: Shop, worker: StartWorker, variables: dict[str, str]
) -> None:
    for package in ("celery", "django", "cryptography"):
        pytest.importorskip(package, reason=f"{package} is not installed (extra `test-cluster`)")
    shop.fake("claude", "Because.", FakeAnswer("Working", hang=True))
    module(shop, recipes()["celery"])
    worker(sys.executable, "-m", "celery", "-A", "agents", "worker", "-c", "1", "-l", "WARNING")
    path = {"PYTHONPATH": os.pathsep.join([str(shop.folder), str(SOURCE)])}
    printed = shop.run(DJANGO + FOLLOW, **variables, **path)
    first, again = printed.split("again ")
    assert "event: text" in first
    assert '"text":"Because."' in first
    assert "event: text" not in again
    assert "event: done" in again
    printed = shop.run(DJANGO + STOP, **variables, **path)
    assert "\n204\n" in printed
    assert '"code":"ABORTED"' in printed


def ask(shop: Shop, variables: dict[str, str]) -> str:
    script = "import agents\nprint(agents.ask('Why?').run_id)\nagents.cluster.close()\n"
    search = os.pathsep.join([str(shop.folder), str(SOURCE)])
    return shop.run(script, **variables, PYTHONPATH=search).strip()


def agents_below(pid: int) -> list[int]:
    """The agents that this worker runs."""
    return [one for one in descendants(pid) if alive(one) and b"claude" in command_line(one)]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""  # It has just ended.


ENGINES = {
    "rq": ["-m", "rq.cli", "worker", "agents", "--url", "{REDIS_URL}"],
    "dramatiq": ["-m", "dramatiq", "agents", "--processes", "1", "--threads", "1"],
}


def recipe_of(engine: str) -> str:
    return {"rq": recipes()["rq"], "dramatiq": recipes()["dramatiq"]}[engine]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_recipe_of_another_engine_runs_an_agent(
    engine: str, shop: Shop, worker: StartWorker, variables: dict[str, str]
) -> None:
    pytest.importorskip(engine, reason=f"{engine} is not installed (extra `test-cluster`)")
    claude = shop.fake("claude", "Because.")
    module(shop, recipe_of(engine))
    run_id = ask(shop, variables)
    with Cluster(variables["REDIS_URL"]) as cluster:
        stream = sse(cluster.runs.get(run_id))
        worker(sys.executable, *(part.format(**variables) for part in ENGINES[engine]))
        found = frames(stream)
    check_whole(found)
    assert text_of(found) == "Because."
    assert claude.calls[0].stdin == "Why?"


@pytest.mark.parametrize(
    ("engine", "changes"),
    [("rq", {"job_timeout=660": "job_timeout=3"}), ("dramatiq", {"time_limit=660_000": "time_limit=3_000"})],
)
def test_the_time_limit_of_another_engine_ends_a_silent_agent(
    engine: str, changes: dict[str, str], shop: Shop, worker: StartWorker, variables: dict[str, str]
) -> None:
    pytest.importorskip(engine, reason=f"{engine} is not installed (extra `test-cluster`)")
    shop.fake("claude", FakeAnswer("Working", hang=True))
    module(shop, recipe_of(engine), **changes)
    run_id = ask(shop, variables)
    process = worker(sys.executable, *(part.format(**variables) for part in ENGINES[engine]))
    with Cluster(variables["REDIS_URL"]) as cluster:
        stream = sse(cluster.runs.get(run_id))
        next_frame(stream)
        agents = agents_below(process.pid)
        assert codes(frames(stream)) == ["WORKER_STOPPED"]
    assert wait_until(lambda: all_gone([*agents, *agents_below(process.pid)]))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_worker_of_another_engine_that_is_killed_leaves_no_agent_and_its_run_is_not_started_again(
    engine: str, shop: Shop, worker: StartWorker, variables: dict[str, str]
) -> None:
    """RQ's worker leaves the job's process behind. Dramatiq's processes are killed together, and the message is
    delivered again."""
    pytest.importorskip(engine, reason=f"{engine} is not installed (extra `test-cluster`)")
    claude = shop.fake("claude", FakeAnswer("Working", hang=True), "Again.")
    module(shop, recipe_of(engine), **{'Cluster(os.environ["REDIS_URL"])': 'Cluster(os.environ["REDIS_URL"], lease=6)'})
    run_id = ask(shop, variables)
    command = [sys.executable, *(part.format(**variables) for part in ENGINES[engine])]
    process = worker(*command)
    with Cluster(variables["REDIS_URL"], lease=6) as cluster:
        stream = sse(cluster.runs.get(run_id))
        said = next_frame(stream)
        (agent,) = agents_below(process.pid)
        below = children(process.pid)
        for pid in below if engine == "dramatiq" else ():
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait(PATIENCE)
        found = [said, *frames(stream)]
        assert (text_of(found), codes(found)) == ("Working", ["WORKER_DIED"])
        assert wait_until(lambda: not any(map(alive, [agent, *below])))
        worker(*command)
        other = ask(shop, variables)
        assert text_of(frames(sse(cluster.runs.get(other)))) == "Again."
        assert frames(sse(cluster.runs.get(run_id))) == found
    assert len(claude.calls) == 2


def test_a_slot_is_held_while_the_agent_works(shop: Shop, variables: dict[str, str]) -> None:
    shop.fake("claude", "Because.")
    assert shop.run(recipes()["slots"], **variables) == "Because.\n"
