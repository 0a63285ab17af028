"""A process that several sessions share: each of its lines goes to the session it is about, in order.

The process's supervisor (process/child.py) does all the work as it reads; there is no other thread. Each session has
its own clocks, and a session that ends, for whatever reason, leaves the others alone. Only if the CLI does not let go
of it is the process ended, and with it the turns of all sessions.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import attrs

from .. import errors
from ..process.child import ChildProcess
from ..process.clocks import FOREVER
from ..process.ending import EndReason
from ..process.launch import Exchange, Launch, Limits, Phase, Ready, Setup, SpawnFailure, Strays, UnreadInputError
from ..process.sweep import is_dying
from ..wire.json_lines import LineFramer, fast_parser, parse_block
from .channel import RELEASE_PATIENCE, Channel
from .switchboard import EVERYONE, Switchboard, asked_by, outgoing

logger = logging.getLogger(__name__)

MOST_IN_FLIGHT = 48  # Requests: Codex drops some if its queue holds more than 128 (0.169.0).
OPENING_PATIENCE = 60.0  # Seconds for a session that is no longer wanted to finish opening (MCP servers start).
PROMISE_PATIENCE = 0.5  # Seconds between the CLI saying that it forgets a session and doing so; old ones do it later.
MOST_KEPT = 256  # Lines about conversations that nobody has claimed yet, and lines for everyone.
UNSTOPPABLE = "the process was ended, because the CLI did not let go of another session on it"
LAGGING = "more than max_pending_bytes were not read, so the turn was ended for the sake of other sessions"


class NewChild(Protocol):
    """Makes the process, as `ChildProcess` does."""

    def __call__(self, setup: Setup | Launch, /, *, exchange: Exchange) -> ChildProcess: ...


class SharedProcess:
    """One process and the channels of its sessions. `admit` may be called from any thread."""

    def __init__(self, launch: Launch, switchboard: Switchboard, new_child: NewChild = ChildProcess) -> None:
        self._switchboard = switchboard
        self._lock = threading.RLock()  # Guards the set of channels, and the lines that everyone was sent.
        self._channels: dict[int, Channel] = {}
        self._is_closed = False
        self._admitted = 0
        self._told: list[bytes] = []  # Lines for everyone; channels that are admitted later get them too.
        self._kept: deque[tuple[str, bytes]] = deque(maxlen=MOST_KEPT)
        self._in_flight: set[int] = set()
        self._framer = LineFramer(launch.max_line_bytes)
        self._parse = fast_parser()
        self._has_ended = False
        self._was_forced = False
        self._is_working = False
        own = attrs.evolve(
            launch,
            stdin=switchboard.opening(),
            limits=Limits(),
            is_life=None,
            may_run_tool=None,
            runs_tool=None,
            abort_signal=None,
            loans=(),
            observer=None,
        )
        self.child = new_child(Ready(own), exchange=self)
        self.child.begin_phase(Phase.IDLE, Limits())

    # --- for anyone -------------------------------------------------------------------------------------------

    def admit(self, channel: Channel) -> bool:
        """Take one more session; False if the process no longer takes any."""
        child = self.child
        with self._lock:
            if self._is_closed or child.ending.reason is not None or not self._switchboard.is_usable:
                return False
            if is_dying(child.pid):
                return False
            channel.has_served = self._admitted > 0
            self._admitted += 1
            channel.number = self._admitted
            if self._told:
                channel.deliver(b"".join(self._told))
            channel.host = self
            self._channels[channel.number] = channel
        child.wake()
        return True

    @property
    def pid(self) -> int | None:
        return self.child.pid

    @property
    def is_in_its_thread(self) -> bool:
        return self.child.is_in_its_thread

    def wake(self) -> None:
        self.child.wake()

    def see_off(self) -> None:
        """If the process is gone, wait until nothing is left of it."""
        if self._has_ended:
            self.child.close()

    def end_strays(self, strays: Strays) -> None:
        """End what an interrupted turn has left, unless it cannot be told apart from what belongs to other sessions."""
        if self._admitted == 1:
            self.child.end_strays(attrs.evolve(strays, word=None))
        elif strays.word is not None:
            self.child.end_strays(strays)

    def diagnostics_of(self, channel: Channel) -> str:
        """The stderr, if it can only be about this session: lines do not show which of several they belong to."""
        return self.child.diagnostics if self._admitted == 1 or self._has_ended else ""

    # --- in the supervisor's thread ---------------------------------------------------------------------------

    def said(self, chunk: bytes) -> None:
        skipped = self._framer.lines_skipped
        block = self._framer.push_block(chunk)
        if self._framer.lines_skipped != skipped:
            for channel in self._working():  # The line was for one of these.
                channel.lines_skipped += self._framer.lines_skipped - skipped
        if block is not None:
            self._hand_out(block)

    def _hand_out(self, block: bytes) -> None:
        lines = block.split(b"\n")
        parts: dict[int, list[bytes]] = {}
        for line, message in zip(lines, parse_block(block, self._parse), strict=True):
            self._sort(line, message, parts)
        for number, part in parts.items():
            channel = self._channels.get(number)
            if channel is not None and not channel.is_leaving and not channel.deliver(b"\n".join(part) + b"\n"):
                channel.failure = channel.failure or SpawnFailure(errors.CLI_ERROR, LAGGING)
                channel.request_end(EndReason.LINGERED)
        self._speak()

    def _sort(self, line: bytes, message: Any, parts: dict[int, list[bytes]]) -> None:
        if type(message) is not dict:
            for session in list(self._channels):  # Perhaps a program that prints its help.
                parts.setdefault(session, []).append(line)
            return
        number = message.get("id")
        if type(number) is int and "method" not in message:
            self._in_flight.discard(number)
        to = self._switchboard.route(message)
        if message.get("id") is not number:
            line = json.dumps(message).encode()
        self._hand_over_kept(parts)
        if isinstance(to, str):
            self._kept.append((to, line))
        elif to == EVERYONE:
            with self._lock:
                if len(self._told) < MOST_KEPT:
                    self._told.append(line + b"\n")
                everyone = list(self._channels)
            for session in everyone:
                parts.setdefault(session, []).append(line)
        elif to is not None:
            parts.setdefault(to, []).append(line)

    def _hand_over_kept(self, parts: dict[int, list[bytes]]) -> None:
        """Hand over lines that came before it was known which session they belong to."""
        while self._switchboard.claimed:
            name, session = self._switchboard.claimed.pop(0)
            parts.setdefault(session, []).extend(line for kept, line in self._kept if kept == name)
            still = [(kept, line) for kept, line in self._kept if kept != name]
            self._kept = deque(still, maxlen=MOST_KEPT)

    def logged(self) -> None:
        working = self._working()
        if len(working) == 1:
            working[0].logged()

    def _working(self) -> list[Channel]:
        """The channels that wait for the CLI."""
        waiting = (Phase.STARTING, Phase.TURN)
        return [channel for channel in list(self._channels.values()) if channel.phase in waiting]

    def look(self, now: float) -> float:
        self._speak()
        due = FOREVER
        for channel in list(self._channels.values()):
            if channel.wants_out and not channel.is_leaving:
                self._release(channel, None)
            found = channel.look(now)
            if isinstance(found, EndReason):
                self._time_is_up(channel, found)
                found = now
            due = min(due, found)
        self._speak()
        is_working = bool(self._working())
        if is_working != self._is_working and not self._is_closed and self.child.phase is not Phase.ENDING:
            self._is_working = is_working
            self.child.begin_phase(Phase.TURN if is_working else Phase.IDLE, Limits())
        return due

    def _time_is_up(self, channel: Channel, reason: EndReason) -> None:
        if not channel.is_leaving:
            self._release(channel, None if channel.phase is Phase.IDLE else reason)
        elif self._is_closed:
            channel.leave(None, FOREVER)  # The process is already ending, and has its own clocks.
        elif channel.is_promised:
            self._part(channel)
        else:
            logger.warning("the CLI did not let go of a session for %s s; ending its process", RELEASE_PATIENCE)
            self._was_forced = True
            channel.leave(None, FOREVER)
            self._close(EndReason.LINGERED)

    def _release(self, channel: Channel, reason: EndReason | None) -> None:
        """End the session: with the process if no other session needs that, else by asking the CLI to forget it."""
        if self._is_last(channel):
            channel.leave(reason, FOREVER)
            self._close(channel.ending.reason)
        elif not channel.has_spoken:
            channel.leave(reason, FOREVER)
            self._part(channel)
        else:
            channel.leave(reason, RELEASE_PATIENCE if self._switchboard.knows(channel.number) else OPENING_PATIENCE)
            self._switchboard.release(channel.number)

    def _is_last(self, channel: Channel) -> bool:
        """Whether no other session wants the process. If so, no session is admitted from then on."""
        with self._lock:
            others = (other for other in self._channels.values() if other is not channel)
            self._is_closed = self._is_closed or all(other.is_leaving for other in others)
            return self._is_closed

    def _close(self, reason: EndReason | None) -> None:
        with self._lock:
            self._is_closed = True
        if reason is None:
            self.child.let_go()
        else:
            self.child.request_end(reason)

    def _part(self, channel: Channel) -> None:
        """The CLI has forgotten the session. The last session stays until the process is gone."""
        if self._is_last(channel):
            channel.leave(None, FOREVER)
            self._close(None)
            return
        with self._lock:
            del self._channels[channel.number]
        self._in_flight = {number for number in self._in_flight if asked_by(number)[0] != channel.number}
        channel.finish_elsewhere()

    def _speak(self) -> None:
        """Send what is waiting to be sent, and see which sessions may leave."""
        switchboard = self._switchboard
        try:
            for channel in list(self._channels.values()):
                self._pass_on(channel)
            if words := switchboard.take():
                self.child.send(words)
        except UnreadInputError:
            pass  # The CLI does not read. The sessions that wait for it have their own clocks.
        for channel in self._taken(switchboard.promised):
            channel.is_promised = True
            channel.leave(None, PROMISE_PATIENCE)
        for channel in self._taken(switchboard.released):
            self._part(channel)

    def _taken(self, sessions: set[int]) -> list[Channel]:
        """Empty the set; returns the channels in it that are leaving."""
        found = [self._channels[number] for number in sessions if number in self._channels]
        sessions.clear()
        return [channel for channel in found if channel.is_leaving and not self._is_closed]

    def _pass_on(self, channel: Channel) -> None:
        while channel.unsent and not channel.is_leaving:
            own = channel.unsent[0]
            line, number = outgoing(channel.number, own)
            if number is not None and len(self._in_flight) >= MOST_IN_FLIGHT:
                return
            self.child.send(line)
            self._switchboard.passed_on(channel.number, own)
            channel.unsent.popleft()
            channel.sent(own)
            if number is not None:
                self._in_flight.add(number)

    def gone(self) -> None:
        child = self.child
        with self._lock:
            self._is_closed = self._has_ended = True
            channels, self._channels = list(self._channels.values()), {}
        rest = self._framer.flush_block()
        for channel in channels:
            if rest is not None and not channel.is_leaving:
                channel.deliver(rest + b"\n")  # Perhaps a program that says why it cannot work, without a newline.
            was_left_alone = not channel.is_leaving and channel.failure is None
            channel.exit_code = child.exit_code
            channel.failure = channel.failure or child.failure
            if self._was_forced and was_left_alone:
                channel.failure = SpawnFailure(errors.CLI_EXIT_ERROR, UNSTOPPABLE)
            channel.ending.claim(EndReason.CLOSED if child.ending.backlog_unwanted else EndReason.EXITED)
            channel.finish()

    def forget_after_fork(self) -> None:
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.forget_after_fork()


class SharedProcesses:
    """The shared processes of one runtime, by what makes them different."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._by_key: dict[Hashable, SharedProcess] = {}

    def __reduce__(self) -> tuple[type[SharedProcesses], tuple[()]]:
        return SharedProcesses, ()  # A runtime may be pickled for another process; its shared processes stay here.

    def join(self, channel: Channel, launch: Launch, key: Hashable, new_switchboard: Callable[[], Switchboard]) -> None:
        """Have the process with this key admit the channel; if there is none, start one."""
        if os.getpid() != self._owner:
            self.__init__()  # type: ignore[misc] # In a forked copy of the host, these belong to the parent.
        with self._lock:
            process = self._by_key.get(key)
            if process is not None and process.admit(channel):
                return
            process = SharedProcess(launch, new_switchboard())
            process.admit(channel)
            self._by_key = {known: one for known, one in self._by_key.items() if one.child.exit is None}
            self._by_key[key] = process
        process.child.start()
