"""The runs of all machines, in Redis: the interface of `web.Runs`, and runs that a worker takes later."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs

from .._values import check_size
from ..errors import ABORTED, UnsupportedOperationError
from ..types import AgentErrorEvent, AgentEvent, AgentExecuteParams
from ..web.background import Item, as_run, end, ending, item_of
from ..web.detached import new_run_id
from ..web.handle import WORKER_DIED, LocalRun, RunHandle, check_live, dead_workers_ending, resumed
from ..web.journal import RUN_ID, UnknownRunError, kind_of
from ..web.sse import as_json
from ..web.visitor import NOT_ASKED, NotAskedError
from .follower import Follower
from .hub import Feed, Hub, Message, number_of
from .link import ClusterUnavailableError, Link
from .pooled import Start, starter
from .scripts import APPEND, BEAT, CLAIM, END, ENTER, LOOK, RESERVE
from .slots import Slots

logger = logging.getLogger(__name__)

NOT_STARTED = "NOT_STARTED"
WORKER_STOPPED = "WORKER_STOPPED"
PARENT_GONE = "the worker's main process has ended"
MAX_BYTES = 16 << 20  # Of one run's events: Redis keeps them in memory.
MAX_EVENTS = 100_000
# What a worker holds back, to repeat it if Redis lost what it had confirmed (Redis writes to disk once a second).
RECENT_EVENTS = 1000
RECENT_BYTES = 1 << 20
RETRY_PAUSE = 0.1
END_PATIENCE = 5.0
CANNOT_TRAVEL = ("tools", "approve", "output_type", "budget", "abort_signal")  # From one process to another.
LOOK_FOR_PARENT = 0.5
PATIENCE_FOR_SESSION = 1.5  # Leases. A dead machine's session is free after one.


class ClusterRuns:
    """A registry of runs that all machines share.

    Args:
        retention: seconds for which an ended run can be read again, and for which a reserved one waits for a worker.
        lease: seconds after which a silent worker counts as dead.
        max_bytes: limit for one run's events; a run that exceeds it is aborted.
        max_events: how many events of a run are kept; if it has more, late followers miss the first and are told so.
        max_live: how many runs of this process may be live at once (default: any number).
    """

    def __init__(
        self,
        link: Link,
        hub: Hub,
        *,
        retention: float,
        lease: float,
        max_bytes: int = MAX_BYTES,
        max_events: int = MAX_EVENTS,
        max_live: int | None = None,
    ) -> None:
        check_size("max_bytes", max_bytes)
        check_size("max_events", max_events)
        if max_live is not None:
            check_size("max_live", max_live)
        self.retention = retention
        self.lease = lease
        self.max_bytes = max_bytes
        self.max_events = max_events
        self.max_live = max_live
        self.link = link
        self.hub = hub
        self._index = link.key("live")
        self._begin()
        hub.handlers["order"] = self._on_order
        hub.members.append(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._live: dict[str, _Live] = {}
        self._leaving: set[_Live] = set()  # Runs that have ended but are still being reported to Redis.
        self._left = threading.Condition(self._lock)
        self._early: dict[str, _Claim] = {}

    def forget_after_fork(self) -> None:
        """In a forked copy: the runs and their threads belong to the parent."""
        self._begin()

    # --- the interface of Runs --------------------------------------------------------------------------------

    def start(self, events: Iterable[AgentEvent]) -> RunHandle:
        """Let a run continue on its own in this process; a thread sends its events to Redis.

        Raises ClusterUnavailableError; the agent is not started then.
        """
        live = self._enter(_Live(self, new_run_id(), as_run(events), kept=True))
        self._record_in_background(live)
        return RunHandle(self, live.run_id)

    def get(self, run_id: str) -> RunHandle:
        """A run by its id: queued, live or ended. Raises UnknownRunError (a LookupError)."""
        if self._look(run_id) is None:
            raise UnknownRunError("no such run is kept here")
        return RunHandle(self, run_id)

    def resume(self, last_event_id: str) -> RunHandle:
        """The run that this event id (the `Last-Event-ID` header) belongs to, continuing after that event."""
        return resumed(self, last_event_id)

    def __iter__(self) -> Iterator[RunHandle]:
        """All runs on any machine that are live or wait for a worker."""
        with self.link.asking() as client:
            known = [one.decode() for one in client.zrange(self._index, 0, -1)]
        for run_id in known:
            if self.is_live(run_id):
                yield RunHandle(self, run_id)

    def abort_all(self) -> None:
        """Abort the runs of this process and wait, for a limited time, until they have ended. For a stopping server."""
        with self._lock:
            mine = list(self._live.values())
        for live in mine:
            live.abort()
        deadline = time.monotonic() + END_PATIENCE
        for live in mine:
            live.ended.wait(max(0.0, deadline - time.monotonic()))
        with self._left:  # Their last calls to Redis would reopen what is closed after this.
            self._left.wait_for(lambda: not self._leaving, max(0.0, deadline - time.monotonic()))

    # --- a run that a worker takes later ----------------------------------------------------------------------

    def reserve(self, prompt: str | AgentExecuteParams, **fields: Any) -> RunHandle:
        """A run that a worker will take later. Followers can listen at once, and anybody can abort it before it begins.

        Give `handle.run_id` to a job queue, whose worker calls `work(run_id, ...)`. The prompt stays in Redis until
        then, for `retention` seconds at most; if no worker has taken it by then, the run ends with NOT_STARTED.
        `tools`, `approve`, `output_type`, `budget` and `abort_signal` cannot travel: the worker adds them.
        """
        params = prompt if isinstance(prompt, AgentExecuteParams) else AgentExecuteParams(prompt, **fields)
        left_behind = [name for name in CANNOT_TRAVEL if getattr(params, name)]
        if left_behind:
            raise ValueError(f"{left_behind[0]} cannot be sent to another process: add it in the worker's function")
        run_id = new_run_id()
        data = self.link.seals.seal(as_json(params.to_dict()), f"params {run_id}")
        self.link.run(RESERVE, self._keys(run_id), int(self.retention * 1000), data)
        self._list(run_id)
        return RunHandle(self, run_id)

    def work(
        self,
        run_id: str,
        start: Any,
        *,
        slots: Slots | None = None,
        stop_with_parent: bool = False,
        codes: Mapping[type[BaseException], str] | None = None,
    ) -> bool:
        """Take a reserved run, start it and send its events to Redis until it ends. For a worker of a job queue.

        Returns False, and starts nothing, if the run was already taken, was aborted or has waited too long. If an
        exception is raised in this thread (a time limit, a signal), the agent ends, followers learn why, and the
        exception propagates.

        Args:
            run_id: what `reserve` returned.
            start: a runtime, a `SessionPool`, or a function that turns the params into a run.
            slots: wait for one of these slots first. Meanwhile the run can be aborted, like any that has not begun.
            stop_with_parent: end the run when this process's parent dies, for workers that fork a process per job.
            codes: maps the exception that ended the run to the code of the followers' `error` event (default:
                WORKER_STOPPED).
        """
        parent = os.getppid() if stop_with_parent else None
        with contextlib.ExitStack() as held:
            if slots is not None:
                slot = held.enter_context(slots.take())
                if not slot.wait(lambda: _is_orphan_of(parent) or self._is_over(run_id)):
                    if _is_orphan_of(parent):
                        self.tell_end(run_id, PARENT_GONE, WORKER_DIED)
                    return False
            return self._work(run_id, start, parent, codes or {})

    def _is_over(self, run_id: str) -> bool:
        try:
            return not self.is_live(run_id)
        except ClusterUnavailableError:
            return False  # Unknown: keep waiting.

    def _work(self, run_id: str, start: Any, parent: int | None, codes: Mapping[type[BaseException], str]) -> bool:
        live = self._claimed(run_id, starter(start, PATIENCE_FOR_SESSION * self.lease))
        if live is None:
            return False
        try:
            self._record_in_background(live)
            while not live.ended.wait(LOOK_FOR_PARENT):
                if _is_orphan_of(parent):
                    live.stop(AgentErrorEvent(PARENT_GONE, WORKER_DIED))
        except BaseException as error:
            code = codes.get(type(error), WORKER_STOPPED)
            live.stop(AgentErrorEvent(f"the worker ended the run ({type(error).__name__})", code))
            live.ended.wait(END_PATIENCE)
            raise
        return True

    def tell_end(self, run_id: str, message: str, code: str) -> bool:
        """End a run on behalf of a worker that no longer can. Returns False if the run had already ended."""

        def said(number: int) -> list[Item]:
            error, done = ending(number, AgentErrorEvent(message, code))
            # The worker may have sent this error itself, but not yet its `done`.
            is_told = any(_code_of(item) == code for item in self._read(run_id, number - 1, 1))
            return [attrs.evolve(done, number=number + 1)] if is_told else [error, done]

        return self._end(run_id, "any", said)

    def _claimed(self, run_id: str, start: Start) -> _Live | None:
        claim = self._early[run_id] = _Claim()
        try:
            self.hub.listen()
            data = self.link.run(CLAIM, self._keys(run_id), *self.terms(claim.owner))
            if data is None:
                logger.warning("a run was not started: it has been taken, aborted, or has waited too long")
                return None
            claim.is_ours = True
            try:
                params = AgentExecuteParams.from_dict(json.loads(self.link.seals.open(data, f"params {run_id}")))
                live = _Live(self, run_id, as_run(start(params)), kept=True, owner=claim.owner)
            except Exception as error:
                self.tell_end(run_id, f"the run could not be started ({type(error).__name__})", NOT_STARTED)
                raise
            with self._lock:
                self._live[run_id] = live
            for order in claim.orders:
                live.carry_out(order)
            return live
        finally:
            with self._lock:
                del self._early[run_id]

    # --- for this package -------------------------------------------------------------------------------------

    def watch(self, run_id: str, run: Any) -> Callable[[], None]:
        """Register a visitor's own run while it lives; returns the function to call at its end."""
        live = self._enter(_Live(self, run_id, run, kept=False))
        return lambda: self._leave(live)

    def local(self, run_id: str) -> _Live | None:
        """The run, if it belongs to this process."""
        return self._live.get(run_id)

    def is_live(self, run_id: str) -> bool:
        """Whether the run waits for a worker or belongs to a living one."""
        try:
            seen = self._look(run_id)
        except UnknownRunError:
            return False
        return seen is not None and seen.state != "ended" and not seen.is_overdue

    def order(self, run_id: str, order: Mapping[str, Any]) -> None:
        """Leave an order for the worker that has this run."""
        if order["do"] == "abort":
            error = AgentErrorEvent("the run was aborted before it began", ABORTED)
            if self._end(run_id, "queued", lambda n: list(ending(n, error))):
                return
        seen = self._look(run_id)
        if seen is None or seen.state == "ended":
            return
        if seen.state == "queued":
            raise UnsupportedOperationError("the run has not begun: no worker has taken it yet")
        if order["do"] == "answer":
            self._claim(run_id, order["request_id"])
        data = self.link.seals.seal(as_json(order), f"order {run_id}")
        self.hub.send(seen.inbox, self.lease, {"t": "order", "r": run_id, "d": data})

    def _claim(self, run_id: str, request_id: str) -> None:
        """Only the first answer counts. If it is lost on its way, another can be given after a lease."""
        digest = hashlib.sha256(request_id.encode("utf-8", "backslashreplace")).hexdigest()
        with self.link.asking() as client:
            name = f"{self._keys(run_id)[3]}:{digest}"
            if not client.set(name, b"", nx=True, px=max(1, round(self.lease * 1000))):
                raise NotAskedError(NOT_ASKED)

    def asks(self, run_id: str) -> list[Mapping[str, Any]]:
        """The open permission requests of another worker's run, as JSON."""
        with self.link.asking() as client:
            data = client.get(self._keys(run_id)[3])
        found: list[Mapping[str, Any]] = json.loads(self.link.seals.open(data, f"asks {run_id}")) if data else []
        return found

    def follow(self, run_id: str, after: int) -> Follower:
        """The run's events after that number: those already written and those still to come."""
        seen = self._look(run_id)
        if seen is None or not seen.is_kept:
            raise UnknownRunError("no such run is kept here")
        feed = self.hub.follow(self._keys(run_id)[1], run_id, seen.events)
        is_over = seen.state == "ended" and after >= seen.events

        def read(number: int, most: int) -> list[Item]:
            return self._read(run_id, number, most)

        return Follower(self.hub, feed, after, read, is_over)

    def decode(self, run_id: str, number: int, data: bytes) -> Item:
        """An event from its stored form. Raises SealError (a ValueError)."""
        opened = self.link.seals.open(data, f"event {run_id} {number}")
        return Item(number, kind_of(opened), opened)

    def encode(self, run_id: str, item: Item) -> bytes:
        return self.link.seals.seal(item.data, f"event {run_id} {item.number}")

    def is_busy(self) -> bool:
        return bool(self._live or self._early)

    def beat(self) -> None:
        """Renew the leases of our runs, and see whether the workers of those we follow have died."""
        for run_id, claim in list(self._early.items()):
            if claim.is_ours:
                self.link.run(BEAT, self._keys(run_id), *self.terms(claim.owner), 1, 0)
        for live in list(self._live.values()):
            live.renew()
            self._list(live.run_id)
        for feed in list(self.hub.feeds.values()):
            self._look_after(feed)

    def look_at_clock(self) -> None:
        for live in list(self._live.values()):
            live.look_at_clock()

    def keys(self, run_id: str) -> list[str]:
        return self._keys(run_id)

    def terms(self, owner: str) -> tuple[Any, ...]:
        """A worker's terms for a run: its secret, its inbox, the length of its lease, how long events are kept."""
        return (owner, self.hub.inbox, int(self.lease * 1000), int(self.retention * 1000))

    # --- inside -----------------------------------------------------------------------------------------------

    def _keys(self, run_id: str) -> list[str]:
        if not isinstance(run_id, str) or RUN_ID.fullmatch(run_id) is None:
            raise UnknownRunError("that is not a run id")
        # The braces keep the keys of a run on one server of a Redis Cluster.
        return [self.link.key(f"{{{run_id}}}", part) for part in ("run", "events", "params", "asks")]

    def _look(self, run_id: str) -> _Seen | None:
        found = self.link.run(LOOK, self._keys(run_id)[:1])
        return None if found is None else _Seen(*found)

    def _list(self, run_id: str) -> None:
        with self.link.asking() as client:
            pipeline = client.pipeline(transaction=False)
            pipeline.zadd(self._index, {run_id: time.time()})
            pipeline.zremrangebyscore(self._index, "-inf", time.time() - 2 * (self.retention + self.lease))
            pipeline.execute()

    def _unlist(self, run_id: str) -> None:
        try:
            with self.link.asking() as client:
                client.zrem(self._index, run_id)
        except ClusterUnavailableError:
            pass  # Whoever finds it in the index checks the run itself.

    def _read(self, run_id: str, number: int, most: int) -> list[Item]:
        with self.link.asking() as client:
            found = client.xrange(self._keys(run_id)[1], min=f"{number + 1}-0", count=most)
        return [self.decode(run_id, number_of(entry), fields[b"d"]) for entry, fields in found]

    def _enter(self, live: _Live) -> _Live:
        with self._lock:
            check_live(self.max_live, len(self._live))
            self._live[live.run_id] = live
        try:
            live.enter()
            self._list(live.run_id)
        except BaseException:
            with self._lock:
                self._live.pop(live.run_id, None)
            raise
        self.hub.listen()
        return live

    def _leave(self, live: _Live) -> None:
        if live.owner != os.getpid():
            return  # In a forked copy: the run belongs to the parent.
        with self._lock:
            self._live.pop(live.run_id, None)
            self._leaving.add(live)
        try:
            live.finish()
            self._unlist(live.run_id)
        finally:
            with self._left:
                self._leaving.discard(live)
                self._left.notify_all()

    def _record_in_background(self, live: _Live) -> None:
        thread = threading.Thread(target=self._record, args=(live,), name="remoteclaw-run", daemon=True)
        thread.start()

    def _record(self, live: _Live) -> None:
        try:
            live.write_down(self.max_bytes)
        finally:
            end(live.run)
            self._leave(live)

    def _on_order(self, message: Message) -> None:
        run_id = message.get(b"r", b"").decode()
        try:
            order = json.loads(self.link.seals.open(message[b"d"], f"order {run_id}"))
        except (ValueError, KeyError) as error:
            logger.warning("an order of another machine could not be read: %s", type(error).__name__)
            return
        with self._lock:  # So that the run does not begin in between.
            live = self._live.get(run_id)
            if live is None and run_id in self._early:
                self._early[run_id].orders.append(order)
        if live is not None:
            live.carry_out(order)

    def _look_after(self, feed: Feed) -> None:
        """End the run on behalf of a dead worker."""
        seen = self._look(feed.run_id)
        if seen is not None and seen.state == "ended":
            feed.end(seen.events)
        elif seen is not None and not seen.is_overdue:
            feed.overdue_since = None
        elif feed.overdue_since is None:
            # Redis may have been down, and the worker, like us, may only just have reached it again.
            feed.overdue_since = time.monotonic()
        elif time.monotonic() - feed.overdue_since <= 2 * self.hub.heartbeat:
            pass
        elif seen is None:
            feed.lose()
        else:
            self._end(feed.run_id, "dead", dead_workers_ending if seen.state == "live" else _nobody_came)

    def _end(self, run_id: str, which: str, said: Callable[[int], Iterable[Item]]) -> bool:
        while (seen := self._look(run_id)) is not None and seen.state != "ended":
            data = [self.encode(run_id, item) for item in said(seen.events)] if seen.is_kept else []
            retention = int(self.retention * 1000)
            result = self.link.run(END, self._keys(run_id), which, seen.events, retention, *data)
            if result >= 0:
                if result:
                    self._unlist(run_id)
                return bool(result)
        return False


def _is_orphan_of(parent: int | None) -> bool:
    """Whether this process has lost the parent that it cannot do without."""
    return parent is not None and os.getppid() != parent


def _code_of(item: Item) -> str | None:
    """The code of an error event; None for any other event."""
    code = json.loads(item.data).get("code") if item.kind == "error" else None
    return None if code is None else str(code)


def _nobody_came(number: int) -> Iterator[Item]:
    return ending(number, AgentErrorEvent("no worker took the run in time", NOT_STARTED))


class _Claim:
    """A reserved run that we are taking. Starting it may take a while: a session may have to be fetched first."""

    def __init__(self) -> None:
        self.owner = secrets.token_hex(16)
        self.is_ours = False
        self.orders: list[Mapping[str, Any]] = []  # Orders that arrived meanwhile.


class _Seen:
    """What Redis knows about a run."""

    def __init__(self, state: bytes, events: int, is_kept: int, inbox: bytes, is_overdue: int) -> None:
        self.state = state.decode()
        self.events = events
        self.is_kept = bool(is_kept)
        self.inbox = inbox.decode()
        self.is_overdue = bool(is_overdue)


class _Live(LocalRun):
    """A run of this process. While its lease lasts, only this worker can write its events."""

    def __init__(self, runs: ClusterRuns, run_id: str, run: Any, *, kept: bool, owner: str | None = None) -> None:
        self._runs = runs
        self._link = runs.link
        self._keys = runs.keys(run_id)
        self._word = secrets.token_hex(16) if owner is None else owner
        self._kept = kept
        self._recent: collections.deque[Item] = collections.deque()
        self._recent_bytes = 0
        self._renewed = time.monotonic()
        self._is_lost = False
        self._why: AgentErrorEvent | None = None
        super().__init__(run_id, run)

    def enter(self) -> None:
        self._link.run(ENTER, self._keys, *self._terms())

    def _terms(self) -> tuple[Any, ...]:
        return (*self._runs.terms(self._word), int(self._kept))

    def renew(self) -> None:
        """Show that we are alive."""
        recent = self._recent[0].number - 1 if self._recent else 0
        if self._link.run(BEAT, self._keys, *self._terms(), recent):
            self._renewed = time.monotonic()
        else:
            self._lose("others have ended a run of this process")

    def look_at_clock(self) -> None:
        """Stop if the lease has ended: others may consider us dead, and somebody may start the same work again."""
        if time.monotonic() - self._renewed > self._runs.lease:
            self._lose("Redis could not be reached for longer than a lease")

    def _lose(self, why: str) -> None:
        if not self._is_lost and not self.ended.is_set():
            self._is_lost = True
            logger.error("the agent is stopped: %s", why)
            self.abort()

    def stop(self, why: AgentErrorEvent) -> None:
        """Abort it, and tell the followers why."""
        if self._why is None:
            self._why = why
            self.abort()

    def append(self, item: Item) -> None:
        item = self._with_reason(item)
        self._recent.append(item)
        self._recent_bytes += len(item.data)
        while len(self._recent) > RECENT_EVENTS or (self._recent_bytes > RECENT_BYTES and len(self._recent) > 1):
            self._recent_bytes -= len(self._recent.popleft().data)
        while not self._is_lost:
            try:
                if self._send(item):
                    return
            except ClusterUnavailableError:
                self.look_at_clock()
                time.sleep(RETRY_PAUSE)

    def _with_reason(self, item: Item) -> Item:
        if self._why is not None and item.kind == "error" and json.loads(item.data).get("code") == ABORTED:
            return item_of(item.number, self._why)
        return item

    def _send(self, item: Item) -> bool:
        """Whether Redis has the event now. May be repeated."""
        last = self._append([item], may_skip=False)
        if last >= item.number:
            return True
        if last == -1:
            self._lose("others have ended a run of this process")
        elif last == -2:
            self.renew()
        else:  # Redis has lost what it had not yet written to disk.
            logger.warning("Redis has lost the newest events of a run; they are sent again")
            self._append([one for one in self._recent if one.number > last], may_skip=True)
        return False

    def _append(self, items: list[Item], *, may_skip: bool) -> int:
        runs = self._runs
        is_last = int(items[-1].kind == "done")
        options = (self._word, runs.max_events, int(runs.retention * 1000), is_last, int(may_skip))
        data = [runs.encode(self.run_id, one) for one in items]
        return int(self._link.run(APPEND, self._keys, *options, items[0].number, *data))

    def show_asks(self, requests: list[Mapping[str, Any]]) -> None:
        try:
            with self._link.asking() as client:
                if requests:
                    data = self._link.seals.seal(as_json(requests), f"asks {self.run_id}")
                    client.set(self._keys[3], data, px=int((self._runs.lease + self._runs.retention) * 1000))
                else:
                    client.delete(self._keys[3])
        except ClusterUnavailableError as error:
            logger.warning("other machines do not see what a run asks: %s", error)

    def finish(self) -> None:
        """Mark the run as ended, and delete its keys if its events were not kept."""
        self.ended.set()
        if not self._kept:
            try:
                with self._link.asking() as client:
                    client.delete(*self._keys)
            except ClusterUnavailableError:
                pass  # Its lease expires.
