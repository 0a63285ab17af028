"""From a chat message to an answer: one agent run per message, in the session of its conversation."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias, get_args

import attrs

from .. import errors
from .._closeable import Closeable
from .._values import (
    as_dict,
    as_tuple,
    check_choice,
    check_count,
    check_env,
    check_path,
    check_seconds,
    check_size,
    check_text,
)
from ..engine.agent_run import AgentRun, run_of
from ..engine.classify import RETRYABLE
from ..engine.meter import check_limits
from ..factory import create_cli_runtime
from ..limits import Budget
from ..portable.handover import UnwantedError
from ..portable.store import SessionStore
from ..process.abort_listener import AbortListener
from ..process.bell import Bell
from ..process.launch import UnreadInputError
from ..runtime import CLIRuntimeBase
from ..tool_server.server import DEFAULT_CALL_TIMEOUT, Gateway
from ..tool_server.tools import ToolLike, build_tools
from ..types import (
    AgentDeliveryResult,
    AgentDoneEvent,
    AgentErrorEvent,
    AgentEvent,
    AgentExecuteParams,
    AgentRunResult,
    AgentRuntime,
    AgentTextEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    BridgeCallbacks,
    ChannelMessage,
    McpServerConfig,
    McpSideEffects,
    PermissionMode,
    ReplyPayload,
)
from .delivery import DEFAULT_CHUNK_LIMIT, BlockStream, LengthUnit, payloads_from, split_chunks
from .moving import Moved, Moves, place_of
from .questions import AskInChat, ChatQuestion, Questions
from .sessions import AnyTurn, Conversation, SessionMap, Sessions
from .warm import Toolbox, WarmAgents

logger = logging.getLogger(__name__)

DEFAULT_CONCURRENT_RUNS = 16  # A CLI uses 150 to 600 MB of memory.
# Failures that another key may fix, and those that another provider may fix.
ROTATE_ON = frozenset({"auth", "billing", "rate_limit"})
FALL_BACK_ON = RETRYABLE | {"auth", "billing", "cli_missing", "config", "crash", "incomplete", "timeout", "unknown"}

# What happens to a message that arrives while the agent works on an earlier one of the same conversation.
WhileBusy: TypeAlias = Literal["queue", "steer", "interrupt", "reject"]
STILL_WORKING = "the agent is still working on an earlier message"
CLOSED = "the bridge is closed"


@attrs.frozen(kw_only=True)
class RetryPolicy:
    """How often, and how soon, to retry a run after a rate limit, an overload or a network failure."""

    attempts: int = 3  # Including the first.
    first_delay: float = 1.0
    factor: float = 2.0
    longest_delay: float = 30.0
    jitter: float = 0.2  # Random share of each delay, so that forty chats do not all retry at the same moment.

    def __attrs_post_init__(self) -> None:
        check_size("attempts", self.attempts)
        check_seconds("first_delay", self.first_delay)
        check_seconds("longest_delay", self.longest_delay)

    def delay(self, tries: int, retry_after: float | None = None) -> float | None:
        """Seconds to wait after this number of tries; never less than the vendor's `retry_after`.

        None if `retry_after` exceeds `longest_delay`: then there is no point in trying again.
        """
        if retry_after is not None and retry_after > self.longest_delay:
            return None
        delay = min(self.first_delay * self.factor ** (tries - 1), self.longest_delay)
        jittered = delay * (1 + random.uniform(-self.jitter, self.jitter))
        return max(jittered, retry_after or 0.0)


@attrs.frozen
class Route:
    """A runtime (or the name of a provider), with the model and the variables it needs."""

    runtime: AgentRuntime | str
    model: str | None = attrs.field(default=None, kw_only=True)
    env: Mapping[str, str | None] = attrs.field(factory=dict, converter=as_dict, kw_only=True, repr=False)

    def __attrs_post_init__(self) -> None:
        check_env("env", self.env, unset_ok=True)
        if self.model is not None:
            check_text("model", self.model)
        if isinstance(self.runtime, str):
            object.__setattr__(self, "runtime", create_cli_runtime(self.runtime))
        elif not isinstance(self.runtime, AgentRuntime) or isinstance(self.runtime, type):
            raise TypeError(f"runtime must be an AgentRuntime or a provider's name, not {self.runtime!r}")

    @property
    def provider(self) -> str:
        """The provider whose sessions these are."""
        return getattr(self.runtime, "provider", None) or type(self.runtime).__name__

    def execute(self, params: AgentExecuteParams) -> Iterator[AgentEvent]:
        """The runtime's own `execute()`."""
        assert not isinstance(self.runtime, str)
        return self.runtime.execute(params)


class ChannelBridge(Closeable):
    """Answers chat messages with agent runs, from any thread.

    Each conversation has one run at a time, in the order of the calls to `handle()`, even across processes that share
    the session map. Different conversations run in parallel, up to `max_concurrent_runs` in this process. A second
    attempt (after a lost session, by `retry`, with `env_alternatives` or `fallbacks`) is made only if the agent has not
    said or done anything yet.

    Args:
        runtime: the agent, or the name of a provider.
        session_map: a SessionMap, a path for one (`close()` then closes it), or the `session_map` of a Cluster.
        workspace_dir: where the agent works.
        chunk_limit, chunk_unit: how long a message of the channel may be, and the unit in which that is counted.
        tools: Python functions, `tool(...)`s and GatewayTools for the agent.
        mcp_servers, system_prompt, model, permission_mode, env, extra_args, deadline: for every run.
        max_turns, max_tool_calls, max_tokens, max_cost_usd: the limits of each run.
        budget: what all runs may use together. When it is used up, messages are answered with an error
            (`result.error_subtype` "limit") until its next period.
        call_timeout: how long one call of a Python tool may take, in seconds.
        max_concurrent_runs: how many runs this process may have at once.
        retry: try again after a rate limit, an overload or a network failure (default: no retry).
        env_alternatives: variables (such as another API key) to try in order when the first key is refused or used up.
        fallbacks: other agents to ask when this one cannot be reached; each has its own sessions.
        session_store: keeps the sessions themselves, for bridges on several machines. Each bridge fetches the
            conversation's state before a run, unless it already has it, and saves it afterwards. Use one store per bot.
        warm: how many processes of the (first) agent are kept between messages, in a `SessionPool`. With 0 each message
            gets its own process.
        while_busy: what happens to a message that arrives while the agent works on an earlier one of its conversation.
            "queue": it waits. "steer": the agent is given it as further words, and `handle()` returns at once; where
            that is not possible, it waits. "interrupt": the run is aborted, and the message is next. "reject":
            `handle()` returns at once, with an error.
        ask_in_chat: lets people in the conversation decide on the agent's tool calls. Either a function that sends them
            a `ChatQuestion`, or an `AskInChat`, which also sets whose answers count and how long to wait. The answer is
            such a person's next message, or a button passed to `answer()`. Without `ask_in_chat` nobody is asked.
    """

    def __init__(
        self,
        runtime: AgentRuntime | str,
        *,
        session_map: Sessions | str | os.PathLike[str],
        workspace_dir: str | os.PathLike[str],
        chunk_limit: int = DEFAULT_CHUNK_LIMIT,
        chunk_unit: LengthUnit = "characters",
        tools: Iterable[ToolLike] = (),
        mcp_servers: Mapping[str, McpServerConfig] | None = None,
        system_prompt: str | None = None,
        model: str | None = None,
        permission_mode: PermissionMode = "default",
        env: Mapping[str, str | None] | None = None,
        extra_args: Sequence[str] = (),
        deadline: float | None = None,
        max_turns: int | None = None,
        max_tool_calls: int | None = None,
        max_tokens: int | None = None,
        max_cost_usd: float | None = None,
        budget: Budget | None = None,
        call_timeout: float | None = DEFAULT_CALL_TIMEOUT,
        max_concurrent_runs: int = DEFAULT_CONCURRENT_RUNS,
        retry: RetryPolicy | None = None,
        env_alternatives: Sequence[Mapping[str, str | None]] = (),
        fallbacks: Sequence[AgentRuntime | str | Route] = (),
        session_store: SessionStore | None = None,
        warm: int = 0,
        while_busy: WhileBusy = "queue",
        ask_in_chat: AskInChat | Callable[[ChatQuestion], object] | None = None,
    ) -> None:
        check_path("workspace_dir", workspace_dir)
        split_chunks("", chunk_limit, chunk_unit)
        check_size("max_concurrent_runs", max_concurrent_runs)
        check_seconds("call_timeout", call_timeout)
        check_count("warm", warm)
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise TypeError(f"retry must be a RetryPolicy, not {type(retry).__name__}")
        if not isinstance(session_map, str | os.PathLike) and not hasattr(session_map, "turn"):
            raise TypeError(f"session_map must be a path or a session map, not {type(session_map).__name__}")
        check_choice("while_busy", while_busy, get_args(WhileBusy))
        self._while_busy = while_busy
        self.workspace_dir = os.path.abspath(workspace_dir)
        self._chunk_limit, self._chunk_unit = chunk_limit, chunk_unit
        self._tools: tuple[ToolLike, ...] = as_tuple(tools)
        build_tools(self._tools)
        self._call_timeout = call_timeout
        self._mcp_servers = dict(mcp_servers or {})
        self._params = AgentExecuteParams(
            "-",
            mcp_servers=self._mcp_servers,
            system_prompt=system_prompt,
            permission_mode=permission_mode,
            extra_args=as_tuple(extra_args),
            deadline=deadline,
            max_turns=max_turns,
            max_tool_calls=max_tool_calls,
            max_tokens=max_tokens,
            max_cost_usd=max_cost_usd,
            budget=budget,
            working_directory=self.workspace_dir,
        )
        first = Route(runtime, model=model, env=env or {})
        self._routes = [
            [first, *(attrs.evolve(first, env={**first.env, **other}) for other in env_alternatives)],
            *([other if isinstance(other, Route) else Route(other)] for other in fallbacks),
        ]
        for route in (route for routes in self._routes for route in routes):
            if isinstance(route.runtime, CLIRuntimeBase):
                check_limits(route.runtime, attrs.evolve(self._params, model=route.model))
        self._warm = WarmAgents(_live(first.runtime), warm, self._tools, call_timeout) if warm else None
        self._is_closed = False  # Set only if there are warm processes: without them, messages cannot be answered.
        self._moves = Moves(session_store)
        self._questions = None
        if ask_in_chat is not None:
            how = ask_in_chat if isinstance(ask_in_chat, AskInChat) else AskInChat(ask_in_chat)
            self._questions = Questions(how, chunk_limit, chunk_unit)
            if not _can_ask(first):
                raise errors.UnsupportedOperationError(f"{first.provider} cannot ask: it has no live sessions")
        self._retry = retry
        self._slots = _Slots(max_concurrent_runs)
        self._jobs = _Jobs()
        self._owns_sessions = isinstance(session_map, str | os.PathLike)
        self.session_map: Sessions = (
            SessionMap(session_map) if isinstance(session_map, str | os.PathLike) else session_map
        )

    def close(self) -> None:
        """Close the session map, if it was made here, and end the warm processes with the runs on them. Other runs
        continue."""
        if self._warm is not None:
            self._is_closed = True
            self._warm.close()
        if self._owns_sessions:
            self.session_map.close()

    def conversation(self, message: ChannelMessage) -> Conversation:
        """The conversation a message belongs to."""
        if not isinstance(message, ChannelMessage):
            raise TypeError(f"message must be a ChannelMessage, not {type(message).__name__}")
        return Conversation.of(message, self.workspace_dir)

    def abort(self, conversation: Conversation | ChannelMessage) -> int:
        """Stop a conversation's run and those waiting behind it, in this process. Returns how many. Does not block."""
        if isinstance(conversation, ChannelMessage):
            conversation = self.conversation(conversation)
        jobs = self._jobs.of(conversation)
        for job in jobs:
            job.abort()
        return len(jobs)

    def forget(self, conversation: Conversation | ChannelMessage) -> None:
        """Start the next run of this conversation in a new session."""
        if isinstance(conversation, ChannelMessage):
            conversation = self.conversation(conversation)
        for job in self._jobs.of(conversation):
            job.is_forgotten = job.has_begun
        for routes in self._routes:
            session_id = None if self._warm is None else self.session_map.get(routes[0].provider, conversation)
            self.session_map.forget(routes[0].provider, conversation)
            if self._warm is not None and session_id is not None:
                self._warm.let_go(session_id)
            self._moves.forget(routes[0].provider, conversation)

    def arrive(self, message: ChannelMessage) -> AnyTurn:
        """Reserve this message's place in its conversation now, for a later call of `handle()` in any thread.

        For a dispatcher that receives messages in order and hands them to a thread pool, whose threads start in any
        order. If you do not handle a turn, call `turn.leave()` at once: others wait for as long as it is held.
        """
        return self.session_map.turn(self.conversation(message))

    def answer(self, data: str, sender: str) -> bool:
        """Pass on that somebody has pressed the button with this data (see `ask_in_chat`).

        Returns True if that answered a question that was still open, by a person who may answer it.
        """
        return self._questions is not None and self._questions.press(data, sender)

    def handle(
        self,
        message: ChannelMessage,
        callbacks: BridgeCallbacks | None = None,
        abort_signal: threading.Event | None = None,
        *,
        turn: AnyTurn | None = None,
    ) -> AgentDeliveryResult:
        """Run the agent on this message and return what to deliver. Blocks while it waits for its turn and runs.

        `payloads` hold the whole answer, including what the callbacks already got: deliver one or the other. A failed
        run does not raise but sets `result.error`; bad arguments raise ValueError or TypeError. The run continues even
        if the session map cannot be used: `result.warnings` lists what will not be remembered. Setting `abort_signal`
        stops the run, or the wait for it. `turn` is what `arrive()` returned for this message.
        """
        place = turn
        try:
            if self._is_closed:
                if place is not None:
                    place.leave()
                return AgentDeliveryResult((), _ABORTED, error=CLOSED)
            conversation = self.conversation(message)
            if turn is not None and turn.conversation != conversation:
                place = None  # The turn stays with its own message.
                raise ValueError("turn was taken for another conversation")
            if place is None or not place.is_held:
                place = self.session_map.turn(conversation)
            with place:
                if self._questions is not None and self._questions.take(message, place.taken_at):
                    return AgentDeliveryResult((), AgentRunResult(), handled_as="answer")
                at_once = self._while_another_runs(message, conversation, place)
                if at_once is not None:
                    return at_once
                params = attrs.evolve(self._params, prompt=_prompt(message), abort_signal=abort_signal)
                job = _Job(conversation, place, _Memory(self.session_map, conversation))
                with self._jobs.entered(job), _listening(abort_signal, job.abort), self._slots.entered(job):
                    if place.wait(job.aborted.is_set) and self._slots.wait(job):
                        return self._answer(message, params, job, callbacks or BridgeCallbacks())
            return AgentDeliveryResult((), _ABORTED, error="the run was aborted before it began")
        except BaseException:
            # A signal handler may have raised in the middle of leaving; leaving twice does no harm.
            if place is not None:
                place.leave()
            raise

    def _while_another_runs(
        self, message: ChannelMessage, conversation: Conversation, place: AnyTurn
    ) -> AgentDeliveryResult | None:
        """The result for a message that is not first in the line; None if it should wait for its turn."""
        if self._while_busy == "queue" or place.is_first:
            return None
        if self._while_busy == "reject":
            refused = AgentRunResult(error_subtype="session_busy")
            return AgentDeliveryResult((), refused, error=STILL_WORKING, handled_as="rejected")
        running = [job for job in self._jobs.of(conversation) if job.turn.is_first]
        if self._while_busy == "interrupt":
            for job in running:
                job.abort()
            return None
        # Earlier messages in the line must not be overtaken.
        if place.ahead() == 1 and any(job.steer(_prompt(message)) for job in running):
            return AgentDeliveryResult((), AgentRunResult(), handled_as="steered")
        return None

    # --- one message ----------------------------------------------------------------------------------------

    def _answer(
        self, message: ChannelMessage, params: AgentExecuteParams, job: _Job, callbacks: BridgeCallbacks
    ) -> AgentDeliveryResult:
        params = attrs.evolve(params, abort_signal=job.aborted)
        if self._questions is not None:
            params = attrs.evolve(params, approve=self._questions.approver(message, job))
        if self._warm is None:
            box = Toolbox(self._tools, message)
        else:
            box, tools = self._warm.toolbox(job.conversation, message)
            params = attrs.evolve(params, tools=tools)
        narrator = _Narrator(callbacks, self._chunk_limit, self._chunk_unit, box.sent_here)
        with contextlib.ExitStack() as stack:
            calls_before, gateway = box.calls_made, None
            try:
                if box.tools and self._warm is None:
                    gateway = stack.enter_context(_serving(box.tools, self._call_timeout))
                    params = attrs.evolve(params, mcp_servers=gateway.mcp_servers(self._mcp_servers))
            except (OSError, RuntimeError) as failure:  # No space for its folder, no descriptor, no thread.
                result, error = narrator.failed(failure, errors.SPAWN_FAILED)
            else:
                acted = (lambda: box.calls_made > calls_before) if gateway is None else lambda: gateway.calls_made > 0
                result, error = self._run(params, job, narrator, acted)
        narrator.finish()
        # Only after the gateway is closed, so that a message that was just being sent is on record.
        payloads = payloads_from(narrator.blocks(), self._chunk_limit, self._chunk_unit, box.sent_here())
        effects = _merged([source.drain() for source in box.sources])
        return AgentDeliveryResult(payloads, result, effects, error, job.warnings())

    def _run(
        self, params: AgentExecuteParams, job: _Job, narrator: _Narrator, acted: Callable[[], bool]
    ) -> tuple[AgentRunResult, str | None]:
        """Run the agent; retry it or ask another one while that makes sense. Returns the last result and its error."""
        job.has_begun = True  # Before the session is looked up.
        for routes in self._routes:
            tries, key, afresh = 0, 0, False
            while True:
                route = routes[key]
                try:
                    with self._moved(route, job) as moved:
                        session_id = None if afresh else moved.session(job.memory.session(route.provider))
                        asked = attrs.evolve(params, prompt="\n\n".join((params.prompt, *job.words)))
                        result, error = self._run_once(route, asked, session_id, job, narrator)
                        moved.keep(result)
                except UnwantedError:
                    return _ABORTED, "the run was aborted before it began"
                except (errors.SessionTransferError, errors.SessionBusyError) as failure:
                    return _not_moved(failure), str(failure)
                if result.ok or narrator.said_or_done or acted() or job.aborted.is_set():
                    return result, error
                kind = result.error_subtype
                logger.info("a run of %s failed (%s) before it said or did anything", route.provider, kind)
                if kind == "session_not_found" and session_id is not None:
                    afresh = not moved.fetch_again()
                    if afresh:
                        job.memory.forget(route.provider, session_id)
                    continue
                if kind in ROTATE_ON and key + 1 < len(routes):
                    key += 1
                    continue
                tries += 1
                if self._retry is None or kind not in RETRYABLE or tries >= self._retry.attempts:
                    break
                pause = self._retry.delay(tries, result.retry_after)
                if pause is None:
                    break  # Too long for somebody waiting for an answer; another agent may be sooner.
                if job.aborted.wait(pause):
                    return _ABORTED, "the run was aborted"
                key = 0
            if kind not in FALL_BACK_ON:
                break
        return result, error

    def _run_once(
        self, route: Route, params: AgentExecuteParams, session_id: str | None, job: _Job, narrator: _Narrator
    ) -> tuple[AgentRunResult, str | None]:
        params = attrs.evolve(params, env=route.env, model=route.model)
        if params.approve is not None and not _can_ask(route):
            params = attrs.evolve(params, approve=None)  # A fallback: what it would have to ask for, it may not do.
        events = None
        narrator.begin()
        try:
            events = _begun(self._way_to(route), params, session_id)
            job.run = events if isinstance(events, AgentRun) else run_of(events)
            for event in events:
                narrator.take(event)
        except Exception as error:
            if events is None and isinstance(error, (TypeError, ValueError)):
                raise  # Bad arguments.
            if events is None and self._is_closed:
                return _ABORTED, CLOSED
            # Our runtimes never raise; this one is foreign, and what it has said so far still counts as an answer.
            logger.exception("the runtime %s failed", route.provider)
            narrator.failed(error, errors.CLI_ERROR)
        finally:
            job.run = None
            _close(events)
        result = narrator.result
        if result.session_id and result.error_subtype != "session_not_found":
            job.memory.keep(route.provider, result.session_id)
            if job.is_forgotten:
                job.memory.forget(route.provider, result.session_id)
                if self._warm is not None:
                    self._warm.let_go(result.session_id)
        return result, narrator.error

    @contextlib.contextmanager
    def _moved(self, route: Route, job: _Job) -> Iterator[Moved]:
        """The session of the run, brought up to date from the store."""
        let_go = self._warm.let_go if self._warm is not None and self._is_warm(route) else None
        place = place_of(route.runtime, self.workspace_dir, dict(route.env))
        moves = self._moves.run(route.provider, job.conversation, place, is_unwanted=job.aborted.is_set, let_go=let_go)
        with moves as moved:
            try:
                yield moved
            finally:
                job.memory.warnings += moved.warnings

    def _is_warm(self, route: Route) -> bool:
        return self._warm is not None and any(route is one for one in self._routes[0])

    def _way_to(self, route: Route) -> Execute:
        return self._warm.execute if self._warm is not None and self._is_warm(route) else route.execute


_ABORTED = AgentRunResult(aborted=True, error_subtype="aborted")


def _not_moved(failure: errors.SessionTransferError | errors.SessionBusyError) -> AgentRunResult:
    is_busy = isinstance(failure, errors.SessionBusyError)
    return AgentRunResult(error_subtype="session_busy" if is_busy else "config")


Execute: TypeAlias = Callable[[AgentExecuteParams], Iterator[AgentEvent]]


def _live(runtime: AgentRuntime | str) -> CLIRuntimeBase:
    if not isinstance(runtime, CLIRuntimeBase):
        raise TypeError(f"warm needs a runtime of an agent CLI, not {type(runtime).__name__}")
    return runtime


def _can_ask(route: Route) -> bool:
    """Whether the agent can wait for an answer."""
    if not isinstance(route.runtime, CLIRuntimeBase):
        return True  # We cannot know, so assume that it can.
    try:
        return route.runtime.transport != "oneshot" and bool(route.runtime.live_copy())
    except errors.UnsupportedOperationError:
        return False


def _begun(execute: Execute, params: AgentExecuteParams, session_id: str | None) -> Iterator[AgentEvent]:
    """The events of a run in that session, or in a new one if this runtime does not accept the id."""
    try:
        return execute(attrs.evolve(params, session_id=session_id))
    except (TypeError, ValueError):
        if session_id is None:
            raise
    # Others may write to the session map's file too. The id is not logged: it may contain anything.
    logger.warning("the session map has something that is not a session id of this agent")
    return execute(params)


def _close(events: Iterator[AgentEvent] | None) -> None:
    if callable(close := getattr(events, "close", None)):
        try:
            close()
        except Exception:
            # We already have the answer.
            logger.exception("a runtime's events could not be closed")


@contextlib.contextmanager
def _serving(tools: list[ToolLike], call_timeout: float | None) -> Iterator[Gateway]:
    gateway = Gateway(tools, call_timeout=call_timeout).__enter__()
    try:
        yield gateway
    finally:
        try:
            gateway.close()
        except OSError:
            # The answer must not be lost because a folder cannot be removed.
            logger.exception("the gateway could not be closed")


def _prompt(message: ChannelMessage) -> str:
    """The channel's extra context, the message, and the URLs attached to it."""
    attached = [f"[attached: {url}]" for url in message.media_urls]
    parts = [message.extra_context or "", message.text, "\n".join(attached)]
    return "\n\n".join(part for part in parts if part)


def _merged(effects: list[McpSideEffects]) -> McpSideEffects:
    return McpSideEffects(
        sent_texts=tuple(text for one in effects for text in one.sent_texts),
        sent_media_urls=tuple(url for one in effects for url in one.sent_media_urls),
        sent_targets=tuple(target for one in effects for target in one.sent_targets),
        cron_adds=sum(one.cron_adds for one in effects),
    )


@contextlib.contextmanager
def _listening(signal: threading.Event | None, on_set: Callable[[], None]) -> Iterator[None]:
    if signal is None:
        yield
        return
    listener = AbortListener(signal, on_set)
    listener.attach()
    try:
        yield
    finally:
        listener.detach()


class _Narrator:
    """Calls the callbacks in order and collects the answer. One per message, however many runs it takes."""

    def __init__(self, callbacks: BridgeCallbacks, limit: int, unit: LengthUnit, sent: Callable[[], list[str]]) -> None:
        self._callbacks = callbacks
        self._sent = sent
        self._stream = BlockStream(limit, unit)
        self._blocks: list[list[str]] = [[]]
        self._errors: list[AgentErrorEvent] = []
        self._result: AgentRunResult | None = None
        self.said_or_done = False

    def begin(self) -> None:
        """Another run starts; the previous one said nothing."""
        self._errors, self._result = [], None

    def take(self, event: AgentEvent) -> None:
        if isinstance(event, AgentTextEvent):
            self._text(event.text)
        elif isinstance(event, AgentToolUseEvent):
            self.said_or_done = True
            self._end_block()
        elif isinstance(event, AgentToolResultEvent):
            _tell(self._callbacks.on_tool_result, ReplyPayload(event.output, is_error=event.is_error))
        elif isinstance(event, AgentErrorEvent):
            self._errors.append(event)
        elif isinstance(event, AgentDoneEvent):
            self._result = event.result

    def failed(self, error: Exception, code: str) -> tuple[AgentRunResult, str | None]:
        """End the run with an exception from outside."""
        self.take(AgentErrorEvent(f"{type(error).__name__}: {error}", code))
        return self.result, self.error

    def finish(self) -> None:
        self._end_block()

    def blocks(self) -> list[str]:
        """The parts of the answer between tool calls."""
        return ["".join(parts) for parts in self._blocks]

    @property
    def result(self) -> AgentRunResult:
        """The run's own result, or a makeshift one if it ended without a `done`."""
        if self._result is not None:
            return self._result
        return AgentRunResult(text="".join(self.blocks()), error_subtype="crash" if self._errors else "incomplete")

    @property
    def error(self) -> str | None:
        """Why the run failed; None if it did not."""
        if self.result.ok:
            return None
        # The last one is the cause: a CLI reports its retries before it gives up.
        causes = [event for event in self._errors if event.code not in errors.SURVIVABLE] or self._errors
        return causes[-1].message if causes else f"the run failed ({self.result.error_subtype})"

    def _text(self, text: str) -> None:
        if not text:
            return
        self.said_or_done = True
        self._blocks[-1].append(text)
        _tell(self._callbacks.on_partial_reply, ReplyPayload(text))
        if self._callbacks.on_block_reply is not None:
            self._reply(self._stream.push(text))

    def _end_block(self) -> None:
        if self._blocks[-1]:
            self._blocks.append([])
        if self._callbacks.on_block_reply is not None:
            self._reply(self._stream.flush(self._sent()))

    def _reply(self, texts: list[str]) -> None:
        for text in texts:
            _tell(self._callbacks.on_block_reply, ReplyPayload(text))


def _tell(callback: Callable[[ReplyPayload], object] | None, payload: ReplyPayload) -> None:
    if callback is None:
        return
    try:
        callback(payload)
    except Exception:
        # A callback's failure must not end the run, and the result has the answer too.
        logger.exception("a callback of the bridge failed")


# --- what is remembered --------------------------------------------------------------------------------------


class _Memory:
    """The sessions of one conversation. If the map cannot be used, they are not remembered, but the run continues."""

    def __init__(self, sessions: Sessions, conversation: Conversation) -> None:
        self._sessions = sessions
        self._conversation = conversation
        self.warnings: list[str] = []

    def session(self, provider: str) -> str | None:
        """The session to continue; None if there is none or the map cannot be used."""
        with self._survived("the conversation could not be looked up, so it starts afresh"):
            return self._sessions.get(provider, self._conversation)
        return None

    def keep(self, provider: str, session_id: str) -> None:
        with self._survived("the conversation could not be stored, so the next message may not continue it"):
            self._sessions.set(provider, self._conversation, session_id)

    def forget(self, provider: str, session_id: str) -> None:
        with self._survived("a lost session could not be forgotten"):
            self._sessions.forget(provider, self._conversation, session_id)

    @contextlib.contextmanager
    def _survived(self, consequence: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.warnings.append(_in_words(consequence, error))
            logger.warning("%s", self.warnings[-1])


def _in_words(consequence: str, error: Exception) -> str:
    return f"{consequence}: {type(error).__name__}: {error}"


# --- who runs, who waits -------------------------------------------------------------------------------------
# A signal handler may raise anywhere in here. So nothing is counted: the jobs are in a list of weak references, and a
# reference to a job that is gone drops out by itself.

LOOK_AGAIN = 1.0  # Seconds; a safety net in case the bell could not be rung.


class _Job:
    """A message that is being answered or is waiting to be answered."""

    def __init__(self, conversation: Conversation, turn: AnyTurn, memory: _Memory) -> None:
        self.conversation = conversation
        self.turn = turn
        self.memory = memory
        self.aborted = threading.Event()
        self.run: AgentRun | None = None  # The current run.
        self.words: list[str] = []  # That were given to a run. If that is tried again, they are part of its prompt.
        self.has_begun = False
        self.is_forgotten = False  # Its session is not to be continued.
        self.bell = Bell()  # Rings for a free slot or an abort.

    def abort(self) -> None:
        self.aborted.set()
        self.bell.ring()
        self.turn.wake()

    @property
    def is_over(self) -> bool:
        """Whether the run no longer waits for an answer."""
        run = self.run
        return self.aborted.is_set() or (run is not None and run.is_ending)

    def wait(self, seconds: float) -> bool:
        """Wait until somebody rings, for at most this many seconds."""
        return self.bell.wait(seconds)

    def wake(self) -> None:
        """Make the waiting thread check again."""
        self.bell.ring()

    def steer(self, words: str) -> bool:
        """Add these words to the running turn. Returns whether the agent takes them."""
        run = self.run
        try:
            if run is None or self.aborted.is_set():
                return False
            run.steer(words)
        except (errors.UnsupportedOperationError, UnreadInputError):
            return False
        self.words.append(words)
        return True

    def warnings(self) -> list[str]:
        """Everything that went wrong apart from the run."""
        if self.turn.fault is None:
            return self.memory.warnings
        return [_in_words("other processes may not have waited", self.turn.fault), *self.memory.warnings]


class _Jobs:
    """The jobs of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: weakref.WeakSet[_Job] = weakref.WeakSet()

    @contextlib.contextmanager
    def entered(self, job: _Job) -> Iterator[None]:
        with self._lock:
            self._jobs.add(job)
        try:
            yield
        finally:
            with self._lock:
                self._jobs.discard(job)

    def of(self, conversation: Conversation) -> list[_Job]:
        with self._lock:
            return [job for job in self._jobs if job.conversation == conversation]


class _Slots:
    """Limits concurrent runs: the first `count` in the line may run, the others wait in order of arrival."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._count = count
        self._line: list[weakref.ref[_Job]] = []

    @contextlib.contextmanager
    def entered(self, job: _Job) -> Iterator[None]:
        """On leaving the block, take the job out of the line if it joined it."""
        try:
            yield
        finally:
            with self._lock:
                self._line = [one for one in self._line if one() not in (None, job)]
            for other in self._admitted():
                other.bell.ring()

    def wait(self, job: _Job) -> bool:
        """Wait for a slot; False if the job is aborted first."""
        with self._lock:
            self._line.append(weakref.ref(job))
        while not job.aborted.is_set():
            if job in self._admitted():
                return True
            job.bell.wait(LOOK_AGAIN)
        return False

    def _admitted(self) -> list[_Job]:
        with self._lock:
            there = [job for one in self._line if (job := one()) is not None]
        return there[: self._count]
