"""One run, from params to `done`: the generator behind `execute()`.

It works in the consumer's thread on a private copy of the runtime: what the child writes arrives here as raw
chunks, is cut into lines, parsed and mapped, and leaves as events. All state of the run is in this frame.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, get_args

import attrs

from .. import errors
from ..ndjson import LineFramer, pieces_of
from ..process.child import ChildProcess
from ..process.ending import EndReason
from ..process.launch import SpawnFailure
from ..redaction import Redactor, secret_values
from ..types import (
    AgentDoneEvent,
    AgentErrorEvent,
    AgentEvent,
    AgentExecuteParams,
    AgentRunResult,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
)
from .agent_run import RunControl
from .outcome import Evidence, judge
from .python_tools import with_gateway
from .resources import GivenUp, RunResources

if TYPE_CHECKING:
    from .base import CLIRuntimeBase

logger = logging.getLogger(__name__)

EVENT_CLASSES = frozenset(get_args(AgentEvent))
new_object = object.__new__
set_text = AgentTextEvent.__dict__["text"].__set__

P = ParamSpec("P")
T = TypeVar("T")


class Tally:
    """What the consumer has been told so far."""

    def __init__(self, redact: Redactor) -> None:
        self.redact = redact
        self.started_at = time.monotonic()
        self.text_parts: list[str] = []
        self.errors: list[AgentErrorEvent] = []
        self.tools_open: set[str] = set()
        self.tools_used = False
        self.restarted = False
        self.finished = False
        self.finished_in_time = False

    def error(self, event: AgentErrorEvent) -> AgentErrorEvent:
        """Note an error that is about to be yielded, without the secrets it may quote."""
        message = self.redact(str(event.message))
        code = None if event.code is None else str(event.code)  # A hook may pass on what the CLI gave it: null, 429.
        if message != event.message or code != event.code:
            event = attrs.evolve(event, message=message, code=code)
        self.errors.append(event)
        return event

    @property
    def answered(self) -> bool:
        """Whether the agent said or did anything."""
        return self.tools_used or any(self.text_parts)


def drive(
    runtime: CLIRuntimeBase, params: AgentExecuteParams, control: RunControl
) -> Generator[AgentEvent, None, None]:
    """Run `runtime` (a private copy) once. See `CLIRuntimeBase.execute` for the contract."""
    tally = Tally(_redactor(params))
    signal = params.abort_signal
    if control.wanted_end is None and signal is not None and signal.is_set():
        control.request_end(EndReason.ABORTED)
    if control.wanted_end is EndReason.CLOSED:
        return
    child, failure = None, None
    start = control.wanted_end is None
    while start:
        due = None if params.deadline is None else tally.started_at + params.deadline
        with RunResources(control.end_wanted, signal, due) as resources:
            child, failure = _prepare(runtime, params, control, resources)
            if child is None:
                break
            # Entered last, left first: files are given back when the CLI is gone.
            resources.callback(child.close)
            control.attach(child)
            talk = Conversation(runtime, child, tally)
            ending, piece_of, append_text = child.ending, talk.piece_of, tally.text_parts.append
            child.start()  # After all else: from here on two threads want the interpreter.
            while (items := talk.next_items()) is not None:
                for item in items:
                    # Nearly every line: by the shortest way, and from this very frame. Each generator on the way out
                    # (`yield from`) costs 0.02 us an event; AgentTextEvent(piece) takes 0.29 us, most of it for being
                    # frozen, a bare object and its one slot 0.18.
                    piece = piece_of(item)
                    if type(piece) is str:
                        text_event = new_object(AgentTextEvent)
                        set_text(text_event, piece)
                        append_text(piece)
                        yield text_event
                    elif isinstance(piece, AgentThinkingEvent):
                        yield piece
                    else:
                        for event in talk.events_of(item):
                            if (noted := talk.note(event)) is not None:
                                yield noted
                            if ending.backlog_unwanted:
                                break
                    if ending.backlog_unwanted:
                        break
                yield from talk.settle()
            yield from _leave(runtime, child, tally, resources)
        failure = child.failure
        remedy = _remedy(runtime, tally, child)
        start = remedy is not None
        if remedy is not None:
            yield tally.error(remedy)
    if (child.ending.reason if child else control.wanted_end) is EndReason.CLOSED:
        control.result = _result(runtime, control, tally, child, "aborted")
        return
    yield from _end(runtime, params, control, tally, child, failure)


def _leave(runtime: CLIRuntimeBase, child: ChildProcess, tally: Tally, resources: RunResources) -> list[AgentEvent]:
    """Wait for the CLI's end, give back what it needed, and say what is worth a warning."""
    child.close()
    resources.close()
    warnings = []
    if resources.failure is not None:
        warnings.append(AgentErrorEvent(resources.failure, errors.CLI_WARNING))
    logger.debug("child %s: %s, exit code %s", child.pid, child.ending.reason, child.exit_code)
    if not child.ending.backlog_unwanted:
        warnings += _warnings(runtime, child)
    return [tally.error(warning) for warning in warnings]


def _remedy(runtime: CLIRuntimeBase, tally: Tally, child: ChildProcess) -> AgentErrorEvent | None:
    """The runtime's wish to start once more, if the first try failed before anything was said or done."""
    untouched = not tally.answered and not tally.restarted and runtime.outcome.terminal is None
    if not untouched or child.ending.reason is not EndReason.EXITED or child.exit_code == 0:
        return None
    warning = _ask(runtime.remedy, child.exit_code, tally.redact(child.diagnostics))
    if warning is not None:
        tally.restarted = True
    return warning


def _warnings(runtime: CLIRuntimeBase, child: ChildProcess) -> Iterable[AgentErrorEvent]:
    return _ask(lambda stderr: tuple(runtime.warnings_in(stderr)), child.diagnostics) or ()


def _ask(hook: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """What a hook says about a run that has ended; None if it raises, for `done` must come whatever happens."""
    try:
        return hook(*args, **kwargs)
    except Exception as error:
        # Not the exception itself: its message may quote a value of the environment.
        logger.error("%s raised %s", hook.__qualname__, type(error).__name__)
        return None


def _redactor(params: AgentExecuteParams) -> Redactor:
    secrets = secret_values(params.env)
    for server in params.mcp_servers.values():
        secrets += [*server.env.values(), *server.headers.values()]
    return Redactor(secrets)


def _prepare(
    runtime: CLIRuntimeBase, params: AgentExecuteParams, control: RunControl, resources: RunResources
) -> tuple[ChildProcess | None, SpawnFailure | None]:
    try:
        params = with_gateway(params, resources)
        return runtime.new_child(runtime.prepare(params, resources)), None
    except GivenUp as given_up:
        control.request_end(given_up.reason)
        return None, None
    except errors.RunSetupError as error:
        return None, SpawnFailure(error.code, str(error))
    except Exception as error:
        # Not the exception itself: a hook may put a value of the environment into its message.
        logger.error("preparing a run of %s failed: %s", type(runtime).__name__, type(error).__name__)
        return None, SpawnFailure(errors.SPAWN_FAILED, f"preparing the run failed: {type(error).__name__}: {error}")


class Conversation:
    """Everything that one child says: blocks of lines, items, events."""

    def __init__(self, runtime: CLIRuntimeBase, child: ChildProcess, tally: Tally) -> None:
        self._runtime = runtime
        self._child = child
        self._tally = tally
        self._framer = LineFramer(runtime.max_line_bytes)
        interpreter = runtime.interpreter()
        self._parse, self._extract, self.piece_of = interpreter.parse, interpreter.extract, interpreter.piece_of
        self._lines_skipped = 0
        self._exit_expected = False
        self._at_end = False

    def next_items(self) -> Iterable[Any] | None:
        """What the CLI has written next, to be parsed as it is taken; None when it is gone or nobody wants to hear
        more. Blocks."""
        if self._at_end or self._child.ending.backlog_unwanted:
            return None
        chunk = self._child.next_chunk()
        self._at_end = chunk is None
        block = self._framer.flush_block() if chunk is None else self._framer.push_block(chunk)
        if self._child.ending.backlog_unwanted:
            return None
        return () if block is None else itertools.chain.from_iterable(map(self._parse, pieces_of(block)))

    def events_of(self, item: Any) -> Sequence[AgentEvent]:
        """What an item means."""
        try:
            extracted: Any = self._extract(item)
        except Exception as error:  # noqa: BLE001 - a hook's mistake is an event, and the run goes on
            return (_hook_failure(self._runtime, error),)
        if extracted is None:
            return ()
        # The usual list before isinstance(), which takes 0.2 us to find that a list is none of six classes.
        if type(extracted) is list and len(extracted) == 1 and type(extracted[0]) in EVENT_CLASSES:
            return extracted
        if isinstance(extracted, AgentEvent):
            return (extracted,)
        return _each_of(self._runtime, extracted)

    def note(self, event: AgentEvent) -> AgentEvent | None:
        """Keep what the run's end needs to know of an event; None if the consumer is not to see it."""
        if type(event) is AgentThinkingEvent:
            return event
        try:
            return self._take_note(event)
        except Exception as error:  # noqa: BLE001 - a field of a wrong type
            return self._tally.error(_hook_failure(self._runtime, error))

    def _take_note(self, event: AgentEvent) -> AgentEvent | None:
        child, tally = self._child, self._tally
        if isinstance(event, AgentTextEvent):
            if not isinstance(event.text, str):
                raise TypeError(f"text must be a str, not {type(event.text).__name__}")
            tally.text_parts.append(event.text)
        elif isinstance(event, AgentToolUseEvent):
            tally.tools_used = True
            tally.tools_open.add(event.tool_id)
            child.tools_outstanding = True
        elif isinstance(event, AgentToolResultEvent):
            tally.tools_open.discard(event.tool_id)
            child.tools_outstanding = bool(tally.tools_open)
        elif isinstance(event, AgentErrorEvent):
            return tally.error(event)
        elif isinstance(event, AgentDoneEvent):
            self._runtime.take_reported_result(event.result)
            return None
        return event

    def settle(self) -> Iterable[AgentErrorEvent]:
        """After each chunk: look whether that was the CLI's last word, and whether lines were too long."""
        if self._child.ending.backlog_unwanted:
            return
        runtime, child, tally = self._runtime, self._child, self._tally
        if self._framer.lines_skipped != self._lines_skipped:
            self._lines_skipped = self._framer.lines_skipped
            message = f"skipped a line of over {runtime.max_line_bytes} bytes (max_line_bytes)"
            yield tally.error(AgentErrorEvent(message, errors.LINE_TOO_LONG))
        finished = runtime.outcome.terminal is not None
        if finished and not tally.finished:
            tally.finished_in_time = child.heard_in_time
        tally.finished = finished
        if finished or self._exit_expected:
            self._exit_expected = finished
            child.expect_exit(finished, runtime.linger)


def _each_of(runtime: CLIRuntimeBase, extracted: Iterable[AgentEvent]) -> list[AgentEvent]:
    """One by one: those that come before an exception are kept."""
    events: list[AgentEvent] = []
    try:
        if isinstance(extracted, str | bytes | Mapping):
            raise TypeError(f"a {type(extracted).__name__} is not an event")
        for event in extracted:
            if not isinstance(event, AgentEvent):
                raise TypeError(f"a {type(event).__name__} is not an event")
            events.append(event)
    except Exception as error:
        events.append(_hook_failure(runtime, error))
    return events


def _hook_failure(runtime: CLIRuntimeBase, error: Exception) -> AgentErrorEvent:
    logger.warning("extract_event of %s raised %s", type(runtime).__name__, type(error).__name__)
    return AgentErrorEvent(f"extract_event raised {type(error).__name__}: {error}", errors.EXTRACT_EVENT_FAILED)


def _end(
    runtime: CLIRuntimeBase,
    params: AgentExecuteParams,
    control: RunControl,
    tally: Tally,
    child: ChildProcess | None,
    failure: SpawnFailure | None,
) -> Generator[AgentEvent, None, None]:
    """The verdict: an error if there is one to tell, then `done`."""
    reason = (child.ending.reason if child else control.wanted_end) or EndReason.EXITED
    exit_code = child.exit_code if child else None
    diagnostics = tally.redact(child.diagnostics) if child else ""
    verdict = judge(
        Evidence(
            program=runtime.program,
            provider=runtime.provider,
            end_reason=reason,
            spawn_failure=_with_install_hint(runtime, failure),
            exit_code=exit_code,
            diagnostics=_presentable(runtime, diagnostics),
            outcome=runtime.outcome,
            finished_in_time=tally.finished_in_time,
            answered=tally.answered,
            expects_terminal=runtime.expects_terminal_event,
            errors_seen=tuple(tally.errors),
            timeout=runtime.timeout,
            deadline=params.deadline,
            explained_exit=_explained_exit(runtime, child, exit_code, diagnostics),
        )
    )
    # Built before the error is yielded: by then files are restored and the child is reaped, whatever comes next.
    result = _result(runtime, control, tally, child, verdict.error_subtype)
    control.result = result
    if verdict.error is not None:
        yield tally.error(verdict.error)
    yield AgentDoneEvent(result)


def _with_install_hint(runtime: CLIRuntimeBase, failure: SpawnFailure | None) -> SpawnFailure | None:
    if failure is not None and failure.code == errors.CLI_NOT_FOUND and runtime.install_hint:
        return SpawnFailure(failure.code, f"{failure.message}; {runtime.install_hint}")
    return failure


def _explained_exit(
    runtime: CLIRuntimeBase, child: ChildProcess | None, exit_code: int | None, diagnostics: str
) -> AgentErrorEvent | None:
    if child is None or child.failure is not None:
        return None
    explained = _ask(runtime.explain_exit, exit_code, diagnostics)
    return explained if isinstance(explained, AgentErrorEvent) else None


def _presentable(runtime: CLIRuntimeBase, stderr: str) -> str:
    shown = _ask(runtime.presentable, stderr) if stderr else ""
    return shown if isinstance(shown, str) else ""


def _result(
    runtime: CLIRuntimeBase,
    control: RunControl,
    tally: Tally,
    child: ChildProcess | None,
    error_subtype: str | None,
) -> AgentRunResult:
    outcome = runtime.outcome
    reason = child.ending.reason if child else control.wanted_end
    result = AgentRunResult(
        text="".join(tally.text_parts),
        session_id=outcome.session_id,
        duration_ms=round((time.monotonic() - tally.started_at) * 1000, 3),
        usage=outcome.usage,
        aborted=reason in (EndReason.ABORTED, EndReason.CLOSED),
        total_cost_usd=outcome.total_cost_usd,
        api_duration_ms=outcome.api_duration_ms,
        num_turns=outcome.num_turns,
        stop_reason=outcome.stop_reason,
        error_subtype=error_subtype,
        permission_denials=tuple(outcome.permission_denials),
        exit_code=child.exit_code if child else None,
        stderr=_presentable(runtime, tally.redact(child.diagnostics)) if child else "",
    )
    enriched = _ask(runtime.enrich_result, result)
    return enriched if isinstance(enriched, AgentRunResult) else result
