"""`SessionPool`: any number of conversations on a few warm processes."""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Unpack, cast

import attrs

from ._closeable import Closeable
from ._values import as_tuple, check_count, check_known, check_seconds, check_size
from .engine.live_session import LiveSession
from .engine.seats import Door, Seats, starts_alike
from .engine.turn import Turn
from .errors import SessionBusyError
from .portable.handover import HandedOver, Handover, Place, UnwantedError
from .portable.store import SessionStore
from .process.ending import EndReason
from .runtime import DEFAULT_IDLE_TIMEOUT, CLIRuntimeBase
from .session import AgentSession
from .types import AgentExecuteParams, AgentRunResult, LeaseFields, PermissionMode, RunFields

DEFAULT_WARM = 8  # Processes; each takes 140 to 220 MB.
MOST_KNOWN = 10_000  # Conversations without a process whose fields are remembered.
POOL_OPTIONS = ("max_warm", "idle_timeout", "spare", "session_store")  # Besides the fields of all sessions.
# The fields that each lease has for itself, because its process does not know about them.
LEASE_FIELDS = ("approve", "max_turns", "max_tool_calls", "max_tokens", "max_cost_usd", "budget")


@attrs.define(eq=False)
class _Conversation:
    """A conversation that has a process, had one until recently, or waits for one."""

    live: LiveSession
    door: Door
    given: LeaseFields  # The fields of the last lease.
    leases: weakref.WeakSet[_Lease] = attrs.field(init=False, factory=weakref.WeakSet)

    @property
    def is_wanted(self) -> bool:
        return len(self.leases) > 0 or self.door.is_used

    @property
    def memory(self) -> _Memory:
        now = self.live.fields
        given: LeaseFields = {**self.given, "model": now.model, "permission_mode": now.permission_mode}
        return _Memory(given, self.live.remembered)


@attrs.frozen
class _Memory:
    """What is remembered of a conversation whose process is gone."""

    given: LeaseFields
    remembered: set[tuple[str, str]]


class _Lease(AgentSession):
    """A session of a pool, as one user has leased it. Closing it leaves the process to the pool."""

    def __init__(
        self, pool: SessionPool, conversation: _Conversation, fields: AgentExecuteParams, moved: _Moved | None
    ) -> None:
        super().__init__(conversation.live)
        self._moved = moved
        self._pool = pool
        self._conversation = conversation
        self._own = {name: getattr(fields, name) for name in LEASE_FIELDS}
        self._turn: weakref.ref[Turn] | None = None
        self._is_closed = False
        conversation.leases.add(self)

    def close(self) -> None:
        """Give the session back to its pool, which keeps the process. If this user's turn is not over, it is aborted
        and the process is ended."""
        if not self._is_closed:
            self._is_closed = True
            turn = None if self._turn is None else self._turn()
            with contextlib.nullcontext() if self._moved is None else self._moved.saving(self):
                self._pool._take_back(self, self._conversation, None if turn is None or turn.is_over else turn)

    def warm(self) -> None:
        self._check_open()
        super().warm()

    def set_model(self, name: str | None) -> None:
        self._check_open()
        super().set_model(name)

    def set_permission_mode(self, mode: PermissionMode) -> None:
        self._check_open()
        super().set_permission_mode(mode)

    def new_turn(self, params: AgentExecuteParams | str, fields: RunFields) -> Turn:
        return self._noted(super().new_turn(params, fields))

    def next_turn(self, params: AgentExecuteParams, before: AgentRunResult) -> Turn | None:
        turn = super().next_turn(params, before)
        return None if turn is None else self._noted(turn)

    def _noted(self, turn: Turn) -> Turn:
        self._turn = weakref.ref(turn)
        turn.keeps = self  # Who drops the lease and keeps the turn still wants the conversation.
        return turn

    def _checked(self, params: AgentExecuteParams | str, fields: RunFields) -> AgentExecuteParams:
        self._check_open()
        return super()._checked(params, fields)

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("this session was given back to its pool; lease it again by its session_id")

    def _own_fields(self) -> AgentExecuteParams:
        return attrs.evolve(self._live.fields, **self._own)


class _Moved:
    """The lease's part in a session store: nobody else can have the session until it is saved."""

    def __init__(self, handover: Handover, provider: str, place: Place) -> None:
        self._handover, self._provider, self._place = handover, provider, place
        self._stack = contextlib.ExitStack()
        self._handed: HandedOver | None = None

    def fetch(self, session_id: str, let_go: Callable[[str], object]) -> None:
        """Fetch the session. Raises SessionBusyError if somebody else has it, SessionTransferError if it cannot be used
        here."""
        turn = self._handover.turn(self._key(session_id), self._place, is_unwanted=lambda: True, let_go=let_go)
        try:
            self._handed = self._stack.enter_context(turn)
        except UnwantedError:
            message = f"session {session_id} is leased already, here or on another machine"
            raise SessionBusyError(message) from None

    @contextlib.contextmanager
    def saving(self, lease: AgentSession) -> Iterator[None]:
        """Wraps the moment in which the pool takes the lease back, and saves the session after it."""
        with self._stack:
            yield
            session_id = lease.session_id
            if session_id is None:
                return  # There was no turn.
            if self._handed is None:
                self.fetch(session_id, lambda session_id: None)
            assert self._handed is not None
            self._handed.save(session_id, held=True)

    def drop(self) -> None:
        """Called if there is no lease after all."""
        self._stack.close()

    def _key(self, session_id: str) -> str:
        return f"{self._provider} {session_id}"


def _kept(memory: _Memory | None) -> LeaseFields:
    """The fields that a conversation keeps from lease to lease. The approver and the limits are not among them: a lease
    without an approver must not ask somebody else's."""
    given = {} if memory is None else {name: value for name, value in memory.given.items() if name not in LEASE_FIELDS}
    return cast(LeaseFields, given)


class SessionPool(Closeable):
    """Leases live sessions to any number of threads, on at most `max_warm` processes.

    A session that is given back (`close()`, or the end of its `with` block) keeps its process, so that the next lease
    by its `session_id` is answered at once. If another session needs a process and there is no room, the process that
    has been idle for longest is let go; its conversation gets another one when it is leased again. A turn that finds
    all processes busy waits for one, within its deadline; it can be aborted meanwhile.

    If sessions share a process (Codex), processes are counted, not sessions. Use the pool as a context manager, or
    `close()` it.

    Args:
        runtime: the agent.
        max_warm: the most processes at once.
        idle_timeout: seconds after which an idle process is let go; None keeps it.
        spare: how many processes are started before anybody asks, if there is room: for new conversations with the
            fields below, or with those of the last new lease.
        session_store: keeps the sessions themselves, for pools on several machines: a lease by `session_id` fetches
            the state in the store, unless it is here already, and the end of the lease saves the new state. Such a
            session can be leased only once at a time, over all machines; a second lease raises SessionBusyError.
        fields: for all sessions, as in `runtime.open_session()`; `session()` may give others.
    """

    def __init__(
        self,
        runtime: CLIRuntimeBase,
        *,
        max_warm: int = DEFAULT_WARM,
        idle_timeout: float | None = DEFAULT_IDLE_TIMEOUT,
        spare: int = 0,
        session_store: SessionStore | None = None,
        **fields: Unpack[LeaseFields],
    ) -> None:
        if not isinstance(runtime, CLIRuntimeBase):
            raise TypeError(f"runtime must be a runtime of an agent CLI, not {type(runtime).__name__}")
        check_known("a pool has no option", fields, [*POOL_OPTIONS, *LeaseFields.__annotations__])
        check_size("max_warm", max_warm)
        check_seconds("idle_timeout", idle_timeout)
        check_count("spare", spare)
        self._runtime = runtime
        self._agent = runtime.live_copy()  # Raises for a CLI without live sessions.
        self._idle_timeout = idle_timeout
        self._handover = None if session_store is None else Handover(session_store)
        self._fields = fields = _repeatable(fields)
        self._seats = Seats(max_warm, spare)
        self._conversations: list[_Conversation] = []
        self._known: OrderedDict[str, _Memory] = OrderedDict()
        self._is_closed = False
        self._open(None, fields)  # Raises for bad fields.
        self._stock(fields)

    def session(self, session_id: str | None = None, **fields: Unpack[LeaseFields]) -> AgentSession:
        """Lease a session: a new conversation, or the one with this id. Use it as a context manager, or `close()` it.

        A conversation that is leased twice is one conversation, with one turn at a time: a second turn raises
        SessionBusyError. Fields that are not given keep their values from this pool's last lease of the conversation
        (except for `approve`, the limits and the budget, which belong to one lease), or else have the pool's.
        Nothing is started here; but if changed fields need another process, the old one is let go first.
        Raises SessionBusyError if somebody else leases the conversation with other fields, ValueError or TypeError for
        bad arguments, RuntimeError if the pool is closed.
        """
        check_known("a session has no field", fields, LeaseFields.__annotations__)
        moved = self._moved(session_id, fields)
        try:
            return self._leased(session_id, fields, moved)
        except BaseException:
            if moved is not None:
                moved.drop()
            raise

    def _moved(self, session_id: str | None, fields: LeaseFields) -> _Moved | None:
        if self._handover is None:
            return None
        with self._seats.lock:
            known = None if session_id is None else self._find(session_id)
            memory = self._known.get(session_id or "") if known is None else known.memory
        given: LeaseFields = {**self._fields, **_kept(memory), **fields}
        place = Place(self._runtime, given.get("working_directory"), dict(given.get("env") or {}))
        moved = _Moved(self._handover, self._runtime.program, place)
        if session_id is not None:
            moved.fetch(session_id, self.cool)
        return moved

    def _leased(self, session_id: str | None, fields: LeaseFields, moved: _Moved | None) -> AgentSession:
        while True:
            with self._seats.lock:
                if self._is_closed:
                    raise RuntimeError("the pool is closed")
                self._tidy()
                conversation = None if session_id is None else self._find(session_id)
                memory = self._known.get(session_id or "") if conversation is None else conversation.memory
                given = _repeatable({**self._fields, **_kept(memory), **fields})
                opened = self._open(session_id, given)
                if conversation is not None and not self._adapt(conversation, opened):
                    replaced = conversation
                else:
                    conversation = conversation or self._enrol(opened, given, memory)
                    conversation.given = given
                    lease = _Lease(self, conversation, opened.fields, moved)
                    break
            self._retire(replaced)
        if session_id is None:
            self._stock(given)
        return lease

    def cool(self, session_id: str) -> bool:
        """Let this conversation's idle process go, so that others can resume it by its id. Blocks until it is gone.

        Returns whether there was a process. Raises SessionBusyError if the conversation has a turn.
        """
        with self._seats.lock:
            conversation = self._find(session_id)
        if conversation is None or conversation.live.pid is None:
            return False
        conversation.live.rest()
        with self._seats.lock:
            self._tidy()
        self._seats.look()
        return True

    def close(self) -> None:
        """Abort the running turns, and wait until all processes are gone (bounded: some seconds)."""
        with self._seats.lock:
            self._is_closed = True
            lives = [conversation.live for conversation in self._conversations]
            self._conversations = []
        for live in lives:
            live.begin_shut()
        for live in lives:
            live.shut()
        self._seats.close()

    # --- conversations ----------------------------------------------------------------------------------------

    def _open(self, session_id: str | None, given: LeaseFields) -> LiveSession:
        opened = self._runtime.open_session(session_id=session_id, idle_timeout=self._idle_timeout, **given)
        return opened._live

    def _find(self, session_id: str) -> _Conversation | None:
        return next((one for one in self._conversations if one.live.session_id == session_id), None)

    def _enrol(self, opened: LiveSession, given: LeaseFields, memory: _Memory | None) -> _Conversation:
        if memory is not None:
            opened.remembered = memory.remembered
        conversation = _Conversation(opened, Door(self._seats, opened, self._agent.shared_by(opened.fields)), given)
        self._conversations.append(conversation)
        return conversation

    def _adapt(self, conversation: _Conversation, opened: LiveSession) -> bool:
        """Give the conversation these fields if its process allows it. Returns whether it has them now."""
        live, wanted = conversation.live, opened.fields
        adapted = attrs.evolve(live.fields, model=wanted.model, permission_mode=wanted.permission_mode)
        is_alike = starts_alike(adapted, wanted)
        if conversation.is_wanted and not (is_alike and starts_alike(live.fields, wanted)):
            raise SessionBusyError("this session is leased with other fields; close that lease first")
        if not is_alike:
            return False
        if live.fields.model != wanted.model:
            live.set_model(wanted.model)
        if live.fields.permission_mode != wanted.permission_mode:
            live.set_permission_mode(wanted.permission_mode)
        return True

    def _forget(self, conversation: _Conversation) -> None:
        """Remove a conversation that no longer has a process, or should not have one. Its fields are kept."""
        self._conversations = [one for one in self._conversations if one is not conversation]
        name = conversation.live.session_id
        if name is not None:
            self._known[name] = conversation.memory
            self._known.move_to_end(name)
            while len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)

    def _retire(self, conversation: _Conversation) -> None:
        with self._seats.lock:
            self._forget(conversation)
        conversation.live.shut()
        self._seats.look()

    def _tidy(self) -> None:
        """Forget the conversations that nobody leases and that have no process, or no id to lease them by."""
        for one in list(self._conversations):
            if not one.is_wanted and (one.live.pid is None or one.live.session_id is None):
                self._forget(one)
                one.live.begin_shut()

    def _take_back(self, lease: _Lease, conversation: _Conversation, turn: Turn | None) -> None:
        live = conversation.live
        with self._seats.lock:
            conversation.leases.discard(lease)
            others_want_it = len(conversation.leases) > 0
            is_over = turn is None and live.session_id is not None
            if not is_over and not others_want_it:
                self._forget(conversation)
        if turn is not None:
            turn.request_end(EndReason.ABORTED)
        if not is_over and not others_want_it:
            live.shut()
            conversation.door.leave()  # Perhaps nobody iterates over the turn to its end.
        with self._seats.lock:
            self._tidy()
        self._seats.look()

    def _stock(self, given: LeaseFields) -> None:
        """Start processes for conversations with these fields."""
        runtime, agent = self._runtime, self._agent  # No reference to the pool, so that dropping it ends it.

        def new_spare() -> tuple[LiveSession, Hashable | None]:
            live = runtime.open_session(idle_timeout=None, **given)._live
            return live, agent.shared_by(live.fields)

        self._seats.stock(new_spare)


def _repeatable(given: LeaseFields) -> LeaseFields:
    """The same fields, with iterables as tuples, so that they can be used more than once."""
    return {**given, "tools": as_tuple(given.get("tools", ())), "extra_args": as_tuple(given.get("extra_args", ()))}
